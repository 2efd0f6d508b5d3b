// A transfer and a Sendrecv loop at the same time, between two separately started jobs of two
// ranks each; all data is checked.
//   soak accept|connect FILE BYTES PROGRESS
// Rank 0 of the accepting job sends BYTES to rank 0 of the connecting one, in blocks of which
// several are under way; the ranks 1 exchange small messages until that is done. The file
// PROGRESS.bytes holds how many bytes have arrived, PROGRESS.rounds how many rounds were made.
// A pause of either is told in a line "PAUSE bytes|rounds FROM TO", by CLOCK_MONOTONIC in seconds.
#include <fcntl.h>
#include <unistd.h>

#include "port.h"

enum { BLOCK = 1 << 20, UNDER_WAY = 16, ROUND = 4096, DONE = 1 };
#define PAUSE 0.25

static MPI_Comm inter;
static int side; // 0 accepts

// A count that others watch, and the pauses between its steps.
struct progress {
    const char *what;
    int file;
    double last;
};

static void step(struct progress *progress, uint64_t count)
{
    char text[24];
    double now = seconds();
    int length = snprintf(text, sizeof text, "%020" PRIu64 "\n", count);
    CHECK(pwrite(progress->file, text, (size_t)length, 0) == length, "cannot write the progress");
    if (now - progress->last > PAUSE) {
        printf("PAUSE %s %.3f %.3f\n", progress->what, progress->last, now);
        fflush(stdout);
    }
    progress->last = now;
}

static struct progress watched(const char *path, const char *what)
{
    char name[4096];
    snprintf(name, sizeof name, "%s.%s", path, what);
    struct progress progress = {what, open(name, O_WRONLY | O_CREAT | O_TRUNC, 0666), seconds()};
    CHECK(progress.file >= 0, "cannot make %s", name);
    return progress;
}

static void send_all(uint64_t blocks)
{
    MPI_Request requests[UNDER_WAY];
    unsigned char *memory = allocate((size_t)UNDER_WAY * BLOCK);
    for (uint64_t i = 0; i < blocks; i++) {
        unsigned char *block = memory + i % UNDER_WAY * BLOCK;
        if (i >= UNDER_WAY)
            MPI_Wait(&requests[i % UNDER_WAY], MPI_STATUS_IGNORE);
        fill(block, BLOCK, mixed(1, i));
        MPI_Isend(block, BLOCK, MPI_BYTE, 0, 0, inter, &requests[i % UNDER_WAY]);
    }
    MPI_Waitall((int)(blocks < UNDER_WAY ? blocks : UNDER_WAY), requests, MPI_STATUSES_IGNORE);
    free(memory);
}

static void receive_all(uint64_t blocks, const char *path)
{
    struct progress progress = watched(path, "bytes");
    MPI_Request requests[UNDER_WAY];
    unsigned char *memory = allocate((size_t)UNDER_WAY * BLOCK);
    for (uint64_t i = 0; i < blocks + UNDER_WAY; i++) {
        unsigned char *block = memory + i % UNDER_WAY * BLOCK;
        if (i >= UNDER_WAY && i - UNDER_WAY < blocks) {
            MPI_Wait(&requests[i % UNDER_WAY], MPI_STATUS_IGNORE);
            verify(block, BLOCK, mixed(1, i - UNDER_WAY), "transfer");
            step(&progress, (i - UNDER_WAY + 1) * BLOCK);
        }
        if (i < blocks)
            MPI_Irecv(block, BLOCK, MPI_BYTE, 0, 0, inter, &requests[i % UNDER_WAY]);
    }
    free(memory);
}

// Until rank 0 of the accepting job has sent all. Its rank 1 says in each round whether there
// is another.
static uint64_t exchange(const char *path)
{
    unsigned char out[ROUND], in[ROUND];
    struct progress progress = {"rounds", -1, seconds()};
    uint64_t round = 0;
    int done = 0, last = 0;
    if (side == 0)
        progress = watched(path, "rounds");
    for (; !last; round++) {
        if (side == 0 && !done) {
            MPI_Iprobe(0, DONE, MPI_COMM_WORLD, &done, MPI_STATUS_IGNORE);
            if (done)
                MPI_Recv(NULL, 0, MPI_BYTE, 0, DONE, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
        fill(out, ROUND, mixed(2 + (uint64_t)side, round));
        out[0] = (unsigned char)done;
        MPI_Sendrecv(out, ROUND, MPI_BYTE, 1, 1, in, ROUND, MPI_BYTE, 1, 1, inter, MPI_STATUS_IGNORE);
        last = side == 0 ? done : in[0];
        // The first byte carries the word; what else stands in its place is put back.
        fill(out, 8, mixed(2 + (uint64_t)!side, round));
        in[0] = out[0];
        verify(in, ROUND, mixed(2 + (uint64_t)!side, round), "Sendrecv");
        if (side == 0)
            step(&progress, round + 1);
    }
    return round;
}

int main(int argc, char **argv)
{
    start(&argc, &argv, "soak");
    CHECK(argc == 5 && world_size == 2, "usage, with two ranks: soak accept|connect FILE BYTES PROGRESS");
    uint64_t blocks = argument(argc, argv, 3, 0) / BLOCK, rounds = 0;
    side = strcmp(argv[1], "accept") != 0;
    inter = couple_by(argv[2], side == 0);
    double began = seconds();
    if (world_rank == 1) {
        rounds = exchange(argv[4]);
    } else if (side == 1) {
        receive_all(blocks, argv[4]);
    } else {
        send_all(blocks);
        MPI_Send(NULL, 0, MPI_BYTE, 1, DONE, MPI_COMM_WORLD);
    }
    double took = seconds() - began;
    MPI_Bcast(&rounds, 1, MPI_UINT64_T, 1, MPI_COMM_WORLD);
    MPI_Comm_disconnect(&inter);
    return finish("%" PRIu64 " MB one way and %" PRIu64 " Sendrecvs of %d bytes in %.1f s", blocks * BLOCK / 1000000, rounds,
                  ROUND, took);
}
