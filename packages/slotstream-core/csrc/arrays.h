/* Arguments of Python functions as arrays: acquired by the buffer protocol, checked, given back by `finish`.
 *
 * Included by the files of the extension module only. Limited API.
 */
#ifndef SLOTSTREAM_ARRAYS_H
#define SLOTSTREAM_ARRAYS_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <string.h>

#include "matrices.h"

#define MOST_ARRAYS 24 /* of one call */
#define RELEASE_FROM 65536 /* values touched from which on the lock is released */

typedef struct {
    const char *name;
    Py_buffer views[MOST_ARRAYS];
    int count, failed;
    const Py_buffer *indices; /* among the views; or null */
} Call;

typedef struct {
    float *data;
    int64_t rows, width, stride;
} Rows;

static inline void fail(Call *call, const char *what) {
    if (!call->failed) PyErr_Format(PyExc_ValueError, "%s: %s", call->name, what);
    call->failed = 1;
}

static inline Py_buffer *acquire(Call *call, PyObject *object, int flags) {
    if (call->failed) return NULL;
    Py_buffer *view = &call->views[call->count];
    if (PyObject_GetBuffer(object, view, flags | PyBUF_FORMAT) < 0) {
        call->failed = 1;
        return NULL;
    }
    call->count++;
    return view;
}

/* A size made of two, which an argument may make too large for any number. */
static inline int64_t times(Call *call, int64_t a, int64_t b) {
    int64_t product;
    if (!__builtin_mul_overflow(a, b, &product)) return product;
    fail(call, "the sizes are too large");
    return 0;
}

/* Values of four bytes may lie anywhere for Python, not for C. */
static inline int is_aligned(const Py_buffer *view) { return (uintptr_t)view->buf % 4 == 0; }

static inline int is_float(const Py_buffer *view) {
    return view->itemsize == 4 && view->format != NULL && strcmp(view->format, "f") == 0 && is_aligned(view);
}

static inline Rows rows_of(Call *call, PyObject *object, int flags) {
    Rows none = {0};
    Py_buffer *view = acquire(call, object, PyBUF_STRIDES | flags);
    if (view == NULL) return none;
    if (!is_float(view) || view->ndim != 2 || (view->shape[1] > 1 && view->strides[1] != 4) ||
        view->strides[0] % 4 != 0 || view->strides[0] < 0) {
        fail(call, "an array is not float32 with two axes, the last contiguous");
        return none;
    }
    return (Rows){view->buf, view->shape[0], view->shape[1], view->strides[0] / 4};
}

static inline Rows input(Call *call, PyObject *object) { return rows_of(call, object, 0); }

static inline Rows output(Call *call, PyObject *object) {
    Rows rows = rows_of(call, object, PyBUF_WRITABLE);
    if (!call->failed && rows.rows > 1 && rows.stride != rows.width) fail(call, "an output's rows are not contiguous");
    return rows;
}

static inline Rows contiguous_rows(Call *call, PyObject *object) {
    Rows rows = input(call, object);
    if (!call->failed && rows.rows > 1 && rows.stride != rows.width) fail(call, "an array's rows are not contiguous");
    return rows;
}

static inline float *flat(Call *call, PyObject *object, int64_t *count, int flags) {
    Py_buffer *view = acquire(call, object, PyBUF_C_CONTIGUOUS | flags);
    if (view == NULL) return NULL;
    if (!is_float(view)) fail(call, "an array is not float32");
    *count = view->len / 4;
    return view->buf;
}

static inline int64_t integer(Call *call, PyObject *object) {
    if (call->failed) return 0;
    long long value = PyLong_AsLongLong(object);
    if (value == -1 && PyErr_Occurred()) call->failed = 1;
    return value;
}

static inline float real(Call *call, PyObject *object) {
    if (call->failed) return 0.0f;
    double value = PyFloat_AsDouble(object);
    if (value == -1.0 && PyErr_Occurred()) call->failed = 1;
    return (float)value;
}

static inline void require(Call *call, int agrees, const char *what) {
    if (!call->failed && !agrees) fail(call, what);
}

/* The matrix described at an address, which its owner keeps valid; 0 with an error set when the products refuse it. */
static inline int take_matrix(const char *caller, PyObject *address, const ss_matrix **matrix) {
    long long place = PyLong_AsLongLong(address);
    if (place == -1 && PyErr_Occurred()) return 0;
    *matrix = (const ss_matrix *)(intptr_t)place;
    if (ss_check_matrix(*matrix) == SS_OK) return 1;
    PyErr_Format(PyExc_ValueError, "%s: a matrix is missing or was refused", caller);
    return 0;
}

static inline const ss_matrix *matrix_of(Call *call, PyObject *object) {
    const ss_matrix *matrix = NULL;
    if (!call->failed && !take_matrix(call->name, object, &matrix)) call->failed = 1;
    return matrix;
}

static inline ss_pool *pool_of(Call *call, PyObject *object) {
    ss_pool *pool = (ss_pool *)(intptr_t)integer(call, object);
    require(call, pool != NULL, "there is no pool");
    return pool;
}

static inline int starts(Call *call, const char *name, Py_ssize_t given, Py_ssize_t wanted) {
    call->name = name;
    call->count = call->failed = 0;
    call->indices = NULL;
    if (given == wanted) return 1;
    PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, got %zd", name, wanted, given);
    call->failed = 1;
    return 0;
}

static inline PyObject *finish(Call *call) {
    while (call->count > 0) PyBuffer_Release(&call->views[--call->count]);
    if (call->failed) return NULL;
    Py_RETURN_NONE;
}

static inline const int32_t *int32_array(Call *call, PyObject *object, int64_t *count, int flags) {
    Py_buffer *view = acquire(call, object, PyBUF_C_CONTIGUOUS | flags);
    if (view == NULL) return NULL;
    if (view->itemsize != 4 || view->format == NULL || view->format[0] == 0 ||
        strchr("iIlL", view->format[0]) == NULL || !is_aligned(view))
        fail(call, "an array of integers is not 32 bits wide");
    *count = view->len / 4;
    return view->buf;
}

/* Values of eight bytes, in a format that is one of `formats`. */
static inline void *wide_array(Call *call, PyObject *object, const char *formats, int64_t *count, int flags) {
    Py_buffer *view = acquire(call, object, PyBUF_C_CONTIGUOUS | flags);
    if (view == NULL) return NULL;
    if (view->itemsize != 8 || view->format == NULL || view->format[0] == 0 ||
        strchr(formats, view->format[0]) == NULL || (uintptr_t)view->buf % 8 != 0)
        fail(call, "an array does not have the numbers of 64 bits that it should");
    *count = view->len / 8;
    return view->buf;
}

/* Octets in `rows` contiguous rows of one width. */
static inline const uint8_t *octets(Call *call, PyObject *object, int64_t rows, int64_t *width) {
    Py_buffer *view = acquire(call, object, PyBUF_C_CONTIGUOUS);
    if (view == NULL) return NULL;
    if (view->itemsize != 1 || view->ndim != 2 || view->shape[0] != rows) fail(call, "an array has other rows of octets");
    else *width = view->shape[1];
    return view->buf;
}

/* Indices, checked once, must not be what a call writes. */
static inline const int32_t *indices(Call *call, PyObject *object, int64_t *count) {
    const int32_t *values = int32_array(call, object, count, 0);
    call->indices = values == NULL ? NULL : &call->views[call->count - 1];
    return values;
}

static inline int overlap(const Py_buffer *a, const Py_buffer *b) {
    return (char *)a->buf < (char *)b->buf + b->len && (char *)b->buf < (char *)a->buf + a->len;
}

static inline void keep_indices(Call *call) {
    const Py_buffer *kept = call->indices;
    for (int i = 0; !call->failed && kept != NULL && i < call->count; i++) {
        const Py_buffer *other = &call->views[i];
        if (other != kept && !other->readonly && overlap(other, kept))
            fail(call, "an array shares memory with the indices");
    }
}

/* For calls that read again what they wrote: no two of their arrays may share memory. */
static inline void keep_apart(Call *call) {
    for (int i = 1; !call->failed && i < call->count; i++)
        for (int j = 0; !call->failed && j < i; j++)
            if (overlap(&call->views[i], &call->views[j])) fail(call, "two arrays share memory");
}

/* Run it unless the call failed. `size`, the values touched, may be 0 only where there is nothing to write: rows of no
 * width need no memory, so there may be more of them than anybody could count to. */
#define RUN(size, statement)                                                                                           \
    do {                                                                                                               \
        if (call.failed || (size) == 0) break;                                                                         \
        if ((size) >= RELEASE_FROM) {                                                                                  \
            Py_BEGIN_ALLOW_THREADS statement;                                                                          \
            Py_END_ALLOW_THREADS                                                                                       \
        } else {                                                                                                       \
            statement;                                                                                                 \
        }                                                                                                              \
    } while (0)

#endif
