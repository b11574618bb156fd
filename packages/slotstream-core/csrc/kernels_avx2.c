/* AVX2 and FMA. Fields are shifted, masked and converted. */
#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define LANES 8
#ifndef SUBNORMAL
#define SUBNORMAL 0
#define VARIANT ss_kernels_avx2
#define VARIANT_NAME "avx2"
#endif
#define FMA(a, b, c) ((vf)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define SCALE_LANES(scales, parts) \
    ((vf)_mm256_insertf128_ps(_mm256_castps128_ps256(_mm_broadcast_ss(scales)), _mm_broadcast_ss((scales) + 1), 1))
#include "kernels_template.h"
#else
typedef int ss_not_built_here;
#endif
