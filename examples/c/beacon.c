/* Beacon: beacon        watches: tells what it heard when the beacon is gone
 *         beacon URI    sends numbered beats, unreliably: the newest is what counts, and none
 *                       is sent again. */
#include "common.h"

enum { BEATS = 500 };

static void watch(isthmus_endpoint endpoint)
{
    tell_uri(endpoint);
    accept_one(endpoint);
    int heard = 0, newest = -1;
    for (int over = 0; !over;) {
        isthmus_event event;
        CHECK(isthmus_wait_event(endpoint, LIMIT_US, &event));
        over = event.kind == ISTHMUS_EVENT_DISCONNECT;
        if (event.kind == ISTHMUS_EVENT_RECV) {
            int beat;
            REQUIRE(event.len == sizeof beat);
            memcpy(&beat, event.data, sizeof beat);
            REQUIRE(beat >= 0 && beat < BEATS);
            newest = beat > newest ? beat : newest;
            heard++;
        }
        CHECK(isthmus_return_event(endpoint, &event));
    }
    printf("heard %d beats, the newest number %d of %d\n", heard, newest, BEATS);
    REQUIRE(heard > 0);
}

static void shine(isthmus_endpoint endpoint, const char *uri)
{
    isthmus_connection watcher = connect_to(endpoint, uri, ISTHMUS_UU);
    struct timespec pause = {.tv_nsec = 1000000};
    for (int beat = 0; beat < BEATS; beat++) {
        CHECK(isthmus_send(endpoint, watcher, &beat, sizeof beat, NULL, ISTHMUS_SILENT));
        nanosleep(&pause, NULL);
    }
    CHECK(isthmus_disconnect(endpoint, watcher));
}

int main(int argc, char **argv)
{
    isthmus_endpoint endpoint = open_endpoint();
    if (argc > 1)
        shine(endpoint, argv[1]);
    else
        watch(endpoint);
    CHECK(isthmus_destroy_endpoint(endpoint));
    return 0;
}
