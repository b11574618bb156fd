/* Records read ahead as Python functions; see tickets.h and _native.pyi. Conventions as in module.c. */
#include "layer_module.h"
#include "requests.h"
#include "residency_module.h"

#define CAPSULE "slotstream_core._native.tickets"
#define INTEGERS "lq"
#define TOLD 4 /* numbers before the joined records */
#define MOST_FORECASTS 8 /* of one layer */

typedef struct {
    ss_tickets *tickets;
    PyObject *residency; /* a capsule, kept */
    Py_buffer places;
} Kept;

static void destroy(PyObject *capsule) {
    Kept *kept = PyCapsule_GetPointer(capsule, CAPSULE);
    ss_tickets_free(kept->tickets);
    PyBuffer_Release(&kept->places);
    Py_DECREF(kept->residency);
    PyMem_Free(kept);
}

/* tickets(residency, lanes, places) */
PyObject *ss_py_tickets(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "tickets", count, 3)) return NULL;
    ss_residency *r = ss_residency_of(args[0]);
    if (r == NULL) return NULL;
    ss_lanes *lanes = (ss_lanes *)(intptr_t)integer(&call, args[1]);
    int64_t values = 0;
    const ss_place *places = wide_array(&call, args[2], INTEGERS, &values, 0);
    require(&call, values == 3 * r->layer_count * r->kind_count, "there is not one place for every kind of every layer");
    Kept *kept = call.failed ? NULL : PyMem_Calloc(1, sizeof *kept);
    if (kept == NULL && !call.failed) PyErr_NoMemory(), call.failed = 1;
    if (!call.failed) {
        int32_t code = ss_tickets_create(r, lanes, places, &kept->tickets);
        require(&call, code == SS_OK, code == SS_NO_MEMORY ? "no memory" : "there are no lanes, or no kinds of pieces");
    }
    PyObject *capsule = call.failed ? NULL : PyCapsule_New(kept, CAPSULE, destroy);
    if (capsule != NULL) {
        kept->places = call.views[--call.count]; /* not given back by `finish` */
        Py_INCREF(args[0]);
        kept->residency = args[0];
    } else if (kept != NULL) {
        if (kept->tickets) ss_tickets_free(kept->tickets);
        PyMem_Free(kept);
        call.failed = 1;
    }
    PyObject *none = finish(&call);
    Py_XDECREF(none);
    return capsule;
}

ss_tickets *ss_tickets_of(PyObject *object) {
    Kept *kept = PyCapsule_GetPointer(object, CAPSULE);
    return kept == NULL ? NULL : kept->tickets;
}

static Kept *kept_of(Call *call, PyObject *object) {
    Kept *kept = call->failed ? NULL : PyCapsule_GetPointer(object, CAPSULE);
    if (kept == NULL) call->failed = 1;
    return kept;
}

static ss_tickets *tickets_of(Call *call, PyObject *object) {
    Kept *kept = kept_of(call, object);
    return kept == NULL ? NULL : kept->tickets;
}

static PyObject *finish_with(Call *call, int64_t value) {
    PyObject *none = finish(call);
    if (none == NULL) return NULL;
    Py_DECREF(none);
    return PyLong_FromLongLong(value);
}

/* list_tickets(tickets, states int32) -> how many there are */
PyObject *ss_py_list_tickets(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "list_tickets", count, 2)) return NULL;
    ss_tickets *tickets = tickets_of(&call, args[0]);
    int64_t room = 0, found = 0;
    ss_ticket_state *states = (ss_ticket_state *)int32_array(&call, args[1], &room, PyBUF_WRITABLE);
    if (!call.failed) found = ss_tickets_list(tickets, states, room / 4);
    return finish_with(&call, found);
}

/* settle_tickets(tickets) -> how many tickets there are */
PyObject *ss_py_settle_tickets(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "settle_tickets", count, 1)) return NULL;
    ss_tickets *tickets = tickets_of(&call, args[0]);
    if (!call.failed) ss_settle_tickets(tickets);
    return finish_with(&call, call.failed ? 0 : ss_tickets_count(tickets));
}

/* finish_dropped(tickets, milliseconds) -> whether no dropped ticket is left */
PyObject *ss_py_finish_dropped(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "finish_dropped", count, 2)) return NULL;
    ss_tickets *tickets = tickets_of(&call, args[0]);
    int64_t milliseconds = integer(&call, args[1]);
    int done = 0;
    if (!call.failed) {
        Py_BEGIN_ALLOW_THREADS
        done = ss_finish_dropped(tickets, milliseconds);
        Py_END_ALLOW_THREADS
    }
    return finish_with(&call, done);
}

/* drop_tickets(tickets, key): of records before it */
PyObject *ss_py_drop_tickets(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "drop_tickets", count, 2)) return NULL;
    ss_tickets *tickets = tickets_of(&call, args[0]);
    int64_t key = integer(&call, args[1]);
    if (!call.failed) ss_drop_tickets(tickets, key);
    return finish(&call);
}

static const int32_t *optional_ids(Call *call, PyObject *object, int64_t *count) {
    return object == Py_None ? NULL : int32_array(call, object, count, 0);
}

/* issued, reserved, in_flight, spare from args[0] on */
static ss_ahead_limits limits_of(Call *call, PyObject *const *args) {
    ss_ahead_limits limits = {integer(call, args[0]), integer(call, args[1]), integer(call, args[2]), 0};
    limits.spare = integer(call, args[3]);
    return limits;
}

/* read_ahead(tickets, layer, ids, asked or None, issued, reserved, in_flight, spare) -> reads issued, or -1 */
PyObject *ss_py_read_ahead(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "read_ahead", count, 8)) return NULL;
    ss_tickets *tickets = tickets_of(&call, args[0]);
    int64_t layer = integer(&call, args[1]), ids = 0, asked = 0, issued = 0;
    const int32_t *wanted = int32_array(&call, args[2], &ids, 0), *known = optional_ids(&call, args[3], &asked);
    ss_ahead_limits limits = limits_of(&call, args + 4);
    if (!call.failed)
        issued = ss_read_ahead(tickets, layer, wanted, ids < limits.issued ? ids : limits.issued, known, asked, &limits);
    return finish_with(&call, issued < 0 ? -1 : issued);
}

/* foresee(tickets, layer, logits rows, ranked int32 [rows, ranks], shares float64 [ranks], least, asked or None, issued,
 *         reserved, in_flight, spare) -> reads issued, or -1 */
PyObject *ss_py_foresee(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "foresee", count, 11)) return NULL;
    Kept *kept = kept_of(&call, args[0]);
    int64_t layer = integer(&call, args[1]), ids = 0, asked = 0, issued = 0;
    Rows logits = contiguous_rows(&call, args[2]);
    ss_forecast forecast = {.rows = logits.rows};
    forecast.ranked = (int32_t *)int32_array(&call, args[3], &ids, PyBUF_WRITABLE);
    forecast.shares = wide_array(&call, args[4], "d", &forecast.ranks, 0);
    double least = call.failed ? 0.0 : PyFloat_AsDouble(args[5]);
    if (PyErr_Occurred()) call.failed = 1;
    const int32_t *known = optional_ids(&call, args[6], &asked);
    ss_ahead_limits limits = limits_of(&call, args + 7);
    require(&call, call.failed || (logits.rows > 0 && ids / logits.rows == forecast.ranks && ids % logits.rows == 0 &&
                                   logits.width == ss_residency_of(kept->residency)->expert_count &&
                                   forecast.ranks > 0 && forecast.ranks <= logits.width),
            "logits, ranks and shares disagree");
    keep_apart(&call);
    int32_t *named = call.failed ? NULL : PyMem_Malloc((size_t)(ids ? ids : 1) * sizeof *named);
    if (named == NULL && !call.failed) PyErr_NoMemory(), call.failed = 1;
    if (!call.failed)
        issued = ss_foresee(kept->tickets, layer, logits.data, &forecast, least, known, asked, &limits, named);
    PyMem_Free(named);
    return finish_with(&call, issued < 0 ? -1 : issued);
}

/* requested(tickets, layer, chosen int32, rate, then shares float64 and ranked int32 of each forecast): learn from what was
 * asked for, and drop the tickets of all layers up to this one */
PyObject *ss_py_requested(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (count < 4 || count % 2 || count > 4 + 2 * MOST_FORECASTS)
        return PyErr_Format(PyExc_TypeError, "requested takes 4 arguments and up to %d pairs, got %zd", MOST_FORECASTS, count);
    starts(&call, "requested", count, count);
    Kept *kept = kept_of(&call, args[0]);
    int64_t layer = integer(&call, args[1]), ids = 0, forecasts = 0;
    const int32_t *chosen = int32_array(&call, args[2], &ids, 0);
    double rate = call.failed ? 0.0 : PyFloat_AsDouble(args[3]);
    if (PyErr_Occurred()) call.failed = 1;
    ss_forecast forecast[MOST_FORECASTS];
    for (; !call.failed && 4 + 2 * forecasts < count; forecasts++) {
        ss_forecast *f = &forecast[forecasts];
        int64_t values = 0;
        *f = (ss_forecast){0};
        f->shares = wide_array(&call, args[4 + 2 * forecasts], "d", &f->ranks, PyBUF_WRITABLE);
        f->ranked = (int32_t *)int32_array(&call, args[5 + 2 * forecasts], &values, 0);
        require(&call, call.failed || (f->ranks > 0 && values > 0 && values % f->ranks == 0), "ranks and shares disagree");
        if (!call.failed) f->rows = values / f->ranks;
    }
    ss_residency *r = call.failed ? NULL : ss_residency_of(kept->residency);
    require(&call, call.failed || (layer >= 0 && layer < r->layer_count), "there is no such layer");
    for (int written = 1; !call.failed && written < call.count; written += 2) /* forecasts may share what they teach */
        for (int read = 0; read < call.count; read += 2)
            require(&call, !overlap(&call.views[written], &call.views[read]), "ids and shares share memory");
    for (int64_t i = 0; !call.failed && i < ids; i++)
        require(&call, chosen[i] >= 0 && chosen[i] < r->expert_count, "an id does not exist");
    for (int64_t f = 0; f < forecasts; f++)
        for (int64_t i = 0; !call.failed && i < forecast[f].rows * forecast[f].ranks; i++)
            require(&call, forecast[f].ranked[i] >= 0 && forecast[f].ranked[i] < r->expert_count, "an id does not exist");
    if (!call.failed) {
        ss_drop_tickets(kept->tickets, (layer + 1) * r->expert_count);
        for (int64_t i = 0; i < forecasts; i++) ss_learn(kept->tickets, &forecast[i], chosen, ids, rate);
    }
    return finish(&call);
}

/* redeem(tickets, layer, ids, joined int64: key, slot and batch of each) -> how many are joined, or -1 */
PyObject *ss_py_redeem(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "redeem", count, 4)) return NULL;
    ss_tickets *tickets = tickets_of(&call, args[0]);
    int64_t layer = integer(&call, args[1]), ids = 0, room = 0, found = 0;
    const int32_t *wanted = int32_array(&call, args[2], &ids, 0);
    ss_joined *joined = wide_array(&call, args[3], INTEGERS, &room, PyBUF_WRITABLE);
    require(&call, room / 3 >= ids, "an array has another size");
    keep_apart(&call);
    int32_t code = call.failed ? SS_OK : ss_redeem(tickets, layer, wanted, ids, joined, &found);
    return finish_with(&call, code == SS_OK ? found : -1);
}

/* ask(tickets, pool, layer, ids, slots, held, records, told int64 [4 + 3 * ids], brief) -> 1 granted, or 0 refused; with
 * `brief` 2 where everything is there, and nothing is held. told: how many are absent, coming and joined, the batch, and key,
 * slot and batch of each that is joined; without a batch what is absent is still to be read */
PyObject *ss_py_ask(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "ask", count, 9)) return NULL;
    Kept *kept = kept_of(&call, args[0]);
    ss_pool *pool = (ss_pool *)(intptr_t)integer(&call, args[1]);
    int64_t layer = integer(&call, args[2]), ids = 0, numbers = 0;
    const int32_t *wanted = int32_array(&call, args[3], &ids, 0);
    int32_t *held = NULL;
    ss_request request = {.granted = ss_granted_of(&call, args + 4, ids, &held)};
    int64_t *told = wide_array(&call, args[7], INTEGERS, &numbers, PyBUF_WRITABLE);
    int64_t brief = integer(&call, args[8]);
    int there = 0;
    require(&call, call.failed || numbers >= TOLD + 3 * ids, "an array has another size");
    keep_apart(&call);
    int32_t code = SS_OK;
    if (!call.failed) {
        ss_residency *r = ss_residency_of(kept->residency);
        held[0] = 0;
        request.joined = (ss_joined *)(told + TOLD);
        code = ss_ask(kept->tickets, layer, wanted, ids, &request);
        if (code == SS_OK && request.granted.absent_count && ss_can_fetch(r)) {
            Py_BEGIN_ALLOW_THREADS
            ss_fetch(r, pool, layer, &request.granted); /* without memory everything stays absent */
            Py_END_ALLOW_THREADS
        }
        if (code == SS_OK) ss_bring(kept->tickets, &request);
        there = code == SS_OK && brief && !request.granted.absent_count && !request.granted.coming_count;
        if (there) {
            ss_let_go(r, request.granted.held, request.granted.held_count);
            request.granted.held_count = 0;
        }
        held[0] = (int32_t)request.granted.held_count;
        told[0] = request.granted.absent_count;
        told[1] = request.granted.coming_count;
        told[2] = request.joined_count;
        told[3] = (int64_t)(intptr_t)request.batch;
    }
    return finish_with(&call, code == SS_OK ? 1 + there : 0);
}
