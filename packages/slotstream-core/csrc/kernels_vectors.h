/* Vectors of LANES floats: loads, sums in fixed order, fields of packed words, scales. Part of kernels_template.h. */
#ifndef SLOTSTREAM_KERNELS_VECTORS_H
#define SLOTSTREAM_KERNELS_VECTORS_H

typedef float vf __attribute__((vector_size(LANES * 4)));
typedef int32_t vi __attribute__((vector_size(LANES * 4)));
typedef uint32_t vu __attribute__((vector_size(LANES * 4)));
typedef uint16_t vh __attribute__((vector_size(LANES * 2)));

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
#ifdef WIDEN_16
    return (vf)(WIDEN_16(at) << 16);
#else
    vh bits;
    memcpy(&bits, at, sizeof bits);
    return (vf)(__builtin_convertvector(bits, vu) << 16);
#endif
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

#endif
