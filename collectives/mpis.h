// Differences of the MPIs. No other file asks which MPI it is compiled for.
//
//                                 MPICH 4 and 5, Intel MPI    Open MPI 4.1 and 5
//   functions with large counts   yes                         from 6 on
//   sessions                      yes                         from 5 on
//   calls from Fortran            go through MPI_ functions   go through PMPI_ functions: fortran.c
//   progress hook                 MPICH from 4.2 on           all
//   persistent collectives        with the hook               from 5 on
//   MPI_Wait after an error       returns success             returns what the error handler says
//   errors of MPI_Waitall etc.    go to MPI_COMM_SELF; of     go to the request's communicator
//                                 Intel MPI: MPI_COMM_WORLD
//
// Handles are numbers in MPICH and pointers in Open MPI. Nothing here depends on it: handles are only passed on,
// compared with each other, and translated by MPI_Comm_f2c and the like.
#ifndef ISTHMUS_COLLECTIVES_MPIS_H
#define ISTHMUS_COLLECTIVES_MPIS_H

#include <mpi.h>

#if defined(OPEN_MPI) && OMPI_MAJOR_VERSION < 6
#define LARGE_COUNTS 0
#else
#define LARGE_COUNTS (MPI_VERSION >= 4)
#endif

// MPI functions by the name that takes the largest counts.
#if LARGE_COUNTS
#define COUNTED(function) function##_c
typedef MPI_Count counted;
#else
#define COUNTED(function) function
typedef int counted;
#endif

// Fortran calls of Open MPI call PMPI_ functions, which this library must not replace: programs and tools call these to
// reach the MPI itself. So it has the Fortran functions as well.
#ifdef OPEN_MPI
#define FORTRAN_PASSES_BY 1
#else
#define FORTRAN_PASSES_BY 0
#endif

// Whether epochs of MPI_Win_fence are run here. Not where Fortran calls pass by: a window made in C may be used in Fortran,
// whose accesses would go to the MPI, and its fences with them.
#define WINDOWS (!FORTRAN_PASSES_BY)

// Sessions, by which a program uses MPI without MPI_Init.
#if defined(OPEN_MPI)
#define SESSIONS (OMPI_MAJOR_VERSION >= 5)
#else
#define SESSIONS (MPI_VERSION >= 4)
#endif

// Open MPI's MPI_Reduce_local uses MPI_COMM_WORLD, and crashes if there is none (5.0.11).
#if defined(OPEN_MPI)
#define COMBINES_WITHOUT_WORLD 0
#else
#define COMBINES_WITHOUT_WORLD 1
#endif

// A progress hook is a function that the MPI calls whenever it makes progress, in whatever call. Non-blocking
// collectives need it. Intel MPI and the standard ABI have none.
#if defined(OPEN_MPI)
#define PROGRESS_HOOK 1
#elif defined(MPICH_NUMVERSION) && MPICH_NUMVERSION >= 40200000 && !defined(I_MPI_NUMVERSION)
#define PROGRESS_HOOK 1
#else
#define PROGRESS_HOOK 0
#endif

// Persistent collectives are non-blocking ones that the program starts again.
#if defined(OPEN_MPI)
#define PERSISTENT (OMPI_MAJOR_VERSION >= 5)
#else
#define PERSISTENT (PROGRESS_HOOK && MPI_VERSION >= 4)
#endif

// After the program's error handler was called, MPI_Wait returns what the handler left in its argument. That of MPICH
// returns MPI_SUCCESS (5.0).
#if defined(OPEN_MPI)
#define HANDLERS_SET_ERRORS 1
#else
#define HANDLERS_SET_ERRORS 0
#endif

// The communicator whose error handler MPI_Waitall, MPI_Waitsome, MPI_Testall and MPI_Testsome call, if it is not that of
// the request.
#if defined(OPEN_MPI)
#define HEARER MPI_COMM_NULL
#elif defined(I_MPI_NUMVERSION)
#define HEARER MPI_COMM_WORLD
#else
#define HEARER MPI_COMM_SELF
#endif

#endif
