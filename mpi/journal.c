// The journal of an unfinished file: its source, and the blocks that are there. Each block has a fixed
// place in it, so all ranks can write at the same time, and another number of ranks can read it later.
// A record is written after its block. It counts only if the block still has that digest.
//
// `isthmus cp` has another journal (crates/isthmus-mover/src/journal.rs): one process appends to it, and its head has the
// boot, so that records count without reading the blocks. The two share their digest only.
#include "internal.h"
#include "isthmus.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { CHECK_LEN = 8, AGAIN = 100 };

struct head {
    char magic[8];
    int64_t block, bytes;
    uint8_t source[DIGEST_LEN];
    uint8_t check[CHECK_LEN];
};

struct line {
    uint8_t digest[DIGEST_LEN];
    uint8_t check[CHECK_LEN];
};

static const char MAGIC[8] = "ISTMPIJ1";

// A checksum. It detects torn writes, and lines of another journal.
static void sum(const void *data, size_t length, uint8_t *check)
{
    uint8_t digest[DIGEST_LEN];
    isthmus_digest_block(data, length, 0, length, 1 << 20, digest);
    memcpy(check, digest, CHECK_LEN);
}

static struct line line_of(const struct store *store, int64_t index, const uint8_t *digest)
{
    struct { int64_t index, block, bytes; uint8_t source[DIGEST_LEN], digest[DIGEST_LEN]; } all =
        {.index = index, .block = store->noted_block, .bytes = store->noted_bytes};
    struct line line;
    memcpy(all.source, store->noted_source, DIGEST_LEN);
    memcpy(all.digest, digest, DIGEST_LEN);
    memcpy(line.digest, digest, DIGEST_LEN);
    sum(&all, sizeof all, line.check);
    return line;
}

static off_t place_of(int64_t index)
{
    return (off_t)(sizeof(struct head) + (size_t)index * sizeof(struct line));
}

// Opens a file whose name others could guess: it must be no link, and belong to this user.
static int open_own(const char *path, const struct store *store, struct trouble *trouble)
{
    struct stat about;
    int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    if (fd < 0) {
        note_errno(trouble, errno, "cannot create %.200s", store->path);
    } else if (fstat(fd, &about) < 0 || !S_ISREG(about.st_mode) || about.st_uid != geteuid() || about.st_nlink > 1) {
        note(trouble, ISTHMUS_MPI_FILE, "cannot create %.150s: %.150s is there, and not this user's; remove it",
             store->path, path);
        close(fd);
        fd = -1;
    }
    return fd;
}

static void read_head(struct store *store)
{
    struct head head;
    struct stat about;
    uint8_t check[CHECK_LEN];
    if (pread(store->lock, &head, sizeof head, 0) != (ssize_t)sizeof head || fstat(store->lock, &about) < 0)
        return;
    sum(&head, offsetof(struct head, check), check);
    if (memcmp(head.magic, MAGIC, sizeof MAGIC) != 0 || memcmp(head.check, check, CHECK_LEN) != 0 || head.block < MIN_BLOCK ||
        head.block > MAX_BLOCK || head.bytes < 0)
        return;
    store->noted_block = head.block;
    store->noted_bytes = head.bytes;
    memcpy(store->noted_source, head.source, DIGEST_LEN);
    store->had_blocks = about.st_size > (off_t)sizeof head;
}

// Whether the locked journal still has its name: its former owner may have removed it.
static int is_named(const struct store *store)
{
    struct stat ours, named;
    return fstat(store->lock, &ours) == 0 && stat(store->journal, &named) == 0 && ours.st_ino == named.st_ino &&
           ours.st_dev == named.st_dev;
}

int journal_begin(struct store *store, struct trouble *trouble)
{
    for (int i = 0; i < AGAIN; i++) {
        store->lock = open_own(store->journal, store, trouble);
        if (store->lock < 0)
            return 0;
        int locked = flock(store->lock, LOCK_EX | LOCK_NB), error = errno;
        if (locked == 0 && is_named(store)) {
            read_head(store);
            return 1;
        }
        close(store->lock);
        store->lock = -1;
        if (locked < 0 && error == EWOULDBLOCK) {
            note(trouble, ISTHMUS_MPI_FILE, "cannot create %.200s: another program is receiving it now", store->path);
            return 0;
        }
        if (locked < 0) {
            // A file system without locks.
            unlink(store->journal);
            return 0;
        }
    }
    note(trouble, ISTHMUS_MPI_FILE, "cannot create %.200s: other programs are receiving it", store->path);
    return 0;
}

int journal_part(const struct store *store, struct trouble *trouble)
{
    return open_own(store->temporary, store, trouble);
}

void journal_open(struct store *store)
{
    if (store->journal[0])
        store->log = open(store->journal, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
}

void journal_renew(struct store *store, int64_t block, int64_t bytes, const uint8_t *source)
{
    struct head head = {.block = block, .bytes = bytes};
    if (store->lock < 0)
        return;
    memcpy(head.magic, MAGIC, sizeof MAGIC);
    memcpy(head.source, source, DIGEST_LEN);
    sum(&head, offsetof(struct head, check), head.check);
    // Without a journal the file cannot be continued later, but it can be received.
    if (ftruncate(store->lock, 0) < 0 || pwrite(store->lock, &head, sizeof head, 0) != (ssize_t)sizeof head)
        unlink(store->journal);
    store->had_blocks = 0;
}

void journal_is_of(struct store *store, int64_t block, int64_t bytes, const uint8_t *source)
{
    store->noted_block = block;
    store->noted_bytes = bytes;
    memcpy(store->noted_source, source, DIGEST_LEN);
}

int journal_note(const struct store *store, int64_t index, const uint8_t *digest)
{
    struct line line = line_of(store, index, digest);
    return store->log >= 0 && pwrite(store->log, &line, sizeof line, place_of(index)) == (ssize_t)sizeof line;
}

int journal_has(const struct store *store, int64_t index, uint8_t *digest)
{
    struct line line, wanted;
    if (store->log < 0 || pread(store->log, &line, sizeof line, place_of(index)) != (ssize_t)sizeof line)
        return 0;
    wanted = line_of(store, index, line.digest);
    memcpy(digest, line.digest, DIGEST_LEN);
    return memcmp(wanted.check, line.check, CHECK_LEN) == 0;
}

void journal_end(struct store *store, int keep)
{
    if (store->lock < 0)
        return;
    if (!keep)
        unlink(store->journal);
    close(store->lock);
    store->lock = -1;
}
