/* Included by intake.c once for each precision: REAL, LANES numbers of it in a VECTOR, NAME(x), OF(intrinsic). */

/* Copy a block to `out` and to `copy`, and take in its smallest, its largest and its sums. NaN is in the sums only. */
INLINE void NAME(take)(const REAL *source, long stride, long high, long wide, REAL *out, long out_stride, REAL *copy,
                       double *sums, REAL *low, REAL *high_value)
{
    const long whole = wide / LANES * LANES;
    VECTOR least = OF(set1)(*low), most = OF(set1)(*high_value);
    for (long r = 0; r < high; r++, source += stride, out += out_stride, copy += PITCH) {
        for (long c = 0; c < whole; c += LANES) {
            VECTOR x = OF(loadu)(source + c);
            OF(storeu)(out + c, x);
            OF(storeu)(copy + c, x);
            least = OF(min)(x, least);
            most = OF(max)(x, most);
            NAME(add)(sums + c, x);
        }
        for (long c = whole; c < wide; c++) {
            REAL x = source[c];
            out[c] = copy[c] = x;
            *low = x < *low ? x : *low;
            *high_value = x > *high_value ? x : *high_value;
            sums[c] += x;
        }
    }
    REAL lanes[2][LANES];
    OF(storeu)(lanes[0], least);
    OF(storeu)(lanes[1], most);
    for (int i = 0; i < LANES; i++) {
        *low = lanes[0][i] < *low ? lanes[0][i] : *low;
        *high_value = lanes[1][i] > *high_value ? lanes[1][i] : *high_value;
    }
}

/* Whether copy[r][c] == mirror[c][r] throughout a block. */
INLINE int NAME(mirrored)(const REAL *copy, long high, long wide, const REAL *mirror, long stride)
{
    const long high_whole = high / LANES * LANES, wide_whole = wide / LANES * LANES;
    VECTOR differ = OF(setzero)();
    for (long c = 0; c < wide_whole; c += LANES)
        for (long r = 0; r < high_whole; r += LANES) {
            VECTOR x[LANES];
            for (int i = 0; i < LANES; i++) x[i] = OF(loadu)(mirror + (c + i) * stride + r);
            NAME(turn)(x);
            for (int i = 0; i < LANES; i++)
                differ = OF(or)(differ, OF(cmp)(x[i], OF(loadu)(copy + (r + i) * PITCH + c), _CMP_NEQ_UQ));
        }
    int unlike = OF(movemask)(differ);
    for (long c = 0; c < wide; c++)
        for (long r = c < wide_whole ? high_whole : 0; r < high; r++)
            unlike |= copy[r * PITCH + c] != mirror[c * stride + r];
    return !unlike;
}

/* Copy `rows` by `columns` numbers to `out`; add each column to `sums`, and widen `range`, which holds a smallest and a
   largest number. 1 if, where there is a `mirror` (columns by rows), each number is that of the mirrored place, else 0,
   and then nothing but that is known. Strides are in numbers. */
AVX2 int NAME(dasrel_band)(const REAL *source, long stride, long rows, long columns, const REAL *mirror,
                           long mirror_stride, REAL *out, long out_stride, double *sums, REAL *range)
{
    REAL copy[HIGH * PITCH];
    for (long r = 0; r < rows; r += HIGH)
        for (long c = 0; c < columns; c += WIDE) {
            long high = rows - r < HIGH ? rows - r : HIGH, wide = columns - c < WIDE ? columns - c : WIDE;
            NAME(take)(source + r * stride + c, stride, high, wide, out + r * out_stride + c, out_stride, copy,
                       sums + c, range, range + 1);
            if (mirror && !NAME(mirrored)(copy, high, wide, mirror + c * mirror_stride + r, mirror_stride)) return 0;
        }
    return 1;
}
