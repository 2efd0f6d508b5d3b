// Epochs of MPI_Win_fence with random accesses, whose result each rank computes by itself. The collectives library runs
// most of them.
//
//   far_windows SEED EPOCHS
//   far_windows SEED EPOCHS apart    rank 1 does not have ISTHMUS_COLLECTIVES_WINDOWS
//
// Epochs have puts and accumulates, and some have calls with a result. Locks are taken between fences.
#include "check.h"

// Words that each origin has in a part of a window. Short accesses: fewer words and fewer accesses than these. One access in
// ONE_IN is long.
enum { SLOT = 4096, SHORT = 4, COUNT = 40, ONE_IN = 8 };
// The parts: words that one origin puts and accumulates in its own order; words that all add to; doubles that all add to;
// words that nobody changes.
enum { PUTS, ORDERED, SUMS, DOUBLES, CONSTANTS, PARTS };

static uint64_t seed;
static int64_t *base, *wanted;
// Memory of the origins' data, which must stay until the fence, and how many words of it are used.
static int64_t *pool;
static size_t pooled;
static MPI_Win window;

// Each rank's window has another unit. Bytes.
static int unit_of(int rank) { return 1 << rank % 4; }

static size_t part_words(int part) { return part == PUTS || part == ORDERED ? (size_t)world_size * SLOT : SLOT; }

static size_t place_of(int part, size_t word)
{
    size_t place = word;
    for (int before = 0; before < part; before++)
        place += part_words(before);
    return place;
}

static MPI_Aint displacement(int target, int part, size_t word) { return (MPI_Aint)(place_of(part, word) * 8 / (size_t)unit_of(target)); }

// A random number that all ranks know: of one access of an origin to a target.
static uint64_t drawn(uint64_t epoch, int origin, int target, uint64_t what)
{
    return mixed(mixed(seed, epoch * 64 + what), (uint64_t)(origin * world_size + target));
}

// The accesses of one origin to one target in one epoch.
struct accesses {
    size_t count, start, length; // of puts and sums: so many, the first at `start`, each so long
    uint64_t value;
    int none, operation;
};

static const MPI_Op OPS[] = {MPI_SUM, MPI_MAX, MPI_MIN, MPI_BXOR, MPI_BAND, MPI_BOR, MPI_PROD};

static struct accesses accesses_of(uint64_t epoch, int origin, int target)
{
    struct accesses a = {.value = drawn(epoch, origin, target, 0)};
    a.none = drawn(epoch, origin, target, 1) % 3 == 0;
    a.length = drawn(epoch, origin, target, 2) % ONE_IN ? drawn(epoch, origin, target, 3) % SHORT : drawn(epoch, origin, target, 3) % (SLOT / 2);
    a.count = a.length >= SHORT ? 1 : drawn(epoch, origin, target, 4) % COUNT;
    a.start = drawn(epoch, origin, target, 5) % (SLOT / 2 - COUNT * SHORT);
    // All accumulates of a place in an epoch have one operation.
    a.operation = (int)(drawn(epoch, 0, target, 6) % (sizeof OPS / sizeof OPS[0]));
    return a;
}

static int64_t combined(int operation, int64_t old, int64_t value)
{
    switch (operation) {
    case 0: return (int64_t)((uint64_t)old + (uint64_t)value);
    case 1: return value > old ? value : old;
    case 2: return value < old ? value : old;
    case 3: return old ^ value;
    case 4: return old & value;
    case 5: return old | value;
    default: return (int64_t)((uint64_t)old * (uint64_t)value);
    }
}

// Makes the accesses of this rank to a target.
static void access_all(uint64_t epoch, int target)
{
    struct accesses a = accesses_of(epoch, world_rank, target);
    for (size_t i = 0; !a.none && i < a.count; i++) {
        int length = (int)a.length;
        size_t at = a.start + i * a.length, own = (size_t)world_rank * SLOT + at;
        int64_t *data = pool + pooled, *later = data + length;
        double *number = (double *)(later + length);
        pooled += 2 * a.length + 1;
        for (size_t word = 0; word < a.length; word++) {
            data[word] = (int64_t)mixed(a.value + i, word);
            later[word] = ~data[word];
        }
        *number = (double)(a.value % 1000 + i);
        MPI_Put(data, length, MPI_INT64_T, target, displacement(target, PUTS, own), length, MPI_INT64_T, window);
        MPI_Accumulate(data, length, MPI_INT64_T, target, displacement(target, SUMS, at), length, MPI_INT64_T, OPS[a.operation], window);
        // Accumulates of one origin to one place take effect in order.
        MPI_Accumulate(data, length, MPI_INT64_T, target, displacement(target, ORDERED, own), length, MPI_INT64_T, MPI_REPLACE, window);
        MPI_Accumulate(later, length, MPI_INT64_T, target, displacement(target, ORDERED, own), length, MPI_INT64_T, MPI_REPLACE, window);
        MPI_Accumulate(number, 1, MPI_DOUBLE, target, displacement(target, DOUBLES, a.start + i), 1, MPI_DOUBLE, MPI_SUM, window);
    }
}

// What the accesses of an origin make of this rank's window.
static void want_all(uint64_t epoch, int origin)
{
    struct accesses a = accesses_of(epoch, origin, world_rank);
    for (size_t i = 0; !a.none && i < a.count; i++) {
        size_t at = a.start + i * a.length, own = (size_t)origin * SLOT + at;
        for (size_t word = 0; word < a.length; word++) {
            int64_t data = (int64_t)mixed(a.value + i, word), *sum = &wanted[place_of(SUMS, at + word)];
            wanted[place_of(PUTS, own + word)] = data;
            wanted[place_of(ORDERED, own + word)] = ~data;
            *sum = combined(a.operation, *sum, data);
        }
        *(double *)&wanted[place_of(DOUBLES, a.start + i)] += (double)(a.value % 1000 + i);
    }
}

// Whether an epoch has calls that the library leaves to the MPI.
static int has_results(uint64_t epoch) { return mixed(seed + 1, epoch) % 40 == 0; }

static void verify_all(uint64_t epoch)
{
    for (size_t i = 0; i < place_of(PARTS, 0); i++)
        CHECK(base[i] == wanted[i], "epoch %" PRIu64 ", word %zu: %" PRIx64 ", not %" PRIx64, epoch, i, (uint64_t)base[i], (uint64_t)wanted[i]);
}

// Calls with results, a datatype of the program's, and accumulates before and after them.
static void results(uint64_t epoch)
{
    static int64_t got[16], one = 1, old, add, sum;
    static const int64_t pair[3] = {7, 0, 9};
    int target = (world_rank + 1) % world_size, origin = (world_rank + world_size - 1) % world_size;
    size_t own = (size_t)world_rank * SLOT + SLOT - 8, theirs = (size_t)origin * SLOT + SLOT - 8;
    MPI_Datatype apart;
    add = (int64_t)epoch;
    MPI_Type_vector(2, 1, 2, MPI_INT64_T, &apart);
    MPI_Type_commit(&apart);
    MPI_Accumulate(&add, 1, MPI_INT64_T, target, displacement(target, ORDERED, own), 1, MPI_INT64_T, MPI_SUM, window);
    // A call that fails, at once or in the fence, takes none of the later ones with it.
    MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN);
    int failed = MPI_Get(got, -1, MPI_INT64_T, target, 0, -1, MPI_INT64_T, window);
    MPI_Get(got, 16, MPI_INT64_T, target, displacement(target, CONSTANTS, 5), 16, MPI_INT64_T, window);
    MPI_Fetch_and_op(&one, &old, MPI_INT64_T, target, displacement(target, ORDERED, own), MPI_SUM, window);
    MPI_Accumulate(&add, 1, MPI_INT64_T, target, displacement(target, ORDERED, own), 1, MPI_INT64_T, MPI_SUM, window);
    MPI_Put(pair, 1, apart, target, displacement(target, ORDERED, own + 1), 1, apart, window);
    MPI_Type_free(&apart);
    int fence_failed = MPI_Win_fence(0, window);
    CHECK(failed || fence_failed, "epoch %" PRIu64 ": no error for a negative count", epoch);
    MPI_Win_set_errhandler(window, MPI_ERRORS_ARE_FATAL);
    CHECK(old == sum + add, "epoch %" PRIu64 ": MPI_Fetch_and_op found %" PRId64 ", not %" PRId64, epoch, old, sum + add);
    for (int i = 0; i < 16; i++)
        CHECK(got[i] == (int64_t)mixed((uint64_t)target, 5 + (uint64_t)i), "epoch %" PRIu64 ": MPI_Get of word %d", epoch, i);
    sum += 2 * add + 1;
    wanted[place_of(ORDERED, theirs)] = sum; // every rank has had the same
    wanted[place_of(ORDERED, theirs + 1)] = 7;
    wanted[place_of(ORDERED, theirs + 3)] = 9;
}

// Between two fences that enclose no accesses, locks may be taken.
static void locked(uint64_t epoch)
{
    int target = (world_rank + 1) % world_size, origin = (world_rank + world_size - 1) % world_size;
    int64_t value = (int64_t)epoch;
    MPI_Win_fence(MPI_MODE_NOSUCCEED, window);
    MPI_Win_lock(MPI_LOCK_SHARED, target, 0, window);
    MPI_Put(&value, 1, MPI_INT64_T, target, displacement(target, PUTS, (size_t)world_rank * SLOT + SLOT - 1), 1, MPI_INT64_T, window);
    MPI_Win_unlock(target, window);
    MPI_Barrier(MPI_COMM_WORLD);
    wanted[place_of(PUTS, (size_t)origin * SLOT + SLOT - 1)] = value;
    MPI_Win_lock(MPI_LOCK_SHARED, world_rank, 0, window); // as MPI wants it before the memory is read
    CHECK(base[place_of(PUTS, (size_t)origin * SLOT + SLOT - 1)] == value, "epoch %" PRIu64 ": a put with a lock", epoch);
    MPI_Win_unlock(world_rank, window);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_fence(MPI_MODE_NOPRECEDE, window);
}

static int random_epochs(int epochs)
{
    size_t words = place_of(PARTS, 0);
    wanted = allocate(words * 8);
    pool = allocate((size_t)world_size * (SLOT + COUNT) * 8);
    MPI_Win_allocate((MPI_Aint)(words * 8), unit_of(world_rank), MPI_INFO_NULL, MPI_COMM_WORLD, &base, &window);
    for (size_t i = 0; i < words; i++)
        base[i] = 0;
    for (size_t i = 0; i < SLOT; i++)
        base[place_of(CONSTANTS, i)] = (int64_t)mixed((uint64_t)world_rank, i);
    memcpy(wanted, base, words * 8);
    MPI_Win_fence(0, window);
    for (uint64_t epoch = 0; epoch < (uint64_t)epochs; epoch++) {
        if (epoch % 16 == 5)
            locked(epoch);
        if (has_results(epoch))
            results(epoch);
        else {
            pooled = 0;
            for (int i = 0; i < world_size; i++)
                access_all(epoch, (world_rank + i) % world_size);
            MPI_Win_fence(0, window);
            for (int origin = 0; origin < world_size; origin++)
                want_all(epoch, origin);
        }
        verify_all(epoch);
        MPI_Win_fence(0, window);
    }
    MPI_Win_fence(MPI_MODE_NOSUCCEED, window);
    MPI_Win_free(&window);
    free(wanted);
    free(pool);
    return finish("%d epochs", epochs);
}

int main(int argc, char **argv)
{
    // The launcher's number, since MPI_Init reads the setting.
    const char *rank = getenv("PMI_RANK");
    if (argc == 4 && rank && !strcmp(rank, "1"))
        unsetenv("ISTHMUS_COLLECTIVES_WINDOWS");
    start(&argc, &argv, "far_windows");
    if (argc != 3 && (argc != 4 || !rank))
        fail("far_windows SEED EPOCHS [apart], with PMI_RANK");
    seed = strtoull(argv[1], NULL, 10);
    return random_epochs(atoi(argv[2]));
}
