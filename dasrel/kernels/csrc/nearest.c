/* The k nearest neighbours of objects, from panels of dissimilarities.

   Nearly all values of a panel are larger than the k-th smallest that is known of their row and of their column: vectors
   are compared with both, and only the others are looked at one by one. Lists are ordered by (value, position), so that
   they do not depend on the order in which panels come. */

#include <math.h>
#include <stdint.h>

#include "vectors.h"

#if HAVE_VECTORS

#define VECTORS 4 /* vectors that are compared together */

/* Put a value into an ascending list of k, if it belongs there. Infinite values have no position. */
INLINE void insert(double *values, int64_t *names, long k, double x, int64_t name)
{
    long p = k - 1;
    if (!(x < values[p] || (x == values[p] && name < names[p])) || !(x < INFINITY)) return;
    for (; p > 0 && (x < values[p - 1] || (x == values[p - 1] && name < names[p - 1])); p--) {
        values[p] = values[p - 1];
        names[p] = names[p - 1];
    }
    values[p] = x;
    names[p] = name;
}

#define KERNELS "nearest.h"
#include "precisions.h"

/* Merge two sets of lists of k into a third, by (value, position). */
VECTOR_CODE void dasrel_merge_nearest(long lists, long k, const double *first_values, const int64_t *first_names,
                                      const double *second_values, const int64_t *second_names, double *values,
                                      int64_t *names)
{
    for (long i = 0; i < lists * k; i += k) {
        long a = i, b = i;
        for (long p = i; p < i + k; p++) {
            const double x = first_values[a], y = second_values[b];
            const int first = x < y || (x == y && first_names[a] <= second_names[b]);
            values[p] = first ? x : y;
            names[p] = first ? first_names[a++] : second_names[b++];
        }
    }
}

#endif
