// Messages between this rank and those of the other side. Two kinds of coupling carry them: an inter-communicator
// (exchange.c), and endpoints of the substrate (link.c, matching.c). The code above does not know which.
//
// Each message under way is an MPI_Request in both: the substrate's are generalized requests. So they are tested and
// cancelled by MPI calls, together with others. Call exchange_turn() before testing them.
#ifndef ISTHMUS_MPI_EXCHANGE_H
#define ISTHMUS_MPI_EXCHANGE_H

#include <mpi.h>
#include <stdint.h>

struct isthmus_mpi_coupling;
struct trouble;

// Messages of one channel never meet receives of the other.
enum channel { CHANNEL_MOVER, CHANNEL_PROGRAM, CHANNELS };

struct exchange {
    int (*send)(struct isthmus_mpi_coupling *c, enum channel channel, const void *data, int64_t bytes, int rank, int tag,
                MPI_Request *request);
    int (*receive)(struct isthmus_mpi_coupling *c, enum channel channel, void *room, int64_t bytes, int rank, int tag,
                   MPI_Request *request);
    // Makes progress that the MPI does not make by itself.
    void (*turn)(struct isthmus_mpi_coupling *c);
    // The same, and waits briefly, because there is nothing else to do.
    void (*wait)(struct isthmus_mpi_coupling *c);
    // The error of a message that has ended, from its status.
    int (*error)(const struct isthmus_mpi_coupling *c, const MPI_Status *status);
    // Waits until everything sent is on its way.
    void (*flush)(struct isthmus_mpi_coupling *c);
    // Ends all messages, so that nothing touches their memory any more. Returns 0 if the MPI must keep the memory.
    int (*abandon)(struct isthmus_mpi_coupling *c);
    // Parts from the other side. Returns an MPI error.
    int (*end)(struct isthmus_mpi_coupling *c);
    // Notes why messages fail, for an MPI error.
    void (*explain)(const struct isthmus_mpi_coupling *c, int error, struct trouble *trouble, const char *what);
};

extern const struct exchange over_mpi, over_link;

int exchange_send(struct isthmus_mpi_coupling *c, const void *data, int64_t bytes, int rank, int tag, MPI_Request *request);
int exchange_receive(struct isthmus_mpi_coupling *c, void *room, int64_t bytes, int rank, int tag, MPI_Request *request);
// Waits for a message, with rests. Returns an MPI error.
int exchange_await(struct isthmus_mpi_coupling *c, MPI_Request *request);
// Sends a short message, or (exchange_hear) receives one, and waits for its end.
int exchange_say(struct isthmus_mpi_coupling *c, const void *data, int64_t bytes, int rank, int tag);
int exchange_hear(struct isthmus_mpi_coupling *c, void *room, int64_t bytes, int rank, int tag);
void exchange_turn(struct isthmus_mpi_coupling *c);
// Notes that the other application is lost, and why.
void note_lost(const struct isthmus_mpi_coupling *c, int error, struct trouble *trouble);

#endif
