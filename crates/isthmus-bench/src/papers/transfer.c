/* Sends a file from the ranks of one site to those of the other, in one MPI job whose first half sends.
 *   transfer SOURCE COPY BLOCK posix|mpiio IN_TURN MEMORY [THREADS STRIPE TURNS READS WRITES]
 * Time counts as in the paper: it begins when all ranks of the first site begin, and ends when its rank 0 knows that
 * the file is written. Prints RESULT with a line of JSON.
 *
 * With STRIPE, both files lie on made-up storage targets. Stripes of this length lie on the targets in TURNS ("0,1,1")
 * in turn. READS and WRITES are the speeds of the sender's and the receiver's targets in MB/s ("20,40"). A target
 * serves one request after the other. RESULT has the reads and writes that met another one at their target while each
 * target had work: so another target idled, if there are no more disk threads than targets.
 */
#include <isthmus-mpi.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Most targets and turns; bytes of the shortest request that counts. The mover's journal has shorter ones. */
enum { TARGETS_MOST = 16, TURNS_MOST = 64, SHORTEST = 4096 };

/* The targets of one side. Its ranks share the memory. */
struct board {
    pthread_mutex_t lock;
    int64_t free_ns[TARGETS_MOST]; /* when a target will have served all requests */
    int64_t under_way[TARGETS_MOST], left[TARGETS_MOST]; /* requests; bytes that have not begun */
    int64_t bytes, met;
};

/* Null while no requests count. */
static struct board *board;
static int64_t speeds[TARGETS_MOST], turns[TURNS_MOST];
static int64_t targets, turn_count, stripe, margin;

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int64_t target_of(int64_t offset)
{
    return turns[offset / stripe % turn_count];
}

/* Where the part of a request ends that begins at this offset and lies in one stripe. */
static int64_t part_end(int64_t offset, int64_t end)
{
    int64_t next = (offset / stripe + 1) * stripe;
    return next < end ? next : end;
}

/* Waits until the targets have served this request. */
static ssize_t serve(ssize_t length, off_t offset)
{
    int64_t end = offset + length, all_have_work = 1, meets = 0, served_ns = 0;
    pthread_mutex_lock(&board->lock);
    for (int64_t i = 0; i < targets; i++)
        all_have_work &= board->left[i] >= margin;
    for (int64_t at = offset, next; at < end; at = next) {
        int64_t target = target_of(at), now = now_ns(), *free_ns = &board->free_ns[target];
        next = part_end(at, end);
        meets |= board->under_way[target]++ > 0;
        board->left[target] -= next - at;
        *free_ns = (*free_ns > now ? *free_ns : now) + (next - at) * 1000 / speeds[target];
        served_ns = *free_ns > served_ns ? *free_ns : served_ns;
    }
    board->met += meets && all_have_work;
    board->bytes += length;
    pthread_mutex_unlock(&board->lock);
    struct timespec until = {.tv_sec = served_ns / 1000000000, .tv_nsec = served_ns % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        ;
    pthread_mutex_lock(&board->lock);
    for (int64_t at = offset; at < end; at = part_end(at, end))
        board->under_way[target_of(at)]--;
    pthread_mutex_unlock(&board->lock);
    return length;
}

/* The linker finds these before the C library's. */
ssize_t pread(int fd, void *memory, size_t length, off_t offset)
{
    ssize_t got = syscall(SYS_pread64, fd, memory, length, offset);
    return board && got >= SHORTEST ? serve(got, offset) : got;
}

ssize_t pwrite(int fd, const void *memory, size_t length, off_t offset)
{
    ssize_t put = syscall(SYS_pwrite64, fd, memory, length, offset);
    return board && put >= SHORTEST ? serve(put, offset) : put;
}

__attribute__((noreturn)) static void give_up(const char *why)
{
    fprintf(stderr, "transfer: %s\n", why);
    MPI_Abort(MPI_COMM_WORLD, 2);
    exit(2);
}

/* Reads numbers between commas. Returns how many there are. */
static int64_t numbers(const char *text, int64_t *out, int64_t most)
{
    int64_t count = 0;
    for (char *at = (char *)text; *at && count < most; at += *at == ',') {
        const char *from = at;
        out[count++] = strtoll(from, &at, 10);
        if (at == from)
            give_up("a list has something that is no number");
    }
    return count;
}

/* Memory that the ranks of a side share. MPI may be told that each rank is on a host of its own, so it is a file. */
static struct board *shared(MPI_Comm side, int rank)
{
    char path[] = "/dev/shm/isthmus-papers-XXXXXX";
    int fd = rank == 0 ? mkstemp(path) : -1;
    MPI_Bcast(path, sizeof path, MPI_BYTE, 0, side);
    if (rank != 0)
        fd = open(path, O_RDWR);
    struct board *out = fd >= 0 && ftruncate(fd, sizeof *out) == 0
                            ? mmap(NULL, sizeof *out, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                            : MAP_FAILED;
    if (out == MAP_FAILED)
        give_up("no shared memory in /dev/shm");
    close(fd);
    MPI_Barrier(side);
    if (rank == 0)
        unlink(path);
    return out;
}

/* Makes the targets of a side. */
static struct board *make_targets(MPI_Comm side, char **argv, int sends)
{
    struct stat source;
    int rank;
    MPI_Comm_rank(side, &rank);
    stripe = strtoll(argv[8], NULL, 10);
    turn_count = numbers(argv[9], turns, TURNS_MOST);
    targets = numbers(argv[sends ? 10 : 11], speeds, TARGETS_MOST);
    int is_good = stripe > 0 && turn_count > 0 && targets > 0 && stat(argv[1], &source) == 0;
    for (int64_t i = 0; i < turn_count; i++)
        is_good &= turns[i] >= 0 && turns[i] < targets;
    for (int64_t i = 0; i < targets; i++)
        is_good &= speeds[i] > 0;
    if (!is_good)
        give_up("no source, no stripes, or targets without a speed");
    struct board *out = shared(side, rank);
    if (rank == 0) {
        pthread_mutexattr_t all;
        pthread_mutexattr_init(&all);
        pthread_mutexattr_setpshared(&all, PTHREAD_PROCESS_SHARED);
        pthread_mutex_init(&out->lock, &all);
        for (int64_t at = 0; at < source.st_size; at += stripe)
            out->left[target_of(at)] += source.st_size - at < stripe ? source.st_size - at : stripe;
    }
    MPI_Barrier(side);
    return out;
}

static int complain(int rank, int status)
{
    if (status != ISTHMUS_MPI_SUCCESS && rank == 0)
        fprintf(stderr, "transfer: %s\n", isthmus_mpi_last_error());
    return status;
}

/* Prints the result at rank 0. `served` has the bytes read and written, then the reads and writes that met another. */
static void print(const struct isthmus_mpi_report *report, double seconds, const int64_t served[4])
{
    printf("RESULT {\"seconds\": %.6f, \"transfer_s\": %.6f, \"sent_s\": %.6f, \"bytes\": %" PRId64, seconds, report->seconds,
           report->sent_seconds, report->bytes);
    if (stripe)
        printf(", \"read\": %" PRId64 ", \"written\": %" PRId64 ", \"reads_met\": %" PRId64 ", \"writes_met\": %" PRId64,
               served[0], served[1], served[2], served[3]);
    printf("}\n");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if ((argc != 7 && argc != 12) || ranks % 2)
        give_up("usage: transfer SOURCE COPY BLOCK posix|mpiio IN_TURN MEMORY [THREADS STRIPE TURNS READS WRITES], with an even number of ranks");
    int half = ranks / 2, sends = rank < half;
    MPI_Comm side, other;
    MPI_Comm_split(MPI_COMM_WORLD, sends, rank, &side);
    MPI_Intercomm_create(side, 0, MPI_COMM_WORLD, sends ? half : 0, 1, &other);
    isthmus_mpi_coupling *coupling = NULL;
    struct isthmus_mpi_options options = {.block = strtoll(argv[3], NULL, 10), .memory = strtoll(argv[6], NULL, 10)};
    options.io = strcmp(argv[4], "mpiio") == 0 ? ISTHMUS_MPI_MPIIO : ISTHMUS_MPI_POSIX;
    options.in_turn = atoi(argv[5]);
    options.direct = ISTHMUS_MPI_CACHED;
    options.threads = argc > 7 ? atoi(argv[7]) : 0;
    struct board *made = argc > 7 ? make_targets(side, argv, sends) : NULL;
    /* Each other disk thread may have been given a piece, and not have begun with it. */
    margin = half * options.threads * options.block;
    struct isthmus_mpi_report report = {0};
    int in_side, status = complain(rank % half, isthmus_mpi_couple(side, other, &coupling));
    MPI_Comm_rank(side, &in_side);
    MPI_Barrier(MPI_COMM_WORLD);
    board = made;
    double start = MPI_Wtime();
    if (status == ISTHMUS_MPI_SUCCESS && sends)
        status = isthmus_mpi_send_file(coupling, argv[1], 0, -1, &options, &report);
    else if (status == ISTHMUS_MPI_SUCCESS)
        status = isthmus_mpi_receive_file(coupling, argv[2], -1, &options, &report);
    double seconds = MPI_Wtime() - start;
    board = NULL;
    complain(in_side, status);
    if (coupling)
        isthmus_mpi_uncouple(coupling);
    if (status != ISTHMUS_MPI_SUCCESS)
        MPI_Abort(MPI_COMM_WORLD, 3);
    MPI_Barrier(MPI_COMM_WORLD);
    int64_t own[4] = {0}, all[4];
    if (made && in_side == 0) {
        own[sends ? 0 : 1] = made->bytes;
        own[sends ? 2 : 3] = made->met;
    }
    MPI_Reduce(own, all, 4, MPI_INT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        print(&report, seconds, all);
    MPI_Finalize();
    return 0;
}
