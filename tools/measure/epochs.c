// Times epochs of one-sided communication across two sites. Each rank of the first half of the ranks accesses each rank of
// the second half and the other way round, all at the same time. For tools/measure-epochs.py.
//
//   epochs REPEATS START_S [SYNCHRONISATION ...]
//
// Synchronisations:
//   fence     MPI_Win_fence ends the epoch
//   pscw      MPI_Win_post, start, complete and wait
//   flush     MPI_Win_flush_all in an epoch of MPI_Win_lock_all
//   lock      MPI_Win_lock and unlock of one target after the other
//   message   no window: one message to each target carries all data of an epoch, as aggregation would send it
//   answered  the same, and each target answers when it has the data, as aggregation would for a flush
//
// Ranks begin at one time of the machine's clock. An epoch ends when its last rank is done. Prints for each epoch:
// epoch SYNCHRONISATION OPERATION BYTES COUNT SECONDS, where COUNT operations of BYTES go to each target.
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Distance of small operations in the window. Bytes. They do not touch, so that nothing can join them.
enum { APART = 16 };
enum { TAG_DATA = 1, TAG_ANSWER };
enum sync { FENCE, PSCW, FLUSH, LOCK, MESSAGE, ANSWERED, SYNCS };
static const char *const SYNC_NAMES[SYNCS] = {"fence", "pscw", "flush", "lock", "message", "answered"};

// An epoch's operations: to each target `count` of `bytes` each.
struct load {
    int is_accumulate, bytes, count;
};
// Long ones last: after them the collectives library leaves epochs to the MPI for a while.
static const struct load LOADS[] = {
    {0, 8, 1}, {0, 8, 10}, {0, 8, 100}, {0, 8, 1000}, {1, 8, 1}, {1, 8, 10}, {1, 8, 100}, {1, 8, 1000},
    {0, 65536, 16}, {0, 1 << 20, 1}, {1, 65536, 16}, {1, 1 << 20, 1},
};
enum { LOADS_COUNT = sizeof LOADS / sizeof LOADS[0], SLOT = 1 << 20 };

static int rank, half, first_target;
static uint64_t *from, *base;
static unsigned char *packed, *arrived;
static MPI_Win window;
static MPI_Group others;

// Bytes of the message that carries a load to one target: each operation with its place.
static int packed_bytes(struct load load) { return load.count * (load.bytes + 8); }

static void access_all(struct load load)
{
    int words = load.bytes / 8, apart = load.count > 1 && load.bytes == 8 ? APART : load.bytes;
    MPI_Aint slot = (MPI_Aint)SLOT * (rank % half);
    for (int target = first_target; target < first_target + half; target++)
        for (int i = 0; i < load.count; i++) {
            MPI_Aint place = slot + (MPI_Aint)i * apart;
            if (load.is_accumulate)
                MPI_Accumulate(from, words, MPI_UINT64_T, target, place, words, MPI_UINT64_T, MPI_SUM, window);
            else
                MPI_Put(from, words, MPI_UINT64_T, target, place, words, MPI_UINT64_T, window);
        }
}

static void lock_each(struct load load)
{
    int all = half, first = first_target;
    for (int i = 0; i < all; i++) {
        MPI_Win_lock(MPI_LOCK_SHARED, first + i, 0, window);
        first_target = first + i, half = 1;
        access_all(load);
        first_target = first, half = all;
        MPI_Win_unlock(first + i, window);
    }
}

// What the target of an aggregated message does with it.
static void apply(struct load load, const unsigned char *message)
{
    for (int i = 0; i < load.count; i++, message += load.bytes + 8) {
        uint64_t place;
        memcpy(&place, message, 8);
        if (load.is_accumulate)
            for (int word = 0; word < load.bytes / 8; word++)
                base[place / 8 + (size_t)word] += ((const uint64_t *)message)[1 + word];
        else
            memcpy((unsigned char *)base + place, message + 8, (size_t)load.bytes);
    }
}

static void exchange(struct load load, int is_answered)
{
    int bytes = packed_bytes(load);
    MPI_Request *requests = malloc(4 * (size_t)half * sizeof *requests), *answers = requests + 2 * half;
    for (int i = 0; i < half; i++) {
        unsigned char *message = packed + (size_t)i * (size_t)bytes;
        for (int j = 0; j < load.count; j++) {
            uint64_t place = (uint64_t)SLOT * (uint64_t)(rank % half) + (uint64_t)j * (uint64_t)(load.bytes == 8 ? APART : load.bytes);
            memcpy(message + (size_t)j * (size_t)(load.bytes + 8), &place, 8);
            memcpy(message + (size_t)j * (size_t)(load.bytes + 8) + 8, from, (size_t)load.bytes);
        }
        MPI_Irecv(arrived + (size_t)i * (size_t)bytes, bytes, MPI_BYTE, first_target + i, TAG_DATA, MPI_COMM_WORLD, &requests[i]);
        MPI_Irecv(NULL, 0, MPI_BYTE, first_target + i, TAG_ANSWER, MPI_COMM_WORLD, &answers[i]);
    }
    for (int i = 0; i < half; i++)
        MPI_Isend(packed + (size_t)i * (size_t)bytes, bytes, MPI_BYTE, first_target + i, TAG_DATA, MPI_COMM_WORLD, &requests[half + i]);
    for (int i = 0; i < half; i++) {
        int which;
        MPI_Waitany(half, requests, &which, MPI_STATUS_IGNORE);
        apply(load, arrived + (size_t)which * (size_t)bytes);
        if (is_answered)
            MPI_Isend(NULL, 0, MPI_BYTE, first_target + which, TAG_ANSWER, MPI_COMM_WORLD, &answers[half + which]);
    }
    MPI_Waitall(half, requests + half, MPI_STATUSES_IGNORE);
    for (int i = 0; !is_answered && i < half; i++) {
        MPI_Cancel(&answers[i]);
        answers[half + i] = MPI_REQUEST_NULL;
    }
    MPI_Waitall(2 * half, answers, MPI_STATUSES_IGNORE);
    free(requests);
}

static void epoch(enum sync sync, struct load load)
{
    switch (sync) {
    case FENCE:
        access_all(load);
        MPI_Win_fence(MPI_MODE_NOSUCCEED, window);
        break;
    case PSCW:
        MPI_Win_post(others, 0, window);
        MPI_Win_start(others, 0, window);
        access_all(load);
        MPI_Win_complete(window);
        MPI_Win_wait(window);
        break;
    case FLUSH:
        access_all(load);
        MPI_Win_flush_all(window);
        break;
    case LOCK: lock_each(load); break;
    default: exchange(load, sync == ANSWERED);
    }
}

static double timed(enum sync sync, struct load load, double start_s)
{
    if (sync == FENCE)
        MPI_Win_fence(MPI_MODE_NOPRECEDE, window);
    if (sync == FLUSH)
        MPI_Win_lock_all(0, window);
    double begin = MPI_Wtime() + start_s, end;
    MPI_Bcast(&begin, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    while (MPI_Wtime() < begin) {
        int flag;
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
    }
    epoch(sync, load);
    double took = MPI_Wtime() - begin;
    MPI_Barrier(MPI_COMM_WORLD);
    if (sync == FLUSH)
        MPI_Win_unlock_all(window);
    MPI_Reduce(&took, &end, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    return end;
}

static int is_chosen(const char *name, int argc, char **argv)
{
    for (int i = 3; i < argc; i++)
        if (!strcmp(argv[i], name))
            return 1;
    return argc <= 3;
}

int main(int argc, char **argv)
{
    int ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc < 3 || ranks % 2 != 0) {
        fprintf(stderr, "epochs REPEATS START_S [SYNCHRONISATION ...], by an even number of ranks\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    half = ranks / 2;
    first_target = rank < half ? half : 0;
    size_t room = (size_t)half * (SLOT + 8 * 1000 + 8 * 16);
    from = calloc(SLOT, 1), packed = calloc(room, 1), arrived = calloc(room, 1);
    if (!from || !packed || !arrived)
        MPI_Abort(MPI_COMM_WORLD, 3);
    MPI_Win_allocate((MPI_Aint)SLOT * half, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &base, &window);
    MPI_Group all;
    MPI_Comm_group(MPI_COMM_WORLD, &all);
    MPI_Group_range_incl(all, 1, (int[1][3]){{first_target, first_target + half - 1, 1}}, &others);
    for (int sync = 0; sync < SYNCS; sync++)
        for (int i = 0; is_chosen(SYNC_NAMES[sync], argc, argv) && i < LOADS_COUNT; i++)
            // The first one also makes connections.
            for (int repeat = i > 0; repeat <= atoi(argv[1]); repeat++) {
                double took = timed((enum sync)sync, LOADS[i], atof(argv[2]));
                if (rank == 0 && repeat > 0) {
                    printf("epoch %s %s %d %d %.6f\n", SYNC_NAMES[sync], LOADS[i].is_accumulate ? "accumulate" : "put", LOADS[i].bytes, LOADS[i].count, took);
                    fflush(stdout);
                }
            }
    MPI_Group_free(&all);
    MPI_Group_free(&others);
    MPI_Win_free(&window);
    MPI_Finalize();
    return 0;
}
