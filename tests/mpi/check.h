// What the test programs share: patterns that can be verified, and one way to
// fail. A program prints one line "OK name: ..." from rank 0, or "FAIL ..."
// from the rank that saw it, and then exits non-zero.
#ifndef ISTHMUS_TESTS_CHECK_H
#define ISTHMUS_TESTS_CHECK_H

#include <inttypes.h>
#include <malloc.h>
#include <mpi.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static int world_rank;
static int world_size;
static const char *program = "?";

static inline void start(int *argc, char ***argv, const char *name)
{
    program = name;
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world_size);
}

static inline void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

// Waits until the launcher has read what this process wrote to its standard error, for at most 10 s. An abort takes
// another way: mpiexec of MPICH and Intel MPI exits when it hears of one, and what is still in the pipe is lost. No
// event tells that a pipe is empty.
static inline void await_reader(void)
{
    struct stat of;
    int unread = 0;
    if (fstat(STDERR_FILENO, &of) != 0 || !S_ISFIFO(of.st_mode))
        return;
    for (int i = 0; i < 10000 && ioctl(STDERR_FILENO, FIONREAD, &unread) == 0 && unread > 0; i++)
        sleep_ms(1);
}

__attribute__((noreturn, format(printf, 1, 2))) static inline void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "FAIL %s rank %d: ", program, world_rank);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    fflush(stderr);
    await_reader();
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition))                                                                          \
            fail(__VA_ARGS__);                                                                     \
    } while (0)

__attribute__((format(printf, 1, 2))) static inline int finish(const char *format, ...)
{
    MPI_Barrier(MPI_COMM_WORLD);
    if (world_rank == 0) {
        va_list arguments;
        va_start(arguments, format);
        printf("OK %s: ", program);
        vprintf(format, arguments);
        putchar('\n');
        va_end(arguments);
        fflush(stdout);
    }
    MPI_Finalize();
    return 0;
}

static inline void *allocate(size_t bytes)
{
    void *memory = malloc(bytes ? bytes : 1);
    CHECK(memory, "out of memory for %zu bytes", bytes);
    return memory;
}

// Bytes that this process has allocated.
static inline size_t memory_used(void)
{
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

static inline double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// splitmix64: every (seed, index) has its own 64 bits, so that a shifted,
// repeated or foreign piece of data is seen.
static inline uint64_t mixed(uint64_t seed, uint64_t index)
{
    uint64_t z = seed * UINT64_C(0xd1342543de82ef95) + (index + 1) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static inline void fill(void *memory, size_t bytes, uint64_t seed)
{
    unsigned char *out = memory;
    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t word = mixed(seed, at / 8);
        memcpy(out + at, &word, bytes - at < 8 ? bytes - at : 8);
    }
}

static inline void verify(const void *memory, size_t bytes, uint64_t seed, const char *what)
{
    const unsigned char *in = memory;
    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t word = mixed(seed, at / 8);
        size_t piece = bytes - at < 8 ? bytes - at : 8;
        CHECK(memcmp(in + at, &word, piece) == 0, "%s: wrong data at byte %zu of %zu (seed %" PRIu64 ")",
              what, at, bytes, seed);
    }
}

// A number such as 4096, 64k, 4M or 1G from argument `index`, or `otherwise`.
static inline size_t argument(int argc, char **argv, int index, size_t otherwise)
{
    if (index >= argc)
        return otherwise;
    char *end;
    double value = strtod(argv[index], &end);
    switch (*end) {
    case 'k': return (size_t)(value * 1024);
    case 'M': return (size_t)(value * 1048576);
    case 'G': return (size_t)(value * 1073741824);
    default: return (size_t)value;
    }
}

static inline void expect_status(const MPI_Status *status, int source, int tag, int bytes, const char *what)
{
    int count;
    MPI_Get_count(status, MPI_BYTE, &count);
    CHECK(status->MPI_SOURCE == source && status->MPI_TAG == tag && count == bytes,
          "%s: status says source %d tag %d count %d; expected %d %d %d", what, status->MPI_SOURCE,
          status->MPI_TAG, count, source, tag, bytes);
}

#endif
