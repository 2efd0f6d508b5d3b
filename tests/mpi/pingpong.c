// Ping-pong of 0 B to 64 MB, every byte verified at both ends.
//   pingpong [LARGEST=64M] [ROUNDS=3]
// Rank i of the lower half plays with rank i of the upper half, so that with
// the ranks of two sites in order every pair crosses the link.
#include "check.h"

static void play(int peer, int first, size_t bytes, int rounds, unsigned char *out, unsigned char *in)
{
    for (int round = 0; round < rounds; round++) {
        uint64_t ping = mixed(bytes, (uint64_t)round * 2), pong = mixed(bytes, (uint64_t)round * 2 + 1);
        MPI_Status status;
        fill(out, bytes, first ? ping : pong);
        memset(in, 0xa5, bytes + 8);
        if (first)
            MPI_Send(out, (int)bytes, MPI_BYTE, peer, round, MPI_COMM_WORLD);
        MPI_Recv(in, (int)bytes + 8, MPI_BYTE, peer, round, MPI_COMM_WORLD, &status);
        if (!first)
            MPI_Send(out, (int)bytes, MPI_BYTE, peer, round, MPI_COMM_WORLD);
        expect_status(&status, peer, round, (int)bytes, "pingpong");
        verify(in, bytes, first ? pong : ping, "pingpong");
        for (int i = 0; i < 8; i++)
            CHECK(in[bytes + (size_t)i] == 0xa5, "written past the end of %zu bytes", bytes);
    }
}

int main(int argc, char **argv)
{
    start(&argc, &argv, "pingpong");
    size_t largest = argument(argc, argv, 1, 64 << 20);
    int rounds = (int)argument(argc, argv, 2, 3);
    CHECK(world_size % 2 == 0, "an even number of ranks is needed");
    int half = world_size / 2, first = world_rank < half, sizes = 0;
    int peer = first ? world_rank + half : world_rank - half;
    unsigned char *out = allocate(largest + 8), *in = allocate(largest + 8);

    play(peer, first, 0, rounds, out, in);
    for (size_t power = 1; power <= largest; power *= 2) {
        // Beside each power of two its neighbours: where thresholds lie.
        const size_t near[] = {power - 1, power, power + 1};
        for (int i = power <= 2 ? 1 : 0; i < 3; i++) {
            if (near[i] > largest || (power > (1 << 20) && i != 1))
                continue;
            play(peer, first, near[i], power > (1 << 20) ? 1 : rounds, out, in);
            sizes++;
        }
    }
    free(out);
    free(in);
    return finish("%d sizes up to %zu bytes, %d ranks", sizes + 1, largest, world_size);
}
