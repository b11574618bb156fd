/* Plain C: runs everywhere. Compiled without contraction, so that sums do not depend on the compiler's mood. */
#ifndef LANES /* tests build other widths */
#define LANES 4
#endif
#define SUBNORMAL 0
#define ROWS_AT_ONCE 2
#define VARIANT ss_kernels_scalar
#define VARIANT_NAME "scalar"
#include "kernels_template.h"
