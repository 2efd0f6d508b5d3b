// The MPI functions, for one width of counts: calls.c includes it twice.
//   ENTRY(name)      MPI_name or MPI_name_c, STOCK(name) the MPI's own
//   COUNT, DISPL     the types of counts and displacements
//   SPREAD(c, d)     a spread of these arrays
//
// Arguments that MPI refuses go to the MPI, which reports them as the program expects. Only arguments that this rank
// must give are checked: in a rooted call, the arguments of other ranks may be anything.

int ENTRY(Bcast)(void *data, COUNT count, MPI_Datatype type, int root, MPI_Comm comm)
{
    struct plan *plan = plan_of(comm);
    int error = plan && is_root(plan, root) && is_data(data, count, type) && data != MPI_IN_PLACE ? run_bcast(plan, data, count, type, root) : LEAVE;
    return error == LEAVE ? STOCK(Bcast)(data, count, type, root, comm) : ended(plan, error);
}

int ENTRY(Reduce)(const void *from, void *to, COUNT count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm)
{
    struct plan *plan = plan_of(comm);
    int error = LEAVE;
    if (plan && is_root(plan, root) && is_data(from, count, type) && op != MPI_OP_NULL &&
        (plan->rank == root ? is_data(to, count, type) && to != from && to != MPI_IN_PLACE : from != MPI_IN_PLACE))
        error = run_reduce(plan, from, to, count, type, op, root);
    return error == LEAVE ? STOCK(Reduce)(from, to, count, type, op, root, comm) : ended(plan, error);
}

int ENTRY(Allreduce)(const void *from, void *to, COUNT count, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    struct plan *plan = plan_of(comm);
    int error = plan && are_operands(from, to, count, type, op) ? run_reduce(plan, from, to, count, type, op, -1) : LEAVE;
    return error == LEAVE ? STOCK(Allreduce)(from, to, count, type, op, comm) : ended(plan, error);
}

int ENTRY(Reduce_scatter_block)(const void *from, void *to, COUNT count, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    struct plan *plan = plan_of(comm);
    struct spread spread = {.each = count};
    int error = plan && are_operands(from, to, count, type, op) ? run_reduce_scatter(plan, from, to, &spread, type, op) : LEAVE;
    return error == LEAVE ? STOCK(Reduce_scatter_block)(from, to, count, type, op, comm) : ended(plan, error);
}

int ENTRY(Reduce_scatter)(const void *from, void *to, const COUNT counts[], MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    struct plan *plan = plan_of(comm);
    struct spread spread = SPREAD(counts, NULL);
    int error = LEAVE;
    if (plan && are_counts(plan, &spread) && are_operands(from, to, count_at(&spread, plan->rank), type, op))
        error = run_reduce_scatter(plan, from, to, &spread, type, op);
    return error == LEAVE ? STOCK(Reduce_scatter)(from, to, counts, type, op, comm) : ended(plan, error);
}

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

int ENTRY(Gather)(const void *from, COUNT count, MPI_Datatype type, void *to, COUNT to_count, MPI_Datatype to_type, int root, MPI_Comm comm)
{
    struct plan *plan = plan_of(comm);
    struct spread spread = {.each = to_count};
    int error = LEAVE;
    if (plan && is_root(plan, root) && is_gathered(plan, from, count, type, to, to_count, to_type, root))
        error = run_gather(plan, GATHER, from, count, type, to, &spread, to_type, root);
    return error == LEAVE ? STOCK(Gather)(from, count, type, to, to_count, to_type, root, comm) : ended(plan, error);
}

int ENTRY(Gatherv)(const void *from, COUNT count, MPI_Datatype type, void *to, const COUNT counts[], const DISPL displs[], MPI_Datatype to_type,
                   int root, MPI_Comm comm)
{
    struct plan *plan = plan_of(comm);
    struct spread spread = SPREAD(counts, displs);
    int error = LEAVE;
    if (plan && is_root(plan, root) && (plan->rank != root || (displs && are_counts(plan, &spread))) &&
        is_gathered(plan, from, count, type, to, plan->rank == root ? count_at(&spread, root) : 0, to_type, root))
        error = run_gather(plan, GATHERV, from, count, type, to, &spread, to_type, root);
    return error == LEAVE ? STOCK(Gatherv)(from, count, type, to, counts, displs, to_type, root, comm) : ended(plan, error);
}

int ENTRY(Scatter)(const void *from, COUNT from_count, MPI_Datatype from_type, void *to, COUNT count, MPI_Datatype type, int root, MPI_Comm comm)
{
    struct plan *plan = plan_of(comm);
    struct spread spread = {.each = from_count};
    int error = LEAVE;
    if (plan && is_root(plan, root) && is_gathered(plan, to, count, type, from, from_count, from_type, root))
        error = run_scatter(plan, SCATTER, from, &spread, from_type, to, count, type, root);
    return error == LEAVE ? STOCK(Scatter)(from, from_count, from_type, to, count, type, root, comm) : ended(plan, error);
}

int ENTRY(Scatterv)(const void *from, const COUNT counts[], const DISPL displs[], MPI_Datatype from_type, void *to, COUNT count, MPI_Datatype type,
                    int root, MPI_Comm comm)
{
    struct plan *plan = plan_of(comm);
    struct spread spread = SPREAD(counts, displs);
    int error = LEAVE;
    if (plan && is_root(plan, root) && (plan->rank != root || (displs && are_counts(plan, &spread))) &&
        is_gathered(plan, to, count, type, from, plan->rank == root ? count_at(&spread, root) : 0, from_type, root))
        error = run_scatter(plan, SCATTERV, from, &spread, from_type, to, count, type, root);
    return error == LEAVE ? STOCK(Scatterv)(from, counts, displs, from_type, to, count, type, root, comm) : ended(plan, error);
}

int ENTRY(Allgather)(const void *from, COUNT count, MPI_Datatype type, void *to, COUNT to_count, MPI_Datatype to_type, MPI_Comm comm)
{
    struct plan *plan = plan_of(comm);
    struct spread spread = {.each = to_count};
    int error = plan && are_exchanged(from, count, type, to, to_count, to_type) ? run_allgather(plan, from, count, type, to, &spread, to_type) : LEAVE;
    return error == LEAVE ? STOCK(Allgather)(from, count, type, to, to_count, to_type, comm) : ended(plan, error);
}

int ENTRY(Allgatherv)(const void *from, COUNT count, MPI_Datatype type, void *to, const COUNT counts[], const DISPL displs[], MPI_Datatype to_type,
                      MPI_Comm comm)
{
    struct plan *plan = plan_of(comm);
    struct spread spread = SPREAD(counts, displs);
    int error = LEAVE;
    if (plan && displs && are_counts(plan, &spread) && are_exchanged(from, count, type, to, count_at(&spread, plan->rank), to_type))
        error = run_allgather(plan, from, count, type, to, &spread, to_type);
    return error == LEAVE ? STOCK(Allgatherv)(from, count, type, to, counts, displs, to_type, comm) : ended(plan, error);
}

int ENTRY(Alltoall)(const void *from, COUNT count, MPI_Datatype type, void *to, COUNT to_count, MPI_Datatype to_type, MPI_Comm comm)
{
    struct plan *plan = plan_of(comm);
    struct spread spread = {.each = count}, to_spread = {.each = to_count};
    int error = LEAVE;
    if (plan && are_exchanged(from, count, type, to, to_count, to_type))
        error = run_alltoall(plan, ALLTOALL, from, &spread, type, to, &to_spread, to_type);
    return error == LEAVE ? STOCK(Alltoall)(from, count, type, to, to_count, to_type, comm) : ended(plan, error);
}

int ENTRY(Alltoallv)(const void *from, const COUNT counts[], const DISPL displs[], MPI_Datatype type, void *to, const COUNT to_counts[],
                     const DISPL to_displs[], MPI_Datatype to_type, MPI_Comm comm)
{
    struct plan *plan = plan_of(comm);
    struct spread spread = SPREAD(counts, displs), to_spread = SPREAD(to_counts, to_displs);
    int error = LEAVE, in_place = from == MPI_IN_PLACE;
    if (plan && to_displs && are_counts(plan, &to_spread) && (in_place || (displs && are_counts(plan, &spread))) &&
        are_exchanged(from, in_place ? 0 : count_at(&spread, plan->rank), type, to, count_at(&to_spread, plan->rank), to_type))
        error = run_alltoall(plan, ALLTOALLV, from, &spread, type, to, &to_spread, to_type);
    return error == LEAVE ? STOCK(Alltoallv)(from, counts, displs, type, to, to_counts, to_displs, to_type, comm) : ended(plan, error);
}

#undef ENTRY
#undef STOCK
#undef COUNT
#undef DISPL
#undef SPREAD
