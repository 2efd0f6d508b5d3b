// Two separately started jobs of equally many ranks couple, and talk.
//   coupled accept|connect FILE [no-onesided]         a bit of everything
//   coupled accept|connect FILE SECONDS [PROGRESS]    transfers both ways for so long
// The accepting job writes its port's name to FILE, and makes the file PROGRESS
// when transfers are well under way. All data is checked. The second form tells
// how long the longest round took: the stall, where something was broken.
#include "port.h"

static const size_t sizes[] = {0, 1, 7, 64, 1000, 8191, 8192, 65537, 300000, 1 << 20, (8 << 20) + 3};
enum { SIZES = sizeof sizes / sizeof *sizes, STORM = 400, PIECES = 8, PIECE = 512 << 10 };

static MPI_Comm inter;
static int side, partner; // 0 accepts; our rank is also our partner's

static uint64_t seed_of(int from_side, int rank, int what, int number)
{
    return mixed((uint64_t)(from_side * 1000 + rank), (uint64_t)what << 32 | (uint64_t)number);
}

static void pingpong(void)
{
    for (int i = 0; i < SIZES; i++) {
        int bytes = (int)sizes[i];
        unsigned char *out = allocate(sizes[i]), *in = allocate(sizes[i]);
        for (int round = 0; round < 4; round++) {
            MPI_Status status;
            int number = i * 4 + round;
            fill(out, sizes[i], seed_of(side, world_rank, 1, number));
            if (side == 0)
                MPI_Send(out, bytes, MPI_BYTE, partner, number, inter);
            MPI_Recv(in, bytes, MPI_BYTE, partner, number, inter, &status);
            if (side == 1)
                MPI_Send(out, bytes, MPI_BYTE, partner, number, inter);
            expect_status(&status, partner, number, bytes, "ping-pong");
            verify(in, sizes[i], seed_of(!side, partner, 1, number), "ping-pong");
        }
        free(out);
        free(in);
    }
}

static size_t storm_bytes(int number)
{
    return mixed(77, (uint64_t)number) % (number % 10 ? 3000 : 100000);
}

// Everybody to everybody of the other side. Every other receive is posted late.
static void storm(int remote)
{
    int total = STORM * remote;
    MPI_Request *requests = allocate(2 * (size_t)total * sizeof *requests);
    unsigned char **out = allocate((size_t)total * sizeof *out), **in = allocate((size_t)total * sizeof *in);
    for (int late = 0; late < 2; late++) {
        for (int i = late; i < total; i += 2) {
            int number = i / remote;
            in[i] = allocate(storm_bytes(number));
            MPI_Irecv(in[i], (int)storm_bytes(number), MPI_BYTE, i % remote, number, inter, &requests[i]);
        }
        for (int i = 0; !late && i < total; i++) {
            size_t bytes = storm_bytes(i / remote);
            out[i] = allocate(bytes);
            fill(out[i], bytes, seed_of(side, world_rank, 2, i / remote * 100 + i % remote));
            MPI_Isend(out[i], (int)bytes, MPI_BYTE, i % remote, i / remote, inter, &requests[total + i]);
        }
    }
    MPI_Waitall(2 * total, requests, MPI_STATUSES_IGNORE);
    for (int i = 0; i < total; i++) {
        verify(in[i], storm_bytes(i / remote), seed_of(!side, i % remote, 2, i / remote * 100 + world_rank), "storm");
        free(in[i]);
        free(out[i]);
    }
    free(in);
    free(out);
    free(requests);
}

static void allreduce(MPI_Comm merged, int size, int rank)
{
    for (int count = 1; count <= 100000; count *= 10) {
        int64_t *own = allocate((size_t)count * 8), *sum = allocate((size_t)count * 8);
        for (int i = 0; i < count; i++)
            own[i] = (int64_t)(i + 1) * (rank + 1);
        MPI_Allreduce(own, sum, count, MPI_INT64_T, MPI_SUM, merged);
        for (int i = 0; i < count; i++)
            CHECK(sum[i] == (int64_t)(i + 1) * size * (size + 1) / 2, "Allreduce: element %d of %d", i, count);
        free(own);
        free(sum);
    }
}

// Everybody puts into, gets from, and adds to a window of everybody.
static void onesided(MPI_Comm merged, int size, int rank, size_t slot)
{
    unsigned char *base, *out = allocate(slot * (size_t)size), *in = allocate(slot * (size_t)size);
    int64_t *count, own[100];
    MPI_Win win, counts;
    MPI_Win_allocate((MPI_Aint)(slot * (size_t)size), 1, MPI_INFO_NULL, merged, &base, &win);
    MPI_Win_fence(0, win);
    for (int target = 0; target < size; target++) {
        fill(out + slot * (size_t)target, slot, seed_of(2, rank, 3, target));
        MPI_Put(out + slot * (size_t)target, (int)slot, MPI_BYTE, target, (MPI_Aint)(slot * (size_t)rank), (int)slot,
                MPI_BYTE, win);
    }
    MPI_Win_fence(0, win);
    for (int target = 0; target < size; target++)
        MPI_Get(in + slot * (size_t)target, (int)slot, MPI_BYTE, target, (MPI_Aint)(slot * (size_t)rank), (int)slot,
                MPI_BYTE, win);
    MPI_Win_fence(0, win);
    for (int other = 0; other < size; other++) {
        verify(in + slot * (size_t)other, slot, seed_of(2, rank, 3, other), "Get of what was Put");
        verify(base + slot * (size_t)other, slot, seed_of(2, other, 3, rank), "window after Put");
    }
    MPI_Win_free(&win);

    MPI_Win_allocate(8 * 100, 8, MPI_INFO_NULL, merged, &count, &counts);
    memset(count, 0, 8 * 100);
    for (int i = 0; i < 100; i++)
        own[i] = (int64_t)i * (rank + 1);
    MPI_Win_fence(0, counts);
    for (int target = 0; target < size; target++)
        MPI_Accumulate(own, 100, MPI_INT64_T, target, 0, 100, MPI_INT64_T, MPI_SUM, counts);
    MPI_Win_fence(0, counts);
    for (int i = 0; i < 100; i++)
        CHECK(count[i] == (int64_t)i * size * (size + 1) / 2, "Accumulate: element %d", i);
    MPI_Win_free(&counts);
    free(out);
    free(in);
}

static int everything(int with_onesided)
{
    MPI_Comm merged;
    int size, rank;
    pingpong();
    storm(world_size);
    MPI_Intercomm_merge(inter, side, &merged);
    MPI_Comm_size(merged, &size);
    MPI_Comm_rank(merged, &rank);
    CHECK(size == 2 * world_size, "merged size %d", size);
    allreduce(merged, size, rank);
    if (with_onesided) {
        onesided(merged, size, rank, 1000);
        onesided(merged, size, rank, 1 << 20);
    }
    MPI_Comm_free(&merged);
    MPI_Comm_disconnect(&inter);
    return finish("%s side: %d sizes, %d messages to each, all-reduce%s over %d ranks",
                  side ? "connecting" : "accepting", SIZES, STORM, with_onesided ? " and one-sided" : "", size);
}

// One round: pieces both ways, and the accepting side's word whether there is another.
static int transfer(unsigned char *out, unsigned char *in, int round, int more)
{
    MPI_Request requests[2 * PIECES + 1];
    for (int i = 0; i < PIECES; i++) {
        size_t at = (size_t)i * PIECE;
        fill(out + at, PIECE, seed_of(side, world_rank, 4, round * PIECES + i));
        MPI_Irecv(in + at, PIECE, MPI_BYTE, partner, i, inter, &requests[i]);
        MPI_Isend(out + at, PIECE, MPI_BYTE, partner, i, inter, &requests[PIECES + i]);
    }
    if (side == 0)
        MPI_Isend(&more, 1, MPI_INT, partner, PIECES, inter, &requests[2 * PIECES]);
    else
        MPI_Irecv(&more, 1, MPI_INT, partner, PIECES, inter, &requests[2 * PIECES]);
    MPI_Waitall(2 * PIECES + 1, requests, MPI_STATUSES_IGNORE);
    for (int i = 0; i < PIECES; i++)
        verify(in + (size_t)i * PIECE, PIECE, seed_of(!side, partner, 4, round * PIECES + i), "transfer");
    return more;
}

static int stream(double length, const char *progress)
{
    unsigned char *out = allocate((size_t)PIECES * PIECE), *in = allocate((size_t)PIECES * PIECE);
    double began = seconds(), longest = 0, all_longest;
    int round = 0, more = 1;
    for (; more; round++) {
        double at = seconds();
        more = transfer(out, in, round, seconds() < began + length);
        if (seconds() - at > longest)
            longest = seconds() - at;
        if (round == 4 && side == 0 && world_rank == 0 && progress)
            publish(progress, "under way");
    }
    double took = seconds() - began;
    MPI_Reduce(&longest, &all_longest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    MPI_Comm_disconnect(&inter);
    free(out);
    free(in);
    return finish("%s side: %d rounds of %d MB each way in %.1f s, the longest %.2f s",
                  side ? "connecting" : "accepting", round, PIECES * PIECE / 1000000, took, all_longest);
}

int main(int argc, char **argv)
{
    start(&argc, &argv, "coupled");
    CHECK(argc >= 3, "usage: coupled accept|connect FILE [no-onesided | SECONDS [PROGRESS]]");
    int remote;
    side = strcmp(argv[1], "accept") != 0;
    partner = world_rank;
    inter = couple_by(argv[2], side == 0);
    MPI_Comm_remote_size(inter, &remote);
    CHECK(remote == world_size, "%d ranks here, %d on the other side", world_size, remote);
    int without = argc > 3 && strcmp(argv[3], "no-onesided") == 0;
    return argc > 3 && !without ? stream(strtod(argv[3], NULL), argc > 4 ? argv[4] : NULL) : everything(!without);
}
