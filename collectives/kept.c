// Datatypes and operations that the program frees while they are still in use.
//
// A persistent collective holds what it was given until its request is freed. A flow uses what it was given until it has
// ended. calls.c asks here before it lets the MPI free a datatype or an operation.
#include "internal.h"

#include <pthread.h>
#include <stdlib.h>

struct kept {
    struct kept *next;
    MPI_Datatype type; // or MPI_DATATYPE_NULL
    MPI_Op op;
    int holders;          // persistent collectives
    int freed;            // by the program
    unsigned long before; // once freed: flows with lower numbers may use it
};
// Those that persistent collectives hold, and those that the program has freed.
static struct kept *held, *freed;
static atomic_int held_count, freed_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // for the lists; no MPI function is called with it held

static struct kept **place_of(MPI_Datatype type, MPI_Op op)
{
    struct kept **at = &held;
    while (*at && ((*at)->type != type || (*at)->op != op))
        at = &(*at)->next;
    return at;
}

// Takes one out of the list of what is held.
static struct kept *take(struct kept **at)
{
    struct kept *one = *at;
    if (one) {
        *at = one->next;
        atomic_fetch_sub(&held_count, 1);
    }
    return one;
}

static struct kept *add(struct kept **list, atomic_int *count, struct kept *one)
{
    one->next = *list;
    *list = one;
    atomic_fetch_add(count, 1);
    return one;
}

static struct kept *make(MPI_Datatype type, MPI_Op op)
{
    struct kept *one = malloc(sizeof *one);
    if (one)
        *one = (struct kept){.type = type, .op = op};
    return one;
}

struct kept *hold(MPI_Datatype type, MPI_Op op)
{
    pthread_mutex_lock(&lock);
    struct kept *one = *place_of(type, op);
    if (!one && (one = make(type, op)))
        add(&held, &held_count, one);
    if (one)
        one->holders++;
    pthread_mutex_unlock(&lock);
    return one;
}

void let_go(struct kept *one)
{
    pthread_mutex_lock(&lock);
    if (--one->holders == 0 && !one->freed)
        free(take(place_of(one->type, one->op)));
    pthread_mutex_unlock(&lock);
}

int keep_in_use(MPI_Datatype type, MPI_Op op)
{
    unsigned long before = flows_begun();
    int flows = flows_ended() != before;
    if (atomic_load(&held_count) == 0 && !flows)
        return 0;
    pthread_mutex_lock(&lock);
    struct kept *one = take(place_of(type, op));
    if (one || (flows && (one = make(type, op)))) {
        one->freed = 1;
        one->before = before;
        add(&freed, &freed_count, one);
    }
    pthread_mutex_unlock(&lock);
    return one != NULL;
}

void free_unused(void)
{
    struct kept *gone = NULL;
    if (atomic_load(&freed_count) == 0)
        return;
    unsigned long ended = flows_ended();
    pthread_mutex_lock(&lock);
    for (struct kept **at = &freed, *one; (one = *at);) {
        if (one->holders > 0 || one->before > ended) {
            at = &one->next;
            continue;
        }
        *at = one->next;
        one->next = gone;
        gone = one;
        atomic_fetch_sub(&freed_count, 1);
    }
    pthread_mutex_unlock(&lock);
    for (struct kept *one; (one = gone);) {
        gone = one->next;
        if (one->type != MPI_DATATYPE_NULL)
            PMPI_Type_free(&one->type);
        else
            PMPI_Op_free(&one->op);
        free(one);
    }
}
