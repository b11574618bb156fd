/* The bookkeeping of a slot pool: random requests against counts made anew each time, and reads of small records. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "requests.h"

enum { LAYERS = 3, EXPERTS = 12, RECORDS = LAYERS * EXPERTS, SLOTS = 10, KINDS = 3, MOST = 8, LEASES = 3, BYTES = 300 };
static const int64_t disk[KINDS] = {200, 60, 40}; /* the second is widened, the third lies behind the first */

static int32_t slot_of[RECORDS], coming[RECORDS], key_of[SLOTS], holds[SLOTS], free_slots[SLOTS], position[EXPERTS];
static uint8_t marks[RECORDS], referenced[SLOTS], stored[RECORDS][BYTES];
static int64_t uses[RECORDS], counts[SS_COUNTS];
static char slots[KINDS][SLOTS][240];
static ss_piece_kind kinds[KINDS];
static ss_place places[LAYERS * KINDS];
static ss_residency residency = {LAYERS, EXPERTS, SLOTS, KINDS, slot_of, coming, marks, uses, key_of, holds,
                                 referenced, free_slots, counts, kinds, places, position};

static uint64_t seed = 88172645463325252ull;
static uint32_t number(uint32_t below) {
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return (uint32_t)(seed >> 33) % below;
}

static void start(void) {
    memset(slot_of, 0xff, sizeof slot_of), memset(coming, 0xff, sizeof coming), memset(key_of, 0xff, sizeof key_of), memset(position, 0xff, sizeof position);
    memset(marks, 0, sizeof marks), memset(holds, 0, sizeof holds), memset(referenced, 0, sizeof referenced);
    memset(counts, 0, sizeof counts);
    for (int i = 0; i < SLOTS; i++) free_slots[i] = SLOTS - 1 - i;
    counts[SS_IDLE] = counts[SS_FREE] = SLOTS;
}

/* Records lie one after the other: first and third piece of each, then all second ones. */
static int write_file(void) {
    char name[] = "/tmp/residency-XXXXXX";
    int fd = mkstemp(name);
    CHECK(fd >= 0);
    unlink(name);
    for (int key = 0; key < RECORDS; key++) {
        for (int i = 0; i < BYTES; i++) stored[key][i] = (uint8_t)(number(256) & 0x3f); /* finite bfloat16 */
        CHECK(pwrite(fd, stored[key], 200, key * 240) == 200);
        CHECK(pwrite(fd, stored[key] + 260, 40, key * 240 + 200) == 40);
        CHECK(pwrite(fd, stored[key] + 200, 60, RECORDS * 240 + key * 60) == 60);
    }
    return fd;
}

static void describe(int fd) {
    for (int k = 0; k < KINDS; k++)
        kinds[k] = (ss_piece_kind){slots[k], SLOTS, k == 1 ? 120 : disk[k], disk[k], k == 1 ? SS_WIDENED : SS_AS_STORED,
                                   k == 1 ? SS_FINITE_BFLOAT16 : SS_UNCHECKED};
    for (int layer = 0; layer < LAYERS; layer++) {
        int first = layer * EXPERTS;
        places[layer * KINDS] = (ss_place){fd, first * 240, 240};
        places[layer * KINDS + 1] = (ss_place){fd, RECORDS * 240 + first * 60, 60};
        places[layer * KINDS + 2] = (ss_place){fd, first * 240 + 200, 240};
    }
}

static void check_books(const int32_t (*held)[MOST], const int64_t *held_counts) {
    int64_t idle = 0, unused = 0;
    for (int slot = 0; slot < SLOTS; slot++) {
        int expected = 0;
        for (int lease = 0; lease < LEASES; lease++)
            for (int64_t i = 0; i < held_counts[lease]; i++) expected += held[lease][i] == slot;
        CHECK(holds[slot] == expected);
        idle += !expected;
        unused += !expected && key_of[slot] < 0;
        CHECK(key_of[slot] < 0 || slot_of[key_of[slot]] == slot);
    }
    CHECK(counts[SS_IDLE] == idle && counts[SS_FREE] == unused);
    for (int key = 0; key < RECORDS; key++) CHECK(slot_of[key] < 0 || key_of[slot_of[key]] == key);
    for (int e = 0; e < EXPERTS; e++) CHECK(position[e] == -1);
}

static void check_bytes(int32_t key, int32_t slot) {
    CHECK(!memcmp((char *)kinds[0].slots + slot * 200, stored[key], 200));
    CHECK(!memcmp((char *)kinds[2].slots + slot * 40, stored[key] + 260, 40));
    for (int i = 0; i < 30; i++) {
        const uint8_t *value = (const uint8_t *)kinds[1].slots + slot * 120 + 4 * i;
        CHECK(!value[0] && !value[1] && !memcmp(value + 2, stored[key] + 200 + 2 * i, 2));
    }
}

static void random_requests(ss_pool *pool) {
    int32_t held[LEASES][MOST], ids[MOST], of_id[MOST], absent[2 * MOST], on_the_way[MOST];
    int64_t held_counts[LEASES] = {0};
    start();
    for (int step = 0; step < 20000; step++) {
        int lease = (int)number(LEASES), layer = (int)number(LAYERS), count = 1 + (int)number(MOST);
        ss_let_go(&residency, held[lease], held_counts[lease]);
        held_counts[lease] = 0;
        for (int i = 0; i < count; i++) ids[i] = (int32_t)number(EXPERTS);
        int wrong = number(50) == 0;
        if (wrong) ids[number((uint32_t)count)] = number(2) ? -1 : EXPERTS;
        ss_granted granted = {of_id, held[lease], absent, on_the_way, 0, 0, 0};
        int64_t requests = counts[SS_REQUESTS];
        int32_t code = ss_grant(&residency, layer, ids, count, &granted);
        if (wrong || code != SS_OK) {
            CHECK(code == (wrong ? SS_OUT_OF_RANGE : SS_TOO_SMALL) && counts[SS_REQUESTS] == requests);
            check_books(held, held_counts);
            continue;
        }
        held_counts[lease] = granted.held_count;
        CHECK(ss_can_fetch(&residency));
        CHECK(ss_fetch(&residency, pool, layer, &granted) == SS_OK && !granted.absent_count);
        check_books(held, held_counts);
        for (int i = 0; i < count; i++) {
            CHECK(slot_of[layer * EXPERTS + ids[i]] == of_id[i] && holds[of_id[i]] > 0);
            check_bytes(layer * EXPERTS + ids[i], of_id[i]);
        }
    }
    CHECK(counts[SS_HITS] && counts[SS_EVICTIONS] && counts[SS_BYTES_READ] == counts[SS_MISSES] * BYTES);
}

/* Records behind the end of the file, and those whose scales are not finite, stay absent, in order. */
static void broken_records(int fd) {
    int32_t held[4], of_id[4], absent[8], on_the_way[4];
    const int32_t ids[4] = {EXPERTS - 1, 0, 5, 1};
    const uint8_t infinite[2] = {0x80, 0x7f};
    int64_t wrong = RECORDS * 240 + (2 * EXPERTS + 5) * 60;
    start();
    CHECK(ftruncate(fd, RECORDS * 300 - 1) == 0 && pwrite(fd, infinite, 2, wrong) == 2);
    ss_granted granted = {of_id, held, absent, on_the_way, 0, 0, 0};
    CHECK(ss_grant(&residency, 2, ids, 4, &granted) == SS_OK && granted.absent_count == 4);
    CHECK(ss_fetch(&residency, NULL, 2, &granted) == SS_OK && granted.absent_count == 2);
    CHECK(absent[0] == 3 * EXPERTS - 1 && absent[1] == of_id[0] && absent[2] == 2 * EXPERTS + 5 && absent[3] == of_id[2]);
    CHECK(key_of[of_id[0]] < 0 && key_of[of_id[2]] < 0 && key_of[of_id[1]] == 2 * EXPERTS);
    ss_let_go(&residency, held, 4);
    CHECK(counts[SS_IDLE] == SLOTS && counts[SS_FREE] == SLOTS - 2);
}

/* Whoever asks for records that others wait for shares their slots, until they come. */
static void records_on_their_way(void) {
    int32_t held[4], of_id[4], absent[8], on_the_way[4], again_held[4], again_of_id[4], again_absent[8];
    const int32_t first[4] = {3, 7, 3, 1}, second[3] = {1, 9, 7};
    start();
    ss_granted granted = {of_id, held, absent, on_the_way, 0, 0, 0};
    ss_granted again = {again_of_id, again_held, again_absent, on_the_way, 0, 0, 0};
    CHECK(ss_grant(&residency, 1, first, 4, &granted) == SS_OK && granted.absent_count == 3 && !granted.coming_count);
    ss_expect(&residency, absent, 3);
    CHECK(holds[of_id[0]] == 2 && coming[EXPERTS + 3] == of_id[0]);
    CHECK(ss_grant(&residency, 1, second, 3, &again) == SS_OK && again.absent_count == 1 && again.coming_count == 2);
    CHECK(on_the_way[0] == EXPERTS + 1 && on_the_way[1] == EXPERTS + 7 && again_absent[0] == EXPERTS + 9);
    CHECK(again_of_id[0] == of_id[3] && again_of_id[2] == of_id[1] && holds[of_id[1]] == 3);
    CHECK(counts[SS_HITS] == 2 && counts[SS_MISSES] == 4);
    ss_let_go(&residency, held, granted.held_count), ss_let_go(&residency, again_held, again.held_count);
    CHECK(counts[SS_IDLE] == SLOTS - 3 && counts[SS_FREE] == SLOTS - 3);
    ss_take_in(&residency, absent, 3);
    CHECK(counts[SS_IDLE] == SLOTS && counts[SS_FREE] == SLOTS - 3 && slot_of[EXPERTS + 7] == of_id[1]);
    for (int key = 0; key < RECORDS; key++) CHECK(coming[key] == -1);
}

/* Another thread may close and release the lanes between two requests: then what is asked for is over at once. */
static void requests_of_closed_lanes(void) {
    int32_t held[4], of_id[4], absent[8], on_the_way[4];
    const int32_t ids[2] = {3, 7};
    ss_joined joined[2];
    char *scratch = NULL;
    CHECK(!posix_memalign((void **)&scratch, 64, 2 * 4096));
    start();
    ss_lane_settings settings = {.demand_lanes = 1, .staging = 1, .alignment = 1, .scratch = scratch, .scratch_bytes = 4096,
                                 .scratch_stride = 4096};
    ss_lanes *lanes = NULL;
    ss_tickets *tickets = NULL;
    CHECK(ss_lanes_create(&settings, &lanes) == SS_OK);
    CHECK(ss_tickets_create(&residency, lanes, places, &tickets) == SS_OK);
    CHECK(ss_lanes_close(lanes, 60000) == 0);
    ss_lanes_release(lanes);
    ss_request request = {.granted = {of_id, held, absent, on_the_way, 0, 0, 0}, .joined = joined};
    CHECK(ss_ask(tickets, 1, ids, 2, &request) == SS_OK && request.granted.absent_count == 2);
    CHECK(ss_bring(tickets, &request) == SS_OK && ss_batch_wait(request.batch, 0) == 1);
    CHECK(ss_batch_state_of(request.batch)->failures == 2 * KINDS);
    ss_batch_release(request.batch);
    ss_tickets_free(tickets);
    free(scratch);
}

int main(void) {
    int fd = write_file();
    describe(fd);
    records_on_their_way();
    requests_of_closed_lanes();
    ss_pool *pool = NULL;
    CHECK(ss_pool_create(2, 0, &pool) == SS_OK);
    random_requests(NULL);
    random_requests(pool);
    broken_records(fd);
    ss_pool_destroy(pool);
    close(fd);
    puts("residency ok");
    return 0;
}
