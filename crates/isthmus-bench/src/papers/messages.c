/* Sends messages to and fro between two sites, in one MPI job. The first half of its ranks is at one site.
 *   messages plain COUNT SIZE...        rank 0 of each half sends and receives
 *   messages threads:N COUNT SIZE...    the same by N threads, each with a fragment of the message
 *   messages helpers COUNT SIZE...      two phases: a linear scatter of fragments to all other ranks of both halves,
 *                                       then a linear gather from them
 * Prints RESULT with a line of JSON for each size: the time of COUNT messages there and as many back.
 */
#include <mpi.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS_MAX = 16, UNCOUNTED = 1, TAG = 7 };

static int rank, ranks, half, threads = 1;
static MPI_Request *requests;

struct fragment {
    unsigned char *at;
    int bytes, peer, sends, tag;
};

static void fail(const char *why)
{
    fprintf(stderr, "messages: %s\n", why);
    MPI_Abort(MPI_COMM_WORLD, 3);
}

/* First byte of fragment i of n. */
static int64_t edge(int64_t bytes, int i, int n)
{
    return bytes * i / n;
}

static void *carry(void *argument)
{
    struct fragment *of = argument;
    if (of->sends)
        MPI_Send(of->at, of->bytes, MPI_BYTE, of->peer, of->tag, MPI_COMM_WORLD);
    else
        MPI_Recv(of->at, of->bytes, MPI_BYTE, of->peer, of->tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return NULL;
}

static void by_threads(unsigned char *at, int64_t bytes, int peer, int sends)
{
    pthread_t running[THREADS_MAX];
    struct fragment fragments[THREADS_MAX];
    for (int i = 0; i < threads; i++) {
        int64_t from = edge(bytes, i, threads), to = edge(bytes, i + 1, threads);
        fragments[i] = (struct fragment){at + from, (int)(to - from), peer, sends, TAG + i};
        if (i > 0 && pthread_create(&running[i], NULL, carry, &fragments[i]))
            fail("there is no thread");
    }
    carry(&fragments[0]);
    for (int i = 1; i < threads; i++)
        pthread_join(running[i], NULL);
}

/* A main rank's part: sends fragments to all helpers, or receives from them. */
static void by_helpers(unsigned char *at, int64_t bytes, int sends)
{
    int helpers = ranks - 2, n = 0;
    for (int other = 0; other < ranks; other++) {
        if (other % half == 0)
            continue;
        int64_t from = edge(bytes, n, helpers), to = edge(bytes, n + 1, helpers);
        if (sends)
            MPI_Isend(at + from, (int)(to - from), MPI_BYTE, other, TAG, MPI_COMM_WORLD, &requests[n]);
        else
            MPI_Irecv(at + from, (int)(to - from), MPI_BYTE, other, TAG, MPI_COMM_WORLD, &requests[n]);
        n++;
    }
    MPI_Waitall(n, requests, MPI_STATUSES_IGNORE);
}

/* A helper's part: forwards its fragment of a message from one main rank to the other. */
static void help(unsigned char *at, int64_t bytes, int from, int to)
{
    int helpers = ranks - 2, mine = rank - 1 - (rank > half);
    int length = (int)(edge(bytes, mine + 1, helpers) - edge(bytes, mine, helpers));
    MPI_Recv(at, length, MPI_BYTE, from, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Send(at, length, MPI_BYTE, to, TAG, MPI_COMM_WORLD);
}

static void one_way(unsigned char *at, int64_t bytes, int from, int to, int n)
{
    int is_main = rank == from || rank == to, sends = rank == from;
    if (!is_main) {
        help(at, bytes, from, to);
        return;
    }
    if (sends)
        at[0] = (unsigned char)n, at[bytes - 1] = (unsigned char)(n + 1);
    if (ranks > 2)
        by_helpers(at, bytes, sends);
    else
        by_threads(at, bytes, sends ? to : from, sends);
    if (!sends && (at[0] != (unsigned char)n || at[bytes - 1] != (unsigned char)(n + 1)))
        fail("wrong data");
}

int main(int argc, char **argv)
{
    int provided, wants_threads = argc > 1 && strncmp(argv[1], "threads:", 8) == 0;
    MPI_Init_thread(&argc, &argv, wants_threads ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    half = ranks / 2;
    if (wants_threads)
        threads = atoi(argv[1] + 8);
    if (argc < 4 || ranks % 2 || threads < 1 || threads > THREADS_MAX)
        fail("usage: messages plain|threads:N|helpers COUNT SIZE..., with an even number of ranks");
    if (wants_threads && provided != MPI_THREAD_MULTIPLE)
        fail("this MPI does not have MPI_THREAD_MULTIPLE");
    requests = malloc((size_t)ranks * sizeof *requests);
    int count = atoi(argv[2]);
    for (int i = 3; i < argc; i++) {
        int64_t bytes = strtoll(argv[i], NULL, 10);
        unsigned char *at = malloc((size_t)bytes);
        if (!at || !requests)
            fail("there is no memory");
        memset(at, 1, (size_t)bytes);
        double start = 0;
        MPI_Barrier(MPI_COMM_WORLD);
        for (int n = -UNCOUNTED; n < count; n++) {
            if (n == 0)
                start = MPI_Wtime();
            one_way(at, bytes, 0, half, n);
            one_way(at, bytes, half, 0, n);
        }
        if (rank == 0)
            printf("RESULT {\"size\": %lld, \"count\": %d, \"seconds\": %.6f}\n", (long long)bytes, count, MPI_Wtime() - start);
        fflush(stdout);
        free(at);
    }
    free(requests);
    MPI_Finalize();
    return 0;
}
