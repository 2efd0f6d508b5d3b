// For programs that are told which figures to find.
#include <string.h>

// Whether a figure's name begins as one of `choices` names does; all are chosen where there are none.
static int is_chosen(const char *name, char **chosen, int choices)
{
    for (int i = 0; i < choices; i++)
        if (strncmp(name, chosen[i], strlen(chosen[i])) == 0)
            return 1;
    return choices == 0;
}
