// Continues a file that an earlier call did not finish. The receivers find the blocks that are there, and both sides
// leave them out.
#include "internal.h"
#include "isthmus.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Identifies the source: one version of one range of one file.
void source_of(const struct transfer *t, uint8_t *source)
{
    const struct stat *s = &t->store.first;
    int64_t about[] = {s->st_size, t->store.base, t->bytes, s->st_mtim.tv_sec, s->st_mtim.tv_nsec, s->st_ctim.tv_sec,
                       s->st_ctim.tv_nsec};
    isthmus_digest_block(about, sizeof about, 0, sizeof about, 1 << 20, source);
}

// Both sides compute it from the same two words.
int64_t resumed_block(const struct word *offer, const struct word *ready)
{
    if (offer->what != KIND_FILE || !ready->resumable || ready->bytes != offer->bytes ||
        memcmp(offer->source, ready->source, DIGEST_LEN) != 0)
        return 0;
    // If the sender's caller did not choose the block length, the earlier one is used.
    return ready->block == offer->block || !offer->fixed ? ready->block : 0;
}

int64_t blocks_in(const struct transfer *t, int64_t bytes)
{
    return (bytes + t->block - 1) / t->block;
}

int is_had(const struct transfer *t, int64_t offset)
{
    int64_t index = offset / t->block;
    return t->have && (t->have[index / 8] >> index % 8 & 1);
}

// Finds the blocks of this rank's share that have the digest in the journal.
static void look(struct transfer *t)
{
    int rank = t->c->rank, fd = open(t->store.temporary, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    unsigned char *memory = malloc((size_t)t->block);
    uint8_t said[DIGEST_LEN], digests[MAX_BLOCKS][DIGEST_LEN];
    for (int64_t at = t->mine[rank]; fd >= 0 && memory && at < t->mine[rank + 1]; at += t->block) {
        struct slot slot = {.memory = (char *)memory, .offset = at, .length = t->mine[rank + 1] - at};
        int64_t index = at / t->block, got = 0;
        if (slot.length > t->block)
            slot.length = t->block;
        if (!journal_has(&t->store, index, said))
            continue;
        for (ssize_t now = 1; now > 0 && got < slot.length; got += now > 0 ? now : 0)
            now = pread(fd, memory + got, (size_t)(slot.length - got), at + got);
        digest_of(t, &slot, digests);
        if (got != slot.length || memcmp(said, digests[0], DIGEST_LEN) != 0)
            continue;
        t->have[index / 8] |= (unsigned char)(1 << index % 8);
        keep_digests(t, at, slot.length, digests);
    }
    free(memory);
    if (fd >= 0)
        close(fd);
}

int agree_on_had(struct transfer *t)
{
    struct isthmus_mpi_coupling *c = t->c;
    int64_t bytes = (blocks_in(t, t->bytes) + 7) / 8;
    int error = MPI_SUCCESS;
    MPI_Request request;
    t->have = calloc((size_t)bytes + 1, 1);
    if (!t->have)
        MPI_Abort(c->local, ISTHMUS_MPI_MEMORY); // a bit for each block: what could follow?
    if (!t->sends) {
        look(t);
        MPI_Iallreduce(MPI_IN_PLACE, t->have, (int)bytes, MPI_BYTE, MPI_BOR, c->local, &request);
        await(&request);
    }
    if (c->rank == 0)
        error = t->sends ? exchange_hear(c, t->have, bytes, 0, TAG_HAD) : exchange_say(c, t->have, bytes, 0, TAG_HAD);
    bcast(t, &error, sizeof error, 0);
    if (error != MPI_SUCCESS) {
        note_lost(c, error, &t->trouble);
        c->lost = 1;
        t->have = NULL; // the MPI's
        return 0;
    }
    bcast(t, t->have, bytes, 0);
    for (int64_t at = 0; at < t->bytes; at += t->block)
        if (is_had(t, at))
            t->resumed += t->bytes - at < t->block ? t->bytes - at : t->block;
    return 1;
}
