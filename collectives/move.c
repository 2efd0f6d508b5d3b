// Collectives that move data: Barrier, Bcast, Gather, Scatter, Allgather, Alltoall.
#include "internal.h"

#include <stdlib.h>
#include <string.h>

void exchange(struct flow *flow, int root, void **parts, const MPI_Count *lengths, MPI_Datatype type)
{
    const struct plan *plan = flow->plan;
    for (int site = 0; site < plan->sites; site++)
        if (site != plan->site)
            flow_receive(flow, parts[site], lengths[site], type, leader_of(plan, site, root), 0, NULL, NULL, 0);
    for (int site = 0; site < plan->sites; site++)
        if (site != plan->site)
            flow_send(flow, parts[plan->site], lengths[plan->site], type, leader_of(plan, site, root), 0, NULL, NULL, 0);
    flow_wait(flow);
}

// --- Barrier -------------------------------------------------------------------

// A barrier within each site, a message between all leaders, and again a barrier within each site. A leader sends its
// message once its site is complete, which no other site delays. Then it waits for the other leaders only.
static void barrier_by_leaders(struct flow *flow)
{
    struct plan *plan = flow->plan;
    flow_fail(flow, PMPI_Barrier(plan->near));
    if (!flow->error && plan->spot == 0) {
        void **parts = calloc((size_t)plan->sites, sizeof *parts);
        MPI_Count *lengths = calloc((size_t)plan->sites, sizeof *lengths);
        if (parts && lengths)
            exchange(flow, -1, parts, lengths, MPI_BYTE);
        else
            flow_fail(flow, MPI_ERR_NO_MEM);
        free(parts);
        free(lengths);
    }
    if (!flow->error)
        flow_fail(flow, PMPI_Barrier(plan->near));
}

// The same by messages only: each rank tells its leader, leaders tell each other, and each tells its site.
enum { ARRIVED, SITE_ARRIVED, ALL_ARRIVED, BARRIER_TAGS };
struct barrier {
    int near_missing, missing; // ranks of this site, and sites
};

static void barrier_site(struct flow *flow, void *what, int64_t unused)
{
    const struct plan *plan = flow->plan;
    struct barrier *barrier = what;
    (void)unused;
    if (--barrier->missing > 0)
        return;
    for (int i = 1; i < size_of(plan, plan->site); i++)
        flow_send(flow, NULL, 0, MPI_BYTE, member(plan, plan->site, i), ALL_ARRIVED, NULL, NULL, 0);
}

static void barrier_rank(struct flow *flow, void *what, int64_t unused)
{
    const struct plan *plan = flow->plan;
    struct barrier *barrier = what;
    if (--barrier->near_missing > 0)
        return;
    for (int site = 0; site < plan->sites; site++)
        if (site != plan->site)
            flow_send(flow, NULL, 0, MPI_BYTE, member(plan, site, 0), SITE_ARRIVED, NULL, NULL, 0);
    barrier_site(flow, what, unused);
}

static void barrier_by_messages(struct flow *flow, struct barrier *barrier)
{
    const struct plan *plan = flow->plan;
    int leader = member(plan, plan->site, 0);
    if (flow->error)
        return;
    if (plan->rank != leader) {
        flow_receive(flow, NULL, 0, MPI_BYTE, leader, ALL_ARRIVED, NULL, NULL, 0);
        flow_send(flow, NULL, 0, MPI_BYTE, leader, ARRIVED, NULL, NULL, 0);
        return;
    }
    *barrier = (struct barrier){size_of(plan, plan->site), plan->sites};
    for (int i = 1; i < size_of(plan, plan->site); i++)
        flow_receive(flow, NULL, 0, MPI_BYTE, member(plan, plan->site, i), ARRIVED, barrier_rank, barrier, 0);
    for (int site = 0; site < plan->sites; site++)
        if (site != plan->site)
            flow_receive(flow, NULL, 0, MPI_BYTE, member(plan, site, 0), SITE_ARRIVED, barrier_site, barrier, 0);
    barrier_rank(flow, barrier, 0); // the leader itself
}

int run_barrier(struct plan *plan, const struct later *later)
{
    struct load load = {.parts = 1, .leaders_can = 1, .parallel_can = later != NULL, .later = later, .tags = BARRIER_TAGS};
    if (choose(plan, BARRIER, 0, load) == MPI)
        return LEAVE;
    struct flow here, *flow = flow_begin(&here, plan, later, load.tags);
    if (later)
        barrier_by_messages(flow, flow_memory(flow, sizeof(struct barrier)));
    else
        barrier_by_leaders(flow);
    return flow_end(flow, NULL, NULL);
}

// --- Bcast ---------------------------------------------------------------------

// The root sends to each site's leader, which broadcasts within its site. In this tree each rank waits only for the
// rank above it.
static void bcast_by_leaders(struct flow *flow, void *data, MPI_Count count, MPI_Datatype type, int root)
{
    const struct plan *plan = flow->plan;
    int leader = leader_of(plan, plan->site, root);
    for (int site = 0; plan->rank == root && site < plan->sites; site++)
        if (site != plan->site)
            flow_send(flow, data, count, type, leader_of(plan, site, root), 0, NULL, NULL, 0);
    if (plan->rank == leader && plan->rank != root) {
        flow_receive(flow, data, count, type, root, 0, NULL, NULL, 0);
        flow_wait(flow);
    }
    if (!flow->error)
        flow_fail(flow, PMPI_Bcast(data, (int)count, type, plan->spot_of[leader], plan->near));
    flow_wait(flow);
}

// Segment i goes from the root to a relay of its site and to a holder at each other site, and from these to all others
// of the site. Relays and holders rotate, so that scattering, crossing and gathering overlap. If one rank cannot fill
// the link, the relays send across; else the root does.
//
// Each segment takes the path root, relay, holder, member. A rank posts its receives of all segments first and waits
// for nothing but the rank before it on the path, so there is no cycle.
struct bcast {
    char *bytes;
    int64_t length, segment;
    int root, relays_cross;
    // If the bytes are a packed copy: what they are a copy of.
    void *data;
    MPI_Count count;
    MPI_Datatype type;
    struct shape shape;
};

static int relay_of(const struct plan *plan, const struct bcast *bcast, int64_t i)
{
    int site = plan->site_of[bcast->root];
    return member(plan, site, (int)(i % size_of(plan, site)));
}

static int holder_of(const struct plan *plan, int site, int64_t i) { return member(plan, site, (int)(i % size_of(plan, site))); }

static void bcast_send(struct flow *flow, const struct bcast *bcast, int64_t i, int to)
{
    int64_t start = i * bcast->segment, left = bcast->length - start;
    flow_send(flow, bcast->bytes + start, left < bcast->segment ? left : bcast->segment, MPI_BYTE, to, (int)i, NULL, NULL, 0);
}

static void bcast_cross(struct flow *flow, const struct bcast *bcast, int64_t i)
{
    for (int site = 0; site < flow->plan->sites; site++)
        if (site != flow->plan->site)
            bcast_send(flow, bcast, i, holder_of(flow->plan, site, i));
}

static void bcast_near(struct flow *flow, const struct bcast *bcast, int64_t i)
{
    const struct plan *plan = flow->plan;
    for (int spot = 0; spot < size_of(plan, plan->site); spot++) {
        int to = member(plan, plan->site, spot);
        if (to != plan->rank && to != bcast->root)
            bcast_send(flow, bcast, i, to);
    }
}

static void bcast_forward(struct flow *flow, void *what, int64_t i)
{
    const struct bcast *bcast = what;
    if (bcast->relays_cross && flow->plan->site == flow->plan->site_of[bcast->root])
        bcast_cross(flow, bcast, i);
    bcast_near(flow, bcast, i);
}

static void bcast_in_parallel(struct flow *flow, struct bcast *bcast)
{
    const struct plan *plan = flow->plan;
    if (flow->error)
        return;
    flow->arrivals = arrivals_of(flow);
    int64_t segments = (bcast->length + bcast->segment - 1) / bcast->segment;
    int home = plan->site == plan->site_of[bcast->root];
    for (int64_t i = 0; i < segments && plan->rank != bcast->root; i++) {
        int64_t start = i * bcast->segment, left = bcast->length - start;
        int relay = relay_of(plan, bcast, i), near = home ? relay : holder_of(plan, plan->site, i);
        int from = near != plan->rank && near != bcast->root ? near : home || !bcast->relays_cross ? bcast->root : relay;
        flow_receive(flow, bcast->bytes + start, left < bcast->segment ? left : bcast->segment, MPI_BYTE, from, (int)i,
                     near == plan->rank ? bcast_forward : NULL, bcast, i);
    }
    for (int64_t i = 0; i < segments && plan->rank == bcast->root; i++) {
        int relay = relay_of(plan, bcast, i);
        if (!bcast->relays_cross || relay == bcast->root)
            bcast_cross(flow, bcast, i);
        if (relay == bcast->root)
            bcast_near(flow, bcast, i);
        else
            bcast_send(flow, bcast, i, relay);
    }
}

static void bcast_unpack(struct flow *flow, void *what, int64_t unused)
{
    const struct bcast *bcast = what;
    (void)unused;
    if (!bcast->shape.plain && flow->plan->rank != bcast->root)
        unpack(flow, bcast->bytes, bcast->data, bcast->count, bcast->type, &bcast->shape);
}

int run_bcast(struct plan *plan, const struct later *later, void *data, MPI_Count count, MPI_Datatype type, int root)
{
    struct shape shape;
    if (shape_of(type, &shape))
        return LEAVE;
    int64_t bytes = count * shape.size, segment = segment_of(plan, bytes);
    struct load load = {.across = (double)bytes * (plan->sites - 1), .leader_near = (double)bytes * near_steps(plan), .parallel_near = 2.0 * (double)bytes,
                        .messages = 2 * largest_site(plan), .parts = bytes / segment + 1, .leaders_can = 1, .parallel_can = 1,
                        .later = later, .tags = bytes / segment + 1};
    enum algorithm algorithm = bytes ? choose(plan, BCAST, bytes, load) : MPI;
    if (algorithm == MPI)
        return LEAVE;
    struct flow here, *flow = flow_begin(&here, plan, later, load.tags);
    if (algorithm == LEADERS) {
        bcast_by_leaders(flow, data, count, type, root);
        return flow_end(flow, NULL, NULL);
    }
    const struct settings *known = settings_of(plan, later);
    int relays_cross = known->pair_rate > 0 && known->pair_rate < known->rate;
    if (!relays_cross && !later)
        sent_by_one(plan);
    struct bcast *bcast = flow_memory(flow, sizeof *bcast);
    if (bcast) {
        *bcast = (struct bcast){.length = bytes, .segment = segment, .root = root, .relays_cross = relays_cross,
                                .data = data, .count = count, .type = type, .shape = shape};
        bcast->bytes = shape.plain ? data : flow_memory(flow, bytes);
        if (!shape.plain && plan->rank == root)
            pack(flow, data, count, type, &shape, bcast->bytes);
        bcast_in_parallel(flow, bcast);
    }
    return flow_end(flow, bcast_unpack, bcast);
}

// --- Gather and Scatter --------------------------------------------------------

// One message from each rank to the root, all at once. Only the root waits for others. In a Gatherv only the root
// knows the counts, so ranks cannot agree on anything else.
static void gather_directly(struct flow *flow, const void *from, MPI_Count count, MPI_Datatype type, void *to, const struct spread *spread,
                            MPI_Datatype to_type, int root)
{
    const struct plan *plan = flow->plan;
    if (plan->rank != root) {
        flow_send(flow, from, count, type, root, 0, NULL, NULL, 0);
        return;
    }
    struct shape shape;
    flow_fail(flow, shape_of(to_type, &shape));
    for (int rank = 0; rank < plan->ranks && !flow->error; rank++)
        if (rank != root)
            flow_receive(flow, element(to, &shape, displ_at(spread, rank)), count_at(spread, rank), to_type, rank, 0, NULL, NULL, 0);
    if (from != MPI_IN_PLACE && !flow->error)
        copy_elements(flow, from, count, type, element(to, &shape, displ_at(spread, root)), count_at(spread, root), to_type);
}

// Each leader gathers its site and sends one message to the root. The root waits for all leaders, and nobody for it.
static void gather_by_leaders(struct flow *flow, const void *from, MPI_Count count, MPI_Datatype type, void *to, const struct spread *spread,
                              MPI_Datatype to_type, int root, int64_t each)
{
    const struct plan *plan = flow->plan;
    int leader = leader_of(plan, plan->site, root), at_root = plan->rank == root;
    struct shape shape, to_shape = {0};
    if (at_root)
        flow_fail(flow, shape_of(to_type, &to_shape));
    char *mine = flow_memory(flow, each), *all = NULL, *chunk = NULL;
    if (at_root && from == MPI_IN_PLACE)
        pack(flow, element(to, &to_shape, displ_at(spread, root)), spread->each, to_type, &to_shape, mine);
    else {
        flow_fail(flow, shape_of(type, &shape));
        pack(flow, from, count, type, &shape, mine);
    }
    if (at_root && (all = flow_memory(flow, each * plan->ranks)))
        chunk = all + each * plan->first[plan->site];
    else if (plan->rank == leader)
        chunk = flow_memory(flow, each * size_of(plan, plan->site));
    for (int site = 0; at_root && site < plan->sites && !flow->error; site++)
        if (site != plan->site)
            flow_receive(flow, all + each * plan->first[site], each * size_of(plan, site), MPI_BYTE, leader_of(plan, site, root), 0, NULL, NULL, 0);
    if (!flow->error)
        flow_fail(flow, PMPI_Gather(mine, (int)each, MPI_BYTE, chunk, (int)each, MPI_BYTE, plan->spot_of[leader], plan->near));
    if (plan->rank == leader && !at_root)
        flow_send(flow, chunk, each * size_of(plan, plan->site), MPI_BYTE, root, 0, NULL, NULL, 0);
    flow_wait(flow);
    for (int i = 0; at_root && i < plan->ranks && !flow->error; i++)
        unpack(flow, all + each * i, element(to, &to_shape, displ_at(spread, plan->members[i])), spread->each, to_type, &to_shape);
}

static struct load rooted_load(const struct plan *plan, int64_t each)
{
    return (struct load){.across = (double)each * (plan->ranks - 1), .leader_near = (double)each * plan->ranks, .parallel_near = 0,
                         .messages = plan->ranks, .parts = plan->ranks, .leaders_can = 1, .parallel_can = 1, .tags = 1};
}

int run_gather(struct plan *plan, const struct later *later, enum operation operation, const void *from, MPI_Count count, MPI_Datatype type, void *to,
               const struct spread *spread, MPI_Datatype to_type, int root)
{
    struct shape shape;
    int in_place = plan->rank == root && from == MPI_IN_PLACE;
    if (shape_of(in_place ? to_type : type, &shape))
        return LEAVE;
    int64_t each = operation == GATHERV ? 0 : (in_place ? spread->each : count) * shape.size;
    struct load load = rooted_load(plan, each);
    load.leaders_can = operation == GATHER;
    load.later = later;
    enum algorithm algorithm = operation == GATHER && each == 0 ? MPI : choose(plan, operation, each * plan->ranks, load);
    if (algorithm == MPI)
        return LEAVE;
    struct flow here, *flow = flow_begin(&here, plan, later, load.tags);
    if (algorithm == LEADERS)
        gather_by_leaders(flow, from, count, type, to, spread, to_type, root, each);
    else
        gather_directly(flow, from, count, type, to, spread, to_type, root);
    return flow_end(flow, NULL, NULL);
}

// One message from the root to each rank, the far ones first. All ranks wait for the root only.
static void scatter_directly(struct flow *flow, const void *from, const struct spread *spread, MPI_Datatype from_type, void *to,
                             MPI_Count count, MPI_Datatype type, int root)
{
    const struct plan *plan = flow->plan;
    if (plan->rank != root) {
        flow_receive(flow, to, count, type, root, 0, NULL, NULL, 0);
        return;
    }
    struct shape shape;
    flow_fail(flow, shape_of(from_type, &shape));
    for (int near = 0; near < 2; near++)
        for (int rank = 0; rank < plan->ranks && !flow->error; rank++)
            if (rank != root && (plan->site_of[rank] == plan->site) == near)
                flow_send(flow, element(from, &shape, displ_at(spread, rank)), count_at(spread, rank), from_type, rank, 0, NULL, NULL, 0);
    if (to != MPI_IN_PLACE && !flow->error)
        copy_elements(flow, element(from, &shape, displ_at(spread, root)), count_at(spread, root), from_type, to, count, type);
}

// One message from the root to each leader, which scatters it within its site. This is a tree, so there is no cycle.
static void scatter_by_leaders(struct flow *flow, const void *from, const struct spread *spread, MPI_Datatype from_type, void *to,
                               MPI_Count count, MPI_Datatype type, int root, int64_t each)
{
    const struct plan *plan = flow->plan;
    int leader = leader_of(plan, plan->site, root), at_root = plan->rank == root;
    struct shape shape;
    char *mine = flow_memory(flow, each), *all = NULL, *chunk = NULL;
    if (at_root) {
        flow_fail(flow, shape_of(from_type, &shape));
        all = flow_memory(flow, each * plan->ranks);
        for (int i = 0; i < plan->ranks && !flow->error; i++)
            pack(flow, element(from, &shape, displ_at(spread, plan->members[i])), spread->each, from_type, &shape, all + each * i);
        for (int site = 0; site < plan->sites && !flow->error; site++)
            if (site != plan->site)
                flow_send(flow, all + each * plan->first[site], each * size_of(plan, site), MPI_BYTE, leader_of(plan, site, root), 0, NULL, NULL, 0);
        chunk = all ? all + each * plan->first[plan->site] : NULL;
    } else if (plan->rank == leader) {
        chunk = flow_memory(flow, each * size_of(plan, plan->site));
        flow_receive(flow, chunk, each * size_of(plan, plan->site), MPI_BYTE, root, 0, NULL, NULL, 0);
        flow_wait(flow);
    }
    if (!flow->error)
        flow_fail(flow, PMPI_Scatter(chunk, (int)each, MPI_BYTE, mine, (int)each, MPI_BYTE, plan->spot_of[leader], plan->near));
    flow_wait(flow);
    if (at_root && to == MPI_IN_PLACE)
        return;
    flow_fail(flow, shape_of(type, &shape));
    unpack(flow, mine, to, count, type, &shape);
}

int run_scatter(struct plan *plan, const struct later *later, enum operation operation, const void *from, const struct spread *spread, MPI_Datatype from_type,
                void *to, MPI_Count count, MPI_Datatype type, int root)
{
    struct shape shape;
    int in_place = plan->rank == root && to == MPI_IN_PLACE;
    if (shape_of(in_place ? from_type : type, &shape))
        return LEAVE;
    int64_t each = operation == SCATTERV ? 0 : (in_place ? spread->each : count) * shape.size;
    struct load load = rooted_load(plan, each);
    load.leaders_can = operation == SCATTER;
    load.later = later;
    enum algorithm algorithm = operation == SCATTER && each == 0 ? MPI : choose(plan, operation, each * plan->ranks, load);
    if (algorithm == MPI)
        return LEAVE;
    struct flow here, *flow = flow_begin(&here, plan, later, load.tags);
    if (algorithm == LEADERS)
        scatter_by_leaders(flow, from, spread, from_type, to, count, type, root, each);
    else
        scatter_directly(flow, from, spread, from_type, to, count, type, root);
    return flow_end(flow, NULL, NULL);
}

// --- Allgather -----------------------------------------------------------------

// Packs a rank's own block; in an in-place call it comes from the result.
static void pack_own(struct flow *flow, const void *from, MPI_Count count, MPI_Datatype type, const void *to, const struct spread *spread,
                     MPI_Datatype to_type, const struct shape *to_shape, char *bytes)
{
    int rank = flow->plan->rank;
    struct shape shape;
    if (from == MPI_IN_PLACE)
        pack(flow, element(to, to_shape, displ_at(spread, rank)), count_at(spread, rank), to_type, to_shape, bytes);
    else {
        flow_fail(flow, shape_of(type, &shape));
        pack(flow, from, count, type, &shape, bytes);
    }
}

// Leaders gather their sites, exchange with all other leaders, and broadcast within their sites (as in MagPIe). The
// first step waits for the own site only, the exchange for the first step of each site, and the last step for the
// exchange.
static void allgather_by_leaders(struct flow *flow, const void *from, MPI_Count count, MPI_Datatype type, void *to, const struct spread *spread,
                                 MPI_Datatype to_type, const struct shape *shape)
{
    const struct plan *plan = flow->plan;
    size_t ranks = (size_t)plan->ranks, sites = (size_t)plan->sites;
    int64_t total = 0;
    int *lengths = flow_memory(flow, (int64_t)(ranks * sizeof *lengths)), *starts = flow_memory(flow, (int64_t)(ranks * sizeof *starts));
    MPI_Count *chunk_lengths = flow_memory(flow, (int64_t)(sites * sizeof *chunk_lengths));
    void **chunks = flow_memory(flow, (int64_t)(sites * sizeof *chunks));
    for (int i = 0; i < plan->ranks && !flow->error; i++) {
        lengths[i] = (int)(count_at(spread, plan->members[i]) * shape->size);
        starts[i] = (int)total;
        total += lengths[i];
    }
    char *all = flow_memory(flow, total);
    if (flow->error)
        return;
    for (int site = 0; site < plan->sites; site++) {
        int64_t end = site + 1 < plan->sites ? starts[plan->first[site + 1]] : total;
        chunks[site] = all + starts[plan->first[site]];
        chunk_lengths[site] = end - starts[plan->first[site]];
    }
    int mine = plan->first[plan->site] + plan->spot;
    char *own = flow_memory(flow, lengths[mine]);
    pack_own(flow, from, count, type, to, spread, to_type, shape, own);
    if (!flow->error)
        flow_fail(flow, PMPI_Gatherv(own, lengths[mine], MPI_BYTE, all, lengths + plan->first[plan->site], starts + plan->first[plan->site],
                                     MPI_BYTE, 0, plan->near));
    if (plan->spot == 0)
        exchange(flow, -1, chunks, chunk_lengths, MPI_BYTE);
    if (!flow->error)
        flow_fail(flow, PMPI_Bcast(all, (int)total, MPI_BYTE, 0, plan->near));
    for (int i = 0; i < plan->ranks && !flow->error; i++) {
        int rank = plan->members[i];
        unpack(flow, all + starts[i], element(to, shape, displ_at(spread, rank)), count_at(spread, rank), to_type, shape);
    }
}

// Each rank sends its block, piece by piece, to all near ranks and to one holder at each other site, which forwards it
// to the others there. A piece takes the path owner, holder, member. All receives are posted first, so there is no
// cycle.
struct piece {
    int owner;
    int64_t number; // within its block
    char *bytes;
    int64_t length;
};

static int piece_holder(const struct plan *plan, int site, const struct piece *piece)
{
    return member(plan, site, (int)((plan->spot_of[piece->owner] + piece->number) % size_of(plan, site)));
}

static void piece_near(struct flow *flow, void *what, int64_t i)
{
    const struct plan *plan = flow->plan;
    const struct piece *piece = (const struct piece *)what + i;
    for (int spot = 0; spot < size_of(plan, plan->site); spot++)
        if (spot != plan->spot)
            flow_send(flow, piece->bytes, piece->length, MPI_BYTE, member(plan, plan->site, spot), (int)i, NULL, NULL, 0);
}

static void allgather_in_parallel(struct flow *flow, struct piece *pieces, int64_t count)
{
    const struct plan *plan = flow->plan;
    flow->arrivals = arrivals_of(flow);
    for (int64_t i = 0; i < count; i++) {
        const struct piece *piece = &pieces[i];
        int near = plan->site_of[piece->owner] == plan->site ? piece->owner : piece_holder(plan, plan->site, piece);
        if (piece->owner == plan->rank)
            continue;
        if (near == plan->rank)
            flow_receive(flow, piece->bytes, piece->length, MPI_BYTE, piece->owner, (int)i, piece_near, pieces, i);
        else
            flow_receive(flow, piece->bytes, piece->length, MPI_BYTE, near, (int)i, NULL, NULL, 0);
    }
    for (int64_t i = 0; i < count; i++)
        for (int site = 0; pieces[i].owner == plan->rank && site < plan->sites; site++)
            if (site != plan->site)
                flow_send(flow, pieces[i].bytes, pieces[i].length, MPI_BYTE, piece_holder(plan, site, &pieces[i]), (int)i, NULL, NULL, 0);
    for (int64_t i = 0; i < count; i++)
        if (pieces[i].owner == plan->rank)
            piece_near(flow, pieces, i);
}

static int64_t pieces_of(int64_t length, int64_t segment) { return (length + segment - 1) / segment; }

// The result, if it is unpacked at the end.
struct gathered {
    char *all;
    void *to;
    struct spread spread;
    MPI_Datatype type;
    struct shape shape;
};

static void allgather_unpack(struct flow *flow, void *what, int64_t unused)
{
    const struct gathered *gathered = what;
    const struct spread *spread = &gathered->spread;
    const char *next = gathered->all;
    (void)unused;
    for (int rank = 0; next && rank < flow->plan->ranks && !flow->error; rank++) {
        unpack(flow, next, element(gathered->to, &gathered->shape, displ_at(spread, rank)), count_at(spread, rank), gathered->type, &gathered->shape);
        next += count_at(spread, rank) * gathered->shape.size;
    }
}

int run_allgather(struct plan *plan, const struct later *later, const void *from, MPI_Count count, MPI_Datatype type, void *to, const struct spread *spread, MPI_Datatype to_type)
{
    struct shape shape;
    int64_t total = 0, crossing_most = 0, pieces_count = 0;
    if (shape_of(to_type, &shape))
        return LEAVE;
    for (int site = 0; site < plan->sites; site++) {
        int64_t crossing = 0;
        for (int i = plan->first[site]; i < plan->first[site + 1]; i++)
            crossing += count_at(spread, plan->members[i]) * shape.size;
        total += crossing;
        crossing_most = crossing > crossing_most ? crossing : crossing_most;
    }
    int64_t segment = segment_of(plan, total);
    for (int rank = 0; rank < plan->ranks; rank++)
        pieces_count += pieces_of(count_at(spread, rank) * shape.size, segment);
    struct load load = {.across = (double)crossing_most * (plan->sites - 1), .leader_near = (double)total * (1 + near_steps(plan)),
                        .parallel_near = (double)total, .messages = 2 * plan->ranks, .parts = total / segment + 1, .leaders_can = 1,
                        .parallel_can = 1, .later = later, .tags = pieces_count};
    enum algorithm algorithm = total ? choose(plan, ALLGATHER, total, load) : MPI;
    if (algorithm == MPI)
        return LEAVE;
    struct flow here, *flow = flow_begin(&here, plan, later, load.tags);
    if (algorithm == LEADERS) {
        allgather_by_leaders(flow, from, count, type, to, spread, to_type, &shape);
        return flow_end(flow, NULL, NULL);
    }
    struct piece *pieces = flow_memory(flow, pieces_count * (int64_t)sizeof *pieces);
    struct gathered *gathered = flow_memory(flow, sizeof *gathered);
    char *all = shape.plain ? NULL : flow_memory(flow, total), *next = all;
    int64_t used = 0;
    for (int rank = 0; rank < plan->ranks && !flow->error; rank++) {
        int64_t length = count_at(spread, rank) * shape.size;
        char *bytes = shape.plain ? element(to, &shape, displ_at(spread, rank)) : next;
        for (int64_t number = 0; number * segment < length; number++) {
            int64_t left = length - number * segment;
            pieces[used++] = (struct piece){rank, number, bytes + number * segment, left < segment ? left : segment};
        }
        if (rank == plan->rank)
            pack_own(flow, from, count, type, to, spread, to_type, &shape, bytes);
        next = shape.plain ? NULL : next + length;
    }
    if (!flow->error) {
        *gathered = (struct gathered){all, to, *spread, to_type, shape};
        allgather_in_parallel(flow, pieces, used);
    }
    return flow_end(flow, allgather_unpack, gathered);
}

// --- Alltoall ------------------------------------------------------------------

// One message for each pair, all at once, the far ones first. All receives are posted before anybody waits.
static void alltoall_directly(struct flow *flow, const void *from, const struct spread *from_spread, MPI_Datatype from_type, void *to,
                              const struct spread *to_spread, MPI_Datatype to_type)
{
    const struct plan *plan = flow->plan;
    struct shape shape, to_shape;
    if (!to_spread->types)
        flow_fail(flow, shape_of(to_type, &to_shape));
    int in_place = from == MPI_IN_PLACE;
    // In place, incoming blocks would overwrite outgoing ones, so each outgoing block is copied.
    void **blocks = in_place ? flow_memory(flow, plan->ranks * (int64_t)sizeof *blocks) : NULL;
    for (int rank = 0; in_place && rank < plan->ranks && !flow->error; rank++) {
        MPI_Count count = rank == plan->rank ? 0 : count_at(to_spread, rank);
        MPI_Datatype type = type_at(to_spread, to_type, rank);
        if (to_spread->types)
            flow_fail(flow, shape_of(type, &to_shape));
        if ((blocks[rank] = flow_elements(flow, count, &to_shape)))
            copy_elements(flow, block_at(to, to_spread, &to_shape, rank), count, type, blocks[rank], count, type);
    }
    if (!in_place && !from_spread->types)
        flow_fail(flow, shape_of(from_type, &shape));
    for (int rank = 0; rank < plan->ranks && !flow->error; rank++)
        if (rank != plan->rank)
            flow_receive(flow, block_at(to, to_spread, &to_shape, rank), count_at(to_spread, rank), type_at(to_spread, to_type, rank), rank, 0, NULL, NULL, 0);
    for (int near = 0; near < 2; near++)
        // Each rank begins with a different one, so that not all send to the same rank at once.
        for (int i = 1; i < plan->ranks && !flow->error; i++) {
            int rank = (plan->rank + i) % plan->ranks;
            if ((plan->site_of[rank] == plan->site) != near)
                continue;
            if (in_place)
                flow_send(flow, blocks[rank], count_at(to_spread, rank), type_at(to_spread, to_type, rank), rank, 0, NULL, NULL, 0);
            else
                flow_send(flow, block_at(from, from_spread, &shape, rank), count_at(from_spread, rank), type_at(from_spread, from_type, rank), rank, 0, NULL, NULL, 0);
        }
    int own = plan->rank;
    if (!in_place && !flow->error)
        copy_elements(flow, block_at(from, from_spread, &shape, own), count_at(from_spread, own), type_at(from_spread, from_type, own),
                      block_at(to, to_spread, &to_shape, own), count_at(to_spread, own), type_at(to_spread, to_type, own));
}

// Leaders gather their sites, exchange one message for each pair of leaders, and scatter within their sites. As in
// allgather_by_leaders, each step waits only for the step before it.
static void alltoall_by_leaders(struct flow *flow, const void *from, const struct spread *from_spread, MPI_Datatype from_type, void *to,
                                const struct spread *to_spread, MPI_Datatype to_type, int64_t each)
{
    const struct plan *plan = flow->plan;
    const void *data = from == MPI_IN_PLACE ? to : from;
    const struct spread *spread = from == MPI_IN_PLACE ? to_spread : from_spread;
    MPI_Datatype type = from == MPI_IN_PLACE ? to_type : from_type;
    int here = size_of(plan, plan->site);
    int64_t row = each * plan->ranks;
    struct shape shape, to_shape;
    flow_fail(flow, shape_of(type, &shape));
    flow_fail(flow, shape_of(to_type, &to_shape));
    char *mine = flow_memory(flow, row), *rows = plan->spot == 0 ? flow_memory(flow, row * here) : NULL;
    for (int i = 0; i < plan->ranks && !flow->error; i++)
        pack(flow, element(data, &shape, displ_at(spread, plan->members[i])), spread->each, type, &shape, mine + each * i);
    if (!flow->error)
        flow_fail(flow, PMPI_Gather(mine, (int)row, MPI_BYTE, rows, (int)row, MPI_BYTE, 0, plan->near));
    if (plan->spot == 0 && !flow->error) {
        // outgoing[site] has the blocks of each rank here for each rank there; incoming[site] the reverse.
        char *outgoing = flow_memory(flow, row * here), *incoming = flow_memory(flow, row * here);
        for (int site = 0; site < plan->sites && !flow->error; site++) {
            int64_t start = each * plan->first[site] * here, width = each * size_of(plan, site);
            for (int i = 0; i < here; i++)
                memcpy(outgoing + start + width * i, rows + row * i + each * plan->first[site], (size_t)width);
            if (site == plan->site)
                memcpy(incoming + start, outgoing + start, (size_t)(width * here));
            else
                flow_receive(flow, incoming + start, width * here, MPI_BYTE, member(plan, site, 0), 0, NULL, NULL, 0);
        }
        for (int site = 0; site < plan->sites && !flow->error; site++)
            if (site != plan->site)
                flow_send(flow, outgoing + each * plan->first[site] * here, each * size_of(plan, site) * here, MPI_BYTE, member(plan, site, 0), 0, NULL, NULL, 0);
        flow_wait(flow);
        for (int site = 0; site < plan->sites && !flow->error; site++)
            for (int there = 0; there < size_of(plan, site); there++)
                for (int i = 0; i < here; i++)
                    memcpy(rows + row * i + each * (plan->first[site] + there),
                           incoming + each * plan->first[site] * here + each * ((int64_t)there * here + i), (size_t)each);
    }
    if (!flow->error)
        flow_fail(flow, PMPI_Scatter(rows, (int)row, MPI_BYTE, mine, (int)row, MPI_BYTE, 0, plan->near));
    for (int i = 0; i < plan->ranks && !flow->error; i++)
        unpack(flow, mine + each * i, element(to, &to_shape, displ_at(to_spread, plan->members[i])), to_spread->each, to_type, &to_shape);
}

int run_alltoall(struct plan *plan, const struct later *later, enum operation operation, const void *from, const struct spread *from_spread, MPI_Datatype from_type,
                 void *to, const struct spread *to_spread, MPI_Datatype to_type)
{
    struct shape shape;
    if (operation == ALLTOALL && shape_of(to_type, &shape))
        return LEAVE;
    int most = largest_site(plan);
    int64_t each = operation == ALLTOALL ? to_spread->each * shape.size : 0;
    double across = 0;
    for (int site = 0; site < plan->sites; site++) {
        double leaving = (double)each * size_of(plan, site) * (plan->ranks - size_of(plan, site));
        across = leaving > across ? leaving : across;
    }
    struct load load = {.across = across, .leader_near = 3.0 * (double)each * most * plan->ranks, .parallel_near = (double)each * most,
                        .messages = 2 * plan->ranks, .parts = plan->ranks, .leaders_can = operation == ALLTOALL, .parallel_can = 1,
                        .later = later, .tags = 1};
    enum algorithm algorithm = operation == ALLTOALL && each == 0 ? MPI : choose(plan, operation, each * plan->ranks * most, load);
    if (algorithm == MPI)
        return LEAVE;
    struct flow here, *flow = flow_begin(&here, plan, later, load.tags);
    if (algorithm == LEADERS)
        alltoall_by_leaders(flow, from, from_spread, from_type, to, to_spread, to_type, each);
    else
        alltoall_directly(flow, from, from_spread, from_type, to, to_spread, to_type);
    return flow_end(flow, NULL, NULL);
}
