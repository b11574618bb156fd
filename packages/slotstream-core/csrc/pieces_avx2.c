/* The pieces for x86-64 processors with AVX2 and FMA. */
#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define SS_PIECES ss_pieces_avx2
#define MULTIPLY_ADD(a, b, c) ((v8)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define WIDEN(octets) ((i8)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(octets))))
#include "pieces_body.h"
#else
typedef int ss_not_built_here;
#endif
