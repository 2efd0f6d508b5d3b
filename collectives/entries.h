// The MPI functions, for one width of counts: calls.c includes it twice.
//   ENTRY(name)      MPI_name or MPI_name_c, STOCK(name) the MPI's own
//   TRY(name)        the function below that checks the arguments and runs the collective here, or returns LEAVE
//   COUNT, DISPL     the types of counts and displacements
//   SPREAD(c, d)     a spread of these arrays
//
// Arguments that MPI refuses go to the MPI, which reports them as the program expects. Only arguments that this rank
// must give are checked: in a rooted call, the arguments of other ranks may be anything.

// Defines MPI_name and its non-blocking form MPI_iname. The parameters are those before the communicator.
#define PARAMETERS(...) __VA_ARGS__
#define COLLECTIVE(name, iname, parameters, ...) \
    int ENTRY(name)(PARAMETERS parameters, MPI_Comm comm) \
    { \
        struct plan *plan = plan_of(comm); \
        int error = plan ? TRY(name)(plan, NULL, __VA_ARGS__) : LEAVE; \
        return error == LEAVE ? STOCK(name)(__VA_ARGS__, comm) : ended(plan, error); \
    } \
    int ENTRY(iname)(PARAMETERS parameters, MPI_Comm comm, MPI_Request *request) \
    { \
        struct plan *plan = request ? made_plan_of(comm) : NULL; \
        int error = plan ? TRY(name)(plan, &(struct later){.request = request}, __VA_ARGS__) : LEAVE; \
        return error == LEAVE ? STOCK(iname)(__VA_ARGS__, comm, request) : ended(plan, error); \
    }

static int TRY(Bcast)(struct plan *plan, const struct later *later, void *data, COUNT count, MPI_Datatype type, int root)
{
    return is_root(plan, root) && is_data(data, count, type) && data != MPI_IN_PLACE ? run_bcast(plan, later, data, count, type, root) : LEAVE;
}
COLLECTIVE(Bcast, Ibcast, (void *data, COUNT count, MPI_Datatype type, int root), data, count, type, root)

static int TRY(Reduce)(struct plan *plan, const struct later *later, const void *from, void *to, COUNT count, MPI_Datatype type, MPI_Op op, int root)
{
    if (is_root(plan, root) && is_data(from, count, type) && op != MPI_OP_NULL &&
        (plan->rank == root ? is_data(to, count, type) && !are_same(from, to) && to != MPI_IN_PLACE : from != MPI_IN_PLACE))
        return run_reduce(plan, later, from, to, count, type, op, root);
    return LEAVE;
}
COLLECTIVE(Reduce, Ireduce, (const void *from, void *to, COUNT count, MPI_Datatype type, MPI_Op op, int root), from, to, count, type, op, root)

static int TRY(Allreduce)(struct plan *plan, const struct later *later, const void *from, void *to, COUNT count, MPI_Datatype type, MPI_Op op)
{
    return are_operands(from, to, count, type, op) ? run_reduce(plan, later, from, to, count, type, op, -1) : LEAVE;
}
COLLECTIVE(Allreduce, Iallreduce, (const void *from, void *to, COUNT count, MPI_Datatype type, MPI_Op op), from, to, count, type, op)

static int TRY(Reduce_scatter_block)(struct plan *plan, const struct later *later, const void *from, void *to, COUNT count, MPI_Datatype type, MPI_Op op)
{
    struct spread spread = {.each = count};
    return are_operands(from, to, count, type, op) ? run_reduce_scatter(plan, later, from, to, &spread, type, op) : LEAVE;
}
COLLECTIVE(Reduce_scatter_block, Ireduce_scatter_block, (const void *from, void *to, COUNT count, MPI_Datatype type, MPI_Op op), from, to, count, type, op)

static int TRY(Reduce_scatter)(struct plan *plan, const struct later *later, const void *from, void *to, const COUNT counts[], MPI_Datatype type, MPI_Op op)
{
    struct spread spread = SPREAD(counts, NULL);
    if (are_counts(plan, &spread) && are_operands(from, to, count_at(&spread, plan->rank), type, op))
        return run_reduce_scatter(plan, later, from, to, &spread, type, op);
    return LEAVE;
}
COLLECTIVE(Reduce_scatter, Ireduce_scatter, (const void *from, void *to, const COUNT counts[], MPI_Datatype type, MPI_Op op), from, to, counts, type, op)

// Scan and Exscan take the MPI's own ones within a site, which block.
int ENTRY(Scan)(const void *from, void *to, COUNT count, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    struct plan *plan = plan_of(comm);
    int error = plan && are_operands(from, to, count, type, op) ? run_scan(plan, SCAN, from, to, count, type, op) : LEAVE;
    return error == LEAVE ? STOCK(Scan)(from, to, count, type, op, comm) : ended(plan, error);
}

int ENTRY(Exscan)(const void *from, void *to, COUNT count, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    struct plan *plan = plan_of(comm);
    int error = plan && are_operands(from, to, count, type, op) ? run_scan(plan, EXSCAN, from, to, count, type, op) : LEAVE;
    return error == LEAVE ? STOCK(Exscan)(from, to, count, type, op, comm) : ended(plan, error);
}

static int TRY(Gather)(struct plan *plan, const struct later *later, const void *from, COUNT count, MPI_Datatype type, void *to, COUNT to_count,
                       MPI_Datatype to_type, int root)
{
    struct spread spread = {.each = to_count};
    if (is_root(plan, root) && is_gathered(plan, from, count, type, to, to_count, to_type, root))
        return run_gather(plan, later, GATHER, from, count, type, to, &spread, to_type, root);
    return LEAVE;
}
COLLECTIVE(Gather, Igather, (const void *from, COUNT count, MPI_Datatype type, void *to, COUNT to_count, MPI_Datatype to_type, int root),
           from, count, type, to, to_count, to_type, root)

static int TRY(Gatherv)(struct plan *plan, const struct later *later, const void *from, COUNT count, MPI_Datatype type, void *to, const COUNT counts[],
                        const DISPL displs[], MPI_Datatype to_type, int root)
{
    struct spread spread = SPREAD(counts, displs);
    if (is_root(plan, root) && (plan->rank != root || (displs && are_counts(plan, &spread))) &&
        is_gathered(plan, from, count, type, to, plan->rank == root ? count_at(&spread, root) : 0, to_type, root))
        return run_gather(plan, later, GATHERV, from, count, type, to, &spread, to_type, root);
    return LEAVE;
}
COLLECTIVE(Gatherv, Igatherv, (const void *from, COUNT count, MPI_Datatype type, void *to, const COUNT counts[], const DISPL displs[],
                               MPI_Datatype to_type, int root),
           from, count, type, to, counts, displs, to_type, root)

static int TRY(Scatter)(struct plan *plan, const struct later *later, const void *from, COUNT from_count, MPI_Datatype from_type, void *to, COUNT count,
                        MPI_Datatype type, int root)
{
    struct spread spread = {.each = from_count};
    if (is_root(plan, root) && is_gathered(plan, to, count, type, from, from_count, from_type, root))
        return run_scatter(plan, later, SCATTER, from, &spread, from_type, to, count, type, root);
    return LEAVE;
}
COLLECTIVE(Scatter, Iscatter, (const void *from, COUNT from_count, MPI_Datatype from_type, void *to, COUNT count, MPI_Datatype type, int root),
           from, from_count, from_type, to, count, type, root)

static int TRY(Scatterv)(struct plan *plan, const struct later *later, const void *from, const COUNT counts[], const DISPL displs[],
                         MPI_Datatype from_type, void *to, COUNT count, MPI_Datatype type, int root)
{
    struct spread spread = SPREAD(counts, displs);
    if (is_root(plan, root) && (plan->rank != root || (displs && are_counts(plan, &spread))) &&
        is_gathered(plan, to, count, type, from, plan->rank == root ? count_at(&spread, root) : 0, from_type, root))
        return run_scatter(plan, later, SCATTERV, from, &spread, from_type, to, count, type, root);
    return LEAVE;
}
COLLECTIVE(Scatterv, Iscatterv, (const void *from, const COUNT counts[], const DISPL displs[], MPI_Datatype from_type, void *to, COUNT count,
                                 MPI_Datatype type, int root),
           from, counts, displs, from_type, to, count, type, root)

static int TRY(Allgather)(struct plan *plan, const struct later *later, const void *from, COUNT count, MPI_Datatype type, void *to, COUNT to_count,
                          MPI_Datatype to_type)
{
    struct spread spread = {.each = to_count};
    if (count > 0 && is_in_result(from, to, to_type, to_count * plan->rank))
        return LEAVE;
    return are_exchanged(from, count, type, to, to_count, to_type) ? run_allgather(plan, later, from, count, type, to, &spread, to_type) : LEAVE;
}
COLLECTIVE(Allgather, Iallgather, (const void *from, COUNT count, MPI_Datatype type, void *to, COUNT to_count, MPI_Datatype to_type),
           from, count, type, to, to_count, to_type)

static int TRY(Allgatherv)(struct plan *plan, const struct later *later, const void *from, COUNT count, MPI_Datatype type, void *to, const COUNT counts[],
                           const DISPL displs[], MPI_Datatype to_type)
{
    struct spread spread = SPREAD(counts, displs);
    if (!displs || !are_counts(plan, &spread) || to == MPI_IN_PLACE || !is_data(to, count_at(&spread, plan->rank), to_type) ||
        (from != MPI_IN_PLACE && !is_data(from, count, type)))
        return LEAVE;
    // MPI forbids to send from the result, but a rank with an empty block may give any address. Such a rank cannot know
    // what the others give. So if any block is empty, no rank checks: a block is copied onto itself without harm.
    if (are_all_full(plan, &spread) &&
        (are_same(from, to) || is_in_result(from, to, to_type, displ_at(&spread, plan->rank))))
        return LEAVE;
    return run_allgather(plan, later, from, count, type, to, &spread, to_type);
}
COLLECTIVE(Allgatherv, Iallgatherv, (const void *from, COUNT count, MPI_Datatype type, void *to, const COUNT counts[], const DISPL displs[], MPI_Datatype to_type),
           from, count, type, to, counts, displs, to_type)

static int TRY(Alltoall)(struct plan *plan, const struct later *later, const void *from, COUNT count, MPI_Datatype type, void *to, COUNT to_count,
                         MPI_Datatype to_type)
{
    struct spread spread = {.each = count}, to_spread = {.each = to_count};
    if (are_exchanged(from, count, type, to, to_count, to_type))
        return run_alltoall(plan, later, ALLTOALL, from, &spread, type, to, &to_spread, to_type);
    return LEAVE;
}
COLLECTIVE(Alltoall, Ialltoall, (const void *from, COUNT count, MPI_Datatype type, void *to, COUNT to_count, MPI_Datatype to_type),
           from, count, type, to, to_count, to_type)

static int TRY(Alltoallv)(struct plan *plan, const struct later *later, const void *from, const COUNT counts[], const DISPL displs[], MPI_Datatype type,
                          void *to, const COUNT to_counts[], const DISPL to_displs[], MPI_Datatype to_type)
{
    struct spread spread = SPREAD(counts, displs), to_spread = SPREAD(to_counts, to_displs);
    int in_place = from == MPI_IN_PLACE;
    if (to_displs && are_counts(plan, &to_spread) && (in_place || (displs && are_counts(plan, &spread))) &&
        are_exchanged(from, in_place ? 0 : count_at(&spread, plan->rank), type, to, count_at(&to_spread, plan->rank), to_type))
        return run_alltoall(plan, later, ALLTOALLV, from, &spread, type, to, &to_spread, to_type);
    return LEAVE;
}
COLLECTIVE(Alltoallv, Ialltoallv, (const void *from, const COUNT counts[], const DISPL displs[], MPI_Datatype type, void *to, const COUNT to_counts[],
                                   const DISPL to_displs[], MPI_Datatype to_type),
           from, counts, displs, type, to, to_counts, to_displs, to_type)

static int TRY(Alltoallw)(struct plan *plan, const struct later *later, const void *from, const COUNT counts[], const DISPL displs[],
                          const MPI_Datatype types[], void *to, const COUNT to_counts[], const DISPL to_displs[], const MPI_Datatype to_types[])
{
    struct spread spread = SPREAD(counts, displs), to_spread = SPREAD(to_counts, to_displs);
    spread.types = types;
    to_spread.types = to_types;
    if (!are_blocks(plan, to, &to_spread, to_displs != NULL) || to == MPI_IN_PLACE || are_same(from, to) ||
        (from != MPI_IN_PLACE && !are_blocks(plan, from, &spread, displs != NULL)))
        return LEAVE;
    return run_alltoall(plan, later, ALLTOALLW, from, &spread, MPI_DATATYPE_NULL, to, &to_spread, MPI_DATATYPE_NULL);
}
COLLECTIVE(Alltoallw, Ialltoallw, (const void *from, const COUNT counts[], const DISPL displs[], const MPI_Datatype types[], void *to,
                                   const COUNT to_counts[], const DISPL to_displs[], const MPI_Datatype to_types[]),
           from, counts, displs, types, to, to_counts, to_displs, to_types)

#if PERSISTENT

// Defines MPI_name_init by the parameters before the communicator, what they are kept as, and the arguments of the call
// from what is kept.
#define KEEP(...) __VA_ARGS__
#define PERSISTENT_COLLECTIVE(name, parameters, passed, kept, ...) \
    static int TRY(start_##name)(struct plan *plan, const struct later *later, const struct arguments *a) \
    { \
        return TRY(name)(plan, later, __VA_ARGS__); \
    } \
    int ENTRY(name##_init)(PARAMETERS parameters, MPI_Comm comm, MPI_Info info, MPI_Request *request) \
    { \
        struct plan *plan = request ? plan_of(comm) : NULL; \
        struct arguments arguments = {KEEP kept, .count_size = sizeof(COUNT), .displ_size = sizeof(DISPL)}; \
        int error = plan ? make_persistent(plan, TRY(start_##name), &arguments, request) : LEAVE; \
        return error == LEAVE ? STOCK(name##_init)(KEEP passed, comm, info, request) : ended(plan, error); \
    }

// Arrays that count at the root only, and those of what is sent, unless in place.
#define AT_ROOT(array) (plan && plan->rank == root ? (array) : NULL)
#define SENT(array) (from == MPI_IN_PLACE ? NULL : (array))

#define OPERANDS const void *from, void *to, COUNT count, MPI_Datatype type, MPI_Op op
#define GIVEN_OPERANDS from, to, count, type, op
#define KEPT_OPERANDS .from = from, .to = to, .count = count, .type = type, .op = op
#define THE_OPERANDS a->from, a->to, (COUNT)a->count, a->type, a->op

PERSISTENT_COLLECTIVE(Bcast, (void *data, COUNT count, MPI_Datatype type, int root), (data, count, type, root),
                      (.to = data, .count = count, .type = type, .root = root), a->to, (COUNT)a->count, a->type, a->root)
PERSISTENT_COLLECTIVE(Reduce, (OPERANDS, int root), (GIVEN_OPERANDS, root), (KEPT_OPERANDS, .root = root),
                      THE_OPERANDS, a->root)
PERSISTENT_COLLECTIVE(Allreduce, (OPERANDS), (GIVEN_OPERANDS), (KEPT_OPERANDS), THE_OPERANDS)
PERSISTENT_COLLECTIVE(Reduce_scatter_block, (OPERANDS), (GIVEN_OPERANDS), (KEPT_OPERANDS),
                      THE_OPERANDS)
PERSISTENT_COLLECTIVE(Reduce_scatter,
                      (const void *from, void *to, const COUNT counts[], MPI_Datatype type, MPI_Op op),
                      (from, to, counts, type, op), (.from = from, .to = to, .counts = counts, .type = type, .op = op),
                      a->from, a->to, a->counts, a->type, a->op)

#define GATHERED const void *from, COUNT count, MPI_Datatype type, void *to, COUNT to_count, MPI_Datatype to_type
#define GIVEN_GATHERED from, count, type, to, to_count, to_type
#define KEPT_GATHERED .from = from, .count = count, .type = type, .to = to, .to_count = to_count, .to_type = to_type
#define THE_GATHERED a->from, (COUNT)a->count, a->type, a->to, (COUNT)a->to_count, a->to_type

PERSISTENT_COLLECTIVE(Gather, (GATHERED, int root), (GIVEN_GATHERED, root), (KEPT_GATHERED, .root = root),
                      THE_GATHERED, a->root)
PERSISTENT_COLLECTIVE(Scatter, (GATHERED, int root), (GIVEN_GATHERED, root), (KEPT_GATHERED, .root = root),
                      THE_GATHERED, a->root)
PERSISTENT_COLLECTIVE(Allgather, (GATHERED), (GIVEN_GATHERED), (KEPT_GATHERED), THE_GATHERED)
PERSISTENT_COLLECTIVE(Alltoall, (GATHERED), (GIVEN_GATHERED), (KEPT_GATHERED), THE_GATHERED)

#define GATHERED_V \
    const void *from, COUNT count, MPI_Datatype type, void *to, const COUNT to_counts[], const DISPL to_displs[], \
    MPI_Datatype to_type
#define GIVEN_GATHERED_V from, count, type, to, to_counts, to_displs, to_type
#define KEPT_GATHERED_V(kept) \
    .from = from, .count = count, .type = type, .to = to, .to_counts = kept(to_counts), .to_displs = kept(to_displs), \
    .to_type = to_type
#define THE_GATHERED_V a->from, (COUNT)a->count, a->type, a->to, a->to_counts, a->to_displs, a->to_type

PERSISTENT_COLLECTIVE(Gatherv, (GATHERED_V, int root), (GIVEN_GATHERED_V, root), (KEPT_GATHERED_V(AT_ROOT), .root = root),
                      THE_GATHERED_V, a->root)
PERSISTENT_COLLECTIVE(Allgatherv, (GATHERED_V), (GIVEN_GATHERED_V), (KEPT_GATHERED_V(KEEP)), THE_GATHERED_V)
PERSISTENT_COLLECTIVE(Scatterv,
                      (const void *from, const COUNT counts[], const DISPL displs[], MPI_Datatype type, void *to,
                       COUNT to_count, MPI_Datatype to_type, int root),
                      (from, counts, displs, type, to, to_count, to_type, root),
                      (.from = from, .counts = AT_ROOT(counts), .displs = AT_ROOT(displs), .type = type, .to = to,
                       .to_count = to_count, .to_type = to_type, .root = root),
                      a->from, a->counts, a->displs, a->type, a->to, (COUNT)a->to_count, a->to_type, a->root)
PERSISTENT_COLLECTIVE(Alltoallv,
                      (const void *from, const COUNT counts[], const DISPL displs[], MPI_Datatype type, void *to,
                       const COUNT to_counts[], const DISPL to_displs[], MPI_Datatype to_type),
                      (from, counts, displs, type, to, to_counts, to_displs, to_type),
                      (.from = from, .counts = SENT(counts), .displs = SENT(displs), .type = type, .to = to, .to_counts = to_counts,
                       .to_displs = to_displs, .to_type = to_type),
                      a->from, a->counts, a->displs, a->type, a->to, a->to_counts, a->to_displs, a->to_type)
PERSISTENT_COLLECTIVE(Alltoallw,
                      (const void *from, const COUNT counts[], const DISPL displs[], const MPI_Datatype types[], void *to,
                       const COUNT to_counts[], const DISPL to_displs[], const MPI_Datatype to_types[]),
                      (from, counts, displs, types, to, to_counts, to_displs, to_types),
                      (.from = from, .counts = SENT(counts), .displs = SENT(displs), .types = SENT(types), .to = to,
                       .to_counts = to_counts, .to_displs = to_displs, .to_types = to_types),
                      a->from, a->counts, a->displs, a->types, a->to, a->to_counts, a->to_displs, a->to_types)

#undef AT_ROOT
#undef SENT
#undef OPERANDS
#undef GIVEN_OPERANDS
#undef KEPT_OPERANDS
#undef THE_OPERANDS
#undef GATHERED
#undef GIVEN_GATHERED
#undef KEPT_GATHERED
#undef THE_GATHERED
#undef GATHERED_V
#undef GIVEN_GATHERED_V
#undef KEPT_GATHERED_V
#undef THE_GATHERED_V
#undef PERSISTENT_COLLECTIVE
#undef KEEP
#endif

#undef COLLECTIVE
#undef PARAMETERS
#undef ENTRY
#undef STOCK
#undef TRY
#undef COUNT
#undef DISPL
#undef SPREAD
