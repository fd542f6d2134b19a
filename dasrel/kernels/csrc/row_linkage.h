/* Included by row_linkage.c once for each precision: REAL, BITS of the same size, NAME(x). */

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

/* The smallest of all values but one. */
INLINE REAL NAME(least_other)(const REAL *x, long n, long at)
{
    const REAL before = NAME(least)(x, at), after = NAME(least)(x + at + 1, n - at - 1);
    return before < after ? before : after;
}

/* The first of the nearest clusters, its value, and the smallest value of the others. */
INLINE long NAME(nearest)(int method, const REAL *x, long wide, double size, const double *sizes, double *value,
                          double *other)
{
    double best = INFINITY, next = INFINITY, key[BLOCK];
    long at = 0;
    for (long j = 0; j < wide; j += BLOCK) {
        const long n = wide - j < BLOCK ? wide - j : BLOCK;
        if (method == AVERAGE) {
            for (long k = 0; k < n; k++) key[k] = (double)x[j + k] / (size * sizes[j + k]);
            const double least = least_f64(key, n);
            if (least < best) {
                next = best;
                best = least;
                for (at = 0; key[at] != least;) at++;
                const double rest = least_other_f64(key, n, at);
                next = rest < next ? rest : next;
                at += j;
            } else {
                next = least < next ? least : next;
            }
        } else {
            const REAL least = NAME(least)(x + j, n);
            if (least < best) {
                next = best;
                best = least;
                for (at = j; x[at] != least;) at++;
                const REAL rest = NAME(least_other)(x + j, n, at - j);
                next = rest < next ? rest : next;
            } else {
                next = least < next ? least : next;
            }
        }
    }
    *value = best;
    *other = next;
    return at;
}

INLINE void NAME(update)(int method, long count, long wide, REAL **rows, REAL **others, const int64_t *from,
                         const int64_t *other_from, const int64_t *merge, const int64_t *slots, const merges_t *m,
                         REAL *kept, int64_t *nearest, double *value, double *other)
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
        nearest[t] = NAME(nearest)(method, x, wide, size, m->after, value + t, other + t);
    }
}

/* Bring rows up to date in place, and find the nearest cluster of each, and the smallest value of the others. `from` is
   the number of merges that a row has seen; merge[t] is the number of the merge that joins rows[t] and others[t], or
   -1. Returns 0, with nothing changed, if there is no memory. */
VECTOR_CODE int NAME(dasrel_update_rows)(int method, long count, long wide, REAL **rows, REAL **others,
                                         const int64_t *from, const int64_t *other_from, const int64_t *merge,
                                         const int64_t *slots, const int32_t *a, const int32_t *b,
                                         const double *size_a, const double *size_b, const double *height, long round,
                                         long merged, const double *before, const double *after, int64_t *nearest,
                                         double *value, double *other)
{
    const merges_t m = {a, b, size_a, size_b, height, round, merged, before, after};
    REAL *kept = malloc((size_t)(merged - round + 1) * sizeof(REAL));
    if (!kept) return 0;
#define WITH(method) \
    NAME(update)(method, count, wide, rows, others, from, other_from, merge, slots, &m, kept, nearest, value, other)
    switch (method) {
    case SINGLE: WITH(SINGLE); break;
    case COMPLETE: WITH(COMPLETE); break;
    case AVERAGE: WITH(AVERAGE); break;
    case WEIGHTED: WITH(WEIGHTED); break;
    default: WITH(WARD); break;
    }
#undef WITH
    free(kept);
    return 1;
}
