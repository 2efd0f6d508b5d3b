// Whether blocks of a file go through the page cache or past it (O_DIRECT): by what blocks of this file took so far, for
// which now and then one goes the other way. crates/isthmus-mover/src/cache.rs says more.
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

enum { ALIGNMENT = 4096, SHORT = 64 << 10 };
enum { CACHED, DIRECT };

// One block in so many goes the other way, in as many more as that costs more; the first that does; how much more the
// cache may cost; what a block weighs against those before it on the usual way, and on the other.
static const double TRIAL = 32, FIRST = 4, MARGIN = 1.25, WEIGHT[] = {0.25, 0.75};

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

static int better(const struct ways *ways)
{
    const double *cost = ways->cost;
    return cost[CACHED] > 0 && cost[DIRECT] > 0 && cost[CACHED] > MARGIN * cost[DIRECT] ? DIRECT : CACHED;
}

static int next(struct ways *ways)
{
    double cached = ways->cost[CACHED], direct = ways->cost[DIRECT], wait = ways->tried ? TRIAL : FIRST;
    int usual = better(ways);
    if (cached > 0 && direct > 0)
        wait = TRIAL * (cached > direct ? cached / direct : direct / cached);
    if (++ways->since <= wait)
        return usual;
    ways->since = 0;
    ways->tried = 1;
    return !usual;
}

// What a block took, in seconds a byte.
static void note_cost(struct ways *ways, int way, double cost)
{
    double before = ways->cost[way], weight = WEIGHT[way != better(ways)];
    ways->cost[way] = before > 0 ? before + weight * (cost - before) : cost;
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
    double begin = now_s();
    ssize_t done = act(ways, way, writes, memory, length, offset);
    int refused = way == DIRECT && done < 0 && (errno == EINVAL || errno == EOPNOTSUPP);
    if (refused) {
        way = CACHED;
        done = act(ways, way, writes, memory, length, offset);
    }
    int error = errno;
    pthread_mutex_lock(&ways->lock);
    ways->refused |= refused;
    if (done >= SHORT)
        note_cost(ways, way, (now_s() - begin + 1e-9) / (double)done);
    pthread_mutex_unlock(&ways->lock);
    errno = error;
    return done;
}
