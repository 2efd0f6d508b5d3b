// Epochs of MPI_Win_fence across sites. MPI_Put and MPI_Accumulate are copied into one message to each rank. The closing
// fence exchanges these messages, and each rank applies those that it gets to its own window. Such an epoch takes half a
// round trip. The MPI takes more than two: one until the accesses are acknowledged, and a barrier.
//
// It is off unless all ranks have ISTHMUS_COLLECTIVES_WINDOWS=1. A fence returns at one rank before the others have applied
// what came for them. A third rank that locks a window right after the fence may read the old value there. MPI-4.1
// permits that, but programs rely on more.
//
// MPI permits this, since accesses of an epoch need not take effect before its closing fence, and since the target takes part
// in the fence. Locks and flushes are left to the MPI, because their target takes no part; so are post, start,
// complete and wait.
//
// Some calls are not copied but *deferred*: MPI_Get and others with a result, calls with datatypes of the program, and those
// that exceed TARGET_MAX. Their arguments are kept until the closing fence. Each message says whether its sender has deferred
// anything. So after the exchange all ranks know alike whether anybody has. If so, all of them let the MPI run the deferred
// calls, between two fences of the MPI's own. Such an epoch takes longer than the MPI's, so the MPI runs the next
// ones alone: NATIVE_FIRST, and twice as many each time that a later one has deferred calls again.
#include "internal.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if WINDOWS

// Longest part of a message that is sent before its length is known. Bytes. Each rank receives so much from each other one.
enum { HEAD = 16 << 10 };
// Most bytes of an epoch for one target, and of all its targets. A long access gains nothing, and would be copied twice.
#define TARGET_MAX ((int64_t)1 << 20)
#define EPOCH_MAX ((int64_t)64 << 20)
// Most ranks of a window. Every fence sends a message from each rank to each other one.
enum { RANKS_MAX = 512 };
// Epochs that are left to the MPI after one with deferred calls: at first, and at most. Counts.
enum { NATIVE_FIRST = 16, NATIVE_MAX = 4096 };
enum { TAG_HEAD, TAG_TAIL };

// --- what is copied --------------------------------------------------------------

// Datatypes that MPI_Accumulate is copied with: integers, then floating-point numbers. MPI_Put is copied with all
// datatypes of the MPI's own.
enum { TYPES = 23, INTEGERS = 19 };
static MPI_Datatype type_by(int index)
{
    const MPI_Datatype types[TYPES] = {
        MPI_SIGNED_CHAR, MPI_UNSIGNED_CHAR, MPI_SHORT, MPI_UNSIGNED_SHORT, MPI_INT, MPI_UNSIGNED, MPI_LONG, MPI_UNSIGNED_LONG,
        MPI_LONG_LONG, MPI_UNSIGNED_LONG_LONG, MPI_INT8_T, MPI_UINT8_T, MPI_INT16_T, MPI_UINT16_T, MPI_INT32_T, MPI_UINT32_T,
        MPI_INT64_T, MPI_UINT64_T, MPI_INTEGER, MPI_FLOAT, MPI_DOUBLE, MPI_REAL, MPI_DOUBLE_PRECISION,
    };
    return types[index];
}

// Operations that it is copied with. Those from LOGICAL on take integers only.
enum { PUT = -1, NO_OP, REPLACE, SUM, LOGICAL = 6, OPS = 12 };
static MPI_Op op_by(int index)
{
    const MPI_Op ops[OPS] = {MPI_NO_OP, MPI_REPLACE, MPI_SUM, MPI_PROD, MPI_MIN, MPI_MAX, MPI_LAND, MPI_LOR, MPI_LXOR, MPI_BAND, MPI_BOR, MPI_BXOR};
    return ops[index];
}

// A copied access in a message. The data follow, filled up to a multiple of 8 bytes.
struct access {
    int64_t place; // bytes from the start of the target's window
    int32_t bytes, count;
    int16_t type, op; // by type_by and op_by; op may be PUT
    int32_t unused;
};
// The start of a message.
struct header {
    int64_t length; // of the whole message
    int64_t deferred; // whether its sender has deferred calls
};

static size_t filled(size_t bytes) { return (bytes + 7) / 8 * 8; }

// --- windows ---------------------------------------------------------------------

struct message {
    char *data;
    size_t length, room;
};

enum call { CALL_PUT, CALL_GET, CALL_ACCUMULATE, CALL_GET_ACCUMULATE, CALL_FETCH, CALL_COMPARE };
// Arguments of a call.
struct rma {
    enum call call;
    const void *from, *compare;
    void *result;
    counted count, result_count, target_count;
    MPI_Datatype type, result_type, target_type;
    MPI_Aint place;
    MPI_Op op;
    int target;
    struct rma *next;
};

// What each rank tells about its window.
struct side {
    int64_t size, unit, is_able;
};

struct window {
    MPI_Win win;
    MPI_Comm comm;
    int rank, ranks, trace;
    char *base;
    struct side *sides;
    pthread_mutex_t lock; // for what follows, since several threads may access it
    int open;    // an epoch of MPI_Win_fence may be open
    int others;  // epochs of other kinds that are open: their accesses are the MPI's
    int native, native_next; // fences that are left to the MPI: how many to come, and after the next deferred call
    int64_t copied; // bytes
    struct message *messages; // to each rank
    struct rma *deferred, **deferred_end;
    char *heads; // from each rank
    MPI_Request *requests;
    struct window *next;
};
static struct window *windows;
static pthread_mutex_t all_windows = PTHREAD_MUTEX_INITIALIZER;
// How many there are. Programs without such windows pay for one look at it.
static atomic_int live;
static atomic_ulong aggregated, left;

static struct window *window_of(MPI_Win win)
{
    if (atomic_load_explicit(&live, memory_order_acquire) == 0)
        return NULL;
    pthread_mutex_lock(&all_windows);
    struct window *window = windows;
    while (window && window->win != win)
        window = window->next;
    pthread_mutex_unlock(&all_windows);
    return window;
}

static void free_window(struct window *window)
{
    if (window->comm != MPI_COMM_NULL)
        PMPI_Comm_free(&window->comm);
    for (int i = 0; window->messages && i < window->ranks; i++)
        free(window->messages[i].data);
    free(window->messages);
    free(window->sides);
    free(window->heads);
    free(window->requests);
    pthread_mutex_destroy(&window->lock);
    free(window);
}

static int is_off_in_world(MPI_Comm comm)
{
    struct settings settings;
    return world_settings_of(comm, &settings) && !settings.windows;
}

static int is_unified(MPI_Win win)
{
    int *model = NULL, found = 0;
    return PMPI_Win_get_attr(win, MPI_WIN_MODEL, &model, &found) == MPI_SUCCESS && found && *model == MPI_WIN_UNIFIED;
}

// Makes a window's memory; NULL without memory.
static struct window *new_window(const struct plan *plan)
{
    size_t ranks = (size_t)plan->ranks;
    struct window *window = malloc(sizeof *window);
    if (!window)
        return NULL;
    *window = (struct window){
        .comm = MPI_COMM_NULL, .rank = plan->rank, .ranks = plan->ranks, .trace = plan->settings.trace, .native_next = NATIVE_FIRST,
        .sides = calloc(ranks, sizeof(struct side)), .messages = calloc(ranks, sizeof(struct message)), .heads = malloc(ranks * HEAD),
        .requests = malloc(3 * ranks * sizeof(MPI_Request)), .deferred_end = &window->deferred,
    };
    pthread_mutex_init(&window->lock, NULL);
    if (window->sides && window->messages && window->heads && window->requests)
        return window;
    free_window(window);
    return NULL;
}

// A communicator for a window's messages, which all ranks make.
static int make_comm(const struct plan *plan, MPI_Comm *comm)
{
    MPI_Group all;
    int error = PMPI_Comm_group(plan->far, &all);
    if (error)
        return error;
    error = PMPI_Comm_create(plan->far, all, comm);
    PMPI_Group_free(&all);
    return error ? error : PMPI_Comm_set_errhandler(*comm, MPI_ERRORS_RETURN);
}

// All ranks of the communicator call it, and agree on whether the window's fences are run here. A rank without memory takes
// part in all that needs every rank.
static void watch(MPI_Comm comm, void *base, MPI_Aint size, MPI_Aint unit, MPI_Win win)
{
    // Where they are off, a window costs no messages.
    struct plan *plan = is_off_in_world(comm) ? NULL : plan_of(comm);
    if (!plan || !plan->settings.windows || plan->ranks > RANKS_MAX)
        return;
    struct side sides[RANKS_MAX], mine = {size, unit, 0};
    struct window *window = new_window(plan);
    MPI_Comm own = MPI_COMM_NULL;
    mine.is_able = !make_comm(plan, &own) && window && is_unified(win);
    int able = !PMPI_Allgather(&mine, sizeof mine, MPI_BYTE, sides, sizeof mine, MPI_BYTE, plan->far);
    for (int rank = 0; able && rank < plan->ranks; rank++)
        able = sides[rank].is_able != 0;
    if (!able) {
        if (own != MPI_COMM_NULL)
            PMPI_Comm_free(&own);
        if (window)
            free_window(window);
        return;
    }
    window->win = win;
    window->comm = own;
    window->base = base;
    memcpy(window->sides, sides, (size_t)plan->ranks * sizeof *sides);
    pthread_mutex_lock(&all_windows);
    window->next = windows;
    windows = window;
    pthread_mutex_unlock(&all_windows);
    atomic_fetch_add(&live, 1);
}

static void forget(MPI_Win win)
{
    struct window *window = window_of(win);
    if (!window)
        return;
    pthread_mutex_lock(&all_windows);
    struct window **at = &windows;
    while (*at != window)
        at = &(*at)->next;
    *at = window->next;
    pthread_mutex_unlock(&all_windows);
    atomic_fetch_sub(&live, 1);
    free_window(window);
}

void print_fences(void)
{
    unsigned long here = atomic_load(&aggregated), mpi = atomic_load(&left);
    if (here || mpi)
        fprintf(stderr, "isthmus-collectives: %lu fences aggregated, %lu left to the MPI\n", here, mpi);
}

// --- accesses --------------------------------------------------------------------

// Appends to a message, whose header is made with its first part. Returns NULL without memory.
static void *append(struct message *message, size_t bytes)
{
    size_t least = (message->length ? message->length : sizeof(struct header)) + bytes;
    if (least > message->room) {
        size_t room = least + least / 2 + 256;
        char *data = realloc(message->data, room);
        if (!data)
            return NULL;
        message->data = data;
        message->room = room;
    }
    if (message->length == 0)
        message->length = sizeof(struct header);
    void *place = message->data + message->length;
    message->length += bytes;
    return place;
}

// The bytes of elements of a datatype of the MPI's own without gaps; else -1.
static int64_t plain_bytes(MPI_Datatype type, counted count)
{
    int integers, addresses, types, combiner;
    MPI_Count lower, extent, size;
    if (count < 0 || type == MPI_DATATYPE_NULL || PMPI_Type_get_envelope(type, &integers, &addresses, &types, &combiner) != MPI_SUCCESS ||
        combiner != MPI_COMBINER_NAMED || PMPI_Type_get_extent_x(type, &lower, &extent) != MPI_SUCCESS ||
        PMPI_Type_size_x(type, &size) != MPI_SUCCESS || size != extent || lower != 0 || size <= 0 || count > TARGET_MAX / size)
        return -1;
    return (int64_t)count * size;
}

// Finds the indices of an accumulate's datatype and operation. Returns 0 if it is not copied.
static int find_operation(const struct rma *rma, struct access *access)
{
    access->type = access->op = 0;
    while (access->op < OPS && op_by(access->op) != rma->op)
        access->op++;
    while (access->type < TYPES && type_by(access->type) != rma->type)
        access->type++;
    return access->op < OPS && access->type < TYPES && rma->type == rma->target_type && (access->type < INTEGERS || access->op < LOGICAL);
}

// Copies an access into the message to its target. Returns 0 if it must be deferred.
static int copy_access(struct window *window, const struct rma *rma)
{
    struct access access = {.op = PUT};
    // What follows a deferred call of the same origin must not overtake it.
    if (window->deferred || rma->target < 0 || rma->target >= window->ranks || (rma->call != CALL_PUT && rma->call != CALL_ACCUMULATE))
        return 0;
    const struct side *side = &window->sides[rma->target];
    struct message *message = &window->messages[rma->target];
    int64_t bytes = plain_bytes(rma->type, rma->count);
    if (bytes < 0 || (bytes > 0 && !rma->from) || bytes != plain_bytes(rma->target_type, rma->target_count) || rma->place < 0 || bytes > side->size ||
        (side->unit > 0 && rma->place > (side->size - bytes) / side->unit))
        return 0;
    if (rma->call == CALL_ACCUMULATE && !find_operation(rma, &access))
        return 0;
    if ((int64_t)message->length + bytes > TARGET_MAX || window->copied + bytes > EPOCH_MAX)
        return 0;
    char *place = append(message, sizeof access + filled((size_t)bytes));
    if (!place)
        return 0;
    access.place = rma->place * side->unit;
    access.bytes = (int32_t)bytes;
    access.count = (int32_t)rma->count;
    memcpy(place, &access, sizeof access);
    if (bytes > 0)
        memcpy(place + sizeof access, rma->from, (size_t)bytes);
    window->copied += (int64_t)sizeof access + bytes;
    return 1;
}

static int is_derived(MPI_Datatype type)
{
    int integers, addresses, types, combiner;
    return type != MPI_DATATYPE_NULL && PMPI_Type_get_envelope(type, &integers, &addresses, &types, &combiner) == MPI_SUCCESS &&
           combiner != MPI_COMBINER_NAMED;
}

// Copies a datatype, which the program may free before the fence. After an error there is no copy to drop.
static int keep_type(MPI_Datatype *type)
{
    MPI_Datatype copy = MPI_DATATYPE_NULL;
    if (!is_derived(*type))
        return MPI_SUCCESS;
    int error = PMPI_Type_dup(*type, &copy);
    *type = error ? MPI_DATATYPE_NULL : copy;
    return error;
}

static void drop_type(MPI_Datatype *type)
{
    if (is_derived(*type))
        PMPI_Type_free(type);
}

static void free_call(struct rma *kept)
{
    drop_type(&kept->type);
    drop_type(&kept->result_type);
    drop_type(&kept->target_type);
    free(kept);
}

static int defer(struct window *window, const struct rma *rma)
{
    struct rma *kept = malloc(sizeof *kept);
    if (!kept)
        return MPI_ERR_NO_MEM;
    *kept = *rma;
    kept->next = NULL;
    // All are tried, so that what is not NULL afterwards is a copy.
    int errors[] = {keep_type(&kept->type), keep_type(&kept->result_type), keep_type(&kept->target_type)};
    int error = errors[0] ? errors[0] : errors[1] ? errors[1] : errors[2];
    if (error) {
        free_call(kept);
        return error;
    }
    *window->deferred_end = kept;
    window->deferred_end = &kept->next;
    return MPI_SUCCESS;
}

// Takes an access into the open epoch. Returns LEAVE if it is the MPI's, else 0 or an MPI error.
static int take(MPI_Win win, const struct rma *rma)
{
    struct window *window = window_of(win);
    if (!window)
        return LEAVE;
    pthread_mutex_lock(&window->lock);
    int error = LEAVE;
    if (window->open && !window->others && !window->native && rma->target != MPI_PROC_NULL)
        error = copy_access(window, rma) ? MPI_SUCCESS : defer(window, rma);
    pthread_mutex_unlock(&window->lock);
    if (error > MPI_SUCCESS)
        PMPI_Win_call_errhandler(win, error);
    return error;
}

// --- the fence -------------------------------------------------------------------

// Applies a message to this rank's window.
static int apply(struct window *window, const char *data, size_t length)
{
    int error = MPI_SUCCESS;
    for (size_t at = sizeof(struct header); at < length && !error;) {
        struct access access;
        memcpy(&access, data + at, sizeof access);
        const char *from = data + at + sizeof access;
        char *to = window->base + access.place;
        if (access.op == PUT || access.op == REPLACE)
            memcpy(to, from, (size_t)access.bytes);
        else if (access.op >= SUM)
            error = PMPI_Reduce_local(from, to, (int)access.count, type_by(access.type), op_by(access.op));
        at += sizeof access + filled((size_t)access.bytes);
    }
    return error;
}

// Receives the rest of a message whose head has come, and applies it.
static int finish(struct window *window, int from, int *deferred)
{
    char *head = window->heads + (size_t)from * HEAD, *whole = NULL;
    struct header header;
    memcpy(&header, head, sizeof header);
    *deferred |= header.deferred != 0;
    int error = MPI_SUCCESS;
    if (header.length > HEAD) {
        if (!(whole = malloc((size_t)header.length)))
            return MPI_ERR_NO_MEM;
        memcpy(whole, head, HEAD);
        error = PMPI_Recv(whole + HEAD, (int)(header.length - HEAD), MPI_BYTE, from, TAG_TAIL, window->comm, MPI_STATUS_IGNORE);
    }
    if (!error)
        error = apply(window, whole ? whole : head, (size_t)header.length);
    free(whole);
    return error;
}

// Empties the messages after an exchange. Long ones give back their memory, except those that a failed exchange may still be
// sending.
static void end_messages(struct window *window, int error)
{
    for (int i = 0; i < window->ranks; i++) {
        struct message *message = &window->messages[i];
        if (!error && message->room > HEAD) {
            free(message->data);
            *message = (struct message){0};
        }
        message->length = 0;
    }
    window->copied = 0;
}

// Exchanges the messages of an epoch, and applies them. Every rank first posts all receives of heads, then sends all that
// it has, and only then waits. So no rank waits for one that waits for it.
static int exchange_all(struct window *window, int *deferred)
{
    int error = MPI_SUCCESS, count = 0, ranks = window->ranks;
    MPI_Request *receives = window->requests, *sends = receives + ranks;
    *deferred = window->deferred != NULL;
    for (int i = 0; i < ranks && !error; i++) {
        struct message *message = &window->messages[i];
        receives[i] = MPI_REQUEST_NULL;
        if (message->length == 0 && !append(message, 0))
            error = MPI_ERR_NO_MEM;
        else if (i != window->rank)
            error = PMPI_Irecv(window->heads + (size_t)i * HEAD, HEAD, MPI_BYTE, i, TAG_HEAD, window->comm, &receives[i]);
        if (!error)
            memcpy(message->data, &(struct header){(int64_t)message->length, *deferred}, sizeof(struct header));
    }
    // Each rank begins with another target, so that not all send to the same one first.
    for (int i = 1; i < ranks && !error; i++) {
        int to = (window->rank + i) % ranks;
        const struct message *message = &window->messages[to];
        int head = message->length < HEAD ? (int)message->length : HEAD;
        error = PMPI_Isend(message->data, head, MPI_BYTE, to, TAG_HEAD, window->comm, &sends[count]);
        count += !error;
        if (!error && message->length > HEAD) {
            error = PMPI_Isend(message->data + HEAD, (int)(message->length - HEAD), MPI_BYTE, to, TAG_TAIL, window->comm, &sends[count]);
            count += !error;
        }
    }
    const struct message *own = &window->messages[window->rank];
    if (!error)
        error = apply(window, own->data, own->length);
    for (int i = 1; i < ranks && !error; i++) {
        int from = (window->rank + i) % ranks;
        if (!(error = PMPI_Wait(&receives[from], MPI_STATUS_IGNORE)))
            error = finish(window, from, deferred);
    }
    if (!error)
        error = wait_for_all(count, sends);
    end_messages(window, error);
    return error;
}

static int run_deferred(const struct rma *rma, MPI_Win win)
{
    switch (rma->call) {
    case CALL_PUT: return COUNTED(PMPI_Put)(rma->from, rma->count, rma->type, rma->target, rma->place, rma->target_count, rma->target_type, win);
    case CALL_GET: return COUNTED(PMPI_Get)(rma->result, rma->result_count, rma->result_type, rma->target, rma->place, rma->target_count, rma->target_type, win);
    case CALL_ACCUMULATE:
        return COUNTED(PMPI_Accumulate)(rma->from, rma->count, rma->type, rma->target, rma->place, rma->target_count, rma->target_type, rma->op, win);
    case CALL_GET_ACCUMULATE:
        return COUNTED(PMPI_Get_accumulate)(rma->from, rma->count, rma->type, rma->result, rma->result_count, rma->result_type, rma->target, rma->place,
                                            rma->target_count, rma->target_type, rma->op, win);
    case CALL_FETCH: return PMPI_Fetch_and_op(rma->from, rma->result, rma->type, rma->target, rma->place, rma->op, win);
    default: return PMPI_Compare_and_swap(rma->from, rma->compare, rma->result, rma->type, rma->target, rma->place, win);
    }
}

// Lets the MPI run what was deferred. Its first fence also waits until all ranks have applied their messages.
static int run_all_deferred(struct window *window, int assert)
{
    int error = PMPI_Win_fence(0, window->win);
    while (window->deferred) {
        struct rma *rma = window->deferred;
        int failed = run_deferred(rma, window->win);
        if (!error)
            error = failed;
        window->deferred = rma->next;
        free_call(rma);
    }
    window->deferred_end = &window->deferred;
    window->native = window->native_next;
    if (window->native_next < NATIVE_MAX)
        window->native_next *= 2;
    int ended = PMPI_Win_fence(assert & ~MPI_MODE_NOPRECEDE, window->win);
    return error ? error : ended;
}

static void tell(const struct window *window, int64_t copied, const char *how)
{
    if (window->trace == EACH_CALL && window->rank == 0)
        fprintf(stderr, "isthmus-collectives: fence of %lld B on %d ranks: %s\n", (long long)copied, window->ranks, how);
}

// A fence of the MPI's own. The last one closes the MPI's epoch, since those after it are exchanged here.
static int native_fence(struct window *window, int assert)
{
    int is_last = --window->native == 0;
    atomic_fetch_add(&left, 1);
    tell(window, 0, "mpi (an earlier epoch had deferred calls)");
    return PMPI_Win_fence(is_last ? assert | MPI_MODE_NOSUCCEED : assert, window->win);
}

static int fence(struct window *window, int assert)
{
    int deferred = 0, error = MPI_SUCCESS;
    int64_t copied = window->copied;
    window->open = !(assert & MPI_MODE_NOSUCCEED);
    if (window->native)
        return native_fence(window, assert);
    // All ranks say that they have accessed nothing.
    if (assert & MPI_MODE_NOPRECEDE)
        return MPI_SUCCESS;
    if ((error = exchange_all(window, &deferred)))
        PMPI_Win_call_errhandler(window->win, error);
    else {
        tell(window, copied, deferred ? "aggregated, and deferred calls by the MPI" : "aggregated");
        atomic_fetch_add(deferred ? &left : &aggregated, 1);
        if (deferred)
            error = run_all_deferred(window, assert);
    }
    return error;
}

// --- the functions that programs call ----------------------------------------------

#pragma GCC visibility push(default)

int MPI_Win_free(MPI_Win *win)
{
    if (win)
        forget(*win);
    return PMPI_Win_free(win);
}

int MPI_Win_fence(int assert, MPI_Win win)
{
    struct window *window = window_of(win);
    return window ? fence(window, assert) : PMPI_Win_fence(assert, win);
}

// Opens or closes an epoch of another kind.
static int other_epoch(MPI_Win win, int change, int error)
{
    struct window *window = error == MPI_SUCCESS ? window_of(win) : NULL;
    if (window) {
        pthread_mutex_lock(&window->lock);
        window->others += change;
        pthread_mutex_unlock(&window->lock);
    }
    return error;
}

int MPI_Win_lock(int kind, int target, int assert, MPI_Win win) { return other_epoch(win, 1, PMPI_Win_lock(kind, target, assert, win)); }
int MPI_Win_unlock(int target, MPI_Win win) { return other_epoch(win, -1, PMPI_Win_unlock(target, win)); }
int MPI_Win_lock_all(int assert, MPI_Win win) { return other_epoch(win, 1, PMPI_Win_lock_all(assert, win)); }
int MPI_Win_unlock_all(MPI_Win win) { return other_epoch(win, -1, PMPI_Win_unlock_all(win)); }
int MPI_Win_start(MPI_Group group, int assert, MPI_Win win) { return other_epoch(win, 1, PMPI_Win_start(group, assert, win)); }
int MPI_Win_complete(MPI_Win win) { return other_epoch(win, -1, PMPI_Win_complete(win)); }

// Defines a function that is taken here or left to the MPI.
#define ACCESS(name, stock, parameters, arguments, ...) \
    int name parameters \
    { \
        int error = take(win, &(struct rma){__VA_ARGS__}); \
        return error == LEAVE ? stock arguments : error; \
    }
#define COUNTS(of, of_result, of_target) .count = of, .result_count = of_result, .target_count = of_target
#define DATATYPES(of, of_result, of_target) .type = of, .result_type = of_result, .target_type = of_target
#define AT .target = target, .place = place

ACCESS(MPI_Fetch_and_op, PMPI_Fetch_and_op, (const void *from, void *result, MPI_Datatype type, int target, MPI_Aint place, MPI_Op op, MPI_Win win),
       (from, result, type, target, place, op, win),
       CALL_FETCH, .from = from, .result = result, DATATYPES(type, MPI_DATATYPE_NULL, MPI_DATATYPE_NULL), AT, .op = op)
ACCESS(MPI_Compare_and_swap, PMPI_Compare_and_swap,
       (const void *from, const void *compare, void *result, MPI_Datatype type, int target, MPI_Aint place, MPI_Win win),
       (from, compare, result, type, target, place, win),
       CALL_COMPARE, .from = from, .compare = compare, .result = result, DATATYPES(type, MPI_DATATYPE_NULL, MPI_DATATYPE_NULL), AT)

#define COUNT int
#define UNIT int
#define ENTRY(name) MPI_##name
#define STOCK(name) PMPI_##name
#include "accesses.h"
#if LARGE_COUNTS
#undef COUNT
#undef UNIT
#undef ENTRY
#undef STOCK
#define COUNT MPI_Count
#define UNIT MPI_Aint
#define ENTRY(name) MPI_##name##_c
#define STOCK(name) PMPI_##name##_c
#include "accesses.h"
#endif
#pragma GCC visibility pop

#else
void print_fences(void) {}
#endif
