/* Kernels launched one after the other, and waiting for a number that one of them writes.
 *
 * Handing a kernel to the CUDA runtime takes two or three microseconds from here. What is launched each time is described
 * once; only the table of the arguments changes. */
#ifndef SLOTSTREAM_LAUNCHES_H
#define SLOTSTREAM_LAUNCHES_H

#include <stdint.h>

#include "copies.h"

#define SS_MOST_THREADS 1024 /* of a block */

/* What `ss_await` returns besides 0 and the codes of the query's. */
enum { SS_AWAIT_TIMEOUT = -1, SS_AWAIT_ENDED = -2 };

/* With the signature of the CUDA runtime's cudaStreamQuery: 0 when nothing is under way, SS_NOT_READY, or its code. */
typedef int32_t (*ss_query_function)(void *stream);
#define SS_NOT_READY 600

/* With the signature of cudaLaunchKernelExC: a launch with attributes. */
typedef struct ss_launch_attribute {
    int32_t id, unused;
    int64_t value[8];
} ss_launch_attribute;
typedef struct ss_launch_config {
    ss_grid blocks, threads;
    size_t shared_bytes;
    void *stream;
    const ss_launch_attribute *attributes;
    uint32_t attribute_count;
} ss_launch_config;
typedef int32_t (*ss_early_function)(const ss_launch_config *config, const void *kernel, void **arguments);
#define SS_LAUNCH_EARLY 6 /* cudaLaunchAttributeProgrammaticStreamSerialization, an int */

typedef struct ss_launcher {
    ss_launch_function launch;
    ss_early_function early; /* if not null, instead: blocks may begin before the kernel before has ended */
    void *stream;
} ss_launcher;

typedef struct ss_kernel_launch {
    int64_t kernel; /* a handle */
    int64_t blocks, threads;
    int64_t first, count; /* of its arguments, among the program's */
} ss_kernel_launch;

typedef struct ss_program ss_program;

/* A program of launches whose argument i is the 64-bit number at table[indices[i]]; null without memory. They must be such
 * as `ss_check_launches` accepts, and the table must stay for as long as the program. */
ss_program *ss_program_create(const ss_launcher *launcher, const ss_kernel_launch *launches, int64_t count,
                              const int32_t *indices, uint64_t *table);
void ss_program_free(ss_program *program);
int64_t ss_program_count(const ss_program *program);

/* Whether every launch has a kernel, a grid that may be, and arguments that exist. */
int ss_check_launches(const ss_kernel_launch *launches, int64_t count, const int32_t *indices, int64_t index_count,
                      int64_t table_count);

/* Launch those from first up to last, which must exist: 0, or a code, with the number of the launch that failed. */
int32_t ss_run_launches(const ss_program *program, int64_t first, int64_t last, int64_t *failed);

/* Wait, awake, until the word holds a number: 0, SS_AWAIT_ENDED when everything on the stream ended without it,
 * SS_AWAIT_TIMEOUT, or the query's code. */
int32_t ss_await(const uint32_t *word, uint32_t number, double timeout_s, ss_query_function query, void *stream);

#endif
