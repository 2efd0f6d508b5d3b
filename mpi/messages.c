// Messages of the program between ranks of the two sides.
#include "internal.h"

#include <inttypes.h>
#include <stdlib.h>

// Largest tag that every MPI takes.
enum { TAG_MOST = 32767 };

struct isthmus_mpi_request {
    isthmus_mpi_coupling *c;
    MPI_Request mpi;
    int64_t room; // of a receive; -1: it sends
    int rank, tag;
};

static int begin(isthmus_mpi_coupling *c, int sends, void *data, int64_t bytes, int rank, int tag, isthmus_mpi_request **request)
{
    struct trouble trouble = {0};
    struct handlers handlers;
    isthmus_mpi_request *made = NULL;
    if (!request)
        return refuse("no place for the request");
    *request = NULL;
    if (!c)
        note(&trouble, ISTHMUS_MPI_INVALID, "no coupling");
    else if (c->lost)
        note(&trouble, ISTHMUS_MPI_LOST, "the other application was lost before; couple again");
    else if (bytes < 0 || (bytes > 0 && !data))
        note(&trouble, ISTHMUS_MPI_INVALID, "%" PRId64 " bytes at address %p are no message", bytes, data);
    else if (c->exchange == &over_mpi && bytes > INT_MAX)
        note(&trouble, ISTHMUS_MPI_INVALID, "%" PRId64 " bytes; over an inter-communicator a message has %d at most", bytes, INT_MAX);
    else if (rank < 0 || rank >= c->remote)
        note(&trouble, ISTHMUS_MPI_INVALID, "the other side has no rank %d; it has %d ranks", rank, c->remote);
    else if (tag < 0 || tag > TAG_MOST)
        note(&trouble, ISTHMUS_MPI_INVALID, "tag %d; tags are 0 to %d", tag, TAG_MOST);
    else if (!(made = malloc(sizeof *made)))
        note(&trouble, ISTHMUS_MPI_MEMORY, "no memory for a request");
    if (trouble.code)
        return tell(&trouble);
    *made = (isthmus_mpi_request){.c = c, .room = sends ? -1 : bytes, .rank = rank, .tag = tag};
    return_errors(&handlers);
    int error = sends ? c->exchange->send(c, CHANNEL_PROGRAM, data, bytes, rank, tag, &made->mpi)
                      : c->exchange->receive(c, CHANNEL_PROGRAM, data, bytes, rank, tag, &made->mpi);
    restore_errors(&handlers);
    if (error != MPI_SUCCESS) {
        note_lost(c, error, &trouble);
        free(made);
        return tell(&trouble);
    }
    *request = made;
    return tell(&trouble);
}

// Reports the end of a request, and frees it.
static int conclude(isthmus_mpi_request **request, int error, const MPI_Status *status, int64_t *bytes)
{
    const isthmus_mpi_request *r = *request;
    struct trouble trouble = {0};
    MPI_Count count = 0;
    int class = MPI_SUCCESS;
    if (error == MPI_SUCCESS)
        error = r->c->exchange->error(r->c, status);
    MPI_Error_class(error, &class);
    if (r->room >= 0 && (error == MPI_SUCCESS || class == MPI_ERR_TRUNCATE))
        MPI_Get_elements_x(status, MPI_BYTE, &count);
    if (class == MPI_ERR_TRUNCATE)
        note(&trouble, ISTHMUS_MPI_MISMATCH, "a message of rank %d with tag %d is longer than the %" PRId64 " bytes that there is room for",
             r->rank, r->tag, r->room);
    else if (error != MPI_SUCCESS)
        note_lost(r->c, error, &trouble);
    if (bytes && r->room >= 0)
        *bytes = (int64_t)count;
    free(*request);
    *request = NULL;
    return tell(&trouble);
}

// Tests a request once, or until it has ended.
static int look(isthmus_mpi_request **request, int waits, int *done, int64_t *bytes)
{
    struct handlers handlers;
    MPI_Status status;
    int there = 0, error = MPI_SUCCESS;
    if (!request || !*request)
        return refuse("no request");
    const struct exchange *exchange = (*request)->c->exchange;
    return_errors(&handlers);
    exchange->turn((*request)->c);
    while (error == MPI_SUCCESS && !there) {
        error = MPI_Test(&(*request)->mpi, &there, &status);
        if (!waits)
            break;
        if (error == MPI_SUCCESS && !there)
            exchange->wait((*request)->c);
    }
    restore_errors(&handlers);
    if (done)
        *done = there || error != MPI_SUCCESS;
    if (error == MPI_SUCCESS && !there)
        return tell(&(struct trouble){0});
    return conclude(request, error, &status, bytes);
}

int isthmus_mpi_isend(isthmus_mpi_coupling *coupling, const void *data, int64_t bytes, int rank, int tag, isthmus_mpi_request **request)
{
    // The data are only read. Both directions share one pointer without const.
    return begin(coupling, 1, (void *)(uintptr_t)data, bytes, rank, tag, request);
}

int isthmus_mpi_ireceive(isthmus_mpi_coupling *coupling, void *data, int64_t room, int rank, int tag, isthmus_mpi_request **request)
{
    return begin(coupling, 0, data, room, rank, tag, request);
}

int isthmus_mpi_wait(isthmus_mpi_request **request, int64_t *bytes)
{
    return look(request, 1, NULL, bytes);
}

int isthmus_mpi_test(isthmus_mpi_request **request, int *done, int64_t *bytes)
{
    return done ? look(request, 0, done, bytes) : refuse("no place for whether it is done");
}

int isthmus_mpi_send(isthmus_mpi_coupling *coupling, const void *data, int64_t bytes, int rank, int tag)
{
    isthmus_mpi_request *request;
    int status = isthmus_mpi_isend(coupling, data, bytes, rank, tag, &request);
    return status == ISTHMUS_MPI_SUCCESS ? isthmus_mpi_wait(&request, NULL) : status;
}

int isthmus_mpi_receive(isthmus_mpi_coupling *coupling, void *data, int64_t room, int rank, int tag, int64_t *bytes)
{
    isthmus_mpi_request *request;
    int status = isthmus_mpi_ireceive(coupling, data, room, rank, tag, &request);
    return status == ISTHMUS_MPI_SUCCESS ? isthmus_mpi_wait(&request, bytes) : status;
}

int isthmus_mpi_rank(const isthmus_mpi_coupling *coupling)
{
    return coupling ? coupling->rank : -1;
}

int isthmus_mpi_ranks(const isthmus_mpi_coupling *coupling)
{
    return coupling ? coupling->ranks : 0;
}
