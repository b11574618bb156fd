#include "steps.h"

#include <stdlib.h>
#include <string.h>

#include "many_rows.h"
#include "scratch.h"
#include "threads.h"

#define NARROW_COLUMNS 512      /* quantised matrices of at most so many columns ... */
#define NARROW_VALUES (1 << 17) /* ... or so many values use the pieces' own product */
#define SHARED_VALUES (1 << 16) /* from so many values on, threads share a matrix ... */
#define PIECE_VALUES (1 << 15)  /* ... in pieces of about so many */

const ss_pieces *ss_chosen_pieces = &ss_pieces_baseline;
#define pieces ss_chosen_pieces

/* Whether the pieces' own product is used. It depends on the matrix alone, so that a row's bits do not change. */
int ss_is_narrow(const ss_matrix *m) {
    return m->bits != 0 && m->type == SS_FLOAT32 && m->columns % 32 == 0 && m->columns <= SS_NARROW_COLUMNS &&
           (m->columns <= NARROW_COLUMNS || m->columns * m->rows <= NARROW_VALUES);
}

static ss_narrow narrow_of(const ss_matrix *m, int64_t member) {
    int64_t values = m->rows * m->columns, groups = values / m->group;
    return (ss_narrow){(const uint8_t *)m->weight + member * (values * m->bits / 8),
                       (const float *)m->scales + member * groups,
                       (const float *)m->biases + member * groups,
                       m->rows,
                       m->columns,
                       m->group,
                       m->bits};
}

typedef struct {
    const ss_narrow *matrix;
    const ss_narrow_row *row;
    int64_t rows, piece_rows;
    float *out;
    int64_t stride;
} narrow_job;

static int64_t piece_rows(const ss_matrix *matrix) {
    int64_t rows = PIECE_VALUES / matrix->columns;
    return rows < 1 ? 1 : rows;
}

static void narrow_piece(void *context, int64_t piece) {
    const narrow_job *job = context;
    const ss_narrow *m = job->matrix;
    int64_t first = piece * job->piece_rows, groups = m->columns / m->group_size;
    ss_narrow part = *m;
    part.rows = m->rows - first < job->piece_rows ? m->rows - first : job->piece_rows;
    part.packed += first * (m->columns * m->bits / 8);
    part.scales += first * groups;
    part.biases += first * groups;
    pieces->narrow_product(&part, job->row, job->rows, job->out + first, job->stride);
}

static void multiply_row(const ss_matrix *matrix, int64_t member, const float *x, float *out) {
    ss_narrow narrow = narrow_of(matrix, member);
    ss_narrow_row row;
    pieces->narrow_prepare(&narrow, x, 1, &row);
    pieces->narrow_product(&narrow, &row, 1, out, matrix->rows);
}

int32_t ss_apply(ss_pool *pool, const ss_matrix *matrix, const float *x, int64_t rows, float *out) {
    if (!pool) return SS_BAD_ARGUMENT;
    if (rows > SS_FEW_ROWS) return ss_many_multiply(pool, matrix, x, rows, out);
    if (!ss_is_narrow(matrix)) return ss_multiply(pool, matrix, 0, x, SS_FLOAT32, rows, out);
    int shared = matrix->rows * matrix->columns >= SHARED_VALUES;
    ss_narrow narrow = narrow_of(matrix, 0);
    ss_narrow_row row[SS_NARROW_ROWS];
    ss_call call;
    int32_t code = shared ? ss_begin(pool, 0, &call) : SS_OK;
    if (code != SS_OK) return code;
    narrow_job job = {.matrix = &narrow, .row = row, .piece_rows = piece_rows(matrix), .stride = matrix->rows};
    for (int64_t t = 0; t < rows; t += job.rows) {
        job.rows = rows - t < SS_NARROW_ROWS ? rows - t : SS_NARROW_ROWS;
        pieces->narrow_prepare(&narrow, x + t * matrix->columns, job.rows, row);
        job.out = out + t * matrix->rows;
        if (shared) ss_share(&call, narrow_piece, &job, (matrix->rows + job.piece_rows - 1) / job.piece_rows);
        else pieces->narrow_product(&narrow, row, job.rows, job.out, job.stride);
    }
    if (shared) ss_end(&call);
    return SS_OK;
}

typedef struct {
    const ss_matrix *gate, *up, *down;
    const ss_narrow_row *row; /* of each row */
    const int32_t *slots;     /* [rows, top] */
    int64_t top;
    float *out;
} experts_job;

/* One choice of one row. */
static void expert_piece(void *context, int64_t choice) {
    const experts_job *job = context;
    float inner[SS_NARROW_COLUMNS], raised[SS_NARROW_COLUMNS];
    const ss_narrow_row *row = job->row + choice / job->top;
    int64_t slot = job->slots[choice], width = job->gate->rows;
    ss_narrow gate = narrow_of(job->gate, slot), up = narrow_of(job->up, slot);
    pieces->narrow_product(&gate, row, 1, inner, width);
    pieces->narrow_product(&up, row, 1, raised, width);
    pieces->silu_multiply(inner, width, raised, width, 1, width, inner);
    multiply_row(job->down, slot, inner, job->out + choice * job->down->rows);
}

static int32_t experts_narrow(ss_pool *pool, const ss_matrix *gate, const ss_matrix *up, const ss_matrix *down,
                              const float *x, int64_t rows, const int32_t *slots, int64_t top, float *out) {
    for (int64_t i = 0; i < rows * top; i++)
        if (slots[i] < 0 || slots[i] >= gate->members) return SS_OUT_OF_RANGE;
    ss_call call;
    int32_t code = ss_begin(pool, 0, &call);
    if (code != SS_OK) return code;
    ss_narrow_row row[SS_NARROW_ROWS];
    ss_narrow first = narrow_of(gate, 0);
    for (int64_t t = 0; t < rows; t += SS_NARROW_ROWS) {
        int64_t together = rows - t < SS_NARROW_ROWS ? rows - t : SS_NARROW_ROWS;
        pieces->narrow_prepare(&first, x + t * gate->columns, together, row);
        experts_job job = {gate, up, down, row, slots + t * top, top, out + t * top * down->rows};
        ss_share(&call, expert_piece, &job, together * top);
    }
    ss_end(&call);
    return SS_OK;
}

/* All three alike and small, so that one prepared row serves gate and up. */
static int are_narrow(const ss_matrix *gate, const ss_matrix *up, const ss_matrix *down) {
    return ss_is_narrow(gate) && ss_is_narrow(up) && ss_is_narrow(down) && gate->bits == up->bits && gate->group == up->group &&
           gate->rows == up->rows && gate->columns == up->columns && down->columns == gate->rows &&
           gate->members == up->members && gate->members == down->members;
}

int32_t ss_apply_experts(ss_pool *pool, const ss_matrix *gate, const ss_matrix *up, const ss_matrix *down,
                         const float *x, int64_t rows, const int32_t *slots, int64_t top, float *out) {
    if (!pool) return SS_BAD_ARGUMENT;
    if (are_narrow(gate, up, down)) return experts_narrow(pool, gate, up, down, x, rows, slots, top, out);
    return ss_experts(pool, gate, up, down, x, SS_FLOAT32, rows, slots, NULL, top, out);
}

int32_t ss_read_streams(const ss_reader *r, ss_pool *pool, const float *streams, int64_t stride, int64_t rows,
                        float *normed, float *low, float *gate, float *mixed, float *injection) {
    int64_t width = r->count * r->hidden;
    if (rows > SS_FEW_ROWS)
        return ss_many_read_streams(r, pool, streams, stride, rows, normed, low, gate, mixed, injection);
    pieces->rms_norm(streams, stride, r->weight, rows, r->count, r->count, r->hidden, r->eps, normed, width);
    int32_t code = ss_apply(pool, r->down, normed, rows, low);
    if (code != SS_OK) return code;
    pieces->silu(low, rows * r->down->rows);
    code = ss_apply(pool, r->up, low, rows, gate);
    if (code != SS_OK) return code;
    pieces->mix_streams(gate, normed, rows, r->count, r->hidden, mixed);
    if (r->inject == NULL) return SS_OK;
    code = ss_apply(pool, r->inject, normed, rows, injection);
    if (code == SS_OK) pieces->sigmoid(injection, rows * r->count);
    return code;
}

int64_t ss_maps_width(const ss_maps *maps) {
    int64_t width = 0;
    for (int64_t i = 0; i < maps->count; i++) width += maps->map[i]->rows;
    return width;
}

int32_t ss_apply_maps(const ss_maps *maps, ss_pool *pool, const float *x, int64_t rows, float *out) {
    for (int64_t i = 0; i < maps->count; i++) {
        int32_t code = ss_apply(pool, maps->map[i], x, rows, out);
        if (code != SS_OK) return code;
        out += rows * maps->map[i]->rows;
    }
    return SS_OK;
}

static int32_t read_with(const ss_reader *r, ss_pool *pool, const float *streams, int64_t rows, scratch s, float *mixed,
                         float *injection) {
    int64_t width = r->count * r->hidden;
    float *normed = cut(&s, rows * width), *gate = cut(&s, rows * width), *low = cut(&s, rows * r->down->rows);
    return ss_read_streams(r, pool, streams, width, rows, normed, low, gate, mixed, injection);
}

int32_t ss_enter(const ss_layer *layer, ss_pool *pool, const float *streams, int64_t rows, float *projections,
                 float *injection) {
    if (rows > SS_FEW_ROWS) return ss_many_enter(layer, pool, streams, rows, projections, injection);
    scratch s;
    int32_t code = reserve(&s, rows * (ss_reading_floats(&layer->first) + layer->first.hidden));
    if (code != SS_OK) return code;
    float *mixed = cut(&s, rows * layer->first.hidden);
    code = read_with(&layer->first, pool, streams, rows, s, mixed, injection);
    if (code == SS_OK) code = ss_apply_maps(&layer->inputs, pool, mixed, rows, projections);
    free(s.memory);
    return code;
}

int32_t ss_leave(const ss_layer *layer, ss_pool *pool, const float *mixed, const float *streams, const float *injection,
                 int64_t rows, const ss_attended *out) {
    const ss_reader *second = &layer->second;
    const ss_expert_layer *experts = &layer->experts;
    if (rows > SS_FEW_ROWS) return ss_many_leave(layer, pool, mixed, streams, injection, rows, out);
    scratch s;
    int32_t code = reserve(&s, rows * (ss_reading_floats(second) + second->hidden + experts->router->rows));
    if (code != SS_OK) return code;
    float *y = cut(&s, rows * second->hidden), *logits = cut(&s, rows * experts->router->rows);
    code = ss_apply(pool, layer->output, mixed, rows, y);
    if (code == SS_OK) {
        pieces->inject(streams, injection, y, rows, second->count, second->hidden, out->streams);
        code = read_with(second, pool, out->streams, rows, s, out->x, out->injection);
    }
    if (code == SS_OK) code = ss_apply(pool, experts->router, out->x, rows, logits);
    if (code == SS_OK)
        pieces->route(logits, rows, experts->router->rows, experts->top, experts->normalise, out->ids, out->mix);
    free(s.memory);
    return code;
}

/* The last rows of the window, which has `kept`, and of what followed it. */
static void move_window(const ss_remembered *r, int64_t kept, const float *x, int64_t stride, int64_t rows,
                        int64_t channels) {
    for (int64_t i = 0; i < r->moved_rows; i++) {
        int64_t row = rows - r->moved_rows + i;
        const float *from = row < 0 ? r->window + (kept + row) * channels : x + row * stride;
        memmove(r->moved + i * channels, from, (size_t)channels * sizeof *from);
    }
}

int32_t ss_advance_delta(const ss_layer *layer, ss_pool *pool, const float *streams, int64_t rows,
                         const ss_remembered *remembered, const ss_attended *out) {
    const ss_delta *d = &layer->delta;
    int64_t channels = 2 * d->key_heads * d->key_dim + d->value_heads * d->value_dim;
    int64_t width = d->value_heads * d->value_dim, all = ss_maps_width(&layer->inputs);
    scratch s;
    int32_t code = reserve(&s, rows * (all + channels + width + layer->first.count));
    if (code != SS_OK) return code;
    float *projections = cut(&s, rows * all), *convolved = cut(&s, rows * channels), *mixed = cut(&s, rows * width);
    float *injection = cut(&s, rows * layer->first.count);
    code = ss_enter(layer, pool, streams, rows, projections, injection);
    if (code == SS_OK) {
        int64_t stride;
        const float *x = ss_part_of(&layer->inputs, d->part[0], projections, rows, &stride);
        move_window(remembered, d->tap_count - 1, x, stride, rows, channels);
        ss_delta_step step = {.rows = rows, .key_heads = d->key_heads, .value_heads = d->value_heads,
                              .key_dim = d->key_dim, .value_dim = d->value_dim, .convolved = convolved,
                              .rate = d->rate, .dt_bias = d->dt_bias, .norm_weight = d->norm_weight,
                              .memory = remembered->memory, .history = remembered->history, .out = mixed, .norm_eps = d->norm_eps, .key_eps = d->key_eps,
                              .silu_gate = d->silu_gate};
        step.gate = ss_part_of(&layer->inputs, d->part[1], projections, rows, &step.gate_stride);
        step.step = ss_part_of(&layer->inputs, d->part[2], projections, rows, &step.step_stride);
        step.decay = ss_part_of(&layer->inputs, d->part[3], projections, rows, &step.decay_stride);
        if (rows > SS_FEW_ROWS) {
            code = ss_many_advance(d, pool, x, stride, remembered->window, convolved, &step);
        } else {
            pieces->convolve(remembered->window, x, stride, d->taps, rows, channels, d->tap_count, 1, convolved);
            pieces->delta_heads(&step, 0, d->value_heads);
        }
        if (code == SS_OK) code = ss_leave(layer, pool, mixed, streams, injection, rows, out);
    }
    free(s.memory);
    return code;
}

typedef struct {
    const ss_attention_row *rows; /* queries */
    int64_t heads;
} attention_job;

static void attention_head(void *context, int64_t piece) {
    const attention_job *job = context;
    int64_t head = piece % job->heads;
    pieces->attend_heads(job->rows + piece / job->heads, head, head + 1);
}

void ss_keep_rows(const ss_attention *a, const ss_cached *c, int64_t first, int64_t rows, const float *keys,
                  const float *values, int64_t value_stride) {
    size_t bytes = (size_t)a->dim * sizeof *keys;
    for (int64_t t = 0; t < rows; t++) {
        for (int64_t head = 0; head < a->kv_heads; head++) {
            int64_t at = (head * c->capacity + c->length + first + t) * a->dim;
            memcpy(c->keys + at, keys + (t * a->kv_heads + head) * a->dim, bytes);
            memcpy(c->values + at, values + t * value_stride + head * a->dim, bytes);
        }
    }
}

/* Keys and values of the rows, into the caches. */
static void remember(const ss_attention *a, const ss_maps *maps, const ss_cached *c, const float *projections,
                     int64_t rows, float *rotated) {
    int64_t stride, value_stride, index_stride, dim = a->dim;
    const float *k = ss_part_of(maps, a->part[1], projections, rows, &stride);
    const float *v = ss_part_of(maps, a->part[2], projections, rows, &value_stride);
    const float *index = ss_part_of(maps, a->part[3], projections, rows, &index_stride);
    pieces->norm_rotate(k, stride, dim, a->k_weight, c->cosines, c->sines, rows, a->kv_heads, dim, c->half, a->eps,
                        rotated);
    ss_keep_rows(a, c, 0, rows, rotated, v, value_stride);
    for (int64_t t = 0; t < rows; t++)
        memcpy(c->index + t * a->index_width, index + t * index_stride, (size_t)a->index_width * sizeof *rotated);
}

/* Gated heads of the last `queries` rows, [queries, heads * dim]. */
static int32_t attend_last(const ss_attention *a, const ss_maps *maps, ss_pool *pool, const ss_cached *c,
                           const float *projections, int64_t rows, int64_t queries, float *q, float *scores, float *out) {
    int64_t stride, dim = a->dim, width = a->heads * dim, first = rows - queries;
    const float *query_gate = ss_part_of(maps, a->part[0], projections, rows, &stride) + first * stride;
    pieces->norm_rotate(query_gate, stride, 2 * dim, a->q_weight, c->cosines + first * c->half,
                        c->sines + first * c->half, queries, a->heads, dim, c->half, a->eps, q);
    ss_attention_row each[SS_FEW_ROWS];
    for (int64_t t = 0; t < queries; t++) {
        each[t] = (ss_attention_row){.heads = a->heads, .kv_heads = a->kv_heads, .dim = dim,
                                     .key_count = c->length + first + t + 1, .q = q + t * width, .keys = c->keys,
                                     .values = c->values, .kv_stride = c->capacity * dim, .scale = a->scale,
                                     .scores = scores, .out = out + t * width};
        scores += a->heads * each[t].key_count;
    }
    attention_job job = {each, a->heads};
    ss_call call;
    int shared = 2 * queries * width * (c->length + rows) >= SHARED_VALUES;
    int32_t code = shared ? ss_begin(pool, 0, &call) : SS_OK;
    if (code != SS_OK) return code;
    if (shared) ss_share(&call, attention_head, &job, queries * a->heads);
    else
        for (int64_t t = 0; t < queries; t++) pieces->attend_heads(each + t, 0, a->heads);
    if (shared) ss_end(&call);
    for (int64_t t = 0; t < queries; t++)
        pieces->gate(out + t * width, query_gate + t * stride + dim, 2 * dim, a->heads, dim, out + t * width);
    return SS_OK;
}

int32_t ss_advance_attention(const ss_layer *layer, ss_pool *pool, const float *streams, int64_t rows, int64_t queries,
                             const ss_cached *cached, const ss_attended *out) {
    const ss_attention *a = &layer->attention;
    int64_t width = a->heads * a->dim, all = ss_maps_width(&layer->inputs), count = layer->first.count;
    int64_t first = rows - queries;
    scratch s;
    int32_t code = reserve(&s, rows * (all + count + a->kv_heads * a->dim) + 2 * queries * width +
                                   queries * a->heads * (cached->length + rows));
    if (code != SS_OK) return code;
    float *projections = cut(&s, rows * all), *injection = cut(&s, rows * count);
    float *rotated = cut(&s, rows * a->kv_heads * a->dim), *q = cut(&s, queries * width), *mixed = cut(&s, queries * width);
    float *scores = cut(&s, queries * a->heads * (cached->length + rows));
    code = ss_enter(layer, pool, streams, rows, projections, injection);
    if (code == SS_OK) {
        remember(a, &layer->inputs, cached, projections, rows, rotated);
        code = attend_last(a, &layer->inputs, pool, cached, projections, rows, queries, q, scores, mixed);
    }
    if (code == SS_OK && queries)
        code = ss_leave(layer, pool, mixed, streams + first * count * layer->first.hidden, injection + first * count,
                        queries, out);
    free(s.memory);
    return code;
}

static int32_t correct(const ss_correction *c, ss_pool *pool, float *x, int64_t rows, scratch s, float *logits) {
    int64_t hidden = c->a->columns, experts = c->b->rows;
    float *inner = cut(&s, rows * c->a->rows), *moved = cut(&s, rows * experts);
    for (int64_t t = 0; t < rows; t++)
        for (int64_t i = 0; i < hidden; i++) x[t * hidden + i] -= c->mu[i];
    int32_t code = ss_apply(pool, c->a, x, rows, inner);
    if (code == SS_OK) code = ss_apply(pool, c->b, inner, rows, moved);
    for (int64_t t = 0; code == SS_OK && t < rows; t++)
        for (int64_t i = 0; i < experts; i++) logits[t * experts + i] += moved[t * experts + i] + c->delta[i];
    return code;
}

int32_t ss_forecast_logits(const ss_layer *layer, ss_pool *pool, const float *streams, int64_t rows,
                           const ss_matrix *router, const ss_correction *correction, float *logits) {
    ss_reader reader = layer->second;
    int64_t more = correction ? correction->a->rows + router->rows : 0;
    scratch s;
    int32_t code = reserve(&s, rows * (ss_reading_floats(&reader) + reader.hidden + more));
    if (code != SS_OK) return code;
    float *x = cut(&s, rows * reader.hidden);
    reader.inject = NULL; /* nothing is computed from a forecast */
    code = read_with(&reader, pool, streams, rows, s, x, NULL);
    if (code == SS_OK) code = ss_apply(pool, router, x, rows, logits);
    if (code == SS_OK && correction) code = correct(correction, pool, x, rows, s, logits);
    free(s.memory);
    return code;
}

int32_t ss_shared(const ss_layer *layer, ss_pool *pool, const float *x, int64_t rows, float *out, float *gate) {
    const ss_expert_layer *e = &layer->experts;
    if (rows > SS_FEW_ROWS) return ss_many_shared(layer, pool, x, rows, out, gate);
    int64_t all = ss_maps_width(&e->shared), inner = e->shared_down->columns, gate_stride, up_stride;
    scratch s;
    int32_t code = reserve(&s, rows * (all + inner));
    if (code != SS_OK) return code;
    float *both = cut(&s, rows * all), *h = cut(&s, rows * inner);
    code = ss_apply_maps(&e->shared, pool, x, rows, both);
    if (code == SS_OK) {
        const float *g = ss_part_of(&e->shared, e->part[0], both, rows, &gate_stride);
        const float *u = ss_part_of(&e->shared, e->part[1], both, rows, &up_stride);
        pieces->silu_multiply(g, gate_stride, u, up_stride, rows, inner, h);
        code = ss_apply(pool, e->shared_down, h, rows, out);
    }
    if (code == SS_OK) code = ss_apply(pool, e->shared_gate, x, rows, gate);
    free(s.memory);
    return code;
}

int32_t ss_join_outputs(const ss_layer *layer, ss_pool *pool, const ss_routed *r, int64_t rows, const float *outputs) {
    int64_t hidden = layer->second.hidden;
    if (rows > SS_FEW_ROWS) return ss_many_join(layer, pool, r, rows, outputs);
    scratch s;
    int32_t code = reserve(&s, rows * hidden);
    if (code != SS_OK) return code;
    float *y = cut(&s, rows * hidden);
    pieces->combine(r->shared, r->shared_gate, r->mix, outputs, rows, layer->experts.top, hidden, y);
    pieces->inject(r->streams, r->injection, y, rows, layer->second.count, hidden, r->out);
    free(s.memory);
    return SS_OK;
}

int32_t ss_join_experts(const ss_layer *layer, ss_pool *pool, const ss_routed *r, int64_t rows) {
    int64_t hidden = layer->second.hidden, top = layer->experts.top;
    scratch s;
    int32_t code = reserve(&s, rows * hidden * top);
    if (code != SS_OK) return code;
    float *outputs = cut(&s, rows * top * hidden);
    if (rows > SS_FEW_ROWS) {
        ss_expert_pairs pairs = {r->gate, r->up, r->down, r->x, NULL, r->slots, top, rows * top, outputs};
        code = ss_many_experts(pool, &pairs);
    } else {
        code = ss_apply_experts(pool, r->gate, r->up, r->down, r->x, rows, r->slots, top, outputs);
    }
    if (code == SS_OK) code = ss_join_outputs(layer, pool, r, rows, outputs);
    free(s.memory);
    return code;
}
