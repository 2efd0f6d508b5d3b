// Random collectives, each run twice: as the program calls it (MPI_), and by the MPI itself (PMPI_). With the collectives
// library preloaded these are two implementations, and every byte of both results must be the same.
//
// Some of the first are non-blocking, and some of these persistent. Several of them are under way at once, and end in any order, beside other calls.
// At the end: what a program may do while they are under way.
//
//   far_collectives SEED ROUNDS MOST [THREADS]
//
// MOST: units of three ints in a vector. With threads each has a communicator of its own. A failure names the round,
// which the same SEED repeats.
#include "check.h"

#include <pthread.h>
#include <stdbool.h>

enum { RANKS_MAX = 64, MARK = 0x5a };
enum what { BARRIER, BCAST, REDUCE, ALLREDUCE, GATHER, GATHERV, SCATTER, SCATTERV, ALLGATHER, ALLGATHERV, ALLTOALL, ALLTOALLV, ALLTOALLW, REDUCE_SCATTER_BLOCK,
            REDUCE_SCATTER, SCAN, EXSCAN, KINDS };
static const char *const NAMES[KINDS] = {"Barrier", "Bcast", "Reduce", "Allreduce", "Gather", "Gatherv", "Scatter", "Scatterv", "Allgather", "Allgatherv",
                                         "Alltoall", "Alltoallv", "Alltoallw", "Reduce_scatter_block", "Reduce_scatter", "Scan", "Exscan"};

#if (defined(OPEN_MPI) && OMPI_MAJOR_VERSION < 6) || MPI_VERSION < 4
#define LARGE_COUNTS 0
#else
#define LARGE_COUNTS 1
#endif

// Persistent collectives: where the library runs them, as its mpis.h says. Others have them, with faults of their own.
#if (defined(OPEN_MPI) && OMPI_MAJOR_VERSION >= 5) || (defined(MPICH_NUMVERSION) && MPICH_NUMVERSION >= 40200000 && !defined(I_MPI_NUMVERSION))
#define PERSISTENT 1
#else
#define PERSISTENT 0
#endif

#if defined(OPEN_MPI) || defined(I_MPI_VERSION)
#define SAME_DATATYPES 1
#else
#define SAME_DATATYPES 0
#endif

// A unit is three ints, laid out in one of these manners; all have the same signature.
enum { PLAIN, CONTIGUOUS, STRIDED, BACKWARDS, STRUCTURE, COLUMN, ROWS, LONELY, BLOCKS, LAYOUTS };
struct layout {
    MPI_Datatype type;
    int per_unit;   // elements
    int extent;     // bytes of a unit, as the distance to the next
    int at[3];      // where its ints lie, in the order of the signature
};
static struct layout layouts[LAYOUTS];
static MPI_Op compose, add_units;

struct random_state {
    uint64_t shared, own; // the same on all ranks, and not
};
// Most non-blocking calls under way in a thread.
enum { UNDER_WAY = 4 };
struct worker {
    struct random_state random;
    MPI_Comm world;
    long rounds, most, seed;
    struct round *under_way[UNDER_WAY];
    int count;
    bool whole; // only duplicates of the world: all ranks, in order
};

static uint64_t next(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15;
    uint64_t z = *state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}
static int below(uint64_t *state, int most) { return (int)(next(state) % (uint64_t)most); }

// --- operations ----------------------------------------------------------------

// The ints of a unit, by the datatype's own layout.
static void ints_of(void *base, MPI_Datatype type, int index, uint32_t *at[3])
{
    for (int l = 0; l < LAYOUTS; l++)
        if (layouts[l].type == type && l != PLAIN) {
            char *unit = (char *)base + (ptrdiff_t)index * layouts[l].extent;
            for (int i = 0; i < 3; i++)
                at[i] = (uint32_t *)(unit + layouts[l].at[i]);
            return;
        }
    fail("an operation was called with a datatype that is none of ours");
}

// x -> a x + b, one after the other: associative, not commutative. The third int counts.
static void compose_functions(void *from, void *to, int *count, MPI_Datatype *type)
{
    for (int i = 0; i < *count; i++) {
        uint32_t *f[3], *g[3];
        ints_of(from, *type, i, f);
        ints_of(to, *type, i, g);
        uint32_t a = *g[0] * *f[0], b = *g[0] * *f[1] + *g[1];
        *g[0] = a, *g[1] = b, *g[2] += *f[2];
    }
}

static void add_all(void *from, void *to, int *count, MPI_Datatype *type)
{
    for (int i = 0; i < *count; i++) {
        uint32_t *f[3], *g[3];
        ints_of(from, *type, i, f);
        ints_of(to, *type, i, g);
        for (int k = 0; k < 3; k++)
            *g[k] += *f[k];
    }
}

static void add_fours(void *from, void *to, int *count, MPI_Datatype *type)
{
    (void)type;
    for (int i = 0; i < 4 * *count; i++)
        ((int *)to)[i] += ((int *)from)[i];
    // It may call what does not communicate, also while the library is at work.
    MPI_Datatype own;
    MPI_Type_contiguous(4, MPI_INT, &own);
    MPI_Type_free(&own);
}

static void set_layout(int l, MPI_Datatype type, int extent, int first, int second, int third)
{
    layouts[l] = (struct layout){.per_unit = l == PLAIN ? 3 : 1, .extent = extent, .at = {first, second, third}};
    if (l == PLAIN) {
        layouts[l].type = type;
        return;
    }
    MPI_Type_create_resized(type, 0, extent, &layouts[l].type);
    MPI_Type_free(&type);
    MPI_Type_commit(&layouts[l].type);
}

// Each has another constructor, of which some are nested: the library takes datatypes apart.
static void make_layouts(void)
{
    MPI_Datatype raw, part;
    set_layout(PLAIN, MPI_INT, 12, 0, 4, 8);
    MPI_Type_contiguous(3, MPI_INT, &raw);
    set_layout(CONTIGUOUS, raw, 12, 0, 4, 8);
    MPI_Type_vector(3, 1, 2, MPI_INT, &raw);
    set_layout(STRIDED, raw, 28, 0, 8, 16);
    MPI_Type_indexed(3, (int[]){1, 1, 1}, (int[]){2, 1, 0}, MPI_INT, &raw);
    set_layout(BACKWARDS, raw, 12, 8, 4, 0);
    MPI_Type_create_hvector(2, 1, -8, MPI_INT, &part);
    MPI_Type_dup(MPI_INT, &raw);
    MPI_Datatype types[] = {raw, part};
    MPI_Type_create_struct(2, (int[]){1, 1}, (MPI_Aint[]){4, 16}, types, &raw);
    MPI_Type_free(&types[0]);
    MPI_Type_free(&part);
    set_layout(STRUCTURE, raw, 20, 4, 16, 8);
    MPI_Type_create_subarray(2, (int[]){3, 2}, (int[]){3, 1}, (int[]){0, 1}, MPI_ORDER_C, MPI_INT, &raw);
    set_layout(COLUMN, raw, 24, 4, 12, 20);
    MPI_Type_create_subarray(3, (int[]){2, 3, 2}, (int[]){1, 3, 1}, (int[]){1, 0, 0}, MPI_ORDER_FORTRAN, MPI_INT, &raw);
    set_layout(ROWS, raw, 48, 4, 12, 20);
    MPI_Type_create_hindexed(2, (int[]){1, 2}, (MPI_Aint[]){12, 0}, MPI_INT, &raw);
    set_layout(LONELY, raw, 16, 12, 0, 4);
    MPI_Type_create_indexed_block(1, 1, (int[]){1}, MPI_INT, &part);
    MPI_Type_create_hindexed_block(3, 1, (MPI_Aint[]){12, 0, 4}, part, &raw);
    MPI_Type_free(&part);
    set_layout(BLOCKS, raw, 24, 16, 4, 8);
    MPI_Op_create(compose_functions, 0, &compose);
    MPI_Op_create(add_all, 1, &add_units);
}

// --- buffers -------------------------------------------------------------------

// So many units in a layout, with room around. Two copies: what MPI_ and what PMPI_ writes.
struct buffer {
    struct layout layout;
    char *memory[2], *base[2];
    size_t length;
};

static struct buffer new_buffer(int l, long units, uint64_t *random)
{
    struct buffer b = {.layout = layouts[l]};
    size_t span = (size_t)labs(b.layout.extent) * (size_t)(units + 1) + 64;
    b.length = span;
    for (int k = 0; k < 2; k++) {
        b.memory[k] = malloc(span);
        memset(b.memory[k], MARK, span);
        b.base[k] = b.memory[k] + 16 + (b.layout.extent < 0 ? (ptrdiff_t)-b.layout.extent * units : 0);
    }
    for (long i = 0; i < units; i++)
        for (int j = 0; j < 12; j++)
            if (4 * j < labs(b.layout.extent)) {
                uint32_t value = (uint32_t)next(random);
                memcpy(b.base[0] + i * b.layout.extent + 4 * j, &value, 4);
            }
    memcpy(b.memory[1], b.memory[0], span);
    return b;
}

static void drop(struct buffer *b)
{
    free(b->memory[0]), free(b->memory[1]);
}

// --- a round -------------------------------------------------------------------

struct round {
    long number;
    enum what what;
    MPI_Comm comm;
    int rank, ranks, root;
    bool in_place, large, nonblocking, persistent;
    MPI_Op op;
    int op_number;
    long units;
    long counts[RANKS_MAX], total;  // units, of v
    long sends[RANKS_MAX], receives[RANKS_MAX];
    struct buffer from, to;
    MPI_Request request;
    struct arguments {               // what a non-blocking call may read until it ends; for MPI_ and for PMPI_
        int counts[RANKS_MAX], displs[RANKS_MAX], to_counts[RANKS_MAX], to_displs[RANKS_MAX];
        MPI_Count c[RANKS_MAX], tc[RANKS_MAX];
        MPI_Aint d[RANKS_MAX], td[RANKS_MAX];
        MPI_Datatype types[RANKS_MAX], to_types[RANKS_MAX];
    } arguments[2];
};

static long pick(uint64_t *random, long most)
{
    switch (below(random, 4)) {
    case 0: return below(random, 3);
    case 1: return below(random, 12);
    case 2: return most < 100 ? below(random, (int)most + 1) : below(random, 100);
    default: return below(random, (int)most + 1);
    }
}

// Counts and displacements in elements of a layout; blocks follow one another with gaps of a unit.
static void lay(const long *units, int ranks, const struct layout *layout, int *counts, int *displs)
{
    long at = 0;
    for (int i = 0; i < ranks; i++) {
        counts[i] = (int)units[i] * layout->per_unit;
        displs[i] = (int)at * layout->per_unit;
        at += units[i] + 1;
    }
}

static long laid(const long *units, int ranks)
{
    long at = 0;
    for (int i = 0; i < ranks; i++)
        at += units[i] + 1;
    return at;
}

// The MPI's own, or the program's. ANY also starts non-blocking ones, and makes persistent ones; EITHER takes large counts if the round says so.
#define BOTH(name, ...) (which ? PMPI_##name(__VA_ARGS__) : MPI_##name(__VA_ARGS__))
#if PERSISTENT
#define START(name, iname, init, ...) \
    (r->persistent ? MPI_##init(__VA_ARGS__, MPI_INFO_NULL, &r->request) : MPI_##iname(__VA_ARGS__, &r->request))
#else
#define START(name, iname, init, ...) MPI_##iname(__VA_ARGS__, &r->request)
#endif
#define ANY_OF(name, iname, init, ...) (which || !r->nonblocking ? BOTH(name, __VA_ARGS__) : START(name, iname, init, __VA_ARGS__))
#define ANY(name, iname, ...) ANY_OF(name, iname, name##_init, __VA_ARGS__)
#if LARGE_COUNTS
#define LARGE(name, iname, ...) ANY_OF(name##_c, iname##_c, name##_init_c, __VA_ARGS__)
#define EITHER(name, iname, ...) (r->large ? LARGE(name, iname, __VA_ARGS__) : ANY(name, iname, __VA_ARGS__))
#define BOTH_LARGE(name, ...) BOTH(name##_c, __VA_ARGS__)
#else
#define EITHER(name, iname, ...) ANY(name, iname, __VA_ARGS__)
#define BOTH_LARGE BOTH
#endif

#if LARGE_COUNTS
static void widen(struct round *r, struct arguments *a)
{
    for (int i = 0; i < r->ranks; i++)
        a->c[i] = a->counts[i], a->d[i] = a->displs[i], a->tc[i] = a->to_counts[i], a->td[i] = a->to_displs[i];
}

// Those with counts of each rank.
static int call_large(struct round *r, int which, void *source, void *target)
{
    struct buffer *from = &r->from, *to = &r->to;
    struct arguments *a = &r->arguments[which];
    MPI_Datatype type = from->layout.type, to_type = to->layout.type;
    bool at_root = r->rank == r->root, own_in_place = r->in_place && at_root;
    MPI_Count count = r->counts[r->rank] * from->layout.per_unit, to_count = r->counts[r->rank] * to->layout.per_unit;
    widen(r, a);
    switch (r->what) {
    case REDUCE_SCATTER:
        return LARGE(Reduce_scatter, Ireduce_scatter, r->in_place ? MPI_IN_PLACE : source, target, a->c, type, r->op, r->comm);
    case GATHERV:
        return LARGE(Gatherv, Igatherv, own_in_place ? MPI_IN_PLACE : source, count, type, target, at_root ? a->c : NULL,
                   at_root ? a->d : NULL, to_type, r->root, r->comm);
    case SCATTERV:
        return LARGE(Scatterv, Iscatterv, source, at_root ? a->c : NULL, at_root ? a->d : NULL, type, own_in_place ? MPI_IN_PLACE : target,
                   to_count, to_type, r->root, r->comm);
    case ALLGATHERV:
        return LARGE(Allgatherv, Iallgatherv, r->in_place ? MPI_IN_PLACE : source, count, type, target, a->c, a->d, to_type, r->comm);
    case ALLTOALLV:
        return LARGE(Alltoallv, Ialltoallv, r->in_place ? MPI_IN_PLACE : source, a->c, a->d, type, target, a->tc, a->td, to_type, r->comm);
    case ALLTOALLW:
        return LARGE(Alltoallw, Ialltoallw, r->in_place ? MPI_IN_PLACE : source, a->c, a->d, a->types, target, a->tc, a->td, a->to_types, r->comm);
    default:
        return MPI_ERR_ARG;
    }
}
#define LARGE_OR(...) (r->large ? call_large(r, which, source, target) : (__VA_ARGS__))
#else
#define LARGE_OR(...) (__VA_ARGS__)
#endif

static int call(struct round *r, int which)
{
    struct buffer *from = &r->from, *to = &r->to;
    struct arguments *a = &r->arguments[which];
    int *counts = a->counts, *displs = a->displs, *to_counts = a->to_counts, *to_displs = a->to_displs;
    MPI_Datatype type = from->layout.type, to_type = to->layout.type;
    int count = (int)r->units * from->layout.per_unit, to_count = (int)r->units * to->layout.per_unit;
    void *source = from->base[which], *target = to->base[which];
    switch (r->what) {
    case BARRIER:
        return ANY(Barrier, Ibarrier, r->comm);
    case BCAST:
        return EITHER(Bcast, Ibcast, target, to_count, to_type, r->root, r->comm);
    case REDUCE:
        return EITHER(Reduce, Ireduce, r->in_place && r->rank == r->root ? MPI_IN_PLACE : source, r->rank == r->root ? target : NULL, count, type, r->op, r->root, r->comm);
    case ALLREDUCE:
        return EITHER(Allreduce, Iallreduce, r->in_place ? MPI_IN_PLACE : source, target, count, type, r->op, r->comm);
    case SCAN:
        return r->large ? BOTH_LARGE(Scan, r->in_place ? MPI_IN_PLACE : source, target, count, type, r->op, r->comm) : BOTH(Scan, r->in_place ? MPI_IN_PLACE : source, target, count, type, r->op, r->comm);
    case EXSCAN:
        return r->large ? BOTH_LARGE(Exscan, r->in_place ? MPI_IN_PLACE : source, target, count, type, r->op, r->comm) : BOTH(Exscan, r->in_place ? MPI_IN_PLACE : source, target, count, type, r->op, r->comm);
    case REDUCE_SCATTER_BLOCK:
        return EITHER(Reduce_scatter_block, Ireduce_scatter_block, r->in_place ? MPI_IN_PLACE : source, target, count, type, r->op, r->comm);
    case REDUCE_SCATTER:
        for (int i = 0; i < r->ranks; i++)
            counts[i] = (int)r->counts[i] * from->layout.per_unit;
        return LARGE_OR(ANY(Reduce_scatter, Ireduce_scatter, r->in_place ? MPI_IN_PLACE : source, target, counts, type, r->op, r->comm));
    case GATHER:
        return EITHER(Gather, Igather, r->in_place && r->rank == r->root ? MPI_IN_PLACE : source, count, type, target, to_count,
                      r->rank == r->root ? to_type : MPI_DATATYPE_NULL, r->root, r->comm);
    case SCATTER:
        return EITHER(Scatter, Iscatter, source, count, r->rank == r->root ? type : MPI_DATATYPE_NULL, r->in_place && r->rank == r->root ? MPI_IN_PLACE : target, to_count,
                      to_type, r->root, r->comm);
    case ALLGATHER:
        return EITHER(Allgather, Iallgather, r->in_place ? MPI_IN_PLACE : source, count, type, target, to_count, to_type, r->comm);
    case ALLTOALL:
        return EITHER(Alltoall, Ialltoall, r->in_place ? MPI_IN_PLACE : source, count, type, target, to_count, to_type, r->comm);
    case GATHERV:
        lay(r->counts, r->ranks, &to->layout, counts, displs);
        return LARGE_OR(ANY(Gatherv, Igatherv, r->in_place && r->rank == r->root ? MPI_IN_PLACE : source, (int)r->counts[r->rank] * from->layout.per_unit, type, target,
                    r->rank == r->root ? counts : NULL, r->rank == r->root ? displs : NULL, to_type, r->root, r->comm));
    case SCATTERV:
        lay(r->counts, r->ranks, &from->layout, counts, displs);
        return LARGE_OR(ANY(Scatterv, Iscatterv, source, r->rank == r->root ? counts : NULL, r->rank == r->root ? displs : NULL, type,
                    r->in_place && r->rank == r->root ? MPI_IN_PLACE : target, (int)r->counts[r->rank] * to->layout.per_unit, to_type, r->root, r->comm));
    case ALLGATHERV:
        lay(r->counts, r->ranks, &to->layout, counts, displs);
        return LARGE_OR(ANY(Allgatherv, Iallgatherv, r->in_place ? MPI_IN_PLACE : source, (int)r->counts[r->rank] * from->layout.per_unit, type, target, counts, displs, to_type, r->comm));
    case ALLTOALLV:
        lay(r->sends, r->ranks, &from->layout, counts, displs);
        lay(r->receives, r->ranks, &to->layout, to_counts, to_displs);
        return LARGE_OR(ANY(Alltoallv, Ialltoallv, r->in_place ? MPI_IN_PLACE : source, counts, displs, type, target, to_counts, to_displs, to_type, r->comm));
    case ALLTOALLW:
        lay(r->sends, r->ranks, &from->layout, counts, displs);
        lay(r->receives, r->ranks, &to->layout, to_counts, to_displs);
        for (int i = 0; i < r->ranks; i++) {
            // In bytes.
            displs[i] *= from->layout.extent / from->layout.per_unit;
            to_displs[i] *= to->layout.extent / to->layout.per_unit;
            a->types[i] = type;
            a->to_types[i] = to_counts[i] || r->in_place ? to_type : MPI_DOUBLE;
        }
        return LARGE_OR(ANY(Alltoallw, Ialltoallw, r->in_place ? MPI_IN_PLACE : source, counts, displs, a->types, target, to_counts, to_displs, a->to_types, r->comm));
    case KINDS:
        break;
    }
    return MPI_ERR_ARG;
}

static bool reduces(enum what what)
{
    return what == REDUCE || what == ALLREDUCE || what == SCAN || what == EXSCAN || what == REDUCE_SCATTER_BLOCK || what == REDUCE_SCATTER;
}

static bool rooted(enum what what) { return what == REDUCE || what == GATHER || what == GATHERV || what == SCATTER || what == SCATTERV; }

// Compares the results, and frees the round.
static void compare(const struct worker *w, struct round *r)
{
    struct buffer *from = &r->from, *to = &r->to;
    // The first rank's result of an Exscan is undefined.
    bool defined = !(r->what == EXSCAN && r->rank == 0) && !(rooted(r->what) && r->what != SCATTER && r->what != SCATTERV && r->rank != r->root);
    // What follows the result of a Reduce_scatter in place is the MPI's to use.
    size_t differs = 0, end = to->length;
    if (r->in_place && (r->what == REDUCE_SCATTER || r->what == REDUCE_SCATTER_BLOCK))
        end = (size_t)(to->base[0] - to->memory[0]) + (size_t)((r->what == REDUCE_SCATTER ? r->counts[r->rank] : r->units) * to->layout.extent);
    while (defined && differs < end && to->memory[0][differs] == to->memory[1][differs])
        differs++;
    CHECK(!defined || differs == end, "seed %ld round %ld: %s%s of %ld units (total %ld), extent %d, op %d, root %d, rank %d of %d%s: byte %zu of %zu differs",
          w->seed, r->number, r->persistent ? "persistent " : r->nonblocking ? "non-blocking " : "", NAMES[r->what], r->units, r->total, to->layout.extent, r->op_number, r->root, r->rank,
          r->ranks, r->in_place ? ", in place" : "", differs, to->length);
    CHECK(!memcmp(from->memory[0], from->memory[1], from->length), "seed %ld round %ld: %s wrote to what it sends", w->seed, r->number, NAMES[r->what]);
    drop(from);
    drop(to);
    free(r);
}

// Ends one of the calls under way, or all, by one of MPI's functions for it.
static void end_one(struct worker *w, int which)
{
    struct round *r = w->under_way[which];
    MPI_Request requests[UNDER_WAY];
    int how = below(&w->random.own, 4), done = 0, error = MPI_SUCCESS;
    for (int i = 0; i < w->count; i++)
        requests[i] = w->under_way[i]->request;
    if (how == 0)
        error = MPI_Wait(&requests[which], MPI_STATUS_IGNORE);
    else if (how == 1)
        while (!error && !done)
            error = MPI_Test(&requests[which], &done, MPI_STATUS_IGNORE);
    else if (how == 2)
        error = MPI_Waitany(w->count, requests, &which, MPI_STATUS_IGNORE);
    else
        error = MPI_Waitall(w->count, requests, MPI_STATUSES_IGNORE);
    CHECK(error == MPI_SUCCESS, "seed %ld round %ld: waiting for %s failed with %d", w->seed, r->number, NAMES[r->what], error);
    int kept = 0;
    for (int i = 0, count = w->count; i < count; i++)
        if (requests[i] == MPI_REQUEST_NULL)
            compare(w, w->under_way[i]);
        else
            w->under_way[kept++] = w->under_way[i];
    CHECK(kept < w->count, "seed %ld round %ld: a request that has ended is not null", w->seed, r->number);
    w->count = kept;
}

static void end_all(struct worker *w)
{
    while (w->count > 0)
        end_one(w, 0);
}

// --- while a call is under way ---------------------------------------------------

// A rank that waits for a message, in whatever call, does its part of a collective: the sender waits for the collective.
static void goes_on_in_other_calls(MPI_Comm comm)
{
    int rank, ranks, sum = 0, one = 1, word = 0;
    MPI_Request request;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &ranks);
    for (int how = 0; how < 3; how++) {
        MPI_Iallreduce(&one, &sum, 1, MPI_INT, MPI_SUM, comm, &request);
        if (rank == ranks - 1) {
            MPI_Wait(&request, MPI_STATUS_IGNORE);
            for (int other = 0; other < rank; other++)
                MPI_Send(&sum, 1, MPI_INT, other, 1, comm);
        } else {
            if (how == 0)
                MPI_Probe(ranks - 1, 1, comm, MPI_STATUS_IGNORE);
            if (how == 1) {
                MPI_Request receive;
                MPI_Irecv(&word, 1, MPI_INT, ranks - 1, 1, comm, &receive);
                MPI_Wait(&receive, MPI_STATUS_IGNORE);
            } else
                MPI_Recv(&word, 1, MPI_INT, ranks - 1, 1, comm, MPI_STATUS_IGNORE);
            CHECK(word == ranks, "a message said %d instead of %d", word, ranks);
            MPI_Wait(&request, MPI_STATUS_IGNORE);
        }
        CHECK(sum == ranks, "Iallreduce gave %d instead of %d", sum, ranks);
    }
}

// A program may free the datatype, the operation and the communicator of a call that is under way.
static void outlives_what_is_freed(void)
{
    struct { int at[3], gap; } from[100], to[100];
    MPI_Comm comm;
    MPI_Datatype type;
    MPI_Op op;
    MPI_Request requests[3];
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Barrier(comm);
    MPI_Type_contiguous(4, MPI_INT, &type);
    MPI_Type_commit(&type);
    MPI_Op_create(add_fours, 1, &op);
    memset(to, 0, sizeof to);
    for (int i = 0; i < 100; i++)
        from[i].at[0] = i, from[i].at[1] = world_rank, from[i].at[2] = 1, from[i].gap = 0;
    MPI_Iallreduce(from, to, 100, type, op, comm, &requests[0]);
    int word = world_rank == world_size - 1 ? 42 : 0;
    MPI_Ibcast(&word, 1, MPI_INT, world_size - 1, comm, &requests[1]);
    MPI_Ibarrier(comm, &requests[2]);
    MPI_Type_free(&type);
    MPI_Op_free(&op);
    CHECK(type == MPI_DATATYPE_NULL && op == MPI_OP_NULL, "what was freed is not null");
    MPI_Comm_free(&comm);
    MPI_Waitall(3, requests, MPI_STATUSES_IGNORE);
    CHECK(word == 42, "Ibcast gave %d", word);
    for (int i = 0; i < 100; i++)
        CHECK(to[i].at[0] == i * world_size && to[i].at[1] == world_size * (world_size - 1) / 2 && to[i].at[2] == world_size,
              "Iallreduce gave %d, %d, %d at %d", to[i].at[0], to[i].at[1], to[i].at[2], i);
}

// A persistent call is started three times, in each of MPI's manners, and then freed.
static void start_again_and_again(const struct worker *w, struct round *r)
{
    for (int time = 0; time < 3; time++) {
        int done = 0, error;
        if (r->in_place || r->what == BCAST)
            memcpy(r->to.memory[0], r->to.memory[1], r->to.length); // which is still as it was
        error = time == 1 ? MPI_Startall(1, &r->request) : MPI_Start(&r->request);
        if (!error && time == 0)
            error = MPI_Wait(&r->request, MPI_STATUS_IGNORE);
        else if (!error && time == 1)
            error = MPI_Waitall(1, &r->request, MPI_STATUSES_IGNORE);
        while (!error && time == 2 && !done)
            error = MPI_Test(&r->request, &done, MPI_STATUS_IGNORE);
        CHECK(error == MPI_SUCCESS && r->request != MPI_REQUEST_NULL, "seed %ld round %ld: start %d of persistent %s failed with %d", w->seed, r->number,
              time, NAMES[r->what], error);
    }
    MPI_Request_free(&r->request);
}

static void play(struct worker *w, long number, MPI_Comm comm)
{
    static const MPI_Op BUILT_IN[] = {MPI_SUM, MPI_PROD, MPI_MAX, MPI_MIN, MPI_BXOR, MPI_BAND, MPI_LOR};
    uint64_t *shared = &w->random.shared, *own = &w->random.own;
    struct round *r = calloc(1, sizeof *r);
    CHECK(r, "out of memory");
    *r = (struct round){.number = number, .what = (enum what)below(shared, KINDS), .comm = comm, .request = MPI_REQUEST_NULL};
    MPI_Comm_rank(comm, &r->rank);
    MPI_Comm_size(comm, &r->ranks);
    r->root = below(shared, r->ranks);
    r->in_place = below(shared, 3) == 0 && r->what != BCAST;
    r->large = below(shared, 2);
    r->nonblocking = below(shared, 2) && r->what != SCAN && r->what != EXSCAN;
    r->persistent = below(shared, 3) == 0 && r->nonblocking && PERSISTENT;
    r->units = pick(shared, w->most);
    for (int i = 0; i < r->ranks; i++) {
        r->counts[i] = below(shared, 4) ? pick(shared, w->most / r->ranks + 1) : 0;
        r->total += r->counts[i];
    }
    // What each sends to each is known to all, as both ends must agree.
    for (int i = 0; i < r->ranks; i++)
        for (int j = 0; j < r->ranks; j++) {
            long units = below(shared, 4) ? pick(shared, w->most / r->ranks + 1) : 0;
            // In place, what two ranks exchange has one length: the lower one's choice.
            if (i == r->rank && !(r->in_place && i > j))
                r->sends[j] = units;
            if (j == r->rank && !(r->in_place && i > j))
                r->receives[i] = units;
            if (r->in_place && i < j && i == r->rank)
                r->receives[j] = units;
            if (r->in_place && i < j && j == r->rank)
                r->sends[i] = units;
        }
    // Of a reduction all ranks give the same datatype; else each has its own. Not on Open MPI and Intel MPI: there each rank
    // chooses an algorithm, or the length of segments, by its own datatype, so that their own collectives fail or hang.
    uint64_t *choice = reduces(r->what) || SAME_DATATYPES ? shared : own;
    int from_layout = below(choice, LAYOUTS), to_layout = reduces(r->what) ? from_layout : below(choice, LAYOUTS);
    int op = r->op_number = below(shared, 9);
    r->op = op == 8 ? compose : op == 7 ? add_units : BUILT_IN[op];
    if (op < 7 && reduces(r->what))
        from_layout = to_layout = PLAIN;
    else if (reduces(r->what) && from_layout == PLAIN)
        from_layout = to_layout = STRIDED;
    // MPICH's own Allgatherv fails if receivers' datatypes differ, and its own Reduce_scatter of an operation that does not
    // commute reads the gaps of a datatype: what is left to it would fail here.
    if (r->what == ALLGATHERV || r->what == ALLGATHER)
        to_layout = below(shared, LAYOUTS);
#ifdef I_MPI_VERSION
    // Intel MPI's own Allgather puts blocks to wrong places if the datatypes of sender and receiver have different lengths.
    if (r->what == ALLGATHERV || r->what == ALLGATHER)
        to_layout = from_layout;
#endif
    if (r->op == compose && (r->what == REDUCE_SCATTER || r->what == REDUCE_SCATTER_BLOCK))
        from_layout = to_layout = CONTIGUOUS;
#ifdef I_MPI_VERSION
    // Intel MPI's own Reduce gives wrong values for more than 819 elements of a datatype with gaps.
    if (reduces(r->what) && from_layout >= STRIDED && from_layout != BACKWARDS)
        from_layout = to_layout = CONTIGUOUS;
#endif
    long many = r->units * r->ranks + laid(r->counts, r->ranks) + laid(r->sends, r->ranks) + laid(r->receives, r->ranks);
    r->from = new_buffer(from_layout, many, own);
    r->to = new_buffer(to_layout, many, own);
    for (int which = 0; which < 2; which++) {
        int error = call(r, which);
        CHECK(error == MPI_SUCCESS, "seed %ld round %ld: %s failed with %d", w->seed, number, NAMES[r->what], error);
        if (which == 0 && r->persistent)
            start_again_and_again(w, r);
    }
    if (!r->nonblocking || r->persistent) {
        compare(w, r);
        return;
    }
    w->under_way[w->count++] = r;
    for (int left = below(own, UNDER_WAY); w->count > left;)
        end_one(w, below(own, w->count));
}

// A program pins the algorithms of one communicator, and changes its mind. The test that runs this reads what was chosen.
static void pins_by_info(void)
{
    static const char *const PINS[] = {"bcast:mpi", "bcast:parallel"};
    MPI_Comm comm;
    MPI_Info info;
    int word = 0;
    MPI_Bcast(&word, 1, MPI_INT, 0, MPI_COMM_WORLD); // by the environment's pins
    for (int i = 0; i < 2; i++) {
        MPI_Info_create(&info);
        MPI_Info_set(info, "isthmus_collectives_pin", PINS[i]);
        if (i == 0)
            MPI_Comm_dup_with_info(MPI_COMM_WORLD, info, &comm);
        else
            MPI_Comm_set_info(comm, info);
        MPI_Info_free(&info);
        word = world_rank == 0 ? 42 + i : 0;
        MPI_Bcast(&word, 1, MPI_INT, 0, comm);
        CHECK(word == 42 + i, "Bcast gave %d", word);
    }
    MPI_Comm_free(&comm);
}

// A library cleans up when MPI_Finalize deletes the attributes of MPI_COMM_SELF, as MPI advises. Collectives still work.
static int clean_up(MPI_Comm self, int keyval, void *value, void *extra)
{
    MPI_Comm *comm = value;
    MPI_Request request;
    int one = 1, sum = 0;
    (void)self, (void)keyval, (void)extra;
    MPI_Iallreduce(&one, &sum, 1, MPI_INT, MPI_SUM, *comm, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    CHECK(sum == world_size, "in MPI_Finalize, Iallreduce gave %d", sum);
    return MPI_Comm_free(comm);
}

static void works_to_the_end(void)
{
    static MPI_Comm comm;
    int keyval;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Barrier(comm);
    MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, clean_up, &keyval, NULL);
    MPI_Comm_set_attr(MPI_COMM_SELF, keyval, &comm);
    MPI_Comm_free_keyval(&keyval);
}

// Every other manner in which MPI makes a communicator of these ranks or some of them.
static MPI_Comm made_otherwise(MPI_Comm world, int kind, const uint64_t *order, int rank, int ranks)
{
    MPI_Comm comm = world, half, both;
    MPI_Group all, some;
    int list[RANKS_MAX], count = 0;
    if (kind == 4) { // some ranks, backwards; each other one goes on by itself
        for (int i = ranks - 1; i >= 0; i--)
            if (order[i] % 4)
                list[count++] = i;
        MPI_Comm_group(world, &all);
        MPI_Group_incl(all, count, list, &some);
        MPI_Comm_create(world, some, &comm);
        MPI_Group_free(&all);
        MPI_Group_free(&some);
        if (comm == MPI_COMM_NULL)
            MPI_Comm_split(MPI_COMM_SELF, 0, 0, &comm);
    } else if (kind == 5) {
        MPI_Request request;
        MPI_Comm_idup(world, &comm, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    } else if (kind == 6 && ranks > 1) { // two groups that lie across the sites are joined to one
        int high = (int)(order[0] % 2), second = rank % 2;
        MPI_Comm_split(world, second, 0, &half);
        MPI_Intercomm_create(half, 0, world, 1 - second, 5, &both);
        MPI_Barrier(both);
        MPI_Intercomm_merge(both, second == high, &comm);
        MPI_Comm_free(&half);
        MPI_Comm_free(&both);
    } else
        MPI_Cart_create(world, 1, &ranks, (int[]){1}, 1, &comm);
    return comm;
}

static void *work(void *argument)
{
    struct worker *w = argument;
    int rank, ranks;
    MPI_Comm_rank(w->world, &rank);
    MPI_Comm_size(w->world, &ranks);
    MPI_Comm comm = w->world;
    uint64_t begin = w->random.shared;
    for (long i = 0; i < w->rounds; i++) {
        // Groups of different sizes draw differently often: each round has a sequence of its own.
        w->random.shared = begin + (uint64_t)i * 7919;
        next(&w->random.shared);
        // Now and then another communicator: all ranks in another order, or some of them.
        if (i % 25 == 0) {
            end_all(w);
            if (comm != w->world)
                MPI_Comm_free(&comm);
            comm = w->world;
            int kind = w->whole ? 3 : below(&w->random.shared, 8);
            uint64_t order[RANKS_MAX];
            for (int k = 0; k < ranks; k++)
                order[k] = next(&w->random.shared);
            if (kind == 1)
                MPI_Comm_split(w->world, 0, (int)(order[rank] % 1000), &comm);
            else if (kind == 2)
                MPI_Comm_split(w->world, (int)(order[rank] % 2), rank, &comm);
            else if (kind == 3)
                MPI_Comm_dup(w->world, &comm);
            else if (kind > 3)
                comm = made_otherwise(w->world, kind, order, rank, ranks);
        }
        play(w, i, comm);
    }
    end_all(w);
    goes_on_in_other_calls(comm);
    if (comm != w->world)
        MPI_Comm_free(&comm);
    return NULL;
}

int main(int argc, char **argv)
{
    int provided;
    program = "far_collectives";
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world_size);
    CHECK(argc >= 4, "usage: far_collectives SEED ROUNDS MOST [THREADS [whole]]");
    CHECK(world_size <= RANKS_MAX, "at most %d ranks", RANKS_MAX);
    long seed = atol(argv[1]), rounds = atol(argv[2]), most = atol(argv[3]);
    int threads = argc > 4 ? atoi(argv[4]) : 0;
    make_layouts();
    struct worker workers[8];
    pthread_t ids[8];
    CHECK(threads <= 8 && (threads == 0 || provided == MPI_THREAD_MULTIPLE), "no threads here");
    for (int i = 0; i < (threads ? threads : 1); i++) {
        workers[i] = (struct worker){.rounds = rounds, .most = most, .seed = seed, .whole = argc > 5};
        workers[i].random.shared = (uint64_t)seed * 1000 + (uint64_t)i;
        workers[i].random.own = (uint64_t)seed * 1000 + (uint64_t)i + (uint64_t)(world_rank + 1) * 1000003;
        workers[i].world = MPI_COMM_WORLD;
        if (threads)
            MPI_Comm_dup(MPI_COMM_WORLD, &workers[i].world);
    }
    for (int i = 0; i < threads; i++)
        CHECK(pthread_create(&ids[i], NULL, work, &workers[i]) == 0, "no thread");
    if (!threads)
        work(&workers[0]);
    for (int i = 0; i < threads; i++) {
        pthread_join(ids[i], NULL);
        MPI_Comm_free(&workers[i].world);
    }
#ifdef OPEN_MPI
    // Open MPI's own non-blocking reduction uses a datatype and an operation that were freed meanwhile, and crashes. Where
    // sites are named, the library runs it.
    if (getenv("ISTHMUS_COLLECTIVES_SITES"))
#endif
    outlives_what_is_freed();
    pins_by_info();
    works_to_the_end();
    MPI_Op_free(&compose);
    MPI_Op_free(&add_units);
    for (int l = CONTIGUOUS; l < LAYOUTS; l++)
        MPI_Type_free(&layouts[l].type);
    return finish("%ld rounds of seed %ld on %d ranks%s", rounds, seed, world_size, threads ? ", in each of several threads" : "");
}
