/* Gating and mixing of the results of experts, value by value. Part of kernels_template.h. */
#ifndef SLOTSTREAM_KERNELS_POINTWISE_H
#define SLOTSTREAM_KERNELS_POINTWISE_H

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

#endif
