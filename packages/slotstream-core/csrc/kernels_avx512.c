/* AVX-512 F, BW, VL and DQ. A field of 4 bits is looked up in a table of 16 floats: neither mask nor conversion. */
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include <immintrin.h>
#define LANES 16
#define SUBNORMAL 0
#define ROWS_AT_ONCE 4
#define VARIANT ss_kernels_avx512
#define VARIANT_NAME "avx512"
#define FMA(a, b, c) ((vf)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#define WIDEN_16(at) ((vu)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)(at))))
#define TABLE_LOOKUP(words)                                                                                  \
    ((vf)_mm512_permutexvar_ps((__m512i)(words),                                                             \
                               _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)))
/* Lane l takes scale l * parts / 16; only `parts` floats are read. */
#define SCALE_LANES(scales, parts)                                                                           \
    ((vf)_mm512_permutexvar_ps(                                                                              \
        (parts) == 2 ? _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0)                      \
                     : _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0),                     \
        _mm512_maskz_loadu_ps((__mmask16)((1 << (parts)) - 1), scales)))
#include "kernels_template.h"
#else
typedef int ss_not_built_here;
#endif
