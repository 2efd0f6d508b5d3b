// Collectives that combine: Reduce, Allreduce, Reduce_scatter, Scan, Exscan.
//
// Values are always combined in the same order, whatever arrives first: within a site, then site by site. So all ranks
// get the same bits, and a repeated call gives them again. In parallel it is ((a op b) op c) op d within a site; leaders
// take the MPI's own, which may be (a op b) op (c op d). If each site is one run of ranks, both keep the order of ranks,
// which operations that do not commute need. Otherwise those operations are left to the MPI.
#include "internal.h"

#include <stdlib.h>

// Whether the MPI accepts this operation for this datatype. If not, the MPI reports it, as the program expects. Also not
// if values cannot be combined here at all. A persistent collective has been checked when it was made: several threads may
// start such ones at once, but not call MPI_Allreduce on one communicator.
static int is_accepted(const struct plan *plan, const struct later *later, MPI_Datatype type, MPI_Op op)
{
    char from = 0, to = 0;
    return is_start(later) ||
           (plan->settings.combines && PMPI_Allreduce(&from, &to, 0, type, op, plan->self) == MPI_SUCCESS);
}

static int keeps_order(const struct plan *plan, MPI_Op op)
{
    int commutes = 0;
    return plan->blocks || (PMPI_Op_commutative(op, &commutes) == MPI_SUCCESS && commutes);
}

// --- by leaders ----------------------------------------------------------------

// Leaders reduce their sites and send to the root, or exchange and broadcast within their sites. A leader waits for its
// own site and then for other leaders, which send before they wait.
static void reduce_by_leaders(struct flow *flow, const void *data, void *to, MPI_Count count, MPI_Datatype type, const struct shape *shape,
                              MPI_Op op, int root)
{
    const struct plan *plan = flow->plan;
    int leader = leader_of(plan, plan->site, root), sites = plan->sites;
    void **parts = flow_memory(flow, sites * (int64_t)sizeof *parts);
    MPI_Count *lengths = flow_memory(flow, sites * (int64_t)sizeof *lengths);
    for (int site = 0; site < sites && !flow->error; site++) {
        int here = site == plan->site ? plan->rank == leader : plan->rank == root || (root < 0 && plan->rank == leader);
        parts[site] = here ? flow_elements(flow, count, shape) : NULL;
        lengths[site] = count;
    }
    if (flow->error)
        return;
    flow_fail(flow, PMPI_Reduce(data, parts[plan->site], (int)count, type, op, plan->spot_of[leader], plan->near));
    if (flow->error)
        return;
    if (plan->rank == leader && root < 0)
        exchange(flow, root, parts, lengths, type);
    else if (plan->rank == leader && plan->rank != root)
        flow_send(flow, parts[plan->site], count, type, root, 0, NULL, NULL, 0);
    for (int site = 0; plan->rank == root && site < sites; site++)
        if (site != plan->site)
            flow_receive(flow, parts[site], count, type, leader_of(plan, site, root), 0, NULL, NULL, 0);
    flow_wait(flow);
    if (!flow->error && (plan->rank == root || (root < 0 && plan->rank == leader)))
        copy_elements(flow, fold(flow, parts, sites, count, type, op), count, type, to, count, type);
    if (!flow->error && root < 0)
        flow_fail(flow, PMPI_Bcast(to, (int)count, type, plan->spot_of[leader], plan->near));
}

// --- in parallel ---------------------------------------------------------------

// The vector is cut into parts. At each site one rank, which changes from part to part, collects the part of its site:
//
//   1. each rank sends its part to the collector of its site, which combines them;
//   2. collectors send this to the collector of the part's destination, or to each other if all ranks get the result;
//   3. these combine the sites, and send the result on within their site.
//
// This is reduce-scatter near, exchange far and allgather near (Rabenseifner), per part, so that the three overlap. All
// receives of steps 1 and 2 are posted at the start, and each step waits only for the one before, so there is no cycle.
// In an in-place call a rank receives the result after its own part was sent; that waits for step 1 only.
enum { EVERYBODY = -1 };
enum { CONTRIBUTION, PARTIAL, RESULT, KINDS };

struct part {
    MPI_Count start, count; // elements
    int to;                 // rank, or EVERYBODY
    int near_missing, missing;
    void **near, **sites;   // of its collector: what came, by spot and by site
    void *result;
};
struct reducing {
    struct part *parts;
    int64_t count;
    const void *data;
    void *to;
    const struct shape *shape;
    MPI_Datatype type;
    MPI_Op op;
    MPI_Count own;          // the first element of this rank's result, if scattered
    int scattered; // results go to temporary memory, and destinations collect themselves
    int in_place;
};

static int collector_of(const struct plan *plan, const struct reducing *reducing, int site, int64_t i)
{
    int to = reducing->parts[i].to;
    if (reducing->scattered && plan->site_of[to] == site)
        return to;
    return member(plan, site, (int)(i % size_of(plan, site)));
}

static int tag_of(int64_t i, int kind) { return (int)(KINDS * i + kind); }

static void receive_result(struct flow *flow, void *what, int64_t i)
{
    const struct reducing *reducing = what;
    const struct part *part = &reducing->parts[i];
    flow_receive(flow, element(reducing->to, reducing->shape, part->start), part->count, reducing->type,
                 collector_of(flow->plan, reducing, flow->plan->site, i), tag_of(i, RESULT), NULL, NULL, 0);
}

// The value of one site, this or another, has arrived.
static void site_arrived(struct flow *flow, void *what, int64_t i)
{
    const struct plan *plan = flow->plan;
    const struct reducing *reducing = what;
    struct part *part = &reducing->parts[i];
    if (--part->missing > 0)
        return;
    void *result = fold(flow, part->sites, plan->sites, part->count, reducing->type, reducing->op);
    if (reducing->scattered)
        part->result = result;
    else if (part->to == EVERYBODY || part->to == plan->rank)
        copy_elements(flow, result, part->count, reducing->type, element(reducing->to, reducing->shape, part->start), part->count, reducing->type);
    for (int spot = 0; spot < size_of(plan, plan->site); spot++) {
        int rank = member(plan, plan->site, spot);
        if (rank != plan->rank && (part->to == EVERYBODY || part->to == rank))
            flow_send(flow, result, part->count, reducing->type, rank, tag_of(i, RESULT), NULL, NULL, 0);
    }
}

static void site_complete(struct flow *flow, const struct reducing *reducing, int64_t i)
{
    const struct plan *plan = flow->plan;
    struct part *part = &reducing->parts[i];
    void *partial = fold(flow, part->near, size_of(plan, plan->site), part->count, reducing->type, reducing->op);
    for (int site = 0; site < plan->sites; site++)
        if (site != plan->site && (part->to == EVERYBODY || plan->site_of[part->to] == site))
            flow_send_kept(flow, partial, part->count, reducing->type, collector_of(plan, reducing, site, i), tag_of(i, PARTIAL));
    if (!part->sites || flow->error)
        return;
    // Data being sent must not change, and fold writes to all values but the first.
    if (part->to == EVERYBODY && plan->site > 0)
        copy_elements(flow, partial, part->count, reducing->type, part->sites[plan->site], part->count, reducing->type);
    else
        part->sites[plan->site] = partial;
    site_arrived(flow, (void *)(uintptr_t)reducing, i);
}

static void rank_arrived(struct flow *flow, void *what, int64_t i)
{
    const struct reducing *reducing = what;
    if (--reducing->parts[i].near_missing == 0)
        site_complete(flow, reducing, i);
}

// Gets memory and posts receives for a collector.
static void collect(struct flow *flow, struct reducing *reducing, int64_t i)
{
    const struct plan *plan = flow->plan;
    struct part *part = &reducing->parts[i];
    int here = size_of(plan, plan->site), final = part->to == EVERYBODY || plan->site_of[part->to] == plan->site;
    part->near = flow_memory(flow, here * (int64_t)sizeof *part->near);
    part->near_missing = here - 1;
    for (int spot = 0; spot < here && !flow->error; spot++) {
        part->near[spot] = flow_elements(flow, part->count, reducing->shape);
        if (spot == plan->spot)
            copy_elements(flow, element(reducing->data, reducing->shape, part->start), part->count, reducing->type, part->near[spot], part->count, reducing->type);
        else
            flow_receive(flow, part->near[spot], part->count, reducing->type, member(plan, plan->site, spot), tag_of(i, CONTRIBUTION), rank_arrived, reducing, i);
    }
    if (!final)
        return;
    part->sites = flow_memory(flow, plan->sites * (int64_t)sizeof *part->sites);
    part->missing = plan->sites;
    for (int site = 0; site < plan->sites && !flow->error; site++) {
        part->sites[site] = flow_elements(flow, part->count, reducing->shape);
        if (site != plan->site)
            flow_receive(flow, part->sites[site], part->count, reducing->type, collector_of(plan, reducing, site, i), tag_of(i, PARTIAL), site_arrived, reducing, i);
    }
}

static void reduce_in_parallel(struct flow *flow, struct reducing *reducing)
{
    const struct plan *plan = flow->plan;
    flow->arrivals = arrivals_of(flow);
    for (int64_t i = 0; i < reducing->count && !flow->error; i++) {
        const struct part *part = &reducing->parts[i];
        if (collector_of(plan, reducing, plan->site, i) == plan->rank)
            collect(flow, reducing, i);
        else if (!reducing->in_place && (part->to == EVERYBODY || part->to == plan->rank))
            receive_result(flow, reducing, i);
    }
    for (int64_t i = 0; i < reducing->count && !flow->error; i++) {
        const struct part *part = &reducing->parts[i];
        int collector = collector_of(plan, reducing, plan->site, i);
        int comes_back = reducing->in_place && !reducing->scattered && (part->to == EVERYBODY || part->to == plan->rank);
        if (collector != plan->rank)
            flow_send(flow, element(reducing->data, reducing->shape, part->start), part->count, reducing->type, collector, tag_of(i, CONTRIBUTION),
                      comes_back ? receive_result : NULL, reducing, i);
        else if (part->near_missing == 0)
            site_complete(flow, reducing, i);
    }
}

// Cuts elements from `start` on into parts of at most `most`. Returns the number of parts.
static int64_t cut(struct part *parts, MPI_Count start, MPI_Count count, MPI_Count most, int to)
{
    int64_t used = 0;
    for (MPI_Count done = 0; done < count; done += most, used++)
        if (parts)
            parts[used] = (struct part){.start = start + done, .count = count - done < most ? count - done : most, .to = to};
    return used;
}

static MPI_Count part_most(const struct plan *plan, int64_t bytes, const struct shape *shape)
{
    MPI_Count most = segment_of(plan, bytes) / shape->size;
    return most > 0 ? most : 1;
}

static struct reducing *begin_reducing(struct flow *flow, int64_t parts, const void *data, void *to, const struct shape *shape, MPI_Datatype type, MPI_Op op)
{
    struct reducing *reducing = flow_memory(flow, sizeof *reducing);
    struct shape *copy = flow_memory(flow, sizeof *copy);
    struct part *all = flow_memory(flow, parts * (int64_t)sizeof *all);
    if (flow->error)
        return NULL;
    *copy = *shape;
    *reducing = (struct reducing){.parts = all, .count = parts, .data = data, .to = to, .shape = copy, .type = type, .op = op};
    return reducing;
}

int run_reduce(struct plan *plan, const struct later *later, const void *from, void *to, MPI_Count count, MPI_Datatype type, MPI_Op op, int root)
{
    struct shape shape;
    if (shape_of(type, &shape) || count * shape.size == 0 || !is_accepted(plan, later, type, op))
        return LEAVE;
    int64_t bytes = count * shape.size;
    int can = keeps_order(plan, op), all = root < 0, in_place = from == MPI_IN_PLACE;
    MPI_Count most = part_most(plan, bytes, &shape);
    int64_t parts = cut(NULL, 0, count, most, root);
    struct load load = {.across = (double)bytes * (plan->sites - 1), .leader_near = (double)bytes * near_steps(plan) * (1 + all),
                        .parallel_near = 2.0 * (double)bytes, .messages = 2 * largest_site(plan), .parts = parts, .leaders_can = can,
                        .later = later, .tags = parts * KINDS, .parallel_can = can};
    enum algorithm algorithm = choose(plan, all ? ALLREDUCE : REDUCE, bytes, load);
    if (algorithm == MPI)
        return LEAVE;
    const void *data = in_place ? to : from;
    struct flow here, *flow = flow_begin(&here, plan, later, load.tags);
    if (algorithm == LEADERS) {
        reduce_by_leaders(flow, data, to, count, type, &shape, op, root);
        return flow_end(flow, NULL, NULL);
    }
    struct reducing *reducing = begin_reducing(flow, parts, data, to, &shape, type, op);
    if (reducing) {
        reducing->in_place = in_place;
        cut(reducing->parts, 0, count, most, root);
        reduce_in_parallel(flow, reducing);
    }
    return flow_end(flow, NULL, NULL);
}

static void take_scattered(struct flow *flow, void *what, int64_t unused)
{
    const struct reducing *reducing = what;
    (void)unused;
    for (int64_t i = 0; i < reducing->count && !flow->error; i++) {
        const struct part *part = &reducing->parts[i];
        if (part->to == flow->plan->rank)
            copy_elements(flow, part->result, part->count, reducing->type, element(reducing->to, reducing->shape, part->start - reducing->own),
                          part->count, reducing->type);
    }
}

int run_reduce_scatter(struct plan *plan, const struct later *later, const void *from, void *to, const struct spread *spread, MPI_Datatype type, MPI_Op op)
{
    struct shape shape;
    MPI_Count total = 0, own = 0;
    for (int rank = 0; rank < plan->ranks; rank++) {
        own = rank == plan->rank ? total : own;
        total += count_at(spread, rank);
    }
    if (shape_of(type, &shape) || total * shape.size == 0 || !is_accepted(plan, later, type, op))
        return LEAVE;
    int64_t bytes = total * shape.size, parts = 0;
    int can = keeps_order(plan, op);
    MPI_Count most = part_most(plan, bytes, &shape), mine = count_at(spread, plan->rank);
    for (int rank = 0; rank < plan->ranks; rank++)
        parts += cut(NULL, 0, count_at(spread, rank), most, rank);
    struct load load = {.across = (double)bytes * (plan->sites - 1), .leader_near = 2.0 * (double)bytes * near_steps(plan), .parallel_near = (double)bytes,
                        .messages = 2 * plan->ranks, .parts = parts, .leaders_can = can, .later = later, .tags = parts * KINDS,
                        .parallel_can = can};
    enum algorithm algorithm = choose(plan, REDUCE_SCATTER, bytes, load);
    if (algorithm == MPI)
        return LEAVE;
    const void *data = from == MPI_IN_PLACE ? to : from;
    struct flow here, *flow = flow_begin(&here, plan, later, load.tags);
    if (algorithm == LEADERS) {
        void *all = flow_elements(flow, total, &shape);
        if (all)
            reduce_by_leaders(flow, data, all, total, type, &shape, op, -1);
        copy_elements(flow, element(all, &shape, own), mine, type, to, mine, type);
        return flow_end(flow, NULL, NULL);
    }
    struct reducing *reducing = begin_reducing(flow, parts, data, to, &shape, type, op);
    MPI_Count start = 0;
    int64_t used = 0;
    for (int rank = 0; rank < plan->ranks && reducing; rank++) {
        used += cut(reducing->parts + used, start, count_at(spread, rank), most, rank);
        start += count_at(spread, rank);
    }
    if (reducing) {
        reducing->own = own;
        reducing->scattered = reducing->in_place = 1;
        reduce_in_parallel(flow, reducing);
    }
    return flow_end(flow, take_scattered, reducing);
}

// --- Scan and Exscan -----------------------------------------------------------

// The combined value of the sites before this one. Each site's last rank sends its total to the first rank of every
// later site. Totals wait for their own site only, so there is no cycle. Returns NULL at site 0.
static void *prefix_by_leaders(struct flow *flow, const void *inclusive, MPI_Count count, MPI_Datatype type, const struct shape *shape, MPI_Op op)
{
    const struct plan *plan = flow->plan;
    void **totals = flow_memory(flow, (plan->sites + 1) * (int64_t)sizeof *totals), *prefix = NULL;
    for (int site = 0; plan->spot == 0 && site < plan->site && !flow->error; site++) {
        totals[site] = flow_elements(flow, count, shape);
        flow_receive(flow, totals[site], count, type, member(plan, site, size_of(plan, site) - 1), 0, NULL, NULL, 0);
    }
    if (plan->spot == size_of(plan, plan->site) - 1)
        for (int site = plan->site + 1; site < plan->sites; site++)
            flow_send(flow, inclusive, count, type, member(plan, site, 0), 0, NULL, NULL, 0);
    flow_wait(flow);
    if (plan->site == 0 || flow->error)
        return NULL;
    prefix = plan->spot == 0 ? fold(flow, totals, plan->site, count, type, op) : flow_elements(flow, count, shape);
    if (!flow->error)
        flow_fail(flow, COUNTED(PMPI_Bcast)(prefix, (counted)count, type, 0, plan->near));
    return prefix;
}

// The same if sites are not runs of ranks: at each other site, the last rank below this one sends the value combined up
// to it. All receives are posted before the wait. Returns NULL if there is no lower rank at another site.
static void *prefix_directly(struct flow *flow, const void *inclusive, MPI_Count count, MPI_Datatype type, const struct shape *shape, MPI_Op op)
{
    const struct plan *plan = flow->plan;
    void **values = flow_memory(flow, plan->sites * (int64_t)sizeof *values);
    int used = 0, here = size_of(plan, plan->site), next = plan->spot + 1 < here ? member(plan, plan->site, plan->spot + 1) : plan->ranks;
    for (int site = 0; site < plan->sites && !flow->error; site++) {
        int last = -1;
        for (int i = plan->first[site]; i < plan->first[site + 1] && plan->members[i] < plan->rank; i++)
            last = plan->members[i];
        if (site == plan->site || last < 0)
            continue;
        values[used] = flow_elements(flow, count, shape);
        flow_receive(flow, values[used++], count, type, last, 0, NULL, NULL, 0);
    }
    for (int rank = plan->rank + 1; rank < next; rank++)
        flow_send(flow, inclusive, count, type, rank, 0, NULL, NULL, 0);
    flow_wait(flow);
    return used && !flow->error ? fold(flow, values, used, count, type, op) : NULL;
}

int run_scan(struct plan *plan, enum operation operation, const void *from, void *to, MPI_Count count, MPI_Datatype type, MPI_Op op)
{
    struct shape shape;
    if (shape_of(type, &shape) || count * shape.size == 0 || !is_accepted(plan, NULL, type, op))
        return LEAVE;
    int64_t bytes = count * shape.size;
    double steps = 0, rate = plan->settings.rate, half = plan->settings.rtt_s / 2;
    for (int reached = 1; reached < plan->ranks; reached *= 2)
        steps++;
    // Directly, each rank of a site may get a vector of its own. From some length on, the MPI's steps cost less.
    int direct = keeps_order(plan, op) && (plan->settings.pins[operation] == PARALLEL ||
                 half + (double)bytes * plan->ranks / rate < steps * (half + (double)bytes / rate));
    struct load load = {.across = (double)bytes * (plan->sites - 1), .leader_near = (double)bytes * near_steps(plan),
                        .parallel_near = (double)bytes * plan->ranks, .messages = 2 * plan->ranks, .parts = 1, .leaders_can = plan->blocks,
                        .parallel_can = direct, .any_length = 1};
    enum algorithm algorithm = choose(plan, operation, bytes, load);
    if (algorithm == MPI)
        return LEAVE;
    struct flow here, *flow = flow_begin(&here, plan, NULL, 0);
    const void *data = from;
    void *inclusive = flow_elements(flow, count, &shape), *own = to;
    if (from == MPI_IN_PLACE) {
        void *copy = flow_elements(flow, count, &shape);
        copy_elements(flow, to, count, type, copy, count, type);
        data = copy;
    }
    if (!flow->error)
        flow_fail(flow, COUNTED(PMPI_Scan)(data, inclusive, (counted)count, type, op, plan->near));
    if (operation == SCAN)
        copy_elements(flow, inclusive, count, type, to, count, type);
    else if (!flow->error)
        flow_fail(flow, COUNTED(PMPI_Exscan)(data, to, (counted)count, type, op, plan->near));
    if (operation == EXSCAN && plan->spot == 0)
        own = NULL; // nothing lies below within the site
    void *prefix = flow->error ? NULL : algorithm == LEADERS ? prefix_by_leaders(flow, inclusive, count, type, &shape, op)
                                                            : prefix_directly(flow, inclusive, count, type, &shape, op);
    if (prefix && own && !flow->error)
        fold(flow, (void *[]){prefix, own}, 2, count, type, op);
    else if (prefix)
        copy_elements(flow, prefix, count, type, to, count, type);
    return flow_end(flow, NULL, NULL);
}
