/* Reading records from files into slots, by threads of their own.
 *
 * The C ABI of the reading lanes. Like slotstream_native.h it knows neither Python nor MLX: every argument is a plain
 * number or a pointer to memory that the caller owns.
 *
 * A record is a fixed number of pieces, one of each kind. The caller says for every record where its pieces lie (file
 * and offset) and which slot takes them; pieces that lie side by side in one file are read together. A batch is the
 * records of one request. Two queues feed two sets of threads: "demand" for what a computation waits for, and "ahead"
 * for what it may ask for soon, of which nothing begins while a batch of the first is under way.
 *
 * Ownership: from ss_batch_submit or ss_batch_read_ahead until the batch is done its slots are written, so the caller
 * keeps them alive until then; likewise scratch memory and the read function until ss_lanes_close returns 0.
 * Nothing outside the slots and the scratch memory is written. A piece that does not arrive in full leaves its slot in
 * an unknown state, and the record counts as failed.
 */
#ifndef SLOTSTREAM_LANES_H
#define SLOTSTREAM_LANES_H

#include <sys/uio.h>

#include "copies.h"
#include "mapped.h"
#include "mirrors.h"

/* Fill `parts` from `offset`, once: the bytes read, 0 at the end of the file, or a negative errno. Any thread. */
typedef int64_t (*ss_read_function)(void *context, int32_t fd, const struct iovec *parts, int32_t count,
                                    int64_t offset);

typedef struct ss_lane_settings {
    int32_t demand_lanes;
    int32_t ahead_lanes;
    int64_t alignment;   /* 1, or a power of two that offsets, lengths and addresses of reads are multiples of */
    int64_t merge_bytes; /* neighbours are read together up to here */
    int64_t job_bytes;   /* small reads are handed to a thread together up to here; with a device, scratch holds that */
    int64_t part_bytes;  /* with a device: longer pieces are read and copied in parts, by several lanes; 0: whole */
    int64_t staging;     /* parts of scratch a lane: with a device, it reads into one while others are copied */
    void *scratch;       /* demand_lanes * staging + 1 parts, each aligned: the last is for a thread that waits */
    int64_t scratch_bytes;  /* of a part that may be used: the longest read and its blocks' two ends */
    int64_t scratch_stride; /* from one part to the next */
    void *ahead_scratch;    /* ahead_lanes * staging parts */
    int64_t ahead_scratch_bytes;
    int64_t ahead_scratch_stride;
    ss_read_function read; /* null: preadv */
    void *context;
    ss_device device; /* its copying function is null where the host writes slots itself */
    ss_mirrors *mirrors; /* null, or what chooses among the directories that every record lies in */
    ss_mapped *mapped;   /* null, or with a device, what it fetches without a read: pieces that are not to be checked */
} ss_lane_settings;

enum ss_change { SS_AS_STORED = 0, SS_WIDENED = 1 /* bfloat16 on disk, float32 in the slot */ };
enum ss_check { SS_UNCHECKED = 0, SS_FINITE_BFLOAT16 = 1, SS_FINITE_FLOAT32 = 2 };

typedef struct ss_piece_kind {
    void *slots;        /* the piece of slot 0 */
    int64_t slot_count; /* of slots that exist */
    int64_t slot_bytes; /* of one piece there, and the distance to the next slot's */
    int64_t disk_bytes;
    int32_t change; /* ss_change */
    int32_t check;  /* ss_check, of the values on disk, for records that are to be checked */
} ss_piece_kind;

/* What a batch came to. Stable once ss_batch_wait returned 1; `done` may be looked at before, for a hint. */
typedef struct ss_batch_state {
    int32_t done;
    int32_t failures; /* pieces that did not arrive or are not finite */
    int32_t cancelled;
    int32_t left_out; /* directories that are not asked any more since a read of this batch failed */
    int64_t bytes_read;
    int64_t read_ns; /* spent by all threads together */
} ss_batch_state;

enum ss_outcome {
    SS_ARRIVED = 0,
    SS_CANCELLED = 1,  /* not begun */
    SS_NOT_READ = 2,   /* `error` says why; 0: the file ends there */
    SS_NOT_FINITE = 3,
    SS_NOT_COPIED = 4  /* `error` is the code of the copying function */
};

typedef struct ss_failure {
    int32_t outcome;
    int32_t error;
    int32_t record; /* by position in the batch */
    int32_t kind;
    int32_t first_missing; /* the first record of the read that did not arrive */
    int32_t fd;
    int64_t offset, wanted, got; /* of the read */
} ss_failure;

typedef struct ss_lanes ss_lanes;
typedef struct ss_batch ss_batch;

SS_API int32_t ss_lanes_create(const ss_lane_settings *settings, ss_lanes **lanes);

/* Cancel what no thread has begun, refuse what is submitted from now on, and wait for the threads, at most so long.
 * Returns how many still run; call it again to wait longer. */
SS_API int32_t ss_lanes_close(ss_lanes *lanes, int64_t milliseconds);

/* Keep them until one more ss_lanes_release: closed lanes still plan batches, which are over once they are submitted. */
void ss_lanes_refer(ss_lanes *lanes);

/* Let go of the lanes, which ss_lanes_close has ended; batches may outlive them. In a forked child only this is
 * possible, and nothing is waited for there. */
SS_API void ss_lanes_release(ss_lanes *lanes);

/* Plan a batch: for every record its slot, whether to check it, and (fd, offset) of every kind's piece; with mirrors,
 * of every kind's piece in each of the directories, one directory after the other. */
SS_API int32_t ss_batch_create(ss_lanes *lanes, const ss_piece_kind *kinds, int64_t kind_count,
                               const int64_t *records, int64_t record_count, ss_batch **batch);
SS_API const ss_batch_state *ss_batch_state_of(const ss_batch *batch);
SS_API int64_t ss_batch_reads(const ss_batch *batch); /* planned */

/* A batch that is being read ahead may be submitted too, once something waits for it. */
SS_API int32_t ss_batch_submit(ss_batch *batch);
SS_API int32_t ss_batch_read_ahead(ss_batch *batch);
SS_API int32_t ss_batches_read_ahead(ss_batch *const *batches, int64_t count); /* of the same lanes, all or none */

/* Wait at most so long: 1 when no thread touches its slots any more. Reads of a submitted batch that no lane has begun
 * are made by the waiting thread itself. */
SS_API int32_t ss_batch_wait(ss_batch *batch, int64_t milliseconds);

/* Have what comes on a stream of the device wait for the batch, whose reads are all copies from mapped memory under way: 1, also
 * where it is done without failures; 0 where somebody has to wait for it. */
int ss_batch_follow(ss_batch *batch, void *stream);

int64_t ss_batch_ended_ns(const ss_batch *batch); /* of a batch that is done: when, by the monotonic clock */

/* Drop what no thread has begun. */
SS_API void ss_batch_cancel(ss_batch *batch);

/* Cancel the batch if no thread has begun any of it: 1 if that was so. It is done then, without failures. */
SS_API int32_t ss_batch_retract(ss_batch *batch);

/* Of a batch that is done: how many failures it has; the first `count` are written. */
SS_API int64_t ss_batch_failures(const ss_batch *batch, ss_failure *failures, int64_t count);

SS_API void ss_batch_release(ss_batch *batch);

#endif
