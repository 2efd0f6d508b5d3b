// Agrees on the version of the protocol that two builds speak.
#include "internal.h"

int32_t common_version(const struct word *own, const struct word *heard)
{
    int64_t own_oldest = (int64_t)own->protocol - PROTOCOL, oldest = (int64_t)heard->protocol - PROTOCOL;
    int64_t newest = heard->newest > oldest ? heard->newest : oldest;
    if (newest > own->newest)
        newest = own->newest;
    return (int32_t)(newest >= oldest && newest >= own_oldest ? newest : 0);
}
