/* Included by proximity.c once for each precision: REAL, LANES numbers of it in a vector, NAME(x). */

typedef REAL NAME(lanes) __attribute__((vector_size(LANES * sizeof(REAL)), aligned(sizeof(REAL)), may_alias));

INLINE NAME(lanes) NAME(least)(NAME(lanes) a, NAME(lanes) b)
{
    NAME(lanes) least;
    UNROLLED(l, LANES) least[l] = a[l] < b[l] ? a[l] : b[l];
    return least;
}

INLINE double NAME(total)(NAME(lanes) sum)
{
    double total = 0;
    UNROLLED(l, LANES) total += (double)sum[l];
    return total;
}

/* A block of P: rows is (clusters, ROWS), columns (clusters, CHUNK), both packed. */
INLINE void NAME(min_sum)(const REAL *rows, const REAL *columns, long clusters, REAL *out)
{
    for (long j = 0; j < CHUNK; j += LANES) {
        NAME(lanes) sum[ROWS];
        UNROLLED(r, ROWS) sum[r] = (NAME(lanes)){0};
        for (long c = 0; c < clusters; c++) {
            const NAME(lanes) y = *(const NAME(lanes) *)(columns + c * CHUNK + j);
            UNROLLED(r, ROWS) sum[r] += NAME(least)(SPLAT(NAME(lanes), rows[c * ROWS + r]), y);
        }
        UNROLLED(r, ROWS) *(NAME(lanes) *)(out + r * CHUNK + j) = sum[r];
    }
}

/* Copy a block of a kernel, with zeros beyond its edges, and add up its rows, its columns and its squares. */
INLINE double NAME(pack)(const REAL *from, long stride, long high, long wide, REAL *block, double *row_sums,
                         REAL *column_sums)
{
    NAME(lanes) squares = {0};
    for (long r = 0; r < ROWS; r++) {
        REAL *to = block + r * CHUNK;
        const long n = r < high ? wide : 0;
        for (long j = 0; j < n; j++) to[j] = from[r * stride + j];
        for (long j = n; j < CHUNK; j++) to[j] = 0;
        NAME(lanes) sum = {0};
        for (long j = 0; j < CHUNK; j += LANES) {
            const NAME(lanes) x = *(NAME(lanes) *)(to + j);
            sum += x;
            squares += x * x;
            *(NAME(lanes) *)(column_sums + j) += x;
        }
        if (r < high) row_sums[r] += NAME(total)(sum);
    }
    return NAME(total)(squares);
}

/* Add the products of blocks of two kernels with those of TOGETHER partitions. */
INLINE void NAME(dots)(const REAL *first, const REAL *second, const REAL *P, double out[2][TOGETHER])
{
    NAME(lanes) a[TOGETHER], b[TOGETHER];
    UNROLLED(p, TOGETHER) a[p] = b[p] = (NAME(lanes)){0};
    for (long j = 0; j < BLOCK; j += LANES) {
        const NAME(lanes) x = *(const NAME(lanes) *)(first + j), y = *(const NAME(lanes) *)(second + j);
        UNROLLED(p, TOGETHER) {
            const NAME(lanes) z = *(const NAME(lanes) *)(P + p * BLOCK + j);
            a[p] += x * z;
            b[p] += y * z;
        }
    }
    UNROLLED(p, TOGETHER) out[0][p] = NAME(total)(a[p]), out[1][p] = NAME(total)(b[p]);
}

/* Add <K, P> of every kernel and partition to products[w, p], <K, K> to squares[w], <P, P> to own[p], the rows of K to
   row_sums[w, i] and its columns to column_sums[w, j]; the latter may be null.

   K[w, i, j] are the panels of the kernels; U (clusters, rows) and V (clusters, columns) the memberships of its objects,
   those of partition p from first[p] to below first[p + 1]. Returns 0, with nothing added, if there is no memory. */
VECTOR_CODE int NAME(dasrel_alignment)(const REAL *K, long width_stride, long stride, long widths, long rows,
                                       long columns, const REAL *U, long rows_stride, const REAL *V,
                                       long columns_stride, const int64_t *first, long partitions, double *products,
                                       double *squares, double *own, double *row_sums, long row_sums_stride,
                                       double *column_sums, long column_sums_stride)
{
    const long clusters = first[partitions], padded = (partitions + TOGETHER - 1) / TOGETHER * TOGETHER;
    const size_t numbers = (size_t)(clusters * (CHUNK + ROWS) + (padded + widths) * BLOCK + widths * CHUNK);
    REAL *space = aligned_alloc(CACHE_LINE, (numbers * sizeof(REAL) / CACHE_LINE + 1) * CACHE_LINE);
    if (!space) return 0;
    REAL *P = space, *kernels = P + padded * BLOCK, *there = kernels + widths * BLOCK;
    REAL *sums = there + clusters * CHUNK, *here = sums + widths * CHUNK;
    for (long k = partitions * BLOCK; k < padded * BLOCK; k++) P[k] = 0;
    for (long j = 0; j < columns; j += CHUNK) {
        const long wide = columns - j < CHUNK ? columns - j : CHUNK;
        for (long c = 0; c < clusters; c++)
            for (long k = 0; k < CHUNK; k++) there[c * CHUNK + k] = k < wide ? V[c * columns_stride + j + k] : 0;
        for (long k = 0; k < widths * CHUNK; k++) sums[k] = 0;
        for (long i = 0; i < rows; i += ROWS) {
            const long high = rows - i < ROWS ? rows - i : ROWS;
            for (long c = 0; c < clusters; c++)
                for (long r = 0; r < ROWS; r++) here[c * ROWS + r] = r < high ? U[c * rows_stride + i + r] : 0;
            for (long p = 0; p < partitions; p++) {
                REAL *block = P + p * BLOCK;
                NAME(min_sum)(here + first[p] * ROWS, there + first[p] * CHUNK, first[p + 1] - first[p], block);
                NAME(lanes) square = {0};
                for (long k = 0; k < BLOCK; k += LANES) {
                    const NAME(lanes) x = *(const NAME(lanes) *)(block + k);
                    square += x * x;
                }
                own[p] += NAME(total)(square);
            }
            for (long w = 0; w < widths; w++)
                squares[w] += NAME(pack)(K + w * width_stride + i * stride + j, stride, high, wide,
                                         kernels + w * BLOCK, row_sums + w * row_sums_stride + i, sums + w * CHUNK);
            for (long w = 0; w < widths; w += 2) {
                const long two = w + 1 < widths ? w + 1 : w;
                for (long p = 0; p < partitions; p += TOGETHER) {
                    double found[2][TOGETHER];
                    NAME(dots)(kernels + w * BLOCK, kernels + two * BLOCK, P + p * BLOCK, found);
                    for (long k = 0; k < TOGETHER && p + k < partitions; k++) {
                        products[w * partitions + p + k] += found[0][k];
                        if (two > w) products[two * partitions + p + k] += found[1][k];
                    }
                }
            }
            if (column_sums && (i / ROWS % FLUSH == FLUSH - 1 || i + ROWS >= rows))
                for (long w = 0; w < widths; w++)
                    for (long k = 0; k < wide; k++) {
                        column_sums[w * column_sums_stride + j + k] += (double)sums[w * CHUNK + k];
                        sums[w * CHUNK + k] = 0;
                    }
        }
    }
    free(space);
    return 1;
}
