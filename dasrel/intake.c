/* The questions that an import asks of rows without a flaw, in one pass, for processors with AVX2.

   NumPy answers them one after the other: copy, smallest, largest, sum, and whether each value is that of the mirrored
   place. Each answer is a pass over memory, and the mirrored values lie across the rows. Here rows are taken in blocks
   that stay in the second cache: a block is copied to the tile while its values are counted, and a second copy with
   padded rows is compared with the mirrored block, turned in registers.

   Sums are kept per column, in double, and grow row by row: an order that NumPy can follow to the last bit. Compiled
   without Python by `hatch_build.py`; `intake.py` calls it. */

/* Raised with every change of what the functions below take. */
#define VERSION 1

#if defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>

#define HIGH 256     /* rows of a block */
#define WIDE 64      /* columns of a block */
#define PITCH 80     /* of its copy: rows that lie a power of two apart would push each other out of the cache */
#define AVX2 __attribute__((target("avx2,fma")))
#define INLINE static inline __attribute__((always_inline)) AVX2

INLINE void add_f32(double *sums, __m256 x)
{
    _mm256_storeu_pd(sums, _mm256_add_pd(_mm256_loadu_pd(sums), _mm256_cvtps_pd(_mm256_castps256_ps128(x))));
    _mm256_storeu_pd(sums + 4, _mm256_add_pd(_mm256_loadu_pd(sums + 4), _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1))));
}

INLINE void add_f64(double *sums, __m256d x) { _mm256_storeu_pd(sums, _mm256_add_pd(_mm256_loadu_pd(sums), x)); }

/* Rows become columns: first within quarters, then the quarters change places. */
INLINE void turn_f32(__m256 *x)
{
    __m256 pairs[8], fours[8];
    for (int i = 0; i < 8; i += 2) {
        pairs[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        fours[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
        fours[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
        fours[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
        fours[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        x[i] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
        x[i + 4] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
    }
}

INLINE void turn_f64(__m256d *x)
{
    __m256d pairs[4];
    for (int i = 0; i < 4; i += 2) {
        pairs[i] = _mm256_unpacklo_pd(x[i], x[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_pd(x[i], x[i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        x[i] = _mm256_permute2f128_pd(pairs[i], pairs[i + 2], 0x20);
        x[i + 2] = _mm256_permute2f128_pd(pairs[i], pairs[i + 2], 0x31);
    }
}

#define REAL float
#define LANES 8
#define VECTOR __m256
#define NAME(x) x##_f32
#define OF(x) _mm256_##x##_ps
#include "intake.h"
#undef REAL
#undef LANES
#undef VECTOR
#undef NAME
#undef OF

#define REAL double
#define LANES 4
#define VECTOR __m256d
#define NAME(x) x##_f64
#define OF(x) _mm256_##x##_pd
#include "intake.h"

/* VERSION if this processor can run it, else 0. */
int dasrel_intake(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? VERSION : 0;
}

#else

int dasrel_intake(void) { return 0; }

#endif
