/* The kernels of one variant, written once in vectors of LANES floats. READ ME FIRST.
 *
 * The including file defines
 *   LANES      floats in a vector: 4, 8 or 16;
 *   SUBNORMAL  1 or 0, see below;
 *   VARIANT    the name of the table, VARIANT_NAME its text;
 *   FMA(a,b,c) a * b + c on vectors with one rounding, where the processor has it;
 * and may define TABLE_LOOKUP, SCALE_LANES, WIDEN_16 and HSUM_4 for better instructions.
 *
 * Columns. A vector of packed words holds 8 * LANES columns of 4 bits (4 * LANES of 8 bits): a block. Field j of lane l
 * is column 8 * l + j of the block, so activations are stored in the order j, l ("prepared") and a block is multiplied
 * without moving anything across lanes.
 *
 * Rounding. A value of the result is, in every kernel here and for any number of rows,
 *     hsum( (sum over groups, in order, of scale * (sum over j, in order, of q * x)) * rescale + bias sums )
 * with one accumulator vector per value. Kernels differ in what they keep in registers, never in this order; that is
 * why a row has the same bits alone and among others.
 *
 * SUBNORMAL. The bits of q, masked but not shifted down, read as a float are the subnormal number q * 2^(s - 149),
 * where s is the position of the field. Multiplying it by x * 2^(110 - e - s), where 2^e is the size of the largest
 * activation of the row, gives x * q * 2^(-39 - e) exactly as the ordinary product would be rounded: powers of two
 * change no bits as long as nothing leaves the normal range, which takes an activation 2^87 times smaller than the
 * largest of its row. That saves the shift and the conversion of most fields. Processors that trap on subnormal
 * operands are slow here; which way is faster is measured when the library is loaded. Floating-point modes that flush
 * subnormals to zero are switched off for the time of a call (threads.c).
 */
#include <math.h>
#include <string.h>

#include "kernels.h"

#define INLINE static inline __attribute__((always_inline))
#define PANEL 4             /* rows of the matrix that are computed together */
#define PREFETCH_BYTES 6144 /* ahead of their use, for the memory to answer in time */

#ifndef FMA
#define FMA(a, b, c) ((a) * (b) + (c))
#endif
#ifndef ROWS_AT_ONCE
#define ROWS_AT_ONCE 3
#endif
#ifdef IN_REGISTER
#define KEEP(value) __asm__("" : "+" IN_REGISTER(value)) /* load once, use often */
#else
#define KEEP(value) ((void)0)
#endif

#include "kernels_vectors.h"
#include "kernels_prepare.h"
#include "kernels_quantized.h"
#include "kernels_dense.h"
#include "kernels_pointwise.h"

static void multiply(const ss_member *m, int64_t begin, int64_t end, const ss_prepared *const *x, int count,
                     float *const *y) {
    if (m->bits == 4) {
        if (m->group == 32) rows_4_32(m, begin, end, x, count, y);
        else if (m->group == 64) rows_4_64(m, begin, end, x, count, y);
        else rows_4_128(m, begin, end, x, count, y);
    } else if (m->bits == 8) {
        if (m->group == 32) rows_8_32(m, begin, end, x, count, y);
        else if (m->group == 64) rows_8_64(m, begin, end, x, count, y);
        else rows_8_128(m, begin, end, x, count, y);
    } else if (m->type == SS_BFLOAT16) {
        rows_bf16(m, begin, end, x, count, y);
    } else {
        rows_f32(m, begin, end, x, count, y);
    }
}

static void unpack_row(const ss_member *m, int64_t row, float *y) {
    const char *weight = m->weight + row * m->weight_stride;
    if (!m->bits) {
        int64_t i = 0;
        for (; i + LANES <= m->columns; i += LANES) store(y + i, load_float(weight, m->type, i));
        for (; i < m->columns; i++) y[i] = load_some(weight, m->type, i, 1)[0];
        return;
    }
    for (int64_t g = 0; g < m->columns / m->group; g++) {
        float scale = load_some(m->scales + row * m->scales_stride, m->type, g, 1)[0];
        float bias = load_some(m->biases + row * m->scales_stride, m->type, g, 1)[0];
        const uint8_t *octets = (const uint8_t *)weight + g * m->group * m->bits / 8;
        float *to = y + g * m->group;
        float product;
        if (m->bits == 4)
            for (int i = 0; i < m->group / 2; i++) {
                product = scale * (float)(octets[i] & 15);
                to[2 * i] = product + bias;
                product = scale * (float)(octets[i] >> 4);
                to[2 * i + 1] = product + bias;
            }
        else
            for (int i = 0; i < m->group; i++) {
                product = scale * (float)octets[i];
                to[i] = product + bias;
            }
    }
}

const ss_kernels VARIANT = {
    .name = VARIANT_NAME,
    .lanes = LANES,
    .prepare = prepare,
    .multiply = multiply,
    .unpack_row = unpack_row,
    .gate = gate_rows,
    .mix = mix_rows,
};
