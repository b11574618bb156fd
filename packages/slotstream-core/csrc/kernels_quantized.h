/* Products of quantised matrices: one row of activations, or two to four that share the unpacking.
 * Part of kernels_template.h.
 */
#ifndef SLOTSTREAM_KERNELS_QUANTIZED_H
#define SLOTSTREAM_KERNELS_QUANTIZED_H

#define PAIR 2
#define GROUPS_AT_ONCE 512 /* scales of a row kept as floats on the stack */

/* What `panel` rows need before their products: their scales as floats, from group `first` on, and the sums of biases of
 * `rows` rows of activations, value i of row r at r * panel + i. */
INLINE void begin_typed(const ss_member *m, int64_t row, int panel, int type, int64_t first, int64_t count,
                        const ss_prepared *const *x, int rows, float (*scales)[GROUPS_AT_ONCE], vf *biases) {
    for (int i = 0; i < panel; i++) {
        const char *scale = m->scales + (row + i) * m->scales_stride, *bias = m->biases + (row + i) * m->scales_stride;
        int64_t g = 0;
        for (; g + LANES <= count; g += LANES) {
            store(scales[i] + g, load_float(scale, type, first + g));
            vf value = load_float(bias, type, first + g);
            for (int r = 0; r < rows; r++)
                biases[r * panel + i] = FMA(value, load(x[r]->sums + first + g), biases[r * panel + i]);
        }
        if (g == count) continue;
        /* the last ones of the row, and where it has a whole vector the ones before again: see ss_prepared */
        int64_t from = count < LANES ? first : first + count - LANES;
        vf value = count < LANES ? load_some(bias, type, from, count) : load_float(bias, type, from);
        store(scales[i] + from - first,
              count < LANES ? load_some(scale, type, from, count) : load_float(scale, type, from));
        for (int r = 0; r < rows; r++)
            biases[r * panel + i] = FMA(value, load(count < LANES ? x[r]->sums + from : x[r]->last_sums),
                                        biases[r * panel + i]);
    }
}
/* Not inlined: it is the same for every layout, and eighteen copies more than double what a compiler takes under
 * sanitizers. */
static __attribute__((noinline)) void begin_panel(const ss_member *m, int64_t row, int64_t first, int64_t count,
                                                  const ss_prepared *x, float (*scales)[GROUPS_AT_ONCE], vf *biases) {
    if (m->type == SS_BFLOAT16) begin_typed(m, row, PANEL, SS_BFLOAT16, first, count, &x, 1, scales, biases);
    else begin_typed(m, row, PANEL, SS_FLOAT32, first, count, &x, 1, scales, biases);
}
static __attribute__((noinline)) void begin_rest(const ss_member *m, int64_t row, int panel, int64_t first,
                                                 int64_t count, const ss_prepared *const *x, int rows,
                                                 float (*scales)[GROUPS_AT_ONCE], vf *biases) {
    if (m->type == SS_BFLOAT16) begin_typed(m, row, panel, SS_BFLOAT16, first, count, x, rows, scales, biases);
    else begin_typed(m, row, panel, SS_FLOAT32, first, count, x, rows, scales, biases);
}

/* Words of the last, incomplete block, zeros after them. */
static __attribute__((noinline)) vi load_tail(const char *at, int64_t words) {
    int32_t buffer[LANES] = {0};
    memcpy(buffer, at, (size_t)words * 4);
    return load_words((const char *)buffer);
}

/* values[i] = hsum(sums[i]) */
INLINE void hsums(const vf *sums, int count, float *values) {
    int i = 0;
#ifdef HSUM_4
#pragma GCC unroll 2
    for (; i + 4 <= count; i += 4) HSUM_4(sums + i, values + i);
#endif
    for (; i < count; i++) values[i] = hsum(sums[i]);
}
INLINE vf rescaled(vf total, const ss_prepared *x) { return total * splat(x->rescale[0]) * splat(x->rescale[1]); }

/* Rows of the matrix between a use and what is fetched meanwhile: whole panels, enough for the memory to answer. */
INLINE int64_t rows_ahead(const ss_member *m) {
    return (PREFETCH_BYTES / (PANEL * m->weight_stride) + 1) * PANEL;
}
INLINE void prefetch_scales(const ss_member *m, int64_t row, int panel) {
    const int64_t at = row * m->scales_stride, bytes = panel * m->scales_stride;
    for (int64_t b = 0; b < bytes; b += 64) {
        __builtin_prefetch(m->scales + at + b);
        __builtin_prefetch(m->biases + at + b);
    }
}

/* One row of activations against `panel` rows of the matrix. They lie one after another, and so does what is fetched for
 * `ahead` rows later, whatever the order in which it will be used. */
INLINE void single(const ss_member *m, int64_t row, int panel, int64_t ahead, int bits, int group, const ss_prepared *x,
                   float *y) {
    const int fields = 32 / bits, block = fields * LANES;
    const int parts = block > group ? block / group : 1;
    const int blocks = group > block ? group / block : 1; /* in one step of scales */
    const int64_t groups = m->columns / group;
    float scales[PANEL][GROUPS_AT_ONCE];
    vf total[PANEL], biases[PANEL];
#pragma GCC unroll 4
    for (int i = 0; i < panel; i++) total[i] = biases[i] = (vf){0};
    prefetch_scales(m, row + ahead, panel);
    for (int64_t first = 0; first < groups; first += GROUPS_AT_ONCE) {
        const int64_t count = groups - first < GROUPS_AT_ONCE ? groups - first : GROUPS_AT_ONCE;
        if (panel == PANEL) begin_panel(m, row, first, count, x, scales, biases);
        else begin_rest(m, row, panel, first, count, &x, 1, scales, biases);
        const char *words[PANEL];
#pragma GCC unroll 4
        for (int i = 0; i < panel; i++)
            words[i] = m->weight + (row + i) * m->weight_stride + first * group * bits / 8;
        const char *next = m->weight + (row + ahead) * m->weight_stride + panel * (first * group * bits / 8);
        const float *values = x->values + first * group;
        int64_t g = 0;
        for (; g + parts <= count; g += parts) {
            vf sum[PANEL];
#pragma GCC unroll 4
            for (int i = 0; i < panel; i++) sum[i] = (vf){0};
            for (int b = 0; b < blocks; b++) {
                vi packed[PANEL];
#pragma GCC unroll 4
                for (int l = 0; l < panel * LANES * 4; l += 64) __builtin_prefetch(next + l);
                next += panel * LANES * 4;
#pragma GCC unroll 4
                for (int i = 0; i < panel; i++) {
                    packed[i] = load_words(words[i]);
                    words[i] += LANES * 4;
                }
#pragma GCC unroll 8
                for (int j = 0; j < fields; j++) {
                    vf value = load(values + j * LANES);
#pragma GCC unroll 4
                    for (int i = 0; i < panel; i++) sum[i] = FMA(field(packed[i], bits, j), value, sum[i]);
                }
                values += block;
            }
#pragma GCC unroll 4
            for (int i = 0; i < panel; i++) total[i] = FMA(scale_lanes(scales[i] + g, parts), sum[i], total[i]);
        }
        if (parts > 1 && g < count) {
#pragma GCC unroll 4
            for (int i = 0; i < panel; i++) {
                float last[4] = {0};
                for (int64_t p = 0; g + p < count; p++) last[p] = scales[i][g + p];
                vi packed = load_tail(words[i], (count - g) * group * bits / 32);
                vf sum = {0};
                for (int j = 0; j < fields; j++) sum = FMA(field(packed, bits, j), load(values + j * LANES), sum);
                total[i] = FMA(scale_lanes(last, parts), sum, total[i]);
            }
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < panel; i++) total[i] = rescaled(total[i], x) + biases[i];
    hsums(total, panel, y);
}

/* The values of `few`, see begin_panel. */
static __attribute__((noinline)) void finish_few(vf (*total)[PAIR], vf (*biases)[PAIR], int64_t row,
                                                 const ss_prepared *const *x, int rows, float *const *y) {
    float values[4 * PAIR];
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < PAIR; i++) total[r][i] = rescaled(total[r][i], x[r]) + biases[r][i];
    hsums(total[0], rows * PAIR, values);
    for (int r = 0; r < rows; r++) memcpy(y[r] + row, values + r * PAIR, PAIR * sizeof *values);
}

/* Two to four rows of activations against PAIR rows of the matrix: a field is made once, in a register, and used by all
 * of them. Sixteen registers hold eight sums and what they are made of. */
INLINE void few(const ss_member *m, int64_t row, int64_t ahead, int bits, int group, const ss_prepared *const *x,
                int rows, float *const *y) {
    const int fields = 32 / bits, block = fields * LANES;
    const int parts = block > group ? block / group : 1;
    const int blocks = group > block ? group / block : 1;
    const int64_t groups = m->columns / group;
    float scales[PAIR][GROUPS_AT_ONCE];
    vf total[4][PAIR], biases[4][PAIR];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int i = 0; i < PAIR; i++) total[r][i] = biases[r][i] = (vf){0};
    prefetch_scales(m, row + ahead, PAIR);
    for (int64_t first = 0; first < groups; first += GROUPS_AT_ONCE) {
        const int64_t count = groups - first < GROUPS_AT_ONCE ? groups - first : GROUPS_AT_ONCE;
        begin_rest(m, row, PAIR, first, count, x, rows, scales, biases[0]);
        const char *words[PAIR];
#pragma GCC unroll 4
        for (int i = 0; i < PAIR; i++) words[i] = m->weight + (row + i) * m->weight_stride + first * group * bits / 8;
        const char *next = m->weight + (row + ahead) * m->weight_stride + PAIR * (first * group * bits / 8);
        const float *values[4];
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) values[r] = x[r]->values + first * group;
        for (int64_t g = 0; g < count; g += parts) {
            const int whole = parts == 1 || g + parts <= count;
            vf sum[4][PAIR];
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
                for (int i = 0; i < PAIR; i++) sum[r][i] = (vf){0};
            for (int b = 0; b < blocks; b++) {
                vi packed[PAIR];
#pragma GCC unroll 4
                for (int l = 0; l < PAIR * LANES * 4; l += 64) __builtin_prefetch(next + l);
                next += PAIR * LANES * 4;
#pragma GCC unroll 4
                for (int i = 0; i < PAIR; i++) {
                    packed[i] = whole ? load_words(words[i]) : load_tail(words[i], (count - g) * group * bits / 32);
                    words[i] += LANES * 4;
                }
#pragma GCC unroll 8
                for (int j = 0; j < fields; j++) {
                    vf weight[PAIR];
#pragma GCC unroll 4
                    for (int i = 0; i < PAIR; i++) {
                        weight[i] = field(packed[i], bits, j);
                        KEEP(weight[i]);
                    }
#pragma GCC unroll 4
                    for (int r = 0; r < rows; r++) {
                        vf value = load(values[r] + j * LANES);
#pragma GCC unroll 4
                        for (int i = 0; i < PAIR; i++) sum[r][i] = FMA(weight[i], value, sum[r][i]);
                    }
                }
#pragma GCC unroll 4
                for (int r = 0; r < rows; r++) values[r] += block;
            }
#pragma GCC unroll 4
            for (int i = 0; i < PAIR; i++) {
                vf scale;
                if (whole) {
                    scale = scale_lanes(scales[i] + g, parts);
                } else {
                    float last[4] = {0};
                    for (int64_t p = 0; g + p < count; p++) last[p] = scales[i][g + p];
                    scale = scale_lanes(last, parts);
                }
#pragma GCC unroll 4
                for (int r = 0; r < rows; r++) total[r][i] = FMA(scale, sum[r][i], total[r][i]);
            }
        }
    }
    finish_few(total, biases, row, x, rows, y);
}

/* Two to SS_ROW_BLOCK rows of activations against PAIR rows of the matrix. */
INLINE void pair_of_rows(const ss_member *m, int64_t row, int64_t ahead, int bits, int group, const ss_prepared *const *x, int count,
                         float *const *y) {
    int r = 0;
    while (r < count) {
        const int left = count - r; /* never 1: five are three and two */
        if (left == 2) {
            few(m, row, ahead, bits, group, x + r, 2, y + r), r += 2;
        } else if (left == 3 || left == 5) {
            few(m, row, ahead, bits, group, x + r, 3, y + r), r += 3;
        } else {
            few(m, row, ahead, bits, group, x + r, 4, y + r), r += 4;
        }
    }
}

INLINE void quantized_rows(const ss_member *m, int64_t begin, int64_t end, int bits, int group,
                           const ss_prepared *const *x, int count, float *const *y) {
    const int64_t ahead = rows_ahead(m);
    int64_t row = begin;
    if (count > 1)
        for (; row + PAIR <= end; row += PAIR) pair_of_rows(m, row, ahead, bits, group, x, count, y);
    else
        for (; row + PANEL <= end; row += PANEL) single(m, row, PANEL, ahead, bits, group, x[0], y[0] + row);
    for (; row < end; row++)
        for (int r = 0; r < count; r++) single(m, row, 1, ahead, bits, group, x[r], y[r] + row);
}

/* One function a layout, so that the compiler sees its numbers. */
#define LAYOUT(bits, group)                                                                                       \
    static void rows_##bits##_##group(const ss_member *m, int64_t begin, int64_t end,                             \
                                      const ss_prepared *const *x, int count, float *const *y) {                  \
        quantized_rows(m, begin, end, bits, group, x, count, y);                                                  \
    }
LAYOUT(4, 32)
LAYOUT(4, 64)
LAYOUT(4, 128)
LAYOUT(8, 32)
LAYOUT(8, 64)
LAYOUT(8, 128)

#endif
