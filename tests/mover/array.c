// One array, once, between two jobs of any MPIs, and how long it took; or a file, from disk to disk.
//   array PART AT MEGABYTES          part 2 sends so many MB, in equal shares of its ranks
//   array PART AT file PATH          part 2 sends the file, part 1 receives it
#include "../mpi/check.h"

#include <isthmus-mpi.h>

static isthmus_mpi_coupling *coupling;

enum { STEP = 512 };

// Every so many bytes of the whole its place is written: at the sender, where a share holds it wholly.
static void mark(unsigned char *data, int64_t first, int64_t length, int writes)
{
    for (int64_t at = (first + STEP - 1) / STEP * STEP; writes && at + (int64_t)sizeof at <= first + length; at += STEP)
        memcpy(data + (at - first), &at, sizeof at);
}

static void check_marks(const unsigned char *data, int64_t first, int64_t length)
{
    static const unsigned char zero[sizeof(int64_t)];
    int64_t there = 0, none = 0, found;
    for (int64_t at = (first + STEP - 1) / STEP * STEP; at + (int64_t)sizeof at <= first + length; at += STEP) {
        memcpy(&found, data + (at - first), sizeof found);
        there += found == at;
        none += at > 0 && memcmp(&found, zero, sizeof zero) == 0;
        CHECK(found == at || found == 0, "byte %" PRId64 " has what belongs to byte %" PRId64, at, found);
    }
    // One may lie across the bound of two senders.
    CHECK(there > 0 && none <= isthmus_mpi_remote_ranks(coupling), "%" PRId64 " places are right, and %" PRId64 " empty", there, none);
}

int main(int argc, char **argv)
{
    start(&argc, &argv, "array");
    CHECK(argc >= 4, "usage: array PART AT MEGABYTES | array PART AT file PATH");
    int part = atoi(argv[1]), is_file = strcmp(argv[3], "file") == 0;
    struct isthmus_mpi_report report;
    double began = seconds();
    int status = isthmus_couple(MPI_COMM_WORLD, argv[2], part, NULL, 60, &coupling);
    CHECK(status == 0, "%s", isthmus_mpi_last_error());
    double coupled = seconds() - began;
    if (is_file) {
        CHECK(argc >= 5, "no path");
        status = part == 2 ? isthmus_mpi_send_file(coupling, argv[4], 0, -1, NULL, &report)
                           : isthmus_mpi_receive_file(coupling, argv[4], -1, NULL, &report);
    } else {
        int64_t all = (int64_t)atoi(argv[3]) * 1000000, first = all * world_rank / world_size;
        int64_t mine = all * (world_rank + 1) / world_size - first;
        unsigned char *data = allocate((size_t)mine);
        memset(data, 0, (size_t)mine);
        mark(data, first, mine, part == 2);
        MPI_Barrier(MPI_COMM_WORLD);
        if (world_rank == 0)
            printf("BEGIN\n"), fflush(stdout);
        status = part == 2 ? isthmus_mpi_send_array(coupling, data, mine, NULL, &report)
                           : isthmus_mpi_receive_array(coupling, data, mine, NULL, &report);
        if (status == 0 && part == 1)
            check_marks(data, first, mine);
    }
    if (status != 0) {
        // The job ends by itself, so that no launcher loses what it said.
        if (world_rank == 0)
            printf("status %d: %s\n", status, isthmus_mpi_last_error()), fflush(stdout);
        isthmus_mpi_uncouple(coupling);
        MPI_Finalize();
        return 3;
    }
    CHECK(isthmus_mpi_uncouple(coupling) == 0, "%s", isthmus_mpi_last_error());
    if (world_rank == 0)
        printf("RESULT {\"bytes\": %" PRId64 ", \"seconds\": %.6f, \"coupling_seconds\": %.3f}\n", report.bytes, report.seconds, coupled);
    return finish("part %d", part);
}
