// Thousands of non-blocking messages both ways: mixed sizes, many tags,
// receives posted early, late and in another order than the sends.
//   storm [MESSAGES=2000] [UNEXPECTED=10000]
#include "check.h"

enum { TAGS = 97, LARGEST = 300000 };

static size_t size_of(int i)
{
    // Mostly small, some of every kind up to LARGEST.
    static const size_t kinds[] = {0, 1, 7, 8, 64, 200, 1000, 4096, 8193, 16384, 16385, 70000};
    if (i % 173 == 172)
        return LARGEST;
    if (i % 16 == 15)
        return kinds[8 + (i / 16) % 4];
    return kinds[i % 8];
}

static uint64_t seed_of(int source, int i, int phase)
{
    return mixed((uint64_t)source * 16 + (uint64_t)phase, (uint64_t)i);
}

static unsigned char *buffers(int messages, unsigned char ***each)
{
    size_t total = 0;
    for (int i = 0; i < messages; i++)
        total += size_of(i) + 8;
    unsigned char *memory = allocate(total), *at = memory;
    *each = allocate((size_t)messages * sizeof **each);
    for (int i = 0; i < messages; at += size_of(i) + 8, i++)
        (*each)[i] = at;
    return memory;
}

// In every phase each rank exchanges `messages` with the rank `half` away.
// Messages of one tag stay in order; `order` says in which order the receives
// of different tags are posted.
enum phase { EARLY, LATE, TAGS_BACKWARDS, MIXED_IN };

static void post(int i, int peer, unsigned char **in, MPI_Request *requests)
{
    MPI_Irecv(in[i], (int)size_of(i) + 8, MPI_BYTE, peer, i % TAGS, MPI_COMM_WORLD, &requests[i]);
}

static void post_all(enum phase phase, int messages, int peer, unsigned char **in, MPI_Request *requests)
{
    if (phase != TAGS_BACKWARDS) {
        for (int i = 0; i < messages; i++)
            post(i, peer, in, requests);
        return;
    }
    for (int tag = TAGS - 1; tag >= 0; tag--)
        for (int i = tag; i < messages; i += TAGS)
            post(i, peer, in, requests);
}

static void storm(enum phase phase, int messages, int peer)
{
    unsigned char **out, **in;
    unsigned char *out_memory = buffers(messages, &out), *in_memory = buffers(messages, &in);
    MPI_Request *requests = allocate(2 * (size_t)messages * sizeof *requests);
    MPI_Request *sends = requests + messages;
    MPI_Status *statuses = allocate(2 * (size_t)messages * sizeof *statuses);

    for (int i = 0; i < messages; i++)
        fill(out[i], size_of(i), seed_of(world_rank, i, phase));
    if (phase == EARLY)
        post_all(phase, messages, peer, in, requests);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < messages; i++) {
        MPI_Isend(out[i], (int)size_of(i), MPI_BYTE, peer, i % TAGS, MPI_COMM_WORLD, &sends[i]);
        if (phase == MIXED_IN)
            post(i, peer, in, requests);
    }
    if (phase == LATE || phase == TAGS_BACKWARDS) {
        sleep_ms(100);
        post_all(phase, messages, peer, in, requests);
    }
    MPI_Waitall(2 * messages, requests, statuses);
    for (int i = 0; i < messages; i++) {
        expect_status(&statuses[i], peer, i % TAGS, (int)size_of(i), "storm");
        verify(in[i], size_of(i), seed_of(peer, i, phase), "storm");
    }
    free(statuses);
    free(requests);
    free(in);
    free(out);
    free(in_memory);
    free(out_memory);
    MPI_Barrier(MPI_COMM_WORLD);
}

// `messages` of one tag come unexpected; then one of another tag is sent and
// is received first.
static void unexpected(int messages, int peer)
{
    enum { FIRST_TAG = 5, LATER_TAG = 6, BYTES = 64 };
    unsigned char *out = allocate((size_t)messages * BYTES), in[BYTES];
    MPI_Request *requests = allocate(((size_t)messages + 1) * sizeof *requests);
    uint64_t answer = 0;
    const uint64_t last = seed_of(world_rank, messages, 9);
    MPI_Status status;

    for (int i = 0; i < messages; i++) {
        fill(out + (size_t)i * BYTES, BYTES, seed_of(world_rank, i, 8));
        MPI_Isend(out + (size_t)i * BYTES, BYTES, MPI_BYTE, peer, FIRST_TAG, MPI_COMM_WORLD, &requests[i]);
    }
    MPI_Isend(&last, sizeof last, MPI_BYTE, peer, LATER_TAG, MPI_COMM_WORLD, &requests[messages]);
    MPI_Recv(&answer, sizeof answer, MPI_BYTE, peer, LATER_TAG, MPI_COMM_WORLD, &status);
    CHECK(answer == seed_of(peer, messages, 9), "the message of the later tag is wrong");
    for (int i = 0; i < messages; i++) {
        MPI_Recv(in, BYTES, MPI_BYTE, peer, FIRST_TAG, MPI_COMM_WORLD, &status);
        expect_status(&status, peer, FIRST_TAG, BYTES, "unexpected");
        verify(in, BYTES, seed_of(peer, i, 8), "unexpected");
    }
    MPI_Waitall(messages + 1, requests, MPI_STATUSES_IGNORE);
    free(requests);
    free(out);
}

int main(int argc, char **argv)
{
    start(&argc, &argv, "storm");
    int messages = (int)argument(argc, argv, 1, 2000);
    int many = (int)argument(argc, argv, 2, 10000);
    CHECK(world_size % 2 == 0, "an even number of ranks is needed");
    int half = world_size / 2, peer = (world_rank + half) % world_size;

    for (enum phase phase = EARLY; phase <= MIXED_IN; phase++)
        storm(phase, messages, peer);
    unexpected(many, peer);
    return finish("4 storms of %d messages each way, %d unexpected, %d ranks", messages, many, world_size);
}
