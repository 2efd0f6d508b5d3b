// The plan of each communicator: an attribute that its first collective makes, and that is deleted with it.
#include "internal.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

// Measurements: messages of each kind, of which the least time counts, and the bytes of those that measure a rate.
enum { TRIPS = 4, RATE_TRIPS = 2, RATE_BYTES = 256 << 10 };
// Least measured time of a near message in seconds, below which the clock is too coarse; then a rate in bytes a second.
#define NEAR_MIN_S 1e-7
#define NEAR_RATE_MIN 1e7

static int keyval = MPI_KEYVAL_INVALID; // while MPI is initialized, by whichever model
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

// The communicator that a thread used last: looking at it costs less than the attribute. Once any plan is deleted, its
// handle may come to name another communicator, so all threads forget.
static atomic_uint deletions;
static _Thread_local struct {
    MPI_Comm comm;
    struct plan *plan; // NULL: none
    unsigned deletions;
} last;

static void free_comm(MPI_Comm *comm)
{
    if (*comm != MPI_COMM_NULL)
        PMPI_Comm_free(comm);
}

static void free_plan(struct plan *plan)
{
    if (!plan)
        return;
    wait_for_flows(plan); // MPI lets a program free a communicator while its operations are under way
    free_channels(plan);
    reap(plan, 1);
    free_rate(plan);
    free_comm(&plan->near);
    free_comm(&plan->self);
    free_comm(&plan->far);
    free(plan->site_of);
    free(plan->spot_of);
    free(plan->first);
    free(plan->members);
    free(plan);
}

// All ranks of a communicator free it together, so they also free the plan's communicators together.
static int delete_plan(MPI_Comm comm, int key, void *value, void *extra)
{
    (void)comm, (void)key, (void)extra;
    atomic_fetch_add(&deletions, 1);
    free_plan(value);
    return MPI_SUCCESS;
}

static void make_keyval(void)
{
    pthread_mutex_lock(&making);
    if (keyval == MPI_KEYVAL_INVALID)
        PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, delete_plan, &keyval, NULL);
    pthread_mutex_unlock(&making);
}

void forget_keyval(void)
{
    pthread_mutex_lock(&making);
    if (keyval != MPI_KEYVAL_INVALID)
        PMPI_Comm_free_keyval(&keyval);
    pthread_mutex_unlock(&making);
}

static int arrange(struct plan *plan)
{
    plan->spot_of = calloc((size_t)plan->ranks, sizeof *plan->spot_of);
    plan->members = calloc((size_t)plan->ranks, sizeof *plan->members);
    plan->first = calloc((size_t)plan->sites + 1, sizeof *plan->first);
    if (!plan->spot_of || !plan->members || !plan->first)
        return MPI_ERR_NO_MEM;
    int next = 0;
    plan->blocks = 1;
    for (int site = 0; site < plan->sites; site++) {
        plan->first[site] = next;
        for (int rank = 0; rank < plan->ranks; rank++)
            if (plan->site_of[rank] == site) {
                plan->spot_of[rank] = next - plan->first[site];
                plan->blocks &= next == rank;
                plan->members[next++] = rank;
            }
    }
    plan->first[plan->sites] = next;
    plan->site = plan->site_of[plan->rank];
    plan->spot = plan->spot_of[plan->rank];
    return MPI_SUCCESS;
}

// A communicator of some ranks; only they exchange messages. Errors on it are returned.
static int make_part(struct plan *plan, MPI_Group all, int count, const int *ranks, int tag, MPI_Comm *part)
{
    MPI_Group group;
    int error = PMPI_Group_incl(all, count, ranks, &group);
    if (error)
        return error;
    if (!(error = PMPI_Comm_create_group(plan->far, group, tag, part)))
        error = PMPI_Comm_set_errhandler(*part, MPI_ERRORS_RETURN);
    PMPI_Group_free(&group);
    return error;
}

// Not of MPI_COMM_SELF, which programs that use sessions only do not have. Nor is it a copy of another communicator of
// one rank: Open MPI makes communicators one after the other, by the numbers of those that they come from. If these
// numbers differ between ranks, threads that make communicators at once wait for each other (5.0.11).
int make_own(struct plan *plan, MPI_Comm *own)
{
    MPI_Group all;
    int error = PMPI_Comm_group(plan->far, &all);
    if (!error) {
        error = make_part(plan, all, 1, &plan->rank, 1, own);
        PMPI_Group_free(&all);
    }
    return error;
}

static int make_comms(struct plan *plan)
{
    MPI_Group all;
    int error = PMPI_Comm_group(plan->comm, &all);
    if (error)
        return error;
    // It has the same group, but not the program's attributes, which MPI_Comm_dup would copy.
    if (!(error = PMPI_Comm_create(plan->comm, all, &plan->far)))
        error = PMPI_Comm_set_errhandler(plan->far, MPI_ERRORS_RETURN);
    if (!error)
        error = make_part(plan, all, size_of(plan, plan->site), plan->members + plan->first[plan->site], 0, &plan->near);
    PMPI_Group_free(&all);
    if (!error)
        error = make_own(plan, &plan->self);
    int *most = NULL, found = 0;
    if (!error)
        error = PMPI_Comm_get_attr(plan->far, MPI_TAG_UB, &most, &found);
    if (!error && !found && has_world())
        error = PMPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &most, &found); // Open MPI has it there only
    int tag_most = found ? *most : 32767;
    plan->tags = tag_most / 2; // so 2 * tags is still an int, and no tag
    return error;
}

// The least time of a round trip. Seconds. Both ranks call it.
static int ping(struct plan *plan, int first, int second, int trips, char *data, int bytes, double *best)
{
    int error = MPI_SUCCESS;
    *best = 1e9;
    for (int i = 0; i < trips && !error; i++) {
        double began = PMPI_Wtime();
        if (plan->rank == first && !(error = PMPI_Send(data, bytes, MPI_BYTE, second, 0, plan->far)))
            error = PMPI_Recv(data, bytes, MPI_BYTE, second, 0, plan->far, MPI_STATUS_IGNORE);
        if (plan->rank == second && !(error = PMPI_Recv(data, bytes, MPI_BYTE, first, 0, plan->far, MPI_STATUS_IGNORE)))
            error = PMPI_Send(data, bytes, MPI_BYTE, first, 0, plan->far);
        double took = PMPI_Wtime() - began;
        if (took < *best)
            *best = took;
    }
    return error;
}

// Measures the parameters that the settings do not give. Rank 0, the first member of site 0, measures and tells all.
static int measure(struct plan *plan)
{
    struct settings *known = &plan->settings;
    int error = MPI_SUCCESS;
    double took;
    if (known->rtt_s == 0) {
        for (int site = 1; site < plan->sites && !error; site++) {
            error = ping(plan, 0, member(plan, site, 0), TRIPS, (char[1]){0}, 1, &took);
            if (plan->rank == 0 && took > known->rtt_s)
                known->rtt_s = took;
        }
    }
    int near = 0;
    while (near < plan->sites && size_of(plan, near) < 2)
        near++;
    if (!error && near < plan->sites && (known->near_s == 0 || known->near_rate == 0)) {
        int first = member(plan, near, 0), second = member(plan, near, 1);
        char *data = calloc(1, RATE_BYTES);
        double least = 0, long_one = 0, figures[2];
        if (plan->rank == first || plan->rank == second) {
            if (!data || (error = ping(plan, first, second, TRIPS, data, 1, &least)) ||
                (error = ping(plan, first, second, RATE_TRIPS, data, RATE_BYTES, &long_one)))
                error = error ? error : MPI_ERR_NO_MEM;
        }
        free(data);
        figures[0] = least / 2;
        figures[1] = long_one > least ? 2 * RATE_BYTES / (long_one - least) : 1e9;
        if (!error)
            error = PMPI_Bcast(figures, 2, MPI_DOUBLE, first, plan->far);
        if (known->near_s == 0)
            known->near_s = figures[0];
        if (known->near_rate == 0)
            known->near_rate = figures[1];
    }
    if (known->near_s < NEAR_MIN_S)
        known->near_s = NEAR_MIN_S;
    if (known->near_rate < NEAR_RATE_MIN)
        known->near_rate = NEAR_RATE_MIN;
    if (!error)
        error = PMPI_Bcast(known, sizeof *known, MPI_BYTE, 0, plan->far);
    return error;
}

// Makes a plan; NULL after an error. A communicator within one site, or between two groups, also gets a plan, which
// says so.
static struct plan *make_plan(MPI_Comm comm)
{
    struct plan *plan = calloc(1, sizeof *plan);
    int between = 0, error;
    if (!plan)
        return NULL;
    plan->comm = comm;
    plan->far = plan->near = plan->self = MPI_COMM_NULL;
    plan->sites = 1;
    error = PMPI_Comm_test_inter(comm, &between);
    if (!error && !between) {
        struct map map = {.sites = 1};
        if (!(error = PMPI_Comm_size(comm, &plan->ranks)) && !(error = PMPI_Comm_rank(comm, &plan->rank)))
            error = map_of(comm, plan->rank, plan->ranks, &map);
        plan->sites = map.sites;
        plan->site_of = map.site_of;
        plan->settings = map.settings;
        if (!error && plan->sites > 1 && !(error = arrange(plan)) && !(error = make_comms(plan)))
            error = measure(plan);
        if (!error && plan->sites > 1)
            error = make_rate(plan);
        plan->detached_most = detached_most(&plan->settings);
    }
    if (error || (error = PMPI_Comm_set_attr(comm, keyval, plan))) {
        free_plan(plan);
        return NULL;
    }
    return plan;
}

// MPI_Finalize has begun. What delete functions of the program still call is left to the MPI.
static atomic_int closed;

static struct plan *look_up(MPI_Comm comm, int make)
{
    struct plan *plan = NULL;
    int found = 0;
    if (comm == MPI_COMM_NULL)
        return NULL;
    if (keyval == MPI_KEYVAL_INVALID)
        make_keyval();
    // Read before the plan is looked up, so that a later deletion is noticed.
    unsigned seen = atomic_load(&deletions);
    if (PMPI_Comm_get_attr(comm, keyval, &plan, &found) != MPI_SUCCESS)
        return NULL;
    if (!found && !make)
        return NULL;
    if (!found)
        plan = make_plan(comm);
    last.comm = comm;
    last.plan = plan;
    last.deletions = seen;
    return plan;
}

static struct plan *plan_to_use(MPI_Comm comm, int make)
{
    if (atomic_load(&closed))
        return NULL;
    struct plan *plan = last.plan && last.comm == comm && last.deletions == atomic_load(&deletions) ? last.plan : look_up(comm, make);
    return plan && plan->sites > 1 && !plan->broken ? plan : NULL;
}

struct plan *plan_of(MPI_Comm comm) { return plan_to_use(comm, 1); }

struct plan *made_plan_of(MPI_Comm comm)
{
    struct plan *plan = plan_to_use(comm, 0);
    return plan && plan->settings.nonblocking ? plan : NULL;
}

void drop_plans(void)
{
    const MPI_Comm comms[] = {MPI_COMM_WORLD, MPI_COMM_SELF};
    struct plan *plan;
    int found;
    atomic_store(&closed, 1);
    if (keyval == MPI_KEYVAL_INVALID)
        return;
    for (int i = 0; i < 2; i++)
        if (PMPI_Comm_get_attr(comms[i], keyval, &plan, &found) == MPI_SUCCESS && found)
            PMPI_Comm_delete_attr(comms[i], keyval);
}
