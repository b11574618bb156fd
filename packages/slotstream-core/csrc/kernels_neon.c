/* NEON of 64-bit Arm, which every such processor has. */
#if defined(__aarch64__) && defined(__ARM_NEON)
#include <arm_neon.h>
#define LANES 4
#define SUBNORMAL 0
#define ROWS_AT_ONCE 4
#define VARIANT ss_kernels_neon
#define VARIANT_NAME "neon"
#define FMA(a, b, c) ((vf)vfmaq_f32((float32x4_t)(c), (float32x4_t)(a), (float32x4_t)(b)))
#include "kernels_template.h"
#else
typedef int ss_not_built_here;
#endif
