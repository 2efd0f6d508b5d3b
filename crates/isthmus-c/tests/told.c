/* What the library tells: its log, to a function, and counters of peers. */
#include <isthmus.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(wanted)                                                                       \
    do {                                                                                    \
        if (!(wanted)) {                                                                    \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #wanted, isthmus_last_error());  \
            exit(1);                                                                        \
        }                                                                                   \
    } while (0)

#define LENGTH 5000

static int lines, worst = ISTHMUS_DEBUG;
static char word[] = "context";

static void take(int severity, const char *text, void *context)
{
    CHECK(context == word && text[0] != 0 && strchr(text, '\n') == NULL);
    __atomic_add_fetch(&lines, 1, __ATOMIC_SEQ_CST);
    if (severity < worst)
        worst = severity;
}

static isthmus_event expect(isthmus_endpoint endpoint, uint32_t kind)
{
    isthmus_event event;
    CHECK(isthmus_wait_event(endpoint, 60 * 1000 * 1000, &event) == ISTHMUS_SUCCESS);
    if (event.kind != kind || event.status != ISTHMUS_SUCCESS) {
        fprintf(stderr, "event %u, status %d: %s\n", event.kind, event.status, event.text);
        exit(1);
    }
    return event;
}

static isthmus_counters of(isthmus_endpoint endpoint, isthmus_connection connection)
{
    isthmus_counters counters = {.size = sizeof counters};
    CHECK(isthmus_get_counters(endpoint, connection, &counters) == ISTHMUS_SUCCESS);
    return counters;
}

/* Connects a to b, and sends one message. */
static isthmus_connection exchange(isthmus_endpoint a, isthmus_endpoint b, enum isthmus_level level)
{
    char uri[ISTHMUS_URI_MAX], message[LENGTH] = "";
    isthmus_connection there, here;
    CHECK(isthmus_uri(b, uri, sizeof uri) == ISTHMUS_SUCCESS);
    CHECK(isthmus_connect(a, uri, NULL, 0, level, NULL, 0, &there) == ISTHMUS_SUCCESS);
    isthmus_event event = expect(b, ISTHMUS_EVENT_REQUEST);
    CHECK(isthmus_accept(b, &event, NULL, &here) == ISTHMUS_SUCCESS);
    CHECK(isthmus_return_event(b, &event) == ISTHMUS_SUCCESS);
    event = expect(b, ISTHMUS_EVENT_ACCEPT);
    CHECK(isthmus_return_event(b, &event) == ISTHMUS_SUCCESS);
    event = expect(a, ISTHMUS_EVENT_CONNECT);
    CHECK(isthmus_return_event(a, &event) == ISTHMUS_SUCCESS);
    CHECK(isthmus_send(a, there, message, LENGTH, NULL, ISTHMUS_SILENT) == ISTHMUS_SUCCESS);
    event = expect(b, ISTHMUS_EVENT_RECV);
    CHECK(event.len == LENGTH);
    CHECK(isthmus_return_event(b, &event) == ISTHMUS_SUCCESS);
    return there;
}

int main(void)
{
    isthmus_endpoint a, b;
    isthmus_connection all = {0};
    CHECK(isthmus_init(ISTHMUS_ABI_VERSION) == ISTHMUS_SUCCESS);
    CHECK(isthmus_create_endpoint(NULL, NULL, &a, NULL) == ISTHMUS_SUCCESS);
    CHECK(isthmus_create_endpoint(NULL, NULL, &b, NULL) == ISTHMUS_SUCCESS);
    isthmus_connection connection = exchange(a, b, ISTHMUS_RO);
    isthmus_counters peer = of(a, connection), total = of(a, all);
    CHECK(peer.sent_bytes >= LENGTH && peer.sent_bytes < 2 * LENGTH && peer.messages_sent >= 2);
    CHECK(peer.lanes >= 1 && peer.rtt_us > 0 && peer.datagrams_sent == 0);
    CHECK(total.sent_bytes == peer.sent_bytes && total.rtt_us == 0);
    CHECK(of(b, all).received_bytes >= LENGTH && of(b, all).received_bytes <= total.sent_bytes);

    /* On UU the message goes as a datagram, which only arrives if it is not lost: expect() has seen to that. */
    isthmus_connection lossy = exchange(a, b, ISTHMUS_UU);
    isthmus_counters both = of(a, lossy);
    CHECK(both.datagrams_sent == 1 && of(b, all).datagrams_received == 1);
    CHECK(both.sent_bytes >= peer.sent_bytes + LENGTH);

    isthmus_counters wrong = {.size = sizeof wrong - 1};
    CHECK(isthmus_get_counters(a, all, &wrong) == ISTHMUS_INVALID);
    CHECK(isthmus_get_counters(a, all, NULL) == ISTHMUS_INVALID);
    isthmus_connection none = {12345};
    wrong.size = sizeof wrong;
    CHECK(isthmus_get_counters(a, none, &wrong) == ISTHMUS_STALE);

    CHECK(isthmus_set_log(take, word, 0) == ISTHMUS_INVALID);
    CHECK(isthmus_set_log(take, word, ISTHMUS_INFO) == ISTHMUS_SUCCESS);
    isthmus_endpoint c;
    CHECK(isthmus_create_endpoint(NULL, NULL, &c, NULL) == ISTHMUS_SUCCESS);
    exchange(c, b, ISTHMUS_RO);
    CHECK(lines > 0 && worst == ISTHMUS_INFO);
    CHECK(isthmus_set_log(take, word, ISTHMUS_WARN) == ISTHMUS_SUCCESS);
    int before = lines;
    CHECK(isthmus_destroy_endpoint(c) == ISTHMUS_SUCCESS);
    CHECK(isthmus_destroy_endpoint(a) == ISTHMUS_SUCCESS);
    CHECK(lines == before);
    CHECK(isthmus_set_log(NULL, NULL, ISTHMUS_WARN) == ISTHMUS_SUCCESS);
    CHECK(isthmus_finalize() == ISTHMUS_SUCCESS);
    return 0;
}
