// Whether blocks of a file go through the page cache or past it (O_DIRECT): by what blocks of this file took so far, for
// which now and then one goes the other way; where the disk thread has time to spare, by what is the processor's of it.
// crates/isthmus-mover/src/cache.rs says more.
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { ALIGNMENT = 4096, SHORT = 64 << 10 };
enum { CACHED, DIRECT };

// One block in so many goes the other way, in as many more as that costs more than the usual one, or takes longer than
// from one block to the next; the first that does; how much more the cache may cost; how busy a way may keep a thread to
// pass for one that keeps up; what a block weighs against those before it on the usual way, and on the other; and for
// how fast blocks follow one another.
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

// By what a way is judged: processor time where it keeps up, else the time that it takes.
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

// What a block took that ended now.
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

// Which way a block goes now; under the lock.
static int chosen(struct ways *ways)
{
    int way = ways->refused ? CACHED : ways->cache == ISTHMUS_MPI_DIRECT ? DIRECT : next(ways);
    if (way == DIRECT && ways->direct < 0) {
        char again[64];
        snprintf(again, sizeof again, "/proc/self/fd/%d", ways->fd);
        ways->direct = open(again, (fcntl(ways->fd, F_GETFL) & O_ACCMODE) | O_DIRECT | O_CLOEXEC);
        // File systems that know no such access refuse to open; then the cache does.
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
