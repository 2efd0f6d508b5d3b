// Does a transfer go on while both applications compute without MPI calls?
//   overlap [BYTES=200M] [COMPUTE_MS=1000]
// The data is verified; the share that moved meanwhile is reported only. It is
// seen by the receiver, who samples its buffer between computations.
#include "check.h"

static volatile uint64_t sink;

static void compute(double until)
{
    uint64_t x = 1;
    while (seconds() < until)
        for (int i = 0; i < 10000; i++)
            x = mixed(x, (uint64_t)i);
    sink = x;
}

// How much of the buffer is not in its first state any more, by samples.
static double arrived(const unsigned char *in, size_t bytes)
{
    size_t step = bytes / 1000 + 1, seen = 0, samples = 0;
    for (size_t at = 0; at + 16 <= bytes; at += step, samples++)
        for (size_t i = at; i < at + 16; i++)
            if (*(volatile const unsigned char *)&in[i] != 0) {
                seen++;
                break;
            }
    return samples ? (double)seen / (double)samples : 0;
}

int main(int argc, char **argv)
{
    start(&argc, &argv, "overlap");
    size_t bytes = argument(argc, argv, 1, 200 << 20);
    double compute_s = (double)argument(argc, argv, 2, 1000) / 1000, moved = 0;
    CHECK(world_size >= 2 && bytes <= INT32_MAX, "two ranks and less than 2 GB are needed");
    int sends = world_rank == 0, peer = world_size - 1;
    double wait_s = 0;
    MPI_Request request = MPI_REQUEST_NULL;
    unsigned char *data = NULL;

    if (world_rank == 0 || world_rank == peer) {
        data = allocate(bytes);
        if (sends)
            fill(data, bytes, 42);
        else
            memset(data, 0, bytes);
    }
    if (world_rank == peer)
        MPI_Irecv(data, (int)bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD, &request);
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = seconds();
    if (sends)
        MPI_Isend(data, (int)bytes, MPI_BYTE, peer, 1, MPI_COMM_WORLD, &request);
    if (data) {
        compute(begin + compute_s);
        if (world_rank == peer)
            moved = arrived(data, bytes);
        double waits = seconds();
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        wait_s = seconds() - waits;
    }
    if (world_rank == peer) {
        verify(data, bytes, 42, "overlap");
        MPI_Send((double[]){moved, wait_s}, 2, MPI_DOUBLE, 0, 2, MPI_COMM_WORLD);
    }
    double report[2] = {0};
    if (sends)
        MPI_Recv(report, 2, MPI_DOUBLE, peer, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    free(data);
    return finish("%.0f MB, %.0f %% had arrived after %.1f s of computing; the receiver then waited %.2f s",
                  (double)bytes / 1e6, report[0] * 100, compute_s, report[1]);
}
