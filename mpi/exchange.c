// The common part of both kinds of coupling, and messages over an inter-communicator.
#include "internal.h"

// The first tag of the program's messages; the tags of pieces (blocks.c) are below.
enum { PROGRAM_TAGS = 32768 };

int exchange_send(struct isthmus_mpi_coupling *c, const void *data, int64_t bytes, int rank, int tag, MPI_Request *request)
{
    return c->exchange->send(c, CHANNEL_MOVER, data, bytes, rank, tag, request);
}

int exchange_receive(struct isthmus_mpi_coupling *c, void *room, int64_t bytes, int rank, int tag, MPI_Request *request)
{
    return c->exchange->receive(c, CHANNEL_MOVER, room, bytes, rank, tag, request);
}

int exchange_await(struct isthmus_mpi_coupling *c, MPI_Request *request)
{
    MPI_Status status;
    for (int there = 0;;) {
        int none = *request == MPI_REQUEST_NULL, error = MPI_Test(request, &there, &status);
        if (error != MPI_SUCCESS)
            return error;
        if (there)
            return none ? MPI_SUCCESS : c->exchange->error(c, &status);
        c->exchange->wait(c);
    }
}

int exchange_say(struct isthmus_mpi_coupling *c, const void *data, int64_t bytes, int rank, int tag)
{
    MPI_Request request;
    int error = exchange_send(c, data, bytes, rank, tag, &request);
    return error == MPI_SUCCESS ? exchange_await(c, &request) : error;
}

int exchange_hear(struct isthmus_mpi_coupling *c, void *room, int64_t bytes, int rank, int tag)
{
    MPI_Request request;
    int error = exchange_receive(c, room, bytes, rank, tag, &request);
    return error == MPI_SUCCESS ? exchange_await(c, &request) : error;
}

void exchange_turn(struct isthmus_mpi_coupling *c)
{
    c->exchange->turn(c);
}

void note_lost(const struct isthmus_mpi_coupling *c, int error, struct trouble *trouble)
{
    c->exchange->explain(c, error, trouble, "the other application is lost");
    trouble->code = ISTHMUS_MPI_LOST;
}

// --- by an inter-communicator ----------------------------------------------------

// The program's tags follow the mover's. All known MPIs take tags of at least 20 bits.
static int tag_in(enum channel channel, int tag)
{
    return channel == CHANNEL_MOVER ? tag : PROGRAM_TAGS + tag;
}

static int mpi_send(struct isthmus_mpi_coupling *c, enum channel channel, const void *data, int64_t bytes, int rank, int tag,
                    MPI_Request *request)
{
    return MPI_Isend(data, (int)bytes, MPI_BYTE, rank, tag_in(channel, tag), c->other, request);
}

static int mpi_receive(struct isthmus_mpi_coupling *c, enum channel channel, void *room, int64_t bytes, int rank, int tag,
                       MPI_Request *request)
{
    return MPI_Irecv(room, (int)bytes, MPI_BYTE, rank, tag_in(channel, tag), c->other, request);
}

static void mpi_nothing(struct isthmus_mpi_coupling *c)
{
    (void)c;
}

static void mpi_wait(struct isthmus_mpi_coupling *c)
{
    (void)c;
    rest(REST_NS);
}

static int mpi_error(const struct isthmus_mpi_coupling *c, const MPI_Status *status)
{
    (void)c, (void)status;
    return MPI_SUCCESS; // MPI_Test has told it
}

static int mpi_abandon(struct isthmus_mpi_coupling *c)
{
    (void)c;
    return 0;
}

// A lost application needs no parting.
static int mpi_end(struct isthmus_mpi_coupling *c)
{
    if (c->lost || c->other == MPI_COMM_NULL)
        return MPI_SUCCESS;
    return c->disconnects ? MPI_Comm_disconnect(&c->other) : MPI_Comm_free(&c->other);
}

static void mpi_explain(const struct isthmus_mpi_coupling *c, int error, struct trouble *trouble, const char *what)
{
    (void)c;
    note_mpi(trouble, error, "%s", what);
}

const struct exchange over_mpi = {.send = mpi_send, .receive = mpi_receive, .turn = mpi_nothing, .wait = mpi_wait,
                                  .error = mpi_error, .flush = mpi_nothing, .abandon = mpi_abandon, .end = mpi_end,
                                  .explain = mpi_explain};
