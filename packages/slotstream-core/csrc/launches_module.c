/* Programs of launches as Python functions; see launches.h and _native.pyi. Conventions as in module.c. */
#include "arrays.h"
#include "launches.h"
#include "layer_module.h"
#include "residency_module.h"

#define CAPSULE "slotstream_core._native.program"
#define NUMBERS 5   /* of a launch */
#define FUNCTIONS 3 /* of a target, before those for graphs */
#define ARRAYS 2 /* that a program keeps */

typedef struct {
    ss_program *program;
    Py_buffer views[ARRAYS];
    int count;
} Kept;

static void forget(Kept *kept) {
    ss_program_free(kept->program);
    while (kept->count > 0) PyBuffer_Release(&kept->views[--kept->count]);
    PyMem_Free(kept);
}

static void destroy(PyObject *capsule) { forget(PyCapsule_GetPointer(capsule, CAPSULE)); }

/* The functions that a tuple of addresses names, in the order of ss_launcher's. */
static ss_launcher launcher_of(Call *call, PyObject *addresses, PyObject *stream) {
    ss_launcher launcher = {.stream = (void *)(intptr_t)integer(call, stream)};
    void *named[FUNCTIONS + SS_GRAPH_FUNCTIONS] = {NULL};
    require(call, PyTuple_Check(addresses) && PyTuple_Size(addresses) == FUNCTIONS + SS_GRAPH_FUNCTIONS,
            "these are not the functions of a target");
    int found = 0;
    for (int i = 0; i < FUNCTIONS + SS_GRAPH_FUNCTIONS && !call->failed; i++) {
        named[i] = (void *)(intptr_t)integer(call, PyTuple_GetItem(addresses, i));
        found += i >= FUNCTIONS && named[i] != NULL;
    }
    launcher.launch = (ss_launch_function)named[0];
    launcher.early = (ss_early_function)named[1];
    launcher.query = (ss_query_function)named[2];
    memcpy(&launcher.graphs, named + FUNCTIONS, sizeof launcher.graphs);
    require(call, launcher.launch != NULL, "there is no function to launch with");
    require(call, launcher.query != NULL, "there is no function to ask the device with");
    require(call, found == 0 || found == SS_GRAPH_FUNCTIONS, "some functions for graphs are missing");
    return launcher;
}

static const void *at(Call *call, PyObject *object, int unit) {
    int64_t address = integer(call, object);
    require(call, address != 0 && address % unit == 0, "there is no word at the address");
    return (const void *)(intptr_t)address;
}

/* program(functions, stream, launches int64 [n + 1, 5], indices int32, constants uint64, table uint64, sent, taken,
 *         timeout_s) */
PyObject *ss_py_program(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "program", count, 9)) return NULL;
    ss_launcher launcher = launcher_of(&call, args[0], args[1]);
    int64_t numbers = 0, indices_count = 0, entries = 0;
    ss_table table = {0};
    const ss_kernel_launch *launches = wide_array(&call, args[2], "lq", &numbers, 0);
    const int32_t *indices = int32_array(&call, args[3], &indices_count, 0);
    uint64_t *constants = wide_array(&call, args[4], "LQ", &entries, 0);
    table.words = wide_array(&call, args[5], "LQ", &table.count, PyBUF_WRITABLE);
    table.sent = (uint64_t *)at(&call, args[6], 8);
    table.taken = at(&call, args[7], 4);
    table.timeout_s = call.failed ? 0.0 : PyFloat_AsDouble(args[8]);
    if (PyErr_Occurred()) call.failed = 1;
    require(&call, numbers % NUMBERS == 0 && numbers > 0, "a launch is not five numbers, or nothing takes the table in");
    require(&call, call.failed || ss_check_launches(launches, numbers / NUMBERS, indices, indices_count, entries),
            "a launch has no kernel, no grid that may be, or arguments that do not exist");
    require(&call, table.count > 0, "the table has no word");
    require(&call, table.timeout_s >= 0.0 && table.timeout_s <= 1e6, "the time is not one that anybody waits");
    keep_apart(&call);
    Kept *kept = call.failed ? NULL : PyMem_Calloc(1, sizeof *kept);
    if (kept) kept->program = ss_program_create(&launcher, launches, numbers / NUMBERS - 1, indices, constants, &table);
    if (!call.failed && (!kept || !kept->program)) PyErr_NoMemory(), call.failed = 1;
    PyObject *capsule = call.failed ? NULL : PyCapsule_New(kept, CAPSULE, destroy);
    if (capsule != NULL) {
        /* the table and the constants are not given back by `finish` */
        kept->views[kept->count++] = call.views[--call.count];
        kept->views[kept->count++] = call.views[--call.count];
    } else {
        if (kept) forget(kept);
        call.failed = 1;
    }
    PyObject *none = finish(&call);
    Py_XDECREF(none);
    return capsule;
}

ss_program *ss_program_of(PyObject *object) {
    Kept *kept = PyCapsule_GetPointer(object, CAPSULE);
    return kept == NULL ? NULL : kept->program;
}

/* launch(program, first, last) -> None, or the number of a launch that failed and its code */
PyObject *ss_py_launch(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "launch", count, 3)) return NULL;
    Kept *kept = PyCapsule_GetPointer(args[0], CAPSULE);
    if (kept == NULL) return NULL;
    int64_t first = integer(&call, args[1]), last = integer(&call, args[2]), failed = 0;
    require(&call, call.failed || (0 <= first && first <= last && last <= ss_program_count(kept->program)),
            "there are no such launches");
    int32_t code = 0;
    if (!call.failed) {
        Py_BEGIN_ALLOW_THREADS
        code = ss_run_launches(kept->program, first, last, &failed);
        Py_END_ALLOW_THREADS
    }
    PyObject *none = finish(&call);
    if (none == NULL || code == 0) return none;
    Py_DECREF(none);
    return Py_BuildValue("(Li)", (long long)failed, (int)code);
}

/* await_number(address, number, timeout_s, query, stream) -> 0, -1 after that time, -2 when all ended, or a code */
PyObject *ss_py_await_number(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Call call;
    if (!starts(&call, "await_number", count, 5)) return NULL;
    int64_t address = integer(&call, args[0]), number = integer(&call, args[1]);
    double timeout_s = call.failed ? 0.0 : PyFloat_AsDouble(args[2]);
    if (PyErr_Occurred()) call.failed = 1;
    ss_query_function query = (ss_query_function)(intptr_t)integer(&call, args[3]);
    void *stream = (void *)(intptr_t)integer(&call, args[4]);
    require(&call, address != 0 && address % 4 == 0, "there is no word at the address");
    require(&call, query != NULL, "there is no function to ask the device with");
    require(&call, timeout_s >= 0.0 && timeout_s <= 1e6, "the time is not one that anybody waits");
    int32_t code = 0;
    if (!call.failed) {
        Py_BEGIN_ALLOW_THREADS
        code = ss_await((const uint32_t *)(intptr_t)address, (uint32_t)number, timeout_s, query, stream);
        Py_END_ALLOW_THREADS
    }
    PyObject *none = finish(&call);
    if (none == NULL) return NULL;
    Py_DECREF(none);
    return PyLong_FromLong(code);
}
