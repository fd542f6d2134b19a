/* Included by row_linkage.c once for each precision; see precisions.h. */

/* The next larger number. */
INLINE REAL NAME(above)(REAL x)
{
    union { REAL real; BITS bits; } u = {x};
    if (x == 0) u.bits = 1;
    else if (x > 0) u.bits++;
    else u.bits--;
    return u.real;
}

/* The value between the union of a and b and a cluster of size c, from the values x of a and y of b. It is above the
   smaller of x and y unless they are equal, also where rounding would make it so. */
INLINE REAL NAME(join)(int method, REAL x, REAL y, double a, double b, double c, double height)
{
    if (method == SINGLE) return x < y ? x : y;
    if (method == COMPLETE) return x > y ? x : y;
    if (method == AVERAGE) return x + y;
    const double p = (a + c) * x, q = (b + c) * y, h = c * height;
    const double value = method == WEIGHTED ? 0.5 * ((double)x + (double)y) : (p + q - h) / (a + b + c);
    const REAL rounded = (REAL)value, least = x < y ? x : y;
    return rounded <= least && x != y ? NAME(above)(least) : rounded;
}

/* Apply merges to a row of a cluster of this size. They are all over the row: many of them load it first, in order. */
INLINE void NAME(apply)(int method, REAL *x, long wide, double size, const merges_t *m, long first, long last)
{
    if (last - first > wide / 64)
        for (long j = 0; j < wide; j += (long)(64 / sizeof(REAL))) __builtin_prefetch(x + j, 1);
    for (long k = first; k < last; k++) {
        const long a = m->a[k], b = m->b[k];
        x[a] = NAME(join)(method, x[a], x[b], m->size_a[k], m->size_b[k], size, m->height[k]);
        x[b] = (REAL)INFINITY;
    }
}

INLINE REAL NAME(least)(const REAL *x, long n)
{
    REAL stream[STREAMS], least = (REAL)INFINITY;
    for (int s = 0; s < STREAMS; s++) stream[s] = (REAL)INFINITY;
    long j = 0;
    for (; j + STREAMS <= n; j += STREAMS)
        for (int s = 0; s < STREAMS; s++) stream[s] = x[j + s] < stream[s] ? x[j + s] : stream[s];
    for (int s = 0; s < STREAMS; s++) least = stream[s] < least ? stream[s] : least;
    for (; j < n; j++) least = x[j] < least ? x[j] : least;
    return least;
}

/* Find what a block of clusters is compared by, the means of sums or the values, and the smallest of them. */
INLINE double NAME(keys)(int method, const REAL *x, long n, double size, const double *sizes, double *key)
{
    if (method != AVERAGE) {
        for (long k = 0; k < n; k++) key[k] = x[k];
        return NAME(least)(x, n);
    }
    for (long k = 0; k < n; k++) key[k] = (double)x[k] / (size * sizes[k]);
    return least_f64(key, n);
}

/* Put those clusters of a row that are among the KEPT nearest into the list of them. The first slot of the row is
   `start`; `least` is room for the smallest value of each block. Blocks are searched only if their smallest value may be
   in the list: the KEPT-th smallest of these values is an upper bound of all values of the list. */
INLINE void NAME(keep_nearest)(int method, const REAL *x, long wide, double size, const double *sizes, long start,
                               double *least, int32_t *slots, double *values)
{
    double key[BLOCK], bounds[KEPT];
    int32_t blocks[KEPT];
    for (int k = 0; k < KEPT; k++) {
        bounds[k] = values[k];
        blocks[k] = -1;
    }
    for (long j = 0, i = 0; j < wide; j += BLOCK, i++) {
        const long n = wide - j < BLOCK ? wide - j : BLOCK;
        least[i] = method == AVERAGE ? NAME(keys)(method, x + j, n, size, sizes + j, key) : NAME(least)(x + j, n);
        if (least[i] < bounds[KEPT - 1]) insert((int32_t)i, least[i], blocks, bounds);
    }
    for (long j = 0, i = 0; j < wide; j += BLOCK, i++) {
        if (!(least[i] <= bounds[KEPT - 1]) || least[i] == INFINITY) continue;
        const long n = wide - j < BLOCK ? wide - j : BLOCK;
        NAME(keys)(method, x + j, n, size, sizes ? sizes + j : sizes, key);
        for (long k = 0; k < n; k++)
            if (key[k] <= bounds[KEPT - 1] && key[k] < INFINITY) insert((int32_t)(start + j + k), key[k], slots, values);
    }
}

INLINE void NAME(update)(int method, long count, long wide, REAL **rows, REAL **others, const int64_t *from,
                         const int64_t *other_from, const int64_t *merge, const int64_t *slots, const merges_t *m,
                         REAL *kept, double *least, int32_t *near_slots, double *near_values)
{
    for (long t = 0; t < count; t++) {
        REAL *x = rows[t], *y = others[t];
        const long k = merge[t], slot = slots[t];
        double size = m->after[slot];
        if (k < 0) {
            NAME(apply)(method, x, wide, size, m, from[t], m->count);
        } else {
            const double a = m->size_a[k], b = m->size_b[k], height = m->height[k];
            NAME(apply)(method, x, wide, a, m, from[t], k);
            NAME(apply)(method, y, wide, b, m, other_from[t], k);
            /* Merges of this round that come first have changed the sizes of their clusters. */
            for (long p = m->round; p < k; p++) {
                const long c = m->a[p];
                kept[p - m->round] =
                    NAME(join)(method, x[c], y[c], a, b, m->size_a[p] + m->size_b[p], height);
            }
            for (long j = 0; j < wide; j++) x[j] = NAME(join)(method, x[j], y[j], a, b, m->before[j], height);
            for (long p = m->round; p < k; p++) x[m->a[p]] = kept[p - m->round];
            x[m->a[k]] = x[m->b[k]] = (REAL)INFINITY;
            size = a + b;
            NAME(apply)(method, x, wide, size, m, k + 1, m->count);
        }
        clear(near_slots + t * KEPT, near_values + t * KEPT);
        NAME(keep_nearest)(method, x, wide, size, m->after, 0, least, near_slots + t * KEPT, near_values + t * KEPT);
    }
}

/* Bring rows up to date in place, and list the KEPT nearest clusters of each. `from` is the number of merges that a row
   has seen; merge[t] is the number of the merge that joins rows[t] and others[t], or -1. Returns 0, with nothing changed,
   if there is no memory. */
VECTOR_CODE int NAME(dasrel_update_rows)(int method, long count, long wide, REAL **rows, REAL **others,
                                         const int64_t *from, const int64_t *other_from, const int64_t *merge,
                                         const int64_t *slots, const int32_t *a, const int32_t *b,
                                         const double *size_a, const double *size_b, const double *height, long round,
                                         long merged, const double *before, const double *after, int32_t *near_slots,
                                         double *near_values)
{
    const merges_t m = {a, b, size_a, size_b, height, round, merged, before, after};
    double *least = malloc((size_t)(wide / BLOCK + 1) * sizeof(double));
    REAL *kept = malloc((size_t)(merged - round + 1) * sizeof(REAL));
    const int done = least && kept;
#define WITH(method)                                                                                                   \
    NAME(update)(method, count, wide, rows, others, from, other_from, merge, slots, &m, kept, least, near_slots,       \
                 near_values)
    if (done) switch (method) {
    case SINGLE: WITH(SINGLE); break;
    case COMPLETE: WITH(COMPLETE); break;
    case AVERAGE: WITH(AVERAGE); break;
    case WEIGHTED: WITH(WEIGHTED); break;
    default: WITH(WARD); break;
    }
#undef WITH
    free(kept);
    free(least);
    return done;
}

/* Put the nearest of a block of values into the lists of its rows; its first column is slot `start`. Returns 0, with
   nothing changed, if there is no memory. */
VECTOR_CODE int NAME(dasrel_keep_nearest)(long count, long wide, const REAL *x, long start, int32_t *slots,
                                          double *values)
{
    double *least = malloc((size_t)(wide / BLOCK + 1) * sizeof(double));
    if (!least) return 0;
    for (long t = 0; t < count; t++)
        NAME(keep_nearest)(SINGLE, x + t * wide, wide, 1, 0, start, least, slots + t * KEPT, values + t * KEPT);
    free(least);
    return 1;
}
