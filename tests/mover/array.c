// One array, once, between two jobs of any MPIs, and how long it took; or a file, from disk to disk.
//   array PART AT MEGABYTES          part 2 sends so many MB, in equal shares of its ranks
//   array PART AT file PATH          part 2 sends the file, part 1 receives it
#include "../mpi/check.h"

#include <isthmus-mpi.h>

int main(int argc, char **argv)
{
    start(&argc, &argv, "array");
    CHECK(argc >= 4, "usage: array PART AT MEGABYTES | array PART AT file PATH");
    int part = atoi(argv[1]), is_file = strcmp(argv[3], "file") == 0;
    isthmus_mpi_coupling *coupling;
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
        int64_t all = (int64_t)atoi(argv[3]) * 1000000, mine = all * (world_rank + 1) / world_size - all * world_rank / world_size;
        unsigned char *data = allocate((size_t)mine);
        memset(data, 1 + world_rank, (size_t)mine);
        MPI_Barrier(MPI_COMM_WORLD);
        if (world_rank == 0)
            printf("BEGIN\n"), fflush(stdout);
        status = part == 2 ? isthmus_mpi_send_array(coupling, data, mine, NULL, &report)
                           : isthmus_mpi_receive_array(coupling, data, mine, NULL, &report);
    }
    CHECK(status == 0, "status %d: %s", status, isthmus_mpi_last_error());
    CHECK(isthmus_mpi_uncouple(coupling) == 0, "%s", isthmus_mpi_last_error());
    if (world_rank == 0)
        printf("RESULT {\"bytes\": %" PRId64 ", \"seconds\": %.6f, \"coupling_seconds\": %.3f}\n", report.bytes, report.seconds, coupled);
    return finish("part %d", part);
}
