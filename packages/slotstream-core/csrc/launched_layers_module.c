/* A launched layer's part of the host as Python functions; see launched_layers.h and _native.pyi. Conventions as in module.c. */
#include "launched_layers.h"
#include "layer_module.h"
#include "residency_module.h"

#define CAPSULE "slotstream_core._native.layer_words"
#define ARRAYS 4
#define INTEGERS "lq"
#define TOLD 4 /* numbers before the joined records, as `ask` tells them; behind the last one is since when a layer waits */

typedef struct {
    ss_layer_words words;
    Py_buffer views[ARRAYS];
    int count;
} Kept;

static void forget(Kept *kept) {
    PyMem_Free(kept->words.kept);
    while (kept->count > 0) PyBuffer_Release(&kept->views[--kept->count]);
    PyMem_Free(kept);
}

static void destroy(PyObject *capsule) { forget(PyCapsule_GetPointer(capsule, CAPSULE)); }

static const uint32_t *word_of(Call *call, PyObject *object) {
    int64_t address = integer(call, object);
    require(call, address % 4 == 0, "there is no word at the address");
    return (const uint32_t *)(intptr_t)address;
}

/* layer_words(chosen, ids, foreseen or 0, logits or None, slots, announced, timeout_s, query, stream) */
PyObject *ss_py_layer_words(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "layer_words", count, 9)) return NULL;
    int64_t slots = 0, announced = 0;
    ss_layer_words words = {.chosen = word_of(&call, args[0])};
    words.ids = int32_array(&call, args[1], &words.top, 0);
    words.foreseen = word_of(&call, args[2]);
    if (args[3] != Py_None) words.logits = flat(&call, args[3], &words.experts, 0);
    words.slots = (int32_t *)int32_array(&call, args[4], &slots, PyBUF_WRITABLE);
    words.announced = wide_array(&call, args[5], "LQ", &announced, PyBUF_WRITABLE);
    words.timeout_s = call.failed ? 0.0 : PyFloat_AsDouble(args[6]);
    if (PyErr_Occurred()) call.failed = 1;
    words.query = (ss_query_function)(intptr_t)integer(&call, args[7]);
    words.stream = (void *)(intptr_t)integer(&call, args[8]);
    require(&call, words.chosen != NULL, "there is no word at the address");
    require(&call, (words.foreseen != NULL) == (words.logits != NULL), "a forecast has a word and logits, or neither");
    require(&call, words.top > 0 && slots == words.top, "there is not one slot for every id");
    require(&call, announced == 1, "one word is announced");
    require(&call, words.query != NULL, "there is no function to ask the device with");
    require(&call, words.timeout_s >= 0.0 && words.timeout_s <= 1e6, "the time is not one that anybody waits");
    keep_apart(&call);
    Kept *kept = call.failed ? NULL : PyMem_Calloc(1, sizeof *kept);
    if (kept != NULL) words.kept = PyMem_Malloc((size_t)(words.experts + 1) * sizeof *words.kept);
    if (!call.failed && (kept == NULL || words.kept == NULL)) PyErr_NoMemory(), call.failed = 1;
    PyObject *capsule = call.failed ? NULL : PyCapsule_New(kept, CAPSULE, destroy);
    if (kept != NULL) kept->words = words;
    if (capsule != NULL) {
        while (call.count > 0) kept->views[kept->count++] = call.views[--call.count]; /* not given back by `finish` */
    } else if (kept != NULL) {
        forget(kept);
        call.failed = 1;
    }
    PyObject *none = finish(&call);
    Py_XDECREF(none);
    return capsule;
}

static ss_layer_launches launches_of(Call *call, PyObject *const *args, const ss_program *program) {
    ss_layer_launches launches = {.first = integer(call, args[0]), .last = integer(call, args[1])};
    launches.number = (uint32_t)integer(call, args[2]);
    int exist = 0 <= launches.first && launches.first <= launches.last && launches.last <= ss_program_count(program);
    require(call, call->failed || exist, "there are no such launches");
    return launches;
}

/* Shares, and as many ranked ids of one row: args[0] and [1]; or None twice. */
static int ranks_of(Call *call, PyObject *const *args, ss_forecast *forecast, int shares_change, int64_t experts) {
    int64_t ids = 0;
    *forecast = (ss_forecast){.rows = 1};
    if (args[0] == Py_None || args[1] == Py_None) {
        require(call, args[0] == args[1], "ranks have shares and ids, or neither");
        return 0;
    }
    forecast->shares = wide_array(call, args[0], "d", &forecast->ranks, shares_change ? PyBUF_WRITABLE : 0);
    forecast->ranked = (int32_t *)int32_array(call, args[1], &ids, shares_change ? 0 : PyBUF_WRITABLE);
    require(call, ids == forecast->ranks && ids > 0 && ids <= experts, "ranks and shares disagree");
    for (int64_t i = 0; shares_change && !call->failed && i < ids; i++)
        require(call, forecast->ranked[i] >= 0 && forecast->ranked[i] < experts, "an id does not exist");
    return !call->failed;
}

/* What was told of a request, whose batches and absent records are the arrays' own. */
static void read_request(const int64_t *told, ss_request *request) {
    request->granted.absent_count = told[0];
    request->granted.coming_count = told[1];
    request->joined = (ss_joined *)(told + TOLD);
    request->joined_count = told[2];
    request->batch = (ss_batch *)(intptr_t)told[3];
}

static void tell_request(const ss_request *request, int64_t *told) {
    told[0] = request->granted.absent_count;
    told[1] = request->granted.coming_count;
    told[2] = request->joined_count;
    told[3] = (int64_t)(intptr_t)request->batch;
}

/* Whether told numbers may be those of a request for so many ids. Addresses are believed. */
static int is_request(const int64_t *told, int64_t ids) {
    return told[0] >= 0 && told[0] <= ids && told[2] >= 0 && told[2] <= ids;
}

/* settle_layer(tickets, records, told, wait_ms) -> whether nothing is left of what `take_layer` left */
PyObject *ss_py_settle_layer(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "settle_layer", count, 4)) return NULL;
    ss_tickets *tickets = ss_tickets_of(args[0]);
    if (tickets == NULL) return NULL;
    int64_t numbers = 0, values = 0;
    ss_request request = {.granted = {.absent = (int32_t *)int32_array(&call, args[1], &values, 0)}};
    int64_t *told = wide_array(&call, args[2], INTEGERS, &numbers, PyBUF_WRITABLE);
    int64_t wait_ms = integer(&call, args[3]), ids = values / 3;
    require(&call, call.failed || numbers == TOLD + 3 * ids + 1, "an array has another size");
    require(&call, call.failed || is_request(told, ids), "that is no request");
    keep_apart(&call);
    int settled = 0;
    if (!call.failed) {
        read_request(told, &request);
        Py_BEGIN_ALLOW_THREADS
        settled = ss_settle_layer(ss_tickets_residency(tickets), &request, told[numbers - 1], wait_ms);
        Py_END_ALLOW_THREADS
        tell_request(&request, told);
    }
    PyObject *none = finish(&call);
    if (none == NULL) return NULL;
    Py_DECREF(none);
    return PyBool_FromLong(settled);
}

/* take_layer(words, program, tickets, layer, first, last, number, the same three of what comes after,
 *            learnt shares or None, learnt ids or None, rate,
 *            next layer, shares or None, ids or None, least, issued, reserved, in_flight, spare,
 *            slots, held, records, told, wait_ms) -> None, or outcome, code and launch */
PyObject *ss_py_take_layer(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "take_layer", count, 26)) return NULL;
    Kept *kept = PyCapsule_GetPointer(args[0], CAPSULE);
    ss_program *program = kept == NULL ? NULL : ss_program_of(args[1]);
    ss_tickets *tickets = program == NULL ? NULL : ss_tickets_of(args[2]);
    if (tickets == NULL) return NULL;
    const ss_residency *r = ss_tickets_residency(tickets);
    const ss_layer_words *words = &kept->words;
    ss_forecast learnt;
    ss_layer_step step = {.layer = integer(&call, args[3])};
    step.own = launches_of(&call, args + 4, program);
    step.after = launches_of(&call, args + 7, program);
    require(&call, step.layer >= 0 && step.layer < r->layer_count, "there is no such layer");
    if (ranks_of(&call, args + 10, &learnt, 1, r->expert_count)) step.learnt = &learnt;
    step.rate = call.failed ? 0.0 : PyFloat_AsDouble(args[12]);
    if (PyErr_Occurred()) call.failed = 1;
    step.next.layer = integer(&call, args[13]);
    int foreseen = ranks_of(&call, args + 14, &step.next.ranks, 0, r->expert_count);
    require(&call, foreseen ? step.next.layer >= 0 && step.next.layer < r->layer_count : step.next.layer < 0,
            "a layer to be forecast exists and has ranks");
    require(&call, !foreseen || (words->logits != NULL && words->experts == r->expert_count), "no forecast is published");
    step.next.least = call.failed ? 0.0 : PyFloat_AsDouble(args[16]);
    if (PyErr_Occurred()) call.failed = 1;
    step.next.limits = (ss_ahead_limits){.issued = integer(&call, args[17]), .reserved = integer(&call, args[18])};
    step.next.limits.in_flight = integer(&call, args[19]);
    step.next.limits.spare = integer(&call, args[20]);
    int32_t *held = NULL;
    ss_request request = {.granted = ss_granted_of(&call, args + 21, words->top, &held)};
    int64_t numbers = 0, launch = 0;
    int64_t *told = wide_array(&call, args[24], INTEGERS, &numbers, PyBUF_WRITABLE);
    step.wait_ms = integer(&call, args[25]);
    require(&call, call.failed || numbers == TOLD + 3 * words->top + 1, "an array has another size");
    require(&call, call.failed || is_request(told, words->top), "that is no request");
    require(&call, call.failed || (held[0] >= 0 && held[0] <= words->top), "more slots are named than there is room for");
    for (int32_t i = 1; !call.failed && i <= held[0]; i++)
        require(&call, held[i] >= 0 && held[i] < r->slot_count && r->holds[held[i]] > 0, "a slot is not held");
    keep_apart(&call);
    step.next.named = call.failed || !foreseen ? NULL : PyMem_Malloc((size_t)step.next.ranks.ranks * sizeof(int32_t));
    if (foreseen && step.next.named == NULL && !call.failed) PyErr_NoMemory(), call.failed = 1;
    int32_t outcome = SS_LAYER_PLACED, code = 0;
    if (!call.failed) {
        read_request(told, &request);
        Py_BEGIN_ALLOW_THREADS
        outcome = ss_take_layer(words, program, tickets, &step, held, &request, &told[numbers - 1], &code, &launch);
        Py_END_ALLOW_THREADS
        tell_request(&request, told);
    }
    PyMem_Free(step.next.named);
    PyObject *none = finish(&call);
    if (none == NULL || outcome == SS_LAYER_PLACED) return none;
    Py_DECREF(none);
    return Py_BuildValue("(iiL)", (int)outcome, (int)code, (long long)launch);
}
