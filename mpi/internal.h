// What the files of this folder share.
//
//   couple.c    two applications come together by their MPI, and part; meet.c without a common MPI
//   exchange.c  messages between the two sides, whatever carries them; link.c, matching.c by the substrate
//   messages.c  messages of the program
//   calls.c     what programs call
//   transfer.c  a transfer, from the opening to the report; greeting.c what both sides say first
//   blocks.c    the loop that moves blocks; words.c what is said meanwhile
//   plan.c      which rank sends what to which, and with how much memory; deal.c who of a sender's ranks takes which piece of a file
//   store.c     files, by POSIX and MPI-IO; cache.c through the page cache or past it; holes.c those with holes;
//               pool.c the disk threads
//   version.c   which version of the protocol two builds speak
//   journal.c   what is there of a file that is not whole; resume.c how both sides go on with it
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

// What the first words begin with: "ISM", and the oldest version that is spoken. OFFER and READY also say the newest
// (`newest`), and both sides speak the newest of both. The first release knew version 4 only, and left `newest` 0.
enum { PROTOCOL = 0x49534d30, OLDEST = 4, NEWEST = 4 };
enum { DIGEST_LEN = 32, MAX_THREADS = 16, REST_NS = 50000, REST_MOST_NS = 400000, MAX_BLOCKS = 64 };
// The longest rest where more threads want to run than there are processors, and how long that answer is valid.
enum { CROWDED_REST_NS = 3200000, CROWD_NS = 20000000 };
enum { TAG_WORD = 1, TAG_COUNTS, TAG_DATA, TAG_RECORD, TAG_PING, TAG_FINISHED, TAG_DIGESTS, TAG_HAD, TAG_ASK, TAG_GRANT };
enum { KIND_FILE = 1, KIND_ARRAY };
// Of a block that is sent without its data, since something failed elsewhere.
enum { STOPPED = 100 };
// Of shorter ones each costs more than its bytes.
#define MIN_BLOCK ((int64_t)4 << 10)
#define MAX_BLOCK ((int64_t)1 << 30)
#define KIB ((int64_t)1 << 10)
#define MIB ((int64_t)1 << 20)

// What went wrong first; code 0: nothing.
struct trouble {
    int32_t code;
    char text[316];
};

__attribute__((format(printf, 3, 4))) void note(struct trouble *trouble, int code, const char *format, ...);
// Of the system: ENOSPC and EDQUOT are ISTHMUS_MPI_SPACE.
__attribute__((format(printf, 3, 4))) void note_errno(struct trouble *trouble, int error, const char *format, ...);
__attribute__((format(printf, 3, 4))) void note_mpi(struct trouble *trouble, int error, const char *format, ...);
// Keeps the text for isthmus_mpi_last_error; the code.
int tell(const struct trouble *trouble);

double now_s(void);
// The waits of an MPI spin; ours leave the processor to who has something to do.
void rest(int64_t ns);
// The rest after one of `rest_ns` that brought nothing: twice as long, up to REST_MOST_NS or CROWDED_REST_NS.
int64_t longer_rest(int64_t rest_ns);
// Waits for a request, resting. The MPI's code.
int await(MPI_Request *request);

// Errors of requests come to some MPIs' handler of the world or of the process itself, which
// ends the program. During our calls they are returned.
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
    int disconnects; // the inter-communicator is of two jobs
    int lost;
    int32_t serial;  // of the next transfer
    double rtt_s;    // between the ranks 0
    double rate;     // of the transfer before; bytes a second
    // Blocks' memory, kept for the next transfer.
    char *memory;
    int64_t memory_len;
};

// Said by ranks 0 to each other, and by a rank 0 to its side.
enum word_kind { OFFER = 1, READY, STOP, DONE };
struct word {
    uint32_t protocol;
    int32_t kind, serial, what, ranks;
    union {
        int32_t newest;     // of OFFER and READY: the newest version
        int32_t has_digest; // of DONE
    };
    int32_t lost; // to a rank of the same side: the coupling is over
    // Of an offer: the piece is as the caller wants it. Of who is ready: there is a part of a file, of
    // this source, length and block.
    int32_t fixed, resumable;
    int32_t holes; // of an offer: the file has some
    int64_t bytes, block, piece;
    double seconds, sent_seconds;
    uint8_t source[DIGEST_LEN];
    uint8_t digest[DIGEST_LEN];
    struct trouble trouble;
};

// Beside each piece: the digests of its blocks.
struct record {
    int64_t serial, offset, length; // length NO_MORE: the stream ends
    int64_t hole;                   // all of it is zero, and does not come
    struct trouble trouble;
    uint8_t digests[MAX_BLOCKS][DIGEST_LEN];
};
enum { NO_MORE = -1 };

// A rank to its rank 0: something failed, or its pieces are all done.
struct finished {
    int32_t over;
    int32_t kept;   // blocks that are there, and noted
    int64_t blocks; // of a file that a receiver has
    struct trouble trouble;
};

// A block of a file that a receiver has.
struct got {
    int64_t index;
    uint8_t digest[DIGEST_LEN];
};

// --- couple --------------------------------------------------------------------

// A communicator by its handle in Fortran.
static inline MPI_Comm communicator(int32_t handle)
{
#ifdef MPI_ABI_VERSION
    // In place of MPI_Comm_f2c, which the standard ABI leaves out (MPI 5.0, chapter 20).
    return MPI_Comm_fromint(handle);
#else
    return MPI_Comm_f2c((MPI_Fint)handle);
#endif
}

int refuse(const char *why);
struct isthmus_mpi_coupling *new_coupling(MPI_Comm comm);
// The last part of coupling, when messages can go.
int settle(struct isthmus_mpi_coupling *c, isthmus_mpi_coupling **coupling);

// --- plan ----------------------------------------------------------------------

// What goes between this rank and one of the other side. Of an array [next, end) of the whole; of a
// file what the sender takes, piece by piece, until it says that there is no more.
struct stream {
    int partner;
    int64_t next, end;
    int64_t number; // of the next piece
    int posted;     // pieces under way
    int ended;
    int64_t last;   // number of the word that ends it
};
struct range {
    int64_t next, end;
};

// bounds[i]..bounds[i + 1] is rank i's share of the whole.
void bounds_of_blocks(int64_t *bounds, int ranks, int64_t bytes, int64_t block);
int streams_between(const int64_t *mine, int rank, const int64_t *theirs, int remote, struct stream *streams);
// The ranks that a rank has to do with, whatever goes: as if each rank of both sides had as much.
int partners_of(const struct isthmus_mpi_coupling *coupling, struct stream *streams);
int64_t window_of(const struct isthmus_mpi_coupling *coupling, int64_t piece, int64_t memory);
// Memory for so many pieces, kept by the coupling; less of it where there is not as much. For how many.
int64_t get_memory(struct isthmus_mpi_coupling *coupling, int64_t slots, int64_t stride);
void drop_memory(struct isthmus_mpi_coupling *coupling);
// What a first transfer will use, so that it need not be made ready then.
void warm_memory(struct isthmus_mpi_coupling *coupling);
// What has a digest of its own in pieces of this length of a file of so many bytes.
int64_t block_of(int64_t piece, int64_t bytes);
// The length of a stripe by Lustre's attribute of a file; 0: it says nothing.
int64_t stripe_of(const uint8_t *layout, int64_t length);
int64_t suggested_piece(const struct isthmus_mpi_coupling *coupling, int64_t bytes, int64_t storage, int64_t memory);

// --- store ---------------------------------------------------------------------

// What a receiver's file has of holes: none, or what is zero is not written, for the file is new; or a
// hole is made of it, for an earlier call may have left something else.
enum { HOLES_NONE, HOLES_NEW, HOLES_AGAIN };

// What a byte takes, and of that the processor's part. Seconds; 0 before the first block.
struct cost {
    double elapsed, processor;
};

// How a file is read or written by POSIX; of its own lock, for the disk threads share it.
struct ways {
    int fd, direct; // direct is opened when first needed; -1: none
    int cache;      // enum isthmus_mpi_cache
    int refused;    // the file system takes no such reads or writes as ours past the cache, or no opening
    pthread_mutex_t lock;
    struct cost cost[2];          // through the cache, and past it
    double last, block, interval; // when a block ended; of lately, their bytes and what lies between two ends
    double since;                 // blocks since one went the other way
    int tried;                    // one has
};
void ways_begin(struct ways *ways, int fd, int cache);
// 0, or -1 with errno.
int ways_end(struct ways *ways);
// As pread or pwrite; short where the rest has to go another way.
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
    int lock, log;          // of the journal, -1: none; the lock is rank 0's
    int had_blocks;         // rank 0: of a call before
    int64_t noted_block, noted_bytes; // what it is about; block 0: nothing
    uint8_t noted_source[DIGEST_LEN];
};

// Rank 0 of a receiver: the file under its temporary name, or the one in place.
void store_create(struct store *store, struct trouble *trouble);
// Every rank, after that.
void store_open(struct store *store, MPI_Comm local, int cache, struct trouble *trouble);
// Rank 0 of a receiver, when the length is known.
void store_reserve(struct store *store, int64_t bytes, struct trouble *trouble);
// What the file system calls a good size to read, a stripe; 0: nothing.
int64_t store_size(const struct store *store);
void store_read(struct store *store, char *memory, int64_t length, int64_t offset, struct trouble *trouble);
void store_write_all(struct store *store, const char *memory, int64_t length, int64_t offset, struct trouble *trouble);
// The same, where a file with holes gets no zeros.
void store_write(struct store *store, const char *memory, int64_t length, int64_t offset, struct trouble *trouble);
// Whether what is sent has holes, and whether these bytes of it are one.
int has_holes(const struct store *store);
int store_is_hole(const struct store *store, int64_t length, int64_t offset);
int is_zero(const char *memory, int64_t length);
// Whether the source is what it was.
void store_unchanged(const struct store *store, struct trouble *trouble);
// Every rank; collective.
void store_close(struct store *store, int sync, struct trouble *trouble);
// Rank 0 of a receiver: the name; else what is there is kept, or no trace.
void store_publish(struct store *store, int sync, struct trouble *trouble);
void store_leave(struct store *store, int keep);

// --- journal -------------------------------------------------------------------

// Rank 0 of a receiver: the journal, which nobody else has. 0: none, where there is trouble or the
// file system has no locks.
int journal_begin(struct store *store, struct trouble *trouble);
// The part's descriptor, or -1.
int journal_part(const struct store *store, struct trouble *trouble);
// Every rank, after that.
void journal_open(struct store *store);
// Rank 0: all anew, of this.
void journal_renew(struct store *store, int64_t block, int64_t bytes, const uint8_t *source);
// Every rank: what it is about.
void journal_is_of(struct store *store, int64_t block, int64_t bytes, const uint8_t *source);
// Notes that a block is there. Whether it could.
int journal_note(const struct store *store, int64_t index, const uint8_t *digest);
// Whether a block is noted, and its digest.
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
    struct transfer *transfer;
};

// Whether there is memory for it; the transfer frees it.
int pool_room(struct pool *pool, int slots);
// Without a thread (count 0) a job is done as it is put.
void pool_start(struct pool *pool, struct transfer *transfer, int threads);
void pool_put(struct pool *pool, int slot);
// A slot whose job is done, or -1.
int pool_take(struct pool *pool);
// Waits so long, or until a job is done. Nanoseconds, less than a second.
void pool_rest(struct pool *pool, int64_t most_ns);
void pool_stop(struct pool *pool);

struct slot;
// --- deal ----------------------------------------------------------------------

// Who of a sender's ranks takes which piece of a file: each from its own share first, then from what
// others have left, in ever smaller portions, so that all end at the same time.
struct grant {
    int64_t serial;
    struct range range; // empty: nothing is left
    int64_t few;        // little is left
};
struct deal {
    struct range *shares; // rank 0: what is left of each rank's
    struct range taken;   // this rank's, not begun
    int64_t asked;        // the word of who asks: its transfer's serial
    struct grant granted;
    int asking, few, none;
    int64_t begun, under_way, delivered; // bytes
    int64_t longest;              // piece of what was taken last
    double rate, looked;          // bytes a second; when
};
void deal_begin(struct transfer *t);
// Takes what is next for a slot. Whether there was something.
int deal_next(struct transfer *t, struct slot *slot);
// Asks for more where it is time.
void deal_turn(struct transfer *t);
void deal_delivered(struct transfer *t, int64_t bytes);
// A word came: at rank 0 of who asks.
void on_deal(struct transfer *t, int source);
void deal_end(struct transfer *t);

// --- transfer ------------------------------------------------------------------

struct slot {
    char *memory;
    struct stream *stream;
    int pending;    // requests under way: data and record
    int64_t number; // among those of its stream
    int64_t offset, length, received;
    struct record record;
    struct trouble trouble;
};

struct transfer {
    struct isthmus_mpi_coupling *c;
    struct isthmus_mpi_options options;
    struct store store;
    struct greeting *said;
    int sends, what;
    int64_t bytes, block, piece; // a piece is read, sent and written at once, a block has a digest
    int64_t *mine, *theirs;      // bounds
    struct stream *streams;
    int stream_count, turn;
    int open;                    // streams that have not ended
    int active, reading;         // slots in use; of them with a disk
    struct deal deal;
    unsigned char *have; // a bit for each block of the file: it is there already
    int64_t resumed;     // bytes of these
    atomic_int kept;     // blocks are there, and noted
    struct word offer, ready; // what both sides said first
    struct slot *slots;
    int count, unused_count;
    int *unused;
    // Of slot i: 2 i its data, 2 i + 1 its record, 2 count + i its file's; then words.c's.
    MPI_Request *requests;
    MPI_Status *statuses;
    int *ended;
    struct word from_other, from_root;
    struct finished from_rank;
    struct pool pool;
    uint8_t *digests; // rank 0 of a receiver: of all blocks
    struct got *got;  // of this rank's
    int64_t got_count, got_room, got_all;
    struct trouble trouble;
    int trouble_rank;
    int finished; // of the other ranks of this side
    int stopped;  // what is left goes without data
    int told_stop, lost, gathering, gathered, reported, other_done, over;
    double began, sent;
    struct word verdict;
};

// blocks.c
void slot_job(struct transfer *t, int slot); // what a disk thread does
void move_blocks(struct transfer *t);        // all, until the last word
int whole_digest(const struct transfer *t);
// Of the blocks of a slot's piece, one after the other.
void digest_of(const struct transfer *t, const struct slot *slot, uint8_t digests[][DIGEST_LEN]);
// This rank has these blocks of a file.
void keep_digests(struct transfer *t, int64_t offset, int64_t length, uint8_t digests[][DIGEST_LEN]);

// resume.c
void source_of(const struct transfer *t, uint8_t *source);
// The block of what is there and can be continued; 0: nothing can.
int64_t resumed_block(const struct word *offer, const struct word *ready);
int64_t blocks_in(const struct transfer *t, int64_t bytes);
int is_had(const struct transfer *t, int64_t offset);
// All ranks of both sides; 0 where the other application is lost.
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
// The same of what happened at this rank.
void fail_here(struct transfer *t, struct trouble *trouble);
void lose(struct transfer *t, int error);
int is_kept(const struct transfer *t);

// version.c
// The newest version that both speak; 0: none.
int32_t common_version(const struct word *own, const struct word *heard);

// greeting.c
// What each rank of a side has to say of itself.
struct share {
    int64_t bytes; // of its file, of its part of the array
    int64_t failed;
};
// What rank 0 says first, while it is under way.
struct greeting {
    struct word word;
    MPI_Request requests[2];
    int64_t counts[];
};
void end_greeting(struct transfer *t);
void greet(struct transfer *t, const struct share *shares, int64_t *counts, struct word *heard);
int is_on(struct transfer *t, const struct word *heard);

// What rank 0 was called with, for all of its side.
struct opening {
    struct isthmus_mpi_options options;
    int64_t offset, length;
    char path[PATH_MAX], temporary[PATH_MAX], journal[PATH_MAX];
    struct trouble trouble;
};

// transfer.c
// One attempt; frees both. `began`: when the first was, or 0.
int transfer(struct transfer *t, struct opening *opening, int64_t bytes, struct isthmus_mpi_report *report, double began);
void bcast(const struct transfer *t, void *data, int64_t bytes, int root);
void sign(const struct transfer *t, struct trouble *trouble);

#endif
