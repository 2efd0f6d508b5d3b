// Two separately started jobs couple by Open_port, Comm_accept, Comm_connect.
//   connect accept  FILE [ROUNDS=3] [BYTES=1M] [TALKS=1]
//   connect connect FILE [ROUNDS=3] [BYTES=1M] [TALKS=1]
//   connect split   FILE [ROUNDS=3] [BYTES=1M] [TALKS=1]  one job, whose halves couple
//   connect open    FILE            opens a port, writes its name, and ends
//   connect wrong   FILE            FILE holds a port that nobody serves
// The accepting job writes its port's name to FILE. `wrong` succeeds when
// MPI_Comm_connect returns an error. It must not hang, nor end without a word:
// the caller checks that.
#include <unistd.h>

#include "port.h"

// All of this side to all of the other, both ways, and a broadcast and an
// all-reduce over the merged communicator.
static void converse(MPI_Comm inter, size_t bytes, int side, int round)
{
    int remote, local, me;
    MPI_Comm_remote_size(inter, &remote);
    MPI_Comm_size(inter, &local);
    MPI_Comm_rank(inter, &me);
    MPI_Request *requests = allocate(2 * (size_t)remote * sizeof *requests);
    unsigned char *out = allocate(bytes * (size_t)remote), *in = allocate(bytes * (size_t)remote);
    for (int peer = 0; peer < remote; peer++) {
        size_t at = bytes * (size_t)peer;
        fill(out + at, bytes, mixed((uint64_t)(side * 10000 + me * 100 + peer), (uint64_t)round));
        MPI_Irecv(in + at, (int)bytes, MPI_BYTE, peer, round, inter, &requests[peer]);
        MPI_Isend(out + at, (int)bytes, MPI_BYTE, peer, round, inter, &requests[remote + peer]);
    }
    MPI_Waitall(2 * remote, requests, MPI_STATUSES_IGNORE);
    for (int peer = 0; peer < remote; peer++)
        verify(in + bytes * (size_t)peer, bytes, mixed((uint64_t)(!side * 10000 + peer * 100 + me), (uint64_t)round), "intercommunicator");

    MPI_Comm merged;
    int total, rank, sum;
    MPI_Intercomm_merge(inter, side, &merged);
    MPI_Comm_size(merged, &total);
    MPI_Comm_rank(merged, &rank);
    CHECK(total == local + remote, "merged size %d", total);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, merged);
    CHECK(sum == total * (total - 1) / 2, "Allreduce over the merged communicator: %d", sum);
    MPI_Comm_free(&merged);
    free(requests);
    free(out);
    free(in);
}

static int connect_to_nobody(const char *port)
{
    MPI_Comm inter;
    char text[MPI_MAX_ERROR_STRING] = "";
    int length, error;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    error = MPI_Comm_connect(port, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &inter);
    CHECK(error != MPI_SUCCESS, "connected to a port that nobody serves");
    MPI_Error_string(error, text, &length);
    if (world_rank == 0)
        printf("OK connect: refused as it should be: %s\n", text);
    fflush(stdout);
    // Some MPIs cannot finalize after a connect that failed; the answer is out.
    _exit(0);
}

static int open_and_leave(const char *file)
{
    char port[MPI_MAX_PORT_NAME] = "";
    MPI_Open_port(MPI_INFO_NULL, port);
    if (world_rank == 0)
        publish(file, port);
    return finish("opened %s", port);
}

static void couple(MPI_Comm local, int accepts, const char *port, int rounds, size_t bytes, int talks)
{
    for (int round = 0; round < rounds; round++) {
        MPI_Comm inter;
        if (accepts)
            MPI_Comm_accept(port, MPI_INFO_NULL, 0, local, &inter);
        else
            MPI_Comm_connect(port, MPI_INFO_NULL, 0, local, &inter);
        for (int talk = 0; talk < talks; talk++)
            converse(inter, bytes, accepts, round + talk);
        MPI_Comm_disconnect(&inter);
    }
}

int main(int argc, char **argv)
{
    start(&argc, &argv, "connect");
    CHECK(argc >= 3, "usage: connect accept|connect|split|open|wrong FILE [ROUNDS] [BYTES]");
    const char *role = argv[1], *file = argv[2];
    int rounds = (int)argument(argc, argv, 3, 3);
    size_t bytes = argument(argc, argv, 4, 1 << 20);
    char port[MPI_MAX_PORT_NAME] = "";
    MPI_Comm local;

    if (strcmp(role, "open") == 0)
        return open_and_leave(file);
    int split = strcmp(role, "split") == 0;
    int accepts = strcmp(role, "accept") == 0 || (split && world_rank < world_size / 2);
    MPI_Comm_split(MPI_COMM_WORLD, accepts, world_rank, &local);
    int local_rank;
    MPI_Comm_rank(local, &local_rank);
    if (accepts && local_rank == 0) {
        MPI_Open_port(MPI_INFO_NULL, port);
        publish(file, port);
    } else if (local_rank == 0) {
        await_port(file, port);
    }
    MPI_Bcast(port, MPI_MAX_PORT_NAME, MPI_CHAR, 0, local);
    if (strcmp(role, "wrong") == 0)
        return connect_to_nobody(port);

    couple(local, accepts, port, rounds, bytes, (int)argument(argc, argv, 5, 1));
    if (accepts && local_rank == 0)
        MPI_Close_port(port);
    MPI_Comm_free(&local);
    return finish("%s side, %d couplings, %zu bytes a pair, %d ranks", role, rounds, bytes, world_size);
}
