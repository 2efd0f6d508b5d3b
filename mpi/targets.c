// Storage targets: where a file's stripes lie, and the order in which the ranks of a side read or write its pieces.
//
// Rank 0 of a side has the schedule (isthmus.h). It gives a rank a piece of the target with the fewest pieces under
// way. So no target has two while another with work idles, as far as the ranks' disk threads suffice. A sender's rank
// asks for a piece when a disk thread is free. A receiver's rank reports each piece that has arrived, and writes it when
// rank 0 names it.
#include "internal.h"
#include "isthmus.h"

#include <stdlib.h>

// The variable with the path of a description file.
#define DESCRIPTION "ISTHMUS_LAYOUT"

// Room for this is needed at rank 0 only, and only for files.
struct targets {
    isthmus_layout layout;
    isthmus_schedule schedule;
    int *busy; // at a receiver: pieces that each rank writes
};

static int look(const char *path, const char *description, isthmus_layout *layout, struct trouble *trouble)
{
    if (isthmus_layout_of(path, description, layout) == ISTHMUS_SUCCESS)
        return 1;
    note(trouble, ISTHMUS_MPI_INVALID, "the layout of %.120s: %.180s", path, isthmus_last_error());
    return 0;
}

void targets_look(struct transfer *t, struct trouble *trouble)
{
    const char *description = getenv(DESCRIPTION), *there = t->store.temporary[0] ? t->store.temporary : t->store.path;
    struct targets *targets = calloc(1, sizeof *targets);
    if (!targets)
        MPI_Abort(t->c->local, ISTHMUS_MPI_MEMORY); // some kilobytes: what could follow?
    t->targets = targets;
    // A receiver's new file is described by the name that it will have, and has the attributes of its part.
    if (description && description[0] && !look(t->store.path, description, &targets->layout, trouble))
        return;
    if (!targets->layout.stripe)
        look(there, NULL, &targets->layout, trouble);
    t->stripe = (int64_t)targets->layout.stripe;
    t->target_count = (int)targets->layout.count;
}

int by_target(const struct transfer *t)
{
    // No file has a range that ends beyond INT64_MAX. Rank 0 refuses it (store_reserve), but the others go on until then.
    return t->what == KIND_FILE && t->target_count > 1 && !t->options.in_turn && t->stripe % t->block == 0 &&
           store_base(&t->store) % t->block == 0 && t->bytes <= INT64_MAX - store_base(&t->store);
}

// The schedule is used by rank 0 only, with arguments that it takes. So a refusal is a fault of ours.
static void must(const struct transfer *t, int status)
{
    if (status != ISTHMUS_SUCCESS)
        MPI_Abort(t->c->local, ISTHMUS_MPI_MEMORY);
}

// Adds the blocks that are to be sent, as long ranges. Returns their bytes.
static int64_t add_missing(struct transfer *t)
{
    int64_t all = 0, at = 0;
    while (at < t->bytes) {
        int64_t end = at;
        while (end < t->bytes && !is_had(t, end))
            end += t->bytes - end < t->block ? t->bytes - end : t->block;
        if (end > at)
            must(t, isthmus_schedule_add(t->targets->schedule, ISTHMUS_ANY_WORKER,
                                         (uint64_t)(store_base(&t->store) + at), (uint64_t)(end - at)));
        all += end - at;
        at = end > at ? end : at + t->block;
    }
    return all;
}

int64_t targets_begin(struct transfer *t)
{
    struct targets *targets = t->targets;
    must(t, isthmus_schedule_create(&targets->layout, (uint64_t)t->piece, &targets->schedule));
    targets->busy = calloc((size_t)t->c->ranks, sizeof *targets->busy);
    if (!targets->busy)
        MPI_Abort(t->c->local, ISTHMUS_MPI_MEMORY); // some bytes for each rank: what could follow?
    return t->sends ? add_missing(t) : 0;
}

struct range targets_take(struct transfer *t, int rank)
{
    uint64_t offset = 0, length = 0;
    uint32_t worker = t->sends ? ISTHMUS_ANY_WORKER : (uint32_t)rank;
    if (!t->sends && t->targets->busy[rank] >= t->options.threads)
        return (struct range){0, 0};
    if (isthmus_schedule_take(t->targets->schedule, worker, &offset, &length) != ISTHMUS_SUCCESS)
        return (struct range){0, 0};
    t->targets->busy[rank]++;
    return (struct range){(int64_t)offset - store_base(&t->store), (int64_t)(offset + length) - store_base(&t->store)};
}

void targets_arrived(struct transfer *t, int rank, struct range piece)
{
    must(t, isthmus_schedule_add(t->targets->schedule, (uint32_t)rank, (uint64_t)(store_base(&t->store) + piece.next),
                                 (uint64_t)(piece.end - piece.next)));
}

void targets_done(struct transfer *t, int rank, struct range piece)
{
    t->targets->busy[rank]--;
    must(t, isthmus_schedule_done(t->targets->schedule, (uint64_t)(store_base(&t->store) + piece.next)));
}

void targets_end(struct transfer *t)
{
    if (!t->targets)
        return;
    if (t->targets->schedule.id)
        isthmus_schedule_destroy(t->targets->schedule);
    free(t->targets->busy);
    free(t->targets);
}
