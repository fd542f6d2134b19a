/* Products of one tile with a few columns, both ways, for processors with AVX2 and FMA.

   BLAS copies a tile into an order of its own before it multiplies, which is most of its time when there are few
   columns. Here the tile is used where it lies. It is worked on in blocks that stay in the second cache; a block is
   multiplied down (for its rows) and across (for its columns) by up to four columns at a time, with twelve vectors of
   sums or factors kept in registers: as many multiplications as the processor can begin, for half as many loads.

   Sums within a block are in the tile's precision, sums of blocks in double. The order of all sums follows from the
   shape alone. Compiled without Python by `hatch_build.py`; `skinny.py` calls it. */

/* Raised with every change of what the functions below take. */
#define VERSION 1

#if defined(__x86_64__) && defined(__GNUC__)

#define ROWS 96      /* of a block: a multiple of 3 and 4 */
#define WIDTH 1024   /* columns of a block: with four columns of factors, half of the first cache */
#define MOST 4       /* columns of factors at a time */
#define INLINE static inline __attribute__((always_inline, target("avx2,fma")))
#define EACH(i, n) _Pragma("GCC unroll 8") for (int i = 0; i < (n); i++)

#define REAL float
#define LANES 8
#define NAME(x) x##_f32
#include "skinny.h"
#undef REAL
#undef LANES
#undef NAME

#define REAL double
#define LANES 4
#define NAME(x) x##_f64
#include "skinny.h"

/* VERSION if this processor can run it, else 0. */
int dasrel_skinny(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? VERSION : 0;
}

#else

int dasrel_skinny(void) { return 0; }

#endif
