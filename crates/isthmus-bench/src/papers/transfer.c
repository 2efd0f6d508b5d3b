/* Sends a file from the ranks of one site to those of the other, in one MPI job whose first half sends.
 *   transfer SOURCE COPY BLOCK posix|mpiio IN_TURN MEMORY
 * Time counts as in the paper: it begins when all ranks of the first site begin, and ends when its rank 0 knows that
 * the file is written. Prints RESULT with a line of JSON.
 */
#include <isthmus-mpi.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int complain(int rank, int status)
{
    if (status != ISTHMUS_MPI_SUCCESS && rank == 0)
        fprintf(stderr, "transfer: %s\n", isthmus_mpi_last_error());
    return status;
}

int main(int argc, char **argv)
{
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 7 || ranks % 2) {
        fprintf(stderr, "usage: transfer SOURCE COPY BLOCK posix|mpiio IN_TURN MEMORY, with an even number of ranks\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    int half = ranks / 2, sends = rank < half;
    MPI_Comm side, other;
    MPI_Comm_split(MPI_COMM_WORLD, sends, rank, &side);
    MPI_Intercomm_create(side, 0, MPI_COMM_WORLD, sends ? half : 0, 1, &other);
    isthmus_mpi_coupling *coupling = NULL;
    struct isthmus_mpi_options options = {.block = strtoll(argv[3], NULL, 10), .memory = strtoll(argv[6], NULL, 10)};
    options.io = strcmp(argv[4], "mpiio") == 0 ? ISTHMUS_MPI_MPIIO : ISTHMUS_MPI_POSIX;
    options.in_turn = atoi(argv[5]);
    options.direct = ISTHMUS_MPI_CACHED;
    struct isthmus_mpi_report report = {0};
    int in_side, status = complain(rank % half, isthmus_mpi_couple(side, other, &coupling));
    MPI_Comm_rank(side, &in_side);
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    if (status == ISTHMUS_MPI_SUCCESS && sends)
        status = isthmus_mpi_send_file(coupling, argv[1], 0, -1, &options, &report);
    else if (status == ISTHMUS_MPI_SUCCESS)
        status = isthmus_mpi_receive_file(coupling, argv[2], -1, &options, &report);
    double seconds = MPI_Wtime() - start;
    complain(in_side, status);
    if (rank == 0 && status == ISTHMUS_MPI_SUCCESS)
        printf("RESULT {\"seconds\": %.6f, \"transfer_s\": %.6f, \"sent_s\": %.6f, \"bytes\": %" PRId64 "}\n", seconds,
               report.seconds, report.sent_seconds, report.bytes);
    fflush(stdout);
    if (coupling)
        isthmus_mpi_uncouple(coupling);
    if (status != ISTHMUS_MPI_SUCCESS)
        MPI_Abort(MPI_COMM_WORLD, 3);
    MPI_Finalize();
    return 0;
}
