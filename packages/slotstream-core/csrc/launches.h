/* Kernels launched one after the other, and waiting for a number that one of them writes.
 *
 * Handing a kernel to the CUDA runtime takes two or three microseconds from here. What is launched each time is described
 * once, with arguments that stay as they are, so that it can become a graph. What changes between runs stands in a table,
 * which the first launch of every run takes onto the device, and kernels look it up there. */
#ifndef SLOTSTREAM_LAUNCHES_H
#define SLOTSTREAM_LAUNCHES_H

#include <stdint.h>

#include "copies.h"
#include "graphs.h"

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
    ss_query_function query;
    void *stream;
    ss_graph_functions graphs;
} ss_launcher;

typedef struct ss_kernel_launch {
    int64_t kernel; /* a handle */
    int64_t blocks, threads;
    int64_t first, count; /* of its arguments, among the program's */
} ss_kernel_launch;

/* What changes between runs. Once a run has begun, the next one's may be written. */
typedef struct ss_table {
    uint64_t *words;       /* [count]; the first one is not the caller's: it numbers the runs */
    uint64_t *sent;        /* [count], in memory of the host that the device reads: what it takes */
    int64_t count;         /* at least 1 */
    const uint32_t *taken; /* where the taking launch writes the lowest half of the first word, last of all; 0 at first */
    double timeout_s;      /* longest wait for that */
} ss_table;

typedef struct ss_program ss_program;

/* A program of launches whose argument i is the 64-bit number at constants[indices[i]], and of one more, `launches[count]`,
 * which takes the table in; null without memory. All must be such as `ss_check_launches` accepts. The constants and the
 * table must stay for as long as the program. One thread at a time runs it. */
ss_program *ss_program_create(const ss_launcher *launcher, const ss_kernel_launch *launches, int64_t count,
                              const int32_t *indices, uint64_t *constants, const ss_table *table);
void ss_program_free(ss_program *program);
int64_t ss_program_count(const ss_program *program); /* without what takes the table in */

/* Whether every launch has a kernel, a grid that may be, and arguments that exist. */
int ss_check_launches(const ss_kernel_launch *launches, int64_t count, const int32_t *indices, int64_t index_count,
                      int64_t constant_count);

/* Launch those from first up to last, which must exist, with what the table holds now: 0, or a code, with the number of the
 * launch that failed, that of the graph's first one, or `count` where the run before has not taken the table: then the code
 * is that of `ss_await`. */
int32_t ss_run_launches(ss_program *program, int64_t first, int64_t last, int64_t *failed);

/* Wait, awake, until the word holds a number: 0, SS_AWAIT_ENDED when everything on the stream ended without it,
 * SS_AWAIT_TIMEOUT, or the query's code. */
int32_t ss_await(const uint32_t *word, uint32_t number, double timeout_s, ss_query_function query, void *stream);

#endif
