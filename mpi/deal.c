// Deals the pieces of a file to a sender's ranks. Rank 0 gives each rank the front of the rank's own share. When that is
// empty, it gives the end of the share with most left. The portions shrink with the rest. At the end, no rank takes
// more than its path carries soon. So a rank with a slow path leaves its share to the others.
//
// If the file lies on several storage targets, there are no shares. Rank 0 gives each rank a piece of the target with
// the fewest under way (targets.c). A receiver's rank 0 then also says which of the pieces that have arrived each rank
// writes next.
#include "internal.h"

#include <stdlib.h>

// A portion is the rest divided by SHARES_OF_REST times the ranks, but at most PORTION pieces. Counts.
enum { PORTION = 4, SHARES_OF_REST = 4 };
// Near the end, a rank has at most as much under way as takes TRIPS round trips and SLACK seconds. On a path longer
// than USUAL_TRIP_S it is more trips in proportion, up to TRIPS_MOST: a lost packet comes one or two round trips later,
// and a piece that waits for it is still under way.
enum { TRIPS = 3, TRIPS_MOST = 8 };
#define SLACK 0.02
#define USUAL_TRIP_S 0.024
// The same limit before the first delivery, on a path of up to USUAL_TRIP_S; in proportion more on a longer one. Bytes.
#define AT_FIRST (4 * MIB)
// Length of a rank's first piece. Bytes. Each next one is as long as all before it together, up to the usual length. So
// the network need not wait until a long piece has been read.
#define FIRST_PIECE MIB
// The remembered rate falls at most to this share at each measurement.
#define FADING 0.9
// Interval at which a rank measures its path's rate; at least a round trip. Seconds.
#define LOOK 0.02

static void await_word(struct transfer *t)
{
    struct deal *deal = &t->deal;
    if (t->c->rank == 0)
        MPI_Irecv(&deal->heard, sizeof deal->heard, MPI_BYTE, MPI_ANY_SOURCE, TAG_ASK, t->c->local,
                  &t->requests[deal_request(t)]);
    else
        MPI_Irecv(&deal->granted, sizeof deal->granted, MPI_BYTE, 0, TAG_GRANT, t->c->local,
                  &t->requests[deal_request(t)]);
}

void deal_begin(struct transfer *t)
{
    struct deal *deal = &t->deal;
    if (t->what != KIND_FILE || !(t->sends || by_target(t)))
        return;
    deal->looked = now_s();
    // A receiver's rank is given pieces without asking.
    if (t->c->rank != 0 && !t->sends)
        await_word(t);
    if (t->c->rank != 0)
        return;
    if (by_target(t))
        deal->left = targets_begin(t);
    deal->shares = calloc((size_t)t->c->ranks, sizeof *deal->shares);
    if (!deal->shares)
        MPI_Abort(t->c->local, ISTHMUS_MPI_MEMORY); // some bytes for each rank: what could follow?
    for (int i = 0; i < t->c->ranks; i++)
        deal->shares[i] = (struct range){t->mine[i], t->mine[i + 1]};
    if (t->c->ranks > 1)
        await_word(t);
}

static int64_t left(const struct transfer *t)
{
    int64_t bytes = t->deal.left;
    for (int i = 0; i < t->c->ranks && !by_target(t); i++)
        bytes += t->deal.shares[i].end - t->deal.shares[i].next;
    return bytes;
}

// Whole pieces, or less than one piece in whole blocks, at least one.
static int64_t rounded(const struct transfer *t, int64_t bytes)
{
    int64_t unit = bytes < t->piece ? t->block : t->piece;
    return bytes > unit ? bytes / unit * unit : unit;
}

// At rank 0: the next portion for this rank.
static struct grant portion(struct transfer *t, int rank)
{
    struct range *own = &t->deal.shares[rank], *most = own;
    struct grant grant = {.serial = t->c->serial};
    if (t->stopped || t->lost)
        return grant;
    int64_t all = left(t), wanted = all / (SHARES_OF_REST * t->c->ranks);
    grant.few = t->c->ranks > 1 && all < t->c->ranks * window_of(t->c, t->piece, t->options.memory);
    if (by_target(t)) {
        grant.range = targets_take(t, rank);
        t->deal.left -= grant.range.end - grant.range.next;
        return grant;
    }
    wanted = rounded(t, wanted < PORTION * t->piece ? wanted : PORTION * t->piece);
    if (own->next < own->end) {
        grant.range = (struct range){own->next, own->end - own->next < wanted ? own->end : own->next + wanted};
        own->next = grant.range.end;
        return grant;
    }
    for (int i = 0; i < t->c->ranks; i++)
        if (t->deal.shares[i].end - t->deal.shares[i].next > most->end - most->next)
            most = &t->deal.shares[i];
    // The share begins at a block, but need not end at one.
    int64_t blocks = (most->end - most->next + t->block - 1) / t->block, taken = wanted / t->block;
    grant.range = (struct range){most->next + (blocks > taken ? blocks - taken : 0) * t->block, most->end};
    most->end = grant.range.next;
    return grant;
}

void deal_delivered(struct transfer *t, int64_t bytes)
{
    struct deal *deal = &t->deal;
    double since = now_s() - deal->looked, rtt = t->c->rtt_s;
    deal->under_way -= bytes;
    deal->delivered += bytes;
    if (since < (rtt > LOOK ? rtt : LOOK))
        return;
    double rate = (double)deal->delivered / since;
    deal->rate = rate > FADING * deal->rate ? rate : FADING * deal->rate;
    deal->delivered = 0;
    deal->looked += since;
}

// Limit on the bytes that this rank has under way.
static int64_t most_under_way(const struct transfer *t)
{
    const struct deal *deal = &t->deal;
    double rtt = t->c->rtt_s, longer = rtt > USUAL_TRIP_S ? rtt / USUAL_TRIP_S : 1;
    double trips = longer * TRIPS < TRIPS_MOST ? longer * TRIPS : TRIPS_MOST;
    int64_t window = t->count * t->piece, soon = (int64_t)(deal->rate * (trips * rtt + SLACK));
    if (!deal->few)
        return window;
    if (deal->rate == 0)
        soon = (int64_t)((double)AT_FIRST * longer);
    // At least two pieces: while one is under way the next is read.
    if (soon < 2 * deal->longest)
        soon = 2 * deal->longest;
    return soon < window ? soon : window;
}

static void take(struct transfer *t, const struct grant *grant)
{
    struct deal *deal = &t->deal;
    deal->few = grant->few != 0;
    deal->none = grant->range.next >= grant->range.end;
    deal->taken = grant->range;
    deal->longest = grant->range.end - grant->range.next;
    if (deal->longest > t->piece)
        deal->longest = t->piece;
}

// At a receiver: begins to write the piece that rank 0 gives. Once the other side is lost, the file may be closed.
static void write_piece(struct transfer *t, int64_t offset)
{
    for (int i = 0; i < t->count && !t->lost; i++) {
        struct slot *slot = &t->slots[i];
        if (!slot->waits || slot->offset != offset)
            continue;
        slot->waits = 0;
        slot->given = 1;
        pool_put(&t->pool, i);
        return;
    }
}

// At rank 0 of a receiver: gives a rank pieces for its idle disk threads.
static void give(struct transfer *t, int rank)
{
    for (;;) {
        struct grant grant = {.serial = t->c->serial, .range = targets_take(t, rank)};
        if (grant.range.next >= grant.range.end)
            return;
        if (rank == 0)
            write_piece(t, grant.range.next);
        else
            MPI_Send(&grant, sizeof grant, MPI_BYTE, rank, TAG_GRANT, t->c->local);
    }
}

// At rank 0: handles the news of a rank.
static void hear(struct transfer *t, int source, const struct news *news)
{
    if (news->kind == WANTED) {
        struct grant grant = portion(t, source);
        MPI_Send(&grant, sizeof grant, MPI_BYTE, source, TAG_GRANT, t->c->local);
        return;
    }
    if (news->kind == ENDED)
        targets_done(t, source, news->piece);
    else
        targets_arrived(t, source, news->piece);
    if (!t->sends)
        give(t, source);
}

static void tell_news(struct transfer *t, int kind, struct range piece)
{
    struct news news = {.serial = t->c->serial, .kind = kind, .piece = piece};
    if (t->c->rank == 0)
        hear(t, 0, &news);
    else
        MPI_Send(&news, sizeof news, MPI_BYTE, 0, TAG_ASK, t->c->local);
}

void deal_turn(struct transfer *t)
{
    struct deal *deal = &t->deal;
    if (!t->sends || t->what != KIND_FILE || t->lost || t->stopped || deal->asking || deal->none ||
        deal->taken.next < deal->taken.end || deal->under_way >= most_under_way(t))
        return;
    // A piece that waits for a disk thread, or for memory, would keep a target from another rank.
    if (by_target(t) && (t->reading >= t->options.threads || !t->unused_count))
        return;
    if (t->c->rank == 0) {
        struct grant grant = portion(t, 0);
        take(t, &grant);
        return;
    }
    deal->asking = 1;
    await_word(t);
    tell_news(t, WANTED, (struct range){0, 0});
}

void deal_read(struct transfer *t, const struct slot *slot)
{
    if (by_target(t))
        tell_news(t, ENDED, (struct range){slot->offset, slot->offset + slot->length});
}

void deal_arrived(struct transfer *t, int index)
{
    struct slot *slot = &t->slots[index];
    if (!by_target(t)) {
        pool_put(&t->pool, index);
        return;
    }
    slot->waits = 1;
    tell_news(t, ARRIVED, (struct range){slot->offset, slot->offset + slot->length});
}

void deal_written(struct transfer *t, struct slot *slot)
{
    slot->given = 0;
    tell_news(t, ENDED, (struct range){slot->offset, slot->offset + slot->length});
}

// Ignores messages of an earlier transfer, which nobody awaited any more.
void on_deal(struct transfer *t, int source)
{
    struct deal *deal = &t->deal;
    struct news news = deal->heard;
    struct grant grant = deal->granted;
    int is_own = (t->c->rank == 0 ? news.serial : grant.serial) == t->c->serial;
    // A sender's rank waits for a grant only while it has asked for one.
    if (t->c->rank == 0 || !t->sends || !is_own)
        await_word(t);
    if (!is_own)
        return;
    if (t->c->rank == 0) {
        hear(t, source, &news);
    } else if (t->sends) {
        deal->asking = 0;
        take(t, &grant);
    } else {
        write_piece(t, grant.range.next);
    }
}

int deal_next(struct transfer *t, struct slot *slot)
{
    struct range *taken = &t->deal.taken;
    int64_t most = t->deal.begun > FIRST_PIECE ? t->deal.begun : FIRST_PIECE;
    // By storage target rank 0 counts each piece that it gives, so a slot takes the whole.
    if (most > t->piece || by_target(t))
        most = t->piece;
    // Other pieces end where a multiple of their length does, so that they do not straddle stripes of the receiver's file.
    int64_t aligned = t->piece - taken->next % t->piece;
    if (most > aligned && !by_target(t))
        most = aligned;
    if (t->stopped)
        taken->next = taken->end;
    while (taken->next < taken->end && is_had(t, taken->next))
        taken->next += taken->end - taken->next < t->block ? taken->end - taken->next : t->block;
    if (taken->next >= taken->end)
        return 0;
    int64_t end = taken->next;
    do
        end += taken->end - end < t->block ? taken->end - end : t->block;
    while (end < taken->end && end - taken->next < most && !is_had(t, end));
    slot->offset = taken->next;
    slot->length = end - taken->next;
    taken->next = end;
    t->deal.under_way += slot->length;
    t->deal.begun += slot->length;
    return 1;
}

void deal_end(struct transfer *t)
{
    MPI_Request *request = &t->requests[deal_request(t)];
    if (*request != MPI_REQUEST_NULL) {
        MPI_Cancel(request);
        MPI_Wait(request, MPI_STATUS_IGNORE);
    }
}
