/* Included by skinny.c once for each precision: REAL, LANES numbers of it in a vector, BROADCAST, NAME(x). */

typedef REAL NAME(vector) __attribute__((vector_size(LANES * sizeof(REAL)), aligned(sizeof(REAL)), may_alias));
#define VECTOR NAME(vector)

INLINE REAL NAME(total)(VECTOR x)
{
    REAL sum[LANES];
    *(VECTOR *)sum = x;
    for (int width = LANES / 2; width; width /= 2)
        EACH(i, width) sum[i] += sum[i + width];
    return sum[0];
}

/* down[k][r] += sum_c tile[r][c] factors[c][k] for `rows` rows and `k` columns, both known when this is compiled.
   `ahead`: rows that are asked for from memory meanwhile, or null. */
INLINE void NAME(down)(const int rows, const int k, const REAL *tile, long stride, long vectors, const VECTOR *factors,
                       double *down, long down_stride, const REAL *ahead)
{
    VECTOR sum[4][MOST];
    EACH(r, rows) EACH(j, k) sum[r][j] = (VECTOR){0};
    for (long c = 0; c < vectors; c++, factors += k) {
        VECTOR x[4];
        EACH(r, rows) x[r] = *(const VECTOR *)(tile + r * stride + c * LANES);
        if (ahead) EACH(r, rows) __builtin_prefetch(ahead + r * stride + c * LANES);
        EACH(j, k) {
            VECTOR factor = factors[j];
            EACH(r, rows) sum[r][j] += x[r] * factor;
        }
    }
    EACH(r, rows) EACH(j, k) down[j * down_stride + r] += NAME(total)(sum[r][j]);
}

/* across[c][k] += sum_r tile[r][c] u[k][r], likewise. */
INLINE void NAME(across)(const int rows, const int k, const REAL *tile, long stride, long vectors, const REAL *u,
                         long u_stride, VECTOR *across)
{
    VECTOR factor[4][MOST];
    EACH(r, rows) EACH(j, k) factor[r][j] = (VECTOR)BROADCAST(u + j * u_stride + r);
    for (long c = 0; c < vectors; c++, across += k) {
        VECTOR x[4];
        EACH(r, rows) x[r] = *(const VECTOR *)(tile + r * stride + c * LANES);
        EACH(j, k) {
            VECTOR sum = across[j];
            EACH(r, rows) sum += x[r] * factor[r][j];
            across[j] = sum;
        }
    }
}

/* `high` rows of the tile with k columns of factors: while a few rows are in the first cache, each way that is asked
   for (down and across may be null). */
INLINE void NAME(band)(const int k, const REAL *tile, long stride, long high, long vectors, const VECTOR *factors,
                       const REAL *u, long u_stride, double *down, long down_stride, VECTOR *across, const REAL *ahead)
{
    const int at_once = k > 4 ? 2 : k == 4 ? 3 : 4;
    long r = 0;
#define ROWS(rows, ahead)                                                                                             \
    if (down) NAME(down)(rows, k, tile + r * stride, stride, vectors, factors, down + r, down_stride, ahead);         \
    if (across) NAME(across)(rows, k, tile + r * stride, stride, vectors, u + r, u_stride, across);
    if (ahead)
        for (; r + at_once <= high; r += at_once) { ROWS(at_once, ahead + r * stride) }
    for (; r + at_once <= high; r += at_once) { ROWS(at_once, 0) }
    for (; r < high; r++) { ROWS(1, 0) }
#undef ROWS
}

/* How many of the columns that are left are taken at once. */
static inline long NAME(taken)(long left) { return left <= MOST ? left : left == 9 ? 5 : 4; }

/* down (k, rows) += v tile' and across (k, columns) += u tile, each unless it is null; strides in numbers.
   1 if it is done, 0 if there was no memory for it. */
__attribute__((target("avx2,fma"))) int NAME(dasrel_products)(
    const REAL *tile, long stride, long rows, long columns, long k, const REAL *u, long u_stride, const REAL *v,
    long v_stride, double *down, long down_stride, double *across, long across_stride)
{
    VECTOR *factors = aligned_alloc(64, 2 * WIDTH * k * sizeof(REAL)), *sums = factors + WIDTH / LANES * k;
    if (!factors) return 0;
    for (long c0 = 0; c0 < columns; c0 += WIDTH) {
        long wide = columns - c0 < WIDTH ? columns - c0 : WIDTH, vectors = wide / LANES, whole = vectors * LANES;
        for (long j = 0, m; down && j < k; j += m) {
            m = NAME(taken)(k - j);
            for (long c = 0; c < vectors; c++)
                for (long i = 0; i < m; i++)
                    factors[vectors * j + c * m + i] = *(const VECTOR *)(v + (j + i) * v_stride + c0 + c * LANES);
        }
        for (long r = 0; r < rows; r += GROUP) {
            if (across && r % BLOCK == 0) memset(sums, 0, vectors * k * sizeof(VECTOR));
            long high = rows - r < GROUP ? rows - r : GROUP;
            const REAL *here = tile + r * stride + c0, *ahead = r + 2 * GROUP <= rows ? here + GROUP * stride : 0;
            for (long j = 0, m; j < k; j += m) {
                m = NAME(taken)(k - j);
#define BAND(m)                                                                                                       \
    NAME(band)(m, here, stride, high, vectors, factors + vectors * j, across ? u + j * u_stride + r : 0, u_stride,    \
               down ? down + j * down_stride + r : 0, down_stride, across ? sums + vectors * j : 0, j ? 0 : ahead)
                switch (m) {
                case 1: BAND(1); break;
                case 2: BAND(2); break;
                case 3: BAND(3); break;
                case 4: BAND(4); break;
                case 5: BAND(5); break;
                default: BAND(6);
                }
#undef BAND
            }
            if (across && ((r + GROUP) % BLOCK == 0 || r + GROUP >= rows))
                for (long j = 0, m; j < k; j += m) {
                    m = NAME(taken)(k - j);
                    for (long i = 0; i < m; i++)
                        for (long c = 0; c < vectors; c++)
                            EACH(l, LANES)
                                across[(j + i) * across_stride + c0 + c * LANES + l] += sums[vectors * j + c * m + i][l];
                }
        }
        for (long c = c0 + whole; c < c0 + wide; c++) /* fewer than a vector: at the edge of a matrix */
            for (long r = 0; r < rows; r++) {
                REAL x = tile[r * stride + c];
                for (long j = 0; j < k; j++) {
                    if (down) down[j * down_stride + r] += x * v[j * v_stride + c];
                    if (across) across[j * across_stride + c] += x * u[j * u_stride + r];
                }
            }
    }
    free(factors);
    return 1;
}
#undef VECTOR
