/* Two ranks at two sites. Prints one line of JSON.
 *   program stream BYTES        messages of 16 MB one way, acknowledged at the end
 *   program share BYTES         the same, and the second rank tells as it goes what has come until when
 *   program exchange TIMES      MPI_Sendrecv of 1 MB
 *   program pingpong TIMES      8 bytes there and back
 *   program late BYTES WAIT_US  a message whose receive is posted WAIT_US after it was asked for
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 16000000, UNDER_WAY = 16, MEGABYTE = 1000000 };

static int rank;

static unsigned char *room(size_t bytes)
{
    unsigned char *at = malloc(bytes ? bytes : 1);
    if (!at) {
        fprintf(stderr, "no memory for %zu bytes\n", bytes);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    memset(at, rank + 1, bytes ? bytes : 1); /* its pages are there before time counts */
    return at;
}

static void check(const unsigned char *at, size_t bytes, unsigned char first)
{
    if (bytes && (at[0] != first || at[bytes - 1] != (unsigned char)(first + 1))) {
        fprintf(stderr, "wrong data\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static void mark(unsigned char *at, size_t bytes, unsigned char first)
{
    if (bytes) {
        at[0] = first;
        at[bytes - 1] = (unsigned char)(first + 1);
    }
}

static void tell(int64_t bytes)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    printf("ARRIVED %lld.%09ld %lld\n", (long long)now.tv_sec, now.tv_nsec, (long long)bytes);
    fflush(stdout);
}

static double stream(int64_t bytes, int tells)
{
    MPI_Request requests[UNDER_WAY];
    unsigned char *blocks[UNDER_WAY], answer = 0;
    int64_t count = (bytes + BLOCK - 1) / BLOCK;
    for (int i = 0; i < UNDER_WAY; i++) {
        requests[i] = MPI_REQUEST_NULL;
        blocks[i] = room(BLOCK);
    }
    double start = MPI_Wtime();
    for (int64_t n = 0; n < count + UNDER_WAY; n++) {
        int slot = (int)(n % UNDER_WAY);
        int64_t done = n - UNDER_WAY;
        MPI_Wait(&requests[slot], MPI_STATUS_IGNORE);
        if (rank == 1 && done >= 0) {
            int64_t left = bytes - done * BLOCK;
            check(blocks[slot], (size_t)(left < BLOCK ? left : BLOCK), (unsigned char)done);
            if (tells)
                tell(done * BLOCK + (left < BLOCK ? left : BLOCK));
        }
        if (n >= count)
            continue;
        int64_t left = bytes - n * BLOCK;
        int len = (int)(left < BLOCK ? left : BLOCK);
        if (rank == 0) {
            mark(blocks[slot], (size_t)len, (unsigned char)n);
            MPI_Isend(blocks[slot], len, MPI_BYTE, 1, 1, MPI_COMM_WORLD, &requests[slot]);
        } else {
            MPI_Irecv(blocks[slot], len, MPI_BYTE, 0, 1, MPI_COMM_WORLD, &requests[slot]);
        }
    }
    if (rank == 0)
        MPI_Recv(&answer, 1, MPI_BYTE, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    else
        MPI_Send(&answer, 1, MPI_BYTE, 0, 2, MPI_COMM_WORLD);
    return MPI_Wtime() - start;
}

static double exchange(int64_t times)
{
    unsigned char *out = room(MEGABYTE), *in = room(MEGABYTE);
    double start = MPI_Wtime();
    for (int64_t n = 0; n < times; n++) {
        mark(out, MEGABYTE, (unsigned char)n);
        MPI_Sendrecv(out, MEGABYTE, MPI_BYTE, 1 - rank, 3, in, MEGABYTE, MPI_BYTE, 1 - rank, 3, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        check(in, MEGABYTE, (unsigned char)n);
    }
    return MPI_Wtime() - start;
}

static double once(int64_t bytes, double *trips, int64_t times, useconds_t wait)
{
    unsigned char *at = room((size_t)bytes), token = 0;
    double start = MPI_Wtime();
    for (int64_t n = 0; n < times; n++) {
        if (wait && rank == 0)
            MPI_Recv(&token, 1, MPI_BYTE, 1, 4, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        double before = MPI_Wtime();
        if (rank == 0) {
            MPI_Send(at, (int)bytes, MPI_BYTE, 1, 5, MPI_COMM_WORLD);
            MPI_Recv(&token, 1, MPI_BYTE, 1, 6, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            if (wait) {
                MPI_Send(&token, 1, MPI_BYTE, 0, 4, MPI_COMM_WORLD);
                usleep(wait);
            }
            MPI_Recv(at, (int)bytes, MPI_BYTE, 0, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(&token, 1, MPI_BYTE, 0, 6, MPI_COMM_WORLD);
        }
        trips[n] = MPI_Wtime() - before;
    }
    return MPI_Wtime() - start;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const char *work = argc > 2 ? argv[1] : "";
    int64_t amount = argc > 2 ? strtoll(argv[2], NULL, 10) : 0, trips = 0;
    double seconds = 0, *each = NULL;
    if (!strcmp(work, "stream") || !strcmp(work, "share")) {
        seconds = stream(amount, !strcmp(work, "share"));
    } else if (!strcmp(work, "exchange")) {
        seconds = exchange(amount);
    } else if (!strcmp(work, "pingpong") || !strcmp(work, "late")) {
        int late = !strcmp(work, "late");
        trips = late ? 5 : amount;
        each = malloc((size_t)trips * sizeof *each);
        if (!each)
            MPI_Abort(MPI_COMM_WORLD, 1);
        seconds = once(late ? amount : 8, each, trips, late ? (useconds_t)strtoul(argv[3], NULL, 10) : 0);
        qsort(each, (size_t)trips, sizeof *each, ascending);
        if (late) /* the median is what counts: the first has the lanes' opening in it */
            seconds = each[trips / 2];
    } else {
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    if (rank == 0) {
        printf("RESULT {\"seconds\": %.6f, \"round_trips_us\": [", seconds);
        for (int64_t n = 0; n < trips; n++)
            printf("%s%.1f", n ? ", " : "", each[n] * 1e6);
        printf("]}\n");
        fflush(stdout);
    }
    MPI_Finalize();
    return 0;
}
