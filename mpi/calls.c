// The calls of programs that transfer data, and their repeated attempts.
#include "internal.h"

#include <stdlib.h>
#include <string.h>

// Most attempts if data arrive damaged. Count.
enum { ATTEMPTS = 4 };

static struct store closed_store(int is_file, int sends, void *data)
{
    return (struct store){.is_file = is_file, .writes = !sends, .fd = -1, .lock = -1, .log = -1,
                          .file = MPI_FILE_NULL, .data = data};
}

static int begin(struct isthmus_mpi_coupling *c, const struct transfer *call, const struct opening *with, int64_t bytes,
                 struct isthmus_mpi_report *report)
{
    struct trouble trouble = {0};
    struct isthmus_mpi_report now = {0}, first = {0};
    struct handlers handlers;
    double began = 0;
    int status = ISTHMUS_MPI_DAMAGED;
    if (!c)
        note(&trouble, ISTHMUS_MPI_INVALID, "no coupling");
    else if (c->lost)
        note(&trouble, ISTHMUS_MPI_LOST, "the other application was lost before; couple again");
    if (trouble.code)
        return tell(&trouble);
    return_errors(&handlers);
    // Both sides get the same status, so both begin again, for the damaged parts.
    for (int i = 0; i < ATTEMPTS && status == ISTHMUS_MPI_DAMAGED; i++) {
        struct transfer *t = malloc(sizeof *t);
        struct opening *opening = malloc(sizeof *opening);
        if (!t || !opening)
            MPI_Abort(c->local, ISTHMUS_MPI_MEMORY);
        *t = *call;
        *opening = *with;
        t->c = c;
        began = began > 0 ? began : i > 0 ? now_s() - now.seconds : 0;
        status = transfer(t, opening, bytes, &now, began);
        if (i == 0)
            first = now;
    }
    restore_errors(&handlers);
    now.resumed = first.resumed;
    if (report)
        *report = now;
    return status;
}

static int of_file(struct isthmus_mpi_coupling *c, int sends, const char *path, int64_t offset, int64_t length,
                   const struct isthmus_mpi_options *options, struct isthmus_mpi_report *report)
{
    struct transfer call = {.sends = sends, .what = KIND_FILE, .store = closed_store(1, sends, NULL)};
    struct opening with = {.offset = offset, .length = length};
    if (options)
        with.options = *options;
    if (path && strlen(path) < sizeof with.path)
        strcpy(with.path, path);
    return begin(c, &call, &with, 0, report);
}

static int of_array(struct isthmus_mpi_coupling *c, int sends, void *data, int64_t bytes,
                    const struct isthmus_mpi_options *options, struct isthmus_mpi_report *report)
{
    struct transfer call = {.sends = sends, .what = KIND_ARRAY, .store = closed_store(0, sends, data)};
    struct opening with = {.length = -1};
    if (options)
        with.options = *options;
    return begin(c, &call, &with, bytes, report);
}

int isthmus_mpi_send_file(isthmus_mpi_coupling *coupling, const char *path, int64_t offset, int64_t length,
                          const struct isthmus_mpi_options *options, struct isthmus_mpi_report *report)
{
    return of_file(coupling, 1, path, offset, length, options, report);
}

int isthmus_mpi_receive_file(isthmus_mpi_coupling *coupling, const char *path, int64_t offset,
                             const struct isthmus_mpi_options *options, struct isthmus_mpi_report *report)
{
    return of_file(coupling, 0, path, offset, -1, options, report);
}

int isthmus_mpi_send_array(isthmus_mpi_coupling *coupling, const void *data, int64_t bytes,
                           const struct isthmus_mpi_options *options, struct isthmus_mpi_report *report)
{
    // The memory is only read. Both directions share one pointer without const.
    return of_array(coupling, 1, (void *)(uintptr_t)data, bytes, options, report);
}

int isthmus_mpi_receive_array(isthmus_mpi_coupling *coupling, void *data, int64_t bytes,
                              const struct isthmus_mpi_options *options, struct isthmus_mpi_report *report)
{
    return of_array(coupling, 0, data, bytes, options, report);
}
