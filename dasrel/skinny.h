/* Included by skinny.c once for each precision: REAL, LANES numbers of it in a vector, NAME(x). */

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
   `ahead`: rows that are asked for from memory meanwhile, or 0. */
INLINE void NAME(down)(const int rows, const int k, const REAL *tile, long stride, long vectors, const VECTOR *factors,
                       double *down, long down_stride, const long ahead)
{
    VECTOR sum[4][MOST];
    EACH(r, rows) EACH(j, k) sum[r][j] = (VECTOR){0};
    for (long c = 0; c < vectors; c++, factors += k) {
        VECTOR x[4];
        EACH(r, rows) x[r] = *(const VECTOR *)(tile + r * stride + c * LANES);
        if (ahead) EACH(r, rows) __builtin_prefetch(tile + (r + ahead) * stride + c * LANES, 0, 2);
        EACH(j, k) {
            VECTOR factor = factors[j];
            EACH(r, rows) sum[r][j] += x[r] * factor;
        }
    }
    EACH(r, rows) EACH(j, k) down[j * down_stride + r] += NAME(total)(sum[r][j]);
}

/* across[c][k] += sum_r tile[r][c] factors[r][k], likewise. */
INLINE void NAME(across)(const int rows, const int k, const REAL *tile, long stride, long vectors, const REAL *factors,
                         VECTOR *across)
{
    VECTOR factor[4][MOST];
    EACH(r, rows) EACH(j, k) factor[r][j] = (VECTOR){0} + factors[r * k + j];
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

/* One block, `high` rows by `wide` columns, with k columns of factors: u (k, high) and v (k, wide). */
INLINE void NAME(block)(const int k, const REAL *tile, long stride, long high, long wide, const REAL *u, long u_stride,
                        const REAL *v, long v_stride, double *down, long down_stride, double *across,
                        long across_stride, int first)
{
    const int at_once = k == 4 ? 3 : 4;
    const long vectors = wide / LANES, whole = vectors * LANES, groups = high / at_once * at_once;
    VECTOR columns[WIDTH / LANES * MOST];
    for (long c = 0; c < vectors; c++)
        EACH(j, k) columns[c * k + j] = *(const VECTOR *)(v + j * v_stride + c * LANES);
    if (first)
        for (long r = 0; r < groups; r += at_once)
            NAME(down)(at_once, k, tile + r * stride, stride, vectors, columns, down + r, down_stride, 6);
    else
        for (long r = 0; r < groups; r += at_once)
            NAME(down)(at_once, k, tile + r * stride, stride, vectors, columns, down + r, down_stride, 0);
    for (long r = groups; r < high; r++)
        NAME(down)(1, k, tile + r * stride, stride, vectors, columns, down + r, down_stride, 0);
    if (across) {
        REAL rows[ROWS * MOST];
        for (long r = 0; r < high; r++)
            EACH(j, k) rows[r * k + j] = u[j * u_stride + r];
        for (long c = 0; c < vectors * k; c++) columns[c] = (VECTOR){0};
        for (long r = 0; r < groups; r += at_once)
            NAME(across)(at_once, k, tile + r * stride, stride, vectors, rows + r * k, columns);
        for (long r = groups; r < high; r++)
            NAME(across)(1, k, tile + r * stride, stride, vectors, rows + r * k, columns);
        EACH(j, k)
            for (long c = 0; c < vectors; c++)
                for (int i = 0; i < LANES; i++) across[j * across_stride + c * LANES + i] += columns[c * k + j][i];
    }
    for (long c = whole; c < wide; c++) /* fewer than a vector: at the edge of a matrix */
        for (long r = 0; r < high; r++) {
            REAL x = tile[r * stride + c];
            EACH(j, k) {
                down[j * down_stride + r] += x * v[j * v_stride + c];
                if (across) across[j * across_stride + c] += x * u[j * u_stride + r];
            }
        }
}

/* down (k, rows) += v tile' and, unless across is null, across (k, columns) += u tile; strides in numbers. */
__attribute__((target("avx2,fma"))) void NAME(dasrel_products)(
    const REAL *tile, long stride, long rows, long columns, long k, const REAL *u, long u_stride, const REAL *v,
    long v_stride, double *down, long down_stride, double *across, long across_stride)
{
    for (long c = 0; c < columns; c += WIDTH)
        for (long r = 0; r < rows; r += ROWS)
            for (long j = 0; j < k; j += MOST) {
                long wide = columns - c < WIDTH ? columns - c : WIDTH, high = rows - r < ROWS ? rows - r : ROWS;
#define BLOCK(width)                                                                                                  \
    NAME(block)(width, tile + r * stride + c, stride, high, wide, u + j * u_stride + r, u_stride,                     \
                v + j * v_stride + c, v_stride, down + j * down_stride + r, down_stride,                              \
                across ? across + j * across_stride + c : 0, across_stride, j == 0)
                switch (k - j) {
                case 1: BLOCK(1); break;
                case 2: BLOCK(2); break;
                case 3: BLOCK(3); break;
                default: BLOCK(4);
                }
#undef BLOCK
            }
}
#undef VECTOR
