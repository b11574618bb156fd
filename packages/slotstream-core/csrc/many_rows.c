#include "many_rows.h"

#include <stdatomic.h>
#include <string.h>

#include "matrices.h"

#define pieces ss_chosen_pieces
#define DEPTH 256     /* columns that are unpacked at a time; whole groups */
#define BLOCK_ROWS 48 /* of a block, at most: unpacking a weight takes as long as multiplying it with six rows */
#define LEAST_ROWS 12 /* of a block, if the call has as many */
#define EXPERT_ROWS 96

typedef void (*block_work)(void *context, int64_t block, float *scratch);

/* Blocks that threads take in turn, each thread with scratch memory of its own. */
typedef struct {
    block_work work;
    void *context;
    int64_t blocks, floats;
    float *scratch;
    _Atomic int64_t next;
} sharing;

static void take_blocks(void *context, int64_t thread) {
    sharing *s = context;
    int64_t block;
    while ((block = atomic_fetch_add_explicit(&s->next, 1, memory_order_relaxed)) < s->blocks)
        s->work(s->context, block, s->scratch + thread * s->floats);
}

static int64_t padded(int64_t floats) { return (floats + 15) / 16 * 16; }

static void share_blocks(ss_call *call, block_work work, void *context, int64_t blocks, float *scratch, int64_t floats) {
    sharing s = {.work = work, .context = context, .blocks = blocks, .floats = padded(floats), .scratch = scratch};
    atomic_init(&s.next, 0);
    int64_t threads = ss_thread_count(call->pool);
    ss_share(call, take_blocks, &s, blocks < threads ? blocks : threads);
}

/* How rows are cut: evenly, and so that every thread has the same number of blocks. */
typedef struct {
    int64_t rows, blocks;
} cutting;

static cutting cut_rows(ss_pool *pool, int64_t rows) {
    int64_t threads = pool ? ss_thread_count(pool) : 1, blocks = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    blocks = (blocks + threads - 1) / threads * threads;
    if (blocks > rows / LEAST_ROWS) blocks = rows / LEAST_ROWS;
    return (cutting){rows, blocks < 1 ? 1 : blocks};
}

static int64_t first_of(const cutting *cut, int64_t block) { return cut->rows * block / cut->blocks; }

static int32_t run_blocks(ss_pool *pool, block_work work, void *context, int64_t blocks, int64_t floats) {
    if (!pool) return SS_BAD_ARGUMENT;
    ss_call call;
    size_t bytes = (size_t)(padded(floats) * ss_thread_count(pool)) * sizeof(float);
    int32_t code = ss_begin(pool, bytes, &call);
    if (code != SS_OK) return code;
    share_blocks(&call, work, context, blocks, (float *)call.scratch, floats);
    ss_end(&call);
    return SS_OK;
}

/* Rows of activations: `source` says which ones, else they follow each other. The same for results. */
typedef struct {
    const float *x;
    int64_t x_stride;
    const int32_t *source;
    float *y;
    int64_t y_stride, y_first; /* y_first: the output that the first column of y is */
    const int32_t *target;
    int64_t rows;
} block_rows;

static ss_tile_matrix tiles_of(const ss_matrix *m, int64_t member) {
    ss_member own = ss_member_of(m, member);
    return (ss_tile_matrix){own.weight, own.scales, own.biases, m->rows, m->columns, m->group, m->bits, m->type};
}

/* Outputs first..last-1 of a matrix for some rows. */
static void multiply(const ss_matrix *matrix, int64_t member, const block_rows *b, int64_t first, int64_t last) {
    _Alignas(64) float panel[DEPTH * SS_PANEL];
    const float *x[SS_TILE_ROWS];
    float *y[SS_TILE_ROWS];
    ss_tile_matrix m = tiles_of(matrix, member);
    int64_t tiles = (b->rows + SS_TILE_ROWS - 1) / SS_TILE_ROWS;
    for (int64_t n = first; n < last; n += SS_PANEL) {
        int64_t width = last - n < SS_PANEL ? last - n : SS_PANEL;
        for (int64_t k = 0; k < m.columns; k += DEPTH) {
            int64_t end = k + DEPTH < m.columns ? k + DEPTH : m.columns;
            pieces->tile_panel(&m, n, k, end, panel);
            for (int64_t tile = 0; tile < tiles; tile++) { /* of nearly equal height */
                int64_t from = b->rows * tile / tiles, rows = b->rows * (tile + 1) / tiles - from;
                for (int64_t t = 0; t < rows; t++) {
                    int64_t row = from + t;
                    x[t] = b->x + (b->source ? b->source[row] : row) * b->x_stride + k;
                    y[t] = b->y + (b->target ? b->target[row] : row) * b->y_stride + n - b->y_first;
                }
                pieces->tile_product(x, 1, y, rows, panel, end - k, width, k > 0);
            }
        }
    }
}

/* y = x @ matrix.T, rows one after another. */
static void multiply_rows(const ss_matrix *m, const float *x, int64_t rows, float *y) {
    block_rows b = {.x = x, .x_stride = m->columns, .y = y, .y_stride = m->rows, .rows = rows};
    multiply(m, 0, &b, 0, m->rows);
}

typedef struct {
    const ss_matrix *matrix;
    cutting cut;
    int64_t parts, panels; /* into which the outputs are cut, and of how many panels each is */
    const float *x;
    float *y;
} product_job;

static void product_block(void *context, int64_t block, float *scratch) {
    (void)scratch;
    const product_job *job = context;
    const ss_matrix *m = job->matrix;
    int64_t row = first_of(&job->cut, block / job->parts), end = first_of(&job->cut, block / job->parts + 1);
    int64_t first = block % job->parts * job->panels * SS_PANEL, last = first + job->panels * SS_PANEL;
    block_rows b = {.x = job->x + row * m->columns, .x_stride = m->columns, .y = job->y + row * m->rows,
                    .y_stride = m->rows, .rows = end - row};
    multiply(m, 0, &b, first, last < m->rows ? last : m->rows);
}

int32_t ss_many_multiply(ss_pool *pool, const ss_matrix *matrix, const float *x, int64_t rows, float *out) {
    product_job job = {.matrix = matrix, .cut = cut_rows(pool, rows), .x = x, .y = out};
    if (!pool) return SS_BAD_ARGUMENT;
    if (rows == 0) return SS_OK;
    int64_t panels = (matrix->rows + SS_PANEL - 1) / SS_PANEL, wanted = 4 * ss_thread_count(pool);
    int64_t parts = (wanted + job.cut.blocks - 1) / job.cut.blocks;
    job.panels = (panels + parts - 1) / parts;
    job.parts = (panels + job.panels - 1) / job.panels;
    return run_blocks(pool, product_block, &job, job.cut.blocks * job.parts, 0);
}

/* Memory of one block, cut into arrays. */
static float *cut(float **next, int64_t floats) {
    float *part = *next;
    *next += floats;
    return part;
}

/* What one block reads of the streams; see ss_read_streams. */
typedef struct {
    float *normed, *low, *gate, *mixed, *injection;
} reading;

static void read_block(const ss_reader *r, const float *streams, int64_t stride, int64_t rows, const reading *to) {
    int64_t width = r->count * r->hidden;
    pieces->rms_norm(streams, stride, r->weight, rows, r->count, r->count, r->hidden, r->eps, to->normed, width);
    multiply_rows(r->down, to->normed, rows, to->low);
    pieces->silu(to->low, rows * r->down->rows);
    multiply_rows(r->up, to->low, rows, to->gate);
    pieces->mix_streams(to->gate, to->normed, rows, r->count, r->hidden, to->mixed);
    if (r->inject == NULL) return;
    multiply_rows(r->inject, to->normed, rows, to->injection);
    pieces->sigmoid(to->injection, rows * r->count);
}

static void read_into(const ss_reader *r, const float *streams, int64_t rows, float **scratch, float *mixed,
                      float *injection) {
    int64_t width = r->count * r->hidden;
    reading to = {.mixed = mixed, .injection = injection};
    to.normed = cut(scratch, rows * width);
    to.gate = cut(scratch, rows * width);
    to.low = cut(scratch, rows * r->down->rows);
    read_block(r, streams, width, rows, &to);
}

typedef struct {
    const ss_reader *reader;
    cutting cut;
    const float *streams;
    int64_t stride;
    reading to;
} reading_job;

static void reading_block(void *context, int64_t block, float *scratch) {
    (void)scratch;
    const reading_job *job = context;
    const ss_reader *r = job->reader;
    int64_t row = first_of(&job->cut, block), width = r->count * r->hidden;
    reading to = {job->to.normed + row * width, job->to.low + row * r->down->rows, job->to.gate + row * width,
                  job->to.mixed + row * r->hidden, job->to.injection + row * r->count};
    read_block(r, job->streams + row * job->stride, job->stride, first_of(&job->cut, block + 1) - row, &to);
}

int32_t ss_many_read_streams(const ss_reader *reader, ss_pool *pool, const float *streams, int64_t stride, int64_t rows,
                             float *normed, float *low, float *gate, float *mixed, float *injection) {
    reading_job job = {reader, cut_rows(pool, rows), streams, stride, {normed, low, gate, mixed, injection}};
    return run_blocks(pool, reading_block, &job, job.cut.blocks, 0);
}

typedef struct {
    const ss_layer *layer;
    cutting cut;
    const float *streams;
    float *projections, *injection;
} enter_job;

static void enter_block(void *context, int64_t block, float *scratch) {
    const enter_job *job = context;
    const ss_reader *r = &job->layer->first;
    int64_t row = first_of(&job->cut, block), rows = first_of(&job->cut, block + 1) - row;
    float *mixed = cut(&scratch, rows * r->hidden), *out = job->projections;
    read_into(r, job->streams + row * r->count * r->hidden, rows, &scratch, mixed, job->injection + row * r->count);
    for (int64_t i = 0; i < job->layer->inputs.count; i++) {
        const ss_matrix *map = job->layer->inputs.map[i];
        multiply_rows(map, mixed, rows, out + row * map->rows);
        out += job->cut.rows * map->rows;
    }
}

/* Rows of the largest block. */
static int64_t largest(const cutting *c) { return (c->rows + c->blocks - 1) / c->blocks; }

int32_t ss_many_enter(const ss_layer *layer, ss_pool *pool, const float *streams, int64_t rows, float *projections,
                      float *injection) {
    enter_job job = {layer, cut_rows(pool, rows), streams, projections, injection};
    int64_t floats = largest(&job.cut) * (ss_reading_floats(&layer->first) + layer->first.hidden);
    return run_blocks(pool, enter_block, &job, job.cut.blocks, floats);
}

typedef struct {
    const ss_layer *layer;
    cutting cut;
    const float *streams;
    const ss_cached *cached;
} remember_job;

/* Of all that attention's maps give, one part: y [rows, width]. */
static void multiply_part(const ss_maps *maps, ss_part part, int64_t width, const float *x, int64_t rows, float *y) {
    const ss_matrix *m = maps->map[part.map];
    block_rows b = {.x = x, .x_stride = m->columns, .y = y, .y_stride = width, .y_first = part.column, .rows = rows};
    multiply(m, 0, &b, part.column, part.column + width);
}

static void remember_block(void *context, int64_t block, float *scratch) {
    const remember_job *job = context;
    const ss_attention *a = &job->layer->attention;
    const ss_maps *maps = &job->layer->inputs;
    const ss_cached *c = job->cached;
    ss_reader r = job->layer->first;
    r.inject = NULL; /* nothing is computed from these rows */
    int64_t row = first_of(&job->cut, block), rows = first_of(&job->cut, block + 1) - row, width = a->kv_heads * a->dim;
    float *mixed = cut(&scratch, rows * r.hidden), *k = cut(&scratch, rows * width);
    float *rotated = cut(&scratch, rows * width), *v = cut(&scratch, rows * width);
    read_into(&r, job->streams + row * r.count * r.hidden, rows, &scratch, mixed, NULL);
    multiply_part(maps, a->part[1], width, mixed, rows, k);
    multiply_part(maps, a->part[2], width, mixed, rows, v);
    multiply_part(maps, a->part[3], a->index_width, mixed, rows, c->index + row * a->index_width);
    pieces->norm_rotate(k, width, a->dim, a->k_weight, c->cosines + row * c->half, c->sines + row * c->half, rows,
                        a->kv_heads, a->dim, c->half, a->eps, rotated);
    ss_keep_rows(a, c, row, rows, rotated, v, width);
}

int32_t ss_many_remember(const ss_layer *layer, ss_pool *pool, const float *streams, int64_t rows,
                         const ss_cached *cached) {
    const ss_attention *a = &layer->attention;
    remember_job job = {layer, cut_rows(pool, rows), streams, cached};
    int64_t floats = ss_reading_floats(&layer->first) + layer->first.hidden + 3 * a->kv_heads * a->dim;
    return run_blocks(pool, remember_block, &job, job.cut.blocks, largest(&job.cut) * floats);
}

typedef struct {
    const ss_layer *layer;
    cutting cut;
    const float *mixed, *streams, *injection;
    const ss_attended *out;
} leave_job;

static void leave_block(void *context, int64_t block, float *scratch) {
    const leave_job *job = context;
    const ss_layer *layer = job->layer;
    const ss_reader *r = &layer->second;
    const ss_expert_layer *experts = &layer->experts;
    int64_t row = first_of(&job->cut, block), rows = first_of(&job->cut, block + 1) - row;
    int64_t width = r->count * r->hidden, choices = experts->router->rows;
    float *y = cut(&scratch, rows * r->hidden), *logits = cut(&scratch, rows * choices);
    float *streams = job->out->streams + row * width, *x = job->out->x + row * r->hidden;
    multiply_rows(layer->output, job->mixed + row * layer->output->columns, rows, y);
    pieces->inject(job->streams + row * width, job->injection + row * r->count, y, rows, r->count, r->hidden, streams);
    read_into(r, streams, rows, &scratch, x, job->out->injection + row * r->count);
    multiply_rows(experts->router, x, rows, logits);
    pieces->route(logits, rows, choices, experts->top, experts->normalise, job->out->ids + row * experts->top,
                  job->out->mix + row * experts->top);
}

int32_t ss_many_leave(const ss_layer *layer, ss_pool *pool, const float *mixed, const float *streams,
                      const float *injection, int64_t rows, const ss_attended *out) {
    leave_job job = {layer, cut_rows(pool, rows), mixed, streams, injection, out};
    int64_t own = ss_reading_floats(&layer->second) + layer->second.hidden + layer->experts.router->rows;
    return run_blocks(pool, leave_block, &job, job.cut.blocks, largest(&job.cut) * own);
}

typedef struct {
    const ss_delta *delta;
    cutting cut;
    const float *x, *window;
    int64_t stride, channels;
    float *convolved;
    const ss_delta_step *step;
} delta_job;

static void convolve_block(void *context, int64_t block, float *scratch) {
    const delta_job *job = context;
    int64_t row = first_of(&job->cut, block), rows = first_of(&job->cut, block + 1) - row;
    int64_t kept = job->delta->tap_count - 1, channels = job->channels;
    for (int64_t i = 0; i < kept; i++) {
        int64_t before = row - kept + i;
        const float *from = before < 0 ? job->window + (kept + before) * channels : job->x + before * job->stride;
        memcpy(scratch + i * channels, from, (size_t)channels * sizeof *from);
    }
    pieces->convolve(scratch, job->x + row * job->stride, job->stride, job->delta->taps, rows, channels,
                     job->delta->tap_count, 1, job->convolved + row * channels);
}

static void heads_block(void *context, int64_t head, float *scratch) {
    (void)scratch;
    pieces->delta_heads(((const delta_job *)context)->step, head, head + 1);
}

int32_t ss_many_advance(const ss_delta *delta, ss_pool *pool, const float *x, int64_t stride, const float *window,
                        float *convolved, const ss_delta_step *step) {
    int64_t channels = 2 * delta->key_heads * delta->key_dim + delta->value_heads * delta->value_dim;
    delta_job job = {delta, cut_rows(pool, step->rows), x, window, stride, channels, convolved, step};
    int32_t code = run_blocks(pool, convolve_block, &job, job.cut.blocks, (delta->tap_count - 1) * channels);
    return code != SS_OK ? code : run_blocks(pool, heads_block, &job, delta->value_heads, 0);
}

typedef struct {
    const ss_expert_layer *experts;
    cutting cut;
    const float *x;
    float *out, *gate;
} shared_job;

static void shared_block(void *context, int64_t block, float *scratch) {
    const shared_job *job = context;
    const ss_expert_layer *e = job->experts;
    int64_t row = first_of(&job->cut, block), rows = first_of(&job->cut, block + 1) - row;
    int64_t hidden = e->shared_down->rows, inner = e->shared_down->columns, gate_stride, up_stride;
    const float *x = job->x + row * hidden;
    float *both = cut(&scratch, rows * ss_maps_width(&e->shared)), *h = cut(&scratch, rows * inner), *next = both;
    for (int64_t i = 0; i < e->shared.count; i++) {
        multiply_rows(e->shared.map[i], x, rows, next);
        next += rows * e->shared.map[i]->rows;
    }
    const float *g = ss_part_of(&e->shared, e->part[0], both, rows, &gate_stride);
    const float *u = ss_part_of(&e->shared, e->part[1], both, rows, &up_stride);
    pieces->silu_multiply(g, gate_stride, u, up_stride, rows, inner, h);
    multiply_rows(e->shared_down, h, rows, job->out + row * hidden);
    multiply_rows(e->shared_gate, x, rows, job->gate + row);
}

int32_t ss_many_shared(const ss_layer *layer, ss_pool *pool, const float *x, int64_t rows, float *out, float *gate) {
    shared_job job = {&layer->experts, cut_rows(pool, rows), x, out, gate};
    int64_t own = ss_maps_width(&layer->experts.shared) + layer->experts.shared_down->columns;
    return run_blocks(pool, shared_block, &job, job.cut.blocks, largest(&job.cut) * own);
}

typedef struct {
    const ss_layer *layer;
    cutting cut;
    const ss_routed *routed;
    const float *outputs;
} join_job;

static void join_block(void *context, int64_t block, float *scratch) {
    const join_job *job = context;
    const ss_routed *r = job->routed;
    int64_t row = first_of(&job->cut, block), rows = first_of(&job->cut, block + 1) - row;
    int64_t hidden = job->layer->second.hidden, count = job->layer->second.count, top = job->layer->experts.top;
    pieces->combine(r->shared + row * hidden, r->shared_gate + row, r->mix + row * top,
                    job->outputs + row * top * hidden, rows, top, hidden, scratch);
    pieces->inject(r->streams + row * count * hidden, r->injection + row * count, scratch, rows, count, hidden,
                   r->out + row * count * hidden);
}

int32_t ss_many_join(const ss_layer *layer, ss_pool *pool, const ss_routed *routed, int64_t rows, const float *outputs) {
    join_job job = {layer, cut_rows(pool, rows), routed, outputs};
    return run_blocks(pool, join_block, &job, job.cut.blocks, largest(&job.cut) * layer->second.hidden);
}

typedef struct {
    const ss_expert_pairs *pairs;
    const ss_group *chunks;
    const int32_t *target; /* pairs, expert after expert */
    const int32_t *source; /* their rows */
} experts_job;

/* Rows of one expert. */
static void expert_block(void *context, int64_t block, float *scratch) {
    const experts_job *job = context;
    const ss_expert_pairs *p = job->pairs;
    const ss_group *chunk = &job->chunks[block];
    int64_t inner = p->gate->rows, rows = chunk->count;
    float *gated = cut(&scratch, rows * inner), *raised = cut(&scratch, rows * inner);
    block_rows in = {.x = p->x, .x_stride = p->gate->columns, .source = job->source + chunk->first, .y = gated,
                     .y_stride = inner, .rows = rows};
    multiply(p->gate, chunk->member, &in, 0, inner);
    in.y = raised;
    multiply(p->up, chunk->member, &in, 0, inner);
    pieces->silu_multiply(gated, inner, raised, inner, rows, inner, gated);
    block_rows out = {.x = gated, .x_stride = inner, .y = p->out, .y_stride = p->down->rows,
                      .target = job->target + chunk->first, .rows = rows};
    multiply(p->down, chunk->member, &out, 0, p->down->rows);
}

/* Groups of many rows in several: they follow each other in `groups`, from the last one on so that none is overwritten
 * before it was read. Returns how many there are. */
static int64_t cut_groups(ss_group *groups, int64_t count) {
    int64_t chunks = 0;
    for (int64_t i = 0; i < count; i++) chunks += (groups[i].count + EXPERT_ROWS - 1) / EXPERT_ROWS;
    for (int64_t i = count - 1, at = chunks; i >= 0; i--) {
        ss_group group = groups[i];
        int64_t own = (group.count + EXPERT_ROWS - 1) / EXPERT_ROWS;
        at -= own;
        for (int64_t j = own - 1; j >= 0; j--) {
            int64_t from = group.count * j / own;
            groups[at + j] = (ss_group){group.member, group.first + from, group.count * (j + 1) / own - from};
        }
    }
    return chunks;
}

int32_t ss_many_experts(ss_pool *pool, const ss_expert_pairs *p) {
    if (!pool) return SS_BAD_ARGUMENT;
    if (p->gate->rows != p->up->rows || p->gate->columns != p->up->columns || p->down->columns != p->gate->rows ||
        p->up->members != p->gate->members || p->down->members != p->gate->members)
        return SS_BAD_SHAPE;
    for (int64_t i = 0; i < p->pairs; i++)
        if (p->slots[i] < 0 || p->slots[i] >= p->gate->members) return SS_OUT_OF_RANGE;
    int64_t floats = padded(2 * EXPERT_ROWS * p->gate->rows);
    ss_call call;
    ss_arena arena = {0};
    for (int filling = 0; filling < 2; filling++) {
        int64_t *starts = ss_cut(&arena, p->gate->members + 1, sizeof *starts);
        int32_t *order = ss_cut(&arena, p->pairs, sizeof *order), *source = ss_cut(&arena, p->pairs, sizeof *source);
        ss_group *groups = ss_cut(&arena, p->pairs, sizeof *groups);
        float *scratch = ss_cut(&arena, floats * ss_thread_count(pool), sizeof *scratch);
        if (!filling) {
            int32_t code = ss_begin(pool, arena.used, &call);
            if (code != SS_OK) return code;
            arena = (ss_arena){.base = call.scratch};
            continue;
        }
        int64_t count = ss_group_pairs(p->slots, p->pairs, p->gate->members, starts, order, groups);
        for (int64_t i = 0; i < p->pairs; i++) {
            if (p->pair) order[i] = p->pair[order[i]];
            source[i] = (int32_t)(order[i] / p->top);
        }
        experts_job job = {p, groups, order, source};
        share_blocks(&call, expert_block, &job, cut_groups(groups, count), scratch, floats);
    }
    ss_end(&call);
    return SS_OK;
}

static void attention_block(void *context, int64_t block, float *scratch) {
    const ss_attention_rows *a = context;
    int64_t parts = (a->rows + SS_PANEL - 1) / SS_PANEL; /* the last ones, which see most, come first */
    pieces->attend_rows(a, block % a->heads, (parts - 1 - block / a->heads) * SS_PANEL, scratch);
}

int32_t ss_many_attend(ss_pool *pool, ss_attention_rows *rows) {
    int64_t parts = (rows->rows + SS_PANEL - 1) / SS_PANEL;
    return run_blocks(pool, attention_block, rows, parts * rows->heads, ss_attention_floats(rows->dim));
}
