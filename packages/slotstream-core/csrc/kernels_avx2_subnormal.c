/* AVX2 and FMA. Fields are only masked: see SUBNORMAL in kernels_template.h. */
#define SUBNORMAL 1
#define VARIANT ss_kernels_avx2_subnormal
#define VARIANT_NAME "avx2-subnormal"
#include "kernels_avx2.c"
