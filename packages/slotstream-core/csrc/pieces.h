/* The small pieces of a layer between its matrix products, for float32 rows.
 *
 * Every output value depends on its own row (and, for the recurrence and attention, on the rows before it) only, so a
 * row gets the same bits whatever other rows are in the call. All arrays are contiguous along their last axis; strides
 * count floats. Callers validate; nothing here allocates, locks or fails.
 */
#ifndef SLOTSTREAM_PIECES_H
#define SLOTSTREAM_PIECES_H

#include <stdint.h>

/* x / sqrt(mean(x^2) + eps) * weight over the last axis of [rows, groups, dim].
 * weight is [groups, dim], or [1, dim] when weight_groups is 1. out may be x. */
typedef void ss_rms_norm_fn(const float *x, int64_t x_stride, const float *weight, int64_t rows, int64_t groups,
                            int64_t weight_groups, int64_t dim, float eps, float *out, int64_t out_stride);

/* mixed[t, h] = sum over streams c of sigmoid(gate[t, c, h]) * normed[t, c, h]. */
typedef void ss_mix_streams_fn(const float *gate, const float *normed, int64_t rows, int64_t streams, int64_t hidden,
                               float *mixed);

/* out[t, c, :] = streams[t, c, :] + 2 * injection[t, c] * y[t, :]. out may be streams. */
typedef void ss_inject_fn(const float *streams, const float *injection, const float *y, int64_t rows, int64_t count,
                          int64_t hidden, float *out);

/* x = x * sigmoid(x), or sigmoid(x), in place. */
typedef void ss_activate_fn(float *x, int64_t count);

/* out[t, i] = silu(gate[t, i]) * up[t, i]. */
typedef void ss_silu_multiply_fn(const float *gate, int64_t gate_stride, const float *up, int64_t up_stride,
                                 int64_t rows, int64_t width, float *out);

/* out[t, i] = x[t, i] * sigmoid(gate[t, i]). */
typedef void ss_gate_fn(const float *x, const float *gate, int64_t gate_stride, int64_t rows, int64_t width,
                        float *out);

/* Causal convolution of each channel over tokens, then SiLU. window [(taps - 1) * dilation, channels] precedes the
 * rows; kernel [taps, channels], its last tap meets the present row. */
typedef void ss_convolve_fn(const float *window, const float *x, int64_t x_stride, const float *kernel, int64_t rows,
                            int64_t channels, int64_t taps, int64_t dilation, float *out);

/* One gated delta layer between its projections. */
typedef struct {
    int64_t rows, key_heads, value_heads, key_dim, value_dim;
    const float *convolved;    /* [rows, 2 * key_heads * key_dim + value_heads * value_dim] */
    const float *gate;         /* [rows, value_heads * value_dim], rows gate_stride apart */
    const float *step, *decay; /* [rows, value_heads], raw projections */
    int64_t gate_stride, step_stride, decay_stride;
    const float *rate, *dt_bias; /* [value_heads]; rate is -exp(A_log) */
    const float *norm_weight;    /* [value_dim] */
    float *memory;               /* [value_heads, value_dim, key_dim], advanced in place unless there is a history */
    float *history;              /* null, or [rows, ...]: the memory after each row; `memory` stays as it is then */
    float *out;                  /* [rows, value_heads * value_dim] */
    float norm_eps, key_eps;
    int32_t silu_gate;
} ss_delta_step;

/* Heads first..last-1 of a delta step, token after token. value_dim and key_dim are at most SS_DELTA_DIM. */
#define SS_DELTA_DIM 512
typedef void ss_delta_heads_fn(const ss_delta_step *step, int64_t first, int64_t last);

/* RMS-normalise each head and rotate its first 2 * half values by the row's angles.
 * x [rows, heads, dim] with rows x_stride and heads head_stride apart; cos, sin [rows, half]; out [rows, heads, dim]. */
typedef void ss_norm_rotate_fn(const float *x, int64_t x_stride, int64_t head_stride, const float *weight,
                               const float *cosines, const float *sines, int64_t rows, int64_t heads, int64_t dim,
                               int64_t half, float eps, float *out);

/* Attention of one row over chosen keys. */
typedef struct {
    int64_t heads, kv_heads, dim, key_count;
    const float *q;             /* [heads, dim] */
    const float *keys, *values; /* [kv_heads, capacity, dim] */
    int64_t kv_stride;          /* floats from one KV head to the next */
    const int32_t *chosen;      /* key_count positions, or NULL for the first key_count */
    float scale;
    float *scores; /* scratch [heads, key_count] */
    float *out;    /* [heads, dim] */
} ss_attention_row;

/* Heads first..last-1 of an attention row. */
typedef void ss_attend_heads_fn(const ss_attention_row *row, int64_t first, int64_t last);

/* out[t, b] = scale * sum over heads of max(0, q[t, head, :] . blocks[b, :]); q [rows, heads, dim]. */
typedef void ss_score_blocks_fn(const float *q, int64_t rows, int64_t heads, int64_t dim, const float *blocks,
                                int64_t count, float scale, float *out);

/* The top ids of each row of logits [rows, experts], best first (of equals the lower id), and their softmax weights:
 * over the chosen when normalise, else over all. */
typedef void ss_route_fn(const float *logits, int64_t rows, int64_t experts, int64_t top, int32_t normalise,
                         int32_t *ids, float *weights);

/* The place of the largest of `count` logits, at least one (of equals the first), and its probability. */
typedef int64_t ss_likeliest_fn(const float *logits, int64_t count, float *probability);

/* out[t, :] = sigmoid(gate[t]) * shared[t, :] + sum over j in order of weights[t, j] * routed[t, j, :]. */
typedef void ss_combine_fn(const float *shared, const float *gate, const float *weights, const float *routed,
                           int64_t rows, int64_t top, int64_t hidden, float *out);

/* The n-gram gate: match[t, c] = keys[t, c, :] . queries[t, c, :];
 * out[t, c, :] = sigmoid(sign(match) sqrt(max(|match|, 1e-6))) * value[t, :]. */
typedef void ss_ngram_gate_fn(const float *keys, const float *queries, const float *value, int64_t value_stride,
                              int64_t rows, int64_t streams, int64_t hidden, float *out);

/* A quantised matrix [rows, columns] of 4 or 8 bits in groups of 32, 64 or 128, with float32 scales and biases. */
typedef struct {
    const uint8_t *packed;
    const float *scales, *biases;
    int64_t rows, columns, group_size;
    int32_t bits;
} ss_narrow;

/* Activations as ss_narrow_product reads them: values in the order of the packed ones, then the sum of each group. */
#define SS_NARROW_COLUMNS 4096
typedef struct {
    float values[SS_NARROW_COLUMNS], sums[SS_NARROW_COLUMNS / 32];
} ss_narrow_row;

#define SS_NARROW_ROWS 4 /* that one product may have */

/* `rows` rows of x, one after another, into as many of `row`. */
typedef void ss_narrow_prepare_fn(const ss_narrow *matrix, const float *x, int64_t rows, ss_narrow_row *row);

/* y[t * stride + i] for every row: weights are unpacked once for all of them. A row's bits are those of a product of
 * its own. At most SS_NARROW_ROWS rows. */
typedef void ss_narrow_product_fn(const ss_narrow *matrix, const ss_narrow_row *row, int64_t rows, float *y,
                                  int64_t stride);

/* One matrix [rows, columns], packed in groups or dense (bits 0), for products of many rows. */
#define SS_TILE_FLOAT32 0 /* the ss_type of scales, biases and dense values; else bfloat16 */
typedef struct {
    const void *weight, *scales, *biases;
    int64_t rows, columns, group;
    int32_t bits, type;
} ss_tile_matrix;

#define SS_PANEL 16     /* outputs of a panel */
#define SS_TILE_ROWS 6  /* rows of a tile, at most */
#define SS_KEY_BLOCK 64 /* keys that a panel of queries meets at a time */

/* panel[(k - first) * SS_PANEL + n] = the weight of output row + n for column k, for columns first..last-1, which are
 * whole groups. What stands for outputs past the matrix is not said. */
typedef void ss_tile_panel_fn(const ss_tile_matrix *matrix, int64_t row, int64_t first, int64_t last, float *panel);

/* y[t][n] = sum over k in order of x[t][k * step] * panel[k * SS_PANEL + n], or that much more with add; for `width` outputs
 * of each of `rows` rows. */
typedef void ss_tile_product_fn(const float *const *x, int64_t step, float *const *y, int64_t rows, const float *panel,
                                int64_t depth, int64_t width, int32_t add);

/* Attention of many rows, of which row t sees keys 0 to position + t, or those of the selected blocks and its own,
 * unfinished one. */
typedef struct {
    int64_t heads, kv_heads, dim, rows, position;
    const float *q;             /* [rows, heads, dim] */
    const float *keys, *values; /* [kv_heads, capacity, dim] */
    int64_t kv_stride;          /* floats from one KV head to the next */
    const uint8_t *selected;    /* [rows, blocks] of `ratio` keys each, for blocks that a row has left behind; or null */
    int64_t blocks, ratio;
    float scale;
    float *out; /* [rows, heads, dim] */
} ss_attention_rows;

/* Rows first..first + SS_PANEL - 1 of a head, as far as there are so many. Uses ss_attention_floats of scratch. */
typedef void ss_attend_rows_fn(const ss_attention_rows *rows, int64_t head, int64_t first, float *scratch);
static inline int64_t ss_attention_floats(int64_t dim) { return (2 * dim + SS_KEY_BLOCK) * SS_PANEL; }

typedef struct {
    ss_rms_norm_fn *rms_norm;
    ss_mix_streams_fn *mix_streams;
    ss_inject_fn *inject;
    ss_activate_fn *silu, *sigmoid;
    ss_silu_multiply_fn *silu_multiply;
    ss_gate_fn *gate;
    ss_convolve_fn *convolve;
    ss_delta_heads_fn *delta_heads;
    ss_norm_rotate_fn *norm_rotate;
    ss_attend_heads_fn *attend_heads;
    ss_score_blocks_fn *score_blocks;
    ss_route_fn *route;
    ss_likeliest_fn *likeliest;
    ss_combine_fn *combine;
    ss_ngram_gate_fn *ngram_gate;
    ss_narrow_prepare_fn *narrow_prepare;
    ss_narrow_product_fn *narrow_product;
    ss_tile_panel_fn *tile_panel;
    ss_tile_product_fn *tile_product;
    ss_attend_rows_fn *attend_rows;
} ss_pieces;

#endif
