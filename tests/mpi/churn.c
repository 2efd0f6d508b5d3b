// A long all-to-all with verification, for somebody else to break.
//   churn [SECONDS=5] [BYTES=256k] [PROGRESS_FILE]
// Every rank sends every other BYTES each round, non-blocking, and checks all
// that came. Rank 0 writes "rounds N" to PROGRESS_FILE now and then.
#include "check.h"

static void report(const char *file, int rounds)
{
    FILE *out = file ? fopen(file, "w") : NULL;
    if (out) {
        fprintf(out, "rounds %d\n", rounds);
        fclose(out);
    }
}

static void one_round(size_t bytes, int round, unsigned char *out, unsigned char *in, MPI_Request *requests)
{
    int count = 0;
    // Sizes differ by round and pair, so that all of the protocols are at work.
    for (int peer = 0; peer < world_size; peer++) {
        size_t piece = bytes >> ((round + world_rank + peer) % 5 * 3);
        size_t at = bytes * (size_t)peer;
        if (peer == world_rank)
            continue;
        MPI_Irecv(in + at, (int)piece, MPI_BYTE, peer, round % 1000, MPI_COMM_WORLD, &requests[count++]);
        fill(out + at, piece, mixed((uint64_t)(world_rank * 1000 + peer), (uint64_t)round));
        MPI_Isend(out + at, (int)piece, MPI_BYTE, peer, round % 1000, MPI_COMM_WORLD, &requests[count++]);
    }
    MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
    for (int peer = 0; peer < world_size; peer++) {
        size_t piece = bytes >> ((round + world_rank + peer) % 5 * 3);
        if (peer != world_rank)
            verify(in + bytes * (size_t)peer, piece, mixed((uint64_t)(peer * 1000 + world_rank), (uint64_t)round), "churn");
    }
}

int main(int argc, char **argv)
{
    start(&argc, &argv, "churn");
    double duration = (double)argument(argc, argv, 1, 5);
    size_t bytes = argument(argc, argv, 2, 256 << 10);
    const char *file = argc > 3 && world_rank == 0 ? argv[3] : NULL;
    size_t all = bytes * (size_t)world_size;
    unsigned char *out = allocate(all), *in = allocate(all);
    MPI_Request *requests = allocate(2 * (size_t)world_size * sizeof *requests);
    double begin = seconds();
    int rounds = 0, more = 1;

    while (more) {
        one_round(bytes, rounds++, out, in, requests);
        if (rounds % 8 == 0) {
            report(file, rounds);
            more = seconds() < begin + duration;
            MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
        }
    }
    long sum = rounds, checked;
    MPI_Allreduce(&sum, &checked, 1, MPI_LONG, MPI_MAX, MPI_COMM_WORLD);
    CHECK(checked == rounds, "ranks disagree on the number of rounds: %ld, %d", checked, rounds);
    free(requests);
    free(out);
    free(in);
    return finish("%d rounds in %.1f s, %d ranks", rounds, seconds() - begin, world_size);
}
