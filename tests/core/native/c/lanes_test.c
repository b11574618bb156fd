/* The reading lanes against plain reads: random records of a small file in every mode, faults, cancellation, closing. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lanes_made.h"

static void read_at_random(place *p, int demand, int ahead, int direct, int rounds) {
    char *scratch = block(demand + 1 + ahead);
    script s = fresh();
    ss_lane_settings settings = settings_of(scratch, demand, ahead, direct ? NULL : &s);
    if (direct) settings.alignment = ALIGNED;
    ss_lanes *lanes = NULL;
    CHECK(ss_lanes_create(&settings, &lanes) == SS_OK);
    for (int round = 0; round < rounds; round++) {
        int records[SLOTS], slots[SLOTS], count = draw(records, slots), way = ahead ? (int)number(3) : 0;
        for (int k = 0; k < KINDS; k++) memset(p->slots[k], 0x55, (size_t)(slot[k] * SLOTS));
        pthread_mutex_lock(&s.lock);
        s.interrupts = (int)number(3), s.most = number(4) ? 0 : 1 + (int)number(900);
        pthread_mutex_unlock(&s.lock);
        ss_batch *batch = plan(lanes, p, direct ? p->direct_fd : p->fd, records, slots, count);
        CHECK(ss_batch_reads(batch) >= 1 && ss_batch_reads(batch) <= count * KINDS);
        if (way) CHECK(ss_batch_read_ahead(batch) == SS_OK);
        if (way != 1) CHECK(ss_batch_submit(batch) == SS_OK);
        while (!ss_batch_wait(batch, 1000)) {}
        const ss_batch_state *state = ss_batch_state_of(batch);
        CHECK(state->done && !state->failures && state->bytes_read == count * (disk[0] + disk[1] + disk[2]));
        CHECK(ss_batch_failures(batch, NULL, 0) == 0);
        for (int i = 0; i < count; i++) check_record(p, records[i], slots[i]);
        ss_batch_release(batch);
    }
    finish(lanes);
    free(scratch);
}

/* Notes whether a read goes into a range of memory, and reads a block at a time if told so. */
typedef struct watched {
    const char *from, *to;
    int inside, outside, by_block;
} watched;

static int64_t noting(void *context, int32_t fd, const struct iovec *parts, int32_t count, int64_t offset) {
    watched *w = context;
    for (int32_t i = 0; i < count; i++) {
        const char *base = parts[i].iov_base;
        CHECK((uintptr_t)base % ALIGNED == 0 && parts[i].iov_len % ALIGNED == 0 && offset % ALIGNED == 0);
        if (base >= w->from && base < w->to) w->inside++;
        else w->outside++;
    }
    struct iovec first = {parts[0].iov_base, ALIGNED};
    ssize_t found = w->by_block ? preadv(fd, &first, 1, offset) : preadv(fd, parts, count, offset);
    return found < 0 ? -errno : found;
}

/* Records of three blocks: a piece of two, and two halves of one of which the first is widened. Where blocks of the file
 * and of the slots coincide, the first piece never comes through scratch. */
static void read_whole_blocks_in_place(void) {
    enum { WHOLE = 2 * ALIGNED, HALF = ALIGNED / 2, RECORD = 3 * ALIGNED, COUNT = 5 };
    int64_t size = 2 * ALIGNED + COUNT * RECORD;
    char *contents = malloc((size_t)size), *scratch = block(2), *slots = block(1);
    for (int64_t i = 0; i < size; i++) contents[i] = (char)(number(256) & 0x3f); /* finite */
    char name[] = "lanes_test_XXXXXX";
    int fd = mkstemp(name);
    CHECK(fd >= 0 && write(fd, contents, (size_t)size) == size);
    unlink(name);
    for (int way = 0; way < 6; way++) {
        int64_t in_file = way % 3 == 1 ? 512 : 0, in_memory = way % 3 == 2 ? 64 : 0;
        watched w = {.from = slots, .to = slots + LONG, .by_block = way >= 3};
        ss_lane_settings settings = settings_of(scratch, 1, 0, NULL);
        settings.alignment = ALIGNED, settings.merge_bytes = 1 << 16, settings.read = noting, settings.context = &w;
        char *whole = slots + in_memory, *wide = slots + LONG / 4, *half = slots + LONG / 2;
        ss_piece_kind kinds[] = {{whole, COUNT, WHOLE, WHOLE, SS_AS_STORED, SS_UNCHECKED},
                                 {wide, COUNT, 2 * HALF, HALF, SS_WIDENED, SS_FINITE_BFLOAT16},
                                 {half, COUNT, HALF, HALF, SS_AS_STORED, SS_FINITE_FLOAT32}};
        ss_lanes *lanes = NULL;
        CHECK(ss_lanes_create(&settings, &lanes) == SS_OK);
        int64_t numbers[COUNT * 8], *next = numbers;
        for (int r = 0; r < COUNT; r++) {
            int64_t at = ALIGNED + in_file + r * RECORD;
            int64_t one[] = {COUNT - 1 - r, 1, fd, at, fd, at + WHOLE, fd, at + WHOLE + HALF};
            memcpy(next, one, sizeof one), next += 8;
        }
        memset(slots, 0x55, LONG);
        ss_batch *batch = NULL;
        CHECK(ss_batch_create(lanes, kinds, 3, numbers, COUNT, &batch) == SS_OK);
        CHECK(ss_batch_submit(batch) == SS_OK);
        while (!ss_batch_wait(batch, 1000)) {}
        CHECK(!ss_batch_state_of(batch)->failures && ss_batch_state_of(batch)->bytes_read == COUNT * RECORD);
        for (int r = 0; r < COUNT; r++) {
            int64_t where = COUNT - 1 - r;
            const char *stored = contents + ALIGNED + in_file + r * RECORD;
            CHECK(memcmp(whole + where * WHOLE, stored, WHOLE) == 0);
            CHECK(memcmp(half + where * HALF, stored + WHOLE + HALF, HALF) == 0);
            for (int i = 0; i < HALF / 2; i++)
                CHECK(memcmp(wide + where * 2 * HALF + 4 * i, "\0\0", 2) == 0 &&
                      memcmp(wide + where * 2 * HALF + 4 * i + 2, stored + WHOLE + 2 * i, 2) == 0);
        }
        CHECK((w.inside > 0) == (way % 3 == 0) && w.outside > 0);
        ss_batch_release(batch);
        finish(lanes);
    }
    close(fd);
    free(contents);
    free(scratch);
    free(slots);
}

static void report_faults(place *p) {
    char *scratch = block(3);
    script s = fresh();
    ss_lane_settings settings = settings_of(scratch, 2, 0, &s);
    ss_lanes *lanes = NULL;
    CHECK(ss_lanes_create(&settings, &lanes) == SS_OK);
    int records[] = {3, 4, 9}, slots[] = {0, 1, 2};
    ss_failure failures[9];

    s.error = EIO, s.fail_from = start[1] + 9 * disk[1], s.fail_to = s.fail_from + 1; /* the scales of record 9 */
    ss_batch *batch = plan(lanes, p, p->fd, records, slots, 3);
    CHECK(ss_batch_submit(batch) == SS_OK);
    while (!ss_batch_wait(batch, 1000)) {}
    CHECK(ss_batch_failures(batch, failures, 9) == 1);
    CHECK(failures[0].outcome == SS_NOT_READ && failures[0].error == EIO && failures[0].record == 2);
    CHECK(failures[0].first_missing == 2 && failures[0].kind == 1 && failures[0].fd == p->fd);
    CHECK(failures[0].offset == start[1] + 9 * disk[1] && failures[0].wanted == disk[1] && failures[0].got == 0);
    for (int i = 0; i < 2; i++) check_record(p, records[i], slots[i]);
    ss_batch_release(batch);

    s.error = -1;
    batch = plan(lanes, p, -0 + 1000000, records, slots, 1); /* no such descriptor */
    CHECK(ss_batch_submit(batch) == SS_OK);
    while (!ss_batch_wait(batch, 1000)) {}
    CHECK(ss_batch_failures(batch, failures, 9) == KINDS && failures[0].error == EBADF);
    ss_batch_release(batch);

    CHECK(ftruncate(p->fd, start[2] + 5 * disk[2] - 7) == 0); /* the last piece of record 4 lacks 7 bytes */
    batch = plan(lanes, p, p->fd, records, slots, 2);
    CHECK(ss_batch_submit(batch) == SS_OK);
    while (!ss_batch_wait(batch, 1000)) {}
    CHECK(ss_batch_failures(batch, failures, 9) == 2); /* read together with its neighbour */
    for (int i = 0; i < 2; i++) {
        CHECK(failures[i].outcome == SS_NOT_READ && failures[i].error == 0 && failures[i].first_missing == 1);
        CHECK(failures[i].wanted == 2 * disk[2] && failures[i].got == 2 * disk[2] - 7 && failures[i].kind == 2);
    }
    ss_batch_release(batch);

    uint16_t infinite = 0x7f80;
    CHECK(pwrite(p->fd, p->contents, (size_t)p->size, 0) == p->size);
    CHECK(pwrite(p->fd, &infinite, 2, start[1] + 4 * disk[1] + 6) == 2);
    batch = plan(lanes, p, p->fd, records, slots, 3);
    CHECK(ss_batch_submit(batch) == SS_OK);
    while (!ss_batch_wait(batch, 1000)) {}
    CHECK(ss_batch_failures(batch, failures, 9) == 1);
    CHECK(failures[0].outcome == SS_NOT_FINITE && failures[0].record == 1 && failures[0].kind == 1);
    ss_batch_release(batch);
    CHECK(pwrite(p->fd, p->contents, (size_t)p->size, 0) == p->size);
    finish(lanes);
    free(scratch);
}

static void keep_order(place *p) {
    char *scratch = block(3);
    script s = fresh();
    ss_lane_settings settings = settings_of(scratch, 1, 1, &s);
    ss_lanes *lanes = NULL;
    CHECK(ss_lanes_create(&settings, &lanes) == SS_OK);
    int one[] = {1}, two[] = {2}, three[] = {3}, zero[] = {0}, first[] = {1}, second[] = {2};
    set_open(&s, 0);
    ss_batch *demand = plan(lanes, p, p->fd, one, zero, 1);
    ss_batch *ahead = plan(lanes, p, p->fd, two, first, 1), *other = plan(lanes, p, p->fd, three, second, 1);
    CHECK(ss_batch_submit(demand) == SS_OK);
    await_entry(&s, 1);
    CHECK(ss_batch_read_ahead(ahead) == SS_OK && ss_batch_read_ahead(other) == SS_OK);
    CHECK(!ss_batch_wait(ahead, 0) && s.calls == 1); /* nothing is read ahead meanwhile */
    CHECK(ss_batch_retract(other) == 1 && ss_batch_wait(other, 0) == 1);
    CHECK(ss_batch_state_of(other)->failures == 0 && ss_batch_retract(other) == 0);
    CHECK(ss_batch_retract(demand) == 0);
    set_open(&s, 1);
    while (!ss_batch_wait(ahead, 1000)) {}
    CHECK(ss_batch_wait(demand, 0) == 1); /* or the other would not have begun */
    check_record(p, 1, 0);
    check_record(p, 2, 1);
    ss_batch_release(demand);
    ss_batch_release(ahead);
    ss_batch_release(other);

    set_open(&s, 0);
    s.entered = 0;
    int many[] = {10, 13, 16, 19, 22}, places[] = {0, 1, 2, 3, 4};
    demand = plan(lanes, p, p->fd, many, places, 5);
    CHECK(ss_batch_submit(demand) == SS_OK);
    await_entry(&s, 1);
    ss_batch_cancel(demand);
    CHECK(!ss_batch_wait(demand, 0)); /* a read is under way */
    set_open(&s, 1);
    while (!ss_batch_wait(demand, 1000)) {}
    ss_failure failures[15];
    int64_t count = ss_batch_failures(demand, failures, 15);
    CHECK(count > 0 && count < 15);
    for (int64_t i = 0; i < count; i++) CHECK(failures[i].outcome == SS_CANCELLED);
    ss_batch_release(demand);
    finish(lanes);
    free(scratch);
}

static void close_meanwhile(place *p) {
    char *scratch = block(2);
    script s = fresh();
    ss_lane_settings settings = settings_of(scratch, 1, 0, &s);
    ss_lanes *lanes = NULL;
    CHECK(ss_lanes_create(&settings, &lanes) == SS_OK);
    int one[] = {1}, two[] = {2}, zero[] = {0}, first[] = {1};
    set_open(&s, 0);
    ss_batch *stuck = plan(lanes, p, p->fd, one, zero, 1), *queued = plan(lanes, p, p->fd, two, first, 1);
    CHECK(ss_batch_submit(stuck) == SS_OK && ss_batch_submit(queued) == SS_OK);
    await_entry(&s, 1);
    CHECK(ss_lanes_close(lanes, 0) == 1);
    CHECK(ss_batch_wait(queued, 0) == 1 && ss_batch_state_of(queued)->failures == KINDS);
    CHECK(!ss_batch_wait(stuck, 0));
    CHECK(ss_batch_read_ahead(stuck) == SS_BAD_ARGUMENT); /* there are no such lanes */
    ss_batch *late = plan(lanes, p, p->fd, two, first, 1);
    CHECK(ss_batch_submit(late) == SS_OK && ss_batch_wait(late, 0) == 1);
    CHECK(ss_batch_state_of(late)->failures == KINDS);
    set_open(&s, 1);
    CHECK(ss_lanes_close(lanes, 60000) == 0);
    ss_lanes_release(lanes);
    CHECK(ss_batch_wait(stuck, 0) == 1); /* batches outlive their lanes */
    ss_batch_release(stuck);
    ss_batch_release(queued);
    ss_batch_release(late);
    free(scratch);
}

static void refuse(place *p) {
    char *scratch = block(2);
    ss_lane_settings good = settings_of(scratch, 1, 0, NULL), bad;
    ss_lanes *lanes = NULL;
    CHECK(ss_lanes_create(NULL, &lanes) == SS_BAD_ARGUMENT && ss_lanes_create(&good, NULL) == SS_BAD_ARGUMENT);
    bad = good, bad.demand_lanes = 0;
    CHECK(ss_lanes_create(&bad, &lanes) == SS_BAD_ARGUMENT);
    bad = good, bad.alignment = 3;
    CHECK(ss_lanes_create(&bad, &lanes) == SS_BAD_ARGUMENT);
    bad = good, bad.part_bytes = 100;
    CHECK(ss_lanes_create(&bad, &lanes) == SS_BAD_ARGUMENT);
    bad = good, bad.device.copy = begin_copy, bad.device.finish = finish_copies, bad.device.stream = make_stream;
    bad.job_bytes = LONG + 1;
    CHECK(ss_lanes_create(&bad, &lanes) == SS_BAD_ARGUMENT);
    bad = good, bad.scratch_stride = 10;
    CHECK(ss_lanes_create(&bad, &lanes) == SS_BAD_ARGUMENT);
    bad = good, bad.scratch_bytes = 999;
    CHECK(ss_lanes_create(&bad, &lanes) == SS_OK);
    int64_t record[] = {0, 1, p->fd, start[0], p->fd, start[1], p->fd, start[2]};
    ss_batch *batch = NULL;
    CHECK(ss_batch_create(lanes, p->kinds, KINDS, record, 1, &batch) == SS_TOO_SMALL);
    finish(lanes);
    CHECK(ss_lanes_create(&good, &lanes) == SS_OK);
    CHECK(ss_batch_create(lanes, p->kinds, KINDS, record, 0, &batch) == SS_BAD_ARGUMENT);
    CHECK(ss_batch_create(lanes, p->kinds, 0, record, 1, &batch) == SS_BAD_ARGUMENT);
    record[0] = SLOTS;
    CHECK(ss_batch_create(lanes, p->kinds, KINDS, record, 1, &batch) == SS_OUT_OF_RANGE);
    record[0] = 0, record[3] = -1;
    CHECK(ss_batch_create(lanes, p->kinds, KINDS, record, 1, &batch) == SS_OUT_OF_RANGE);
    record[3] = start[0];
    ss_piece_kind kinds[KINDS];
    memcpy(kinds, p->kinds, sizeof kinds);
    kinds[1].slot_bytes = disk[1];
    CHECK(ss_batch_create(lanes, kinds, KINDS, record, 1, &batch) == SS_BAD_SHAPE);
    CHECK(ss_batch_create(lanes, p->kinds, KINDS, record, 1, &batch) == SS_OK);
    ss_batch_release(batch); /* never submitted */
    finish(lanes);
    free(scratch);
}

/* Pieces in parts, read by several lanes and copied separately: every byte arrives; of what does not come, the part is told. */
static void copy_in_parts(place *p, int64_t part, int alignment) {
    enum { DEMANDING = 3, AHEAD_TOO = 2 };
    char *scratch = block(2 * DEMANDING + 1 + 2 * AHEAD_TOO);
    script s = fresh();
    ss_lane_settings settings = settings_of(scratch, DEMANDING, AHEAD_TOO, alignment > 1 ? NULL : &s);
    settings.device = (ss_device){.copy = begin_copy, .finish = finish_copies, .stream = make_stream};
    settings.staging = 2, settings.alignment = alignment, settings.part_bytes = part, settings.job_bytes = part;
    settings.ahead_scratch = scratch + (2 * DEMANDING + 1) * LONG;
    ss_piece_kind kinds[] = {p->kinds[0], p->kinds[2]};
    ss_lanes *lanes = NULL;
    CHECK(ss_lanes_create(&settings, &lanes) == SS_OK);
    int64_t numbers[SLOTS * 6];
    for (int round = 0; round < 100; round++) {
        int records[SLOTS], slots[SLOTS], count = draw(records, slots);
        for (int k = 0; k < KINDS; k += 2) memset(p->slots[k], 0x55, (size_t)(slot[k] * SLOTS));
        list_for_device(p, records, slots, count, numbers);
        ss_batch *batch = NULL;
        CHECK(ss_batch_create(lanes, kinds, 2, numbers, count, &batch) == SS_OK);
        CHECK(ss_batch_reads(batch) >= count * (disk[0] / part));
        CHECK((round % 3 ? ss_batch_submit(batch) : ss_batch_read_ahead(batch)) == SS_OK);
        while (!ss_batch_wait(batch, 1000)) {}
        CHECK(!ss_batch_state_of(batch)->failures && ss_batch_state_of(batch)->bytes_read == count * (disk[0] + disk[2]));
        for (int i = 0; i < count; i++)
            for (int k = 0; k < KINDS; k += 2)
                CHECK(!memcmp(p->slots[k] + slots[i] * slot[k], p->contents + start[k] + records[i] * disk[k], (size_t)disk[k]));
        ss_batch_release(batch);
    }
    if (alignment == 1) {
        int records[] = {3, 20}, slots[] = {0, 1};
        int64_t lost = start[0] + 20 * disk[0] + 2 * part;
        s.error = EIO, s.fail_from = lost, s.fail_to = lost + 1;
        list_for_device(p, records, slots, 2, numbers);
        ss_batch *batch = NULL;
        ss_failure failures[9];
        CHECK(ss_batch_create(lanes, kinds, 2, numbers, 2, &batch) == SS_OK && ss_batch_submit(batch) == SS_OK);
        while (!ss_batch_wait(batch, 1000)) {}
        CHECK(ss_batch_failures(batch, failures, 9) == 1 && failures[0].outcome == SS_NOT_READ);
        CHECK(failures[0].record == 1 && failures[0].kind == 0 && failures[0].first_missing == 1);
        CHECK(failures[0].offset <= lost && lost < failures[0].offset + failures[0].wanted && failures[0].wanted <= part);
        ss_batch_release(batch);
    }
    finish(lanes);
    free_streams();
    free(scratch);
}

static void copy_to_a_device(place *p) {
    char *scratch = block(2);
    ss_lane_settings settings = settings_of(scratch, 1, 0, NULL);
    settings.device = (ss_device){.copy = begin_copy, .finish = finish_copies, .stream = make_stream};
    ss_lanes *lanes = NULL;
    CHECK(ss_lanes_create(&settings, &lanes) == SS_OK);
    int64_t record[] = {3, 1, p->fd, start[0] + 7 * disk[0], p->fd, start[2] + 7 * disk[2]};
    ss_piece_kind kinds[] = {p->kinds[0], p->kinds[2]};
    for (int round = 0; round < 3; round++) {
        memset(p->slots[0], 0, (size_t)(slot[0] * SLOTS));
        copy_error = round == 1 ? 700 : 0;
        ss_batch *batch = NULL;
        ss_failure failure;
        CHECK(ss_batch_create(lanes, kinds, 2, record, 1, &batch) == SS_OK && ss_batch_submit(batch) == SS_OK);
        while (!ss_batch_wait(batch, 1000)) {}
        CHECK(ss_batch_failures(batch, &failure, 1) == (copy_error ? 2 : 0));
        if (copy_error) CHECK(failure.outcome == SS_NOT_COPIED && failure.error == 700);
        else CHECK(memcmp(p->slots[0] + 3 * slot[0], p->contents + start[0] + 7 * disk[0], (size_t)disk[0]) == 0);
        ss_batch_release(batch);
    }
    CHECK(streams == 1);
    ss_batch *batch = NULL;
    record[5] = start[1];
    CHECK(ss_batch_create(lanes, p->kinds, 2, record, 1, &batch) == SS_BAD_SHAPE); /* a device's pieces never change */
    finish(lanes);
    free_streams();
    free(scratch);
}

#if !defined(WITHOUT_FORK)
static void leave_a_forked_child_alone(void) {
    char *scratch = block(3);
    ss_lane_settings settings = settings_of(scratch, 2, 0, NULL);
    ss_lanes *lanes = NULL;
    CHECK(ss_lanes_create(&settings, &lanes) == SS_OK);
    pid_t child = fork();
    if (child == 0) {
        int closed = ss_lanes_close(lanes, 60000);
        ss_lanes_release(lanes);
        _exit(closed);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    finish(lanes);
    free(scratch);
}
#endif

/* A directory that cannot be read, and another one: what is copied comes from that. */
static void copy_from_elsewhere(place *p, int64_t part) {
    char *scratch = block(2);
    ss_mirrors *mirrors = NULL;
    CHECK(ss_mirrors_create(2, &mirrors) == SS_OK);
    ss_lane_settings settings = settings_of(scratch, 1, 0, NULL);
    settings.device = (ss_device){.copy = begin_copy, .finish = finish_copies, .stream = make_stream};
    settings.mirrors = mirrors, settings.job_bytes = 1 << 20, settings.part_bytes = part;
    ss_lanes *lanes = NULL;
    CHECK(ss_lanes_create(&settings, &lanes) == SS_OK);
    ss_piece_kind kinds[] = {p->kinds[0], p->kinds[2]};
    for (int round = 0; round < 2; round++) {
        int64_t numbers[4 * 10], *next = numbers;
        for (int r = 0; r < 4; r++) {
            int64_t weight = start[0] + (5 + 2 * r) * disk[0], scales = start[2] + (5 + 2 * r) * disk[2];
            int64_t record[] = {r, 1, 1000000, weight, 1000000, scales, p->fd, weight, p->fd, scales};
            memcpy(next, record, sizeof record), next += 10;
        }
        memset(p->slots[0], 0, (size_t)(slot[0] * SLOTS));
        copy_error = round ? 700 : 0;
        ss_batch *batch = NULL;
        CHECK(ss_batch_create(lanes, kinds, 2, numbers, 4, &batch) == SS_OK && ss_batch_submit(batch) == SS_OK);
        while (!ss_batch_wait(batch, 1000)) {}
        CHECK(ss_batch_state_of(batch)->left_out == !round);
        CHECK(ss_batch_failures(batch, NULL, 0) == (!round ? 0 : part ? 36 : 8));
        for (int r = 0; r < 4 && !round; r++)
            CHECK(memcmp(p->slots[0] + r * slot[0], p->contents + start[0] + (5 + 2 * r) * disk[0], (size_t)disk[0]) == 0);
        ss_batch_release(batch);
    }
    finish(lanes);
    ss_mirrors_release(mirrors);
    free_streams();
    free(scratch);
}

/* Two directories: the file, and a copy whose pieces lie in another order. What the second one is told to fail is read
 * from the first. */
typedef struct pair {
    script script;
    int failing_fd;
} pair;

static int64_t failing(void *context, int32_t fd, const struct iovec *parts, int32_t count, int64_t offset) {
    pair *both = context;
    if (fd == both->failing_fd) return offset % 2 ? -EIO : 0;
    return scripted(&both->script, fd, parts, count, offset);
}

static int64_t queued(ss_mirrors *mirrors) {
    ss_directory_state one, other;
    ss_mirrors_state(mirrors, 0, &one);
    ss_mirrors_state(mirrors, 1, &other);
    return one.queued_bytes + other.queued_bytes;
}

/* Which directory reads is measured: one that was slow for a moment is tried again after 256 records only. */
static int all_were_tried(ss_mirrors *mirrors, int fault) {
    int tried = 1;
    for (int d = 0; d < 2; d++) {
        ss_directory_state state;
        ss_mirrors_state(mirrors, d, &state);
        tried &= state.total_bytes > 0 && state.usable == (fault != 2 - d);
    }
    return tried;
}

static void read_from_two_directories(place *p, int fault, int alignment) {
    char name[] = "lanes_test_XXXXXX", *scratch = block(6), empty[ALIGNED] = {0};
    int copy = mkstemp(name);
    CHECK(copy >= 0);
    unlink(name);
    int64_t record = disk[0] + disk[1] + disk[2], first[] = {disk[1], 0, disk[1] + disk[0]}; /* in a record there */
    for (int r = 0; r < RECORDS; r++)
        for (int k = 0; k < KINDS; k++)
            CHECK(pwrite(copy, p->contents + start[k] + r * disk[k], (size_t)disk[k], r * record + first[k]) == disk[k]);
    CHECK(pwrite(copy, empty, ALIGNED, RECORDS * record) == ALIGNED);
    ss_mirrors *mirrors = NULL;
    CHECK(ss_mirrors_create(0, &mirrors) == SS_BAD_ARGUMENT && ss_mirrors_create(2, &mirrors) == SS_OK);
    pair both = {.script = fresh(), .failing_fd = -1};
    ss_lane_settings settings = settings_of(scratch, 3, 2, NULL);
    settings.mirrors = mirrors, settings.read = failing, settings.context = &both, settings.alignment = alignment;
    ss_lanes *lanes = NULL;
    CHECK(ss_lanes_create(&settings, &lanes) == SS_OK);
    int left_out = 0;
    for (int round = 0; round < 120 || (round < 4000 && !all_were_tried(mirrors, fault)); round++) {
        if (fault && both.failing_fd < 0 && round >= 60 && all_were_tried(mirrors, 0))
            both.failing_fd = fault == 1 ? copy : p->fd;
        int records[SLOTS], slots[SLOTS], count = draw(records, slots), way = (int)number(5);
        int64_t numbers[SLOTS * (2 + 4 * KINDS)], *next = numbers;
        for (int r = 0; r < count; r++) {
            *next++ = slots[r], *next++ = 1;
            for (int k = 0; k < KINDS; k++) *next++ = p->fd, *next++ = start[k] + records[r] * disk[k];
            for (int k = 0; k < KINDS; k++) *next++ = copy, *next++ = records[r] * record + first[k];
        }
        ss_batch *batch = NULL;
        CHECK(ss_batch_create(lanes, p->kinds, KINDS, numbers, count, &batch) == SS_OK);
        CHECK(queued(mirrors) == count * record);
        if (way == 0) {
            if (number(2)) CHECK(ss_batch_retract(batch) == 1);
            ss_batch_release(batch); /* never submitted */
            CHECK(queued(mirrors) == 0);
            continue;
        }
        if (way == 1) CHECK(ss_batch_read_ahead(batch) == SS_OK);
        else CHECK(ss_batch_submit(batch) == SS_OK);
        if (way == 2) ss_batch_cancel(batch);
        while (!ss_batch_wait(batch, 1000)) {}
        const ss_batch_state *state = ss_batch_state_of(batch);
        CHECK(way == 2 || (!state->failures && state->bytes_read == count * record));
        left_out += state->left_out;
        for (int i = 0; i < count && way != 2; i++) check_record(p, records[i], slots[i]);
        ss_batch_release(batch);
        CHECK(queued(mirrors) == 0);
    }
    CHECK(all_were_tried(mirrors, fault));
    CHECK(left_out == (fault != 0));
    ss_batch *batch = NULL;
    int64_t one[] = {0, 1, p->fd, start[0], p->fd, start[1], p->fd, start[2],
                     copy, first[0], copy, first[1], copy, -1};
    CHECK(ss_batch_create(lanes, p->kinds, KINDS, one, 1, &batch) == SS_OUT_OF_RANGE && queued(mirrors) == 0);
    ss_mirrors_release(mirrors); /* the lanes have it still */
    finish(lanes);
    close(copy);
    free(scratch);
}

int main(void) {
    place p = make_file();
    refuse(&p);
    for (int demand = 1; demand <= 4; demand += 3) {
        read_at_random(&p, demand, 0, 0, 300);
        read_at_random(&p, demand, 2, 0, 300);
        if (p.direct_fd >= 0) read_at_random(&p, demand, 2, 1, 100);
    }
    read_whole_blocks_in_place();
    report_faults(&p);
    keep_order(&p);
    close_meanwhile(&p);
    copy_to_a_device(&p);
    copy_in_parts(&p, 128, 1);
    copy_in_parts(&p, 256, 1);
    if (p.direct_fd >= 0) copy_in_parts(&p, 128, 512);
    copy_from_elsewhere(&p, 0);
    copy_from_elsewhere(&p, 128);
    for (int fault = 0; fault < 3; fault++) read_from_two_directories(&p, fault, 1);
    read_from_two_directories(&p, 1, 512);
#if !defined(WITHOUT_FORK)
    leave_a_forked_child_alone();
#endif
    free_file(&p);
    puts("lanes ok");
    return 0;
}
