// Decides whether blocks of a file go through the page cache or past it (O_DIRECT), by the measured cost of both ways.
// Now and then a block goes the other way to measure it. If the disk threads have time to spare, only processor time
// counts. crates/isthmus-mover/src/cache.rs says more.
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { ALIGNMENT = 4096, SHORT = 64 << 10 };
enum { CACHED, DIRECT };

// TRIAL: one block in this many goes the other way; fewer if that costs more, or takes longer than blocks are apart.
// FIRST: blocks before the first trial. MARGIN: the cache is left only if it costs this many times more. BUSY: a way
// keeps up if it would keep one thread busy for less than this share. WEIGHT: of a new block in the moving average, for
// the usual way and the other. PACE: the same for the time between blocks.
static const double TRIAL = 32, FIRST = 4, MARGIN = 1.25, BUSY = 0.7, WEIGHT[] = {0.25, 0.75}, PACE = 0.05;

void ways_begin(struct ways *ways, int fd, int cache)
{
    *ways = (struct ways){.fd = fd, .direct = -1, .cache = cache};
    pthread_mutex_init(&ways->lock, NULL);
}

int ways_end(struct ways *ways)
{
    int failed = ways->direct >= 0 && close(ways->direct) < 0;
    ways->direct = -1;
    pthread_mutex_destroy(&ways->lock);
    return failed ? -1 : 0;
}

// The price by which ways are compared: processor time if the way keeps up, else elapsed time.
static double price(const struct ways *ways, int way)
{
    const struct cost *cost = &ways->cost[way];
    int keeps_up = ways->interval > 0 && cost->elapsed * ways->block < BUSY * ways->interval;
    return keeps_up ? cost->processor : cost->elapsed;
}

static int known(const struct ways *ways)
{
    return ways->cost[CACHED].elapsed > 0 && ways->cost[DIRECT].elapsed > 0;
}

static int better(const struct ways *ways)
{
    return known(ways) && price(ways, CACHED) > MARGIN * price(ways, DIRECT) ? DIRECT : CACHED;
}

static double more(double one, double other)
{
    return one > other ? one : other;
}

static int next(struct ways *ways)
{
    double wait = ways->tried ? TRIAL : FIRST;
    int usual = better(ways);
    if (known(ways)) {
        double dearer = price(ways, !usual) / price(ways, usual);
        double pause = ways->block > 0 ? ways->interval / ways->block : 0;
        double longer = ways->cost[!usual].elapsed / more(ways->cost[usual].elapsed, pause);
        wait = TRIAL * more(1, more(dearer, longer));
    }
    if (++ways->since <= wait)
        return usual;
    ways->since = 0;
    ways->tried = 1;
    return !usual;
}

// Records the cost of a block that ended now.
static void note_cost(struct ways *ways, double now, int way, double bytes, struct cost took)
{
    struct cost *cost = &ways->cost[way];
    double weight = cost->elapsed > 0 ? WEIGHT[way != better(ways)] : 1;
    cost->elapsed += weight * ((took.elapsed + 1e-9) / bytes - cost->elapsed);
    cost->processor += weight * ((took.processor + 1e-9) / bytes - cost->processor);
    if (ways->last > 0) {
        weight = ways->interval > 0 ? PACE : 1;
        ways->block += weight * (bytes - ways->block);
        ways->interval += weight * (now - ways->last - ways->interval);
    }
    ways->last = now;
}

static double processor_s(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

// Chooses the way of a block. The caller holds the lock.
static int chosen(struct ways *ways)
{
    int way = ways->refused ? CACHED : ways->cache == ISTHMUS_MPI_DIRECT ? DIRECT : next(ways);
    if (way == DIRECT && ways->direct < 0) {
        char again[64];
        snprintf(again, sizeof again, "/proc/self/fd/%d", ways->fd);
        ways->direct = open(again, (fcntl(ways->fd, F_GETFL) & O_ACCMODE) | O_DIRECT | O_CLOEXEC);
        // File systems without O_DIRECT refuse to open; then all goes through the cache.
        ways->refused = ways->direct < 0;
    }
    return ways->refused ? CACHED : way;
}

static ssize_t act(struct ways *ways, int way, int writes, char *memory, int64_t length, int64_t offset)
{
    int fd = way == DIRECT ? ways->direct : ways->fd;
    size_t now = (size_t)(way == DIRECT ? length / ALIGNMENT * ALIGNMENT : length);
    return writes ? pwrite(fd, memory, now, offset) : pread(fd, memory, now, offset);
}

ssize_t ways_act(struct ways *ways, int writes, char *memory, int64_t length, int64_t offset)
{
    int aligned = offset % ALIGNMENT == 0 && (uintptr_t)memory % ALIGNMENT == 0;
    if (ways->cache == ISTHMUS_MPI_CACHED || !aligned || length < SHORT)
        return act(ways, CACHED, writes, memory, length, offset);
    pthread_mutex_lock(&ways->lock);
    int way = chosen(ways);
    pthread_mutex_unlock(&ways->lock);
    double begin = now_s(), processor = processor_s();
    ssize_t done = act(ways, way, writes, memory, length, offset);
    int refused = way == DIRECT && done < 0 && (errno == EINVAL || errno == EOPNOTSUPP);
    if (refused) {
        way = CACHED;
        done = act(ways, way, writes, memory, length, offset);
    }
    int error = errno;
    double end = now_s();
    struct cost took = {end - begin, processor_s() - processor};
    pthread_mutex_lock(&ways->lock);
    ways->refused |= refused;
    if (done >= SHORT)
        note_cost(ways, end, way, (double)done, took);
    pthread_mutex_unlock(&ways->lock);
    errno = error;
    return done;
}
