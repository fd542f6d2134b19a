/* Products of one tile with a few columns, both ways, for processors with AVX2 and FMA.

   BLAS copies a tile into an order of its own before it multiplies, which is most of its time when there are few
   columns. Here the tile is used where it lies, and in the order in which it lies: a few whole rows at a time, while the
   next ones are fetched into the second cache (into the first they would push out what is being used; rows in parts
   would cost a search for the page each). Pieces of these rows, short enough for the first cache with all that meets
   them, are multiplied down (for themselves) and across (for the columns), by up to six columns at a time: as many sums
   or factors as there are registers, so that there are as many multiplications as the processor can begin, for half as
   many loads.

   Sums of 4,096 numbers of a row, eight or four side by side, and of 192 of a column are in the tile's precision, all
   others in double. The order of all sums follows from the shape alone. Compiled without Python by `hatch_build.py`;
   `skinny.py` calls it. */

/* Raised with every change of what the functions below take. */
#define VERSION 2

#if defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>
#include <stdlib.h>
#include <string.h>

#define GROUP 12     /* rows between two turns of all columns: a multiple of 2, 3 and 4 */
#define BLOCK 192    /* rows whose sums across are in the tile's precision: a multiple of GROUP */
#define PIECE 256    /* numbers of a row at a time: divides all widths */
#define MOST 6       /* columns of factors at a time */
#define SECOND_CACHE 2 /* the locality that GCC calls so */
#define INLINE static inline __attribute__((always_inline, target("avx2,fma")))
#define EACH(i, n) _Pragma("GCC unroll 12") for (int i = 0; i < (n); i++)

#define REAL float
#define BROADCAST _mm256_broadcast_ss
#define LANES 8
#define NAME(x) x##_f32
#include "skinny.h"
#undef REAL
#undef BROADCAST
#undef LANES
#undef NAME

#define REAL double
#define BROADCAST _mm256_broadcast_sd
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
