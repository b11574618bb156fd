/* Rows of activations in the order a variant multiplies them. Part of kernels_template.h. */
#ifndef SLOTSTREAM_KERNELS_PREPARE_H
#define SLOTSTREAM_KERNELS_PREPARE_H

#if SUBNORMAL
static float power_of_two(int exponent) { return ldexpf(1.0f, exponent); }
#endif

static void prepare(const void *x, int32_t x_type, int64_t columns, int32_t bits, int32_t group, float *values,
                    float *sums, ss_prepared *prepared) {
    prepared->values = values;
    prepared->sums = prepared->last_sums = bits ? sums : NULL;
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
    /* The sums after the last whole vector once more, at the end of a vector of their own. */
    for (int64_t g = groups / LANES * LANES; g < groups; g++) sums[kept - groups + g] = sums[g];
    prepared->last_sums = sums + kept - LANES;
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

#endif
