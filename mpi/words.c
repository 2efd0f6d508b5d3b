// Control messages while blocks move. Each rank reports to its rank 0 a failure, and the end of its blocks. The
// receiver's rank 0 tells the sender's to stop, and at last the result, which the sender's rank 0 passes on. So every
// rank gets exactly one last word.
#include "internal.h"
#include "isthmus.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

int word_request(const struct transfer *t)
{
    return 3 * t->count;
}

int local_request(const struct transfer *t)
{
    return 3 * t->count + 1;
}

int barrier_request(const struct transfer *t)
{
    return 3 * t->count + 2;
}

int deal_request(const struct transfer *t)
{
    return 3 * t->count + 3;
}

int requests_of(const struct transfer *t)
{
    return 3 * t->count + 4;
}

struct word word_of(const struct transfer *t, int kind)
{
    return (struct word){.protocol = PROTOCOL + OLDEST, .kind = kind, .serial = t->c->serial, .what = t->what,
                         .ranks = t->c->ranks, .bytes = t->bytes, .block = t->block, .piece = t->piece};
}

// Ends the exchange with the other side. Memory that the MPI may still write to is left to the MPI.
static void abandon(struct transfer *t)
{
    int ours = t->c->exchange->abandon(t->c);
    t->lost = t->c->lost = t->stopped = 1;
    for (int i = 0; i <= word_request(t); i++) {
        int is_file = i >= 2 * t->count && i < 3 * t->count, receives = i == word_request(t) || (!t->sends && !is_file);
        if (t->requests[i] == MPI_REQUEST_NULL)
            continue;
        if (is_file) {
            MPI_Wait(&t->requests[i], MPI_STATUS_IGNORE);
            continue;
        }
        if (receives)
            MPI_Cancel(&t->requests[i]);
        MPI_Request_free(&t->requests[i]);
    }
    // A disk thread must not write to a descriptor after it is closed.
    pool_clear(&t->pool);
    if (!ours) {
        t->c->memory = NULL;
        t->c->memory_len = 0;
    }
    t->open = t->active = 0;
}

// Handles an error of a message: the other side is lost.
void lose(struct transfer *t, int error)
{
    struct trouble trouble = {0};
    if (t->lost)
        return;
    note_lost(t->c, error, &trouble);
    fail(t, &trouble, t->c->rank);
}

static void tell_ranks(struct transfer *t, const struct word *word)
{
    for (int i = 1; i < t->c->ranks; i++)
        MPI_Send(word, sizeof *word, MPI_BYTE, i, TAG_WORD, t->c->local);
}

// Tells the others once to stop, so that they do not read or send data that nobody will use.
static void stop_others(struct transfer *t)
{
    struct word word = word_of(t, STOP);
    if (t->c->rank != 0 || t->told_stop)
        return;
    t->told_stop = 1;
    if (t->lost)
        word.trouble = t->trouble;
    if (t->sends)
        tell_ranks(t, &word);
    else if (!t->lost && exchange_say(t->c, &word, sizeof word, 0, TAG_WORD) != MPI_SUCCESS)
        lose(t, MPI_ERR_OTHER);
}

// Records a failure. Of several, the lowest rank's is reported, in whichever order they come.
void fail(struct transfer *t, const struct trouble *trouble, int rank)
{
    int first = !t->trouble.code, mine = rank == t->c->rank;
    if (first || rank < t->trouble_rank) {
        t->trouble_rank = rank;
        t->trouble = *trouble;
    }
    // A sender's own failure travels with its block, and comes back as the last word.
    if (t->sends && trouble->code != ISTHMUS_MPI_LOST)
        return;
    if (trouble->code == ISTHMUS_MPI_LOST && !t->lost)
        abandon(t);
    if (t->c->rank == 0) {
        stop_others(t);
    } else if (first && mine) {
        struct finished word = {.trouble = *trouble};
        MPI_Send(&word, sizeof word, MPI_BYTE, 0, TAG_FINISHED, t->c->local);
    }
}

void fail_here(struct transfer *t, struct trouble *trouble)
{
    sign(t, trouble);
    fail(t, trouble, t->c->rank);
}

void words_listen(struct transfer *t)
{
    const struct isthmus_mpi_coupling *c = t->c;
    if (c->rank != 0)
        MPI_Irecv(&t->from_root, sizeof t->from_root, MPI_BYTE, 0, TAG_WORD, c->local, &t->requests[local_request(t)]);
    else if (t->finished < c->ranks - 1)
        MPI_Irecv(&t->from_rank, sizeof t->from_rank, MPI_BYTE, MPI_ANY_SOURCE, TAG_FINISHED, c->local,
                  &t->requests[local_request(t)]);
}

void other_listen(struct transfer *t)
{
    int error = exchange_receive(t->c, &t->from_other, sizeof t->from_other, 0, TAG_WORD, &t->requests[word_request(t)]);
    if (error != MPI_SUCCESS)
        lose(t, error);
}

// At a sender's rank 0: handles a word of the receiver's rank 0.
void on_word(struct transfer *t)
{
    const struct word *word = &t->from_other;
    if (word->kind == STOP) {
        t->stopped = 1;
        stop_others(t);
    }
    if (word->kind == DONE) {
        t->other_done = 1;
        t->verdict = *word;
    } else {
        other_listen(t);
    }
}

// Takes the digests of the blocks that a receiver's rank has.
static void take_digests(struct transfer *t, int source, int64_t count)
{
    struct got *got = malloc((size_t)(count + 1) * sizeof *got);
    if (!got)
        MPI_Abort(t->c->local, ISTHMUS_MPI_MEMORY); // they were the rank's own as well: what could follow?
    MPI_Recv(got, (int)(count * (int64_t)sizeof *got), MPI_BYTE, source, TAG_DIGESTS, t->c->local, MPI_STATUS_IGNORE);
    for (int64_t i = 0; i < count; i++)
        memcpy(t->digests + got[i].index * DIGEST_LEN, got[i].digest, DIGEST_LEN);
    free(got);
}

void on_local(struct transfer *t, int source)
{
    if (t->c->rank != 0) {
        if (t->from_root.kind == DONE) {
            t->verdict = t->from_root;
            t->over = 1;
        } else {
            struct trouble lost = t->from_root.trouble;
            t->stopped = 1;
            words_listen(t);
            // The other side is lost, so nobody will receive this rank's messages.
            if (lost.code)
                fail(t, &lost, 0);
        }
        return;
    }
    struct finished word = t->from_rank;
    if (word.over) {
        t->finished++;
        t->kept |= word.kept;
        t->got_all += word.blocks;
        if (t->digests && word.blocks > 0 && !word.trouble.code)
            take_digests(t, source, word.blocks);
    }
    words_listen(t);
    if (word.trouble.code)
        fail(t, &word.trouble, source);
}

// Reports that this rank's blocks are done. With MPI-IO closing is collective, so all ranks meet first.
static void report(struct transfer *t)
{
    struct trouble trouble = {0};
    if (t->store.file != MPI_FILE_NULL && !t->gathered) {
        if (!t->gathering)
            MPI_Ibarrier(t->c->local, &t->requests[barrier_request(t)]);
        t->gathering = 1;
        return;
    }
    store_close(&t->store, t->options.sync && !t->trouble.code, &trouble);
    if (trouble.code && !t->sends)
        fail_here(t, &trouble);
    t->reported = 1;
    if (t->c->rank == 0)
        return;
    struct finished word = {.over = 1, .kept = t->kept, .blocks = t->got_count};
    if (!t->sends || t->lost)
        word.trouble = t->trouble;
    MPI_Send(&word, sizeof word, MPI_BYTE, 0, TAG_FINISHED, t->c->local);
    if (whole_digest(t) && t->got_count > 0 && !word.trouble.code)
        MPI_Send(t->got, (int)(t->got_count * (int64_t)sizeof *t->got), MPI_BYTE, 0, TAG_DIGESTS, t->c->local);
}

// Whether the part of the file is kept for the next call.
int is_kept(const struct transfer *t)
{
    return t->kept && t->trouble.code != ISTHMUS_MPI_CHANGED;
}

// At rank 0 of the receiver, after all ranks have written their blocks.
static void conclude(struct transfer *t)
{
    struct word word = word_of(t, DONE);
    t->got_all += t->got_count;
    // Several ranks deal out and report pieces, so a final count checks that no block is missing.
    if (!t->trouble.code && t->what == KIND_FILE && t->got_all != blocks_in(t, t->bytes))
        note(&t->trouble, ISTHMUS_MPI_DAMAGED, "of %" PRId64 " blocks %" PRId64 " came", blocks_in(t, t->bytes), t->got_all);
    if (!t->trouble.code)
        store_publish(&t->store, t->options.sync, &t->trouble);
    store_leave(&t->store, is_kept(t));
    word.trouble = t->trouble;
    word.has_digest = t->digests && !t->trouble.code;
    if (word.has_digest)
        isthmus_digest_whole(t->digests, (size_t)blocks_in(t, t->bytes), (uint64_t)t->bytes,
                             (uint64_t)t->block, word.digest);
    word.seconds = now_s() - t->began;
    t->verdict = word;
    if (!t->lost && exchange_say(t->c, &word, sizeof word, 0, TAG_WORD) != MPI_SUCCESS)
        lose(t, MPI_ERR_OTHER);
    t->verdict.lost = t->lost;
    if (t->lost)
        t->verdict.trouble = t->trouble;
}

// At rank 0 of the sender, after the receiver's last word.
static void acknowledge(struct transfer *t)
{
    t->verdict.kind = DONE;
    t->verdict.seconds = now_s() - t->began;
    t->verdict.sent_seconds = t->sent - t->began;
    t->verdict.lost = t->lost;
    if (t->lost)
        t->verdict.trouble = t->trouble;
}

void words_turn(struct transfer *t)
{
    if (t->open == 0 && t->active == 0 && !t->reported)
        report(t);
    if (t->c->rank != 0 || !t->reported || t->finished < t->c->ranks - 1)
        return;
    if (t->sent == 0)
        t->sent = now_s();
    if (t->sends && !t->other_done && !t->lost)
        return;
    if (t->sends)
        acknowledge(t);
    else
        conclude(t);
    if (t->requests[word_request(t)] != MPI_REQUEST_NULL) {
        MPI_Cancel(&t->requests[word_request(t)]);
        MPI_Request_free(&t->requests[word_request(t)]);
    }
    tell_ranks(t, &t->verdict);
    t->over = 1;
}
