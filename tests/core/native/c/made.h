/* Matrices and activations drawn from a fixed sequence, in buffers of exactly the size the interface asks for. */
#ifndef MADE_H
#define MADE_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "slotstream_native.h"

static uint32_t state = 12345;
static uint32_t draw(void) { return state = state * 1664525u + 1013904223u; }
static float draw_float(void) { return (float)(draw() >> 8) / (1 << 23) - 1.0f; }

typedef struct owned {
    ss_matrix m;
    float *dense; /* the same values, [members, rows, columns] */
} owned;

static void *exactly(size_t bytes) {
    void *memory = malloc(bytes ? bytes : 1);
    CHECK(memory);
    return memory;
}

/* A float whose lower half is zero, and how a matrix of `type` stores it. */
static float put_float(void *to, int64_t index, int type, float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if (type == SS_BFLOAT16) {
        bits &= 0xffff0000u;
        ((uint16_t *)to)[index] = (uint16_t)(bits >> 16);
        memcpy(&value, &bits, 4);
    } else {
        ((float *)to)[index] = value;
    }
    return value;
}

static owned make(int64_t members, int64_t rows, int64_t columns, int bits, int group, int type) {
    owned o = {.m = {.members = members, .rows = rows, .columns = columns, .bits = bits, .group = group, .type = type}};
    int64_t values = members * rows * columns;
    size_t wide = type == SS_BFLOAT16 ? 2 : 4;
    o.dense = exactly((size_t)values * 4);
    if (!bits) {
        o.m.weight_bytes = values * (int64_t)wide;
        void *weight = exactly((size_t)o.m.weight_bytes);
        for (int64_t i = 0; i < values; i++) o.dense[i] = put_float(weight, i, type, draw_float());
        o.m.weight = weight;
        return o;
    }
    o.m.weight_bytes = values * bits / 8;
    o.m.scales_bytes = values / group * (int64_t)wide;
    uint8_t *weight = exactly((size_t)o.m.weight_bytes);
    void *scales = exactly((size_t)o.m.scales_bytes), *biases = exactly((size_t)o.m.scales_bytes);
    for (int64_t i = 0; i < o.m.weight_bytes; i++) weight[i] = (uint8_t)(draw() >> 24);
    for (int64_t g = 0; g < values / group; g++) {
        float scale = put_float(scales, g, type, 0.01f * (1.5f + draw_float()));
        float bias = put_float(biases, g, type, draw_float() * 0.1f);
        for (int64_t i = g * group; i < (g + 1) * group; i++) {
            int q = bits == 8 ? weight[i] : weight[i / 2] >> (i % 2 * 4) & 15;
            o.dense[i] = scale * (float)q + bias;
        }
    }
    o.m.weight = weight, o.m.scales = scales, o.m.biases = biases;
    return o;
}

static void drop(owned *o) {
    free((void *)o->m.weight);
    free((void *)o->m.scales);
    free((void *)o->m.biases);
    free(o->dense);
}

static float *activations(int64_t count) {
    float *x = exactly((size_t)count * 4);
    for (int64_t i = 0; i < count; i++) x[i] = draw_float();
    return x;
}

static void near(float found, double expected, double size) {
    if (!(fabs(found - expected) <= 1e-5 * size + 1e-6)) {
        fprintf(stderr, "%g instead of %g (size %g)\n", found, expected, size);
        exit(1);
    }
}

#endif
