// Persistent collectives: MPI_Bcast_init and the like, then MPI_Start as often as the program wants.
//
// MPI lets each rank start the persistent collectives of a communicator in an order of its own, from several threads,
// and in any order relative to other collectives. But all ranks initialize them in one order. So everything that ranks
// must agree on is fixed then: the algorithm, the settings that it depends on, and tags on a communicator that only
// persistent collectives use (a channel). Each start is a flow with these tags. Starts of one collective never overlap at
// a rank, and two ranks exchange at most one message of a tag in each start. So MPI's order of messages keeps the starts
// apart.
//
// Requests may be freed in different orders at different ranks, so tags are not used again one by one. When a channel has
// no tags left, all ranks tell each other how many of their requests still use each channel. If nobody uses one, its tags
// begin anew. Else another channel is made, up to CHANNELS_MAX; beyond, the MPI runs the collective.
//
// The program needs a request that works with all of MPI's functions, and can be started again. A generalized request
// cannot. So the program gets a persistent receive of nothing that this rank sends to itself. MPI_Start starts the
// receive and the flow. At the flow's end the rank sends that message. If the flow failed, the message is too long, so
// that MPI_Wait fails. Then the MPI calls the error handler of the channel, which calls the one of the program's
// communicator with the error of the flow.
//
// Of the request's life this library must see MPI_Start, MPI_Startall, MPI_Request_free and MPI_Cancel, and nothing else.
#include "internal.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if PERSISTENT

// Most tags of a channel. Tests make it smaller.
#ifndef CHANNEL_TAGS_MAX
#define CHANNEL_TAGS_MAX INT32_MAX
#endif

enum { ARRAYS = 6 };
struct persistent {
    struct persistent *next;
    MPI_Request request;     // the program's
    struct plan *plan;       // NULL: its communicator is freed
    struct channel *channel; // NULL while it is made
    struct settings settings;
    starter *start;
    struct arguments arguments;
    int tag, tags;
    int active; // started, and its flow has not ended
    enum { IN_USE, BEING_FREED, FREED } state; // by the program
    int error;  // of a start: further ones fail as well, because messages may be left
    int told;   // the program's error handler knows it
    struct kept **held;
    int held_count;
    void *copies[ARRAYS]; // of arrays that the program has given
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // no MPI function is called with it held
enum { BUCKETS = 256 };
static struct persistent *buckets[BUCKETS]; // by request
static atomic_int count;                    // in all of them

static struct persistent **bucket_of(MPI_Request request)
{
    uint64_t handle = 0;
    memcpy(&handle, &request, sizeof request);
    return &buckets[handle * UINT64_C(0x9e3779b97f4a7c15) >> 56];
}

static struct persistent *find(const MPI_Request *request)
{
    if (atomic_load(&count) == 0 || !request || *request == MPI_REQUEST_NULL)
        return NULL;
    pthread_mutex_lock(&lock);
    struct persistent *one = *bucket_of(*request);
    // The MPI may give the handle of one that is being freed to another.
    while (one && (one->request != *request || one->state != IN_USE))
        one = one->next;
    pthread_mutex_unlock(&lock);
    return one;
}

const struct settings *settings_of(const struct plan *plan, const struct later *later)
{
    return later && later->persistent ? &later->persistent->settings : &plan->settings;
}

int is_start(const struct later *later) { return later && later->persistent && later->persistent->channel; }

int note_choice(const struct later *later, int64_t tags)
{
    if (!later || !later->persistent || is_start(later))
        return 0;
    later->persistent->tags = (int)tags; // fewer than plan->tags: choose has looked
    return 1;
}

void take_tags(struct flow *flow)
{
    flow->comm = flow->persistent->channel->far;
    flow->tag = flow->persistent->tag;
}

// --- errors --------------------------------------------------------------------

// Calls the error handler of the program's communicator, if that still exists.
static int tell(const struct persistent *one, int error)
{
    pthread_mutex_lock(&lock);
    MPI_Comm comm = one->plan ? one->plan->comm : MPI_COMM_NULL;
    pthread_mutex_unlock(&lock);
    if (error != MPI_SUCCESS && comm != MPI_COMM_NULL)
        PMPI_Comm_call_errhandler(comm, error);
    return error;
}

// Finds an error on this channel that the program does not know yet.
static int take_error(MPI_Comm own, MPI_Comm *comm, int *error)
{
    int found = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < BUCKETS && !found; i++)
        for (struct persistent *one = buckets[i]; one && !found; one = one->next)
            if (one->plan && one->channel->own == own && one->error && !one->told) {
                *comm = one->plan->comm;
                *error = one->error;
                one->told = found = 1;
            }
    pthread_mutex_unlock(&lock);
    return found;
}

// The error handler of a channel's own communicator.
static void tell_program(MPI_Comm *own, int *code, ...)
{
    MPI_Comm comm;
    if (take_error(*own, &comm, code))
        PMPI_Comm_call_errhandler(comm, *code);
}

// Lets MPI_Wait do with an error what the program's error handler wants. If handlers cannot set what MPI_Wait returns,
// MPI_ERRORS_RETURN must be the channel's handler as well. The error then has the class MPI_ERR_TRUNCATE. When the
// program's communicator is about to be freed, any handler is: requests may be under way that fail later.
static void match_handler(const struct plan *plan, const struct channel *channel, int freed)
{
    MPI_Errhandler handler;
    if (get_handler(plan->comm, &handler) != MPI_SUCCESS)
        return;
    int same = freed || (!HANDLERS_SET_ERRORS && handler == MPI_ERRORS_RETURN);
    PMPI_Comm_set_errhandler(channel->own, same ? handler : channel->teller);
    PMPI_Errhandler_free(&handler);
}

#pragma GCC visibility push(default)

int MPI_Comm_set_errhandler(MPI_Comm comm, MPI_Errhandler handler)
{
    int error = set_handler(comm, handler);
    const struct plan *plan = error ? NULL : made_plan_of(comm);
    for (int i = 0; plan && i < plan->channel_count; i++)
        match_handler(plan, &plan->channels[i], 0);
    return error;
}

int MPI_Comm_get_errhandler(MPI_Comm comm, MPI_Errhandler *handler) { return get_handler(comm, handler); }

#pragma GCC visibility pop

// --- channels ------------------------------------------------------------------

// Returns 0 or an MPI error. The other ranks wait for the second communicator, whatever becomes of the first.
static int make_channel(struct plan *plan, struct channel *channel)
{
    *channel = (struct channel){.far = MPI_COMM_NULL, .own = MPI_COMM_NULL, .teller = MPI_ERRHANDLER_NULL};
    int error = make_own(plan, &channel->own), other;
    if (!error && !(error = PMPI_Comm_create_errhandler(tell_program, &channel->teller)))
        match_handler(plan, channel, 0);
    other = PMPI_Comm_dup(plan->far, &channel->far);
    return error ? error : other;
}

// Frees what was made of a channel.
static void free_channel(struct channel *channel)
{
    if (channel->teller != MPI_ERRHANDLER_NULL)
        PMPI_Errhandler_free(&channel->teller);
    if (channel->own != MPI_COMM_NULL)
        PMPI_Comm_free(&channel->own);
    if (channel->far != MPI_COMM_NULL)
        PMPI_Comm_free(&channel->far);
}

// Makes a channel, if all ranks can. Collective. Returns whether they could.
static int add_channel(struct plan *plan)
{
    struct channel *channel = &plan->channels[plan->channel_count];
    int failed = make_channel(plan, channel) != MPI_SUCCESS, any = 1;
    int error = PMPI_Allreduce(&failed, &any, 1, MPI_INT, MPI_MAX, plan->far);
    if (error)
        plan->broken = 1; // ranks may disagree on whether there is a channel
    if (error || any) {
        plan->settings.persistent = 0;
        free_channel(channel);
        return 0;
    }
    plan->channel = plan->channel_count++;
    return 1;
}

// Finds a channel whose tags no rank uses, or makes one. Collective. Returns whether there is one.
static int next_channel(struct plan *plan)
{
    int live[CHANNELS_MAX], most[CHANNELS_MAX], made = plan->channel_count;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < made; i++)
        live[i] = plan->channels[i].live;
    pthread_mutex_unlock(&lock);
    if (made > 0 && PMPI_Allreduce(live, most, made, MPI_INT, MPI_MAX, plan->far)) {
        plan->broken = 1;
        return 0;
    }
    for (int i = 0; i < made; i++)
        if (most[i] == 0) {
            plan->channels[i].next_tag = 0;
            plan->channel = i;
            return 1;
        }
    return made < CHANNELS_MAX && add_channel(plan);
}

// Takes tags, which are the same at all ranks. Returns whether there were enough.
static int reserve(struct plan *plan, struct persistent *one)
{
    int most = 2 * plan->tags < CHANNEL_TAGS_MAX ? 2 * plan->tags : CHANNEL_TAGS_MAX;
    if (one->tags == 0) // the MPI was chosen
        return 0;
    int fits = plan->channel_count > 0 && one->tags <= most - plan->channels[plan->channel].next_tag;
    if (!fits && (one->tags > most || !next_channel(plan))) {
        if (one->settings.trace == EACH_CALL && plan->rank == 0)
            fprintf(stderr,
                    "isthmus-collectives: no %d tags are left for a persistent collective: it is left to the MPI\n",
                    one->tags);
        return 0;
    }
    one->channel = &plan->channels[plan->channel];
    one->tag = one->channel->next_tag;
    one->channel->next_tag += one->tags;
    return 1;
}

void free_channels(struct plan *plan)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < BUCKETS; i++)
        for (struct persistent *one = buckets[i]; one; one = one->next)
            if (one->plan == plan)
                one->plan = NULL;
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < plan->channel_count; i++) {
        match_handler(plan, &plan->channels[i], 1);
        free_channel(&plan->channels[i]);
    }
}

// --- from its initialization until it is freed ---------------------------------

// The MPIs' own persistent collectives read arrays only when they are initialized, and mpi4py frees the counts of
// Reduce_scatter_init then (4.1.2).
static int copy_arrays(struct persistent *one)
{
    struct arguments *with = &one->arguments;
    const void **arrays[ARRAYS] = {&with->counts, &with->to_counts, &with->displs,
                                   &with->to_displs, &with->types, &with->to_types};
    const size_t sizes[ARRAYS / 2] = {with->count_size, with->displ_size, sizeof(MPI_Datatype)};
    for (int i = 0; i < ARRAYS; i++) {
        size_t bytes = (size_t)one->plan->ranks * sizes[i / 2];
        if (!*arrays[i])
            continue;
        if (!(one->copies[i] = malloc(bytes)))
            return MPI_ERR_NO_MEM;
        *arrays[i] = memcpy(one->copies[i], *arrays[i], bytes);
    }
    return MPI_SUCCESS;
}

static int hold_one(struct persistent *one, MPI_Datatype type, MPI_Op op)
{
    struct kept *held = hold(type, op);
    if (held)
        one->held[one->held_count++] = held;
    return held ? MPI_SUCCESS : MPI_ERR_NO_MEM;
}

static int hold_type(struct persistent *one, MPI_Datatype type)
{
    return type == (MPI_Datatype){0} || type == MPI_DATATYPE_NULL ? MPI_SUCCESS : hold_one(one, type, MPI_OP_NULL);
}

// Other ranks than the root may give anything for arguments of the root's, so no MPI function gets to see these.
static int hold_arguments(struct persistent *one)
{
    const struct arguments *with = &one->arguments;
    const MPI_Datatype *types = with->types, *to_types = with->to_types;
    int ranks = types || to_types ? one->plan->ranks : 0, error;
    if (!(one->held = malloc((3 + 2 * (size_t)ranks) * sizeof *one->held)))
        return MPI_ERR_NO_MEM;
    if (!(error = hold_type(one, with->type)))
        error = hold_type(one, with->to_type);
    for (int i = 0; i < ranks && !error; i++) {
        error = types ? hold_type(one, types[i]) : MPI_SUCCESS;
        if (!error && to_types)
            error = hold_type(one, to_types[i]);
    }
    if (!error && with->op != (MPI_Op){0} && with->op != MPI_OP_NULL)
        error = hold_one(one, MPI_DATATYPE_NULL, with->op);
    return error;
}

static void drop(struct persistent *one)
{
    for (int i = 0; i < one->held_count; i++)
        let_go(one->held[i]);
    for (int i = 0; i < ARRAYS; i++)
        free(one->copies[i]);
    free(one->held);
    free(one);
}

int make_persistent(struct plan *plan, starter *start, const struct arguments *arguments, MPI_Request *request)
{
    if (!plan->settings.persistent)
        return LEAVE;
    struct persistent *one = malloc(sizeof *one);
    if (!one)
        return MPI_ERR_NO_MEM;
    *one = (struct persistent){.plan = plan, .settings = plan->settings, .start = start, .arguments = *arguments};
    start(plan, &(struct later){.persistent = one}, &one->arguments); // only chooses
    int error = reserve(plan, one) ? copy_arrays(one) : LEAVE;
    if (!error)
        error = hold_arguments(one);
    if (!error)
        error = PMPI_Recv_init(NULL, 0, MPI_BYTE, 0, one->tag, one->channel->own, &one->request);
    if (error) {
        drop(one);
        return error;
    }
    pthread_mutex_lock(&lock);
    one->channel->live++;
    one->next = *bucket_of(one->request);
    *bucket_of(one->request) = one;
    pthread_mutex_unlock(&lock);
    atomic_fetch_add(&count, 1);
    *request = one->request;
    return MPI_SUCCESS;
}

// Removes it. Then the caller calls free_unused.
static void release(struct persistent *one)
{
    pthread_mutex_lock(&lock);
    struct persistent **at = bucket_of(one->request);
    while (*at != one)
        at = &(*at)->next;
    *at = one->next;
    if (one->plan && !one->error)
        one->channel->live--;
    pthread_mutex_unlock(&lock);
    atomic_fetch_sub(&count, 1);
    drop(one);
}

// --- its starts ----------------------------------------------------------------

void end_of_start(struct persistent *one, int error)
{
    static const char TOO_LONG = 0;
    MPI_Request sent;
    if (error)
        match_handler(one->plan, one->channel, 0);
    pthread_mutex_lock(&lock);
    MPI_Comm own = one->channel->own;
    int tag = one->tag, freed = one->state == FREED;
    one->active = 0;
    one->error = error;
    pthread_mutex_unlock(&lock);
    // From here on the program may start it again, or free it.
    if (PMPI_Isend(&TOO_LONG, error ? 1 : 0, MPI_BYTE, 0, tag, own, &sent) == MPI_SUCCESS)
        PMPI_Request_free(&sent);
    if (freed)
        release(one);
}

static int start(struct persistent *one, MPI_Request *request)
{
    pthread_mutex_lock(&lock);
    struct plan *plan = one->plan;
    int error = plan ? one->error : MPI_ERR_COMM;
    pthread_mutex_unlock(&lock);
    if (error || (error = PMPI_Start(request)))
        return tell(one, error);
    pthread_mutex_lock(&lock);
    one->active = 1;
    pthread_mutex_unlock(&lock);
    error = one->start(plan, &(struct later){.persistent = one}, &one->arguments);
    if (error) { // no flow goes on
        one->told = 1;
        end_of_start(one, error == LEAVE ? MPI_ERR_INTERN : error);
    }
    return tell(one, error);
}

#pragma GCC visibility push(default)

int MPI_Start(MPI_Request *request)
{
    struct persistent *one = find(request);
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
    struct persistent *one = find(request);
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
    if (error || active) // an active one is released when its flow has ended
        return error;
    release(one);
    free_unused();
    return MPI_SUCCESS;
}

// MPI forbids to cancel a collective. The MPI would cancel the receive.
int MPI_Cancel(MPI_Request *request)
{
    const struct persistent *one = find(request);
    return one ? tell(one, MPI_ERR_REQUEST) : PMPI_Cancel(request);
}

#pragma GCC visibility pop

#else

const struct settings *settings_of(const struct plan *plan, const struct later *later) { return (void)later, &plan->settings; }
int is_start(const struct later *later) { return (void)later, 0; }
int note_choice(const struct later *later, int64_t tags) { return (void)later, (void)tags, 0; }
void take_tags(struct flow *flow) { (void)flow; }
void end_of_start(struct persistent *one, int error) { (void)one, (void)error; }
void free_channels(struct plan *plan) { (void)plan; }

#endif
