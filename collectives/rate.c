// Measures the rate of the links between sites while the program runs, and lets all ranks agree on it.
//
// A rank times the far segments that it receives in one collective: their bytes without the first segment, and the time
// from the first to the last. All bytes that a site receives so, over the longest of its ranks' times, are a sample of
// the rate of the site's link. The longest, because a rank that got no processor when its first segment came has too
// short a time. The upper quartile of the last RATE_WINDOW samples counts: many things make a sample too low (a busy
// sender, a short vector), and some too high. If one rank sent everything, the sample is also one of the rate at which
// one rank can send.
//
// All ranks must choose alike, so they change the rate in the same call. Long blocking collectives that this library runs
// are counted, by whichever algorithm. At some of them the sites exchange their samples, and at the next such call all
// ranks take the result. So nobody waits for a message across: between two exchanges lie at least EXCHANGE_FIRST calls.
// All ranks get the same rows of samples and compute from them alike, so they get the same rate.
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Least bytes of a collective that is counted. Shorter ones say nothing of the rate, nor depend on it.
#define LONG_MIN ((int64_t)64 << 10)
// Samples are exchanged at the calls EXCHANGE_FIRST, twice that, and so on; from EXCHANGE_MAX on every EXCHANGE_MAX
// calls. Counts.
enum { EXCHANGE_FIRST = 4, EXCHANGE_MAX = 256 };
// Least far segments from one site, time that they take, and time that the rank has waited for the first. Count and
// seconds. A rank that comes late finds data in its memory: these do not arrive at the rate of the link.
enum { SEGMENTS_MIN = 4 };
#define SPAN_MIN_S 1e-3
#define WAITED_MIN_S 1e-3
// One rank is taken for slower than the link below this share of it, because samples differ by chance.
#define CLEARLY_SLOWER 0.8
// Calls of the window that must tell the rate of one rank, and exchanges after which it is forgotten. Counts.
enum { ONE_SAMPLES_MIN = 3, UNSEEN_MAX = 3 };

struct arrivals *arrivals_of(struct flow *flow)
{
    if (goes_on(flow) || !flow->plan->rate.counting)
        return NULL;
    struct arrivals *arrivals = flow_memory(flow, flow->plan->sites * (int64_t)sizeof *arrivals);
    if (arrivals)
        memset(arrivals, 0, (size_t)flow->plan->sites * sizeof *arrivals);
    flow->began_s = PMPI_Wtime();
    return arrivals;
}

void arrived(struct flow *flow, int site, int64_t bytes, double now_s)
{
    struct arrivals *from = &flow->arrivals[site];
    if (from->count++ == 0)
        from->first_s = now_s;
    else
        from->bytes += bytes;
    from->last_s = now_s;
}

void take_sample(struct flow *flow)
{
    struct plan *plan = flow->plan;
    int64_t bytes = 0, span_ns = 0;
    for (int site = 0; flow->arrivals && site < plan->sites; site++) {
        const struct arrivals *from = &flow->arrivals[site];
        double span_s = from->last_s - from->first_s;
        if (from->count < SEGMENTS_MIN || span_s < SPAN_MIN_S || from->first_s - flow->began_s < WAITED_MIN_S)
            continue;
        bytes += from->bytes;
        span_ns = (int64_t)(1e9 * span_s) > span_ns ? (int64_t)(1e9 * span_s) : span_ns;
    }
    plan->rate.bytes[plan->rate.calls % RATE_WINDOW] = bytes;
    plan->rate.span_ns[plan->rate.calls % RATE_WINDOW] = span_ns;
}

int make_rate(struct plan *plan)
{
    struct rate *rate = &plan->rate;
    if (!plan->settings.measures)
        return MPI_SUCCESS;
    rate->row = calloc((size_t)plan->sites * RATE_WINDOW, sizeof *rate->row);
    rate->requests = calloc(2 * (size_t)plan->sites, sizeof *rate->requests);
    rate->next_exchange = EXCHANGE_FIRST;
    return rate->row && rate->requests ? MPI_SUCCESS : MPI_ERR_NO_MEM;
}

void free_rate(struct plan *plan)
{
    struct rate *rate = &plan->rate;
    // All ranks have made the same calls, so what is awaited comes; after an error perhaps not.
    if (plan->broken && rate->under_way)
        return;
    if (rate->under_way)
        wait_for_all(rate->under_way, rate->requests);
    free(rate->row);
    free(rate->requests);
}

static int64_t *row_of(const struct plan *plan, int site) { return plan->rate.row + (size_t)site * RATE_WINDOW; }

static int by_size(const void *a, const void *b)
{
    int64_t first = *(const int64_t *)a, second = *(const int64_t *)b;
    return (first > second) - (first < second);
}

// The lowest of the sites' upper quartiles; of samples of one rank only, or of all. 0: there is none.
static double lowest(const struct plan *plan, int of_one_only)
{
    double least = 0;
    for (int site = 0; site < plan->sites; site++) {
        int64_t samples[RATE_WINDOW];
        int count = 0;
        for (int i = 0; i < RATE_WINDOW; i++)
            if ((!of_one_only || plan->rate.exchanged_of_one[i]) && row_of(plan, site)[i] > 0)
                samples[count++] = row_of(plan, site)[i];
        if (count == 0)
            continue;
        qsort(samples, (size_t)count, sizeof *samples, by_size);
        double rate = (double)samples[(count - 1) * 3 / 4];
        least = least == 0 || rate < least ? rate : least;
    }
    return least;
}

// The rate of one rank counts if enough calls tell it. If it is lower than the link's, all ranks of a site send, so that
// no call tells it any more. After some exchanges it is forgotten, and so measured again.
static void adopt_pair_rate(struct plan *plan, double all)
{
    struct rate *rate = &plan->rate;
    int samples = 0;
    for (int i = 0; i < RATE_WINDOW; i++)
        for (int site = 0; site < plan->sites; site++)
            if (rate->exchanged_of_one[i] && row_of(plan, site)[i] > 0) {
                samples++;
                break;
            }
    if (samples >= ONE_SAMPLES_MIN) {
        double one = lowest(plan, 1);
        plan->settings.pair_rate = one < CLEARLY_SLOWER * all ? one : 0;
        rate->unseen = 0;
    } else if (++rate->unseen >= UNSEEN_MAX) {
        plan->settings.pair_rate = 0;
        rate->unseen = 0;
    }
}

static void adopt(struct plan *plan)
{
    struct settings *known = &plan->settings;
    double all = lowest(plan, 0);
    if (all == 0)
        return;
    known->rate = all;
    if (known->measures_pair)
        adopt_pair_rate(plan, all);
    keep_rate(known);
    if (known->trace == EACH_CALL && plan->rank == 0)
        fprintf(stderr,
                "isthmus-collectives: measured on %d ranks: the link of a site carries %.0f Mbit/s, "
                "one rank sends %.0f Mbit/s\n",
                plan->ranks, all * 8e-6, (known->pair_rate > 0 ? known->pair_rate : all) * 8e-6);
}

// Leaders wait for the rows of the other sites, and tell their own ranks. Only ranks that are an exchange behind delay this.
static int end_exchange(struct plan *plan)
{
    struct rate *rate = &plan->rate;
    int error = MPI_SUCCESS;
    if (!rate->exchanging)
        return MPI_SUCCESS;
    rate->exchanging = 0;
    if (plan->spot == 0)
        error = wait_for_all(rate->under_way, rate->requests);
    rate->under_way = 0;
    if (!error)
        error = PMPI_Bcast(rate->row, plan->sites * RATE_WINDOW, MPI_INT64_T, 0, plan->near);
    if (!error)
        adopt(plan);
    return error;
}

// Leaders compute the rate of each call from what their ranks received, and send it to each other. Receives do not meet
// those of collectives: the tag is beyond theirs.
static int begin_exchange(struct plan *plan)
{
    struct rate *rate = &plan->rate;
    int64_t *own = row_of(plan, plan->site);
    int tag = 2 * plan->tags;
    memcpy(rate->exchanged_of_one, rate->of_one, sizeof rate->of_one);
    int64_t span_ns[RATE_WINDOW];
    int error = PMPI_Reduce(rate->bytes, own, RATE_WINDOW, MPI_INT64_T, MPI_SUM, 0, plan->near);
    if (!error)
        error = PMPI_Reduce(rate->span_ns, span_ns, RATE_WINDOW, MPI_INT64_T, MPI_MAX, 0, plan->near);
    for (int i = 0; plan->spot == 0 && i < RATE_WINDOW && !error; i++)
        own[i] = span_ns[i] > 0 ? (int64_t)((double)own[i] * 1e9 / (double)span_ns[i]) : 0;
    for (int site = 0; plan->spot == 0 && site < plan->sites && !error; site++) {
        if (site == plan->site)
            continue;
        int leader = member(plan, site, 0);
        error = PMPI_Irecv(row_of(plan, site), RATE_WINDOW, MPI_INT64_T, leader, tag, plan->far,
                           &rate->requests[rate->under_way]);
        rate->under_way += !error;
        if (!error)
            error = PMPI_Isend(own, RATE_WINDOW, MPI_INT64_T, leader, tag, plan->far, &rate->requests[rate->under_way]);
        rate->under_way += !error;
    }
    rate->exchanging = 1;
    return error;
}

void count_call(struct plan *plan, int64_t bytes)
{
    struct rate *rate = &plan->rate;
    rate->counting = rate->row && bytes >= LONG_MIN;
    if (!rate->counting)
        return;
    rate->calls++;
    rate->bytes[rate->calls % RATE_WINDOW] = 0;
    rate->span_ns[rate->calls % RATE_WINDOW] = 0;
    rate->of_one[rate->calls % RATE_WINDOW] = 0;
    if (rate->calls != rate->next_exchange)
        return;
    rate->next_exchange += rate->next_exchange < EXCHANGE_MAX ? rate->next_exchange : EXCHANGE_MAX;
    if (end_exchange(plan) || begin_exchange(plan))
        plan->broken = 1;
}

void sent_by_one(struct plan *plan)
{
    if (plan->rate.counting)
        plan->rate.of_one[plan->rate.calls % RATE_WINDOW] = 1;
}
