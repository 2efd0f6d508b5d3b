// Copies a file from one MPI application to another.
//
//   coupled_copy receive PORT_FILE OUTPUT  [WINDOW_BYTES] [direct]
//   coupled_copy send    PORT_FILE INPUT   [WINDOW_BYTES] [BLOCK_BYTES]
//
// Two separately started jobs of as many ranks each couple by MPI_Open_port,
// MPI_Comm_accept and MPI_Comm_connect; the port's name passes through
// PORT_FILE. Rank i of the sender reads its part of INPUT in blocks and sends
// each without waiting for those before; rank i of the receiver has posted its
// receives beforehand and writes each block as it comes. When all is written,
// the receiver's rank 0 acknowledges.
//
// WINDOW_BYTES (256 MiB) bounds the memory of a rank on either side: with a
// part larger than that, a buffer is used again once its block is sent or
// written. Goodput is bytes / (first read .. acknowledgement received).
//
// With `direct`, whole pages are written past the page cache (O_DIRECT), where
// the file system can.
//
// Exit status: 0 all is written; 3 it is not, with a text that says why.
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <mpi.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { TAG_PLAN = 1, TAG_READY, TAG_BLOCK, TAG_DONE };
enum { ALIGNMENT = 4096, REST_NS = 50000 };
enum { EXIT_NOT_DONE = 3, PORT_WAIT_S = 60 };

struct plan {
    int64_t bytes;
    int64_t block;
    int64_t ranks;
};

// The output: through the page cache, and past it where that was asked for.
struct output {
    int cached;
    int direct;
};

// How the receiver's side ended: the first rank's trouble, if any.
struct verdict {
    int64_t failed;
    char text[240];
};

// One rank's part of the file, and its ring of buffers: block i of the part
// uses slot i % slots.
struct part {
    int64_t first; // of the file's blocks
    int64_t blocks;
    int slots;
    char *memory;
    MPI_Request *requests;
    int *finished;
    MPI_Status *statuses;
};

static const char *side = "?";
static int rank, ranks;

__attribute__((noreturn, format(printf, 1, 2))) static void give_up(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "coupled_copy: %s, rank %d: ", side, rank);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    fflush(stderr);
    va_end(arguments);
    MPI_Abort(MPI_COMM_WORLD, EXIT_NOT_DONE);
    _exit(EXIT_NOT_DONE);
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int64_t block_length(const struct plan *plan, int64_t index)
{
    int64_t left = plan->bytes - index * plan->block;
    return left < plan->block ? left : plan->block;
}

static struct part part_of(const struct plan *plan, int64_t window)
{
    int64_t all = (plan->bytes + plan->block - 1) / plan->block;
    struct part part = {.first = all * rank / ranks};
    part.blocks = all * (rank + 1) / ranks - part.first;
    int64_t slots = window / plan->block > 1 ? window / plan->block : 1;
    part.slots = (int)(slots < part.blocks ? slots : part.blocks);
    size_t count = part.slots ? (size_t)part.slots : 1;
    // Aligned, so that the file may be written past the page cache.
    if (posix_memalign((void **)&part.memory, ALIGNMENT, count * (size_t)plan->block) != 0)
        part.memory = NULL;
    part.requests = malloc(count * sizeof *part.requests);
    part.finished = malloc(count * sizeof *part.finished);
    part.statuses = malloc(count * sizeof *part.statuses);
    if (!part.memory || !part.requests || !part.finished || !part.statuses)
        give_up("no memory for %zu blocks of %" PRId64 " bytes; give a smaller window", count, plan->block);
    for (size_t i = 0; i < count; i++)
        part.requests[i] = MPI_REQUEST_NULL;
    // Fault the pages in now: the clock is not for that.
    memset(part.memory, 0, count * (size_t)plan->block);
    return part;
}

static char *slot_memory(const struct part *part, const struct plan *plan, int slot)
{
    return part->memory + (int64_t)slot * plan->block;
}

// --- waiting -----------------------------------------------------------------

// The waits of an MPI spin. Here all ranks of both sites share a machine with the emulated
// link between them, so whoever has nothing to do leaves the processor to the others.
static void rest(void)
{
    nanosleep(&(struct timespec){.tv_nsec = REST_NS}, NULL);
}

static void await_all(int count, MPI_Request *requests)
{
    for (int there = 0; !there;) {
        MPI_Testall(count, requests, &there, MPI_STATUSES_IGNORE);
        if (!there)
            rest();
    }
}

// --- coupling ----------------------------------------------------------------

static void publish(const char *file, const char *port)
{
    char temporary[4096];
    snprintf(temporary, sizeof temporary, "%s.new", file);
    FILE *out = fopen(temporary, "w");
    if (!out || fputs(port, out) < 0 || fclose(out) != 0 || rename(temporary, file) != 0)
        give_up("cannot write the port's name to %s: %s", file, strerror(errno));
}

static void await(const char *file, char *port)
{
    FILE *in;
    double until = now_s() + PORT_WAIT_S;
    while (!(in = fopen(file, "r"))) {
        if (now_s() > until)
            give_up("no port's name in %s after %d s: did the receiver start?", file, PORT_WAIT_S);
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    port[fread(port, 1, MPI_MAX_PORT_NAME - 1, in)] = 0;
    fclose(in);
}

static MPI_Comm couple(int receives, const char *file)
{
    char port[MPI_MAX_PORT_NAME] = "";
    MPI_Comm other;
    int remote;
    if (receives && rank == 0) {
        MPI_Open_port(MPI_INFO_NULL, port);
        publish(file, port);
    } else if (rank == 0) {
        await(file, port);
    }
    if (receives)
        MPI_Comm_accept(port, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &other);
    else
        MPI_Comm_connect(port, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &other);
    MPI_Comm_remote_size(other, &remote);
    if (remote != ranks)
        give_up("the other side has %d ranks, this one %d; start as many", remote, ranks);
    return other;
}

// --- sender ------------------------------------------------------------------

static void read_block(int file, const char *name, char *memory, int64_t length, int64_t offset)
{
    for (int64_t done = 0; done < length;) {
        ssize_t got = pread(file, memory + done, (size_t)(length - done), offset + done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            give_up("cannot read %s: %s", name, strerror(errno));
        if (got == 0)
            give_up("%s became shorter while it was read", name);
        done += got;
    }
}

// A slot whose send is complete; at first, one that was never used.
static int free_slot(struct part *part, int64_t index)
{
    int slot, there = 0;
    if (index < part->slots)
        return (int)index;
    for (;; rest()) {
        MPI_Testany(part->slots, part->requests, &slot, &there, MPI_STATUS_IGNORE);
        if (there)
            return slot;
    }
}

static void send_part(const struct plan *plan, struct part *part, int file, const char *name, MPI_Comm other)
{
    for (int64_t i = 0; i < part->blocks; i++) {
        int slot = free_slot(part, i), ignored;
        int64_t index = part->first + i, length = block_length(plan, index);
        char *memory = slot_memory(part, plan, slot);
        read_block(file, name, memory, length, index * plan->block);
        MPI_Isend(memory, (int)length, MPI_BYTE, rank, TAG_BLOCK, other, &part->requests[slot]);
        // A chance for an MPI without a thread of its own to move what it has.
        MPI_Request_get_status(part->requests[slot], &ignored, MPI_STATUS_IGNORE);
    }
    await_all(part->slots, part->requests);
}

static int send_file(const char *port_file, const char *name, int64_t window, int64_t block)
{
    int file = open(name, O_RDONLY | O_CLOEXEC);
    struct stat about;
    if (file < 0 || fstat(file, &about) < 0)
        give_up("cannot open %s: %s", name, strerror(errno));
    if (!S_ISREG(about.st_mode))
        give_up("%s is not a regular file", name);
    struct plan plan = {.bytes = about.st_size, .block = block, .ranks = ranks};
    struct part part = part_of(&plan, window);
    MPI_Comm other = couple(0, port_file);
    if (rank == 0) {
        MPI_Send(&plan, 3, MPI_INT64_T, 0, TAG_PLAN, other);
        MPI_Recv(NULL, 0, MPI_BYTE, 0, TAG_READY, other, MPI_STATUS_IGNORE);
    }
    MPI_Barrier(MPI_COMM_WORLD);

    double began = now_s(), first_read = 0, acknowledged = 0;
    send_part(&plan, &part, file, name, other);
    double sent = now_s(), all_sent = 0;
    struct verdict verdict = {0};
    if (rank == 0) {
        MPI_Request done;
        MPI_Irecv(&verdict, sizeof verdict, MPI_BYTE, 0, TAG_DONE, other, &done);
        await_all(1, &done);
        acknowledged = now_s();
    }
    MPI_Request results[3];
    MPI_Ireduce(&began, &first_read, 1, MPI_DOUBLE, MPI_MIN, 0, MPI_COMM_WORLD, &results[0]);
    MPI_Ireduce(&sent, &all_sent, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD, &results[1]);
    MPI_Ibcast(&verdict, sizeof verdict, MPI_BYTE, 0, MPI_COMM_WORLD, &results[2]);
    await_all(3, results);
    if (rank == 0 && !verdict.failed)
        printf("RESULT {\"bytes\": %" PRId64 ", \"seconds\": %.6f, \"sent_seconds\": %.6f}\n", plan.bytes,
               acknowledged - first_read, all_sent - first_read);
    if (rank == 0 && verdict.failed)
        fprintf(stderr, "coupled_copy: the receiver could not write all: %s\n", verdict.text);
    MPI_Comm_disconnect(&other);
    close(file);
    return verdict.failed ? EXIT_NOT_DONE : 0;
}

// --- receiver ----------------------------------------------------------------

__attribute__((format(printf, 2, 3))) static void note(struct verdict *verdict, const char *format, ...)
{
    va_list arguments;
    if (verdict->failed)
        return;
    va_start(arguments, format);
    verdict->failed = 1;
    vsnprintf(verdict->text, sizeof verdict->text, format, arguments);
    va_end(arguments);
}

// After a failure blocks are still taken, so that the sender comes to its end
// and can be told; they are not written.
static void write_block(struct verdict *verdict, const struct output *file, const char *name, const char *memory,
                        int64_t length, int64_t offset)
{
    for (int64_t done = 0; done < length && !verdict->failed;) {
        int64_t left = length - done;
        int aligned = (offset + done) % ALIGNMENT == 0 && (uintptr_t)(memory + done) % ALIGNMENT == 0;
        int direct = file->direct >= 0 && aligned && left >= ALIGNMENT;
        size_t now = (size_t)(direct ? left / ALIGNMENT * ALIGNMENT : left);
        ssize_t put = pwrite(direct ? file->direct : file->cached, memory + done, now, offset + done);
        if (put < 0 && errno != EINTR)
            note(verdict, "rank %d cannot write %s at byte %" PRId64 ": %s%s", rank, name, offset + done,
                 strerror(errno), errno == ENOSPC ? "; free some space there or name another place" : "");
        else if (put > 0)
            done += put;
    }
}

static void post(const struct plan *plan, struct part *part, int slot, int64_t i, MPI_Comm other)
{
    MPI_Irecv(slot_memory(part, plan, slot), (int)block_length(plan, part->first + i), MPI_BYTE, rank, TAG_BLOCK, other,
              &part->requests[slot]);
}

// All blocks of a part have one tag: they match the receives in their order.
static void receive_part(const struct plan *plan, struct part *part, int64_t *holds, struct verdict *verdict,
                         const struct output *file,
                         const char *name, MPI_Comm other)
{
    int64_t posted = part->slots;
    for (int64_t left = part->blocks; left > 0;) {
        int count;
        MPI_Testsome(part->slots, part->requests, &count, part->finished, part->statuses);
        if (count == 0)
            rest();
        for (int i = 0; i < count; i++, left--) {
            int slot = part->finished[i], length;
            int64_t index = part->first + holds[slot], wanted = block_length(plan, index);
            MPI_Get_count(&part->statuses[i], MPI_BYTE, &length);
            if (length != wanted)
                note(verdict, "rank %d got %d bytes where %" PRId64 " belong", rank, length, wanted);
            write_block(verdict, file, name, slot_memory(part, plan, slot), wanted, index * plan->block);
            if (posted < part->blocks) {
                holds[slot] = posted;
                post(plan, part, slot, posted++, other);
            }
        }
    }
}

// The lowest rank's trouble becomes everybody's verdict.
static struct verdict common(struct verdict mine)
{
    int candidate = mine.failed ? rank : ranks, first;
    MPI_Request request;
    MPI_Iallreduce(&candidate, &first, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD, &request);
    await_all(1, &request);
    if (first == ranks)
        return (struct verdict){0};
    MPI_Bcast(&mine, sizeof mine, MPI_BYTE, first, MPI_COMM_WORLD);
    return mine;
}

static struct output open_output(const char *name, int64_t bytes, int direct)
{
    struct output file = {.cached = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0666), .direct = -1};
    if (file.cached < 0)
        give_up("cannot create %s: %s", name, strerror(errno));
    if (rank == 0 && (ftruncate(file.cached, 0) < 0 || ftruncate(file.cached, bytes) < 0))
        give_up("cannot give %s its length of %" PRId64 " bytes: %s", name, bytes, strerror(errno));
    // File systems that know no direct writes refuse to open; then the cache does.
    if (direct)
        file.direct = open(name, O_WRONLY | O_DIRECT | O_CLOEXEC);
    return file;
}

static int receive_file(const char *port_file, const char *name, int64_t window, int direct)
{
    // Before coupling, so that an unwritable place is told at once.
    struct output file = open_output(name, 0, direct);
    MPI_Comm other = couple(1, port_file);
    struct plan plan;
    if (rank == 0)
        MPI_Recv(&plan, 3, MPI_INT64_T, 0, TAG_PLAN, other, MPI_STATUS_IGNORE);
    MPI_Bcast(&plan, 3, MPI_INT64_T, 0, MPI_COMM_WORLD);
    if (rank == 0 && ftruncate(file.cached, plan.bytes) < 0)
        give_up("cannot give %s its length of %" PRId64 " bytes: %s", name, plan.bytes, strerror(errno));

    struct part part = part_of(&plan, window);
    int64_t *holds = malloc(((size_t)part.slots + 1) * sizeof *holds);
    if (!holds)
        give_up("no memory");
    for (int slot = 0; slot < part.slots; slot++) {
        holds[slot] = slot;
        post(&plan, &part, slot, slot, other);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        MPI_Send(NULL, 0, MPI_BYTE, 0, TAG_READY, other);

    struct verdict verdict = {0};
    receive_part(&plan, &part, holds, &verdict, &file, name, other);
    if (file.direct >= 0 && close(file.direct) < 0)
        note(&verdict, "rank %d cannot finish %s: %s", rank, name, strerror(errno));
    if (close(file.cached) < 0)
        note(&verdict, "rank %d cannot finish %s: %s", rank, name, strerror(errno));
    verdict = common(verdict); // and with it a barrier: all is written
    if (rank == 0) {
        MPI_Send(&verdict, sizeof verdict, MPI_BYTE, 0, TAG_DONE, other);
        if (verdict.failed)
            fprintf(stderr, "coupled_copy: %s\n", verdict.text);
    }
    free(holds);
    MPI_Comm_disconnect(&other);
    return verdict.failed ? EXIT_NOT_DONE : 0;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int receives = argc > 1 && strcmp(argv[1], "receive") == 0;
    int64_t window = argc > 4 ? atoll(argv[4]) : 256 << 20, block = argc > 5 && !receives ? atoll(argv[5]) : 4 << 20;
    if (argc < 4 || (!receives && strcmp(argv[1], "send") != 0) || window < 1 || block < 1 || block > INT32_MAX)
        give_up("usage: coupled_copy send|receive PORT_FILE FILE [WINDOW_BYTES] [BLOCK_BYTES]");
    side = receives ? "receiver" : "sender";
    int status = receives ? receive_file(argv[2], argv[3], window, argc > 5 && strcmp(argv[5], "direct") == 0)
                          : send_file(argv[2], argv[3], window, block);
    MPI_Finalize();
    return status;
}
