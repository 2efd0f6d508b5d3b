/*
 * isthmus-mpi.h: files and arrays from one running MPI application to another.
 *
 * Two applications couple: isthmus_couple, whatever their MPIs; isthmus_mpi_accept and
 * isthmus_mpi_connect by what one MPI has for it; or isthmus_mpi_couple over an inter-communicator
 * that there is already. Then one calls isthmus_mpi_send_...
 * and the other isthmus_mpi_receive_..., in the same order on both sides. With as many
 * ranks on both sides rank i sends to rank i; else to those whose share it holds.
 *
 * Besides, each rank sends messages to ranks of the other side (isthmus_mpi_send).
 *
 * All calls but those for messages are collective over the communicator of their side, and return on all ranks of
 * both sides the same status, with the same text in isthmus_mpi_last_error(). A killed or
 * unreachable partner is told when the MPI's provider gives it up (`peer_timeout`).
 *
 * Every block carries a BLAKE3 digest that the receiver checks before it is written; what came
 * damaged is asked for again, three times. A file appears under its name when it is whole; the sender is told
 * when it is written. A source that changes while it is read is an error. What is there of a file when a
 * transfer ends early (killed, lost, a full disk) stays beside its place, as .isthmus-mpi-*.part
 * with a journal; the same calls, by as many ranks as one likes, send only the rest.
 *
 * The library is built by the mpicc of the MPI it is for (make mpi MPICC=...; pkg-config:
 * isthmus-mpi). Its disk threads call no MPI: MPI_THREAD_SINGLE is enough. Calls may not be
 * made from two threads at once. Lengths are in bytes, times in seconds.
 */
#ifndef ISTHMUS_MPI_H
#define ISTHMUS_MPI_H

#include <mpi.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* What calls return. Numbers never change their meaning. */
enum isthmus_mpi_status {
    ISTHMUS_MPI_SUCCESS = 0,
    /* An argument is null, out of its range, or makes no sense with the others. */
    ISTHMUS_MPI_INVALID = 1,
    /* The applications did not come together. */
    ISTHMUS_MPI_COUPLING = 2,
    /* A file cannot be opened, read, written or named. */
    ISTHMUS_MPI_FILE = 3,
    /* The receiver's file system is full, or a quota is used up. */
    ISTHMUS_MPI_SPACE = 4,
    /* The source changed while it was read. */
    ISTHMUS_MPI_CHANGED = 5,
    /* The two sides' calls do not fit together, or their versions. */
    ISTHMUS_MPI_MISMATCH = 6,
    /* A block is not what its digest says, however often it is asked for. */
    ISTHMUS_MPI_DAMAGED = 7,
    /* There is no memory for a block. */
    ISTHMUS_MPI_MEMORY = 8,
    /* The other application is gone. Of this coupling only the end may follow. */
    ISTHMUS_MPI_LOST = 9
};

/* By what a file is read or written. */
enum isthmus_mpi_io {
    ISTHMUS_MPI_POSIX = 0, /* positional reads and writes by disk threads */
    ISTHMUS_MPI_MPIIO = 1  /* MPI_File_iread_at, MPI_File_iwrite_at */
};

/* Whether blocks of a file go through the page cache, by POSIX and where the file system can do without. */
enum isthmus_mpi_cache {
    ISTHMUS_MPI_MEASURED = 0, /* as is found to be better for this file */
    ISTHMUS_MPI_DIRECT = 1,   /* past it */
    ISTHMUS_MPI_CACHED = 2    /* through it */
};

/* How to transfer. Zero is the default of each; rank 0's are taken, and NULL is all defaults. */
struct isthmus_mpi_options {
    /* Length of a block, which is read, sent and written at once, 4 KiB to 1 GiB; the sender's
     * counts. Default: by length of the file, path and storage, from 64 KiB to 64 MiB. The last
     * blocks of a file are shorter, so that all ranks end at the same time. No digest of the whole
     * is told of a file in blocks that are not 1 to 64 times a power of two from 4 KiB on. */
    int64_t block;
    /* Most memory for blocks of a file, of each rank, though two blocks at least; of it as much
     * is used as the path needs. A coupling has 16 MiB of it from the beginning. Default 128 MiB. */
    int64_t memory;
    /* Disk threads of each rank, 1 to 16. Default 1, or 2 if the file lies on several storage targets that are
     * known: by Lustre, or by the description file in the variable ISTHMUS_LAYOUT of rank 0. */
    int32_t threads;
    /* One of enum isthmus_mpi_io. */
    int32_t io;
    /* Not 0: the receiver's file is on the disk, not just with the system, before the call
     * returns. */
    int32_t sync;
    /* One of enum isthmus_mpi_cache. */
    int32_t direct;
    /* Not 0: read, send, receive and write one after the other, block by block, as a program
     * without this library might. To measure what the overlap is worth. */
    int32_t in_turn;
    /* Zero. */
    int32_t reserved[7];
};

/* What came of a transfer; the same on all ranks of a side. */
struct isthmus_mpi_report {
    int64_t bytes;
    int64_t block;
    /* From when both sides had called. Sender: to the acknowledgement that all is written (and on
     * the disk, with `sync`). Receiver: to the last write. */
    double seconds;
    /* Sender: until all was sent. */
    double sent_seconds;
    /* 1 where `digest` is the BLAKE3 of the file or range, as b3sum prints it. */
    int32_t has_digest;
    uint8_t digest[32];
    /* Of the bytes, those that a call before had left there: they were not sent again. */
    int64_t resumed;
};

typedef struct isthmus_mpi_coupling isthmus_mpi_coupling;

/*
 * Couples this application with another. `port`, significant at rank 0:
 *   "file:PATH"  accept writes its port's name to PATH, and connect waits for that file;
 *   "router:isthmus://AS.SUBNET/IP:PORT/NAME"  accept publishes its port under NAME at this router of its own
 *                AS (docs/router.md), and connect looks it up there, through its own routers
 *                where they are at different sites; while accept waits, and as long as it does;
 *   "env:NAME"   what the environment variable NAME has, in one of these forms;
 *   "name:TEXT"  connect only: the name that MPI_Open_port gave somebody.
 * NULL is "env:ISTHMUS_PORT". `patience` is how long connect waits for the file or the name, in seconds; 0: 60.
 * Accept waits for the other side as long as MPI_Comm_accept does. Not all MPIs can couple
 * separate jobs; Open MPI needs a daemon of its own for it.
 */
int isthmus_mpi_accept(MPI_Comm comm, const char *port, isthmus_mpi_coupling **coupling);
int isthmus_mpi_connect(MPI_Comm comm, const char *port, double patience, isthmus_mpi_coupling **coupling);

/*
 * Couples this application with another of any MPI: neither MPI knows of it. One side is part 1, the other part 2,
 * and both name the same place. Significant at rank 0:
 *   `at` "file:PATH"  part 1 writes its address to PATH, readable by its owner only, and part 2 waits for that file;
 *        "router:isthmus://AS.SUBNET/IP:PORT/NAME"  part 1 publishes its address under NAME at this router of its own
 *                     AS (docs/router.md), and part 2 looks it up there;
 *        "HOST:PORT"  part 1's rank 0 listens there, and tells its address to holders of the secret;
 *        "env:NAME"   what the environment variable NAME has, in one of these forms;
 *        NULL         part 1 only: a line on standard error has its address, "isthmus://...";
 *        "isthmus://..."  part 2 only: that address;
 *   `part` 1 or 2;
 *   `secret`  path of a file that only its owner can read, the same at both sides, for HOST:PORT; else NULL;
 *   `patience` how long to wait for the other side, in seconds; 0: 60.
 * Each rank opens an endpoint (isthmus.h) on the best device of its configuration, and connects to ranks of the other
 * side when it first has to do with them; through routers where the configuration has some. All calls below take
 * such a coupling as any other. ISTHMUS_MPI_COUPLING: nobody came, or not with this secret.
 */
int isthmus_couple(MPI_Comm comm, const char *at, int part, const char *secret, double patience,
                   isthmus_mpi_coupling **coupling);

/* The same over an inter-communicator, whose local group is `comm`'s. It is duplicated. */
int isthmus_mpi_couple(MPI_Comm comm, MPI_Comm other, isthmus_mpi_coupling **coupling);

/* Ends a coupling, and frees it whatever is returned. */
int isthmus_mpi_uncouple(isthmus_mpi_coupling *coupling);

/* Sends `length` bytes of a file from `offset` on; a length of -1: to its end. `path`,
 * `offset`, `length` and `options` are significant at rank 0. `report` may be NULL. */
int isthmus_mpi_send_file(isthmus_mpi_coupling *coupling, const char *path, int64_t offset, int64_t length,
                          const struct isthmus_mpi_options *options, struct isthmus_mpi_report *report);

/* Receives what the other side sends, as the new file `path` if `offset` is -1: it replaces
 * one of that name, once it is whole. Else into the file `path` from `offset` on, in place:
 * what is there beside it stays, and a transfer that fails may have written some of it. */
int isthmus_mpi_receive_file(isthmus_mpi_coupling *coupling, const char *path, int64_t offset,
                             const struct isthmus_mpi_options *options, struct isthmus_mpi_report *report);

/* Sends an array of which each rank holds `bytes` bytes at `data`, one rank's after the
 * other's; the receiving ranks hold as many in all, divided as they like. */
int isthmus_mpi_send_array(isthmus_mpi_coupling *coupling, const void *data, int64_t bytes,
                           const struct isthmus_mpi_options *options, struct isthmus_mpi_report *report);
int isthmus_mpi_receive_array(isthmus_mpi_coupling *coupling, void *data, int64_t bytes,
                              const struct isthmus_mpi_options *options, struct isthmus_mpi_report *report);

/*
 * Messages from rank to rank of the two sides, over any coupling. They are not collective: what fails, fails at this
 * rank. Those of one rank with one tag arrive in the order of sending. Tags are 0 to 32767. A message of up to 16 KiB
 * is sent at once, as far as the receiver has room for it; a longer one when it is received, from the sender's memory
 * to the receiver's without a copy. Messages and the collective calls above do not meet.
 *
 * ISTHMUS_MPI_LOST: that rank is gone. ISTHMUS_MPI_MISMATCH: the message is longer than `room`; it is lost.
 */
typedef struct isthmus_mpi_request isthmus_mpi_request;
int isthmus_mpi_send(isthmus_mpi_coupling *coupling, const void *data, int64_t bytes, int rank, int tag);
/* `bytes`, which may be NULL, gets the length of the message. */
int isthmus_mpi_receive(isthmus_mpi_coupling *coupling, void *data, int64_t room, int rank, int tag, int64_t *bytes);

/* The same without waiting: the memory belongs to the library until wait or test say that the message has ended. Then
 * *request is NULL. Messages advance while this rank is in a call of this library. Every request is to be ended
 * before the end of the coupling. */
int isthmus_mpi_isend(isthmus_mpi_coupling *coupling, const void *data, int64_t bytes, int rank, int tag,
                      isthmus_mpi_request **request);
int isthmus_mpi_ireceive(isthmus_mpi_coupling *coupling, void *data, int64_t room, int rank, int tag,
                         isthmus_mpi_request **request);
int isthmus_mpi_wait(isthmus_mpi_request **request, int64_t *bytes);
int isthmus_mpi_test(isthmus_mpi_request **request, int *done, int64_t *bytes);

/* What the last call that failed says of it; "" if none did. Valid until the next call. */
const char *isthmus_mpi_last_error(void);

/* Ranks of the other side; this rank, and the ranks of its own. */
int isthmus_mpi_remote_ranks(const isthmus_mpi_coupling *coupling);
int isthmus_mpi_rank(const isthmus_mpi_coupling *coupling);
int isthmus_mpi_ranks(const isthmus_mpi_coupling *coupling);

/* The same with communicators as Fortran names them, for Fortran and Python. */
int isthmus_mpi_accept_f(int32_t comm, const char *port, isthmus_mpi_coupling **coupling);
int isthmus_mpi_connect_f(int32_t comm, const char *port, double patience, isthmus_mpi_coupling **coupling);
int isthmus_mpi_couple_f(int32_t comm, int32_t other, isthmus_mpi_coupling **coupling);
int isthmus_couple_f(int32_t comm, const char *at, int part, const char *secret, double patience,
                     isthmus_mpi_coupling **coupling);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
