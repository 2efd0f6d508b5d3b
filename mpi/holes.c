// Files with holes: holes of a source do not cross the network, and zeros are not written, so that the
// copy has holes too.
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

// Zeros are left out in units of this. Bytes; file systems allocate such pages.
enum { STEP = 4096 };

int has_holes(const struct store *store)
{
    return store->is_file && (int64_t)store->first.st_blocks * 512 < store->first.st_size;
}

int store_is_hole(const struct store *store, int64_t length, int64_t offset)
{
    if (!has_holes(store) || store->fd < 0)
        return 0;
    off_t data = lseek(store->fd, store->base + offset, SEEK_DATA);
    return data < 0 ? errno == ENXIO : data >= store->base + offset + length;
}

int is_zero(const char *memory, int64_t length)
{
    return length == 0 || (memory[0] == 0 && memcmp(memory, memory + 1, (size_t)length - 1) == 0);
}

// Leaves zeros out: in a new file that needs nothing, else it punches a hole. Returns whether it succeeded.
static int is_left_out(const struct store *store, int64_t length, int64_t offset)
{
    if (store->holes == HOLES_NEW)
        return 1;
    return fallocate(store->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, length) == 0;
}

static int64_t step_at(int64_t at, int64_t length)
{
    return length - at < STEP ? length - at : STEP;
}

void store_write(struct store *store, const char *memory, int64_t length, int64_t offset, struct trouble *trouble)
{
    if (store->holes == HOLES_NONE) {
        store_write_all(store, memory, length, offset, trouble);
        return;
    }
    for (int64_t at = 0, end; at < length && !trouble->code; at = end) {
        int zero = is_zero(memory + at, step_at(at, length));
        for (end = at + step_at(at, length); end < length && is_zero(memory + end, step_at(end, length)) == zero;)
            end += step_at(end, length);
        if (!zero || !is_left_out(store, end - at, offset + at))
            store_write_all(store, memory + at, end - at, offset + at, trouble);
    }
}
