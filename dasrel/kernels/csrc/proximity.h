/* Included by proximity.c once for each precision; see precisions.h. */

typedef REAL NAME(lanes) __attribute__((vector_size(LANES * sizeof(REAL)), aligned(sizeof(REAL)), may_alias));

INLINE NAME(lanes) NAME(least)(NAME(lanes) a, NAME(lanes) b)
{
    NAME(lanes) least;
    UNROLLED(l, LANES) least[l] = a[l] < b[l] ? a[l] : b[l];
    return least;
}

/* Sums of LANES streams in double: those of a block are added to them without being added to each other. */
typedef double NAME(streams) __attribute__((vector_size(LANES * sizeof(double)), aligned(sizeof(double)), may_alias));

INLINE void NAME(collect)(double *streams, NAME(lanes) sum)
{
    *(NAME(streams) *)streams += __builtin_convertvector(sum, NAME(streams));
}

INLINE double NAME(total)(const double *streams)
{
    double total = 0;
    for (int l = 0; l < LANES; l++) total += streams[l];
    return total;
}

/* A block of P, and its squares: rows is (clusters, ROWS), columns (clusters, CHUNK), both packed. */
INLINE void NAME(min_sum)(const REAL *rows, const REAL *columns, long clusters, REAL *out, double *squares)
{
    NAME(lanes) square = {0};
    for (long j = 0; j < CHUNK; j += LANES) {
        NAME(lanes) sum[ROWS];
        UNROLLED(r, ROWS) sum[r] = (NAME(lanes)){0};
        for (long c = 0; c < clusters; c++) {
            const NAME(lanes) y = *(const NAME(lanes) *)(columns + c * CHUNK + j);
            UNROLLED(r, ROWS) sum[r] += NAME(least)(SPLAT(NAME(lanes), rows[c * ROWS + r]), y);
        }
        UNROLLED(r, ROWS) {
            *(NAME(lanes) *)(out + r * CHUNK + j) = sum[r];
            square += sum[r] * sum[r];
        }
    }
    NAME(collect)(squares, square);
}

/* Make a block of a kernel, with zeros beyond its edges, and add up its rows, its columns and its squares. */
INLINE void NAME(pack)(const REAL *from, long stride, long high, long wide, const gaussian_t *gaussian, REAL *block,
                       double *row_sums, REAL *column_sums, double *squares)
{
    NAME(lanes) square = {0};
    for (long r = 0; r < ROWS; r++) {
        REAL *to = block + r * CHUNK, edge[CHUNK];
        const REAL *row = from + r * stride;
        const long n = r < high ? wide : 0;
        if (n < CHUNK) {
            for (long j = 0; j < CHUNK; j++) edge[j] = j < n ? row[j] : 0;
            row = edge;
        }
        for (long j = 0; j < CHUNK; j += LANES)
            *(NAME(lanes) *)(to + j) = NAME(seen)(*(const NAME(lanes) *)(row + j), gaussian);
        for (long j = n; j < CHUNK; j++) to[j] = 0;
        NAME(lanes) sum = {0};
        for (long j = 0; j < CHUNK; j += LANES) {
            const NAME(lanes) x = *(const NAME(lanes) *)(to + j);
            sum += x;
            square += x * x;
            *(NAME(lanes) *)(column_sums + j) += x;
        }
        if (r < high) NAME(collect)(row_sums + r * LANES, sum);
    }
    NAME(collect)(squares, square);
}

/* Add the products of blocks of two kernels with those of TOGETHER partitions to streams. */
INLINE void NAME(dots)(const REAL *first, const REAL *second, const REAL *P, double *to_first, double *to_second)
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
    UNROLLED(p, TOGETHER) NAME(collect)(to_first + p * LANES, a[p]);
    if (to_second) UNROLLED(p, TOGETHER) NAME(collect)(to_second + p * LANES, b[p]);
}

/* Add <K, P> of every kernel and partition to products[w, p], <K, K> to squares[w], <P, P> to own[p], the rows of K to
   row_sums[w, i] and its columns to column_sums[w, j]; the latter may be null.

   K[w, i, j] are the panels of the kernels. With `factors`, in float32 only, K[i, j] are numbers x, and the kernels are
   exp(factors[w] x), or exp(factors[w] x^2) if `squared`. U (clusters, rows) and V (clusters, columns) are the
   memberships of the objects, those of partition p from first[p] to below first[p + 1]. Returns 0, with nothing added,
   if there is no memory. */
VECTOR_CODE int NAME(dasrel_alignment)(const REAL *K, long width_stride, long stride, long widths, long rows,
                                       long columns, const float *factors, int squared, const REAL *U,
                                       long rows_stride, const REAL *V, long columns_stride, const int64_t *first,
                                       long partitions, double *products,
                                       double *squares, double *own, double *row_sums, long row_sums_stride,
                                       double *column_sums, long column_sums_stride)
{
    const long clusters = first[partitions], padded = (partitions + TOGETHER - 1) / TOGETHER * TOGETHER;
    const long streams = widths * (padded + 1 + rows) + partitions;
    const size_t numbers = (size_t)(clusters * (CHUNK + ROWS) + (padded + widths) * BLOCK + widths * CHUNK);
    REAL *P = calloc(numbers, sizeof(REAL));
    double *dot = calloc((size_t)(streams * LANES), sizeof(double));
    if (!P || !dot) {
        free(P), free(dot);
        return 0;
    }
    REAL *kernels = P + padded * BLOCK, *there = kernels + widths * BLOCK;
    REAL *sums = there + clusters * CHUNK, *here = sums + widths * CHUNK;
    double *square = dot + widths * padded * LANES, *line = square + widths * LANES;
    double *mine = line + widths * rows * LANES;
    for (long j = 0; j < columns; j += CHUNK) {
        const long wide = columns - j < CHUNK ? columns - j : CHUNK;
        for (long c = 0; c < clusters; c++)
            for (long k = 0; k < CHUNK; k++) there[c * CHUNK + k] = k < wide ? V[c * columns_stride + j + k] : 0;
        for (long i = 0; i < rows; i += ROWS) {
            const long high = rows - i < ROWS ? rows - i : ROWS;
            for (long c = 0; c < clusters; c++)
                for (long r = 0; r < ROWS; r++) here[c * ROWS + r] = r < high ? U[c * rows_stride + i + r] : 0;
            for (long p = 0; p < partitions; p++)
                NAME(min_sum)(here + first[p] * ROWS, there + first[p] * CHUNK, first[p + 1] - first[p],
                              P + p * BLOCK, mine + p * LANES);
            for (long w = 0; w < widths; w++) {
                const gaussian_t gaussian = {factors ? factors[w] : 0, factors != 0, squared};
                NAME(pack)(K + w * width_stride + i * stride + j, stride, high, wide, &gaussian, kernels + w * BLOCK,
                           line + (w * rows + i) * LANES, sums + w * CHUNK, square + w * LANES);
            }
            for (long w = 0; w < widths; w += 2) {
                const int two = w + 1 < widths;
                for (long p = 0; p < padded; p += TOGETHER) {
                    double *to = dot + (w * padded + p) * LANES;
                    NAME(dots)(kernels + w * BLOCK, kernels + (w + two) * BLOCK, P + p * BLOCK, to,
                               two ? to + padded * LANES : 0);
                }
            }
            if (i / ROWS % FLUSH == FLUSH - 1 || i + ROWS >= rows)
                for (long w = 0; w < widths; w++)
                    for (long k = 0; k < CHUNK; k++) {
                        if (column_sums && k < wide)
                            column_sums[w * column_sums_stride + j + k] += (double)sums[w * CHUNK + k];
                        sums[w * CHUNK + k] = 0;
                    }
        }
    }
    for (long p = 0; p < partitions; p++) own[p] += NAME(total)(mine + p * LANES);
    for (long w = 0; w < widths; w++) {
        squares[w] += NAME(total)(square + w * LANES);
        for (long p = 0; p < partitions; p++)
            products[w * partitions + p] += NAME(total)(dot + (w * padded + p) * LANES);
        for (long i = 0; i < rows; i++)
            row_sums[w * row_sums_stride + i] += NAME(total)(line + (w * rows + i) * LANES);
    }
    free(P), free(dot);
    return 1;
}
