// How two separately started jobs find each other: the accepting one writes its
// port's name to a file.
#ifndef ISTHMUS_TESTS_PORT_H
#define ISTHMUS_TESTS_PORT_H

#include "check.h"

static inline void publish(const char *file, const char *port)
{
    char temporary[4096];
    snprintf(temporary, sizeof temporary, "%s.new", file);
    FILE *out = fopen(temporary, "w");
    CHECK(out && fputs(port, out) >= 0 && fclose(out) == 0, "cannot write %s", temporary);
    CHECK(rename(temporary, file) == 0, "cannot rename %s", temporary);
}

static inline void await_port(const char *file, char *port)
{
    FILE *in = NULL;
    for (int waited_ms = 0; !(in = fopen(file, "r")); waited_ms += 20) {
        CHECK(waited_ms < 60000, "no port name in %s after 60 s", file);
        sleep_ms(20);
    }
    size_t length = fread(port, 1, MPI_MAX_PORT_NAME - 1, in);
    port[length] = 0;
    fclose(in);
}

// Couples this job with the other one; the accepting one writes its port to `file`.
static inline MPI_Comm couple_by(const char *file, int accepts)
{
    char port[MPI_MAX_PORT_NAME] = "";
    MPI_Comm inter;
    if (world_rank == 0 && accepts) {
        MPI_Open_port(MPI_INFO_NULL, port);
        publish(file, port);
    } else if (world_rank == 0) {
        await_port(file, port);
    }
    MPI_Bcast(port, MPI_MAX_PORT_NAME, MPI_CHAR, 0, MPI_COMM_WORLD);
    if (accepts)
        MPI_Comm_accept(port, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &inter);
    else
        MPI_Comm_connect(port, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &inter);
    return inter;
}

#endif
