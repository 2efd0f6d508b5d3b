// Collectives over sizes, every value verified.
//   collectives [LARGEST=4M] (bytes a rank contributes)
#include "check.h"

static int64_t value(int rank, size_t i)
{
    return (int64_t)(mixed((uint64_t)rank, i) >> 24);
}

static void allreduce(size_t count)
{
    int64_t *out = allocate(count * 8), *in = allocate(count * 8);
    for (size_t i = 0; i < count; i++)
        out[i] = value(world_rank, i);
    MPI_Allreduce(out, in, (int)count, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    for (size_t i = 0; i < count; i++) {
        int64_t expected = 0;
        for (int rank = 0; rank < world_size; rank++)
            expected += value(rank, i);
        CHECK(in[i] == expected, "Allreduce: element %zu of %zu", i, count);
    }
    free(out);
    free(in);
}

static void alltoall(size_t bytes)
{
    size_t ranks = (size_t)world_size, me = (size_t)world_rank;
    unsigned char *out = allocate(bytes * ranks), *in = allocate(bytes * ranks);
    for (size_t to = 0; to < ranks; to++)
        fill(out + to * bytes, bytes, mixed(me, to));
    MPI_Alltoall(out, (int)bytes, MPI_BYTE, in, (int)bytes, MPI_BYTE, MPI_COMM_WORLD);
    for (size_t from = 0; from < ranks; from++)
        verify(in + from * bytes, bytes, mixed(from, me), "Alltoall");
    free(out);
    free(in);
}

static void alltoallv(size_t bytes)
{
    // Rank r sends rank s bytes/(1 + (r + s) % 3).
    int *counts = allocate((size_t)world_size * sizeof(int)), *offsets = allocate((size_t)world_size * sizeof(int));
    int total = 0;
    for (int peer = 0; peer < world_size; peer++) {
        counts[peer] = (int)(bytes / (size_t)(1 + (world_rank + peer) % 3));
        offsets[peer] = total;
        total += counts[peer];
    }
    unsigned char *out = allocate((size_t)total), *in = allocate((size_t)total);
    for (int to = 0; to < world_size; to++)
        fill(out + offsets[to], (size_t)counts[to], mixed((uint64_t)world_rank + 500, (uint64_t)to));
    MPI_Alltoallv(out, counts, offsets, MPI_BYTE, in, counts, offsets, MPI_BYTE, MPI_COMM_WORLD);
    for (int from = 0; from < world_size; from++)
        verify(in + offsets[from], (size_t)counts[from], mixed((uint64_t)from + 500, (uint64_t)world_rank), "Alltoallv");
    free(out);
    free(in);
    free(counts);
    free(offsets);
}

static void broadcast(size_t bytes)
{
    unsigned char *data = allocate(bytes);
    for (int root = 0; root < world_size; root++) {
        fill(data, bytes, mixed(world_rank == root ? (uint64_t)root + 7 : 99999, bytes));
        MPI_Bcast(data, (int)bytes, MPI_BYTE, root, MPI_COMM_WORLD);
        verify(data, bytes, mixed((uint64_t)root + 7, bytes), "Bcast");
    }
    free(data);
}

static void gather_scatter(size_t bytes)
{
    size_t ranks = (size_t)world_size;
    unsigned char *mine = allocate(bytes), *all = allocate(bytes * ranks);
    int root = world_size - 1;
    fill(mine, bytes, (uint64_t)world_rank + 31);
    MPI_Gather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, root, MPI_COMM_WORLD);
    if (world_rank == root)
        for (size_t from = 0; from < ranks; from++)
            verify(all + from * bytes, bytes, from + 31, "Gather");
    memset(mine, 0, bytes);
    MPI_Scatter(all, (int)bytes, MPI_BYTE, mine, (int)bytes, MPI_BYTE, root, MPI_COMM_WORLD);
    verify(mine, bytes, (uint64_t)world_rank + 31, "Scatter");
    memset(all, 0, bytes * ranks);
    MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, MPI_COMM_WORLD);
    for (size_t from = 0; from < ranks; from++)
        verify(all + from * bytes, bytes, from + 31, "Allgather");
    free(mine);
    free(all);
}

// Nobody leaves a barrier before the last has come. All ranks run on one
// kernel here, even those of two sites, so their clocks agree.
static void barrier(int round)
{
    double arrived, left, last_arrival, first_exit;
    if (world_rank == round % world_size)
        sleep_ms(30);
    arrived = seconds();
    MPI_Barrier(MPI_COMM_WORLD);
    left = seconds();
    MPI_Allreduce(&arrived, &last_arrival, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    MPI_Allreduce(&left, &first_exit, 1, MPI_DOUBLE, MPI_MIN, MPI_COMM_WORLD);
    CHECK(first_exit >= last_arrival, "somebody left the barrier %.6f s before the last one came",
          last_arrival - first_exit);
}

static void nonblocking(size_t bytes)
{
    // Three at once, on communicators of their own, completed out of order.
    MPI_Comm comms[3];
    MPI_Request requests[3];
    unsigned char *data[3];
    for (int i = 0; i < 3; i++) {
        MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
        data[i] = allocate(bytes);
        int root = i % world_size;
        fill(data[i], bytes, world_rank == root ? (uint64_t)i + 70 : 88888);
    }
    for (int i = 0; i < 3; i++)
        MPI_Ibcast(data[i], (int)bytes, MPI_BYTE, i % world_size, comms[i], &requests[i]);
    for (int i = 2; i >= 0; i--) {
        MPI_Wait(&requests[i], MPI_STATUS_IGNORE);
        verify(data[i], bytes, (uint64_t)i + 70, "Ibcast");
        free(data[i]);
        MPI_Comm_free(&comms[i]);
    }
}

int main(int argc, char **argv)
{
    start(&argc, &argv, "collectives");
    size_t largest = argument(argc, argv, 1, 4 << 20);
    int sizes = 0;
    for (size_t bytes = 8; bytes <= largest; bytes *= 8, sizes++) {
        allreduce(bytes / 8);
        alltoall(bytes);
        alltoallv(bytes + 3);
        broadcast(bytes - 1);
        gather_scatter(bytes + 1);
        nonblocking(bytes);
    }
    for (int round = 0; round < 5; round++)
        barrier(round);
    return finish("%d sizes up to %zu bytes a rank, %d ranks", sizes, largest, world_size);
}
