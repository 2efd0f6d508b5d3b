/* Stream: stream        receives messages, and checks that they are whole and in order
 *         stream URI    sends them without copies: silent ones, and one in sixteen that is
 *                       told, which by the order of RO tells the fifteen before it. */
#include "common.h"

enum { LENGTH = 60000, COUNT = 1024, SLOTS = 64, TOLD = 16 };

static void take(isthmus_endpoint endpoint)
{
    tell_uri(endpoint);
    accept_one(endpoint);
    for (unsigned number = 0; number < COUNT; number++) {
        isthmus_event event = await_event(endpoint, ISTHMUS_EVENT_RECV);
        REQUIRE(event.len == LENGTH && is_filled(event.data, event.len, number));
        CHECK(isthmus_return_event(endpoint, &event));
    }
    isthmus_event over = await_event(endpoint, ISTHMUS_EVENT_DISCONNECT);
    CHECK(isthmus_return_event(endpoint, &over));
}

static void give(isthmus_endpoint endpoint, const char *uri)
{
    static unsigned char slots[SLOTS][LENGTH];
    isthmus_connection sink = connect_to(endpoint, uri, ISTHMUS_RO);
    unsigned told = 0; /* all before this have arrived, and their slots are ours */
    double start = seconds();
    for (unsigned number = 0; number < COUNT; number++) {
        while (number - told >= SLOTS) {
            isthmus_event event = await_event(endpoint, ISTHMUS_EVENT_SEND);
            REQUIRE(event.status == ISTHMUS_SUCCESS);
            told = (unsigned)(uintptr_t)event.operation + 1;
            CHECK(isthmus_return_event(endpoint, &event));
        }
        fill(slots[number % SLOTS], LENGTH, number);
        uint32_t silent = number % TOLD == TOLD - 1 ? 0 : ISTHMUS_SILENT;
        CHECK(isthmus_send(endpoint, sink, slots[number % SLOTS], LENGTH, (void *)(uintptr_t)number,
                           ISTHMUS_NO_COPY | silent));
    }
    while (told < COUNT) {
        isthmus_event event = await_event(endpoint, ISTHMUS_EVENT_SEND);
        told = (unsigned)(uintptr_t)event.operation + 1;
        CHECK(isthmus_return_event(endpoint, &event));
    }
    printf("%.0f MB/s, filling and checking included\n", (double)COUNT * LENGTH / (seconds() - start) / 1e6);
    CHECK(isthmus_disconnect(endpoint, sink));
}

int main(int argc, char **argv)
{
    isthmus_endpoint endpoint = open_endpoint();
    if (argc > 1)
        give(endpoint, argv[1]);
    else
        take(endpoint);
    CHECK(isthmus_destroy_endpoint(endpoint));
    return 0;
}
