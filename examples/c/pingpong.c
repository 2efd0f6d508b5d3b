/* Ping-pong: pingpong [uu|ru|ro]            waits for a partner
 *            pingpong LEVEL URI [ROUNDS]    plays with it, and tells the round trip. */
#include "common.h"

static enum isthmus_level level_of(const char *text)
{
    if (strcmp(text, "uu") == 0)
        return ISTHMUS_UU;
    return strcmp(text, "ru") == 0 ? ISTHMUS_RU : ISTHMUS_RO;
}

static void serve(isthmus_endpoint endpoint)
{
    tell_uri(endpoint);
    isthmus_connection partner = accept_one(endpoint);
    for (;;) {
        isthmus_event event;
        CHECK(isthmus_wait_event(endpoint, LIMIT_US, &event));
        int over = event.kind == ISTHMUS_EVENT_DISCONNECT;
        if (event.kind == ISTHMUS_EVENT_RECV) /* straight from the library's buffer */
            CHECK(isthmus_send(endpoint, partner, event.data, event.len, NULL, ISTHMUS_SILENT));
        CHECK(isthmus_return_event(endpoint, &event));
        if (over)
            return;
    }
}

static void play(isthmus_endpoint endpoint, enum isthmus_level level, const char *uri, int rounds)
{
    isthmus_connection partner = connect_to(endpoint, uri, level);
    int lost = 0;
    double start = seconds();
    for (int round = 0; round < rounds; round++) {
        isthmus_event event;
        CHECK(isthmus_send(endpoint, partner, &round, sizeof round, NULL, ISTHMUS_SILENT));
        /* UU may lose a message: then the round is given up. */
        int64_t patience = level == ISTHMUS_UU ? 100000 : LIMIT_US;
        int status = isthmus_wait_event(endpoint, patience, &event);
        if (status == ISTHMUS_AGAIN && level == ISTHMUS_UU) {
            lost++;
            continue;
        }
        CHECK(status);
        REQUIRE(event.kind == ISTHMUS_EVENT_RECV && event.len == sizeof round);
        REQUIRE(level == ISTHMUS_UU || memcmp(event.data, &round, sizeof round) == 0);
        CHECK(isthmus_return_event(endpoint, &event));
    }
    printf("round trip %.2f us, %d of %d lost\n", (seconds() - start) / rounds * 1e6, lost, rounds);
    REQUIRE(lost < rounds);
    CHECK(isthmus_disconnect(endpoint, partner));
}

int main(int argc, char **argv)
{
    isthmus_endpoint endpoint = open_endpoint();
    if (argc > 2)
        play(endpoint, level_of(argv[1]), argv[2], argc > 3 ? atoi(argv[3]) : 1000);
    else
        serve(endpoint);
    CHECK(isthmus_destroy_endpoint(endpoint));
    return 0;
}
