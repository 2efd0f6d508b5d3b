/*
 * isthmus.h: devices, endpoints, connections, events, messages and remote memory.
 *
 * This interface is for programs without MPI: persistent services that peers connect to and
 * leave, with a service level for each connection, and one queue of events for all peers.
 * Link with -listhmus (pkg-config: isthmus).
 *
 * Every call may be made from any thread. Unless its comment says otherwise, a call returns
 * ISTHMUS_SUCCESS or the code of a refusal. After a refusal nothing has happened, and
 * isthmus_last_error() has the whole text. If an operation has begun and then fails, its event
 * has the status. Times are in microseconds, lengths in bytes.
 *
 * Handles are names, not pointers. A call with the name of something that has ended, or that
 * belongs to another endpoint, returns ISTHMUS_STALE and does nothing else.
 */
#ifndef ISTHMUS_H
#define ISTHMUS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of the binary interface; the library's soname ends in it. */
#define ISTHMUS_ABI_VERSION 0

/* Bytes for the address of any endpoint, with the final NUL. */
#define ISTHMUS_URI_MAX 2048

/* Most storage targets of a layout. */
#define ISTHMUS_TARGETS_MAX 2048

/* A worker's number that stands for all workers of a schedule. */
#define ISTHMUS_ANY_WORKER UINT32_MAX

/* Results of calls, and the status of events. Numbers never change their meaning. */
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
    /* Unreliable, unordered: a message may be lost or come twice. It completes when the library
     * has taken it. There is no remote memory. */
    ISTHMUS_UU = 0,
    /* Reliable, unordered: each message arrives once; completion means that the other
     * endpoint has it. */
    ISTHMUS_RU = 1,
    /* Reliable, ordered: as RU, and messages arrive and complete in the order in which they
     * were sent. A completion implies all earlier silent ones. */
    ISTHMUS_RO = 2
};

/* Flags of operations. */
enum isthmus_flags {
    /* No event unless it fails. */
    ISTHMUS_SILENT = 1,
    /* The call returns when the operation is complete, with its status; no event. */
    ISTHMUS_BLOCKING = 2,
    /* Messages: the memory is not copied, and belongs to the library until the event. With
     * ISTHMUS_SILENT, which needs RO's order, it belongs to the library until the event of a
     * later message in that order. */
    ISTHMUS_NO_COPY = 4,
    /* Remote memory: starts when all earlier operations to the same peer are complete. */
    ISTHMUS_FENCE = 8,
    /* Messages: all bytes go at once, as far as the receiver has room. The rest waits for room. */
    ISTHMUS_EAGER = 16,
    /* Messages beyond 8 KiB: no bytes go before the receiver has asked for them. */
    ISTHMUS_RENDEZVOUS = 32,
    /* Messages on RO: not in its order. The message arrives, and has its event, as on RU. */
    ISTHMUS_UNORDERED = 64,
    /* Messages beyond 8 KiB: the first 16 KiB go at once, the rest when the receiver has asked for
     * it. Without any of these three flags the setting decides, or else measurements of the peer. */
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
typedef struct isthmus_schedule { uint64_t id; } isthmus_schedule;

/* How much a line of the log matters. */
enum isthmus_severity {
    /* Somebody should act. */
    ISTHMUS_WARN = 1,
    /* Something changed, and why. */
    ISTHMUS_INFO = 2,
    /* For people who look for a fault. */
    ISTHMUS_DEBUG = 3
};

/* Gets a line of the log, without a newline. Any thread may call it, also one of the library's own
 * that holds locks: it must return soon, and call nothing of this library. text is valid during
 * the call. */
typedef void (*isthmus_log_function)(int severity, const char *text, void *context);

/* What went between an endpoint and a peer's endpoint so far. Set size to sizeof(isthmus_counters). */
typedef struct isthmus_counters {
    size_t size;
    uint64_t sent_bytes;     /* of messages, writes and answers to reads; each byte counts once */
    uint64_t received_bytes; /* the same, received */
    uint64_t messages_sent;  /* with the library's own control messages */
    uint64_t datagrams_sent; /* messages on UU that went as datagrams; counted above as well */
    uint64_t datagrams_received;
    uint64_t fragments_resent; /* pieces of messages that were sent again */
    uint64_t lanes;            /* TCP connections, UDP streams and so on, now; 0 for all peers */
    uint64_t rtt_us;           /* shortest round trip; 0: not known, and for all peers */
} isthmus_counters;

/* Lets a peer access registered memory: send it to the peer in a message. Programs must not
 * interpret the bytes. */
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
    uint32_t priority; /* devices with a higher one are chosen first */
    uint32_t up;       /* 1: endpoints can be created on it */
    uint32_t routers;  /* number of routers of its subnet */
    uint32_t reserved;
} isthmus_device;

/* Options of a new endpoint. Set size to sizeof(isthmus_endpoint_options); 0 in any other
 * field means its default. */
typedef struct isthmus_endpoint_options {
    size_t size;
    uint32_t recv_buffers;    /* messages that wait for or are with the program; 128 */
    uint32_t send_buffers;    /* operations under way at once; 1024 */
    uint32_t message_max;     /* longest message that is taken; 65536 */
    uint32_t backlog;         /* requests that wait for a decision; 4096 */
    uint64_t send_timeout_us; /* for operations of new connections; 0: none */
    uint64_t keepalive_us;    /* silence after which new connections give an event; 0: none */
    uint32_t port;            /* TCP port; 0: as the device says */
    uint32_t reserved;
} isthmus_endpoint_options;

enum isthmus_event_kind {
    /* A peer requests a connection: accept or reject it. data has its payload, level its service
     * level. If the event is returned without a decision, the request is rejected with reason 0. */
    ISTHMUS_EVENT_REQUEST = 1,
    /* The end of isthmus_connect: status. If rejected, also reason, and the payload in data. */
    ISTHMUS_EVENT_CONNECT = 2,
    /* The end of isthmus_accept: status. */
    ISTHMUS_EVENT_ACCEPT = 3,
    /* A message came: data and len, until the event is returned. */
    ISTHMUS_EVENT_RECV = 4,
    /* The end of a send, write or read: status, operation. */
    ISTHMUS_EVENT_SEND = 5,
    /* The connection is over: status says why. Give it back with isthmus_disconnect. */
    ISTHMUS_EVENT_DISCONNECT = 6,
    /* Nothing came on the connection for its keepalive time. The connection goes on. */
    ISTHMUS_EVENT_KEEPALIVE = 7,
    /* A device no longer carries data. Its address or interface has left the host, the
     * interface is down or has no carrier, or its local fabric has failed. text says which, and
     * what to do. Operations go on when the device comes back. They fail if that takes longer
     * than peer_timeout. */
    ISTHMUS_EVENT_DEVICE_FAILED = 8
};

/* An event of an endpoint. */
typedef struct isthmus_event {
    uint32_t kind;   /* enum isthmus_event_kind */
    int32_t status;  /* enum isthmus_status */
    isthmus_connection connection;
    void *context;   /* as given to isthmus_connect or isthmus_accept */
    void *operation; /* as given to the send, write or read */
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

/* Where a file lies: its stripes lie on `count` storage targets in turn, from the beginning of the file
 * on. A target with more turns than others stands there several times. */
typedef struct isthmus_layout {
    uint64_t stripe; /* length of a stripe; 0: unknown */
    uint32_t count;  /* 0: unknown, or a single target */
    uint32_t targets[ISTHMUS_TARGETS_MAX];
} isthmus_layout;

/* Reads the configuration (ISTHMUS_CONFIG, else the user's file, else the system's; without
 * any there is one device). The first call of a program; further ones change nothing.
 * Returns ISTHMUS_CONFIGURATION, ISTHMUS_UNINITIALISED for another abi_version. */
int isthmus_init(uint32_t abi_version);

/* Closes all endpoints; init may be called again. */
int isthmus_finalize(void);

/* The devices, best first: fills in at most max of them, and sets *count to the number of
 * devices. devices may be null if max is 0. */
int isthmus_devices(isthmus_device *devices, size_t max, size_t *count);

/* Opens an endpoint on the device of this name (null: the best that is up), with options
 * (null: the defaults). Several names joined by commas, or "*" for all devices that are up,
 * make one endpoint on all of them, at most 8. Peers reach it by each device, and it reaches
 * them by the one that leads there (isthmus_connect); recv_buffers is then for each device. If
 * os_handle is not null, *os_handle gets a descriptor that belongs to the endpoint. Once armed,
 * it becomes readable when there may be events. Returns ISTHMUS_DEVICE if a device is unknown or
 * down, ISTHMUS_INVALID, ISTHMUS_MEMORY if there is not enough for its buffers, ISTHMUS_SYSTEM. */
int isthmus_create_endpoint(const char *device, const isthmus_endpoint_options *options,
                            isthmus_endpoint *endpoint, int *os_handle);

/* Closes an endpoint: messages already sent are delivered, within the device's linger time, and
 * peers are told. All events must have been returned before: their data is void from now on. */
int isthmus_destroy_endpoint(isthmus_endpoint endpoint);

/* The address that peers need, as isthmus://AS.SUBNET/IP:PORT#INCARNATION.KEY; an endpoint
 * on several devices has one for each, joined by commas, and peers may use all or one. len is
 * the buffer's length. Returns ISTHMUS_TOO_LONG if it is too short (ISTHMUS_URI_MAX is enough). */
int isthmus_uri(isthmus_endpoint endpoint, char *uri, size_t len);

/* Prepares to sleep on the endpoint's descriptor. Returns ISTHMUS_AGAIN if events are waiting:
 * take them first. After the descriptor was readable, take events until there are none, then
 * arm again. */
int isthmus_arm(isthmus_endpoint endpoint);

/* The next event, if there is one, else ISTHMUS_AGAIN; never sleeps. Return every event. */
int isthmus_get_event(isthmus_endpoint endpoint, isthmus_event *event);

/* The next event; sleeps until there is one, or until timeout_us is over (negative: no limit).
 * Then it returns ISTHMUS_AGAIN. Otherwise as isthmus_get_event. */
int isthmus_wait_event(isthmus_endpoint endpoint, int64_t timeout_us, isthmus_event *event);

/* Gives an event's buffer back; data and text are void then. Returns ISTHMUS_STALE if it was
 * returned before or is of another endpoint. Events may be returned in any order, by any
 * thread. */
int isthmus_return_event(isthmus_endpoint endpoint, const isthmus_event *event);

/* Asks the endpoint at uri for a connection, with a payload of at most 1,024 bytes and a
 * service level. Returns at once; ISTHMUS_EVENT_CONNECT follows, within timeout_us (0: as
 * long as the peer can be reached). If several devices or addresses lead there, those of
 * the device with the highest priority are tried first. The next is tried if nobody answers, or
 * if the request has not arrived after 3 seconds. The first answer counts.
 * context comes back with each event of the connection. If connection is not null, *connection
 * gets its name, so that the attempt can be given up. Returns ISTHMUS_INVALID if uri is no
 * address, ISTHMUS_UNREACHABLE, ISTHMUS_TOO_LONG. */
int isthmus_connect(isthmus_endpoint endpoint, const char *uri, const void *payload, size_t len,
                    enum isthmus_level level, void *context, uint64_t timeout_us,
                    isthmus_connection *connection);

/* Grants the request of an event; ISTHMUS_EVENT_ACCEPT follows. The event must still be
 * returned. Returns ISTHMUS_STALE if the peer is gone meanwhile. */
int isthmus_accept(isthmus_endpoint endpoint, const isthmus_event *request, void *context,
                   isthmus_connection *connection);

/* Rejects the request of an event: the other program gets the reason, a number that you choose,
 * and the payload of at most 1,024 bytes. The event must still be returned. */
int isthmus_reject(isthmus_endpoint endpoint, const isthmus_event *request, uint32_t reason,
                   const void *payload, size_t len);

/* Ends a connection; its name is void then. Messages sent before are still delivered, and
 * their events come. The other program gets ISTHMUS_EVENT_DISCONNECT after all of them. On UU,
 * messages that went as datagrams may be lost. */
int isthmus_disconnect(isthmus_endpoint endpoint, isthmus_connection connection);

/* Sends a message; ISTHMUS_EVENT_SEND follows, with operation, unless flags say otherwise:
 * ISTHMUS_SILENT, ISTHMUS_BLOCKING. Messages may also have ISTHMUS_NO_COPY, ISTHMUS_UNORDERED, and
 * one of ISTHMUS_EAGER, ISTHMUS_RENDEZVOUS and ISTHMUS_MIXED. On UU the event comes at
 * once, with ISTHMUS_SUCCESS even if the message is lost. On RU it comes when the other endpoint
 * has the message. On RO it comes when the other endpoint has it and the events of all earlier
 * ones have come. On RU and RO the status is ISTHMUS_TIMED_OUT if the send time-out is over, for
 * example because the receiver was full. It is ISTHMUS_PEER_GONE if the peer has vanished, and
 * ISTHMUS_UNREACHABLE if its host has. With ISTHMUS_BLOCKING the call returns that status
 * instead. Otherwise it returns ISTHMUS_FULL (RU and RO only; UU drops the message),
 * ISTHMUS_TOO_LONG, ISTHMUS_STATE if the connection is over or not yet established. */
int isthmus_send(isthmus_endpoint endpoint, isthmus_connection connection, const void *message,
                 size_t len, void *operation, uint32_t flags);

/* Sends a message that is made of pieces; as isthmus_send. */
int isthmus_sendv(isthmus_endpoint endpoint, isthmus_connection connection,
                  const struct iovec *pieces, size_t count, void *operation, uint32_t flags);

/* Registers memory for reads and writes of this endpoint and of its peers; access says what
 * peers may do (0: nothing). The memory must stay valid until isthmus_deregister has succeeded.
 * If memory is not null, *memory gets the bytes that peers need. */
int isthmus_register(isthmus_endpoint endpoint, void *start, size_t len, uint32_t access,
                     isthmus_region *region, isthmus_memory *memory);

/* Takes memory back: no peer reaches it after this returns. ISTHMUS_MEMORY while operations
 * of this endpoint use it: then it stays registered. */
int isthmus_deregister(isthmus_endpoint endpoint, isthmus_region region);

/* Writes len bytes at local_offset of a region to remote_offset of a peer's memory.
 * ISTHMUS_EVENT_SEND follows when the data is there, on RU and RO alike. Writes and reads have
 * no order among themselves, except with ISTHMUS_FENCE. A message of message_len bytes (null:
 * none) reaches the other program after the data. If the write fails, the message is not sent.
 * Flags: ISTHMUS_SILENT, ISTHMUS_BLOCKING, ISTHMUS_FENCE. Returns ISTHMUS_LEVEL on UU,
 * ISTHMUS_MEMORY. If the peer refuses the write, the event has ISTHMUS_REMOTE_ACCESS. After
 * ISTHMUS_TIMED_OUT the write may still be under way: then isthmus_deregister refuses. */
int isthmus_write(isthmus_endpoint endpoint, isthmus_connection connection, isthmus_region region,
                  uint64_t local_offset, const isthmus_memory *memory, uint64_t remote_offset,
                  uint64_t len, const void *message, size_t message_len, void *operation,
                  uint32_t flags);

/* Reads a peer's memory into a region; as isthmus_write, in the other direction. */
int isthmus_read(isthmus_endpoint endpoint, isthmus_connection connection, isthmus_region region,
                 uint64_t local_offset, const isthmus_memory *memory, uint64_t remote_offset,
                 uint64_t len, const void *message, size_t message_len, void *operation,
                 uint32_t flags);

/* Reads an option into value, of *len bytes; sets *len to the length of the option.
 * Returns ISTHMUS_TOO_LONG if value is too short. */
int isthmus_get_option(isthmus_endpoint endpoint, isthmus_connection connection,
                       enum isthmus_option option, void *value, size_t *len);

/* Changes an option; len is the length of its type, or of the text, with or without its NUL. */
int isthmus_set_option(isthmus_endpoint endpoint, isthmus_connection connection,
                       enum isthmus_option option, const void *value, size_t len);

/* Counts of what went between the endpoint and the peer of a connection. All connections with that
 * endpoint share them. With connection.id 0 they are of all peers together. What a process reads or
 * writes by itself in another process's memory on the same host is not counted. */
int isthmus_get_counters(isthmus_endpoint endpoint, isthmus_connection connection,
                         isthmus_counters *counters);

/* Sends the library's log to a function: lines of the severity least, and those that matter more. It
 * replaces the one set before, which is not called any more when this returns. Null: lines go to
 * standard error, as at the beginning, as the environment variable ISTHMUS_LOG says: off, warn (the
 * default), info or debug. May be called before isthmus_init, but not by the function itself. */
int isthmus_set_log(isthmus_log_function function, void *context, enum isthmus_severity least);

/* BLAKE3 by blocks: the digest of the block at `offset` of data of `size` bytes that is divided
 * into blocks of `block` bytes. Block is a power of two, at least 1024; offset is a multiple of
 * it; len is the length of this block. If there is one block only, its digest is that of the
 * whole. */
int isthmus_digest_block(const void *data, size_t len, uint64_t offset, uint64_t size, uint64_t block,
                         uint8_t digest[32]);

/* The digest of the whole, as b3sum prints it, from those of its `count` blocks in order. */
int isthmus_digest_whole(const uint8_t *digests, size_t count, uint64_t size, uint64_t block,
                         uint8_t digest[32]);

/* Where a file lies. `description` is the path of a description file, which is asked only for what it
 * says of `path`; the file need not exist. If `description` is null, the file system is asked, which only
 * Lustre answers. A folder of Lustre has the stripe of its new files, and no targets. May be called before
 * isthmus_init. Returns ISTHMUS_INVALID for a wrong description file. */
int isthmus_layout_of(const char *path, const char *description, isthmus_layout *layout);

/* Makes a schedule of the reads or writes of one file by workers: threads or processes that each read or
 * write one or more pieces at a time. It gives each worker a piece of the storage target with the fewest
 * pieces under way, so that no target has two while another with work for that worker has none. Pieces have
 * at most `piece` bytes. It reads and writes nothing itself. Returns ISTHMUS_INVALID for a layout with fewer
 * than two targets. */
int isthmus_schedule_create(const isthmus_layout *layout, uint64_t piece, isthmus_schedule *schedule);

/* Adds a range of the file. With ISTHMUS_ANY_WORKER any worker may take it, in pieces that each lie within
 * a stripe. With the number of a worker it is one piece, for this worker only: such as a piece that waits in
 * its memory to be written. */
int isthmus_schedule_add(isthmus_schedule schedule, uint32_t worker, uint64_t offset, uint64_t len);

/* The next piece for a worker, or ISTHMUS_AGAIN if none waits for it. For ISTHMUS_ANY_WORKER it is a piece
 * that any worker may take. */
int isthmus_schedule_take(isthmus_schedule schedule, uint32_t worker, uint64_t *offset, uint64_t *len);

/* Tells that the piece that was taken at `offset` is read or written. */
int isthmus_schedule_done(isthmus_schedule schedule, uint64_t offset);

/* Ends a schedule. */
int isthmus_schedule_destroy(isthmus_schedule schedule);

/* Publishes a text under a name at a router. It stays until isthmus_withdraw or the end
 * of this process. `place` is the address of a router of this process's own AS,
 * isthmus://AS.SUBNET/IP:PORT. After a failure of the router or of the path to it, the name is
 * published again. Names have 1 to 128 letters, digits and "-_.:"; texts have at most 1024
 * bytes. Returns ISTHMUS_UNREACHABLE, or ISTHMUS_INVALID, also if the router refuses the name, for
 * example because another process has published it. May be called before isthmus_init. */
int isthmus_publish(const char *place, const char *name, const char *text, isthmus_name *published);

/* Withdraws a name that isthmus_publish has published. */
int isthmus_withdraw(isthmus_name published);

/* Looks up a name that a process has published. That process may be here or at another site. The
 * call waits up to patience_us for the name. The text and a NUL go to `text`, which has room for
 * `len` bytes: 1025 are always enough. If the router is on another subnet, the routers of the
 * configuration lead there. Returns ISTHMUS_TIMED_OUT if nobody has published the name. */
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

/* Finds the address that a program announces at a meeting place. It looks until patience_us have passed. The
 * address and a NUL go to `uri`, which has room for `len` bytes; ISTHMUS_URI_MAX are enough. One look at a
 * router or host may take 5 s, even if the patience is shorter. A killed program leaves its file behind:
 * isthmus_connect tells whether anybody is at the address. Returns ISTHMUS_INVALID for a wrong place or
 * secret, ISTHMUS_TIMED_OUT where nobody announced, ISTHMUS_REJECTED where waiting does not help, such as for
 * another secret. */
int isthmus_find(const char *at, const char *secret, uint64_t patience_us, char *uri, size_t len);

/* The site of a rank of the world that `isthmus run` has started, counted from 0: each of its parts is a site. -1 if
 * isthmus run has not started this process, or if the world has no such rank. May be called before isthmus_init. */
int isthmus_site(int rank);

/* What a status means, in general. Never null. */
const char *isthmus_strerror(int status);

/* The text of this thread's last refusal; valid until its next call. Never null. */
const char *isthmus_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
