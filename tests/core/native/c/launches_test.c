/* Programs of launches against what their kernels are given, and waits for a number that another thread writes. */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "check.h"
#include "launches.h"

enum { LAUNCHES = 20, ENTRIES = 12, MOST = 5, STREAM = 7, REFUSED = 719, FAULT = 700 };

static ss_kernel_launch launches[LAUNCHES];
static int32_t indices[LAUNCHES * MOST];
static uint64_t table[ENTRIES];
static int64_t launched, early, refuse_at = -1;

static int32_t launch(const void *kernel, ss_grid blocks, ss_grid threads, void **arguments, size_t shared, void *stream) {
    CHECK(stream == (void *)STREAM && !shared && blocks.y == 1 && blocks.z == 1 && threads.y == 1 && threads.z == 1);
    int64_t number = (int64_t)(intptr_t)kernel - 1;
    if (number == refuse_at) return REFUSED;
    const ss_kernel_launch *one = &launches[number];
    CHECK(blocks.x == one->blocks && threads.x == one->threads);
    for (int64_t i = 0; i < one->count; i++) CHECK(*(uint64_t *)arguments[i] == table[indices[one->first + i]]);
    launched++;
    return 0;
}

static int32_t launch_early(const ss_launch_config *config, const void *kernel, void **arguments) {
    const ss_launch_attribute *attribute = config->attributes;
    CHECK(config->attribute_count == 1 && attribute->id == SS_LAUNCH_EARLY && *(const int32_t *)attribute->value == 1);
    early++;
    return launch(kernel, config->blocks, config->threads, arguments, config->shared_bytes, config->stream);
}

static const ss_launcher plain = {launch, NULL, (void *)STREAM}, eager = {launch, launch_early, (void *)STREAM};

static int64_t describe(void) {
    int64_t used = 0;
    for (int i = 0; i < LAUNCHES; i++) {
        launches[i] = (ss_kernel_launch){i + 1, 1 + i * 1000, 1 + i * 50, used, i % (MOST + 1)};
        for (int64_t k = 0; k < launches[i].count; k++) indices[used++] = (int32_t)((7 * i + 3 * k) % ENTRIES);
    }
    return used;
}

static void launches_pass_what_the_table_holds(const ss_launcher *launcher) {
    int64_t used = describe(), failed = -1;
    CHECK(ss_check_launches(launches, LAUNCHES, indices, used, ENTRIES));
    ss_program *program = ss_program_create(launcher, launches, LAUNCHES, indices, table);
    CHECK(program && ss_program_count(program) == LAUNCHES);
    for (uint64_t turn = 0; turn < 3; turn++) {
        for (int i = 0; i < ENTRIES; i++) table[i] = (turn + 1) * 0x123456789abcull * (uint64_t)(i + 1);
        launched = 0;
        CHECK(ss_run_launches(program, 3, 9, &failed) == 0 && launched == 6);
        CHECK(ss_run_launches(program, 0, LAUNCHES, &failed) == 0 && launched == 6 + LAUNCHES);
        CHECK(ss_run_launches(program, 5, 5, &failed) == 0 && launched == 6 + LAUNCHES && failed == -1);
    }
    launched = 0, refuse_at = 4;
    CHECK(ss_run_launches(program, 1, LAUNCHES, &failed) == REFUSED && failed == 4 && launched == 3);
    refuse_at = -1;
    ss_program_free(program);
    ss_program *empty = ss_program_create(launcher, launches, 0, indices, table);
    CHECK(empty && ss_program_count(empty) == 0 && ss_run_launches(empty, 0, 0, &failed) == 0);
    ss_program_free(empty);
    ss_program_free(NULL);
}

static void what_is_out_of_bounds_is_seen(void) {
    int64_t used = describe();
    static const struct { int field; int64_t value; } wrong[] = {
        {0, 0}, {1, 0}, {1, -1}, {1, INT32_MAX + 1ll}, {2, 0}, {2, SS_MOST_THREADS + 1}, {3, -1}, {3, INT64_MAX},
        {4, -1}, {4, INT64_MAX},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        int64_t *field = (int64_t *)&launches[5] + wrong[i].field, kept = *field;
        *field = wrong[i].value;
        CHECK(!ss_check_launches(launches, LAUNCHES, indices, used, ENTRIES));
        *field = kept;
    }
    CHECK(!ss_check_launches(launches, LAUNCHES, indices, used - 1, ENTRIES));
    CHECK(!ss_check_launches(launches, LAUNCHES, indices, used, ENTRIES - 1));
    indices[3] = -1;
    CHECK(!ss_check_launches(launches, LAUNCHES, indices, used, ENTRIES));
}

static uint32_t word;
static int32_t answers[3], asked;

static int32_t query(void *stream) {
    CHECK(stream == (void *)STREAM);
    int32_t code = answers[asked < 2 ? asked : 2];
    asked++;
    return code;
}

static int32_t wait_for(uint32_t number, double timeout_s, int32_t first, int32_t second, int32_t then) {
    answers[0] = first, answers[1] = second, answers[2] = then, asked = 0;
    return ss_await(&word, number, timeout_s, query, (void *)STREAM);
}

static int32_t query_that_brings_it(void *stream) {
    (void)stream;
    __atomic_store_n(&word, 99, __ATOMIC_RELEASE);
    return 0;
}

static uint32_t seen;

static void *publish(void *unused) {
    (void)unused;
    for (uint32_t number = 1; number <= 200; number++) {
        seen = 3 * number; /* what the number is about */
        __atomic_store_n(&word, number, __ATOMIC_RELEASE);
        while (__atomic_load_n(&word, __ATOMIC_ACQUIRE) != 0) sched_yield();
    }
    return NULL;
}

static void a_number_is_awaited_and_what_was_written_before_it_is_there(void) {
    pthread_t other;
    word = 0;
    answers[0] = answers[1] = answers[2] = SS_NOT_READY;
    CHECK(!pthread_create(&other, NULL, publish, NULL));
    for (uint32_t number = 1; number <= 200; number++) {
        CHECK(ss_await(&word, number, 60, query, (void *)STREAM) == 0);
        CHECK(seen == 3 * number);
        __atomic_store_n(&word, 0, __ATOMIC_RELEASE);
    }
    pthread_join(other, NULL);
}

static void what_never_comes_is_told(void) {
    word = 0xffffffffu;
    CHECK(wait_for(0xffffffffu, 0, FAULT, FAULT, FAULT) == 0 && asked == 0);
    CHECK(wait_for(1, 0, SS_NOT_READY, SS_NOT_READY, SS_NOT_READY) == SS_AWAIT_TIMEOUT);
    CHECK(wait_for(1, 0.004, SS_NOT_READY, SS_NOT_READY, SS_NOT_READY) == SS_AWAIT_TIMEOUT && asked > 0);
    CHECK(wait_for(1, 60, SS_NOT_READY, FAULT, 0) == FAULT && asked == 2);
    CHECK(wait_for(1, 60, SS_NOT_READY, SS_NOT_READY, 0) == SS_AWAIT_ENDED && asked == 3);
    CHECK(ss_await(&word, 99, 60, query_that_brings_it, NULL) == 0);
}

int main(void) {
    launches_pass_what_the_table_holds(&plain);
    CHECK(early == 0);
    launches_pass_what_the_table_holds(&eager);
    CHECK(early > 0);
    what_is_out_of_bounds_is_seen();
    what_never_comes_is_told();
    a_number_is_awaited_and_what_was_written_before_it_is_there();
    puts("launches ok");
    return 0;
}
