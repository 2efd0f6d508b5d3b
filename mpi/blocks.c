// The loop that moves blocks. A slot goes round: at the sender read, digest, send; at the
// receiver receive, compare, write. Every slot that is free is at once used again.
#include "internal.h"
#include "isthmus.h"

#include <inttypes.h>
#include <string.h>

enum { PAIR_TAGS = 16, TAG_CYCLE = 8192 };

// Blocks between two ranks are told apart by their number, so that disk threads may end them
// in any order. What has the same number after a cycle was sent later, and matches later.
static int tag_of(const struct transfer *t, const struct stream *stream, int64_t offset)
{
    return PAIR_TAGS + 2 * (int)((offset - stream->first) / t->block % TAG_CYCLE);
}

int whole_digest(const struct transfer *t)
{
    return t->what == KIND_FILE && t->block >= 4096 && (t->block & (t->block - 1)) == 0;
}

void digest_of(const struct transfer *t, const struct slot *slot, uint8_t *digest)
{
    if (whole_digest(t))
        isthmus_digest_block(slot->memory, (size_t)slot->length, (uint64_t)slot->offset, (uint64_t)t->bytes,
                             (uint64_t)t->block, digest);
    else
        isthmus_digest_block(slot->memory, (size_t)slot->length, 0, (uint64_t)slot->length, (uint64_t)t->block, digest);
}

static int by_posix(const struct transfer *t)
{
    return t->store.is_file && t->store.io == ISTHMUS_MPI_POSIX;
}

static int by_mpiio(const struct transfer *t)
{
    return t->store.is_file && t->store.io == ISTHMUS_MPI_MPIIO;
}

// A block is there.
static void remember_block(struct transfer *t, const struct slot *slot)
{
    if (journal_note(&t->store, slot->offset / t->block, slot->record.digest))
        t->kept = 1;
}

static void write_by_posix(struct transfer *t, struct slot *slot)
{
    store_write(&t->store, slot->memory, slot->length, slot->offset, &slot->trouble);
    if (!slot->trouble.code)
        remember_block(t, slot);
}

void slot_job(struct transfer *t, int index)
{
    struct slot *slot = &t->slots[index];
    uint8_t digest[DIGEST_LEN];
    if (t->sends) {
        if (by_posix(t) && !slot->trouble.code)
            store_read(&t->store, slot->memory, slot->length, slot->offset, &slot->trouble);
        if (t->store.is_file && slot->last && !slot->trouble.code)
            store_unchanged(&t->store, &slot->trouble);
        if (!slot->trouble.code)
            digest_of(t, slot, slot->record.digest);
        return;
    }
    digest_of(t, slot, digest);
    if (memcmp(digest, slot->record.digest, DIGEST_LEN) != 0)
        note(&slot->trouble, ISTHMUS_MPI_DAMAGED, "the block at byte %" PRId64 " is not what was sent", slot->offset);
    else if (by_posix(t))
        write_by_posix(t, slot);
    if (t->digests)
        memcpy(t->digests + (slot->offset - t->mine[t->c->rank]) / t->block * DIGEST_LEN, digest, DIGEST_LEN);
}

// The next block of this rank, from each partner in turn.
static struct stream *next_block(struct transfer *t, struct slot *slot)
{
    for (int i = 0; i < t->stream_count; i++) {
        struct stream *stream = &t->streams[(t->turn + i) % t->stream_count];
        while (stream->next < stream->end && is_had(t, stream->next))
            stream->next = stream->end - stream->next > t->block ? stream->next + t->block : stream->end;
        if (stream->next == stream->end)
            continue;
        int64_t left = stream->end - stream->next;
        slot->stream = stream;
        slot->offset = stream->next;
        slot->length = left < t->block ? left : t->block;
        slot->trouble.code = 0;
        stream->next += slot->length;
        t->unbegun--;
        slot->last = t->unbegun == 0;
        t->turn = (t->turn + i + 1) % t->stream_count;
        if (t->what == KIND_ARRAY)
            slot->memory = t->store.data + (slot->offset - t->mine[t->c->rank]);
        return stream;
    }
    return NULL;
}

static void slot_done(struct transfer *t, int index)
{
    t->unused[t->unused_count++] = index;
    t->left--;
}

static void remember(struct transfer *t, int error)
{
    if (error != MPI_SUCCESS)
        lose(t, error);
}

// --- sender ----------------------------------------------------------------------

static void send_slot(struct transfer *t, int index)
{
    struct slot *slot = &t->slots[index];
    struct record *record = &slot->record;
    int tag = tag_of(t, slot->stream, slot->offset);
    if (slot->trouble.code)
        t->stopped = 1;
    sign(t, &slot->trouble);
    record->serial = t->c->serial;
    record->offset = slot->offset;
    record->length = slot->length;
    record->trouble = slot->trouble;
    slot->pending = 2;
    remember(t, MPI_Isend(slot->memory, slot->trouble.code ? 0 : (int)slot->length, MPI_BYTE, slot->stream->partner, tag,
                          t->c->other, &t->requests[2 * index]));
    if (!t->lost)
        remember(t, MPI_Isend(record, sizeof *record, MPI_BYTE, slot->stream->partner, tag + 1, t->c->other,
                              &t->requests[2 * index + 1]));
}

// After a failure what is left goes without its data: the receivers have asked for it.
static void begin_send(struct transfer *t, int index)
{
    struct slot *slot = &t->slots[index];
    int error;
    if (t->stopped) {
        note(&slot->trouble, STOPPED, "stopped");
        send_slot(t, index);
    } else if (by_mpiio(t)) {
        error = MPI_File_iread_at(t->store.file, t->store.base + slot->offset, slot->memory, (int)slot->length, MPI_BYTE,
                                  &t->requests[2 * t->count + index]);
        if (error != MPI_SUCCESS) {
            note_mpi(&slot->trouble, error, "cannot read %.200s", t->store.path);
            send_slot(t, index);
        }
    } else {
        pool_put(&t->pool, index);
    }
}

// --- receiver --------------------------------------------------------------------

static void begin_receive(struct transfer *t, int index)
{
    struct slot *slot = &t->slots[index];
    int tag = tag_of(t, slot->stream, slot->offset);
    slot->pending = 2;
    slot->received = 0;
    remember(t, MPI_Irecv(slot->memory, (int)slot->length, MPI_BYTE, slot->stream->partner, tag, t->c->other,
                          &t->requests[2 * index]));
    if (!t->lost)
        remember(t, MPI_Irecv(&slot->record, sizeof slot->record, MPI_BYTE, slot->stream->partner, tag + 1, t->c->other,
                              &t->requests[2 * index + 1]));
}

static void take_block(struct transfer *t, int index)
{
    struct slot *slot = &t->slots[index];
    const struct record *record = &slot->record;
    if (record->trouble.code) {
        slot->trouble = record->trouble;
        if (record->trouble.code != STOPPED)
            fail(t, &slot->trouble, t->c->rank); // the sender has signed it
        slot_done(t, index);
    } else if (t->trouble.code) {
        slot_done(t, index);
    } else if (record->serial != t->c->serial || record->offset != slot->offset || record->length != slot->length ||
               slot->received != slot->length) {
        note(&slot->trouble, ISTHMUS_MPI_DAMAGED, "a block of %" PRId64 " bytes came where one of %" PRId64 " belongs",
             slot->received, slot->length);
        fail_here(t, &slot->trouble);
        slot_done(t, index);
    } else {
        pool_put(&t->pool, index);
    }
}

static void write_by_mpiio(struct transfer *t, int index)
{
    struct slot *slot = &t->slots[index];
    int64_t base = t->store.base > 0 ? t->store.base : 0;
    int error = MPI_File_iwrite_at(t->store.file, base + slot->offset, slot->memory, (int)slot->length, MPI_BYTE,
                                   &t->requests[2 * t->count + index]);
    if (error != MPI_SUCCESS) {
        note_mpi(&slot->trouble, error, "cannot write %.200s", t->store.path);
        fail_here(t, &slot->trouble);
        slot_done(t, index);
    }
}

// --- what comes to an end --------------------------------------------------------

static void on_job(struct transfer *t, int index)
{
    struct slot *slot = &t->slots[index];
    if (t->lost)
        return;
    if (t->sends) {
        send_slot(t, index);
    } else if (slot->trouble.code) {
        fail_here(t, &slot->trouble);
        slot_done(t, index);
    } else if (by_mpiio(t)) {
        write_by_mpiio(t, index);
    } else {
        slot_done(t, index);
    }
}

static void on_file(struct transfer *t, int index, const MPI_Status *status, int error)
{
    struct slot *slot = &t->slots[index];
    int count = 0;
    if (error == MPI_SUCCESS)
        MPI_Get_count(status, MPI_BYTE, &count);
    if (error != MPI_SUCCESS)
        note_mpi(&slot->trouble, error, "cannot %s %.200s", t->sends ? "read" : "write", t->store.path);
    else if (count != slot->length && t->sends)
        note(&slot->trouble, ISTHMUS_MPI_CHANGED, "%.200s became shorter while it was read", t->store.path);
    else if (count != slot->length)
        // What MPI-IO tells of a full disk, where it tells nothing.
        note(&slot->trouble, ISTHMUS_MPI_SPACE,
             "cannot write %.200s: %d of %" PRId64 " bytes were taken; free some space", t->store.path, count, slot->length);
    if (t->sends && !slot->trouble.code)
        pool_put(&t->pool, index);
    else if (t->sends)
        send_slot(t, index);
    else {
        if (slot->trouble.code)
            fail_here(t, &slot->trouble);
        else
            remember_block(t, slot);
        slot_done(t, index);
    }
}

static void on_message(struct transfer *t, int request, const MPI_Status *status)
{
    struct slot *slot = &t->slots[request / 2];
    int count = 0;
    if (!t->sends && request % 2 == 0) {
        MPI_Get_count(status, MPI_BYTE, &count);
        slot->received = count;
    }
    if (--slot->pending == 0) {
        if (t->sends)
            slot_done(t, request / 2);
        else
            take_block(t, request / 2);
    }
}

// Takes what came to an end. Returns how much.
static int take_ended(struct transfer *t)
{
    int count = 0, all = requests_of(t);
    int error = MPI_Testsome(all, t->requests, &count, t->ended, t->statuses);
    if (count == MPI_UNDEFINED)
        return 0;
    if (error != MPI_SUCCESS && error != MPI_ERR_IN_STATUS) {
        lose(t, error);
        return 1;
    }
    for (int i = 0; i < count; i++) {
        int request = t->ended[i], of = error == MPI_ERR_IN_STATUS ? t->statuses[i].MPI_ERROR : MPI_SUCCESS;
        if (request >= 2 * t->count && request < 3 * t->count)
            on_file(t, request - 2 * t->count, &t->statuses[i], of);
        else if (of != MPI_SUCCESS)
            lose(t, of);
        else if (request == word_request(t))
            on_word(t);
        else if (request == local_request(t))
            on_local(t, t->statuses[i].MPI_SOURCE);
        else if (request == barrier_request(t))
            t->gathered = 1;
        else if (!t->lost)
            on_message(t, request, &t->statuses[i]);
    }
    return count;
}

void move_blocks(struct transfer *t)
{
    while (!t->over) {
        int busy = 0, index;
        while (!t->lost && t->unused_count && next_block(t, &t->slots[t->unused[t->unused_count - 1]])) {
            index = t->unused[--t->unused_count];
            if (t->sends)
                begin_send(t, index);
            else
                begin_receive(t, index);
        }
        busy += take_ended(t);
        while ((index = pool_take(&t->pool)) >= 0) {
            on_job(t, index);
            busy++;
        }
        words_turn(t);
        if (!busy && !t->over)
            pool_rest(&t->pool);
    }
}
