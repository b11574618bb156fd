/* The bookkeeping of a slot pool as Python functions; see residency.h and _native.pyi. Conventions as in module.c. */
#include "layer_module.h"
#include "residency_module.h"

#define CAPSULE "slotstream_core._native.residency"
#define ARRAYS 11

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

/* residency(slot_of, coming, marks, uses, key_of, holds, referenced, free, counts, kinds, places or None, layers) */
PyObject *ss_py_residency(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (count != 12) return PyErr_Format(PyExc_TypeError, "residency takes 12 arguments, got %zd", count);
    Held *held = PyMem_Calloc(1, sizeof *held);
    if (held == NULL) return PyErr_NoMemory();
    static const Py_ssize_t items[ARRAYS] = {4, 4, 1, 8, 4, 4, 1, 4, 8, sizeof(ss_piece_kind), sizeof(ss_place)};
    void *memory[ARRAYS] = {0};
    int64_t lengths[ARRAYS] = {0};
    int arrays = args[10] == Py_None ? ARRAYS - 1 : ARRAYS, right = 1;
    for (int i = 0; i < arrays && right; i++) right = (memory[i] = array(held, args[i], items[i], &lengths[i])) != NULL;
    long long layers = right ? PyLong_AsLongLong(args[11]) : 0;
    if (right && PyErr_Occurred()) right = 0;
    int64_t records = lengths[0], slots = lengths[4];
    if (right && !(layers > 0 && records > 0 && records % layers == 0 && records <= INT32_MAX && slots > 0 &&
                   slots < INT32_MAX && lengths[1] == records && lengths[2] == records && lengths[3] == records &&
                   lengths[5] == slots && lengths[6] == slots && lengths[7] == slots && lengths[8] == SS_COUNTS &&
                   (arrays < ARRAYS || lengths[10] == layers * lengths[9]))) {
        PyErr_SetString(PyExc_ValueError, "residency: the sizes of the arrays disagree");
        right = 0;
    }
    if (right) {
        ss_residency *r = &held->residency;
        *r = (ss_residency){.layer_count = layers, .expert_count = records / layers, .slot_count = slots,
                            .kind_count = lengths[9], .slot_of = memory[0], .coming = memory[1], .marks = memory[2],
                            .uses = memory[3], .key_of = memory[4], .holds = memory[5], .referenced = memory[6],
                            .free = memory[7], .counts = memory[8], .kinds = memory[9], .places = memory[10]};
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

ss_granted ss_granted_of(Call *call, PyObject *const *args, int64_t ids, int32_t **held) {
    int64_t slots = 0, room = 0, numbers = 0;
    ss_granted granted = {.slots = (int32_t *)int32_array(call, args[0], &slots, PyBUF_WRITABLE)};
    *held = (int32_t *)int32_array(call, args[1], &room, PyBUF_WRITABLE);
    granted.absent = (int32_t *)int32_array(call, args[2], &numbers, PyBUF_WRITABLE);
    require(call, ids < INT32_MAX / 3 && slots == ids && room >= ids + 1 && numbers >= 3 * ids, "an array has another size");
    if (call->failed) return granted;
    granted.held = *held + 1;
    granted.coming = granted.absent + 2 * ids;
    return granted;
}

/* grant(residency, pool, layer, ids, slots, held, records) -> how many are absent and coming, or None */
PyObject *ss_py_grant(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "grant", count, 7)) return NULL;
    ss_residency *r = residency_of(&call, args[0]);
    ss_pool *pool = (ss_pool *)(intptr_t)integer(&call, args[1]);
    int64_t layer = integer(&call, args[2]), ids = 0;
    const int32_t *wanted = int32_array(&call, args[3], &ids, 0);
    int32_t *held = NULL;
    ss_granted granted = ss_granted_of(&call, args + 4, ids, &held);
    keep_apart(&call);
    int32_t code = SS_OK;
    if (!call.failed) {
        held[0] = 0;
        code = ss_grant(r, layer, wanted, ids, &granted);
        if (code == SS_OK) held[0] = (int32_t)granted.held_count;
        if (code == SS_OK && granted.absent_count && ss_can_fetch(r)) {
            Py_BEGIN_ALLOW_THREADS
            ss_fetch(r, pool, layer, &granted); /* without memory everything stays absent */
            Py_END_ALLOW_THREADS
        }
    }
    PyObject *none = finish(&call);
    if (none == NULL) return NULL;
    if (code != SS_OK) return none;
    Py_DECREF(none);
    return Py_BuildValue("(LL)", (long long)granted.absent_count, (long long)granted.coming_count);
}

/* take_in(residency, records int32): these reads ended, and brought everything */
PyObject *ss_py_take_in(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "take_in", count, 2)) return NULL;
    ss_residency *r = residency_of(&call, args[0]);
    int64_t numbers = 0;
    const int32_t *records = int32_array(&call, args[1], &numbers, 0);
    require(&call, numbers % 2 == 0, "an array has another size");
    for (int64_t i = 0; !call.failed && i < numbers; i += 2) {
        int32_t key = records[i], slot = records[i + 1];
        require(&call, key >= 0 && key < r->layer_count * r->expert_count && slot >= 0 && slot < r->slot_count &&
                           r->coming[key] == slot && r->holds[slot] > 0 && r->key_of[slot] < 0,
                "a record is not expected there");
        for (int64_t k = 0; k < i; k += 2) require(&call, records[k] != key, "a record is named twice");
    }
    if (!call.failed) ss_take_in(r, records, numbers / 2);
    return finish(&call);
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
