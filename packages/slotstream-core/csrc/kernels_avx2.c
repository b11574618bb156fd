/* AVX2 and FMA. Fields are shifted, masked and converted. */
#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define LANES 8
#define IN_REGISTER "x"
#ifndef SUBNORMAL
#define SUBNORMAL 0
#define VARIANT ss_kernels_avx2
#define VARIANT_NAME "avx2"
#endif
#define FMA(a, b, c) ((vf)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define WIDEN_16(at) ((vu)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(at))))
#define SCALE_LANES(scales, parts) \
    ((vf)_mm256_insertf128_ps(_mm256_castps128_ps256(_mm_broadcast_ss(scales)), _mm_broadcast_ss((scales) + 1), 1))

/* y[i] = hsum(sum[i]) for four vectors. */
#define HSUM_4(sum, y)                                                                                             \
    _mm_storeu_ps(y, _mm_hadd_ps(_mm_hadd_ps(SS_FOLD((sum)[0]), SS_FOLD((sum)[1])),                                \
                                 _mm_hadd_ps(SS_FOLD((sum)[2]), SS_FOLD((sum)[3]))))
#define SS_FOLD(value) \
    _mm_add_ps(_mm256_castps256_ps128((__m256)(value)), _mm256_extractf128_ps((__m256)(value), 1))

/* to[8 * j + l] = from[8 * l + j] * factor[j] */
static inline void transpose_8(const float *from, const float *factor, float *to) {
    __m256 row[8], pair[8], four[8];
    for (int i = 0; i < 8; i++) row[i] = _mm256_loadu_ps(from + 8 * i);
    for (int i = 0; i < 8; i += 2) {
        pair[i] = _mm256_unpacklo_ps(row[i], row[i + 1]);
        pair[i + 1] = _mm256_unpackhi_ps(row[i], row[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        four[i] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0x44);
        four[i + 1] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0xee);
        four[i + 2] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0x44);
        four[i + 3] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        row[i] = _mm256_permute2f128_ps(four[i], four[i + 4], 0x20);
        row[i + 4] = _mm256_permute2f128_ps(four[i], four[i + 4], 0x31);
    }
    for (int j = 0; j < 8; j++)
        _mm256_storeu_ps(to + 8 * j, _mm256_mul_ps(row[j], _mm256_broadcast_ss(factor + j)));
}
#define TRANSPOSE_8 transpose_8
#include "kernels_template.h"
#else
typedef int ss_not_built_here;
#endif
