/* Included by label_sums.c once for each precision; see precisions.h. */

typedef REAL NAME(lanes) __attribute__((vector_size(LANES * sizeof(REAL)), aligned(sizeof(REAL)), may_alias));
#define WIDE (VECTORS * LANES)

/* Copy numbers of `high` objects into a block; `wide` of them each, then zeros. */
INLINE void NAME(pack)(const REAL *panel, long stride, long high, long wide, int transposed, REAL *block)
{
    if (transposed) {
        for (long i0 = 0; i0 < high; i0 += CORNER) {
            const long i1 = i0 + CORNER < high ? i0 + CORNER : high;
            for (long j = 0; j < wide; j++)
                for (long i = i0; i < i1; i++) block[i * WIDE + j] = panel[j * stride + i];
        }
    } else {
        for (long i = 0; i < high; i++)
            for (long j = 0; j < wide; j++) block[i * WIDE + j] = panel[i * stride + j];
    }
    if (wide < WIDE)
        for (long i = 0; i < high; i++)
            for (long j = wide; j < WIDE; j++) block[i * WIDE + j] = 0;
}

/* Add the sums of a block by the labels of one partition. */
INLINE void NAME(add_block)(const REAL *block, const sorted_t *sorted, long wide, double *sums, long sums_stride)
{
    int at = 0;
    for (int k = 0; k < sorted->count; k++) {
        NAME(lanes) sum[VECTORS];
        UNROLLED(v, VECTORS) sum[v] = (NAME(lanes)){0};
        for (; at < sorted->end[k]; at++) {
            const NAME(lanes) *row = (const NAME(lanes) *)(block + (long)sorted->order[at] * WIDE);
            UNROLLED(v, VECTORS) sum[v] += row[v];
        }
        REAL added[WIDE];
        UNROLLED(v, VECTORS) *(NAME(lanes) *)(added + v * LANES) = sum[v];
        double *out = sums + sorted->label[k] * sums_stride;
        for (long j = 0; j < wide; j++) out[j] += added[j];
    }
}

/* sums[labels[p][i], j] += panel[i, j] for all partitions p; transposed: += panel[j, i]. The labels of partition p are
   from first[p] to below first[p + 1]. Returns 0, with nothing added, if there is no memory. */
VECTOR_CODE int NAME(dasrel_label_sums)(const REAL *panel, long stride, long rows, long columns, const int *labels,
                                        long labels_stride, const int64_t *first, long partitions, int transposed,
                                        double *sums, long sums_stride)
{
    const long n = transposed ? columns : rows, across = transposed ? rows : columns;
    const long along = transposed ? 1 : stride, over = transposed ? stride : 1;
    long most = 1;
    for (long p = 0; p < partitions; p++)
        if (first[p + 1] - first[p] > most) most = first[p + 1] - first[p];
    REAL *block = aligned_alloc(CACHE_LINE, HIGH * WIDE * sizeof(REAL));
    sorted_t *sorted = malloc((size_t)partitions * sizeof(sorted_t));
    int *counts = calloc((size_t)most, sizeof(int));
    const int enough = block && sorted && counts;
    for (long i = 0; enough && i < n; i += HIGH) {
        const long high = n - i < HIGH ? n - i : HIGH;
        for (long p = 0; p < partitions; p++)
            sort_labels(labels + p * labels_stride + i, high, first[p], first[p + 1] - first[p], counts, sorted + p);
        for (long j = 0; j < across; j += WIDE) {
            const long wide = across - j < WIDE ? across - j : WIDE;
            NAME(pack)(panel + i * along + j * over, stride, high, wide, transposed, block);
            for (long p = 0; p < partitions; p++)
                NAME(add_block)(block, sorted + p, wide, sums + j, sums_stride);
        }
    }
    free(block);
    free(sorted);
    free(counts);
    return enough;
}

#undef WIDE
