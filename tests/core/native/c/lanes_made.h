/* A small file of records, a way to read that a test directs, and lanes over both. */
#ifndef LANES_MADE_H
#define LANES_MADE_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "lanes.h"

enum { KINDS = 3, RECORDS = 40, SLOTS = 16, GAP = 26, ALIGNED = 4096, LONG = 1 << 20 };
static const int64_t disk[KINDS] = {1000, 80, 60};
static const int64_t slot[KINDS] = {1000, 160, 60};
static int64_t start[KINDS];

static uint64_t seed = 88172645463325252ull;
static uint32_t number(uint32_t below) {
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return (uint32_t)(seed >> 33) % below;
}

typedef struct script {
    pthread_mutex_t lock;
    pthread_cond_t change;
    int open, entered;
    int64_t fail_from, fail_to; /* offsets */
    int error, interrupts, most, calls;
} script;

static int64_t scripted(void *context, int32_t fd, const struct iovec *parts, int32_t count, int64_t offset) {
    script *s = context;
    pthread_mutex_lock(&s->lock);
    s->entered++, s->calls++;
    pthread_cond_broadcast(&s->change);
    while (!s->open) pthread_cond_wait(&s->change, &s->lock);
    int interrupt = s->interrupts > 0 && s->interrupts--;
    int64_t total = 0;
    for (int32_t i = 0; i < count; i++) total += (int64_t)parts[i].iov_len;
    int fails = s->error >= 0 && offset < s->fail_to && offset + total > s->fail_from;
    int error = s->error, most = s->most;
    pthread_mutex_unlock(&s->lock);
    if (interrupt) return -EINTR;
    if (fails) return -error;
    struct iovec first = parts[0];
    if (most && first.iov_len > (size_t)most) first.iov_len = (size_t)most;
    ssize_t found = most ? preadv(fd, &first, 1, offset) : preadv(fd, parts, count, offset);
    return found < 0 ? -errno : found;
}

static script fresh(void) {
    script s = {.open = 1, .error = -1};
    pthread_mutex_init(&s.lock, NULL);
    pthread_cond_init(&s.change, NULL);
    return s;
}

static inline void set_open(script *s, int open) {
    pthread_mutex_lock(&s->lock);
    s->open = open;
    pthread_cond_broadcast(&s->change);
    pthread_mutex_unlock(&s->lock);
}

static inline void await_entry(script *s, int count) {
    pthread_mutex_lock(&s->lock);
    while (s->entered < count) pthread_cond_wait(&s->change, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

typedef struct place {
    char *contents; /* of the file */
    int64_t size;
    int fd, direct_fd;
    char *slots[KINDS];
    ss_piece_kind kinds[KINDS];
} place;

static place make_file(void) {
    place p = {0};
    int64_t at = GAP;
    for (int k = 0; k < KINDS; k++) start[k] = at, at += disk[k] * RECORDS;
    p.size = at;
    p.contents = malloc((size_t)p.size);
    for (int64_t i = 0; i < p.size; i++) p.contents[i] = (char)number(256);
    for (int64_t i = start[1]; i + 1 < start[2]; i += 2) p.contents[i + 1] &= 0x3f; /* finite bfloat16 */
    for (int64_t i = start[2]; i + 3 < p.size; i += 4) p.contents[i + 3] &= 0x3f;   /* finite float32 */
    char name[] = "lanes_test_XXXXXX";
    p.fd = mkstemp(name);
    CHECK(p.fd >= 0 && write(p.fd, p.contents, (size_t)p.size) == p.size && fsync(p.fd) == 0);
    p.direct_fd = open(name, O_RDONLY | O_DIRECT);
    unlink(name);
    for (int k = 0; k < KINDS; k++) {
        p.slots[k] = malloc((size_t)(slot[k] * SLOTS));
        p.kinds[k] = (ss_piece_kind){p.slots[k], SLOTS, slot[k], disk[k], k == 1 ? SS_WIDENED : SS_AS_STORED,
                                     k == 1 ? SS_FINITE_BFLOAT16 : k == 2 ? SS_FINITE_FLOAT32 : SS_UNCHECKED};
    }
    return p;
}

static void free_file(place *p) {
    for (int k = 0; k < KINDS; k++) free(p->slots[k]);
    free(p->contents);
    close(p->fd);
    if (p->direct_fd >= 0) close(p->direct_fd);
}

static char *block(int parts) {
    void *memory = NULL;
    CHECK(posix_memalign(&memory, ALIGNED, (size_t)parts * LONG) == 0);
    return memory;
}

static ss_lane_settings settings_of(char *scratch, int demand, int ahead, script *s) {
    return (ss_lane_settings){.demand_lanes = demand, .ahead_lanes = ahead, .staging = 1, .alignment = 1, .merge_bytes = 4000,
                              .job_bytes = 1500, .scratch = scratch, .scratch_bytes = LONG, .scratch_stride = LONG,
                              .ahead_scratch = scratch + (demand + 1) * LONG, .ahead_scratch_bytes = LONG,
                              .ahead_scratch_stride = LONG, .read = s ? scripted : NULL, .context = s};
}

static inline ss_batch *plan(ss_lanes *lanes, place *p, int fd, const int *records, const int *slots, int count) {
    int64_t numbers[RECORDS * (2 + 2 * KINDS)], *next = numbers;
    for (int r = 0; r < count; r++) {
        *next++ = slots[r], *next++ = 1;
        for (int k = 0; k < KINDS; k++) *next++ = fd, *next++ = start[k] + records[r] * disk[k];
    }
    ss_batch *batch = NULL;
    CHECK(ss_batch_create(lanes, p->kinds, KINDS, numbers, count, &batch) == SS_OK);
    return batch;
}

static inline void check_record(const place *p, int record, int where) {
    const char *a = p->contents + start[0] + record * disk[0], *b = p->contents + start[1] + record * disk[1];
    CHECK(memcmp(p->slots[0] + where * slot[0], a, (size_t)disk[0]) == 0);
    CHECK(memcmp(p->slots[2] + where * slot[2], p->contents + start[2] + record * disk[2], (size_t)disk[2]) == 0);
    for (int64_t i = 0; i < disk[1] / 2; i++) {
        uint32_t whole;
        uint16_t half;
        memcpy(&whole, p->slots[1] + where * slot[1] + 4 * i, 4);
        memcpy(&half, b + 2 * i, 2);
        CHECK(whole == (uint32_t)half << 16);
    }
}

static void finish(ss_lanes *lanes) {
    CHECK(ss_lanes_close(lanes, 60000) == 0);
    ss_lanes_release(lanes);
}

/* Distinct records and slots. */
static int draw(int *records, int *slots) {
    int count = 1 + (int)number(SLOTS);
    int first = (int)number(RECORDS), step = number(2) ? 1 : 3, turn = (int)number(SLOTS);
    for (int i = 0; i < count; i++) records[i] = (first + i * step) % RECORDS, slots[i] = (turn + i * 5) % SLOTS;
    return count;
}

/* A device whose copies arrive when they are waited for. */
typedef struct copies {
    struct {
        void *target;
        const void *source;
        size_t bytes;
    } begun[1024];
    int count;
} copies;
static _Atomic int streams, copy_error;
static copies *made[64];

static int32_t make_stream(void **stream, uint32_t flags) {
    CHECK(flags == 1);
    CHECK(++streams <= 64);
    *stream = made[streams - 1] = calloc(1, sizeof(copies));
    return 0;
}
static int32_t begin_copy(void *target, const void *source, size_t bytes, int32_t direction, void *stream) {
    copies *c = stream;
    CHECK(direction == 4 && c->count < 1024);
    if (copy_error) return copy_error;
    c->begun[c->count].target = target, c->begun[c->count].source = source, c->begun[c->count++].bytes = bytes;
    return 0;
}
static int32_t finish_copies(void *stream) {
    copies *c = stream;
    for (int i = 0; i < c->count; i++) memcpy(c->begun[i].target, c->begun[i].source, c->begun[i].bytes);
    c->count = 0;
    return 0;
}

static void free_streams(void) {
    while (streams) free(made[--streams]);
}

/* Two kinds of a record that are the same on a device as on disk. */
static void list_for_device(const place *p, const int *records, const int *slots, int count, int64_t *numbers) {
    for (int r = 0; r < count; r++) {
        *numbers++ = slots[r], *numbers++ = 1;
        for (int k = 0; k < KINDS; k += 2) *numbers++ = p->fd, *numbers++ = start[k] + records[r] * disk[k];
    }
}

#endif
