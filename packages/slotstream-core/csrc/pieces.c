/* The pieces for the instruction set that the package is compiled for (NEON on AArch64). */
#define SS_PIECES ss_pieces_baseline
#include "pieces_body.h"
