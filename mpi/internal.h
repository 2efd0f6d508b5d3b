// Types and functions that the files of this folder share.
//
//   couple.c    couples two applications by their MPI, and parts them; meet.c: without a common MPI
//   exchange.c  messages between the two sides over either coupling; link.c, matching.c: over the substrate
//   messages.c  messages of the program
//   calls.c     the calls of the library that transfer
//   transfer.c  a transfer, from the opening to the report; greeting.c: the first words of both sides
//   blocks.c    the loop that moves blocks; words.c: control messages meanwhile
//   plan.c      the data that each rank sends to each, and the memory for it
//   deal.c      deals the pieces of a file to the sender's ranks; targets.c: by storage target, also to receivers
//   store.c     files, by POSIX and MPI-IO; cache.c: through the page cache or past it; holes.c: files with holes;
//               pool.c: the disk threads
//   version.c   agrees on a version of the protocol
//   journal.c   records the blocks of an unfinished file; resume.c: both sides continue it
#ifndef ISTHMUS_MPI_INTERNAL_H
#define ISTHMUS_MPI_INTERNAL_H

#include "exchange.h"
#include "isthmus-mpi.h"

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/types.h>

// First words begin with "ISM" and the oldest version that their sender speaks. OFFER and READY also have its newest
// (`newest`), and both sides speak the newest common version. The first release knew only version 4 and sent 0.
enum { PROTOCOL = 0x49534d30, OLDEST = 4, NEWEST = 4 };
enum { DIGEST_LEN = 32, MAX_THREADS = 16, REST_NS = 50000, REST_MOST_NS = 400000, MAX_BLOCKS = 64 };
// Longest rest if there are more runnable threads than processors, and how long that answer is valid. Nanoseconds.
enum { CROWDED_REST_NS = 3200000, CROWD_NS = 20000000 };
enum { TAG_WORD = 1, TAG_COUNTS, TAG_DATA, TAG_RECORD, TAG_PING, TAG_FINISHED, TAG_DIGESTS, TAG_HAD, TAG_ASK, TAG_GRANT };
enum { KIND_FILE = 1, KIND_ARRAY };
// Code of a block that is sent without its data, because something failed elsewhere.
enum { STOPPED = 100 };
// Shortest block. Bytes; a shorter one costs more by itself than by its bytes.
#define MIN_BLOCK ((int64_t)4 << 10)
#define MAX_BLOCK ((int64_t)1 << 30)
#define KIB ((int64_t)1 << 10)
#define MIB ((int64_t)1 << 20)

// The first failure; code 0: none.
struct trouble {
    int32_t code;
    char text[316];
};

__attribute__((format(printf, 3, 4))) void note(struct trouble *trouble, int code, const char *format, ...);
// Notes an errno of the system: ENOSPC and EDQUOT become ISTHMUS_MPI_SPACE.
__attribute__((format(printf, 3, 4))) void note_errno(struct trouble *trouble, int error, const char *format, ...);
__attribute__((format(printf, 3, 4))) void note_mpi(struct trouble *trouble, int error, const char *format, ...);
// Keeps the text for isthmus_mpi_last_error. Returns the code.
int tell(const struct trouble *trouble);

double now_s(void);
// Sleeps. The waits of an MPI spin; ours leave the processor to threads that have work.
void rest(int64_t ns);
// The next rest after one of `rest_ns` that found nothing: twice as long, up to REST_MOST_NS or CROWDED_REST_NS.
int64_t longer_rest(int64_t rest_ns);
// Waits for a request, with rests. Returns the MPI's code.
int await(MPI_Request *request);

// Some MPIs pass errors of requests to the error handler of MPI_COMM_WORLD or MPI_COMM_SELF, which
// ends the program. During our calls these handlers return errors.
struct handlers {
    MPI_Errhandler world, self;
};
void return_errors(struct handlers *before);
void restore_errors(struct handlers *before);

struct link;
struct isthmus_mpi_coupling {
    const struct exchange *exchange;
    MPI_Comm local;
    MPI_Comm other;    // of over_mpi
    struct link *link; // of over_link
    int rank, ranks, remote;
    int disconnects; // the inter-communicator joins two jobs
    int lost;
    int32_t serial;  // of the next transfer
    double rtt_s;    // between the ranks 0
    double rate;     // of the transfer before; bytes a second
    // Memory for blocks, kept for the next transfer.
    char *memory;
    int64_t memory_len;
};

// Control messages between the ranks 0, and from a rank 0 to its side.
enum word_kind { OFFER = 1, READY, STOP, DONE };
struct word {
    uint32_t protocol;
    int32_t kind, serial, what, ranks;
    union {
        int32_t newest;     // of OFFER and READY: the newest version
        int32_t has_digest; // of DONE
    };
    int32_t lost; // to a rank of the same side: the coupling has ended
    // `fixed`, of OFFER: the caller chose the length of pieces. `resumable`, of READY: the receiver has a part of the
    // file, with this source, length and block.
    int32_t fixed, resumable;
    int32_t holes; // of OFFER: the file has holes
    int64_t bytes, block, piece;
    double seconds, sent_seconds;
    uint8_t source[DIGEST_LEN];
    uint8_t digest[DIGEST_LEN];
    struct trouble trouble;
};

// The message that goes with each piece: the digests of its blocks.
struct record {
    int64_t serial, offset, length; // length NO_MORE: the stream ends
    int64_t hole;                   // all of it is zero, and is not sent
    struct trouble trouble;
    uint8_t digests[MAX_BLOCKS][DIGEST_LEN];
};
enum { NO_MORE = -1 };

// A rank's message to its rank 0: something failed, or all its pieces are done.
struct finished {
    int32_t over;
    int32_t kept;   // blocks are there, and recorded
    int64_t blocks; // blocks of a file that a receiver has
    struct trouble trouble;
};

// A block of a file that a receiver has.
struct got {
    int64_t index;
    uint8_t digest[DIGEST_LEN];
};

// --- couple --------------------------------------------------------------------

// The communicator of a Fortran handle.
static inline MPI_Comm communicator(int32_t handle)
{
#ifdef MPI_ABI_VERSION
    // The standard ABI has no MPI_Comm_f2c (MPI 5.0, chapter 20).
    return MPI_Comm_fromint(handle);
#else
    return MPI_Comm_f2c((MPI_Fint)handle);
#endif
}

int refuse(const char *why);
struct isthmus_mpi_coupling *new_coupling(MPI_Comm comm);
// The last part of coupling, once messages can be sent.
int settle(struct isthmus_mpi_coupling *c, isthmus_mpi_coupling **coupling);

// --- plan ----------------------------------------------------------------------

// The data between this rank and one of the other side: bytes [next, end) of an array, or the pieces of a
// file that the sender takes until it reports the end.
struct stream {
    int partner;
    int64_t next, end;
    int64_t number; // of the next piece
    int posted;     // pieces under way
    int ended;
    int64_t last;   // number of the piece that ends it
};
struct range {
    int64_t next, end;
};

// Sets bounds[i]..bounds[i + 1], rank i's share of the whole.
void bounds_of_blocks(int64_t *bounds, int ranks, int64_t bytes, int64_t block);
int streams_between(const int64_t *mine, int rank, const int64_t *theirs, int remote, struct stream *streams);
// The ranks with which this rank will exchange data, if each rank of both sides has an equal share.
int partners_of(const struct isthmus_mpi_coupling *coupling, struct stream *streams);
int64_t window_of(const struct isthmus_mpi_coupling *coupling, int64_t piece, int64_t memory);
// Gets memory for this many pieces, which the coupling keeps, or for fewer if there is not enough. Returns the number.
int64_t get_memory(struct isthmus_mpi_coupling *coupling, int64_t slots, int64_t stride);
void drop_memory(struct isthmus_mpi_coupling *coupling);
// Touches the memory that the first transfer will use, so that the transfer need not wait for it.
void warm_memory(struct isthmus_mpi_coupling *coupling);
// The length of a block, which has its own digest, for pieces of this length of a file of `bytes` bytes.
int64_t block_of(int64_t piece, int64_t bytes);
// This length, or a shorter one whose blocks divide a stripe.
int64_t piece_in_stripe(int64_t piece, int64_t stripe, int64_t bytes);
int64_t suggested_piece(const struct isthmus_mpi_coupling *coupling, int64_t bytes, int64_t storage, int64_t memory);

// --- store ---------------------------------------------------------------------

// Holes in a receiver's file: none; zeros are not written, because the file is new; or zeros become
// holes by a call, because an earlier transfer may have left other bytes.
enum { HOLES_NONE, HOLES_NEW, HOLES_AGAIN };

// The cost of a byte: elapsed time, and processor time. Seconds; 0 before the first block.
struct cost {
    double elapsed, processor;
};

// A file's descriptors through the page cache and past it, and the choice between them. The disk threads share it.
struct ways {
    int fd, direct; // direct is opened when first needed; -1: none
    int cache;      // enum isthmus_mpi_cache
    int refused;    // the file system refuses O_DIRECT, when opening or for our reads and writes
    pthread_mutex_t lock;
    struct cost cost[2];          // through the cache, and past it
    double last, block, interval; // when a block ended; averages of its bytes and of the time between two ends
    double since;                 // blocks since one went the other way
    int tried;                    // a block has gone the other way
};
void ways_begin(struct ways *ways, int fd, int cache);
// Returns 0, or -1 with errno.
int ways_end(struct ways *ways);
// As pread or pwrite. The result is short if the rest must go the other way.
ssize_t ways_act(struct ways *ways, int writes, char *memory, int64_t length, int64_t offset);

struct store {
    int is_file, writes, io;
    int fd; // -1: none
    struct ways ways;
    MPI_File file;
    char *data;     // of an array
    int64_t base;   // of the range in the file
    char path[PATH_MAX], temporary[PATH_MAX]; // temporary "": in place
    struct stat first;
    int holes;
    char journal[PATH_MAX]; // "": none
    int lock, log;          // descriptors of the journal, -1: none; rank 0 has the lock
    int had_blocks;         // at rank 0: from an earlier call
    int64_t noted_block, noted_bytes; // block and length of the journal's source; block 0: none
    uint8_t noted_source[DIGEST_LEN];
};

// At rank 0 of a receiver: creates the file under its temporary name, or opens the existing one.
void store_create(struct store *store, struct trouble *trouble);
// At every rank, after store_create.
void store_open(struct store *store, MPI_Comm local, int cache, struct trouble *trouble);
// At rank 0 of a receiver, once the length is known.
void store_reserve(struct store *store, int64_t bytes, struct trouble *trouble);
// A good length for reads according to the file system; 0: unknown.
int64_t store_size(const struct store *store);
// The file offset of the transfer's first byte.
int64_t store_base(const struct store *store);
void store_read(struct store *store, char *memory, int64_t length, int64_t offset, struct trouble *trouble);
void store_write_all(struct store *store, const char *memory, int64_t length, int64_t offset, struct trouble *trouble);
// As store_write_all, but leaves zeros out of a file with holes.
void store_write(struct store *store, const char *memory, int64_t length, int64_t offset, struct trouble *trouble);
// Whether the source has holes; below, whether these bytes are one.
int has_holes(const struct store *store);
int store_is_hole(const struct store *store, int64_t length, int64_t offset);
int is_zero(const char *memory, int64_t length);
// Notes trouble if the source has changed.
void store_unchanged(const struct store *store, struct trouble *trouble);
// At every rank; collective.
void store_close(struct store *store, int sync, struct trouble *trouble);
// At rank 0 of a receiver: gives the file its name; store_leave keeps the part for the next call, or removes it.
void store_publish(struct store *store, int sync, struct trouble *trouble);
void store_leave(struct store *store, int keep);

// --- journal -------------------------------------------------------------------

// At rank 0 of a receiver: opens and locks the journal. Returns 0 if there is none, because of trouble or a
// file system without locks.
int journal_begin(struct store *store, struct trouble *trouble);
// The descriptor of the partial file, or -1.
int journal_part(const struct store *store, struct trouble *trouble);
// At every rank, after journal_begin.
void journal_open(struct store *store);
// At rank 0: begins a new journal for this source.
void journal_renew(struct store *store, int64_t block, int64_t bytes, const uint8_t *source);
// At every rank: tells the block, length and source that the journal is about.
void journal_is_of(struct store *store, int64_t block, int64_t bytes, const uint8_t *source);
// Records that a block is there. Returns whether it succeeded.
int journal_note(const struct store *store, int64_t index, const uint8_t *digest);
// Whether a block is recorded; gives its digest.
int journal_has(const struct store *store, int64_t index, uint8_t *digest);
void journal_end(struct store *store, int keep);

// --- pool ----------------------------------------------------------------------

struct transfer;
struct greeting;
struct pool {
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    pthread_t threads[MAX_THREADS];
    int count, ends;
    int *jobs, *results; // rings of slots
    int size, jobs_at, jobs_len, results_at, results_len;
    int running; // jobs that a thread has begun
    struct transfer *transfer;
};

// Allocates the rings. Returns whether there was memory; the transfer frees it.
int pool_room(struct pool *pool, int slots);
// Starts the threads. Without any (count 0), pool_put does the job itself.
void pool_start(struct pool *pool, struct transfer *transfer, int threads);
void pool_put(struct pool *pool, int slot);
// A slot whose job is done, or -1.
int pool_take(struct pool *pool);
// Drops the jobs that have not begun, and waits for the others.
void pool_clear(struct pool *pool);
// Waits this long, or until a job is done. Nanoseconds, less than a second.
void pool_rest(struct pool *pool, int64_t most_ns);
void pool_stop(struct pool *pool);

struct slot;
// --- deal ----------------------------------------------------------------------

// Deals the pieces of a file to a sender's ranks. Each rank takes its own share first, then the rest of
// others, in ever smaller portions, so that all end at the same time. If the file lies on several storage targets
// (targets.c), each piece comes from the target with the fewest under way, and a receiver's ranks write likewise.

// A rank's message to its rank 0: it wants a piece to read; a piece has arrived, and waits to be written; a piece that
// rank 0 has given is read or written.
enum { WANTED = 1, ARRIVED, ENDED };
struct news {
    int64_t serial, kind;
    struct range piece;
};
struct grant {
    int64_t serial;
    struct range range; // empty: nothing is left
    int64_t few;        // little is left
};
struct deal {
    struct range *shares; // rank 0: what is left of each rank's
    struct range taken;   // pieces of this rank that have not begun
    struct news heard;    // at rank 0: from another rank
    int64_t left;         // at rank 0, by storage target: bytes that nobody has taken
    struct grant granted;
    int asking, few, none;
    int64_t begun, under_way, delivered; // bytes
    int64_t longest;              // length of the piece that was taken last
    double rate, looked;          // bytes a second; when it was measured
};
void deal_begin(struct transfer *t);
// Takes the next piece for a slot. Returns whether there was one.
int deal_next(struct transfer *t, struct slot *slot);
// Asks for more if it is time.
void deal_turn(struct transfer *t);
void deal_delivered(struct transfer *t, int64_t bytes);
// Handles a message: a grant, or at rank 0 the news of rank `source`.
void on_deal(struct transfer *t, int source);
// At a sender: this slot's piece is read.
void deal_read(struct transfer *t, const struct slot *slot);
// At a receiver: this slot's piece has arrived, and is to be written; below, it has been.
void deal_arrived(struct transfer *t, int index);
void deal_written(struct transfer *t, struct slot *slot);
void deal_end(struct transfer *t);

// --- targets -------------------------------------------------------------------

struct targets;
// At rank 0: finds where the file lies, for `stripe` and `target_count` of the transfer.
void targets_look(struct transfer *t, struct trouble *trouble);
// Whether pieces are read or written by storage target; the same at all ranks of a side.
int by_target(const struct transfer *t);
// At rank 0: begins the schedule. Returns the bytes that a sender's ranks will read.
int64_t targets_begin(struct transfer *t);
// The next piece for a rank; empty: none, or the rank has as many as it has disk threads.
struct range targets_take(struct transfer *t, int rank);
void targets_arrived(struct transfer *t, int rank, struct range piece);
void targets_done(struct transfer *t, int rank, struct range piece);
void targets_end(struct transfer *t);

// --- transfer ------------------------------------------------------------------

struct slot {
    char *memory;
    struct stream *stream;
    int pending;    // requests under way: data and record
    int64_t number; // among those of its stream
    int64_t offset, length, received;
    int waits, given; // at a receiver by storage target: until rank 0 gives the piece; since then
    struct record record;
    struct trouble trouble;
};

struct transfer {
    struct isthmus_mpi_coupling *c;
    struct isthmus_mpi_options options;
    struct store store;
    struct greeting *said;
    int sends, what;
    int64_t bytes, block, piece; // a piece is read, sent and written in one; a block has a digest
    int64_t *mine, *theirs;      // bounds
    struct stream *streams;
    int stream_count, turn;
    int open;                    // streams that have not ended
    int active, reading;         // slots in use; slots with a disk job
    struct deal deal;
    struct targets *targets; // at rank 0, of a file
    int64_t stripe;          // of the file on its storage; 0: unknown
    int target_count;        // storage targets; 0: unknown, or only one
    unsigned char *have; // a bit for each block of the file: it is there already
    int64_t resumed;     // bytes of these
    atomic_int kept;     // blocks are there, and noted
    struct word offer, ready; // the first words of both sides
    struct slot *slots;
    int count, unused_count;
    int *unused;
    // Slot i has the requests 2 i (data), 2 i + 1 (record) and 2 count + i (file). The requests of words.c follow.
    MPI_Request *requests;
    MPI_Status *statuses;
    int *ended;
    struct word from_other, from_root;
    struct finished from_rank;
    struct pool pool;
    uint8_t *digests; // at rank 0 of a receiver: digests of all blocks
    struct got *got;  // the blocks of this rank
    int64_t got_count, got_room, got_all;
    struct trouble trouble;
    int trouble_rank;
    int finished; // other ranks of this side that have reported their end
    int stopped;  // the rest is sent without data
    int told_stop, lost, gathering, gathered, reported, other_done, over;
    double began, sent;
    struct word verdict;
};

// blocks.c
void slot_job(struct transfer *t, int slot); // the job of a disk thread
void move_blocks(struct transfer *t);        // moves all blocks, until the last word
int whole_digest(const struct transfer *t);
// Computes the digests of the blocks of a slot's piece.
void digest_of(const struct transfer *t, const struct slot *slot, uint8_t digests[][DIGEST_LEN]);
// Keeps the digests of blocks that this rank has.
void keep_digests(struct transfer *t, int64_t offset, int64_t length, uint8_t digests[][DIGEST_LEN]);

// resume.c
void source_of(const struct transfer *t, uint8_t *source);
// The block length of the part that can be continued; 0: none can.
int64_t resumed_block(const struct word *offer, const struct word *ready);
int64_t blocks_in(const struct transfer *t, int64_t bytes);
int is_had(const struct transfer *t, int64_t offset);
// Called by all ranks of both sides. Returns 0 if the other application is lost.
int agree_on_had(struct transfer *t);

// words.c
int word_request(const struct transfer *t);
int local_request(const struct transfer *t);
int barrier_request(const struct transfer *t);
int deal_request(const struct transfer *t);
int requests_of(const struct transfer *t);
struct word word_of(const struct transfer *t, int kind);
void words_listen(struct transfer *t);
void other_listen(struct transfer *t);
void on_word(struct transfer *t);
void on_local(struct transfer *t, int source);
void words_turn(struct transfer *t);
void fail(struct transfer *t, const struct trouble *trouble, int rank);
// The same for a failure of this rank.
void fail_here(struct transfer *t, struct trouble *trouble);
void lose(struct transfer *t, int error);
int is_kept(const struct transfer *t);

// version.c
// The newest version that both speak; 0: none.
int32_t common_version(const struct word *own, const struct word *heard);

// greeting.c
// A rank's report to its side.
struct share {
    int64_t bytes; // of its file, of its part of the array
    int64_t failed;
};
// The first messages of rank 0, while they are under way.
struct greeting {
    struct word word;
    MPI_Request requests[2];
    int64_t counts[];
};
void end_greeting(struct transfer *t);
void greet(struct transfer *t, const struct share *shares, int64_t *counts, struct word *heard);
int is_on(struct transfer *t, const struct word *heard);

// The arguments of rank 0's call, for all ranks of its side.
struct opening {
    struct isthmus_mpi_options options;
    int64_t offset, length;
    int64_t stripe;
    int target_count;
    char path[PATH_MAX], temporary[PATH_MAX], journal[PATH_MAX];
    struct trouble trouble;
};

// transfer.c
// One attempt. Frees both arguments. `began` is the time of the first attempt, or 0.
int transfer(struct transfer *t, struct opening *opening, int64_t bytes, struct isthmus_mpi_report *report, double began);
void bcast(const struct transfer *t, void *data, int64_t bytes, int root);
void sign(const struct transfer *t, struct trouble *trouble);

#endif
