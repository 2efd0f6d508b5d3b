/* For programs that test one file of mpi/, which they include, and need no MPI to run. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <inttypes.h>
#include <stdio.h>

#define CHECK(condition, ...)                       \
    do {                                            \
        if (!(condition)) {                         \
            printf("FAIL " NAME ": " __VA_ARGS__);  \
            printf("\n");                           \
            return 1;                               \
        }                                           \
    } while (0)
