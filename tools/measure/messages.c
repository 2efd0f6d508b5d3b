// What messages between two ranks cost, as a line "NAME VALUE" for each figure:
//   latency-SIZE      half a round trip, microseconds, median of 20 batches
//   rate-8            8-byte messages a second, in windows of 64 that are answered
//   bandwidth-SIZE    bytes a second one way, in windows that are answered
//   cpu-SIZE          processor time of both ranks for that, nanoseconds a byte
//   unexpected-SIZE   microseconds for each of 1000 messages that arrived before their receives
//   messages [NAME ...]    only the figures whose name begins so
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "chosen.h"
#include "median.h"

enum { WINDOW = 64, BATCHES = 20, UNEXPECTED = 1000 };
static const size_t LATENCIES[] = {8, 1 << 10, 64 << 10};
static const size_t BANDWIDTHS[] = {64 << 10, 1 << 20, 4 << 20, 64 << 20};
static const size_t UNEXPECTEDS[] = {8, 4 << 10};
static const size_t LARGEST = 64 << 20;

static int rank;
static char **chosen;
static int choices;
static unsigned char *buffer;

static void tell(const char *name, double value)
{
    if (rank == 0) {
        printf("%s %.6g\n", name, value);
        fflush(stdout);
    }
}

static void ping_pong(size_t size, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        if (rank == 0)
            MPI_Send(buffer, (int)size, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
        MPI_Recv(buffer, (int)size, MPI_BYTE, 1 - rank, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (rank == 1)
            MPI_Send(buffer, (int)size, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
    }
}

static void latency(const char *name, size_t size)
{
    double batches[BATCHES];
    int rounds = size > 16 << 10 ? 200 : 1000;
    ping_pong(size, rounds);
    for (int batch = 0; batch < BATCHES; batch++) {
        double begin = MPI_Wtime();
        ping_pong(size, rounds);
        batches[batch] = (MPI_Wtime() - begin) / rounds / 2 * 1e6;
    }
    tell(name, median(batches, BATCHES));
}

// Windows of messages from rank 0 to rank 1, each of which has a buffer of its own.
static void stream(size_t size, int window, int windows)
{
    MPI_Request requests[WINDOW];
    size_t apart = size * (size_t)window <= LARGEST ? size : 0;
    for (int i = 0; i < windows; i++) {
        for (int j = 0; j < window; j++) {
            unsigned char *place = buffer + apart * (size_t)j;
            if (rank == 0)
                MPI_Isend(place, (int)size, MPI_BYTE, 1, 2, MPI_COMM_WORLD, &requests[j]);
            else
                MPI_Irecv(place, (int)size, MPI_BYTE, 0, 2, MPI_COMM_WORLD, &requests[j]);
        }
        MPI_Waitall(window, requests, MPI_STATUSES_IGNORE);
        if (rank == 0)
            MPI_Recv(NULL, 0, MPI_BYTE, 1, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        else
            MPI_Send(NULL, 0, MPI_BYTE, 0, 3, MPI_COMM_WORLD);
    }
}

static void rate(void)
{
    enum { WINDOWS = 4000 };
    stream(8, WINDOW, WINDOWS / 10);
    double begin = MPI_Wtime();
    stream(8, WINDOW, WINDOWS);
    tell("rate-8", (double)WINDOW * WINDOWS / (MPI_Wtime() - begin));
}

static double processor_time(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    double seconds = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec);
    return seconds + (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static void bandwidth(const char *name, size_t size)
{
    int window = size >= LARGEST ? 1 : size >= 4 << 20 ? 16 : WINDOW;
    size_t bytes = 2048u << 20;
    int windows = (int)(bytes / size / (size_t)window);
    stream(size, window, windows / 8 + 1);
    double used = -processor_time(), begin = MPI_Wtime(), all;
    stream(size, window, windows);
    double seconds = MPI_Wtime() - begin;
    used += processor_time();
    MPI_Reduce(&used, &all, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    bytes = size * (size_t)window * (size_t)windows;
    char cpu[64];
    snprintf(cpu, sizeof cpu, "cpu-%s", strchr(name, '-') + 1);
    tell(name, (double)bytes / seconds);
    tell(cpu, all / (double)bytes * 1e9);
}

// Rank 1 receives in the reverse order of sending, by tags, once all have been sent.
static void unexpected(const char *name, size_t size)
{
    enum { ROUNDS = 5 };
    MPI_Request *requests = calloc(UNEXPECTED, sizeof *requests);
    double total = 0;
    for (int round = 0; round <= ROUNDS; round++) {
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 0) {
            for (int i = 0; i < UNEXPECTED; i++)
                MPI_Isend(buffer, (int)size, MPI_BYTE, 1, 10 + i, MPI_COMM_WORLD, &requests[i]);
            MPI_Send(NULL, 0, MPI_BYTE, 1, 4, MPI_COMM_WORLD);
            MPI_Waitall(UNEXPECTED, requests, MPI_STATUSES_IGNORE);
        } else {
            MPI_Recv(NULL, 0, MPI_BYTE, 0, 4, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            double begin = MPI_Wtime();
            for (int i = UNEXPECTED - 1; i >= 0; i--)
                MPI_Recv(buffer, (int)size, MPI_BYTE, 0, 10 + i, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            total += round == 0 ? 0 : MPI_Wtime() - begin;
        }
    }
    free(requests);
    if (rank == 1)
        MPI_Send(&total, 1, MPI_DOUBLE, 0, 5, MPI_COMM_WORLD);
    else
        MPI_Recv(&total, 1, MPI_DOUBLE, 1, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    tell(name, total / ROUNDS / UNEXPECTED * 1e6);
}

static void each(const char *kind, const size_t *sizes, size_t count, void (*measure)(const char *, size_t))
{
    for (size_t i = 0; i < count; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s-%zu", kind, sizes[i]);
        if (is_chosen(name, chosen, choices))
            measure(name, sizes[i]);
    }
}

int main(int argc, char **argv)
{
    int ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    chosen = argv + 1;
    choices = argc - 1;
    buffer = malloc(LARGEST);
    if (ranks != 2 || !buffer) {
        fprintf(stderr, "messages: takes 2 ranks and %zu bytes of memory each\n", LARGEST);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    memset(buffer, rank, LARGEST);
    each("latency", LATENCIES, sizeof LATENCIES / sizeof LATENCIES[0], latency);
    if (is_chosen("rate-8", chosen, choices))
        rate();
    each("bandwidth", BANDWIDTHS, sizeof BANDWIDTHS / sizeof BANDWIDTHS[0], bandwidth);
    each("unexpected", UNEXPECTEDS, sizeof UNEXPECTEDS / sizeof UNEXPECTEDS[0], unexpected);
    free(buffer);
    MPI_Finalize();
    return 0;
}
