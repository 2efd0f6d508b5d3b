/*
 * isthmus.h: devices, endpoints, connections, events, messages and remote memory.
 *
 * For programs that want more than MPI gives: persistent services that peers come to and
 * leave, a service level chosen for each connection, one queue of events however many
 * peers there are. Link with -listhmus (pkg-config: isthmus).
 *
 * Every call may be made from any thread and, where nothing else is said, returns
 * ISTHMUS_SUCCESS or the code of a refusal; then nothing has happened, and
 * isthmus_last_error() has the whole text. What was begun and did not succeed is told by
 * the status of its event. Times are in microseconds, lengths in bytes.
 *
 * Handles are names, not pointers. A call with the name of what has ended, or of another
 * endpoint, returns ISTHMUS_STALE and does nothing else.
 */
#ifndef ISTHMUS_H
#define ISTHMUS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of what compiled programs rely on; the library's soname ends in it. */
#define ISTHMUS_ABI_VERSION 0

/* Room for the address of any endpoint, with its end. */
#define ISTHMUS_URI_MAX 2048

/* What calls return, and the status of events. Numbers never change their meaning. */
enum isthmus_status {
    ISTHMUS_SUCCESS = 0,
    /* There is no event now; or events are waiting, and arming is refused. */
    ISTHMUS_AGAIN = 1,
    /* An argument is null, out of its range, or makes no sense with the others. */
    ISTHMUS_INVALID = 2,
    /* The handle or event has ended, was returned, or is of another endpoint. */
    ISTHMUS_STALE = 3,
    /* As many operations are under way as may be: take events, then try again. */
    ISTHMUS_FULL = 4,
    /* Longer than the connection or the call takes. */
    ISTHMUS_TOO_LONG = 5,
    /* The connection is not in the state that the call needs. */
    ISTHMUS_STATE = 6,
    /* UU connections have no remote memory. */
    ISTHMUS_LEVEL = 7,
    /* The memory is of another endpoint, too short, or in use. */
    ISTHMUS_MEMORY = 8,
    /* The configuration is wrong. */
    ISTHMUS_CONFIGURATION = 9,
    /* No such device, or it is down. */
    ISTHMUS_DEVICE = 10,
    /* The operating system refused something. */
    ISTHMUS_SYSTEM = 11,
    /* No route leads there, or no way was found in time. */
    ISTHMUS_UNREACHABLE = 12,
    /* The endpoint is closed, or was opened before this process forked. */
    ISTHMUS_CLOSED = 13,
    /* The library has failed inside; the endpoint is unusable. Please report it. */
    ISTHMUS_INTERNAL = 14,
    /* isthmus_init was not called, or for another version of this header. */
    ISTHMUS_UNINITIALISED = 15,
    /* The time given is over. A message may still arrive, once. */
    ISTHMUS_TIMED_OUT = 16,
    /* The other program turned the request down; the event has its reason. */
    ISTHMUS_REJECTED = 17,
    /* The other endpoint has too many requests waiting; or speaks another version. */
    ISTHMUS_BUSY = 18,
    ISTHMUS_VERSION = 19,
    /* The other end has disconnected. */
    ISTHMUS_DISCONNECTED = 20,
    /* The other process has ended or is not there. */
    ISTHMUS_PEER_GONE = 21,
    /* The peer refused access to its memory, none of which was touched. */
    ISTHMUS_REMOTE_ACCESS = 22,
    /* The peer broke the protocol. */
    ISTHMUS_PROTOCOL = 23
};

/* Service levels. */
enum isthmus_level {
    /* Unreliable, unordered: a message may be lost or come twice, and completes when it has
     * left the program's hands. No remote memory. */
    ISTHMUS_UU = 0,
    /* Reliable, unordered: each message arrives once; completion means that the other
     * endpoint has it. */
    ISTHMUS_RU = 1,
    /* Reliable, ordered: besides, messages arrive and complete in the order in which they
     * were sent. A completion implies all earlier silent ones. */
    ISTHMUS_RO = 2
};

/* Flags of operations. */
enum isthmus_flags {
    /* No event unless it fails. */
    ISTHMUS_SILENT = 1,
    /* The call returns when the operation is complete, with its status; no event. */
    ISTHMUS_BLOCKING = 2,
    /* Messages: the memory is not copied, and belongs to the library until the event (with
     * ISTHMUS_SILENT, in RO's order only: until the event of a later one in it). */
    ISTHMUS_NO_COPY = 4,
    /* Remote memory: starts when all earlier operations to the same peer are complete. */
    ISTHMUS_FENCE = 8,
    /* Messages: all goes at once, as far as the receiver has room; what has not, waits for room. */
    ISTHMUS_EAGER = 16,
    /* Messages beyond 8 KiB: nothing goes before the receiver has asked for it. */
    ISTHMUS_RENDEZVOUS = 32,
    /* Messages on RO: out of its order. It arrives, and has its event, as on RU. */
    ISTHMUS_UNORDERED = 64,
    /* Messages beyond 8 KiB: the first 16 KiB go at once, the rest when the receiver has asked for
     * it. With none of the three, what was measured of the peer decides, or what is set. */
    ISTHMUS_MIXED = 128
};

/* What peers may do with registered memory. */
enum isthmus_access {
    ISTHMUS_REMOTE_READ = 1,
    ISTHMUS_REMOTE_WRITE = 2
};

typedef struct isthmus_endpoint { uint64_t id; } isthmus_endpoint;
typedef struct isthmus_connection { uint64_t id; } isthmus_connection;
typedef struct isthmus_region { uint64_t id; } isthmus_region;
typedef struct isthmus_name { uint64_t id; } isthmus_name;

/* What a peer needs to reach registered memory: send it there in a message. The bytes mean
 * nothing to programs. */
typedef struct isthmus_memory { uint8_t bytes[32]; } isthmus_memory;

/* An interface of this host, as configured. */
typedef struct isthmus_device {
    char name[64];      /* as in [device.NAME]; "default" where nothing is configured */
    char transport[32]; /* what carries messages: tcp, shm, ... */
    char interface[32]; /* empty while it is down */
    char address[64];   /* its IP address; empty while it is down */
    char why[256];      /* why it is down; empty while it is up */
    uint64_t rate_bps;  /* bits per second; 0: the system does not tell */
    uint32_t as_id;
    uint32_t subnet;
    uint32_t priority; /* those with more are chosen first */
    uint32_t up;       /* 1: endpoints can be created on it */
    uint32_t routers;  /* how many its subnet has */
    uint32_t reserved;
} isthmus_device;

/* How an endpoint is made. Set size to sizeof(isthmus_endpoint_options); 0 in any other
 * field means its default. */
typedef struct isthmus_endpoint_options {
    size_t size;
    uint32_t recv_buffers;    /* messages that wait for or are with the program; 128 */
    uint32_t send_buffers;    /* operations under way at once; 1024 */
    uint32_t message_max;     /* longest message that is taken; 65536 */
    uint32_t backlog;         /* requests that wait for a decision; 4096 */
    uint64_t send_timeout_us; /* for operations of new connections; 0: none */
    uint64_t keepalive_us;    /* silence of new connections that is told; 0: none */
    uint32_t port;            /* TCP port; 0: as the device says */
    uint32_t reserved;
} isthmus_endpoint_options;

enum isthmus_event_kind {
    /* A peer asks: accept or reject; data has its payload, level its service level. One that
     * is returned undecided is rejected with reason 0. */
    ISTHMUS_EVENT_REQUEST = 1,
    /* The end of isthmus_connect: status; where rejected reason, and the payload in data. */
    ISTHMUS_EVENT_CONNECT = 2,
    /* The end of isthmus_accept: status. */
    ISTHMUS_EVENT_ACCEPT = 3,
    /* A message came: data and len, until the event is returned. */
    ISTHMUS_EVENT_RECV = 4,
    /* The end of a send, write or read: status, operation. */
    ISTHMUS_EVENT_SEND = 5,
    /* The connection is over: status says why. Give it back with isthmus_disconnect. */
    ISTHMUS_EVENT_DISCONNECT = 6,
    /* Nothing was heard of the connection for its keepalive time. It goes on. */
    ISTHMUS_EVENT_KEEPALIVE = 7,
    /* A device carries nothing any more: its address or interface has left the host, the
     * interface is down or has no carrier, or its local fabric has failed; text says which, and
     * what to do. Operations go on when it comes back, and fail when that takes longer than
     * peer_timeout. */
    ISTHMUS_EVENT_DEVICE_FAILED = 8
};

/* What has happened. */
typedef struct isthmus_event {
    uint32_t kind;   /* enum isthmus_event_kind */
    int32_t status;  /* enum isthmus_status */
    isthmus_connection connection;
    void *context;   /* the program's word for the connection */
    void *operation; /* the program's word for the send, write or read */
    const void *data;
    size_t len;
    uint32_t level;
    uint32_t reason;
    const char *text; /* what the status means here, or the peer's address of a request */
    uint64_t token;   /* the library's own */
} isthmus_event;

/* Options that can be read (get) and changed (set); the type of each value. Those of a
 * connection need it; others ignore it. */
enum isthmus_option {
    ISTHMUS_OPT_URI = 1,                /* get; char[]: as isthmus_uri */
    ISTHMUS_OPT_RECV_BUFFERS = 2,       /* get, set; uint32_t */
    ISTHMUS_OPT_SEND_BUFFERS = 3,       /* get, set; uint32_t */
    ISTHMUS_OPT_SEND_TIMEOUT_US = 4,    /* get, set; uint64_t: of new connections */
    ISTHMUS_OPT_KEEPALIVE_US = 5,       /* get, set; uint64_t: of new connections */
    ISTHMUS_OPT_ALIGNMENT = 6,          /* get; uint32_t: of remote memory: 1, none is needed */
    /* get, set; char[]: what lanes by UDP, or as frames, are made up of, as the setting
     * udp_protocols says it; changed while data flows. ISTHMUS_INVALID where there are no such lanes */
    ISTHMUS_OPT_UDP_PROTOCOLS = 7,
    /* get, set; char[]: how messages beyond 8 KiB go that do not say it themselves, as the setting
     * transfer says it: "RU=eager, 10.2.0.1=mixed, adaptive"; also for those that wait */
    ISTHMUS_OPT_TRANSFER = 8,
    /* get, set; char[]: what service levels, messages and lanes are made of, those two too, as the
     * setting protocols says it: "RO: eager, udp@10.2.0.0/16: cubic+once, tcp: bbr"; changed while messages
     * flow. What a text that is set does not mention is as by default */
    ISTHMUS_OPT_PROTOCOLS = 9,
    ISTHMUS_OPT_CONN_SEND_TIMEOUT_US = 16, /* get, set; uint64_t */
    ISTHMUS_OPT_CONN_KEEPALIVE_US = 17, /* get, set; uint64_t */
    ISTHMUS_OPT_CONN_LEVEL = 18,        /* get; uint32_t: enum isthmus_level */
    ISTHMUS_OPT_CONN_MESSAGE_MAX = 19,  /* get; uint32_t; 0 until it is established */
    ISTHMUS_OPT_CONN_URI = 20,          /* get; char[]: the peer's address */
    ISTHMUS_OPT_CONN_DEVICE = 21,       /* get; char[]: the name of the device by which it goes */
    ISTHMUS_OPT_CONN_UDP_PROTOCOLS = 22, /* get, set; char[]: the same of the lanes with its host, which
                                         * connections with one host share: cubic+once */
    ISTHMUS_OPT_CONN_TRANSFER = 23,     /* get, set; char[]: the same to its host, shared likewise: mixed.
                                         * What is set for its service level goes before */
    ISTHMUS_OPT_CONN_PROTOCOLS = 24     /* get, set; char[]: all of its host, shared likewise, in a text without
                                         * hosts: "RO: eager, udp: cubic"; what it does not mention stays */
};

/* Reads the configuration (ISTHMUS_CONFIG, else the user's file, else the system's; without
 * any there is one device). The first call of a program; further ones change nothing.
 * Returns ISTHMUS_CONFIGURATION, ISTHMUS_UNINITIALISED for another abi_version. */
int isthmus_init(uint32_t abi_version);

/* Closes all endpoints; init may be called again. */
int isthmus_finalize(void);

/* The devices, best first: fills at most max of them, and sets *count to how many there
 * are. devices may be null where max is 0. */
int isthmus_devices(isthmus_device *devices, size_t max, size_t *count);

/* Opens an endpoint on the device of this name (null: the best that is up), with options
 * (null: the defaults). Several names joined by commas, or "*" for all devices that are up,
 * make one endpoint on all of them, at most 8: peers reach it by each, and it reaches them by
 * the one that leads there (isthmus_connect); recv_buffers is then for each. *os_handle, where
 * not null, gets a descriptor that becomes readable when there may be events, once armed; it is
 * the endpoint's. Returns ISTHMUS_DEVICE where one is unknown or down, ISTHMUS_INVALID,
 * ISTHMUS_MEMORY where there is not enough for its buffers, ISTHMUS_SYSTEM. */
int isthmus_create_endpoint(const char *device, const isthmus_endpoint_options *options,
                            isthmus_endpoint *endpoint, int *os_handle);

/* Closes an endpoint: what was sent is delivered, within the device's linger time, and
 * peers are told. All events must have been returned: their data is void from now on. */
int isthmus_destroy_endpoint(isthmus_endpoint endpoint);

/* The address that peers need, as isthmus://AS.SUBNET/IP:PORT#INCARNATION.KEY; of an endpoint on
 * several devices one for each, joined by commas, of which peers may use all or one. len is
 * the buffer's length; ISTHMUS_TOO_LONG where it is too short (ISTHMUS_URI_MAX is enough). */
int isthmus_uri(isthmus_endpoint endpoint, char *uri, size_t len);

/* Prepares to sleep on the endpoint's descriptor. ISTHMUS_AGAIN: events are waiting, take
 * them first. When the descriptor was readable, take events until there are none, then arm
 * again. */
int isthmus_arm(isthmus_endpoint endpoint);

/* The next event, if there is one, else ISTHMUS_AGAIN; never sleeps. Return every event. */
int isthmus_get_event(isthmus_endpoint endpoint, isthmus_event *event);

/* The next event; sleeps until there is one, or so long (negative: no limit), and returns
 * ISTHMUS_AGAIN then. As isthmus_get_event. */
int isthmus_wait_event(isthmus_endpoint endpoint, int64_t timeout_us, isthmus_event *event);

/* Gives an event's buffer back; data and text are void then. ISTHMUS_STALE where it was
 * returned before or is of another endpoint. Any order, any thread. */
int isthmus_return_event(isthmus_endpoint endpoint, const isthmus_event *event);

/* Asks the endpoint at uri for a connection, with a payload of at most 1,024 bytes and a
 * service level. Returns at once; ISTHMUS_EVENT_CONNECT follows, within timeout_us (0: as
 * long as the peer can be reached). Where several devices or addresses lead there, those of
 * the device with the highest priority are tried first, and the next where nobody answers, or
 * where the request has not arrived after 3 seconds; the first answer counts.
 * context comes back with each event of the connection.
 * *connection, where not null, names it, so that the attempt can be given up. Returns
 * ISTHMUS_INVALID for what is no address, ISTHMUS_UNREACHABLE, ISTHMUS_TOO_LONG. */
int isthmus_connect(isthmus_endpoint endpoint, const char *uri, const void *payload, size_t len,
                    enum isthmus_level level, void *context, uint64_t timeout_us,
                    isthmus_connection *connection);

/* Grants the request of an event; ISTHMUS_EVENT_ACCEPT follows. The event must still be
 * returned. ISTHMUS_STALE where the peer is gone meanwhile. */
int isthmus_accept(isthmus_endpoint endpoint, const isthmus_event *request, void *context,
                   isthmus_connection *connection);

/* Turns the request of an event down: the other program learns the reason, a number of
 * yours, and the payload of at most 1,024 bytes. The event must still be returned. */
int isthmus_reject(isthmus_endpoint endpoint, const isthmus_event *request, uint32_t reason,
                   const void *payload, size_t len);

/* Ends a connection; its name is void then. What was sent before is still delivered, and
 * its events come. The other program gets ISTHMUS_EVENT_DISCONNECT after all of that; what went
 * by datagrams, on UU, may be lost with it. */
int isthmus_disconnect(isthmus_endpoint endpoint, isthmus_connection connection);

/* Sends a message; ISTHMUS_EVENT_SEND follows, with operation, unless flags say otherwise:
 * ISTHMUS_SILENT, ISTHMUS_BLOCKING. Messages may also have ISTHMUS_NO_COPY, ISTHMUS_UNORDERED, and
 * one of ISTHMUS_EAGER, ISTHMUS_RENDEZVOUS and ISTHMUS_MIXED. The event comes on UU at once, with
 * ISTHMUS_SUCCESS whatever becomes of the message; on RU when the other endpoint has it; on RO
 * when it has this one and the events of all earlier ones have come. On RU and RO its status is
 * ISTHMUS_TIMED_OUT where the send time-out is over, as it is when the receiver is full for so
 * long, and ISTHMUS_PEER_GONE where the peer has vanished,
 * ISTHMUS_UNREACHABLE where its host has. With ISTHMUS_BLOCKING that status is
 * returned instead. Else returns ISTHMUS_FULL (RU and RO: UU drops what is too much),
 * ISTHMUS_TOO_LONG, ISTHMUS_STATE where the connection is over or not yet established. */
int isthmus_send(isthmus_endpoint endpoint, isthmus_connection connection, const void *message,
                 size_t len, void *operation, uint32_t flags);

/* Sends a message that is made of pieces; as isthmus_send. */
int isthmus_sendv(isthmus_endpoint endpoint, isthmus_connection connection,
                  const struct iovec *pieces, size_t count, void *operation, uint32_t flags);

/* Registers memory for reads and writes of this endpoint and of its peers; access says what
 * these may do (0: nothing). It must stay valid until isthmus_deregister has succeeded. *memory, where not null, gets
 * what peers need. */
int isthmus_register(isthmus_endpoint endpoint, void *start, size_t len, uint32_t access,
                     isthmus_region *region, isthmus_memory *memory);

/* Takes memory back: no peer reaches it after this returns. ISTHMUS_MEMORY while operations
 * of this endpoint use it: then it stays registered. */
int isthmus_deregister(isthmus_endpoint endpoint, isthmus_region region);

/* Writes len bytes at local_offset of a region to remote_offset of a peer's memory.
 * ISTHMUS_EVENT_SEND follows, on RU and RO alike when the data is there, in no order with
 * others but by ISTHMUS_FENCE. A message of message_len bytes (null:
 * none) reaches the other program after the data, and does not where the write fails.
 * Flags: ISTHMUS_SILENT, ISTHMUS_BLOCKING, ISTHMUS_FENCE. Returns ISTHMUS_LEVEL on UU,
 * ISTHMUS_MEMORY; what the peer refuses is the event's ISTHMUS_REMOTE_ACCESS. After
 * ISTHMUS_TIMED_OUT it may still be under way: isthmus_deregister says so. */
int isthmus_write(isthmus_endpoint endpoint, isthmus_connection connection, isthmus_region region,
                  uint64_t local_offset, const isthmus_memory *memory, uint64_t remote_offset,
                  uint64_t len, const void *message, size_t message_len, void *operation,
                  uint32_t flags);

/* Reads a peer's memory into a region; as isthmus_write, the other way. */
int isthmus_read(isthmus_endpoint endpoint, isthmus_connection connection, isthmus_region region,
                 uint64_t local_offset, const isthmus_memory *memory, uint64_t remote_offset,
                 uint64_t len, const void *message, size_t message_len, void *operation,
                 uint32_t flags);

/* Reads an option into value, of *len bytes; sets *len to the length of what was read.
 * ISTHMUS_TOO_LONG where it is too short. */
int isthmus_get_option(isthmus_endpoint endpoint, isthmus_connection connection,
                       enum isthmus_option option, void *value, size_t *len);

/* Changes an option; len is the length of its type, or of the text, with its end or without. */
int isthmus_set_option(isthmus_endpoint endpoint, isthmus_connection connection,
                       enum isthmus_option option, const void *value, size_t len);

/* BLAKE3 by blocks: the digest of the block at `offset` of something of `size` bytes that is
 * taken in blocks of `block` bytes. Block is a power of two from 1024 on, offset a multiple of
 * it, and len what is there; where all is in one block, the digest is that of the whole. */
int isthmus_digest_block(const void *data, size_t len, uint64_t offset, uint64_t size, uint64_t block,
                         uint8_t digest[32]);

/* The digest of the whole, as b3sum prints it, from those of its `count` blocks in order. */
int isthmus_digest_whole(const uint8_t *digests, size_t count, uint64_t size, uint64_t block,
                         uint8_t digest[32]);

/* Publishes a text under a name at a router. It is there until isthmus_withdraw or the end of this
 * process. `place` is the router's address, isthmus://AS.SUBNET/IP:PORT: one of those of this process's own
 * AS. It is published again when a router or a way that failed is back. Names have 1 to 128 letters,
 * digits and "-_.:", texts at most 1024 bytes. Returns ISTHMUS_UNREACHABLE, or ISTHMUS_INVALID, also where the
 * router does not take the name, such as when another process has published it. May be called before
 * isthmus_init. */
int isthmus_publish(const char *place, const char *name, const char *text, isthmus_name *published);

/* Withdraws what isthmus_publish has published. */
int isthmus_withdraw(isthmus_name published);

/* Looks a name up that a process has published. That process may be here or at another site, and may do so
 * until patience_us have passed. The text and a NUL go to `text`, which has room for `len` bytes: 1025 are
 * always enough. Where the router is on another subnet,
 * the way goes by the routers that the configuration has. ISTHMUS_TIMED_OUT: nobody has published it. */
int isthmus_look_up(const char *place, const char *name, uint64_t patience_us, char *text, size_t len);

/* Announces an endpoint's address (isthmus_uri) at a meeting place, until isthmus_withdraw or the end of this
 * process. `at` is one of
 *   "file:PATH"  a file that both programs see; only its owner can read it
 *   "router:isthmus://AS.SUBNET/IP:PORT/NAME"  a name at a router, as isthmus_publish has it
 *   "HOST:PORT"  this program listens there, and tells the address to holders of the secret
 *   an address that isthmus_uri gives: nothing is announced
 * `secret` is the path of a file that only its owner can read, for HOST:PORT; else null. Returns
 * ISTHMUS_INVALID for a wrong place or secret, ISTHMUS_SYSTEM where it cannot be announced there. */
int isthmus_announce(const char *at, const char *secret, const char *uri, isthmus_name *announced);

/* Finds the address that a program announces at a meeting place, now or until patience_us have passed. The
 * address and a NUL go to `uri`, which has room for `len` bytes; ISTHMUS_URI_MAX are enough. One look at a
 * router or host may take 5 s, also where the patience is shorter. Of a program that was killed the file is
 * left: whether anybody is at the address, isthmus_connect tells. Returns ISTHMUS_INVALID for a wrong place or
 * secret, ISTHMUS_TIMED_OUT where nobody announced, ISTHMUS_REJECTED where waiting does not help, such as for
 * another secret. */
int isthmus_find(const char *at, const char *secret, uint64_t patience_us, char *uri, size_t len);

/* What a status means, in general. Never null. */
const char *isthmus_strerror(int status);

/* The text of this thread's last refusal; valid until its next call. Never null. */
const char *isthmus_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
