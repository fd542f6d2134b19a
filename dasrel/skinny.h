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

/* totals[r][k] += tile[r][c] factors[c][k], summed over c, for `rows` rows and `k` columns, both known when this is
   compiled. `ahead`: rows that are asked for from memory meanwhile, or null; `ahead` and `tile` have the same stride. */
INLINE void NAME(down)(const int rows, const int k, const REAL *tile, long stride, long vectors, const VECTOR *factors,
                       VECTOR *totals, long totals_stride, const REAL *ahead)
{
    VECTOR sum[4][MOST];
    EACH(r, rows) EACH(j, k) sum[r][j] = totals[r * totals_stride + j];
    for (long c = 0; c < vectors; c++, factors += k) {
        VECTOR x[4];
        EACH(r, rows) x[r] = *(const VECTOR *)(tile + r * stride + c * LANES);
        if (ahead && c % 2 == 0) EACH(r, rows) __builtin_prefetch(ahead + r * stride + c * LANES, 0, SECOND_CACHE);
        EACH(j, k) {
            VECTOR factor = factors[j];
            EACH(r, rows) sum[r][j] += x[r] * factor;
        }
    }
    EACH(r, rows) EACH(j, k) totals[r * totals_stride + j] = sum[r][j];
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

/* `high` rows of a piece of the tile with k columns of factors: while a few rows are in the first cache, each way that
   is asked for (totals and across may be null). */
INLINE void NAME(band)(const int k, const REAL *tile, long stride, long high, long vectors, const VECTOR *factors,
                       const REAL *u, long u_stride, VECTOR *totals, long totals_stride, VECTOR *across,
                       const REAL *ahead)
{
    const int at_once = k > 4 ? 2 : k == 4 ? 3 : 4;
    long r = 0;
#define ROWS(rows, ahead)                                                                                             \
    if (totals)                                                                                                       \
        NAME(down)(rows, k, tile + r * stride, stride, vectors, factors, totals + r * totals_stride, totals_stride,   \
                   ahead);                                                                                            \
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
    const long most = k <= 16 ? 4096 : k <= 32 ? 2048 : 1024; /* factors and sums stay in the second cache */
    const long width = columns < most ? (columns + PIECE - 1) / PIECE * PIECE : most;
    VECTOR *factors = aligned_alloc(64, (2 * width + GROUP * LANES) * k * sizeof(REAL));
    VECTOR *sums = factors + width / LANES * k, *totals = sums + width / LANES * k;
    if (!factors) return 0;
    /* Factors and sums lie by pieces of the width, in these by the columns that are taken at once. */
#define EACH_PIECE                                                                                                    \
    for (long p = 0, vectors, m; vectors = (whole - p < PIECE ? whole - p : PIECE) / LANES, p < whole; p += PIECE)
#define EACH_TAKEN for (long j = 0; m = NAME(taken)(k - j), j < k; j += m)
#define AT(lists, p) ((lists) + (p) / LANES * k + vectors * j)
    for (long c0 = 0; c0 < columns; c0 += width) {
        long wide = columns - c0 < width ? columns - c0 : width, whole = wide / LANES * LANES;
        if (down)
            EACH_PIECE EACH_TAKEN
                for (long c = 0; c < vectors; c++)
                    for (long i = 0; i < m; i++)
                        AT(factors, p)[c * m + i] = *(const VECTOR *)(v + (j + i) * v_stride + c0 + p + c * LANES);
        for (long r = 0; r < rows; r += GROUP) {
            long high = rows - r < GROUP ? rows - r : GROUP;
            const REAL *here = tile + r * stride + c0, *ahead = r + 2 * GROUP <= rows ? here + GROUP * stride : 0;
            if (across && r % BLOCK == 0) memset(sums, 0, whole / LANES * k * sizeof(VECTOR));
            if (down) memset(totals, 0, high * k * sizeof(VECTOR));
            EACH_PIECE EACH_TAKEN {
#define BAND(m)                                                                                                       \
    NAME(band)(m, here + p, stride, high, vectors, AT(factors, p), across ? u + j * u_stride + r : 0, u_stride,       \
               down ? totals + j : 0, k, across ? AT(sums, p) : 0, j || !ahead ? 0 : ahead + p)
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
            for (long i = 0; down && i < high; i++)
                for (long j = 0; j < k; j++) down[j * down_stride + r + i] += NAME(total)(totals[i * k + j]);
            if (across && ((r + GROUP) % BLOCK == 0 || r + GROUP >= rows))
                EACH_PIECE EACH_TAKEN
                    for (long i = 0; i < m; i++)
                        for (long c = 0; c < vectors; c++)
                            EACH(l, LANES)
                                across[(j + i) * across_stride + c0 + p + c * LANES + l] += AT(sums, p)[c * m + i][l];
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
#undef EACH_PIECE
#undef EACH_TAKEN
#undef AT
}
#undef VECTOR
