// Types and functions that the files of this folder share: a library that unmodified MPI programs load by LD_PRELOAD.
// Its collectives send each byte across each wide link once.
//
//   calls.c     the MPI functions that programs call; each is run here or left to the MPI
//   fortran.c   the same for Fortran, for MPIs whose Fortran calls bypass the C functions
//   mpis.h      differences of the MPIs
//   settings.c  the environment
//   sites.c     finds the ranks of each site
//   plan.c      the state of each communicator
//   model.c     chooses the algorithm by its estimated cost
//   rate.c      measures the rate of the links between sites
//   flow.c      messages under way
//   datatypes.c packing, copies, reduction by an operation
//   nonblocking.c   flows that go on after the call that started them
//   persistent.c    flows that the program starts again and again
//   kept.c      what the program frees while flows still use it
//   move.c      Barrier, Bcast, Gather, Scatter, Allgather, Alltoall
//   reduce.c    Reduce, Allreduce, Reduce_scatter, Scan, Exscan
//   windows.c   epochs of MPI_Win_fence
//
// The far half of each algorithm is the one of MagPIe (Kielmann et al., PPoPP 1999) and MPICH-G2 (Karonis et al., IPDPS
// 2000): every site sends its data to every other site directly and at once, so that a collective takes one wide
// latency. Long vectors are cut into segments that all ranks of a site send in parallel.
//
// Three rules hold everywhere:
// - All ranks choose alike. A choice depends on arguments that MPI requires to be the same on all ranks, and on the plan,
//   whose settings are rank 0's.
// - No rank waits for a message before it has posted all receives that do not depend on it and started all sends that it
//   can start. Each function says why the order "A waits for B" has no cycle.
// - Messages go over communicators of our own, so that they never meet the program's.
#ifndef ISTHMUS_COLLECTIVES_INTERNAL_H
#define ISTHMUS_COLLECTIVES_INTERNAL_H

#include "mpis.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

// The result of a function that leaves the call to the MPI.
enum { LEAVE = -1 };

enum operation {
    BARRIER, BCAST, REDUCE, ALLREDUCE, GATHER, GATHERV, SCATTER, SCATTERV, ALLGATHER, ALLTOALL, ALLTOALLV, ALLTOALLW,
    REDUCE_SCATTER, SCAN, EXSCAN, OPERATIONS
};
// AUTO as a pin only: the model chooses.
enum algorithm { AUTO, MPI, LEADERS, PARALLEL, ALGORITHMS };

// COUNTS: at the end, how often each algorithm ran. EACH_CALL: also a line for each call.
enum { QUIET, COUNTS, EACH_CALL };

// The parameters of the model. Every rank of a communicator has rank 0's.
struct settings {
    double rtt_s;       // the longest round trip between two sites; 0: to be measured
    double rate;        // bytes a second across the link of a site
    double pair_rate;   // most that one rank alone sends across; 0: rate
    double near_s;      // a message within a site, one way; 0: to be measured
    double near_rate;   // bytes a second between two ranks of a site; 0: to be measured
    int64_t detach;     // most bytes of sends that outlive their collective; -1: chosen by the library
    double far_s;       // ranks are of two sites from this measured round trip on
    int64_t segment;    // length of segments, bytes; 0: chosen by the library
    int32_t pins[OPERATIONS];
    int32_t trace; // QUIET, or what is printed
    int32_t nonblocking; // whether non-blocking collectives are run here
    int32_t persistent;  // whether persistent collectives are run here
    int32_t combines;    // whether all ranks can call MPI_Reduce_local
    int32_t reproducible; // whether reductions have the same bits by whichever algorithm
    int32_t windows;      // whether epochs of MPI_Win_fence are aggregated here
    int32_t measures, measures_pair; // whether `rate` and `pair_rate` are measured while the program runs
};

// This rank's own settings, read once.
const struct settings *own_settings(void);
// Reads pins such as "allreduce:leaders,bcast:mpi"; "all" is every collective. NULL changes nothing. `where` they are
// said is for the error.
void read_pins(const char *where, const char *text, int32_t *pins);
const char *operation_name(enum operation operation);
const char *algorithm_name(enum algorithm algorithm);
// Reports a fault of the environment, and ends the program.
__attribute__((noreturn, format(printf, 1, 2))) void refuse(const char *format, ...);

// --- sites ---------------------------------------------------------------------

// The site of each rank, numbered from 0 in the order of their lowest ranks.
struct map {
    int sites;
    int *site_of;
    struct settings settings;
};
// At MPI_Init: finds the sites of the world, for all communicators within it.
void discover_world(void);
// Whether there is an MPI_COMM_WORLD: programs that use sessions only have none.
int has_world(void);
#if SESSIONS
// Learns this rank's number among all ranks of the job.
void discover_session(MPI_Session session);
int own_number_of_session(void);
#endif
// Keeps the measurements of the world, for communicators within it.
void keep_measured(const struct settings *settings);
// Keeps a rate that was measured later, as the first guess for communicators to come.
void keep_rate(const struct settings *settings);
void forget_world(void);
// The settings that the world's ranks agreed on, without messages. Returns 0 if some ranks of comm are not in this world. All
// ranks of comm get the same.
int world_settings_of(MPI_Comm comm, struct settings *settings);
// Finds the sites of a communicator. Collective over comm. Returns 0 or an MPI error.
int map_of(MPI_Comm comm, int rank, int ranks, struct map *map);

// --- plan ----------------------------------------------------------------------

// What rate.c knows of a communicator. Arrays are by call modulo RATE_WINDOW; 0: no sample.
enum { RATE_WINDOW = 16 };
struct rate {
    unsigned long calls, next_exchange; // long calls so far, and the one at which samples are exchanged next
    int64_t bytes[RATE_WINDOW], span_ns[RATE_WINDOW]; // received by this rank, and the time that it took
    int of_one[RATE_WINDOW], exchanged_of_one[RATE_WINDOW]; // whether one rank sent everything
    int64_t *row;              // bytes a second received by each site: RATE_WINDOW for each; NULL: nothing is measured
    MPI_Request *requests;     // between leaders
    int under_way, exchanging;
    int counting;              // the blocking collective that runs is a long one
    int unseen;                // exchanges since one rank's rate was seen last
};

// Communicators of persistent collectives. Each of these collectives has tags of its own on one channel, from its
// initialization until its request is freed.
struct channel {
    MPI_Comm far; // all ranks of the plan
    MPI_Comm own; // this rank alone: the program's requests are receives on it
    MPI_Errhandler teller; // for `own`: passes an error to the program's error handler
    int next_tag; // the same on all ranks
    int live;     // this rank's requests, and those that have failed; by the lock of persistent.c
};
// Most channels of a communicator. Count. With MPICH's number of tags one serves 87,000 long vectors. Further ones are for
// programs that make persistent collectives all the time, while an early one stays.
enum { CHANNELS_MAX = 4 };

struct plan {
    MPI_Comm comm; // the program's, for its error handler
    MPI_Comm far;  // all its ranks, with the same numbers
    MPI_Comm near; // the ranks of this site, in the order of comm
    MPI_Comm self; // this rank alone, to let the MPI check arguments
    int rank, ranks;
    int sites, site;
    int spot;      // the rank in near
    int *site_of, *spot_of; // by rank
    int *first;    // site X has the members first[X] .. first[X + 1] - 1
    int *members;  // ranks, by site and within it in order
    int blocks;    // each site is one run of ranks, so folding site by site keeps the order of ranks
    atomic_int broken; // a collective failed (flow_fail): the MPI runs all further ones
    int tags;     // blocking collectives use those below, non-blocking ones as many from there on
    int next_tag; // of non-blocking ones, above `tags`
    atomic_int flows;      // of non-blocking collectives that have not ended
    int64_t detached_most; // bytes
    _Atomic int64_t detached_bytes;
    struct detached *detached;
    struct channel channels[CHANNELS_MAX];
    int channel_count, channel; // how many are made; the one that gives tags
    struct rate rate;
    struct settings settings;
};
// The plan of a communicator. NULL if its calls are left to the MPI, for example because it lies within one site.
struct plan *plan_of(MPI_Comm comm);
// The same for non-blocking calls. Making a plan would wait for other ranks, so NULL before the first blocking collective.
struct plan *made_plan_of(MPI_Comm comm);
// Makes a communicator of this rank alone; errors on it are returned. Returns 0 or an MPI error.
int make_own(struct plan *plan, MPI_Comm *own);
// Deletes the plans of the world and of self while MPI still works.
void drop_plans(void);
// The last session ends: the next one needs another attribute.
void forget_keyval(void);

static inline int size_of(const struct plan *plan, int site) { return plan->first[site + 1] - plan->first[site]; }
static inline int member(const struct plan *plan, int site, int spot) { return plan->members[plan->first[site] + spot]; }
// The rank that acts for a site: the root in its own site, or else the first member.
static inline int leader_of(const struct plan *plan, int site, int root)
{
    return root >= 0 && plan->site_of[root] == site ? root : member(plan, site, 0);
}

// --- model ---------------------------------------------------------------------

// A collective that goes on after the call. `later` is NULL for blocking ones.
struct later {
    MPI_Request *request;          // where the program wants the request of a non-blocking one
    struct persistent *persistent; // else: the persistent one that is made or started
};

// The bytes that a collective moves: across a wide link, and within a site by a leader or by each rank in parallel.
struct load {
    double across;        // through the link of a site, one way
    double leader_near;   // copied by a leader, one copy after the other
    double parallel_near; // sent by each rank
    int messages;         // of each rank, if all work side by side
    int64_t parts;        // of these bytes that move one after the other in parallel; 1: nothing overlaps
    int leaders_can, parallel_can;
    const struct later *later; // if it goes on, leaders cannot: they wait within
    int64_t tags;         // of a flow that runs it in parallel; too many: it cannot
    int any_length;       // of the vector: leaders need no more memory than their own vector
};
enum algorithm choose(struct plan *plan, enum operation operation, int64_t bytes, struct load load);
// Prints how often each algorithm was chosen, and why.
void print_counts(void);
// The length of segments of a vector of this many bytes. Bytes.
int64_t segment_of(const struct plan *plan, int64_t bytes);

// --- rate ----------------------------------------------------------------------

// Begins to measure for a communicator, unless the rate is set. Returns 0 or an MPI error.
int make_rate(struct plan *plan);
void free_rate(struct plan *plan);
// A blocking collective of this many bytes begins; 0: it is left to the MPI. At some of the long ones all ranks take what
// was measured.
void count_call(struct plan *plan, int64_t bytes);
// One rank sends everything across in the collective that runs.
void sent_by_one(struct plan *plan);
// Arrivals of a flow from one site. The first segment is in no sum.
struct arrivals {
    int count;
    int64_t bytes;
    double first_s, last_s;
};
struct flow;
// Begins to time the far segments of a flow: their arrivals by site, or NULL if nothing is measured.
struct arrivals *arrivals_of(struct flow *flow);
void arrived(struct flow *flow, int site, int64_t bytes, double now_s);
void take_sample(struct flow *flow);

// --- flow ----------------------------------------------------------------------

// Far sends that outlive their collective. MPI completes a long send when its acknowledgement is back, and a collective
// that waited for it would take a whole round trip. So data for other sites are sent from our own memory, and later
// collectives of the communicator check whether they have arrived. This is done only with a provider that moves data by
// itself. Otherwise the data would wait for the program's next call.
struct detached {
    struct detached *next;
    MPI_Request *requests;
    int count;
    int64_t bytes;
    void **memory;
    int blocks;
};
// Limit on the bytes of such sends: as many as are copied in the time that they save.
int64_t detached_most(const struct settings *settings);
// Frees the sends that have arrived. With `wait`, waits for all and frees them.
void reap(struct plan *plan, int wait);

// MPI_Waitall and MPI_Testall for requests of our own communicators. Errors are returned, whatever the program's error
// handlers.
int wait_for_all(int count, MPI_Request *requests);
int test_all(int count, MPI_Request *requests, int *all);
// The error handler of a communicator, as the program knows it, whatever such a call has set meanwhile.
int set_handler(MPI_Comm comm, MPI_Errhandler handler);
int get_handler(MPI_Comm comm, MPI_Errhandler *handler);

// Messages under way. At the end of each a function may be called, which may start further messages.
typedef void follow(struct flow *flow, void *what, int64_t index);
struct under_way {
    follow *then;
    void *what;
    int64_t index;
    int from, tag;     // of a receive; a send has from -1
    MPI_Count count;   // of a receive
    MPI_Datatype type;
    int64_t far_bytes; // of a far segment that is timed, else 0
    int far_site;
    int diverted;      // after an error: it is complete, or another receive has taken its place
};
struct flow {
    struct plan *plan;
    MPI_Comm comm; // for its messages
    int error; // the first
    int count, room, live;
    MPI_Request *requests;
    struct under_way *under_way;
    struct under_way *ended; // this and the next two: for flow_step
    int *places;
    MPI_Status *statuses;
    void **memory; // freed at the end
    int blocks, block_room;
    MPI_Request *detached;
    int detached_count, detached_room;
    int64_t detached_bytes;
    struct arrivals *arrivals; // NULL: they are not timed
    double began_s;
    int tag, tags; // the first is added to the tags of all messages
    // Of a non-blocking collective:
    MPI_Request *request;    // where the program wants the request
    MPI_Request promise;     // the request
    struct persistent *persistent; // or whose start this is; then there is no request of its own
    int *outcome;            // its error, read by the MPI
    int kept;                // the request is complete; only detached sends are under way
    int diverting;           // after an error: its receives are cancelled
    follow *end;
    void *end_what;
    unsigned long number;
    struct flow *next;
};
static inline int goes_on(const struct flow *flow) { return flow->request || flow->persistent; }
// Begins a flow. If it goes on after the call, it has so many tags of its own; else it is `here`.
struct flow *flow_begin(struct flow *here, struct plan *plan, const struct later *later, int64_t tags);
void flow_fail(struct flow *flow, int error);
// Allocates memory that lasts until the flow has ended. Returns NULL after an error.
void *flow_memory(struct flow *flow, int64_t bytes);
void flow_send(struct flow *flow, const void *data, MPI_Count count, MPI_Datatype type, int to, int tag, follow *then, void *what, int64_t index);
// The same, from memory of the flow that nobody writes to any more.
void flow_send_kept(struct flow *flow, const void *data, MPI_Count count, MPI_Datatype type, int to, int tag);
void flow_receive(struct flow *flow, void *data, MPI_Count count, MPI_Datatype type, int from, int tag, follow *then, void *what, int64_t index);
// Continues after messages that have ended: waits for one, or looks, or looks from the progress hook.
enum patience { WAIT, LOOK, IN_HOOK };
void flow_step(struct flow *flow, enum patience patience);
// Waits until all messages are complete, or one fails.
void flow_wait(struct flow *flow);
// Waits, calls `end` unless there was an error, and frees the flow. Returns its error. If the flow goes on, it returns
// at once, and all this happens later.
int flow_end(struct flow *flow, follow *end, void *what);
// Makes detached sends messages of the flow that nothing follows.
void flow_adopt_detached(struct flow *flow);
// After an error in a flow that goes on: cancels its receives, as flow_end does for others, but does not wait. Returns
// whether any may still write to the program's memory; then it must be called again.
int flow_divert(struct flow *flow);
void flow_free(struct flow *flow);

// --- non-blocking --------------------------------------------------------------

// Whether the MPI here calls a function of ours whenever it makes progress.
int has_progress_hook(void);
// Lets a flow go on whenever the MPI makes progress, and makes its request. Returns 0 or an MPI error.
int go_on_later(struct flow *flow, follow *end, void *what);
// MPI_Testsome for the progress hook.
int test_in_hook(int count, MPI_Request *requests, int *done, int *places, MPI_Status *statuses);
// Takes tags that no flow of this plan uses. Returns the first.
int reserve_tags(struct plan *plan, int tags);
// Waits until all flows of a plan have ended.
void wait_for_flows(const struct plan *plan);
// The same for all flows; then the MPI calls us no more.
void end_flows(void);
// How many flows have begun. Flows that go on are numbered in this order.
unsigned long flows_begun(void);
// All flows with lower numbers have ended.
unsigned long flows_ended(void);

// --- persistent ----------------------------------------------------------------

// What a persistent collective was given. Which of them count depends on the collective. Arrays that do not are NULL.
struct arguments {
    const void *from;
    void *to;
    MPI_Count count, to_count;
    MPI_Datatype type, to_type;
    const void *counts, *displs, *to_counts, *to_displs, *types, *to_types;
    size_t count_size, displ_size; // of an element of these arrays, bytes
    MPI_Op op;
    int root;
};
// Runs one with these arguments, as a function of a collective below.
typedef int starter(struct plan *plan, const struct later *later, const struct arguments *arguments);
struct persistent;
// Makes a request for the program. Returns 0, an MPI error, or LEAVE.
int make_persistent(struct plan *plan, starter *start, const struct arguments *arguments, MPI_Request *request);
// The settings by which a collective chooses. A persistent one keeps those of its initialization, so that all ranks
// choose alike in whatever order they start.
const struct settings *settings_of(const struct plan *plan, const struct later *later);
// Whether a persistent collective is being started, so that its arguments have been checked before.
int is_start(const struct later *later);
// If a persistent collective is being made, notes how many tags it takes (0: it is left to the MPI). Returns whether it is
// being made, so that nothing must run.
int note_choice(const struct later *later, int64_t tags);
// Gives a flow the communicator and the tags of the persistent collective that it runs.
void take_tags(struct flow *flow);
// The flow has ended.
void end_of_start(struct persistent *one, int error);
// The plan is about to be freed: frees its channels.
void free_channels(struct plan *plan);

// --- kept ----------------------------------------------------------------------

struct kept;
// Keeps a datatype or an operation, also if the program frees it, until let_go and free_unused. Returns NULL if there is
// no memory. The one that is not given is MPI_DATATYPE_NULL or MPI_OP_NULL.
struct kept *hold(MPI_Datatype type, MPI_Op op);
void let_go(struct kept *one);
// The program frees a datatype or an operation. Returns 0 if nothing uses it, so that the caller frees it.
int keep_in_use(MPI_Datatype type, MPI_Op op);
// Frees what the program has freed and nothing uses any more. The program's delete functions run here, and may call MPI.
void free_unused(void);

// --- datatypes -----------------------------------------------------------------

// The size and extent of a datatype. shape_of returns 0 or an error.
struct shape {
    MPI_Count size;
    MPI_Count lower, extent, true_lower, true_extent;
    int plain; // its elements lie one after the other as bytes
};
int shape_of(MPI_Datatype type, struct shape *shape);
static inline char *element(const void *data, const struct shape *shape, MPI_Count index)
{
    return (char *)(uintptr_t)data + index * shape->extent;
}
// Packs elements into bytes, and unpacks them.
void pack(struct flow *flow, const void *data, MPI_Count count, MPI_Datatype type, const struct shape *shape, char *bytes);
void unpack(struct flow *flow, const char *bytes, void *data, MPI_Count count, MPI_Datatype type, const struct shape *shape);
// Allocates memory for elements. The returned address is the one that MPI calls take for this datatype.
void *flow_elements(struct flow *flow, MPI_Count count, const struct shape *shape);
void copy_elements(struct flow *flow, const void *from, MPI_Count count, MPI_Datatype type, void *to, MPI_Count to_count, MPI_Datatype to_type);
// Computes values[0] op values[1] op ..., in this order. Returns the address of the result, which is the last value's.
void *fold(struct flow *flow, void **values, int count, MPI_Count elements, MPI_Datatype type, MPI_Op op);

// --- collectives ---------------------------------------------------------------

// Counts and displacements as the caller gives them: as int, as MPI_Count, or one count for all. With types each block
// has its own datatype, and displacements are in bytes.
struct spread {
    const int *counts, *displs;
    const MPI_Count *counts_c;
    const MPI_Aint *displs_c;
    const MPI_Datatype *types;
    MPI_Count each;
};
static inline MPI_Count count_at(const struct spread *spread, int rank)
{
    return spread->counts ? spread->counts[rank] : spread->counts_c ? spread->counts_c[rank] : spread->each;
}
static inline MPI_Count displ_at(const struct spread *spread, int rank)
{
    return spread->displs ? spread->displs[rank] : spread->displs_c ? (MPI_Count)spread->displs_c[rank] : spread->each * rank;
}

// The address and datatype of a block. `type` and its shape are those of all blocks, if there are no types.
static inline char *block_at(const void *data, const struct spread *spread, const struct shape *shape, int rank)
{
    return spread->types ? (char *)(uintptr_t)data + displ_at(spread, rank) : element(data, shape, displ_at(spread, rank));
}
static inline MPI_Datatype type_at(const struct spread *spread, MPI_Datatype type, int rank)
{
    // The datatype of no elements may be MPI_DATATYPE_NULL.
    return !spread->types ? type : count_at(spread, rank) == 0 ? MPI_BYTE : spread->types[rank];
}

// log2 of the ranks of the largest site, rounded up; below, the ranks of the largest site.
int near_steps(const struct plan *plan);
int largest_site(const struct plan *plan);
// Exchanges parts between the leaders: parts[site] is the part of that site's leader, of lengths[site] elements. Waits.
// Sends and receives are posted before the wait, so no leader waits for one that waits for it.
void exchange(struct flow *flow, int root, void **parts, const MPI_Count *lengths, MPI_Datatype type);

// Each returns 0, an MPI error, or LEAVE. With `later` it does not wait.
int run_barrier(struct plan *plan, const struct later *later);
int run_bcast(struct plan *plan, const struct later *later, void *data, MPI_Count count, MPI_Datatype type, int root);
int run_gather(struct plan *plan, const struct later *later, enum operation operation, const void *from, MPI_Count count, MPI_Datatype type,
               void *to, const struct spread *spread, MPI_Datatype to_type, int root);
int run_scatter(struct plan *plan, const struct later *later, enum operation operation, const void *from, const struct spread *spread,
                MPI_Datatype from_type, void *to, MPI_Count count, MPI_Datatype type, int root);
int run_allgather(struct plan *plan, const struct later *later, const void *from, MPI_Count count, MPI_Datatype type, void *to,
                  const struct spread *spread, MPI_Datatype to_type);
int run_alltoall(struct plan *plan, const struct later *later, enum operation operation, const void *from, const struct spread *from_spread,
                 MPI_Datatype from_type, void *to, const struct spread *to_spread, MPI_Datatype to_type);
// With root -1 all ranks get the result.
int run_reduce(struct plan *plan, const struct later *later, const void *from, void *to, MPI_Count count, MPI_Datatype type, MPI_Op op, int root);
int run_reduce_scatter(struct plan *plan, const struct later *later, const void *from, void *to, const struct spread *spread, MPI_Datatype type, MPI_Op op);
int run_scan(struct plan *plan, enum operation operation, const void *from, void *to, MPI_Count count, MPI_Datatype type, MPI_Op op);

// --- windows -------------------------------------------------------------------

// Prints how many fences were run here, and how many by the MPI.
void print_fences(void);

#endif
