// Ends in a hurry: some ranks send their last messages and finalize at once,
// while others come late to receive them, and to finalize.
//   goodbye [SEED=1]
#include "check.h"

enum { SIZES = 4 };
static const int sizes[SIZES] = {1, 3000, 16000, 60000};

int main(int argc, char **argv)
{
    start(&argc, &argv, "goodbye");
    uint64_t seed = argument(argc, argv, 1, 1);
    unsigned char *out[SIZES], *in = allocate(sizes[SIZES - 1]);
    MPI_Request requests[SIZES];
    int right = (world_rank + 1) % world_size, left = (world_rank + world_size - 1) % world_size;

    if (world_rank == 0)
        printf("OK goodbye: seed %" PRIu64 ", %d ranks\n", seed, world_size);
    fflush(stdout);
    sleep_ms((long)(mixed(seed, (uint64_t)world_rank) % 60));
    for (int i = 0; i < SIZES; i++) {
        out[i] = allocate((size_t)sizes[i]);
        fill(out[i], (size_t)sizes[i], mixed((uint64_t)world_rank, (uint64_t)i));
        MPI_Isend(out[i], sizes[i], MPI_BYTE, right, i, MPI_COMM_WORLD, &requests[i]);
    }
    if (mixed(seed, (uint64_t)world_rank + 100) % 2)
        sleep_ms(100);
    for (int i = 0; i < SIZES; i++) {
        MPI_Recv(in, sizes[i], MPI_BYTE, left, i, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        verify(in, (size_t)sizes[i], mixed((uint64_t)left, (uint64_t)i), "goodbye");
    }
    MPI_Waitall(SIZES, requests, MPI_STATUSES_IGNORE);
    MPI_Finalize();
    return 0;
}
