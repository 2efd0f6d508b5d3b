// Receives that name no source or no tag: Recv, Probe, Iprobe, Mprobe, Improbe.
//   wildcard [MESSAGES=200] [no-mprobe] [no-self]
#include "check.h"

enum { TAGS = 5, LARGEST = 100000 };

static int bytes_of(int i)
{
    return i % 10 == 9 ? 40000 + i * 97 % (LARGEST - 40000) : i * 31 % 2000;
}

static uint64_t seed_of(int source, int i)
{
    return mixed((uint64_t)source + 1000, (uint64_t)i);
}

// Everyone sends to rank 0; what the header does not say is in the data.
static void send_all(int messages)
{
    unsigned char *out = allocate(LARGEST);
    for (int i = 0; i < messages; i++) {
        fill(out, (size_t)bytes_of(i), seed_of(world_rank, i));
        MPI_Send(out, bytes_of(i), MPI_BYTE, 0, i % TAGS, MPI_COMM_WORLD);
    }
    free(out);
}

static void take(int *next, const MPI_Status *status, const void *in, const char *how)
{
    // Per source and tag, order holds: `next` counts messages of each.
    int *count = &next[status->MPI_SOURCE * TAGS + status->MPI_TAG];
    int i = *count * TAGS + status->MPI_TAG;
    expect_status(status, status->MPI_SOURCE, i % TAGS, bytes_of(i), how);
    verify(in, (size_t)bytes_of(i), seed_of(status->MPI_SOURCE, i), how);
    ++*count;
}

typedef void receive_fn(void *in, MPI_Status *status);

static void by_recv(void *in, MPI_Status *status)
{
    MPI_Recv(in, LARGEST, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, status);
}

static void by_probe(void *in, MPI_Status *status)
{
    int count;
    MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, status);
    MPI_Get_count(status, MPI_BYTE, &count);
    MPI_Recv(in, count, MPI_BYTE, status->MPI_SOURCE, status->MPI_TAG, MPI_COMM_WORLD, status);
}

static void by_iprobe(void *in, MPI_Status *status)
{
    int there = 0, count;
    while (!there)
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &there, status);
    MPI_Get_count(status, MPI_BYTE, &count);
    MPI_Recv(in, count, MPI_BYTE, status->MPI_SOURCE, status->MPI_TAG, MPI_COMM_WORLD, status);
}

static void by_mprobe(void *in, MPI_Status *status)
{
    int count;
    MPI_Message message;
    MPI_Mprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &message, status);
    MPI_Get_count(status, MPI_BYTE, &count);
    MPI_Mrecv(in, count, MPI_BYTE, &message, status);
}

static void by_improbe(void *in, MPI_Status *status)
{
    int there = 0, count;
    MPI_Message message;
    MPI_Request request;
    while (!there)
        MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &there, &message, status);
    MPI_Get_count(status, MPI_BYTE, &count);
    MPI_Imrecv(in, count, MPI_BYTE, &message, &request);
    MPI_Wait(&request, status);
}

static void gather_by(receive_fn *receive, int messages, const char *how)
{
    if (world_rank != 0) {
        send_all(messages);
    } else {
        unsigned char *in = allocate(LARGEST);
        int *next = calloc((size_t)world_size * TAGS, sizeof *next);
        CHECK(next, "out of memory");
        for (int left = messages * (world_size - 1); left > 0; left--) {
            MPI_Status status;
            receive(in, &status);
            take(next, &status, in, how);
        }
        free(next);
        free(in);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

// A probe of any source promises what the next receive of any source gets.
// Everyone sends to everyone, itself included where `self` says so, and takes
// all that way.
static void probe_then_any(int messages, int self)
{
    unsigned char *in = allocate(LARGEST), **out = allocate((size_t)messages * sizeof *out);
    int peers = self ? world_size : world_size - 1, expected = messages * peers, sent = 0;
    int *next = calloc((size_t)world_size, sizeof *next);
    MPI_Request *requests = allocate((size_t)expected * sizeof *requests);
    CHECK(next, "out of memory");
    for (int i = 0; i < messages; i++) {
        out[i] = allocate((size_t)bytes_of(i));
        fill(out[i], (size_t)bytes_of(i), seed_of(world_rank, i));
        for (int to = 0; to < world_size; to++)
            if (self || to != world_rank)
                MPI_Isend(out[i], bytes_of(i), MPI_BYTE, to, 55, MPI_COMM_WORLD, &requests[sent++]);
    }
    for (int taken = 0; taken < expected; taken++) {
        MPI_Status probed, status;
        int count;
        MPI_Probe(MPI_ANY_SOURCE, 55, MPI_COMM_WORLD, &probed);
        MPI_Get_count(&probed, MPI_BYTE, &count);
        MPI_Recv(in, count, MPI_BYTE, MPI_ANY_SOURCE, 55, MPI_COMM_WORLD, &status);
        CHECK(status.MPI_SOURCE == probed.MPI_SOURCE, "probed a message of %d, received one of %d", probed.MPI_SOURCE,
              status.MPI_SOURCE);
        int i = next[status.MPI_SOURCE]++;
        expect_status(&status, probed.MPI_SOURCE, 55, bytes_of(i), "Probe and Recv of any source");
        verify(in, (size_t)bytes_of(i), seed_of(status.MPI_SOURCE, i), "Probe and Recv of any source");
    }
    MPI_Waitall(expected, requests, MPI_STATUSES_IGNORE);
    for (int i = 0; i < messages; i++)
        free(out[i]);
    free(requests);
    free(next);
    free(out);
    free(in);
    MPI_Barrier(MPI_COMM_WORLD);
}

// Half a wildcard: any source with a tag, and a source with any tag.
static void half_wildcards(void)
{
    if (world_rank != 0) {
        int tagged = world_rank * 10, other = world_rank * 10 + 1;
        MPI_Send(&tagged, 1, MPI_INT, 0, 1, MPI_COMM_WORLD);
        MPI_Send(&other, 1, MPI_INT, 0, 2 + world_rank, MPI_COMM_WORLD);
    } else {
        for (int source = world_size - 1; source > 0; source--) {
            int value;
            MPI_Status status;
            MPI_Recv(&value, 1, MPI_INT, MPI_ANY_SOURCE, 1, MPI_COMM_WORLD, &status);
            CHECK(value == status.MPI_SOURCE * 10, "any source: %d from %d", value, status.MPI_SOURCE);
        }
        for (int source = world_size - 1; source > 0; source--) {
            int value;
            MPI_Status status;
            MPI_Recv(&value, 1, MPI_INT, source, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
            CHECK(value == source * 10 + 1 && status.MPI_TAG == 2 + source, "any tag: %d from %d", value, source);
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

// A wildcard receive that was cancelled takes nothing, and nothing is lost.
static void cancelled(void)
{
    int value = -1, was_cancelled, there;
    MPI_Request request;
    MPI_Status status;
    MPI_Irecv(&value, 1, MPI_INT, MPI_ANY_SOURCE, 77, MPI_COMM_WORLD, &request);
    MPI_Cancel(&request);
    MPI_Wait(&request, &status);
    MPI_Test_cancelled(&status, &was_cancelled);
    CHECK(was_cancelled && value == -1, "an unmatched receive could not be cancelled");
    MPI_Iprobe(MPI_ANY_SOURCE, 77, MPI_COMM_WORLD, &there, &status);
    CHECK(!there, "Iprobe found what nobody sent");
    MPI_Barrier(MPI_COMM_WORLD);
    int mine = world_rank, right = (world_rank + 1) % world_size, left = (world_rank + world_size - 1) % world_size;
    MPI_Sendrecv(&mine, 1, MPI_INT, right, 77, &value, 1, MPI_INT, MPI_ANY_SOURCE, 77, MPI_COMM_WORLD, &status);
    CHECK(value == left, "after a cancel: got %d from %d", value, left);
    MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    start(&argc, &argv, "wildcard");
    int messages = (int)argument(argc, argv, 1, 200);
    int matched = 1, self = 1;
    for (int i = 2; i < argc; i++) {
        matched &= strcmp(argv[i], "no-mprobe") != 0;
        self &= strcmp(argv[i], "no-self") != 0;
    }
    gather_by(by_recv, messages, "Recv");
    gather_by(by_probe, messages, "Probe");
    gather_by(by_iprobe, messages, "Iprobe");
    if (matched) {
        gather_by(by_mprobe, messages, "Mprobe");
        gather_by(by_improbe, messages, "Improbe");
    }
    probe_then_any(messages, self);
    half_wildcards();
    cancelled();
    return finish("%d messages a rank by each of %d ways, %d ranks", messages, matched ? 5 : 3, world_size);
}
