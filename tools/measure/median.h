// For programs that measure in batches.
#include <stdlib.h>

static int by_value(const void *left, const void *right)
{
    double difference = *(const double *)left - *(const double *)right;
    return (difference > 0) - (difference < 0);
}

// The median of some values, which are sorted by it.
static double median(double *values, size_t count)
{
    qsort(values, count, sizeof values[0], by_value);
    return values[count / 2];
}
