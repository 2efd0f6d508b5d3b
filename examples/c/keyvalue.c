/* Key-value store: keyvalue        keeps a table; puts come as messages
 *                  keyvalue URI    puts, and gets by reading the table's memory: the server's
 *                                  program has no part in a get. */
#include "common.h"

enum { SLOTS = 4096 };

/* One entry. The sum tells a reader that it was not changed meanwhile. */
struct entry {
    char key[24];
    char value[96];
    uint64_t sum;
};

static uint64_t hash(const void *bytes, size_t len)
{
    uint64_t sum = 14695981039346656037ull;
    for (size_t i = 0; i < len; i++)
        sum = (sum ^ ((const unsigned char *)bytes)[i]) * 1099511628211ull;
    return sum;
}

static uint64_t sum_of(const struct entry *entry)
{
    return hash(entry, offsetof(struct entry, sum));
}

static size_t first_slot(const char *key)
{
    return hash(key, strlen(key)) % SLOTS;
}

static void put_into(struct entry *table, const struct entry *entry)
{
    for (size_t i = 0, at = first_slot(entry->key); i < SLOTS; i++, at = (at + 1) % SLOTS) {
        if (table[at].key[0] == '\0' || strcmp(table[at].key, entry->key) == 0) {
            table[at] = *entry;
            return;
        }
    }
}

static void serve(isthmus_endpoint endpoint)
{
    struct entry *table = calloc(SLOTS, sizeof *table);
    isthmus_region region;
    isthmus_memory handle;
    REQUIRE(table != NULL);
    CHECK(isthmus_register(endpoint, table, SLOTS * sizeof *table, ISTHMUS_REMOTE_READ, &region, &handle));
    tell_uri(endpoint);
    isthmus_connection client = accept_one(endpoint);
    CHECK(isthmus_send(endpoint, client, &handle, sizeof handle, NULL, ISTHMUS_SILENT));
    for (int over = 0; !over;) {
        isthmus_event event;
        CHECK(isthmus_wait_event(endpoint, LIMIT_US, &event));
        over = event.kind == ISTHMUS_EVENT_DISCONNECT;
        if (event.kind == ISTHMUS_EVENT_RECV && event.len == sizeof(struct entry)) {
            struct entry entry;
            memcpy(&entry, event.data, sizeof entry);
            entry.key[sizeof entry.key - 1] = '\0';
            entry.sum = sum_of(&entry);
            put_into(table, &entry);
            CHECK(isthmus_send(endpoint, client, "ok", 2, NULL, ISTHMUS_SILENT));
        }
        CHECK(isthmus_return_event(endpoint, &event));
    }
    CHECK(isthmus_deregister(endpoint, region));
    free(table);
}

struct store {
    isthmus_endpoint endpoint;
    isthmus_connection server;
    isthmus_memory table;
    isthmus_region region;
    struct entry entry; /* what is read comes here */
};

static void put(struct store *store, const char *key, const char *value)
{
    struct entry entry = {0};
    snprintf(entry.key, sizeof entry.key, "%s", key);
    snprintf(entry.value, sizeof entry.value, "%s", value);
    CHECK(isthmus_send(store->endpoint, store->server, &entry, sizeof entry, NULL, ISTHMUS_SILENT));
    isthmus_event event = await_event(store->endpoint, ISTHMUS_EVENT_RECV);
    REQUIRE(event.len == 2);
    CHECK(isthmus_return_event(store->endpoint, &event));
}

/* The value, or null. */
static const char *get(struct store *store, const char *key)
{
    for (size_t i = 0, at = first_slot(key); i < SLOTS; i++, at = (at + 1) % SLOTS) {
        do {
            CHECK(isthmus_read(store->endpoint, store->server, store->region, 0, &store->table,
                               at * sizeof store->entry, sizeof store->entry, NULL, 0, NULL,
                               ISTHMUS_BLOCKING));
            if (store->entry.key[0] == '\0')
                return NULL;
        } while (store->entry.sum != sum_of(&store->entry)); /* just being put */
        if (strcmp(store->entry.key, key) == 0)
            return store->entry.value;
    }
    return NULL;
}

static void use(isthmus_endpoint endpoint, const char *uri)
{
    static struct store store;
    store.endpoint = endpoint;
    store.server = connect_to(endpoint, uri, ISTHMUS_RO);
    isthmus_event event = await_event(endpoint, ISTHMUS_EVENT_RECV);
    REQUIRE(event.len == sizeof store.table);
    memcpy(&store.table, event.data, sizeof store.table);
    CHECK(isthmus_return_event(endpoint, &event));
    CHECK(isthmus_register(endpoint, &store.entry, sizeof store.entry, 0, &store.region, NULL));
    char key[24], value[96];
    for (int i = 0; i < 500; i++) {
        snprintf(key, sizeof key, "key %d", i);
        snprintf(value, sizeof value, "value %d", i * i);
        put(&store, key, value);
    }
    for (int i = 0; i < 500; i++) {
        snprintf(key, sizeof key, "key %d", i);
        snprintf(value, sizeof value, "value %d", i * i);
        const char *found = get(&store, key);
        REQUIRE(found != NULL && strcmp(found, value) == 0);
    }
    REQUIRE(get(&store, "no such key") == NULL);
    /* The table is for reading only. */
    REQUIRE(isthmus_write(endpoint, store.server, store.region, 0, &store.table, 0, 1, NULL, 0, NULL,
                          ISTHMUS_BLOCKING) == ISTHMUS_REMOTE_ACCESS);
    printf("500 values found\n");
    CHECK(isthmus_disconnect(endpoint, store.server));
    CHECK(isthmus_deregister(endpoint, store.region));
}

int main(int argc, char **argv)
{
    isthmus_endpoint endpoint = open_endpoint();
    if (argc > 1)
        use(endpoint, argv[1]);
    else
        serve(endpoint);
    CHECK(isthmus_destroy_endpoint(endpoint));
    return 0;
}
