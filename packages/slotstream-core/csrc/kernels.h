/* What one variant (a set of processor instructions) provides. Internal: arguments are right. */
#ifndef SLOTSTREAM_KERNELS_H
#define SLOTSTREAM_KERNELS_H

#include "slotstream_native.h"

#define SS_ROW_BLOCK 8 /* rows of activations that a kernel takes at once, at most */

/* One matrix of a stack. */
typedef struct ss_member {
    const char *weight;
    const char *scales;
    const char *biases;
    int64_t weight_stride; /* bytes from one row to the next */
    int64_t scales_stride;
    int64_t columns;
    int32_t bits;
    int32_t group;
    int32_t type;
} ss_member;

/* One row of activations, in the order a variant multiplies it. */
typedef struct ss_prepared {
    const float *values;    /* [ss_values_floats], padded with zeros */
    const float *sums;      /* sum of each group, then zeros */
    const float *last_sums; /* a vector for the last groups, zero for those that are in a whole vector of `sums` */
    float rescale[2];       /* the products of `values` are to be multiplied by both */
} ss_prepared;

typedef struct ss_kernels {
    const char *name;
    int lanes;
    /* Fill values and sums from columns values at x (type x_type). */
    void (*prepare)(const void *x, int32_t x_type, int64_t columns, int32_t bits, int32_t group, float *values,
                    float *sums, ss_prepared *prepared);
    /* y[r][n] for n from `begin` to `end` and r below count <= SS_ROW_BLOCK. */
    void (*multiply)(const ss_member *matrix, int64_t begin, int64_t end, const ss_prepared *const *x, int count,
                     float *const *y);
    void (*unpack_row)(const ss_member *matrix, int64_t row, float *y);
    /* out = gate * sigmoid(gate) * up */
    void (*gate)(const float *gate, const float *up, int64_t count, float *out);
    /* y[i] = sum over k, in order, of mix[k] * parts[k][i]; each part `stride` floats after the one before. */
    void (*mix)(const float *parts, int64_t stride, const float *mix, int64_t top, int64_t count, float *y);
} ss_kernels;

extern const ss_kernels ss_kernels_scalar;
extern const ss_kernels ss_kernels_avx2;
extern const ss_kernels ss_kernels_avx2_subnormal;
extern const ss_kernels ss_kernels_avx512;
extern const ss_kernels ss_kernels_neon;

/* Enough for every variant: columns rounded up to the widest block, plus one. */
static inline int64_t ss_values_floats(int64_t columns) { return (columns + 127) / 128 * 128; }
static inline int64_t ss_sums_floats(int64_t columns, int32_t group) {
    return group ? (columns / group + 31) / 16 * 16 : 0;
}

/* Best variant first is the caller's business: index into the list of ss_variant_name. */
const ss_kernels *ss_variant(int32_t index);

#endif
