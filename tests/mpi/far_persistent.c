// Persistent collectives, of which the collectives library must take care:
//
//   far_persistent again                 started by one call, beside persistent messages
//   far_persistent orders SEED ROUNDS    started and freed by each rank in an order of its own, amid other collectives
//   far_persistent threads ROUNDS        started by two threads, while a third one calls other collectives
//   far_persistent many TIMES STARTS     made, started and freed again and again, while an early one stays; memory does not grow
//   far_persistent errors                whose last rank has too short a buffer: the program's error handler hears of it
//   far_persistent unmade                of which one rank cannot make what they need: the MPI runs them, and nothing stays
//   far_persistent left                  left behind: communicators are freed first, and MPI_Finalize finds some
//
// Datatypes and operations are freed as soon as a request is made. A last argument `stock` leaves out what the MPIs' own
// persistent collectives cannot do: with Open MPI 5.0 these crash then, and leak; with MPICH 5.0 a repeated MPI_Testall fails.
#include "check.h"

#include <pthread.h>
#include <stdbool.h>

#if (defined(OPEN_MPI) && OMPI_MAJOR_VERSION >= 5) || (!defined(OPEN_MPI) && MPI_VERSION >= 4)

enum { COUNT = 700, RANKS_MAX = 16 }; // pairs of a block
enum kind { BARRIER, BCAST, REDUCE, ALLREDUCE, IN_PLACE, REDUCE_SCATTER, GATHER, SCATTER, ALLGATHER, ALLTOALL, ALLTOALLW, KINDS };
static const char *const NAMES[KINDS] = {"Barrier", "Bcast", "Reduce", "Allreduce", "Allreduce in place", "Reduce_scatter_block",
                                         "Gather", "Scatter", "Allgather", "Alltoall", "Alltoallw"};
typedef uint32_t pair[2];

struct call {
    enum kind kind;
    int root, blocks; // of the two buffers
    MPI_Comm comm;
    pair *from, *to;
    uint64_t seed; // of the present start
    MPI_Datatype type;
    MPI_Op op;
    int counts[RANKS_MAX], displs[RANKS_MAX];
    MPI_Datatype types[RANKS_MAX];
    MPI_Request request;
};

static void add_pairs(void *from, void *to, int *count, MPI_Datatype *type)
{
    (void)type;
    for (int i = 0; i < 2 * *count; i++)
        ((uint32_t *)to)[i] += ((uint32_t *)from)[i];
}

static uint64_t next(uint64_t *state)
{
    *state += 7919;
    return mixed(*state, 0);
}
static int below(uint64_t *state, int most) { return (int)(next(state) % (uint64_t)most); }

static void shuffle(uint64_t *state, int *what, int count)
{
    for (int i = count - 1; i > 0; i--) {
        int other = below(state, i + 1), kept = what[i];
        what[i] = what[other];
        what[other] = kept;
    }
}

// What a rank gives at an index of its buffer.
static uint32_t given(const struct call *call, int rank, int at, int part)
{
    return (uint32_t)mixed(call->seed * RANKS_MAX + (uint64_t)rank, (uint64_t)(2 * at + part));
}

// What a rank must have at an index of a block of its result.
static uint32_t expected(const struct call *call, int rank, int block, int at, int part)
{
    uint32_t sum = 0;
    switch (call->kind) {
    case BCAST: return given(call, call->root, at, part);
    case GATHER:
    case ALLGATHER: return given(call, block, at, part);
    case SCATTER: return given(call, call->root, COUNT * rank + at, part);
    case ALLTOALL:
    case ALLTOALLW: return given(call, block, COUNT * rank + at, part);
    default:
        for (int i = 0; i < world_size; i++)
            sum += given(call, i, call->kind == REDUCE_SCATTER ? COUNT * rank + at : at, part);
        return sum;
    }
}

static bool reduces(enum kind kind) { return kind >= REDUCE && kind <= REDUCE_SCATTER; }

static void free_types(struct call *call)
{
    if (call->type != MPI_DATATYPE_NULL)
        MPI_Type_free(&call->type);
    if (call->op != MPI_OP_NULL)
        MPI_Op_free(&call->op);
}

// Makes a request, with a datatype and an operation of its own, which are freed at once or later.
static void make(struct call *c, enum kind kind, int root, MPI_Comm comm, bool stock)
{
    *c = (struct call){.kind = kind, .root = root, .blocks = world_size, .comm = comm, .op = MPI_OP_NULL};
    c->from = allocate((size_t)world_size * COUNT * sizeof(pair));
    c->to = allocate((size_t)world_size * COUNT * sizeof(pair));
    MPI_Type_contiguous(2, MPI_UNSIGNED, &c->type);
    MPI_Type_commit(&c->type);
    if (reduces(kind))
        MPI_Op_create(add_pairs, 1, &c->op);
    for (int i = 0; i < world_size; i++)
        c->counts[i] = COUNT, c->displs[i] = (int)(i * COUNT * sizeof(pair)), c->types[i] = c->type;
    MPI_Info info = MPI_INFO_NULL;
    switch (kind) {
    case BARRIER: MPI_Barrier_init(comm, info, &c->request); break;
    case BCAST: MPI_Bcast_init(c->to, COUNT, c->type, root, comm, info, &c->request); break;
    case REDUCE: MPI_Reduce_init(c->from, c->to, COUNT, c->type, c->op, root, comm, info, &c->request); break;
    case ALLREDUCE: MPI_Allreduce_init(c->from, c->to, COUNT, c->type, c->op, comm, info, &c->request); break;
    case IN_PLACE: MPI_Allreduce_init(MPI_IN_PLACE, c->to, COUNT, c->type, c->op, comm, info, &c->request); break;
    case REDUCE_SCATTER: MPI_Reduce_scatter_block_init(c->from, c->to, COUNT, c->type, c->op, comm, info, &c->request); break;
    case GATHER: MPI_Gather_init(c->from, COUNT, c->type, c->to, COUNT, c->type, root, comm, info, &c->request); break;
    case SCATTER: MPI_Scatter_init(c->from, COUNT, c->type, c->to, COUNT, c->type, root, comm, info, &c->request); break;
    case ALLGATHER: MPI_Allgather_init(c->from, COUNT, c->type, c->to, COUNT, c->type, comm, info, &c->request); break;
    case ALLTOALL: MPI_Alltoall_init(c->from, COUNT, c->type, c->to, COUNT, c->type, comm, info, &c->request); break;
    case ALLTOALLW:
        MPI_Alltoallw_init(c->from, c->counts, c->displs, c->types, c->to, c->counts, c->displs, c->types, comm, info, &c->request);
        break;
    case KINDS: break;
    }
    if (!stock) {
        free_types(c);
        // As mpi4py does with some.
        memset(c->counts, 0xff, sizeof c->counts);
        memset(c->displs, 0xff, sizeof c->displs);
        memset(c->types, 0xff, sizeof c->types);
    }
}

static void begin(struct call *c, uint64_t seed)
{
    int all = world_size * COUNT;
    bool in_result = c->kind == IN_PLACE || (c->kind == BCAST && world_rank == c->root);
    c->seed = seed;
    for (int i = 0; i < all; i++)
        for (int part = 0; part < 2; part++) {
            c->from[i][part] = given(c, world_rank, i, part);
            c->to[i][part] = in_result ? c->from[i][part] : 0;
        }
    MPI_Start(&c->request);
}

static void check(const struct call *c)
{
    bool one_block = c->kind == BCAST || c->kind == SCATTER || reduces(c->kind);
    CHECK(c->request != MPI_REQUEST_NULL, "the request of a persistent %s is null", NAMES[c->kind]);
    if (c->kind == BARRIER || ((c->kind == REDUCE || c->kind == GATHER) && world_rank != c->root))
        return;
    for (int block = 0; block < (one_block ? 1 : c->blocks); block++)
        for (int i = 0; i < COUNT; i++)
            for (int part = 0; part < 2; part++) {
                uint32_t is = c->to[block * COUNT + i][part], must = expected(c, world_rank, block, i, part);
                CHECK(is == must, "%s, start %" PRIu64 ": block %d has %u at %d, not %u", NAMES[c->kind], c->seed, block, is, i, must);
            }
}

static void end(struct call *c)
{
    MPI_Request_free(&c->request);
    CHECK(c->request == MPI_REQUEST_NULL, "a freed request is not null");
    free_types(c);
    free(c->from), free(c->to);
}

// --- again -----------------------------------------------------------------------

// Collectives and messages are started by one call, in any order of completion, time after time.
static int again(bool stock)
{
    enum { TIMES = 20, CALLS = 3, ALL = CALLS + 2 };
    static const enum kind KIND[CALLS] = {ALLREDUCE, BCAST, BARRIER};
    struct call calls[CALLS];
    MPI_Request requests[ALL];
    MPI_Comm comm;
    int received, following = (world_rank + 1) % world_size, previous = (world_rank + world_size - 1) % world_size;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Send_init(&world_rank, 1, MPI_INT, following, 3, comm, &requests[CALLS]);
    MPI_Recv_init(&received, 1, MPI_INT, previous, 3, comm, &requests[CALLS + 1]);
    for (int i = 0; i < CALLS; i++) {
        make(&calls[i], KIND[i], 1, comm, stock);
        CHECK(stock || (calls[i].type == MPI_DATATYPE_NULL && calls[i].op == MPI_OP_NULL), "what was freed is not null");
        requests[i] = calls[i].request;
    }
    for (int time = 0; time < TIMES; time++) {
        received = -1;
        for (int i = 0; i < CALLS; i++) {
            calls[i].seed = (uint64_t)time;
            for (int at = 0; at < COUNT; at++)
                for (int part = 0; part < 2; part++) {
                    calls[i].from[at][part] = given(&calls[i], world_rank, at, part);
                    calls[i].to[at][part] = calls[i].kind == BCAST && world_rank == 1 ? calls[i].from[at][part] : 0;
                }
        }
        MPI_Startall(ALL, requests);
        if (time % 2)
            for (int i = 0, which; i < ALL; i++)
                MPI_Waitany(ALL, requests, &which, MPI_STATUS_IGNORE);
        else
            MPI_Waitall(ALL, requests, MPI_STATUSES_IGNORE);
        for (int i = 0; i < CALLS; i++)
            check(&calls[i]);
        CHECK(received == previous, "start %d: a message said %d", time, received);
    }
    MPI_Request_free(&requests[CALLS]);
    MPI_Request_free(&requests[CALLS + 1]);
    for (int i = 0; i < CALLS; i++)
        end(&calls[i]);
    MPI_Comm_free(&comm);
    return finish("%d starts of persistent collectives", TIMES);
}

// --- orders ----------------------------------------------------------------------

// Other collectives of the same communicator, which all ranks call in one order.
static void call_another(MPI_Comm comm, int number, uint64_t seed, MPI_Request *requests, int *under_way, uint32_t *words)
{
    uint32_t own = (uint32_t)mixed(seed, (uint64_t)world_rank), all[RANKS_MAX];
    words[number] = own;
    switch (number % 4) {
    case 0: MPI_Barrier(comm); break;
    case 1: MPI_Ibcast(&words[number], 1, MPI_UNSIGNED, number % world_size, comm, &requests[(*under_way)++]); break;
    case 2:
        MPI_Allgather(&own, 1, MPI_UNSIGNED, all, 1, MPI_UNSIGNED, comm);
        for (int i = 0; i < world_size; i++)
            CHECK(all[i] == (uint32_t)mixed(seed, (uint64_t)i), "Allgather amid persistent collectives gave %u of rank %d", all[i], i);
        break;
    default: MPI_Ibarrier(comm, &requests[(*under_way)++]);
    }
}

// Waits for requests in an order of this rank's own, by each of MPI's functions.
static void wait_for(uint64_t *own, MPI_Request *requests, int count, bool stock)
{
    int order[64], done = 0;
    for (int i = 0; i < count; i++)
        order[i] = i;
    shuffle(own, order, count);
    switch (below(own, stock ? 3 : 4)) {
    case 0: MPI_Waitall(count, requests, MPI_STATUSES_IGNORE); break;
    case 1:
        for (int i = 0; i < count; i++)
            MPI_Wait(&requests[order[i]], MPI_STATUS_IGNORE);
        break;
    case 2:
        for (int i = 0; i < count; i++)
            for (done = 0; !done;)
                MPI_Test(&requests[order[i]], &done, MPI_STATUS_IGNORE);
        break;
    default:
        while (!done)
            MPI_Testall(count, requests, &done, MPI_STATUSES_IGNORE);
    }
}

static int orders(long seed, long rounds, bool stock)
{
    enum { CALLS = 5, OTHERS = 4, ALL = CALLS + OTHERS };
    struct call calls[CALLS];
    uint64_t shared = (uint64_t)seed, own = mixed((uint64_t)seed, (uint64_t)world_rank + 1);
    MPI_Comm comm;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Barrier(comm); // so that the library may run non-blocking ones
    for (int i = 0; i < CALLS; i++)
        make(&calls[i], (enum kind)below(&shared, KINDS), below(&shared, world_size), comm, stock);
    for (long round = 0; round < rounds; round++) {
        int order[ALL], under_way = 0, others = 0;
        MPI_Request requests[ALL];
        uint32_t words[OTHERS];
        uint64_t begun = next(&shared);
        for (int i = 0; i < ALL; i++)
            order[i] = i;
        shuffle(&own, order, ALL);
        // The others keep their order, whatever their places among the starts.
        for (int i = 0; i < ALL; i++)
            if (order[i] < CALLS)
                begin(&calls[order[i]], begun + (uint64_t)order[i]);
            else {
                call_another(comm, others, begun + (uint64_t)(CALLS + others), requests, &under_way, words);
                others++;
            }
        for (int i = 0; i < CALLS; i++)
            requests[under_way + i] = calls[i].request;
        wait_for(&own, requests, under_way + CALLS, stock);
        for (int i = 0; i < CALLS; i++)
            check(&calls[i]);
        CHECK(words[1] == (uint32_t)mixed(begun + CALLS + 1, 1), "Ibcast amid persistent collectives gave %u", words[1]);
        // Some are freed, in another order at each rank, and new ones made.
        int renewed = (int)(next(&shared) % (1 << CALLS));
        shuffle(&own, order, ALL);
        for (int i = 0; i < ALL; i++)
            if (order[i] < CALLS && renewed >> order[i] & 1)
                end(&calls[order[i]]);
        for (int i = 0; i < CALLS; i++)
            if (renewed >> i & 1)
                make(&calls[i], (enum kind)below(&shared, KINDS), below(&shared, world_size), comm, stock);
    }
    for (int i = 0; i < CALLS; i++)
        end(&calls[i]);
    MPI_Comm_free(&comm);
    return finish("%ld rounds of seed %ld", rounds, seed);
}

// --- threads ---------------------------------------------------------------------

enum { OF_THREAD = 4 };
struct worker {
    struct call calls[OF_THREAD];
    uint64_t own;
    long rounds;
};

static void *work(void *argument)
{
    struct worker *w = argument;
    for (long round = 0; round < w->rounds; round++) {
        int order[OF_THREAD];
        MPI_Request requests[OF_THREAD];
        for (int i = 0; i < OF_THREAD; i++)
            order[i] = i;
        shuffle(&w->own, order, OF_THREAD);
        for (int i = 0; i < OF_THREAD; i++)
            begin(&w->calls[order[i]], (uint64_t)(round * OF_THREAD + order[i]));
        for (int i = 0; i < OF_THREAD; i++)
            requests[i] = w->calls[i].request;
        wait_for(&w->own, requests, OF_THREAD, false);
        for (int i = 0; i < OF_THREAD; i++)
            check(&w->calls[i]);
    }
    return NULL;
}

static int threads(long rounds)
{
    enum { WORKERS = 2 };
    static const enum kind KIND[WORKERS * OF_THREAD] = {ALLREDUCE, BCAST, ALLTOALL, BARRIER, REDUCE_SCATTER, ALLGATHER, REDUCE, IN_PLACE};
    struct worker workers[WORKERS];
    pthread_t ids[WORKERS];
    MPI_Comm comm;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    for (int i = 0; i < WORKERS; i++) {
        workers[i].rounds = rounds;
        workers[i].own = (uint64_t)(world_rank * WORKERS + i);
        for (int k = 0; k < OF_THREAD; k++)
            make(&workers[i].calls[k], KIND[i * OF_THREAD + k], k % world_size, comm, true);
    }
    for (int i = 0; i < WORKERS; i++)
        CHECK(pthread_create(&ids[i], NULL, work, &workers[i]) == 0, "no thread");
    // The same communicator's other collectives come from one thread, as MPI wants it.
    for (long round = 0; round < rounds; round++) {
        int one = 1, sum = 0;
        MPI_Request request;
        if (round % 2) {
            MPI_Iallreduce(&one, &sum, 1, MPI_INT, MPI_SUM, comm, &request);
            MPI_Wait(&request, MPI_STATUS_IGNORE);
        } else
            MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, comm);
        CHECK(sum == world_size, "Allreduce beside persistent collectives gave %d", sum);
    }
    for (int i = 0; i < WORKERS; i++) {
        pthread_join(ids[i], NULL);
        for (int k = 0; k < OF_THREAD; k++)
            end(&workers[i].calls[k]);
    }
    MPI_Comm_free(&comm);
    return finish("%ld rounds of two threads", rounds);
}

// --- many ------------------------------------------------------------------------

// Room for what the MPI and malloc keep for later calls. Bytes.
#define MANY_GROWTH_MAX ((size_t)1 << 20)

enum { WINDOW = 8 };

static void free_window(uint64_t *own, struct call *calls)
{
    int order[WINDOW];
    for (int i = 0; i < WINDOW; i++)
        order[i] = i;
    shuffle(own, order, WINDOW);
    for (int i = 0; i < WINDOW; i++)
        end(&calls[order[i]]);
}

// Every other rank frees requests only after it has made the next ones.
static int many(long times, long starts, bool stock)
{
    struct call early, all[2][WINDOW];
    uint64_t own = (uint64_t)world_rank;
    bool frees_late = world_rank % 2;
    MPI_Comm comm;
    size_t before = 0;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    make(&early, ALLREDUCE, 0, comm, true);
    for (long time = 0; time < times; time += WINDOW) {
        int order[WINDOW];
        struct call *calls = all[time / WINDOW % 2], *previous = all[(time / WINDOW + 1) % 2];
        if (time >= times / 2 && before == 0)
            before = memory_used();
        for (int i = 0; i < WINDOW; i++) {
            make(&calls[i], (enum kind)((time / WINDOW + i) % KINDS), i % world_size, comm, stock);
            order[i] = i;
        }
        for (long start = 0; start < starts; start++) {
            shuffle(&own, order, WINDOW);
            for (int i = 0; i < WINDOW; i++)
                begin(&calls[order[i]], (uint64_t)((time + order[i]) * starts + start));
            shuffle(&own, order, WINDOW);
            for (int i = 0; i < WINDOW; i++)
                MPI_Wait(&calls[order[i]].request, MPI_STATUS_IGNORE);
            for (int i = 0; i < WINDOW; i++)
                check(&calls[i]);
        }
        begin(&early, (uint64_t)time);
        MPI_Wait(&early.request, MPI_STATUS_IGNORE);
        check(&early);
        if (!frees_late)
            free_window(&own, calls);
        else if (time > 0)
            free_window(&own, previous);
    }
    if (frees_late)
        free_window(&own, all[(times - 1) / WINDOW % 2]);
    size_t after = memory_used();
    CHECK(stock || after < before + MANY_GROWTH_MAX, "memory grew from %zu to %zu bytes", before, after);
    end(&early);
    MPI_Comm_free(&comm);
    return finish("%ld persistent collectives", times);
}

// --- errors ----------------------------------------------------------------------

static int errors_heard, class_heard;
static MPI_Comm comm_heard;

static void hear(MPI_Comm *comm, int *code, ...)
{
    errors_heard++;
    comm_heard = *comm;
    MPI_Error_class(*code, &class_heard);
}

// The last rank has a buffer that is too short, and so an error. No other rank gets its data from that one.
static int short_bcast(MPI_Comm comm, MPI_Request *request)
{
    enum { LONG = 100 };
    static int data[LONG];
    int error, class;
    errors_heard = 0;
    MPI_Bcast_init(data, world_rank < world_size - 1 ? LONG : LONG / 2, MPI_INT, 0, comm, MPI_INFO_NULL, request);
    error = MPI_Start(request);
    CHECK(error == MPI_SUCCESS, "the start failed with %d", error);
    error = MPI_Wait(request, MPI_STATUS_IGNORE);
    MPI_Error_class(error, &class);
    return class;
}

static int errors(void)
{
    int error, class, result, sum = 0, one = 1;
    MPI_Comm comm;
    MPI_Request request, other;
    MPI_Errhandler handler;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_create_errhandler(hear, &handler);
    // The handler counts that the communicator has when an error is noticed.
    MPI_Barrier_init(comm, MPI_INFO_NULL, &other);
    MPI_Comm_set_errhandler(comm, handler);
    class = short_bcast(comm, &request);
    if (world_rank < world_size - 1)
        CHECK(class == MPI_SUCCESS && errors_heard == 0, "a rank without an error ended with class %d, and its handler was called %d times", class, errors_heard);
    else {
        CHECK(errors_heard == 1 && class_heard == MPI_ERR_TRUNCATE, "the handler was called %d times, with class %d", errors_heard, class_heard);
        MPI_Comm_compare(comm_heard, comm, &result);
        CHECK(result == MPI_IDENT, "the handler got another communicator");
        // MPICH's functions return no error that a handler of the program has got.
        CHECK(class == MPI_ERR_TRUNCATE || class == MPI_SUCCESS, "waiting ended with class %d", class);
        // Messages of the first start may be left, so there is no second one.
        error = MPI_Start(&request);
        MPI_Error_class(error, &class);
        CHECK(class == MPI_ERR_TRUNCATE && errors_heard == 2, "the next start ended with class %d, and %d errors were heard", class, errors_heard);
    }
    // A collective is not to be cancelled, and this does no harm.
    MPI_Start(&other);
    errors_heard = 0;
    error = MPI_Cancel(&other);
    MPI_Error_class(error, &class);
    CHECK(class == MPI_ERR_REQUEST && errors_heard == 1, "cancelling ended with class %d, and %d errors were heard", class, errors_heard);
    MPI_Wait(&other, MPI_STATUS_IGNORE);
    MPI_Request_free(&request);
    MPI_Request_free(&other);
    // Without a handler, the program gets the error.
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Errhandler_free(&handler);
    class = short_bcast(comm, &request);
    CHECK(class == (world_rank < world_size - 1 ? MPI_SUCCESS : MPI_ERR_TRUNCATE) && errors_heard == 0, "waiting ended with class %d", class);
    MPI_Request_free(&request);
    // The communicator is as good as before.
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, comm);
    CHECK(sum == world_size, "Allreduce after an error gave %d", sum);
    MPI_Allreduce_init(&one, &sum, 1, MPI_INT, MPI_SUM, comm, MPI_INFO_NULL, &request);
    sum = 0;
    MPI_Start(&request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    CHECK(sum == world_size, "a persistent Allreduce after an error gave %d", sum);
    MPI_Request_free(&request);
    MPI_Comm_free(&comm);
    return finish("an error at the last rank");
}

// --- unmade ----------------------------------------------------------------------

// The library calls these functions instead of the MPI's: `fails` makes one of them fail, and `open_comms` counts the
// communicators that the library has made and not freed.
static bool fails;
static int open_comms;

int PMPI_Comm_create_errhandler(MPI_Comm_errhandler_function *function, MPI_Errhandler *handler)
{
    return fails ? MPI_ERR_NO_MEM : MPI_Comm_create_errhandler(function, handler);
}

int PMPI_Comm_dup(MPI_Comm comm, MPI_Comm *copy)
{
    open_comms++;
    return MPI_Comm_dup(comm, copy);
}

int PMPI_Comm_create_group(MPI_Comm comm, MPI_Group group, int tag, MPI_Comm *made)
{
    open_comms++;
    return MPI_Comm_create_group(comm, group, tag, made);
}

int PMPI_Comm_free(MPI_Comm *comm)
{
    open_comms--;
    return MPI_Comm_free(comm);
}

static int unmade(void)
{
    MPI_Comm comm;
    MPI_Request request;
    int word = world_rank == 0 ? 42 : 0;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Barrier(comm);
    int before = open_comms;
    CHECK(before > 0, "the library has made no communicators");
    fails = world_rank == world_size - 1;
    MPI_Bcast_init(&word, 1, MPI_INT, 0, comm, MPI_INFO_NULL, &request);
    CHECK(open_comms == before, "%d communicators stay", open_comms - before);
    MPI_Start(&request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    CHECK(word == 42, "Bcast gave %d", word);
    MPI_Request_free(&request);
    MPI_Comm_free(&comm);
    return finish("no communicators stay");
}

// --- left ------------------------------------------------------------------------

// Communicators are freed before their requests, active or not, and MPI_Finalize finds requests that nobody has freed.
static int left(void)
{
    struct call calls[3], last;
    MPI_Comm comm;
    int class;
    for (int time = 0; time < 50; time++) {
        MPI_Comm_dup(MPI_COMM_WORLD, &comm);
        for (int i = 0; i < 3; i++)
            make(&calls[i], (enum kind)((3 * time + i) % KINDS), time % world_size, comm, false);
        begin(&calls[0], (uint64_t)time);
        MPI_Wait(&calls[0].request, MPI_STATUS_IGNORE);
        begin(&calls[1], (uint64_t)time + 1);
        MPI_Comm_free(&comm);
        MPI_Wait(&calls[1].request, MPI_STATUS_IGNORE);
        check(&calls[0]);
        check(&calls[1]);
        MPI_Error_class(MPI_Start(&calls[2].request), &class);
        CHECK(class == MPI_ERR_COMM, "a start on a freed communicator ended with class %d", class);
        for (int i = 0; i < 3; i++)
            end(&calls[(i + world_rank) % 3]);
    }
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    make(&calls[0], ALLREDUCE, 0, comm, true);
    make(&last, BCAST, 0, MPI_COMM_WORLD, true);
    begin(&last, 1);
    MPI_Wait(&last.request, MPI_STATUS_IGNORE);
    check(&last);
    return finish("50 communicators freed before their requests");
}

int main(int argc, char **argv)
{
    int provided;
    const char *what = argc > 1 ? argv[1] : "";
    bool stock = !strcmp(argv[argc - 1], "stock");
    program = "far_persistent";
    MPI_Init_thread(&argc, &argv, !strcmp(what, "threads") ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world_size);
    CHECK(world_size <= RANKS_MAX, "at most %d ranks", RANKS_MAX);
    if (!strcmp(what, "again"))
        return again(stock);
    if (!strcmp(what, "orders") && argc >= 4)
        return orders(atol(argv[2]), atol(argv[3]), stock);
    if (!strcmp(what, "threads") && argc == 3) {
        CHECK(provided == MPI_THREAD_MULTIPLE, "no threads here");
        return threads(atol(argv[2]));
    }
    if (!strcmp(what, "many") && argc >= 4)
        return many(atol(argv[2]), atol(argv[3]), stock);
    if (!strcmp(what, "errors"))
        return errors();
    if (!strcmp(what, "unmade"))
        return unmade();
    if (!strcmp(what, "left"))
        return left();
    fail("usage: far_persistent again | orders SEED ROUNDS | threads ROUNDS | many TIMES STARTS | errors | unmade | left; then perhaps stock");
}

#else

int main(void)
{
    puts("OK far_persistent: this MPI has no persistent collectives");
    return 0;
}

#endif
