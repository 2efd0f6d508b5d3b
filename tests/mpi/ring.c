// Shifts around a ring by Sendrecv and Sendrecv_replace, every byte verified.
//   ring [LARGEST=4M]
#include "check.h"

static uint64_t seed_of(int rank, size_t bytes)
{
    return mixed((uint64_t)rank, bytes);
}

static void shift(size_t bytes)
{
    int right = (world_rank + 1) % world_size, left = (world_rank + world_size - 1) % world_size;
    unsigned char *out = allocate(bytes), *in = allocate(bytes);
    MPI_Status status;
    fill(out, bytes, seed_of(world_rank, bytes));
    MPI_Sendrecv(out, (int)bytes, MPI_BYTE, right, 1, in, (int)bytes, MPI_BYTE, left, 1, MPI_COMM_WORLD, &status);
    expect_status(&status, left, 1, (int)bytes, "Sendrecv");
    verify(in, bytes, seed_of(left, bytes), "Sendrecv");
    // Back to where it came from.
    MPI_Sendrecv_replace(in, (int)bytes, MPI_BYTE, left, 2, right, 2, MPI_COMM_WORLD, &status);
    expect_status(&status, right, 2, (int)bytes, "Sendrecv_replace");
    verify(in, bytes, seed_of(world_rank, bytes), "Sendrecv_replace");
    free(out);
    free(in);
}

int main(int argc, char **argv)
{
    start(&argc, &argv, "ring");
    size_t largest = argument(argc, argv, 1, 4 << 20);
    shift(0);
    for (size_t bytes = 1; bytes <= largest; bytes *= 4)
        shift(bytes);
    return finish("up to %zu bytes, %d ranks", largest, world_size);
}
