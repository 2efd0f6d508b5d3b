// Chooses the algorithm by its estimated cost.
//
//   leaders   one rank of each site collects and distributes by the MPI's own collectives; these ranks exchange
//   parallel  all ranks of a site carry a part of the vector, segment by segment, near and far overlapping
//
// Both take half a round trip and the time that the bytes take across. They differ within a site. A leader takes
// part in about log2(ranks) steps with the whole vector, before or after it crosses. In parallel each rank sends a
// message to each other one, and every byte moves about twice within the site while others cross. So the time is that of
// a pipeline of two stages: the longer one, and the shorter one for a single part.
#include "internal.h"

#include <stdio.h>

// Longest vector of leaders. Bytes. Beyond it, int counts of the MPI's collectives and a leader's memory become limits.
#define LEADERS_MAX ((int64_t)16 << 20)
// Shortest and longest segment. Bytes. Segments are long enough that the cost of a message (some microseconds) does not
// matter, and short enough that the last one, which nothing overlaps, does not matter either. 256 KiB take 2 ms on a link
// of 1 Gb/s; with 1 MiB, a Reduce of 16 MiB took 0.15 round trips of 100 ms longer.
#define SEGMENT_MIN ((int64_t)32 << 10)
#define SEGMENT_MAX ((int64_t)256 << 10)
// Longest segment that a setting can ask for. Bytes. Open MPI counts the bytes of a message by int.
#define SEGMENT_GREATEST ((int64_t)1 << 30)
// Parts of a vector for each rank of the largest site, so that near and far messages overlap. Count.
enum { PARTS = 4 };
// Most segments. Count. A flow has few tags, and each segment takes requests; beyond it segments become longer.
enum { SEGMENTS_MAX = 4096 };

int largest_site(const struct plan *plan)
{
    int most = 0;
    for (int site = 0; site < plan->sites; site++)
        if (size_of(plan, site) > most)
            most = size_of(plan, site);
    return most;
}

int near_steps(const struct plan *plan)
{
    int steps = 0, most = largest_site(plan);
    for (int reached = 1; reached < most; reached *= 2)
        steps++;
    return steps;
}

// Why an algorithm was chosen.
enum reason { COST, PINNED, ONLY, RULES, REASONS_COUNT };
static const char *const REASONS[REASONS_COUNT] = {"cost", "pinned", "the only one", "neither algorithm keeps MPI's rules here"};
// What stands before and after the name of a collective.
enum kind { BLOCKING, NONBLOCKING, PERSISTENT_STARTS, KINDS };
static const char *const BEFORE[KINDS] = {"", "i", ""}, *const AFTER[KINDS] = {"", "", "_init"};
// Calls of this process. Of a persistent collective: its starts, or its initialization if it is left to the MPI.
static atomic_ulong counts[KINDS][OPERATIONS][ALGORITHMS][REASONS_COUNT];

// Whether leaders may run it. They combine within a site by the MPI, whose order of additions depends on the length of the
// vector, and on the number of ranks.
static int leaders_may(const struct settings *known, enum operation operation)
{
    return !known->reproducible || (operation != REDUCE && operation != ALLREDUCE && operation != REDUCE_SCATTER);
}

enum algorithm choose(struct plan *plan, enum operation operation, int64_t bytes, struct load load)
{
    const struct settings *known = settings_of(plan, load.later);
    int most = largest_site(plan);
    enum kind kind = !load.later ? BLOCKING : load.later->request ? NONBLOCKING : PERSISTENT_STARTS;
    enum algorithm pin = (enum algorithm)known->pins[operation], chosen;
    int leaders_can = load.leaders_can && kind == BLOCKING && (load.any_length || bytes <= LEADERS_MAX) && leaders_may(known, operation);
    int parallel_can = load.parallel_can && load.tags < plan->tags;
    int left = pin == MPI || (!leaders_can && !parallel_can);
    // Calls that are left to the MPI tell no rate. All ranks decide that alike, so they count the same calls.
    if (kind == BLOCKING)
        count_call(plan, left ? 0 : bytes);
    double pair_rate = known->pair_rate > 0 && known->pair_rate < known->rate ? known->pair_rate : known->rate;
    double side_rate = pair_rate * most < known->rate ? pair_rate * most : known->rate;
    double leaders_s = known->rtt_s / 2 + load.across / pair_rate + 2 * near_steps(plan) * known->near_s + load.leader_near / known->near_rate;
    double across_s = load.across / side_rate, near_s = load.parallel_near / known->near_rate;
    double longer_s = across_s > near_s ? across_s : near_s, shorter_s = across_s + near_s - longer_s;
    double parallel_s = known->rtt_s / 2 + longer_s + shorter_s / (double)load.parts + load.messages * known->near_s;
    enum reason why = COST;

    if (left)
        chosen = MPI, why = pin == MPI ? PINNED : RULES;
    else if (pin == LEADERS && leaders_can)
        chosen = LEADERS, why = PINNED;
    else if (pin == PARALLEL && parallel_can)
        chosen = PARALLEL, why = PINNED;
    else if (!leaders_can || !parallel_can)
        chosen = leaders_can ? LEADERS : PARALLEL, why = ONLY;
    else
        chosen = leaders_s <= parallel_s ? LEADERS : PARALLEL;
    int made = note_choice(load.later, chosen == MPI ? 0 : load.tags);
    if (made && chosen != MPI)
        return MPI; // its starts are told
    atomic_fetch_add_explicit(&counts[kind][operation][chosen][why], 1, memory_order_relaxed);
    if (known->trace == EACH_CALL && plan->rank == 0)
        fprintf(stderr, "isthmus-collectives: %s%s%s of %lld B on %d ranks at %d sites: %s (%s); expected: leaders %.2f ms, parallel %.2f ms\n",
                BEFORE[kind], operation_name(operation), AFTER[kind], (long long)bytes, plan->ranks, plan->sites,
                algorithm_name(chosen), REASONS[why], 1e3 * leaders_s, 1e3 * parallel_s);
    return chosen;
}

void print_counts(void)
{
    for (int kind = 0; kind < KINDS; kind++)
        for (int i = 0; i < OPERATIONS; i++)
            for (int chosen = 0; chosen < ALGORITHMS; chosen++)
                for (int why = 0; why < REASONS_COUNT; why++) {
                    unsigned long count = atomic_load(&counts[kind][i][chosen][why]);
                    if (count)
                        fprintf(stderr, "isthmus-collectives: %lu %s%s%s by %s (%s)\n", count, BEFORE[kind],
                                operation_name((enum operation)i), AFTER[kind], algorithm_name((enum algorithm)chosen), REASONS[why]);
                }
    print_fences();
}

int64_t segment_of(const struct plan *plan, int64_t bytes)
{
    int64_t segment = plan->settings.segment;
    if (segment == 0) {
        segment = bytes / ((int64_t)PARTS * largest_site(plan));
        segment = segment < SEGMENT_MIN ? SEGMENT_MIN : segment > SEGMENT_MAX ? SEGMENT_MAX : segment;
    }
    segment = segment > SEGMENT_GREATEST ? SEGMENT_GREATEST : segment;
    int64_t least = bytes / SEGMENTS_MAX + 1;
    return segment < least ? least : segment;
}
