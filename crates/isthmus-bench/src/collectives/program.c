// Times each collective twice in turn: as MPI_ function, which a preloaded collectives library serves, and as PMPI_
// function, which the MPI itself serves. Ranks are in blocks or alternate between the sites.
//
//   collectives REPEATS START_S WHOS ORDERS MiB,... SITES blocking|nonblocking
//
// WHOS: names, joined by commas. "library" calls MPI_ functions, all others PMPI_ functions. ORDERS: blocks or
// alternating, or both.
// All ranks are on one machine and begin at one time of its clock. A collective ends when its last rank is done. Prints
// a RESULT line for each repeat.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// Short calls: calls in a row, and bytes of each. SIZES: most lengths. RANKS_MAX: most ranks.
enum { ROW = 10, SHORT = 8, SIZES = 8, RANKS_MAX = 64 };
// Time after which a call is not repeated again: stock tcp takes minutes for long vectors on a path with loss. Seconds.
#define REPEATED_S 60
// From ALLGATHER on, the bytes are per rank. Before it, they are the length of the vector.
enum { BARRIER, ALLREDUCE_SHORT, BCAST, REDUCE, ALLREDUCE, REDUCE_SCATTER, ALLGATHER, ALLTOALL, GATHER, SCATTER, ALLGATHERV, ALLTOALLV, GATHERV, SCATTERV, KINDS };
static const char *const NAMES[KINDS] = {"barrier", "allreduce", "bcast", "reduce", "allreduce", "reduce_scatter", "allgather", "alltoall", "gather", "scatter", "allgatherv", "alltoallv", "gatherv", "scatterv"};
static int nonblocking, counts[RANKS_MAX], displs[RANKS_MAX];

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#define DONE(name, ...) (stock ? PMPI_##name(__VA_ARGS__) : MPI_##name(__VA_ARGS__))
#define CALL(name, iname, ...) \
    do { \
        if (nonblocking) \
            DONE(iname, __VA_ARGS__, &request), MPI_Wait(&request, MPI_STATUS_IGNORE); \
        else \
            DONE(name, __VA_ARGS__); \
    } while (0)

// Those with counts of each rank have the same number of bytes of each as the others.
static void call(int kind, int stock, MPI_Comm comm, int ranks, char *from, char *to, int bytes)
{
    MPI_Request request;
    int doubles = bytes / (int)sizeof(double);
    for (int i = 0; kind >= ALLGATHERV && i < ranks; i++) {
        counts[i] = bytes;
        displs[i] = i * bytes;
    }
    switch (kind) {
    case BARRIER: CALL(Barrier, Ibarrier, comm); break;
    case BCAST: CALL(Bcast, Ibcast, to, bytes, MPI_BYTE, 0, comm); break;
    case REDUCE: CALL(Reduce, Ireduce, from, to, doubles, MPI_DOUBLE, MPI_SUM, 0, comm); break;
    case ALLREDUCE_SHORT:
    case ALLREDUCE: CALL(Allreduce, Iallreduce, from, to, doubles, MPI_DOUBLE, MPI_SUM, comm); break;
    case REDUCE_SCATTER: CALL(Reduce_scatter_block, Ireduce_scatter_block, from, to, doubles / ranks, MPI_DOUBLE, MPI_SUM, comm); break;
    case ALLGATHER: CALL(Allgather, Iallgather, from, bytes, MPI_BYTE, to, bytes, MPI_BYTE, comm); break;
    case ALLTOALL: CALL(Alltoall, Ialltoall, from, bytes, MPI_BYTE, to, bytes, MPI_BYTE, comm); break;
    case GATHER: CALL(Gather, Igather, from, bytes, MPI_BYTE, to, bytes, MPI_BYTE, 0, comm); break;
    case SCATTER: CALL(Scatter, Iscatter, from, bytes, MPI_BYTE, to, bytes, MPI_BYTE, 0, comm); break;
    case ALLGATHERV: CALL(Allgatherv, Iallgatherv, from, bytes, MPI_BYTE, to, counts, displs, MPI_BYTE, comm); break;
    case ALLTOALLV: CALL(Alltoallv, Ialltoallv, from, counts, displs, MPI_BYTE, to, counts, displs, MPI_BYTE, comm); break;
    case GATHERV: CALL(Gatherv, Igatherv, from, bytes, MPI_BYTE, to, counts, displs, MPI_BYTE, 0, comm); break;
    case SCATTERV: CALL(Scatterv, Iscatterv, from, counts, displs, MPI_BYTE, to, bytes, MPI_BYTE, 0, comm); break;
    }
}

// Time until the last rank is done. Seconds.
static double timed(int kind, int stock, MPI_Comm comm, int ranks, char *from, char *to, int bytes, double start_s)
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
        call(kind, stock, comm, ranks, from, to, bytes);
    end = now_s() - start;
    PMPI_Allreduce(&end, &last, 1, MPI_DOUBLE, MPI_MAX, comm);
    return last / times;
}

// All repeats of one collective, for each name in whos. It is not repeated once it has taken REPEATED_S.
static void measure(int kind, int bytes, const char *order, const char *whos, MPI_Comm comm, int repeats, double start_s, char *from, char *to)
{
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    double took_s = 0; // the same at all ranks
    // The first call of each makes connections and does not count.
    for (int repeat = -1; repeat < repeats && (repeat < 1 || took_s < REPEATED_S); repeat++)
        for (const char *who = whos; *who;) {
            int length = (int)strcspn(who, ",");
            int stock = strncmp(who, "library", (size_t)length) != 0;
            double seconds = timed(kind, stock, comm, ranks, from, to, bytes, start_s);
            took_s += seconds;
            if (rank == 0 && repeat >= 0)
                printf("RESULT {\"order\": \"%s\", \"call\": \"%s%s\", \"bytes\": %d, \"who\": \"%.*s\", \"seconds\": %.6f}\n",
                       order, nonblocking ? "i" : "", NAMES[kind], bytes, length, who, seconds);
            fflush(stdout);
            who += length + (who[length] == ',');
        }
}

int main(int argc, char **argv)
{
    int rank, ranks, sizes[SIZES], count = 0, most = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int sites = argc == 8 ? atoi(argv[6]) : 0;
    nonblocking = argc == 8 && !strcmp(argv[7], "nonblocking");
    for (char *size = sites > 0 && ranks % sites == 0 && ranks <= RANKS_MAX ? strtok(argv[5], ",") : NULL; size && count < SIZES; size = strtok(NULL, ",")) {
        sizes[count++] = atoi(size) << 20;
        most = sizes[count - 1] > most ? sizes[count - 1] : most;
    }
    if (count == 0 || most <= 0) {
        if (rank == 0)
            fputs("usage: collectives REPEATS START_S WHOS ORDERS MiB,... SITES blocking|nonblocking\n", stderr);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    size_t each = (size_t)sizes[0] * (size_t)ranks, all = each > (size_t)most ? each : (size_t)most;
    char *from = malloc(all), *to = malloc(all);
    memset(from, 0, all);
    memset(to, 0, all);
    MPI_Comm comms[2];
    MPI_Comm_dup(MPI_COMM_WORLD, &comms[0]);
    // Alternates the ranks: the launcher fills one site after the other.
    MPI_Comm_split(MPI_COMM_WORLD, 0, rank % (ranks / sites) * sites + rank / (ranks / sites), &comms[1]);
    // The library runs non-blocking collectives of communicators that have had a blocking one.
    MPI_Barrier(comms[0]);
    MPI_Barrier(comms[1]);
    static const char *const ORDERS[] = {"blocks", "alternating"};
    for (int order = 0; order < 2; order++)
        for (int kind = 0; strstr(argv[4], ORDERS[order]) && kind < KINDS; kind++) {
            int is_short = kind == BARRIER || kind == ALLREDUCE_SHORT;
            // Short calls and calls with bytes per rank are measured at one size only.
            for (int i = 0; i < (is_short || kind >= ALLGATHER ? 1 : count); i++)
                measure(kind, kind == BARRIER ? 0 : is_short ? SHORT : sizes[i], ORDERS[order], argv[3], comms[order], atoi(argv[1]), atof(argv[2]), from, to);
        }
    MPI_Comm_free(&comms[0]);
    MPI_Comm_free(&comms[1]);
    free(from);
    free(to);
    return MPI_Finalize();
}
