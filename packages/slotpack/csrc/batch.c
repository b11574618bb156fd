/* Several frames in one call. No Python.h here.
 *
 * Frames of kind 3 are opened one by one and their nibble streams decoded together by wide.h, as many groups at a time
 * as every stream can hold in any case. When one has no more groups, or too few bytes to be sure of them, frame.c
 * finishes it with every check, and the next frame takes its place. So each frame gets the code that it gets alone.
 */
#include "frame.h"
#include "quantised.h"
#include "wide.h"

#include <stdlib.h>

#if SLOTPACK_WIDE

/* A frame whose nibbles are being decoded. */
typedef struct {
    slotpack_job *job;
    quantised_frame opened;
    wide_keys *keys; /* owned; parallel to opened.contexts */
} active_frame;

/* Returns 0 where the job is over already. */
static int open_frame(slotpack_job *job, active_frame *active)
{
    active->job = job;
    job->code = slotpack_open_quantised(job->frame, job->frame_bytes, &job->header, job->raw, &active->opened);
    if (job->code)
        return 0;
    active->keys = malloc(sizeof(wide_keys) * active->opened.context_count);
    if (active->keys == NULL) {
        job->code = slotpack_finish_quantised(&active->opened);
        return 0;
    }
    for (uint32_t i = 0; i < active->opened.context_count; i++)
        wide_make_keys(&active->opened.contexts[i], &active->keys[i]);
    return 1;
}

static void finish_frame(active_frame *active)
{
    free(active->keys);
    active->job->code = slotpack_finish_quantised(&active->opened);
}

/* Groups that the stream holds whatever they are: a nibble takes at most two bytes. */
static size_t safe_groups(const quantised_frame *opened)
{
    const size_t bytes = (size_t)(opened->source.end - opened->source.next), left = opened->groups - opened->decoded;
    const size_t safe = bytes < WIDE_READ_AHEAD ? 0 : (bytes - WIDE_READ_AHEAD) / (4 * opened->group_bytes);
    return safe < left ? safe : left;
}

static wide_stream stream_of(const active_frame *active)
{
    const quantised_frame *opened = &active->opened;
    wide_stream stream = {
        .keys = active->keys,
        .group_context = opened->group_context + opened->decoded,
        .next = opened->source.next,
        .out = opened->weights + opened->decoded * opened->group_bytes,
    };
    memcpy(stream.states, opened->states, sizeof stream.states);
    return stream;
}

/* Decodes some groups of two to four frames of one group size; an odd place is filled by doing the last frame twice. */
static void decode_together(active_frame *active, size_t count, size_t groups)
{
    wide_stream streams[WIDE_STREAMS];
    const size_t places = count <= 2 ? 2 : WIDE_STREAMS;
    for (size_t i = 0; i < places; i++)
        streams[i] = stream_of(&active[i < count ? i : count - 1]);
    (places == 2 ? wide_decode_two : wide_decode_four)(streams, groups, active->opened.group_bytes);
    for (size_t i = 0; i < count; i++) {
        quantised_frame *opened = &active[i].opened;
        memcpy(opened->states, streams[i].states, sizeof opened->states);
        opened->source.next = streams[i].next;
        opened->decoded += groups;
    }
}

/* Decodes the unfinished quantised jobs of one group size. */
static void decode_quantised(slotpack_job *jobs, size_t count, uint32_t group_size)
{
    active_frame active[WIDE_STREAMS];
    size_t running = 0, next = 0;
    for (;;) {
        for (; running < WIDE_STREAMS && next < count; next++)
            if (!jobs[next].code && jobs[next].header.kind == 3 && jobs[next].header.group_size == group_size)
                running += (size_t)open_frame(&jobs[next], &active[running]);
        if (running == 0)
            return;
        size_t groups = running > 1 ? (size_t)-1 : 0; /* one frame alone is faster without vectors */
        for (size_t i = 0; i < running; i++) {
            const size_t safe = safe_groups(&active[i].opened);
            groups = safe < groups ? safe : groups;
        }
        if (groups)
            decode_together(active, running, groups);
        size_t kept = 0;
        for (size_t i = 0; i < running; i++)
            if (running > 1 && safe_groups(&active[i].opened))
                active[kept++] = active[i];
            else
                finish_frame(&active[i]);
        running = kept;
    }
}

size_t slotpack_wide_frames(void)
{
    return wide_available() ? WIDE_STREAMS : 1;
}

#else

size_t slotpack_wide_frames(void)
{
    return 1;
}

#endif

void slotpack_decode_many(slotpack_job *jobs, size_t count, int wide)
{
#if SLOTPACK_WIDE
    const int together = wide && wide_available();
#else
    const int together = 0;
    (void)wide;
#endif
    for (size_t i = 0; i < count; i++)
        if (!jobs[i].code && !(together && jobs[i].header.kind == 3))
            jobs[i].code = slotpack_decode(jobs[i].frame, jobs[i].frame_bytes, &jobs[i].header, jobs[i].raw);
#if SLOTPACK_WIDE
    if (together)
        for (uint32_t group_size = 32; group_size <= 64; group_size *= 2)
            decode_quantised(jobs, count, group_size);
#endif
}
