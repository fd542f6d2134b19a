/* Included by checks.c once for each precision; see precisions.h. */

typedef REAL NAME(vector) __attribute__((vector_size(LANES * sizeof(REAL)), aligned(sizeof(REAL)), may_alias));
typedef INTEGER NAME(integers) __attribute__((vector_size(LANES * sizeof(REAL)), aligned(sizeof(REAL)), may_alias));
#define VECTOR NAME(vector)
#define INTEGERS NAME(integers)
#define LOAD(from) (*(const VECTOR *)(from))
#define STORE(to, x) (*(VECTOR *)(to) = (x))
#define SELECT(mask, a, b) ((VECTOR)(((INTEGERS)(a) & (mask)) | ((INTEGERS)(b) & ~(mask))))

/* Transpose a square of LANES vectors; first within halves of vectors, then halves change places. */
INLINE void NAME(transpose)(VECTOR *x)
{
#define MIX(a, b, ...) SHUFFLE(INTEGERS, a, b, __VA_ARGS__)
#if LANES == 8
    VECTOR pairs[8], fours[8];
    UNROLLED(i, 4) {
        pairs[2 * i] = MIX(x[2 * i], x[2 * i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        pairs[2 * i + 1] = MIX(x[2 * i], x[2 * i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    UNROLLED(i, 2) {
        fours[4 * i] = MIX(pairs[4 * i], pairs[4 * i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
        fours[4 * i + 1] = MIX(pairs[4 * i], pairs[4 * i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        fours[4 * i + 2] = MIX(pairs[4 * i + 1], pairs[4 * i + 3], 0, 1, 8, 9, 4, 5, 12, 13);
        fours[4 * i + 3] = MIX(pairs[4 * i + 1], pairs[4 * i + 3], 2, 3, 10, 11, 6, 7, 14, 15);
    }
    UNROLLED(i, 4) {
        x[i] = MIX(fours[i], fours[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        x[i + 4] = MIX(fours[i], fours[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
#elif LANES == 4
    VECTOR pairs[4];
    UNROLLED(i, 2) {
        pairs[2 * i] = MIX(x[2 * i], x[2 * i + 1], 0, 4, 2, 6);
        pairs[2 * i + 1] = MIX(x[2 * i], x[2 * i + 1], 1, 5, 3, 7);
    }
    UNROLLED(i, 2) {
        x[i] = MIX(pairs[i], pairs[i + 2], 0, 1, 4, 5);
        x[i + 2] = MIX(pairs[i], pairs[i + 2], 2, 3, 6, 7);
    }
#else
    const VECTOR first = x[0];
    x[0] = MIX(first, x[1], 0, 2);
    x[1] = MIX(first, x[1], 1, 3);
#endif
#undef MIX
}

/* Copy one vector to `out` and to `scratch`, add it to `sums`, and widen the range from `low` to `top`. */
INLINE void NAME(copy_vector)(const REAL *source, REAL *out, REAL *scratch, double *sums, VECTOR *low, VECTOR *top)
{
    const VECTOR x = LOAD(source);
    STORE(out, x);
    STORE(scratch, x);
    *low = SELECT(x < *low, x, *low);
    *top = SELECT(x > *top, x, *top);
    UNROLLED(h, LANES / DOUBLE_LANES) {
        doubles part;
        UNROLLED(l, DOUBLE_LANES) part[l] = x[h * DOUBLE_LANES + l];
        *(doubles *)(sums + h * DOUBLE_LANES) += part;
    }
}

/* Copy a block to `out` and to `scratch`, add its columns to `sums`, and widen the range. NaN is in the sums only. */
INLINE void NAME(copy_block)(const REAL *source, long stride, long high, long wide, REAL *out, long out_stride,
                             REAL *scratch, double *sums, REAL *least, REAL *largest)
{
    const long whole = wide / LANES * LANES;
    VECTOR low[RANGES], top[RANGES];
    UNROLLED(i, RANGES) {
        low[i] = SPLAT(VECTOR, *least);
        top[i] = SPLAT(VECTOR, *largest);
    }
    for (long r = 0; r < high; r++, source += stride, out += out_stride, scratch += PITCH) {
        long c = 0;
        for (; c + RANGES * LANES <= whole; c += RANGES * LANES)
            UNROLLED(i, RANGES) {
                const long here = c + i * LANES;
                NAME(copy_vector)(source + here, out + here, scratch + here, sums + here, low + i, top + i);
            }
        for (; c < whole; c += LANES) NAME(copy_vector)(source + c, out + c, scratch + c, sums + c, low, top);
        for (; c < wide; c++) {
            const REAL x = source[c];
            out[c] = scratch[c] = x;
            *least = x < *least ? x : *least;
            *largest = x > *largest ? x : *largest;
            sums[c] += x;
        }
    }
    UNROLLED(i, RANGES) UNROLLED(l, LANES) {
        *least = low[i][l] < *least ? low[i][l] : *least;
        *largest = top[i][l] > *largest ? top[i][l] : *largest;
    }
}

/* Whether scratch[r][c] == mirror[c][r] throughout a block. */
INLINE int NAME(is_mirrored)(const REAL *scratch, long high, long wide, const REAL *mirror, long stride)
{
    const long high_whole = high / LANES * LANES, wide_whole = wide / LANES * LANES;
    INTEGERS differ = {0};
    for (long c = 0; c < wide_whole; c += LANES)
        for (long r = 0; r < high_whole; r += LANES) {
            VECTOR x[LANES];
            UNROLLED(i, LANES) x[i] = LOAD(mirror + (c + i) * stride + r);
            NAME(transpose)(x);
            UNROLLED(i, LANES) differ |= x[i] != LOAD(scratch + (r + i) * PITCH + c);
        }
    INTEGER unlike = 0;
    UNROLLED(i, LANES) unlike |= differ[i];
    for (long c = 0; c < wide; c++)
        for (long r = c < wide_whole ? high_whole : 0; r < high; r++)
            unlike |= scratch[r * PITCH + c] != mirror[c * stride + r];
    return !unlike;
}

/* Copy `rows` by `columns` numbers to `out`; add each column to `sums`, and widen `range`, which holds a least and a
   largest number. 1 if, where there is a `mirror` (columns by rows), each number equals the one at the mirrored place,
   else 0, and then nothing but that is known. -1 if there was no memory. Strides are in numbers. */
VECTOR_CODE int NAME(dasrel_copy_and_check)(const REAL *source, long stride, long rows, long columns,
                                            const REAL *mirror, long mirror_stride, REAL *out, long out_stride,
                                            double *sums, REAL *range)
{
    REAL *scratch = malloc(HIGH * PITCH * sizeof(REAL)); /* too large for the stack of a thread */
    int equal = 1;
    if (!scratch) return -1;
    for (long r = 0; equal && r < rows; r += HIGH)
        for (long c = 0; equal && c < columns; c += WIDE) {
            const long high = rows - r < HIGH ? rows - r : HIGH, wide = columns - c < WIDE ? columns - c : WIDE;
            NAME(copy_block)(source + r * stride + c, stride, high, wide, out + r * out_stride + c, out_stride,
                             scratch, sums + c, range, range + 1);
            if (mirror)
                equal = NAME(is_mirrored)(scratch, high, wide, mirror + c * mirror_stride + r, mirror_stride);
        }
    free(scratch);
    return equal;
}
#undef VECTOR
#undef INTEGERS
#undef LOAD
#undef STORE
#undef SELECT
