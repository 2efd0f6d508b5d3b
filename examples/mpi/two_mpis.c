// Two applications, each with an MPI of its own: messages from rank to rank, then an array, then a file.
//
//   mpiexec -n 2 ./two_mpis 1 file:/shared/at COPY           # at one site
//   mpiexec -n 3 ./two_mpis 2 file:/shared/at SOURCE         # at the other, perhaps with another MPI
//
// Part 2 sends the array and the file. two_mpis.f90 and two_mpis.py do the same, and couple with this program.
//
//   mpicc two_mpis.c -o two_mpis $(pkg-config --cflags --libs isthmus-mpi)
#include <isthmus-mpi.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { NUMBERS = 1000, TAG = 7 };

static void check(int status)
{
    if (status == ISTHMUS_MPI_SUCCESS)
        return;
    fprintf(stderr, "two_mpis: %s\n", isthmus_mpi_last_error());
    MPI_Abort(MPI_COMM_WORLD, 3);
}

static void must_be(int right, const char *what)
{
    if (right)
        return;
    fprintf(stderr, "two_mpis: %s\n", what);
    MPI_Abort(MPI_COMM_WORLD, 3);
}

// Every rank tells every rank of the other side its number, and hears theirs.
static void greet(isthmus_mpi_coupling *coupling, int64_t rank)
{
    for (int there = 0; there < isthmus_mpi_remote_ranks(coupling); there++) {
        isthmus_mpi_request *request;
        int64_t heard = -1;
        check(isthmus_mpi_ireceive(coupling, &heard, sizeof heard, there, TAG, &request));
        check(isthmus_mpi_send(coupling, &rank, sizeof rank, there, TAG));
        check(isthmus_mpi_wait(&request, NULL));
        must_be(heard == there, "another rank's number");
    }
}

// Numbers that each application's ranks hold in equal shares and a rest.
static void pass_numbers(isthmus_mpi_coupling *coupling, int sends, int rank, int ranks)
{
    int first = NUMBERS * rank / ranks, count = NUMBERS * (rank + 1) / ranks - first;
    double numbers[NUMBERS];
    int64_t bytes = count * (int64_t)sizeof *numbers;
    for (int i = 0; i < count; i++)
        numbers[i] = sends ? first + i : -1;
    check(sends ? isthmus_mpi_send_array(coupling, numbers, bytes, NULL, NULL)
                : isthmus_mpi_receive_array(coupling, numbers, bytes, NULL, NULL));
    for (int i = 0; i < count; i++)
        must_be(numbers[i] == first + i, "other numbers");
}

int main(int argc, char **argv)
{
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    must_be(argc == 4, "usage: two_mpis 1|2 PLACE FILE");
    int part = atoi(argv[1]);
    isthmus_mpi_coupling *coupling;
    struct isthmus_mpi_report report;
    check(isthmus_couple(MPI_COMM_WORLD, argv[2], part, NULL, 60, &coupling));
    greet(coupling, rank);
    pass_numbers(coupling, part == 2, rank, ranks);
    check(part == 2 ? isthmus_mpi_send_file(coupling, argv[3], 0, -1, NULL, &report)
                    : isthmus_mpi_receive_file(coupling, argv[3], -1, NULL, &report));
    if (rank == 0)
        printf("OK two_mpis: part %d in C, %d ranks there, %" PRId64 " bytes\n", part, isthmus_mpi_remote_ranks(coupling), report.bytes);
    check(isthmus_mpi_uncouple(coupling));
    MPI_Finalize();
    return 0;
}
