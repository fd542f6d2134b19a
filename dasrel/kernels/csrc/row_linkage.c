/* Rows of a matrix of dissimilarities between clusters, brought up to date after merges.

   Every row has a value for each cluster that existed when it was written. A later merge of clusters a and b changes
   the row at a and b only, and the new value follows from the two old ones (Lance and Williams): rows are updated by
   themselves, and nobody writes into columns. See `clustering/row_rounds.py` for the algorithm.

   Products and sums are rounded one after the other, as NumPy does: the results have the same bits. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "vectors.h"

#if HAVE_VECTORS

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

enum { SINGLE, COMPLETE, AVERAGE, WEIGHTED, WARD };
#define BLOCK 64    /* values among which the smallest is found before the next are looked at */
#define STREAMS 16  /* smallest values that are found side by side */

/* Merges so far, by number: cluster b was merged into a. */
typedef struct {
    const int32_t *a, *b;
    const double *size_a, *size_b; /* before the merge */
    const double *height;          /* the value between them, as it was in the rows */
    long round, count;             /* the first merge of the present round, and all merges */
    const double *before, *after;  /* sizes of all clusters, before and after the present round */
} merges_t;

#define KEPT 16 /* clusters of a list of the nearest; row_linkage.py has the same number */

/* Put a cluster into a list of the nearest, ordered by value, then slot, if it belongs there. */
INLINE void insert(int32_t slot, double value, int32_t *slots, double *values)
{
    int k = KEPT - 1;
    if (value > values[k] || (value == values[k] && slot > slots[k])) return;
    for (; k > 0 && (value < values[k - 1] || (value == values[k - 1] && slot < slots[k - 1])); k--) {
        slots[k] = slots[k - 1];
        values[k] = values[k - 1];
    }
    slots[k] = slot;
    values[k] = value;
}

INLINE void clear(int32_t *slots, double *values)
{
    for (int k = 0; k < KEPT; k++) {
        slots[k] = -1;
        values[k] = INFINITY;
    }
}

#define KERNELS "row_linkage.h"
#include "precisions.h"

#endif
