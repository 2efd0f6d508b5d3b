// Messages between this rank and those of the other side. Two kinds of coupling carry them: an inter-communicator
// (exchange.c), and endpoints of the substrate (link.c, matching.c). What is above does not know which.
//
// Each message under way is an MPI_Request in both: the substrate's are generalized requests. So they are tested and
// cancelled by MPI calls, together with others. Who tests them calls exchange_turn() before.
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
    // Moves what the MPI does not move by itself.
    void (*turn)(struct isthmus_mpi_coupling *c);
    // The same, after a rest: there is nothing else to do.
    void (*wait)(struct isthmus_mpi_coupling *c);
    // The error of a message that has ended; its status says it.
    int (*error)(const struct isthmus_mpi_coupling *c, const MPI_Status *status);
    // All that was sent is on its way.
    void (*flush)(struct isthmus_mpi_coupling *c);
    // Ends all messages; nothing touches their memory any more. 0 where it cannot: the memory stays the MPI's.
    int (*abandon)(struct isthmus_mpi_coupling *c);
    // Parts from the other side. An MPI's error.
    int (*end)(struct isthmus_mpi_coupling *c);
    // Why messages fail; of an MPI's error.
    void (*explain)(const struct isthmus_mpi_coupling *c, int error, struct trouble *trouble, const char *what);
};

extern const struct exchange over_mpi, over_link;

int exchange_send(struct isthmus_mpi_coupling *c, const void *data, int64_t bytes, int rank, int tag, MPI_Request *request);
int exchange_receive(struct isthmus_mpi_coupling *c, void *room, int64_t bytes, int rank, int tag, MPI_Request *request);
// Waits for a message, resting. An MPI's error.
int exchange_await(struct isthmus_mpi_coupling *c, MPI_Request *request);
// A short one, sent and forgotten.
int exchange_say(struct isthmus_mpi_coupling *c, const void *data, int64_t bytes, int rank, int tag);
int exchange_hear(struct isthmus_mpi_coupling *c, void *room, int64_t bytes, int rank, int tag);
void exchange_turn(struct isthmus_mpi_coupling *c);
// The other application is lost, and why.
void note_lost(const struct isthmus_mpi_coupling *c, int error, struct trouble *trouble);

#endif
