// Datatypes: their shape, packing, copies, and reduction by an operation.
#include "internal.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

int shape_of(MPI_Datatype type, struct shape *shape)
{
    int integers, addresses, types, combiner, error;
    if ((error = PMPI_Type_size_x(type, &shape->size)) ||
        (error = PMPI_Type_get_extent_x(type, &shape->lower, &shape->extent)) ||
        (error = PMPI_Type_get_true_extent_x(type, &shape->true_lower, &shape->true_extent)) ||
        (error = PMPI_Type_get_envelope(type, &integers, &addresses, &types, &combiner)))
        return error;
    // A derived datatype without gaps may still have its bytes in another order.
    shape->plain = combiner == MPI_COMBINER_NAMED && shape->size == shape->extent && shape->size == shape->true_extent &&
                   shape->lower == 0 && shape->true_lower == 0;
    return MPI_SUCCESS;
}

#if LARGE_COUNTS

static void move_packed(struct flow *flow, char *data, MPI_Count count, MPI_Datatype type, const struct shape *shape,
                        char *bytes, int unpacking)
{
    MPI_Count position = 0, length = count * shape->size;
    if (unpacking)
        flow_fail(flow, PMPI_Unpack_c(bytes, length, &position, data, count, type, flow->plan->far));
    else
        flow_fail(flow, PMPI_Pack_c(data, count, type, bytes, length, &position, flow->plan->far));
    if (position != length)
        flow_fail(flow, MPI_ERR_INTERN);
}

#else

// Most bytes of one MPI_Pack call, because before MPI 4 it counts bytes by int. Tests make it smaller.
#ifndef PACK_MAX
#define PACK_MAX ((MPI_Count)1 << 30)
#endif

// Where the next packed byte comes from or goes to.
struct packing {
    struct flow *flow;
    char *bytes;
    int unpacking;
};

static void move_some(struct packing *packing, char *data, MPI_Count count, MPI_Datatype type, const struct shape *shape)
{
    struct flow *flow = packing->flow;
    int position = 0, length = (int)(count * shape->size);
    if (packing->unpacking)
        flow_fail(flow, PMPI_Unpack(packing->bytes, length, &position, data, (int)count, type, flow->plan->far));
    else
        flow_fail(flow, PMPI_Pack(data, (int)count, type, packing->bytes, length, &position, flow->plan->far));
    if (position != length)
        flow_fail(flow, MPI_ERR_INTERN);
    packing->bytes += length;
}

static void move_parts(struct packing *packing, char *data, MPI_Datatype type, const struct shape *shape);

static void move_elements(struct packing *packing, char *data, MPI_Count count, MPI_Datatype type)
{
    struct shape shape;
    if (packing->flow->error)
        return;
    flow_fail(packing->flow, shape_of(type, &shape));
    if (packing->flow->error || shape.size == 0)
        return;
    MPI_Count most = PACK_MAX / shape.size;
    for (MPI_Count i = 0; i < count && !packing->flow->error; i += most > 0 ? most : 1) {
        if (most > 0)
            move_some(packing, element(data, &shape, i), count - i < most ? count - i : most, type, &shape);
        else
            move_parts(packing, element(data, &shape, i), type, &shape);
    }
}

// An element of a subarray: one run of old elements for each index of all dimensions but the fastest one.
static void move_subarray(struct packing *packing, char *data, const int *contents, MPI_Datatype old)
{
    int dimensions = contents[0];
    const int *sizes = contents + 1, *subsizes = sizes + dimensions, *starts = subsizes + dimensions;
    int by_column = starts[dimensions] == MPI_ORDER_FORTRAN;
    int fastest = by_column ? 0 : dimensions - 1, step = by_column ? 1 : -1;
    int64_t runs = 1;
    MPI_Count lower, extent;
    flow_fail(packing->flow, PMPI_Type_get_extent_x(old, &lower, &extent));
    for (int i = 0; i < dimensions; i++)
        runs *= i == fastest ? 1 : subsizes[i];
    for (int64_t run = 0; run < runs && !packing->flow->error; run++) {
        MPI_Count at = starts[fastest], stride = sizes[fastest];
        int64_t left = run;
        for (int i = fastest + step; i >= 0 && i < dimensions; i += step) {
            at += (starts[i] + left % subsizes[i]) * stride;
            left /= subsizes[i];
            stride *= sizes[i];
        }
        move_elements(packing, data + at * extent, subsizes[fastest], old);
    }
}

// The parts of one element in the order in which its datatype names them. Others than these have no parts of which
// MPI tells where they lie: they go as a whole if that is possible.
static void move_by(struct packing *packing, char *data, int combiner, const int *ints, const MPI_Aint *addresses,
                    const MPI_Datatype *old)
{
    MPI_Count lower, extent;
    int count = ints[0];
    flow_fail(packing->flow, PMPI_Type_get_extent_x(old[0], &lower, &extent));
    for (int i = 0; combiner != MPI_COMBINER_SUBARRAY && i < count && !packing->flow->error; i++)
        switch (combiner) {
        case MPI_COMBINER_VECTOR: move_elements(packing, data + (MPI_Count)i * ints[2] * extent, ints[1], old[0]); break;
        case MPI_COMBINER_HVECTOR: move_elements(packing, data + (MPI_Count)i * addresses[0], ints[1], old[0]); break;
        case MPI_COMBINER_INDEXED: move_elements(packing, data + ints[1 + count + i] * extent, ints[1 + i], old[0]); break;
        case MPI_COMBINER_HINDEXED: move_elements(packing, data + addresses[i], ints[1 + i], old[0]); break;
        case MPI_COMBINER_INDEXED_BLOCK: move_elements(packing, data + ints[2 + i] * extent, ints[1], old[0]); break;
        case MPI_COMBINER_HINDEXED_BLOCK: move_elements(packing, data + addresses[i], ints[1], old[0]); break;
        case MPI_COMBINER_STRUCT: move_elements(packing, data + addresses[i], ints[1 + i], old[i]); break;
        }
    if (combiner == MPI_COMBINER_SUBARRAY)
        move_subarray(packing, data, ints, old[0]);
}

static int is_derived(MPI_Datatype type)
{
    int integers, addresses, types, combiner;
    return PMPI_Type_get_envelope(type, &integers, &addresses, &types, &combiner) == MPI_SUCCESS &&
           combiner != MPI_COMBINER_NAMED && combiner != MPI_COMBINER_F90_REAL &&
           combiner != MPI_COMBINER_F90_COMPLEX && combiner != MPI_COMBINER_F90_INTEGER;
}

static void move_parts(struct packing *packing, char *data, MPI_Datatype type, const struct shape *shape)
{
    struct flow *flow = packing->flow;
    int integers, addresses, types, combiner;
    flow_fail(flow, PMPI_Type_get_envelope(type, &integers, &addresses, &types, &combiner));
    if (flow->error)
        return;
    if (types == 0 || combiner == MPI_COMBINER_DARRAY) {
        if (shape->size > INT_MAX)
            flow_fail(flow, MPI_ERR_COUNT);
        else
            move_some(packing, data, 1, type, shape);
        return;
    }
    int *ints = malloc(((size_t)integers + 1) * sizeof *ints);
    MPI_Aint *places = malloc(((size_t)addresses + 1) * sizeof *places);
    MPI_Datatype *old = malloc((size_t)types * sizeof *old);
    int error = MPI_ERR_NO_MEM;
    if (ints && places && old)
        error = PMPI_Type_get_contents(type, integers, addresses, types, ints, places, old);
    flow_fail(flow, error);
    // The program need not have committed the parts of a datatype, but only such can be packed.
    for (int i = 0; !error && i < types; i++)
        if (is_derived(old[i]))
            flow_fail(flow, PMPI_Type_commit(&old[i]));
    if (!error) {
        if (combiner == MPI_COMBINER_DUP || combiner == MPI_COMBINER_RESIZED)
            move_elements(packing, data, 1, old[0]);
        else if (combiner == MPI_COMBINER_CONTIGUOUS)
            move_elements(packing, data, ints[0], old[0]);
        else
            move_by(packing, data, combiner, ints, places, old);
    }
    for (int i = 0; !error && i < types; i++)
        if (is_derived(old[i]))
            PMPI_Type_free(&old[i]);
    free(ints), free(places), free(old);
}

static void move_packed(struct flow *flow, char *data, MPI_Count count, MPI_Datatype type, const struct shape *shape,
                        char *bytes, int unpacking)
{
    struct packing packing = {flow, bytes, unpacking};
    move_elements(&packing, data, count, type);
    if (packing.bytes != bytes + count * shape->size)
        flow_fail(flow, MPI_ERR_INTERN);
}

#endif

void pack(struct flow *flow, const void *data, MPI_Count count, MPI_Datatype type, const struct shape *shape, char *bytes)
{
    if (flow->error || count == 0 || shape->size == 0)
        return;
    if (shape->plain)
        memmove(bytes, data, (size_t)(count * shape->size));
    else
        move_packed(flow, (char *)(uintptr_t)data, count, type, shape, bytes, 0);
}

void unpack(struct flow *flow, const char *bytes, void *data, MPI_Count count, MPI_Datatype type, const struct shape *shape)
{
    if (flow->error || count == 0 || shape->size == 0)
        return;
    if (shape->plain)
        memmove(data, bytes, (size_t)(count * shape->size));
    else
        move_packed(flow, data, count, type, shape, (char *)(uintptr_t)bytes, 1);
}

void *flow_elements(struct flow *flow, MPI_Count count, const struct shape *shape)
{
    // With a negative extent the last element has the lowest address.
    MPI_Count span = count > 1 ? (count - 1) * shape->extent : 0;
    char *memory = flow_memory(flow, (span < 0 ? -span : span) + shape->true_extent);
    return memory ? memory - (span < 0 ? span : 0) - shape->true_lower : NULL;
}

void copy_elements(struct flow *flow, const void *from, MPI_Count count, MPI_Datatype type, void *to, MPI_Count to_count, MPI_Datatype to_type)
{
    struct shape shape, to_shape;
    if (flow->error)
        return;
    flow_fail(flow, shape_of(type, &shape));
    flow_fail(flow, shape_of(to_type, &to_shape));
    if (flow->error || count * shape.size == 0)
        return;
    if (shape.plain && to_shape.plain && count * shape.size <= to_count * to_shape.size) {
        memmove(to, from, (size_t)(count * shape.size));
        return;
    }
    if (count * shape.size > to_count * to_shape.size) {
        flow_fail(flow, MPI_ERR_TRUNCATE);
        return;
    }
    // Not by a message of this rank to itself: that would need progress of the MPI, from which this may be called.
    char *bytes = malloc((size_t)(count * shape.size));
    if (!bytes)
        flow_fail(flow, MPI_ERR_NO_MEM);
    pack(flow, from, count, type, &shape, bytes);
    unpack(flow, bytes, to, count * shape.size / to_shape.size, to_type, &to_shape);
    free(bytes);
}

void *fold(struct flow *flow, void **values, int count, MPI_Count elements, MPI_Datatype type, MPI_Op op)
{
    for (int i = 1; i < count && !flow->error; i++)
        // values[i] = values[i - 1] op values[i]
        flow_fail(flow, COUNTED(PMPI_Reduce_local)(values[i - 1], values[i], (counted)elements, type, op));
    return values[count - 1];
}
