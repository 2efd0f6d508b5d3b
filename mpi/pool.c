// Disk threads. They read, write and compute digests, and call no MPI function.
#include "internal.h"

#include <signal.h>
#include <stdlib.h>
#include <time.h>

static void *serve(void *argument)
{
    struct pool *pool = argument;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (!pool->jobs_len && !pool->ends)
            pthread_cond_wait(&pool->work, &pool->lock);
        if (!pool->jobs_len)
            break;
        int slot = pool->jobs[pool->jobs_at];
        pool->jobs_at = (pool->jobs_at + 1) % pool->size;
        pool->jobs_len--;
        pool->running++;
        pthread_mutex_unlock(&pool->lock);
        slot_job(pool->transfer, slot);
        pthread_mutex_lock(&pool->lock);
        pool->running--;
        pool->results[(pool->results_at + pool->results_len++) % pool->size] = slot;
        pthread_cond_signal(&pool->done);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

int pool_room(struct pool *pool, int slots)
{
    *pool = (struct pool){.size = slots};
    pool->jobs = malloc((size_t)slots * sizeof *pool->jobs);
    pool->results = malloc((size_t)slots * sizeof *pool->results);
    return pool->jobs && pool->results;
}

void pool_start(struct pool *pool, struct transfer *transfer, int threads)
{
    pthread_condattr_t clock;
    pool->transfer = transfer;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&pool->done, &clock);
    pthread_condattr_destroy(&clock);
    // The program's signals are for its own threads.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    while (pool->count < threads && pthread_create(&pool->threads[pool->count], NULL, serve, pool) == 0)
        pool->count++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void pool_put(struct pool *pool, int slot)
{
    if (!pool->count) {
        slot_job(pool->transfer, slot);
        pool->results[(pool->results_at + pool->results_len++) % pool->size] = slot;
        return;
    }
    pthread_mutex_lock(&pool->lock);
    pool->jobs[(pool->jobs_at + pool->jobs_len++) % pool->size] = slot;
    pthread_cond_signal(&pool->work);
    pthread_mutex_unlock(&pool->lock);
}

int pool_take(struct pool *pool)
{
    int slot = -1;
    pthread_mutex_lock(&pool->lock);
    if (pool->results_len) {
        slot = pool->results[pool->results_at];
        pool->results_at = (pool->results_at + 1) % pool->size;
        pool->results_len--;
    }
    pthread_mutex_unlock(&pool->lock);
    return slot;
}

void pool_clear(struct pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    pool->jobs_len = 0;
    while (pool->running)
        pthread_cond_wait(&pool->done, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

void pool_rest(struct pool *pool, int64_t most_ns)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += most_ns;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    pthread_mutex_lock(&pool->lock);
    if (!pool->results_len)
        pthread_cond_timedwait(&pool->done, &pool->lock, &until);
    pthread_mutex_unlock(&pool->lock);
}

void pool_stop(struct pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    pool->ends = 1;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->count; i++)
        pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->work);
    pthread_cond_destroy(&pool->done);
    pthread_mutex_destroy(&pool->lock);
}
