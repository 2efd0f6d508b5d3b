// Which way blocks of a file go, by what they took, and that their bytes are the same. Needs no MPI to run.
#define NAME "cache"
#include "alone.h"

#include "../../mpi/cache.c"

#include <stdlib.h>
#include <string.h>
#include <time.h>

double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

// How many of 600 blocks went past the cache, where through it they take `before` up to block 300, and `after` then;
// one follows the other at once, or when the network wants it.
static int paced(double interval, struct cost before, struct cost after, struct cost direct, double *sum)
{
    struct ways ways = {0};
    double now = 1;
    int count = 0;
    for (int block = 0; block < 600; block++) {
        int way = next(&ways);
        struct cost cost = way == DIRECT ? direct : block < 300 ? before : after;
        now += interval > cost.elapsed ? interval : cost.elapsed;
        note_cost(&ways, now, way, 1, cost);
        *sum += cost.elapsed;
        count += way == DIRECT;
    }
    return count;
}

// At once, and all that is taken is the processor's.
static int direct_of(double before, double after, double direct, double *sum)
{
    return paced(0, (struct cost){before, before}, (struct cost){after, after}, (struct cost){direct, direct}, sum);
}

// Where a block takes as long all along.
static int steady(double interval, struct cost cached, struct cost direct)
{
    double sum = 0;
    return paced(interval, cached, cached, direct, &sum);
}

// Everything but for its last, odd bytes begins with a page.
static int same(const char *path, int cache)
{
    enum { LENGTH = (5 << 20) + 17, BLOCK = 1 << 18 };
    struct ways ways;
    char *bytes = aligned_alloc(4096, LENGTH + 4096), *read = aligned_alloc(4096, LENGTH + 4096);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0 && bytes && read, "no file or memory");
    for (int at = 0; at < LENGTH; at++)
        bytes[at] = (char)(at * 7 / 3);
    memset(read, 0, LENGTH);
    ways_begin(&ways, fd, cache);
    for (int writes = 1; writes >= 0; writes--)
        for (int64_t done = 0, end, at = 0; at < LENGTH; at = end)
            for (end = at + BLOCK < LENGTH ? at + BLOCK : LENGTH; done < end;) {
                ssize_t now = ways_act(&ways, writes, (writes ? bytes : read) + done, end - done, done);
                CHECK(now > 0, "way %d ends at byte %" PRId64 ": %s", cache, done, strerror(errno));
                done += now;
            }
    CHECK(ways_end(&ways) == 0 && close(fd) == 0 && unlink(path) == 0, "cannot finish");
    CHECK(memcmp(bytes, read, LENGTH) == 0, "way %d: other bytes", cache);
    free(bytes);
    free(read);
    return 0;
}

int main(int argc, char **argv)
{
    CHECK(argc == 2 && chdir(argv[1]) == 0, "usage: cache FOLDER");
    double sum = 0;
    int count = direct_of(1, 1, 0.9, &sum);
    CHECK(count > 0 && count <= 20, "of equal ways %d of 600 past the cache", count);
    sum = 0;
    count = direct_of(1, 1, 500, &sum);
    CHECK(sum <= (600 + 500) * 1.04, "looking costs %g where 1100 is least", sum);
    count = direct_of(1, 16, 4, &sum);
    CHECK(count >= 280 && count < 310, "%d past a cache that became slow", count);
    count = direct_of(9, 1, 4, &sum);
    CHECK(count >= 280 && count < 400, "%d past a cache that became fast", count);
    struct cost copied = {4, 4}, written = {3.5, 0.6};
    count = steady(40, copied, written);
    CHECK(count > 560, "%d past a cache that takes the processor", count);
    count = steady(0, copied, written);
    CHECK(count <= 20, "%d past a cache where the disk is the limit", count);
    count = steady(40, (struct cost){0.6, 0.6}, (struct cost){5, 0.6});
    CHECK(count <= 20, "%d past a cache that holds the file", count);
    count = steady(40, copied, (struct cost){90, 0.6});
    CHECK(count <= 20, "%d to a disk that does not keep up", count);
    char path[] = "cache-XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0 && close(fd) == 0, "no file here: %s", strerror(errno));
    for (int cache = ISTHMUS_MPI_MEASURED; cache <= ISTHMUS_MPI_CACHED; cache++)
        if (same(path, cache))
            return 1;
    printf("OK cache: ways by what they took, and bytes\n");
    return 0;
}
