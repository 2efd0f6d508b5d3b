// Error texts, and waiting.
#include "internal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static char last_error[sizeof((struct trouble *)0)->text];

void note(struct trouble *trouble, int code, const char *format, ...)
{
    va_list arguments;
    if (trouble->code)
        return;
    trouble->code = code;
    va_start(arguments, format);
    vsnprintf(trouble->text, sizeof trouble->text, format, arguments);
    va_end(arguments);
}

static void note_because(struct trouble *trouble, int code, const char *why, const char *advice, const char *format,
                         va_list arguments)
{
    char what[sizeof trouble->text];
    vsnprintf(what, sizeof what, format, arguments);
    note(trouble, code, "%.200s: %.80s%s", what, why, advice);
}

void note_errno(struct trouble *trouble, int error, const char *format, ...)
{
    int full = error == ENOSPC || error == EDQUOT;
    va_list arguments;
    va_start(arguments, format);
    note_because(trouble, full ? ISTHMUS_MPI_SPACE : ISTHMUS_MPI_FILE, strerror(error),
                 full ? "; free some space" : "", format, arguments);
    va_end(arguments);
}

void note_mpi(struct trouble *trouble, int error, const char *format, ...)
{
    char why[MPI_MAX_ERROR_STRING] = "";
    int length = 0, class = MPI_ERR_OTHER;
    MPI_Error_string(error, why, &length);
    MPI_Error_class(error, &class);
    int full = class == MPI_ERR_NO_SPACE || class == MPI_ERR_QUOTA;
    // An MPI's text may have several lines. The first has the class.
    why[strcspn(why, "\n")] = 0;
    va_list arguments;
    va_start(arguments, format);
    note_because(trouble, full ? ISTHMUS_MPI_SPACE : ISTHMUS_MPI_FILE, why, full ? "; free some space" : "", format,
                 arguments);
    va_end(arguments);
}

int tell(const struct trouble *trouble)
{
    snprintf(last_error, sizeof last_error, "%s", trouble->code ? trouble->text : "");
    return trouble->code;
}

const char *isthmus_mpi_last_error(void)
{
    return last_error;
}

double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void rest(int64_t ns)
{
    nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

// Whether there are more runnable threads than processors (the fourth field of proc_loadavg(5)). If so, each look of a
// waiting rank delays a working one.
static int is_crowded(void)
{
    static _Atomic int64_t asked_ns;
    static _Atomic int crowded;
    int64_t now_ns = (int64_t)(now_s() * 1e9);
    if (now_ns - atomic_load(&asked_ns) > CROWD_NS) {
        atomic_store(&asked_ns, now_ns);
        long running = 0;
        FILE *load = fopen("/proc/loadavg", "re");
        if (load && fscanf(load, "%*s %*s %*s %ld", &running) != 1)
            running = 0;
        if (load)
            fclose(load);
        atomic_store(&crowded, running > sysconf(_SC_NPROCESSORS_ONLN));
    }
    return atomic_load(&crowded);
}

int64_t longer_rest(int64_t rest_ns)
{
    if (2 * rest_ns <= REST_MOST_NS)
        return 2 * rest_ns;
    int64_t most_ns = is_crowded() ? CROWDED_REST_NS : REST_MOST_NS;
    return 2 * rest_ns < most_ns ? 2 * rest_ns : most_ns;
}

int await(MPI_Request *request)
{
    int there = 0;
    for (int64_t rest_ns = REST_NS;; rest_ns = longer_rest(rest_ns)) {
        int error = MPI_Test(request, &there, MPI_STATUS_IGNORE);
        if (error != MPI_SUCCESS || there)
            return error;
        rest(rest_ns);
    }
}

void return_errors(struct handlers *before)
{
    MPI_Comm_get_errhandler(MPI_COMM_WORLD, &before->world);
    MPI_Comm_get_errhandler(MPI_COMM_SELF, &before->self);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
}

void restore_errors(struct handlers *before)
{
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, before->world);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, before->self);
    MPI_Errhandler_free(&before->world);
    MPI_Errhandler_free(&before->self);
}
