/* What the examples share: errors end the program with a text; events are waited for. */
#ifndef EXAMPLES_COMMON_H
#define EXAMPLES_COMMON_H

#include <isthmus.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* How long an example waits for what must come. */
#define LIMIT_US (60 * 1000000LL)

#define CHECK(call)                                                                              \
    do {                                                                                         \
        int status_ = (call);                                                                    \
        if (status_ != ISTHMUS_SUCCESS) {                                                        \
            fprintf(stderr, "%s:%d: %s: %s (%s)\n", __FILE__, __LINE__, #call,                   \
                    isthmus_strerror(status_), isthmus_last_error());                            \
            exit(1);                                                                             \
        }                                                                                        \
    } while (0)

#define REQUIRE(condition)                                                                       \
    do {                                                                                         \
        if (!(condition)) {                                                                      \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);              \
            exit(1);                                                                             \
        }                                                                                        \
    } while (0)

/* Opens an endpoint on the devices that the environment names as EXAMPLE_DEVICE, else on the
 * best one. */
static inline isthmus_endpoint open_endpoint(void)
{
    isthmus_endpoint endpoint;
    CHECK(isthmus_init(ISTHMUS_ABI_VERSION));
    CHECK(isthmus_create_endpoint(getenv("EXAMPLE_DEVICE"), NULL, &endpoint, NULL));
    return endpoint;
}

/* Tells where we are, for the other side's command line. */
static inline void tell_uri(isthmus_endpoint endpoint)
{
    char uri[ISTHMUS_URI_MAX];
    CHECK(isthmus_uri(endpoint, uri, sizeof uri));
    printf("%s\n", uri);
    fflush(stdout);
}

/* The next event of this kind; ends of operations on the way must be good. */
static inline isthmus_event await_event(isthmus_endpoint endpoint, uint32_t kind)
{
    for (;;) {
        isthmus_event event;
        CHECK(isthmus_wait_event(endpoint, LIMIT_US, &event));
        if (event.kind == kind)
            return event;
        if (event.kind != ISTHMUS_EVENT_SEND || event.status != ISTHMUS_SUCCESS) {
            fprintf(stderr, "event %u with status %s (%s) instead of event %u\n", event.kind,
                    isthmus_strerror(event.status), event.text, kind);
            exit(1);
        }
        CHECK(isthmus_return_event(endpoint, &event));
    }
}

/* Asks for a connection, and waits until it is established. */
static inline isthmus_connection connect_to(isthmus_endpoint endpoint, const char *uri,
                                            enum isthmus_level level)
{
    isthmus_connection connection;
    CHECK(isthmus_connect(endpoint, uri, NULL, 0, level, NULL, 30 * 1000000, &connection));
    isthmus_event event = await_event(endpoint, ISTHMUS_EVENT_CONNECT);
    if (event.status != ISTHMUS_SUCCESS) {
        fprintf(stderr, "no connection: %s\n", event.text);
        exit(1);
    }
    CHECK(isthmus_return_event(endpoint, &event));
    return connection;
}

/* Waits for somebody to connect. */
static inline isthmus_connection accept_one(isthmus_endpoint endpoint)
{
    isthmus_connection connection;
    isthmus_event request = await_event(endpoint, ISTHMUS_EVENT_REQUEST);
    CHECK(isthmus_accept(endpoint, &request, NULL, &connection));
    CHECK(isthmus_return_event(endpoint, &request));
    isthmus_event event = await_event(endpoint, ISTHMUS_EVENT_ACCEPT);
    REQUIRE(event.status == ISTHMUS_SUCCESS);
    CHECK(isthmus_return_event(endpoint, &event));
    return connection;
}

/* The status of the next send, write or read that ends. */
static inline int await_send(isthmus_endpoint endpoint)
{
    isthmus_event event = await_event(endpoint, ISTHMUS_EVENT_SEND);
    int status = event.status;
    CHECK(isthmus_return_event(endpoint, &event));
    return status;
}

static inline double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Bytes that tell one place and round from another. */
static inline void fill(unsigned char *bytes, size_t len, unsigned seed)
{
    for (size_t i = 0; i < len; i++)
        bytes[i] = (unsigned char)(i * 31 + (i >> 8) * 7 + seed);
}

static inline int is_filled(const unsigned char *bytes, size_t len, unsigned seed)
{
    for (size_t i = 0; i < len; i++)
        if (bytes[i] != (unsigned char)(i * 31 + (i >> 8) * 7 + seed))
            return 0;
    return 1;
}

#endif
