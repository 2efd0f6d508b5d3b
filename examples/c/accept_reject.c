/* Accept or reject: accept_reject        lets in who knows the word, three times in all
 *                   accept_reject URI    tries a wrong word, then the right one, twice. */
#include "common.h"

static const char WORD[] = "swordfish";

enum { WRONG_WORD = 401 };

static void guard(isthmus_endpoint endpoint)
{
    tell_uri(endpoint);
    for (int asked = 0; asked < 3; asked++) {
        isthmus_event request = await_event(endpoint, ISTHMUS_EVENT_REQUEST);
        if (request.len != sizeof WORD || memcmp(request.data, WORD, sizeof WORD) != 0) {
            static const char hint[] = "it is a fish";
            CHECK(isthmus_reject(endpoint, &request, WRONG_WORD, hint, sizeof hint));
            /* It is decided. */
            REQUIRE(isthmus_accept(endpoint, &request, NULL, NULL) == ISTHMUS_STALE);
            CHECK(isthmus_return_event(endpoint, &request));
            continue;
        }
        isthmus_connection guest;
        CHECK(isthmus_accept(endpoint, &request, (void *)0x1234, &guest));
        CHECK(isthmus_return_event(endpoint, &request));
        isthmus_event event = await_event(endpoint, ISTHMUS_EVENT_ACCEPT);
        REQUIRE(event.status == ISTHMUS_SUCCESS && event.context == (void *)0x1234);
        CHECK(isthmus_return_event(endpoint, &event));
        event = await_event(endpoint, ISTHMUS_EVENT_DISCONNECT);
        REQUIRE(event.status == ISTHMUS_DISCONNECTED && event.connection.id == guest.id);
        CHECK(isthmus_return_event(endpoint, &event));
        CHECK(isthmus_disconnect(endpoint, guest));
    }
}

static isthmus_event ask(isthmus_endpoint endpoint, const char *uri, const char *word, size_t len)
{
    CHECK(isthmus_connect(endpoint, uri, word, len, ISTHMUS_RO, (void *)0x77, 30 * 1000000, NULL));
    isthmus_event event = await_event(endpoint, ISTHMUS_EVENT_CONNECT);
    REQUIRE(event.context == (void *)0x77);
    return event;
}

static void visit(isthmus_endpoint endpoint, const char *uri)
{
    isthmus_event event = ask(endpoint, uri, "shibboleth", 11);
    REQUIRE(event.status == ISTHMUS_REJECTED && event.reason == WRONG_WORD);
    printf("turned down: %s\n", (const char *)event.data);
    CHECK(isthmus_return_event(endpoint, &event));
    REQUIRE(isthmus_return_event(endpoint, &event) == ISTHMUS_STALE);
    for (int i = 0; i < 2; i++) {
        event = ask(endpoint, uri, WORD, sizeof WORD);
        REQUIRE(event.status == ISTHMUS_SUCCESS);
        isthmus_connection connection = event.connection;
        CHECK(isthmus_return_event(endpoint, &event));
        CHECK(isthmus_disconnect(endpoint, connection));
        REQUIRE(isthmus_disconnect(endpoint, connection) == ISTHMUS_STALE);
        REQUIRE(isthmus_send(endpoint, connection, "", 0, NULL, 0) == ISTHMUS_STALE);
    }
}

int main(int argc, char **argv)
{
    isthmus_endpoint endpoint = open_endpoint();
    if (argc > 1)
        visit(endpoint, argv[1]);
    else
        guard(endpoint);
    CHECK(isthmus_destroy_endpoint(endpoint));
    REQUIRE(isthmus_destroy_endpoint(endpoint) == ISTHMUS_STALE);
    return 0;
}
