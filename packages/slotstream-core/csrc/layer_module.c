/* Whole parts of a decoder layer as Python functions, on a layer described once.
 *
 * A layer is a capsule. It keeps the small vectors it was given; the matrices it names by address are kept, as for
 * `multiply`, by whoever holds the layer. Conventions as in module.c.
 */
#include "arrays.h"
#include "layer_module.h"
#include "many_rows.h"
#include "steps.h"

#define CAPSULE "slotstream_core._native.layer"
#define MOST_VECTORS 10

typedef struct {
    ss_layer layer;
    Py_buffer views[MOST_VECTORS];
    int count;
} Described;

static void forget(Described *described) {
    while (described->count > 0) PyBuffer_Release(&described->views[--described->count]);
    PyMem_Free(described);
}

static void destroy(PyObject *capsule) { forget(PyCapsule_GetPointer(capsule, CAPSULE)); }

static const float *vector(Described *d, PyObject *object, int64_t *count) {
    Py_buffer *view = &d->views[d->count];
    if (PyObject_GetBuffer(object, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) < 0) return NULL;
    d->count++;
    if (!is_float(view)) {
        PyErr_SetString(PyExc_ValueError, "layer: a vector is not float32");
        return NULL;
    }
    *count = view->len / 4;
    return view->buf;
}

static int disagree(const char *what) {
    PyErr_Format(PyExc_ValueError, "layer: %s", what);
    return 0;
}

/* A converter of PyArg_ParseTuple. */
static int to_matrix(PyObject *address, void *matrix) { return take_matrix("layer", address, matrix); }

static int is_tuple(PyObject *object, const char *what) {
    if (PyTuple_Check(object)) return 1;
    PyErr_Format(PyExc_TypeError, "layer: %s is not a tuple", what);
    return 0;
}

static int describe_reader(Described *d, PyObject *from, ss_reader *reader) {
    long long streams;
    PyObject *weight;
    int64_t values = 0;
    if (!is_tuple(from, "a reader")) return 0;
    if (!PyArg_ParseTuple(from, "O&O&O&OLf", to_matrix, &reader->down, to_matrix, &reader->up, to_matrix,
                          &reader->inject, &weight, &streams, &reader->eps))
        return 0;
    reader->weight = vector(d, weight, &values);
    if (reader->weight == NULL) return 0;
    if (streams < 1 || values < streams || values % streams)
        return disagree("the weights of a reader are not those of its streams");
    reader->count = streams;
    reader->hidden = values / streams;
    if (reader->down->columns != values || reader->up->rows != values || reader->up->columns != reader->down->rows ||
        reader->inject->columns != values || reader->inject->rows != streams)
        return disagree("the matrices of a reader do not fit its streams");
    return 1;
}

static int describe_maps(PyObject *from, int64_t columns, ss_maps *maps) {
    if (!is_tuple(from, "a list of maps")) return 0;
    maps->count = PyTuple_Size(from);
    if (maps->count < 1 || maps->count > SS_MOST_MAPS) return disagree("one to four maps share an input");
    for (int64_t i = 0; i < maps->count; i++) {
        if (!to_matrix(PyTuple_GetItem(from, i), &maps->map[i])) return 0;
        if (maps->map[i]->columns != columns) return disagree("maps of one input differ in columns");
    }
    return 1;
}

static int part_fits(const ss_maps *maps, ss_part part, int64_t width) {
    return part.map >= 0 && part.map < maps->count && part.column >= 0 && part.column <= maps->map[part.map]->rows &&
           width <= maps->map[part.map]->rows - part.column;
}

static int describe_delta(Described *d, PyObject *from, ss_layer *layer) {
    ss_delta *delta = &layer->delta;
    long long map[4], column[4], key_heads, key_dim;
    int silu_gate;
    PyObject *taps, *rate, *dt_bias, *norm_weight;
    int64_t values = 0, rates = 0, biases = 0;
    if (!is_tuple(from, "the delta rule")) return 0;
    if (!PyArg_ParseTuple(from, "LLLLLLLLOOOOLLffi", &map[0], &column[0], &map[1], &column[1], &map[2], &column[2],
                          &map[3], &column[3], &taps, &rate, &dt_bias, &norm_weight, &key_heads, &key_dim,
                          &delta->norm_eps, &delta->key_eps, &silu_gate))
        return 0;
    delta->taps = vector(d, taps, &values);
    if (delta->taps) delta->rate = vector(d, rate, &rates);
    if (delta->rate) delta->dt_bias = vector(d, dt_bias, &biases);
    if (delta->dt_bias) delta->norm_weight = vector(d, norm_weight, &delta->value_dim);
    if (!delta->norm_weight) return 0;
    delta->value_heads = rates;
    delta->key_heads = key_heads;
    delta->key_dim = key_dim;
    delta->silu_gate = silu_gate;
    if (key_heads < 1 || key_dim < 1 || rates < 1 || rates % key_heads || biases != rates)
        return disagree("heads disagree");
    if (key_dim > SS_DELTA_DIM || delta->value_dim < 1 || delta->value_dim > SS_DELTA_DIM || key_heads > rates)
        return disagree("a head is wider than this build allows");
    int64_t width = rates * delta->value_dim, channels = 2 * key_heads * key_dim + width;
    int64_t widths[4] = {channels, width, rates, rates};
    if (values < channels || values % channels) return disagree("the taps do not have a value for every channel");
    delta->tap_count = values / channels;
    for (int i = 0; i < 4; i++) {
        delta->part[i] = (ss_part){map[i], column[i]};
        if (!part_fits(&layer->inputs, delta->part[i], widths[i])) return disagree("a part is outside its map");
    }
    if (layer->output->columns != width) return disagree("the output map does not fit the heads");
    return 1;
}

static int describe_attention(Described *d, PyObject *from, ss_layer *layer) {
    ss_attention *a = &layer->attention;
    long long map[4], column[4], heads, kv_heads, index_width;
    PyObject *q_weight, *k_weight;
    int64_t dim = 0;
    if (!is_tuple(from, "attention")) return 0;
    if (!PyArg_ParseTuple(from, "LLLLLLLLOOLLLff", &map[0], &column[0], &map[1], &column[1], &map[2], &column[2],
                          &map[3], &column[3], &q_weight, &k_weight, &heads, &kv_heads, &index_width, &a->eps, &a->scale))
        return 0;
    a->q_weight = vector(d, q_weight, &a->dim);
    if (a->q_weight) a->k_weight = vector(d, k_weight, &dim);
    if (!a->k_weight) return 0;
    a->heads = heads, a->kv_heads = kv_heads, a->index_width = index_width;
    if (dim < 1 || dim != a->dim || kv_heads < 1 || heads < kv_heads || heads % kv_heads) return disagree("heads disagree");
    if (layer->output->columns % dim || heads != layer->output->columns / dim)
        return disagree("the output map does not fit the heads");
    int64_t widths[4] = {2 * heads * dim, kv_heads * dim, kv_heads * dim, index_width};
    for (int i = 0; i < 4; i++) {
        a->part[i] = (ss_part){map[i], column[i]};
        if (widths[i] < 1 || !part_fits(&layer->inputs, a->part[i], widths[i]))
            return disagree("a part is outside its map");
    }
    return 1;
}

static int describe_experts(PyObject *from, int64_t hidden, ss_expert_layer *experts) {
    long long top, map[2], column[2];
    int normalise;
    PyObject *shared;
    if (!is_tuple(from, "the part of the experts")) return 0;
    if (!PyArg_ParseTuple(from, "O&OLLLLO&O&Li", to_matrix, &experts->router, &shared, &map[0], &column[0], &map[1],
                          &column[1], to_matrix, &experts->shared_down, to_matrix, &experts->shared_gate, &top,
                          &normalise))
        return 0;
    if (!describe_maps(shared, hidden, &experts->shared)) return 0;
    experts->top = top;
    experts->normalise = normalise;
    for (int i = 0; i < 2; i++) {
        experts->part[i] = (ss_part){map[i], column[i]};
        if (!part_fits(&experts->shared, experts->part[i], experts->shared_down->columns))
            return disagree("a part of the shared expert is outside its map");
    }
    if (experts->router->columns != hidden || top < 1 || top > experts->router->rows ||
        experts->shared_down->rows != hidden || experts->shared_gate->columns != hidden ||
        experts->shared_gate->rows != 1)
        return disagree("the matrices of the experts do not fit each other");
    return 1;
}

/* layer(first, second, inputs, output, delta or None, attention or None, experts): see _native.pyi */
PyObject *ss_py_layer(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (count != 7) return PyErr_Format(PyExc_TypeError, "layer takes 7 arguments, got %zd", count);
    Described *d = PyMem_Calloc(1, sizeof *d);
    if (d == NULL) return PyErr_NoMemory();
    ss_layer *layer = &d->layer;
    int right = describe_reader(d, args[0], &layer->first) && describe_reader(d, args[1], &layer->second) &&
                describe_maps(args[2], layer->first.hidden, &layer->inputs) && to_matrix(args[3], &layer->output);
    if (right)
        right = (layer->output->rows == layer->first.hidden && layer->second.hidden == layer->first.hidden &&
                 layer->second.count == layer->first.count) ||
                disagree("the mixer's output and the streams differ in width");
    layer->has_delta = args[4] != Py_None;
    if (right && layer->has_delta) right = describe_delta(d, args[4], layer);
    layer->has_attention = args[5] != Py_None;
    if (right && layer->has_attention) right = describe_attention(d, args[5], layer);
    if (right) right = describe_experts(args[6], layer->first.hidden, &layer->experts);
    PyObject *capsule = right ? PyCapsule_New(d, CAPSULE, destroy) : NULL;
    if (capsule == NULL) forget(d);
    return capsule;
}

static const ss_layer *layer_of(Call *call, PyObject *object) {
    if (call->failed) return NULL;
    Described *d = PyCapsule_GetPointer(object, CAPSULE);
    if (d == NULL) call->failed = 1;
    return d == NULL ? NULL : &d->layer;
}

static Rows streams_of(Call *call, const ss_layer *layer, PyObject *object) {
    Rows streams = contiguous_rows(call, object);
    require(call, call->failed || (streams.rows > 0 && streams.width == layer->first.count * layer->first.hidden),
            "the streams do not fit the layer");
    return streams;
}

static Rows fitting(Call *call, PyObject *object, int64_t rows, int64_t width, int writable) {
    Rows array = writable ? output(call, object) : contiguous_rows(call, object);
    require(call, call->failed || (array.rows == rows && array.width == width), "an array has another shape");
    return array;
}

/* The five outputs from args[0] on: streams, x, injection, ids, mix. */
static ss_attended attended_of(Call *call, const ss_layer *layer, PyObject *const *args, int64_t rows) {
    ss_attended out = {0};
    if (call->failed) return out;
    int64_t ids = 0, hidden = layer->second.hidden, count = layer->second.count, top = layer->experts.top;
    out.streams = fitting(call, args[0], rows, count * hidden, 1).data;
    out.x = fitting(call, args[1], rows, hidden, 1).data;
    out.injection = fitting(call, args[2], rows, count, 1).data;
    out.ids = (int32_t *)int32_array(call, args[3], &ids, PyBUF_WRITABLE);
    require(call, ids == rows * top, "there is not one id for every choice");
    out.mix = fitting(call, args[4], rows, top, 1).data;
    return out;
}

static PyObject *finish_with(Call *call, int32_t code) {
    require(call, code == SS_OK, code == SS_NO_MEMORY ? "no memory" : "a matrix or a slot was refused");
    return finish(call);
}

/* enter(layer, pool, streams rows, projections flat, injection rows) */
PyObject *ss_py_enter(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "enter", count, 5)) return NULL;
    const ss_layer *layer = layer_of(&call, args[0]);
    ss_pool *pool = pool_of(&call, args[1]);
    Rows streams = streams_of(&call, layer, args[2]);
    int64_t values = 0;
    float *projections = flat(&call, args[3], &values, PyBUF_WRITABLE);
    require(&call, call.failed || values == streams.rows * ss_maps_width(&layer->inputs),
            "the projections have another size");
    Rows injection = {0};
    if (!call.failed) injection = fitting(&call, args[4], streams.rows, layer->first.count, 1);
    int32_t code = SS_OK;
    RUN(RELEASE_FROM, code = ss_enter(layer, pool, streams.data, streams.rows, projections, injection.data));
    return finish_with(&call, code);
}

/* leave(layer, pool, mixed rows, streams rows, injection rows, then five outputs) */
PyObject *ss_py_leave(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "leave", count, 10)) return NULL;
    const ss_layer *layer = layer_of(&call, args[0]);
    ss_pool *pool = pool_of(&call, args[1]);
    Rows streams = streams_of(&call, layer, args[3]), mixed = {0}, injection = {0};
    if (!call.failed) mixed = fitting(&call, args[2], streams.rows, layer->output->columns, 0);
    if (!call.failed) injection = fitting(&call, args[4], streams.rows, layer->first.count, 0);
    ss_attended out = attended_of(&call, layer, args + 5, streams.rows);
    int32_t code = SS_OK;
    RUN(RELEASE_FROM,
        code = ss_leave(layer, pool, mixed.data, streams.data, injection.data, streams.rows, &out));
    return finish_with(&call, code);
}

/* advance_delta(layer, pool, streams rows, window rows, moved rows, memory, history rows or None, then five outputs) */
PyObject *ss_py_advance_delta(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "advance_delta", count, 12)) return NULL;
    const ss_layer *layer = layer_of(&call, args[0]);
    ss_pool *pool = pool_of(&call, args[1]);
    require(&call, call.failed || layer->has_delta, "the layer has no delta rule");
    Rows streams = streams_of(&call, layer, args[2]);
    ss_remembered r = {0};
    if (!call.failed) {
        const ss_delta *d = &layer->delta;
        int64_t channels = 2 * d->key_heads * d->key_dim + d->value_heads * d->value_dim, kept = d->tap_count - 1;
        int64_t size = d->value_heads * d->value_dim * d->key_dim, values = 0;
        r.window = fitting(&call, args[3], kept, channels, 0).data;
        Rows moved = output(&call, args[4]);
        require(&call, call.failed || (moved.width == channels && moved.rows >= kept && moved.rows - kept <= streams.rows),
                "the moved window has another shape");
        r.moved = moved.data, r.moved_rows = moved.rows;
        int recorded = args[6] != Py_None;
        r.memory = flat(&call, args[5], &values, recorded ? 0 : PyBUF_WRITABLE);
        require(&call, values == size, "the memory has another shape");
        if (recorded) {
            const Py_buffer *memory = &call.views[call.count - 1];
            r.history = fitting(&call, args[6], streams.rows, size, 1).data;
            require(&call, call.failed || !overlap(memory, &call.views[call.count - 1]),
                    "the history shares memory with the memory it begins with");
        }
    }
    ss_attended out = attended_of(&call, layer, args + 7, streams.rows);
    int32_t code = SS_OK;
    RUN(RELEASE_FROM, code = ss_advance_delta(layer, pool, streams.data, streams.rows, &r, &out));
    return finish_with(&call, code);
}

/* A cache [kv_heads, capacity, dim] that is written. */
static float *cache_of(Call *call, PyObject *object, const ss_attention *a, int64_t *capacity) {
    int64_t values = 0, row = 0;
    float *cache = flat(call, object, &values, PyBUF_WRITABLE);
    if (call->failed) return NULL;
    row = a->kv_heads * a->dim;
    require(call, values % row == 0, "a cache has another shape");
    *capacity = values / row;
    return cache;
}

/* What attention remembers of so many rows more: cos rows, sin rows, keys, values, length, index rows from args[0] on. */
static ss_cached cached_of(Call *call, const ss_layer *layer, PyObject *const *args, int64_t rows) {
    ss_cached c = {0};
    require(call, call->failed || layer->has_attention, "the layer has no attention");
    if (call->failed) return c;
    const ss_attention *a = &layer->attention;
    Rows cosines = contiguous_rows(call, args[0]);
    c.cosines = cosines.data, c.half = cosines.width;
    require(call, call->failed || (cosines.rows == rows && c.half <= a->dim / 2), "the angles do not fit the heads");
    if (!call->failed) c.sines = fitting(call, args[1], rows, c.half, 0).data;
    int64_t values = 0;
    c.keys = cache_of(call, args[2], a, &c.capacity);
    c.values = cache_of(call, args[3], a, &values);
    c.length = integer(call, args[4]);
    require(call, call->failed || (values == c.capacity && c.length >= 0 && c.length <= c.capacity - rows),
            "the caches do not hold the rows");
    if (!call->failed) c.index = fitting(call, args[5], rows, a->index_width, 1).data;
    return c;
}

/* remember(layer, pool, streams rows, cos rows, sin rows, keys, values, length, index rows) */
PyObject *ss_py_remember(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "remember", count, 9)) return NULL;
    const ss_layer *layer = layer_of(&call, args[0]);
    ss_pool *pool = pool_of(&call, args[1]);
    Rows streams = streams_of(&call, layer, args[2]);
    ss_cached c = cached_of(&call, layer, args + 3, streams.rows);
    keep_apart(&call);
    int32_t code = SS_OK;
    RUN(RELEASE_FROM, code = ss_many_remember(layer, pool, streams.data, streams.rows, &c));
    return finish_with(&call, code);
}

/* advance_attention(layer, pool, streams rows, queries, cos rows, sin rows, keys, values, length, index rows, then five
 * outputs of the last `queries` rows) */
PyObject *ss_py_advance_attention(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "advance_attention", count, 15)) return NULL;
    const ss_layer *layer = layer_of(&call, args[0]);
    ss_pool *pool = pool_of(&call, args[1]);
    Rows streams = streams_of(&call, layer, args[2]);
    int64_t queries = integer(&call, args[3]);
    require(&call, call.failed || (streams.rows <= SS_FEW_ROWS && queries > 0 && queries <= streams.rows),
            "there are no queries, or too many rows");
    ss_cached c = cached_of(&call, layer, args + 4, streams.rows);
    ss_attended out = attended_of(&call, layer, args + 10, queries);
    keep_apart(&call);
    int32_t code = SS_OK;
    RUN(RELEASE_FROM, code = ss_advance_attention(layer, pool, streams.data, streams.rows, queries, &c, &out));
    return finish_with(&call, code);
}

/* forecast(layer, pool, streams rows, logits rows, router, then a, b, mu flat, delta flat of a correction, or None) */
PyObject *ss_py_forecast(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    int corrected = count > 6;
    if (!starts(&call, "forecast", count, corrected ? 9 : 6)) return NULL;
    const ss_layer *layer = layer_of(&call, args[0]);
    ss_pool *pool = pool_of(&call, args[1]);
    Rows streams = streams_of(&call, layer, args[2]), logits = {0};
    if (!call.failed) logits = fitting(&call, args[3], streams.rows, layer->experts.router->rows, 1);
    const ss_matrix *router = matrix_of(&call, args[4]);
    require(&call, call.failed || (router->rows == layer->experts.router->rows && router->columns == layer->second.hidden),
            "the router does not fit the layer");
    ss_correction correction = {0};
    int64_t mu = 0, delta = 0, touched = 0;
    if (corrected) {
        correction.a = matrix_of(&call, args[5]);
        correction.b = matrix_of(&call, args[6]);
        correction.mu = flat(&call, args[7], &mu, 0);
        correction.delta = flat(&call, args[8], &delta, 0);
        require(&call, call.failed || (correction.a->columns == layer->second.hidden && mu == layer->second.hidden &&
                                       correction.b->columns == correction.a->rows && delta == logits.width &&
                                       correction.b->rows == logits.width),
                "the correction does not fit the layer");
    } else {
        require(&call, args[5] == Py_None, "a correction is a, b, mu and delta");
    }
    if (!call.failed) touched = streams.rows * streams.width * layer->second.down->rows;
    int32_t code = SS_OK;
    RUN(touched, code = ss_forecast_logits(layer, pool, streams.data, streams.rows, router,
                                           corrected ? &correction : NULL, logits.data));
    return finish_with(&call, code);
}

/* shared(layer, pool, x rows, out rows, gate rows) */
PyObject *ss_py_shared(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "shared", count, 5)) return NULL;
    const ss_layer *layer = layer_of(&call, args[0]);
    ss_pool *pool = pool_of(&call, args[1]);
    Rows x = contiguous_rows(&call, args[2]), out = {0}, gate = {0};
    require(&call, call.failed || (x.rows > 0 && x.width == layer->second.hidden), "x does not fit the layer");
    if (!call.failed) out = fitting(&call, args[3], x.rows, x.width, 1);
    if (!call.failed) gate = fitting(&call, args[4], x.rows, 1, 1);
    int32_t code = SS_OK;
    RUN(RELEASE_FROM, code = ss_shared(layer, pool, x.data, x.rows, out.data, gate.data));
    return finish_with(&call, code);
}

/* What is joined: mix rows, shared rows, shared_gate rows, streams rows, injection rows and out rows from args[0] on.
 * Returns how many rows. */
static int64_t joined_of(Call *call, const ss_layer *layer, PyObject *const *args, ss_routed *r) {
    Rows streams = streams_of(call, layer, args[3]);
    if (call->failed) return 0;
    int64_t rows = streams.rows, hidden = layer->second.hidden, streams_count = layer->second.count;
    r->mix = fitting(call, args[0], rows, layer->experts.top, 0).data;
    r->shared = fitting(call, args[1], rows, hidden, 0).data;
    r->shared_gate = fitting(call, args[2], rows, 1, 0).data;
    r->streams = streams.data;
    r->injection = fitting(call, args[4], rows, streams_count, 0).data;
    r->out = fitting(call, args[5], rows, streams_count * hidden, 1).data;
    return rows;
}

/* join_experts(layer, pool, gate, up, down, slots int32 [rows, top], x rows, then what is joined) */
PyObject *ss_py_join_experts(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "join_experts", count, 13)) return NULL;
    const ss_layer *layer = layer_of(&call, args[0]);
    ss_pool *pool = pool_of(&call, args[1]);
    ss_routed r = {0};
    r.gate = matrix_of(&call, args[2]);
    r.up = matrix_of(&call, args[3]);
    r.down = matrix_of(&call, args[4]);
    require(&call, call.failed || (r.gate->columns == layer->second.hidden &&
                                   r.down->rows == layer->second.hidden),
            "the experts' matrices do not fit the layer");
    int64_t rows = joined_of(&call, layer, args + 7, &r), places = 0;
    if (!call.failed) {
        r.slots = int32_array(&call, args[5], &places, 0);
        require(&call, places == rows * layer->experts.top, "there is not one slot for every choice");
        r.x = fitting(&call, args[6], rows, layer->second.hidden, 0).data;
    }
    int32_t code = SS_OK;
    RUN(RELEASE_FROM, code = ss_join_experts(layer, pool, &r, rows));
    return finish_with(&call, code);
}

/* join_outputs(layer, pool, outputs rows [rows * top], then what is joined) */
PyObject *ss_py_join_outputs(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "join_outputs", count, 9)) return NULL;
    const ss_layer *layer = layer_of(&call, args[0]);
    ss_pool *pool = pool_of(&call, args[1]);
    ss_routed r = {0};
    Rows outputs = {0};
    int64_t rows = joined_of(&call, layer, args + 3, &r);
    if (!call.failed) outputs = fitting(&call, args[2], rows * layer->experts.top, layer->second.hidden, 0);
    int32_t code = SS_OK;
    RUN(RELEASE_FROM, code = ss_join_outputs(layer, pool, &r, rows, outputs.data));
    return finish_with(&call, code);
}
