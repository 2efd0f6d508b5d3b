/* RMA pipeline: rma_pipeline        lends memory to a partner, and checks what it writes
 *               rma_pipeline URI    writes block after block, four under way at once, each
 *                                   with a message that follows it; then reads one back. */
#include "common.h"

enum { BLOCK = 1 << 20, DEPTH = 4, BLOCKS = 64 };

/* What follows a block: where it is, and of which round. */
struct note {
    uint32_t slot;
    uint32_t round;
};

static void lend(isthmus_endpoint endpoint)
{
    unsigned char *memory = calloc(DEPTH, BLOCK);
    isthmus_region region;
    isthmus_memory handle;
    REQUIRE(memory != NULL);
    CHECK(isthmus_register(endpoint, memory, (size_t)DEPTH * BLOCK,
                           ISTHMUS_REMOTE_READ | ISTHMUS_REMOTE_WRITE, &region, &handle));
    tell_uri(endpoint);
    isthmus_connection partner = accept_one(endpoint);
    CHECK(isthmus_send(endpoint, partner, &handle, sizeof handle, NULL, ISTHMUS_SILENT));
    for (int block = 0; block < BLOCKS; block++) {
        isthmus_event event = await_event(endpoint, ISTHMUS_EVENT_RECV);
        struct note note;
        REQUIRE(event.len == sizeof note);
        memcpy(&note, event.data, sizeof note);
        CHECK(isthmus_return_event(endpoint, &event));
        REQUIRE(note.slot < DEPTH);
        REQUIRE(is_filled(memory + (size_t)note.slot * BLOCK, BLOCK, note.round));
        /* The slot may be filled again. */
        CHECK(isthmus_send(endpoint, partner, &note, sizeof note, NULL, ISTHMUS_SILENT));
    }
    isthmus_event over = await_event(endpoint, ISTHMUS_EVENT_DISCONNECT);
    CHECK(isthmus_return_event(endpoint, &over));
    CHECK(isthmus_deregister(endpoint, region));
    printf("%d blocks of %d bytes were right\n", BLOCKS, BLOCK);
    free(memory);
}

static void use(isthmus_endpoint endpoint, const char *uri)
{
    unsigned char *memory = calloc(DEPTH, BLOCK);
    isthmus_region region;
    isthmus_memory remote;
    REQUIRE(memory != NULL);
    CHECK(isthmus_register(endpoint, memory, (size_t)DEPTH * BLOCK, 0, &region, NULL));
    isthmus_connection partner = connect_to(endpoint, uri, ISTHMUS_RU);
    isthmus_event event = await_event(endpoint, ISTHMUS_EVENT_RECV);
    REQUIRE(event.len == sizeof remote);
    memcpy(&remote, event.data, sizeof remote);
    CHECK(isthmus_return_event(endpoint, &event));

    int posted = 0, confirmed = 0;
    uint32_t slot = 0;
    while (confirmed < BLOCKS) {
        if (posted < BLOCKS && posted - confirmed < DEPTH) {
            struct note note = {slot, (uint32_t)posted};
            uint64_t at = (uint64_t)slot * BLOCK;
            fill(memory + at, BLOCK, note.round);
            CHECK(isthmus_write(endpoint, partner, region, at, &remote, at, BLOCK, &note,
                                sizeof note, NULL, ISTHMUS_SILENT));
            posted++;
            slot = (slot + 1) % DEPTH;
            continue;
        }
        struct note note;
        event = await_event(endpoint, ISTHMUS_EVENT_RECV);
        memcpy(&note, event.data, sizeof note);
        CHECK(isthmus_return_event(endpoint, &event));
        slot = note.slot;
        confirmed++;
    }
    memset(memory, 0, BLOCK);
    CHECK(isthmus_read(endpoint, partner, region, 0, &remote, 0, BLOCK, NULL, 0, NULL,
                       ISTHMUS_BLOCKING | ISTHMUS_FENCE));
    unsigned round = 0;
    while (round < BLOCKS && !is_filled(memory, BLOCK, round))
        round++;
    REQUIRE(round < BLOCKS);
    /* Beyond the end: refused, and nothing is touched. */
    REQUIRE(isthmus_write(endpoint, partner, region, 0, &remote, (uint64_t)DEPTH * BLOCK - 1, 2, NULL,
                          0, NULL, ISTHMUS_BLOCKING) == ISTHMUS_REMOTE_ACCESS);
    CHECK(isthmus_disconnect(endpoint, partner));
    CHECK(isthmus_deregister(endpoint, region));
    free(memory);
}

int main(int argc, char **argv)
{
    isthmus_endpoint endpoint = open_endpoint();
    if (argc > 1)
        use(endpoint, argv[1]);
    else
        lend(endpoint);
    CHECK(isthmus_destroy_endpoint(endpoint));
    return 0;
}
