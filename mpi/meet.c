// Couples two applications without a common MPI: their ranks 0 meet, and exchange the addresses of all ranks.
#include "link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { MEET_PATIENCE_S = 60, CALL_US = 10000000, TURN_US = 100000 };
// Most ranks of a side. Count; a larger number from the other side is refused.
enum { RANKS_MOST = 1 << 20 };

// The message of a rank 0 to the other, before the addresses of its ranks.
struct table_head {
    uint8_t token[TOKEN_LEN]; // part 1's counts
    int32_t ranks, newest;    // the newest version that it speaks
    int64_t length;
};

// The results of rank 0, for all ranks of its side.
struct found {
    struct trouble trouble;
    uint8_t token[TOKEN_LEN];
    int32_t remote;
    int64_t length;
};

// A meeting of ranks 0.
struct meeting {
    struct link *link;
    struct found *found;
    const char *at, *secret;
    char place[160]; // `at`, as errors have it: without a key
    int part;
    double until, patience;
    isthmus_connection connection;
    isthmus_event *held; // requests of ranks whose addresses have not come yet
    int held_count, held_room;
};

static double left_s(const struct meeting *m)
{
    double left = m->until - now_s();
    return left > 0 ? left : 0;
}

// --- the first connection --------------------------------------------------------------

static void note_version(struct trouble *trouble)
{
    note(trouble, ISTHMUS_MPI_MISMATCH,
         "the other application has another version of this library; install the same on both sides");
}

// Whether the request is the other application's first.
static int is_first_call(struct meeting *m, const isthmus_event *event)
{
    struct hello hello;
    enum refusal refusal = REFUSED_STRANGER;
    if (event->len == sizeof hello) {
        memcpy(&hello, event->data, sizeof hello);
        if (hello.magic == LINK_MAGIC && (hello.oldest > LINK_NEWEST || hello.newest < LINK_OLDEST))
            refusal = REFUSED_VERSION;
        else if (hello.magic == LINK_MAGIC && hello.rank == FIRST_CALL)
            return 1;
    }
    isthmus_reject(m->link->endpoint, event, refusal, NULL, 0);
    if (refusal == REFUSED_VERSION)
        note_version(&m->found->trouble);
    return 0;
}

// Waits for part 2. A later caller is told that this part is coupled already.
static void await_call(struct meeting *m)
{
    struct trouble *trouble = &m->found->trouble;
    isthmus_event event;
    int accepted = 0, established = 0;
    while (!trouble->code && !established) {
        if (left_s(m) <= 0) {
            note(trouble, ISTHMUS_MPI_COUPLING,
                 "nobody came to %.120s within %.0f s: does the other application call isthmus_couple there, with part 2?",
                 m->place, m->patience);
            break;
        }
        if (isthmus_wait_event(m->link->endpoint, TURN_US, &event) != ISTHMUS_SUCCESS)
            continue;
        if (event.kind == ISTHMUS_EVENT_REQUEST && accepted)
            isthmus_reject(m->link->endpoint, &event, REFUSED_TAKEN, NULL, 0);
        else if (event.kind == ISTHMUS_EVENT_REQUEST && is_first_call(m, &event))
            accepted = isthmus_accept(m->link->endpoint, &event, m->link, &m->connection) == ISTHMUS_SUCCESS;
        else if (event.kind == ISTHMUS_EVENT_ACCEPT)
            established = accepted = event.status == ISTHMUS_SUCCESS;
        isthmus_return_event(m->link->endpoint, &event);
    }
}

static void be_found(struct meeting *m)
{
    struct trouble *trouble = &m->found->trouble;
    isthmus_name announced = {0};
    if (!m->at) {
        fprintf(stderr, "isthmus_couple: the other side couples with part 2 at '%s' (keep it as you keep a password)\n",
                m->link->uri);
        fflush(stderr);
    } else if (strncmp(m->at, "isthmus://", 10) == 0) {
        note(trouble, ISTHMUS_MPI_INVALID,
             "part 1 has an address of its own: give it file:PATH, router:isthmus://AS.SUBNET/IP:PORT/NAME, HOST:PORT or NULL");
    } else {
        int status = isthmus_announce(m->at, m->secret, m->link->uri, &announced);
        if (status != ISTHMUS_SUCCESS)
            note(trouble, status == ISTHMUS_INVALID ? ISTHMUS_MPI_INVALID : ISTHMUS_MPI_COUPLING, "%.300s", isthmus_last_error());
    }
    if (!trouble->code)
        await_call(m);
    if (announced.id)
        isthmus_withdraw(announced);
}

// The failure of the last attempt.
struct attempt {
    int over; // another would not help
    char why[300];
};

// Waits for the end of isthmus_connect.
static int connected(struct meeting *m, struct attempt *attempt)
{
    for (;;) {
        isthmus_event event;
        if (isthmus_wait_event(m->link->endpoint, TURN_US, &event) != ISTHMUS_SUCCESS)
            continue;
        int ends = event.kind == ISTHMUS_EVENT_CONNECT, well = event.status == ISTHMUS_SUCCESS;
        if (ends && event.status == ISTHMUS_REJECTED && event.reason == REFUSED_VERSION)
            note_version(&m->found->trouble);
        else if (ends && event.status == ISTHMUS_REJECTED && event.reason == REFUSED_TAKEN)
            note(&m->found->trouble, ISTHMUS_MPI_COUPLING, "the application at %.120s is coupled with another already; choose another place",
                 m->place);
        else if (ends && !well)
            snprintf(attempt->why, sizeof attempt->why, "%.280s", event.text);
        isthmus_return_event(m->link->endpoint, &event);
        if (ends)
            return well;
    }
}

static int call_once(struct meeting *m, struct attempt *attempt)
{
    char uri[ISTHMUS_URI_MAX];
    struct hello hello = {.magic = LINK_MAGIC, .oldest = LINK_OLDEST, .newest = LINK_NEWEST, .rank = FIRST_CALL};
    int status = isthmus_find(m->at, m->secret, (uint64_t)(1e6 * left_s(m)), uri, sizeof uri);
    if (status == ISTHMUS_SUCCESS)
        status = isthmus_connect(m->link->endpoint, uri, &hello, sizeof hello, ISTHMUS_RO, m->link, CALL_US, &m->connection);
    if (status != ISTHMUS_SUCCESS) {
        snprintf(attempt->why, sizeof attempt->why, "%.280s", isthmus_last_error());
        attempt->over = status != ISTHMUS_TIMED_OUT && status != ISTHMUS_UNREACHABLE;
        if (status == ISTHMUS_INVALID)
            note(&m->found->trouble, ISTHMUS_MPI_INVALID, "%.300s", attempt->why);
        return 0;
    }
    return connected(m, attempt);
}

// Looks for part 1 until it answers: a file may be of an earlier run.
static void find_other(struct meeting *m)
{
    struct trouble *trouble = &m->found->trouble;
    struct attempt attempt = {0};
    if (!m->at)
        note(trouble, ISTHMUS_MPI_INVALID,
             "part 2 needs the place where part 1 is: file:PATH, router:isthmus://AS.SUBNET/IP:PORT/NAME, HOST:PORT, or the "
             "address that part 1 printed");
    while (!trouble->code && !call_once(m, &attempt)) {
        if (attempt.over)
            note(trouble, ISTHMUS_MPI_COUPLING, "%.300s", attempt.why);
        else if (left_s(m) <= 0)
            note(trouble, ISTHMUS_MPI_COUPLING,
                 "nobody is at %.90s after %.0f s (%.90s): does the other application call isthmus_couple there, with part 1?",
                 m->place, m->patience, attempt.why);
        for (int i = 0; i < TURN_US / (REST_NS / 1000) && !trouble->code; i++)
            rest(REST_NS);
    }
}

// --- the addresses ---------------------------------------------------------------------

static void say(struct meeting *m, const void *data, size_t length)
{
    struct trouble *trouble = &m->found->trouble;
    if (!trouble->code &&
        isthmus_send(m->link->endpoint, m->connection, data, length, NULL, ISTHMUS_BLOCKING) != ISTHMUS_SUCCESS)
        note(trouble, ISTHMUS_MPI_LOST, "the other application is lost: %.250s", isthmus_last_error());
}

static void send_table(struct meeting *m, const char *uris, int64_t length)
{
    struct table_head head = {.ranks = m->link->c->ranks, .newest = LINK_NEWEST, .length = length};
    memcpy(head.token, m->found->token, TOKEN_LEN);
    say(m, &head, sizeof head);
    for (int64_t at = 0; at < length; at += SHORT_MOST)
        say(m, uris + at, (size_t)(length - at < SHORT_MOST ? length - at : SHORT_MOST));
}

// Holds a request until the addresses have come. The endpoint's backlog limits their number.
static void hold(struct meeting *m, const isthmus_event *event)
{
    if (m->held_count == m->held_room) {
        m->held_room = 2 * m->held_room + 16;
        m->held = realloc(m->held, (size_t)m->held_room * sizeof *m->held);
        if (!m->held)
            MPI_Abort(m->link->c->local, ISTHMUS_MPI_MEMORY); // some bytes for each rank: what could follow?
    }
    m->held[m->held_count++] = *event;
}

// Takes the next message on the connection; the event must be returned. Returns whether there is one.
static int hear(struct meeting *m, isthmus_event *event)
{
    struct trouble *trouble = &m->found->trouble;
    while (!trouble->code) {
        if (isthmus_wait_event(m->link->endpoint, TURN_US, event) != ISTHMUS_SUCCESS) {
            if (left_s(m) <= 0)
                note(trouble, ISTHMUS_MPI_COUPLING, "the other application said nothing within %.0f s", m->patience);
            continue;
        }
        if (event->kind == ISTHMUS_EVENT_RECV)
            return 1;
        if (event->kind == ISTHMUS_EVENT_REQUEST) {
            hold(m, event);
            continue;
        }
        if (event->kind == ISTHMUS_EVENT_DISCONNECT)
            note(trouble, ISTHMUS_MPI_LOST, "the other application is lost: %.250s", event->text);
        isthmus_return_event(m->link->endpoint, event);
    }
    return 0;
}

// Whether there are as many addresses as ranks, each ended by NUL.
static int is_table(const char *uris, int64_t length, int ranks)
{
    int count = 0;
    for (int64_t i = 0; i < length; i++)
        count += !uris[i];
    return count == ranks && length > 0 && !uris[length - 1];
}

static char *hear_table(struct meeting *m)
{
    struct found *found = m->found;
    struct table_head head = {0};
    isthmus_event event;
    char *uris = NULL;
    if (!hear(m, &event))
        return NULL;
    if (event.len == sizeof head)
        memcpy(&head, event.data, sizeof head);
    isthmus_return_event(m->link->endpoint, &event);
    int sane = head.ranks > 0 && head.ranks <= RANKS_MOST && head.length > 0 && head.length <= (int64_t)head.ranks * ISTHMUS_URI_MAX;
    if (sane && !(uris = malloc((size_t)head.length)))
        note(&found->trouble, ISTHMUS_MPI_MEMORY, "no memory for the addresses of %d ranks", head.ranks);
    for (int64_t at = 0; sane && at < head.length && hear(m, &event); at += (int64_t)event.len) {
        sane = (int64_t)event.len <= head.length - at && event.len > 0;
        if (sane)
            memcpy(uris + at, event.data, event.len);
        isthmus_return_event(m->link->endpoint, &event);
    }
    if (!found->trouble.code && (!sane || !is_table(uris, head.length, head.ranks)))
        note(&found->trouble, ISTHMUS_MPI_COUPLING, "what answered at %.120s is no isthmus_couple", m->place);
    found->remote = head.ranks;
    found->length = head.length;
    if (m->part == 2)
        memcpy(found->token, head.token, TOKEN_LEN);
    return uris;
}

// --- all ranks -------------------------------------------------------------------------

// Gathers all ranks' addresses at rank 0, or the trouble of the lowest rank that failed.
static char *gather(struct link *link, int64_t *length, struct trouble *trouble)
{
    const struct isthmus_mpi_coupling *c = link->c;
    int mine = (int)strlen(link->uri) + 1, failed = trouble->code ? c->rank : c->ranks, first;
    int *lengths = calloc(2 * (size_t)c->ranks, sizeof *lengths), *at = lengths + c->ranks;
    char *uris = NULL;
    if (!lengths)
        MPI_Abort(c->local, ISTHMUS_MPI_MEMORY); // some bytes for each rank: what could follow?
    MPI_Allreduce(&failed, &first, 1, MPI_INT, MPI_MIN, c->local);
    if (first < c->ranks) {
        MPI_Bcast(trouble, sizeof *trouble, MPI_BYTE, first, c->local);
        free(lengths);
        return NULL;
    }
    MPI_Gather(&mine, 1, MPI_INT, lengths, 1, MPI_INT, 0, c->local);
    for (int i = 1; i < c->ranks; i++)
        at[i] = at[i - 1] + lengths[i - 1];
    *length = at[c->ranks - 1] + lengths[c->ranks - 1];
    if (c->rank == 0 && !(uris = malloc((size_t)*length)))
        MPI_Abort(c->local, ISTHMUS_MPI_MEMORY); // likewise
    MPI_Gatherv(link->uri, mine, MPI_CHAR, uris, lengths, at, MPI_CHAR, 0, c->local);
    free(lengths);
    return uris;
}

// The place; "env:NAME" stands for the value of that variable.
static const char *place_of(const char *at, struct trouble *trouble)
{
    if (!at || strncmp(at, "env:", 4) != 0)
        return at;
    const char *value = getenv(at + 4);
    if (!value || !*value)
        note(trouble, ISTHMUS_MPI_INVALID, "the environment variable %.100s, which is to name the place, is not set", at + 4);
    return value;
}

// Rank 0's part of the meeting. Returns the other side's addresses.
static char *meet(struct meeting *m, const char *uris, int64_t length)
{
    struct found *found = m->found;
    struct link *link = m->link;
    if (getrandom(found->token, TOKEN_LEN, 0) != TOKEN_LEN)
        note(&found->trouble, ISTHMUS_MPI_COUPLING, "the system has no random numbers");
    m->at = place_of(m->at, &found->trouble);
    // An address has a secret key after its '#'. Errors must not show it.
    snprintf(m->place, sizeof m->place, "%.*s", m->at ? (int)strcspn(m->at, "#") : 16, m->at ? m->at : "the printed address");
    if (m->part != 1 && m->part != 2)
        note(&found->trouble, ISTHMUS_MPI_INVALID, "part %d; one side is part 1, the other part 2", m->part);
    if (!found->trouble.code && m->part == 1)
        be_found(m);
    else if (!found->trouble.code)
        find_other(m);
    if (found->trouble.code)
        return NULL;
    send_table(m, uris, length);
    char *theirs = hear_table(m);
    memcpy(link->token, found->token, TOKEN_LEN);
    return theirs;
}

// Sends the results of rank 0 to all ranks of its side.
static char *tell_all(struct link *link, struct found *found, char *theirs)
{
    MPI_Request request;
    MPI_Ibcast(found, sizeof *found, MPI_BYTE, 0, link->c->local, &request);
    await(&request);
    if (found->trouble.code)
        return theirs;
    if (!theirs && !(theirs = malloc((size_t)found->length)))
        MPI_Abort(link->c->local, ISTHMUS_MPI_MEMORY); // some bytes for each rank: what could follow?
    MPI_Ibcast(theirs, (int)found->length, MPI_BYTE, 0, link->c->local, &request);
    await(&request);
    return theirs;
}

// The first connection is kept as the one between the ranks 0.
static void begin_with(struct meeting *m)
{
    struct peer *first = &m->link->peers[0];
    first->way = m->connection;
    first->state = PEER_UP;
    first->ways = 1;
    for (int i = 0; i < m->held_count; i++)
        on_request(m->link, &m->held[i]);
}

static void let_go(struct meeting *m)
{
    for (int i = 0; i < m->held_count; i++)
        isthmus_return_event(m->link->endpoint, &m->held[i]);
    free(m->held);
}

static int come_together(struct meeting *m, struct isthmus_mpi_coupling *c, isthmus_mpi_coupling **coupling)
{
    struct trouble trouble = {0};
    int64_t length = 0;
    link_open(c->link, &trouble);
    char *uris = gather(c->link, &length, &trouble), *theirs = NULL;
    m->found->trouble = trouble;
    if (!trouble.code && c->rank == 0)
        theirs = meet(m, uris, length);
    free(uris);
    if (!trouble.code)
        theirs = tell_all(c->link, m->found, theirs);
    trouble = m->found->trouble;
    if (!trouble.code) {
        memcpy(c->link->token, m->found->token, TOKEN_LEN);
        c->remote = m->found->remote;
        link_know(c->link, theirs, c->remote);
        if (c->rank == 0)
            begin_with(m);
    } else {
        free(theirs);
    }
    let_go(m);
    if (!trouble.code)
        return settle(c, coupling);
    isthmus_mpi_uncouple(c);
    return tell(&trouble);
}

int isthmus_couple(MPI_Comm comm, const char *at, int part, const char *secret, double patience, isthmus_mpi_coupling **coupling)
{
    struct handlers handlers;
    if (!coupling)
        return refuse("no place for the coupling");
    *coupling = NULL;
    return_errors(&handlers);
    struct isthmus_mpi_coupling *c = new_coupling(comm);
    struct link *link = calloc(1, sizeof *link);
    struct meeting *m = calloc(1, sizeof *m);
    struct found *found = calloc(1, sizeof *found);
    if (!link || !m || !found)
        MPI_Abort(comm, ISTHMUS_MPI_MEMORY);
    c->exchange = &over_link;
    c->link = link;
    link->c = c;
    patience = patience > 0 ? patience : MEET_PATIENCE_S;
    *m = (struct meeting){.link = link, .found = found, .at = at, .secret = secret && *secret ? secret : NULL, .part = part,
                          .until = now_s() + patience, .patience = patience};
    int status = come_together(m, c, coupling);
    free(found);
    free(m);
    restore_errors(&handlers);
    return status;
}

int isthmus_couple_f(int32_t comm, const char *at, int part, const char *secret, double patience, isthmus_mpi_coupling **coupling)
{
    return isthmus_couple(communicator(comm), at && *at ? at : NULL, part, secret, patience, coupling);
}
