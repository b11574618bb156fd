/* What a batch reads: pieces of records, joined to reads ("segments"), which jobs hand to one thread each. */
#ifndef SLOTSTREAM_SEGMENTS_H
#define SLOTSTREAM_SEGMENTS_H

#include <stdatomic.h>

#include "lanes.h"

/* A piece of a record, or a part of one that is read in parts. */
typedef struct ss_piece {
    int64_t offset, start, bytes; /* in the file; from the piece's own first byte */
    int32_t fd, kind, record, outcome;
    const char *mapped; /* where a device fetches it; null where it is to be read */
} ss_piece;

typedef struct ss_segment {
    int64_t offset, bytes, got;
    const char *stored; /* in scratch or mapped, what is to be copied to a device; null when nothing is */
    const char *mapped; /* of its only piece */
    int32_t fd, error;
    int32_t first, count; /* of the pieces, which lie side by side in the file */
    int32_t directory;
    int32_t missing; /* the record of the first piece that did not arrive, or of the first piece */
} ss_segment;

typedef struct ss_spot {
    int64_t offset;
    int32_t fd;
} ss_spot;

typedef struct ss_job {
    int32_t first, count; /* of the segments */
    int32_t mapped;       /* whether none of them is to be read */
} ss_job;

typedef struct ss_target {
    int64_t slot;
    int32_t check;
    int32_t directory; /* that was chosen */
} ss_target;

typedef struct ss_plan {
    ss_piece_kind *kinds;
    ss_target *targets; /* by record */
    ss_spot *spots;     /* by record, directory and kind */
    ss_piece *pieces;
    ss_segment *segments;
    ss_job *jobs;
    void *memory; /* that holds all of these */
    int64_t kind_count, record_count, directories;
    int64_t part_bytes; /* of a piece, at most */
    int64_t piece_count, segment_count, job_count;
    int64_t mapped_jobs; /* the first ones */
    int64_t scratch_bytes; /* that its longest read needs */
    ss_mirrors *mirrors;
    ss_mapped *mapped; /* while something may be fetched from there */
    int entry;
} ss_plan;

typedef struct ss_job_result {
    int64_t bytes, ns;
    int32_t failures, left_out;
} ss_job_result;

int32_t ss_plan_make(ss_plan *plan, const ss_lane_settings *settings, const ss_piece_kind *kinds, int64_t kind_count,
                     const int64_t *records, int64_t record_count);
void ss_plan_free(ss_plan *plan);

/* No thread touches the plan any more, and nothing that it found is fetched. */
static inline void ss_plan_over(ss_plan *plan) {
    ss_mapped_leave(plan->mapped, plan->entry);
    plan->mapped = NULL;
}

/* Read a job, segment by segment, as long as `stopped` is 0; add to the result's bytes and left_out. `copier` is null
 * where the host writes slots itself. Returns how many copies are left for the caller to have made before the job is
 * closed; they are at most SS_COPIES, and they read from scratch, or from mapped memory for jobs that need none. */
int64_t ss_plan_read(ss_plan *plan, int64_t job, const ss_lane_settings *settings, char *scratch, ss_copier *copier,
                     const atomic_int *stopped, ss_job_result *result, ss_copy *copies);

/* After the copies of a job came to `code`: add to the result's failures. */
void ss_plan_close(ss_plan *plan, int64_t job, int32_t code, ss_job_result *result);

/* A job that was not claimed will not be read: its pieces count as cancelled. Returns how many they are. */
int32_t ss_plan_give_up(ss_plan *plan, int64_t job);

/* Bring one piece from where it was read to its place in a slot, unless it was read there; 0 when it is to be checked and
 * is not finite. */
int ss_settle_piece(const ss_piece_kind *kind, const char *stored, char *place, int check);

int64_t ss_plan_failures(const ss_plan *plan, ss_failure *failures, int64_t count);

#endif
