// Couples two applications by a common MPI, and parts them.
#include "internal.h"
#include "isthmus.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATIENCE_S = 60, PORT_CHECK_NS = 20000000 };
// A path with a round trip of at least FAR_S seconds is warmed up with WARM_BYTES bytes in all. Beyond WARM_TRIP_S
// seconds it is more in proportion, up to WARM_MOST times. A share below WARM_LEAST bytes for a rank is not sent.
enum { WARM_BYTES = 8 << 20, WARM_LEAST = 64 << 10, WARM_MOST = 4 };
#define FAR_S 0.001
#define WARM_TRIP_S 0.024

static const char NOT_THERE[] = "cannot connect to the accepting application; is the port's name of an earlier run?";

// The results of rank 0, for all ranks.
struct meeting {
    struct trouble trouble;
    char port[MPI_MAX_PORT_NAME];
    char file[PATH_MAX];
    char place[PATH_MAX], name[PATH_MAX]; // of a router, and at it
    isthmus_name published;
};

static void note_coupling(struct trouble *trouble, int error, const char *what)
{
    note_mpi(trouble, error, "%s", what);
    trouble->code = ISTHMUS_MPI_COUPLING;
}

// --- the port's name -----------------------------------------------------------------

// The rest of a text after `prefix`; NULL if it does not begin with it.
static const char *after(const char *text, const char *prefix)
{
    size_t length = strlen(prefix);
    return strncmp(text, prefix, length) == 0 ? text + length : NULL;
}

static void read_spec(const char *spec, struct meeting *meeting)
{
    const char *part;
    for (int depth = 0; depth < 2; depth++) {
        if (!spec)
            spec = "env:ISTHMUS_PORT";
        if ((part = after(spec, "env:"))) {
            spec = getenv(part);
            if (!spec) {
                note(&meeting->trouble, ISTHMUS_MPI_INVALID,
                     "the environment variable %.100s, which is to name the port, is not set", part);
                return;
            }
        }
    }
    if ((part = after(spec, "file:")) && part[0] && strlen(part) < sizeof meeting->file - 5)
        strcpy(meeting->file, part);
    else if ((part = after(spec, "router:")) && strrchr(part, '/') && strlen(part) < sizeof meeting->place) {
        int place = (int)(strrchr(part, '/') - part);
        snprintf(meeting->place, sizeof meeting->place, "%.*s", place, part);
        strcpy(meeting->name, part + place + 1);
    } else if ((part = after(spec, "name:")) && part[0] && strlen(part) < sizeof meeting->port)
        strcpy(meeting->port, part);
    else
        note(&meeting->trouble, ISTHMUS_MPI_INVALID,
             "\"%.100s\" names no port; expected file:PATH, router:isthmus://AS.SUBNET/IP:PORT/NAME, env:NAME or name:TEXT", spec);
}

static void note_router(struct trouble *trouble, const char *what, const struct meeting *meeting)
{
    note(trouble, ISTHMUS_MPI_COUPLING, "%s \"%.60s\" at the router %.60s: %.150s", what, meeting->name, meeting->place,
         isthmus_last_error());
}

// Writes a file that only this user can read: who has the port's name may connect.
static int write_own(const char *path, const char *text)
{
    size_t length = strlen(text);
    unlink(path);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return 0;
    ssize_t written = write(fd, text, length);
    int error = written == (ssize_t)length ? 0 : written < 0 ? errno : ENOSPC;
    if (close(fd) != 0 && !error)
        error = errno;
    if (error)
        unlink(path);
    errno = error;
    return !error;
}

// Whether files that this process makes beside this one have this owner. Some file systems give all files of a user to
// another one, such as an NFS server those of root.
static int is_owner_of_new(const char *path, uid_t owner)
{
    struct stat about;
    char probe[PATH_MAX];
    snprintf(probe, sizeof probe, "%.4080s.XXXXXX", path);
    int fd = mkstemp(probe);
    if (fd < 0)
        return 0;
    int is_owner = fstat(fd, &about) == 0 && about.st_uid == owner;
    unlink(probe);
    close(fd);
    return is_owner;
}

// Opens the file with the port's name. It must be this user's or root's, and nobody else may write to it: whoever writes
// it chooses the program that this one couples with.
static FILE *open_own(struct meeting *meeting)
{
    struct stat about;
    int fd = open(meeting->file, O_RDONLY | O_NONBLOCK | O_CLOEXEC); // a pipe must not hold us up
    if (fd < 0)
        return NULL;
    if (fstat(fd, &about) != 0)
        note_errno(&meeting->trouble, errno, "cannot read the port's name in %.150s", meeting->file);
    else if (!S_ISREG(about.st_mode))
        note(&meeting->trouble, ISTHMUS_MPI_COUPLING, "%.150s is not a regular file; choose another file", meeting->file);
    else if (about.st_uid != geteuid() && about.st_uid != 0 && !is_owner_of_new(meeting->file, about.st_uid))
        note(&meeting->trouble, ISTHMUS_MPI_COUPLING,
             "%.100s belongs to user %u (mode %04o), and you are user %u, so its port's name is not believed; use a file "
             "in a folder that only you can write to, or router:PLACE/NAME",
             meeting->file, (unsigned)about.st_uid, (unsigned)about.st_mode & 07777, (unsigned)geteuid());
    else if (about.st_mode & (S_IWGRP | S_IWOTH))
        note(&meeting->trouble, ISTHMUS_MPI_COUPLING,
             "%.100s of user %u can be written by other users (mode %04o), so its port's name is not believed; if the "
             "file system gives this mode to all files, use router:PLACE/NAME",
             meeting->file, (unsigned)about.st_uid, (unsigned)about.st_mode & 07777);
    else
        return fdopen(fd, "r");
    meeting->trouble.code = ISTHMUS_MPI_COUPLING;
    close(fd);
    errno = EPERM;
    return NULL;
}

static void publish(struct meeting *meeting)
{
    if (meeting->name[0]) {
        if (isthmus_publish(meeting->place, meeting->name, meeting->port, &meeting->published) != ISTHMUS_SUCCESS)
            note_router(&meeting->trouble, "cannot publish", meeting);
        return;
    }
    char temporary[PATH_MAX];
    snprintf(temporary, sizeof temporary, "%.4090s.new", meeting->file);
    int written = write_own(temporary, meeting->port);
    if (!written || rename(temporary, meeting->file) != 0) {
        note_errno(&meeting->trouble, errno, "cannot write the port's name to %.150s", meeting->file);
        meeting->trouble.code = ISTHMUS_MPI_COUPLING;
        unlink(temporary);
    }
}

// Withdraws the published port or removes its file, so that nobody else finds it.
static void conceal(const struct meeting *meeting)
{
    if (meeting->name[0])
        isthmus_withdraw(meeting->published);
    else
        unlink(meeting->file);
}

static void open_port(struct meeting *meeting)
{
    int error = MPI_SUCCESS;
    if (!meeting->trouble.code && !meeting->file[0] && !meeting->name[0])
        note(&meeting->trouble, ISTHMUS_MPI_INVALID,
             "accept opens the port, and tells its name: give file:PATH or router:PLACE/NAME");
    if (meeting->trouble.code)
        return;
    if (meeting->file[0])
        unlink(meeting->file); // of a run before
    if ((error = MPI_Open_port(MPI_INFO_NULL, meeting->port)) != MPI_SUCCESS)
        note_coupling(&meeting->trouble, error, "this MPI cannot open a port");
    else
        publish(meeting);
    if (meeting->trouble.code && error == MPI_SUCCESS)
        MPI_Close_port(meeting->port);
}

static void find_port(struct meeting *meeting, double patience)
{
    double until = now_s() + (patience > 0 ? patience : PATIENCE_S);
    FILE *in = NULL;
    if (meeting->trouble.code || meeting->port[0])
        return;
    if (meeting->name[0]) {
        uint64_t patience_us = (uint64_t)(1e6 * (patience > 0 ? patience : PATIENCE_S));
        int status = isthmus_look_up(meeting->place, meeting->name, patience_us, meeting->port, sizeof meeting->port);
        if (status != ISTHMUS_SUCCESS)
            note_router(&meeting->trouble, status == ISTHMUS_TIMED_OUT ? "nobody published" : "cannot look up", meeting);
        return;
    }
    while (!(in = open_own(meeting)) && errno == ENOENT && now_s() < until)
        for (int i = 0; i < PORT_CHECK_NS / REST_NS; i++)
            rest(REST_NS);
    size_t length = in ? fread(meeting->port, 1, sizeof meeting->port - 1, in) : 0;
    meeting->port[length] = 0;
    if (in)
        fclose(in);
    if (!length && !meeting->trouble.code)
        note(&meeting->trouble, ISTHMUS_MPI_COUPLING,
             "no port's name in %.150s after %.0f s: is the accepting application running, and does it use this file?",
             meeting->file, patience > 0 ? patience : PATIENCE_S);
}

// --- coming together -----------------------------------------------------------------

// Exchanges a message between all ranks that will exchange pieces. An empty message makes their
// connections; a longer one also brings them up to speed.
static int meet_partners(struct isthmus_mpi_coupling *c, int room, int bytes)
{
    struct stream *streams = calloc((size_t)c->remote, sizeof *streams);
    MPI_Request *requests = calloc(2 * (size_t)c->remote, sizeof(MPI_Request));
    if (!streams || !requests)
        MPI_Abort(c->local, ISTHMUS_MPI_MEMORY); // some bytes for each rank: what could follow?
    int error = MPI_SUCCESS, count = partners_of(c, streams);
    for (int i = 0; i < 2 * count; i++)
        requests[i] = MPI_REQUEST_NULL;
    for (int i = 0; i < count && error == MPI_SUCCESS; i++) {
        error = exchange_receive(c, c->memory, room, streams[i].partner, TAG_PING, &requests[2 * i]);
        if (error == MPI_SUCCESS)
            error = exchange_send(c, c->memory + room, bytes, streams[i].partner, TAG_PING, &requests[2 * i + 1]);
    }
    for (int i = 0; i < 2 * count && error == MPI_SUCCESS; i++)
        error = exchange_await(c, &requests[i]);
    free(streams);
    free(requests);
    return error;
}

// Measures the round trip: the ranks 0 exchange three messages. Whichever rank began, the second and third exchange
// together take one round trip, because one rank finds the other's message there already.
static int measure_path(struct isthmus_mpi_coupling *c)
{
    double began = 0;
    MPI_Request sends[3], receive;
    int error = MPI_SUCCESS;
    for (int i = 0; i < 3 && error == MPI_SUCCESS; i++) {
        if (i == 1)
            began = now_s();
        error = exchange_receive(c, NULL, 0, 0, TAG_PING, &receive);
        if (error == MPI_SUCCESS)
            error = exchange_send(c, NULL, 0, 0, TAG_PING, &sends[i]);
        if (error == MPI_SUCCESS)
            error = exchange_await(c, &receive);
    }
    c->rtt_s = now_s() - began;
    for (int i = 0; i < 3 && error == MPI_SUCCESS; i++)
        error = exchange_await(c, &sends[i]);
    return error;
}

// Warms up the path: lanes begin slowly, and a long path gets more of them only once there is data to send.
// The amount is a few times the bandwidth-delay product of a 1 Gb/s path, shared by the ranks.
static int warm_up(struct isthmus_mpi_coupling *c)
{
    double trips = c->rtt_s / WARM_TRIP_S;
    int64_t ranks = c->ranks > c->remote ? c->ranks : c->remote;
    int64_t bytes = (int64_t)(trips < 1 ? WARM_BYTES : trips > WARM_MOST ? WARM_MOST * WARM_BYTES : WARM_BYTES * trips) / ranks;
    if (c->rtt_s < FAR_S || bytes < WARM_LEAST)
        bytes = 0;
    // The other side has measured for itself, and may send another length.
    return meet_partners(c, MIB, (int)(bytes < MIB ? bytes : MIB));
}

// Whether all ranks succeeded. The lowest rank that failed gives the reason.
static int are_well(struct isthmus_mpi_coupling *c, int error, struct trouble *first)
{
    struct trouble trouble = {0};
    int any, failed = error != MPI_SUCCESS ? c->rank : c->ranks;
    if (error != MPI_SUCCESS) {
        c->exchange->explain(c, error, &trouble, "the other application was lost while it coupled");
        trouble.code = ISTHMUS_MPI_COUPLING;
    }
    MPI_Allreduce(&failed, &any, 1, MPI_INT, MPI_MIN, c->local);
    if (any == c->ranks)
        return 1;
    *first = trouble;
    MPI_Bcast(first, sizeof *first, MPI_BYTE, any, c->local);
    return 0;
}

int settle(struct isthmus_mpi_coupling *c, isthmus_mpi_coupling **coupling)
{
    struct trouble trouble = {0};
    if (c->other != MPI_COMM_NULL) {
        MPI_Comm_set_errhandler(c->other, MPI_ERRORS_RETURN);
        MPI_Comm_remote_size(c->other, &c->remote);
    }
    warm_memory(c);
    int error = meet_partners(c, 0, 0), well;
    if (error == MPI_SUCCESS && c->rank == 0)
        error = measure_path(c);
    well = are_well(c, error, &trouble);
    if (well) {
        MPI_Bcast(&c->rtt_s, 1, MPI_DOUBLE, 0, c->local);
        well = are_well(c, warm_up(c), &trouble);
    }
    if (!well) {
        c->lost = 1;
        isthmus_mpi_uncouple(c);
        return tell(&trouble);
    }
    *coupling = c;
    return tell(&trouble);
}

struct isthmus_mpi_coupling *new_coupling(MPI_Comm comm)
{
    struct isthmus_mpi_coupling *c = calloc(1, sizeof *c);
    if (!c)
        MPI_Abort(comm, ISTHMUS_MPI_MEMORY);
    c->exchange = &over_mpi;
    c->other = MPI_COMM_NULL;
    MPI_Comm_dup(comm, &c->local);
    MPI_Comm_rank(c->local, &c->rank);
    MPI_Comm_size(c->local, &c->ranks);
    return c;
}

static int come_together(MPI_Comm comm, int accepts, const char *port, double patience, isthmus_mpi_coupling **coupling)
{
    struct isthmus_mpi_coupling *c = new_coupling(comm);
    struct meeting *meeting = calloc(1, sizeof *meeting);
    MPI_Request request;
    MPI_Errhandler before;
    if (!meeting)
        MPI_Abort(comm, ISTHMUS_MPI_MEMORY);
    MPI_Comm_get_errhandler(c->local, &before);
    MPI_Comm_set_errhandler(c->local, MPI_ERRORS_RETURN);
    if (c->rank == 0) {
        read_spec(port, meeting);
        if (accepts)
            open_port(meeting);
        else
            find_port(meeting, patience);
    }
    MPI_Ibcast(meeting, sizeof *meeting, MPI_BYTE, 0, c->local, &request);
    await(&request);
    if (!meeting->trouble.code) {
        int error = accepts ? MPI_Comm_accept(meeting->port, MPI_INFO_NULL, 0, c->local, &c->other)
                            : MPI_Comm_connect(meeting->port, MPI_INFO_NULL, 0, c->local, &c->other);
        if (error != MPI_SUCCESS) {
            c->other = MPI_COMM_NULL;
            note_coupling(&meeting->trouble, error, accepts ? "nobody could connect" : NOT_THERE);
        }
        if (accepts && c->rank == 0) {
            conceal(meeting);
            MPI_Close_port(meeting->port);
        }
    }
    MPI_Comm_set_errhandler(c->local, before);
    MPI_Errhandler_free(&before);
    struct trouble trouble = meeting->trouble;
    free(meeting);
    if (trouble.code) {
        isthmus_mpi_uncouple(c);
        return tell(&trouble);
    }
    c->disconnects = 1;
    return settle(c, coupling);
}

int refuse(const char *why)
{
    struct trouble trouble = {0};
    note(&trouble, ISTHMUS_MPI_INVALID, "%s", why);
    return tell(&trouble);
}

static int come(MPI_Comm comm, int accepts, const char *port, double patience, isthmus_mpi_coupling **coupling)
{
    struct handlers handlers;
    if (!coupling)
        return refuse("no place for the coupling");
    return_errors(&handlers);
    int status = come_together(comm, accepts, port, patience, coupling);
    restore_errors(&handlers);
    return status;
}

int isthmus_mpi_accept(MPI_Comm comm, const char *port, isthmus_mpi_coupling **coupling)
{
    return come(comm, 1, port, 0, coupling);
}

int isthmus_mpi_connect(MPI_Comm comm, const char *port, double patience, isthmus_mpi_coupling **coupling)
{
    return come(comm, 0, port, patience, coupling);
}

int isthmus_mpi_couple(MPI_Comm comm, MPI_Comm other, isthmus_mpi_coupling **coupling)
{
    int inter = 0;
    if (!coupling)
        return refuse("no place for the coupling");
    if (other == MPI_COMM_NULL || MPI_Comm_test_inter(other, &inter) != MPI_SUCCESS || !inter)
        return refuse("isthmus_mpi_couple takes an inter-communicator, such as MPI_Intercomm_create makes");
    struct handlers handlers;
    return_errors(&handlers);
    struct isthmus_mpi_coupling *c = new_coupling(comm);
    MPI_Comm_dup(other, &c->other);
    int status = settle(c, coupling);
    restore_errors(&handlers);
    return status;
}

int isthmus_mpi_uncouple(isthmus_mpi_coupling *coupling)
{
    int error = MPI_SUCCESS;
    struct trouble trouble = {0};
    if (!coupling)
        return refuse("no coupling");
    struct handlers handlers;
    return_errors(&handlers);
    error = coupling->exchange->end(coupling);
    restore_errors(&handlers);
    if (error != MPI_SUCCESS)
        note_coupling(&trouble, error, "the other application was lost at the end");
    MPI_Comm_free(&coupling->local);
    free(coupling->memory);
    free(coupling);
    return tell(&trouble);
}

int isthmus_mpi_remote_ranks(const isthmus_mpi_coupling *coupling)
{
    return coupling ? coupling->remote : 0;
}

int isthmus_mpi_accept_f(int32_t comm, const char *port, isthmus_mpi_coupling **coupling)
{
    return isthmus_mpi_accept(communicator(comm), port, coupling);
}

int isthmus_mpi_connect_f(int32_t comm, const char *port, double patience, isthmus_mpi_coupling **coupling)
{
    return isthmus_mpi_connect(communicator(comm), port, patience, coupling);
}

int isthmus_mpi_couple_f(int32_t comm, int32_t other, isthmus_mpi_coupling **coupling)
{
    return isthmus_mpi_couple(communicator(comm), communicator(other), coupling);
}
