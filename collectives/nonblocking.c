// Non-blocking collectives: flows that go on after the call that started them.
//
// The program's request is a generalized request, so it works with all of MPI's functions. It completes when the flow
// has ended. The MPI calls our progress hook (mpis.h) whenever it makes progress, in whatever call, and the hook takes
// each flow a step further. So a rank that waits in MPI_Recv still does its part of a collective, as MPI demands.
//
// Only algorithms that never block within can run so: those of move.c and reduce.c that work "in parallel" or
// "directly". Detached sends of a flow may still be under way when its request completes; then the flow stays.
//
// Each flow has tags of its own. Without, a late message of one could match a receive of the next.
#include "internal.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

// For the list of flows, oldest first. No call that makes progress is made with it held, except by the hook, which gives
// up if another thread holds it.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct flow *flows, **flows_end = &flows;
static atomic_ulong next_number, ended; // flows with numbers below `ended` have ended
static atomic_int live; // flows in the list
static int hooked;      // the MPI calls the hook

// --- the request ---------------------------------------------------------------

static int query(void *outcome, MPI_Status *status)
{
    status->MPI_SOURCE = MPI_UNDEFINED;
    status->MPI_TAG = MPI_UNDEFINED;
    PMPI_Status_set_cancelled(status, 0);
    PMPI_Status_set_elements(status, MPI_BYTE, 0);
    return *(int *)outcome;
}

static int drop(void *outcome)
{
    free(outcome);
    return MPI_SUCCESS;
}

// MPI forbids to cancel a collective.
static int cancel(void *outcome, int complete)
{
    (void)outcome, (void)complete;
    return MPI_SUCCESS;
}

// --- steps ---------------------------------------------------------------------

static void keep_promise(struct flow *flow)
{
    if (flow->end && !flow->error)
        flow->end(flow, flow->end_what, 0);
    flow->kept = 1;
    if (flow->persistent)
        end_of_start(flow->persistent, flow->error);
    else {
        *flow->outcome = flow->error;
        PMPI_Grequest_complete(flow->promise); // from here on the outcome may be freed
    }
    // Detached sends go on as messages that nothing follows.
    if (!flow->error && flow->detached_count) {
        flow->plan->detached_bytes += flow->detached_bytes;
        flow_adopt_detached(flow);
    }
}

// Takes a flow a step further. Returns whether it has ended.
static int step(struct flow *flow, enum patience patience)
{
    flow_step(flow, patience);
    if (!flow->kept && flow->error && flow_divert(flow))
        return 0;
    if (!flow->kept && (flow->live == 0 || flow->error))
        keep_promise(flow);
    return flow->kept && (flow->live == 0 || flow->error);
}

static void bury(struct flow *flow)
{
    struct plan *plan = flow->plan;
    // Else requests may use its memory, as in flow_end.
    if (!flow->error || (flow->live == 0 && flow->detached_count == 0)) {
        plan->detached_bytes -= flow->detached_count ? flow->detached_bytes : 0;
        flow_free(flow);
    }
    atomic_fetch_sub(&plan->flows, 1);
}

// Takes all flows a step further. Returns whether any is left.
static int poll_flows(enum patience patience)
{
    static _Thread_local int inside;
    if (inside || atomic_load(&live) == 0 || pthread_mutex_trylock(&lock))
        return atomic_load(&live) > 0;
    inside = 1;
    for (struct flow **at = &flows, *flow; (flow = *at);) {
        if (!step(flow, patience)) {
            at = &flow->next;
            continue;
        }
        *at = flow->next;
        if (flows_end == &flow->next)
            flows_end = at;
        bury(flow);
        free(flow);
        atomic_fetch_sub(&live, 1);
    }
    atomic_store(&ended, flows ? flows->number : atomic_load(&next_number));
    int left = flows != NULL;
    hooked &= left;
    pthread_mutex_unlock(&lock);
    inside = 0;
    free_unused();
    return left;
}

// --- the hook ------------------------------------------------------------------

#if !PROGRESS_HOOK

int has_progress_hook(void) { return 0; }
static void hook(void) {}
static void unhook(void) {}

#elif defined(OPEN_MPI)

// Functions of Open MPI's core, libopen-pal, that its own non-blocking collectives use. Looked up by name, because
// programs are linked with libmpi only.
typedef int change_hooks(int (*hook)(void));
static change_hooks *change(const char *name) { return (change_hooks *)(uintptr_t)dlsym(RTLD_DEFAULT, name); }

// Returns the number of events, of which the MPI makes no use.
static int poll_in_progress(void)
{
    poll_flows(IN_HOOK);
    return 0;
}

static int registered;
static pthread_mutex_t registering = PTHREAD_MUTEX_INITIALIZER;

int has_progress_hook(void) { return change("opal_progress_register") && change("opal_progress_unregister"); }
static void hook(void)
{
    pthread_mutex_lock(&registering);
    if (!registered)
        change("opal_progress_register")(poll_in_progress);
    registered = 1;
    pthread_mutex_unlock(&registering);
}
static void unhook(void)
{
    pthread_mutex_lock(&registering);
    if (registered)
        change("opal_progress_unregister")(poll_in_progress);
    registered = 0; // another session may follow
    pthread_mutex_unlock(&registering);
}

#else

static int poll_in_progress(MPIX_Async_thing thing)
{
    // A delete function of the program may make progress. Then only the outer call says that the hook is done.
    static _Thread_local int nested;
    (void)thing;
    if (nested)
        return MPIX_ASYNC_NOPROGRESS;
    nested = 1;
    int left = poll_flows(IN_HOOK);
    nested = 0;
    return left ? MPIX_ASYNC_NOPROGRESS : MPIX_ASYNC_DONE;
}

int has_progress_hook(void) { return 1; }
static void hook(void) { PMPIX_Async_start(poll_in_progress, NULL, MPIX_STREAM_NULL); }
static void unhook(void) {}

#endif

int test_in_hook(int count, MPI_Request *requests, int *done, int *places, MPI_Status *statuses)
{
#if PROGRESS_HOOK && !defined(OPEN_MPI)
    *done = 0;
    for (int i = 0; i < count; i++)
        if (requests[i] != MPI_REQUEST_NULL && PMPIX_Request_is_complete(requests[i])) {
            places[*done] = i;
            // It is complete, so this makes no progress.
            int error = PMPI_Wait(&requests[i], &statuses[*done]);
            statuses[(*done)++].MPI_ERROR = error;
            if (error)
                return MPI_ERR_IN_STATUS;
        }
    return MPI_SUCCESS;
#else
    return PMPI_Testsome(count, requests, done, places, statuses);
#endif
}

// --- begin and end -------------------------------------------------------------

int go_on_later(struct flow *flow, follow *end, void *what)
{
    flow->end = end;
    flow->end_what = what;
    if (!flow->error && !flow->persistent && !(flow->outcome = malloc(sizeof *flow->outcome)))
        flow_fail(flow, MPI_ERR_NO_MEM);
    if (!flow->error && !flow->persistent)
        flow_fail(flow, PMPI_Grequest_start(query, drop, cancel, flow->outcome, &flow->promise));
    if (flow->error)
        return flow->error; // messages may be under way, so its memory stays
    if (!flow->persistent)
        *flow->request = flow->promise;
    pthread_mutex_lock(&lock);
    flow->next = NULL;
    flow->number = atomic_fetch_add(&next_number, 1);
    *flows_end = flow;
    flows_end = &flow->next;
    atomic_fetch_add(&flow->plan->flows, 1);
    atomic_fetch_add(&live, 1);
    int start = !hooked;
    hooked = 1;
    pthread_mutex_unlock(&lock);
    if (start)
        hook();
    return MPI_SUCCESS;
}

// Whether messages of a flow of this plan may still match receives with these tags.
static int uses_tags(const struct plan *plan, int first, int tags)
{
    int uses = 0;
    pthread_mutex_lock(&lock);
    for (const struct flow *flow = flows; flow; flow = flow->next)
        uses |= flow->plan == plan && !flow->persistent && !flow->kept && flow->tag < first + tags && first < flow->tag + flow->tags;
    pthread_mutex_unlock(&lock);
    return uses;
}

int reserve_tags(struct plan *plan, int tags)
{
    if (plan->next_tag + tags > plan->tags)
        plan->next_tag = 0;
    int first = plan->tags + plan->next_tag;
    plan->next_tag += tags;
    while (uses_tags(plan, first, tags))
        poll_flows(LOOK);
    return first;
}

void wait_for_flows(const struct plan *plan)
{
    while (atomic_load(plan ? &plan->flows : &live) > 0)
        poll_flows(LOOK);
}

void end_flows(void)
{
    wait_for_flows(NULL);
    unhook();
}

unsigned long flows_begun(void) { return atomic_load(&next_number); }
unsigned long flows_ended(void) { return atomic_load(&ended); }
