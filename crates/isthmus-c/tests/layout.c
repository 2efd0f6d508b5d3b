/* Prints how C sees the header: sizes, offsets and numbers. */
#include <isthmus.h>
#include <stdio.h>

#define SIZE(type) printf("%s %zu\n", #type, sizeof(type))
#define FIELD(type, field) printf("%s.%s %zu\n", #type, #field, offsetof(type, field))
#define NUMBER(name) printf("%s %lld\n", #name, (long long)(name))

int main(void)
{
    SIZE(isthmus_endpoint);
    SIZE(isthmus_connection);
    SIZE(isthmus_region);
    SIZE(isthmus_name);
    SIZE(isthmus_schedule);
    SIZE(isthmus_layout);
    FIELD(isthmus_layout, stripe);
    FIELD(isthmus_layout, count);
    FIELD(isthmus_layout, targets);
    NUMBER(ISTHMUS_TARGETS_MAX);
    NUMBER(ISTHMUS_ANY_WORKER);
    SIZE(isthmus_memory);
    SIZE(isthmus_device);
    FIELD(isthmus_device, name);
    FIELD(isthmus_device, transport);
    FIELD(isthmus_device, interface);
    FIELD(isthmus_device, address);
    FIELD(isthmus_device, why);
    FIELD(isthmus_device, rate_bps);
    FIELD(isthmus_device, as_id);
    FIELD(isthmus_device, subnet);
    FIELD(isthmus_device, priority);
    FIELD(isthmus_device, up);
    FIELD(isthmus_device, routers);
    FIELD(isthmus_device, reserved);
    SIZE(isthmus_endpoint_options);
    FIELD(isthmus_endpoint_options, size);
    FIELD(isthmus_endpoint_options, recv_buffers);
    FIELD(isthmus_endpoint_options, send_buffers);
    FIELD(isthmus_endpoint_options, message_max);
    FIELD(isthmus_endpoint_options, backlog);
    FIELD(isthmus_endpoint_options, send_timeout_us);
    FIELD(isthmus_endpoint_options, keepalive_us);
    FIELD(isthmus_endpoint_options, port);
    FIELD(isthmus_endpoint_options, reserved);
    SIZE(isthmus_event);
    FIELD(isthmus_event, kind);
    FIELD(isthmus_event, status);
    FIELD(isthmus_event, connection);
    FIELD(isthmus_event, context);
    FIELD(isthmus_event, operation);
    FIELD(isthmus_event, data);
    FIELD(isthmus_event, len);
    FIELD(isthmus_event, level);
    FIELD(isthmus_event, reason);
    FIELD(isthmus_event, text);
    FIELD(isthmus_event, token);
    SIZE(isthmus_counters);
    FIELD(isthmus_counters, size);
    FIELD(isthmus_counters, sent_bytes);
    FIELD(isthmus_counters, received_bytes);
    FIELD(isthmus_counters, messages_sent);
    FIELD(isthmus_counters, datagrams_sent);
    FIELD(isthmus_counters, datagrams_received);
    FIELD(isthmus_counters, fragments_resent);
    FIELD(isthmus_counters, lanes);
    FIELD(isthmus_counters, rtt_us);
    NUMBER(ISTHMUS_ABI_VERSION);
    NUMBER(ISTHMUS_SUCCESS);
    NUMBER(ISTHMUS_AGAIN);
    NUMBER(ISTHMUS_INVALID);
    NUMBER(ISTHMUS_STALE);
    NUMBER(ISTHMUS_FULL);
    NUMBER(ISTHMUS_TOO_LONG);
    NUMBER(ISTHMUS_STATE);
    NUMBER(ISTHMUS_LEVEL);
    NUMBER(ISTHMUS_MEMORY);
    NUMBER(ISTHMUS_CONFIGURATION);
    NUMBER(ISTHMUS_DEVICE);
    NUMBER(ISTHMUS_SYSTEM);
    NUMBER(ISTHMUS_UNREACHABLE);
    NUMBER(ISTHMUS_CLOSED);
    NUMBER(ISTHMUS_INTERNAL);
    NUMBER(ISTHMUS_UNINITIALISED);
    NUMBER(ISTHMUS_TIMED_OUT);
    NUMBER(ISTHMUS_REJECTED);
    NUMBER(ISTHMUS_BUSY);
    NUMBER(ISTHMUS_VERSION);
    NUMBER(ISTHMUS_DISCONNECTED);
    NUMBER(ISTHMUS_PEER_GONE);
    NUMBER(ISTHMUS_REMOTE_ACCESS);
    NUMBER(ISTHMUS_PROTOCOL);
    return 0;
}
