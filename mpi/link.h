// A coupling over endpoints of the substrate: each rank has one, and connections to those ranks of the other side
// that it has to do with.
//
//   meet.c      the two sides find each other and exchange the addresses of their ranks
//   link.c      connections with ranks of the other side, and what waits to go out on them
//   matching.c  messages: short ones go at once; of long ones the receiver reads the sender's memory
#ifndef ISTHMUS_MPI_LINK_H
#define ISTHMUS_MPI_LINK_H

#include "internal.h"
#include "isthmus.h"

enum { TOKEN_LEN = 16 };
// What a request for a connection begins with, and the versions of what follows.
enum { LINK_MAGIC = 0x49534c31, LINK_OLDEST = 1, LINK_NEWEST = 1 };
// Longest message that goes at once, and room for it with its head. Bytes.
enum { SHORT_MOST = 16 << 10, PARCEL_MOST = SHORT_MOST + 128 };

// The payload of a request for a connection.
struct hello {
    uint32_t magic;
    int32_t oldest, newest; // versions
    int32_t rank;           // of who asks; FIRST_CALL: it is rank 0, and the two sides do not know each other yet
    uint8_t token[TOKEN_LEN];
};
enum { FIRST_CALL = -1 };
// Why a request is turned down.
enum refusal { REFUSED_VERSION = 1, REFUSED_TAKEN, REFUSED_STRANGER };

enum parcel_kind { SHORT = 1, LONG, TAKEN, CREDIT };

// What every message between two endpoints begins with. Then the data (SHORT), or an isthmus_memory (LONG).
struct head {
    uint8_t kind, channel;
    uint16_t zero;
    int32_t tag;
    int64_t length;   // of the message
    uint64_t number;  // of a LONG one; TAKEN says it back
    uint64_t matched; // bytes of SHORT ones that a receive took, since the beginning
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
    isthmus_region region;   // of the memory, while a peer reads it or this rank reads into it
    isthmus_memory memory;   // what is read
    isthmus_connection from; // by which it was told
    int registered, taken, error;
};

// A message that came before its receive.
struct arrived {
    struct arrived *next;
    struct head head;
    isthmus_connection from;
    char data[];
};

// What waits to be taken by the endpoint.
struct parcel {
    struct parcel *next;
    struct post *ends; // it ends with this, or NULL
    size_t length;
    char bytes[];
};

enum peer_state { PEER_NEW, PEER_DIALLED, PEER_UP, PEER_GONE };

// A rank of the other side.
struct peer {
    int rank;
    const char *uri;
    enum peer_state state;
    isthmus_connection way;   // by which this rank sends
    isthmus_connection other; // which it accepted while it dialled itself; used where the own one fails
    int ways, other_up;       // connections that are not over
    struct parcel *parcels, **parcels_end;
    struct post *receives, **receives_end;
    struct arrived *arrived, **arrived_end;
    struct post *untaken; // LONG ones that were sent
    uint64_t sent_short, matched_there; // bytes of short ones: sent, and known to be matched
    uint64_t matched, told_matched;     // the same of what comes
    char why[160]; // it is gone
};

struct link {
    struct isthmus_mpi_coupling *c;
    isthmus_endpoint endpoint;
    int open, part;
    uint8_t token[TOKEN_LEN];
    char uri[ISTHMUS_URI_MAX];
    char *uris; // of the other side's ranks, each with its end
    struct peer *peers;
    int remote;
    int waiting;             // parcels of all peers
    uint64_t numbers;
    struct post *unread;    // LONG ones that could not be read yet
    struct post *cancelled; // receives that the MPI is to be told of
    struct post *reading;
    char why[192]; // the first loss
};

// link.c
int link_open(struct link *link, struct trouble *trouble);
void link_close(struct link *link);
// Makes room for the other side's ranks.
void link_know(struct link *link, char *uris, int remote);
// Begins to connect where nobody has.
void peer_need(struct link *link, struct peer *peer);
// Sends a head and what follows it; `ends`, where not NULL, ends when the endpoint has taken it.
void peer_send(struct link *link, struct peer *peer, const struct head *head, const void *data, size_t length, struct post *ends);
// Takes the events that are there; waits for one for so long.
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
// What could not be done before is tried again.
void matching_turn(struct link *link);
// Nothing more goes to a peer, or comes from there.
void matching_lose(struct link *link, struct peer *peer);

#endif
