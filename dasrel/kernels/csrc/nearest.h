/* Included by nearest.c once for each precision; see precisions.h. */

typedef REAL NAME(lanes) __attribute__((vector_size(LANES * sizeof(REAL)), aligned(sizeof(REAL)), may_alias));
typedef INTEGER NAME(truths) __attribute__((vector_size(LANES * sizeof(REAL))));
typedef int64_t NAME(words) __attribute__((vector_size(VECTOR_BYTES)));
#define WIDE (VECTORS * LANES)

/* Mark the values of WIDE that are at most that of their row or of their column; return whether there are any. */
INLINE int NAME(mark)(const REAL *values, REAL of_row, const REAL *of_columns, NAME(words) *marks)
{
    NAME(words) any = {0};
    UNROLLED(v, VECTORS) {
        const NAME(lanes) x = *(const NAME(lanes) *)(values + v * LANES);
        const NAME(lanes) most = *(const NAME(lanes) *)(of_columns + v * LANES);
        marks[v] = (NAME(words))((x <= SPLAT(NAME(lanes), of_row)) | (x <= most));
        any |= marks[v];
    }
    int64_t joined = 0;
    UNROLLED(w, VECTOR_BYTES / 8) joined |= any[w];
    return joined != 0;
}

/* Return an upper bound of the k-th smallest of a row's values: that of the minima of WIDE classes of them. */
INLINE REAL NAME(bound)(const REAL *row, long from, long columns, long k)
{
    REAL minima[WIDE];
    if (k > WIDE || columns - from < 2 * WIDE) return (REAL)INFINITY;
    NAME(lanes) least[VECTORS];
    UNROLLED(v, VECTORS) least[v] = *(const NAME(lanes) *)(row + from + v * LANES);
    for (long j = from + WIDE; j + WIDE <= columns; j += WIDE)
        UNROLLED(v, VECTORS) {
            const NAME(lanes) x = *(const NAME(lanes) *)(row + j + v * LANES);
            const NAME(truths) less = x < least[v];
            least[v] = (NAME(lanes))((less & (NAME(truths))x) | (~less & (NAME(truths))least[v]));
        }
    UNROLLED(v, VECTORS) *(NAME(lanes) *)(minima + v * LANES) = least[v];
    REAL sorted[WIDE];
    long count = 0;
    for (long c = 0; c < WIDE; c++) {
        long p = count < k ? count++ : k;
        if (p == k && minima[c] >= sorted[--p]) continue;
        for (; p > 0 && sorted[p - 1] > minima[c]; p--) sorted[p] = sorted[p - 1];
        sorted[p] = minima[c];
    }
    return sorted[k - 1];
}

#define PER_WORD ((long)(8 / sizeof(REAL)))
/* Put one value of row i where it belongs. On the diagonal, a column's list is that of a row to come. */
#define ONE(c)                                                                                                        \
    {                                                                                                                 \
        const REAL x = row[c];                                                                                        \
        if (x <= mine) {                                                                                              \
            insert(values, names, k, x, column_first + column_at[c]);                                                 \
            if ((REAL)values[k - 1] < mine) mine = (REAL)values[k - 1];                                               \
        }                                                                                                             \
        if (x <= most[c]) {                                                                                           \
            double *theirs = column_values + column_at[c] * k;                                                        \
            insert(theirs, column_names + column_at[c] * k, k, x, own);                                               \
            most[c] = (REAL)theirs[k - 1];                                                                            \
        }                                                                                                             \
    }

/* Merge the values of a panel into the k nearest of its rows' objects and of its columns'.

   Row i is the object row_first + row_at[i], and has the list row_at[i] of the rows' lists; columns likewise. A list has
   k values, ascending, and the positions of their objects; of equal values the smaller position is first. On the
   diagonal, both sides being the same objects, only pairs with row < column are used. `most` has room for a number of
   each column. */
VECTOR_CODE void NAME(dasrel_nearest)(const REAL *panel, long stride, long rows, long columns, const int64_t *row_at,
                                      const int64_t *column_at, int64_t row_first, int64_t column_first,
                                      int on_diagonal, long k, double *row_values, int64_t *row_names,
                                      double *column_values, int64_t *column_names, REAL *most)
{
    for (long j = 0; j < columns; j++) most[j] = (REAL)column_values[column_at[j] * k + k - 1];
    for (long i = 0; i < rows; i++) {
        const REAL *row = panel + i * stride;
        const int64_t own = row_first + row_at[i];
        double *values = row_values + row_at[i] * k;
        int64_t *names = row_names + row_at[i] * k;
        long from = 0;
        if (on_diagonal)
            while (from < columns && column_first + column_at[from] <= own) from++;
        REAL mine = (REAL)values[k - 1];
        const REAL bound = NAME(bound)(row, from, columns, k);
        if (bound < mine) mine = bound;
        long j = from;
        for (; j + WIDE <= columns; j += WIDE) {
            NAME(words) marks[VECTORS];
            if (!NAME(mark)(row + j, mine, most + j, marks)) continue;
            for (long w = 0; w < VECTORS * VECTOR_BYTES / 8; w++)
                if (((const int64_t *)marks)[w])
                    for (long c = j + w * PER_WORD; c < j + (w + 1) * PER_WORD; c++) ONE(c)
        }
        for (; j < columns; j++) ONE(j)
    }
}

#undef ONE
#undef PER_WORD
#undef WIDE
