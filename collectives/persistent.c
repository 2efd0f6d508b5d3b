// Persistent collectives: MPI_Bcast_init and the like, then MPI_Start as often as the program wants.
//
// The program needs a request that works with all of MPI's functions, and can be started again. A generalized request
// cannot. So the program gets a persistent receive of nothing that this rank sends to itself. MPI_Start starts the
// receive and a non-blocking flow. At the flow's end the rank sends that message. If the flow failed, the message is too
// long, so that MPI_Wait returns an error. The program's error handler does not see that error: the message goes over a
// communicator of ours.
//
// Each start takes tags, or calls the MPI's non-blocking collective, in the order of starts. MPI 4.1 lets each rank start
// in an order of its own, and several threads start at once. This library supports neither, so it runs persistent
// collectives only if ISTHMUS_COLLECTIVES_PERSISTENT says so at all ranks.
//
// This library must see MPI_Start, MPI_Startall and MPI_Request_free, and nothing else of the request's life.
#include "internal.h"

#include <pthread.h>
#include <stdlib.h>

#if PERSISTENT

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // for the lists, and `request`, `active` and `state`
static struct persistent *all;
static atomic_int count;
static _Thread_local struct persistent *starting;

// Datatypes and operations that the program has freed, but that a request still uses.
struct awaited {
    struct awaited *next;
    MPI_Datatype type; // or MPI_DATATYPE_NULL
    MPI_Op op;
};
static struct awaited *awaited;

static struct persistent *find(MPI_Request request)
{
    struct persistent *one = NULL;
    if (atomic_load(&count) == 0 || request == MPI_REQUEST_NULL)
        return NULL;
    pthread_mutex_lock(&lock);
    // The MPI may give the handle of one that is being freed to another.
    for (one = all; one && (one->state != IN_USE || one->request != request); one = one->next)
        ;
    pthread_mutex_unlock(&lock);
    return one;
}

static int new_tag(const struct plan *plan)
{
    for (int tag = 0;; tag++) {
        const struct persistent *one = all;
        while (one && (one->plan != plan || one->tag != tag))
            one = one->next;
        if (!one)
            return tag;
    }
}

static void unlink_one(const struct persistent *one)
{
    struct persistent **at = &all;
    while (*at != one)
        at = &(*at)->next;
    *at = one->next;
}

int make_persistent(struct plan *plan, starter *start, const struct arguments *arguments, MPI_Request *request)
{
    struct persistent *one = malloc(sizeof *one);
    if (!one)
        return MPI_ERR_NO_MEM;
    *one = (struct persistent){.request = MPI_REQUEST_NULL, .plan = plan, .start = start, .arguments = *arguments};
    pthread_mutex_lock(&lock);
    one->tag = new_tag(plan);
    one->next = all;
    all = one;
    pthread_mutex_unlock(&lock);
    MPI_Request made;
    int error = PMPI_Recv_init(NULL, 0, MPI_BYTE, 0, one->tag, plan->self, &made);
    pthread_mutex_lock(&lock);
    if (error)
        unlink_one(one);
    else
        one->request = made;
    pthread_mutex_unlock(&lock);
    if (error) {
        free(one);
        return error;
    }
    atomic_fetch_add(&count, 1);
    *request = made;
    return MPI_SUCCESS;
}

// --- while it is active ----------------------------------------------------------

struct persistent *take_started(void)
{
    struct persistent *one = starting;
    starting = NULL;
    return one;
}

// The MPI runs this start itself; its request is the only message of the flow.
int follow_request(struct plan *plan, MPI_Request request)
{
    struct flow here, *flow = flow_begin(&here, plan, &(MPI_Request){MPI_REQUEST_NULL}, 0);
    flow_adopt(flow, request);
    return flow_end(flow, NULL, NULL);
}

static void release(struct persistent *one);

void end_of_start(struct persistent *one, int error)
{
    static const char TOO_LONG = 0;
    MPI_Request sent;
    pthread_mutex_lock(&lock);
    MPI_Comm self = one->plan->self;
    int tag = one->tag, freed = one->state == FREED;
    one->active = 0;
    pthread_mutex_unlock(&lock);
    if (PMPI_Isend(&TOO_LONG, error ? 1 : 0, MPI_BYTE, 0, tag, self, &sent) == MPI_SUCCESS)
        PMPI_Request_free(&sent);
    if (freed)
        release(one);
}

static int start(struct persistent *one, MPI_Request *request)
{
    if (!one->plan)
        return MPI_ERR_COMM;
    int error = PMPI_Start(request);
    if (error)
        return error;
    pthread_mutex_lock(&lock);
    one->active = 1;
    pthread_mutex_unlock(&lock);
    starting = one;
    error = one->start(one->plan, &one->arguments);
    starting = NULL;
    if (error) { // no flow goes on
        end_of_start(one, error);
        PMPI_Comm_call_errhandler(one->plan->comm, error);
    }
    return error;
}

#pragma GCC visibility push(default)

int MPI_Start(MPI_Request *request)
{
    struct persistent *one = request ? find(*request) : NULL;
    return one ? start(one, request) : PMPI_Start(request);
}

int MPI_Startall(int requests, MPI_Request array[])
{
    int error = MPI_SUCCESS;
    if (atomic_load(&count) == 0 || !array)
        return PMPI_Startall(requests, array);
    for (int i = 0; i < requests && !error; i++)
        error = MPI_Start(&array[i]);
    return error;
}

int MPI_Request_free(MPI_Request *request)
{
    struct persistent *one = request ? find(*request) : NULL;
    if (!one)
        return PMPI_Request_free(request);
    pthread_mutex_lock(&lock);
    one->state = BEING_FREED;
    pthread_mutex_unlock(&lock);
    int error = PMPI_Request_free(request);
    pthread_mutex_lock(&lock);
    one->state = error ? IN_USE : FREED;
    int active = one->active;
    pthread_mutex_unlock(&lock);
    if (!error && !active) // else it is released when the flow has ended
        release(one);
    return error;
}

#pragma GCC visibility pop

void orphan_persistent(const struct plan *plan)
{
    if (atomic_load(&count) == 0)
        return;
    pthread_mutex_lock(&lock);
    for (struct persistent *one = all; one; one = one->next)
        if (one->plan == plan)
            one->plan = NULL;
    pthread_mutex_unlock(&lock);
}

// --- what the program frees --------------------------------------------------------

static int uses(const struct persistent *one, MPI_Datatype type, MPI_Op op)
{
    const struct arguments *with = &one->arguments;
    if (type == MPI_DATATYPE_NULL)
        return with->op == op;
    int is = with->type == type || with->to_type == type;
    for (int i = 0; !is && one->plan && i < one->plan->ranks; i++)
        is = (with->types && with->types[i] == type) || (with->to_types && with->to_types[i] == type);
    return is;
}

static int is_used(MPI_Datatype type, MPI_Op op)
{
    const struct persistent *one = all;
    while (one && !uses(one, type, op))
        one = one->next;
    return one != NULL;
}

int keep_for_persistent(MPI_Datatype type, MPI_Op op)
{
    if (atomic_load(&count) == 0)
        return 0;
    pthread_mutex_lock(&lock);
    struct awaited *one = is_used(type, op) ? malloc(sizeof *one) : NULL;
    if (one) {
        *one = (struct awaited){awaited, type, op};
        awaited = one;
    }
    pthread_mutex_unlock(&lock);
    return one != NULL;
}

// Removes a request, and frees what only it used.
static void release(struct persistent *gone)
{
    struct awaited *free_now = NULL;
    pthread_mutex_lock(&lock);
    unlink_one(gone);
    for (struct awaited **at = &awaited, *one; (one = *at);) {
        if (is_used(one->type, one->op)) {
            at = &one->next;
            continue;
        }
        *at = one->next;
        one->next = free_now;
        free_now = one;
    }
    pthread_mutex_unlock(&lock);
    atomic_fetch_sub(&count, 1);
    free(gone);
    for (struct awaited *one; (one = free_now);) {
        free_now = one->next;
        // A flow may still use it.
        if (one->type != MPI_DATATYPE_NULL)
            MPI_Type_free(&one->type);
        else
            MPI_Op_free(&one->op);
        free(one);
    }
}

#else

struct persistent *take_started(void) { return NULL; }
void end_of_start(struct persistent *one, int error) { (void)one, (void)error; }
void orphan_persistent(const struct plan *plan) { (void)plan; }
int keep_for_persistent(MPI_Datatype type, MPI_Op op) { return (void)type, (void)op, 0; }

#endif
