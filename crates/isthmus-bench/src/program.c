/* MPI program with one rank at each of two sites. Prints BEGAN with the time of the clock when its time begins. At the
 * end it prints RESULT with a line of JSON, which has each repetition's time if it is measured. Prints NOT ENDED instead
 * if it takes longer than LIMIT_S seconds.
 *   program LIMIT_S stream BYTES        sends messages of 16 MB one way, acknowledged at the end
 *   program LIMIT_S share BYTES         the same; the second rank also prints ARRIVED with time and bytes
 *   program LIMIT_S outage BYTES        as share, with messages of 256 KiB
 *   program LIMIT_S sends TIMES         messages of 64 KiB one way, each by MPI_Send, acknowledged at the end
 *   program LIMIT_S exchange TIMES      MPI_Sendrecv of 1 MB
 *   program LIMIT_S pingpong TIMES      8 bytes there and back
 *   program LIMIT_S late BYTES WAIT_US  a message whose receive is posted WAIT_US after it was requested
 *   program LIMIT_S preposted TIMES UNCOUNTED BYTES AHEAD SEED
 *                                       messages of BYTES one way; AHEAD % of their receives are posted ahead;
 *                                       time begins when UNCOUNTED messages have arrived
 */
#include <mpi.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { MEGABYTE = 1000000, UNDER_WAY_MAX = 192, PREPOSTED_AHEAD = 32 };

static int rank;
static double limit_s;

static unsigned char *room(size_t bytes)
{
    unsigned char *at = malloc(bytes ? bytes : 1);
    if (!at) {
        fprintf(stderr, "no memory for %zu bytes\n", bytes);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    memset(at, rank + 1, bytes ? bytes : 1); /* allocates the pages before time counts */
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

static void tell(const char *what, int64_t bytes)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    printf("%s %lld.%09ld %lld\n", what, (long long)now.tv_sec, now.tv_nsec, (long long)bytes);
    fflush(stdout);
}

static void give_up(int signal)
{
    static const char said[] = "NOT ENDED\n";
    (void)signal;
    if (write(STDOUT_FILENO, said, sizeof said - 1) < 0)
        _exit(4);
    _exit(3);
}

/* Starts the time and its limit. */
static double begin(void)
{
    if (rank == 0) {
        struct itimerval limit = {{0, 0}, {(time_t)limit_s, (suseconds_t)((limit_s - (double)(time_t)limit_s) * 1e6)}};
        tell("BEGAN", 0);
        signal(SIGALRM, give_up);
        setitimer(ITIMER_REAL, &limit, NULL);
    }
    return MPI_Wtime();
}

/* The receiver has all: the first rank waits until it knows that. */
static void acknowledge(void)
{
    unsigned char answer = 0;
    if (rank == 0)
        MPI_Recv(&answer, 1, MPI_BYTE, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    else
        MPI_Send(&answer, 1, MPI_BYTE, 0, 2, MPI_COMM_WORLD);
}

static double stream(int64_t bytes, int64_t block, int under_way, int tells)
{
    MPI_Request requests[UNDER_WAY_MAX];
    unsigned char *blocks[UNDER_WAY_MAX];
    int64_t count = (bytes + block - 1) / block;
    for (int i = 0; i < under_way; i++) {
        requests[i] = MPI_REQUEST_NULL;
        blocks[i] = room((size_t)block);
    }
    double start = begin();
    for (int64_t n = 0; n < count + under_way; n++) {
        int slot = (int)(n % under_way);
        int64_t done = n - under_way;
        MPI_Wait(&requests[slot], MPI_STATUS_IGNORE);
        if (rank == 1 && done >= 0) {
            int64_t left = bytes - done * block;
            check(blocks[slot], (size_t)(left < block ? left : block), (unsigned char)done);
            if (tells)
                tell("ARRIVED", done * block + (left < block ? left : block));
        }
        if (n >= count)
            continue;
        int64_t left = bytes - n * block;
        int len = (int)(left < block ? left : block);
        if (rank == 0) {
            mark(blocks[slot], (size_t)len, (unsigned char)n);
            MPI_Isend(blocks[slot], len, MPI_BYTE, 1, 1, MPI_COMM_WORLD, &requests[slot]);
        } else {
            MPI_Irecv(blocks[slot], len, MPI_BYTE, 0, 1, MPI_COMM_WORLD, &requests[slot]);
        }
    }
    acknowledge();
    return MPI_Wtime() - start;
}

static double sends(int64_t times)
{
    const size_t bytes = 64 << 10;
    unsigned char *at = room(bytes);
    double start = begin();
    for (int64_t n = 0; n < times; n++) {
        if (rank == 0) {
            mark(at, bytes, (unsigned char)n);
            MPI_Send(at, (int)bytes, MPI_BYTE, 1, 8, MPI_COMM_WORLD);
        } else {
            MPI_Recv(at, (int)bytes, MPI_BYTE, 0, 8, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            check(at, bytes, (unsigned char)n);
        }
    }
    acknowledge();
    return MPI_Wtime() - start;
}

static double exchange(double *each, int64_t times)
{
    unsigned char *out = room(MEGABYTE), *in = room(MEGABYTE);
    double start = begin();
    for (int64_t n = 0; n < times; n++) {
        double before = MPI_Wtime();
        mark(out, MEGABYTE, (unsigned char)n);
        MPI_Sendrecv(out, MEGABYTE, MPI_BYTE, 1 - rank, 3, in, MEGABYTE, MPI_BYTE, 1 - rank, 3, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        each[n] = MPI_Wtime() - before;
        check(in, MEGABYTE, (unsigned char)n);
    }
    return MPI_Wtime() - start;
}

static double once(int64_t bytes, double *each, int64_t times, useconds_t wait)
{
    unsigned char *at = room((size_t)bytes), token = 0;
    double start = begin();
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
        each[n] = MPI_Wtime() - before;
    }
    return MPI_Wtime() - start;
}

/* Whether the receive of message n is posted ahead, by a hash of n (splitmix64). */
static int is_ahead(int64_t n, uint64_t percent, uint64_t seed)
{
    uint64_t z = seed * 0x9e3779b97f4a7c15u + (uint64_t)(n + 1) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return ((z ^ (z >> 31)) >> 32) % 100 < percent;
}

/* The sender keeps PREPOSTED_AHEAD sends under way. The receiver takes messages in order, and posts those of the next
 * PREPOSTED_AHEAD receives that are to be ahead. */
static double preposted(int64_t count, int64_t uncounted, int bytes, uint64_t percent, uint64_t seed)
{
    MPI_Request requests[PREPOSTED_AHEAD];
    unsigned char *at[PREPOSTED_AHEAD];
    int is_posted[PREPOSTED_AHEAD] = {0};
    for (int i = 0; i < PREPOSTED_AHEAD; i++) {
        requests[i] = MPI_REQUEST_NULL;
        at[i] = room((size_t)bytes);
    }
    double start = begin();
    for (int64_t n = 0; n < count; n++) {
        int slot = (int)(n % PREPOSTED_AHEAD);
        if (rank == 0) {
            MPI_Wait(&requests[slot], MPI_STATUS_IGNORE);
            mark(at[slot], (size_t)bytes, (unsigned char)n);
            MPI_Isend(at[slot], bytes, MPI_BYTE, 1, (int)(n % 1000), MPI_COMM_WORLD, &requests[slot]);
            continue;
        }
        for (int64_t next = n; next < n + PREPOSTED_AHEAD && next < count; next++) {
            int one = (int)(next % PREPOSTED_AHEAD);
            if (is_posted[one] || (next > n && !is_ahead(next, percent, seed)))
                continue;
            MPI_Irecv(at[one], bytes, MPI_BYTE, 0, (int)(next % 1000), MPI_COMM_WORLD, &requests[one]);
            is_posted[one] = 1;
        }
        MPI_Wait(&requests[slot], MPI_STATUS_IGNORE);
        is_posted[slot] = 0;
        check(at[slot], (size_t)bytes, (unsigned char)n);
        if (n + 1 == uncounted)
            start = MPI_Wtime();
    }
    double took = MPI_Wtime() - start; /* only the receiver's time counts */
    MPI_Waitall(PREPOSTED_AHEAD, requests, MPI_STATUSES_IGNORE);
    if (rank == 0)
        MPI_Recv(&took, 1, MPI_DOUBLE, 1, 2000, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    else
        MPI_Send(&took, 1, MPI_DOUBLE, 0, 2000, MPI_COMM_WORLD);
    return took;
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
    limit_s = argc > 3 ? strtod(argv[1], NULL) : 0;
    const char *work = argc > 3 ? argv[2] : "";
    int64_t amount = argc > 3 ? strtoll(argv[3], NULL, 10) : 0, times = 0;
    double seconds = 0, *each = NULL;
    if (!strcmp(work, "stream") || !strcmp(work, "share")) {
        seconds = stream(amount, 16 * MEGABYTE, 16, !strcmp(work, "share"));
    } else if (!strcmp(work, "outage")) {
        seconds = stream(amount, 256 << 10, UNDER_WAY_MAX, 1);
    } else if (!strcmp(work, "sends")) {
        seconds = sends(amount);
    } else if (!strcmp(work, "exchange")) {
        times = amount;
        each = (double *)room((size_t)times * sizeof *each);
        seconds = exchange(each, times);
    } else if (!strcmp(work, "preposted") && argc > 7) {
        seconds = preposted(amount, strtoll(argv[4], NULL, 10), atoi(argv[5]), strtoull(argv[6], NULL, 10),
                            strtoull(argv[7], NULL, 10));
    } else if (!strcmp(work, "pingpong") || !strcmp(work, "late")) {
        int late = !strcmp(work, "late");
        times = late ? 5 : amount;
        each = (double *)room((size_t)times * sizeof *each);
        seconds = once(late ? amount : 8, each, times, late ? (useconds_t)strtoul(argv[4], NULL, 10) : 0);
        if (late) { /* the median counts, for the first includes the lanes' set-up */
            qsort(each, (size_t)times, sizeof *each, ascending);
            seconds = each[times / 2];
        }
    } else {
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    if (rank == 0) {
        printf("RESULT {\"seconds\": %.6f, \"round_trips_us\": [", seconds);
        for (int64_t n = 0; n < times; n++)
            printf("%s%.1f", n ? ", " : "", each[n] * 1e6);
        printf("]}\n");
        fflush(stdout);
    }
    MPI_Finalize();
    return 0;
}
