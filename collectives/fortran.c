// The functions that Fortran programs call, for an MPI whose own ones would bypass calls.c (mpis.h). Each translates
// its arguments and calls the C function of this library.
//
// `mpif.h` and `use mpi` call mpi_bcast_; case and underscores depend on the compiler. `use mpi_f08` calls
// ompi_bcast_f. An MPI without Fortran has none of these names, and then nobody calls ours.
#include "internal.h"

#if FORTRAN_PASSES_BY

#include <stddef.h>

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

// Defines a function under all its names. `error` may be NULL: it is optional in `use mpi_f08`.
#define FUNCTION(lower, UPPER, parameters, call) \
    void ompi_##lower##_f parameters; \
    void ompi_##lower##_f parameters \
    { \
        int result = call; \
        if (error) \
            *error = result; \
    } \
    void mpi_##lower parameters __attribute__((alias("ompi_" #lower "_f"))); \
    void mpi_##lower##_ parameters __attribute__((alias("ompi_" #lower "_f"))); \
    void mpi_##lower##__ parameters __attribute__((alias("ompi_" #lower "_f"))); \
    void MPI_##UPPER parameters __attribute__((alias("ompi_" #lower "_f")));

FUNCTION(init, INIT, (MPI_Fint *error), MPI_Init(NULL, NULL))
FUNCTION(init_thread, INIT_THREAD, (MPI_Fint *required, MPI_Fint *provided, MPI_Fint *error), MPI_Init_thread(NULL, NULL, *required, provided))
FUNCTION(finalize, FINALIZE, (MPI_Fint *error), MPI_Finalize())

FUNCTION(barrier, BARRIER, (MPI_Fint *comm, MPI_Fint *error), MPI_Barrier(COMM(comm)))
FUNCTION(bcast, BCAST, (void *data, MPI_Fint *count, MPI_Fint *type, MPI_Fint *root, MPI_Fint *comm, MPI_Fint *error),
         MPI_Bcast(data_of(data), *count, TYPE(type), *root, COMM(comm)))
FUNCTION(reduce, REDUCE, (void *from, void *to, MPI_Fint *count, MPI_Fint *type, MPI_Fint *op, MPI_Fint *root, MPI_Fint *comm, MPI_Fint *error),
         MPI_Reduce(data_of(from), data_of(to), *count, TYPE(type), OP(op), *root, COMM(comm)))

#define OPERANDS (void *from, void *to, MPI_Fint *count, MPI_Fint *type, MPI_Fint *op, MPI_Fint *comm, MPI_Fint *error)
#define REDUCED(function) function(data_of(from), data_of(to), *count, TYPE(type), OP(op), COMM(comm))
FUNCTION(allreduce, ALLREDUCE, OPERANDS, REDUCED(MPI_Allreduce))
FUNCTION(reduce_scatter_block, REDUCE_SCATTER_BLOCK, OPERANDS, REDUCED(MPI_Reduce_scatter_block))
FUNCTION(scan, SCAN, OPERANDS, REDUCED(MPI_Scan))
FUNCTION(exscan, EXSCAN, OPERANDS, REDUCED(MPI_Exscan))
FUNCTION(reduce_scatter, REDUCE_SCATTER, (void *from, void *to, MPI_Fint *counts, MPI_Fint *type, MPI_Fint *op, MPI_Fint *comm, MPI_Fint *error),
         MPI_Reduce_scatter(data_of(from), data_of(to), counts, TYPE(type), OP(op), COMM(comm)))

FUNCTION(gather, GATHER, (void *from, MPI_Fint *count, MPI_Fint *type, void *to, MPI_Fint *to_count,
         MPI_Fint *to_type, MPI_Fint *root, MPI_Fint *comm, MPI_Fint *error),
         MPI_Gather(data_of(from), *count, TYPE(type), data_of(to), *to_count, TYPE(to_type), *root, COMM(comm)))
FUNCTION(gatherv, GATHERV, (void *from, MPI_Fint *count, MPI_Fint *type, void *to, MPI_Fint *counts,
         MPI_Fint *displs, MPI_Fint *to_type, MPI_Fint *root, MPI_Fint *comm, MPI_Fint *error),
         MPI_Gatherv(data_of(from), *count, TYPE(type), data_of(to), counts, displs, TYPE(to_type), *root, COMM(comm)))
FUNCTION(scatter, SCATTER, (void *from, MPI_Fint *from_count, MPI_Fint *from_type, void *to, MPI_Fint *count,
         MPI_Fint *type, MPI_Fint *root, MPI_Fint *comm, MPI_Fint *error),
         MPI_Scatter(data_of(from), *from_count, TYPE(from_type), data_of(to), *count, TYPE(type), *root, COMM(comm)))
FUNCTION(scatterv, SCATTERV, (void *from, MPI_Fint *counts, MPI_Fint *displs, MPI_Fint *from_type, void *to,
         MPI_Fint *count, MPI_Fint *type, MPI_Fint *root, MPI_Fint *comm, MPI_Fint *error),
         MPI_Scatterv(data_of(from), counts, displs, TYPE(from_type), data_of(to), *count, TYPE(type), *root, COMM(comm)))

#define EXCHANGED (void *from, MPI_Fint *count, MPI_Fint *type, void *to, MPI_Fint *to_count, MPI_Fint *to_type, MPI_Fint *comm, MPI_Fint *error)
FUNCTION(allgather, ALLGATHER, EXCHANGED, MPI_Allgather(data_of(from), *count, TYPE(type), data_of(to), *to_count, TYPE(to_type), COMM(comm)))
FUNCTION(alltoall, ALLTOALL, EXCHANGED, MPI_Alltoall(data_of(from), *count, TYPE(type), data_of(to), *to_count, TYPE(to_type), COMM(comm)))
FUNCTION(allgatherv, ALLGATHERV, (void *from, MPI_Fint *count, MPI_Fint *type, void *to, MPI_Fint *counts,
         MPI_Fint *displs, MPI_Fint *to_type, MPI_Fint *comm, MPI_Fint *error),
         MPI_Allgatherv(data_of(from), *count, TYPE(type), data_of(to), counts, displs, TYPE(to_type), COMM(comm)))
FUNCTION(alltoallv, ALLTOALLV, (void *from, MPI_Fint *counts, MPI_Fint *displs, MPI_Fint *type, void *to,
         MPI_Fint *to_counts, MPI_Fint *to_displs, MPI_Fint *to_type, MPI_Fint *comm, MPI_Fint *error),
         MPI_Alltoallv(data_of(from), counts, displs, TYPE(type), data_of(to), to_counts, to_displs, TYPE(to_type), COMM(comm)))

#pragma GCC visibility pop

#endif
