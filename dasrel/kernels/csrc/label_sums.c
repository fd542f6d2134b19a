/* Sums of a panel's rows, or of its columns, by the labels of objects, for several partitions.

   A product with one-hot columns multiplies every number once per cluster; here it is added once per partition.

        panel                            block: HIGH objects x WIDE numbers, packed       sums, in double
        +------------+-- -               +----------+                                     +----------+ cluster 0
        |            |       copied, or  | object   |   objects of a partition's          | += sum   |
        |            |       transposed  | object   |   cluster, one after the other,     +----------+ cluster 1
        |            |   ->              | ...      |   added in registers            ->  | += sum   |
        +------------+-- -               +----------+                                     +----------+ ...

   Packed, because rows of the panel are a power of two apart and would displace each other in the cache. A block stays
   in the second cache while all partitions use it. Sums over at most HIGH objects are in the panel's precision, all
   others in double. The order of all sums follows from the labels and the shape alone. */

#include <stdint.h>
#include <stdlib.h>

#include "vectors.h"

#if HAVE_VECTORS

#define HIGH 512    /* objects of a block */
#define VECTORS 8   /* vectors of a block's row: as many sums as keep the processor's adders busy */
#define CORNER 64   /* objects that are transposed together, within the first cache */
#define CACHE_LINE 64

/* The objects of a block in the order of their labels, for one partition. */
typedef struct {
    int count;        /* of the clusters that have objects in the block */
    int label[HIGH];  /* of each of them: a row of the sums */
    int end[HIGH];    /* the position after its last object in `order` */
    int order[HIGH];  /* objects of the block */
} sorted_t;

/* Sort by counting; `counts` has a zero for each cluster of the partition, and has again at the end. */
static void sort_labels(const int *labels, long n, long first, long clusters, int *counts, sorted_t *sorted)
{
    for (long i = 0; i < n; i++) counts[labels[i] - first]++;
    int at = 0, found = 0;
    for (long k = 0; k < clusters; k++) {
        if (!counts[k]) continue;
        const int begin = at;
        at += counts[k];
        counts[k] = begin;
        sorted->label[found] = (int)(first + k);
        sorted->end[found++] = at;
    }
    for (long i = 0; i < n; i++) sorted->order[counts[labels[i] - first]++] = (int)i;
    for (int k = 0; k < found; k++) counts[sorted->label[k] - first] = 0;
    sorted->count = found;
}

#define KERNELS "label_sums.h"
#include "precisions.h"

#endif
