/* Programs of launches against what their kernels are given, as launches and as graphs, and waits for a number that another
 * thread writes. */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "launches.h"

enum { LAUNCHES = 20, CONSTANTS = 12, MOST = 5, WORDS = 6, STREAM = 7, REFUSED = 719, FAULT = 700, CAPTURED = 64 };

static ss_kernel_launch launches[LAUNCHES + 1]; /* the last one takes the table in */
static int32_t indices[(LAUNCHES + 1) * MOST];
static uint64_t constants[CONSTANTS], words[WORDS], sent[WORDS], device[WORDS];
static uint32_t word, taken;
static int32_t answers[3], asked;
static int64_t launched, takes, early, refuse_at = -1;
static int hangs; /* what is launched is never done */

static int32_t query(void *stream) {
    CHECK(stream == (void *)STREAM);
    int32_t code = answers[asked < 2 ? asked : 2];
    asked++;
    return code;
}

/* The only graphs there are: kernels in their order. */
typedef struct graph {
    int64_t kernels[CAPTURED], count;
} graph;
static graph *capturing;
static int64_t graphs, graph_launches;
static int32_t fail_begin, fail_end, fail_make, fail_launch;

static int32_t do_launch(int64_t number) {
    if (hangs) return 0;
    if (number == LAUNCHES) {
        takes++;
        for (int i = 0; i < WORDS; i++) device[i] = sent[i];
        __atomic_store_n(&taken, (uint32_t)sent[0], __ATOMIC_RELEASE);
    } else {
        launched++;
    }
    return 0;
}

static int32_t launch(const void *kernel, ss_grid blocks, ss_grid threads, void **arguments, size_t shared, void *stream) {
    CHECK(stream == (void *)STREAM && !shared && blocks.y == 1 && blocks.z == 1 && threads.y == 1 && threads.z == 1);
    int64_t number = (int64_t)(intptr_t)kernel - 1;
    if (number == refuse_at) return REFUSED;
    const ss_kernel_launch *one = &launches[number];
    CHECK(blocks.x == one->blocks && threads.x == one->threads);
    for (int64_t i = 0; i < one->count; i++) CHECK(*(uint64_t *)arguments[i] == constants[indices[one->first + i]]);
    if (!capturing) return do_launch(number);
    CHECK(capturing->count < CAPTURED);
    capturing->kernels[capturing->count++] = number;
    return 0;
}

static int32_t launch_early(const ss_launch_config *config, const void *kernel, void **arguments) {
    const ss_launch_attribute *attribute = config->attributes;
    CHECK(config->attribute_count == 1 && attribute->id == SS_LAUNCH_EARLY && *(const int32_t *)attribute->value == 1);
    early++;
    return launch(kernel, config->blocks, config->threads, arguments, config->shared_bytes, config->stream);
}

static int32_t begin_capture(void *stream, int32_t mode) {
    CHECK(stream == (void *)STREAM && mode == 2 && !capturing);
    if (fail_begin) return fail_begin;
    capturing = calloc(1, sizeof *capturing);
    CHECK(capturing);
    return 0;
}

static int32_t end_capture(void *stream, void **made) {
    CHECK(stream == (void *)STREAM && capturing);
    if (fail_end) {
        free(capturing);
        capturing = NULL;
        return fail_end;
    }
    graphs++;
    *made = capturing, capturing = NULL;
    return 0;
}

static int32_t make(void **ready, void *made, uint64_t flags) {
    CHECK(!flags);
    if (fail_make) return fail_make;
    graph *copy = malloc(sizeof *copy);
    CHECK(copy);
    *copy = *(graph *)made;
    graphs++;
    *ready = copy;
    return 0;
}

static int32_t launch_graph(void *ready, void *stream) {
    CHECK(stream == (void *)STREAM);
    if (fail_launch) return fail_launch;
    graph_launches++;
    const graph *one = ready;
    for (int64_t i = 0; i < one->count; i++) do_launch(one->kernels[i]);
    return 0;
}

static int32_t forget(void *made) {
    graphs--;
    free(made);
    return 0;
}

#define GRAPHS {begin_capture, end_capture, make, launch_graph, forget, forget}
static const ss_launcher plain = {launch, NULL, query, (void *)STREAM, {0}};
static const ss_launcher eager = {launch, launch_early, query, (void *)STREAM, GRAPHS};

static int64_t describe(void) {
    int64_t used = 0;
    for (int i = 0; i <= LAUNCHES; i++) {
        launches[i] = (ss_kernel_launch){i + 1, 1 + i * 1000, 1 + i * 50, used, i % (MOST + 1)};
        for (int64_t k = 0; k < launches[i].count; k++) indices[used++] = (int32_t)((7 * i + 3 * k) % CONSTANTS);
    }
    for (int i = 0; i < CONSTANTS; i++) constants[i] = 0x123456789abcull * (uint64_t)(i + 1);
    return used;
}

static ss_program *described(const ss_launcher *launcher, int64_t count) {
    const ss_table table = {words, sent, WORDS, &taken, 0.004};
    int64_t used = describe();
    CHECK(ss_check_launches(launches, LAUNCHES + 1, indices, used, CONSTANTS));
    launched = takes = graph_launches = 0;
    memset(sent, 0, sizeof sent), memset(device, 0, sizeof device);
    taken = 0;
    ss_program *program = ss_program_create(launcher, launches, count, indices, constants, &table);
    CHECK(program && ss_program_count(program) == count);
    return program;
}

static void launches_are_made_in_order_with_what_the_table_holds(const ss_launcher *launcher) {
    ss_program *program = described(launcher, LAUNCHES);
    int64_t failed = -1;
    for (uint64_t turn = 0; turn < 4; turn++) {
        for (uint64_t i = 1; i < WORDS; i++) words[i] = (turn + 1) << (8 * i);
        launched = 0;
        CHECK(ss_run_launches(program, 3, 9, &failed) == 0 && launched == 6);
        for (uint64_t i = 1; i < WORDS; i++) CHECK(device[i] == (turn + 1) << (8 * i));
        CHECK(ss_run_launches(program, 0, LAUNCHES, &failed) == 0 && launched == 6 + LAUNCHES);
        CHECK(ss_run_launches(program, 5, 5, &failed) == 0 && launched == 6 + LAUNCHES && failed == -1);
        CHECK(takes == 2 * (int64_t)(turn + 1) && device[0] == 2 * (turn + 1));
    }
    CHECK(graph_launches == (launcher->graphs.begin ? 6 : 0)); /* the first run of a range makes none */
    launched = 0, refuse_at = 4;
    CHECK(ss_run_launches(program, 1, LAUNCHES, &failed) == REFUSED && failed == 4 && launched == 3);
    refuse_at = LAUNCHES;
    CHECK(ss_run_launches(program, 2, LAUNCHES, &failed) == REFUSED && failed == LAUNCHES && launched == 3);
    refuse_at = -1;
    CHECK(ss_run_launches(program, 2, LAUNCHES, &failed) == 0 && launched == 3 + LAUNCHES - 2);
    ss_program_free(program);
    CHECK(graphs == 0);
    ss_program *empty = described(launcher, 0);
    CHECK(ss_run_launches(empty, 0, 0, &failed) == 0 && takes == 0);
    ss_program_free(empty);
    ss_program_free(NULL);
}

static void what_cannot_become_a_graph_is_launched_one_by_one(void) {
    static int32_t *const steps[] = {&fail_begin, &fail_end, &fail_make};
    int64_t failed = -1;
    for (int step = 0; step < 4; step++) {
        ss_program *program = described(&eager, LAUNCHES);
        if (step < 3) *steps[step] = FAULT;
        CHECK(ss_run_launches(program, 3, 9, &failed) == 0 && launched == 6);
        if (step == 3) refuse_at = 5; /* while it is captured, and then */
        CHECK(ss_run_launches(program, 3, 9, &failed) == (step == 3 ? REFUSED : 0) && !capturing);
        CHECK(step < 3 || failed == 5);
        refuse_at = -1;
        if (step < 3) *steps[step] = 0;
        launched = 0;
        CHECK(ss_run_launches(program, 3, 9, &failed) == 0 && launched == 6); /* it is not tried again */
        CHECK(graphs == 0 && graph_launches == 0);
        ss_program_free(program);
    }
    ss_program *program = described(&eager, LAUNCHES);
    for (int turn = 0; turn < 2; turn++) CHECK(ss_run_launches(program, 3, 9, &failed) == 0);
    fail_launch = FAULT;
    CHECK(ss_run_launches(program, 3, 9, &failed) == FAULT && failed == 3);
    fail_launch = 0;
    CHECK(ss_run_launches(program, 3, 9, &failed) == 0 && graph_launches == 2);
    for (int64_t first = 0; first < LAUNCHES; first++) /* more ranges than there is room for at first */
        for (int64_t last = first + 1; last <= LAUNCHES; last++)
            for (int turn = 0; turn < 3; turn++) CHECK(ss_run_launches(program, first, last, &failed) == 0);
    CHECK(graphs == LAUNCHES * (LAUNCHES + 1) / 2);
    ss_program_free(program);
    CHECK(graphs == 0);
}

static void a_run_waits_until_the_one_before_took_its_words(void) {
    ss_program *program = described(&eager, LAUNCHES);
    int64_t failed = -1;
    hangs = 1;
    words[1] = 11;
    CHECK(ss_run_launches(program, 0, 2, &failed) == 0);
    words[1] = 12;
    answers[0] = answers[1] = answers[2] = SS_NOT_READY, asked = 0;
    CHECK(ss_run_launches(program, 0, 2, &failed) == SS_AWAIT_TIMEOUT && failed == LAUNCHES && asked > 0);
    answers[0] = answers[1] = answers[2] = FAULT;
    CHECK(ss_run_launches(program, 0, 2, &failed) == FAULT && failed == LAUNCHES && sent[1] == 11);
    hangs = 0;
    __atomic_store_n(&taken, 1, __ATOMIC_RELEASE);
    CHECK(ss_run_launches(program, 0, 2, &failed) == 0 && device[1] == 12);
    ss_program_free(program);
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
        CHECK(!ss_check_launches(launches, LAUNCHES + 1, indices, used, CONSTANTS));
        *field = kept;
    }
    CHECK(!ss_check_launches(launches, LAUNCHES + 1, indices, used - 1, CONSTANTS));
    CHECK(!ss_check_launches(launches, LAUNCHES + 1, indices, used, CONSTANTS - 1));
    indices[3] = -1;
    CHECK(!ss_check_launches(launches, LAUNCHES + 1, indices, used, CONSTANTS));
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
    launches_are_made_in_order_with_what_the_table_holds(&plain);
    CHECK(early == 0);
    launches_are_made_in_order_with_what_the_table_holds(&eager);
    CHECK(early > 0);
    what_cannot_become_a_graph_is_launched_one_by_one();
    a_run_waits_until_the_one_before_took_its_words();
    what_is_out_of_bounds_is_seen();
    what_never_comes_is_told();
    a_number_is_awaited_and_what_was_written_before_it_is_there();
    puts("launches ok");
    return 0;
}
