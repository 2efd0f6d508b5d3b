// A world that goes on without ranks that somebody else kills, by MPICH's MPIX_Comm_get_failed.
//   survivors LOST PROGRESS_FILE
// All ranks exchange and reduce until LOST of them are gone. The others make a communicator of their own, and check
// that it works.
#include "check.h"

#ifdef MPICH_NUMVERSION
#define BYTES (64 << 10)
// How long the others may take to hear of a loss. Seconds.
#define NOTICE 20

static int failed_count(MPI_Group *failed)
{
    int count;
    CHECK(MPIX_Comm_get_failed(MPI_COMM_WORLD, failed) == MPI_SUCCESS, "MPIX_Comm_get_failed fails");
    MPI_Group_size(*failed, &count);
    return count;
}

// Waits for all requests, or until more ranks than these have failed. An operation with a lost rank ends with an error or
// stays pending.
static int wait_or_lose(int count, MPI_Request *requests, int lost)
{
    MPI_Group failed;
    for (int done = 0, polls = 0; !done; polls++) {
        if (MPI_Testall(count, requests, &done, MPI_STATUSES_IGNORE) != MPI_SUCCESS)
            return 0;
        if (!done && polls % 10000 == 9999 && failed_count(&failed) > lost)
            return 0;
    }
    return 1;
}

// Starts a message to and from each other rank. Whether that was possible for all. The requests of a peer are at 2 * peer.
static int start_round(MPI_Comm comm, int round, unsigned char *out, unsigned char *in, MPI_Request *requests)
{
    int rank, size, good = 1;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    for (int peer = 0; peer < size; peer++) {
        fill(out + (size_t)peer * BYTES, BYTES, mixed((uint64_t)(rank * 1000 + peer), (uint64_t)round));
        requests[2 * peer] = requests[2 * peer + 1] = MPI_REQUEST_NULL;
        good &= MPI_Irecv(in + (size_t)peer * BYTES, BYTES, MPI_BYTE, peer, round, comm, &requests[2 * peer]) == MPI_SUCCESS;
        good &= MPI_Isend(out + (size_t)peer * BYTES, BYTES, MPI_BYTE, peer, round, comm, &requests[2 * peer + 1]) == MPI_SUCCESS;
    }
    return good;
}

// One round. Whether no more ranks than `lost` were lost. Else buffers and requests stay in use.
static int one_round(MPI_Comm comm, int round, unsigned char *out, unsigned char *in, MPI_Request *requests, int lost)
{
    int rank, size;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    if (!start_round(comm, round, out, in, requests) || !wait_or_lose(2 * size, requests, lost))
        return 0;
    for (int peer = 0; peer < size; peer++)
        verify(in + (size_t)peer * BYTES, BYTES, mixed((uint64_t)(peer * 1000 + rank), (uint64_t)round), "survivors");
    return 1;
}

// Ends what is under way between the ranks that are left: MPI_Finalize may not be called before. `rounds` were started
// here, the last of them with these requests. Others may have started one more.
static void end_rounds(MPI_Comm rest, const int *ranks, int size, int rounds, MPI_Request *requests)
{
    int most = rounds;
    MPI_Allreduce(&rounds, &most, 1, MPI_INT, MPI_MAX, rest);
    for (;;) {
        for (int index = 0; index < size; index++)
            CHECK(MPI_Waitall(2, &requests[2 * ranks[index]], MPI_STATUSES_IGNORE) == MPI_SUCCESS, "a message among those that are left fails");
        if (rounds == most)
            return;
        unsigned char *out = allocate((size_t)world_size * BYTES), *in = allocate((size_t)world_size * BYTES);
        start_round(MPI_COMM_WORLD, rounds++, out, in, requests);
    }
}

int main(int argc, char **argv)
{
    start(&argc, &argv, "survivors");
    int lost = (int)argument(argc, argv, 1, 1), round = 0, count = 0;
    CHECK(argc > 2, "usage: survivors LOST PROGRESS_FILE");
    unsigned char *out = allocate((size_t)world_size * BYTES), *in = allocate((size_t)world_size * BYTES);
    MPI_Request *requests = allocate(2 * (size_t)world_size * sizeof *requests);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    while (one_round(MPI_COMM_WORLD, round++, out, in, requests, 0)) {
        FILE *progress = world_rank == 0 && round == 8 ? fopen(argv[2], "w") : NULL;
        if (progress) {
            fprintf(progress, "rounds %d\n", round);
            fclose(progress);
        }
    }

    MPI_Group world, failed, left;
    double since = seconds();
    while ((count = failed_count(&failed)) < lost)
        CHECK(seconds() < since + NOTICE, "%d ranks failed, expected %d", count, lost);
    CHECK(count == lost, "%d ranks failed, expected %d", count, lost);
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_difference(world, failed, &left);
    MPI_Comm rest;
    CHECK(MPI_Comm_create_group(MPI_COMM_WORLD, left, 7, &rest) == MPI_SUCCESS, "no communicator of the others");

    int rank, size, sum = 0, all = 0;
    MPI_Comm_rank(rest, &rank);
    MPI_Comm_size(rest, &size);
    CHECK(size == world_size - lost, "%d ranks are left of %d", size, world_size);
    unsigned char *fresh_out = allocate((size_t)size * BYTES), *fresh_in = allocate((size_t)size * BYTES);
    MPI_Request *fresh = allocate(2 * (size_t)size * sizeof *fresh);
    for (int again = 0; again < 20; again++)
        CHECK(one_round(rest, again, fresh_out, fresh_in, fresh, lost), "the others lose somebody too");
    MPI_Allreduce(&world_rank, &sum, 1, MPI_INT, MPI_SUM, rest);
    // The ranks of the world that are left.
    int *ranks = allocate((size_t)size * sizeof *ranks), *numbers = allocate((size_t)size * sizeof *numbers);
    for (int index = 0; index < size; index++)
        numbers[index] = index;
    MPI_Group_translate_ranks(left, size, numbers, world, ranks);
    for (int index = 0; index < size; index++)
        all += ranks[index];
    end_rounds(rest, ranks, size, round, requests);
    CHECK(sum == all, "the sum of the ranks that are left is %d, expected %d", sum, all);
    if (rank == 0) {
        printf("OK survivors: %d of %d ranks go on\n", size, world_size);
        fflush(stdout);
    }
    MPI_Comm_free(&rest);
    MPI_Finalize();
    return 0;
}
#else
int main(int argc, char **argv)
{
    start(&argc, &argv, "survivors");
    fail("this MPI has no MPIX_Comm_get_failed");
}
#endif
