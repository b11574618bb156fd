/* What a draft head does before and after its layer as Python functions. Conventions as in module.c. */
#include "arrays.h"
#include "layer_module.h"
#include "steps.h"

/* join_inputs(pool, embedding, from_embedding, from_streams, embedding_weight, streams_weight, streams count, eps,
 *             streams rows, after int64, out rows) */
PyObject *ss_py_join_inputs(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "join_inputs", count, 11)) return NULL;
    ss_pool *pool = pool_of(&call, args[0]);
    ss_draft_inputs in = {0};
    in.embedding = matrix_of(&call, args[1]);
    in.from_embedding = matrix_of(&call, args[2]);
    in.from_streams = matrix_of(&call, args[3]);
    int64_t width = 0, ids = 0;
    in.embedding_weight = flat(&call, args[4], &in.hidden, 0);
    in.streams_weight = flat(&call, args[5], &width, 0);
    in.count = integer(&call, args[6]);
    in.eps = real(&call, args[7]);
    Rows streams = contiguous_rows(&call, args[8]);
    const int64_t *after = wide_array(&call, args[9], "lqLQ", &ids, 0);
    Rows out = output(&call, args[10]);
    require(&call, call.failed || (in.count > 0 && in.hidden > 0 && width % in.hidden == 0 && width / in.hidden == in.count),
            "the norms' weights differ in width");
    require(&call, call.failed || (in.embedding->columns == in.hidden && in.from_embedding->columns == in.hidden &&
                                   in.from_embedding->rows == in.hidden && in.from_streams->columns == in.hidden &&
                                   in.from_streams->rows == in.hidden),
            "the matrices do not fit the norms");
    require(&call, call.failed || (streams.rows > 0 && streams.width == width && ids == streams.rows && out.rows == ids &&
                                   out.width == width),
            "the arrays differ in shape");
    keep_apart(&call);
    int32_t code = SS_OK;
    RUN(RELEASE_FROM, code = ss_join_inputs(&in, pool, streams.data, after, ids, out.data));
    require(&call, code == SS_OK, code == SS_NO_MEMORY ? "no memory" : "a matrix or a token was refused");
    return finish(&call);
}

/* guess(pool, down, up, norm_weight, streams count, eps, vocabulary, streams row) -> (token, probability) */
PyObject *ss_py_guess(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "guess", count, 8)) return NULL;
    ss_pool *pool = pool_of(&call, args[0]);
    ss_reader r = {0};
    r.down = matrix_of(&call, args[1]);
    r.up = matrix_of(&call, args[2]);
    int64_t width = 0, token = 0;
    float probability = 0.0f;
    r.weight = flat(&call, args[3], &width, 0);
    r.count = integer(&call, args[4]);
    r.eps = real(&call, args[5]);
    const ss_matrix *vocabulary = matrix_of(&call, args[6]);
    Rows streams = contiguous_rows(&call, args[7]);
    require(&call, call.failed || (r.count > 0 && width > 0 && width % r.count == 0 && streams.rows == 1 && streams.width == width),
            "the streams are not one row that fits the norm");
    if (!call.failed) r.hidden = width / r.count;
    require(&call, call.failed || (r.down->columns == width && r.up->columns == r.down->rows && r.up->rows == width &&
                                   vocabulary->columns == r.hidden && vocabulary->rows > 0),
            "the matrices do not fit the streams");
    int32_t code = SS_OK;
    RUN(RELEASE_FROM, code = ss_guess(&r, vocabulary, pool, streams.data, &token, &probability));
    require(&call, code == SS_OK, code == SS_NO_MEMORY ? "no memory" : "a matrix was refused");
    int failed = call.failed;
    PyObject *none = finish(&call);
    Py_XDECREF(none);
    return failed ? NULL : Py_BuildValue("(Ld)", (long long)token, (double)probability);
}
