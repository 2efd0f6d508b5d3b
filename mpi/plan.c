// Plans which rank sends what to which. Both sides compute the same plan without a message.
#include "internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { HUGE_PAGE = 2 << 20 };
// Bytes a second.
#define USUAL_RATE 1.25e9

// Shares whole blocks evenly, in the order of ranks. So few ranks have more than one partner, and with as many ranks
// on both sides, rank i has rank i.
void bounds_of_blocks(int64_t *bounds, int ranks, int64_t bytes, int64_t block)
{
    int64_t all = bytes / block + (bytes % block != 0);
    for (int i = 0; i <= ranks; i++) {
        // This is all * i / ranks without an overflow.
        int64_t first = all / ranks * i + all % ranks * i / ranks;
        bounds[i] = first * block < bytes ? first * block : bytes;
    }
}

int streams_between(const int64_t *mine, int rank, const int64_t *theirs, int remote, struct stream *streams)
{
    int count = 0;
    for (int i = 0; i < remote; i++) {
        int64_t from = mine[rank] > theirs[i] ? mine[rank] : theirs[i];
        int64_t to = mine[rank + 1] < theirs[i + 1] ? mine[rank + 1] : theirs[i + 1];
        if (from < to)
            streams[count++] = (struct stream){.partner = i, .next = from, .end = to};
    }
    return count;
}

int partners_of(const struct isthmus_mpi_coupling *c, struct stream *streams)
{
    int64_t all = (int64_t)c->ranks * c->remote;
    int64_t *mine = calloc((size_t)c->ranks + 1, sizeof *mine), *theirs = calloc((size_t)c->remote + 1, sizeof *theirs);
    if (!mine || !theirs)
        MPI_Abort(c->local, ISTHMUS_MPI_MEMORY); // some bytes for each rank: what could follow?
    bounds_of_blocks(mine, c->ranks, all, 1);
    bounds_of_blocks(theirs, c->remote, all, 1);
    int count = streams_between(mine, c->rank, theirs, c->remote, streams);
    free(mine);
    free(theirs);
    return count;
}

// Blocks are small, so that the last pieces can be small. But rank 0 must have memory for their digests, and a record
// has room for MAX_BLOCKS. A piece that is no multiple of a page is one block.
int64_t block_of(int64_t piece, int64_t bytes)
{
    int64_t block = piece & -piece;
    if (block < 4096)
        return piece;
    while (block > 256 * KIB && 2 * (piece / block) <= MAX_BLOCKS && bytes / block < 64 * KIB)
        block /= 2;
    return piece / block <= MAX_BLOCKS ? block : piece;
}

// A piece is long enough for the path (a sixteenth of the data under way, shared by the ranks) and for the storage (the
// file system's good size, such as a stripe). It is short enough that every rank has a few, because the first read and
// the last write overlap with nothing.
int64_t suggested_piece(const struct isthmus_mpi_coupling *c, int64_t bytes, int64_t storage, int64_t memory)
{
    int64_t ranks = c->ranks > c->remote ? c->ranks : c->remote;
    int64_t path = (int64_t)(c->rate * c->rtt_s / (double)ranks / 16), least = 64 * KIB, block = MIB;
    while (block < path && block < 16 * MIB)
        block *= 2;
    while (block < storage && block < 64 * MIB)
        block *= 2;
    while (least < storage && least < 64 * MIB)
        least *= 2;
    while (block > least && bytes / ranks < 4 * block)
        block /= 2;
    while (block > 64 * KIB && block > memory / 4)
        block /= 2;
    return block;
}

// Pieces can be read by storage target if blocks divide a stripe. Long blocks of a long file may not, so the piece
// becomes shorter. Very short stripes would need too many digests.
int64_t piece_in_stripe(int64_t piece, int64_t stripe, int64_t bytes)
{
    int64_t part = stripe & -stripe;
    return stripe % block_of(piece, bytes) && part >= 256 * KIB ? part : piece;
}

// The bytes that a rank has under way: twice its share of the bandwidth-delay product, at the rate of the last transfer
// or at 10 Gb/s, whichever is more. A larger window would only touch new memory.
int64_t window_of(const struct isthmus_mpi_coupling *c, int64_t piece, int64_t memory)
{
    double ranks = c->ranks < c->remote ? c->ranks : c->remote, rate = c->rate > USUAL_RATE ? c->rate : USUAL_RATE;
    int64_t window = (int64_t)(2 * rate * c->rtt_s / ranks);
    if (window < 16 * MIB)
        window = 16 * MIB;
    if (window < 4 * piece)
        window = 4 * piece;
    return window < memory ? window : memory;
}

void drop_memory(struct isthmus_mpi_coupling *c)
{
    free(c->memory);
    c->memory = NULL;
    c->memory_len = 0;
}

int64_t get_memory(struct isthmus_mpi_coupling *c, int64_t slots, int64_t stride)
{
    for (; slots > 0; slots /= 2) {
        size_t wanted = (size_t)(slots * stride);
        void *memory = NULL;
        if (c->memory_len >= (int64_t)wanted)
            return slots;
        drop_memory(c);
        if (posix_memalign(&memory, HUGE_PAGE, wanted) != 0)
            continue;
        // The first touch of a page costs more than a read into it. Huge pages mean fewer first touches.
        madvise(memory, wanted, MADV_HUGEPAGE);
        c->memory = memory;
        c->memory_len = (int64_t)wanted;
        return slots;
    }
    return 0;
}

void warm_memory(struct isthmus_mpi_coupling *c)
{
    if (get_memory(c, 16, MIB) < 2)
        MPI_Abort(c->local, ISTHMUS_MPI_MEMORY); // not even two of them: what could follow?
    memset(c->memory, 0, (size_t)c->memory_len);
}
