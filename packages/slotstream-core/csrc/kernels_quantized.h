/* Products of quantised matrices: one row of activations, or two to four that share the unpacking.
 * Part of kernels_template.h.
 */
#ifndef SLOTSTREAM_KERNELS_QUANTIZED_H
#define SLOTSTREAM_KERNELS_QUANTIZED_H

#define PAIR 2
#define GROUPS_AT_ONCE 512 /* scales of a row kept as floats on the stack */

/* Scales of PANEL or fewer rows as floats, from group `first` on. */
INLINE void widen_scales(const ss_member *m, int64_t row, int panel, int64_t first, int64_t count, float *buffer,
                         const float **scales) {
    for (int i = 0; i < panel; i++) {
        const char *at = m->scales + (row + i) * m->scales_stride;
        if (m->type == SS_FLOAT32) {
            scales[i] = (const float *)(const void *)at + first;
            continue;
        }
        float *to = buffer + i * GROUPS_AT_ONCE;
        int64_t g = 0;
        for (; g + LANES <= count; g += LANES) store(to + g, load_bf16(at + (first + g) * 2));
        if (g < count && count >= LANES) /* the last ones again, so that all are whole vectors */
            store(to + count - LANES, load_bf16(at + (first + count - LANES) * 2));
        else if (g < count)
            store(to + g, load_some(at, SS_BFLOAT16, first + g, count - g));
        scales[i] = to;
    }
}

INLINE vf bias_sum(const ss_member *m, int64_t row, int64_t first, int64_t count, const float *sums, vf total) {
    const char *at = m->biases + row * m->scales_stride;
    int64_t g = 0;
    for (; g + LANES <= count; g += LANES) total = FMA(load_float(at, m->type, first + g), load(sums + first + g), total);
    if (g == count) return total;
    const int64_t groups = m->columns / m->group; /* only the last groups of a row can be left */
    if (count < LANES) return FMA(load_some(at, m->type, first + g, count - g), load(sums + first + g), total);
    const float *last = sums + ss_sums_floats(m->columns, m->group) - LANES;
    return FMA(load_float(at, m->type, groups - LANES), load(last), total);
}

/* Words of the last, incomplete block, zeros after them. */
static __attribute__((noinline)) vi load_tail(const char *at, int64_t words) {
    int32_t buffer[LANES] = {0};
    memcpy(buffer, at, (size_t)words * 4);
    return load_words((const char *)buffer);
}

/* The values of `panel` rows, from the sums of products and of biases. */
INLINE void finish(const vf *total, const vf *biases, int panel, const ss_prepared *x, float *y) {
    vf sum[PANEL];
#pragma GCC unroll 4
    for (int i = 0; i < panel; i++) sum[i] = total[i] * splat(x->rescale[0]) * splat(x->rescale[1]) + biases[i];
#ifdef HSUM_4
    if (panel == PANEL) {
        HSUM_4(sum, y);
        return;
    }
#endif
    for (int i = 0; i < panel; i++) y[i] = hsum(sum[i]);
}

/* The next panels of rows, whole, far enough ahead of their use for the memory to answer. */
INLINE int64_t prefetch_distance(const ss_member *m) {
    int64_t panel = PANEL * m->weight_stride;
    return (PREFETCH_BYTES + panel - 1) / panel * panel;
}
INLINE void prefetch_scales(const ss_member *m, int64_t row, int panel) {
    for (int i = 0; i < panel; i++) {
        int64_t at = (row + i + 2 * PANEL) * m->scales_stride;
        for (int64_t b = 0; b < m->scales_stride && b < 256; b += 64) {
            __builtin_prefetch(m->scales + at + b);
            __builtin_prefetch(m->biases + at + b);
        }
    }
}

/* One row of activations against `panel` rows of the matrix. */
INLINE void single(const ss_member *m, int64_t row, int panel, int bits, int group, const ss_prepared *x, float *y) {
    const int fields = 32 / bits, block = fields * LANES;
    const int parts = block > group ? block / group : 1;
    const int blocks = group > block ? group / block : 1; /* in one step of scales */
    const int64_t groups = m->columns / group, ahead = prefetch_distance(m);
    float buffer[PANEL * GROUPS_AT_ONCE];
    const float *scales[PANEL];
    vf total[PANEL], biases[PANEL];
#pragma GCC unroll 4
    for (int i = 0; i < panel; i++) total[i] = biases[i] = (vf){0};
    prefetch_scales(m, row, panel);
    for (int64_t first = 0; first < groups; first += GROUPS_AT_ONCE) {
        const int64_t count = groups - first < GROUPS_AT_ONCE ? groups - first : GROUPS_AT_ONCE;
        widen_scales(m, row, panel, first, count, buffer, scales);
#pragma GCC unroll 4
        for (int i = 0; i < panel; i++) biases[i] = bias_sum(m, row + i, first, count, x->sums, biases[i]);
        const char *words[PANEL];
#pragma GCC unroll 4
        for (int i = 0; i < panel; i++)
            words[i] = m->weight + (row + i) * m->weight_stride + first * group * bits / 8;
        const float *values = x->values + first * group;
        int64_t g = 0;
        for (; g + parts <= count; g += parts) {
            vf sum[PANEL];
#pragma GCC unroll 4
            for (int i = 0; i < panel; i++) sum[i] = (vf){0};
            for (int b = 0; b < blocks; b++) {
                vi packed[PANEL];
#pragma GCC unroll 4
                for (int i = 0; i < panel; i++) {
                    __builtin_prefetch(words[i] + ahead);
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
    finish(total, biases, panel, x, y);
}

/* Before and after the products of `few`. Not inlined: they are the same for every layout, and eighteen copies more than
 * double what a compiler takes under sanitizers. */
static __attribute__((noinline)) void begin_few(const ss_member *m, int64_t row, int64_t first, int64_t count,
                                                const ss_prepared *const *x, int rows, float *buffer,
                                                const float **scales, vf (*biases)[PAIR]) {
    if (first == 0) prefetch_scales(m, row, PAIR);
    widen_scales(m, row, PAIR, first, count, buffer, scales);
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < PAIR; i++) biases[r][i] = bias_sum(m, row + i, first, count, x[r]->sums, biases[r][i]);
}
static __attribute__((noinline)) void finish_few(vf (*total)[PAIR], vf (*biases)[PAIR], int64_t row,
                                                 const ss_prepared *const *x, int rows, float *const *y) {
    for (int r = 0; r < rows; r++) finish(total[r], biases[r], PAIR, x[r], y[r] + row);
}

/* Two to four rows of activations against PAIR rows of the matrix: a field is made once, in a register, and used by all
 * of them. Sixteen registers hold eight sums and what they are made of. */
INLINE void few(const ss_member *m, int64_t row, int bits, int group, const ss_prepared *const *x, int rows,
                float *const *y) {
    const int fields = 32 / bits, block = fields * LANES;
    const int parts = block > group ? block / group : 1;
    const int blocks = group > block ? group / block : 1;
    const int64_t groups = m->columns / group, ahead = prefetch_distance(m);
    float buffer[PANEL * GROUPS_AT_ONCE];
    const float *scales[PANEL];
    vf total[4][PAIR], biases[4][PAIR];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int i = 0; i < PAIR; i++) total[r][i] = biases[r][i] = (vf){0};
    for (int64_t first = 0; first < groups; first += GROUPS_AT_ONCE) {
        const int64_t count = groups - first < GROUPS_AT_ONCE ? groups - first : GROUPS_AT_ONCE;
        begin_few(m, row, first, count, x, rows, buffer, scales, biases);
        const char *words[PAIR];
#pragma GCC unroll 4
        for (int i = 0; i < PAIR; i++) words[i] = m->weight + (row + i) * m->weight_stride + first * group * bits / 8;
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
                for (int i = 0; i < PAIR; i++) {
                    __builtin_prefetch(words[i] + ahead);
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
INLINE void pair_of_rows(const ss_member *m, int64_t row, int bits, int group, const ss_prepared *const *x, int count,
                         float *const *y) {
    int r = 0;
    while (r < count) {
        const int left = count - r; /* never 1: five are three and two */
        if (left == 2) {
            few(m, row, bits, group, x + r, 2, y + r), r += 2;
        } else if (left == 3 || left == 5) {
            few(m, row, bits, group, x + r, 3, y + r), r += 3;
        } else {
            few(m, row, bits, group, x + r, 4, y + r), r += 4;
        }
    }
}

INLINE void quantized_rows(const ss_member *m, int64_t begin, int64_t end, int bits, int group,
                           const ss_prepared *const *x, int count, float *const *y) {
    int64_t row = begin;
    if (count > 1)
        for (; row + PAIR <= end; row += PAIR) pair_of_rows(m, row, bits, group, x, count, y);
    else
        for (; row + PANEL <= end; row += PANEL) single(m, row, PANEL, bits, group, x[0], y[0] + row);
    for (; row < end; row++)
        for (int r = 0; r < count; r++) single(m, row, 1, bits, group, x[r], y[r] + row);
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
