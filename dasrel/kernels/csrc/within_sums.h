/* Included by within_sums.c once for each precision; see precisions.h. */

typedef REAL NAME(lanes) __attribute__((vector_size(LANES * sizeof(REAL)), aligned(sizeof(REAL)), may_alias));
typedef INTEGER NAME(integers) __attribute__((vector_size(LANES * sizeof(REAL)), aligned(sizeof(REAL)), may_alias));
#define WIDE (VECTORS * LANES)

/* Add the sums of a block over pairs with the same label of one partition. `columns` are the labels of the block's
   columns; of columns that do not exist, -1. */
INLINE void NAME(add_pairs)(const REAL *block, const block_order_t *sorted, const INTEGER *columns, double *sums)
{
    int at = 0;
    for (int k = 0; k < sorted->count; k++) {
        NAME(lanes) sum[VECTORS];
        UNROLLED(v, VECTORS) sum[v] = (NAME(lanes)){0};
        for (; at < sorted->end[k]; at++) {
            const NAME(lanes) *row = (const NAME(lanes) *)(block + (long)sorted->order[at] * WIDE);
            UNROLLED(v, VECTORS) sum[v] += row[v];
        }
        const NAME(integers) own = SPLAT(NAME(integers), (INTEGER)sorted->label[k]);
        NAME(lanes) chosen[2] = {{0}, {0}};
        UNROLLED(v, VECTORS) {
            const NAME(integers) same = *(const NAME(integers) *)(columns + v * LANES) == own;
            chosen[v & 1] += (NAME(lanes))((NAME(integers))sum[v] & same);
        }
        chosen[0] += chosen[1];
        double total = 0;
        UNROLLED(lane, LANES) total += (double)chosen[0][lane];
        sums[sorted->label[k]] += total;
    }
}

/* sums[p, k] += the sum of panel[i, j] over all i, j with row_labels[p, i] = column_labels[p, j] = k, for all
   partitions p; labels are from 0 to below `clusters`. Returns 0, with nothing added, if there is no memory. */
VECTOR_CODE int NAME(dasrel_within_sums)(const REAL *panel, long stride, long rows, long columns,
                                         const uint16_t *row_labels, long row_stride, const uint16_t *column_labels,
                                         long column_stride, long partitions, long clusters, double *sums,
                                         long sums_stride)
{
    REAL *block = aligned_alloc(CACHE_LINE, HIGH * WIDE * sizeof(REAL));
    block_order_t *sorted = malloc((size_t)partitions * sizeof(block_order_t));
    int *counts = calloc((size_t)clusters, sizeof(int));
    const int enough = block && sorted && counts;
    for (long i = 0; enough && i < rows; i += HIGH) {
        const long high = rows - i < HIGH ? rows - i : HIGH;
        for (long p = 0; p < partitions; p++)
            order_block(row_labels + p * row_stride + i, high, clusters, counts, sorted + p);
        for (long j = 0; j < columns; j += WIDE) {
            const long wide = columns - j < WIDE ? columns - j : WIDE;
            for (long r = 0; r < high; r++) {
                memcpy(block + r * WIDE, panel + (i + r) * stride + j, (size_t)wide * sizeof(REAL));
                if (wide < WIDE) memset(block + r * WIDE + wide, 0, (size_t)(WIDE - wide) * sizeof(REAL));
            }
            for (long p = 0; p < partitions; p++) {
                const uint16_t *labels = column_labels + p * column_stride + j;
                INTEGER own[WIDE];
                for (long c = 0; c < wide; c++) own[c] = labels[c];
                for (long c = wide; c < WIDE; c++) own[c] = -1;
                NAME(add_pairs)(block, sorted + p, own, sums + p * sums_stride);
            }
        }
    }
    free(block);
    free(sorted);
    free(counts);
    return enough;
}

#undef WIDE
