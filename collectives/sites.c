// Finds the site of each rank. Each rank reports what it knows of itself; then all decide alike:
//
// 1. If the environment of any rank names sites (ISTHMUS_COLLECTIVES_SITE or _SITES), these count, and ranks that it does
//    not name are one further site.
// 2. Else, if any rank has an AS or a subnet (as the provider reads them), AS and subnet are the site.
// 3. Else, if `isthmus run` has started the ranks, each of its parts is a site.
// 4. Else round trips between hosts are measured. A rank is of the site of the first landmark that is nearer than
//    ISTHMUS_COLLECTIVES_FAR. The landmarks are the lowest ranks that have no site yet.
//
// The sites of the world are found once, in MPI_Init. Communicators of its ranks take them from there without a
// message.
#include "internal.h"

#include <ctype.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

// Version of the cards and algorithms. Ranks of two versions would wait for each other for ever.
enum { VERSION = 7 };
// Most sites that are found by measuring. Count; if there are more, all calls are left to the MPI. Tests make it smaller.
#ifndef LANDMARKS_MAX
#define LANDMARKS_MAX 64
#endif
// Least and most pings of a landmark. Counts; the first message also makes a connection. CLEARLY_FAR: multiple of the
// limit beyond which a path is far without doubt.
enum { PINGS_MIN = 3, PINGS_MAX = 8, CLEARLY_FAR = 4 };
enum { TAG_PING = 1, TAG_PONG };
enum { ASK = 'a', FAR = 'f', NEAR = 'n' };
enum knowledge { NOTHING, PART, NETWORK, SAID };

// The report of a rank about itself.
struct card {
    int32_t version, knowledge;
    uint64_t site; // by the environment, by AS and subnet, or by part
    uint64_t host;
    struct settings settings;
};

struct site_table {
    int ranks;
    int *site_of;
    struct settings settings;
    MPI_Group group;
};
// Written in MPI_Init and MPI_Finalize only, so that threads read it without a lock.
static struct site_table world = {.group = MPI_GROUP_NULL};
// This rank among all of the job, for programs that use sessions only.
static int own_number;

// FNV-1a.
static uint64_t hash(uint64_t seed, const void *data, size_t length)
{
    for (size_t i = 0; i < length; i++)
        seed = (seed ^ ((const unsigned char *)data)[i]) * 0x100000001b3;
    return seed;
}
#define SEED 0xcbf29ce484222325u

// --- what a rank knows ---------------------------------------------------------

// Identifies the boot of the kernel and the network namespace. Ranks that share both communicate by memory or loopback.
static uint64_t own_host(void)
{
    char text[256] = "";
    struct stat network = {0};
    gethostname(text, sizeof text - 1);
    uint64_t host = hash(SEED, text, strlen(text));
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (file) {
        size_t length = fread(text, 1, sizeof text, file);
        host = hash(host, text, length);
        fclose(file);
    }
    if (stat("/proc/self/ns/net", &network) == 0)
        host = hash(host, &network.st_ino, sizeof network.st_ino);
    return host;
}

// Whether the rank or host is in a list such as "0-3,8,node*". Sets *bad if the list is invalid.
static int is_one_of(const char *list, size_t length, int rank, const char *host, int *bad)
{
    int is = 0;
    while (length > 0) {
        size_t word = 0;
        char text[256];
        while (word < length && list[word] != ',')
            word++;
        if (word == 0 || word >= sizeof text) {
            *bad = 1;
            return 0;
        }
        memcpy(text, list, word);
        text[word] = 0;
        int from, to, end = 0;
        if (sscanf(text, "%d-%d%n", &from, &to, &end) == 2 && !text[end])
            is |= rank >= from && rank <= to;
        else if (sscanf(text, "%d%n", &from, &end) == 1 && !text[end])
            is |= rank == from;
        else
            is |= fnmatch(text, host, 0) == 0;
        list += word + (word < length);
        length -= word + (word < length);
    }
    return is;
}

// The position of the rank's site in "0-3;4-7" or "a*;b*", counted from 1; 0: in none.
static int place_in(const char *sites, int rank)
{
    char host[256] = "";
    int found = 0, place = 1;
    gethostname(host, sizeof host - 1);
    for (const char *next = sites; next; place++) {
        size_t length = strcspn(next, ";");
        int bad = length == 0, is = is_one_of(next, length, rank, host, &bad);
        if (bad)
            refuse("ISTHMUS_COLLECTIVES_SITES = \"%s\": expected ranks or names of hosts of each site, sites separated by ; such as \"0-3;4-7\" or \"a*,b1;c*\"", sites);
        if (is && !found)
            found = place;
        next = next[length] ? next + length + 1 : NULL;
    }
    return found;
}

static int number_in(const char *text, uint64_t *number)
{
    char *end;
    if (!text || !isdigit((unsigned char)*text))
        return 0;
    *number = strtoull(text, &end, 10);
    return 1;
}

// `as_id` and `subnet` of [device] in the provider's file. Only whole numbers stand there.
static void read_file(const char *path, uint64_t *as_id, uint64_t *subnet, int *found)
{
    char line[512], name[64], value[64];
    int device = 0;
    FILE *file = fopen(path, "r");
    *found = file != NULL;
    while (file && fgets(line, sizeof line, file)) {
        char *start = line + strspn(line, " \t");
        if (*start == '[')
            device = strncmp(start, "[device]", 8) == 0;
        else if (device && sscanf(start, "%63[a-z_] = %63[0-9]", name, value) == 2) {
            if (!strcmp(name, "as_id"))
                number_in(value, as_id);
            else if (!strcmp(name, "subnet"))
                number_in(value, subnet);
        }
    }
    if (file)
        fclose(file);
}

// AS and subnet as the provider reads them (docs/settings.md); 0 and 0 if nothing is set.
static void own_network(uint64_t *as_id, uint64_t *subnet)
{
    const char *named = getenv("ISTHMUS_CONFIG"), *home = getenv("HOME"), *config = getenv("XDG_CONFIG_HOME");
    char path[4096];
    int found = 0;
    *as_id = *subnet = 0;
    if (named && *named)
        read_file(named, as_id, subnet, &found);
    else {
        if (config && *config)
            snprintf(path, sizeof path, "%s/isthmus/isthmus.toml", config);
        else
            snprintf(path, sizeof path, "%s/.config/isthmus/isthmus.toml", home ? home : "");
        read_file(path, as_id, subnet, &found);
        if (!found)
            read_file("/etc/isthmus/isthmus.toml", as_id, subnet, &found);
    }
    number_in(getenv("FI_ISTHMUS_AS_ID"), as_id);
    number_in(getenv("FI_ISTHMUS_SUBNET"), subnet);
}

int has_world(void)
{
    int has = 0, had = 0;
    return PMPI_Initialized(&has) == MPI_SUCCESS && has && PMPI_Finalized(&had) == MPI_SUCCESS && !had;
}

#if SESSIONS
void discover_session(MPI_Session session)
{
    MPI_Group all;
    int rank;
    if (PMPI_Group_from_session_pset(session, "mpi://WORLD", &all) != MPI_SUCCESS)
        return;
    if (PMPI_Group_rank(all, &rank) == MPI_SUCCESS && rank != MPI_UNDEFINED)
        own_number = rank;
    PMPI_Group_free(&all);
}

int own_number_of_session(void) { return own_number; }
#endif

static struct card own_card(void)
{
    struct card card = {.version = VERSION, .host = own_host(), .settings = *own_settings()};
    const char *site = getenv("ISTHMUS_COLLECTIVES_SITE"), *sites = getenv("ISTHMUS_COLLECTIVES_SITES");
    uint64_t network[2];
    int rank = own_number;
    card.settings.combines = COMBINES_WITHOUT_WORLD || has_world();
    if (has_world())
        PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (site && *site) {
        card.knowledge = SAID;
        card.site = hash(SEED, site, strlen(site));
    } else if (sites && *sites && strcmp(sites, "measure")) {
        int place = place_in(sites, rank);
        card.knowledge = place ? SAID : NOTHING;
        card.site = place ? hash(SEED, &place, sizeof place) : 0;
    } else if (!sites || !*sites) {
        own_network(&network[0], &network[1]);
        if (network[0] || network[1]) {
            card.knowledge = NETWORK;
            card.site = hash(SEED, network, sizeof network);
        } else if (number_in(getenv("ISTHMUS_RUN_PART"), &card.site))
            card.knowledge = PART;
    }
    return card;
}

// --- measuring -----------------------------------------------------------------

// A landmark answers until every other one of `waiting` has told its verdict.
static int answer(MPI_Comm comm, int waiting, int *is_near)
{
    int error = MPI_SUCCESS;
    while (waiting > 0 && !error) {
        char word;
        MPI_Status status;
        if ((error = PMPI_Recv(&word, 1, MPI_BYTE, MPI_ANY_SOURCE, TAG_PING, comm, &status)))
            break;
        if (word == ASK)
            error = PMPI_Send(&word, 1, MPI_BYTE, status.MPI_SOURCE, TAG_PONG, comm);
        else {
            is_near[status.MPI_SOURCE] = word == NEAR;
            waiting--;
        }
    }
    return error;
}

static int ask(MPI_Comm comm, int landmark, double far_s)
{
    double best = 1e9;
    int error = MPI_SUCCESS;
    for (int i = 0; i < PINGS_MAX && !error && best >= far_s; i++) {
        if (i >= PINGS_MIN && best > CLEARLY_FAR * far_s)
            break;
        char word = ASK;
        double began = PMPI_Wtime();
        if (!(error = PMPI_Send(&word, 1, MPI_BYTE, landmark, TAG_PING, comm)))
            error = PMPI_Recv(&word, 1, MPI_BYTE, landmark, TAG_PONG, comm, MPI_STATUS_IGNORE);
        double took = PMPI_Wtime() - began;
        if (took < best)
            best = took;
    }
    if (!error)
        error = PMPI_Send(&(char){best < far_s ? NEAR : FAR}, 1, MPI_BYTE, landmark, TAG_PING, comm);
    return error;
}

// One rank of each host measures. Only the landmark waits for several ranks, and they wait for it alone: no cycle.
static int measure(MPI_Comm comm, int rank, int ranks, const struct card *cards, struct map *map)
{
    MPI_Comm own = MPI_COMM_NULL;
    MPI_Group group;
    int *speaker = malloc((size_t)ranks * sizeof *speaker), *is_near = malloc((size_t)ranks * sizeof *is_near);
    int error = speaker && is_near ? MPI_SUCCESS : MPI_ERR_NO_MEM;
    for (int i = 0; !error && i < ranks; i++) {
        map->site_of[i] = -1;
        speaker[i] = i;
        for (int j = 0; j < i; j++)
            if (cards[j].host == cards[i].host) {
                speaker[i] = j;
                break;
            }
    }
    if (!error && !(error = PMPI_Comm_group(comm, &group))) {
        if (!(error = PMPI_Comm_create(comm, group, &own)))
            error = PMPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN);
        PMPI_Group_free(&group);
    }
    map->sites = 0;
    for (int landmark = 0; !error && landmark < ranks; landmark++) {
        if (map->site_of[landmark] >= 0 || speaker[landmark] != landmark)
            continue;
        if (map->sites == LANDMARKS_MAX) {
            map->sites = 1;
            memset(map->site_of, 0, (size_t)ranks * sizeof *map->site_of);
            break;
        }
        int waiting = 0;
        for (int i = landmark + 1; i < ranks; i++)
            waiting += map->site_of[i] < 0 && speaker[i] == i;
        memset(is_near, 0, (size_t)ranks * sizeof *is_near);
        is_near[landmark] = 1;
        if (rank == landmark)
            error = answer(own, waiting, is_near);
        else if (rank > landmark && map->site_of[rank] < 0 && speaker[rank] == rank)
            error = ask(own, landmark, map->settings.far_s);
        if (!error && waiting > 0)
            error = PMPI_Bcast(is_near, ranks, MPI_INT, landmark, own);
        for (int i = 0; i < ranks; i++)
            if (map->site_of[i] < 0 && is_near[speaker[i]])
                map->site_of[i] = map->sites;
        map->sites++;
    }
    if (own != MPI_COMM_NULL)
        PMPI_Comm_free(&own);
    free(speaker);
    free(is_near);
    return error;
}

// --- deciding ------------------------------------------------------------------

// Numbers sites in the order of their lowest ranks.
static void number(int ranks, const struct card *cards, enum knowledge knowledge, struct map *map)
{
    for (int i = 0; i < ranks; i++) {
        uint64_t site = cards[i].knowledge == (int)knowledge ? cards[i].site : 0;
        map->site_of[i] = -1;
        for (int j = 0; j < i && map->site_of[i] < 0; j++)
            if ((cards[j].knowledge == (int)knowledge ? cards[j].site : 0) == site)
                map->site_of[i] = map->site_of[j];
        if (map->site_of[i] < 0)
            map->site_of[i] = map->sites++;
    }
}

// Prints the sites as one line in one call, so that other ranks' output does not break it.
static void tell(int ranks, const struct map *map, const char *how)
{
    char *text = NULL;
    size_t length;
    FILE *line = open_memstream(&text, &length);
    if (!line)
        return;
    fprintf(line, "isthmus-collectives: sites of ranks 0 to %d, by %s:", ranks - 1, how);
    for (int i = 0; i < ranks; i++)
        fprintf(line, " %d", map->site_of[i]);
    fclose(line);
    fprintf(stderr, "%s\n", text);
    free(text);
}

// Finds the sites by the cards of all ranks.
static int discover(MPI_Comm comm, int rank, int ranks, struct map *map)
{
    struct card mine = own_card(), *cards = malloc((size_t)ranks * sizeof *cards);
    int error, knowledge = NOTHING;
    map->site_of = malloc((size_t)ranks * sizeof *map->site_of);
    map->sites = 0;
    // Cards are sent as whole structures, with their padding.
    if (!cards || !map->site_of)
        error = MPI_ERR_NO_MEM;
    else
        error = PMPI_Allgather(&mine, sizeof mine, MPI_BYTE, cards, sizeof mine, MPI_BYTE, comm);
    for (int i = 0; !error && i < ranks; i++) {
        if (cards[i].version != VERSION)
            refuse("rank %d has another version of libisthmus-collectives.so; install the same isthmus release on all hosts", i);
        if (cards[i].knowledge > knowledge)
            knowledge = cards[i].knowledge;
    }
    if (!error) {
        map->settings = cards[0].settings;
        // If a rank cannot, none may.
        for (int i = 1; i < ranks; i++) {
            map->settings.nonblocking &= cards[i].settings.nonblocking;
            map->settings.persistent &= cards[i].settings.persistent;
            map->settings.combines &= cards[i].settings.combines;
            map->settings.windows &= cards[i].settings.windows;
        }
        if (knowledge == NOTHING)
            error = measure(comm, rank, ranks, cards, map);
        else
            number(ranks, cards, (enum knowledge)knowledge, map);
    }
    free(cards);
    if (!error && rank == 0 && map->settings.trace == EACH_CALL)
        tell(ranks, map, knowledge == SAID ? "the environment" : knowledge == NETWORK ? "AS and subnet" : knowledge == PART ? "parts of isthmus run" : "measured round trips");
    return error;
}

void discover_world(void)
{
    int rank, ranks;
    struct map map = {.sites = 1};
    if (PMPI_Comm_rank(MPI_COMM_WORLD, &rank) || PMPI_Comm_size(MPI_COMM_WORLD, &ranks) || discover(MPI_COMM_WORLD, rank, ranks, &map) ||
        PMPI_Comm_group(MPI_COMM_WORLD, &world.group))
        return;
    world.ranks = ranks;
    world.settings = map.settings;
    world.site_of = map.site_of;
}

void keep_measured(const struct settings *settings) { world.settings = *settings; }

// Bytes a second; 0: none yet. Ranks may differ: rank 0's are taken for a new communicator.
static _Atomic double measured_rate, measured_pair_rate;

void keep_rate(const struct settings *settings)
{
    atomic_store(&measured_pair_rate, settings->pair_rate);
    atomic_store(&measured_rate, settings->rate);
}

void forget_world(void)
{
    if (world.group != MPI_GROUP_NULL)
        PMPI_Group_free(&world.group);
    free(world.site_of);
    world.site_of = NULL;
}

// Takes the sites from the world's. Returns 0 if some ranks of comm are not in this world. All ranks of comm get the
// same: ranks of one world have the same table, and if there are ranks of two worlds, each rank misses some.
static int from_world(MPI_Comm comm, int ranks, struct map *map)
{
    MPI_Group group;
    int all = 1;
    int *numbers = malloc(2 * (size_t)ranks * sizeof *numbers), *seen = malloc((size_t)world.ranks * sizeof *seen);
    map->site_of = malloc((size_t)ranks * sizeof *map->site_of);
    if (!numbers || !seen || !map->site_of || PMPI_Comm_group(comm, &group))
        refuse("no memory for a communicator of %d ranks", ranks);
    for (int i = 0; i < ranks; i++)
        numbers[i] = i;
    PMPI_Group_translate_ranks(group, ranks, numbers, world.group, numbers + ranks);
    PMPI_Group_free(&group);
    for (int i = 0; i < world.ranks; i++)
        seen[i] = -1;
    map->sites = 0;
    for (int i = 0; i < ranks && all; i++) {
        int other = numbers[ranks + i];
        if (other == MPI_UNDEFINED)
            all = 0;
        else {
            int *site = &seen[world.site_of[other]];
            if (*site < 0)
                *site = map->sites++;
            map->site_of[i] = *site;
        }
    }
    map->settings = world.settings;
    free(numbers);
    free(seen);
    if (!all) {
        free(map->site_of);
        map->site_of = NULL;
    }
    return all;
}

int world_settings_of(MPI_Comm comm, struct settings *settings)
{
    struct map map = {.sites = 1};
    int ranks;
    if (!world.site_of || PMPI_Comm_size(comm, &ranks) || !from_world(comm, ranks, &map))
        return 0;
    free(map.site_of);
    *settings = map.settings;
    return 1;
}

int map_of(MPI_Comm comm, int rank, int ranks, struct map *map)
{
    if (ranks == 1) {
        map->sites = 1;
        return MPI_SUCCESS;
    }
    int error = world.site_of && from_world(comm, ranks, map) ? MPI_SUCCESS : discover(comm, rank, ranks, map);
    if (map->settings.measures && atomic_load(&measured_rate) > 0) {
        map->settings.rate = atomic_load(&measured_rate);
        if (map->settings.measures_pair)
            map->settings.pair_rate = atomic_load(&measured_pair_rate);
    }
    return error;
}
