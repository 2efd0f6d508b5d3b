// A coupling over endpoints of the substrate. Each rank has one endpoint, and connections to those ranks of the other
// side with which it exchanges messages.
//
//   meet.c      the two sides find each other and exchange the addresses of their ranks
//   link.c      connections with ranks of the other side, and their queues of outgoing messages
//   matching.c  messages: short ones are sent at once; the receiver reads long ones from the sender's memory
#ifndef ISTHMUS_MPI_LINK_H
#define ISTHMUS_MPI_LINK_H

#include "internal.h"
#include "isthmus.h"

enum { TOKEN_LEN = 16 };
// The first bytes of a request for a connection, and the versions of the messages that follow.
enum { LINK_MAGIC = 0x49534c31, LINK_OLDEST = 1, LINK_NEWEST = 1 };
// Longest message that is sent at once, and room for it with its head. Bytes.
enum { SHORT_MOST = 16 << 10, PARCEL_MOST = SHORT_MOST + 128 };

// The payload of a request for a connection.
struct hello {
    uint32_t magic;
    int32_t oldest, newest; // versions
    int32_t rank;           // of the caller; FIRST_CALL: rank 0, and the two sides do not know each other yet
    uint8_t token[TOKEN_LEN];
};
enum { FIRST_CALL = -1 };
// The reasons to reject a request.
enum refusal { REFUSED_VERSION = 1, REFUSED_TAKEN, REFUSED_STRANGER };

enum parcel_kind { SHORT = 1, LONG, TAKEN, CREDIT };

// The head of every message between two endpoints. The data (SHORT) or an isthmus_memory (LONG) follows.
struct head {
    uint8_t kind, channel;
    uint16_t zero;
    int32_t tag;
    int64_t length;   // of the message
    uint64_t number;  // of a LONG one; TAKEN repeats it
    uint64_t matched; // bytes of SHORT ones that receives have taken since the beginning
};

// A message under way, as this rank sends or receives it.
struct post {
    struct post *next;
    struct link *link;
    struct peer *peer;
    MPI_Request request;
    int channel, tag;
    char *data;
    int64_t bytes, received;
    uint64_t number;         // LONG
    isthmus_region region;   // while a peer reads the memory, or this rank reads into it
    isthmus_memory memory;   // the peer's memory, which this rank reads
    isthmus_connection from; // the connection on which it was announced
    int registered, taken, error;
};

// A message that came before its receive.
struct arrived {
    struct arrived *next;
    struct head head;
    isthmus_connection from;
    char data[];
};

// An outgoing message that the endpoint has not taken yet.
struct parcel {
    struct parcel *next;
    struct post *ends; // the post that ends when the endpoint takes this, or NULL
    size_t length;
    char bytes[];
};

enum peer_state { PEER_NEW, PEER_DIALLED, PEER_UP, PEER_GONE };

// A rank of the other side.
struct peer {
    int rank;
    const char *uri;
    enum peer_state state;
    isthmus_connection way;   // the connection on which this rank sends
    isthmus_connection other; // accepted while this rank dialled; used if its own fails
    int ways, other_up;       // connections that have not ended
    struct parcel *parcels, **parcels_end;
    struct post *receives, **receives_end;
    struct arrived *arrived, **arrived_end;
    struct post *untaken; // LONG messages sent, whose peer has not taken them
    uint64_t sent_short, matched_there; // bytes of short messages: sent, and known to be matched
    uint64_t matched, told_matched;     // bytes of incoming short messages: matched, and reported as matched
    char why[160]; // the reason if it is gone
};

struct link {
    struct isthmus_mpi_coupling *c;
    isthmus_endpoint endpoint;
    int open, part;
    uint8_t token[TOKEN_LEN];
    char uri[ISTHMUS_URI_MAX];
    char *uris; // of the other side's ranks, each ends in NUL
    struct peer *peers;
    int remote;
    int waiting;             // parcels of all peers
    uint64_t numbers;
    struct post *unread;    // LONG messages that could not be read yet
    struct post *cancelled; // receives whose end the MPI must be told
    struct post *reading;
    char why[192]; // the reason of the first loss
};

// link.c
int link_open(struct link *link, struct trouble *trouble);
void link_close(struct link *link);
// Makes room for the other side's ranks.
void link_know(struct link *link, char *uris, int remote);
// Begins to connect, unless one of the two has begun.
void peer_need(struct link *link, struct peer *peer);
// Sends a head and its data. `ends`, if not NULL, ends when the endpoint has taken them.
void peer_send(struct link *link, struct peer *peer, const struct head *head, const void *data, size_t length, struct post *ends);
// Takes all events. Waits at most this long for the first. Microseconds.
void link_turn(struct link *link, int64_t wait_us);
void link_flush(struct link *link);
// Answers a request for a connection that is no longer the first.
void on_request(struct link *link, const isthmus_event *event);

// matching.c
int post_send(struct link *link, int channel, const void *data, int64_t bytes, int rank, int tag, MPI_Request *request);
int post_receive(struct link *link, int channel, void *room, int64_t bytes, int rank, int tag, MPI_Request *request);
void post_end(struct post *post, int error);
void on_parcel(struct link *link, struct peer *peer, const isthmus_event *event);
void on_read(struct link *link, struct post *post, int status);
// Tries again what the endpoint refused before.
void matching_turn(struct link *link);
// Ends all messages with a peer, which is lost.
void matching_lose(struct link *link, struct peer *peer);

#endif
