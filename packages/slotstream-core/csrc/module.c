/* slotstream_core._native as a Python module: products and pieces for arrays that offer the buffer protocol.
 *
 * What a decoded token calls some two hundred times; ctypes, which serves everything else, costs several microseconds
 * a call. Limited API.
 *
 * Arrays are float32 unless said otherwise. "rows" arguments have two axes and any distance between rows; the others
 * are contiguous. Sizes are read from the arrays and checked against each other: a mismatch is a ValueError, and
 * nothing is read or written outside an array. The interpreter's lock is released where the work is worth it.
 */
#include <errno.h>
#include <unistd.h>

#include "arrays.h"
#include "layer_module.h"
#include "many_rows.h"

#define pieces ss_chosen_pieces

/* rms_norm(x rows, weight, groups, eps, out rows) */
static PyObject *py_rms_norm(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "rms_norm", count, 5)) return NULL;
    int64_t weights = 0;
    Rows x = input(&call, args[0]);
    const float *weight = flat(&call, args[1], &weights, 0);
    int64_t groups = integer(&call, args[2]);
    float eps = real(&call, args[3]);
    Rows out = output(&call, args[4]);
    require(&call, groups > 0 && x.width > 0 && x.width % groups == 0, "the groups do not divide a row");
    require(&call, x.rows == out.rows && x.width == out.width, "x and out differ in shape");
    if (!call.failed) {
        int64_t dim = x.width / groups;
        require(&call, weights == dim || weights == x.width, "the weights are not one group or all groups");
        RUN(x.rows * x.width, pieces->rms_norm(x.data, x.stride, weight, x.rows, groups, weights == dim ? 1 : groups,
                                               dim, eps, out.data, out.width));
    }
    return finish(&call);
}

/* mix_streams(gate rows, normed rows, streams, mixed rows) */
static PyObject *py_mix_streams(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "mix_streams", count, 4)) return NULL;
    Rows gate = contiguous_rows(&call, args[0]), normed = contiguous_rows(&call, args[1]);
    int64_t streams = integer(&call, args[2]);
    Rows mixed = output(&call, args[3]);
    require(&call, streams > 0 && gate.rows == normed.rows && gate.rows == mixed.rows && gate.width == normed.width &&
                       gate.width == times(&call, streams, mixed.width),
            "the shapes of gate, normed and mixed disagree");
    RUN(gate.rows * gate.width,
        pieces->mix_streams(gate.data, normed.data, gate.rows, streams, mixed.width, mixed.data));
    return finish(&call);
}

/* inject(streams rows, injection rows, y rows, out rows) */
static PyObject *py_inject(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "inject", count, 4)) return NULL;
    Rows streams = input(&call, args[0]), injection = input(&call, args[1]), y = input(&call, args[2]);
    Rows out = output(&call, args[3]);
    require(&call, streams.rows == injection.rows && streams.rows == y.rows && streams.rows == out.rows &&
                       streams.width == out.width && streams.width == times(&call, injection.width, y.width),
            "the shapes of streams, injection, y and out disagree");
    require(&call, streams.rows < 2 || (streams.stride == streams.width && injection.stride == injection.width &&
                                        y.stride == y.width),
            "rows are not contiguous");
    RUN(out.rows * out.width,
        pieces->inject(streams.data, injection.data, y.data, y.rows, injection.width, y.width, out.data));
    return finish(&call);
}

static PyObject *activate(const char *name, ss_activate_fn *function, PyObject *const *args, Py_ssize_t count) {
    Call call;
    if (!starts(&call, name, count, 1)) return NULL;
    int64_t values = 0;
    float *x = flat(&call, args[0], &values, PyBUF_WRITABLE);
    RUN(values, function(x, values));
    return finish(&call);
}

/* silu(x): in place */
static PyObject *py_silu(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    return activate("silu", pieces->silu, args, count);
}

/* sigmoid(x): in place */
static PyObject *py_sigmoid(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    return activate("sigmoid", pieces->sigmoid, args, count);
}

/* silu_multiply(gate rows, up rows, out rows) */
static PyObject *py_silu_multiply(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "silu_multiply", count, 3)) return NULL;
    Rows gate = input(&call, args[0]), up = input(&call, args[1]), out = output(&call, args[2]);
    require(&call, gate.rows == up.rows && gate.rows == out.rows && gate.width == up.width && gate.width == out.width,
            "the shapes of gate, up and out disagree");
    RUN(out.rows * out.width,
        pieces->silu_multiply(gate.data, gate.stride, up.data, up.stride, out.rows, out.width, out.data));
    return finish(&call);
}

/* gate(x rows, gate rows, out rows) */
static PyObject *py_gate(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "gate", count, 3)) return NULL;
    Rows x = contiguous_rows(&call, args[0]), gate = input(&call, args[1]), out = output(&call, args[2]);
    require(&call, x.rows == gate.rows && x.rows == out.rows && x.width == gate.width && x.width == out.width,
            "the shapes of x, gate and out disagree");
    RUN(out.rows * out.width, pieces->gate(x.data, gate.data, gate.stride, out.rows, out.width, out.data));
    return finish(&call);
}

/* convolve(window rows, x rows, kernel rows, dilation, out rows) */
static PyObject *py_convolve(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "convolve", count, 5)) return NULL;
    Rows window = contiguous_rows(&call, args[0]), x = input(&call, args[1]), kernel = contiguous_rows(&call, args[2]);
    int64_t dilation = integer(&call, args[3]);
    Rows out = output(&call, args[4]);
    require(&call, dilation > 0 && kernel.rows > 0 && window.rows == times(&call, kernel.rows - 1, dilation),
            "the window does not hold (taps - 1) * dilation rows");
    require(&call, x.rows == out.rows && x.width == out.width && x.width == kernel.width &&
                       (window.rows == 0 || x.width == window.width),
            "the shapes of window, x, kernel and out disagree");
    RUN(out.rows * out.width, pieces->convolve(window.data, x.data, x.stride, kernel.data, x.rows, x.width, kernel.rows,
                                               dilation, out.data));
    return finish(&call);
}

/* delta(convolved rows, gate rows, step rows, decay rows, rate, dt_bias, norm_weight, memory, key_heads, key_dim,
 *       norm_eps, key_eps, silu_gate, first, last, out rows) */
static PyObject *py_delta(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "delta", count, 16)) return NULL;
    int64_t rates = 0, steps = 0, dims = 0, memory = 0;
    ss_delta_step a = {0};
    Rows convolved = contiguous_rows(&call, args[0]), gate = input(&call, args[1]), step = input(&call, args[2]);
    Rows decay = input(&call, args[3]);
    a.rate = flat(&call, args[4], &rates, 0);
    a.dt_bias = flat(&call, args[5], &steps, 0);
    a.norm_weight = flat(&call, args[6], &dims, 0);
    a.memory = flat(&call, args[7], &memory, PyBUF_WRITABLE);
    a.key_heads = integer(&call, args[8]);
    a.key_dim = integer(&call, args[9]);
    a.norm_eps = real(&call, args[10]);
    a.key_eps = real(&call, args[11]);
    a.silu_gate = (int32_t)integer(&call, args[12]);
    int64_t first = integer(&call, args[13]), last = integer(&call, args[14]);
    Rows out = output(&call, args[15]);
    a.rows = convolved.rows;
    a.value_heads = rates;
    a.value_dim = dims;
    require(&call, a.key_heads > 0 && rates > 0 && rates % a.key_heads == 0 && steps == rates, "heads disagree");
    require(&call, a.key_dim > 0 && a.key_dim <= SS_DELTA_DIM && dims > 0 && dims <= SS_DELTA_DIM,
            "a head is wider than this build allows");
    require(&call, call.failed || memory == rates * dims * a.key_dim, "the memory has another shape");
    require(&call, call.failed || (convolved.width == 2 * a.key_heads * a.key_dim + rates * dims &&
                                   gate.width == rates * dims && step.width == rates && decay.width == rates &&
                                   out.width == rates * dims),
            "the widths of convolved, gate, step, decay and out disagree");
    require(&call, gate.rows == a.rows && step.rows == a.rows && decay.rows == a.rows && out.rows == a.rows,
            "the arrays differ in rows");
    require(&call, 0 <= first && first <= last && last <= rates, "the range of heads is outside");
    a.convolved = convolved.data;
    a.gate = gate.data;
    a.gate_stride = gate.stride;
    a.step = step.data;
    a.step_stride = step.stride;
    a.decay = decay.data;
    a.decay_stride = decay.stride;
    a.out = out.data;
    RUN(a.rows * (last - first) * dims * a.key_dim, pieces->delta_heads(&a, first, last));
    return finish(&call);
}

/* norm_rotate(x rows, head_stride, weight, cos rows, sin rows, eps, out rows); out has heads * dim columns */
static PyObject *py_norm_rotate(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "norm_rotate", count, 7)) return NULL;
    int64_t dim = 0;
    Rows x = input(&call, args[0]);
    int64_t head_stride = integer(&call, args[1]);
    const float *weight = flat(&call, args[2], &dim, 0);
    Rows cosines = contiguous_rows(&call, args[3]), sines = contiguous_rows(&call, args[4]);
    float eps = real(&call, args[5]);
    Rows out = output(&call, args[6]);
    require(&call, dim > 0 && out.width > 0 && out.width % dim == 0, "the weights do not divide a row");
    if (!call.failed) {
        int64_t heads = out.width / dim;
        require(&call, head_stride >= 0 && x.width >= dim && x.width - dim >= times(&call, heads - 1, head_stride),
                "the heads reach past a row");
        require(&call, x.rows == out.rows && cosines.rows == x.rows && sines.rows == x.rows &&
                           cosines.width == sines.width && 2 * cosines.width <= dim,
                "the shapes of x, angles and out disagree");
        RUN(out.rows * out.width,
            pieces->norm_rotate(x.data, x.stride, head_stride, weight, cosines.data, sines.data, x.rows, heads, dim,
                                cosines.width, eps, out.data));
    }
    return finish(&call);
}

static void check_chosen(Call *call, const int32_t *chosen, int64_t count, int64_t capacity) {
    for (int64_t i = 0; !call->failed && i < count; i++)
        if (chosen[i] < 0 || chosen[i] >= capacity) fail(call, "a chosen key is outside the cache");
}

/* attend(q, keys, values, kv_heads, dim, key_count, chosen or None, scale, scores, first, last, out): one row */
static PyObject *py_attend(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "attend", count, 12)) return NULL;
    int64_t queries = 0, keys = 0, values = 0, scores = 0, outs = 0;
    ss_attention_row a;
    a.q = flat(&call, args[0], &queries, 0);
    a.keys = flat(&call, args[1], &keys, 0);
    a.values = flat(&call, args[2], &values, 0);
    a.kv_heads = integer(&call, args[3]);
    a.dim = integer(&call, args[4]);
    a.key_count = integer(&call, args[5]);
    a.chosen = NULL;
    int64_t position = a.kv_heads > 0 && a.dim > 0 ? times(&call, a.kv_heads, a.dim) : 0;
    require(&call, position > 0 && queries % position == 0 && keys == values && keys % position == 0,
            "the shapes of q, keys and values disagree");
    if (!call.failed) {
        int64_t capacity = keys / position, ids = 0;
        a.kv_stride = capacity * a.dim;
        a.heads = queries / a.dim;
        if (args[6] != Py_None) {
            a.chosen = indices(&call, args[6], &ids);
            require(&call, ids == a.key_count, "the number of chosen keys is not key_count");
            check_chosen(&call, a.chosen, ids, capacity);
        }
        require(&call, a.key_count > 0 && (a.chosen || a.key_count <= capacity), "more keys than the cache holds");
    }
    a.scale = real(&call, args[7]);
    a.scores = flat(&call, args[8], &scores, PyBUF_WRITABLE);
    int64_t first = integer(&call, args[9]), last = integer(&call, args[10]);
    a.out = flat(&call, args[11], &outs, PyBUF_WRITABLE);
    require(&call, call.failed || (scores >= a.heads * a.key_count && outs == queries), "scores or out are too small");
    require(&call, call.failed || (0 <= first && first <= last && last <= a.heads), "the range of heads is outside");
    keep_indices(&call);
    RUN((last - first) * a.key_count * a.dim, pieces->attend_heads(&a, first, last));
    return finish(&call);
}

/* attend_rows(pool, q rows, keys, values, kv_heads, dim, position, selected uint8 rows or None, ratio, scale, out rows) */
static PyObject *py_attend_rows(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "attend_rows", count, 11)) return NULL;
    int64_t keys = 0, values = 0;
    ss_attention_rows a = {0};
    ss_pool *pool = pool_of(&call, args[0]);
    Rows q = contiguous_rows(&call, args[1]);
    a.q = q.data, a.rows = q.rows;
    a.keys = flat(&call, args[2], &keys, 0);
    a.values = flat(&call, args[3], &values, 0);
    a.kv_heads = integer(&call, args[4]);
    a.dim = integer(&call, args[5]);
    a.position = integer(&call, args[6]);
    int64_t key = a.kv_heads > 0 && a.dim > 0 ? times(&call, a.kv_heads, a.dim) : 0;
    require(&call, key > 0 && q.rows > 0 && q.width > 0 && q.width % key == 0 && keys == values && keys % key == 0,
            "the shapes of q, keys and values disagree");
    require(&call, call.failed || (a.position >= 0 && a.position <= keys / key - a.rows), "more keys than the cache holds");
    a.ratio = integer(&call, args[8]);
    require(&call, a.ratio > 0, "a block has at least one key");
    if (!call.failed && args[7] != Py_None) {
        a.selected = octets(&call, args[7], a.rows, &a.blocks);
        require(&call, call.failed || a.blocks >= (a.position + a.rows) / a.ratio, "there is not one mark for every block");
    }
    a.scale = real(&call, args[9]);
    Rows out = output(&call, args[10]);
    require(&call, out.rows == q.rows && out.width == q.width, "q and out differ in shape");
    if (!call.failed) a.kv_stride = keys / a.kv_heads, a.heads = q.width / a.dim, a.out = out.data;
    int32_t code = SS_OK;
    RUN(RELEASE_FROM, code = ss_many_attend(pool, &a));
    require(&call, code == SS_OK, "no memory");
    return finish(&call);
}

/* score_blocks(q rows, blocks rows, scale, out rows): the first out.width blocks */
static PyObject *py_score_blocks(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "score_blocks", count, 4)) return NULL;
    Rows q = contiguous_rows(&call, args[0]), blocks = contiguous_rows(&call, args[1]);
    float scale = real(&call, args[2]);
    Rows out = output(&call, args[3]);
    require(&call, call.failed || (blocks.width > 0 && q.width % blocks.width == 0 && q.rows == out.rows &&
                                   out.width <= blocks.rows),
            "the shapes of q, blocks and out disagree");
    RUN(out.rows * out.width, pieces->score_blocks(q.data, q.rows, q.width / blocks.width, blocks.width, blocks.data,
                                                   out.width, scale, out.data));
    return finish(&call);
}

/* route(logits rows, normalise, ids int32 [rows, top], weights rows) */
static PyObject *py_route(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "route", count, 4)) return NULL;
    int64_t ids = 0;
    Rows logits = contiguous_rows(&call, args[0]);
    int32_t normalise = (int32_t)integer(&call, args[1]);
    int32_t *chosen = (int32_t *)int32_array(&call, args[2], &ids, PyBUF_WRITABLE);
    Rows weights = output(&call, args[3]);
    require(&call, logits.rows == weights.rows && ids == weights.rows * weights.width && weights.width > 0 &&
                       weights.width <= logits.width,
            "the shapes of logits, ids and weights disagree");
    RUN(logits.rows * logits.width,
        pieces->route(logits.data, logits.rows, logits.width, weights.width, normalise, chosen, weights.data));
    return finish(&call);
}

/* combine(shared rows, gate rows, weights rows, routed rows, out rows) */
static PyObject *py_combine(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "combine", count, 5)) return NULL;
    Rows shared = contiguous_rows(&call, args[0]), gate = contiguous_rows(&call, args[1]), weights = contiguous_rows(&call, args[2]);
    Rows routed = contiguous_rows(&call, args[3]), out = output(&call, args[4]);
    require(&call, shared.rows == out.rows && shared.width == out.width && gate.rows == out.rows && gate.width == 1 &&
                       weights.rows == out.rows && routed.rows == out.rows * weights.width && routed.width == out.width,
            "the shapes of shared, gate, weights, routed and out disagree");
    RUN(out.rows * out.width, pieces->combine(shared.data, gate.data, weights.data, routed.data, out.rows,
                                              weights.width, out.width, out.data));
    return finish(&call);
}

/* ngram_gate(keys rows, queries rows, value rows, out rows) */
static PyObject *py_ngram_gate(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "ngram_gate", count, 4)) return NULL;
    Rows keys = contiguous_rows(&call, args[0]), queries = contiguous_rows(&call, args[1]), value = input(&call, args[2]);
    Rows out = output(&call, args[3]);
    require(&call, value.width > 0 && keys.width % value.width == 0 && keys.width == queries.width &&
                       keys.width == out.width && keys.rows == queries.rows && keys.rows == value.rows &&
                       keys.rows == out.rows,
            "the shapes of keys, queries, value and out disagree");
    RUN(out.rows * out.width,
        pieces->ngram_gate(keys.data, queries.data, value.data, value.stride, out.rows, keys.width / value.width,
                           value.width, out.data));
    return finish(&call);
}

typedef int32_t multiply_fn(ss_pool *pool, const ss_matrix *matrix, const float *x, int64_t rows, float *out);

static PyObject *multiply_by(const char *name, multiply_fn *function, PyObject *const *args, Py_ssize_t count) {
    Call call;
    if (!starts(&call, name, count, 4)) return NULL;
    ss_pool *pool = pool_of(&call, args[0]);
    const ss_matrix *matrix = matrix_of(&call, args[1]);
    Rows x = contiguous_rows(&call, args[2]), out = output(&call, args[3]);
    require(&call, call.failed || (x.width == matrix->columns && out.width == matrix->rows && x.rows == out.rows),
            "the shapes of x, the matrix and out disagree");
    int32_t code = SS_OK;
    RUN(x.rows * matrix->columns * matrix->rows, code = function(pool, matrix, x.data, x.rows, out.data));
    require(&call, code == SS_OK, "the matrix was refused");
    return finish(&call);
}

/* multiply(pool, matrix, x rows, out rows): see ss_multiply. The first two are addresses that their owners keep valid. */
static PyObject *py_multiply(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    return multiply_by("multiply", ss_apply, args, count);
}

/* multiply_many(pool, matrix, x rows, out rows): as `multiply` computes more than FEW_ROWS rows, for any number. */
static PyObject *py_multiply_many(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    return multiply_by("multiply_many", ss_many_multiply, args, count);
}

/* read_streams(pool, down, up, inject or 0, streams rows, norm_weight, count, eps, normed, low, gate, mixed, injection):
 * the block input and the injection of a hyper-connection; the last five are outputs, injection is not touched
 * without inject. */
static PyObject *py_read_streams(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "read_streams", count, 13)) return NULL;
    int64_t weights = 0;
    ss_pool *pool = pool_of(&call, args[0]);
    ss_reader r = {0};
    r.down = matrix_of(&call, args[1]);
    r.up = matrix_of(&call, args[2]);
    if (integer(&call, args[3]) != 0) r.inject = matrix_of(&call, args[3]);
    Rows streams = input(&call, args[4]);
    r.weight = flat(&call, args[5], &weights, 0);
    r.count = integer(&call, args[6]);
    r.eps = real(&call, args[7]);
    Rows normed = output(&call, args[8]), low = output(&call, args[9]), gate = output(&call, args[10]);
    Rows mixed = output(&call, args[11]), injection = output(&call, args[12]);
    r.hidden = mixed.width;
    require(&call, call.failed || (r.count > 0 && streams.width == times(&call, r.count, mixed.width) && weights == streams.width &&
                                   normed.width == weights && gate.width == weights && r.down->columns == weights &&
                                   r.down->rows == low.width && r.up->columns == low.width && r.up->rows == weights),
            "the shapes of streams, weights and maps disagree");
    require(&call, call.failed || r.inject == NULL ||
                       (r.inject->columns == weights && r.inject->rows == r.count && injection.width == r.count &&
                        injection.rows == streams.rows),
            "the shapes of streams and injection disagree");
    require(&call, normed.rows == streams.rows && low.rows == streams.rows && gate.rows == streams.rows &&
                       mixed.rows == streams.rows,
            "the arrays differ in rows");
    int32_t code = SS_OK;
    RUN(streams.rows * low.width * streams.width,
        code = ss_read_streams(&r, pool, streams.data, streams.stride, streams.rows, normed.data, low.data, gate.data,
                               mixed.data, injection.data));
    require(&call, code == SS_OK, "a matrix was refused");
    return finish(&call);
}

/* experts(pool, gate, up, down, x rows, slots int32 [rows, top], out rows [rows * top]): see ss_experts without mix. */
static PyObject *py_experts(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "experts", count, 7)) return NULL;
    ss_pool *pool = pool_of(&call, args[0]);
    const ss_matrix *gate = matrix_of(&call, args[1]);
    const ss_matrix *up = matrix_of(&call, args[2]);
    const ss_matrix *down = matrix_of(&call, args[3]);
    Rows x = contiguous_rows(&call, args[4]);
    int64_t places = 0;
    const int32_t *slots = indices(&call, args[5], &places);
    Rows out = output(&call, args[6]);
    keep_indices(&call);
    require(&call, call.failed || (x.rows > 0 && places % x.rows == 0 && out.rows == places &&
                                   x.width == gate->columns && out.width == down->rows),
            "the shapes of x, the matrices, slots and out disagree");
    int32_t code = SS_OK;
    RUN(places * 3 * gate->columns * gate->rows,
        code = ss_apply_experts(pool, gate, up, down, x.data, x.rows, slots, places / x.rows, out.data));
    require(&call, code == SS_OK, "a slot or a matrix was refused");
    return finish(&call);
}

/* expert_pairs(pool, gate, up, down, x rows, pairs int32, slots int32, out rows [rows * top]): choice pairs[i] % top of
 * row pairs[i] / top of x through the expert in slots[i], as passes of many rows compute it. */
static PyObject *py_expert_pairs(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "expert_pairs", count, 8)) return NULL;
    int64_t places = 0;
    ss_expert_pairs p = {0};
    ss_pool *pool = pool_of(&call, args[0]);
    p.gate = matrix_of(&call, args[1]);
    p.up = matrix_of(&call, args[2]);
    p.down = matrix_of(&call, args[3]);
    Rows x = contiguous_rows(&call, args[4]);
    p.pair = int32_array(&call, args[5], &p.pairs, 0);
    p.slots = int32_array(&call, args[6], &places, 0);
    Rows out = output(&call, args[7]);
    keep_apart(&call);
    require(&call, call.failed || (places == p.pairs && x.rows > 0 && out.rows % x.rows == 0 &&
                                   x.width == p.gate->columns && out.width == p.down->rows),
            "the shapes of x, the matrices, pairs, slots and out disagree");
    for (int64_t i = 0; !call.failed && i < places; i++)
        require(&call, p.pair[i] >= 0 && p.pair[i] < out.rows, "a pair does not exist");
    if (!call.failed) p.top = out.rows / x.rows;
    p.x = x.data, p.out = out.data;
    int32_t code = SS_OK;
    RUN(p.pairs * 3 * p.gate->columns * p.gate->rows, code = ss_many_experts(pool, &p));
    require(&call, code == SS_OK, "a slot or a matrix was refused");
    return finish(&call);
}

/* Whether `bytes` from an offset came in full. */
static int read_fully(int fd, char *to, int64_t bytes, int64_t offset) {
    while (bytes > 0) {
        ssize_t got = pread(fd, to, (size_t)bytes, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return 0;
        to += got, bytes -= got, offset += got;
    }
    return 1;
}

/* read_rows(places int64 [rows, pieces, 2], widths int64 [pieces], out uint8 [rows, sum of the widths]): pieces of a row,
 * each at a descriptor and an offset, one after another -> how many rows came before the first that did not */
static PyObject *py_read_rows(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "read_rows", count, 3)) return NULL;
    int64_t numbers = 0, pieces_count = 0, width = 0, rows = 0, done = 0;
    const int64_t *places = wide_array(&call, args[0], "qlQL", &numbers, 0);
    const int64_t *widths = wide_array(&call, args[1], "qlQL", &pieces_count, 0);
    Py_buffer *out = acquire(&call, args[2], PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
    require(&call, call.failed || (out->itemsize == 1 && pieces_count > 0 && numbers % (2 * pieces_count) == 0),
            "the places are not those of whole rows");
    if (!call.failed) rows = numbers / (2 * pieces_count);
    for (int64_t k = 0; !call.failed && k < pieces_count; k++) {
        require(&call, widths[k] > 0 && (!rows || widths[k] <= out->len), "a piece is empty, or larger than the room for it");
        if (!call.failed && rows) width += widths[k];
    }
    require(&call, call.failed || times(&call, rows, width) == out->len, "there is not room for every row");
    keep_apart(&call);
    if (!call.failed) {
        char *to = out->buf;
        Py_BEGIN_ALLOW_THREADS
        for (int whole = 1; whole && done < rows; done += whole)
            for (int64_t k = 0; whole && k < pieces_count; to += widths[k++]) {
                const int64_t *place = places + 2 * (done * pieces_count + k);
                whole = place[0] >= 0 && place[0] <= INT32_MAX && read_fully((int)place[0], to, widths[k], place[1]);
            }
        Py_END_ALLOW_THREADS
    }
    PyObject *none = finish(&call);
    if (none == NULL) return NULL;
    Py_DECREF(none);
    return PyLong_FromLongLong(done);
}

/* is_narrow(matrix): whether a product with it stays on the calling thread */
static PyObject *py_is_narrow(PyObject *self, PyObject *matrix) {
    (void)self;
    Call call = {.name = "is_narrow"};
    const ss_matrix *found = matrix_of(&call, matrix);
    return call.failed ? NULL : PyBool_FromLong(ss_is_narrow(found));
}

/* instruction_sets() -> names that this processor can run, best first */
static PyObject *py_instruction_sets(PyObject *self, PyObject *unused) {
    (void)self, (void)unused;
#if defined(SS_WITH_AVX2_PIECES)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Py_BuildValue("(ss)", "avx2", "baseline");
#endif
    return Py_BuildValue("(s)", "baseline");
}

/* choose(name): which code the other functions run; process-wide */
static PyObject *py_choose(PyObject *self, PyObject *name) {
    PyObject *possible = py_instruction_sets(self, NULL);
    if (possible == NULL) return NULL;
    int found = PySequence_Contains(possible, name);
    Py_DECREF(possible);
    if (found < 0) return NULL;
    if (!found) return PyErr_Format(PyExc_ValueError, "this processor cannot run the instruction set %R", name);
    pieces = &ss_pieces_baseline;
#if defined(SS_WITH_AVX2_PIECES)
    if (PyUnicode_CompareWithASCIIString(name, "avx2") == 0) pieces = &ss_pieces_avx2;
#endif
    Py_RETURN_NONE;
}

#define FAST(name) {#name, (PyCFunction)(void (*)(void))py_##name, METH_FASTCALL, NULL}
#define WHOLE(name) {#name, (PyCFunction)(void (*)(void))ss_py_##name, METH_FASTCALL, NULL}

static PyMethodDef methods[] = {
    FAST(rms_norm),   FAST(mix_streams), FAST(inject), FAST(silu),  FAST(sigmoid), FAST(silu_multiply),
    FAST(gate),       FAST(convolve),    FAST(delta),  FAST(norm_rotate), FAST(attend), FAST(route),
    FAST(combine),    FAST(ngram_gate),  FAST(multiply), FAST(experts), FAST(read_streams),
    FAST(score_blocks), FAST(expert_pairs), FAST(multiply_many), FAST(attend_rows), FAST(read_rows),
    WHOLE(layer),     WHOLE(enter),      WHOLE(leave), WHOLE(advance_delta), WHOLE(shared), WHOLE(join_experts),
    WHOLE(join_outputs), WHOLE(advance_attention), WHOLE(remember), WHOLE(join_inputs), WHOLE(guess),
    WHOLE(residency), WHOLE(grant),      WHOLE(take_in), WHOLE(fetch), WHOLE(let_go), WHOLE(forecast),
    WHOLE(tickets),   WHOLE(list_tickets), WHOLE(settle_tickets), WHOLE(finish_dropped), WHOLE(drop_tickets),
    WHOLE(read_ahead), WHOLE(foresee),   WHOLE(requested), WHOLE(redeem), WHOLE(ask),
    WHOLE(program),  WHOLE(launch),      WHOLE(await_number), WHOLE(layer_words), WHOLE(take_layer), WHOLE(settle_layer),
    {"instruction_sets", py_instruction_sets, METH_NOARGS, NULL},
    {"is_narrow", py_is_narrow, METH_O, NULL},
    {"can_fetch", ss_py_can_fetch, METH_O, NULL},
    {"choose", py_choose, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *made = PyModule_Create(&module);
    if (made == NULL || PyModule_AddIntConstant(made, "FEW_ROWS", SS_FEW_ROWS) == 0) return made;
    Py_DECREF(made);
    return NULL;
}
