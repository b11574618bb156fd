/* slotstream_core._blas: a `cblas_sgemm` that hands every call to another library's.
 *
 * MLX's CPU build for Linux looks `cblas_sgemm` up when it is loaded and comes with a reference implementation. Loaded
 * with RTLD_GLOBAL before it, this object is found first. The target has 64-bit integers (NumPy's OpenBLAS); it is set
 * before the first call. The module itself is empty.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <stdint.h>

#define EXPORTED __attribute__((visibility("default")))

typedef void sgemm64(int order, int transpose_a, int transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
                     const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);

static sgemm64 *target;
static uint64_t calls;

/* Name the function that does the work. */
EXPORTED void slotstream_set_sgemm(void *function) { target = (sgemm64 *)function; }

/* How many products were handed on. */
EXPORTED uint64_t slotstream_sgemm_calls(void) { return __atomic_load_n(&calls, __ATOMIC_RELAXED); }

EXPORTED void cblas_sgemm(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                          const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc) {
    __atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED);
    target(order, transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_blas", NULL, 0, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__blas(void) { return PyModule_Create(&module); }
