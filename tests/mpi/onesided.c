// One-sided communication under fence, lock/unlock, PSCW and lock_all + flush.
//   onesided [LARGEST=1M]
#include "check.h"

static int right, left;

static uint64_t seed_of(int origin, int target, int kind)
{
    return mixed((uint64_t)origin * 1000 + (uint64_t)target, (uint64_t)kind);
}

// Every rank owns a window of `world_size` slots: slot s is written by rank s.
static MPI_Win window(size_t slot, unsigned char **base)
{
    MPI_Win win;
    MPI_Aint bytes = (MPI_Aint)(slot * (size_t)world_size);
    MPI_Win_allocate(bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, base, &win);
    memset(*base, 0, (size_t)bytes);
    MPI_Barrier(MPI_COMM_WORLD);
    return win;
}

static void fence(size_t slot)
{
    unsigned char *base, *out = allocate(slot), *in = allocate(slot);
    MPI_Win win = window(slot, &base);
    MPI_Win_fence(MPI_MODE_NOPRECEDE, win);
    fill(out, slot, seed_of(world_rank, right, 1));
    MPI_Put(out, (int)slot, MPI_BYTE, right, (MPI_Aint)(slot * (size_t)world_rank), (int)slot, MPI_BYTE, win);
    MPI_Win_fence(0, win);
    verify(base + slot * (size_t)left, slot, seed_of(left, world_rank, 1), "Put under fence");
    // What the right neighbour holds is what we put there: read it back.
    MPI_Win_fence(0, win);
    MPI_Get(in, (int)slot, MPI_BYTE, right, (MPI_Aint)(slot * (size_t)world_rank), (int)slot, MPI_BYTE, win);
    MPI_Win_fence(MPI_MODE_NOSUCCEED, win);
    verify(in, slot, seed_of(world_rank, right, 1), "Get under fence");
    MPI_Win_free(&win);
    free(out);
    free(in);
}

static void lock(size_t slot)
{
    unsigned char *base, *out = allocate(slot), *in = allocate(slot);
    MPI_Win win = window(slot, &base);
    for (int target = 0; target < world_size; target++) {
        fill(out, slot, seed_of(world_rank, target, 2));
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, target, 0, win);
        MPI_Put(out, (int)slot, MPI_BYTE, target, (MPI_Aint)(slot * (size_t)world_rank), (int)slot, MPI_BYTE, win);
        MPI_Win_unlock(target, win);
        MPI_Win_lock(MPI_LOCK_SHARED, target, 0, win);
        MPI_Get(in, (int)slot, MPI_BYTE, target, (MPI_Aint)(slot * (size_t)world_rank), (int)slot, MPI_BYTE, win);
        MPI_Win_unlock(target, win);
        verify(in, slot, seed_of(world_rank, target, 2), "Put and Get under lock");
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, world_rank, 0, win);
    for (int origin = 0; origin < world_size; origin++)
        verify(base + slot * (size_t)origin, slot, seed_of(origin, world_rank, 2), "window after lock");
    MPI_Win_unlock(world_rank, win);
    MPI_Win_free(&win);
    free(out);
    free(in);
}

static void post_start(size_t slot)
{
    unsigned char *base, *out = allocate(slot);
    MPI_Win win = window(slot, &base);
    MPI_Group world, to, from;
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, 1, &right, &to);
    MPI_Group_incl(world, 1, &left, &from);
    for (int round = 0; round < 3; round++) {
        fill(out, slot, seed_of(world_rank, right, 10 + round));
        MPI_Win_post(from, 0, win);
        MPI_Win_start(to, 0, win);
        MPI_Put(out, (int)slot, MPI_BYTE, right, (MPI_Aint)(slot * (size_t)world_rank), (int)slot, MPI_BYTE, win);
        MPI_Win_complete(win);
        MPI_Win_wait(win);
        verify(base + slot * (size_t)left, slot, seed_of(left, world_rank, 10 + round), "Put under post/start");
    }
    MPI_Group_free(&to);
    MPI_Group_free(&from);
    MPI_Group_free(&world);
    MPI_Win_free(&win);
    free(out);
}

static void flush(size_t slot)
{
    unsigned char *base, *out = allocate(slot * (size_t)world_size), *in = allocate(slot);
    MPI_Win win = window(slot, &base);
    MPI_Win_lock_all(0, win);
    for (int target = 0; target < world_size; target++) {
        unsigned char *piece = out + slot * (size_t)target;
        fill(piece, slot, seed_of(world_rank, target, 4));
        MPI_Put(piece, (int)slot, MPI_BYTE, target, (MPI_Aint)(slot * (size_t)world_rank), (int)slot, MPI_BYTE, win);
    }
    MPI_Win_flush_all(win);
    MPI_Request request;
    for (int target = 0; target < world_size; target++) {
        memset(in, 0, slot);
        MPI_Rget(in, (int)slot, MPI_BYTE, target, (MPI_Aint)(slot * (size_t)world_rank), (int)slot, MPI_BYTE, win, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        verify(in, slot, seed_of(world_rank, target, 4), "Rget after flush");
    }
    MPI_Win_unlock_all(win);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, world_rank, 0, win);
    for (int origin = 0; origin < world_size; origin++)
        verify(base + slot * (size_t)origin, slot, seed_of(origin, world_rank, 4), "window after flush");
    MPI_Win_unlock(world_rank, win);
    MPI_Win_free(&win);
    free(out);
    free(in);
}

// All ranks add into everybody's window; integers, so that the sum is exact.
static void accumulate(size_t count)
{
    int64_t *base, *out = allocate(count * 8), *old = allocate(count * 8);
    MPI_Win win;
    MPI_Win_allocate((MPI_Aint)(count * 8), 8, MPI_INFO_NULL, MPI_COMM_WORLD, &base, &win);
    for (size_t i = 0; i < count; i++) {
        base[i] = (int64_t)i;
        out[i] = (int64_t)(i % 1000) * (world_rank + 1);
    }
    MPI_Win_fence(0, win);
    for (int target = 0; target < world_size; target++)
        MPI_Accumulate(out, (int)count, MPI_INT64_T, target, 0, (int)count, MPI_INT64_T, MPI_SUM, win);
    MPI_Win_fence(0, win);
    const int64_t shares = (int64_t)world_size * (world_size + 1) / 2;
    for (size_t i = 0; i < count; i++)
        CHECK(base[i] == (int64_t)i + (int64_t)(i % 1000) * shares, "Accumulate: element %zu of %zu", i, count);
    MPI_Win_fence(0, win);
    if (world_rank == 0)
        MPI_Get_accumulate(out, (int)count, MPI_INT64_T, old, (int)count, MPI_INT64_T, world_size - 1, 0, (int)count,
                           MPI_INT64_T, MPI_REPLACE, win);
    MPI_Win_fence(0, win);
    if (world_rank == 0)
        for (size_t i = 0; i < count; i++)
            CHECK(old[i] == (int64_t)i + (int64_t)(i % 1000) * shares, "Get_accumulate: element %zu", i);
    if (world_rank == world_size - 1)
        for (size_t i = 0; i < count; i++)
            CHECK(base[i] == (int64_t)(i % 1000), "Get_accumulate did not replace element %zu", i);
    MPI_Win_free(&win);
    free(out);
    free(old);
}

// A counter by Fetch_and_op hands out every ticket once; a lock by
// Compare_and_swap guards a read-modify-write that is not atomic itself.
static void atomics(int rounds)
{
    enum { COUNTER, LOCK, GUARDED };
    int64_t *base, *tickets = allocate((size_t)rounds * 8), *all = NULL;
    MPI_Win win;
    MPI_Win_allocate(3 * 8, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &base, &win);
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, world_rank, 0, win);
    base[COUNTER] = base[LOCK] = base[GUARDED] = 0;
    MPI_Win_unlock(world_rank, win);
    MPI_Barrier(MPI_COMM_WORLD);
    const int64_t one = 1, zero = 0;
    MPI_Win_lock_all(0, win);
    for (int i = 0; i < rounds; i++) {
        MPI_Fetch_and_op(&one, &tickets[i], MPI_INT64_T, 0, COUNTER, MPI_SUM, win);
        MPI_Win_flush(0, win);
    }
    for (int i = 0; i < rounds / 8; i++) {
        int64_t was, guarded, next;
        do {
            MPI_Compare_and_swap(&one, &zero, &was, MPI_INT64_T, 0, LOCK, win);
            MPI_Win_flush(0, win);
        } while (was != 0);
        MPI_Fetch_and_op(NULL, &guarded, MPI_INT64_T, 0, GUARDED, MPI_NO_OP, win);
        MPI_Win_flush(0, win);
        next = guarded + 1;
        MPI_Accumulate(&next, 1, MPI_INT64_T, 0, GUARDED, 1, MPI_INT64_T, MPI_REPLACE, win);
        MPI_Win_flush(0, win);
        MPI_Accumulate(&zero, 1, MPI_INT64_T, 0, LOCK, 1, MPI_INT64_T, MPI_REPLACE, win);
        MPI_Win_flush(0, win);
    }
    MPI_Win_unlock_all(win);
    MPI_Barrier(MPI_COMM_WORLD);

    size_t total = (size_t)rounds * (size_t)world_size;
    if (world_rank == 0)
        all = allocate(total * 8);
    MPI_Gather(tickets, rounds, MPI_INT64_T, all, rounds, MPI_INT64_T, 0, MPI_COMM_WORLD);
    if (world_rank == 0) {
        unsigned char *seen = calloc(total, 1);
        CHECK(seen, "out of memory");
        for (size_t i = 0; i < total; i++) {
            CHECK(all[i] >= 0 && (size_t)all[i] < total, "Fetch_and_op: ticket %" PRId64 " of %zu", all[i], total);
            CHECK(!seen[all[i]]++, "Fetch_and_op: ticket %" PRId64 " was handed out twice", all[i]);
        }
        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, win);
        CHECK(base[GUARDED] == (int64_t)(rounds / 8) * world_size, "Compare_and_swap: counted %" PRId64 ", expected %" PRId64,
              base[GUARDED], (int64_t)(rounds / 8) * world_size);
        MPI_Win_unlock(0, win);
        free(seen);
        free(all);
    }
    free(tickets);
    MPI_Win_free(&win);
}

int main(int argc, char **argv)
{
    start(&argc, &argv, "onesided");
    size_t largest = argument(argc, argv, 1, 1 << 20);
    int rounds = (int)argument(argc, argv, 2, 64), sizes = 0;
    right = (world_rank + 1) % world_size;
    left = (world_rank + world_size - 1) % world_size;
    for (size_t slot = 8; slot <= largest; slot = slot < 512 ? slot * 8 : slot * 16, sizes++) {
        fence(slot - 1);
        lock(slot);
        post_start(slot + 1);
        flush(slot);
        accumulate(slot / 8);
    }
    atomics(rounds);
    return finish("%d sizes up to %zu bytes, %d atomic rounds, %d ranks", sizes, largest, rounds, world_size);
}
