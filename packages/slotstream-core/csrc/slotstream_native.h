/* Products of quantised and dense matrices with a few rows of activations, on the processor.
 *
 * The C ABI of the library. It knows neither Python nor MLX: every argument is a plain number or a pointer to memory
 * that the caller owns and keeps alive, and that nothing writes during a call except the named outputs.
 *
 * Promises of every function here:
 *  - Shapes, sizes and alignments are checked first; a call that returns anything but SS_OK has written nothing.
 *  - A value of the result has the same bits whatever the number of rows in the call, the number of threads, and the
 *    place in a stack that holds the matrix. (The processor's variant may change the last bits.)
 *  - Nothing outside the stated memory is read or written.
 *
 * Packing of a quantised matrix [rows, columns]: each row is columns * bits / 32 little-endian words, the first column
 * in the lowest bits; `group` neighbouring columns share a scale and a bias: value = scale * q + bias.
 */
#ifndef SLOTSTREAM_NATIVE_H
#define SLOTSTREAM_NATIVE_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define SS_API __attribute__((visibility("default")))
#else
#define SS_API
#endif

#define SS_ABI_VERSION 5

enum ss_code {
    SS_OK = 0,
    SS_BAD_ARGUMENT = 1, /* a null pointer, a negative count, an unknown type */
    SS_BAD_SHAPE = 2,    /* sizes that contradict each other, or a group that does not divide the columns */
    SS_TOO_SMALL = 3,    /* the stated bytes do not hold the matrix */
    SS_MISALIGNED = 4,   /* a pointer that is not a multiple of its value's size */
    SS_OUT_OF_RANGE = 5, /* a member, slot or row that does not exist */
    SS_NO_MEMORY = 6,
    SS_UNSUPPORTED = 7   /* a variant this processor cannot run */
};

enum ss_type { SS_FLOAT32 = 0, SS_BFLOAT16 = 1 };

/* A stack of `members` matrices [rows, columns] that lie one after another. */
typedef struct ss_matrix {
    const void *weight; /* packed words, or the floats of a dense matrix */
    const void *scales; /* [members, rows, columns / group]; null when dense */
    const void *biases;
    int64_t weight_bytes; /* of all members */
    int64_t scales_bytes; /* of all members; the same for biases */
    int64_t members;
    int64_t rows;
    int64_t columns;
    int32_t bits;  /* 4 or 8; 0 when dense */
    int32_t group; /* 32, 64 or 128; 0 when dense */
    int32_t type;  /* ss_type of scales and biases, or of a dense weight */
    int32_t reserved;
} ss_matrix;

/* Threads and scratch memory. One call at a time uses the threads; a second one at the same time runs on its own. */
typedef struct ss_pool ss_pool;

SS_API int32_t ss_abi_version(void);

/* Name of variant `index`, best last; null past the end. Runnable says whether this processor has what it needs. */
SS_API const char *ss_variant_name(int32_t index);
SS_API int32_t ss_variant_runnable(int32_t index);

/* `threads` counts the caller: 1 starts none. After a fork the child's calls run on the calling thread alone. */
SS_API int32_t ss_pool_create(int32_t threads, int32_t variant, ss_pool **pool);
SS_API void ss_pool_destroy(ss_pool *pool);

/* y[r] = x[r] @ matrix[member].T: x [x_rows, columns] of x_type, y float32 [x_rows, rows], both contiguous. */
SS_API int32_t ss_multiply(ss_pool *pool, const ss_matrix *matrix, int64_t member, const void *x, int32_t x_type,
                           int64_t x_rows, float *y);

/* y[p] = x[source[p]] @ matrix[member[p]].T for every pair; y float32 [pairs, rows]. */
SS_API int32_t ss_multiply_members(ss_pool *pool, const ss_matrix *matrix, const void *x, int32_t x_type,
                                   int64_t x_rows, const int32_t *source, const int32_t *member, int64_t pairs,
                                   float *y);

/* The routed experts of one layer: y[t] = sum over k, in order, of mix[t,k] * down(silu(gate(x[t])) * up(x[t])) with
 * the matrices of slots[t,k]; mix null leaves the sum out and y is [x_rows, top, hidden]. */
SS_API int32_t ss_experts(ss_pool *pool, const ss_matrix *gate, const ss_matrix *up, const ss_matrix *down,
                          const void *x, int32_t x_type, int64_t x_rows, const int32_t *slots, const float *mix,
                          int64_t top, float *y);

/* y[i] = row chosen[i] of the matrix, unpacked; y float32 [count, columns]. */
SS_API int32_t ss_unpack_rows(ss_pool *pool, const ss_matrix *matrix, int64_t member, const int64_t *chosen,
                              int64_t count, float *y);

/* Unpack `count` records of `record_bytes`, each one quantised row: words, then scales, then biases. With round_to_bf16
 * every value is rounded to the nearest bfloat16 first. */
SS_API int32_t ss_unpack_records(ss_pool *pool, const void *records, int64_t count, int64_t record_bytes,
                                 int64_t columns, int32_t bits, int32_t group, int32_t type, int32_t round_to_bf16,
                                 float *y);

#endif
