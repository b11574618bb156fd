/* The code of pieces.h, compiled once for each instruction set: define SS_PIECES as the table's name and include.
 *
 * Sums run in eight lanes that are added in a fixed order at the end; exponentials use one polynomial everywhere. So
 * instruction sets differ only where a compiler fuses a multiplication with an addition.
 */
#include "pieces.h"

#include <math.h>
#include <string.h>

typedef float v8 __attribute__((vector_size(32)));
typedef int32_t i8 __attribute__((vector_size(32)));
#define LANES 8

#ifndef MULTIPLY_ADD
#define MULTIPLY_ADD(a, b, c) ((a) * (b) + (c))
#endif

static inline v8 load8(const float *x) {
    v8 value;
    memcpy(&value, x, sizeof value);
    return value;
}

static inline void store8(float *x, v8 value) { memcpy(x, &value, sizeof value); }

static inline v8 splat8(float x) { return (v8){x, x, x, x, x, x, x, x}; }

static inline float sum8(v8 x) { return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7])); }

/* e^x for x in [-87, 88], clamped outside: 2^n times a polynomial of the rest, error below 2 units in the last place. */
static inline v8 exp8(v8 x) {
    const v8 low = splat8(-87.0f), high = splat8(88.0f);
    i8 below = x < low, above = x > high;
    x = (v8)((below & (i8)low) | (~below & (i8)x));
    x = (v8)((above & (i8)high) | (~above & (i8)x));
    v8 scaled = x * 1.44269504088896341f + 12582912.0f; /* 1.5 * 2^23 rounds to the nearest integer */
    i8 power = (i8)scaled - 0x4B400000;
    v8 n = scaled - 12582912.0f;
    v8 r = x - n * 0.693359375f - n * -2.12194440e-4f;
    v8 p = splat8(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return p * (v8)((power + 127) << 23);
}

static inline v8 sigmoid8(v8 x) { return 1.0f / (1.0f + exp8(-x)); }

static inline float exp1(float x) { return exp8(splat8(x))[0]; }

static inline float sigmoid1(float x) { return 1.0f / (1.0f + exp1(-x)); }

static inline float dot(const float *a, const float *b, int64_t count) {
    v8 even = {0}, odd = {0};
    int64_t i = 0;
    for (; i + 2 * LANES <= count; i += 2 * LANES) {
        even += load8(a + i) * load8(b + i);
        odd += load8(a + i + LANES) * load8(b + i + LANES);
    }
    for (; i + LANES <= count; i += LANES) even += load8(a + i) * load8(b + i);
    float total = sum8(even + odd);
    for (; i < count; i++) total += a[i] * b[i];
    return total;
}

static void rms_norm(const float *x, int64_t x_stride, const float *weight, int64_t rows, int64_t groups,
                     int64_t weight_groups, int64_t dim, float eps, float *out, int64_t out_stride) {
    for (int64_t t = 0; t < rows; t++)
        for (int64_t g = 0; g < groups; g++) {
            const float *from = x + t * x_stride + g * dim;
            const float *w = weight + (weight_groups == 1 ? 0 : g * dim);
            float *to = out + t * out_stride + g * dim;
            float factor = 1.0f / sqrtf(dot(from, from, dim) / (float)dim + eps);
            for (int64_t i = 0; i < dim; i++) to[i] = from[i] * factor * w[i];
        }
}

static void mix_streams(const float *gate, const float *normed, int64_t rows, int64_t streams, int64_t hidden,
                        float *mixed) {
    for (int64_t t = 0; t < rows; t++) {
        const float *g = gate + t * streams * hidden, *n = normed + t * streams * hidden;
        float *out = mixed + t * hidden;
        int64_t h = 0;
        for (; h + LANES <= hidden; h += LANES) {
            v8 total = {0};
            for (int64_t c = 0; c < streams; c++)
                total += sigmoid8(load8(g + c * hidden + h)) * load8(n + c * hidden + h);
            store8(out + h, total);
        }
        for (; h < hidden; h++) {
            float total = 0.0f;
            for (int64_t c = 0; c < streams; c++) total += sigmoid1(g[c * hidden + h]) * n[c * hidden + h];
            out[h] = total;
        }
    }
}

static void inject(const float *streams, const float *injection, const float *y, int64_t rows, int64_t count,
                   int64_t hidden, float *out) {
    for (int64_t t = 0; t < rows; t++)
        for (int64_t c = 0; c < count; c++) {
            const float *from = streams + (t * count + c) * hidden, *add = y + t * hidden;
            float *to = out + (t * count + c) * hidden, factor = 2.0f * injection[t * count + c];
            for (int64_t h = 0; h < hidden; h++) to[h] = from[h] + factor * add[h];
        }
}

static void silu(float *x, int64_t count) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) store8(x + i, load8(x + i) * sigmoid8(load8(x + i)));
    for (; i < count; i++) x[i] *= sigmoid1(x[i]);
}

static void sigmoid(float *x, int64_t count) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) store8(x + i, sigmoid8(load8(x + i)));
    for (; i < count; i++) x[i] = sigmoid1(x[i]);
}

static void silu_multiply(const float *gate, int64_t gate_stride, const float *up, int64_t up_stride, int64_t rows,
                          int64_t width, float *out) {
    for (int64_t t = 0; t < rows; t++) {
        const float *g = gate + t * gate_stride, *u = up + t * up_stride;
        float *to = out + t * width;
        int64_t i = 0;
        for (; i + LANES <= width; i += LANES) store8(to + i, load8(g + i) * sigmoid8(load8(g + i)) * load8(u + i));
        for (; i < width; i++) to[i] = g[i] * sigmoid1(g[i]) * u[i];
    }
}

static void gate_values(const float *x, const float *gate, int64_t gate_stride, int64_t rows, int64_t width,
                        float *out) {
    for (int64_t t = 0; t < rows; t++) {
        const float *from = x + t * width, *g = gate + t * gate_stride;
        float *to = out + t * width;
        int64_t i = 0;
        for (; i + LANES <= width; i += LANES) store8(to + i, load8(from + i) * sigmoid8(load8(g + i)));
        for (; i < width; i++) to[i] = from[i] * sigmoid1(g[i]);
    }
}

static inline const float *row_before(const float *window, const float *x, int64_t x_stride, int64_t channels,
                                      int64_t kept, int64_t row) {
    return row < 0 ? window + (kept + row) * channels : x + row * x_stride;
}

static void convolve(const float *window, const float *x, int64_t x_stride, const float *kernel, int64_t rows,
                     int64_t channels, int64_t taps, int64_t dilation, float *out) {
    int64_t kept = (taps - 1) * dilation;
    for (int64_t t = 0; t < rows; t++) {
        float *to = out + t * channels;
        for (int64_t j = 0; j < taps; j++) {
            const float *from = row_before(window, x, x_stride, channels, kept, t - (taps - 1 - j) * dilation);
            const float *w = kernel + j * channels;
            if (j == 0)
                for (int64_t i = 0; i < channels; i++) to[i] = from[i] * w[i];
            else
                for (int64_t i = 0; i < channels; i++) to[i] += from[i] * w[i];
        }
        silu(to, channels);
    }
}

static inline void unit(const float *x, int64_t dim, float eps, float scale, float *out) {
    float factor = scale / sqrtf(dot(x, x, dim) + eps);
    for (int64_t i = 0; i < dim; i++) out[i] = x[i] * factor;
}

/* One row of a head's memory: decay, read, correct, and its output. */
static inline float advance_memory_row(float *s, const float *k, const float *q, int64_t dim, float decay, float value,
                                       float beta) {
    v8 read = {0};
    int64_t i = 0;
    for (; i + LANES <= dim; i += LANES) {
        v8 kept = load8(s + i) * decay;
        store8(s + i, kept);
        read += kept * load8(k + i);
    }
    float seen = sum8(read);
    for (; i < dim; i++) {
        s[i] *= decay;
        seen += s[i] * k[i];
    }
    float error = (value - seen) * beta;
    v8 output = {0};
    for (i = 0; i + LANES <= dim; i += LANES) {
        v8 moved = load8(s + i) + load8(k + i) * error;
        store8(s + i, moved);
        output += moved * load8(q + i);
    }
    float result = sum8(output);
    for (; i < dim; i++) {
        s[i] += k[i] * error;
        result += s[i] * q[i];
    }
    return result;
}

static void delta_heads(const ss_delta_step *a, int64_t first, int64_t last) {
    int64_t kd = a->key_dim, vd = a->value_dim, keys = a->key_heads * kd, width = 2 * keys + a->value_heads * vd;
    float q[SS_DELTA_DIM], k[SS_DELTA_DIM], o[SS_DELTA_DIM];
    for (int64_t head = first; head < last; head++) {
        int64_t key_head = head / (a->value_heads / a->key_heads);
        float *memory = a->memory + head * vd * kd;
        for (int64_t t = 0; t < a->rows; t++) {
            if (a->history) {
                float *next = a->history + (t * a->value_heads + head) * vd * kd;
                memcpy(next, memory, (size_t)(vd * kd) * sizeof *next);
                memory = next;
            }
            const float *row = a->convolved + t * width;
            unit(row + key_head * kd, kd, a->key_eps, 1.0f / sqrtf((float)kd), q);
            unit(row + keys + key_head * kd, kd, a->key_eps, 1.0f, k);
            const float *v = row + 2 * keys + head * vd;
            float beta = sigmoid1(a->step[t * a->step_stride + head]);
            float x = a->decay[t * a->decay_stride + head] + a->dt_bias[head];
            float softplus = (x > 0 ? x : 0) + log1pf(expf(-fabsf(x)));
            float decay = expf(a->rate[head] * softplus);
            for (int64_t i = 0; i < vd; i++) o[i] = advance_memory_row(memory + i * kd, k, q, kd, decay, v[i], beta);
            rms_norm(o, vd, a->norm_weight, 1, 1, 1, vd, a->norm_eps, o, vd);
            const float *g = a->gate + t * a->gate_stride + head * vd;
            float *to = a->out + (t * a->value_heads + head) * vd;
            gate_values(o, g, vd, 1, vd, to);
            if (a->silu_gate)
                for (int64_t i = 0; i < vd; i++) to[i] *= g[i];
        }
    }
}

static void norm_rotate(const float *x, int64_t x_stride, int64_t head_stride, const float *weight,
                        const float *cosines, const float *sines, int64_t rows, int64_t heads, int64_t dim,
                        int64_t half, float eps, float *out) {
    for (int64_t t = 0; t < rows; t++)
        for (int64_t h = 0; h < heads; h++) {
            float *to = out + (t * heads + h) * dim;
            rms_norm(x + t * x_stride + h * head_stride, dim, weight, 1, 1, 1, dim, eps, to, dim);
            const float *c = cosines + t * half, *s = sines + t * half;
            for (int64_t i = 0; i < half; i++) {
                float left = to[i], right = to[half + i];
                to[i] = left * c[i] - right * s[i];
                to[half + i] = right * c[i] + left * s[i];
            }
        }
}

static void attend_heads(const ss_attention_row *a, int64_t first, int64_t last) {
    for (int64_t head = first; head < last; head++) {
        int64_t kv = head / (a->heads / a->kv_heads), dim = a->dim, count = a->key_count;
        const float *keys = a->keys + kv * a->kv_stride, *values = a->values + kv * a->kv_stride;
        const float *q = a->q + head * dim;
        float *scores = a->scores + head * count, *out = a->out + head * dim, top = -INFINITY;
        for (int64_t i = 0; i < count; i++) {
            scores[i] = a->scale * dot(q, keys + (a->chosen ? a->chosen[i] : i) * dim, dim);
            if (scores[i] > top) top = scores[i];
        }
        float total = 0.0f;
        for (int64_t i = 0; i < count; i += LANES) {
            int64_t n = count - i < LANES ? count - i : LANES;
            float part[LANES] = {0};
            for (int64_t j = 0; j < n; j++) part[j] = scores[i + j] - top;
            store8(part, exp8(load8(part)));
            for (int64_t j = 0; j < n; j++) {
                scores[i + j] = part[j];
                total += part[j];
            }
        }
        memset(out, 0, (size_t)dim * sizeof *out);
        for (int64_t i = 0; i < count; i++) {
            const float *value = values + (a->chosen ? a->chosen[i] : i) * dim;
            float weight = scores[i];
            for (int64_t d = 0; d < dim; d++) out[d] += weight * value[d];
        }
        for (int64_t d = 0; d < dim; d++) out[d] /= total;
    }
}

static void score_blocks(const float *q, int64_t rows, int64_t heads, int64_t dim, const float *blocks, int64_t count,
                         float scale, float *out) {
    for (int64_t t = 0; t < rows; t++)
        for (int64_t b = 0; b < count; b++) {
            float total = 0.0f;
            for (int64_t h = 0; h < heads; h++) {
                float match = dot(q + (t * heads + h) * dim, blocks + b * dim, dim);
                total += match > 0.0f ? match : 0.0f;
            }
            out[t * count + b] = scale * total;
        }
}

static void route(const float *logits, int64_t rows, int64_t experts, int64_t top, int32_t normalise, int32_t *ids,
                  float *weights) {
    for (int64_t t = 0; t < rows; t++) {
        const float *row = logits + t * experts;
        int32_t *id = ids + t * top;
        float *best = weights + t * top;
        int64_t found = 0;
        for (int64_t e = 0; e < experts; e++) {
            if (found == top && !(row[e] > best[top - 1])) continue;
            int64_t at = found < top ? found++ : top - 1;
            for (; at > 0 && row[e] > best[at - 1]; at--) {
                best[at] = best[at - 1];
                id[at] = id[at - 1];
            }
            best[at] = row[e];
            id[at] = (int32_t)e;
        }
        float high = best[0], total = 0.0f;
        if (!normalise)
            for (int64_t e = 0; e < experts; e++) total += exp1(row[e] - high);
        for (int64_t j = 0; j < top; j++) {
            best[j] = exp1(best[j] - high);
            if (normalise) total += best[j];
        }
        for (int64_t j = 0; j < top; j++) best[j] /= total;
    }
}

static int64_t likeliest(const float *logits, int64_t count, float *probability) {
    v8 tops = splat8(-INFINITY), total = {0};
    int64_t i = 0, place = 0;
    float top = -INFINITY, rest = 0.0f;
    for (; i + LANES <= count; i += LANES) {
        v8 x = load8(logits + i);
        i8 above = x > tops;
        tops = (v8)((above & (i8)x) | (~above & (i8)tops));
    }
    for (int64_t j = 0; j < LANES; j++) top = tops[j] > top ? tops[j] : top;
    for (int64_t j = i; j < count; j++) top = logits[j] > top ? logits[j] : top;
    while (place < count - 1 && !(logits[place] >= top)) place++;
    for (i = 0; i + LANES <= count; i += LANES) total += exp8(load8(logits + i) - top);
    for (; i < count; i++) rest += exp1(logits[i] - top);
    *probability = 1.0f / (sum8(total) + rest);
    return place;
}

static void combine(const float *shared, const float *gate, const float *weights, const float *routed, int64_t rows,
                    int64_t top, int64_t hidden, float *out) {
    for (int64_t t = 0; t < rows; t++) {
        float factor = sigmoid1(gate[t]);
        for (int64_t h = 0; h < hidden; h++) out[t * hidden + h] = factor * shared[t * hidden + h];
        for (int64_t j = 0; j < top; j++) {
            const float *from = routed + (t * top + j) * hidden;
            float weight = weights[t * top + j];
            for (int64_t h = 0; h < hidden; h++) out[t * hidden + h] += weight * from[h];
        }
    }
}

static void ngram_gate(const float *keys, const float *queries, const float *value, int64_t value_stride, int64_t rows,
                       int64_t streams, int64_t hidden, float *out) {
    for (int64_t t = 0; t < rows; t++)
        for (int64_t c = 0; c < streams; c++) {
            int64_t at = (t * streams + c) * hidden;
            float match = dot(keys + at, queries + at, hidden), size = fabsf(match);
            float root = sqrtf(size > 1e-6f ? size : 1e-6f);
            float gate = sigmoid1(match > 0 ? root : match < 0 ? -root : 0.0f);
            for (int64_t h = 0; h < hidden; h++) out[at + h] = gate * value[t * value_stride + h];
        }
}

#ifndef WIDEN
static inline i8 widen(const uint8_t *octets) {
    i8 values;
    for (int i = 0; i < LANES; i++) values[i] = octets[i];
    return values;
}
#define WIDEN(octets) widen(octets)
#endif
#define AS_FLOATS(integers) __builtin_convertvector(integers, v8)

/* Of 4 bits, eight octets hold the even columns of 16 in their lower halves and the odd ones in their upper halves. */
static void narrow_prepare(const ss_narrow *m, const float *x, int64_t rows, ss_narrow_row *row) {
    for (int64_t t = 0; t < rows; t++, x += m->columns, row++) {
        for (int64_t g = 0; g < m->columns / m->group_size; g++) {
            v8 total = {0};
            for (int64_t i = g * m->group_size; i < (g + 1) * m->group_size; i += LANES) total += load8(x + i);
            row->sums[g] = sum8(total);
        }
        if (m->bits == 8) {
            memcpy(row->values, x, (size_t)m->columns * sizeof *x);
            continue;
        }
        for (int64_t i = 0; i < m->columns; i += 2 * LANES)
            for (int64_t j = 0; j < LANES; j++) {
                row->values[i + j] = x[i + 2 * j];
                row->values[i + LANES + j] = x[i + 2 * j + 1];
            }
    }
}

/* The products of one group with `rows` rows at the group's columns. The number of rows is known where this is inlined. */
static inline void narrow_group(const uint8_t *octets, const ss_narrow_row *row, int64_t at, int64_t count, int32_t bits,
                                int rows, v8 *parts) {
    v8 even[SS_NARROW_ROWS] = {{0}}, odd[SS_NARROW_ROWS] = {{0}};
    for (int64_t i = 0; i < count; i += 2 * LANES) {
        v8 left, right;
        if (bits == 8) {
            left = AS_FLOATS(WIDEN(octets + i));
            right = AS_FLOATS(WIDEN(octets + i + LANES));
        } else {
            i8 pairs = WIDEN(octets + i / 2);
            left = AS_FLOATS(pairs & 15);
            right = AS_FLOATS(pairs >> 4);
        }
        for (int t = 0; t < rows; t++) {
            even[t] = MULTIPLY_ADD(left, load8(row[t].values + at + i), even[t]);
            odd[t] = MULTIPLY_ADD(right, load8(row[t].values + at + i + LANES), odd[t]);
        }
    }
    for (int t = 0; t < rows; t++) parts[t] = even[t] + odd[t];
}

static inline void narrow_rows(const ss_narrow *m, const ss_narrow_row *row, int rows, float *y, int64_t stride,
                               int32_t bits, int64_t group) {
    int64_t groups = m->columns / group, group_bytes = group * bits / 8;
    for (int64_t n = 0; n < m->rows; n++) {
        const uint8_t *octets = m->packed + n * groups * group_bytes;
        const float *scales = m->scales + n * groups, *biases = m->biases + n * groups;
        v8 total[SS_NARROW_ROWS] = {{0}}, parts[SS_NARROW_ROWS];
        float offset[SS_NARROW_ROWS] = {0};
        for (int64_t g = 0; g < groups; g++) {
            narrow_group(octets + g * group_bytes, row, g * group, group, bits, rows, parts);
            v8 scale = splat8(scales[g]);
            for (int t = 0; t < rows; t++) {
                total[t] = MULTIPLY_ADD(parts[t], scale, total[t]);
                offset[t] += biases[g] * row[t].sums[g];
            }
        }
        for (int t = 0; t < rows; t++) y[t * stride + n] = sum8(total[t]) + offset[t];
    }
}

static inline void narrow_of_rows(const ss_narrow *m, const ss_narrow_row *row, int rows, float *y, int64_t stride) {
    if (m->bits == 8 && m->group_size == 32) narrow_rows(m, row, rows, y, stride, 8, 32);
    else if (m->bits == 8 && m->group_size == 64) narrow_rows(m, row, rows, y, stride, 8, 64);
    else if (m->bits == 8) narrow_rows(m, row, rows, y, stride, 8, 128);
    else if (m->group_size == 32) narrow_rows(m, row, rows, y, stride, 4, 32);
    else if (m->group_size == 64) narrow_rows(m, row, rows, y, stride, 4, 64);
    else narrow_rows(m, row, rows, y, stride, 4, 128);
}

static void narrow_product(const ss_narrow *m, const ss_narrow_row *row, int64_t rows, float *y, int64_t stride) {
    switch (rows) {
    case 1: narrow_of_rows(m, row, 1, y, stride); break;
    case 2: narrow_of_rows(m, row, 2, y, stride); break;
    case 3: narrow_of_rows(m, row, 3, y, stride); break;
    default: narrow_of_rows(m, row, SS_NARROW_ROWS, y, stride);
    }
}

#include "tiles_body.h"
#include "attention_body.h"

const ss_pieces SS_PIECES = {
    .rms_norm = rms_norm,
    .mix_streams = mix_streams,
    .inject = inject,
    .silu = silu,
    .sigmoid = sigmoid,
    .silu_multiply = silu_multiply,
    .gate = gate_values,
    .convolve = convolve,
    .delta_heads = delta_heads,
    .norm_rotate = norm_rotate,
    .attend_heads = attend_heads,
    .score_blocks = score_blocks,
    .route = route,
    .likeliest = likeliest,
    .combine = combine,
    .ngram_gate = ngram_gate,
    .narrow_prepare = narrow_prepare,
    .narrow_product = narrow_product,
    .tile_panel = tile_panel,
    .tile_product = tile_product,
    .attend_rows = attend_rows,
};
