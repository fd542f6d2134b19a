/* exp(y) of a vector of float32 numbers.

   exp(y) = 2^k exp(r), k the whole number nearest to y / ln 2, so that |r| <= ln 2 / 2. exp(r) is a polynomial of degree
   6 (Cephes, S. Moshier), and 2^k is added to the exponent bits. The result is within 2 units in the last place of
   exp(y); it is 0 for y below LEAST, where exp(y) is less than 1.3e-38, and infinite above 88.3. */

#ifndef DASREL_EXPONENTIAL_H
#define DASREL_EXPONENTIAL_H

#include <stdint.h>

#include "vectors.h"

#if HAVE_VECTORS

#define LEAST -87.3f
#define MOST 88.3f

typedef float lanes_t __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
typedef uint32_t places_t __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));

/* The numbers of one vector where a mask is set, those of another elsewhere. */
INLINE lanes_t chosen(places_t mask, lanes_t yes, lanes_t no)
{
    return (lanes_t)(((places_t)yes & mask) | ((places_t)no & ~mask));
}

/* The exponential of y, 0 for y below `floor`, which is LEAST or more. */
INLINE lanes_t exponential(lanes_t y, float floor)
{
    const lanes_t least = SPLAT(lanes_t, floor), most = SPLAT(lanes_t, MOST);
    const places_t none = (places_t)(y < least), beyond = (places_t)(y > most);
    y = chosen(none, least, chosen(beyond, most, y)); /* NaN stays */
    /* 1.5 * 2^23 pushes the fraction out of the mantissa: the low bits of the sum are the nearest whole number. */
    const lanes_t shifted = y * 1.44269504f + 12582912.0f;
    const lanes_t k = shifted - 12582912.0f;
    lanes_t r = y - k * 0.693359375f;
    r = r + k * 2.12194440e-4f;
    lanes_t p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    p = (lanes_t)((places_t)p + ((places_t)shifted << 23));
    p = chosen(none, (lanes_t){0}, p);
    return chosen(beyond, SPLAT(lanes_t, __builtin_inff()), p);
}

#endif
#endif
