/* Plain C: runs everywhere. Compiled without contraction, so that sums do not depend on the compiler's mood. */
#ifndef SS_SCALAR_LANES /* tests build other widths */
#define SS_SCALAR_LANES 4
#endif
#define LANES SS_SCALAR_LANES
#define SUBNORMAL 0
#define ROWS_AT_ONCE 2
#define VARIANT ss_kernels_scalar
#define VARIANT_NAME "scalar"
#include "kernels_template.h"
