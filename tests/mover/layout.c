// What pieces of a file are, by what file systems and paths were seen to say. Needs no MPI to run.
#define NAME "layout"
#include "alone.h"

#include "../../mpi/plan.c"

// st_blksize, and the stripe that the attribute says, if any.
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

// As getxattr tells them, little-endian: lov_user_md_v1 with two stripes of 1 MiB, and lov_user_md_v3 with
// eight of 4 MiB in a pool.
static const uint8_t two_stripes[56] = {0xd0, 0x0b, 0xd1, 0x0b, 1, 0, 0, 0, [24] = 0, 0, 0x10, 0, 2};
static const uint8_t eight_stripes[72] = {0xd0, 0x0b, 0xd3, 0x0b, 1, 0, 0, 0, [24] = 0, 0, 0x40, 0, 8};

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
    CHECK(stripe_of(two_stripes, sizeof two_stripes) == MIB, "version 1");
    CHECK(stripe_of(eight_stripes, sizeof eight_stripes) == 4 * MIB, "version 3");
    uint8_t other[72] = {0xd0, 0x0b, 0xd6, 0x0b}, one[56];
    memcpy(one, two_stripes, sizeof one);
    one[28] = 1;
    CHECK(stripe_of(other, sizeof other) == 0 && stripe_of(two_stripes, 31) == 0, "no stripes");
    CHECK(stripe_of(one, sizeof one) == 0, "one target");
    // Shares begin where pieces do, and are all of it.
    int64_t bounds[8];
    bounds_of_blocks(bounds, 7, 100 * MIB + 1, 4 * MIB);
    CHECK(bounds[0] == 0 && bounds[7] == 100 * MIB + 1, "shares that are not all");
    for (int i = 1; i < 7; i++)
        CHECK(bounds[i] % (4 * MIB) == 0 && bounds[i] >= bounds[i - 1], "share %d begins at %" PRId64, i, bounds[i]);
    printf("OK layout: pieces and stripes as recorded\n");
    return 0;
}
