/* Includes the header named KERNELS for double, and then for float. In it are REAL, INTEGER of the same size, BITS the same
   without a sign, LANES of them in a vector, and NAME(x), the name of a function or a type for this precision. */

#include <stdint.h>

#define REAL double
#define INTEGER int64_t
#define BITS uint64_t
#define LANES (VECTOR_BYTES / 8)
#define NAME(x) x##_f64
#include KERNELS
#undef REAL
#undef INTEGER
#undef BITS
#undef LANES
#undef NAME

#define REAL float
#define INTEGER int32_t
#define BITS uint32_t
#define LANES (VECTOR_BYTES / 4)
#define NAME(x) x##_f32
#include KERNELS
