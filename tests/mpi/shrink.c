// A world that goes on without ranks that somebody else kills, by ULFM (User-Level Failure Mitigation) in Open MPI 5.
//   shrink LOST PROGRESS_FILE
// All ranks exchange and reduce until LOST of them are gone. The others revoke the communicator, shrink it, agree, and
// check that what remains works.
#include "check.h"

#ifdef OPEN_MPI
#include <mpi-ext.h>
#endif

#ifdef OMPI_HAVE_MPIX_COMM_GET_FAILED
#define BYTES (64 << 10)

static unsigned char *out, *in;

// One round: a ring of messages, and a sum. The first error that an operation returns.
static int one_round(MPI_Comm comm, int round)
{
    int rank, size, sum = 0;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    int to = (rank + 1) % size, from = (rank + size - 1) % size;
    fill(out, BYTES, mixed((uint64_t)rank, (uint64_t)round));
    int status = MPI_Sendrecv(out, BYTES, MPI_BYTE, to, 1, in, BYTES, MPI_BYTE, from, 1, comm, MPI_STATUS_IGNORE);
    if (status == MPI_SUCCESS) {
        verify(in, BYTES, mixed((uint64_t)from, (uint64_t)round), "shrink");
        status = MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, comm);
    }
    CHECK(status != MPI_SUCCESS || sum == size * (size - 1) / 2, "the sum of %d ranks is %d in round %d", size, sum, round);
    return status;
}

// Checks that an error is one of those that ULFM defines. Whether it says that a rank failed.
static int names_failure(int status)
{
    int class;
    MPI_Error_class(status, &class);
    CHECK(class == MPIX_ERR_PROC_FAILED || class == MPIX_ERR_REVOKED, "an operation ends with class %d", class);
    return class == MPIX_ERR_PROC_FAILED;
}

int main(int argc, char **argv)
{
    start(&argc, &argv, "shrink");
    int lost = (int)argument(argc, argv, 1, 1), size = world_size, knows = 0, flag, failed_count, all_know;
    CHECK(argc > 2, "usage: shrink LOST PROGRESS_FILE");
    out = allocate(BYTES);
    in = allocate(BYTES);
    MPI_Comm comm = MPI_COMM_WORLD, rest;
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    for (int round = 0; size > world_size - lost; round++) {
        int status = one_round(comm, round);
        FILE *progress = status == MPI_SUCCESS && world_rank == 0 && round == 8 ? fopen(argv[2], "w") : NULL;
        if (progress) {
            fprintf(progress, "rounds %d\n", round);
            fclose(progress);
        }
        if (status == MPI_SUCCESS)
            continue;
        knows |= names_failure(status);
        // The others may wait for this rank.
        CHECK(MPIX_Comm_revoke(comm) == MPI_SUCCESS, "MPIX_Comm_revoke fails");
        CHECK(MPIX_Comm_shrink(comm, &rest) == MPI_SUCCESS, "MPIX_Comm_shrink fails");
        MPI_Comm_set_errhandler(rest, MPI_ERRORS_RETURN);
        comm = rest;
        MPI_Comm_size(comm, &size);
    }
    CHECK(size == world_size - lost, "%d ranks are left of %d", size, world_size);
    for (int again = 0; again < 20; again++)
        CHECK(one_round(comm, again) == MPI_SUCCESS, "those that are left lose somebody too");
    flag = 1;
    CHECK(MPIX_Comm_agree(comm, &flag) == MPI_SUCCESS && flag == 1, "MPIX_Comm_agree fails");
    MPI_Allreduce(&knows, &all_know, 1, MPI_INT, MPI_LOR, comm);
    CHECK(all_know, "no operation ended with MPIX_ERR_PROC_FAILED");
    MPI_Group failed;
    MPIX_Comm_get_failed(MPI_COMM_WORLD, &failed);
    MPI_Group_size(failed, &failed_count);
    CHECK(failed_count == lost, "%d ranks failed, expected %d", failed_count, lost);
    int rank;
    MPI_Comm_rank(comm, &rank);
    if (rank == 0) {
        printf("OK shrink: %d of %d ranks go on\n", size, world_size);
        fflush(stdout);
    }
    MPI_Comm_free(&comm);
    MPI_Finalize();
    return 0;
}
#else
int main(int argc, char **argv)
{
    start(&argc, &argv, "shrink");
    fail("this MPI has no MPIX_Comm_shrink that works");
}
#endif
