// Copies a file from one running MPI application to another.
//
//   copy receive PORT FILE [NAME=VALUE...]
//   copy send    PORT FILE [NAME=VALUE...]
//
// PORT is file:PATH or env:NAME (isthmus-mpi.h); as many ranks on either side as one likes. The names are those
// of struct isthmus_mpi_options: block, memory, threads, io (posix or mpiio), sync, direct,
// in_turn; and offset and length, of what is sent, and where it goes.
//
//   mpicc copy.c -o copy $(pkg-config --cflags --libs isthmus-mpi)
//   mpiexec -n 4 ./copy receive file:/shared/port out.h5     # at one site
//   mpiexec -n 4 ./copy send file:/shared/port in.h5         # at the other
//
// Exit status: 0 all is written; 2 wrong usage; 3 it is not, with a text that says why.
#include <isthmus-mpi.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_USAGE = 2, EXIT_NOT_DONE = 3 };

static int rank;

struct arguments {
    struct isthmus_mpi_options options;
    int64_t offset, length;
};

static int usage(const char *word)
{
    if (rank == 0)
        fprintf(stderr, "copy: cannot read \"%s\"; usage: copy send|receive PORT FILE [NAME=VALUE...]\n", word);
    return EXIT_USAGE;
}

// Takes NAME=VALUE; 0 where there is no such name.
static int take(struct arguments *to, char *word)
{
    char *value = strchr(word, '='), *end;
    if (!value)
        return 0;
    *value++ = 0;
    if (strcmp(word, "io") == 0) {
        to->options.io = strcmp(value, "mpiio") == 0 ? ISTHMUS_MPI_MPIIO : ISTHMUS_MPI_POSIX;
        return 1;
    }
    int64_t number = strtoll(value, &end, 10);
    if (*end || !*value)
        return 0;
    struct { const char *name; int64_t *wide; int32_t *narrow; } const names[] = {
        {"block", &to->options.block, NULL}, {"memory", &to->options.memory, NULL},
        {"threads", NULL, &to->options.threads}, {"sync", NULL, &to->options.sync}, {"direct", NULL, &to->options.direct}, {"in_turn", NULL, &to->options.in_turn},
        {"offset", &to->offset, NULL}, {"length", &to->length, NULL},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(word, names[i].name) != 0)
            continue;
        if (names[i].wide)
            *names[i].wide = number;
        else
            *names[i].narrow = (int32_t)number;
        return 1;
    }
    return 0;
}

// The text of the call that failed.
static int complain(int status)
{
    if (rank == 0 && status != ISTHMUS_MPI_SUCCESS)
        fprintf(stderr, "copy: %s\n", isthmus_mpi_last_error());
    return status;
}

static void tell(const struct isthmus_mpi_report *report, int receives, const char *file)
{
    if (rank != 0)
        return;
    if (!receives)
        printf("RESULT {\"bytes\": %" PRId64 ", \"block\": %" PRId64 ", \"seconds\": %.6f, \"sent_seconds\": %.6f, "
               "\"resumed\": %" PRId64 "}\n",
               report->bytes, report->block, report->seconds, report->sent_seconds, report->resumed);
    for (size_t i = 0; report->has_digest && i < sizeof report->digest; i++)
        printf("%02x%s", report->digest[i], i + 1 < sizeof report->digest ? "" : "  ");
    if (report->has_digest)
        printf("%s\n", file);
}

static int copy(int receives, const char *port, const char *file, const struct arguments *how)
{
    isthmus_mpi_coupling *coupling;
    struct isthmus_mpi_report report = {0};
    int status = receives ? isthmus_mpi_accept(MPI_COMM_WORLD, port, &coupling)
                          : isthmus_mpi_connect(MPI_COMM_WORLD, port, 0, &coupling);
    if (status != ISTHMUS_MPI_SUCCESS)
        return complain(status);
    status = receives ? isthmus_mpi_receive_file(coupling, file, how->offset, &how->options, &report)
                      : isthmus_mpi_send_file(coupling, file, how->offset, how->length, &how->options, &report);
    complain(status);
    if (status == ISTHMUS_MPI_SUCCESS)
        tell(&report, receives, file);
    int parted = isthmus_mpi_uncouple(coupling);
    return status == ISTHMUS_MPI_SUCCESS ? complain(parted) : status;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    int receives = argc > 1 && strcmp(argv[1], "receive") == 0, status = 0;
    struct arguments how = {.offset = receives ? -1 : 0, .length = -1};
    if (argc < 4 || (!receives && strcmp(argv[1], "send") != 0))
        status = usage(argc > 1 ? argv[1] : "nothing");
    for (int i = 4; i < argc && !status; i++)
        if (!take(&how, argv[i]))
            status = usage(argv[i]);
    if (!status && copy(receives, argv[2], argv[3], &how) != ISTHMUS_MPI_SUCCESS)
        status = EXIT_NOT_DONE;
    MPI_Finalize();
    return status;
}
