/* Python glue of the Slotpack coder: limited API, the GIL released while coding.
 *
 * decode(frame) and encode(raw, kind, weight_bytes, group_size, exact) return bytes, or the int code of
 * frame.h on refusal; decode_many(frames, wide) returns a list of such answers. slotpack/codec.py turns a code into
 * its exception.
 */
#define _DEFAULT_SOURCE /* madvise */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <stdlib.h>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "frame.h"

#define LARGE_PAGE_BYTES ((uintptr_t)2 << 20)

/* Returns bytes to decode into. Fresh memory costs a page fault every 4 KiB, a noticeable part of the time of a batch,
 * so large pages are asked for; where there are none the advice is ignored. */
static PyObject *new_raw(uint32_t raw_bytes)
{
    PyObject *raw = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)raw_bytes);
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (raw != NULL) {
        const uintptr_t start = (uintptr_t)PyBytes_AsString(raw);
        const uintptr_t first = (start + LARGE_PAGE_BYTES - 1) / LARGE_PAGE_BYTES * LARGE_PAGE_BYTES;
        const uintptr_t last = (start + raw_bytes) / LARGE_PAGE_BYTES * LARGE_PAGE_BYTES;
        if (first < last)
            (void)madvise((void *)first, last - first, MADV_HUGEPAGE);
    }
#endif
    return raw;
}

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
        raw = new_raw(header.raw_bytes);
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

/* A job and the Python objects that hold its input and output. */
typedef struct {
    Py_buffer view;
    PyObject *raw;
} job_owner;

/* Fills a job from a frame. Returns 0 with a Python error set; a refused header is no error but the job's code. */
static int open_job(PyObject *frames, Py_ssize_t index, slotpack_job *job, job_owner *owner)
{
    PyObject *frame = PySequence_GetItem(frames, index);
    if (frame == NULL)
        return 0;
    const int failed = PyObject_GetBuffer(frame, &owner->view, PyBUF_SIMPLE);
    Py_DECREF(frame); /* the view keeps it */
    if (failed) {
        owner->view.obj = NULL;
        return 0;
    }
    job->frame = owner->view.buf;
    job->frame_bytes = (size_t)owner->view.len;
    job->code = slotpack_read_header(job->frame, job->frame_bytes, &job->header);
    if (job->code)
        return 1;
    owner->raw = new_raw(job->header.raw_bytes);
    if (owner->raw == NULL)
        return 0;
    job->raw = (uint8_t *)PyBytes_AsString(owner->raw);
    return 1;
}

/* Returns the list of bytes and codes, or NULL with a Python error set. */
static PyObject *answers_of(const slotpack_job *jobs, const job_owner *owners, Py_ssize_t count)
{
    PyObject *answers = PyList_New(0);
    for (Py_ssize_t i = 0; answers != NULL && i < count; i++) {
        PyObject *answer = owners[i].raw;
        if (jobs[i].code == SLOTPACK_OK)
            Py_INCREF(answer);
        else
            answer = jobs[i].code == SLOTPACK_NO_MEMORY ? PyErr_NoMemory() : PyLong_FromLong(jobs[i].code);
        if (answer == NULL || PyList_Append(answers, answer) < 0)
            Py_CLEAR(answers);
        Py_XDECREF(answer);
    }
    return answers;
}

static PyObject *decode_many(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *frames;
    int wide;
    if (!PyArg_ParseTuple(arguments, "Op", &frames, &wide))
        return NULL;
    const Py_ssize_t count = PySequence_Size(frames);
    if (count < 0)
        return NULL;
    slotpack_job *jobs = calloc((size_t)count + 1, sizeof *jobs);
    job_owner *owners = calloc((size_t)count + 1, sizeof *owners);
    PyObject *answers = NULL;
    Py_ssize_t opened = 0;
    if (jobs == NULL || owners == NULL)
        PyErr_NoMemory();
    else
        while (opened < count && open_job(frames, opened, &jobs[opened], &owners[opened]))
            opened++;
    if (!PyErr_Occurred()) {
        Py_BEGIN_ALLOW_THREADS
        slotpack_decode_many(jobs, (size_t)count, wide);
        Py_END_ALLOW_THREADS
        answers = answers_of(jobs, owners, count);
    }
    for (Py_ssize_t i = 0; owners != NULL && i < count; i++) {
        if (owners[i].view.obj != NULL)
            PyBuffer_Release(&owners[i].view);
        Py_XDECREF(owners[i].raw);
    }
    free(jobs);
    free(owners);
    return answers;
}

static PyObject *wide_frames(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    return PyLong_FromSize_t(slotpack_wide_frames());
}

/* Whether the encoder takes the block: what a frame's reader would refuse, and blocks that are not coded at all. */
static int check_block(const Py_buffer *view, uint8_t *frame, const slotpack_header *header)
{
    slotpack_header written;
    if (view->len > (Py_ssize_t)SLOTPACK_MAX_RAW_BYTES)
        return SLOTPACK_OVERSIZE;
    if (header->kind == 0)
        return SLOTPACK_HEADER_FIELD;
    slotpack_write_header(frame, header);
    return slotpack_read_header(frame, SLOTPACK_HEADER_BYTES, &written);
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
    if (frame != NULL && (code = check_block(&view, frame, &header)) == SLOTPACK_OK) {
        Py_BEGIN_ALLOW_THREADS
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
    {"decode_many", decode_many, METH_VARARGS, "decode_many(frames, wide) -> list of bytes or int refusal codes"},
    {"wide_frames", wide_frames, METH_NOARGS, "wide_frames() -> frames that decode_many decodes at once"},
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
