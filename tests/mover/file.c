// One file between two jobs that isthmus_couple joins, for somebody else to break.
//   file PART AT PATH [BLOCK]
// Part 2 sends it in blocks of BLOCK bytes. Rank 0 tells how much of it had arrived at an earlier attempt.
#include "../mpi/check.h"

#include <isthmus-mpi.h>

int main(int argc, char **argv)
{
    start(&argc, &argv, "file");
    CHECK(argc > 3, "usage: file PART AT PATH [BLOCK]");
    int part = atoi(argv[1]);
    struct isthmus_mpi_options options = {.block = (int64_t)argument(argc, argv, 4, 0)};
    struct isthmus_mpi_report report;
    isthmus_mpi_coupling *coupling;
    int status = isthmus_couple(MPI_COMM_WORLD, argv[2], part, NULL, 60, &coupling);
    CHECK(status == ISTHMUS_MPI_SUCCESS, "status %d: %s", status, isthmus_mpi_last_error());
    status = part == 2 ? isthmus_mpi_send_file(coupling, argv[3], 0, -1, &options, &report)
                       : isthmus_mpi_receive_file(coupling, argv[3], -1, &options, &report);
    CHECK(status == ISTHMUS_MPI_SUCCESS, "status %d: %s", status, isthmus_mpi_last_error());
    isthmus_mpi_uncouple(coupling);
    return finish("%" PRId64 " bytes, of which %" PRId64 " were there", report.bytes, report.resumed);
}
