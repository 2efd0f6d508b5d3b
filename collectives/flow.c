// Messages under way.
#include "internal.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Assumed rate of a copy to memory that is touched for the first time. Bytes per second.
#define COPY_RATE 1e9
// Most memory for sends that outlive their collective, for each communicator. Bytes.
#define DETACHED_MAX ((int64_t)64 << 20)

// Whether Isthmus carries the messages of this process. If so, its I/O thread moves them while the program computes.
static int has_provider(void)
{
    char line[4096];
    int has = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && !has && fgets(line, sizeof line, maps))
        has = strstr(line, "/libisthmus-fi.so") != NULL;
    if (maps)
        fclose(maps);
    return has;
}

int64_t detached_most(const struct settings *settings)
{
    if (settings->detach >= 0)
        return settings->detach;
    double most = settings->rtt_s / 2 * COPY_RATE;
    return !has_provider() ? 0 : most < (double)DETACHED_MAX ? (int64_t)most : DETACHED_MAX;
}

// Calls of functions whose errors go to HEARER (mpis.h), and the handler that the program has set there. While there are
// calls, errors are returned. Else a program whose communicator returns errors would be aborted.
static pthread_mutex_t hearing = PTHREAD_MUTEX_INITIALIZER;
static int quiet_calls;
static MPI_Errhandler program_handler = MPI_ERRHANDLER_NULL;

static void begin_quiet(void)
{
    if (HEARER == MPI_COMM_NULL)
        return;
    pthread_mutex_lock(&hearing);
    if (quiet_calls++ == 0 && has_world() && PMPI_Comm_get_errhandler(HEARER, &program_handler) == MPI_SUCCESS)
        PMPI_Comm_set_errhandler(HEARER, MPI_ERRORS_RETURN);
    pthread_mutex_unlock(&hearing);
}

static void end_quiet(void)
{
    if (HEARER == MPI_COMM_NULL)
        return;
    pthread_mutex_lock(&hearing);
    if (--quiet_calls == 0 && program_handler != MPI_ERRHANDLER_NULL) {
        PMPI_Comm_set_errhandler(HEARER, program_handler);
        PMPI_Errhandler_free(&program_handler);
    }
    pthread_mutex_unlock(&hearing);
}

// The program's own calls meanwhile, from another thread. A handler is kept by a reference of ours, which only a
// communicator can give: the program may free its own.
#define IS_HEARD(comm) (HEARER != MPI_COMM_NULL && (comm) == HEARER)

int set_handler(MPI_Comm comm, MPI_Errhandler handler)
{
    if (!IS_HEARD(comm))
        return PMPI_Comm_set_errhandler(comm, handler);
    pthread_mutex_lock(&hearing);
    int error = PMPI_Comm_set_errhandler(comm, handler);
    if (error == MPI_SUCCESS && quiet_calls > 0) {
        if (program_handler != MPI_ERRHANDLER_NULL)
            PMPI_Errhandler_free(&program_handler);
        PMPI_Comm_get_errhandler(comm, &program_handler);
        PMPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    }
    pthread_mutex_unlock(&hearing);
    return error;
}

int get_handler(MPI_Comm comm, MPI_Errhandler *handler)
{
    if (!IS_HEARD(comm))
        return PMPI_Comm_get_errhandler(comm, handler);
    pthread_mutex_lock(&hearing);
    int is_ours = quiet_calls > 0 && program_handler != MPI_ERRHANDLER_NULL;
    if (is_ours)
        PMPI_Comm_set_errhandler(comm, program_handler);
    int error = PMPI_Comm_get_errhandler(comm, handler);
    if (is_ours)
        PMPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    pthread_mutex_unlock(&hearing);
    return error;
}

int wait_for_all(int count, MPI_Request *requests)
{
    begin_quiet();
    int error = PMPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
    end_quiet();
    return error;
}

int test_all(int count, MPI_Request *requests, int *all)
{
    begin_quiet();
    int error = PMPI_Testall(count, requests, all, MPI_STATUSES_IGNORE);
    end_quiet();
    return error;
}

static int complete_some(struct flow *flow, enum patience patience, int *count)
{
    if (patience == IN_HOOK)
        return test_in_hook(flow->count, flow->requests, count, flow->places, flow->statuses);
    begin_quiet();
    int error = (patience == WAIT ? PMPI_Waitsome : PMPI_Testsome)(flow->count, flow->requests, count, flow->places, flow->statuses);
    end_quiet();
    return error;
}

void reap(struct plan *plan, int wait)
{
    for (struct detached **at = &plan->detached, *one; (one = *at);) {
        int arrived = 1;
        int error = wait ? wait_for_all(one->count, one->requests) : test_all(one->count, one->requests, &arrived);
        if (error)
            plan->broken = 1; // its memory stays
        else if (!arrived) {
            at = &one->next;
            continue;
        }
        *at = one->next;
        plan->detached_bytes -= one->bytes;
        for (int i = 0; !error && i < one->blocks; i++)
            free(one->memory[i]);
        if (!error)
            free(one->memory), free(one->requests), free(one);
    }
}

struct flow *flow_begin(struct flow *here, struct plan *plan, const struct later *later, int64_t tags)
{
    struct flow *flow = later ? malloc(sizeof *flow) : here;
    *here = (struct flow){.plan = plan, .comm = plan->far};
    if (later) {
        here->request = later->request;
        here->persistent = later->persistent;
    }
    // Other threads may be at work on the communicator while one starts a persistent collective.
    if (!here->persistent)
        reap(plan, 0);
    if (!flow) {
        flow_fail(here, MPI_ERR_NO_MEM);
        return here;
    }
    *flow = *here;
    if (flow->persistent)
        take_tags(flow);
    else if (flow->request) {
        flow->tags = (int)tags; // fewer than plan->tags: choose has looked
        flow->tag = reserve_tags(plan, flow->tags);
    }
    return flow;
}

void flow_fail(struct flow *flow, int error)
{
    if (error == MPI_SUCCESS)
        return;
    // Others may wait for messages that this rank does not send, or take tags that it does not take. The next collective
    // would then be confused with this one. A persistent one is confused with its own next start only.
    if (!flow->persistent)
        flow->plan->broken = 1;
    if (flow->error == MPI_SUCCESS)
        flow->error = error;
}

void *flow_memory(struct flow *flow, int64_t bytes)
{
    if (flow->error)
        return NULL;
    if (flow->blocks == flow->block_room) {
        int room = flow->block_room ? 2 * flow->block_room : 16;
        void **memory = realloc(flow->memory, (size_t)room * sizeof *memory);
        if (!memory) {
            flow_fail(flow, MPI_ERR_NO_MEM);
            return NULL;
        }
        flow->memory = memory;
        flow->block_room = room;
    }
    void *block = malloc(bytes > 0 ? (size_t)bytes : 1);
    if (block)
        flow->memory[flow->blocks++] = block;
    else
        flow_fail(flow, MPI_ERR_NO_MEM);
    return block;
}

// Gets a free place for a request. Returns NULL after an error.
static MPI_Request *place_for(struct flow *flow, follow *then, void *what, int64_t index)
{
    if (flow->error)
        return NULL;
    if (flow->count == flow->room) {
        int room = flow->room ? 2 * flow->room : 64;
        MPI_Request *requests = realloc(flow->requests, (size_t)room * sizeof *requests);
        if (requests)
            flow->requests = requests;
        struct under_way *under_way = realloc(flow->under_way, (size_t)room * sizeof *under_way);
        if (under_way)
            flow->under_way = under_way;
        struct under_way *ended = realloc(flow->ended, (size_t)room * sizeof *ended);
        if (ended)
            flow->ended = ended;
        int *places = realloc(flow->places, (size_t)room * sizeof *places);
        if (places)
            flow->places = places;
        MPI_Status *statuses = realloc(flow->statuses, (size_t)room * sizeof *statuses);
        if (statuses)
            flow->statuses = statuses;
        if (!requests || !under_way || !ended || !places || !statuses) {
            flow_fail(flow, MPI_ERR_NO_MEM);
            return NULL;
        }
        flow->room = room;
    }
    flow->under_way[flow->count] = (struct under_way){.then = then, .what = what, .index = index, .from = -1};
    flow->requests[flow->count] = MPI_REQUEST_NULL;
    flow->live++;
    return &flow->requests[flow->count++];
}

static void started(struct flow *flow, int error)
{
    if (error == MPI_SUCCESS)
        return;
    flow_fail(flow, error);
    flow->count--;
    flow->live--;
}

static void detach(struct flow *flow, const void *data, MPI_Count count, MPI_Datatype type, int to, int tag, int64_t bytes)
{
    if (flow->error)
        return;
    if (flow->detached_count == flow->detached_room) {
        int room = flow->detached_room ? 2 * flow->detached_room : 16;
        MPI_Request *requests = realloc(flow->detached, (size_t)room * sizeof *requests);
        if (!requests) {
            flow_fail(flow, MPI_ERR_NO_MEM);
            return;
        }
        flow->detached = requests;
        flow->detached_room = room;
    }
    flow_fail(flow, COUNTED(PMPI_Isend)(data, (counted)count, type, to, flow->tag + tag, flow->comm, &flow->detached[flow->detached_count]));
    if (!flow->error) {
        flow->detached_count++;
        flow->detached_bytes += bytes;
    }
}

// The bytes of a far send that may outlive its collective; 0: it may not.
static int64_t detachable(const struct flow *flow, MPI_Count count, MPI_Datatype type, int to, struct shape *shape)
{
    const struct plan *plan = flow->plan;
    if (flow->error || plan->detached_most == 0 || plan->site_of[to] == plan->site || shape_of(type, shape))
        return 0;
    int64_t bytes = count * shape->size;
    return plan->detached_bytes + flow->detached_bytes + bytes <= plan->detached_most ? bytes : 0;
}

static void attach(struct flow *flow, const void *data, MPI_Count count, MPI_Datatype type, int to, int tag, follow *then, void *what, int64_t index)
{
    MPI_Request *request = place_for(flow, then, what, index);
    if (request)
        started(flow, COUNTED(PMPI_Isend)(data, (counted)count, type, to, flow->tag + tag, flow->comm, request));
}

void flow_send(struct flow *flow, const void *data, MPI_Count count, MPI_Datatype type, int to, int tag, follow *then, void *what, int64_t index)
{
    struct shape shape;
    int64_t bytes = then ? 0 : detachable(flow, count, type, to, &shape);
    void *copy = bytes ? flow_elements(flow, count, &shape) : NULL;
    if (!copy) {
        attach(flow, data, count, type, to, tag, then, what, index);
        return;
    }
    copy_elements(flow, data, count, type, copy, count, type);
    detach(flow, copy, count, type, to, tag, bytes);
}

void flow_send_kept(struct flow *flow, const void *data, MPI_Count count, MPI_Datatype type, int to, int tag)
{
    struct shape shape;
    int64_t bytes = detachable(flow, count, type, to, &shape);
    if (bytes)
        detach(flow, data, count, type, to, tag, bytes);
    else
        attach(flow, data, count, type, to, tag, NULL, NULL, 0);
}

void flow_receive(struct flow *flow, void *data, MPI_Count count, MPI_Datatype type, int from, int tag, follow *then, void *what, int64_t index)
{
    struct shape shape;
    MPI_Request *request = place_for(flow, then, what, index);
    if (!request)
        return;
    if (flow->arrivals && flow->plan->site_of[from] != flow->plan->site && shape_of(type, &shape) == MPI_SUCCESS) {
        flow->under_way[flow->count - 1].far_bytes = count * shape.size;
        flow->under_way[flow->count - 1].far_site = flow->plan->site_of[from];
    }
    struct under_way *own = &flow->under_way[flow->count - 1];
    own->from = from;
    own->tag = flow->tag + tag;
    own->count = count;
    own->type = type;
    started(flow, COUNTED(PMPI_Irecv)(data, (counted)count, type, from, flow->tag + tag, flow->comm, request));
}

// Removes completed requests, so that the next wait looks at fewer.
static void compact(struct flow *flow)
{
    int kept = 0;
    for (int i = 0; i < flow->count; i++)
        if (flow->requests[i] != MPI_REQUEST_NULL) {
            flow->requests[kept] = flow->requests[i];
            flow->under_way[kept++] = flow->under_way[i];
        }
    flow->count = kept;
}

void flow_step(struct flow *flow, enum patience patience)
{
    int count = 0;
    if (flow->error || flow->live == 0)
        return;
    int error = complete_some(flow, patience, &count);
    if (error != MPI_SUCCESS) {
        int class = MPI_ERR_OTHER;
        PMPI_Error_class(error, &class);
        for (int i = 0; class == MPI_ERR_IN_STATUS && i < count; i++)
            flow_fail(flow, flow->statuses[i].MPI_ERROR);
        flow_fail(flow, error);
        return;
    }
    if (count == MPI_UNDEFINED || (patience == WAIT && count <= 0)) {
        flow_fail(flow, MPI_ERR_INTERN);
        return;
    }
    double now_s = flow->arrivals && count > 0 ? PMPI_Wtime() : 0;
    for (int i = 0; i < count; i++) {
        flow->ended[i] = flow->under_way[flow->places[i]];
        if (flow->ended[i].far_bytes)
            arrived(flow, flow->ended[i].far_site, flow->ended[i].far_bytes, now_s);
    }
    flow->live -= count;
    if (count > 0)
        compact(flow);
    // A function that is called here may start messages, and so move the arrays.
    for (int i = 0; i < count && !flow->error; i++)
        if (flow->ended[i].then)
            flow->ended[i].then(flow, flow->ended[i].what, flow->ended[i].index);
}

void flow_wait(struct flow *flow)
{
    while (!flow->error && flow->live > 0)
        flow_step(flow, WAIT);
}

// Receives into memory that stays what a cancelled receive would have got.
static void replace_receive(struct flow *flow, int i)
{
    const struct under_way *own = &flow->under_way[i];
    MPI_Count size;
    void *memory = PMPI_Type_size_x(own->type, &size) ? NULL : malloc((size_t)(own->count * size) + 1);
    if (memory)
        COUNTED(PMPI_Irecv)(memory, (counted)(own->count * size), MPI_BYTE, own->from, own->tag, flow->comm, &flow->requests[i]);
}

// After an error, no late message may be written to buffers that the program then uses for something else. So receives
// are cancelled, and those that had not begun are replaced by receives into memory that stays: else senders would wait.
static void divert_receives(struct flow *flow)
{
    begin_quiet();
    for (int i = 0; i < flow->count; i++) {
        const struct under_way *own = &flow->under_way[i];
        MPI_Request *request = &flow->requests[i];
        MPI_Status status;
        int cancelled = 0;
        if (own->from >= 0 && *request != MPI_REQUEST_NULL && PMPI_Cancel(request) == MPI_SUCCESS && PMPI_Wait(request, &status) == MPI_SUCCESS &&
            PMPI_Test_cancelled(&status, &cancelled) == MPI_SUCCESS && cancelled)
            replace_receive(flow, i);
    }
    end_quiet();
}

int flow_divert(struct flow *flow)
{
    int waits = 0;
    for (int i = 0; i < flow->count; i++) {
        struct under_way *own = &flow->under_way[i];
        MPI_Status status;
        int one = 0, place, cancelled = 0;
        if (own->from < 0 || flow->requests[i] == MPI_REQUEST_NULL || own->diverted)
            continue;
        if (!flow->diverting && PMPI_Cancel(&flow->requests[i]))
            continue;
        int error = test_in_hook(1, &flow->requests[i], &one, &place, &status);
        if (!error && one == 0) {
            waits = 1; // its message has begun to come
            continue;
        }
        own->diverted = 1;
        if (!error && PMPI_Test_cancelled(&status, &cancelled) == MPI_SUCCESS && cancelled)
            replace_receive(flow, i);
    }
    flow->diverting = 1;
    return waits;
}

// Moves the flow's memory to the sends that are still under way.
static struct detached *keep(struct flow *flow)
{
    struct detached *one = malloc(sizeof *one);
    if (!one)
        return NULL;
    *one = (struct detached){flow->plan->detached, flow->detached, flow->detached_count, flow->detached_bytes, flow->memory, flow->blocks};
    flow->plan->detached = one;
    flow->plan->detached_bytes += one->bytes;
    return one;
}

void flow_adopt_detached(struct flow *flow)
{
    for (int i = 0; i < flow->detached_count; i++) {
        MPI_Request *place = place_for(flow, NULL, NULL, 0);
        if (place)
            *place = flow->detached[i];
    }
}

static void free_arrays(struct flow *flow)
{
    free(flow->under_way), free(flow->ended), free(flow->places), free(flow->statuses);
}

void flow_free(struct flow *flow)
{
    for (int i = 0; i < flow->blocks; i++)
        free(flow->memory[i]);
    free(flow->memory);
    free(flow->detached);
    free(flow->requests);
    free_arrays(flow);
}

int flow_end(struct flow *flow, follow *end, void *what)
{
    if (goes_on(flow)) {
        int error = go_on_later(flow, end, what);
        // It has failed while it started, so no hook takes it further.
        if (error)
            divert_receives(flow);
        return error;
    }
    flow_wait(flow);
    if (flow->arrivals && !flow->error)
        take_sample(flow);
    if (end && !flow->error)
        end(flow, what, 0);
    if (flow->error && (flow->live || flow->detached_count)) {
        divert_receives(flow);
        free_arrays(flow); // requests may still use the memory
        return flow->error;
    }
    if (flow->detached_count) {
        if (!keep(flow))
            flow_fail(flow, wait_for_all(flow->detached_count, flow->detached));
        else
            flow->memory = NULL, flow->detached = NULL, flow->blocks = 0;
    }
    flow_free(flow);
    return flow->error;
}
