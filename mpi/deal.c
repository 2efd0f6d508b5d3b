// Deals the pieces of a file to a sender's ranks. Rank 0 gives each rank the front of the rank's own share. When that
// is empty, it gives the end of the share with most left. The portions shrink with the rest. At the end, no rank takes
// more than its path carries soon. So a rank with a slow path leaves its share to the others.
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
        MPI_Irecv(&deal->asked, sizeof deal->asked, MPI_BYTE, MPI_ANY_SOURCE, TAG_ASK, t->c->local,
                  &t->requests[deal_request(t)]);
    else
        MPI_Irecv(&deal->granted, sizeof deal->granted, MPI_BYTE, 0, TAG_GRANT, t->c->local,
                  &t->requests[deal_request(t)]);
}

void deal_begin(struct transfer *t)
{
    struct deal *deal = &t->deal;
    if (!t->sends || t->what != KIND_FILE)
        return;
    deal->looked = now_s();
    if (t->c->rank != 0)
        return;
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
    int64_t bytes = 0;
    for (int i = 0; i < t->c->ranks; i++)
        bytes += t->deal.shares[i].end - t->deal.shares[i].next;
    return bytes;
}

// Whole blocks, at least one.
static int64_t rounded(const struct transfer *t, int64_t bytes)
{
    return bytes > t->block ? bytes / t->block * t->block : t->block;
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

void deal_turn(struct transfer *t)
{
    struct deal *deal = &t->deal;
    if (!t->sends || t->what != KIND_FILE || t->lost || t->stopped || deal->asking || deal->none ||
        deal->taken.next < deal->taken.end || deal->under_way >= most_under_way(t))
        return;
    if (t->c->rank == 0) {
        struct grant grant = portion(t, 0);
        take(t, &grant);
        return;
    }
    deal->asked = t->c->serial;
    deal->asking = 1;
    await_word(t);
    MPI_Send(&deal->asked, sizeof deal->asked, MPI_BYTE, 0, TAG_ASK, t->c->local);
}

// Ignores messages of an earlier transfer, which nobody awaited any more.
void on_deal(struct transfer *t, int source)
{
    struct deal *deal = &t->deal;
    if (t->c->rank == 0) {
        if (deal->asked == t->c->serial) {
            struct grant grant = portion(t, source);
            MPI_Send(&grant, sizeof grant, MPI_BYTE, source, TAG_GRANT, t->c->local);
        }
        await_word(t);
    } else if (deal->granted.serial == t->c->serial) {
        deal->asking = 0;
        take(t, &deal->granted);
    } else {
        await_word(t);
    }
}

int deal_next(struct transfer *t, struct slot *slot)
{
    struct range *taken = &t->deal.taken;
    int64_t most = t->deal.begun > FIRST_PIECE ? t->deal.begun : FIRST_PIECE;
    if (most > t->piece)
        most = t->piece;
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
