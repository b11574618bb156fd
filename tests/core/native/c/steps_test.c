/* Pieces and steps of a layer on drawn shapes, meant to run under sanitizers: every buffer has exactly its size. */
#include "made.h"
#include "many_rows.h"

static int64_t between(int64_t low, int64_t high) { return low + (int64_t)(draw() >> 8) % (high - low + 1); }

static float *blank(int64_t count) {
    float *memory = exactly((size_t)count * 4);
    for (int64_t i = 0; i < count; i++) memory[i] = NAN;
    return memory;
}

static void same(const float *a, const float *b, int64_t count) { CHECK(!memcmp(a, b, (size_t)count * 4)); }

static double sigmoid_of(double x) { return 1.0 / (1.0 + exp(-x)); }

static void norms_and_gates(void) {
    int64_t rows = between(1, 3), groups = between(1, 3), dim = between(1, 40), width = groups * dim;
    float *x = activations(rows * width), *w = activations(width), *y = blank(rows * width), *z = blank(rows * width);
    ss_chosen_pieces->rms_norm(x, width, w, rows, groups, groups, dim, 1e-6f, y, width);
    for (int64_t t = 0; t < rows * groups; t++) {
        double squares = 0;
        for (int64_t i = 0; i < dim; i++) squares += (double)x[t * dim + i] * x[t * dim + i];
        for (int64_t i = 0; i < dim; i++)
            near(y[t * dim + i], x[t * dim + i] / sqrt(squares / (double)dim + 1e-6) * w[t % groups * dim + i], 4);
    }
    ss_chosen_pieces->silu_multiply(x, width, y, width, rows, width, z);
    for (int64_t i = 0; i < rows * width; i++) near(z[i], x[i] * sigmoid_of(x[i]) * y[i], 4);
    ss_chosen_pieces->gate(x, y, width, rows, width, z);
    for (int64_t i = 0; i < rows * width; i++) near(z[i], x[i] * sigmoid_of(y[i]), 4);
    ss_chosen_pieces->silu(x, rows * width);
    ss_chosen_pieces->sigmoid(y, rows * width);
    free(x), free(w), free(y), free(z);
}

static void streams(void) {
    int64_t rows = between(1, 3), count = between(1, 4), hidden = between(1, 40), width = count * hidden;
    float *x = activations(rows * width), *gate = activations(rows * width), *mixed = blank(rows * hidden);
    float *strength = activations(rows * count), *out = blank(rows * width);
    ss_chosen_pieces->mix_streams(gate, x, rows, count, hidden, mixed);
    ss_chosen_pieces->inject(x, strength, mixed, rows, count, hidden, out);
    for (int64_t t = 0; t < rows; t++)
        for (int64_t h = 0; h < hidden; h++) {
            double sum = 0;
            for (int64_t c = 0; c < count; c++) {
                int64_t at = (t * count + c) * hidden + h;
                sum += sigmoid_of(gate[at]) * x[at];
                near(out[at], x[at] + 2.0 * strength[t * count + c] * mixed[t * hidden + h], 8);
            }
            near(mixed[t * hidden + h], sum, 4);
        }
    free(x), free(gate), free(mixed), free(strength), free(out);
}

static void convolutions(void) {
    int64_t rows = between(1, 6), channels = between(1, 30), taps = between(1, 4), dilation = between(1, 3);
    int64_t kept = (taps - 1) * dilation;
    float *window = activations(kept * channels), *x = activations(rows * channels), *w = activations(taps * channels);
    float *out = blank(rows * channels);
    ss_chosen_pieces->convolve(window, x, channels, w, rows, channels, taps, dilation, out);
    for (int64_t t = 0; t < rows; t++)
        for (int64_t i = 0; i < channels; i++) {
            double sum = 0;
            for (int64_t j = 0; j < taps; j++) {
                int64_t row = t - (taps - 1 - j) * dilation;
                sum += (row < 0 ? window[(kept + row) * channels + i] : x[row * channels + i]) * w[j * channels + i];
            }
            near(out[t * channels + i], sum * sigmoid_of(sum), 4);
        }
    free(window), free(x), free(w), free(out);
}

static void attention(void) {
    int64_t kv = between(1, 2), heads = kv * between(1, 3), dim = between(1, 40), capacity = between(1, 20);
    int64_t count = between(1, capacity), half = dim / 2;
    float *q = activations(heads * dim), *keys = activations(kv * capacity * dim), *out = blank(heads * dim);
    float *values = activations(kv * capacity * dim), *scores = blank(heads * count), *rotated = blank(heads * dim);
    int32_t *chosen = exactly((size_t)count * 4);
    for (int64_t i = 0; i < count; i++) chosen[i] = (int32_t)between(0, capacity - 1);
    ss_attention_row row = {heads, kv, dim, count, q, keys, values, capacity * dim, chosen, 0.3f, scores, out};
    for (int64_t head = 0; head < heads; head++) ss_chosen_pieces->attend_heads(&row, head, head + 1);
    for (int64_t head = 0; head < heads; head++)
        for (int64_t d = 0; d < dim; d++) {
            double total = 0, sum = 0;
            for (int64_t i = 0; i < count; i++) {
                int64_t at = (head / (heads / kv) * capacity + chosen[i]) * dim;
                double match = 0;
                for (int64_t e = 0; e < dim; e++) match += (double)q[head * dim + e] * keys[at + e];
                total += exp(0.3f * match), sum += exp(0.3f * match) * values[at + d];
            }
            near(out[head * dim + d], sum / total, 4);
        }
    float *cosines = activations(half ? half : 1), *sines = activations(half ? half : 1);
    ss_chosen_pieces->norm_rotate(q, heads * dim, dim, keys, cosines, sines, 1, heads, dim, half, 1e-6f, rotated);
    float *blocks = blank(capacity);
    ss_chosen_pieces->score_blocks(q, 1, heads, dim, keys, capacity, 0.5f, blocks);
    for (int64_t b = 0; b < capacity; b++) {
        double sum = 0;
        for (int64_t h = 0; h < heads; h++) {
            double match = 0;
            for (int64_t e = 0; e < dim; e++) match += (double)q[h * dim + e] * keys[b * dim + e];
            sum += match > 0 ? 0.5 * match : 0;
        }
        near(blocks[b], sum, 8);
    }
    free(q), free(keys), free(values), free(scores), free(out), free(rotated), free(chosen), free(cosines), free(sines);
    free(blocks);
}

static void rest(void) {
    int64_t rows = between(1, 3), experts = between(1, 20), top = between(1, experts), hidden = between(1, 40);
    float *logits = activations(rows * experts), *weights = blank(rows * top), *gate = activations(rows);
    int32_t *ids = exactly((size_t)(rows * top) * 4);
    for (int32_t normalise = 0; normalise < 2; normalise++) {
        ss_chosen_pieces->route(logits, rows, experts, top, normalise, ids, weights);
        for (int64_t i = 0; i < rows * top; i++) {
            CHECK(ids[i] >= 0 && ids[i] < experts);
            CHECK(i % top == 0 || logits[i / top * experts + ids[i]] <= logits[i / top * experts + ids[i - 1]]);
        }
    }
    float *shared = activations(rows * hidden), *routed = activations(rows * top * hidden), *out = blank(rows * hidden);
    ss_chosen_pieces->combine(shared, gate, weights, routed, rows, top, hidden, out);
    float *gated = blank(rows * hidden);
    ss_chosen_pieces->ngram_gate(shared, out, routed, hidden, rows, 1, hidden, gated);
    free(logits), free(weights), free(gate), free(ids), free(shared), free(routed), free(out), free(gated);
}

/* Products of many rows, and of any part of them; bits 0 is dense. */
static void tiles(ss_pool *pool, ss_pool *other, int bits, int group, int type) {
    int64_t columns = bits ? group * between(1, 7) : between(1, 600), rows = between(1, 100), part = between(1, rows);
    owned o = make(1, between(1, 70), columns, bits, bits ? group : 0, type);
    float *x = activations(rows * columns), *y = blank(rows * o.m.rows), *alone = blank(part * o.m.rows);
    CHECK(!ss_many_multiply(pool, &o.m, x, rows, y));
    for (int64_t i = 0; i < rows * o.m.rows; i++) {
        double sum = 0, size = 0;
        for (int64_t k = 0; k < columns; k++) {
            double value = (double)x[i / o.m.rows * columns + k] * o.dense[i % o.m.rows * columns + k];
            sum += value, size += fabs(value);
        }
        near(y[i], sum, size);
    }
    CHECK(!ss_many_multiply(other, &o.m, x + (rows - part) * columns, part, alone));
    same(alone, y + (rows - part) * o.m.rows, part * o.m.rows);
    free(x), free(y), free(alone);
    drop(&o);
}

/* Row t of a pass sees the keys up to its own; of selected ones, those of its blocks and of the unfinished one. */
static void attention_of_rows(ss_pool *pool, ss_pool *other) {
    int64_t kv = between(1, 2), heads = kv * between(1, 3), dim = between(1, 20), rows = between(1, 40);
    int64_t position = between(0, 150), ratio = between(1, 4), end = position + rows, capacity = end + between(0, 5);
    int64_t width = heads * dim, blocks = end / ratio + between(0, 1), part = between(1, rows);
    float *q = activations(rows * width), *keys = activations(kv * capacity * dim), *out = blank(rows * width);
    float *values = activations(kv * capacity * dim), *alone = blank(part * width);
    uint8_t *selected = exactly((size_t)(rows * blocks));
    for (int64_t i = 0; i < rows * blocks; i++) selected[i] = (uint8_t)between(0, 1);
    for (int all = 0; all < 2; all++) {
        ss_attention_rows a = {heads, kv, dim, rows, position, q, keys, values, capacity * dim, all ? NULL : selected,
                               blocks, ratio, 0.3f, out};
        CHECK(!ss_many_attend(pool, &a));
        for (int64_t i = 0; i < rows * width; i++) {
            int64_t t = i / width, head = i % width / dim, seen = position + t + 1;
            double total = 0, sum = 0;
            for (int64_t k = 0; k < seen; k++) {
                if (!all && k < seen / ratio * ratio && !selected[t * blocks + k / ratio]) continue;
                int64_t at = (head / (heads / kv) * capacity + k) * dim;
                double match = 0;
                for (int64_t d = 0; d < dim; d++) match += (double)q[t * width + head * dim + d] * keys[at + d];
                total += exp(0.3 * match), sum += exp(0.3 * match) * values[at + i % dim];
            }
            if (total > 0) near(out[i], sum / total, 4);
        }
        ss_attention_rows last = a;
        last.rows = part, last.position = end - part, last.q = q + (rows - part) * width, last.out = alone;
        if (!all) last.selected = selected + (rows - part) * blocks;
        CHECK(!ss_many_attend(other, &last));
        for (int64_t i = 0; i < part * width; i++)
            CHECK(isnan(alone[i]) || alone[i] == out[(rows - part) * width + i]);
    }
    free(q), free(keys), free(values), free(out), free(alone), free(selected);
}

/* A layer of drawn widths; bits 0 is dense, and `wide` leaves the narrow products. */
typedef struct {
    ss_layer layer;
    owned matrix[16];
    int count;
    float *vectors[8];
    int vector_count;
    owned gate, up, down;
    int64_t channels, memory;
} made_layer;

static const ss_matrix *one(made_layer *l, int64_t rows, int64_t columns, int bits) {
    l->matrix[l->count] = make(1, rows, columns, bits, bits ? 32 : 0, SS_FLOAT32);
    return &l->matrix[l->count++].m;
}

static float *vector(made_layer *l, int64_t count) { return l->vectors[l->vector_count++] = activations(count); }

static ss_reader reader_of(made_layer *l, int64_t count, int64_t hidden, int bits) {
    const ss_matrix *down = one(l, 32, count * hidden, bits), *up = one(l, count * hidden, 32, bits);
    return (ss_reader){down, up, one(l, count, count * hidden, bits), vector(l, count * hidden), count, hidden, 1e-6f};
}

static made_layer *make_layer(int bits, int64_t hidden, int64_t count) {
    made_layer *l = exactly(sizeof *l);
    memset(l, 0, sizeof *l);
    int64_t key_heads = 2, heads = 4, key_dim = 16, dim = 8, width = heads * dim, inner = 64, top = 3, experts = 7;
    l->channels = 2 * key_heads * key_dim + width;
    l->memory = heads * dim * key_dim;
    l->layer.first = reader_of(l, count, hidden, bits);
    l->layer.second = reader_of(l, count, hidden, bits);
    const ss_matrix *all = one(l, l->channels + width, hidden, bits), *rates = one(l, 2 * heads, hidden, 0);
    l->layer.inputs = (ss_maps){{all, rates}, 2};
    l->layer.output = one(l, hidden, width, bits);
    l->layer.has_delta = 1;
    ss_delta *d = &l->layer.delta;
    *d = (ss_delta){.part = {{0, 0}, {0, l->channels}, {1, 0}, {1, heads}}, .tap_count = 4, .key_heads = key_heads,
                    .value_heads = heads, .key_dim = key_dim, .value_dim = dim, .norm_eps = 1e-6f, .key_eps = 1e-6f};
    d->taps = vector(l, 4 * l->channels);
    float *rate = vector(l, heads);
    for (int64_t i = 0; i < heads; i++) rate[i] = -fabsf(rate[i]);
    d->rate = rate;
    d->dt_bias = vector(l, heads);
    d->norm_weight = vector(l, dim);
    ss_expert_layer *e = &l->layer.experts;
    e->router = one(l, experts, hidden, 0);
    e->shared = (ss_maps){{one(l, 2 * inner, hidden, bits)}, 1};
    e->part[0] = (ss_part){0, 0}, e->part[1] = (ss_part){0, inner};
    e->shared_down = one(l, hidden, inner, bits);
    e->shared_gate = one(l, 1, hidden, bits);
    e->top = top, e->normalise = 1;
    l->gate = make(experts, inner, hidden, bits, bits ? 32 : 0, SS_FLOAT32);
    l->up = make(experts, inner, hidden, bits, bits ? 32 : 0, SS_FLOAT32);
    l->down = make(experts, hidden, inner, bits, bits ? 32 : 0, SS_FLOAT32);
    return l;
}

static void drop_layer(made_layer *l) {
    for (int i = 0; i < l->count; i++) drop(&l->matrix[i]);
    for (int i = 0; i < l->vector_count; i++) free(l->vectors[i]);
    drop(&l->gate), drop(&l->up), drop(&l->down);
    free(l);
}

/* The layer on `rows` rows: window and memory are advanced, out is written. */
static void advance(made_layer *l, ss_pool *pool, const float *streams, int64_t rows, float *window, float *memory,
                    float *out) {
    int64_t hidden = l->layer.first.hidden, count = l->layer.first.count, top = l->layer.experts.top;
    float *moved = blank(3 * l->channels), *shared = blank(rows * hidden), *gate = blank(rows);
    ss_attended a = {blank(rows * count * hidden), blank(rows * hidden), blank(rows * count),
                     exactly((size_t)(rows * top) * 4), blank(rows * top)};
    ss_remembered remembered = {window, moved, 3, memory, NULL};
    CHECK(!ss_advance_delta(&l->layer, pool, streams, rows, &remembered, &a));
    CHECK(!ss_shared(&l->layer, pool, a.x, rows, shared, gate));
    ss_routed r = {&l->gate.m, &l->up.m, &l->down.m, a.ids, a.mix, a.x, shared, gate, a.streams, a.injection, out};
    CHECK(!ss_join_experts(&l->layer, pool, &r, rows));
    CHECK(ss_join_experts(&l->layer, NULL, &r, rows) == SS_BAD_ARGUMENT);
    a.ids[0] = (int32_t)l->gate.m.members;
    float *refused = blank(rows * count * hidden);
    CHECK(ss_join_experts(&l->layer, pool, &((ss_routed){r.gate, r.up, r.down, a.ids, r.mix, r.x, r.shared,
                                                         r.shared_gate, r.streams, r.injection, refused}),
                          rows) == SS_OUT_OF_RANGE);
    memcpy(window, moved, (size_t)(3 * l->channels) * 4);
    free(moved), free(shared), free(gate), free(a.streams), free(a.x), free(a.injection), free(a.ids), free(a.mix);
    free(refused);
}

/* A recorded call leaves the memory alone and writes what single rows make of it, one after another. */
static void recordings(ss_pool *pool, int bits, int64_t hidden) {
    int64_t rows = between(2, 6), count = between(1, 3), width = count * hidden, top;
    made_layer *l = make_layer(bits, hidden, count);
    top = l->layer.experts.top;
    float *x = activations(rows * width), *window = activations(3 * l->channels), *memory = activations(l->memory);
    float *before = exactly((size_t)l->memory * 4), *out = blank(width);
    memcpy(before, memory, (size_t)l->memory * 4);
    float *moved = blank((3 + rows) * l->channels), *history = blank(rows * l->memory);
    ss_attended a = {blank(rows * width), blank(rows * hidden), blank(rows * count), exactly((size_t)(rows * top) * 4),
                     blank(rows * top)};
    ss_remembered remembered = {window, moved, 3 + rows, memory, history};
    CHECK(!ss_advance_delta(&l->layer, pool, x, rows, &remembered, &a));
    same(memory, before, l->memory);
    same(moved, window, 3 * l->channels);
    for (int64_t t = 0; t < rows; t++) {
        advance(l, pool, x + t * width, 1, window, memory, out);
        same(history + t * l->memory, memory, l->memory);
        same(moved + (t + 1) * l->channels, window, 3 * l->channels);
    }
    free(x), free(window), free(memory), free(before), free(out), free(moved), free(history);
    free(a.streams), free(a.x), free(a.injection), free(a.ids), free(a.mix);
    drop_layer(l);
}

/* `rows` rows at once, and in parts of at least `least`, one after another: the same bits. */
static void layers(ss_pool *pool, ss_pool *other, int bits, int64_t hidden, int64_t rows, int64_t least) {
    int64_t count = between(1, 3), width = count * hidden;
    made_layer *l = make_layer(bits, hidden, count);
    float *x = activations(rows * width), *together = blank(rows * width), *alone = blank(rows * width);
    float *window = activations(3 * l->channels), *memory = activations(l->memory);
    float *window_2 = exactly((size_t)(3 * l->channels) * 4), *memory_2 = exactly((size_t)l->memory * 4);
    memcpy(window_2, window, (size_t)(3 * l->channels) * 4);
    memcpy(memory_2, memory, (size_t)l->memory * 4);
    advance(l, pool, x, rows, window, memory, together);
    for (int64_t t = 0, part; t < rows; t += part) {
        part = rows - t < 2 * least ? rows - t : least;
        advance(l, other, x + t * width, part, window_2, memory_2, alone + t * width);
    }
    same(together, alone, rows * width);
    same(window, window_2, 3 * l->channels);
    same(memory, memory_2, l->memory);
    for (int64_t i = 0; i < rows * width; i++) CHECK(isfinite(together[i]));
    free(x), free(together), free(alone), free(window), free(memory), free(window_2), free(memory_2);
    drop_layer(l);
}

static void everything(ss_pool *pool, ss_pool *other) {
    for (int round = 0; round < 12; round++) {
        norms_and_gates();
        streams();
        convolutions();
        attention();
        rest();
        attention_of_rows(pool, other);
        for (int type = SS_FLOAT32; type <= SS_BFLOAT16; type++) {
            tiles(pool, other, 0, 0, type);
            for (int group = 32; group <= 128; group *= 2)
                tiles(pool, other, 4, group, type), tiles(pool, other, 8, group, type);
        }
    }
    for (int bits = 0; bits <= 8; bits += 4) {
        recordings(pool, bits, 64);
        layers(pool, other, bits, 64, between(2, 6), 1);
        layers(pool, other, bits, 96, between(2, 6), 1);
        layers(pool, other, bits, 64, between(90, 150), SS_FEW_ROWS + 1);
    }
    layers(pool, other, 8, 2048, between(2, 6), 1); /* matrices large enough to be shared out, and one too wide for the narrow product */
}

int main(void) {
    ss_pool *pool, *other;
    CHECK(!ss_pool_create(3, 0, &pool));
    CHECK(!ss_pool_create(1, 0, &other));
    everything(pool, other);
#if defined(SS_WITH_AVX2_PIECES)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        ss_chosen_pieces = &ss_pieces_avx2;
        everything(pool, other);
    }
#endif
    ss_pool_destroy(pool);
    ss_pool_destroy(other);
    printf("steps ok\n");
    return 0;
}
