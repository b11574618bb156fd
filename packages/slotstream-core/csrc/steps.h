/* Steps of a decoder layer: the products and pieces between two readings of the residual streams.
 *
 * Everything is float32 and contiguous unless a stride is named. Each row's results have the same bits whatever other
 * rows are in the call, up to SS_FEW_ROWS of them, and again beyond. The caller has checked that the shapes agree; a
 * matrix that the products refuse, a slot that does not exist and missing memory are reported as in slotstream_native.h,
 * and outputs are undefined then.
 */
#ifndef SLOTSTREAM_STEPS_H
#define SLOTSTREAM_STEPS_H

#include "pieces.h"
#include "slotstream_native.h"

#define SS_FEW_ROWS 32 /* up to so many rows, products run on packed weights; see many_rows.h for more */
#define SS_MOST_MAPS 4 /* maps of one input, at most; neighbours that are stored alike count as one */

extern const ss_pieces ss_pieces_baseline;
#if defined(__x86_64__) && defined(SS_WITH_X86_VARIANTS)
#define SS_WITH_AVX2_PIECES 1
extern const ss_pieces ss_pieces_avx2;
#endif

/* What every function here runs; one that this processor can. */
extern const ss_pieces *ss_chosen_pieces;

/* Whether a product stays on the calling thread, in the pieces' own code. Depends on the matrix alone. */
int ss_is_narrow(const ss_matrix *matrix);

/* out = x @ matrix.T, by whichever product suits the matrix. */
int32_t ss_apply(ss_pool *pool, const ss_matrix *matrix, const float *x, int64_t rows, float *out);

/* out [rows * top, hidden]: ss_experts without mix. */
int32_t ss_apply_experts(ss_pool *pool, const ss_matrix *gate, const ss_matrix *up, const ss_matrix *down,
                         const float *x, int64_t rows, const int32_t *slots, int64_t top, float *out);

/* How a block reads the streams: norm, low-rank gate, and how strongly its output enters (inject may be null). */
typedef struct {
    const ss_matrix *down, *up, *inject;
    const float *weight; /* [count * hidden] */
    int64_t count, hidden;
    float eps;
} ss_reader;

/* Values of normed, low and gate below, for each row. */
static inline int64_t ss_reading_floats(const ss_reader *r) { return 2 * r->count * r->hidden + r->down->rows; }

/* normed [rows, count * hidden] and low [rows, rank] and gate (as normed) are scratch or results as the caller likes;
 * mixed [rows, hidden]; injection [rows, count], untouched without inject. */
int32_t ss_read_streams(const ss_reader *reader, ss_pool *pool, const float *streams, int64_t stride, int64_t rows,
                        float *normed, float *low, float *gate, float *mixed, float *injection);

/* Several maps of one input. Their results lie one after another, [rows, map's rows] each. */
typedef struct {
    const ss_matrix *map[SS_MOST_MAPS];
    int64_t count;
} ss_maps;

int64_t ss_maps_width(const ss_maps *maps);
int32_t ss_apply_maps(const ss_maps *maps, ss_pool *pool, const float *x, int64_t rows, float *out);

/* Columns of one map's result. */
typedef struct {
    int64_t map, column;
} ss_part;

/* Where a part's first row begins in the results of so many rows, and how far apart its rows are. */
static inline const float *ss_part_of(const ss_maps *maps, ss_part part, const float *results, int64_t rows,
                                      int64_t *stride) {
    for (int64_t i = 0; i < part.map; i++) results += rows * maps->map[i]->rows;
    *stride = maps->map[part.map]->rows;
    return results + part.column;
}

/* The gated delta rule between its maps: parts are qkv, gate, step, decay. */
typedef struct {
    ss_part part[4];
    const float *taps; /* [tap_count, channels] */
    int64_t tap_count;
    const float *rate, *dt_bias, *norm_weight;
    int64_t key_heads, value_heads, key_dim, value_dim;
    float norm_eps, key_eps;
    int32_t silu_gate;
} ss_delta;

/* Full attention between its maps: parts are queries with their gates (two of `dim` a head), keys, values, and what the
 * indexer reads. */
typedef struct {
    ss_part part[4];
    const float *q_weight, *k_weight; /* [dim] */
    int64_t heads, kv_heads, dim, index_width;
    float eps, scale;
} ss_attention;

/* The resident part of an expert layer: router, shared expert and its gate. */
typedef struct {
    const ss_matrix *router, *shared_down, *shared_gate;
    ss_maps shared; /* parts: gate, up */
    ss_part part[2];
    int64_t top;
    int32_t normalise;
} ss_expert_layer;

typedef struct {
    ss_reader first, second; /* how the mixer and how the experts read */
    ss_maps inputs;          /* of the mixer */
    const ss_matrix *output; /* of the mixer */
    int32_t has_delta, has_attention;
    ss_delta delta;
    ss_attention attention;
    ss_expert_layer experts;
} ss_layer;

/* The mixer's maps of what it reads: projections [rows * width], injection [rows, streams]. */
int32_t ss_enter(const ss_layer *layer, ss_pool *pool, const float *streams, int64_t rows, float *projections,
                 float *injection);

/* From what the mixer computed to the experts' choice: streams after it, the experts' input x, injection, ids, mix. */
typedef struct {
    float *streams;   /* [rows, count * hidden] */
    float *x;         /* [rows, hidden] */
    float *injection; /* [rows, count] */
    int32_t *ids;     /* [rows, top] */
    float *mix;       /* [rows, top] */
} ss_attended;
int32_t ss_leave(const ss_layer *layer, ss_pool *pool, const float *mixed, const float *streams, const float *injection,
                 int64_t rows, const ss_attended *out);

/* What the delta rule remembers: the last inputs of its convolution and its memory. */
typedef struct {
    const float *window; /* [tap_count - 1, channels] */
    float *moved;        /* [moved_rows, channels]: the last rows of the window followed by this call's inputs */
    int64_t moved_rows;  /* tap_count - 1, and up to as many more as the call has rows */
    float *memory;       /* as in ss_delta_step */
    float *history;
} ss_remembered;

/* Both, with the delta rule between them. */
int32_t ss_advance_delta(const ss_layer *layer, ss_pool *pool, const float *streams, int64_t rows,
                         const ss_remembered *remembered, const ss_attended *out);

/* What attention remembers, and the angles of a call's rows. */
typedef struct {
    const float *cosines, *sines; /* [rows, half] */
    int64_t half;
    float *keys, *values;         /* [kv_heads, capacity, dim] */
    int64_t capacity, length;     /* the rows go where `length` ends */
    float *index;                 /* [rows, index_width]: what the indexer reads */
} ss_cached;

/* Put keys and values of rows into the caches, the first of them `first` rows after `length`. keys [rows, kv_heads * dim]. */
void ss_keep_rows(const ss_attention *attention, const ss_cached *cached, int64_t first, int64_t rows, const float *keys,
                  const float *values, int64_t value_stride);

/* Enter, attend from the last `queries` of at most SS_FEW_ROWS rows to every key up to each, and leave with these. */
int32_t ss_advance_attention(const ss_layer *layer, ss_pool *pool, const float *streams, int64_t rows, int64_t queries,
                             const ss_cached *cached, const ss_attended *out);

/* What a draft head starts from: streams [rows, count * hidden] and the tokens after them, each normalised and mapped; every
 * stream gets the same embedding. out as streams. */
typedef struct {
    const ss_matrix *embedding, *from_embedding, *from_streams;
    const float *embedding_weight, *streams_weight; /* [hidden], [count * hidden] */
    int64_t count, hidden;
    float eps;
} ss_draft_inputs;
int32_t ss_join_inputs(const ss_draft_inputs *inputs, ss_pool *pool, const float *streams, const int64_t *after,
                       int64_t rows, float *out);

/* The likeliest row of the vocabulary's matrix after one row of streams, and its probability. */
int32_t ss_guess(const ss_reader *reader, const ss_matrix *vocabulary, ss_pool *pool, const float *streams,
                 int64_t *token, float *confidence);

/* A learned correction of forecast logits: logits + (x - mu) @ a.T @ b.T + delta, a [rank, hidden], b [experts, rank]. */
typedef struct {
    const ss_matrix *a, *b;
    const float *mu, *delta; /* [hidden], [experts] */
} ss_correction;

/* What the layer's router, or another of its shape in its place, would say of some streams [rows, count * hidden]: logits
 * [rows, experts], corrected where there is a correction. */
int32_t ss_forecast_logits(const ss_layer *layer, ss_pool *pool, const float *streams, int64_t rows,
                           const ss_matrix *router, const ss_correction *correction, float *logits);

/* The shared expert: out [rows, hidden] and its raw gate [rows, 1]. */
int32_t ss_shared(const ss_layer *layer, ss_pool *pool, const float *x, int64_t rows, float *out, float *gate);

/* The routed experts' matrices, and what they read and write. */
typedef struct {
    const ss_matrix *gate, *up, *down;
    const int32_t *slots;  /* [rows, top] */
    const float *mix;      /* [rows, top] */
    const float *x;        /* [rows, hidden] */
    const float *shared, *shared_gate;
    const float *streams, *injection;
    float *out; /* [rows, count * hidden] */
} ss_routed;
int32_t ss_join_experts(const ss_layer *layer, ss_pool *pool, const ss_routed *routed, int64_t rows);

/* The same where the experts' outputs [rows * top, hidden] are there already: matrices, slots and x are not looked at. */
int32_t ss_join_outputs(const ss_layer *layer, ss_pool *pool, const ss_routed *routed, int64_t rows,
                        const float *outputs);

#endif
