// Comm_spawn: parents and children talk over the intercommunicator, twice.
//   spawn [CHILDREN=2] [ROUNDS=2]
#include "check.h"

enum { BYTES = 200000 };

static void exchange(MPI_Comm inter, int is_child)
{
    int remote, me;
    MPI_Comm_remote_size(inter, &remote);
    MPI_Comm_rank(inter, &me);
    unsigned char *out = allocate(BYTES), *in = allocate(BYTES);
    for (int peer = 0; peer < remote; peer++) {
        MPI_Request request;
        fill(out, BYTES, mixed((uint64_t)(is_child * 1000 + me), (uint64_t)peer));
        MPI_Isend(out, BYTES, MPI_BYTE, peer, 3, inter, &request);
        MPI_Recv(in, BYTES, MPI_BYTE, peer, 3, inter, MPI_STATUS_IGNORE);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        verify(in, BYTES, mixed((uint64_t)(!is_child * 1000 + peer), (uint64_t)me), "spawn");
    }
    free(out);
    free(in);
}

static void add_up(MPI_Comm inter, int is_child)
{
    MPI_Comm merged;
    int size, sum, one = 1;
    MPI_Intercomm_merge(inter, is_child, &merged);
    MPI_Comm_size(merged, &size);
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, merged);
    CHECK(sum == size, "Allreduce with the children: %d of %d", sum, size);
    MPI_Comm_free(&merged);
}

int main(int argc, char **argv)
{
    start(&argc, &argv, "spawn");
    MPI_Comm parent;
    MPI_Comm_get_parent(&parent);
    if (parent != MPI_COMM_NULL) {
        exchange(parent, 1);
        add_up(parent, 1);
        MPI_Comm_disconnect(&parent);
        MPI_Finalize();
        return 0;
    }
    int children = (int)argument(argc, argv, 1, 2), rounds = (int)argument(argc, argv, 2, 2);
    for (int round = 0; round < rounds; round++) {
        MPI_Comm inter;
        MPI_Comm_spawn(argv[0], MPI_ARGV_NULL, children, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &inter,
                       MPI_ERRCODES_IGNORE);
        exchange(inter, 0);
        add_up(inter, 0);
        MPI_Comm_disconnect(&inter);
    }
    return finish("%d times %d children, %d parents", rounds, children, world_size);
}
