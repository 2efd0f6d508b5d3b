// Litmus tests of one-sided communication: what a program may rely on about the order in which operations take
// effect (docs/ordering.md). Each test runs ROUNDS times with random delays between its steps. The seed of the delays is
// the time, or LITMUS_SEED.
//   litmus [ROUNDS=200] [TEST]
#include "check.h"

// Words of the window, each in a cache line of its own. Every test uses them afresh.
enum { STRIDE = 8, WORDS = 64, LONG_BYTES = 300 << 10 };

static MPI_Win win;
static int64_t *base;
static unsigned rounds;
static uint64_t seed;

static MPI_Aint at(int word)
{
    return (MPI_Aint)(word * STRIDE);
}

static MPI_Aint after_words(void)
{
    return at(WORDS);
}

// Waits for up to 100 microseconds, in three of four calls not at all.
static void delay(void)
{
    uint64_t z = mixed(seed, (uint64_t)world_rank);
    seed++;
    if (z & 3)
        return;
    double until = seconds() + 1e-6 * (double)(z >> 8 & 127);
    while (seconds() < until) {
    }
}

static void flush(int rank)
{
    delay();
    MPI_Win_flush(rank, win);
}

static void put(int rank, int word, int64_t value)
{
    static int64_t kept;
    kept = value;
    delay();
    MPI_Put(&kept, 1, MPI_INT64_T, rank, at(word), 1, MPI_INT64_T, win);
    flush(rank);
}

static int64_t get(int rank, int word)
{
    int64_t value = -1;
    delay();
    MPI_Get(&value, 1, MPI_INT64_T, rank, at(word), 1, MPI_INT64_T, win);
    flush(rank);
    return value;
}

static int64_t fetch(int rank, int word, int64_t operand, MPI_Op op)
{
    int64_t before = -1;
    delay();
    MPI_Fetch_and_op(&operand, &before, MPI_INT64_T, rank, at(word), op, win);
    flush(rank);
    return before;
}

static void set(int rank, int word, int64_t value)
{
    delay();
    MPI_Accumulate(&value, 1, MPI_INT64_T, rank, at(word), 1, MPI_INT64_T, MPI_REPLACE, win);
    flush(rank);
}

static int64_t load(int rank, int word)
{
    return fetch(rank, word, 0, MPI_NO_OP);
}

static int last(void)
{
    return world_size - 1;
}

// A flush of the data precedes the flag: who sees the flag sees the data, by Get or by a load of its own.
static void message_passing(int64_t round)
{
    if (world_rank == 0) {
        put(last(), 0, round);
        set(last(), 1, round);
    } else if (world_rank == 1 % world_size) {
        while (load(last(), 1) < round) {
        }
        int64_t seen = get(last(), 0);
        CHECK(seen >= round, "message passing: the flag says %" PRId64 ", the data %" PRId64, round, seen);
    }
    if (world_rank == last()) {
        while (load(world_rank, 1) < round) {
        }
        MPI_Win_sync(win);
        int64_t seen = *(volatile int64_t *)(base + at(0));
        CHECK(seen >= round, "message passing: the flag says %" PRId64 ", a load %" PRId64, round, seen);
    }
}

// Each of two sets a word and then reads the other's: at least one of them sees the other's store.
static void store_buffering(int64_t round)
{
    int64_t seen = 0, sum;
    if (world_rank < 2) {
        set(last(), 2 + world_rank, round + 1);
        seen = load(last(), 3 - world_rank) > round;
    }
    MPI_Allreduce(&seen, &sum, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    CHECK(sum >= 1, "store buffering: neither saw the other's store");
}

// Two write two words, all others read them in opposite order: atomics of one process take effect in one order for all.
static void independent_reads(int64_t round)
{
    int64_t first = 0, second = 0;
    if (world_rank < 2) {
        set(0, 4 + world_rank, round + 1);
    } else {
        first = load(0, 4 + world_rank % 2);
        second = load(0, 5 - world_rank % 2);
    }
    // 1: saw X and not yet Y; 2: saw Y and not yet X.
    int64_t sight = world_rank >= 2 && first == round + 1 && second <= round ? 1 + world_rank % 2 : 0, all;
    MPI_Allreduce(&sight, &all, 1, MPI_INT64_T, MPI_BOR, MPI_COMM_WORLD);
    CHECK(all != 3, "independent reads: two ranks saw two stores in opposite order");
}

// The lock of mpi4py (Mellor-Crummey and Scott): each rank has a word `next` and a word `locked` of its own.
enum { TAIL = 8, NEXT = 9, LOCKED = 10, COUNT = 11 };

static void mcs_lock(int64_t round)
{
    const int64_t nobody = -1;
    int64_t me = world_rank;
    for (int turn = 0; turn < 3; turn++) {
        int64_t before, true_ = 1, null = nobody;
        // mpi4py does not flush its own rank here. MPI does not promise the order that it relies on (docs/ordering.md).
        set(world_rank, NEXT, null);
        MPI_Fetch_and_op(&me, &before, MPI_INT64_T, 0, at(TAIL), MPI_REPLACE, win);
        flush(0);
        if (before != nobody) {
            set(world_rank, LOCKED, true_);
            set((int)before, NEXT, me);
            while (load(world_rank, LOCKED)) {
            }
        }
        int64_t count = get(0, COUNT);
        put(0, COUNT, count + 1);
        int64_t expected = me, now = nobody;
        MPI_Compare_and_swap(&nobody, &expected, &now, MPI_INT64_T, 0, at(TAIL), win);
        flush(0);
        if (now != me) {
            int64_t next;
            while ((next = load(world_rank, NEXT)) == nobody) {
            }
            set((int)next, LOCKED, 0);
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK(get(0, COUNT) == 3 * world_size * (round + 1), "MCS lock: a count was lost");
    MPI_Barrier(MPI_COMM_WORLD);
}

static void ticket_lock(int64_t round)
{
    enum { TICKET = 16, SERVING = 17, TOTAL = 18 };
    int64_t mine = fetch(last(), TICKET, 1, MPI_SUM);
    while (load(last(), SERVING) != mine) {
    }
    put(0, TOTAL, get(0, TOTAL) + 1);
    set(last(), SERVING, mine + 1);
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK(get(0, TOTAL) == world_size * (round + 1), "ticket lock: a count was lost");
    MPI_Barrier(MPI_COMM_WORLD);
}

// In step s each rank tells the one 2^s further on, and waits to be told: then all have come.
static void dissemination_barrier(int64_t round)
{
    enum { STEP = 24, ARRIVED = 40 };
    set(0, ARRIVED + world_rank % 16, round);
    for (int step = 0, reach = 1; reach < world_size; step++, reach *= 2) {
        fetch((world_rank + reach) % world_size, STEP + step, 1, MPI_SUM);
        while (load(world_rank, STEP + step) < round + 1) {
        }
    }
    for (int rank = 0; rank < world_size && rank < 16; rank++)
        CHECK(load(0, ARRIVED + rank) >= round, "dissemination barrier: rank %d has not come", rank);
}

// What a rank has flushed of its own memory is there for others, whatever is under way and however long it is.
static void own_memory(int64_t round)
{
    enum { OWN = 60, SIGN = 61 };
    static unsigned char out[LONG_BYTES], in[LONG_BYTES];
    int right = (world_rank + 1) % world_size, left = (world_rank + world_size - 1) % world_size;
    MPI_Aint bulk = after_words();
    int words = LONG_BYTES / 8;
    fill(out, LONG_BYTES, (uint64_t)round * 64 + (uint64_t)world_rank);
    delay();
    MPI_Put(out, words, MPI_INT64_T, world_rank, bulk, words, MPI_INT64_T, win);
    MPI_Accumulate(&round, 1, MPI_INT64_T, world_rank, at(OWN), 1, MPI_INT64_T, MPI_REPLACE, win);
    flush(world_rank);
    set(right, SIGN, round + 1);
    while (load(world_rank, SIGN) < round + 1) {
    }
    MPI_Get(in, words, MPI_INT64_T, left, bulk, words, MPI_INT64_T, win);
    int64_t own = load(left, OWN);
    flush(left);
    CHECK(own >= round, "own memory: an atomic to oneself was late");
    if (own == round)
        verify(in, LONG_BYTES, (uint64_t)round * 64 + (uint64_t)left, "own memory: a write to oneself was late");
    MPI_Win_flush(world_rank, win);
    MPI_Barrier(MPI_COMM_WORLD);
}

// Messages to oneself: those that wait for a receive, long and short, are received in the order of sending.
static void own_messages(int64_t round)
{
    enum { MESSAGES = 6 };
    static unsigned char out[MESSAGES][LONG_BYTES], in[LONG_BYTES];
    static const int lengths[MESSAGES] = {0, 8, LONG_BYTES, 5000, LONG_BYTES / 2, 64};
    MPI_Request requests[MESSAGES];
    for (int i = 0; i < MESSAGES; i++) {
        fill(out[i], (size_t)lengths[i], (uint64_t)(round * MESSAGES + i));
        MPI_Isend(out[i], lengths[i], MPI_BYTE, world_rank, 7, MPI_COMM_WORLD, &requests[i]);
    }
    for (int i = 0; i < MESSAGES; i++) {
        MPI_Status status;
        MPI_Recv(in, LONG_BYTES, MPI_BYTE, i % 2 ? MPI_ANY_SOURCE : world_rank, 7, MPI_COMM_WORLD, &status);
        expect_status(&status, world_rank, 7, lengths[i], "own messages");
        verify(in, (size_t)lengths[i], (uint64_t)(round * MESSAGES + i), "own messages");
    }
    MPI_Waitall(MESSAGES, requests, MPI_STATUSES_IGNORE);
}

static const struct {
    const char *name;
    void (*round)(int64_t);
    int least; // ranks
} tests[] = {
    {"message-passing", message_passing, 1},
    {"store-buffering", store_buffering, 2},
    {"independent-reads", independent_reads, 4},
    {"mcs-lock", mcs_lock, 1},
    {"ticket-lock", ticket_lock, 1},
    {"dissemination-barrier", dissemination_barrier, 2},
    {"own-memory", own_memory, 1},
    {"own-messages", own_messages, 1},
};

int main(int argc, char **argv)
{
    start(&argc, &argv, "litmus");
    rounds = (unsigned)argument(argc, argv, 1, 200);
    const char *given = getenv("LITMUS_SEED");
    uint64_t began = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    MPI_Bcast(&began, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
    seed = mixed(began, (uint64_t)world_rank);
    MPI_Win_allocate(8 * after_words() + LONG_BYTES, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &base, &win);
    int ran = 0;
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        if (world_size < tests[i].least || (argc > 2 && strcmp(argv[2], tests[i].name)))
            continue;
        memset(base, 0, (size_t)(8 * after_words()));
        base[at(TAIL)] = base[at(NEXT)] = -1;
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Win_lock_all(0, win);
        for (unsigned round = 0; round < rounds; round++)
            tests[i].round(round);
        MPI_Win_unlock_all(win);
        MPI_Barrier(MPI_COMM_WORLD);
        ran++;
    }
    CHECK(ran, "no test of this name that %d ranks can run", world_size);
    MPI_Win_free(&win);
    return finish("%d tests, %u rounds, %d ranks, seed %" PRIu64, ran, rounds, world_size, began);
}
