/* Planning reads, making them, and bringing what arrived into slots. */
#include "segments.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "past_caches.h"

#define PIECES_PER_READ 256 /* well under the kernel's limit of 1,024 buffers a call */
#define MOST_KINDS 64
#define PART_UNIT 64 /* parts of a piece begin at multiples of it, so that they are aligned as the piece is */
#define MOST_RECORDS (1 << 20)
#define BOUNCE_BYTES (1 << 17) /* stays in a core's own cache; on the stack of a lane, which has megabytes */

static int by_place(const void *a, const void *b) {
    const ss_piece *x = a, *y = b;
    if (x->fd != y->fd) return x->fd < y->fd ? -1 : 1;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    if (x->record != y->record) return x->record < y->record ? -1 : 1;
    return x->kind - y->kind;
}

/* Reads under way at one time then lie in different tensors instead of crowding into one stretch of the disk. */
static int by_record(const void *a, const void *b) {
    const ss_segment *x = a, *y = b;
    if (!x->mapped != !y->mapped) return x->mapped ? -1 : 1; /* the device begins at once */
    if (x->missing != y->missing) return x->missing < y->missing ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    return x->first - y->first;
}

static int kind_is_usable(const ss_piece_kind *kind) {
    int64_t grown = kind->change == SS_WIDENED ? kind->disk_bytes * 2 : kind->disk_bytes;
    return kind->slots && kind->slot_count > 0 && kind->disk_bytes > 0 && kind->disk_bytes <= INT32_MAX &&
           kind->slot_bytes == grown && (kind->change == SS_AS_STORED || kind->change == SS_WIDENED) &&
           kind->check >= SS_UNCHECKED && kind->check <= SS_FINITE_FLOAT32 &&
           (kind->change == SS_AS_STORED || (kind->disk_bytes % 2 == 0 && (uintptr_t)kind->slots % 4 == 0));
}

static int32_t copy_arguments(ss_plan *plan, const ss_piece_kind *kinds, const int64_t *records) {
    memcpy(plan->kinds, kinds, (size_t)plan->kind_count * sizeof *kinds);
    ss_spot *spot = plan->spots;
    for (int64_t r = 0; r < plan->record_count; r++) {
        int64_t where = *records++, check = *records++;
        plan->targets[r] = (ss_target){where, check != 0, 0};
        for (int64_t k = 0; k < plan->kind_count; k++)
            if (where < 0 || where >= kinds[k].slot_count) return SS_OUT_OF_RANGE;
        for (int64_t i = 0; i < plan->directories * plan->kind_count; i++) {
            int64_t fd = *records++, offset = *records++;
            if (fd < 0 || fd > INT32_MAX || offset < 0 || offset > INT64_MAX / 2) return SS_OUT_OF_RANGE;
            *spot++ = (ss_spot){offset, (int32_t)fd};
        }
    }
    return SS_OK;
}

/* The pieces of a record in one directory. */
static const ss_spot *spots_of(const ss_plan *plan, int64_t record, int64_t directory) {
    return plan->spots + (record * plan->directories + directory) * plan->kind_count;
}

/* Whether a record lies right behind the one before it, in a directory at least. */
static int adjoins(const ss_plan *plan, int64_t record) {
    for (int64_t d = 0; d < plan->directories; d++) {
        const ss_spot *before = spots_of(plan, record - 1, d), *spot = spots_of(plan, record, d);
        if (spot->fd == before->fd && spot->offset == before->offset + plan->kinds[0].disk_bytes) return 1;
    }
    return 0;
}

static void choose_directories(ss_plan *plan) {
    int64_t record_bytes = 0, end;
    for (int64_t k = 0; k < plan->kind_count; k++) record_bytes += plan->kinds[k].disk_bytes;
    for (int64_t first = 0; first < plan->record_count; first = end) {
        for (end = first + 1; end < plan->record_count && end - first < SS_MIRROR_RUN && adjoins(plan, end); end++) {}
        int32_t directory = ss_mirrors_choose(plan->mirrors, (end - first) * record_bytes, end - first);
        for (int64_t r = first; r < end; r++) plan->targets[r].directory = directory;
    }
}

static int64_t parts_of(const ss_piece_kind *kind, int64_t part_bytes) {
    return (kind->disk_bytes + part_bytes - 1) / part_bytes;
}

/* About equal parts. */
static int64_t part_length(const ss_piece_kind *kind, int64_t part_bytes) {
    int64_t parts = parts_of(kind, part_bytes), even = (kind->disk_bytes + parts - 1) / parts;
    int64_t whole = (even + PART_UNIT - 1) / PART_UNIT * PART_UNIT;
    return whole < part_bytes ? whole : part_bytes;
}

/* Where a device fetches a piece itself. The host never looks there: a file that became shorter meanwhile is memory that
 * it may not touch, so what is to be checked is read. */
static const char *mapped_at(const ss_plan *plan, int64_t record, int64_t kind, const ss_spot *spot) {
    if (plan->targets[record].check && plan->kinds[kind].check != SS_UNCHECKED) return NULL;
    return ss_mapped_find(plan->mapped, spot->fd, spot->offset, plan->kinds[kind].disk_bytes);
}

static void make_pieces(ss_plan *plan) {
    ss_piece *next = plan->pieces;
    for (int64_t r = 0; r < plan->record_count; r++) {
        const ss_spot *spots = spots_of(plan, r, plan->targets[r].directory);
        for (int64_t k = 0; k < plan->kind_count; k++) {
            const char *mapped = mapped_at(plan, r, k, &spots[k]);
            int64_t bytes = plan->kinds[k].disk_bytes, length = mapped ? bytes : part_length(&plan->kinds[k], plan->part_bytes);
            for (int64_t start = 0; start < bytes; start += length)
                *next++ = (ss_piece){.offset = spots[k].offset + start, .start = start,
                                     .bytes = bytes - start < length ? bytes - start : length, .fd = spots[k].fd,
                                     .kind = (int32_t)k, .record = (int32_t)r, .outcome = SS_CANCELLED,
                                     .mapped = mapped};
        }
    }
    plan->piece_count = next - plan->pieces;
}

static void make_segments(ss_plan *plan, const ss_lane_settings *settings) {
    int64_t merge_bytes = settings->merge_bytes < plan->part_bytes ? settings->merge_bytes : plan->part_bytes;
    int64_t alignment = settings->alignment, most_pieces = settings->device.copy ? SS_COPIES : PIECES_PER_READ;
    qsort(plan->pieces, (size_t)plan->piece_count, sizeof *plan->pieces, by_place);
    ss_segment *last = NULL;
    for (int64_t i = 0; i < plan->piece_count; i++) {
        const ss_piece *piece = &plan->pieces[i];
        if (last && !piece->mapped && !last->mapped && piece->fd == last->fd && piece->offset == last->offset + last->bytes &&
            last->bytes + piece->bytes <= merge_bytes && last->count < most_pieces) {
            last->bytes += piece->bytes;
            last->count++;
        } else {
            last = &plan->segments[plan->segment_count++];
            *last = (ss_segment){.offset = piece->offset, .bytes = piece->bytes, .fd = piece->fd, .first = (int32_t)i,
                                 .count = 1, .directory = plan->targets[piece->record].directory,
                                 .missing = piece->record, .mapped = piece->mapped};
        }
        int64_t whole = piece->mapped ? 0 : last->bytes + (alignment > 1 ? 2 * alignment : 0);
        if (whole > plan->scratch_bytes) plan->scratch_bytes = whole;
    }
}

/* Bytes of the whole blocks around a segment. */
static int64_t blocks_of(const ss_segment *segment, const ss_lane_settings *settings) {
    int64_t needed = segment->offset % settings->alignment + segment->bytes;
    return (needed + settings->alignment - 1) / settings->alignment * settings->alignment;
}

/* What a segment takes of scratch, where each begins with a line of the processor's caches. */
static int64_t room_of(const ss_segment *segment, const ss_lane_settings *settings) {
    return (blocks_of(segment, settings) + SS_LINE - 1) / SS_LINE * SS_LINE;
}

/* On the way to a device a job waits in scratch as a whole: it is counted by what it takes there, and its copies are begun
 * together. */
static void make_jobs(ss_plan *plan, const ss_lane_settings *settings) {
    qsort(plan->segments, (size_t)plan->segment_count, sizeof *plan->segments, by_record);
    int64_t filled = 0, pieces = 0;
    for (int64_t i = 0; i < plan->segment_count; i++) {
        const ss_segment *segment = &plan->segments[i];
        int device = settings->device.copy != NULL, mapped = segment->mapped != NULL;
        int64_t bytes = mapped ? 0 : device ? room_of(segment, settings) : segment->bytes;
        int other = plan->job_count && plan->jobs[plan->job_count - 1].mapped != mapped;
        filled += bytes, pieces += segment->count;
        if (!plan->job_count || other || filled > settings->job_bytes || (device && pieces > SS_COPIES)) {
            plan->jobs[plan->job_count++] = (ss_job){(int32_t)i, 0, mapped};
            plan->mapped_jobs += mapped;
            filled = bytes, pieces = segment->count;
        }
        plan->jobs[plan->job_count - 1].count++;
    }
}

int32_t ss_plan_make(ss_plan *plan, const ss_lane_settings *settings, const ss_piece_kind *kinds, int64_t kind_count,
                     const int64_t *records, int64_t record_count) {
    if (!kinds || !records || kind_count < 1 || kind_count > MOST_KINDS || record_count < 1 ||
        record_count > MOST_RECORDS)
        return SS_BAD_ARGUMENT;
    for (int64_t k = 0; k < kind_count; k++)
        if (!kind_is_usable(&kinds[k]) || (settings->device.copy && kinds[k].change != SS_AS_STORED)) return SS_BAD_SHAPE;
    int64_t directories = settings->mirrors ? ss_mirrors_count(settings->mirrors) : 1;
    *plan = (ss_plan){.kind_count = kind_count, .record_count = record_count, .directories = directories,
                      .part_bytes = settings->device.copy && settings->part_bytes ? settings->part_bytes : INT32_MAX};
    size_t pieces = 0, spots = (size_t)(kind_count * record_count * directories);
    for (int64_t k = 0; k < kind_count; k++) pieces += (size_t)(record_count * parts_of(&kinds[k], plan->part_bytes));
    size_t sizes[] = {(size_t)kind_count * sizeof *plan->kinds, (size_t)record_count * sizeof *plan->targets,
                      spots * sizeof *plan->spots, pieces * sizeof *plan->pieces,
                      pieces * sizeof *plan->segments, pieces * sizeof *plan->jobs};
    size_t total = 0;
    for (int i = 0; i < 6; i++) total += sizes[i] = (sizes[i] + 15) / 16 * 16;
    char *next = plan->memory = malloc(total);
    if (!next) return SS_NO_MEMORY;
    plan->kinds = (ss_piece_kind *)next, next += sizes[0];
    plan->targets = (ss_target *)next, next += sizes[1];
    plan->spots = (ss_spot *)next, next += sizes[2];
    plan->pieces = (ss_piece *)next, next += sizes[3];
    plan->segments = (ss_segment *)next, next += sizes[4];
    plan->jobs = (ss_job *)next;
    int32_t code = copy_arguments(plan, kinds, records);
    if (code == SS_OK) {
        plan->mirrors = settings->mirrors, plan->mapped = settings->mapped, plan->entry = ss_mapped_enter(plan->mapped);
        if (plan->mirrors) choose_directories(plan);
        make_pieces(plan);
        make_segments(plan, settings);
        make_jobs(plan, settings);
        if (plan->scratch_bytes > settings->scratch_bytes) code = SS_TOO_SMALL;
    }
    if (code != SS_OK) {
        for (int64_t job = 0; job < plan->job_count; job++) ss_plan_give_up(plan, job);
        ss_plan_free(plan);
    }
    return code;
}

void ss_plan_free(ss_plan *plan) {
    ss_plan_over(plan);
    free(plan->memory);
    *plan = (ss_plan){0};
}

static char *place_of(const ss_plan *plan, const ss_piece *piece) {
    const ss_piece_kind *kind = &plan->kinds[piece->kind];
    return (char *)kind->slots + plan->targets[piece->record].slot * kind->slot_bytes + piece->start;
}

static int64_t read_system(void *context, int32_t fd, const struct iovec *parts, int32_t count, int64_t offset) {
    (void)context;
    ssize_t read = preadv(fd, parts, count, (off_t)offset);
    return read < 0 ? -(int64_t)errno : (int64_t)read;
}

/* Drop the first `bytes` from a list of buffers; returns how many buffers are left, at the list's start. */
static int32_t advance(struct iovec *parts, int32_t count, int64_t bytes) {
    int32_t passed = 0;
    while (passed < count && (size_t)bytes >= parts[passed].iov_len) bytes -= (int64_t)parts[passed++].iov_len;
    memmove(parts, parts + passed, (size_t)(count - passed) * sizeof *parts);
    if (passed < count) {
        parts[0].iov_base = (char *)parts[0].iov_base + bytes;
        parts[0].iov_len -= (size_t)bytes;
    }
    return count - passed;
}

/* Read until `needed` bytes from `offset` are there; 0 when they are. Else the segment's error and got are set. */
static int read_until(ss_segment *segment, const ss_lane_settings *settings, struct iovec *parts, int32_t count,
                int64_t offset, int64_t needed) {
    ss_read_function read = settings->read ? settings->read : read_system;
    int64_t before = segment->offset - offset, room = 0, done = 0;
    for (int32_t i = 0; i < count; i++) room += (int64_t)parts[i].iov_len;
    while (done < needed) {
        int64_t found = read(settings->context, segment->fd, parts, count, offset + done);
        if (found == -EINTR) continue;
        segment->error = found < 0 ? (int32_t)-found : found > room - done ? EIO : 0;
        if (!segment->error) done += found;
        if (segment->error || found == 0 || (done < needed && done % settings->alignment)) {
            segment->got = done > before ? done - before : 0;
            if (segment->got > segment->bytes) segment->got = segment->bytes;
            return -1;
        }
        if (done < needed) count = advance(parts, count, found);
    }
    segment->got = segment->bytes;
    return 0;
}

/* The same into one buffer, a multiple of SS_LINE, past the processor's caches. */
static int read_past_caches(ss_segment *segment, const ss_lane_settings *settings, char *buffer) {
    char bounce[BOUNCE_BYTES] __attribute__((aligned(SS_LINE)));
    for (int64_t done = 0; done < segment->bytes; done += BOUNCE_BYTES) {
        int64_t left = segment->bytes - done;
        ss_segment some = {.offset = segment->offset + done, .bytes = left < BOUNCE_BYTES ? left : BOUNCE_BYTES, .fd = segment->fd};
        struct iovec part = {bounce, (size_t)some.bytes};
        int failed = read_until(&some, settings, &part, 1, some.offset, some.bytes);
        segment->got = done + some.got, segment->error = some.error;
        if (failed) return -1;
        ss_store_past_caches(buffer + done, bounce, some.bytes);
    }
    ss_end_storing();
    return 0;
}

static int read_somehow(ss_segment *segment, const ss_lane_settings *settings, struct iovec *parts, int32_t count, int64_t offset,
                        int64_t needed) {
    if (settings->device.copy && settings->alignment == 1) return read_past_caches(segment, settings, parts->iov_base);
    return read_until(segment, settings, parts, count, offset, needed);
}

/* The same, and let the directory's throughput be measured. */
static int fill(ss_segment *segment, const ss_lane_settings *settings, struct iovec *parts, int32_t count,
                int64_t offset, int64_t needed) {
    if (!settings->mirrors) return read_somehow(segment, settings, parts, count, offset, needed);
    ss_mirrors_begin(settings->mirrors, segment->directory, now_s());
    int failed = read_somehow(segment, settings, parts, count, offset, needed);
    ss_mirrors_end(settings->mirrors, segment->directory, now_s(), segment->got);
    return failed;
}

static void widen(const char *stored, int64_t count, char *target) {
    for (int64_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, stored + 2 * i, 2);
        uint32_t whole = (uint32_t)half << 16;
        memcpy(target + 4 * i, &whole, 4);
    }
}

/* A float is infinite or NaN when all bits of its exponent are set. */
static int finite16(const char *stored, int64_t bytes) {
    const uint16_t exponent = 0x7f80;
    uint16_t bad = 0;
    for (int64_t i = 0; i < bytes / 2; i++) {
        uint16_t value;
        memcpy(&value, stored + 2 * i, 2);
        bad |= (value & exponent) == exponent;
    }
    return !bad;
}

static int finite32(const char *stored, int64_t bytes) {
    const uint32_t exponent = 0x7f800000;
    uint32_t bad = 0;
    for (int64_t i = 0; i < bytes / 4; i++) {
        uint32_t value;
        memcpy(&value, stored + 4 * i, 4);
        bad |= (value & exponent) == exponent;
    }
    return !bad;
}

static int is_finite(const char *stored, int64_t bytes, int32_t check) {
    switch (check) {
    case SS_FINITE_BFLOAT16: return finite16(stored, bytes);
    case SS_FINITE_FLOAT32: return finite32(stored, bytes);
    default: return 1;
    }
}

int ss_settle_piece(const ss_piece_kind *kind, const char *stored, char *place, int check) {
    if (kind->change == SS_WIDENED) widen(stored, kind->disk_bytes / 2, place);
    else if (stored != place) memcpy(place, stored, (size_t)kind->disk_bytes);
    return !check || is_finite(stored, kind->disk_bytes, kind->check);
}

static void settle(const ss_plan *plan, ss_piece *piece, const char *stored) {
    int sound = ss_settle_piece(&plan->kinds[piece->kind], stored, place_of(plan, piece),
                                plan->targets[piece->record].check);
    piece->outcome = sound ? SS_ARRIVED : SS_NOT_FINITE;
}

/* Read pieces into their slots, or into scratch those that change on the way. */
static int read_in_place(ss_plan *plan, ss_segment *segment, const ss_lane_settings *settings, char *scratch) {
    struct iovec parts[PIECES_PER_READ];
    char *room = scratch;
    for (int32_t i = 0; i < segment->count; i++) {
        const ss_piece *piece = &plan->pieces[segment->first + i];
        const ss_piece_kind *kind = &plan->kinds[piece->kind];
        int changes = kind->change != SS_AS_STORED;
        parts[i] = (struct iovec){changes ? room : place_of(plan, piece), (size_t)kind->disk_bytes};
        if (changes) room += kind->disk_bytes;
    }
    if (fill(segment, settings, parts, segment->count, segment->offset, segment->bytes)) return -1;
    room = scratch;
    for (int32_t i = 0; i < segment->count; i++) {
        ss_piece *piece = &plan->pieces[segment->first + i];
        int changes = plan->kinds[piece->kind].change != SS_AS_STORED;
        settle(plan, piece, changes ? room : place_of(plan, piece));
        if (changes) room += piece->bytes;
    }
    return 0;
}

static void not_copied(ss_plan *plan, ss_segment *segment, int32_t code) {
    segment->error = code;
    for (int32_t i = 0; i < segment->count; i++) plan->pieces[segment->first + i].outcome = SS_NOT_COPIED;
}

/* List the copies of what lies in scratch of some segments; returns how many there are. */
static int64_t list_copies(const ss_plan *plan, const ss_segment *segments, int32_t count, ss_copy *copies) {
    int64_t found = 0;
    for (int32_t s = 0; s < count; s++) {
        const char *stored = segments[s].stored;
        for (int32_t i = 0; stored && i < segments[s].count; i++) {
            const ss_piece *piece = &plan->pieces[segments[s].first + i];
            copies[found++] = (ss_copy){place_of(plan, piece), stored, piece->bytes};
            stored += piece->bytes;
        }
    }
    return found;
}

/* Take in what the copies of some segments came to; their scratch may be written again. */
static void take_copies(ss_plan *plan, ss_segment *segments, int32_t count, int32_t code) {
    for (int32_t s = 0; s < count; s++) {
        if (segments[s].stored && code) not_copied(plan, &segments[s], code);
        segments[s].stored = NULL;
    }
}

/* Copy what lies in scratch of some segments to the device, and wait for that. */
static void copy_at_once(ss_plan *plan, ss_segment *segments, int32_t count, ss_copier *copier) {
    ss_copy copies[SS_COPIES];
    int64_t left = list_copies(plan, segments, count, copies);
    if (left) take_copies(plan, segments, count, ss_copy_all(copier, copies, left));
}

/* Read whole blocks around a segment into scratch; returns where the segment begins there, null when it did not come. */
static char *read_blocks(ss_segment *segment, const ss_lane_settings *settings, char *scratch) {
    int64_t before = segment->offset % settings->alignment;
    struct iovec part = {scratch, (size_t)blocks_of(segment, settings)};
    return fill(segment, settings, &part, 1, segment->offset - before, before + segment->bytes) ? NULL : scratch + before;
}

/* Whether a piece that begins `start` bytes into whole blocks can be read straight into its slot: both consist of whole
 * blocks. On macOS slots may be shared with a GPU, whose memory a read past the cache is not to be made into. */
static int takes_blocks(const ss_plan *plan, const ss_piece *piece, int64_t start, int64_t alignment) {
#if defined(__APPLE__)
    (void)plan, (void)piece, (void)start, (void)alignment;
    return 0;
#else
    const ss_piece_kind *kind = &plan->kinds[piece->kind];
    return kind->change == SS_AS_STORED &&
           ((uint64_t)start | (uint64_t)kind->disk_bytes | (uintptr_t)place_of(plan, piece)) % (uint64_t)alignment == 0;
#endif
}

/* Read whole blocks around a segment: pieces made of whole blocks into their slots, and what lies between these into
 * scratch, at the same distance from its start as from the first block's. */
static int read_by_blocks(ss_plan *plan, ss_segment *segment, const ss_lane_settings *settings, char *scratch) {
    struct iovec parts[2 * PIECES_PER_READ + 1];
    int64_t before = segment->offset % settings->alignment, start = before, kept = 0; /* up to `kept` has a place */
    int32_t count = 0;
    for (int32_t i = 0; i < segment->count; i++) {
        const ss_piece *piece = &plan->pieces[segment->first + i];
        int64_t bytes = piece->bytes;
        if (takes_blocks(plan, piece, start, settings->alignment)) {
            if (start > kept) parts[count++] = (struct iovec){scratch + kept, (size_t)(start - kept)};
            parts[count++] = (struct iovec){place_of(plan, piece), (size_t)bytes};
            kept = start + bytes;
        }
        start += bytes;
    }
    int64_t blocks = blocks_of(segment, settings);
    if (blocks > kept) parts[count++] = (struct iovec){scratch + kept, (size_t)(blocks - kept)};
    if (fill(segment, settings, parts, count, segment->offset - before, before + segment->bytes)) return -1;
    start = before;
    for (int32_t i = 0; i < segment->count; i++) {
        ss_piece *piece = &plan->pieces[segment->first + i];
        int in_place = takes_blocks(plan, piece, start, settings->alignment);
        settle(plan, piece, in_place ? place_of(plan, piece) : scratch + start);
        start += piece->bytes;
    }
    return 0;
}

/* Read a segment into scratch, where it waits for its copy. */
static int read_for_device(ss_plan *plan, ss_segment *segment, const ss_lane_settings *settings, char *scratch) {
    const char *stored = segment->stored = read_blocks(segment, settings, scratch);
    if (!stored) return -1;
    for (int32_t i = 0; i < segment->count; i++) {
        ss_piece *piece = &plan->pieces[segment->first + i];
        int fine = !plan->targets[piece->record].check || is_finite(stored, piece->bytes, plan->kinds[piece->kind].check);
        piece->outcome = fine ? SS_ARRIVED : SS_NOT_FINITE;
        stored += piece->bytes;
    }
    return 0;
}

/* Nothing is read: the copy fetches it. */
static int take_mapped(ss_plan *plan, ss_segment *segment) {
    segment->stored = segment->mapped;
    segment->got = segment->bytes;
    for (int32_t i = 0; i < segment->count; i++) plan->pieces[segment->first + i].outcome = SS_ARRIVED;
    return 0;
}

static int read_any(ss_plan *plan, ss_segment *segment, const ss_lane_settings *settings, char *scratch) {
    int failed = segment->mapped           ? take_mapped(plan, segment)
                 : settings->device.copy   ? read_for_device(plan, segment, settings, scratch)
                 : settings->alignment > 1 ? read_by_blocks(plan, segment, settings, scratch)
                                           : read_in_place(plan, segment, settings, scratch);
    int64_t end = 0;
    for (int32_t i = 0; failed && i < segment->count; i++) { /* whose is the first byte that did not come */
        const ss_piece *piece = &plan->pieces[segment->first + i];
        end += piece->bytes;
        segment->missing = piece->record;
        if (end > segment->got) break;
    }
    return failed;
}

/* Read one piece of a segment that did not come in another directory, as long as there is one; 0 when it came. Else
 * `failed` becomes the last read of it. */
static int read_piece_elsewhere(ss_plan *plan, ss_segment *failed, int32_t number, const ss_lane_settings *settings,
                                char *scratch, ss_copier *copier, ss_job_result *result) {
    const ss_piece *piece = &plan->pieces[number];
    int64_t bytes = piece->bytes;
    for (;;) {
        ss_fault fault = {failed->fd, failed->error, failed->offset, failed->bytes, failed->got};
        int32_t newly, other = ss_mirrors_leave_out(plan->mirrors, failed->directory, &fault, bytes, &newly);
        result->left_out += newly;
        if (other < 0) return -1;
        const ss_spot *spot = &spots_of(plan, piece->record, other)[piece->kind];
        ss_segment one = {.offset = spot->offset + piece->start, .bytes = bytes, .fd = spot->fd, .first = number, .count = 1,
                          .directory = other, .missing = piece->record};
        int lost = read_any(plan, &one, settings, scratch);
        copy_at_once(plan, &one, 1, copier);
        if (lost || piece->outcome == SS_NOT_COPIED) *failed = one;
        if (!lost) return 0;
    }
}

/* After a read failed: bring its pieces from where else they lie. `segment` keeps the last failure, if one remains. */
static void read_elsewhere(ss_plan *plan, ss_segment *segment, const ss_lane_settings *settings, char *scratch,
                           ss_copier *copier, ss_job_result *result) {
    ss_segment kept = *segment;
    for (int32_t i = 0; i < kept.count; i++) {
        ss_segment failed = kept;
        ss_piece *piece = &plan->pieces[kept.first + i];
        if (read_piece_elsewhere(plan, &failed, kept.first + i, settings, scratch, copier, result)) {
            piece->outcome = SS_NOT_READ;
            *segment = failed;
        } else if (piece->outcome == SS_NOT_COPIED) {
            *segment = failed;
        } else {
            result->bytes += piece->bytes;
        }
    }
    segment->first = kept.first, segment->count = kept.count;
}

static void settle_queue(const ss_plan *plan, int32_t directory, int64_t bytes) {
    if (plan->mirrors) ss_mirrors_settle(plan->mirrors, directory, bytes);
}

int64_t ss_plan_read(ss_plan *plan, int64_t number, const ss_lane_settings *settings, char *scratch, ss_copier *copier,
                     const atomic_int *stopped, ss_job_result *result, ss_copy *copies) {
    int32_t first = plan->jobs[number].first, end = first + plan->jobs[number].count, copying = first;
    int64_t used = 0; /* of scratch, by what waits for its copy */
    for (int32_t s = first; s < end; s++) {
        ss_segment *segment = &plan->segments[s];
        int32_t directory = segment->directory;
        int64_t bytes = segment->bytes;
        if (!atomic_load_explicit(stopped, memory_order_relaxed)) {
            int failed = read_any(plan, segment, settings, scratch + used);
            if (settings->device.copy && !segment->mapped) used += room_of(segment, settings);
            if (!failed) result->bytes += bytes;
            for (int32_t i = 0; failed && i < segment->count; i++)
                plan->pieces[segment->first + i].outcome = SS_NOT_READ;
            if (failed && plan->mirrors) {
                copy_at_once(plan, &plan->segments[copying], s - copying, copier);
                read_elsewhere(plan, segment, settings, scratch, copier, result);
                copying = s + 1, used = 0;
            }
        }
        settle_queue(plan, directory, bytes);
    }
    return list_copies(plan, &plan->segments[copying], end - copying, copies);
}

void ss_plan_close(ss_plan *plan, int64_t number, int32_t code, ss_job_result *result) {
    int32_t first = plan->jobs[number].first, end = first + plan->jobs[number].count;
    take_copies(plan, &plan->segments[first], end - first, code);
    for (int32_t s = first; s < end; s++)
        for (int32_t i = 0; i < plan->segments[s].count; i++)
            result->failures += plan->pieces[plan->segments[s].first + i].outcome != SS_ARRIVED;
}

int32_t ss_plan_give_up(ss_plan *plan, int64_t number) {
    const ss_job *job = &plan->jobs[number];
    int32_t pieces = 0; /* their outcome is SS_CANCELLED from the start */
    for (int32_t s = job->first; s < job->first + job->count; s++) {
        pieces += plan->segments[s].count;
        settle_queue(plan, plan->segments[s].directory, plan->segments[s].bytes);
    }
    return pieces;
}

int64_t ss_plan_failures(const ss_plan *plan, ss_failure *failures, int64_t count) {
    int64_t found = 0;
    for (int64_t s = 0; s < plan->segment_count; s++) {
        const ss_segment *segment = &plan->segments[s];
        for (int32_t i = 0; i < segment->count; i++) {
            const ss_piece *piece = &plan->pieces[segment->first + i];
            if (piece->outcome == SS_ARRIVED) continue;
            if (found < count)
                failures[found] = (ss_failure){.outcome = piece->outcome, .error = segment->error,
                                               .record = piece->record, .kind = piece->kind,
                                               .first_missing = segment->missing, .fd = segment->fd,
                                               .offset = segment->offset, .wanted = segment->bytes,
                                               .got = segment->got};
            found++;
        }
    }
    return found;
}
