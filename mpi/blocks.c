// The loop that moves blocks. Each slot repeats a cycle: at the sender read, digest, send; at the
// receiver receive, compare, write. A free slot is used again at once.
#include "internal.h"
#include "isthmus.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { PAIR_TAGS = 16, TAG_CYCLE = 8192 };

// Tags distinguish the pieces between two ranks by their numbers, so that disk threads may end them
// in any order. After TAG_CYCLE pieces the tags repeat; MPI matches messages of one tag in their order.
static int tag_of(const struct slot *slot)
{
    return PAIR_TAGS + 2 * (int)(slot->number % TAG_CYCLE);
}

int whole_digest(const struct transfer *t)
{
    return t->what == KIND_FILE && t->block >= 4096 && (t->block & (t->block - 1)) == 0;
}

void digest_of(const struct transfer *t, const struct slot *slot, uint8_t digests[][DIGEST_LEN])
{
    int whole = whole_digest(t);
    for (int64_t at = 0, i = 0; at < slot->length || (at == 0 && slot->length == 0); at += t->block, i++) {
        int64_t length = slot->length - at < t->block ? slot->length - at : t->block;
        if (whole)
            isthmus_digest_block(slot->memory + at, (size_t)length, (uint64_t)(slot->offset + at), (uint64_t)t->bytes,
                                 (uint64_t)t->block, digests[i]);
        else
            isthmus_digest_block(slot->memory + at, (size_t)length, 0, (uint64_t)length, (uint64_t)t->block, digests[i]);
    }
}

void keep_digests(struct transfer *t, int64_t offset, int64_t length, uint8_t digests[][DIGEST_LEN])
{
    for (int64_t index = offset / t->block, end = (offset + length + t->block - 1) / t->block; index < end; index++) {
        const uint8_t *digest = digests[index - offset / t->block];
        if (t->digests)
            memcpy(t->digests + index * DIGEST_LEN, digest, DIGEST_LEN);
        if (t->c->rank != 0 && whole_digest(t)) {
            if (t->got_count == t->got_room) {
                t->got_room = 2 * t->got_room + 64;
                t->got = realloc(t->got, (size_t)t->got_room * sizeof *t->got);
                if (!t->got)
                    MPI_Abort(t->c->local, ISTHMUS_MPI_MEMORY); // 40 bytes a block: what could follow?
            }
            t->got[t->got_count].index = index;
            memcpy(t->got[t->got_count].digest, digest, DIGEST_LEN);
        }
        t->got_count++;
    }
}

static int by_posix(const struct transfer *t)
{
    return t->store.is_file && t->store.io == ISTHMUS_MPI_POSIX;
}

static int by_mpiio(const struct transfer *t)
{
    return t->store.is_file && t->store.io == ISTHMUS_MPI_MPIIO;
}

// Records the blocks of a piece that was written.
static void remember_piece(struct transfer *t, const struct slot *slot)
{
    int64_t first = slot->offset / t->block, count = (slot->length + t->block - 1) / t->block;
    for (int64_t i = 0; i < count; i++)
        if (journal_note(&t->store, first + i, slot->record.digests[i]))
            t->kept = 1;
}

static void write_by_posix(struct transfer *t, struct slot *slot)
{
    store_write(&t->store, slot->memory, slot->length, slot->offset, &slot->trouble);
    if (!slot->trouble.code)
        remember_piece(t, slot);
}

// Whether a piece has the digests that its sender computed.
static int is_as_sent(struct transfer *t, struct slot *slot)
{
    uint8_t digests[MAX_BLOCKS][DIGEST_LEN];
    int64_t count = slot->length > 0 ? (slot->length + t->block - 1) / t->block : 1;
    digest_of(t, slot, digests);
    for (int64_t i = 0; i < count; i++)
        if (memcmp(digests[i], slot->record.digests[i], DIGEST_LEN) != 0) {
            note(&slot->trouble, ISTHMUS_MPI_DAMAGED, "the block at byte %" PRId64 " is not what was sent",
                 slot->offset + i * t->block);
            return 0;
        }
    return 1;
}

void slot_job(struct transfer *t, int index)
{
    struct slot *slot = &t->slots[index];
    if (t->sends) {
        slot->record.hole = by_posix(t) && store_is_hole(&t->store, slot->length, slot->offset);
        if (slot->record.hole)
            memset(slot->memory, 0, (size_t)slot->length);
        else if (by_posix(t) && !slot->trouble.code)
            store_read(&t->store, slot->memory, slot->length, slot->offset, &slot->trouble);
        if (!slot->trouble.code)
            digest_of(t, slot, slot->record.digests);
    } else {
        if (slot->record.hole)
            memset(slot->memory, 0, (size_t)slot->length);
        if (is_as_sent(t, slot) && by_posix(t))
            write_by_posix(t, slot);
    }
}

// The open stream with the fewest pieces under way.
static struct stream *next_stream(struct transfer *t)
{
    struct stream *best = NULL;
    for (int i = 0; i < t->stream_count; i++) {
        struct stream *stream = &t->streams[(t->turn + i) % t->stream_count];
        if (!stream->ended && (!best || stream->posted < best->posted))
            best = stream;
    }
    t->turn = t->stream_count ? (t->turn + 1) % t->stream_count : 0;
    return best;
}

static void use(struct transfer *t, struct slot *slot, struct stream *stream)
{
    slot->stream = stream;
    slot->number = stream->number++;
    slot->trouble.code = 0;
    slot->record.hole = 0;
    stream->posted++;
    t->active++;
}

// Takes the next piece of an array, for each partner in turn.
static int next_of_array(struct transfer *t, struct slot *slot)
{
    struct stream *stream = next_stream(t);
    if (!stream)
        return 0;
    int64_t left = stream->end - stream->next;
    slot->offset = stream->next;
    slot->length = left < t->piece ? left : t->piece;
    slot->memory = t->store.data + (slot->offset - t->mine[t->c->rank]);
    stream->next += slot->length;
    stream->ended = stream->next == stream->end;
    t->open -= stream->ended;
    use(t, slot, stream);
    return 1;
}

static void slot_done(struct transfer *t, int index)
{
    struct slot *slot = &t->slots[index];
    t->unused[t->unused_count++] = index;
    slot->stream->posted--;
    t->active--;
    if (slot->given)
        deal_written(t, slot);
    if (t->sends && t->what == KIND_FILE && slot->length > 0)
        deal_delivered(t, slot->length);
}

static void remember(struct transfer *t, int error)
{
    if (error != MPI_SUCCESS)
        lose(t, error);
}

// --- sender ----------------------------------------------------------------------

static void send_both(struct transfer *t, int index, int64_t length, int64_t digests)
{
    struct slot *slot = &t->slots[index];
    struct record *record = &slot->record;
    int bytes = (int)(offsetof(struct record, digests) + (size_t)digests * DIGEST_LEN), tag = tag_of(slot);
    record->serial = t->c->serial;
    record->offset = slot->offset;
    record->trouble = slot->trouble;
    slot->pending = 2;
    remember(t, exchange_send(t->c, slot->memory, length, slot->stream->partner, tag, &t->requests[2 * index]));
    if (!t->lost)
        remember(t, exchange_send(t->c, record, bytes, slot->stream->partner, tag + 1, &t->requests[2 * index + 1]));
}

static void send_slot(struct transfer *t, int index)
{
    struct slot *slot = &t->slots[index];
    int64_t blocks = (slot->length + t->block - 1) / t->block;
    t->reading--;
    deal_read(t, slot);
    if (slot->trouble.code)
        t->stopped = 1;
    sign(t, &slot->trouble);
    slot->record.length = slot->length;
    send_both(t, index, slot->trouble.code || slot->record.hole ? 0 : slot->length, slot->trouble.code ? 0 : blocks);
}

// After a failure the rest of an array is sent without its data, because the receivers expect the messages.
static void begin_send(struct transfer *t, int index)
{
    struct slot *slot = &t->slots[index];
    int error;
    t->reading++;
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

// Once this rank has read its last piece of a file, tells each partner the end, and whether the source
// is unchanged.
static int send_end(struct transfer *t, int index)
{
    struct slot *slot = &t->slots[index];
    if (!(t->deal.none || t->stopped) || t->deal.taken.next < t->deal.taken.end || t->reading)
        return 0;
    struct stream *stream = next_stream(t);
    if (!stream)
        return 0;
    use(t, slot, stream);
    slot->offset = slot->length = 0;
    if (!t->stopped)
        store_unchanged(&t->store, &slot->trouble);
    sign(t, &slot->trouble);
    slot->record.length = NO_MORE;
    stream->ended = 1;
    t->open--;
    send_both(t, index, 0, 0);
    return 1;
}

// --- receiver --------------------------------------------------------------------

static void begin_receive(struct transfer *t, int index)
{
    struct slot *slot = &t->slots[index];
    int tag = tag_of(slot);
    slot->pending = 2;
    slot->received = 0;
    remember(t, exchange_receive(t->c, slot->memory, slot->length, slot->stream->partner, tag, &t->requests[2 * index]));
    if (!t->lost)
        remember(t, exchange_receive(t->c, &slot->record, sizeof slot->record, slot->stream->partner, tag + 1,
                                     &t->requests[2 * index + 1]));
}

// Ends a stream: cancels the receives posted for pieces beyond its end.
static void end_stream(struct transfer *t, struct stream *stream, int64_t last)
{
    stream->ended = 1;
    stream->last = last;
    t->open--;
    for (int i = 0; i < t->count; i++) {
        const struct slot *slot = &t->slots[i];
        if (slot->stream != stream || slot->number <= last)
            continue;
        for (int request = 2 * i; request < 2 * i + 2; request++)
            if (t->requests[request] != MPI_REQUEST_NULL)
                MPI_Cancel(&t->requests[request]);
    }
}

// Whether a received piece belongs to the file, or to this place of the array.
static int fits(const struct transfer *t, const struct slot *slot)
{
    const struct record *record = &slot->record;
    int64_t end = record->offset + record->length;
    if (record->serial != t->c->serial || slot->received != (record->hole ? 0 : record->length))
        return 0;
    if (t->what == KIND_ARRAY)
        return record->offset == slot->offset && record->length == slot->length;
    return record->offset >= 0 && record->length > 0 && record->length <= t->piece && end <= t->bytes &&
           record->offset % t->block == 0 && (end % t->block == 0 || end == t->bytes);
}

static void take_piece(struct transfer *t, int index)
{
    struct slot *slot = &t->slots[index];
    const struct record *record = &slot->record;
    int ends = t->what == KIND_FILE && record->length == NO_MORE && record->serial == t->c->serial;
    if (ends)
        end_stream(t, slot->stream, slot->number);
    if (record->trouble.code) {
        slot->trouble = record->trouble;
        if (record->trouble.code != STOPPED)
            fail(t, &slot->trouble, t->c->rank); // the sender has signed it
        slot_done(t, index);
    } else if (ends || t->trouble.code) {
        slot_done(t, index);
    } else if (!fits(t, slot)) {
        note(&slot->trouble, ISTHMUS_MPI_DAMAGED, "%" PRId64 " bytes came that belong nowhere", slot->received);
        fail_here(t, &slot->trouble);
        slot_done(t, index);
    } else {
        slot->offset = record->offset;
        slot->length = record->length;
        deal_arrived(t, index);
    }
}

static void has_been_written(struct transfer *t, int index)
{
    struct slot *slot = &t->slots[index];
    remember_piece(t, slot);
    keep_digests(t, slot->offset, slot->length, slot->record.digests);
    slot_done(t, index);
}

static void write_by_mpiio(struct transfer *t, int index)
{
    struct slot *slot = &t->slots[index];
    if (t->store.holes == HOLES_NEW && is_zero(slot->memory, slot->length)) {
        has_been_written(t, index);
        return;
    }
    int error = MPI_File_iwrite_at(t->store.file, store_base(&t->store) + slot->offset, slot->memory, (int)slot->length,
                                   MPI_BYTE, &t->requests[2 * t->count + index]);
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
        if (t->what == KIND_FILE)
            keep_digests(t, slot->offset, slot->length, slot->record.digests);
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
        // MPI-IO may report a full disk only by a short count.
        note(&slot->trouble, ISTHMUS_MPI_SPACE,
             "cannot write %.200s: %d of %" PRId64 " bytes were taken; free some space", t->store.path, count, slot->length);
    if (t->sends && !slot->trouble.code)
        pool_put(&t->pool, index);
    else if (t->sends)
        send_slot(t, index);
    else if (!slot->trouble.code)
        has_been_written(t, index);
    else {
        fail_here(t, &slot->trouble);
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
    if (--slot->pending > 0)
        return;
    // Beyond the end of its stream the receive was cancelled.
    if (t->sends || (t->what == KIND_FILE && slot->stream->ended && slot->number > slot->stream->last))
        slot_done(t, request / 2);
    else
        take_piece(t, request / 2);
}

// Whether a request is a message to or from the other side.
static int is_exchanged(const struct transfer *t, int request)
{
    return request < 2 * t->count || request == word_request(t);
}

// Handles the requests that have ended. Returns their number.
static int take_ended(struct transfer *t)
{
    int count = 0, all = requests_of(t);
    exchange_turn(t->c);
    int error = MPI_Testsome(all, t->requests, &count, t->ended, t->statuses);
    if (count == MPI_UNDEFINED)
        return 0;
    if (error != MPI_SUCCESS && error != MPI_ERR_IN_STATUS) {
        lose(t, error);
        return 1;
    }
    for (int i = 0; i < count; i++) {
        int request = t->ended[i], of = error == MPI_ERR_IN_STATUS ? t->statuses[i].MPI_ERROR : MPI_SUCCESS;
        if (of == MPI_SUCCESS && is_exchanged(t, request))
            of = t->c->exchange->error(t->c, &t->statuses[i]);
        int is_file = request >= 2 * t->count && request < 3 * t->count;
        // Once the other side is lost, no slot counts any more.
        if (is_file && !t->lost)
            on_file(t, request - 2 * t->count, &t->statuses[i], of);
        else if (is_file)
            continue;
        else if (of != MPI_SUCCESS)
            lose(t, of);
        else if (request == word_request(t))
            on_word(t);
        else if (request == local_request(t))
            on_local(t, t->statuses[i].MPI_SOURCE);
        else if (request == barrier_request(t))
            t->gathered = 1;
        else if (request == deal_request(t))
            on_deal(t, t->statuses[i].MPI_SOURCE);
        else if (!t->lost)
            on_message(t, request, &t->statuses[i]);
    }
    return count;
}

// Begins the next step with a free slot. Returns whether there was one.
static int begin(struct transfer *t)
{
    if (t->lost || !t->unused_count)
        return 0;
    int index = t->unused[t->unused_count - 1];
    struct slot *slot = &t->slots[index];
    t->unused_count--;
    if (t->what == KIND_ARRAY && next_of_array(t, slot)) {
        (t->sends ? begin_send : begin_receive)(t, index);
        return 1;
    }
    if (t->what == KIND_FILE && t->sends && deal_next(t, slot)) {
        use(t, slot, next_stream(t));
        begin_send(t, index);
        return 1;
    }
    if (t->what == KIND_FILE && t->sends && send_end(t, index))
        return 1;
    struct stream *stream = t->what == KIND_FILE && !t->sends ? next_stream(t) : NULL;
    if (stream) {
        use(t, slot, stream);
        slot->length = t->piece;
        begin_receive(t, index);
        return 1;
    }
    t->unused_count++;
    return 0;
}

void move_blocks(struct transfer *t)
{
    int64_t pause_ns = REST_NS;
    while (!t->over) {
        int busy = 0, index;
        deal_turn(t);
        while (begin(t))
            deal_turn(t);
        busy += take_ended(t);
        while ((index = pool_take(&t->pool)) >= 0) {
            on_job(t, index);
            busy++;
        }
        words_turn(t);
        // A rank that finds nothing looks less and less often, to leave the processors to others.
        pause_ns = busy ? REST_NS : longer_rest(pause_ns);
        if (!busy && !t->over)
            pool_rest(&t->pool, pause_ns);
    }
}
