// Messages between two jobs of any MPIs that isthmus_couple joins.
//   messages PART AT [SECRET [PATIENCE]]   all kinds of messages between all ranks
//   messages PART AT SECRET PATIENCE lose  what a rank does whose partner is killed: part 2 is, or part 1
// A SECRET of "-" is none. All data is checked.
#include "../mpi/check.h"

#include <isthmus-mpi.h>

static isthmus_mpi_coupling *coupling;
static int remote, number;

// What rank `from` of a part sends to rank `to` of the other as its message `of`.
static uint64_t seed_of(int part, int from, int to, int of)
{
    return 1 + (uint64_t)part + 3 * (uint64_t)from + 1000 * (uint64_t)to + 1000000 * (uint64_t)of;
}

static void check_message(const unsigned char *got, size_t length, uint64_t seed)
{
    unsigned char *wanted = allocate(length);
    fill(wanted, length, seed);
    CHECK(memcmp(got, wanted, length) == 0, "case %d: a message of %zu bytes differs", number, length);
    free(wanted);
}

static void must(int status)
{
    CHECK(status == ISTHMUS_MPI_SUCCESS, "case %d: status %d, %s", number, status, isthmus_mpi_last_error());
}

static void must_fail(int status, int wanted, const char *words)
{
    CHECK(status == wanted && strstr(isthmus_mpi_last_error(), words), "case %d: status %d \"%s\", expected %d \"%s\"", number,
          status, isthmus_mpi_last_error(), wanted, words);
}

// Every rank to every rank there, both ways at once, by every length.
static void all_to_all(int part)
{
    static const size_t lengths[] = {0, 1, 777, 16384, 16385, 3000001};
    enum { LENGTHS = sizeof lengths / sizeof *lengths };
    size_t count = (size_t)remote * LENGTHS;
    isthmus_mpi_request **requests = allocate(2 * count * sizeof *requests);
    unsigned char **data = allocate(2 * count * sizeof *data);
    for (size_t i = 0; i < count; i++) {
        int there = (int)(i / LENGTHS), tag = (int)(i % LENGTHS);
        size_t length = lengths[tag];
        data[i] = allocate(length);
        data[count + i] = allocate(length);
        fill(data[i], length, seed_of(part, world_rank, there, tag));
        must(isthmus_mpi_isend(coupling, data[i], (int64_t)length, there, tag, &requests[i]));
        must(isthmus_mpi_ireceive(coupling, data[count + i], (int64_t)length, there, tag, &requests[count + i]));
    }
    for (size_t i = 0; i < count; i++) {
        int there = (int)(i / LENGTHS), tag = (int)(i % LENGTHS);
        int64_t got = -1;
        must(isthmus_mpi_wait(&requests[count + i], &got));
        CHECK(got == (int64_t)lengths[tag] && !requests[count + i], "%" PRId64 " bytes instead of %zu", got, lengths[tag]);
        check_message(data[count + i], lengths[tag], seed_of(3 - part, there, world_rank, tag));
    }
    for (size_t i = 0; i < count; i++) {
        must(isthmus_mpi_wait(&requests[i], NULL));
        free(data[i]);
        free(data[count + i]);
    }
    free(requests);
    free(data);
    number++;
}

// More than a receiver keeps, before it has any receive; of one tag in order, and the last tag first.
static void unexpected(int part)
{
    enum { MESSAGES = 580, LENGTH = 8000 };
    static unsigned char out[LENGTH], in[LENGTH];
    isthmus_mpi_request *requests[MESSAGES];
    int there = world_rank % remote, sends = part == 2 ? world_rank < remote : 0;
    // Ranks that have a partner of the same number.
    if (part == 1 && world_rank >= remote)
        return;
    for (int i = 0; sends && i < MESSAGES; i++)
        must(isthmus_mpi_isend(coupling, out, LENGTH, there, 9, &requests[i]));
    if (sends)
        must(isthmus_mpi_send(coupling, "last", 4, there, 10));
    for (int i = 0; sends && i < MESSAGES; i++)
        must(isthmus_mpi_wait(&requests[i], NULL));
    if (part == 1) {
        must(isthmus_mpi_receive(coupling, in, LENGTH, there, 10, NULL));
        CHECK(memcmp(in, "last", 4) == 0, "another message");
        for (int i = 0; i < MESSAGES; i++) {
            int64_t got;
            must(isthmus_mpi_receive(coupling, in, LENGTH, there, 9, &got));
            CHECK(got == LENGTH, "%" PRId64 " bytes", got);
        }
    }
    number++;
}

static void in_order(int part)
{
    enum { MESSAGES = 200 };
    int there = world_rank;
    if (there >= remote)
        return;
    for (int i = 0; i < MESSAGES; i++) {
        // Short and long ones in turn.
        size_t length = i % 3 == 2 ? 20000 : 8;
        unsigned char data[20000] = {(unsigned char)i};
        if (part == 2)
            must(isthmus_mpi_send(coupling, data, (int64_t)length, there, 4));
        else
            must(isthmus_mpi_receive(coupling, data, sizeof data, there, 4, NULL));
        CHECK(data[0] == (unsigned char)i, "message %d came where %d was due", data[0], i);
    }
    number++;
}

static void polled(int part)
{
    isthmus_mpi_request *request;
    int done = 0, there = world_rank;
    int64_t value = 41, got = 0;
    if (there >= remote)
        return;
    if (part == 2) {
        sleep_ms(20);
        must(isthmus_mpi_send(coupling, &value, sizeof value, there, 32767));
    } else {
        int64_t in = 0;
        int looks = 0;
        must(isthmus_mpi_ireceive(coupling, &in, sizeof in, there, 32767, &request));
        for (; !done; looks++)
            must(isthmus_mpi_test(&request, &done, &got));
        CHECK(in == 41 && got == sizeof in && !request && looks > 1, "%" PRId64 " after %d looks", in, looks);
    }
    number++;
}

static void wrong(int part)
{
    char data[100000] = "";
    isthmus_mpi_request *request;
    int64_t got = 0;
    must_fail(isthmus_mpi_send(coupling, data, 1, remote, 0), ISTHMUS_MPI_INVALID, "no rank");
    must_fail(isthmus_mpi_send(coupling, data, 1, -1, 0), ISTHMUS_MPI_INVALID, "no rank");
    must_fail(isthmus_mpi_send(coupling, data, 1, 0, 32768), ISTHMUS_MPI_INVALID, "tags are 0 to 32767");
    must_fail(isthmus_mpi_send(coupling, NULL, 1, 0, 0), ISTHMUS_MPI_INVALID, "are no message");
    must_fail(isthmus_mpi_receive(coupling, data, -1, 0, 0, NULL), ISTHMUS_MPI_INVALID, "are no message");
    must_fail(isthmus_mpi_isend(NULL, data, 1, 0, 0, &request), ISTHMUS_MPI_INVALID, "no coupling");
    must_fail(isthmus_mpi_wait(&request, NULL), ISTHMUS_MPI_INVALID, "no request");
    if (world_rank >= remote)
        return;
    // Too long for its receive, a short one and a long one; the next arrives.
    for (int64_t length = 100; length <= (int64_t)sizeof data; length *= 1000) {
        if (part == 2) {
            must(isthmus_mpi_send(coupling, data, length, world_rank, 5));
            must(isthmus_mpi_send(coupling, "next", 4, world_rank, 5));
        } else {
            must_fail(isthmus_mpi_receive(coupling, data, 99, world_rank, 5, NULL), ISTHMUS_MPI_MISMATCH, "is longer than the 99");
            must(isthmus_mpi_receive(coupling, data, 99, world_rank, 5, &got));
            CHECK(got == 4 && memcmp(data, "next", 4) == 0, "another message of %" PRId64 " bytes", got);
        }
    }
    number++;
}

// Arrays, files and messages do not meet.
static void beside_an_array(int part)
{
    enum { EACH = 400000 };
    // Part 1 holds as many bytes in all as the other side has.
    int64_t all = (int64_t)remote * EACH;
    int64_t mine = part == 2 ? EACH : all * (world_rank + 1) / world_size - all * world_rank / world_size;
    unsigned char *data = allocate((size_t)mine);
    memset(data, part == 2 ? 7 : 0, (size_t)mine);
    isthmus_mpi_request *request = NULL;
    int64_t value = part, got = 0;
    if (world_rank < remote && part == 1)
        must(isthmus_mpi_ireceive(coupling, &value, sizeof value, world_rank, 1, &request));
    must(part == 2 ? isthmus_mpi_send_array(coupling, data, mine, NULL, NULL)
                   : isthmus_mpi_receive_array(coupling, data, mine, NULL, NULL));
    if (world_rank < remote && part == 2)
        must(isthmus_mpi_send(coupling, &value, sizeof value, world_rank, 1));
    if (request) {
        must(isthmus_mpi_wait(&request, &got));
        CHECK(value == 2 && got == sizeof value, "the message was %" PRId64, value);
    }
    for (int64_t i = 0; i < mine; i++)
        CHECK(data[i] == 7, "byte %" PRId64 " of the array is %d", i, data[i]);
    free(data);
    number++;
}

// Waits for what never comes, until the partner is lost. Then further calls fail at once.
static int lose(void)
{
    char data[1 << 10];
    int there = world_rank % remote;
    if (world_rank == 0) {
        printf("READY\n");
        fflush(stdout);
    }
    double began = seconds();
    int status = isthmus_mpi_receive(coupling, data, sizeof data, there, 0, NULL);
    must_fail(status, ISTHMUS_MPI_LOST, "the other application is lost: its rank");
    printf("LOST after %.1f s: %s\n", seconds() - began, isthmus_mpi_last_error());
    must_fail(isthmus_mpi_send(coupling, data, 1, there, 0), ISTHMUS_MPI_LOST, "lost");
    must_fail(isthmus_mpi_send_array(coupling, data, sizeof data, NULL, NULL), ISTHMUS_MPI_LOST, "lost");
    must_fail(isthmus_mpi_send_array(coupling, data, sizeof data, NULL, NULL), ISTHMUS_MPI_LOST, "couple again");
    isthmus_mpi_uncouple(coupling);
    return finish("told");
}

// All ranks of a side are told the same. The job ends by itself, so that no launcher loses what it said.
static int told(int status)
{
    char text[1024] = "", first[1024];
    snprintf(text, sizeof text, "status %d: %s", status, isthmus_mpi_last_error());
    memcpy(first, text, sizeof first);
    MPI_Bcast(first, sizeof first, MPI_CHAR, 0, MPI_COMM_WORLD);
    CHECK(strcmp(first, text) == 0, "told \"%s\", another rank \"%s\"", text, first);
    if (world_rank == 0)
        printf("%s\n", text), fflush(stdout);
    MPI_Finalize();
    return 3;
}

int main(int argc, char **argv)
{
    start(&argc, &argv, "messages");
    CHECK(argc >= 3, "usage: messages PART AT [SECRET [PATIENCE [lose]]]");
    int part = atoi(argv[1]);
    const char *at = strcmp(argv[2], "-") == 0 ? NULL : argv[2];
    const char *secret = argc > 3 && strcmp(argv[3], "-") != 0 ? argv[3] : NULL;
    int status = isthmus_couple(MPI_COMM_WORLD, at, part, secret, argc > 4 ? atof(argv[4]) : 60, &coupling);
    if (status != ISTHMUS_MPI_SUCCESS)
        return told(status);
    remote = isthmus_mpi_remote_ranks(coupling);
    CHECK(isthmus_mpi_rank(coupling) == world_rank && isthmus_mpi_ranks(coupling) == world_size, "another rank");
    if (argc > 5)
        return lose();
    all_to_all(part);
    unexpected(part);
    in_order(part);
    polled(part);
    wrong(part);
    beside_an_array(part);
    all_to_all(part);
    must(isthmus_mpi_uncouple(coupling));
    return finish("part %d, %d ranks and %d", part, world_size, remote);
}
