/* The Python functions of layer_module.c, draft_module.c, residency_module.c, tickets_module.c, launches_module.c and
 * launched_layers_module.c. */
#ifndef SLOTSTREAM_LAYER_MODULE_H
#define SLOTSTREAM_LAYER_MODULE_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

PyObject *ss_py_layer(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ss_py_enter(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ss_py_leave(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ss_py_advance_delta(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ss_py_advance_attention(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ss_py_remember(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ss_py_join_inputs(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ss_py_guess(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ss_py_shared(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ss_py_join_experts(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ss_py_join_outputs(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ss_py_residency(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ss_py_grant(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ss_py_take_in(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ss_py_fetch(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ss_py_can_fetch(PyObject *self, PyObject *residency);
PyObject *ss_py_let_go(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ss_py_forecast(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ss_py_tickets(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ss_py_list_tickets(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ss_py_settle_tickets(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ss_py_finish_dropped(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ss_py_drop_tickets(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ss_py_read_ahead(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ss_py_foresee(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ss_py_requested(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ss_py_redeem(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ss_py_ask(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ss_py_program(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ss_py_launch(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ss_py_await_number(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ss_py_layer_words(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ss_py_settle_layer(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ss_py_take_layer(PyObject *self, PyObject *const *args, Py_ssize_t count);

#endif
