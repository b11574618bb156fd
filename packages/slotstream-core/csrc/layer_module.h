/* The Python functions of layer_module.c and residency_module.c. */
#ifndef SLOTSTREAM_LAYER_MODULE_H
#define SLOTSTREAM_LAYER_MODULE_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

PyObject *ss_py_layer(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ss_py_enter(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ss_py_leave(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ss_py_advance_delta(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ss_py_shared(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ss_py_join_experts(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ss_py_residency(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ss_py_grant(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ss_py_let_go(PyObject *self, PyObject *const *args, Py_ssize_t count);

#endif
