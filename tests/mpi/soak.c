// A transfer and a Sendrecv loop at the same time, between two separately started jobs of two
// ranks each; all data is checked.
//   soak accept|connect FILE BYTES PROGRESS
// Rank 0 of the accepting job sends BYTES to rank 0 of the connecting one, and more until the
// file PROGRESS.enough is there, in blocks of which several are under way; the ranks 1 exchange
// small messages until that is done. The file
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

// Blocks go on, beyond what was asked, until PROGRESS.enough is there; empty messages end them.
static uint64_t send_all(uint64_t least, const char *path)
{
    char enough[4096];
    uint64_t i = 0;
    MPI_Request requests[UNDER_WAY];
    unsigned char *memory = allocate((size_t)UNDER_WAY * BLOCK);
    snprintf(enough, sizeof enough, "%s.enough", path);
    for (int j = 0; j < UNDER_WAY; j++)
        requests[j] = MPI_REQUEST_NULL;
    for (; i < least || access(enough, F_OK) != 0; i++) {
        unsigned char *block = memory + i % UNDER_WAY * BLOCK;
        MPI_Wait(&requests[i % UNDER_WAY], MPI_STATUS_IGNORE);
        fill(block, BLOCK, mixed(1, i));
        MPI_Isend(block, BLOCK, MPI_BYTE, 0, 0, inter, &requests[i % UNDER_WAY]);
    }
    MPI_Waitall(UNDER_WAY, requests, MPI_STATUSES_IGNORE);
    for (int j = 0; j < UNDER_WAY; j++)
        MPI_Send(NULL, 0, MPI_BYTE, 0, 0, inter);
    free(memory);
    return i;
}

static uint64_t receive_all(const char *path)
{
    struct progress progress = watched(path, "bytes");
    MPI_Request requests[UNDER_WAY];
    unsigned char *memory = allocate((size_t)UNDER_WAY * BLOCK);
    uint64_t i = 0;
    for (int j = 0; j < UNDER_WAY; j++)
        MPI_Irecv(memory + (size_t)j * BLOCK, BLOCK, MPI_BYTE, 0, 0, inter, &requests[j]);
    for (;; i++) {
        MPI_Status status;
        int bytes;
        unsigned char *block = memory + i % UNDER_WAY * BLOCK;
        MPI_Wait(&requests[i % UNDER_WAY], &status);
        MPI_Get_count(&status, MPI_BYTE, &bytes);
        if (bytes == 0)
            break;
        CHECK(bytes == BLOCK, "block %" PRIu64 " has %d bytes", i, bytes);
        verify(block, BLOCK, mixed(1, i), "transfer");
        step(&progress, (i + 1) * BLOCK);
        MPI_Irecv(block, BLOCK, MPI_BYTE, 0, 0, inter, &requests[i % UNDER_WAY]);
    }
    MPI_Waitall(UNDER_WAY, requests, MPI_STATUSES_IGNORE);
    free(memory);
    return i;
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
    uint64_t blocks = 0, rounds = 0;
    side = strcmp(argv[1], "accept") != 0;
    inter = couple_by(argv[2], side == 0);
    double began = seconds();
    if (world_rank == 1) {
        rounds = exchange(argv[4]);
    } else if (side == 1) {
        blocks = receive_all(argv[4]);
    } else {
        blocks = send_all(argument(argc, argv, 3, 0) / BLOCK, argv[4]);
        MPI_Send(NULL, 0, MPI_BYTE, 1, DONE, MPI_COMM_WORLD);
    }
    double took = seconds() - began;
    MPI_Bcast(&rounds, 1, MPI_UINT64_T, 1, MPI_COMM_WORLD);
    MPI_Comm_disconnect(&inter);
    return finish("%" PRIu64 " MB one way and %" PRIu64 " Sendrecvs of %d bytes in %.1f s", blocks * BLOCK / 1000000, rounds,
                  ROUND, took);
}
