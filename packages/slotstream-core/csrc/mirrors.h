/* Which of several directories that hold the same records is asked for one: where it is expected to arrive first.
 *
 * Every function may be called by any thread; directories are known by their position. Times are seconds of one clock,
 * which the caller reads. What is chosen is what experts/directories.py chooses, to the last bit.
 */
#ifndef SLOTSTREAM_MIRRORS_H
#define SLOTSTREAM_MIRRORS_H

#include "slotstream_native.h"

/* Records that lie side by side go to one directory together, which reads them together, up to so many. */
#define SS_MIRROR_RUN 8

typedef struct ss_mirrors ss_mirrors;

/* A read that did not come in full; `error` 0: the file ends there. */
typedef struct ss_fault {
    int32_t fd, error;
    int64_t offset, wanted, got;
} ss_fault;

typedef struct ss_directory_state {
    int64_t queued_bytes; /* chosen and not settled yet */
    int64_t total_bytes;  /* read since the start */
    double bytes_per_s;   /* measured; 0 before the first read */
    int32_t usable;       /* whether it is still asked */
    int32_t passed_over;  /* records that went elsewhere since it was asked last */
    ss_fault fault;       /* that made it unusable */
} ss_directory_state;

SS_API int32_t ss_mirrors_create(int32_t directories, ss_mirrors **mirrors);
SS_API void ss_mirrors_release(ss_mirrors *mirrors); /* lanes that use it keep it as long as they need */
SS_API int32_t ss_mirrors_count(const ss_mirrors *mirrors);

/* Return the directory where so many bytes, of so many records, are expected first, and queue them there. */
SS_API int32_t ss_mirrors_choose(ss_mirrors *mirrors, int64_t bytes, int64_t records);

/* Queued bytes are not waited for any more: they arrived, failed, or were given up. */
SS_API void ss_mirrors_settle(ss_mirrors *mirrors, int32_t directory, int64_t bytes);

/* A read begins; one that was begun has brought so many bytes. */
SS_API void ss_mirrors_begin(ss_mirrors *mirrors, int32_t directory, double now_s);
SS_API void ss_mirrors_end(ss_mirrors *mirrors, int32_t directory, double now_s, int64_t bytes);

/* Ask a directory no more whose read failed, and return where `bytes` are expected first now, without queueing them; -1,
 * with nothing changed, when it is the last. `newly` says whether it was asked until now. */
SS_API int32_t ss_mirrors_leave_out(ss_mirrors *mirrors, int32_t directory, const ss_fault *fault, int64_t bytes,
                                    int32_t *newly);

SS_API void ss_mirrors_state(ss_mirrors *mirrors, int32_t directory, ss_directory_state *state);

void ss_mirrors_refer(ss_mirrors *mirrors);

#endif
