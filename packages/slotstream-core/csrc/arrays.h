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

#define MOST_ARRAYS 24 /* of one call */
#define RELEASE_FROM 65536 /* values touched from which on the lock is released */

typedef struct {
    const char *name;
    Py_buffer views[MOST_ARRAYS];
    int count, failed;
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

static inline int is_float(const Py_buffer *view) {
    return view->itemsize == 4 && view->format != NULL && strcmp(view->format, "f") == 0;
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

static inline int starts(Call *call, const char *name, Py_ssize_t given, Py_ssize_t wanted) {
    call->name = name;
    call->count = call->failed = 0;
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
    if (view->itemsize != 4 || view->format == NULL || strchr("iIlL", view->format[0]) == NULL)
        fail(call, "an array of integers is not 32 bits wide");
    *count = view->len / 4;
    return view->buf;
}

#define RUN(size, statement)                                                                                           \
    do {                                                                                                               \
        if (call.failed) break;                                                                                        \
        if ((size) >= RELEASE_FROM) {                                                                                  \
            Py_BEGIN_ALLOW_THREADS statement;                                                                          \
            Py_END_ALLOW_THREADS                                                                                       \
        } else {                                                                                                       \
            statement;                                                                                                 \
        }                                                                                                              \
    } while (0)

#endif
