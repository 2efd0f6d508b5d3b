// A file over storage targets, sent by one half of a job's ranks to the other half.
//   targets SOURCE COPY TARGETS STRIPE BLOCK [SERVICE_US]
// The stripes of both files lie on TARGETS targets in turn. Each half must have at most TARGETS ranks, and
// ISTHMUS_LAYOUT must describe both files so. The program counts the reads and writes under way at each target. It fails
// if one begins at a target that has one, while no target is near its end: then some other target idles, and has work.
// Each read and write takes SERVICE_US longer (default 1000), as storage does; a page cache would be too fast to meet
// another in.
#include "../mpi/check.h"

#include <fcntl.h>
#include <isthmus-mpi.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>

enum { TARGETS_MOST = 16 };

// Shared by the ranks of a half.
struct board {
    pthread_mutex_t lock;
    int under_way[TARGETS_MOST];
    int64_t left[TARGETS_MOST]; // bytes that have not begun
    int64_t begun, met;         // reads or writes; those that met another while no target was near its end
};
static struct board *board;
static int64_t targets, stripe, block, service_us;
static int ranks;

static int begin(size_t length, off_t offset)
{
    int target = (int)(offset / stripe % targets), ends = 0;
    pthread_mutex_lock(&board->lock);
    // Each other rank may have been given a piece, and not have begun with it.
    for (int i = 0; i < targets; i++)
        ends |= board->left[i] < ranks * block;
    board->met += board->under_way[target]++ > 0 && !ends;
    board->left[target] -= (int64_t)length;
    board->begun++;
    pthread_mutex_unlock(&board->lock);
    return target;
}

static void end(int target)
{
    usleep((useconds_t)service_us);
    pthread_mutex_lock(&board->lock);
    board->under_way[target]--;
    pthread_mutex_unlock(&board->lock);
}

// The library finds these before the C library's. Its journal's reads and writes are shorter than a block.
ssize_t pread(int fd, void *memory, size_t length, off_t offset)
{
    int counts = board && (int64_t)length >= block, target = counts ? begin(length, offset) : 0;
    ssize_t got = syscall(SYS_pread64, fd, memory, length, offset);
    if (counts)
        end(target);
    return got;
}

ssize_t pwrite(int fd, const void *memory, size_t length, off_t offset)
{
    int counts = board && (int64_t)length >= block, target = counts ? begin(length, offset) : 0;
    ssize_t put = syscall(SYS_pwrite64, fd, memory, length, offset);
    if (counts)
        end(target);
    return put;
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
    CHECK(argc > 5, "usage: targets SOURCE COPY TARGETS STRIPE BLOCK [SERVICE_US]");
    targets = (int64_t)argument(argc, argv, 3, 0);
    stripe = (int64_t)argument(argc, argv, 4, 0);
    block = (int64_t)argument(argc, argv, 5, 0);
    service_us = (int64_t)argument(argc, argv, 6, 1000);
    CHECK(stat(argv[1], &about) == 0 && targets > 0 && targets <= TARGETS_MOST && stripe > 0, "no source, or no targets");
    int senders = world_size / 2, sends = world_rank < senders;
    MPI_Comm_split(MPI_COMM_WORLD, sends, world_rank, &side);
    MPI_Comm_size(side, &ranks);
    MPI_Intercomm_create(side, 0, MPI_COMM_WORLD, sends ? senders : 0, 1, &other);
    struct board *counted = shared_board(side, about.st_size, &window);
    CHECK(isthmus_mpi_couple(side, other, &coupling) == 0, "%s", isthmus_mpi_last_error());
    struct isthmus_mpi_options options = {.block = block, .direct = ISTHMUS_MPI_CACHED};
    board = counted;
    int status = sends ? isthmus_mpi_send_file(coupling, argv[1], 0, -1, &options, &report)
                       : isthmus_mpi_receive_file(coupling, argv[2], -1, &options, &report);
    board = NULL;
    CHECK(status == 0, "status %d: %s", status, isthmus_mpi_last_error());
    isthmus_mpi_uncouple(coupling);
    MPI_Barrier(side);
    CHECK(counted->begun >= about.st_size / block, "%" PRId64 " blocks were counted", counted->begun);
    CHECK(counted->met == 0, "%" PRId64 " of %" PRId64 " %s met another at their target, while a target with work idled",
          counted->met, counted->begun, sends ? "reads" : "writes");
    MPI_Win_free(&window);
    MPI_Comm_free(&side);
    return finish("%" PRId64 " bytes over %" PRId64 " targets in %.2f s", report.bytes, targets, report.seconds);
}
