// The functions that Fortran programs call, for an MPI whose own ones would bypass calls.c (mpis.h). Each translates
// its arguments and calls the C function of this library.
//
// `mpif.h` and `use mpi` call mpi_bcast_; case and underscores depend on the compiler. `use mpi_f08` calls
// ompi_bcast_f. An MPI without Fortran has none of these names, and then nobody calls ours.
#include "internal.h"

#if FORTRAN_PASSES_BY

#include <stddef.h>
#include <stdlib.h>

_Static_assert(sizeof(MPI_Fint) == sizeof(int), "counts from Fortran are passed on as they are: build the MPI with INTEGER of 4 bytes");

// The addresses of these variables are Fortran's MPI_IN_PLACE and MPI_BOTTOM. An MPI defines its compiler's names.
#define CONSTANT(lower, upper) \
    extern __attribute__((weak)) int lower, lower##_, lower##__, upper; \
    static int is_##lower(const void *data) { return data && (data == &lower || data == &lower##_ || data == &lower##__ || data == &upper); }
CONSTANT(mpi_fortran_in_place, MPI_FORTRAN_IN_PLACE)
CONSTANT(mpi_fortran_bottom, MPI_FORTRAN_BOTTOM)

static void *data_of(void *data)
{
    return is_mpi_fortran_in_place(data) ? MPI_IN_PLACE : is_mpi_fortran_bottom(data) ? MPI_BOTTOM : data;
}

#define COMM(comm) PMPI_Comm_f2c(*(comm))
// A rank other than the root may give an invalid handle for the root's type. The MPI turns it into MPI_DATATYPE_NULL.
#define TYPE(type) PMPI_Type_f2c(*(type))
#define OP(op) PMPI_Op_f2c(*(op))

#pragma GCC visibility push(default)

// Gives a function all its names.
#define NAMES(lower, UPPER, parameters) \
    void mpi_##lower parameters __attribute__((alias("ompi_" #lower "_f"))); \
    void mpi_##lower##_ parameters __attribute__((alias("ompi_" #lower "_f"))); \
    void mpi_##lower##__ parameters __attribute__((alias("ompi_" #lower "_f"))); \
    void MPI_##UPPER parameters __attribute__((alias("ompi_" #lower "_f")));

// `error` may be NULL: it is optional in `use mpi_f08`.
#define FUNCTION(lower, UPPER, parameters, call) \
    void ompi_##lower##_f parameters; \
    void ompi_##lower##_f parameters \
    { \
        int result = call; \
        if (error) \
            *error = result; \
    } \
    NAMES(lower, UPPER, parameters)

// A collective and its non-blocking form, by the parameters before the communicator.
#define PARAMETERS(...) __VA_ARGS__
#define COLLECTIVE(lower, UPPER, function, parameters, ...) \
    FUNCTION(lower, UPPER, (PARAMETERS parameters, MPI_Fint *comm, MPI_Fint *error), function(__VA_ARGS__, COMM(comm))) \
    void ompi_i##lower##_f(PARAMETERS parameters, MPI_Fint *comm, MPI_Fint *request, MPI_Fint *error); \
    void ompi_i##lower##_f(PARAMETERS parameters, MPI_Fint *comm, MPI_Fint *request, MPI_Fint *error) \
    { \
        MPI_Request started = MPI_REQUEST_NULL; \
        int result = MPI_I##lower(__VA_ARGS__, COMM(comm), &started); \
        if (result == MPI_SUCCESS) \
            *request = PMPI_Request_c2f(started); \
        if (error) \
            *error = result; \
    } \
    NAMES(i##lower, I##UPPER, (PARAMETERS parameters, MPI_Fint *comm, MPI_Fint *request, MPI_Fint *error))

FUNCTION(init, INIT, (MPI_Fint *error), MPI_Init(NULL, NULL))
FUNCTION(init_thread, INIT_THREAD, (MPI_Fint *required, MPI_Fint *provided, MPI_Fint *error), MPI_Init_thread(NULL, NULL, *required, provided))
FUNCTION(finalize, FINALIZE, (MPI_Fint *error), MPI_Finalize())

static int free_type(MPI_Fint *type)
{
    MPI_Datatype handle = PMPI_Type_f2c(*type);
    int error = MPI_Type_free(&handle);
    if (error == MPI_SUCCESS)
        *type = PMPI_Type_c2f(handle);
    return error;
}

static int free_op(MPI_Fint *op)
{
    MPI_Op handle = PMPI_Op_f2c(*op);
    int error = MPI_Op_free(&handle);
    if (error == MPI_SUCCESS)
        *op = PMPI_Op_c2f(handle);
    return error;
}

static int start_barrier(MPI_Fint *comm, MPI_Fint *request)
{
    MPI_Request started = MPI_REQUEST_NULL;
    int error = MPI_Ibarrier(COMM(comm), &started);
    if (error == MPI_SUCCESS)
        *request = PMPI_Request_c2f(started);
    return error;
}

#if PERSISTENT
// A request may be one of this library that a C function of the program has made.
static int start_request(MPI_Fint *request)
{
    MPI_Request handle = PMPI_Request_f2c(*request);
    int error = MPI_Start(&handle);
    if (error == MPI_SUCCESS)
        *request = PMPI_Request_c2f(handle);
    return error;
}

static int start_requests(int count, MPI_Fint *requests)
{
    int error = MPI_SUCCESS;
    for (int i = 0; i < count && !error; i++)
        error = start_request(&requests[i]);
    return error;
}

static int free_request(MPI_Fint *request)
{
    MPI_Request handle = PMPI_Request_f2c(*request);
    int error = MPI_Request_free(&handle);
    if (error == MPI_SUCCESS)
        *request = PMPI_Request_c2f(handle);
    return error;
}

static int cancel_request(MPI_Fint *request)
{
    MPI_Request handle = PMPI_Request_f2c(*request);
    return MPI_Cancel(&handle);
}

FUNCTION(start, START, (MPI_Fint *request, MPI_Fint *error), start_request(request))
FUNCTION(startall, STARTALL, (MPI_Fint *count, MPI_Fint *requests, MPI_Fint *error), start_requests(*count, requests))
FUNCTION(request_free, REQUEST_FREE, (MPI_Fint *request, MPI_Fint *error), free_request(request))
FUNCTION(cancel, CANCEL, (MPI_Fint *request, MPI_Fint *error), cancel_request(request))
#endif

FUNCTION(type_free, TYPE_FREE, (MPI_Fint *type, MPI_Fint *error), free_type(type))
FUNCTION(op_free, OP_FREE, (MPI_Fint *op, MPI_Fint *error), free_op(op))
FUNCTION(barrier, BARRIER, (MPI_Fint *comm, MPI_Fint *error), MPI_Barrier(COMM(comm)))
FUNCTION(ibarrier, IBARRIER, (MPI_Fint *comm, MPI_Fint *request, MPI_Fint *error), start_barrier(comm, request))

COLLECTIVE(bcast, BCAST, MPI_Bcast, (void *data, MPI_Fint *count, MPI_Fint *type, MPI_Fint *root), data_of(data), *count, TYPE(type), *root)
COLLECTIVE(reduce, REDUCE, MPI_Reduce, (void *from, void *to, MPI_Fint *count, MPI_Fint *type, MPI_Fint *op, MPI_Fint *root),
           data_of(from), data_of(to), *count, TYPE(type), OP(op), *root)

#define OPERANDS void *from, void *to, MPI_Fint *count, MPI_Fint *type, MPI_Fint *op
#define REDUCED data_of(from), data_of(to), *count, TYPE(type), OP(op)
COLLECTIVE(allreduce, ALLREDUCE, MPI_Allreduce, (OPERANDS), REDUCED)
COLLECTIVE(reduce_scatter_block, REDUCE_SCATTER_BLOCK, MPI_Reduce_scatter_block, (OPERANDS), REDUCED)
FUNCTION(scan, SCAN, (OPERANDS, MPI_Fint *comm, MPI_Fint *error), MPI_Scan(REDUCED, COMM(comm)))
FUNCTION(exscan, EXSCAN, (OPERANDS, MPI_Fint *comm, MPI_Fint *error), MPI_Exscan(REDUCED, COMM(comm)))
COLLECTIVE(reduce_scatter, REDUCE_SCATTER, MPI_Reduce_scatter, (void *from, void *to, MPI_Fint *counts, MPI_Fint *type, MPI_Fint *op),
           data_of(from), data_of(to), counts, TYPE(type), OP(op))

COLLECTIVE(gather, GATHER, MPI_Gather, (void *from, MPI_Fint *count, MPI_Fint *type, void *to, MPI_Fint *to_count, MPI_Fint *to_type, MPI_Fint *root),
           data_of(from), *count, TYPE(type), data_of(to), *to_count, TYPE(to_type), *root)
COLLECTIVE(gatherv, GATHERV, MPI_Gatherv, (void *from, MPI_Fint *count, MPI_Fint *type, void *to, MPI_Fint *counts,
           MPI_Fint *displs, MPI_Fint *to_type, MPI_Fint *root),
           data_of(from), *count, TYPE(type), data_of(to), counts, displs, TYPE(to_type), *root)
COLLECTIVE(scatter, SCATTER, MPI_Scatter, (void *from, MPI_Fint *from_count, MPI_Fint *from_type, void *to, MPI_Fint *count, MPI_Fint *type, MPI_Fint *root),
           data_of(from), *from_count, TYPE(from_type), data_of(to), *count, TYPE(type), *root)
COLLECTIVE(scatterv, SCATTERV, MPI_Scatterv, (void *from, MPI_Fint *counts, MPI_Fint *displs, MPI_Fint *from_type, void *to,
           MPI_Fint *count, MPI_Fint *type, MPI_Fint *root),
           data_of(from), counts, displs, TYPE(from_type), data_of(to), *count, TYPE(type), *root)

#define EXCHANGED void *from, MPI_Fint *count, MPI_Fint *type, void *to, MPI_Fint *to_count, MPI_Fint *to_type
#define MOVED data_of(from), *count, TYPE(type), data_of(to), *to_count, TYPE(to_type)
COLLECTIVE(allgather, ALLGATHER, MPI_Allgather, (EXCHANGED), MOVED)
COLLECTIVE(alltoall, ALLTOALL, MPI_Alltoall, (EXCHANGED), MOVED)
COLLECTIVE(allgatherv, ALLGATHERV, MPI_Allgatherv, (void *from, MPI_Fint *count, MPI_Fint *type, void *to, MPI_Fint *counts,
           MPI_Fint *displs, MPI_Fint *to_type),
           data_of(from), *count, TYPE(type), data_of(to), counts, displs, TYPE(to_type))
COLLECTIVE(alltoallv, ALLTOALLV, MPI_Alltoallv, (void *from, MPI_Fint *counts, MPI_Fint *displs, MPI_Fint *type, void *to,
           MPI_Fint *to_counts, MPI_Fint *to_displs, MPI_Fint *to_type),
           data_of(from), counts, displs, TYPE(type), data_of(to), to_counts, to_displs, TYPE(to_type))

// The handles of an array of datatypes, which the caller frees.
static MPI_Datatype *types_of(const MPI_Fint *types, int count)
{
    MPI_Datatype *handles = malloc(((size_t)count + 1) * sizeof *handles);
    for (int i = 0; types && handles && i < count; i++)
        handles[i] = PMPI_Type_f2c(types[i]);
    return handles;
}

static int alltoallw(void *from, MPI_Fint *counts, MPI_Fint *displs, MPI_Fint *types, void *to, MPI_Fint *to_counts, MPI_Fint *to_displs,
                     MPI_Fint *to_types, MPI_Fint *comm, MPI_Fint *request)
{
    int ranks = 0, error = PMPI_Comm_size(COMM(comm), &ranks);
    int in_place = data_of(from) == MPI_IN_PLACE;
    MPI_Request started = MPI_REQUEST_NULL;
    MPI_Datatype *sent = types_of(in_place ? NULL : types, ranks), *received = types_of(to_types, ranks);
    if (!error && (!sent || !received))
        error = MPI_ERR_NO_MEM;
    else if (!error && request)
        error = MPI_Ialltoallw(data_of(from), counts, displs, sent, data_of(to), to_counts, to_displs, received, COMM(comm), &started);
    else if (!error)
        error = MPI_Alltoallw(data_of(from), counts, displs, sent, data_of(to), to_counts, to_displs, received, COMM(comm));
    if (!error && request)
        *request = PMPI_Request_c2f(started);
    free(sent);
    free(received);
    return error;
}

#define EACH_TYPED void *from, MPI_Fint *counts, MPI_Fint *displs, MPI_Fint *types, void *to, MPI_Fint *to_counts, MPI_Fint *to_displs, \
                   MPI_Fint *to_types, MPI_Fint *comm
FUNCTION(alltoallw, ALLTOALLW, (EACH_TYPED, MPI_Fint *error),
         alltoallw(from, counts, displs, types, to, to_counts, to_displs, to_types, comm, NULL))
FUNCTION(ialltoallw, IALLTOALLW, (EACH_TYPED, MPI_Fint *request, MPI_Fint *error),
         alltoallw(from, counts, displs, types, to, to_counts, to_displs, to_types, comm, request))

#pragma GCC visibility pop

#endif
