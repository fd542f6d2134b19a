/* What the library is: its version, and which instructions its vector kernels use. `hatch_build.py` compiles it. */

#include "vectors.h"

/* Raised, together with VERSION in Python, with every change of what a function takes or of the bits that it gives. */
int dasrel_library_version(void) { return 5; }

/* The instructions of the vector kernels, or "" where this processor does not run them. */
const char *dasrel_instruction_set(void)
{
#if !HAVE_VECTORS
    return "";
#elif defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? "avx2" : "";
#else
    return "neon";
#endif
}
