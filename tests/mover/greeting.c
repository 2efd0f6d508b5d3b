// Which version of the mover's protocol two builds speak, by what their ranks 0 say first. Needs no MPI to run.
#define NAME "greeting"
#include "alone.h"

#include "../../mpi/version.c"

#include <string.h>

// What a build says that speaks these versions; newest 0: as the first release said it.
static struct word said(int oldest, int newest)
{
    return (struct word){.protocol = (uint32_t)(PROTOCOL + oldest), .newest = newest};
}

static int agreed(struct word own, struct word heard)
{
    return common_version(&own, &heard);
}

int main(void)
{
    struct word release = said(4, 0), own = said(OLDEST, NEWEST), later = said(OLDEST, NEWEST + 1);
    // The word that release 0.2.0 began with: "4MSI", then what it says of the transfer.
    static const unsigned char recorded[8] = {0x34, 0x4d, 0x53, 0x49, OFFER};
    CHECK(sizeof(struct word) == 464 && offsetof(struct word, newest) == 20, "the word's layout is another");
    CHECK(memcmp(&(struct word){.protocol = PROTOCOL + 4, .kind = OFFER}, recorded, sizeof recorded) == 0, "begins otherwise");
    CHECK(agreed(own, release) == 4, "the release is not understood");
    CHECK(agreed(own, own) == NEWEST, "the own version");
    CHECK(agreed(own, later) == NEWEST && agreed(later, own) == NEWEST, "a build that speaks one version more");
    CHECK(agreed(later, release) == 4, "a later build and the release");
    CHECK(agreed(own, said(NEWEST + 1, NEWEST + 2)) == 0, "one that is too new");
    CHECK(agreed(said(5, 6), release) == 0, "one that is too old");
    CHECK(agreed(own, (struct word){.protocol = 7}) == 0, "something else");
    CHECK(agreed(own, said(OLDEST, -1)) == OLDEST, "nonsense for the newest");
    printf("OK greeting: versions %d to %d\n", OLDEST, NEWEST);
    return 0;
}
