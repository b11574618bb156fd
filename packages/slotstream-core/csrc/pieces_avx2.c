/* The pieces for x86-64 processors with AVX2. */
#if defined(__AVX2__)
#define SS_PIECES ss_pieces_avx2
#include "pieces_body.h"
#else
typedef int ss_not_built_here;
#endif
