// What pieces of a file are, by what file systems and paths were seen to say. Needs no MPI to run.
#define NAME "layout"
#include "alone.h"

#include "../../mpi/plan.c"

// The stripe, or else st_blksize.
struct seen {
    const char *system;
    int64_t block_size, piece, block;
};

static const struct seen seen[] = {
    {"ext4, xfs, tmpfs", 4096, MIB, 256 * KIB},
    {"NFS 4", MIB, MIB, 256 * KIB},
    {"BeeGFS", 512 * KIB, MIB, 256 * KIB},
    {"Lustre, stripes of 4 MiB", 4 * MIB, 4 * MIB, 256 * KIB},
    {"GPFS", 16 * MIB, 16 * MIB, 256 * KIB},
};

int main(void)
{
    struct isthmus_mpi_coupling near = {.ranks = 4, .remote = 4, .rtt_s = 0.0001}, far = {.ranks = 4, .remote = 4, .rtt_s = 0.366, .rate = 1.2e9};
    for (size_t i = 0; i < sizeof seen / sizeof *seen; i++) {
        int64_t bytes = (int64_t)10 << 30, piece = suggested_piece(&near, bytes, seen[i].block_size, 128 * MIB);
        CHECK(piece == seen[i].piece, "%s: pieces of %" PRId64, seen[i].system, piece);
        CHECK(block_of(piece, bytes) == seen[i].block, "%s: blocks of %" PRId64, seen[i].system, block_of(piece, bytes));
        // However little memory there is, a few pieces fit into it.
        CHECK(suggested_piece(&near, bytes, seen[i].block_size, 8 * MIB) <= 2 * MIB, "%s: too long", seen[i].system);
    }
    CHECK(suggested_piece(&far, (int64_t)10 << 30, 4096, 128 * MIB) == 8 * MIB, "a long path");
    CHECK(suggested_piece(&near, 100000, 4096, 128 * MIB) == 64 * KIB, "a short file");
    CHECK(block_of(10 * MIB, 100000000) == 256 * KIB && block_of(999999, 100000000) == 999999, "odd pieces");
    CHECK(block_of(65 * 4096, 100000000) == 65 * 4096 && block_of(63 * 4096, 1 << 30) == 4096, "many blocks");
    CHECK(piece_in_stripe(16 * MIB, MIB, 100 * MIB) == 16 * MIB && piece_in_stripe(16 * MIB, MIB, (int64_t)1 << 40) == MIB, "long blocks");
    CHECK(piece_in_stripe(4 * MIB, 3 * MIB, 100 * MIB) == 4 * MIB && piece_in_stripe(16 * MIB, 64 * KIB, MIB) == 16 * MIB, "short stripes");
    // Shares begin where pieces do, and are all of it.
    int64_t bounds[8];
    bounds_of_blocks(bounds, 7, 100 * MIB + 1, 4 * MIB);
    CHECK(bounds[0] == 0 && bounds[7] == 100 * MIB + 1, "shares that are not all");
    for (int i = 1; i < 7; i++)
        CHECK(bounds[i] % (4 * MIB) == 0 && bounds[i] >= bounds[i - 1], "share %d begins at %" PRId64, i, bounds[i]);
    printf("OK layout: pieces as recorded\n");
    return 0;
}
