/* Threads that share out the numbered pieces of one job, and the scratch memory of the call that made it. */
#ifndef SLOTSTREAM_THREADS_H
#define SLOTSTREAM_THREADS_H

#include "kernels.h"

typedef void (*ss_work)(void *context, int64_t piece);

/* What a call works with: the kernels, scratch memory, and maybe the threads. */
typedef struct ss_call {
    ss_pool *pool;
    const ss_kernels *kernels;
    char *scratch;
    int own_scratch; /* allocated for this call alone; the threads are not used */
    unsigned mode;   /* the caller's floating-point mode, put back at the end */
} ss_call;

/* Begin a call that needs `scratch_bytes` (64-byte aligned). Returns SS_OK or SS_NO_MEMORY. */
int32_t ss_begin(ss_pool *pool, size_t scratch_bytes, ss_call *call);
void ss_end(ss_call *call);

/* Call work(context, i) once for every i below `pieces`, on any thread, and return when all are done. */
void ss_share(ss_call *call, ss_work work, void *context, int64_t pieces);

int ss_thread_count(const ss_pool *pool);

#endif
