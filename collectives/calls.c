// The MPI functions that programs call. Each is run here, or left to the MPI: if the communicator lies within one site,
// if an argument is wrong, or if the model or a pin chooses the MPI.
#include "internal.h"

#include <stddef.h>

#pragma GCC visibility push(default)

int MPI_Init(int *argc, char ***argv);
int MPI_Init_thread(int *argc, char ***argv, int required, int *provided);
int MPI_Finalize(void);

// Between MPI_Init and MPI_Finalize. Intel MPI's MPI_Initialized is also true if there are sessions only.
static int in_world;

static void begin(void)
{
    in_world = 1;
    discover_world();
    struct plan *plan = plan_of(MPI_COMM_WORLD);
    if (plan)
        keep_measured(&plan->settings);
}

int MPI_Init(int *argc, char ***argv)
{
    int error = PMPI_Init(argc, argv);
    if (error == MPI_SUCCESS)
        begin();
    return error;
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    int error = PMPI_Init_thread(argc, argv, required, provided);
    if (error == MPI_SUCCESS)
        begin();
    return error;
}

#if SESSIONS
static atomic_int sessions;

int MPI_Session_init(MPI_Info info, MPI_Errhandler handler, MPI_Session *session)
{
    int error = PMPI_Session_init(info, handler, session);
    if (error == MPI_SUCCESS) {
        atomic_fetch_add(&sessions, 1);
        discover_session(*session);
    }
    return error;
}

int MPI_Session_finalize(MPI_Session *session)
{
    if (atomic_fetch_sub(&sessions, 1) == 1 && !in_world) {
        end_flows();
        if (own_settings()->trace && own_number_of_session() == 0)
            print_counts();
        forget_keyval();
    }
    return PMPI_Session_finalize(session);
}
#endif

int MPI_Finalize(void)
{
    int rank = 1;
    end_flows();
    if (own_settings()->trace && PMPI_Comm_rank(MPI_COMM_WORLD, &rank) == MPI_SUCCESS && rank == 0)
        print_counts();
    drop_plans();
    forget_world();
    in_world = 0;
    return PMPI_Finalize();
}

// --- what is looked at first ----------------------------------------------------

static int is_root(const struct plan *plan, int root) { return root >= 0 && root < plan->ranks; }

// MPI_BOTTOM may be NULL: only a datatype of the MPI's own has no addresses in it.
static int is_data(const void *data, MPI_Count count, MPI_Datatype type)
{
    int integers, addresses, types, combiner;
    if (count < 0 || type == MPI_DATATYPE_NULL)
        return 0;
    if (data || count == 0)
        return 1;
    return PMPI_Type_get_envelope(type, &integers, &addresses, &types, &combiner) == MPI_SUCCESS && combiner != MPI_COMBINER_NAMED;
}

// Whether buffers are the same, which MPI forbids. MPI_BOTTOM may be given for both: datatypes with addresses differ.
static int are_same(const void *from, const void *to) { return from && from != MPI_IN_PLACE && from == to; }

// Whether a rank's block is where the result for it goes.
static int is_in_result(const void *from, const void *to, MPI_Datatype type, MPI_Count displ)
{
    MPI_Count lower, extent;
    if (!from || from == MPI_IN_PLACE || !to || type == MPI_DATATYPE_NULL ||
        PMPI_Type_get_extent_x(type, &lower, &extent) != MPI_SUCCESS)
        return 0;
    return from == (const char *)to + displ * extent;
}

static int are_operands(const void *from, const void *to, MPI_Count count, MPI_Datatype type, MPI_Op op)
{
    return op != MPI_OP_NULL && is_data(from, count, type) && is_data(to, count, type) && to != MPI_IN_PLACE &&
           (!are_same(from, to) || count == 0);
}

static int are_counts(const struct plan *plan, const struct spread *spread)
{
    if (!spread->counts && !spread->counts_c)
        return 0;
    for (int rank = 0; rank < plan->ranks; rank++)
        if (count_at(spread, rank) < 0)
            return 0;
    return 1;
}

// Whether no rank has an empty block. All ranks know the same.
static int are_all_full(const struct plan *plan, const struct spread *spread)
{
    for (int rank = 0; rank < plan->ranks; rank++)
        if (count_at(spread, rank) == 0)
            return 0;
    return 1;
}

// Whether the arguments of blocks that have their own datatypes are valid.
static int are_blocks(const struct plan *plan, const void *data, const struct spread *spread, int have_displs)
{
    int all = have_displs && spread->types && are_counts(plan, spread);
    for (int rank = 0; all && rank < plan->ranks; rank++)
        all = count_at(spread, rank) == 0 || is_data(data, count_at(spread, rank), spread->types[rank]);
    return all;
}

static int are_exchanged(const void *from, MPI_Count count, MPI_Datatype type, const void *to, MPI_Count to_count, MPI_Datatype to_type)
{
    return is_data(to, to_count, to_type) && to != MPI_IN_PLACE &&
           (from == MPI_IN_PLACE || (is_data(from, count, type) && (!are_same(from, to) || count == 0 || to_count == 0)));
}

// Whether the arguments of a gather are valid: each rank has `one`; the root has `all`, perhaps with its own part in
// place.
static int is_gathered(const struct plan *plan, const void *one, MPI_Count count, MPI_Datatype type, const void *all, MPI_Count all_count,
                       MPI_Datatype all_type, int root)
{
    if (plan->rank != root)
        return is_data(one, count, type) && one != MPI_IN_PLACE;
    return are_exchanged(one, count, type, all, all_count, all_type);
}

// Passes an error to the error handler of the program's communicator.
static int ended(const struct plan *plan, int error)
{
    if (error != MPI_SUCCESS)
        PMPI_Comm_call_errhandler(plan->comm, error);
    return error;
}

// --- the functions -------------------------------------------------------------

int MPI_Barrier(MPI_Comm comm)
{
    struct plan *plan = plan_of(comm);
    int error = plan ? run_barrier(plan, NULL) : LEAVE;
    return error == LEAVE ? PMPI_Barrier(comm) : ended(plan, error);
}

int MPI_Ibarrier(MPI_Comm comm, MPI_Request *request)
{
    struct plan *plan = request ? made_plan_of(comm) : NULL;
    int error = plan ? run_barrier(plan, &(struct later){.request = request}) : LEAVE;
    return error == LEAVE ? PMPI_Ibarrier(comm, request) : ended(plan, error);
}

#if PERSISTENT
static int start_barrier(struct plan *plan, const struct later *later, const struct arguments *unused)
{
    (void)unused;
    return run_barrier(plan, later);
}

int MPI_Barrier_init(MPI_Comm comm, MPI_Info info, MPI_Request *request)
{
    struct plan *plan = request ? plan_of(comm) : NULL;
    int error = plan ? make_persistent(plan, start_barrier, &(struct arguments){0}, request) : LEAVE;
    return error == LEAVE ? PMPI_Barrier_init(comm, info, request) : ended(plan, error);
}
#endif

// This info key pins algorithms of one communicator, as ISTHMUS_COLLECTIVES_PIN does of all. A program may change it at
// any time. Both functions are collective, so here a plan can be made.
static const char PIN_KEY[] = "isthmus_collectives_pin";
enum { PINS_LENGTH = 1024 };

static void pin_by_info(MPI_Comm comm, MPI_Info info)
{
    char text[PINS_LENGTH] = "";
    int found = 0;
#if MPI_VERSION >= 4
    int length = PINS_LENGTH;
    int error = info == MPI_INFO_NULL ? MPI_ERR_INFO : PMPI_Info_get_string(info, PIN_KEY, &length, text, &found);
#else
    int error = info == MPI_INFO_NULL ? MPI_ERR_INFO : PMPI_Info_get(info, PIN_KEY, PINS_LENGTH - 1, text, &found);
#endif
    if (error || !found)
        return;
    int32_t unused[OPERATIONS];
    struct plan *plan = plan_of(comm);
    read_pins(PIN_KEY, text, plan ? plan->settings.pins : unused);
}

int MPI_Comm_set_info(MPI_Comm comm, MPI_Info info)
{
    int error = PMPI_Comm_set_info(comm, info);
    if (error == MPI_SUCCESS)
        pin_by_info(comm, info);
    return error;
}

int MPI_Comm_dup_with_info(MPI_Comm comm, MPI_Info info, MPI_Comm *copy)
{
    int error = PMPI_Comm_dup_with_info(comm, info, copy);
    if (error == MPI_SUCCESS)
        pin_by_info(*copy, info);
    return error;
}

// A non-blocking or persistent collective may still use a datatype or operation that the program frees.
int MPI_Type_free(MPI_Datatype *type)
{
    int integers, addresses, types, combiner;
    if (!type || *type == MPI_DATATYPE_NULL || PMPI_Type_get_envelope(*type, &integers, &addresses, &types, &combiner) ||
        combiner == MPI_COMBINER_NAMED || !keep_in_use(*type, MPI_OP_NULL))
        return PMPI_Type_free(type);
    *type = MPI_DATATYPE_NULL;
    return MPI_SUCCESS;
}

int MPI_Op_free(MPI_Op *op)
{
    if (!op || *op == MPI_OP_NULL || !keep_in_use(MPI_DATATYPE_NULL, *op))
        return PMPI_Op_free(op);
    *op = MPI_OP_NULL;
    return MPI_SUCCESS;
}

#define ENTRY(name) MPI_##name
#define STOCK(name) PMPI_##name
#define TRY(name) try_##name
#define COUNT int
#define DISPL int
#define SPREAD(c, d) {.counts = (c), .displs = (d)}
#include "entries.h"

#if LARGE_COUNTS
#define ENTRY(name) MPI_##name##_c
#define STOCK(name) PMPI_##name##_c
#define TRY(name) try_##name##_c
#define COUNT MPI_Count
#define DISPL MPI_Aint
#define SPREAD(c, d) {.counts_c = (c), .displs_c = (d)}
#include "entries.h"
#endif

#pragma GCC visibility pop
