// Times steps in which every rank of one site sends one message to its partner at the other, and goes on when all have
// their answers. For tools/measure-steps.py.
//
//   steps REPEATS KiB...
//
// Prints: steps KiB SECONDS, once for each step; the first of each size counts as well.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static void step(int sends, int peer, char *buffer, int bytes)
{
    char word = 0;
    if (sends) {
        MPI_Send(buffer, bytes, MPI_BYTE, peer, 0, MPI_COMM_WORLD);
        MPI_Recv(&word, 1, MPI_BYTE, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Recv(buffer, bytes, MPI_BYTE, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(&word, 1, MPI_BYTE, peer, 1, MPI_COMM_WORLD);
    }
}

int main(int argc, char **argv)
{
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc < 3 || size % 2 != 0) {
        fprintf(stderr, "steps REPEATS KiB..., by an even number of ranks\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    int half = size / 2;
    MPI_Comm site;
    MPI_Comm_split(MPI_COMM_WORLD, rank / half, rank, &site);
    for (int arg = 2; arg < argc; arg++) {
        int bytes = atoi(argv[arg]) * 1024;
        char *buffer = calloc((size_t)bytes + 1, 1);
        for (int repeat = 0; buffer != NULL && repeat < atoi(argv[1]); repeat++) {
            MPI_Barrier(site);
            double begin = MPI_Wtime();
            step(rank < half, (rank + half) % size, buffer, bytes);
            MPI_Barrier(site);
            if (rank == 0) {
                printf("steps %d %.6f\n", bytes / 1024, MPI_Wtime() - begin);
            }
        }
        free(buffer);
    }
    MPI_Finalize();
    return 0;
}
