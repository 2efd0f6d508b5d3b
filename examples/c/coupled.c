/* A coupled pair: heat in a rod, one half computed by each of two programs that may be at
 * two sites. Each step they exchange the temperature at the seam.
 *     coupled        the left half; waits for the right one
 *     coupled URI    the right half, which also computes the whole rod by itself, and compares */
#include "common.h"

enum { CELLS = 64, STEPS = 500 };

/* One step of cells[1..count]; cells[0] and cells[count + 1] are their neighbours. */
static void step(double *cells, int count)
{
    double left = cells[0];
    for (int i = 1; i <= count; i++) {
        double here = cells[i];
        cells[i] = here + 0.25 * (left - 2 * here + cells[i + 1]);
        left = here;
    }
}

static double exchange(isthmus_endpoint endpoint, isthmus_connection other, double ours)
{
    double theirs;
    CHECK(isthmus_send(endpoint, other, &ours, sizeof ours, NULL, ISTHMUS_SILENT));
    isthmus_event event = await_event(endpoint, ISTHMUS_EVENT_RECV);
    REQUIRE(event.len == sizeof theirs);
    memcpy(&theirs, event.data, sizeof theirs);
    CHECK(isthmus_return_event(endpoint, &event));
    return theirs;
}

static void left_half(isthmus_endpoint endpoint)
{
    double cells[CELLS + 2] = {100.0}; /* its far end is kept at 100 degrees */
    tell_uri(endpoint);
    isthmus_connection right = accept_one(endpoint);
    for (int i = 0; i < STEPS; i++) {
        cells[CELLS + 1] = exchange(endpoint, right, cells[CELLS]);
        step(cells, CELLS);
    }
    /* The result, for comparison. */
    CHECK(isthmus_send(endpoint, right, cells + 1, CELLS * sizeof *cells, NULL, ISTHMUS_BLOCKING));
    isthmus_event over = await_event(endpoint, ISTHMUS_EVENT_DISCONNECT);
    CHECK(isthmus_return_event(endpoint, &over));
}

static void right_half(isthmus_endpoint endpoint, const char *uri)
{
    double cells[CELLS + 2] = {0}, whole[2 * CELLS + 2] = {100.0};
    isthmus_connection left = connect_to(endpoint, uri, ISTHMUS_RO);
    for (int i = 0; i < STEPS; i++) {
        cells[0] = exchange(endpoint, left, cells[1]);
        step(cells, CELLS);
        step(whole, 2 * CELLS);
    }
    isthmus_event event = await_event(endpoint, ISTHMUS_EVENT_RECV);
    REQUIRE(event.len == CELLS * sizeof *whole);
    REQUIRE(memcmp(event.data, whole + 1, event.len) == 0);
    REQUIRE(memcmp(cells + 1, whole + CELLS + 1, CELLS * sizeof *whole) == 0);
    CHECK(isthmus_return_event(endpoint, &event));
    printf("both halves are those of the whole, bit by bit; %.4f degrees at the seam\n", cells[0]);
    CHECK(isthmus_disconnect(endpoint, left));
}

int main(int argc, char **argv)
{
    isthmus_endpoint endpoint = open_endpoint();
    if (argc > 1)
        right_half(endpoint, argv[1]);
    else
        left_half(endpoint);
    CHECK(isthmus_destroy_endpoint(endpoint));
    return 0;
}
