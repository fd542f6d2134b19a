/* Products of Gaussian kernels K with proximity matrices P of fuzzy partitions, p_kl = sum_i min(u_ik, u_il).

   P is computed block by block and never written: ROWS rows by CHUNK columns of it stay in the first cache, for all
   partitions, together with the same block of the kernels of all widths.

        memberships            block of P, for each partition         products, in double
        rows   columns         +---------+                            +---------+ width 0
        u_ik   u_il       ->   | min-sum |   x  block of each K   ->  | += dot  |
                               +---------+                            +---------+ ...  a column for each partition

   A membership of the columns is loaded once for ROWS minima, and a block of K once for four partitions. Sums over a
   block are in the panel's precision, LANES of them side by side, all others in double. The order of all sums follows
   from the shape alone. */

#include <stdint.h>
#include <stdlib.h>

#include "exponential.h"

#if HAVE_VECTORS

#define ROWS 4
#define CHUNK 64    /* columns of a block */
#define BLOCK (ROWS * CHUNK)
#define TOGETHER 4  /* partitions that are multiplied with the same numbers of two kernels, while those are loaded */
#define SMALLEST -34.5f /* kernels below 1e-15 are 0: squares of smaller ones are subnormal, and slow */
#define FLUSH 64    /* blocks whose column sums are added before they go to double */

/* A kernel that is made of the numbers x of a panel: exp(factor * x), or of their squares. */
typedef struct {
    float factor;
    int wanted, squared; /* not wanted: the panel is the kernel */
} gaussian_t;

INLINE lanes_t seen_f32(lanes_t x, const gaussian_t *gaussian)
{
    if (!gaussian->wanted) return x;
    if (gaussian->squared) x *= x;
    return exponential(x * gaussian->factor, SMALLEST);
}

#define seen_f64(x, gaussian) ((void)(gaussian), (x)) /* doubles are given as kernels */

#define KERNELS "proximity.h"
#include "precisions.h"

#endif
