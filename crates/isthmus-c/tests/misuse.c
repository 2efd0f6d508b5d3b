/* What a program may do wrong: each is a refusal with a text, and nothing else happens. */
#include "../../../examples/c/common.h"

#define REFUSED(status, call)                                                                    \
    do {                                                                                         \
        int got_ = (call);                                                                       \
        if (got_ != (status)) {                                                                  \
            fprintf(stderr, "%s:%d: %s is %d (%s) instead of %s\n", __FILE__, __LINE__, #call,   \
                    got_, isthmus_last_error(), #status);                                        \
            exit(1);                                                                             \
        }                                                                                        \
        if (strlen(isthmus_last_error()) == 0) {                                                 \
            fprintf(stderr, "%s:%d: no text\n", __FILE__, __LINE__);                             \
            exit(1);                                                                             \
        }                                                                                        \
    } while (0)

static void before_init(void)
{
    isthmus_endpoint endpoint = {0};
    size_t count;
    REFUSED(ISTHMUS_UNINITIALISED, isthmus_devices(NULL, 0, &count));
    REFUSED(ISTHMUS_UNINITIALISED, isthmus_create_endpoint(NULL, NULL, &endpoint, NULL));
    REFUSED(ISTHMUS_UNINITIALISED, isthmus_init(ISTHMUS_ABI_VERSION + 1));
    REFUSED(ISTHMUS_STALE, isthmus_arm(endpoint));
    CHECK(isthmus_init(ISTHMUS_ABI_VERSION));
    CHECK(isthmus_init(ISTHMUS_ABI_VERSION));
}

static void schedules(void)
{
    static isthmus_layout layout, none;
    isthmus_schedule schedule, unknown = {0};
    uint64_t offset = 0, len = 0;
    REFUSED(ISTHMUS_INVALID, isthmus_layout_of(NULL, NULL, &layout));
    REFUSED(ISTHMUS_INVALID, isthmus_layout_of("/", NULL, NULL));
    REFUSED(ISTHMUS_INVALID, isthmus_layout_of("/", "/no/such/description", &layout));
    CHECK(isthmus_layout_of("/no/such/file", NULL, &none));
    REQUIRE(none.stripe == 0 && none.count == 0);
    CHECK(isthmus_layout_of("/no/such/file-\xff", NULL, &none)); /* a name need not be UTF-8 */
    REFUSED(ISTHMUS_INVALID, isthmus_schedule_create(NULL, 100, &schedule));
    REFUSED(ISTHMUS_INVALID, isthmus_schedule_create(&none, 100, &schedule));
    layout = (isthmus_layout){.stripe = UINT64_MAX, .count = 2, .targets = {5, 6}};
    REFUSED(ISTHMUS_INVALID, isthmus_schedule_create(&layout, 100, &schedule));
    layout.stripe = 100;
    layout.count = ISTHMUS_TARGETS_MAX + 1;
    REFUSED(ISTHMUS_INVALID, isthmus_schedule_create(&layout, 100, &schedule));
    layout.count = 2;
    REFUSED(ISTHMUS_INVALID, isthmus_schedule_create(&layout, 0, &schedule));
    REFUSED(ISTHMUS_INVALID, isthmus_schedule_create(&layout, 100, NULL));
    CHECK(isthmus_schedule_create(&layout, 70, &schedule));
    REFUSED(ISTHMUS_INVALID, isthmus_schedule_add(schedule, ISTHMUS_ANY_WORKER, 10, 0));
    REFUSED(ISTHMUS_INVALID, isthmus_schedule_add(schedule, 0, UINT64_MAX, 2));
    CHECK(isthmus_schedule_add(schedule, ISTHMUS_ANY_WORKER, 0, 150));
    REFUSED(ISTHMUS_INVALID, isthmus_schedule_take(schedule, 0, NULL, &len));
    REFUSED(ISTHMUS_INVALID, isthmus_schedule_take(schedule, 0, &offset, NULL));
    CHECK(isthmus_schedule_take(schedule, 0, &offset, &len));
    REQUIRE(offset == 0 && len == 70);
    CHECK(isthmus_schedule_take(schedule, 0, &offset, &len));
    REQUIRE(offset == 100 && len == 50);
    CHECK(isthmus_schedule_add(schedule, 3, 100, 200));
    CHECK(isthmus_schedule_take(schedule, 0, &offset, &len));
    REQUIRE(offset == 70 && len == 30);
    REQUIRE(isthmus_schedule_take(schedule, 0, &offset, &len) == ISTHMUS_AGAIN);
    CHECK(isthmus_schedule_take(schedule, 3, &offset, &len));
    REQUIRE(offset == 100 && len == 200);
    for (int i = 0; i < 9; i++)
        CHECK(isthmus_schedule_done(schedule, 100));
    CHECK(isthmus_schedule_destroy(schedule));
    REFUSED(ISTHMUS_STALE, isthmus_schedule_destroy(schedule));
    REFUSED(ISTHMUS_STALE, isthmus_schedule_take(schedule, 0, &offset, &len));
    REFUSED(ISTHMUS_STALE, isthmus_schedule_add(unknown, 0, 0, 1));
    REFUSED(ISTHMUS_STALE, isthmus_schedule_done(unknown, 0));
}

static void endpoints(void)
{
    isthmus_endpoint endpoint;
    isthmus_endpoint_options options = {.size = 3};
    isthmus_device device;
    size_t count = 0;
    CHECK(isthmus_devices(&device, 1, &count));
    REQUIRE(count == 1 && device.up == 1 && strcmp(device.address, "127.0.0.1") == 0);
    REFUSED(ISTHMUS_INVALID, isthmus_devices(NULL, 1, &count));
    REFUSED(ISTHMUS_INVALID, isthmus_devices(&device, 1, NULL));
    REFUSED(ISTHMUS_DEVICE, isthmus_create_endpoint("no such device", NULL, &endpoint, NULL));
    REFUSED(ISTHMUS_DEVICE, isthmus_create_endpoint("default,other", NULL, &endpoint, NULL));
    REFUSED(ISTHMUS_DEVICE, isthmus_create_endpoint("", NULL, &endpoint, NULL));
    REFUSED(ISTHMUS_INVALID, isthmus_create_endpoint(NULL, NULL, NULL, NULL));
    REFUSED(ISTHMUS_INVALID, isthmus_create_endpoint(NULL, &options, &endpoint, NULL));
    options = (isthmus_endpoint_options){.size = sizeof options, .message_max = 1};
    REFUSED(ISTHMUS_INVALID, isthmus_create_endpoint(NULL, &options, &endpoint, NULL));
    options = (isthmus_endpoint_options){.size = sizeof options, .port = 70000};
    REFUSED(ISTHMUS_INVALID, isthmus_create_endpoint(NULL, &options, &endpoint, NULL));
}

static void connections(isthmus_endpoint a, isthmus_endpoint b, const char *uri)
{
    char big[1025] = {0}, small[4];
    isthmus_event event, copy;
    isthmus_connection there, here;
    REFUSED(ISTHMUS_INVALID, isthmus_connect(a, NULL, NULL, 0, ISTHMUS_RO, NULL, 0, NULL));
    REFUSED(ISTHMUS_INVALID, isthmus_connect(a, "tcp://x", NULL, 0, ISTHMUS_RO, NULL, 0, NULL));
    REFUSED(ISTHMUS_INVALID, isthmus_connect(a, uri, NULL, 0, (enum isthmus_level)9, NULL, 0, NULL));
    REFUSED(ISTHMUS_INVALID, isthmus_connect(a, uri, NULL, 1, ISTHMUS_RO, NULL, 0, NULL));
    REFUSED(ISTHMUS_TOO_LONG, isthmus_connect(a, uri, big, sizeof big, ISTHMUS_RO, NULL, 0, NULL));
    REFUSED(ISTHMUS_UNREACHABLE,
            isthmus_connect(a, "isthmus://9.9/127.0.0.1:1", NULL, 0, ISTHMUS_RO, NULL, 0, NULL));
    REFUSED(ISTHMUS_TOO_LONG, isthmus_uri(a, small, sizeof small));
    REFUSED(ISTHMUS_INVALID, isthmus_uri(a, NULL, 100));

    CHECK(isthmus_connect(a, uri, "hi", 2, ISTHMUS_RU, NULL, 0, &there));
    event = await_event(b, ISTHMUS_EVENT_REQUEST);
    REFUSED(ISTHMUS_STALE, isthmus_accept(a, &event, NULL, NULL));
    REFUSED(ISTHMUS_STALE, isthmus_return_event(a, &event));
    REFUSED(ISTHMUS_TOO_LONG, isthmus_reject(b, &event, 0, big, sizeof big));
    REFUSED(ISTHMUS_INVALID, isthmus_accept(b, NULL, NULL, NULL));
    CHECK(isthmus_accept(b, &event, NULL, &here));
    /* Decided, its payload is still there until it is returned. */
    REQUIRE(event.len == 2 && memcmp(event.data, "hi", 2) == 0);
    REFUSED(ISTHMUS_STALE, isthmus_reject(b, &event, 0, NULL, 0));
    copy = event;
    CHECK(isthmus_return_event(b, &event));
    REFUSED(ISTHMUS_STALE, isthmus_return_event(b, &copy));
    event = await_event(a, ISTHMUS_EVENT_CONNECT);
    CHECK(isthmus_return_event(a, &event));
    event = await_event(b, ISTHMUS_EVENT_ACCEPT);
    REFUSED(ISTHMUS_STALE, isthmus_accept(b, &event, NULL, NULL));
    CHECK(isthmus_return_event(b, &event));

    char device[64];
    size_t len = sizeof device;
    CHECK(isthmus_get_option(a, there, ISTHMUS_OPT_CONN_DEVICE, device, &len));
    REQUIRE(strcmp(device, "default") == 0 && len == sizeof "default");
    REFUSED(ISTHMUS_INVALID, isthmus_set_option(a, there, ISTHMUS_OPT_CONN_DEVICE, device, len));
    REFUSED(ISTHMUS_STALE, isthmus_get_option(b, there, ISTHMUS_OPT_CONN_DEVICE, device, &len));

    REFUSED(ISTHMUS_INVALID, isthmus_send(a, there, NULL, 1, NULL, 0));
    REFUSED(ISTHMUS_INVALID, isthmus_send(a, there, "x", 1, NULL, ISTHMUS_FENCE));
    REFUSED(ISTHMUS_INVALID, isthmus_send(a, there, "x", 1, NULL, ISTHMUS_NO_COPY | ISTHMUS_SILENT));
    REFUSED(ISTHMUS_INVALID, isthmus_send(a, there, "x", 1, NULL, ISTHMUS_EAGER | ISTHMUS_RENDEZVOUS));
    REFUSED(ISTHMUS_INVALID, isthmus_send(a, there, "x", 1, NULL, ISTHMUS_MIXED | ISTHMUS_EAGER));
    REFUSED(ISTHMUS_INVALID, isthmus_send(a, there, "x", 1, NULL, ISTHMUS_MIXED << 1));
    REFUSED(ISTHMUS_INVALID, isthmus_sendv(a, there, NULL, 2, NULL, 0));
    REFUSED(ISTHMUS_INVALID, isthmus_send(a, there, big, SIZE_MAX, NULL, 0));
    REFUSED(ISTHMUS_STALE, isthmus_send(b, there, "x", 1, NULL, 0));
    REFUSED(ISTHMUS_STALE, isthmus_send(a, here, "x", 1, NULL, 0));
    REFUSED(ISTHMUS_INVALID, isthmus_get_event(a, NULL));
    REQUIRE(isthmus_get_event(a, &event) == ISTHMUS_AGAIN);
    CHECK(isthmus_send(a, there, "x", 1, NULL, ISTHMUS_BLOCKING));
    event = await_event(b, ISTHMUS_EVENT_RECV);
    CHECK(isthmus_return_event(b, &event));
}

static void memory(isthmus_endpoint a, isthmus_endpoint b, const char *uri)
{
    char bytes[64] = {0};
    isthmus_region region, other;
    isthmus_memory handle, wrong = {{0}};
    isthmus_connection there;
    REFUSED(ISTHMUS_INVALID, isthmus_register(a, bytes, sizeof bytes, 4, &region, NULL));
    REFUSED(ISTHMUS_INVALID, isthmus_register(a, bytes, sizeof bytes, 0, NULL, NULL));
    REFUSED(ISTHMUS_MEMORY, isthmus_register(a, NULL, 1, 0, &region, NULL));
    CHECK(isthmus_register(a, bytes, sizeof bytes, 0, &region, NULL));
    CHECK(isthmus_register(b, bytes, sizeof bytes, ISTHMUS_REMOTE_READ, &other, &handle));
    CHECK(isthmus_connect(a, uri, NULL, 0, ISTHMUS_RU, NULL, 0, &there));
    REFUSED(ISTHMUS_STATE, isthmus_write(a, there, region, 0, &handle, 0, 1, NULL, 0, NULL, 0));
    isthmus_event event = await_event(b, ISTHMUS_EVENT_REQUEST);
    CHECK(isthmus_accept(b, &event, NULL, NULL));
    CHECK(isthmus_return_event(b, &event));
    event = await_event(a, ISTHMUS_EVENT_CONNECT);
    CHECK(isthmus_return_event(a, &event));
    REFUSED(ISTHMUS_INVALID, isthmus_write(a, there, region, 0, NULL, 0, 1, NULL, 0, NULL, 0));
    REFUSED(ISTHMUS_INVALID, isthmus_write(a, there, region, 0, &wrong, 0, 1, NULL, 0, NULL, 0));
    REFUSED(ISTHMUS_STALE, isthmus_write(a, there, other, 0, &handle, 0, 1, NULL, 0, NULL, 0));
    REFUSED(ISTHMUS_MEMORY, isthmus_write(a, there, region, 60, &handle, 0, 5, NULL, 0, NULL, 0));
    REFUSED(ISTHMUS_REMOTE_ACCESS,
            isthmus_write(a, there, region, 0, &handle, 0, 1, NULL, 0, NULL, ISTHMUS_BLOCKING));
    CHECK(isthmus_read(a, there, region, 0, &handle, 0, 64, NULL, 0, NULL, ISTHMUS_BLOCKING));
    REFUSED(ISTHMUS_STALE, isthmus_deregister(a, other));
    CHECK(isthmus_deregister(b, other));
    REFUSED(ISTHMUS_STALE, isthmus_deregister(b, other));
    REFUSED(ISTHMUS_REMOTE_ACCESS,
            isthmus_read(a, there, region, 0, &handle, 0, 1, NULL, 0, NULL, ISTHMUS_BLOCKING));
    CHECK(isthmus_deregister(a, region));
}

static void options(isthmus_endpoint a)
{
    isthmus_connection none = {0};
    char uri[128], protocols[512];
    uint32_t count;
    uint64_t time = 5000;
    size_t len = sizeof uri;
    CHECK(isthmus_get_option(a, none, ISTHMUS_OPT_URI, uri, &len));
    REQUIRE(len == strlen(uri) + 1);
    len = sizeof count;
    CHECK(isthmus_get_option(a, none, ISTHMUS_OPT_RECV_BUFFERS, &count, &len));
    REQUIRE(count == 128 && len == sizeof count);
    count = 200;
    CHECK(isthmus_set_option(a, none, ISTHMUS_OPT_RECV_BUFFERS, &count, sizeof count));
    count = 0;
    REFUSED(ISTHMUS_INVALID, isthmus_set_option(a, none, ISTHMUS_OPT_RECV_BUFFERS, &count, sizeof count));
    CHECK(isthmus_get_option(a, none, ISTHMUS_OPT_RECV_BUFFERS, &count, &len));
    REQUIRE(count == 200);
    CHECK(isthmus_set_option(a, none, ISTHMUS_OPT_SEND_TIMEOUT_US, &time, sizeof time));
    REFUSED(ISTHMUS_INVALID, isthmus_set_option(a, none, ISTHMUS_OPT_SEND_TIMEOUT_US, &time, 4));
    REFUSED(ISTHMUS_INVALID, isthmus_set_option(a, none, ISTHMUS_OPT_URI, uri, sizeof uri));
    REFUSED(ISTHMUS_STALE,
            isthmus_set_option(a, none, ISTHMUS_OPT_CONN_KEEPALIVE_US, &time, sizeof time));
    /* A text with its end, or without; what is no text, or names no protocol, changes nothing. */
    CHECK(isthmus_set_option(a, none, ISTHMUS_OPT_UDP_PROTOCOLS, "cubic", 5));
    CHECK(isthmus_set_option(a, none, ISTHMUS_OPT_UDP_PROTOCOLS, "reno+once", sizeof "reno+once"));
    REFUSED(ISTHMUS_INVALID, isthmus_set_option(a, none, ISTHMUS_OPT_UDP_PROTOCOLS, "vegas", 5));
    REFUSED(ISTHMUS_INVALID, isthmus_set_option(a, none, ISTHMUS_OPT_UDP_PROTOCOLS, "\xff\xfe", 2));
    REFUSED(ISTHMUS_INVALID, isthmus_set_option(a, none, ISTHMUS_OPT_UDP_PROTOCOLS, NULL, 2));
    len = sizeof uri;
    CHECK(isthmus_get_option(a, none, ISTHMUS_OPT_UDP_PROTOCOLS, uri, &len));
    REQUIRE(strcmp(uri, "reno+adaptive+once+search") == 0 && len == strlen(uri) + 1);
    len = 5;
    REFUSED(ISTHMUS_TOO_LONG, isthmus_get_option(a, none, ISTHMUS_OPT_UDP_PROTOCOLS, uri, &len));
    REFUSED(ISTHMUS_STALE, isthmus_set_option(a, none, ISTHMUS_OPT_CONN_UDP_PROTOCOLS, "cubic", 5));
    CHECK(isthmus_set_option(a, none, ISTHMUS_OPT_TRANSFER, "ro=mixed, eager", 15));
    REFUSED(ISTHMUS_INVALID, isthmus_set_option(a, none, ISTHMUS_OPT_TRANSFER, "whole", 5));
    len = sizeof uri;
    CHECK(isthmus_get_option(a, none, ISTHMUS_OPT_TRANSFER, uri, &len));
    REQUIRE(strcmp(uri, "RO=mixed, eager") == 0);
    REFUSED(ISTHMUS_STALE, isthmus_set_option(a, none, ISTHMUS_OPT_CONN_TRANSFER, "mixed", 5));
    CHECK(isthmus_set_option(a, none, ISTHMUS_OPT_PROTOCOLS, "RO: eager, tcp: bbr", 19));
    REFUSED(ISTHMUS_INVALID, isthmus_set_option(a, none, ISTHMUS_OPT_PROTOCOLS, "RO: unordered", 13));
    REQUIRE(strstr(isthmus_last_error(), "connect by RU") != NULL);
    len = sizeof protocols;
    CHECK(isthmus_get_option(a, none, ISTHMUS_OPT_PROTOCOLS, protocols, &len));
    REQUIRE(strstr(protocols, "RO: acknowledged+ordered+eager, ") != NULL);
    CHECK(isthmus_set_option(a, none, ISTHMUS_OPT_PROTOCOLS, protocols, len));
    REFUSED(ISTHMUS_STALE, isthmus_set_option(a, none, ISTHMUS_OPT_CONN_PROTOCOLS, "tcp: bbr", 8));
    REFUSED(ISTHMUS_INVALID, isthmus_get_option(a, none, (enum isthmus_option)99, uri, &len));
    len = 2;
    REFUSED(ISTHMUS_TOO_LONG, isthmus_get_option(a, none, ISTHMUS_OPT_KEEPALIVE_US, &time, &len));
    REFUSED(ISTHMUS_INVALID, isthmus_get_option(a, none, ISTHMUS_OPT_KEEPALIVE_US, &time, NULL));
}

int main(void)
{
    isthmus_endpoint a, b;
    char uri[128];
    before_init();
    schedules();
    endpoints();
    CHECK(isthmus_create_endpoint(NULL, NULL, &a, NULL));
    CHECK(isthmus_create_endpoint("default", NULL, &b, NULL));
    CHECK(isthmus_uri(b, uri, sizeof uri));
    connections(a, b, uri);
    memory(a, b, uri);
    options(a);
    CHECK(isthmus_destroy_endpoint(a));
    REFUSED(ISTHMUS_STALE, isthmus_destroy_endpoint(a));
    REFUSED(ISTHMUS_STALE, isthmus_uri(a, uri, sizeof uri));
    CHECK(isthmus_finalize());
    REFUSED(ISTHMUS_STALE, isthmus_arm(b));
    for (int status = -1; status < 30; status++)
        REQUIRE(strlen(isthmus_strerror(status)) > 0);
    return 0;
}
