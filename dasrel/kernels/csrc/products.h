/* Included by products.c once for each precision; see precisions.h. */

typedef REAL NAME(vector) __attribute__((vector_size(LANES * sizeof(REAL)), aligned(sizeof(REAL)), may_alias));
#define VECTOR NAME(vector)

INLINE REAL NAME(total)(VECTOR x)
{
    REAL sum[LANES];
    *(VECTOR *)sum = x;
    for (int width = LANES / 2; width; width /= 2)
        UNROLLED(i, width) sum[i] += sum[i + width];
    return sum[0];
}

/* sums[r][j] += the sum over c of tile[r][c] factors[c][j], for `rows` rows and m columns of factors, both known when
   this is compiled. `next`: rows to prefetch meanwhile, or null; they have the tile's stride. */
INLINE void NAME(multiply_along_rows)(const int rows, const int m, const REAL *tile, long stride, long vectors,
                                      const VECTOR *factors, VECTOR *sums, long sums_stride, const REAL *next)
{
    VECTOR sum[4][MOST];
    UNROLLED(r, rows) UNROLLED(j, m) sum[r][j] = sums[r * sums_stride + j];
    for (long c = 0; c < vectors; c++, factors += m) {
        VECTOR x[4];
        UNROLLED(r, rows) x[r] = *(const VECTOR *)(tile + r * stride + c * LANES);
        if (next && c % (CACHE_LINE / VECTOR_BYTES) == 0)
            UNROLLED(r, rows) __builtin_prefetch(next + r * stride + c * LANES, 0, SECOND_CACHE);
        UNROLLED(j, m) {
            VECTOR factor = factors[j];
            UNROLLED(r, rows) sum[r][j] += x[r] * factor;
        }
    }
    UNROLLED(r, rows) UNROLLED(j, m) sums[r * sums_stride + j] = sum[r][j];
}

/* sums[c][j] += the sum over r of tile[r][c] factors[j][r], likewise. */
INLINE void NAME(multiply_along_columns)(const int rows, const int m, const REAL *tile, long stride, long vectors,
                                         const REAL *factors, long factors_stride, VECTOR *sums)
{
    VECTOR factor[4][MOST];
    UNROLLED(r, rows) UNROLLED(j, m) factor[r][j] = SPLAT(VECTOR, factors[j * factors_stride + r]);
    for (long c = 0; c < vectors; c++, sums += m) {
        VECTOR x[4];
        UNROLLED(r, rows) x[r] = *(const VECTOR *)(tile + r * stride + c * LANES);
        UNROLLED(j, m) {
            VECTOR sum = sums[j];
            UNROLLED(r, rows) sum += x[r] * factor[r][j];
            sums[j] = sum;
        }
    }
}

/* A piece of a group: `height` rows and `vectors` vectors of columns, multiplied by m columns of factors. A few rows at
   a time are multiplied both ways while they are in the first cache; either way is left out where its sums are null. */
INLINE void NAME(multiply_piece)(const int m, const REAL *tile, long stride, long height, long vectors,
                                 const VECTOR *column_factors, const REAL *row_factors, long row_factors_stride,
                                 VECTOR *row_sums, long row_sums_stride, VECTOR *column_sums, const REAL *next)
{
    const int at_once = m > 4 ? 2 : m == 4 ? 3 : 4;
    long r = 0;
#define MULTIPLY(rows, next)                                                                                          \
    if (row_sums)                                                                                                     \
        NAME(multiply_along_rows)(rows, m, tile + r * stride, stride, vectors, column_factors,                        \
                                  row_sums + r * row_sums_stride, row_sums_stride, next);                             \
    if (column_sums)                                                                                                  \
        NAME(multiply_along_columns)(rows, m, tile + r * stride, stride, vectors, row_factors + r,                    \
                                     row_factors_stride, column_sums);
    if (next)
        for (; r + at_once <= height; r += at_once) { MULTIPLY(at_once, next + r * stride) }
    for (; r + at_once <= height; r += at_once) { MULTIPLY(at_once, 0) }
    for (; r < height; r++) { MULTIPLY(1, 0) }
#undef MULTIPLY
}

/* How many of the columns of factors that are left make the next batch. */
static inline long NAME(batch)(long left) { return left <= MOST ? left : left == 9 ? 5 : 4; }

/* How many vectors there are in the piece that begins at a column, of a strip of `width` columns in whole vectors. */
static inline long NAME(piece_vectors)(long column, long width)
{
    return (width - column < PIECE ? width - column : PIECE) / LANES;
}

/* Where a batch of a piece is packed: `column` is where the piece begins, j the first column of factors. */
static inline VECTOR *NAME(packed)(VECTOR *lists, long column, long vectors, long k, long j)
{
    return lists + column / LANES * k + vectors * j;
}

/* Pack the factors of a strip's columns. */
INLINE void NAME(pack_factors)(VECTOR *lists, long width, long k, const REAL *factors, long stride)
{
    for (long p = 0; p < width; p += PIECE) {
        const long vectors = NAME(piece_vectors)(p, width);
        for (long j = 0, m; j < k; j += m) {
            m = NAME(batch)(k - j);
            VECTOR *list = NAME(packed)(lists, p, vectors, k, j);
            for (long c = 0; c < vectors; c++)
                for (long i = 0; i < m; i++)
                    list[c * m + i] = *(const VECTOR *)(factors + (j + i) * stride + p + c * LANES);
        }
    }
}

/* Add the packed sums of a strip's columns to the sums in double. */
INLINE void NAME(add_packed_sums)(VECTOR *lists, long width, long k, double *sums, long stride)
{
    for (long p = 0; p < width; p += PIECE) {
        const long vectors = NAME(piece_vectors)(p, width);
        for (long j = 0, m; j < k; j += m) {
            m = NAME(batch)(k - j);
            const VECTOR *list = NAME(packed)(lists, p, vectors, k, j);
            for (long i = 0; i < m; i++)
                for (long c = 0; c < vectors; c++)
                    UNROLLED(l, LANES) sums[(j + i) * stride + p + c * LANES + l] += list[c * m + i][l];
        }
    }
}

/* row_sums (k, rows) += column_factors tile' and column_sums (k, columns) += row_factors tile, each unless its sums are
   null; strides are in numbers. 1 if it is done, 0 if there was no memory for it. */
VECTOR_CODE int NAME(dasrel_add_products)(const REAL *tile, long stride, long rows, long columns, long k,
                                          const REAL *row_factors, long row_factors_stride,
                                          const REAL *column_factors, long column_factors_stride, double *row_sums,
                                          long row_sums_stride, double *column_sums, long column_sums_stride)
{
    const long most = k <= 16 ? 4096 : k <= 32 ? 2048 : 1024; /* factors and sums stay in the second cache */
    const long strip = columns < most ? (columns + PIECE - 1) / PIECE * PIECE : most;
    if (!rows || !columns || !k) return 1;
    VECTOR *factors = aligned_alloc(CACHE_LINE, (size_t)((2 * strip + GROUP * LANES) * k) * sizeof(REAL));
    if (!factors) return 0;
    VECTOR *sums = factors + strip / LANES * k, *totals = sums + strip / LANES * k;
    for (long c0 = 0; c0 < columns; c0 += strip) {
        const long wide = columns - c0 < strip ? columns - c0 : strip, width = wide / LANES * LANES;
        if (row_sums) NAME(pack_factors)(factors, width, k, column_factors + c0, column_factors_stride);
        for (long r = 0; r < rows; r += GROUP) {
            const long height = rows - r < GROUP ? rows - r : GROUP;
            const REAL *here = tile + r * stride + c0, *next = r + 2 * GROUP <= rows ? here + GROUP * stride : 0;
            if (column_sums && r % BLOCK == 0) memset(sums, 0, (size_t)(width / LANES * k) * sizeof(VECTOR));
            if (row_sums) memset(totals, 0, (size_t)(height * k) * sizeof(VECTOR));
            for (long p = 0; p < width; p += PIECE) {
                const long vectors = NAME(piece_vectors)(p, width);
                for (long j = 0, m; j < k; j += m) {
                    m = NAME(batch)(k - j);
#define MULTIPLY_BATCH(m)                                                                                             \
    NAME(multiply_piece)(m, here + p, stride, height, vectors, NAME(packed)(factors, p, vectors, k, j),               \
                         column_sums ? row_factors + j * row_factors_stride + r : 0, row_factors_stride,              \
                         row_sums ? totals + j : 0, k, column_sums ? NAME(packed)(sums, p, vectors, k, j) : 0,        \
                         j || !next ? 0 : next + p)
                    switch (m) {
                    case 1: MULTIPLY_BATCH(1); break;
                    case 2: MULTIPLY_BATCH(2); break;
                    case 3: MULTIPLY_BATCH(3); break;
                    case 4: MULTIPLY_BATCH(4); break;
                    case 5: MULTIPLY_BATCH(5); break;
                    default: MULTIPLY_BATCH(6);
                    }
#undef MULTIPLY_BATCH
                }
            }
            for (long i = 0; row_sums && i < height; i++)
                for (long j = 0; j < k; j++) row_sums[j * row_sums_stride + r + i] += NAME(total)(totals[i * k + j]);
            if (column_sums && ((r + GROUP) % BLOCK == 0 || r + GROUP >= rows))
                NAME(add_packed_sums)(sums, width, k, column_sums + c0, column_sums_stride);
        }
        for (long c = c0 + width; c < c0 + wide; c++) /* the tail */
            for (long r = 0; r < rows; r++) {
                const REAL x = tile[r * stride + c];
                for (long j = 0; j < k; j++) {
                    if (row_sums)
                        row_sums[j * row_sums_stride + r] += x * column_factors[j * column_factors_stride + c];
                    if (column_sums)
                        column_sums[j * column_sums_stride + c] += x * row_factors[j * row_factors_stride + r];
                }
            }
    }
    free(factors);
    return 1;
}
#undef VECTOR
