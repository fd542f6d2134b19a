/* Vectors of numbers by the extensions of GCC and Clang, without the intrinsics of any one processor.

   HAVE_VECTORS is 1 where the vector kernels are compiled:
     x86-64    vectors of 32 bytes, for processors with AVX2 and FMA; whether this one has them is known at run time
     AArch64   vectors of 16 bytes; every such processor has them
   Elsewhere NumPy and BLAS do the work. */

#ifndef DASREL_VECTORS_H
#define DASREL_VECTORS_H

#if defined(__GNUC__) && defined(__x86_64__)
#define HAVE_VECTORS 1
#define VECTOR_BYTES 32
#define VECTOR_CODE __attribute__((target("avx2,fma")))
#elif defined(__GNUC__) && defined(__aarch64__) && defined(__AARCH64EL__)
#define HAVE_VECTORS 1
#define VECTOR_BYTES 16
#define VECTOR_CODE
#else
#define HAVE_VECTORS 0
#endif

#if HAVE_VECTORS

/* Functions on vectors are always inlined, so that those of their arguments that are constants are known when they are
   compiled, and no vector is passed by a call. */
#define INLINE static inline __attribute__((always_inline)) VECTOR_CODE

/* A short loop, written out in full where the compiler knows n. */
#define UNROLLED(i, n) _Pragma("GCC unroll 12") for (int i = 0; i < (n); i++)

/* A scalar in all places of a vector. Unlike 0 + x, x - 0 is x for x = -0.0 too, and so compiles to nothing. */
#define SPLAT(type, x) ((x) - (type){0})

/* A vector made of places of two others: 0 is the first place of a, the number of places is the first one of b.
   `integers` is the type of a vector of integers of the same size. */
#ifdef __clang__
#define SHUFFLE(integers, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(integers, a, b, ...) __builtin_shuffle(a, b, (integers){__VA_ARGS__})
#endif

#endif
#endif
