/* Python glue of the Slotpack coder: limited API, the GIL released while coding.
 *
 * decode(frame) and encode(raw, kind, weight_bytes, group_size, exact) return bytes, or the int code of
 * frame.h on refusal; slotpack/codec.py turns a code into its exception.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <stdlib.h>

#include "frame.h"

static PyObject *decode(PyObject *module, PyObject *argument)
{
    (void)module;
    Py_buffer view;
    if (PyObject_GetBuffer(argument, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    slotpack_header header;
    int code = slotpack_read_header(view.buf, (size_t)view.len, &header);
    PyObject *raw = NULL;
    if (code == SLOTPACK_OK) {
        raw = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)header.raw_bytes);
        if (raw == NULL) {
            PyBuffer_Release(&view);
            return NULL;
        }
        uint8_t *out = (uint8_t *)PyBytes_AsString(raw);
        Py_BEGIN_ALLOW_THREADS
        code = slotpack_decode(view.buf, (size_t)view.len, &header, out);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&view);
    if (code == SLOTPACK_OK)
        return raw;
    Py_XDECREF(raw);
    return code == SLOTPACK_NO_MEMORY ? PyErr_NoMemory() : PyLong_FromLong(code);
}

static PyObject *encode(PyObject *module, PyObject *arguments)
{
    (void)module;
    Py_buffer view;
    unsigned int kind, weight_bytes, group_size;
    int exact;
    if (!PyArg_ParseTuple(arguments, "y*IIIp", &view, &kind, &weight_bytes, &group_size, &exact))
        return NULL;
    const slotpack_header header = {(uint32_t)view.len, kind, weight_bytes, group_size};
    /* An exact frame may grow: at most two bytes a symbol, plus tables. Otherwise it must beat kind 0. */
    const size_t capacity = exact ? 4 * (size_t)view.len + 2048 * 40 + 65536 * 8 : (size_t)view.len;
    uint8_t *frame = malloc(SLOTPACK_HEADER_BYTES + capacity);
    size_t payload_bytes = 0;
    int code = SLOTPACK_NO_MEMORY;
    if (frame != NULL) {
        Py_BEGIN_ALLOW_THREADS
        slotpack_write_header(frame, &header);
        code = slotpack_encode_payload(view.buf, &header, frame + SLOTPACK_HEADER_BYTES, capacity, &payload_bytes);
        if (code == SLOTPACK_OK && !exact && payload_bytes >= (size_t)view.len)
            code = SLOTPACK_NOT_SMALLER;
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&view);
    PyObject *result;
    if (code == SLOTPACK_OK)
        result = PyBytes_FromStringAndSize((const char *)frame, (Py_ssize_t)(SLOTPACK_HEADER_BYTES + payload_bytes));
    else
        result = code == SLOTPACK_NO_MEMORY ? PyErr_NoMemory() : PyLong_FromLong(code);
    free(frame);
    return result;
}

static PyMethodDef methods[] = {
    {"decode", decode, METH_O, "decode(frame) -> bytes, or an int refusal code"},
    {"encode", encode, METH_VARARGS, "encode(raw, kind, weight_bytes, group_size, exact) -> bytes, or an int code"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "slotpack._codec", "Slotpack frames, coded in C.", 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__codec(void);

PyMODINIT_FUNC PyInit__codec(void)
{
    return PyModuleDef_Init(&definition);
}
