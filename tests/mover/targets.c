// A file over storage targets, sent by one half of a job's ranks to the other half.
//   targets SOURCE COPY STRIPE BLOCK READS WRITES [THREADS]
// READS and WRITES are the speeds of the targets, in MB/s: "20,40,40,80". The stripes of both files lie on the targets in
// turn. Each rank has THREADS disk threads (default 1). ISTHMUS_LAYOUT describes
// them so; without it the library does not know them, and the program only tells the time. With it, and with at most as
// many disk threads in a half as targets, no read may begin at a target that has one under way, while all targets have
// work: then another target would idle. A write may do so, because a receiver's rank can write only what it has
// received.
#include "../mpi/check.h"

#include <errno.h>
#include <isthmus-mpi.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>

enum { TARGETS_MOST = 16, SHORTEST = 4096 };

// Shared by the ranks of a half.
struct board {
    pthread_mutex_t lock;
    int64_t free_ns[TARGETS_MOST]; // when a target has done all that it was asked
    int under_way[TARGETS_MOST];
    int64_t left[TARGETS_MOST]; // bytes that have not begun
    int64_t bytes, begun, met;  // bytes read or written; reads or writes; those that met another while all targets had work
};
static struct board *board;
static int64_t speeds[TARGETS_MOST]; // bytes a second
static int64_t targets, stripe, block;
static int ranks, threads;

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

// A target serves one request after the other, each for as long as its speed says.
static ssize_t serve(ssize_t done, int64_t length, off_t offset)
{
    int target = (int)(offset / stripe % targets), all_have_work = 1;
    pthread_mutex_lock(&board->lock);
    // Each other thread may have been given a piece, and not have begun with it.
    for (int i = 0; i < targets; i++)
        all_have_work &= board->left[i] >= ranks * threads * block;
    board->met += board->under_way[target]++ > 0 && all_have_work;
    board->left[target] -= length;
    board->bytes += length;
    board->begun++;
    int64_t now = now_ns(), begins = board->free_ns[target] > now ? board->free_ns[target] : now;
    int64_t ends = board->free_ns[target] = begins + length * 1000000000 / speeds[target];
    pthread_mutex_unlock(&board->lock);
    struct timespec until = {.tv_sec = ends / 1000000000, .tv_nsec = ends % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        ;
    pthread_mutex_lock(&board->lock);
    board->under_way[target]--;
    pthread_mutex_unlock(&board->lock);
    return done;
}

// The library finds these before the C library's. Its journal's reads and writes are shorter than SHORTEST, and blocks
// of this file are longer.
ssize_t pread(int fd, void *memory, size_t length, off_t offset)
{
    ssize_t got = syscall(SYS_pread64, fd, memory, length, offset);
    return board && got >= SHORTEST ? serve(got, got, offset) : got;
}

ssize_t pwrite(int fd, const void *memory, size_t length, off_t offset)
{
    ssize_t put = syscall(SYS_pwrite64, fd, memory, length, offset);
    return board && put >= SHORTEST ? serve(put, put, offset) : put;
}

// Reads the speeds of the targets. Returns their number.
static int64_t speeds_of(char *text)
{
    int64_t count = 0;
    for (char *at = text; *at && count < TARGETS_MOST; at += *at == ',')
        speeds[count++] = strtoll(at, &at, 10) * 1000000;
    return count;
}

static struct board *shared_board(MPI_Comm side, int64_t bytes, MPI_Win *window)
{
    struct board *shared;
    MPI_Aint size;
    int unit, rank;
    MPI_Comm_rank(side, &rank);
    MPI_Win_allocate_shared(rank == 0 ? (MPI_Aint)sizeof *shared : 0, 1, MPI_INFO_NULL, side, &shared, window);
    MPI_Win_shared_query(*window, 0, &size, &unit, &shared);
    if (rank == 0) {
        pthread_mutexattr_t all;
        memset(shared, 0, sizeof *shared);
        pthread_mutexattr_init(&all);
        pthread_mutexattr_setpshared(&all, PTHREAD_PROCESS_SHARED);
        pthread_mutex_init(&shared->lock, &all);
        for (int64_t at = 0; at < bytes; at += stripe)
            shared->left[at / stripe % targets] += bytes - at < stripe ? bytes - at : stripe;
    }
    MPI_Barrier(side);
    return shared;
}

int main(int argc, char **argv)
{
    struct isthmus_mpi_report report;
    struct stat about;
    isthmus_mpi_coupling *coupling;
    MPI_Comm side, other;
    MPI_Win window;
    start(&argc, &argv, "targets");
    CHECK(argc > 6, "usage: targets SOURCE COPY STRIPE BLOCK READS WRITES [THREADS]");
    int senders = world_size / 2, sends = world_rank < senders;
    stripe = (int64_t)argument(argc, argv, 3, 0);
    block = (int64_t)argument(argc, argv, 4, 0);
    threads = (int)argument(argc, argv, 7, 1);
    targets = speeds_of(argv[sends ? 5 : 6]);
    CHECK(stat(argv[1], &about) == 0 && stripe > 0, "no source, or no stripes");
    for (int i = 0; i < targets; i++)
        CHECK(speeds[i] > 0, "target %d has no speed", i);
    MPI_Comm_split(MPI_COMM_WORLD, sends, world_rank, &side);
    MPI_Comm_size(side, &ranks);
    MPI_Intercomm_create(side, 0, MPI_COMM_WORLD, sends ? senders : 0, 1, &other);
    struct board *counted = shared_board(side, about.st_size, &window);
    CHECK(isthmus_mpi_couple(side, other, &coupling) == 0, "%s", isthmus_mpi_last_error());
    struct isthmus_mpi_options options = {.block = block, .threads = threads, .direct = ISTHMUS_MPI_CACHED};
    board = counted;
    int status = sends ? isthmus_mpi_send_file(coupling, argv[1], 0, -1, &options, &report)
                       : isthmus_mpi_receive_file(coupling, argv[2], -1, &options, &report);
    board = NULL;
    CHECK(status == 0, "status %d: %s", status, isthmus_mpi_last_error());
    isthmus_mpi_uncouple(coupling);
    MPI_Barrier(side);
    CHECK(counted->bytes == about.st_size, "%" PRId64 " bytes were counted", counted->bytes);
    int is_judged = sends && getenv("ISTHMUS_LAYOUT") && ranks * threads <= targets;
    CHECK(!is_judged || counted->met == 0,
          "%" PRId64 " of %" PRId64 " reads met another at their target, while a target with work idled", counted->met,
          counted->begun);
    int64_t met[2] = {sends ? counted->met : 0, sends ? 0 : counted->met}, both[2];
    MPI_Allreduce(met, both, 2, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD);
    MPI_Win_free(&window);
    MPI_Comm_free(&side);
    return finish("%.2f s; %" PRId64 " reads and %" PRId64 " writes met another", report.seconds, both[0], both[1]);
}
