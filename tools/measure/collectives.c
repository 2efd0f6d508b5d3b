// Times collectives as the program calls them (MPI_) and by the MPI itself (PMPI_), in turn, with the ranks in blocks and
// alternating between two sites. For tools/measure-collectives.py, which preloads the library.
//
//   collectives REPEATS START_MS MiB...
//
// All ranks begin at one time of the clock, which they share for they are on one machine; a collective ends when its last
// rank is done. Prints: ORDER NAME BYTES WHO SECONDS, once for each repeat.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROW = 10 };
enum { BARRIER, ALLREDUCE_SHORT, BCAST, REDUCE, ALLREDUCE, ALLGATHER, ALLTOALL, GATHER, SCATTER, KINDS };
static const char *const NAMES[KINDS] = {"barrier", "allreduce", "bcast", "reduce", "allreduce", "allgather", "alltoall", "gather", "scatter"};

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#define CALL(name, ...) (stock ? PMPI_##name(__VA_ARGS__) : MPI_##name(__VA_ARGS__))

static void call(int kind, int stock, MPI_Comm comm, char *from, char *to, int bytes)
{
    int doubles = bytes / (int)sizeof(double);
    switch (kind) {
    case BARRIER: CALL(Barrier, comm); break;
    case BCAST: CALL(Bcast, to, bytes, MPI_BYTE, 0, comm); break;
    case REDUCE: CALL(Reduce, from, to, doubles, MPI_DOUBLE, MPI_SUM, 0, comm); break;
    case ALLREDUCE_SHORT:
    case ALLREDUCE: CALL(Allreduce, from, to, doubles, MPI_DOUBLE, MPI_SUM, comm); break;
    case ALLGATHER: CALL(Allgather, from, bytes, MPI_BYTE, to, bytes, MPI_BYTE, comm); break;
    case ALLTOALL: CALL(Alltoall, from, bytes, MPI_BYTE, to, bytes, MPI_BYTE, comm); break;
    case GATHER: CALL(Gather, from, bytes, MPI_BYTE, to, bytes, MPI_BYTE, 0, comm); break;
    case SCATTER: CALL(Scatter, from, bytes, MPI_BYTE, to, bytes, MPI_BYTE, 0, comm); break;
    }
}

static double timed(int kind, int stock, MPI_Comm comm, char *from, char *to, int bytes, double start_s)
{
    int times = kind == BARRIER || kind == ALLREDUCE_SHORT ? ROW : 1;
    PMPI_Barrier(comm);
    double start = now_s() + start_s, end, last;
    PMPI_Bcast(&start, 1, MPI_DOUBLE, 0, comm);
    double left = start - now_s();
    if (left > 0)
        nanosleep(&(struct timespec){(time_t)left, (long)(1e9 * (left - (double)(time_t)left))}, NULL);
    else
        fprintf(stderr, "late by %.1f ms\n", -1e3 * left);
    for (int i = 0; i < times; i++)
        call(kind, stock, comm, from, to, bytes);
    end = now_s() - start;
    PMPI_Allreduce(&end, &last, 1, MPI_DOUBLE, MPI_MAX, comm);
    return last / times;
}

int main(int argc, char **argv)
{
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc < 4) {
        if (rank == 0)
            fputs("usage: collectives REPEATS START_MS MiB...\n", stderr);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    int repeats = atoi(argv[1]);
    double start_s = atof(argv[2]) / 1e3;
    int most = 0;
    for (int i = 3; i < argc; i++)
        most = atoi(argv[i]) > most ? atoi(argv[i]) : most;
    most <<= 20;
    int all = (1 << 20) * ranks > most ? (1 << 20) * ranks : most;
    char *from = malloc((size_t)all), *to = malloc((size_t)all);
    memset(from, 0, (size_t)all);
    memset(to, 0, (size_t)all);
    MPI_Comm comms[2];
    MPI_Comm_dup(MPI_COMM_WORLD, &comms[0]);
    // The launcher fills one site after the other.
    MPI_Comm_split(MPI_COMM_WORLD, 0, rank % (ranks / 2) * 2 + rank / (ranks / 2), &comms[1]);
    for (int order = 0; order < 2; order++)
        for (int kind = 0; kind < KINDS; kind++)
            for (int i = 3; i < argc; i++) {
                int bytes = kind == BARRIER ? 0 : kind == ALLREDUCE_SHORT ? 8 : atoi(argv[i]) << 20;
                // Of these each rank has so much; one size is enough.
                if ((kind < BCAST || kind >= ALLGATHER) && i > 3)
                    continue;
                // The first of each makes connections; it does not count.
                for (int repeat = -1; repeat < repeats; repeat++)
                    for (int stock = 0; stock < 2; stock++) {
                        double seconds = timed(kind, stock, comms[order], from, to, bytes, start_s);
                        if (rank == 0 && repeat >= 0)
                            printf("%s %s %d %s %.6f\n", order ? "alternating" : "blocks", NAMES[kind], bytes, stock ? "stock" : "library", seconds);
                        fflush(stdout);
                    }
            }
    MPI_Comm_free(&comms[0]);
    MPI_Comm_free(&comms[1]);
    free(from);
    free(to);
    return MPI_Finalize();
}
