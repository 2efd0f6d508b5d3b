// What one-sided communication between two ranks costs, as a line "NAME VALUE" for each figure:
//   put-SIZE, get-SIZE        one with its flush, microseconds, median of 20 batches
//   accumulate-8, fetch-8     MPI_Accumulate, MPI_Fetch_and_op of one word with its flush, likewise
//   putrate-8                 puts of 8 bytes a second, 64 to a flush
//   putting-SIZE, getting-SIZE    bytes a second, in windows with a flush each
//   onesided [NAME ...]       only the figures whose name begins so
// Rank 1, whose window it is, waits in MPI_Recv meanwhile.
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chosen.h"
#include "median.h"

enum { BATCHES = 20, WINDOW = 64, LARGEST = 4 << 20 };

static int rank;
static unsigned char *buffer;
static MPI_Win window;

static void put(size_t size, size_t place)
{
    MPI_Put(buffer, (int)size, MPI_BYTE, 1, (MPI_Aint)place, (int)size, MPI_BYTE, window);
}

static void get(size_t size, size_t place)
{
    MPI_Get(buffer, (int)size, MPI_BYTE, 1, (MPI_Aint)place, (int)size, MPI_BYTE, window);
}

static void accumulate(size_t size, size_t place)
{
    MPI_Accumulate(buffer, (int)(size / 8), MPI_UINT64_T, 1, (MPI_Aint)place, (int)(size / 8), MPI_UINT64_T, MPI_SUM,
                   window);
}

static void fetch(size_t size, size_t place)
{
    MPI_Fetch_and_op(buffer, buffer + size, MPI_UINT64_T, 1, (MPI_Aint)place, MPI_SUM, window);
}

typedef void (*Operation)(size_t size, size_t place);

// Seconds that `flushes` take, each after `count` operations at places of their own where the window has room.
static double timed(Operation operation, size_t size, int count, int flushes)
{
    size_t apart = size * (size_t)count <= LARGEST ? size : 0;
    double begin = MPI_Wtime();
    for (int i = 0; i < flushes; i++) {
        for (int j = 0; j < count; j++)
            operation(size, apart * (size_t)j);
        MPI_Win_flush(1, window);
    }
    return MPI_Wtime() - begin;
}

static double latency(Operation operation, size_t size)
{
    int flushes = size > 16 << 10 ? 100 : 500;
    double batches[BATCHES];
    timed(operation, size, 1, flushes);
    for (int batch = 0; batch < BATCHES; batch++)
        batches[batch] = timed(operation, size, 1, flushes) / flushes * 1e6;
    return median(batches, BATCHES);
}

// Operations a second.
static double rate(Operation operation, size_t size, int count, int flushes)
{
    timed(operation, size, count, flushes / 8 + 1);
    return (double)count * flushes / timed(operation, size, count, flushes);
}

static void measure(char **chosen, int choices)
{
    static const struct {
        const char *name;
        Operation operation;
        size_t size;
        int count; // to a flush; 1: latency
        int flushes;
        int bytes; // whether bytes are counted
    } figures[] = {
        {"put-8", put, 8, 1, 0, 0},
        {"put-8192", put, 8 << 10, 1, 0, 0},
        {"put-65536", put, 64 << 10, 1, 0, 0},
        {"get-8", get, 8, 1, 0, 0},
        {"get-8192", get, 8 << 10, 1, 0, 0},
        {"get-65536", get, 64 << 10, 1, 0, 0},
        {"accumulate-8", accumulate, 8, 1, 0, 0},
        {"fetch-8", fetch, 8, 1, 0, 0},
        {"putrate-8", put, 8, WINDOW, 2000, 0},
        {"putting-8192", put, 8 << 10, WINDOW, 300, 1},
        {"putting-65536", put, 64 << 10, WINDOW, 100, 1},
        {"putting-4194304", put, 4 << 20, 8, 20, 1},
        {"getting-8192", get, 8 << 10, WINDOW, 300, 1},
        {"getting-65536", get, 64 << 10, WINDOW, 100, 1},
        {"getting-4194304", get, 4 << 20, 8, 20, 1},
    };
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++) {
        if (!is_chosen(figures[i].name, chosen, choices))
            continue;
        double value = figures[i].count == 1
                           ? latency(figures[i].operation, figures[i].size)
                           : rate(figures[i].operation, figures[i].size, figures[i].count, figures[i].flushes) *
                                 (figures[i].bytes ? (double)figures[i].size : 1);
        printf("%s %.6g\n", figures[i].name, value);
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    int ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    buffer = malloc(LARGEST);
    if (ranks != 2 || !buffer) {
        fprintf(stderr, "onesided: takes 2 ranks and twice %d bytes of memory each\n", LARGEST);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    memset(buffer, rank, LARGEST);
    unsigned char *base;
    MPI_Win_allocate(LARGEST, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &base, &window);
    memset(base, 0, LARGEST);
    MPI_Win_lock_all(0, window);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        measure(argv + 1, argc - 1);
        MPI_Send(NULL, 0, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
    } else {
        MPI_Recv(NULL, 0, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    MPI_Win_unlock_all(window);
    MPI_Win_free(&window);
    free(buffer);
    MPI_Finalize();
    return 0;
}
