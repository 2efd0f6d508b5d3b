// The mover between MPI applications: every kind of transfer, and every way to fail that can
// be had without killing anybody.
//   mover split FOLDER SENDERS        one job, whose first ranks send to the others
//   mover accept|connect FOLDER       two jobs; the accepting one receives
//   mover part1|part2 FOLDER          two jobs of any MPIs, which isthmus_couple joins; part 1 receives
// All data is checked; so is that all ranks of a side are told the same, and in one job
// that both sides are. After every failure a file goes, as if nothing had been.
#include "../mpi/check.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <isthmus-mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static isthmus_mpi_coupling *coupling;
static MPI_Comm side;
static int sends, split, rank, ranks, number;
static char folder[3000];

// --- what all cases use --------------------------------------------------------------

static const char *path_of(const char *what, int of)
{
    char *path = allocate(4096); // for as long as the program lasts
    snprintf(path, 4096, "%s/%s-%d", folder, what, of);
    return path;
}

static void make_file(const char *path, size_t bytes, uint64_t seed)
{
    if (rank == 0) {
        unsigned char *data = allocate(bytes);
        fill(data, bytes, seed);
        FILE *out = fopen(path, "w");
        CHECK(out && fwrite(data, 1, bytes, out) == bytes && fclose(out) == 0, "cannot make %s", path);
        free(data);
    }
    MPI_Barrier(side);
}

// The file is `length` bytes from `from` on of what `seed` makes.
static void check_file(const char *path, size_t from, size_t length, uint64_t seed)
{
    if (rank != 0)
        return;
    unsigned char *wanted = allocate(from + length), *data = allocate(length + 1);
    fill(wanted, from + length, seed);
    FILE *in = fopen(path, "r");
    CHECK(in, "no file %s", path);
    size_t got = fread(data, 1, length + 1, in);
    fclose(in);
    CHECK(got == length, "%s has %zu bytes, not %zu", path, got, length);
    CHECK(memcmp(data, wanted + from, length) == 0, "%s has other contents", path);
    free(wanted);
    free(data);
}

// Nothing of what was not whole is left.
static void check_clean(void)
{
    if (rank != 0)
        return;
    DIR *all = opendir(folder);
    CHECK(all, "no folder %s", folder);
    for (struct dirent *entry; (entry = readdir(all));)
        CHECK(!strstr(entry->d_name, ".part") && !strstr(entry->d_name, ".journal"), "%s was left", entry->d_name);
    closedir(all);
}

// What is not whole is there, and not under its name.
static void check_part(const char *path)
{
    int parts = 0, journals = 0;
    if (rank != 0)
        return;
    CHECK(access(path, F_OK) != 0, "%s has its name, and is not whole", path);
    DIR *all = opendir(folder);
    CHECK(all, "no folder %s", folder);
    for (struct dirent *entry; (entry = readdir(all));) {
        parts += strstr(entry->d_name, ".part") != NULL;
        journals += strstr(entry->d_name, ".journal") != NULL;
    }
    closedir(all);
    CHECK(parts == 1 && journals == 1, "case %d: %d parts and %d journals are there", number, parts, journals);
}

// Everybody has the status and the same text, which contains `words`.
static void expect(int status, int wanted, const char *words)
{
    char text[1024] = "";
    snprintf(text, sizeof text, "%d %s", status, isthmus_mpi_last_error());
    CHECK(status == wanted, "case %d: status %s, expected %d", number, text, wanted);
    CHECK(!wanted == !*isthmus_mpi_last_error(), "case %d: status %d with text \"%s\"", number, status, text);
    CHECK(strstr(text, words), "case %d: \"%s\" does not say \"%s\"", number, text, words);
    char first[1024];
    memcpy(first, text, sizeof first);
    MPI_Comm all = split ? MPI_COMM_WORLD : side;
    MPI_Bcast(first, sizeof first, MPI_CHAR, 0, all);
    CHECK(strcmp(first, text) == 0, "case %d: told \"%s\", another rank \"%s\"", number, text, first);
}

static struct isthmus_mpi_report whole(size_t bytes, uint64_t seed, struct isthmus_mpi_options options)
{
    struct isthmus_mpi_report report;
    const char *from = path_of("source", number), *to = path_of("copy", number);
    if (sends) {
        make_file(from, bytes, seed);
        expect(isthmus_mpi_send_file(coupling, from, 0, -1, &options, &report), 0, "");
    } else {
        expect(isthmus_mpi_receive_file(coupling, to, -1, &options, &report), 0, "");
        check_file(to, 0, bytes, seed);
        check_clean();
    }
    CHECK(report.bytes == (int64_t)bytes, "case %d: %" PRId64 " bytes reported", number, report.bytes);
    CHECK(report.seconds >= 0 && report.block > 0, "case %d: an empty report", number);
    if (rank == 0)
        unlink(sends ? from : to);
    number++;
    return report;
}

// --- what succeeds -------------------------------------------------------------------

static void files(void)
{
    static const size_t sizes[] = {0, 1, 4095, 65536, 3000001, (8 << 20) + 17};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct isthmus_mpi_report report = whole(sizes[i], 1 + i, (struct isthmus_mpi_options){0});
        CHECK(report.has_digest, "no digest of %zu bytes", sizes[i]);
        static const unsigned char empty[] = {0xaf, 0x13, 0x49, 0xb9, 0xf5, 0xf9, 0xa1, 0xa6};
        CHECK(sizes[i] || memcmp(report.digest, empty, sizeof empty) == 0, "the digest of nothing is wrong");
        if (split) {
            uint8_t digest[32];
            memcpy(digest, report.digest, 32);
            MPI_Bcast(digest, 32, MPI_BYTE, 0, MPI_COMM_WORLD);
            CHECK(memcmp(digest, report.digest, 32) == 0, "both sides tell another digest");
        }
    }
    CHECK(!whole(1000001, 20, (struct isthmus_mpi_options){.block = 100000}).has_digest, "a digest of odd blocks");
    whole(3000001, 21, (struct isthmus_mpi_options){.block = 4096, .memory = 1});
    whole(3000001, 22, (struct isthmus_mpi_options){.block = 65536, .in_turn = 1});
    whole(3000001, 23, (struct isthmus_mpi_options){.threads = 4, .direct = ISTHMUS_MPI_DIRECT, .sync = 1});
    whole((24 << 20) + 4097, 27, (struct isthmus_mpi_options){.block = 1 << 18});
    whole(3000001, 28, (struct isthmus_mpi_options){.direct = ISTHMUS_MPI_CACHED});
    whole(3000001, 24, (struct isthmus_mpi_options){.io = ISTHMUS_MPI_MPIIO});
    whole(300001, 25, (struct isthmus_mpi_options){.io = ISTHMUS_MPI_MPIIO, .block = 65536, .in_turn = 1, .sync = 1});
    whole(0, 26, (struct isthmus_mpi_options){.io = ISTHMUS_MPI_MPIIO});
}

// A file with holes: its bytes, and the blocks that it takes.
static void holes(void)
{
    enum { LENGTH = 24 << 20, DATA = 70000 };
    static const off_t at[] = {3000, 9 << 20, LENGTH - DATA};
    static const int ios[] = {ISTHMUS_MPI_POSIX, ISTHMUS_MPI_MPIIO};
    for (size_t i = 0; i < sizeof ios / sizeof *ios; i++) {
        const char *from = path_of("source", number), *to = path_of("copy", number);
        struct isthmus_mpi_options options = {.io = ios[i], .block = 1 << 18};
        unsigned char *wanted = allocate(LENGTH), *data = allocate(LENGTH + 1);
        memset(wanted, 0, LENGTH);
        for (size_t part = 0; part < sizeof at / sizeof *at; part++)
            fill(wanted + at[part], DATA, 80 + part);
        if (sends && rank == 0) {
            FILE *out = fopen(from, "w");
            CHECK(out, "cannot make %s", from);
            for (size_t part = 0; part < sizeof at / sizeof *at; part++)
                CHECK(fseek(out, at[part], SEEK_SET) == 0 && fwrite(wanted + at[part], 1, DATA, out) == DATA, "cannot write %s", from);
            CHECK(fclose(out) == 0, "cannot write %s", from);
        }
        MPI_Barrier(side);
        if (sends)
            expect(isthmus_mpi_send_file(coupling, from, 0, -1, &options, NULL), 0, "");
        else
            expect(isthmus_mpi_receive_file(coupling, to, -1, &options, NULL), 0, "");
        if (!sends && rank == 0) {
            struct stat about;
            FILE *in = fopen(to, "r");
            CHECK(in && fread(data, 1, LENGTH + 1, in) == LENGTH && fclose(in) == 0, "no %s of that length", to);
            CHECK(memcmp(wanted, data, LENGTH) == 0, "%s has other contents", to);
            // Three parts of 70,000 bytes; by MPI-IO the pieces that they lie in.
            CHECK(stat(to, &about) == 0 && about.st_blocks <= 4 << 11, "%s takes %ld blocks", to, (long)about.st_blocks);
            check_clean();
        }
        if (rank == 0)
            unlink(sends ? from : to);
        free(wanted);
        free(data);
        number++;
    }
}

static void ranges(void)
{
    const char *from = path_of("source", number), *to = path_of("copy", number);
    enum { ALL = 2000003, FROM = 1001, LENGTH = 1234567, AT = 12293 };
    if (sends) {
        make_file(from, ALL, 30);
        expect(isthmus_mpi_send_file(coupling, from, FROM, LENGTH, NULL, NULL), 0, "");
        expect(isthmus_mpi_send_file(coupling, from, FROM, -1, NULL, NULL), 0, "");
        expect(isthmus_mpi_send_file(coupling, from, 0, AT, NULL, NULL), 0, "");
        expect(isthmus_mpi_send_file(coupling, from, ALL, -1, NULL, NULL), 0, "");
    } else {
        expect(isthmus_mpi_receive_file(coupling, to, -1, NULL, NULL), 0, "");
        check_file(to, FROM, LENGTH, 30);
        expect(isthmus_mpi_receive_file(coupling, to, -1, NULL, NULL), 0, "");
        check_file(to, FROM, ALL - FROM, 30);
        // The rest of a file that is there: put before and after what differs from it.
        make_file(to, ALL, 30);
        if (rank == 0) {
            FILE *hole = fopen(to, "r+");
            static char zeros[AT];
            CHECK(hole && fwrite(zeros, 1, AT, hole) == AT && fclose(hole) == 0, "cannot write %s", to);
        }
        MPI_Barrier(side);
        expect(isthmus_mpi_receive_file(coupling, to, 0, NULL, NULL), 0, "");
        check_file(to, 0, ALL, 30);
        expect(isthmus_mpi_receive_file(coupling, to, AT, NULL, NULL), 0, "");
        check_file(to, 0, ALL, 30);
    }
    number++;
}

// Each rank's part of `all` bytes; the sender's unequal, with one that has nothing.
static int64_t part_of(int of_sender, int of_ranks, int of, int64_t all, int even)
{
    int64_t weights = 0, mine = 0, given = 0;
    for (int i = 0; i < of_ranks; i++)
        weights += even ? 1 : of_sender ? i : of_ranks - i;
    if (weights == 0)
        return of == 0 ? all : 0;
    for (int i = 0; i <= of; i++) {
        mine = i == of_ranks - 1 ? all - given : all * (even ? 1 : of_sender ? i : of_ranks - i) / weights;
        given += mine;
    }
    return mine;
}

static void arrays(void)
{
    static const int64_t lengths[] = {0, 1, 777, 1 << 20, 5000011};
    for (size_t i = 0; i < 2 * sizeof lengths / sizeof *lengths; i++, number++) {
        struct isthmus_mpi_options options = {.block = i % 3 == 1 ? 65536 : 0};
        int64_t all = lengths[i / 2], mine = part_of(sends, ranks, rank, all, i % 2), before = 0;
        MPI_Exscan(&mine, &before, 1, MPI_INT64_T, MPI_SUM, side);
        if (rank == 0)
            before = 0;
        unsigned char *total = allocate((size_t)all), *part = allocate((size_t)mine);
        struct isthmus_mpi_report report;
        fill(total, (size_t)all, 40 + i);
        if (sends) {
            memcpy(part, total + before, (size_t)mine);
            expect(isthmus_mpi_send_array(coupling, part, mine, &options, &report), 0, "");
        } else {
            expect(isthmus_mpi_receive_array(coupling, part, mine, &options, &report), 0, "");
            CHECK(memcmp(part, total + before, (size_t)mine) == 0, "array %zu differs", i);
        }
        CHECK(report.bytes == all, "array %zu: %" PRId64 " bytes reported", i, report.bytes);
        free(total);
        free(part);
    }
}

// --- what fails ----------------------------------------------------------------------

// The same call on both sides, of which one has a fault.
static void refused(const char *from, const char *to, int64_t length, struct isthmus_mpi_options options, int status,
                    const char *words)
{
    expect(sends ? isthmus_mpi_send_file(coupling, from, 0, length, &options, NULL)
                 : isthmus_mpi_receive_file(coupling, to, -1, &options, NULL),
           status, words);
    if (!sends)
        check_clean();
    number++;
    whole(100003, 50, (struct isthmus_mpi_options){0});
}

static void files_that_fail(void)
{
    const struct isthmus_mpi_options plain = {0}, mpiio = {.io = ISTHMUS_MPI_MPIIO};
    const char *from = path_of("good", 0), *none = path_of("none", 0), *to = path_of("bad", 0);
    if (sends)
        make_file(from, 3000001, 60);
    refused(none, to, -1, plain, ISTHMUS_MPI_FILE, "No such file");
    refused(none, to, -1, mpiio, ISTHMUS_MPI_FILE, "No such file");
    refused(folder, to, -1, plain, ISTHMUS_MPI_FILE, "not a regular file");
    refused(from, to, 4000000, plain, ISTHMUS_MPI_FILE, "no range of 4000000");
    refused(from, "/no/such/folder/file", -1, plain, ISTHMUS_MPI_FILE, "No such file");
    refused(from, folder, -1, plain, ISTHMUS_MPI_FILE, "no regular file");
    refused(none, "/no/such/folder/file", -1, plain, ISTHMUS_MPI_FILE, "sender");
    refused(from, "", -1, plain, ISTHMUS_MPI_INVALID, "no path");
    refused(from, to, -1, (struct isthmus_mpi_options){.threads = 99}, ISTHMUS_MPI_INVALID, "99 threads");
    refused(from, to, -1, (struct isthmus_mpi_options){.block = 3}, ISTHMUS_MPI_INVALID, "a block of 3 bytes; 4096 to");
}

// A place in a pipe that nobody reads, and in one that somebody does: neither is waited for, or written to.
static void pipe_as_a_place(void)
{
    const char *from = path_of("good", 0), *to = path_of("pipe", 0);
    int reader = -1;
    if (!sends && rank == 0)
        CHECK(mkfifo(to, 0600) == 0, "cannot make %s", to);
    for (int i = 0; i < 2; i++) {
        expect(sends ? isthmus_mpi_send_file(coupling, from, 0, -1, NULL, NULL)
                     : isthmus_mpi_receive_file(coupling, to, 0, NULL, NULL),
               ISTHMUS_MPI_FILE, "no regular file");
        number++;
        if (!sends && rank == 0 && i == 0)
            reader = open(to, O_RDONLY | O_NONBLOCK);
    }
    if (!sends && rank == 0)
        CHECK(close(reader) == 0 && unlink(to) == 0, "the pipe was taken away");
    whole(100003, 55, (struct isthmus_mpi_options){0});
}

// A place where no file can have bytes, at the beginning of a block.
static void place_beyond(void)
{
    const char *to = path_of("beyond", 0);
    const int64_t at = INT64_MAX >> 20 << 20;
    expect(sends ? isthmus_mpi_send_file(coupling, path_of("good", 0), 0, -1, NULL, NULL)
                 : isthmus_mpi_receive_file(coupling, to, at, NULL, NULL),
           ISTHMUS_MPI_FILE, "no file has 3000001 bytes from byte");
    if (!sends && rank == 0)
        CHECK(unlink(to) == 0, "no %s", to);
    number++;
    whole(100003, 56, (struct isthmus_mpi_options){0});
}

// So far behind that others are there before it: few are under way at once.
enum { DAMAGED_AT = 40 << 16, DAMAGED_SIZE = 3000001 };

// What a call that failed left is gone on with, by blocks of its length.
static void go_on(const char *from, const char *to, size_t bytes, uint64_t seed)
{
    struct isthmus_mpi_report report;
    if (!sends)
        check_part(to);
    expect(sends ? isthmus_mpi_send_file(coupling, from, 0, -1, NULL, &report)
                 : isthmus_mpi_receive_file(coupling, to, -1, NULL, &report),
           0, "");
    CHECK(report.resumed > 0 && report.resumed < report.bytes, "case %d: %" PRId64 " bytes of %" PRId64 " were there",
          number, report.resumed, report.bytes);
    CHECK(report.block % 65536 == 0, "case %d: gone on with in blocks of %" PRId64, number, report.block);
    CHECK(report.has_digest, "case %d: no digest", number);
    if (!sends) {
        check_file(to, 0, bytes, seed);
        check_clean();
        if (rank == 0)
            unlink(to);
    }
    number++;
}

// Stands before the library's: a sender's digest of one block is wrong, so many times. For the
// receiver that is a block which came damaged. Or the disk of whichever rank receives that block is full
// from then on.
static atomic_int *damages, disk_fills;
int isthmus_digest_block(const void *data, size_t len, uint64_t offset, uint64_t size, uint64_t block, uint8_t digest[32])
{
    int (*real)(const void *, size_t, uint64_t, uint64_t, uint64_t, uint8_t *);
    *(void **)&real = dlsym(RTLD_NEXT, "isthmus_digest_block");
    CHECK(real, "libisthmus takes no digests");
    int status = real(data, len, offset, size, block, digest);
    if (sends && offset == DAMAGED_AT && size == DAMAGED_SIZE && damages && *damages > 0 && (*damages)-- > 0)
        digest[0] ^= 1;
    if (!sends && offset == DAMAGED_AT && size == DAMAGED_SIZE && disk_fills) {
        struct rlimit small;
        getrlimit(RLIMIT_FSIZE, &small);
        small.rlim_cur = 65536;
        setrlimit(RLIMIT_FSIZE, &small);
    }
    return status;
}

// Whichever of a side's ranks sends the block: they share the number.
static void damage(int often)
{
    if (!damages) {
        int fd = open(path_of("damages", 0), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        CHECK(fd >= 0 && ftruncate(fd, sizeof *damages) == 0, "no file that ranks share");
        damages = mmap(NULL, sizeof *damages, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        CHECK(damages != MAP_FAILED, "no memory that ranks share");
        close(fd);
    }
    if (sends && rank == 0)
        *damages = often;
}

// A disk that is full in the middle of the transfer: some is there by then.
static void disk_that_fills(void)
{
    struct rlimit before;
    const char *from = path_of("good", 0), *to = path_of("bad", 0);
    getrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_IGN);
    // Few at once, as below.
    struct isthmus_mpi_options options = {.block = 65536, .memory = 1};
    disk_fills = 1;
    int status = sends ? isthmus_mpi_send_file(coupling, from, 0, -1, &options, NULL)
                       : isthmus_mpi_receive_file(coupling, to, -1, &options, NULL);
    disk_fills = 0;
    setrlimit(RLIMIT_FSIZE, &before);
    expect(status, ISTHMUS_MPI_FILE, "of the receiver: cannot write");
    number++;
    go_on(from, to, DAMAGED_SIZE, 60);
    whole(100003, 51, (struct isthmus_mpi_options){0});
}

static void blocks_that_are_damaged(void)
{
    const char *from = path_of("good", 0), *to = path_of("damaged", 0);
    // Few at once: the damaged one is not among the first, of which some are written before it comes.
    struct isthmus_mpi_options options = {.block = 65536, .memory = 1};
    for (int often = 1; often <= 3; often += 2) {
        damage(often);
        expect(sends ? isthmus_mpi_send_file(coupling, from, 0, -1, &options, NULL)
                     : isthmus_mpi_receive_file(coupling, to, -1, &options, NULL),
               0, "");
        if (!sends) {
            check_file(to, 0, DAMAGED_SIZE, 60);
            check_clean();
            if (rank == 0)
                unlink(to);
        }
        number++;
    }
    damage(1 << 20);
    expect(sends ? isthmus_mpi_send_file(coupling, from, 0, -1, &options, NULL)
                 : isthmus_mpi_receive_file(coupling, to, -1, &options, NULL),
           ISTHMUS_MPI_DAMAGED, "is not what was sent");
    damage(0);
    number++;
    go_on(from, to, DAMAGED_SIZE, 60);
}

// Of two that receive the same file the second is told so.
static void file_that_somebody_receives(void)
{
    const char *from = path_of("good", 0), *to = path_of("twice", 0);
    // What another program has locked: as the library names it, found by a transfer that ended early.
    int lock = -1;
    damage(1 << 20);
    struct isthmus_mpi_options options = {.block = 65536, .memory = 1};
    expect(sends ? isthmus_mpi_send_file(coupling, from, 0, -1, &options, NULL)
                 : isthmus_mpi_receive_file(coupling, to, -1, &options, NULL),
           ISTHMUS_MPI_DAMAGED, "is not what was sent");
    damage(0);
    if (!sends && rank == 0) {
        DIR *all = opendir(folder);
        for (struct dirent *entry; (entry = readdir(all));)
            if (strstr(entry->d_name, ".journal"))
                lock = openat(dirfd(all), entry->d_name, O_RDWR);
        closedir(all);
        CHECK(lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) == 0, "no journal, or it is locked after its transfer");
    }
    expect(sends ? isthmus_mpi_send_file(coupling, from, 0, -1, NULL, NULL)
                 : isthmus_mpi_receive_file(coupling, to, -1, NULL, NULL),
           ISTHMUS_MPI_FILE, "another program is receiving it");
    if (lock >= 0)
        close(lock);
    go_on(from, to, DAMAGED_SIZE, 60);
}

static void *change_when_open(void *path)
{
    char entry[64], link[4096];
    for (;; sleep_ms(1))
        for (int fd = 0; fd < 256; fd++) {
            snprintf(entry, sizeof entry, "/proc/self/fd/%d", fd);
            ssize_t length = readlink(entry, link, sizeof link - 1);
            link[length > 0 ? length : 0] = 0;
            if (strcmp(link, path) != 0)
                continue;
            int file = open(path, O_WRONLY);
            CHECK(file >= 0 && pwrite(file, "!", 1, 0) == 1 && close(file) == 0, "cannot change %s", (char *)path);
            FILE *mark = fopen(path_of("changed", 0), "w");
            CHECK(mark && fclose(mark) == 0, "cannot tell of it");
            return NULL;
        }
}

// The source is written to after the transfer has begun, and before the receiver takes part.
static void source_that_changes(void)
{
    const char *from = path_of("changing", 0), *to = path_of("bad", 0), *mark = path_of("changed", 0);
    static char real[4096];
    pthread_t writer;
    struct isthmus_mpi_options options = {.block = 65536, .memory = 1};
    if (sends) {
        make_file(from, 24 << 20, 70);
        sleep_ms(50); // longer than a tick of the file system's clock
        CHECK(realpath(from, real), "no %s", from);
        CHECK(rank != 0 || pthread_create(&writer, NULL, change_when_open, real) == 0, "no thread");
        expect(isthmus_mpi_send_file(coupling, from, 0, -1, &options, NULL), ISTHMUS_MPI_CHANGED,
               "changed while it was read");
        if (rank == 0)
            pthread_join(writer, NULL);
    } else {
        while (access(mark, F_OK) != 0)
            sleep_ms(2);
        expect(isthmus_mpi_receive_file(coupling, to, -1, &options, NULL), ISTHMUS_MPI_CHANGED,
               "changed while it was read");
        CHECK(access(to, F_OK) != 0, "a file that changed was published");
        check_clean();
    }
    number++;
    whole(100003, 52, (struct isthmus_mpi_options){0});
}

static void calls_that_do_not_fit(void)
{
    char data[64] = "";
    const char *from = path_of("good", 0), *to = path_of("bad", 0);
    // Arrays of another length; each rank has one.
    int status = sends ? isthmus_mpi_send_array(coupling, data, rank == 0 ? 64 : 0, NULL, NULL)
                       : isthmus_mpi_receive_array(coupling, data, rank == 0 ? 63 : 0, NULL, NULL);
    expect(status, ISTHMUS_MPI_MISMATCH, "64 bytes, the receiver's 63");
    number++;
    status = sends ? isthmus_mpi_send_array(coupling, data, rank == 0 ? -1 : 0, NULL, NULL)
                   : isthmus_mpi_receive_array(coupling, data, 0, NULL, NULL);
    expect(status, ISTHMUS_MPI_INVALID, "no part of an array");
    number++;
    status = sends ? isthmus_mpi_send_file(coupling, from, 0, -1, NULL, NULL)
                   : isthmus_mpi_receive_array(coupling, data, rank == 0 ? 64 : 0, NULL, NULL);
    expect(status, ISTHMUS_MPI_MISMATCH, "one sends a file, the other receives an array");
    number++;
    status = sends ? isthmus_mpi_send_array(coupling, data, rank == 0 ? 64 : 0, NULL, NULL)
                   : isthmus_mpi_receive_file(coupling, to, -1, NULL, NULL);
    expect(status, ISTHMUS_MPI_MISMATCH, "one sends an array, the other receives a file");
    if (!sends)
        check_clean();
    number++;
    // The sender in a folder of its own, that its file is not taken for one that was left.
    if (sends && rank == 0)
        mkdir(path_of("sender", 0), 0777);
    expect(isthmus_mpi_receive_file(coupling, path_of(sends ? "sender-0/bad" : "bad", 0), -1, NULL, NULL),
           ISTHMUS_MPI_MISMATCH, "receives a file, the other receives a file");
    number++;
    whole(100003, 53, (struct isthmus_mpi_options){0});
    if (!sends)
        make_file(path_of("good", 1), 3000001, 61);
    expect(isthmus_mpi_send_file(coupling, path_of("good", !sends), 0, -1, NULL, NULL), ISTHMUS_MPI_MISMATCH,
           "sends a file, the other sends a file");
    number++;
    whole(100003, 54, (struct isthmus_mpi_options){0});
}

// Messages of the program go beside, over any coupling: sender i to receiver i modulo their number.
static void messages(int remote)
{
    for (int there = sends ? rank % remote : 0, end = sends ? there + 1 : remote; there < end; there++) {
        unsigned char data[50000], wanted[50000];
        int64_t got = 0;
        if (!sends && there % ranks != rank)
            continue;
        fill(wanted, sizeof wanted, (uint64_t)(90 + (sends ? rank : there)));
        for (int64_t length = 8; length <= (int64_t)sizeof wanted; length *= 6250) {
            if (sends) {
                CHECK(isthmus_mpi_send(coupling, wanted, length, there, 32767) == 0, "%s", isthmus_mpi_last_error());
                continue;
            }
            CHECK(isthmus_mpi_receive(coupling, data, sizeof data, there, 32767, &got) == 0, "%s", isthmus_mpi_last_error());
            CHECK(got == length && memcmp(data, wanted, (size_t)got) == 0, "another message of %" PRId64 " bytes", got);
        }
    }
    char small;
    CHECK(isthmus_mpi_send(coupling, &small, 1, remote, 0) == ISTHMUS_MPI_INVALID, "a message to nobody");
    number++;
}

// --- coming together -----------------------------------------------------------------

static void couple_within(int senders)
{
    MPI_Comm other;
    CHECK(senders > 0 && senders < world_size, "%d of %d ranks cannot send", senders, world_size);
    sends = world_rank < senders;
    split = 1;
    MPI_Comm_split(MPI_COMM_WORLD, sends, world_rank, &side);
    MPI_Intercomm_create(side, 0, MPI_COMM_WORLD, sends ? senders : 0, 1, &other);
    CHECK(isthmus_mpi_couple(side, other, &coupling) == 0, "%s", isthmus_mpi_last_error());
    MPI_Comm_free(&other);
}

// A user who can write the file with the port's name could lead this program to another one.
static void refuse_foreign_file(void)
{
    char path[4096], port[4200];
    snprintf(path, sizeof path, "%s/foreign-%d", folder, sends);
    snprintf(port, sizeof port, "file:%s", path);
    if (world_rank == 0) {
        FILE *file = fopen(path, "w");
        CHECK(file && fputs("a port", file) >= 0 && fclose(file) == 0 && chmod(path, 0666) == 0, "cannot write %s", path);
    }
    isthmus_mpi_coupling *none = NULL;
    int status = isthmus_mpi_connect(side, port, 1, &none);
    CHECK(status == ISTHMUS_MPI_COUPLING && strstr(isthmus_mpi_last_error(), "not believed"), "a foreign file: %d %s", status,
          isthmus_mpi_last_error());
    MPI_Barrier(side);
    if (world_rank == 0)
        unlink(path);
}

static void couple_jobs(void)
{
    char port[4096];
    side = MPI_COMM_WORLD;
    snprintf(port, sizeof port, "file:%s/port", folder);
    isthmus_mpi_coupling *none = NULL;
    int status = isthmus_mpi_connect(side, "port", 0, &none);
    CHECK(status == ISTHMUS_MPI_INVALID && !none, "a port that is none: %d", status);
    status = isthmus_mpi_connect(side, "env:ISTHMUS_NO_SUCH_VARIABLE", 0, &none);
    CHECK(status == ISTHMUS_MPI_INVALID && strstr(isthmus_mpi_last_error(), "is not set"), "no variable: %d", status);
    status = isthmus_mpi_connect(side, "file:/no/such/file", 0.1, &none);
    CHECK(status == ISTHMUS_MPI_COUPLING && strstr(isthmus_mpi_last_error(), "is the accepting"), "no file: %d", status);
    refuse_foreign_file();
    status = isthmus_mpi_accept(side, "name:a", &none);
    CHECK(status == ISTHMUS_MPI_INVALID, "accepting at a name: %d", status);
    setenv("ISTHMUS_PORT", port, 1);
    status = sends ? isthmus_mpi_connect(side, NULL, 60, &coupling) : isthmus_mpi_accept(side, port, &coupling);
    CHECK(status == 0, "%s", isthmus_mpi_last_error());
}

// Two jobs of any MPIs.
static void couple_parts(void)
{
    char at[4096];
    side = MPI_COMM_WORLD;
    snprintf(at, sizeof at, "file:%s/at", folder);
    CHECK(isthmus_couple(side, at, sends ? 2 : 1, NULL, 60, &coupling) == 0, "%s", isthmus_mpi_last_error());
}

int main(int argc, char **argv)
{
    start(&argc, &argv, "mover");
    CHECK(argc >= 3, "usage: mover split|accept|connect|part1|part2 FOLDER [SENDERS]");
    sends = strcmp(argv[1], "connect") == 0 || strcmp(argv[1], "part2") == 0;
    snprintf(folder, sizeof folder, "%s", argv[2]);
    if (strcmp(argv[1], "split") == 0)
        couple_within((int)argument(argc, argv, 3, (size_t)world_size / 2));
    else if (strncmp(argv[1], "part", 4) == 0)
        couple_parts();
    else
        couple_jobs();
    MPI_Comm_rank(side, &rank);
    MPI_Comm_size(side, &ranks);
    int remote = isthmus_mpi_remote_ranks(coupling);
    files();
    holes();
    ranges();
    arrays();
    files_that_fail();
    pipe_as_a_place();
    place_beyond();
    disk_that_fills();
    blocks_that_are_damaged();
    file_that_somebody_receives();
    source_that_changes();
    calls_that_do_not_fit();
    messages(remote);
    CHECK(isthmus_mpi_uncouple(coupling) == 0, "%s", isthmus_mpi_last_error());
    return finish("%d ranks and %d: %d transfers, some of which failed as they must", ranks, remote, number);
}
