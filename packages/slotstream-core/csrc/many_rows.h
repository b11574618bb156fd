/* Steps of a decoder layer for many rows: weights are unpacked panel by panel and meet all rows of a block in the cache.
 *
 * A thread takes a block of rows through as many operations as follow each other without other rows. Each row's results
 * have the same bits whatever other rows are in the call, however many these are and however they are cut into blocks;
 * they differ from those of the products for few rows, which steps.c uses up to SS_FEW_ROWS.
 *
 * Conventions as in steps.h.
 */
#ifndef SLOTSTREAM_MANY_ROWS_H
#define SLOTSTREAM_MANY_ROWS_H

#include "steps.h"

int32_t ss_many_multiply(ss_pool *pool, const ss_matrix *matrix, const float *x, int64_t rows, float *out);
int32_t ss_many_read_streams(const ss_reader *reader, ss_pool *pool, const float *streams, int64_t stride, int64_t rows,
                             float *normed, float *low, float *gate, float *mixed, float *injection);
int32_t ss_many_enter(const ss_layer *layer, ss_pool *pool, const float *streams, int64_t rows, float *projections,
                      float *injection);
/* Keys and values of any number of rows that nothing attends from, into the caches, and what the indexer reads. */
int32_t ss_many_remember(const ss_layer *layer, ss_pool *pool, const float *streams, int64_t rows,
                         const ss_cached *cached);
int32_t ss_many_leave(const ss_layer *layer, ss_pool *pool, const float *mixed, const float *streams,
                      const float *injection, int64_t rows, const ss_attended *out);
int32_t ss_many_advance(const ss_delta *delta, ss_pool *pool, const float *x, int64_t stride, const float *window,
                        float *convolved, const ss_delta_step *step);
int32_t ss_many_shared(const ss_layer *layer, ss_pool *pool, const float *x, int64_t rows, float *out, float *gate);
int32_t ss_many_join(const ss_layer *layer, ss_pool *pool, const ss_routed *routed, int64_t rows, const float *outputs);

/* Pair p is choice p % top of row p / top of x. out [rows * top, hidden]: those of some pairs, each of them named once,
 * or without `pair` all of them in order. */
typedef struct {
    const ss_matrix *gate, *up, *down;
    const float *x;
    const int32_t *pair, *slots; /* slots[i]: where the expert of pair[i] lies */
    int64_t top, pairs;
    float *out;
} ss_expert_pairs;
int32_t ss_many_experts(ss_pool *pool, const ss_expert_pairs *pairs);

int32_t ss_many_attend(ss_pool *pool, ss_attention_rows *rows);

#endif
