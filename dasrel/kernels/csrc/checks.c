/* What an import asks of rows that have no flaw, in one pass: copy, least and largest value, sums of columns, and
   whether each value equals the one at the mirrored place.

   NumPy answers these one after the other, each by a pass over memory, and the mirrored values lie across the rows.
   Here rows are taken in blocks that stay in the second cache:

        source                  out                     scratch                mirror
        +------+------+-- -     +------+------+-- -     +------+........       +--------------+-- -
        | HIGH |      |     ->  | HIGH |      |     and |      | padding  ==?  |     WIDE     |      transposed
        | x    |      |         | x    |      |         |      |               |    x HIGH    |      in registers
        | WIDE |      |         | WIDE |      |         |      |               +--------------+-- -
        +------+------+-- -     +------+------+-- -     +------+........       |              |

   Sums are kept per column, in double, and grow row by row: an order that NumPy can follow to the last bit. */

#include <stdlib.h>

#include "vectors.h"

#if HAVE_VECTORS

#define HIGH 256 /* rows of a block */
#define WIDE 64  /* columns of a block */
#define PITCH 80 /* of its copy: rows a power of two apart would displace each other in the cache */
#define RANGES 2 /* ranges that grow side by side: one would have to wait for its last comparison */
#define DOUBLE_LANES (VECTOR_BYTES / 8)

typedef double doubles __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(double)), may_alias));

#define KERNELS "checks.h"
#include "precisions.h"

#endif
