// The PMIx server of one process of `isthmus run`, which starts it for programs of Open MPI 5.
//   isthmus-pmix SPACE SIZE FIRST COUNT CHANNEL     the world has SIZE ranks; COUNT of them, from FIRST on, are of this process
//
// It does by libpmix what only libpmix can: it talks with the ranks. What ranks of other processes give to a fence comes
// from `isthmus run`. The two talk over the descriptor CHANNEL. A message is its length (4 bytes, in this host's order), a letter,
// and so many bytes.
//   E  to isthmus run, COUNT times: the variables of a rank, each NAME=VALUE and a NUL
//   F  to isthmus run: all ranks here wait in a fence, and gave these bytes; from it: what the ranks of the world gave
//   C  to isthmus run: this rank has connected; Z: it needs the server no more
//   A  to isthmus run: a rank aborts: "RANK STATUS MESSAGE", the rank counted from 0 here
// It ends when the channel is closed.
#define _GNU_SOURCE
#include <ftw.h>
#include <pmix.h>
#include <pmix_server.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <unistd.h>

static int channel;
static pmix_rank_t first;
// The fence in which all ranks here wait.
static pmix_modex_cbfunc_t waiting;
static void *waiting_data;
static char folder[256];

static int clear(const char *path, const struct stat *status, int kind, struct FTW *at)
{
    (void)status, (void)kind, (void)at;
    return remove(path) && 0;
}

// Ends this process, and takes its folder away.
__attribute__((noreturn)) static void end(int status)
{
    nftw(folder, clear, 16, FTW_DEPTH | FTW_PHYS);
    _exit(status);
}

__attribute__((noreturn)) static void give_up(const char *what, pmix_status_t why)
{
    fprintf(stderr, "isthmus-pmix: %s: %s\n", what, PMIx_Error_string(why));
    end(1);
}

static int move_all(int writes, void *data, size_t bytes)
{
    for (char *at = data; bytes > 0;) {
        ssize_t moved = writes ? write(channel, at, bytes) : read(channel, at, bytes);
        if (moved <= 0)
            return 0;
        at += moved;
        bytes -= (size_t)moved;
    }
    return 1;
}

// In one write: threads of libpmix call it.
static void tell(char letter, const void *data, size_t bytes)
{
    uint32_t length = (uint32_t)bytes;
    char *message = malloc(sizeof length + 1 + bytes);
    if (!message)
        end(1);
    memcpy(message, &length, sizeof length);
    message[sizeof length] = letter;
    if (bytes)
        memcpy(message + sizeof length + 1, data, bytes);
    if (!move_all(1, message, sizeof length + 1 + bytes))
        end(0);
    free(message);
}

static pmix_status_t fence(const pmix_proc_t procs[], size_t count, const pmix_info_t info[], size_t infos, char *data,
                           size_t bytes, pmix_modex_cbfunc_t call, void *call_data)
{
    (void)info, (void)infos;
    // Of the whole world only: others may be under way at the same time elsewhere.
    if (count != 1 || procs[0].rank != PMIX_RANK_WILDCARD || waiting)
        return PMIX_ERR_NOT_SUPPORTED;
    waiting_data = call_data;
    waiting = call;
    tell('F', data, bytes);
    return PMIX_SUCCESS;
}

static pmix_status_t aborts(const pmix_proc_t *proc, void *object, int status, const char message[], pmix_proc_t procs[],
                            size_t count, pmix_op_cbfunc_t call, void *call_data)
{
    (void)object, (void)procs, (void)count, (void)call, (void)call_data;
    char text[300];
    int length = snprintf(text, sizeof text, "%u %d %.200s", proc->rank - first, status, message ? message : "");
    tell('A', text, (size_t)length);
    return PMIX_OPERATION_SUCCEEDED;
}

static void tell_rank(char letter, const pmix_proc_t *proc)
{
    char text[16];
    tell(letter, text, (size_t)snprintf(text, sizeof text, "%u", proc->rank - first));
}

static pmix_status_t is_finalized(const pmix_proc_t *proc, void *object, pmix_op_cbfunc_t call, void *call_data)
{
    (void)object, (void)call, (void)call_data;
    tell_rank('Z', proc);
    return PMIX_OPERATION_SUCCEEDED;
}

static pmix_status_t is_connected(const pmix_proc_t *proc, void *object, pmix_info_t info[], size_t count, pmix_op_cbfunc_t call,
                                  void *call_data)
{
    (void)object, (void)info, (void)count, (void)call, (void)call_data;
    tell_rank('C', proc);
    return PMIX_OPERATION_SUCCEEDED;
}

// The ranks here share a node. Each other rank is told to have one of its own: they are never reached by shared memory.
static void map(uint32_t size, uint32_t count, char **nodes, char **ranks, char *peers)
{
    size_t room = 32 + 16 * (size_t)size;
    char *names = malloc(room), *places = malloc(room);
    if (!names || !places)
        end(1);
    size_t named = 0, placed = 0;
    for (uint32_t rank = 0; rank < size; rank++) {
        int is_here = rank > first && rank < first + count;
        if (!is_here)
            named += (size_t)sprintf(names + named, "%sn%u", rank ? "," : "", rank);
        placed += (size_t)sprintf(places + placed, "%s%u", !rank ? "" : is_here ? "," : ";", rank);
    }
    if (PMIx_generate_regex(names, nodes) != PMIX_SUCCESS || PMIx_generate_ppn(places, ranks) != PMIX_SUCCESS)
        give_up("no map of the nodes", PMIX_ERROR);
    size_t at = 0;
    for (uint32_t rank = first; rank < first + count; rank++)
        at += (size_t)sprintf(peers + at, "%s%u", at ? "," : "", rank);
    free(names);
    free(places);
}

static void must(pmix_status_t status, const char *what)
{
    if (status != PMIX_SUCCESS && status != PMIX_OPERATION_SUCCEEDED)
        give_up(what, status);
}

static void begin(const char *space, uint32_t size, uint32_t count)
{
    static pmix_server_module_t module = {.client_connected2 = is_connected, .client_finalized = is_finalized, .abort = aborts, .fence_nb = fence};
    char node[16], *peers = malloc(16 * (size_t)count), *nodes, *ranks;
    snprintf(node, sizeof node, "n%u", first);
    const char *place = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/isthmus-pmix-XXXXXX", place && *place ? place : "/tmp");
    if (!peers || !mkdtemp(folder))
        give_up(folder, PMIX_ERROR);
    pmix_info_t own[2];
    PMIX_INFO_LOAD(&own[0], PMIX_HOSTNAME, node, PMIX_STRING);
    PMIX_INFO_LOAD(&own[1], PMIX_SERVER_TMPDIR, folder, PMIX_STRING);
    must(PMIx_server_init(&module, own, 2), "PMIx_server_init");
    map(size, count, &nodes, &ranks, peers);
    static const char *numbers[] = {PMIX_UNIV_SIZE, PMIX_JOB_SIZE, PMIX_MAX_PROCS, PMIX_NUM_NODES, PMIX_LOCAL_SIZE};
    uint32_t values[] = {size, size, size, size - count + 1, count};
    enum { NUMBERS = sizeof values / sizeof *values };
    pmix_info_t job[NUMBERS + 4];
    for (int index = 0; index < NUMBERS; index++)
        PMIX_INFO_LOAD(&job[index], numbers[index], &values[index], PMIX_UINT32);
    PMIX_INFO_LOAD(&job[NUMBERS], PMIX_NODE_MAP, nodes, PMIX_REGEX);
    PMIX_INFO_LOAD(&job[NUMBERS + 1], PMIX_PROC_MAP, ranks, PMIX_REGEX);
    PMIX_INFO_LOAD(&job[NUMBERS + 2], PMIX_LOCAL_PEERS, peers, PMIX_STRING);
    PMIX_INFO_LOAD(&job[NUMBERS + 3], PMIX_JOBID, space, PMIX_STRING);
    // Without a function to call back these wait.
    must(PMIx_server_register_nspace(space, (int)count, job, NUMBERS + 4, NULL, NULL), "PMIx_server_register_nspace");
    for (uint32_t index = 0; index < count; index++) {
        pmix_proc_t proc;
        PMIX_LOAD_PROCID(&proc, space, first + index);
        must(PMIx_server_register_client(&proc, getuid(), getgid(), NULL, NULL, NULL), "PMIx_server_register_client");
        char **variables = NULL, *text = NULL;
        size_t length = 0;
        must(PMIx_server_setup_fork(&proc, &variables), "PMIx_server_setup_fork");
        FILE *all = open_memstream(&text, &length);
        for (char **one = variables; all && one && *one; one++)
            fwrite(*one, 1, strlen(*one) + 1, all);
        if (!all || fclose(all))
            end(1);
        tell('E', text, length);
        free(text);
    }
    free(peers);
}

int main(int argc, char **argv)
{
    if (argc != 6)
        return 2;
    channel = atoi(argv[5]);
    signal(SIGPIPE, SIG_IGN);
    first = (pmix_rank_t)atoi(argv[3]);
    begin(argv[1], (uint32_t)atoi(argv[2]), (uint32_t)atoi(argv[4]));
    for (;;) {
        uint32_t length;
        char letter, *data;
        if (!move_all(0, &length, sizeof length) || !move_all(0, &letter, 1) || !(data = malloc((size_t)length + 1)) ||
            !move_all(0, data, length))
            end(0);
        if (letter != 'F' || !waiting)
            end(1);
        pmix_modex_cbfunc_t call = waiting;
        waiting = NULL;
        call(PMIX_SUCCESS, data, length, waiting_data, free, data);
    }
}
