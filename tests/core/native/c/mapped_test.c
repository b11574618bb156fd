/* The table of mapped files, and lanes that leave to a device what it fetches from there. */
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "lanes_made.h"
#include "mapped.h"

enum { DEMANDING = 3, AHEAD_TOO = 2, STEP = 512 };

/* What is out of reach is in use as long as somebody who may have found it is, and no longer. */
static void give_back(ss_mapped *mapped, const char *memory) {
    CHECK(ss_mapped_shrink(NULL, 0, 0) == SS_BAD_ARGUMENT && ss_mapped_shrink(mapped, 3, 0) == SS_BAD_ARGUMENT);
    CHECK(ss_mapped_shrink(mapped, 0, 101) == SS_OUT_OF_RANGE && ss_mapped_shrink(mapped, 0, -1) == SS_OUT_OF_RANGE);
    CHECK(ss_mapped_quiet(mapped) == 1 && ss_mapped_users(mapped) == 0);
    CHECK(ss_mapped_enter(NULL) == 0);
    ss_mapped_leave(NULL, 0);
    int before = ss_mapped_enter(mapped);
    CHECK(ss_mapped_find(mapped, 3, 140, 60) && ss_mapped_quiet(mapped) == 1); /* nothing was shrunk */
    CHECK(ss_mapped_shrink(mapped, 0, 70) == SS_OK && !ss_mapped_find(mapped, 3, 140, 60) && ss_mapped_find(mapped, 3, 140, 30));
    CHECK(ss_mapped_quiet(mapped) == 0 && ss_mapped_quiet(mapped) == 0 && ss_mapped_users(mapped) == 1);
    int after = ss_mapped_enter(mapped);
    CHECK(ss_mapped_shrink(mapped, 0, 0) == SS_OK); /* while the first one is waited for: the second is, too */
    ss_mapped_leave(mapped, before);
    CHECK(ss_mapped_quiet(mapped) == 0 && ss_mapped_users(mapped) == 1);
    int latest = ss_mapped_enter(mapped);
    ss_mapped_leave(mapped, after);
    CHECK(ss_mapped_quiet(mapped) == 1 && ss_mapped_users(mapped) == 1);
    ss_mapped_leave(mapped, latest);
    CHECK(ss_mapped_extend(mapped, 0, memory + 1, 60) == SS_OUT_OF_RANGE && ss_mapped_extend(mapped, 0, memory, 60) == SS_OK);
    CHECK(ss_mapped_find(mapped, 3, 100, 60) == memory && ss_mapped_quiet(mapped) == 1);
}

static void look_up(void) {
    ss_mapped *mapped = NULL;
    const char memory[300] = {0};
    int64_t regions[] = {3, 100, 200, 3, 200, 250, 7, 0, 50};
    CHECK(ss_mapped_create(NULL, 1, &mapped) == SS_BAD_ARGUMENT && ss_mapped_create(regions, 0, &mapped) == SS_BAD_ARGUMENT);
    CHECK(ss_mapped_create(regions, 3, NULL) == SS_BAD_ARGUMENT);
    for (int spoiled = 0; spoiled < 5; spoiled++) {
        int64_t bad[9], at[] = {0, 1, 2, 4, 6}, to[] = {-1, -1, 100, 199, 2};
        memcpy(bad, regions, sizeof bad);
        bad[at[spoiled]] = to[spoiled];
        CHECK(ss_mapped_create(bad, 3, &mapped) == SS_OUT_OF_RANGE);
    }
    CHECK(ss_mapped_create(regions, 3, &mapped) == SS_OK);
    CHECK(!ss_mapped_find(mapped, 3, 100, 1) && !ss_mapped_find(NULL, 3, 100, 1));
    CHECK(ss_mapped_extend(mapped, 3, memory, 1) == SS_BAD_ARGUMENT && ss_mapped_extend(mapped, -1, memory, 1) == SS_BAD_ARGUMENT);
    CHECK(ss_mapped_extend(mapped, 0, NULL, 1) == SS_BAD_ARGUMENT && ss_mapped_extend(NULL, 0, memory, 1) == SS_BAD_ARGUMENT);
    CHECK(ss_mapped_extend(mapped, 0, memory, 101) == SS_OUT_OF_RANGE);
    CHECK(ss_mapped_extend(mapped, 0, memory, 60) == SS_OK);
    CHECK(ss_mapped_extend(mapped, 0, memory, 59) == SS_OUT_OF_RANGE && ss_mapped_extend(mapped, 0, memory + 1, 61) == SS_OUT_OF_RANGE);
    CHECK(ss_mapped_find(mapped, 3, 100, 60) == memory && ss_mapped_find(mapped, 3, 159, 1) == memory + 59);
    CHECK(!ss_mapped_find(mapped, 3, 99, 1) && !ss_mapped_find(mapped, 3, 100, 61) && !ss_mapped_find(mapped, 3, 160, 1));
    CHECK(!ss_mapped_find(mapped, 2, 110, 1) && !ss_mapped_find(mapped, 4, 110, 1) && !ss_mapped_find(mapped, 3, 260, 1));
    CHECK(ss_mapped_extend(mapped, 0, memory, 100) == SS_OK && ss_mapped_extend(mapped, 2, memory + 100, 50) == SS_OK);
    CHECK(ss_mapped_find(mapped, 3, 140, 60) == memory + 40 && !ss_mapped_find(mapped, 3, 190, 20)); /* of two regions */
    CHECK(ss_mapped_find(mapped, 7, 0, 50) == memory + 100 && !ss_mapped_find(mapped, 7, 1, 50));
    give_back(mapped, memory);
    ss_mapped_release(mapped);
    ss_mapped_release(NULL);
}

typedef struct growth {
    ss_mapped *mapped;
    const char *address;
    int64_t bytes;
} growth;

static void *grow(void *argument) {
    growth *g = argument;
    for (int64_t bytes = STEP; bytes < g->bytes + STEP; bytes += STEP) {
        CHECK(ss_mapped_extend(g->mapped, 0, g->address, bytes < g->bytes ? bytes : g->bytes) == SS_OK);
        usleep(200);
    }
    return NULL;
}

static ss_lanes *lanes_over(char *scratch, script *s, ss_mapped *mapped) {
    ss_lane_settings settings = settings_of(scratch, DEMANDING, AHEAD_TOO, s);
    settings.device = (ss_device){.copy = begin_copy, .finish = finish_copies, .stream = make_stream};
    settings.staging = 2, settings.part_bytes = 256, settings.job_bytes = 256, settings.mapped = mapped;
    settings.ahead_scratch = scratch + (2 * DEMANDING + 1) * LONG;
    ss_lanes *lanes = NULL;
    CHECK(ss_lanes_create(&settings, &lanes) == SS_OK);
    return lanes;
}

static ss_mapped *one_region(const place *p) {
    int64_t region[] = {p->fd, 0, p->size};
    ss_mapped *mapped = NULL;
    CHECK(ss_mapped_create(region, 1, &mapped) == SS_OK);
    return mapped;
}

static ss_batch *plan_for_device(ss_lanes *lanes, const place *p, const int *records, const int *slots, int count, int check) {
    int64_t numbers[SLOTS * 6];
    ss_piece_kind kinds[] = {p->kinds[0], p->kinds[2]};
    list_for_device(p, records, slots, count, numbers);
    for (int r = 0; r < count; r++) numbers[6 * r + 1] = check;
    ss_batch *batch = NULL;
    CHECK(ss_batch_create(lanes, kinds, 2, numbers, count, &batch) == SS_OK);
    return batch;
}

static void await(ss_batch *batch) {
    while (!ss_batch_wait(batch, 1000)) {}
}

/* While the table grows, and once it is whole: every byte arrives, and what is not to be checked is not read any more. */
static void fetch_while_the_table_grows(place *p, const char *memory) {
    char *scratch = block(2 * DEMANDING + 1 + 2 * AHEAD_TOO);
    script s = fresh();
    ss_mapped *mapped = one_region(p);
    ss_lanes *lanes = lanes_over(scratch, &s, mapped);
    growth g = {mapped, memory, p->size};
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, grow, &g));
    for (int round = 0; round < 300; round++) {
        int records[SLOTS], slots[SLOTS], count = draw(records, slots), whole = round == 200;
        if (whole) CHECK(!pthread_join(thread, NULL));
        for (int k = 0; k < KINDS; k += 2) memset(p->slots[k], 0x55, (size_t)(slot[k] * SLOTS));
        ss_batch *batch = plan_for_device(lanes, p, records, slots, count, round % 2);
        int before = s.calls;
        CHECK((round % 3 ? ss_batch_submit(batch) : ss_batch_read_ahead(batch)) == SS_OK);
        await(batch);
        CHECK(!ss_batch_state_of(batch)->failures && ss_batch_state_of(batch)->bytes_read == count * (disk[0] + disk[2]));
        if (round >= 200) CHECK((s.calls == before) == (round % 2 == 0));
        for (int i = 0; i < count; i++)
            for (int k = 0; k < KINDS; k += 2)
                CHECK(!memcmp(p->slots[k] + slots[i] * slot[k], p->contents + start[k] + records[i] * disk[k], (size_t)disk[k]));
        ss_batch_release(batch);
    }
    finish(lanes);
    ss_mapped_release(mapped);
    free_streams();
    free(scratch);
}

typedef struct tide {
    ss_mapped *mapped;
    char *address;
    int64_t bytes;
    atomic_int ends, turns;
} tide;

/* Pages that are given back cannot be touched by anybody, until they are in reach again. */
static void *come_and_go(void *argument) {
    tide *t = argument;
    int64_t page = sysconf(_SC_PAGESIZE), pages = t->bytes / page;
    while (!t->ends) {
        int64_t kept = t->turns * 7 % (pages + 1) * page;
        CHECK(ss_mapped_extend(t->mapped, 0, t->address, pages * page) == SS_OK);
        usleep(300);
        CHECK(ss_mapped_shrink(t->mapped, 0, kept) == SS_OK);
        while (!ss_mapped_quiet(t->mapped)) usleep(50);
        CHECK(!mprotect(t->address + kept, (size_t)(pages * page - kept), PROT_NONE));
        usleep(300);
        CHECK(!mprotect(t->address, (size_t)(pages * page), PROT_READ));
        t->turns++;
    }
    return NULL;
}

/* Batches that were planned before something is given back, and begun before or after, come whole. */
static void fetch_while_parts_are_given_back(place *p, char *memory) {
    char *scratch = block(2 * DEMANDING + 1 + 2 * AHEAD_TOO);
    script s = fresh();
    ss_mapped *mapped = one_region(p);
    ss_lanes *lanes = lanes_over(scratch, &s, mapped);
    tide t = {.mapped = mapped, .address = memory, .bytes = p->size};
    pthread_t thread;
    CHECK(p->size >= 2 * sysconf(_SC_PAGESIZE) && !pthread_create(&thread, NULL, come_and_go, &t));
    for (int round = 0; round < 300 || t.turns < 30; round++) {
        int records[SLOTS], slots[SLOTS], count = draw(records, slots);
        for (int k = 0; k < KINDS; k += 2) memset(p->slots[k], 0x55, (size_t)(slot[k] * SLOTS));
        ss_batch *batch = plan_for_device(lanes, p, records, slots, count, 0);
        if (round % 4 == 0) usleep(400);
        if (round % 8 < 7) {
            CHECK((round % 3 ? ss_batch_submit(batch) : ss_batch_read_ahead(batch)) == SS_OK);
            await(batch);
            CHECK(!ss_batch_state_of(batch)->failures);
            for (int i = 0; i < count; i++)
                for (int k = 0; k < KINDS; k += 2)
                    CHECK(!memcmp(p->slots[k] + slots[i] * slot[k], p->contents + start[k] + records[i] * disk[k], (size_t)disk[k]));
        }
        ss_batch_release(batch); /* or it was never handed over */
    }
    t.ends = 1;
    CHECK(!pthread_join(thread, NULL) && ss_mapped_users(mapped) == 0);
    finish(lanes);
    ss_mapped_release(mapped);
    free_streams();
    free(scratch);
}

static void tell_of_failures(place *p, const char *memory) {
    char *scratch = block(2 * DEMANDING + 1 + 2 * AHEAD_TOO);
    script s = fresh();
    ss_mapped *mapped = one_region(p);
    CHECK(ss_mapped_extend(mapped, 0, memory, start[2]) == SS_OK); /* the last kind has to be read */
    ss_lanes *lanes = lanes_over(scratch, &s, mapped);
    ss_mapped_release(mapped); /* lanes keep it */
    int records[] = {3, 20}, slots[] = {0, 1};
    ss_failure failures[9];
    copy_error = 700;
    ss_batch *batch = plan_for_device(lanes, p, records, slots, 2, 1);
    CHECK(ss_batch_submit(batch) == SS_OK);
    await(batch);
    CHECK(ss_batch_failures(batch, failures, 9) == 4);
    for (int i = 0; i < 4; i++) CHECK(failures[i].outcome == SS_NOT_COPIED && failures[i].error == 700);
    ss_batch_release(batch);
    copy_error = 0;
    int64_t lost = start[2] + 20 * disk[2];
    s.error = EIO, s.fail_from = lost, s.fail_to = lost + 1;
    batch = plan_for_device(lanes, p, records, slots, 2, 1);
    CHECK(ss_batch_submit(batch) == SS_OK);
    await(batch);
    CHECK(ss_batch_failures(batch, failures, 9) == 1 && failures[0].outcome == SS_NOT_READ && failures[0].error == EIO);
    CHECK(failures[0].record == 1 && failures[0].kind == 1 && failures[0].offset == lost);
    CHECK(!memcmp(p->slots[0] + slot[0], p->contents + start[0] + 20 * disk[0], (size_t)disk[0]));
    ss_batch_release(batch);
    finish(lanes);
    free_streams();
    free(scratch);
}

static pthread_mutex_t holding = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int held;

static int32_t finish_when_allowed(void *stream) {
    held++;
    pthread_mutex_lock(&holding);
    pthread_mutex_unlock(&holding);
    return finish_copies(stream);
}

/* Of what is read ahead two copies are begun at most, so the others can be taken back; closing waits for these two. */
static void take_back_and_close(place *p, const char *memory) {
    char *scratch = block(2 * DEMANDING + 1 + 2 * AHEAD_TOO);
    ss_mapped *mapped = one_region(p);
    CHECK(ss_mapped_extend(mapped, 0, memory, p->size) == SS_OK);
    ss_lane_settings settings = settings_of(scratch, DEMANDING, 4, NULL);
    settings.device = (ss_device){.copy = begin_copy, .finish = finish_when_allowed, .stream = make_stream};
    settings.job_bytes = 256, settings.mapped = mapped;
    ss_lanes *lanes = NULL;
    CHECK(ss_lanes_create(&settings, &lanes) == SS_OK);
    ss_batch *batches[8];
    pthread_mutex_lock(&holding);
    held = 0;
    for (int i = 0; i < 8; i++) batches[i] = plan_for_device(lanes, p, &(int){i}, &(int){i}, 1, 0);
    CHECK(ss_batches_read_ahead(batches, 5) == SS_OK && ss_batches_read_ahead(batches + 5, 3) == SS_OK); /* wakes four lanes */
    while (held < 2) usleep(100);
    CHECK(!ss_batch_retract(batches[0]) && !ss_batch_retract(batches[1]) && ss_batch_retract(batches[2]));
    CHECK(ss_batch_submit(batches[3]) == SS_OK); /* wanted now: it waits for none of these */
    while (held < 3) usleep(100);
    CHECK(ss_lanes_close(lanes, 20) > 0 && held == 3);
    pthread_mutex_unlock(&holding);
    CHECK(ss_lanes_close(lanes, 60000) == 0);
    for (int i = 0; i < 8; i++) {
        await(batches[i]);
        CHECK(ss_batch_state_of(batches[i])->failures == (i > 3 ? 2 : 0));
        ss_batch_release(batches[i]);
    }
    ss_lanes_release(lanes);
    ss_mapped_release(mapped);
    free_streams();
    free(scratch);
}

int main(void) {
    place p = make_file();
    char *memory = mmap(NULL, (size_t)p.size, PROT_READ, MAP_SHARED, p.fd, 0);
    CHECK(memory != MAP_FAILED);
    look_up();
    fetch_while_the_table_grows(&p, memory);
    fetch_while_parts_are_given_back(&p, memory);
    tell_of_failures(&p, memory);
    take_back_and_close(&p, memory);
    char *scratch = block(2);
    ss_mapped *mapped = one_region(&p);
    ss_lane_settings bad = settings_of(scratch, 1, 0, NULL);
    ss_lanes *lanes = NULL;
    bad.mapped = mapped; /* without a device */
    CHECK(ss_lanes_create(&bad, &lanes) == SS_BAD_ARGUMENT);
    ss_mapped_release(mapped);
    free(scratch);
    munmap(memory, (size_t)p.size);
    free_file(&p);
    puts("mapped ok");
    return 0;
}
