// Messages over endpoints. A short message is sent at once, within the receiver's credit. For a long one, the sender
// announces its memory. Once there is a receive, the receiver reads that memory and reports that it has done so.
#include "link.h"

#include <stdlib.h>
#include <string.h>

// Credit: short messages without a receive that a receiver keeps for each peer. Bytes: 1 Gb/s at a round trip of 32 ms.
// Below: when it reports free room.
#define CREDIT_BYTES ((uint64_t)4 << 20)
#define CREDIT_STEP ((uint64_t)1 << 20)
// Overhead of a kept message. Bytes.
enum { KEEPING = 96 };
// Errors of posts, in the MPI_TAG of their MPI_Status.
enum { POST_LOST = 1, POST_TOO_LONG };

// --- posts as generalized requests ---------------------------------------------------

static int on_query(void *state, MPI_Status *status)
{
    const struct post *post = state;
    MPI_Status_set_elements_x(status, MPI_BYTE, post->received);
    MPI_Status_set_cancelled(status, 0);
    status->MPI_SOURCE = post->peer ? post->peer->rank : MPI_UNDEFINED;
    status->MPI_TAG = post->error;
    return MPI_SUCCESS;
}

static int on_free(void *state)
{
    free(state);
    return MPI_SUCCESS;
}

// Removes a post from a list. Returns whether it was there.
static int take_out(struct post **list, const struct post *post)
{
    for (; *list && *list != post; list = &(*list)->next)
        ;
    if (!*list)
        return 0;
    *list = post->next;
    return 1;
}

static void fix_end(struct peer *peer)
{
    for (peer->receives_end = &peer->receives; *peer->receives_end; peer->receives_end = &(*peer->receives_end)->next)
        ;
}

// Only a receive that waits can be cancelled. Its memory is free at once; its request ends at the next turn.
static int on_cancel(void *state, int complete)
{
    struct post *post = state;
    if (complete || !take_out(&post->peer->receives, post))
        return MPI_SUCCESS;
    fix_end(post->peer);
    post->next = post->link->cancelled;
    post->link->cancelled = post;
    return MPI_SUCCESS;
}

static struct post *new_post(struct link *link, int channel, void *data, int64_t bytes, int rank, int tag)
{
    struct post *post = calloc(1, sizeof *post);
    if (!post)
        MPI_Abort(link->c->local, ISTHMUS_MPI_MEMORY); // some bytes: what could follow?
    *post = (struct post){.link = link, .peer = &link->peers[rank], .channel = channel, .tag = tag, .data = data,
                          .bytes = bytes};
    MPI_Grequest_start(on_query, on_free, on_cancel, post, &post->request);
    return post;
}

void post_end(struct post *post, int error)
{
    if (post->registered)
        isthmus_deregister(post->link->endpoint, post->region);
    post->registered = 0;
    if (!post->error)
        post->error = error;
    MPI_Grequest_complete(post->request);
}

// --- sending -------------------------------------------------------------------------

static struct head head_of(const struct post *post, enum parcel_kind kind)
{
    return (struct head){.kind = (uint8_t)kind, .channel = (uint8_t)post->channel, .tag = post->tag, .length = post->bytes,
                         .number = post->number};
}

static void send_short(struct link *link, struct post *post)
{
    struct head head = head_of(post, SHORT);
    post->peer->sent_short += (uint64_t)post->bytes + KEEPING;
    peer_send(link, post->peer, &head, post->data, (size_t)post->bytes, post);
}

static void send_long(struct link *link, struct post *post)
{
    isthmus_memory memory = {{0}};
    if (post->bytes > 0) {
        if (isthmus_register(link->endpoint, post->data, (size_t)post->bytes, ISTHMUS_REMOTE_READ, &post->region, &memory) !=
            ISTHMUS_SUCCESS) {
            post_end(post, POST_LOST);
            return;
        }
        post->registered = 1;
    }
    post->number = ++link->numbers;
    struct head head = head_of(post, LONG);
    post->next = NULL;
    struct post **end = &post->peer->untaken;
    while (*end)
        end = &(*end)->next;
    *end = post;
    peer_send(link, post->peer, &head, &memory, sizeof memory, NULL);
}

int post_send(struct link *link, int channel, const void *data, int64_t bytes, int rank, int tag, MPI_Request *request)
{
    // The data are only read. Sends and receives share one pointer without const.
    struct post *post = new_post(link, channel, (void *)(uintptr_t)data, bytes, rank, tag);
    struct peer *peer = post->peer;
    *request = post->request;
    if (!link->open || peer->state == PEER_GONE)
        post_end(post, POST_LOST);
    else if (bytes <= SHORT_MOST && peer->sent_short + (uint64_t)bytes + KEEPING - peer->matched_there <= CREDIT_BYTES)
        send_short(link, post);
    else
        send_long(link, post);
    return MPI_SUCCESS;
}

// --- receiving -----------------------------------------------------------------------

static void say(struct link *link, struct peer *peer, enum parcel_kind kind, uint64_t number)
{
    struct head head = {.kind = (uint8_t)kind, .number = number};
    peer_send(link, peer, &head, NULL, 0, NULL);
}

// Counts a short message that was matched, which frees its credit.
static void count_matched(struct link *link, struct peer *peer, int64_t bytes)
{
    peer->matched += (uint64_t)bytes + KEEPING;
    if (peer->matched - peer->told_matched >= CREDIT_STEP)
        say(link, peer, CREDIT, 0);
}

static void take_short(struct link *link, struct post *post, const struct head *head, const void *data)
{
    int fits = head->length <= post->bytes;
    if (fits && head->length > 0)
        memcpy(post->data, data, (size_t)head->length);
    post->received = head->length;
    count_matched(link, post->peer, head->length);
    post_end(post, fits ? 0 : POST_TOO_LONG);
}

static void has_been_taken(struct link *link, struct post *post, int error)
{
    say(link, post->peer, TAKEN, post->number);
    post_end(post, error);
}

// Posts the read of a long message. Returns whether the endpoint took it.
static int try_read(struct link *link, struct post *post)
{
    int status = isthmus_read(link->endpoint, post->from, post->region, 0, &post->memory, 0, (uint64_t)post->received, NULL, 0,
                              post, 0);
    if (status == ISTHMUS_FULL || (status == ISTHMUS_STATE && post->peer->state != PEER_GONE))
        return 0;
    if (status == ISTHMUS_SUCCESS) {
        post->next = link->reading;
        link->reading = post;
    } else {
        post_end(post, POST_LOST);
    }
    return 1;
}

static void take_long(struct link *link, struct post *post, const struct head *head, const void *memory, isthmus_connection from)
{
    post->number = head->number;
    post->received = head->length;
    post->from = from;
    memcpy(&post->memory, memory, sizeof post->memory);
    if (head->length > post->bytes || head->length == 0) {
        has_been_taken(link, post, head->length > post->bytes ? POST_TOO_LONG : 0);
        return;
    }
    if (isthmus_register(link->endpoint, post->data, (size_t)head->length, 0, &post->region, NULL) != ISTHMUS_SUCCESS) {
        post_end(post, POST_LOST);
        return;
    }
    post->registered = 1;
    if (!try_read(link, post)) {
        post->next = link->unread;
        link->unread = post;
    }
}

void on_read(struct link *link, struct post *post, int status)
{
    if (!take_out(&link->reading, post))
        return;
    if (status == ISTHMUS_SUCCESS)
        has_been_taken(link, post, 0);
    else
        post_end(post, POST_LOST);
}

int post_receive(struct link *link, int channel, void *room, int64_t bytes, int rank, int tag, MPI_Request *request)
{
    struct post *post = new_post(link, channel, room, bytes, rank, tag);
    struct peer *peer = post->peer;
    *request = post->request;
    struct arrived **from = &peer->arrived, *found;
    while ((found = *from) && (found->head.channel != channel || found->head.tag != tag))
        from = &found->next;
    if (found) {
        *from = found->next;
        if (!found->next)
            peer->arrived_end = from;
        if (found->head.kind == SHORT)
            take_short(link, post, &found->head, found->data);
        else if (link->open && peer->state != PEER_GONE)
            take_long(link, post, &found->head, found->data, found->from);
        else
            post_end(post, POST_LOST);
        free(found);
    } else if (!link->open || peer->state == PEER_GONE) {
        post_end(post, POST_LOST);
    } else {
        *peer->receives_end = post;
        peer->receives_end = &post->next;
        // Connects, so that a loss of the peer is noticed.
        peer_need(link, peer);
    }
    return MPI_SUCCESS;
}

static void keep(struct link *link, struct peer *peer, const struct head *head, const void *data, size_t length,
                 isthmus_connection from)
{
    struct arrived *arrived = malloc(sizeof *arrived + length);
    if (!arrived)
        MPI_Abort(link->c->local, ISTHMUS_MPI_MEMORY); // what the peer was promised: CREDIT_BYTES of each
    arrived->next = NULL;
    arrived->head = *head;
    arrived->from = from;
    memcpy(arrived->data, data, length);
    *peer->arrived_end = arrived;
    peer->arrived_end = &arrived->next;
}

static void on_message(struct link *link, struct peer *peer, const struct head *head, const void *data, size_t length,
                       isthmus_connection from)
{
    struct post **at = &peer->receives, *post;
    while ((post = *at) && (post->channel != head->channel || post->tag != head->tag))
        at = &post->next;
    if (!post) {
        keep(link, peer, head, data, length, from);
        return;
    }
    *at = post->next;
    if (!post->next)
        peer->receives_end = at;
    if (head->kind == SHORT)
        take_short(link, post, head, data);
    else
        take_long(link, post, head, data, from);
}

static void on_taken(struct peer *peer, uint64_t number)
{
    struct post *post = peer->untaken;
    while (post && post->number != number)
        post = post->next;
    if (post && take_out(&peer->untaken, post))
        post_end(post, 0);
}

// Handles an incoming message. Invalid ones, which only another build sends, are ignored.
void on_parcel(struct link *link, struct peer *peer, const isthmus_event *event)
{
    struct head head;
    if (event->len < sizeof head)
        return;
    memcpy(&head, event->data, sizeof head);
    const char *data = (const char *)event->data + sizeof head;
    size_t length = event->len - sizeof head;
    if (head.matched > peer->matched_there && head.matched <= peer->sent_short)
        peer->matched_there = head.matched;
    if (head.kind == TAKEN)
        on_taken(peer, head.number);
    else if ((head.kind == SHORT && head.length == (int64_t)length) ||
             (head.kind == LONG && head.length >= 0 && length == sizeof(isthmus_memory)))
        on_message(link, peer, &head, data, length, event->connection);
}

// --- later ---------------------------------------------------------------------------

void matching_turn(struct link *link)
{
    struct post *post, *unread = link->unread;
    while ((post = link->cancelled)) {
        link->cancelled = post->next;
        MPI_Grequest_complete(post->request);
    }
    link->unread = NULL;
    while ((post = unread)) {
        unread = post->next;
        if (!try_read(link, post)) {
            post->next = link->unread;
            link->unread = post;
        }
    }
}

static void lose_all(struct post **list, const struct peer *peer)
{
    for (struct post *post; (post = *list);) {
        if (post->peer != peer) {
            list = &post->next;
            continue;
        }
        *list = post->next;
        post_end(post, POST_LOST);
    }
}

// Reads under way get an event of their own, so they end here only if the endpoint is closed.
void matching_lose(struct link *link, struct peer *peer)
{
    lose_all(&peer->receives, peer);
    peer->receives_end = &peer->receives;
    lose_all(&peer->untaken, peer);
    lose_all(&link->unread, peer);
    if (!link->open)
        lose_all(&link->reading, peer);
}

// --- as an exchange ------------------------------------------------------------------

static int link_send(struct isthmus_mpi_coupling *c, enum channel channel, const void *data, int64_t bytes, int rank, int tag,
                     MPI_Request *request)
{
    return post_send(c->link, (int)channel, data, bytes, rank, tag, request);
}

static int link_receive(struct isthmus_mpi_coupling *c, enum channel channel, void *room, int64_t bytes, int rank, int tag,
                        MPI_Request *request)
{
    return post_receive(c->link, (int)channel, room, bytes, rank, tag, request);
}

static void turn(struct isthmus_mpi_coupling *c)
{
    link_turn(c->link, 0);
}

static void wait_a_little(struct isthmus_mpi_coupling *c)
{
    if (c->link->open)
        link_turn(c->link, REST_MOST_NS / 1000);
    else
        rest(REST_NS);
}

static int error_of(const struct isthmus_mpi_coupling *c, const MPI_Status *status)
{
    (void)c;
    return status->MPI_TAG == POST_TOO_LONG ? MPI_ERR_TRUNCATE : status->MPI_TAG ? MPI_ERR_OTHER : MPI_SUCCESS;
}

static void flush(struct isthmus_mpi_coupling *c)
{
    link_flush(c->link);
}

static int abandon(struct isthmus_mpi_coupling *c)
{
    link_close(c->link);
    return 1;
}

static int end(struct isthmus_mpi_coupling *c)
{
    struct link *link = c->link;
    link_flush(link);
    link_close(link);
    for (int i = 0; i < link->remote; i++)
        for (struct arrived *arrived; (arrived = link->peers[i].arrived);) {
            link->peers[i].arrived = arrived->next;
            free(arrived);
        }
    free(link->uris);
    free(link->peers);
    free(link);
    return MPI_SUCCESS;
}

static void explain(const struct isthmus_mpi_coupling *c, int error, struct trouble *trouble, const char *what)
{
    (void)error;
    note(trouble, ISTHMUS_MPI_LOST, "%s%s%s", what, c->link->why[0] ? ": " : "", c->link->why);
}

const struct exchange over_link = {.send = link_send, .receive = link_receive, .turn = turn, .wait = wait_a_little,
                                   .error = error_of, .flush = flush, .abandon = abandon, .end = end, .explain = explain};
