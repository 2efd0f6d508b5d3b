// The first messages of both sides: what is sent in which direction, and whether that fits together.
#include "internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// The order of calls in error texts: senders first, so that both sides print the same.
static int call_of(const struct word *word)
{
    return 2 * (word->kind != OFFER) + (word->what == KIND_ARRAY);
}

static void mismatch(const struct transfer *t, const struct word *word, struct trouble *trouble)
{
    static const char *const calls[] = {"sends a file", "sends an array", "receives a file", "receives an array"};
    const struct word own = t->sends ? t->offer : t->ready;
    int mine = call_of(&own), theirs = call_of(word);
    if (!common_version(&own, word))
        note(trouble, ISTHMUS_MPI_MISMATCH,
             "the other application has another version of this library; install the same on both sides");
    else if ((word->kind == OFFER) == t->sends || word->what != t->what)
        note(trouble, ISTHMUS_MPI_MISMATCH, "the calls of the two applications do not fit: one %s, the other %s",
             calls[mine < theirs ? mine : theirs], calls[mine < theirs ? theirs : mine]);
    else if (t->what == KIND_ARRAY && word->bytes != t->bytes)
        note(trouble, ISTHMUS_MPI_MISMATCH, "the sender's array has %" PRId64 " bytes, the receiver's %" PRId64,
             t->sends ? t->bytes : word->bytes, t->sends ? word->bytes : t->bytes);
}

static struct word first_word(const struct transfer *t)
{
    struct word word = word_of(t, t->sends ? OFFER : READY);
    word.newest = NEWEST;
    word.trouble = t->trouble;
    word.fixed = t->options.block != 0;
    if (t->sends && t->what == KIND_FILE && !t->trouble.code)
        source_of(t, word.source);
    word.holes = t->sends && has_holes(&t->store);
    if (!t->sends && t->what == KIND_FILE && t->store.had_blocks) {
        word.resumable = 1;
        word.block = t->store.noted_block;
        word.bytes = t->store.noted_bytes;
        memcpy(word.source, t->store.noted_source, DIGEST_LEN);
    }
    return word;
}

// The ranks 0 exchange words, and the shares of arrays. No data are sent before the other side is
// ready. So calls that do not fit together leave nothing under way, and receives are posted in time.
void greet(struct transfer *t, const struct share *shares, int64_t *counts, struct word *heard)
{
    struct isthmus_mpi_coupling *c = t->c;
    int error = MPI_SUCCESS;
    struct greeting *said = t->said;
    *heard = (struct word){0};
    if (c->rank == 0) {
        said->word = first_word(t);
        for (int i = 0; i < c->ranks; i++)
            said->counts[i] = shares[i].bytes;
        error = exchange_send(c, &said->word, sizeof said->word, 0, TAG_WORD, &said->requests[0]);
        if (t->what == KIND_ARRAY && error == MPI_SUCCESS)
            error = exchange_send(c, said->counts, c->ranks * (int64_t)sizeof *counts, 0, TAG_COUNTS, &said->requests[1]);
        if (error == MPI_SUCCESS)
            error = exchange_hear(c, heard, sizeof *heard, 0, TAG_WORD);
        if (error == MPI_SUCCESS && heard->what == KIND_ARRAY && heard->ranks == c->remote)
            error = exchange_hear(c, counts, c->remote * (int64_t)sizeof *counts, 0, TAG_COUNTS);
        if (error != MPI_SUCCESS) {
            heard->kind = DONE;
            note_lost(c, error, &heard->trouble);
        }
    }
    // All ranks use the words of the ranks 0.
    struct word own = said->word;
    bcast(t, &own, sizeof own, 0);
    bcast(t, heard, sizeof *heard, 0);
    t->offer = t->sends ? own : *heard;
    t->ready = t->sends ? *heard : own;
    if (heard->what == KIND_ARRAY)
        bcast(t, counts, (int64_t)c->remote * (int64_t)sizeof *counts, 0);
}

// Whether the two words agree, so that there is something to move. If both sides have trouble, both
// report the sender's.
int is_on(struct transfer *t, const struct word *heard)
{
    if (heard->trouble.code == ISTHMUS_MPI_LOST) {
        t->c->lost = 1;
        t->trouble = heard->trouble;
    }
    if (heard->trouble.code && (heard->kind == OFFER || !t->trouble.code))
        t->trouble = heard->trouble;
    if (!t->trouble.code)
        mismatch(t, heard, &t->trouble);
    if (!t->sends) {
        t->bytes = heard->bytes;
        t->block = heard->block;
        t->piece = heard->piece;
    }
    return !t->trouble.code;
}

// Ends the first messages after the transfer, when they arrived long ago. If the other side is gone they never
// arrive, and the MPI keeps the memory.
void end_greeting(struct transfer *t)
{
    for (int i = 0; i < 2 && !t->c->lost; i++)
        if (exchange_await(t->c, &t->said->requests[i]) != MPI_SUCCESS)
            t->c->lost = 1;
    if (!t->c->lost)
        free(t->said);
}
