// Files: the source and destination of blocks.
#include "internal.h"
#include "isthmus.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/statvfs.h>
#include <unistd.h>

static const char *written_path(const struct store *store)
{
    return store->temporary[0] ? store->temporary : store->path;
}

// Length of a path up to its last component.
static int folder_len(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? (int)(slash - path + 1) : 0;
}

// Refuses an existing entry that is no regular file: a pipe, for example, would wait for its reader.
static void check_regular(const struct store *store, const struct stat *about, struct trouble *trouble)
{
    if (!S_ISREG(about->st_mode))
        note(trouble, ISTHMUS_MPI_FILE, "cannot create %.200s: it is there, and no regular file", store->path);
}

// The temporary name is the same for every transfer to this path, so that the next one finds the part.
static void name_temporary(struct store *store, struct trouble *trouble)
{
    struct stat about;
    uint8_t digest[DIGEST_LEN];
    uint64_t short_digest;
    int folder = folder_len(store->path);
    const char *name = store->path + folder;
    if (stat(store->path, &about) == 0)
        check_regular(store, &about, trouble);
    if (trouble->code)
        return;
    isthmus_digest_block(name, strlen(name), 0, strlen(name), 1 << 20, digest);
    memcpy(&short_digest, digest, sizeof short_digest);
    snprintf(store->temporary, sizeof store->temporary, "%.*s.isthmus-mpi-%016" PRIx64 ".part", folder, store->path,
             short_digest);
    int length = snprintf(store->journal, sizeof store->journal, "%.*s.isthmus-mpi-%016" PRIx64 ".journal", folder,
                          store->path, short_digest);
    if (length >= (int)sizeof store->journal)
        note(trouble, ISTHMUS_MPI_INVALID, "the path %.200s... is too long", store->path);
}

// Without a journal the temporary name is unique.
static void name_by_chance(struct store *store)
{
    uint64_t random;
    if (getrandom(&random, sizeof random, 0) != sizeof random)
        random = (uint64_t)getpid();
    store->journal[0] = 0;
    snprintf(store->temporary, sizeof store->temporary, "%.*s.isthmus-mpi-%016" PRIx64 ".part", folder_len(store->path),
             store->path, random);
}

static int create(const struct store *store, int how, struct trouble *trouble)
{
    struct stat about;
    int fd = open(written_path(store), O_WRONLY | O_CREAT | O_NONBLOCK | O_CLOEXEC | how, 0666), error = errno;
    // A pipe without a reader cannot be opened, so it is looked at by its path.
    if (fd >= 0 ? fstat(fd, &about) == 0 : error == ENXIO && stat(store->path, &about) == 0)
        check_regular(store, &about, trouble);
    if (fd < 0)
        note_errno(trouble, error, "cannot create %.200s", store->path);
    else if (trouble->code) {
        close(fd);
        fd = -1;
    }
    return fd;
}

void store_create(struct store *store, struct trouble *trouble)
{
    int in_place = store->base >= 0, fd = -1;
    if (!in_place)
        name_temporary(store, trouble);
    if (!trouble->code && !in_place && !journal_begin(store, trouble) && !trouble->code)
        name_by_chance(store);
    if (!trouble->code && store->journal[0]) {
        fd = journal_part(store, trouble);
    } else if (!trouble->code) {
        fd = create(store, in_place ? 0 : O_EXCL, trouble);
    }
    if (fd >= 0) {
        close(fd);
        return;
    }
    // Files of other transfers are not removed.
    journal_end(store, 1);
    store->temporary[0] = store->journal[0] = 0;
}

static void open_posix(struct store *store, int cache, struct trouble *trouble)
{
    const char *path = store->writes ? written_path(store) : store->path;
    store->fd = open(path, (store->writes ? O_WRONLY : O_RDONLY) | O_NONBLOCK | O_CLOEXEC);
    if (store->fd < 0)
        note_errno(trouble, errno, "cannot open %.200s", store->path);
    else
        ways_begin(&store->ways, store->fd, cache);
}

// With MPI-IO opening is collective, so ranks with trouble take part too.
void store_open(struct store *store, MPI_Comm local, int cache, struct trouble *trouble)
{
    int error;
    const char *path = store->writes ? written_path(store) : store->path;
    if (!store->is_file)
        return;
    if (stat(path, &store->first) < 0)
        note_errno(trouble, errno, "cannot open %.200s", store->path);
    else if (!S_ISREG(store->first.st_mode))
        note(trouble, ISTHMUS_MPI_FILE, "%.200s is not a regular file", store->path);
    if (!trouble->code)
        journal_open(store);
    if (store->io == ISTHMUS_MPI_POSIX) {
        if (!trouble->code)
            open_posix(store, cache, trouble);
        return;
    }
    int mine = trouble->code != 0, any = 0;
    MPI_Request request;
    MPI_Iallreduce(&mine, &any, 1, MPI_INT, MPI_MAX, local, &request);
    await(&request);
    if (any) {
        // The rank that knows the reason reports it.
        return;
    }
    error = MPI_File_open(local, path, store->writes ? MPI_MODE_WRONLY : MPI_MODE_RDONLY, MPI_INFO_NULL, &store->file);
    if (error != MPI_SUCCESS) {
        store->file = MPI_FILE_NULL;
        note_mpi(trouble, error, "cannot open %.200s", store->path);
    }
}

int64_t store_base(const struct store *store)
{
    return store->base > 0 ? store->base : 0;
}

void store_reserve(struct store *store, int64_t bytes, struct trouble *trouble)
{
    struct statvfs system;
    const char *path = written_path(store);
    int64_t base = store_base(store);
    struct stat about;
    if (bytes > INT64_MAX - base) {
        note(trouble, ISTHMUS_MPI_FILE, "no file has %" PRId64 " bytes from byte %" PRId64 " on, so %.200s cannot", bytes, base,
             store->path);
        return;
    }
    int64_t end = base + bytes;
    if (stat(path, &about) < 0) {
        note_errno(trouble, errno, "cannot look at %.200s", store->path);
        return;
    }
    int64_t more = end - (int64_t)about.st_blocks * 512;
    if (statvfs(path, &system) == 0 && system.f_blocks && more > 0 && !store->holes &&
        (uint64_t)more / (system.f_frsize ? system.f_frsize : 1) > system.f_bavail)
        note(trouble, ISTHMUS_MPI_SPACE,
             "cannot write %.200s: it needs %" PRId64 " bytes, and %" PRIu64 " are free; free some space", store->path, more, (uint64_t)system.f_bavail * system.f_frsize);
    else if (about.st_size < end && truncate(path, end) < 0)
        note_errno(trouble, errno, "cannot give %.200s its length of %" PRId64 " bytes", store->path, end);
}

int64_t store_size(const struct store *store)
{
    return store->is_file ? store->first.st_blksize : 0;
}

void store_read(struct store *store, char *memory, int64_t length, int64_t offset, struct trouble *trouble)
{
    for (int64_t done = 0; done < length;) {
        ssize_t got = ways_act(&store->ways, 0, memory + done, length - done, store->base + offset + done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            note_errno(trouble, errno, "cannot read %.200s at byte %" PRId64, store->path, store->base + offset + done);
        else if (got == 0)
            note(trouble, ISTHMUS_MPI_CHANGED, "%.200s became shorter while it was read", store->path);
        if (got <= 0)
            return;
        done += got;
    }
}

void store_write_all(struct store *store, const char *memory, int64_t length, int64_t offset, struct trouble *trouble)
{
    int64_t base = store_base(store);
    if (offset > INT64_MAX - base - length) {
        note_errno(trouble, EFBIG, "cannot write %.200s", store->path);
        return;
    }
    for (int64_t done = 0; done < length;) {
        int64_t at = base + offset + done;
        ssize_t put = ways_act(&store->ways, 1, (char *)memory + done, length - done, at);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0) {
            note_errno(trouble, put < 0 ? errno : EIO, "cannot write %.200s at byte %" PRId64, store->path, at);
            return;
        }
        done += put;
    }
}

void store_unchanged(const struct store *store, struct trouble *trouble)
{
    struct stat now, by_name;
    const struct stat *then = &store->first;
    int error = store->fd >= 0 ? fstat(store->fd, &now) : stat(store->path, &now);
    int same = error == 0 && now.st_size == then->st_size && now.st_mtim.tv_sec == then->st_mtim.tv_sec &&
               now.st_mtim.tv_nsec == then->st_mtim.tv_nsec && now.st_dev == then->st_dev && now.st_ino == then->st_ino;
    // Another file has the name now, so the data read are not its content.
    if (!same || stat(store->path, &by_name) < 0 || by_name.st_ino != then->st_ino || by_name.st_dev != then->st_dev)
        note(trouble, ISTHMUS_MPI_CHANGED, "%.200s changed while it was read; send it again when nobody writes to it",
             store->path);
}

void store_close(struct store *store, int sync, struct trouble *trouble)
{
    int error;
    if (store->file != MPI_FILE_NULL) {
        if (sync && store->writes && (error = MPI_File_sync(store->file)) != MPI_SUCCESS)
            note_mpi(trouble, error, "cannot bring %.200s to the disk", store->path);
        if ((error = MPI_File_close(&store->file)) != MPI_SUCCESS && store->writes)
            note_mpi(trouble, error, "cannot finish %.200s", store->path);
    }
    if (store->fd >= 0) {
        if (ways_end(&store->ways) < 0 && store->writes)
            note_errno(trouble, errno, "cannot finish %.200s", store->path);
        if (sync && store->writes && fsync(store->fd) < 0)
            note_errno(trouble, errno, "cannot bring %.200s to the disk", store->path);
        if (close(store->fd) < 0 && store->writes)
            note_errno(trouble, errno, "cannot finish %.200s", store->path);
    }
    if (store->log >= 0)
        close(store->log);
    store->fd = store->log = -1;
}

static void sync_folder(const struct store *store, struct trouble *trouble)
{
    char folder[PATH_MAX] = ".";
    int length = folder_len(store->path);
    if (length)
        snprintf(folder, sizeof folder, "%.*s", length, store->path);
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    // Some file systems cannot sync a folder, and need not.
    if (fd < 0 || (fsync(fd) < 0 && errno != EINVAL))
        note_errno(trouble, errno, "cannot bring the folder of %.200s to the disk", store->path);
    if (fd >= 0)
        close(fd);
}

void store_publish(struct store *store, int sync, struct trouble *trouble)
{
    if (store->temporary[0] && rename(store->temporary, store->path) < 0) {
        note_errno(trouble, errno, "cannot give %.200s its name", store->path);
        return;
    }
    store->temporary[0] = 0;
    journal_end(store, 0);
    if (sync)
        sync_folder(store, trouble);
}

void store_leave(struct store *store, int keep)
{
    if (store->writes && store->temporary[0] && !(keep && store->journal[0]))
        unlink(store->temporary);
    journal_end(store, keep && store->temporary[0]);
    store->temporary[0] = 0;
}
