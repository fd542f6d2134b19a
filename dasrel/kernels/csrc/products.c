/* Products of one tile with a few columns of factors, both ways: along its rows and along its columns.

   BLAS copies a tile into an order of its own before it multiplies, which is most of its time when there are few
   columns of factors. Here the tile is used where it lies, in the order in which it lies: a group of whole rows at a
   time, while the next group is fetched into the second cache (in the first it would displace what is in use; a part
   of each row only would cost a page lookup for each of them).

                 strip: at most 4,096 columns of the tile           tail: less than a vector,
        +---------+---------+---------+--  --+---------+----+       at the edge of a matrix
        |  piece  |  piece  |         |      |         |    |  \
        +---------+---------+---------+--  --+---------+----+   GROUP rows: multiplied piece by piece
        |         |         |         |      |         |    |  /
        +=========+=========+=========+==  ==+=========+====+
        |         |         |         |      |         |    |   the next GROUP rows: prefetched meanwhile
        +---------+---------+---------+--  --+---------+----+
          ...                                                   after BLOCK rows, sums of columns are added up in double

   A piece of PIECE columns and GROUP rows fits into the first cache with all that it is multiplied by. It is multiplied
   for the sums of its rows and for those of its columns by up to MOST columns of factors at a time: as many sums or
   factors as there are registers, so that the processor begins as many multiplications as it can, for half as many
   loads.

   The factors of a strip's columns, and the sums of its columns, are packed in the order in which they are used, for k
   columns of factors in batches (for k = 10, of 4 and 6):

        piece 0                                               piece 1
        | batch 0                    | batch 1              || batch 0 ...
        | columns 0   | columns 1    | columns 0    | ...   ||                 "columns c": LANES columns of the tile,
        | f0 f1 f2 f3 | f0 f1 f2 f3  | f4 f5 ... f9 | ...   ||                 each f a vector with their factors

   Sums over 4,096 numbers of a row (as many side by side as a vector has places) and over 192 numbers of a column are
   in the tile's precision, all others in double. The order of all sums follows from the shape alone. */

#include <stdlib.h>
#include <string.h>

#include "vectors.h"

#if HAVE_VECTORS

#define GROUP 12       /* rows of a group: a multiple of 2, 3 and 4 */
#define BLOCK 192      /* rows whose column sums are in the tile's precision: a multiple of GROUP */
#define PIECE 256      /* columns of a piece: divides all widths of strips */
#define MOST 6         /* columns of factors in a batch */
#define CACHE_LINE 64  /* bytes that are fetched at once */
#define SECOND_CACHE 2 /* the locality that GCC calls so */

#define KERNELS "products.h"
#include "precisions.h"

#endif
