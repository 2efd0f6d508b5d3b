// Messages that are sent one after the other from one buffer, which changes after each. The ranks are far
// apart, and the sender must not wait a round trip for each message.
//   sends [MESSAGES=300] [BYTES=64k]
#include "check.h"

enum { ROUNDS = 5, DATA = 1, ECHO = 2 };

// The least round trip of an empty message. Seconds.
static double round_trip(void)
{
    double least = 1e9;
    for (int i = 0; i < ROUNDS; i++) {
        double began = seconds();
        if (world_rank == 0) {
            MPI_Send(NULL, 0, MPI_BYTE, 1, ECHO, MPI_COMM_WORLD);
            MPI_Recv(NULL, 0, MPI_BYTE, 1, ECHO, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(NULL, 0, MPI_BYTE, 0, ECHO, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(NULL, 0, MPI_BYTE, 0, ECHO, MPI_COMM_WORLD);
        }
        double took = seconds() - began;
        least = took < least ? took : least;
    }
    return least;
}

int main(int argc, char **argv)
{
    start(&argc, &argv, "sends");
    CHECK(world_size == 2, "needs two ranks");
    int messages = (int)argument(argc, argv, 1, 300);
    size_t most = argument(argc, argv, 2, 64 << 10);
    unsigned char *buffer = allocate(most);
    double rtt = round_trip(), began = seconds();
    for (int i = 0; i < messages; i++) {
        size_t bytes = most - mixed(7, (uint64_t)i) % (most / 2);
        if (world_rank == 0) {
            fill(buffer, bytes, (uint64_t)i);
            MPI_Send(buffer, (int)bytes, MPI_BYTE, 1, DATA, MPI_COMM_WORLD);
        } else {
            MPI_Recv(buffer, (int)bytes, MPI_BYTE, 0, DATA, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            verify(buffer, bytes, (uint64_t)i, "sends");
        }
    }
    double took = seconds() - began, rtts = took / rtt;
    CHECK(rtts < messages / 2, "%d messages took %.0f round trips", messages, rtts);
    return finish("%d messages in %.3f s, %.1f round trips", messages, took, rtts);
}
