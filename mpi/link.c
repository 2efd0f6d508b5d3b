// Connections with ranks of the other side. A rank connects to another when it first sends to it or receives from it.
// So there are only as many connections as are used.
#include "link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Most events that are taken before the MPI makes progress again. Count.
enum { EVENTS_AT_ONCE = 256 };
// Longest wait until everything sent is on its way. Seconds.
#define FLUSH_S 10.0

int link_open(struct link *link, struct trouble *trouble)
{
    struct isthmus_endpoint_options options = {.size = sizeof options, .message_max = PARCEL_MOST};
    if (isthmus_init(ISTHMUS_ABI_VERSION) != ISTHMUS_SUCCESS)
        note(trouble, ISTHMUS_MPI_COUPLING, "%.250s", isthmus_last_error());
    else if (isthmus_create_endpoint(NULL, &options, &link->endpoint, NULL) != ISTHMUS_SUCCESS)
        note(trouble, ISTHMUS_MPI_COUPLING, "cannot open an endpoint: %.250s", isthmus_last_error());
    else
        link->open = 1;
    if (link->open && isthmus_uri(link->endpoint, link->uri, sizeof link->uri) != ISTHMUS_SUCCESS)
        note(trouble, ISTHMUS_MPI_COUPLING, "the endpoint has no address: %.250s", isthmus_last_error());
    return !trouble->code;
}

void link_know(struct link *link, char *uris, int remote)
{
    link->uris = uris;
    link->remote = remote;
    link->peers = calloc((size_t)remote, sizeof *link->peers);
    if (!link->peers)
        MPI_Abort(link->c->local, ISTHMUS_MPI_MEMORY); // some bytes for each rank: what could follow?
    for (int i = 0; i < remote; i++, uris += strlen(uris) + 1) {
        struct peer *peer = &link->peers[i];
        peer->rank = i;
        peer->uri = uris;
        peer->parcels_end = &peer->parcels;
        peer->receives_end = &peer->receives;
        peer->arrived_end = &peer->arrived;
    }
}

static void drop_parcels(struct link *link, struct peer *peer)
{
    for (struct parcel *parcel; (parcel = peer->parcels);) {
        peer->parcels = parcel->next;
        link->waiting--;
        // The message was not sent, so its post ends with POST_LOST (1).
        if (parcel->ends)
            post_end(parcel->ends, 1);
        free(parcel);
    }
    peer->parcels_end = &peer->parcels;
}

static void lose_peer(struct link *link, struct peer *peer, const char *why)
{
    if (peer->state == PEER_GONE)
        return;
    peer->state = PEER_GONE;
    if (!link->why[0])
        snprintf(link->why, sizeof link->why, "its rank %d: %.150s", peer->rank, why && why[0] ? why : "it has uncoupled or ended");
    drop_parcels(link, peer);
    matching_lose(link, peer);
}

void link_close(struct link *link)
{
    if (!link->open)
        return;
    link->open = 0;
    isthmus_destroy_endpoint(link->endpoint);
    for (int i = 0; i < link->remote; i++)
        lose_peer(link, &link->peers[i], "this side has ended the coupling");
    for (int i = 0; i < link->remote; i++)
        matching_lose(link, &link->peers[i]); // what a lost one still had under way
    matching_turn(link);
}

// --- what goes out -------------------------------------------------------------------

void peer_need(struct link *link, struct peer *peer)
{
    struct hello hello = {.magic = LINK_MAGIC, .oldest = LINK_OLDEST, .newest = LINK_NEWEST, .rank = link->c->rank};
    if (peer->state != PEER_NEW)
        return;
    memcpy(hello.token, link->token, TOKEN_LEN);
    int status = isthmus_connect(link->endpoint, peer->uri, &hello, sizeof hello, ISTHMUS_RO, peer, 0, &peer->way);
    if (status != ISTHMUS_SUCCESS) {
        lose_peer(link, peer, isthmus_last_error());
        return;
    }
    peer->state = PEER_DIALLED;
    peer->ways++;
}

static int hand_over(struct link *link, const struct peer *peer, const struct iovec *pieces, size_t count)
{
    return isthmus_sendv(link->endpoint, peer->way, pieces, count, NULL, ISTHMUS_SILENT) == ISTHMUS_SUCCESS;
}

static void queue(struct link *link, struct peer *peer, const struct iovec *pieces, struct post *ends)
{
    size_t length = pieces[0].iov_len + pieces[1].iov_len;
    struct parcel *parcel = malloc(sizeof *parcel + length);
    if (!parcel)
        MPI_Abort(link->c->local, ISTHMUS_MPI_MEMORY); // some kilobytes: what could follow?
    *parcel = (struct parcel){.ends = ends, .length = length};
    memcpy(parcel->bytes, pieces[0].iov_base, pieces[0].iov_len);
    if (pieces[1].iov_len)
        memcpy(parcel->bytes + pieces[0].iov_len, pieces[1].iov_base, pieces[1].iov_len);
    *peer->parcels_end = parcel;
    peer->parcels_end = &parcel->next;
    link->waiting++;
}

void peer_send(struct link *link, struct peer *peer, const struct head *head, const void *data, size_t length, struct post *ends)
{
    struct head full = *head;
    if (peer->state == PEER_GONE || !link->open) {
        if (ends)
            post_end(ends, 1);
        return;
    }
    full.matched = peer->told_matched = peer->matched;
    // The data are only read, but an iovec has no const.
    struct iovec pieces[2] = {{&full, sizeof full}, {(void *)(uintptr_t)data, length}};
    if (peer->state == PEER_UP && !peer->parcels && hand_over(link, peer, pieces, length ? 2 : 1)) {
        if (ends)
            post_end(ends, 0);
        return;
    }
    queue(link, peer, pieces, ends);
    peer_need(link, peer);
}

static void send_waiting(struct link *link, struct peer *peer)
{
    for (struct parcel *parcel; peer->state == PEER_UP && (parcel = peer->parcels);) {
        struct iovec piece = {parcel->bytes, parcel->length};
        if (!hand_over(link, peer, &piece, 1))
            return;
        peer->parcels = parcel->next;
        if (!peer->parcels)
            peer->parcels_end = &peer->parcels;
        link->waiting--;
        if (parcel->ends)
            post_end(parcel->ends, 0);
        free(parcel);
    }
}

void link_flush(struct link *link)
{
    double until = now_s() + FLUSH_S;
    while (link->open && link->waiting && now_s() < until)
        link_turn(link, REST_MOST_NS / 1000);
}

// --- what comes in -------------------------------------------------------------------

static enum refusal judge(const struct link *link, const struct hello *hello, size_t length)
{
    if (length != sizeof *hello || hello->magic != LINK_MAGIC)
        return REFUSED_STRANGER;
    if (hello->oldest > LINK_NEWEST || hello->newest < LINK_OLDEST)
        return REFUSED_VERSION;
    if (hello->rank == FIRST_CALL)
        return REFUSED_TAKEN;
    if (memcmp(hello->token, link->token, TOKEN_LEN) != 0 || hello->rank < 0 || hello->rank >= link->remote)
        return REFUSED_STRANGER;
    return link->peers[hello->rank].ways > 1 || link->peers[hello->rank].state == PEER_GONE ? REFUSED_TAKEN : 0;
}

void on_request(struct link *link, const isthmus_event *event)
{
    struct hello hello = {0};
    isthmus_connection connection;
    if (event->len == sizeof hello)
        memcpy(&hello, event->data, sizeof hello);
    enum refusal refusal = judge(link, &hello, event->len);
    if (refusal) {
        isthmus_reject(link->endpoint, event, refusal, NULL, 0);
        return;
    }
    struct peer *peer = &link->peers[hello.rank];
    if (isthmus_accept(link->endpoint, event, peer, &connection) != ISTHMUS_SUCCESS)
        return; // it is gone again
    peer->ways++;
    if (peer->state == PEER_NEW) {
        peer->way = connection;
        peer->state = PEER_DIALLED;
    } else {
        peer->other = connection;
        peer->other_up = 0;
    }
}

static void on_established(struct peer *peer, const isthmus_event *event)
{
    if (event->connection.id == peer->way.id)
        peer->state = PEER_UP;
    else
        peer->other_up = 1;
}

// Handles the failure or end of a connection.
static void on_over(struct link *link, struct peer *peer, const isthmus_event *event)
{
    peer->ways--;
    if (event->connection.id == peer->way.id && peer->other_up) {
        peer->way = peer->other;
        peer->other_up = 0;
        if (peer->state == PEER_DIALLED)
            peer->state = PEER_UP;
    } else if (event->connection.id == peer->other.id) {
        peer->other_up = 0;
    }
    if (peer->ways > 0)
        return;
    const char *parted = event->status == ISTHMUS_DISCONNECTED ? "it has uncoupled" : event->text;
    lose_peer(link, peer, parted);
}

static void on_event(struct link *link, const isthmus_event *event)
{
    // The first connection was made before its rank was known: it is rank 0's.
    struct peer *peer = event->context == link ? &link->peers[0] : event->context;
    switch (event->kind) {
    case ISTHMUS_EVENT_REQUEST:
        on_request(link, event);
        break;
    case ISTHMUS_EVENT_CONNECT:
    case ISTHMUS_EVENT_ACCEPT:
        if (event->status == ISTHMUS_SUCCESS)
            on_established(peer, event);
        else
            on_over(link, peer, event);
        break;
    case ISTHMUS_EVENT_RECV:
        on_parcel(link, peer, event);
        break;
    case ISTHMUS_EVENT_SEND:
        if (event->operation)
            on_read(link, event->operation, event->status);
        break;
    case ISTHMUS_EVENT_DISCONNECT:
        isthmus_disconnect(link->endpoint, event->connection);
        on_over(link, peer, event);
        break;
    default: // silence, or a device: the connections tell what comes of it
        break;
    }
}

void link_turn(struct link *link, int64_t wait_us)
{
    isthmus_event event;
    for (int i = 0; link->open && i < EVENTS_AT_ONCE; i++) {
        int status = isthmus_get_event(link->endpoint, &event);
        if (status == ISTHMUS_AGAIN && i == 0 && wait_us > 0)
            status = isthmus_wait_event(link->endpoint, wait_us, &event);
        if (status != ISTHMUS_SUCCESS)
            break;
        on_event(link, &event);
        isthmus_return_event(link->endpoint, &event);
    }
    for (int i = 0; link->waiting && i < link->remote; i++)
        send_waiting(link, &link->peers[i]);
    matching_turn(link);
}
