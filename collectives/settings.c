// The environment: ISTHMUS_COLLECTIVES_NAME.
#include "internal.h"

#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

// Assumed rate of a site's link if RATE is not set, until it is measured: 1 Gb/s, in bytes per second.
#define DEFAULT_RATE 125e6
// Round trip from which ranks are of two sites. Seconds. The provider calls a path wide from 1 ms on; twice that
// leaves room for a busy host.
#define DEFAULT_FAR_S 0.002

static const char *const OPERATION_NAMES[OPERATIONS] = {
    "barrier", "bcast", "reduce", "allreduce", "gather", "gatherv", "scatter", "scatterv", "allgather", "alltoall", "alltoallv",
    "alltoallw", "reduce_scatter", "scan", "exscan",
};
static const char *const ALGORITHM_NAMES[ALGORITHMS] = {"auto", "mpi", "leaders", "parallel"};

static struct settings settings;
static pthread_once_t once = PTHREAD_ONCE_INIT;

const char *operation_name(enum operation operation) { return OPERATION_NAMES[operation]; }
const char *algorithm_name(enum algorithm algorithm) { return ALGORITHM_NAMES[algorithm]; }

void refuse(const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    // Printed at once, because other ranks may end the job.
    fprintf(stderr, "isthmus-collectives: refused: %s\n", text);
    // MPICH's launcher may drop what it has not read when a rank aborts.
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    PMPI_Abort(MPI_COMM_WORLD, 2);
    exit(2);
}

struct unit {
    const char *name;
    double factor;
};
static const struct unit TIMES[] = {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}, {NULL, 0}};
static const struct unit RATES[] = {{"kbit", 125}, {"mbit", 125e3}, {"gbit", 125e6}, {NULL, 0}};
static const struct unit SIZES[] = {{"kib", 1024}, {"mib", 1048576}, {"gib", 1073741824}, {"b", 1}, {"", 1}, {NULL, 0}};

// The quantity in a variable, such as "24ms"; 0 if it is not set.
static double quantity(const char *variable, const struct unit *units, const char *example)
{
    const char *text = getenv(variable);
    if (!text || !text[0])
        return 0;
    char *end = NULL;
    double value = strtod(text, &end);
    if (end != text && isfinite(value) && value > 0)
        for (; units->name; units++)
            if (!strcasecmp(end, units->name))
                return value * units->factor;
    refuse("%s = \"%s\": expected a positive quantity, such as \"%s\"", variable, text, example);
}

static int named(const char *const *names, int count, const char *text, size_t length)
{
    for (int i = 0; i < count; i++)
        if (strlen(names[i]) == length && !strncasecmp(names[i], text, length))
            return i;
    return -1;
}

void read_pins(const char *where, const char *text, int32_t *pins)
{
    while (text && *text) {
        size_t length = strcspn(text, ","), name = strcspn(text, ":");
        int algorithm = name < length ? named(ALGORITHM_NAMES, ALGORITHMS, text + name + 1, length - name - 1) : -1;
        int operation = named(OPERATION_NAMES, OPERATIONS, text, name);
        int all = name == 3 && !strncasecmp(text, "all", 3);
        if (algorithm < 0 || (operation < 0 && !all))
            refuse("%s: \"%.*s\": expected COLLECTIVE:ALGORITHM, such as \"allreduce:leaders\"; collectives: all, "
                   "barrier, bcast, reduce, allreduce, gather, gatherv, scatter, scatterv, allgather, alltoall, alltoallv, "
                   "alltoallw, reduce_scatter, scan, exscan; algorithms: auto, mpi, leaders, parallel", where, (int)length, text);
        for (int i = 0; i < OPERATIONS; i++)
            if (all || i == operation)
                pins[i] = algorithm;
        text += length + (text[length] == ',');
    }
}

static int is_off(const char *variable)
{
    const char *text = getenv(variable);
    return text && (!strcasecmp(text, "off") || !strcmp(text, "0"));
}

static int is_on(const char *variable)
{
    const char *text = getenv(variable);
    return text && text[0] && !is_off(variable);
}

static void read_settings(void)
{
    const char *trace = getenv("ISTHMUS_COLLECTIVES_TRACE");
    settings.trace = !trace || !trace[0] || !strcmp(trace, "0") ? QUIET : strcasecmp(trace, "counts") ? EACH_CALL : COUNTS;
    settings.nonblocking = has_progress_hook() && !is_off("ISTHMUS_COLLECTIVES_NONBLOCKING");
    settings.persistent = settings.nonblocking && !is_off("ISTHMUS_COLLECTIVES_PERSISTENT");
    settings.windows = WINDOWS && is_on("ISTHMUS_COLLECTIVES_WINDOWS");
    settings.reproducible = is_on("ISTHMUS_COLLECTIVES_REPRODUCIBLE");
    settings.rtt_s = quantity("ISTHMUS_COLLECTIVES_RTT", TIMES, "24ms");
    settings.rate = quantity("ISTHMUS_COLLECTIVES_RATE", RATES, "10Gbit");
    settings.pair_rate = quantity("ISTHMUS_COLLECTIVES_RANK_RATE", RATES, "1Gbit");
    settings.near_s = quantity("ISTHMUS_COLLECTIVES_NEAR_LATENCY", TIMES, "5us");
    settings.near_rate = quantity("ISTHMUS_COLLECTIVES_NEAR_RATE", RATES, "100Gbit");
    settings.far_s = quantity("ISTHMUS_COLLECTIVES_FAR", TIMES, "2ms");
    settings.segment = (int64_t)quantity("ISTHMUS_COLLECTIVES_SEGMENT", SIZES, "256KiB");
    const char *detach = getenv("ISTHMUS_COLLECTIVES_DETACH");
    settings.detach = !detach || !detach[0] ? -1 : !strcasecmp(detach, "off") ? 0 : (int64_t)quantity("ISTHMUS_COLLECTIVES_DETACH", SIZES, "64MiB");
    settings.measures = settings.rate == 0;
    settings.measures_pair = settings.measures && settings.pair_rate == 0;
    if (settings.rate == 0)
        settings.rate = DEFAULT_RATE;
    if (settings.far_s == 0)
        settings.far_s = DEFAULT_FAR_S;
    read_pins("ISTHMUS_COLLECTIVES_PIN", getenv("ISTHMUS_COLLECTIVES_PIN"), settings.pins);
}

const struct settings *own_settings(void)
{
    pthread_once(&once, read_settings);
    return &settings;
}
