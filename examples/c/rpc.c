/* Remote calls: rpc        serves until its last client has left
 *               rpc URI    has many calls under way at once; answers come as they are ready. */
#include "common.h"

enum op { ADD, REVERSE };

struct call {
    uint32_t id;
    uint32_t op;
    int64_t a, b;
    char text[32];
};

struct answer {
    uint32_t id;
    int64_t sum;
    char text[32];
};

static struct answer work(const struct call *call)
{
    struct answer answer = {.id = call->id};
    if (call->op == ADD)
        answer.sum = call->a + call->b;
    size_t len = strnlen(call->text, sizeof call->text - 1);
    for (size_t i = 0; i < len && call->op == REVERSE; i++)
        answer.text[i] = call->text[len - 1 - i];
    return answer;
}

static void serve(isthmus_endpoint endpoint)
{
    tell_uri(endpoint);
    int clients = 0, came = 0;
    while (!came || clients > 0) {
        isthmus_event event;
        isthmus_connection client;
        CHECK(isthmus_wait_event(endpoint, LIMIT_US, &event));
        switch (event.kind) {
        case ISTHMUS_EVENT_REQUEST:
            CHECK(isthmus_accept(endpoint, &event, NULL, &client));
            clients++;
            came = 1;
            break;
        case ISTHMUS_EVENT_RECV:
            if (event.len == sizeof(struct call)) {
                struct answer answer = work(event.data);
                /* A client that leaves meanwhile wants no answer. */
                isthmus_send(endpoint, event.connection, &answer, sizeof answer, NULL, ISTHMUS_SILENT);
            }
            break;
        case ISTHMUS_EVENT_DISCONNECT:
            CHECK(isthmus_disconnect(endpoint, event.connection));
            clients--;
            break;
        default:
            break;
        }
        CHECK(isthmus_return_event(endpoint, &event));
    }
}

static void call(isthmus_endpoint endpoint, const char *uri)
{
    enum { CALLS = 2000, DEPTH = 32 };
    static char answered[CALLS];
    isthmus_connection server = connect_to(endpoint, uri, ISTHMUS_RU);
    uint32_t asked = 0, done = 0;
    while (done < CALLS) {
        if (asked < CALLS && asked - done < DEPTH) {
            struct call next = {.id = asked, .op = asked % 2 ? REVERSE : ADD, .a = asked, .b = 7};
            snprintf(next.text, sizeof next.text, "call %u", asked);
            CHECK(isthmus_send(endpoint, server, &next, sizeof next, NULL, ISTHMUS_SILENT));
            asked++;
            continue;
        }
        isthmus_event event = await_event(endpoint, ISTHMUS_EVENT_RECV);
        const struct answer *answer = event.data;
        REQUIRE(event.len == sizeof *answer && answer->id < CALLS && !answered[answer->id]);
        answered[answer->id] = 1;
        if (answer->id % 2 == 0)
            REQUIRE(answer->sum == (int64_t)answer->id + 7);
        else
            REQUIRE(strstr(answer->text, " llac") != NULL);
        CHECK(isthmus_return_event(endpoint, &event));
        done++;
    }
    printf("%d calls answered\n", CALLS);
    CHECK(isthmus_disconnect(endpoint, server));
}

int main(int argc, char **argv)
{
    isthmus_endpoint endpoint = open_endpoint();
    if (argc > 1)
        call(endpoint, argv[1]);
    else
        serve(endpoint);
    CHECK(isthmus_destroy_endpoint(endpoint));
    return 0;
}
