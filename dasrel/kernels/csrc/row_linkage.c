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
#define BLOCK 256   /* values among which the smallest is found before the next are looked at */
#define STREAMS 16  /* smallest values that are found side by side */

/* Merges so far, by number: cluster b was merged into a. */
typedef struct {
    const int32_t *a, *b;
    const double *size_a, *size_b; /* before the merge */
    const double *height;          /* the value between them, as it was in the rows */
    long round, count;             /* the first merge of the present round, and all merges */
    const double *before, *after;  /* sizes of all clusters, before and after the present round */
} merges_t;

#define REAL double
#define BITS uint64_t
#define NAME(x) x##_f64
#include "row_linkage.h"
#undef REAL
#undef BITS
#undef NAME

#define REAL float
#define BITS uint32_t
#define NAME(x) x##_f32
#include "row_linkage.h"

#endif
