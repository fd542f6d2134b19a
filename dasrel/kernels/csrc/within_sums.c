/* Sums of a panel over pairs of objects with the same label, by label, for many partitions: those of permutations.

        panel                            block: HIGH objects x WIDE numbers, packed
        +------------+-- -               +----------+
        |            |                   | object   |   objects of a partition's cluster,      those of its columns
        |            |       copied      | object   |   one after the other, added in     ->   that are in the cluster
        |            |   ->              | ...      |   registers: WIDE sums                   too: one sum
        +------------+-- -               +----------+

   One addition per number and partition, however many clusters there are. A block stays in the cache while all
   partitions use it. Sums within a block are in the panel's precision, all others in double. The order of all sums
   follows from the labels and the shape alone. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "vectors.h"

#if HAVE_VECTORS

#define HIGH 128    /* objects of a block */
#define VECTORS 8   /* vectors of a block's row: as many sums as keep the processor's adders busy */
#define CACHE_LINE 64

/* The objects of a block in the order of their labels, for one partition. */
typedef struct {
    int count;             /* of the clusters that have objects in the block */
    uint16_t label[HIGH];  /* of each of them */
    uint16_t end[HIGH];    /* the position after its last object in `order` */
    uint16_t order[HIGH];  /* objects of the block */
} block_order_t;

/* Sort by counting; `counts` has a zero for each cluster, and has again at the end. */
static void order_block(const uint16_t *labels, long n, long clusters, int *counts, block_order_t *sorted)
{
    for (long i = 0; i < n; i++) counts[labels[i]]++;
    int at = 0, found = 0;
    for (long k = 0; k < clusters; k++) {
        if (!counts[k]) continue;
        const int begin = at;
        at += counts[k];
        counts[k] = begin;
        sorted->label[found] = (uint16_t)k;
        sorted->end[found++] = (uint16_t)at;
    }
    for (long i = 0; i < n; i++) sorted->order[counts[labels[i]]++] = (uint16_t)i;
    for (int k = 0; k < found; k++) counts[sorted->label[k]] = 0;
    sorted->count = found;
}

#define KERNELS "within_sums.h"
#include "precisions.h"

#endif
