/* An empty extension module: it lets the build system place and name the library, which is loaded by its path. */
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

static PyModuleDef_Slot slots[] = {{0, NULL}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_native", .m_doc = "The native library; see slotstream_core.native.",
    .m_slots = slots};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
