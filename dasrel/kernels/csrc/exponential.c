/* exp(factor * x), or exp(factor * x * x), of all float32 numbers of a panel: a Gaussian kernel from its distances. */

#include "exponential.h"

#if HAVE_VECTORS

#define LANES (VECTOR_BYTES / 4)

/* out[i, j] = exp(factor * x), x = values[i, j] or its square; `out` may be `values`. */
VECTOR_CODE void dasrel_exponential_f32(const float *values, long stride, long rows, long columns, float factor,
                                        int squared, float *out, long out_stride)
{
    for (long i = 0; i < rows; i++) {
        const float *from = values + i * stride;
        float *to = out + i * out_stride;
        long j = 0;
        for (; j + LANES <= columns; j += LANES) {
            lanes_t x = *(const lanes_t *)(from + j);
            if (squared) x *= x;
            *(lanes_t *)(to + j) = exponential(x * factor, LEAST);
        }
        if (j < columns) {
            float rest[LANES] = {0};
            for (long k = j; k < columns; k++) rest[k - j] = from[k];
            lanes_t x = *(const lanes_t *)rest;
            if (squared) x *= x;
            *(lanes_t *)rest = exponential(x * factor, LEAST);
            for (long k = j; k < columns; k++) to[k] = rest[k - j];
        }
    }
}

#endif
