/* The bookkeeping of a slot pool as Python functions; see residency.h and _native.pyi. Conventions as in module.c. */
#include "arrays.h"
#include "layer_module.h"
#include "residency.h"

#define CAPSULE "slotstream_core._native.residency"
#define ARRAYS 10

typedef struct {
    ss_residency residency;
    Py_buffer views[ARRAYS];
    int count;
} Held;

static void forget(Held *held) {
    while (held->count > 0) PyBuffer_Release(&held->views[--held->count]);
    PyMem_Free(held->residency.position);
    PyMem_Free(held);
}

static void destroy(PyObject *capsule) { forget(PyCapsule_GetPointer(capsule, CAPSULE)); }

/* The memory of a writable array whose length must be a multiple of `item`; null after an error. */
static void *array(Held *held, PyObject *object, Py_ssize_t item, int64_t *length) {
    Py_buffer *view = &held->views[held->count];
    if (PyObject_GetBuffer(object, view, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) < 0) return NULL;
    held->count++;
    if (view->len % item) {
        PyErr_SetString(PyExc_ValueError, "residency: an array has values of another size");
        return NULL;
    }
    *length = view->len / item;
    return view->buf;
}

/* residency(slot_of, marks, uses, key_of, holds, referenced, free, counts, kinds, places or None, layers) */
PyObject *ss_py_residency(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (count != 11) return PyErr_Format(PyExc_TypeError, "residency takes 11 arguments, got %zd", count);
    Held *held = PyMem_Calloc(1, sizeof *held);
    if (held == NULL) return PyErr_NoMemory();
    static const Py_ssize_t items[ARRAYS] = {4, 1, 8, 4, 4, 1, 4, 8, sizeof(ss_piece_kind), sizeof(ss_place)};
    void *memory[ARRAYS] = {0};
    int64_t lengths[ARRAYS] = {0};
    int arrays = args[9] == Py_None ? ARRAYS - 1 : ARRAYS, right = 1;
    for (int i = 0; i < arrays && right; i++) right = (memory[i] = array(held, args[i], items[i], &lengths[i])) != NULL;
    long long layers = right ? PyLong_AsLongLong(args[10]) : 0;
    if (right && PyErr_Occurred()) right = 0;
    int64_t records = lengths[0], slots = lengths[3];
    if (right && !(layers > 0 && records > 0 && records % layers == 0 && records <= INT32_MAX && slots > 0 &&
                   slots < INT32_MAX && lengths[1] == records && lengths[2] == records && lengths[4] == slots &&
                   lengths[5] == slots && lengths[6] == slots && lengths[7] == SS_COUNTS &&
                   (arrays < ARRAYS || lengths[9] == layers * lengths[8]))) {
        PyErr_SetString(PyExc_ValueError, "residency: the sizes of the arrays disagree");
        right = 0;
    }
    if (right) {
        ss_residency *r = &held->residency;
        *r = (ss_residency){.layer_count = layers, .expert_count = records / layers, .slot_count = slots,
                            .kind_count = lengths[8], .slot_of = memory[0], .marks = memory[1], .uses = memory[2],
                            .key_of = memory[3], .holds = memory[4], .referenced = memory[5], .free = memory[6],
                            .counts = memory[7], .kinds = memory[8], .places = memory[9]};
        r->position = PyMem_Malloc((size_t)r->expert_count * sizeof *r->position);
        if (r->position == NULL) PyErr_NoMemory(), right = 0;
        else memset(r->position, 0xff, (size_t)r->expert_count * sizeof *r->position);
    }
    PyObject *capsule = right ? PyCapsule_New(held, CAPSULE, destroy) : NULL;
    if (capsule == NULL) forget(held);
    return capsule;
}

ss_residency *ss_residency_of(PyObject *object) {
    Held *held = PyCapsule_GetPointer(object, CAPSULE);
    return held == NULL ? NULL : &held->residency;
}

static ss_residency *residency_of(Call *call, PyObject *object) {
    ss_residency *residency = call->failed ? NULL : ss_residency_of(object);
    if (residency == NULL) call->failed = 1;
    return residency;
}

/* grant(residency, pool, layer, ids, slots, held, absent) -> how many are absent, or -1 */
PyObject *ss_py_grant(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "grant", count, 7)) return NULL;
    ss_residency *r = residency_of(&call, args[0]);
    ss_pool *pool = (ss_pool *)(intptr_t)integer(&call, args[1]);
    int64_t layer = integer(&call, args[2]), ids = 0, slots = 0, held = 0, absent = 0;
    const int32_t *wanted = int32_array(&call, args[3], &ids, 0);
    ss_granted granted = {.slots = (int32_t *)int32_array(&call, args[4], &slots, PyBUF_WRITABLE)};
    int32_t *room = (int32_t *)int32_array(&call, args[5], &held, PyBUF_WRITABLE);
    granted.absent = (int32_t *)int32_array(&call, args[6], &absent, PyBUF_WRITABLE);
    require(&call, ids <= INT32_MAX && slots == ids && held >= ids + 1 && absent >= 2 * ids, "an array has another size");
    keep_apart(&call);
    int32_t code = SS_OK;
    if (!call.failed) {
        granted.held = room + 1;
        room[0] = 0;
        code = ss_grant(r, layer, wanted, ids, &granted);
        if (code == SS_OK) room[0] = (int32_t)granted.held_count;
        if (code == SS_OK && granted.absent_count && ss_can_fetch(r)) {
            Py_BEGIN_ALLOW_THREADS
            ss_fetch(r, pool, layer, &granted); /* without memory everything stays absent */
            Py_END_ALLOW_THREADS
        }
    }
    PyObject *none = finish(&call);
    if (none == NULL) return NULL;
    Py_DECREF(none);
    return PyLong_FromLongLong(code == SS_OK ? granted.absent_count : -1);
}

/* fetch(residency, pool, layer, ids, slots) -> bytes: 1 for each that is in its slot now */
PyObject *ss_py_fetch(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "fetch", count, 5)) return NULL;
    ss_residency *r = residency_of(&call, args[0]);
    ss_pool *pool = (ss_pool *)(intptr_t)integer(&call, args[1]);
    int64_t layer = integer(&call, args[2]), ids = 0, slots = 0;
    const int32_t *wanted = int32_array(&call, args[3], &ids, 0), *lent = int32_array(&call, args[4], &slots, 0);
    require(&call, ids == slots, "there is not one slot for every record");
    require(&call, call.failed || (layer >= 0 && layer < r->layer_count), "the layer does not exist");
    for (int64_t i = 0; !call.failed && i < ids; i++) {
        require(&call, wanted[i] >= 0 && wanted[i] < r->expert_count, "a record does not exist");
        require(&call, lent[i] >= 0 && lent[i] < r->slot_count && r->holds[lent[i]] > 0 && r->key_of[lent[i]] < 0,
                "a slot is not lent");
    }
    PyObject *result = NULL;
    int32_t *records = call.failed ? NULL : PyMem_Malloc((size_t)(2 * ids + 1) * sizeof *records);
    uint8_t *came = call.failed ? NULL : PyMem_Calloc((size_t)ids + 1, 1);
    if (records && came) {
        for (int64_t i = 0; i < ids; i++) {
            records[2 * i] = (int32_t)(layer * r->expert_count + wanted[i]);
            records[2 * i + 1] = lent[i];
        }
        if (ids && ss_can_fetch(r)) {
            Py_BEGIN_ALLOW_THREADS
            ss_fetch_into(r, pool, layer, records, ids, came); /* without memory nothing comes */
            Py_END_ALLOW_THREADS
        }
        result = PyBytes_FromStringAndSize((const char *)came, (Py_ssize_t)ids);
    } else if (!call.failed) {
        PyErr_NoMemory();
    }
    PyMem_Free(records);
    PyMem_Free(came);
    PyObject *none = finish(&call);
    if (none == NULL) return NULL;
    Py_DECREF(none);
    return result;
}

/* can_fetch(residency): whether its records are small enough for `fetch`, and it may read them */
PyObject *ss_py_can_fetch(PyObject *self, PyObject *residency) {
    (void)self;
    ss_residency *r = ss_residency_of(residency);
    return r == NULL ? NULL : PyBool_FromLong(ss_can_fetch(r));
}

/* let_go(residency, held): what `grant` wrote there; a second call does nothing */
PyObject *ss_py_let_go(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "let_go", count, 2)) return NULL;
    ss_residency *r = residency_of(&call, args[0]);
    int64_t room = 0;
    int32_t *held = (int32_t *)int32_array(&call, args[1], &room, PyBUF_WRITABLE);
    require(&call, room > 0, "an array has another size");
    require(&call, call.failed || (held[0] >= 0 && held[0] < room), "more slots are named than there is room for");
    for (int32_t i = 1; !call.failed && i <= held[0]; i++)
        require(&call, held[i] >= 0 && held[i] < r->slot_count && r->holds[held[i]] > 0, "a slot is not held");
    if (!call.failed) {
        ss_let_go(r, held + 1, held[0]);
        held[0] = 0;
    }
    return finish(&call);
}
