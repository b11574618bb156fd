/* The kernels of one variant, written once in vectors of LANES floats. READ ME FIRST.
 *
 * The including file defines
 *   LANES      floats in a vector: 4, 8 or 16;
 *   SUBNORMAL  1 or 0, see below;
 *   VARIANT    the name of the table, VARIANT_NAME its text;
 *   FMA(a,b,c) a * b + c on vectors with one rounding, where the processor has it;
 * and may define TABLE_LOOKUP and SCALE_LANES for better instructions.
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
#define GROUPS_AT_ONCE 512 /* scales of a row kept as floats on the stack */
#define PANEL 4            /* rows of the matrix that are computed together */

typedef float vf __attribute__((vector_size(LANES * 4)));
typedef int32_t vi __attribute__((vector_size(LANES * 4)));
typedef uint32_t vu __attribute__((vector_size(LANES * 4)));
typedef uint16_t vh __attribute__((vector_size(LANES * 2)));

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

INLINE vf load(const float *at) {
    vf value;
    memcpy(&value, at, sizeof value);
    return value;
}
INLINE vi load_words(const char *at) {
    vi value;
    memcpy(&value, at, sizeof value);
    return value;
}
INLINE void store(float *at, vf value) { memcpy(at, &value, sizeof value); }
INLINE vf splat(float value) { return value - (vf){0}; } /* + would turn -0 into 0, and cost an addition */

INLINE float bf16_value(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

INLINE vf load_bf16(const char *at) {
    vh bits;
    memcpy(&bits, at, sizeof bits);
    return (vf)(__builtin_convertvector(bits, vu) << 16);
}

INLINE vf load_float(const char *at, int type, int64_t index) {
    return type == SS_BFLOAT16 ? load_bf16(at + index * 2) : load((const float *)(const void *)(at + index * 4));
}

/* The first `count` < LANES values, then zeros. */
INLINE vf load_some(const char *at, int type, int64_t index, int64_t count) {
    float values[LANES] = {0};
    for (int64_t i = 0; i < count; i++) {
        if (type == SS_BFLOAT16) {
            uint16_t bits;
            memcpy(&bits, at + (index + i) * 2, 2);
            values[i] = bf16_value(bits);
        } else {
            memcpy(&values[i], at + (index + i) * 4, 4);
        }
    }
    return load(values);
}

/* Fixed order: halves are added until four lanes are left, then (0 + 1) + (2 + 3). */
INLINE float hsum(vf value) {
    float lanes[LANES];
    store(lanes, value);
    for (int width = LANES / 2; width >= 4; width /= 2)
        for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
    return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
}

/* Field j of every lane as the float that prepared activations expect. */
INLINE vf field(vi words, int bits, int j) {
#if SUBNORMAL
    int whole = bits == 4 ? 5 : 2; /* fields that lie inside the 23 bits of a fraction */
    int shift = bits == 4 ? 12 : 16;
    int mask = bits == 4 ? 15 : 255;
    if (j < whole) return (vf)(words & (mask << (bits * j)));
    return (vf)((vi)((vu)words >> shift) & (mask << (bits * j - shift)));
#elif defined(TABLE_LOOKUP)
    if (bits == 4) return TABLE_LOOKUP((vi)((vu)words >> (4 * j)));
    return __builtin_convertvector((vi)((vu)words >> (8 * j)) & 255, vf);
#else
    return __builtin_convertvector((vi)((vu)words >> (bits * j)) & (bits == 4 ? 15 : 255), vf);
#endif
}

#if SUBNORMAL
/* Position of field j after `field` masked it. */
INLINE int field_position(int bits, int j) {
    int position = bits * j;
    if (bits == 4) return j < 5 ? position : position - 12;
    return j < 2 ? position : position - 16;
}
#endif

/* The scale of each lane's group: `parts` groups share a vector. */
INLINE vf scale_lanes(const float *scales, int parts) {
    if (parts == 1) return splat(scales[0]);
#ifdef SCALE_LANES
    return SCALE_LANES(scales, parts);
#else
    float lanes[LANES];
    for (int i = 0; i < LANES; i++) lanes[i] = scales[i * parts / LANES];
    return load(lanes);
#endif
}

#if SUBNORMAL
static float power_of_two(int exponent) { return ldexpf(1.0f, exponent); }
#endif

static void prepare(const void *x, int32_t x_type, int64_t columns, int32_t bits, int32_t group, float *values,
                    float *sums, ss_prepared *prepared) {
    prepared->values = values;
    prepared->sums = bits ? sums : NULL;
    prepared->rescale[0] = prepared->rescale[1] = 1.0f;
    const char *from = x;
    int64_t padded = ss_values_floats(columns);
    if (!bits) {
        int64_t i = 0;
        for (; i + LANES <= columns; i += LANES) store(values + i, load_float(from, x_type, i));
        if (i < columns) store(values + i, load_some(from, x_type, i, columns - i)), i += LANES;
        for (; i < padded; i++) values[i] = 0.0f;
        return;
    }
    int64_t groups = columns / group, kept = ss_sums_floats(columns, group);
    vi largest = {0};
    for (int64_t g = 0; g < groups; g++) {
        vf sum = {0};
        for (int i = 0; i < group; i += LANES) {
            vf value = load_float(from, x_type, g * group + i);
            sum += value;
#if SUBNORMAL
            vi size = (vi)value & 0x7fffffff;
            vi more = size > largest;
            largest = (size & more) | (largest & ~more);
#endif
        }
        sums[g] = hsum(sum);
    }
    for (int64_t g = groups; g < kept; g++) sums[g] = 0.0f;
    /* The sums after the last whole vector once more, at the end of a vector of their own: see bias_sum. */
    for (int64_t g = groups / LANES * LANES; g < groups; g++) sums[kept - groups + g] = sums[g];
    int fields = 32 / bits;
    float factor[8] = {1, 1, 1, 1, 1, 1, 1, 1};
#if SUBNORMAL
    int32_t biggest = 0;
    for (int i = 0; i < LANES; i++) biggest = largest[i] > biggest ? largest[i] : biggest;
    int exponent = (biggest >> 23) - 127;
    if (exponent > 127) exponent = 127; /* infinities and NaNs stay what they are */
    if (exponent < -16) exponent = -16;
    for (int j = 0; j < fields; j++) factor[j] = power_of_two(110 - exponent - field_position(bits, j));
    prepared->rescale[0] = power_of_two(39);
    prepared->rescale[1] = power_of_two(exponent);
#else
    (void)largest;
#endif
    int block = fields * LANES;
    for (int64_t start = 0; start < columns; start += block) {
        float natural[8 * LANES];
        int have = columns - start < block ? (int)(columns - start) : block; /* a multiple of 32 */
        for (int i = 0; i < have; i += LANES) store(natural + i, load_float(from, x_type, start + i));
        for (int i = have; i < block; i++) natural[i] = 0.0f;
        float *to = values + start;
#ifdef TRANSPOSE_8
        if (bits == 4) {
            TRANSPOSE_8(natural, factor, to);
            continue;
        }
#endif
        if (bits == 4)
            for (int j = 0; j < 8; j++)
                for (int l = 0; l < LANES; l++) to[j * LANES + l] = natural[8 * l + j] * factor[j];
        else
            for (int j = 0; j < 4; j++)
                for (int l = 0; l < LANES; l++) to[j * LANES + l] = natural[4 * l + j] * factor[j];
    }
}

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
INLINE vi load_tail(const char *at, int64_t words) {
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
#define PREFETCH_BYTES 6144
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

/* `rows` rows of activations against the unpacked fields of one step. */
INLINE void step(const vf *fields, int64_t count, const float *const *values, int rows, const vf *scale,
                 vf (*total)[PANEL]) {
    vf sum[4][PANEL];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int i = 0; i < PANEL; i++) sum[r][i] = (vf){0};
    for (int64_t v = 0; v < count; v++) {
        vf value[4];
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) value[r] = load(values[r] + v * LANES);
#pragma GCC unroll 4
        for (int i = 0; i < PANEL; i++) {
            vf weight = fields[v * PANEL + i];
            if (rows > 1) KEEP(weight);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) sum[r][i] = FMA(weight, value[r], sum[r][i]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int i = 0; i < PANEL; i++) total[r][i] = FMA(scale[i], sum[r][i], total[r][i]);
}

/* Not inlined: they are the same for every layout. */
#define STEP(rows)                                                                                                \
    static __attribute__((noinline)) void step_##rows(const vf *fields, int64_t count, const float *const *values,   \
                                                      const vf *scale, vf (*total)[PANEL]) {                       \
        step(fields, count, values, rows, scale, total);                                                          \
    }
STEP(1)
STEP(2)
STEP(3)
#if ROWS_AT_ONCE == 4
STEP(4)
#endif

INLINE void step_rows(const vf *fields, int64_t count, const float *const *values, int rows, const vf *scale,
                      vf (*total)[PANEL]) {
    int r = 0;
    while (r < rows) {
        int left = rows - r;
#if ROWS_AT_ONCE == 4
        if (left >= 4) {
            step_4(fields, count, values + r, scale, total + r), r += 4;
            continue;
        }
#endif
        if (left >= 3 && left != 4) {
            step_3(fields, count, values + r, scale, total + r), r += 3;
        } else if (left >= 2) {
            step_2(fields, count, values + r, scale, total + r), r += 2;
        } else {
            step_1(fields, count, values + r, scale, total + r), r += 1;
        }
    }
}

/* Two to SS_ROW_BLOCK rows of activations against PANEL rows of the matrix, of which `panel` exist. */
INLINE void several(const ss_member *m, int64_t row, int panel, int bits, int group, const ss_prepared *const *x,
                    int rows, float *const *y) {
    const int fields = 32 / bits, block = fields * LANES;
    const int parts = block > group ? block / group : 1;
    const int blocks = group > block ? group / block : 1;
    const int64_t groups = m->columns / group, ahead = prefetch_distance(m);
    float buffer[PANEL * GROUPS_AT_ONCE];
    const float *scales[PANEL];
    vf total[SS_ROW_BLOCK][PANEL], biases[SS_ROW_BLOCK][PANEL];
    memset(total, 0, (size_t)rows * sizeof total[0]);
    memset(biases, 0, (size_t)rows * sizeof biases[0]);
    prefetch_scales(m, row, panel);
    vf unpacked[128 / LANES * PANEL]; /* neither block nor group exceeds 128 columns */
    if (panel < PANEL) memset(unpacked, 0, sizeof unpacked);
    vf scale[PANEL];
    for (int i = 0; i < PANEL; i++) scale[i] = (vf){0};
    for (int64_t first = 0; first < groups; first += GROUPS_AT_ONCE) {
        const int64_t count = groups - first < GROUPS_AT_ONCE ? groups - first : GROUPS_AT_ONCE;
        widen_scales(m, row, panel, first, count, buffer, scales);
        for (int r = 0; r < rows; r++)
            for (int i = 0; i < panel; i++)
                biases[r][i] = bias_sum(m, row + i, first, count, x[r]->sums, biases[r][i]);
        const char *words[PANEL];
        for (int i = 0; i < panel; i++)
            words[i] = m->weight + (row + i) * m->weight_stride + first * group * bits / 8;
        const float *values[SS_ROW_BLOCK];
        for (int r = 0; r < rows; r++) values[r] = x[r]->values + first * group;
        for (int64_t g = 0; g < count; g += parts) {
            const int whole = parts == 1 || g + parts <= count;
            for (int i = 0; i < panel; i++) {
                for (int b = 0; b < blocks; b++) {
                    __builtin_prefetch(words[i] + ahead);
                    vi packed = whole ? load_words(words[i]) : load_tail(words[i], (count - g) * group * bits / 32);
                    words[i] += LANES * 4;
#pragma GCC unroll 8
                    for (int j = 0; j < fields; j++) unpacked[(b * fields + j) * PANEL + i] = field(packed, bits, j);
                }
                if (whole) {
                    scale[i] = scale_lanes(scales[i] + g, parts);
                } else {
                    float last[4] = {0};
                    for (int64_t p = 0; g + p < count; p++) last[p] = scales[i][g + p];
                    scale[i] = scale_lanes(last, parts);
                }
            }
            step_rows(unpacked, blocks * fields, values, rows, scale, total);
            for (int r = 0; r < rows; r++) values[r] += blocks * block;
        }
    }
    for (int r = 0; r < rows; r++)
        if (panel == PANEL) finish(total[r], biases[r], PANEL, x[r], y[r] + row);
        else finish(total[r], biases[r], panel, x[r], y[r] + row);
}

/* The same for a dense matrix: a value is the sum over the columns in one vector. */
INLINE void dense(const ss_member *m, int64_t row, int panel, int type, const ss_prepared *const *x, int rows,
                  float *const *y) {
    vf total[4][PANEL];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int i = 0; i < PANEL; i++) total[r][i] = (vf){0};
    const char *at[PANEL];
#pragma GCC unroll 4
    for (int i = 0; i < panel; i++) at[i] = m->weight + (row + i) * m->weight_stride;
    int64_t k = 0;
    for (; k + LANES <= m->columns; k += LANES) {
        vf value[4];
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) value[r] = load(x[r]->values + k);
#pragma GCC unroll 4
        for (int i = 0; i < panel; i++) {
            vf weight = load_float(at[i], type, k);
            if (rows > 1) KEEP(weight);
            if (k % 16 == 0) __builtin_prefetch(at[i] + k * (type == SS_BFLOAT16 ? 2 : 4) + PREFETCH_BYTES);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) total[r][i] = FMA(weight, value[r], total[r][i]);
        }
    }
    if (k < m->columns)
#pragma GCC unroll 4
        for (int i = 0; i < panel; i++) {
            vf weight = load_some(at[i], type, k, m->columns - k);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) total[r][i] = FMA(weight, load(x[r]->values + k), total[r][i]);
        }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int i = 0; i < panel; i++) y[r][row + i] = hsum(total[r][i]);
}

INLINE void dense_panel(const ss_member *m, int64_t row, int panel, int type, const ss_prepared *const *x, int count,
                        float *const *y) {
    int r = 0;
    while (r < count) {
        int left = count - r;
        if (ROWS_AT_ONCE == 4 && left >= 4) {
            dense(m, row, panel, type, x + r, 4, y + r), r += 4;
        } else if (left >= 3 && left != 4) {
            dense(m, row, panel, type, x + r, 3, y + r), r += 3;
        } else if (left >= 2) {
            dense(m, row, panel, type, x + r, 2, y + r), r += 2;
        } else {
            dense(m, row, panel, type, x + r, 1, y + r), r += 1;
        }
    }
}

INLINE void dense_rows(const ss_member *m, int64_t begin, int64_t end, int type, const ss_prepared *const *x,
                       int count, float *const *y) {
    int64_t row = begin;
    for (; row + PANEL <= end; row += PANEL) dense_panel(m, row, PANEL, type, x, count, y);
    for (; row < end; row++) dense_panel(m, row, 1, type, x, count, y);
}

INLINE void quantized_rows(const ss_member *m, int64_t begin, int64_t end, int bits, int group,
                           const ss_prepared *const *x, int count, float *const *y) {
    int64_t row = begin;
    if (count == 1) {
        for (; row + PANEL <= end; row += PANEL) single(m, row, PANEL, bits, group, x[0], y[0] + row);
        for (; row < end; row++) single(m, row, 1, bits, group, x[0], y[0] + row);
        return;
    }
    for (; row < end; row += PANEL)
        several(m, row, end - row < PANEL ? (int)(end - row) : PANEL, bits, group, x, count, y);
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

static void rows_f32(const ss_member *m, int64_t begin, int64_t end, const ss_prepared *const *x, int count,
                     float *const *y) {
    dense_rows(m, begin, end, SS_FLOAT32, x, count, y);
}
static void rows_bf16(const ss_member *m, int64_t begin, int64_t end, const ss_prepared *const *x, int count,
                      float *const *y) {
    dense_rows(m, begin, end, SS_BFLOAT16, x, count, y);
}

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

/* e^v for v <= 0, and 0 below -87: e^v = 2^n * e^r with |r| <= ln 2 / 2, the Taylor polynomial of degree 7 for e^r (below 1e-8). */
INLINE vf exp_negative(vf v) {
    vi low = v < -87.0f;
    v = (vf)(((vi)v & ~low) | ((vi)splat(-87.0f) & low));
    vi n = __builtin_convertvector(v * 1.44269504f - 0.5f, vi); /* towards zero: the nearest whole number, v <= 0 */
    vf whole = __builtin_convertvector(n, vf);
    vf r = v - whole * 0.693359375f; /* ln 2 in two parts; the first product is exact */
    r = r - whole * -2.12194440e-4f;
    vf sum = splat(1.0f / 5040);
    sum = sum * r + 1.0f / 720;
    sum = sum * r + 1.0f / 120;
    sum = sum * r + 1.0f / 24;
    sum = sum * r + 1.0f / 6;
    sum = sum * r + 0.5f;
    sum = sum * r + 1.0f;
    sum = sum * r + 1.0f;
    return (vf)((vi)(sum * (vf)((n + 127) << 23)) & ~low);
}

INLINE vf gated(vf gate, vf up) {
    vf size = (vf)((vi)gate & 0x7fffffff);
    vf power = exp_negative(-size); /* of -|gate|: never overflows */
    vi positive = gate >= 0.0f;
    vf numerator = (vf)(((vi)splat(1.0f) & positive) | ((vi)power & ~positive));
    return gate * (numerator / (1.0f + power)) * up;
}

static void gate_rows(const float *gate, const float *up, int64_t count, float *out) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) store(out + i, gated(load(gate + i), load(up + i)));
    if (i < count) {
        float last[LANES];
        store(last, gated(load_some((const char *)gate, SS_FLOAT32, i, count - i),
                          load_some((const char *)up, SS_FLOAT32, i, count - i)));
        memcpy(out + i, last, (size_t)(count - i) * 4);
    }
}

static void mix_rows(const float *parts, int64_t stride, const float *weights, int64_t top, int64_t count, float *y) {
    int64_t i = 0;
    for (; i < count; i += LANES) {
        int64_t have = count - i < LANES ? count - i : LANES;
        vf sum = {0};
        for (int64_t k = 0; k < top; k++) {
            const float *at = parts + k * stride;
            vf value = have == LANES ? load(at + i) : load_some((const char *)at, SS_FLOAT32, i, have);
            sum = FMA(value, splat(weights[k]), sum);
        }
        float lanes[LANES];
        store(lanes, sum);
        memcpy(y + i, lanes, (size_t)have * 4);
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
