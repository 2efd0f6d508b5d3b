// A transfer: the two sides tell each other their arguments, make the same plan, move the
// blocks, and exchange the result.
#include "internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Adds to a trouble's text which rank of which side had it.
void sign(const struct transfer *t, struct trouble *trouble)
{
    struct trouble signed_by = {0};
    if (!trouble->code || trouble->code == STOPPED)
        return;
    note(&signed_by, trouble->code, "rank %d of the %s: %.280s", t->c->rank, t->sends ? "sender" : "receiver",
         trouble->text);
    *trouble = signed_by;
}

void bcast(const struct transfer *t, void *data, int64_t bytes, int root)
{
    MPI_Request request;
    MPI_Ibcast(data, (int)bytes, MPI_BYTE, root, t->c->local, &request);
    await(&request);
}

// --- before anything is said -------------------------------------------------------

static void check(const struct transfer *t, const struct opening *opening, struct trouble *trouble)
{
    const struct isthmus_mpi_options *o = &opening->options;
    if (t->what == KIND_FILE && !opening->path[0])
        note(trouble, ISTHMUS_MPI_INVALID, "no path of a file, or one of more than %d bytes", PATH_MAX - 1);
    else if (opening->offset < (t->sends ? 0 : -1) || opening->length < -1)
        note(trouble, ISTHMUS_MPI_INVALID, "there is no range of %" PRId64 " bytes from byte %" PRId64 " on",
             opening->length, opening->offset);
    else if (o->block && (o->block < MIN_BLOCK || o->block > MAX_BLOCK))
        note(trouble, ISTHMUS_MPI_INVALID, "a block of %" PRId64 " bytes; %" PRId64 " to %" PRId64 " are possible", o->block,
             MIN_BLOCK, MAX_BLOCK);
    else if (o->memory < 0 || o->threads < 0 || o->threads > MAX_THREADS)
        note(trouble, ISTHMUS_MPI_INVALID, "%" PRId64 " bytes of memory and %d threads; threads are 1 to %d", o->memory,
             o->threads, MAX_THREADS);
    else if (o->direct < ISTHMUS_MPI_MEASURED || o->direct > ISTHMUS_MPI_CACHED)
        note(trouble, ISTHMUS_MPI_INVALID, "direct = %d; it is ISTHMUS_MPI_MEASURED, ISTHMUS_MPI_DIRECT or ISTHMUS_MPI_CACHED",
             o->direct);
    else if (o->io != ISTHMUS_MPI_POSIX && o->io != ISTHMUS_MPI_MPIIO)
        note(trouble, ISTHMUS_MPI_INVALID, "io = %d; it is ISTHMUS_MPI_POSIX or ISTHMUS_MPI_MPIIO", o->io);
}

// Distributes rank 0's arguments to all ranks, and creates a receiver's file.
static void agree(struct transfer *t, struct opening *opening)
{
    if (t->c->rank == 0) {
        check(t, opening, &opening->trouble);
        strcpy(t->store.path, opening->path);
        t->store.base = opening->offset;
        if (t->what == KIND_FILE && !t->sends && !opening->trouble.code)
            store_create(&t->store, &opening->trouble);
        if (t->what == KIND_FILE && !opening->trouble.code)
            targets_look(t, &opening->trouble);
        t->kept = t->store.had_blocks;
        opening->stripe = t->stripe;
        opening->target_count = t->target_count;
        strcpy(opening->temporary, t->store.temporary);
        strcpy(opening->journal, t->store.journal);
    }
    bcast(t, opening, sizeof *opening, 0);
    strcpy(t->store.path, opening->path);
    strcpy(t->store.temporary, opening->temporary);
    strcpy(t->store.journal, opening->journal);
    t->store.base = opening->offset;
    t->store.io = opening->options.io;
    t->stripe = opening->stripe;
    t->target_count = opening->target_count;
    t->options = opening->options;
    t->trouble = opening->trouble;
    if (!t->options.memory)
        t->options.memory = 128 * MIB;
    // While a piece of a storage target is read or written, the next one is asked for.
    if (!t->options.threads)
        t->options.threads = t->target_count > 1 ? 2 : 1;
}

// Opens the file at every rank. If some fail, all ranks take the trouble of the lowest.
static void open_all(struct transfer *t, int64_t bytes, struct share *shares)
{
    struct share mine = {.bytes = bytes};
    struct trouble trouble = {0};
    MPI_Request request;
    if (!t->trouble.code)
        store_open(&t->store, t->c->local, t->options.direct, &trouble);
    if (t->store.is_file)
        mine.bytes = t->store.first.st_size;
    else if (bytes < 0 || (bytes > 0 && !t->store.data))
        note(&trouble, ISTHMUS_MPI_INVALID, "%" PRId64 " bytes at address %p are no part of an array", bytes,
             (void *)t->store.data);
    sign(t, &trouble);
    mine.failed = trouble.code != 0;
    MPI_Iallgather(&mine, sizeof mine, MPI_BYTE, shares, sizeof mine, MPI_BYTE, t->c->local, &request);
    await(&request);
    for (int i = 0; i < t->c->ranks && !t->trouble.code; i++) {
        if (shares[i].failed) {
            t->trouble = trouble;
            t->trouble_rank = i;
            bcast(t, &t->trouble, sizeof t->trouble, i);
        } else if (t->store.is_file && t->sends && shares[i].bytes != shares[0].bytes) {
            t->trouble_rank = i;
            note(&t->trouble, ISTHMUS_MPI_FILE,
                 "%.200s has %" PRId64 " bytes as rank 0 sees it, and %" PRId64 " as rank %d does", t->store.path, shares[0].bytes, shares[i].bytes, i);
        }
    }
}

// Sets the length that a sender sends.
static void measure(struct transfer *t, const struct opening *opening, const struct share *shares)
{
    if (t->what == KIND_ARRAY) {
        for (int i = 0; i < t->c->ranks; i++)
            t->bytes += shares[i].bytes;
    } else if (t->sends && !t->trouble.code) {
        int64_t rest = shares[0].bytes - opening->offset;
        t->bytes = opening->length < 0 ? rest : opening->length;
        if (rest < 0 || t->bytes > rest)
            note(&t->trouble, ISTHMUS_MPI_FILE,
                 "%.200s has %" PRId64 " bytes, and no range of %" PRId64 " from byte %" PRId64 " on", t->store.path, shares[0].bytes, opening->length, opening->offset);
    }
    if (!t->sends || t->trouble.code)
        return;
    int64_t storage = t->stripe ? t->stripe : store_size(&t->store);
    t->piece = t->options.block ? t->options.block : suggested_piece(t->c, t->bytes, storage, t->options.memory);
    if (!t->options.block && t->target_count > 1)
        t->piece = piece_in_stripe(t->piece, t->stripe, t->bytes);
    t->block = t->what == KIND_FILE ? block_of(t->piece, t->bytes) : t->piece;
}

// --- making ready ------------------------------------------------------------------

static void sums(int64_t *bounds, int ranks, const int64_t *counts)
{
    bounds[0] = 0;
    for (int i = 0; i < ranks; i++)
        bounds[i + 1] = bounds[i] + counts[i];
}

static int make_slots(struct transfer *t)
{
    // Each slot is aligned within the memory, for direct writes.
    int64_t stride = (t->piece + 4095) / 4096 * 4096, slots = (t->bytes + t->piece - 1) / t->piece + 1;
    int64_t most = window_of(t->c, t->piece, t->options.memory) / stride;
    int least = t->options.in_turn ? 1 : 2;
    if (t->options.in_turn || most < least)
        most = least;
    if (most > 4096)
        most = 4096;
    if (slots > most)
        slots = most;
    if (t->c->memory_len > t->options.memory)
        drop_memory(t->c); // of a transfer before that was allowed more
    if (t->what == KIND_FILE && (slots = get_memory(t->c, slots, stride)) == 0)
        return 0;
    t->count = (int)slots;
    size_t count = (size_t)slots + 1, requests = (size_t)requests_of(t);
    t->slots = calloc(count, sizeof *t->slots);
    t->unused = malloc(count * sizeof *t->unused);
    t->requests = malloc(requests * sizeof *t->requests);
    t->statuses = malloc(requests * sizeof *t->statuses);
    t->ended = malloc(requests * sizeof *t->ended);
    if (!pool_room(&t->pool, (int)count) || !t->slots || !t->unused || !t->requests || !t->statuses || !t->ended)
        return 0;
    for (size_t i = 0; i < requests; i++)
        t->requests[i] = MPI_REQUEST_NULL;
    // The slot that was freed last is used first, because its memory is in the cache.
    for (t->unused_count = 0; t->unused_count < t->count; t->unused_count++)
        t->unused[t->unused_count] = t->count - 1 - t->unused_count;
    for (int i = 0; t->what == KIND_FILE && i < t->count; i++)
        t->slots[i].memory = t->c->memory + i * stride;
    return 1;
}

// Computes the shares of all ranks, and gets memory for digests. Returns whether there was enough.
static int share_out(struct transfer *t, const int64_t *counts)
{
    struct isthmus_mpi_coupling *c = t->c;
    if (t->what == KIND_FILE) {
        bounds_of_blocks(t->mine, c->ranks, t->bytes, t->piece);
        bounds_of_blocks(t->theirs, c->remote, t->bytes, t->piece);
    } else {
        sums(t->theirs, c->remote, counts);
    }
    if (t->sends || !whole_digest(t) || c->rank != 0)
        return 1;
    t->digests = malloc((size_t)(blocks_in(t, t->bytes) + 1) * DIGEST_LEN);
    return t->digests != NULL;
}

static int make_plan(struct transfer *t)
{
    if (t->what == KIND_FILE)
        t->stream_count = partners_of(t->c, t->streams);
    else
        t->stream_count = streams_between(t->mine, t->c->rank, t->theirs, t->c->remote, t->streams);
    t->open = t->stream_count;
    return make_slots(t);
}

static void release(struct transfer *t)
{
    struct trouble ignored = {0};
    store_close(&t->store, 0, &ignored);
    if (t->c->rank == 0)
        store_leave(&t->store, is_kept(t));
    free(t->mine);
    free(t->theirs);
    free(t->streams);
    free(t->slots);
    free(t->unused);
    free(t->requests);
    free(t->statuses);
    free(t->ended);
    free(t->digests);
    free(t->got);
    free(t->deal.shares);
    targets_end(t);
    free(t->have);
    free(t->pool.jobs);
    free(t->pool.results);
    free(t);
}

// --- the call ----------------------------------------------------------------------

// Prepares a receiver's file, once the length is known.
static void begin_file(struct transfer *t, int anew, struct trouble *trouble)
{
    journal_is_of(&t->store, t->block, t->bytes, t->offer.source);
    // A file that is written in place keeps its other bytes, so its zeros must be written.
    if (t->offer.holes && t->store.temporary[0])
        t->store.holes = anew ? HOLES_NEW : HOLES_AGAIN;
    if (t->c->rank != 0)
        return;
    if (anew && t->store.journal[0]) {
        t->kept = 0;
        if (truncate(t->store.temporary, 0) < 0)
            note_errno(trouble, errno, "cannot write %.200s", t->store.path);
        journal_renew(&t->store, t->block, t->bytes, t->offer.source);
    }
    store_reserve(&t->store, t->bytes, trouble);
}

static void move_all(struct transfer *t, const int64_t *counts)
{
    struct trouble trouble = {0};
    int64_t resumed = resumed_block(&t->offer, &t->ready);
    t->block = resumed ? resumed : t->offer.block;
    // The block length is the earlier one, so the piece is made of such blocks.
    if (t->piece % t->block || t->piece / t->block > MAX_BLOCKS)
        t->piece = t->block;
    if (!t->sends && t->store.is_file)
        begin_file(t, !resumed, &trouble);
    int ready = share_out(t, counts), all = 0;
    if (resumed && !agree_on_had(t))
        return;
    ready &= make_plan(t);
    MPI_Request request;
    MPI_Iallreduce(&ready, &all, 1, MPI_INT, MPI_MIN, t->c->local, &request);
    await(&request);
    if (!all) {
        // The other side has begun to send, so this side cannot end in order.
        t->c->lost = 1;
        note(&t->trouble, ISTHMUS_MPI_MEMORY, "no memory for a block of %" PRId64 " bytes; give a smaller one", t->piece);
        return;
    }
    pool_start(&t->pool, t, t->options.in_turn ? 0 : t->options.threads);
    words_listen(t);
    deal_begin(t);
    if (t->c->rank == 0 && t->sends)
        other_listen(t);
    if (trouble.code)
        fail_here(t, &trouble);
    move_blocks(t);
    deal_end(t);
    pool_stop(&t->pool);
    t->trouble = t->verdict.trouble;
    t->c->lost |= t->verdict.lost;
    if (!t->trouble.code && t->bytes > 0 && t->verdict.seconds > 0)
        t->c->rate = (double)(t->bytes - t->resumed) / t->verdict.seconds;
}

int transfer(struct transfer *t, struct opening *opening, int64_t bytes, struct isthmus_mpi_report *report, double began)
{
    struct isthmus_mpi_coupling *c = t->c;
    struct share *shares = calloc((size_t)c->ranks + 1, sizeof *shares);
    int64_t *counts = calloc((size_t)c->remote + 1, sizeof *counts);
    struct word heard;
    t->mine = calloc((size_t)c->ranks + 1, sizeof *t->mine);
    t->theirs = calloc((size_t)c->remote + 1, sizeof *t->theirs);
    t->streams = calloc((size_t)c->remote + 1, sizeof *t->streams);
    t->said = calloc(1, sizeof *t->said + (size_t)c->ranks * sizeof *t->said->counts);
    if (!t->said || !shares || !counts || !t->mine || !t->theirs || !t->streams)
        MPI_Abort(c->local, ISTHMUS_MPI_MEMORY); // some kilobytes: what could follow?
    t->said->requests[0] = t->said->requests[1] = MPI_REQUEST_NULL;
    agree(t, opening);
    open_all(t, bytes, shares);
    measure(t, opening, shares);
    for (int i = 0; i < c->ranks; i++)
        t->mine[i + 1] = t->mine[i] + shares[i].bytes;
    greet(t, shares, counts, &heard);
    t->began = began > 0 ? began : now_s();
    if (is_on(t, &heard))
        move_all(t, counts);
    else
        t->verdict.seconds = now_s() - t->began;
    end_greeting(t);
    if (c->lost)
        c->exchange->abandon(c);
    else
        c->exchange->flush(c);
    c->serial++;
    *report = (struct isthmus_mpi_report){.bytes = t->bytes, .block = t->piece, .seconds = t->verdict.seconds,
                                          .sent_seconds = t->verdict.sent_seconds, .resumed = t->resumed,
                                          .has_digest = t->verdict.has_digest};
    memcpy(report->digest, t->verdict.digest, DIGEST_LEN);
    free(shares);
    free(counts);
    struct trouble all = {0};
    if (t->trouble.code)
        note(&all, t->trouble.code, "%s", t->trouble.text);
    release(t);
    free(opening);
    return tell(&all);
}
