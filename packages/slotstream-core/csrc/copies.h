/* Copies from staging, or from mapped files, into slots on a device, made together.
 *
 * Threads that have read something hand over what is to be copied and go on reading. One of them, or two, begin everything
 * that was handed over so far and wait for the device; meanwhile the next collects. So the device gets few large copies
 * instead of many small ones, from few threads, whatever the number of those that read. */
#ifndef SLOTSTREAM_COPIES_H
#define SLOTSTREAM_COPIES_H

#include <stddef.h>
#include <stdint.h>

#define SS_COPIES 128 /* pieces that one launch of the kernel takes */
#define SS_APART 4

/* These have the signatures of the CUDA runtime's cudaMemcpyAsync, cudaStreamSynchronize, cudaStreamCreateWithFlags and
 * cudaLaunchKernel, and return 0 or its code. */
typedef struct ss_grid {
    uint32_t x, y, z;
} ss_grid;
typedef int32_t (*ss_copy_function)(void *target, const void *source, size_t bytes, int32_t direction, void *stream);
typedef int32_t (*ss_finish_function)(void *stream);
typedef int32_t (*ss_stream_function)(void **stream, uint32_t flags);
typedef int32_t (*ss_launch_function)(const void *kernel, ss_grid blocks, ss_grid threads, void **arguments,
                                      size_t shared_bytes, void *stream);

/* And those of cudaEventCreateWithFlags, cudaEventRecord and cudaStreamWaitEvent. */
typedef int32_t (*ss_event_function)(void **event, uint32_t flags);
typedef int32_t (*ss_record_function)(void *event, void *stream);
typedef int32_t (*ss_follow_function)(void *stream, void *event, uint32_t flags);

typedef struct ss_device {
    ss_copy_function copy; /* null: there is no device */
    ss_finish_function finish;
    ss_stream_function stream;
    ss_launch_function launch; /* null: pieces are copied one by one */
    void *kernel;              /* takes one ss_pieces, by value, and copies every piece */
    ss_event_function event;   /* this and the next two are null where no stream can wait for another one's copies */
    ss_record_function record;
    ss_follow_function follow;
} ss_device;

/* The argument of the kernel; `slotstream_core.experts.copy_kernel` has the same in CUDA. A piece is fetched in rows of 512
 * bytes, the first of which begins with the 128 that hold its first byte, and in words of 16, of which none is fetched
 * that holds no byte of it. So nothing outside its pages is read, wherever it begins. */
typedef struct ss_pieces {
    const void *from[SS_COPIES];
    void *to[SS_COPIES];
    int32_t ends[SS_COPIES]; /* of each piece in the row of all of them, in such rows */
    int32_t bytes[SS_COPIES];
    int32_t count;
} ss_pieces;

typedef struct ss_copy {
    void *to;
    const void *from;
    int64_t bytes; /* at most INT32_MAX */
} ss_copy;

/* Copies that belong together. It and what it names stay until `over` is called. */
typedef struct ss_wish {
    const ss_copy *copies;
    int64_t count;
    void (*over)(struct ss_wish *wish, int32_t code);
    struct ss_wish *next;
} ss_wish;

typedef struct ss_copier ss_copier;

/* Null without memory. The device's functions must work for as long as it is used. */
ss_copier *ss_copier_create(const ss_device *device);

/* No thread may be at a copy. */
void ss_copier_free(ss_copier *copier);

/* Have copies made: `over` is called when they are complete, by this thread or by another, with 0 or the code of a function
 * that failed for them or for others made together with them; then nothing is known of where they go, but none is under
 * way. The calling thread may stay for as long as others wish for copies, too. Any thread. */
void ss_copy_later(ss_copier *copier, ss_wish *wish);

/* Begin copies by this thread, whatever others wish for, and do not wait for them: any thread calls ss_copy_end with what is
 * returned, soon, which waits and calls `over`. Null, with nothing begun, while as many as SS_APART are under way. */
typedef struct ss_begun ss_begun;
ss_begun *ss_copy_begin(ss_copier *copier, ss_wish *wish);
void ss_copy_end(ss_copier *copier, ss_begun *begun);

/* Have what comes on a stream of the device wait for copies that were begun, ended or not: 1, or 0 where it cannot. */
int ss_copy_follow(ss_copier *copier, ss_begun *begun, void *stream);

/* As ss_copy_later, returning the code when they are complete. */
int32_t ss_copy_all(ss_copier *copier, const ss_copy *copies, int64_t count);

#endif
