// Communicators of which the collectives library must take care:
//
//   far_comms freed ROUNDS BYTES   freed at once, while data of their collectives are still under way
//   far_comms buffers              in calls whose buffers are given by address or, wrongly, are the same
//   far_comms pinned PINS          pinned by the info key isthmus_collectives_pin
//   far_comms late BYTES           on which a rank has an error, and a message comes after that
//   far_comms ilate BYTES         the same of a non-blocking collective
//   far_comms fails BYTES         the same of a non-blocking collective that fails while it starts
//   far_comms handler             in which a thread waits, while another one changes the error handler of MPI_COMM_SELF
//   far_comms bits RANKS           used for sums whose bits must not depend on the algorithm; so many ranks are at the first site
//   far_comms steady CALLS BYTES   used for long collectives again and again, so that the library measures the link
//   far_comms sessions TIMES       made from sessions, by a program without MPI_Init
#include "check.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>

// Whether the MPI has sessions.
#if defined(OPEN_MPI)
#define MPI_4 (OMPI_MAJOR_VERSION >= 5)
#else
#define MPI_4 (MPI_VERSION >= 4)
#endif

// Room for memory that the MPI and malloc keep for later calls. Bytes.
#define GROWTH_MAX ((size_t)48 << 20)

// One of each kind of call whose messages outlive it. Blocking ones leave sends behind, if the settings allow it.
static void leave_under_way(int round, size_t bytes, char *data, int *from, int *to)
{
    MPI_Comm comm;
    MPI_Request requests[3];
    int root = round % world_size, count = (int)(bytes / sizeof *from);
    uint64_t seed = (uint64_t)round;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    if (world_rank == root)
        fill(data, bytes, seed);
    // From the fourth long collective on, what leaders measured is under way as well.
    for (int time = 0; time < (round % 2 ? 4 : 1); time++)
        MPI_Bcast(data, (int)bytes, MPI_BYTE, root, comm);
    if (round % 2) {
        // The root goes on at once, and frees while others receive.
        MPI_Comm_free(&comm);
        verify(data, bytes, seed, "Bcast");
        return;
    }
    for (int i = 0; i < count; i++)
        from[i] = world_rank + i;
    MPI_Iallreduce(from, to, count, MPI_INT, MPI_SUM, comm, &requests[0]);
    char *more = data + bytes;
    if (world_rank == root)
        fill(more, bytes, seed + 1);
    MPI_Ibcast(more, (int)bytes, MPI_BYTE, root, comm, &requests[1]);
    MPI_Ibarrier(comm, &requests[2]);
    MPI_Comm_free(&comm);
    CHECK(comm == MPI_COMM_NULL, "a freed communicator is not null");
    MPI_Waitall(3, requests, MPI_STATUSES_IGNORE);
    verify(data, bytes, seed, "Bcast");
    verify(more, bytes, seed + 1, "Ibcast");
    for (int i = 0; i < count; i++)
        CHECK(to[i] == world_size * i + world_size * (world_size - 1) / 2, "Iallreduce gave %d at %d", to[i], i);
}

static int freed(int rounds, size_t bytes)
{
    char *data = allocate(2 * bytes);
    int *from = allocate(bytes), *to = allocate(bytes);
    size_t before = 0;
    for (int round = 0; round < rounds; round++) {
        leave_under_way(round, bytes, data, from, to);
        if (round == rounds / 4)
            before = memory_used();
    }
    MPI_Barrier(MPI_COMM_WORLD);
    size_t after = memory_used();
    // If each round left one vector behind, memory would grow by more.
    CHECK(after < before + GROWTH_MAX && GROWTH_MAX < (size_t)rounds * bytes / 2, "memory grew from %zu to %zu bytes", before, after);
    free(data), free(from), free(to);
    return finish("%d communicators freed at once", rounds);
}

static int pinned(const char *pins)
{
    MPI_Comm comm;
    MPI_Info info;
    int word = 0;
    MPI_Info_create(&info);
    MPI_Info_set(info, "isthmus_collectives_pin", pins);
    MPI_Comm_dup_with_info(MPI_COMM_WORLD, info, &comm);
    MPI_Info_free(&info);
    word = world_rank == 0 ? 42 : 0;
    MPI_Bcast(&word, 1, MPI_INT, 0, comm);
    CHECK(word == 42, "Bcast gave %d", word);
    MPI_Comm_free(&comm);
    return finish("pins %s", pins);
}

// One rank gives MPI_BOTTOM for both buffers, and their addresses by datatypes. Then all ranks give what MPI forbids.
static int buffers(void)
{
    enum { LONG = 50 };
    int from[LONG] = {0}, *all = allocate(sizeof from * (size_t)world_size), once[LONG], sum[LONG];
    MPI_Datatype raw, sent, received;
    MPI_Aint at[2];
    MPI_Get_address(from, &at[0]);
    MPI_Get_address(all, &at[1]);
    MPI_Type_create_hindexed_block(1, LONG, &at[0], MPI_INT, &sent);
    MPI_Type_create_hindexed_block(1, LONG, &at[1], MPI_INT, &raw);
    MPI_Type_create_resized(raw, at[1], sizeof from, &received);
    MPI_Type_free(&raw);
    MPI_Type_commit(&sent);
    MPI_Type_commit(&received);
    for (int i = 0; i < LONG; i++)
        from[i] = 1000 * world_rank + i;
    if (world_rank == 0)
        MPI_Allgather(MPI_BOTTOM, 1, sent, MPI_BOTTOM, 1, received, MPI_COMM_WORLD);
    else
        MPI_Allgather(from, LONG, MPI_INT, all, LONG, MPI_INT, MPI_COMM_WORLD);
    for (int i = 0; i < LONG * world_size; i++)
        CHECK(all[i] == 1000 * (i / LONG) + i % LONG, "Allgather gave %d at %d", all[i], i);
    MPI_Type_free(&sent);
    MPI_Type_free(&received);
    // The last rank's block is empty, so it may give its address in the result. Then all ranks give such addresses: MPICH's
    // own Allgatherv refuses them, the library does not.
    int counts[world_size], displs[world_size];
    for (int i = 0; i < world_size; i++) {
        counts[i] = i < world_size - 1 ? LONG : 0;
        displs[i] = i * LONG;
    }
    for (int all_do = 0; all_do < 2; all_do++) {
        const int *own = all_do || counts[world_rank] == 0 ? all + LONG * world_rank : from;
        MPI_Allgatherv(own, counts[world_rank], MPI_INT, all, counts, displs, MPI_INT, MPI_COMM_WORLD);
        for (int i = 0; i < LONG * (world_size - 1); i++)
            CHECK(all[i] == 1000 * (i / LONG) + i % LONG, "Allgatherv gave %d at %d", all[i], i);
    }
#if defined(MPICH_NUMVERSION) && !defined(I_MPI_NUMVERSION)
    // The others do not notice.
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    CHECK(MPI_Allgather(all + LONG * world_rank, LONG, MPI_INT, all, LONG, MPI_INT, MPI_COMM_WORLD), "Allgather from the result gave no error");
#endif
    memset(once, 0, sizeof once);
    once[0] = world_rank;
    MPI_Allreduce(once, sum, LONG, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    CHECK(sum[0] == world_size * (world_size - 1) / 2, "Allreduce gave %d", sum[0]);
    free(all);
    return finish("buffers by address");
}

// Stands before the MPI's own function, so that a non-blocking collective of the library fails while it starts.
static int starts_fail;
int PMPI_Grequest_start(MPI_Grequest_query_function *query, MPI_Grequest_free_function *drop, MPI_Grequest_cancel_function *cancel, void *state,
                        MPI_Request *request)
{
    int (*own)(MPI_Grequest_query_function *, MPI_Grequest_free_function *, MPI_Grequest_cancel_function *, void *, MPI_Request *);
    *(void **)&own = dlsym(RTLD_NEXT, "PMPI_Grequest_start");
    return starts_fail ? MPI_ERR_OTHER : own(query, drop, cancel, state, request);
}

// The root has no room for what rank 1 sends, and an error. The last rank sends after that: its message must not be
// written to the root's buffer, which is then used for something else. Yet the last rank must not wait for ever.
enum kind { BLOCKING, NONBLOCKING, FAILS_AT_START };
static int late(size_t bytes, enum kind kind)
{
    int count = (int)(bytes / sizeof(int)), go = 1, error, class = MPI_SUCCESS, last = world_size - 1, counts[world_size], displs[world_size];
    int *one = allocate(2 * bytes), *all = allocate(bytes * (size_t)world_size);
    MPI_Comm comm;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN); // of generalized requests
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    memset(one, 1, 2 * bytes);
    for (int i = 0; i < world_size; i++)
        counts[i] = count, displs[i] = i * count;
    MPI_Barrier(comm); // the library's first call on a communicator waits for all ranks
    if (world_rank == last)
        MPI_Recv(&go, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (kind != BLOCKING) {
        MPI_Request request;
        starts_fail = kind == FAILS_AT_START && world_rank == 0;
        error = MPI_Igatherv(one, kind == NONBLOCKING && world_rank == 1 ? 2 * count : count, MPI_INT, all, counts, displs, MPI_INT, 0, comm, &request);
        error = error ? error : MPI_Wait(&request, MPI_STATUS_IGNORE);
    } else
        error = MPI_Gatherv(one, world_rank == 1 ? 2 * count : count, MPI_INT, all, counts, displs, MPI_INT, 0, comm);
    if (error != MPI_SUCCESS)
        MPI_Error_class(error, &class);
    // MPICH has another class for errors of generalized requests.
    if (kind != BLOCKING && world_rank == 0 && class != MPI_SUCCESS)
        class = MPI_ERR_TRUNCATE;
    CHECK(class == (world_rank == 0 ? MPI_ERR_TRUNCATE : MPI_SUCCESS), "Gatherv ended with class %d", class);
    if (world_rank == 0) {
        memset(all, 7, bytes * (size_t)world_size);
        MPI_Send(&go, 1, MPI_INT, last, 0, MPI_COMM_WORLD);
        MPI_Recv(&go, 1, MPI_INT, last, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (size_t i = 0; i < bytes * (size_t)world_size; i++)
            CHECK(((const char *)all)[i] == 7, "the buffer has %d at %zu", ((const char *)all)[i], i);
    } else if (world_rank == last)
        MPI_Send(&go, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
    MPI_Comm_free(&comm);
    free(one), free(all);
    return finish("a late message after an error");
}

static void *in_bcast(void *unused)
{
    int word = 0;
    (void)unused;
    MPI_Bcast(&word, 1, MPI_INT, 0, MPI_COMM_WORLD);
    return NULL;
}

// Counts its calls.
static atomic_int handler_calls;
static void count_call(MPI_Comm *comm, int *error, ...)
{
    (void)comm, (void)error;
    atomic_fetch_add(&handler_calls, 1);
}

// Other ranks wait in a collective, whose first rank comes late. Another thread of theirs sets an error handler, reads it
// again, and frees it. When the collective is over, the handler must still be there.
static int handler(void)
{
    enum { MANY = 2 };
    const MPI_Comm comms[MANY] = {MPI_COMM_SELF, MPI_COMM_WORLD};
    pthread_t thread;
    int go = 1;
    MPI_Barrier(MPI_COMM_WORLD);
    if (world_rank == 0) {
        for (int i = 1; i < world_size; i++)
            MPI_Recv(&go, 1, MPI_INT, i, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        in_bcast(NULL);
        return finish("an error handler was kept");
    }
    CHECK(!pthread_create(&thread, NULL, in_bcast, NULL), "no thread");
    sleep_ms(300); // until the thread waits: if it does not yet, the test shows nothing
    for (int i = 0; i < MANY; i++) {
        MPI_Errhandler counting, found;
        MPI_Comm_create_errhandler(count_call, &counting);
        MPI_Comm_set_errhandler(comms[i], counting);
        MPI_Comm_get_errhandler(comms[i], &found);
        CHECK(found == counting, "communicator %d has another error handler at once", i);
        MPI_Errhandler_free(&found);
        MPI_Errhandler_free(&counting);
    }
    MPI_Send(&go, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
    pthread_join(thread, NULL);
    for (int i = 0; i < MANY; i++)
        MPI_Comm_call_errhandler(comms[i], MPI_ERR_OTHER);
    CHECK(handler_calls == MANY, "%d handlers of %d are left", handler_calls, MANY);
    return finish("an error handler was kept");
}

// Sums of doubles must be those that are added by rank within a site, then site by site: bit for bit, whatever the length
// and the call. The first `there` ranks are one site, the others another one.
static double summand(int rank, int at) { return (double)(mixed((uint64_t)rank + 1, (uint64_t)at) >> 11) * (rank % 2 ? 1e-9 : 1.0); }

static double sum_of(int first, int end, int at)
{
    double sum = summand(first, at);
    for (int rank = first + 1; rank < end; rank++)
        sum += summand(rank, at);
    return sum;
}

static void check_sums(const double *sums, int from, int count, int there, const char *call)
{
    for (int i = 0; i < count; i++) {
        double wanted = sum_of(0, there, from + i) + sum_of(there, world_size, from + i);
        CHECK(!memcmp(&sums[i], &wanted, sizeof wanted), "%s of %d: %.17g at %d, expected %.17g", call, count, sums[i], i, wanted);
    }
}

static int bits(int there)
{
    enum { MOST = 20000 };
    static const int LENGTHS[] = {1, 3, 500, MOST};
    for (int i = 0; i < 4; i++) {
        int each = LENGTHS[i], all = each * world_size;
        double *from = allocate((size_t)all * sizeof *from), *to = allocate((size_t)all * sizeof *to);
        MPI_Request request;
        for (int at = 0; at < all; at++)
            from[at] = summand(world_rank, at);
        MPI_Allreduce(from, to, all, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        check_sums(to, 0, all, there, "Allreduce");
        MPI_Iallreduce(from, to, each, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        check_sums(to, 0, each, there, "Iallreduce");
        MPI_Reduce(from, to, each, MPI_DOUBLE, MPI_SUM, world_size - 1, MPI_COMM_WORLD);
        if (world_rank == world_size - 1)
            check_sums(to, 0, each, there, "Reduce");
        MPI_Reduce_scatter_block(from, to, each, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        check_sums(to, each * world_rank, each, there, "Reduce_scatter_block");
        memcpy(to, from, (size_t)each * sizeof *to);
        MPI_Allreduce(MPI_IN_PLACE, to, each, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        check_sums(to, 0, each, there, "Allreduce in place");
        free(from), free(to);
    }
    return finish("sums in one order");
}

static int steady(int calls, size_t bytes)
{
    char *data = allocate(bytes);
    int count = (int)(bytes / sizeof(int)), *from = allocate(bytes), *to = allocate(bytes);
    for (int call = 0; call < calls; call++) {
        if (world_rank == 0)
            fill(data, bytes, (uint64_t)call);
        MPI_Bcast(data, (int)bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
        verify(data, bytes, (uint64_t)call, "Bcast");
        for (int i = 0; i < count; i++)
            from[i] = world_rank + i + call;
        MPI_Allreduce(from, to, count, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        for (int i = 0; i < count; i++)
            CHECK(to[i] == world_size * (i + call) + world_size * (world_size - 1) / 2, "Allreduce gave %d at %d", to[i], i);
    }
    free(data), free(from), free(to);
    return finish("%d calls", 2 * calls);
}

#if MPI_4
static void use(MPI_Comm comm, int time)
{
    enum { LONG = 20000 };
    static int from[LONG], to[LONG], all[64 * 3];
    MPI_Request request;
    int rank, ranks, word;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &ranks);
    CHECK(ranks <= 64, "at most 64 ranks");
    MPI_Barrier(comm);
    word = rank == ranks - 1 ? time : -1;
    MPI_Bcast(&word, 1, MPI_INT, ranks - 1, comm);
    CHECK(word == time, "Bcast gave %d", word);
    for (int i = 0; i < LONG; i++)
        from[i] = rank + i;
    for (int nonblocking = 0; nonblocking < 2; nonblocking++) {
        memset(to, 0, sizeof to);
        if (nonblocking) {
            MPI_Iallreduce(from, to, LONG, MPI_INT, MPI_SUM, comm, &request);
            MPI_Wait(&request, MPI_STATUS_IGNORE);
        } else
            MPI_Allreduce(from, to, LONG, MPI_INT, MPI_SUM, comm);
        for (int i = 0; i < LONG; i++)
            CHECK(to[i] == ranks * i + ranks * (ranks - 1) / 2, "Allreduce gave %d at %d", to[i], i);
    }
    MPI_Allgather((int[]){rank, time, 7}, 3, MPI_INT, all, 3, MPI_INT, comm);
    for (int i = 0; i < ranks; i++)
        CHECK(all[3 * i] == i && all[3 * i + 1] == time && all[3 * i + 2] == 7, "Allgather gave %d of rank %d", all[3 * i], i);
}

// A session with communicators of all ranks and of half of them.
static void use_session(int time)
{
    MPI_Session session;
    MPI_Group all;
    MPI_Comm comm, half, copy;
    MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &session);
    MPI_Group_from_session_pset(session, "mpi://WORLD", &all);
    MPI_Group_rank(all, &world_rank);
    MPI_Group_size(all, &world_size);
    MPI_Comm_create_from_group(all, "isthmus.all", MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &comm);
    MPI_Group_free(&all);
    use(comm, time);
    MPI_Comm_split(comm, world_rank % 2, 0, &half);
    use(half, time + 1);
    MPI_Comm_dup(comm, &copy);
    MPI_Comm_free(&half);
    use(copy, time + 2);
    MPI_Comm_free(&comm);
    MPI_Comm_disconnect(&copy);
    MPI_Session_finalize(&session);
}

static int in_sessions(int times)
{
    for (int time = 0; time < times; time++)
        use_session(time);
    if (world_rank == 0)
        printf("OK far_comms: %d sessions of %d ranks\n", times, world_size);
    return 0;
}
#endif

static void start_threads(int *argc, char ***argv)
{
    int level;
    program = "far_comms";
    MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &level);
    CHECK(level == MPI_THREAD_MULTIPLE, "the MPI has no threads");
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world_size);
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "sessions")) {
#if MPI_4
        program = "far_comms";
        return in_sessions(atoi(argv[2]));
#else
        puts("OK far_comms: this MPI has no sessions");
        return 0;
#endif
    }
    if (argc == 2 && !strcmp(argv[1], "handler"))
        start_threads(&argc, &argv);
    else
        start(&argc, &argv, "far_comms");
    if (argc == 4 && !strcmp(argv[1], "freed"))
        return freed(atoi(argv[2]), argument(argc, argv, 3, 0));
    if (argc == 2 && !strcmp(argv[1], "buffers"))
        return buffers();
    if (argc == 3 && !strcmp(argv[1], "bits"))
        return bits(atoi(argv[2]));
    if (argc == 3 && (!strcmp(argv[1], "late") || !strcmp(argv[1], "ilate")))
        return late(argument(argc, argv, 2, 0), argv[1][0] == 'i' ? NONBLOCKING : BLOCKING);
    if (argc == 3 && !strcmp(argv[1], "fails"))
        return late(argument(argc, argv, 2, 0), FAILS_AT_START);
    if (argc == 2 && !strcmp(argv[1], "handler"))
        return handler();
    if (argc == 3 && !strcmp(argv[1], "pinned"))
        return pinned(argv[2]);
    if (argc == 4 && !strcmp(argv[1], "steady"))
        return steady(atoi(argv[2]), argument(argc, argv, 3, 0));
    fail("usage: far_comms freed ROUNDS BYTES | buffers | pinned PINS | late BYTES | ilate BYTES | fails BYTES | handler | bits RANKS | steady CALLS BYTES | sessions TIMES");
}
