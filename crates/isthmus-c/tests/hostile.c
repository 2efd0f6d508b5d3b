/* What a program does that means no good, or knows no better: threads that make every call at
 * once, with names that are right, void or invented; endpoints that are destroyed with traffic
 * under way, and under threads that sleep in them; thousands of connections that come and go; no
 * memory; times without end. Each call returns, with a status that isthmus.h has.
 *     hostile [SECONDS]      of threads; 2 */
#include "../../../examples/c/common.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <time.h>

enum { THREADS = 6, NAMES = 64, BYTES = 20000, CYCLES = 3000, BATCH = 100, LAST = ISTHMUS_PROTOCOL };

static isthmus_endpoint ends[2];
static char uris[2][ISTHMUS_URI_MAX];
/* Names that were seen: written and read by all, whole each. */
static _Atomic uint64_t connections[NAMES], regions[NAMES];
static isthmus_memory handle;
static uint8_t shared[BYTES];
static atomic_int over;

static int known(int status)
{
    REQUIRE(status >= 0 && status <= LAST && status != ISTHMUS_INTERNAL);
    return status;
}

static unsigned below(unsigned *seed, unsigned limit)
{
    *seed = *seed * 1103515245 + 12345;
    return (*seed >> 8) % limit;
}

static void take_event(isthmus_endpoint at, unsigned *seed)
{
    isthmus_event event;
    if (known(isthmus_wait_event(at, below(seed, 200), &event)) != ISTHMUS_SUCCESS)
        return;
    isthmus_connection name;
    if (event.kind == ISTHMUS_EVENT_REQUEST) {
        if (below(seed, 4) == 0)
            known(isthmus_reject(at, &event, 3, "no", 2));
        else if (known(isthmus_accept(at, &event, NULL, &name)) == ISTHMUS_SUCCESS)
            connections[below(seed, NAMES)] = name.id;
        /* Decided: not once more. */
        REQUIRE(isthmus_accept(at, &event, NULL, NULL) != ISTHMUS_SUCCESS);
    }
    if (event.kind == ISTHMUS_EVENT_RECV)
        for (size_t i = 0; i < event.len; i++)
            REQUIRE(((const uint8_t *)event.data)[i] == 7);
    if (event.kind == ISTHMUS_EVENT_DISCONNECT)
        known(isthmus_disconnect(at, event.connection));
    if (below(seed, 8) == 0)
        known(isthmus_return_event(ends[below(seed, 2)], &event));
    known(isthmus_return_event(at, &event));
}

static void *calls(void *number)
{
    unsigned seed = (unsigned)(uintptr_t)number * 977 + 1;
    uint8_t message[BYTES];
    memset(message, 7, sizeof message);
    while (!over) {
        isthmus_endpoint at = ends[below(&seed, 2)];
        isthmus_connection to = {connections[below(&seed, NAMES)]}, made;
        isthmus_region region = {regions[below(&seed, NAMES)]};
        struct iovec pieces[3] = {{message, below(&seed, 900)}, {NULL, 0}, {message, below(&seed, 900)}};
        uint64_t time = below(&seed, 300);
        size_t len = sizeof time;
        switch (below(&seed, 14)) {
        case 0:
            if (known(isthmus_connect(at, uris[below(&seed, 2)], message, below(&seed, 1100), below(&seed, 3),
                                      NULL, below(&seed, 3) ? 0 : 500, &made)) == ISTHMUS_SUCCESS)
                connections[below(&seed, NAMES)] = made.id;
            break;
        case 1: known(isthmus_disconnect(at, to)); break;
        case 2:
        case 3: known(isthmus_send(at, to, message, below(&seed, BYTES), NULL, below(&seed, 2))); break;
        case 4: known(isthmus_sendv(at, to, pieces, 3, NULL, below(&seed, 16))); break;
        case 5:
            if (known(isthmus_register(at, shared, below(&seed, BYTES), below(&seed, 4), &region, NULL)) ==
                ISTHMUS_SUCCESS)
                regions[below(&seed, NAMES)] = region.id;
            break;
        case 6: known(isthmus_deregister(at, region)); break;
        case 7:
            known(isthmus_write(at, to, region, below(&seed, 99), &handle, below(&seed, 99), below(&seed, BYTES),
                                message, below(&seed, 99), NULL, below(&seed, 2) | (below(&seed, 2) ? 8 : 0)));
            break;
        case 8:
            known(isthmus_read(at, to, region, below(&seed, 99), &handle, below(&seed, 99), below(&seed, 9000),
                               NULL, 0, NULL, below(&seed, 2)));
            break;
        case 9: known(isthmus_set_option(at, to, 1 + below(&seed, 25), &time, below(&seed, 2) ? 4 : 8)); break;
        case 10: known(isthmus_get_option(at, to, 1 + below(&seed, 25), &time, &len)); break;
        case 11: known(isthmus_arm(at)); break;
        default: take_event(at, &seed); break;
        }
    }
    return NULL;
}

static isthmus_endpoint open_one(char uri[ISTHMUS_URI_MAX])
{
    isthmus_endpoint_options options = {
        .size = sizeof options, .recv_buffers = 16, .send_buffers = 64, .message_max = BYTES};
    isthmus_endpoint made;
    CHECK(isthmus_create_endpoint(NULL, &options, &made, NULL));
    CHECK(isthmus_uri(made, uri, ISTHMUS_URI_MAX));
    return made;
}

/* All calls at once; then, under them, the endpoints go. */
static void threads(int seconds)
{
    pthread_t all[THREADS];
    isthmus_region region;
    for (int i = 0; i < 2; i++)
        ends[i] = open_one(uris[i]);
    CHECK(isthmus_register(ends[1], shared, sizeof shared, ISTHMUS_REMOTE_READ | ISTHMUS_REMOTE_WRITE, &region,
                           &handle));
    for (uintptr_t i = 0; i < THREADS; i++)
        REQUIRE(pthread_create(&all[i], NULL, calls, (void *)i) == 0);
    nanosleep(&(struct timespec){.tv_sec = seconds}, NULL);
    for (int i = 0; i < 2; i++)
        CHECK(isthmus_destroy_endpoint(ends[i]));
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    over = 1;
    for (int i = 0; i < THREADS; i++)
        REQUIRE(pthread_join(all[i], NULL) == 0);
}

static void *sleep_in(void *at)
{
    isthmus_event event;
    intptr_t status = isthmus_wait_event(*(isthmus_endpoint *)at, -1, &event);
    return (void *)status;
}

static void *block_in(void *of)
{
    isthmus_connection to = {*(uint64_t *)of};
    isthmus_endpoint at = {((uint64_t *)of)[1]};
    static uint8_t bytes[BYTES];
    int status;
    /* Until nobody takes them any more. */
    do
        status = isthmus_send(at, to, bytes, sizeof bytes, NULL, ISTHMUS_BLOCKING);
    while (status == ISTHMUS_SUCCESS);
    return (void *)(intptr_t)status;
}

static isthmus_connection joined(isthmus_endpoint a, isthmus_endpoint b, const char *uri, isthmus_connection *there)
{
    isthmus_connection here;
    CHECK(isthmus_connect(a, uri, NULL, 0, ISTHMUS_RO, NULL, 0, &here));
    isthmus_event event = await_event(b, ISTHMUS_EVENT_REQUEST);
    CHECK(isthmus_accept(b, &event, NULL, there));
    CHECK(isthmus_return_event(b, &event));
    event = await_event(a, ISTHMUS_EVENT_CONNECT);
    CHECK(isthmus_return_event(a, &event));
    event = await_event(b, ISTHMUS_EVENT_ACCEPT);
    CHECK(isthmus_return_event(b, &event));
    return here;
}

/* Who sleeps or waits in an endpoint that is destroyed is told. */
static void sleepers(void)
{
    char uri[ISTHMUS_URI_MAX], other[ISTHMUS_URI_MAX];
    isthmus_endpoint a = open_one(other), b = open_one(uri);
    isthmus_connection there, here = joined(a, b, uri, &there);
    uint64_t names[2] = {here.id, a.id};
    pthread_t sleeping, blocked;
    void *end;
    REQUIRE(pthread_create(&blocked, NULL, block_in, names) == 0);
    REQUIRE(pthread_create(&sleeping, NULL, sleep_in, &a) == 0);
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    CHECK(isthmus_destroy_endpoint(a));
    REQUIRE(pthread_join(sleeping, &end) == 0);
    REQUIRE((intptr_t)end == ISTHMUS_CLOSED || (intptr_t)end == ISTHMUS_STALE);
    REQUIRE(pthread_join(blocked, &end) == 0);
    REQUIRE((intptr_t)end == ISTHMUS_CLOSED || (intptr_t)end == ISTHMUS_STALE || (intptr_t)end == ISTHMUS_STATE);
    CHECK(isthmus_destroy_endpoint(b));
}

/* With writes and lent messages under way, what was lent is the program's again afterwards. */
static void destroyed_under_way(void)
{
    char uri[ISTHMUS_URI_MAX], other[ISTHMUS_URI_MAX];
    isthmus_endpoint a = open_one(other), b = open_one(uri);
    isthmus_connection there, here = joined(a, b, uri, &there);
    enum { LONG = 8 << 20 };
    uint8_t *from = calloc(1, LONG), *to = calloc(1, LONG), *message = calloc(1, BYTES);
    isthmus_region ours, theirs;
    isthmus_memory memory;
    CHECK(isthmus_register(a, from, LONG, 0, &ours, NULL));
    CHECK(isthmus_register(b, to, LONG, ISTHMUS_REMOTE_WRITE, &theirs, &memory));
    for (int i = 0; i < 8; i++)
        CHECK(isthmus_write(a, here, ours, 0, &memory, 0, LONG, "late", 4, NULL, 0));
    for (int i = 0; i < 40; i++)
        CHECK(isthmus_send(a, here, message, BYTES, NULL, ISTHMUS_NO_COPY));
    REQUIRE(isthmus_deregister(a, ours) == ISTHMUS_MEMORY);
    /* The target first: what comes for it finds nobody. */
    CHECK(isthmus_destroy_endpoint(b));
    memset(to, 1, LONG);
    free(to);
    CHECK(isthmus_destroy_endpoint(a));
    memset(from, 1, LONG);
    free(from);
    free(message);
}

/* Connections that come and go leave nothing. */
static void churn(void)
{
    char uri[ISTHMUS_URI_MAX], other[ISTHMUS_URI_MAX];
    isthmus_endpoint a = open_one(other), b = open_one(uri);
    isthmus_connection all[BATCH], name;
    for (int done = 0; done < CYCLES; done += BATCH) {
        int connected = 0, ended = 0;
        for (int i = 0; i < BATCH; i++)
            CHECK(isthmus_connect(a, uri, "x", 1, i % 3, NULL, 0, NULL));
        while (ended < BATCH) {
            isthmus_event event;
            while (isthmus_get_event(a, &event) == ISTHMUS_SUCCESS) {
                if (event.kind == ISTHMUS_EVENT_CONNECT) {
                    REQUIRE(event.status == ISTHMUS_SUCCESS);
                    all[connected++] = event.connection;
                    /* Those before may still be under way. */
                    int sent = isthmus_send(a, event.connection, "hello", 5, NULL, ISTHMUS_SILENT);
                    REQUIRE(sent == ISTHMUS_SUCCESS || sent == ISTHMUS_FULL);
                    CHECK(isthmus_disconnect(a, event.connection));
                    REQUIRE(isthmus_send(a, event.connection, "x", 1, NULL, 0) == ISTHMUS_STALE);
                }
                CHECK(isthmus_return_event(a, &event));
            }
            while (isthmus_get_event(b, &event) == ISTHMUS_SUCCESS) {
                if (event.kind == ISTHMUS_EVENT_REQUEST)
                    CHECK(isthmus_accept(b, &event, NULL, &name));
                if (event.kind == ISTHMUS_EVENT_DISCONNECT) {
                    CHECK(isthmus_disconnect(b, event.connection));
                    ended++;
                }
                CHECK(isthmus_return_event(b, &event));
            }
        }
        REQUIRE(isthmus_disconnect(a, all[0]) == ISTHMUS_STALE);
    }
    CHECK(isthmus_destroy_endpoint(a));
    CHECK(isthmus_destroy_endpoint(b));
}

/* Times without end are times without end. */
static void endless_times(void)
{
    char uri[ISTHMUS_URI_MAX], other[ISTHMUS_URI_MAX];
    isthmus_endpoint_options options = {
        .size = sizeof options, .send_timeout_us = UINT64_MAX, .keepalive_us = UINT64_MAX};
    isthmus_endpoint a, b = open_one(uri);
    CHECK(isthmus_create_endpoint(NULL, &options, &a, NULL));
    CHECK(isthmus_uri(a, other, sizeof other));
    isthmus_connection there, here = joined(a, b, uri, &there);
    uint64_t most = UINT64_MAX;
    CHECK(isthmus_set_option(a, here, ISTHMUS_OPT_CONN_KEEPALIVE_US, &most, sizeof most));
    CHECK(isthmus_connect(a, uri, NULL, 0, ISTHMUS_RO, NULL, UINT64_MAX, NULL));
    CHECK(isthmus_send(a, here, "x", 1, NULL, ISTHMUS_BLOCKING));
    isthmus_event event;
    CHECK(isthmus_wait_event(b, INT64_MAX, &event));
    CHECK(isthmus_return_event(b, &event));
    CHECK(isthmus_destroy_endpoint(a));
    CHECK(isthmus_destroy_endpoint(b));
}

/* Buffers that the system has no memory for are a refusal. */
static void no_memory(void)
{
    struct rlimit before, less;
    REQUIRE(getrlimit(RLIMIT_AS, &before) == 0);
    less = before;
    less.rlim_cur = 8ull << 30;
    isthmus_endpoint_options options = {
        .size = sizeof options, .recv_buffers = 65536, .message_max = 16 << 20};
    isthmus_endpoint made;
    REQUIRE(setrlimit(RLIMIT_AS, &less) == 0);
    REQUIRE(isthmus_create_endpoint(NULL, &options, &made, NULL) == ISTHMUS_MEMORY);
    REQUIRE(setrlimit(RLIMIT_AS, &before) == 0);
}

int main(int count, char **words)
{
    CHECK(isthmus_init(ISTHMUS_ABI_VERSION));
    threads(count > 1 ? atoi(words[1]) : 2);
    sleepers();
    destroyed_under_way();
    churn();
    endless_times();
    if (getenv("HOSTILE_LIMITS_MEMORY"))
        no_memory();
    CHECK(isthmus_finalize());
    return 0;
}
