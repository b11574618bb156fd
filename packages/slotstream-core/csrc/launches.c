#include "launches.h"

#include <sched.h>
#include <stdlib.h>
#include <time.h>

#define LOOKS 64         /* at the word, between looks at the clock */
#define AWAKE_S 0.0003   /* from then on another thread may have the processor in between */
#define QUERY_S 0.001    /* between looks at the device */

struct ss_program {
    ss_launcher launcher;
    int64_t count;
    ss_kernel_launch *launches;
    void **arguments; /* of all launches: entries of the table */
};

int ss_check_launches(const ss_kernel_launch *launches, int64_t count, const int32_t *indices, int64_t index_count,
                      int64_t table_count) {
    for (int64_t i = 0; i < count; i++) {
        const ss_kernel_launch *one = &launches[i];
        if (!one->kernel || one->blocks <= 0 || one->blocks > INT32_MAX || one->threads <= 0 ||
            one->threads > SS_MOST_THREADS || one->first < 0 || one->count < 0 || one->first > index_count ||
            one->count > index_count - one->first)
            return 0;
    }
    for (int64_t i = 0; i < index_count; i++)
        if (indices[i] < 0 || indices[i] >= table_count) return 0;
    return 1;
}

ss_program *ss_program_create(const ss_launcher *launcher, const ss_kernel_launch *launches, int64_t count,
                              const int32_t *indices, uint64_t *table) {
    int64_t arguments = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t end = launches[i].first + launches[i].count;
        if (end > arguments) arguments = end;
    }
    ss_program *program = calloc(1, sizeof *program);
    if (!program) return NULL;
    *program = (ss_program){.launcher = *launcher, .count = count};
    program->launches = malloc((size_t)(count + 1) * sizeof *program->launches);
    program->arguments = malloc((size_t)(arguments + 1) * sizeof *program->arguments);
    if (!program->launches || !program->arguments) {
        ss_program_free(program);
        return NULL;
    }
    for (int64_t i = 0; i < count; i++) program->launches[i] = launches[i];
    for (int64_t i = 0; i < arguments; i++) program->arguments[i] = &table[indices[i]];
    return program;
}

void ss_program_free(ss_program *program) {
    if (!program) return;
    free(program->launches);
    free(program->arguments);
    free(program);
}

int64_t ss_program_count(const ss_program *program) { return program->count; }

static int32_t launch_one(const ss_launcher *launcher, const ss_kernel_launch *one, void **arguments) {
    static const ss_launch_attribute early = {.id = SS_LAUNCH_EARLY, .value = {1}};
    const void *kernel = (const void *)(intptr_t)one->kernel;
    ss_grid blocks = {(uint32_t)one->blocks, 1, 1}, threads = {(uint32_t)one->threads, 1, 1};
    if (!launcher->early) return launcher->launch(kernel, blocks, threads, arguments, 0, launcher->stream);
    ss_launch_config config = {blocks, threads, 0, launcher->stream, &early, 1};
    return launcher->early(&config, kernel, arguments);
}

int32_t ss_run_launches(const ss_program *program, int64_t first, int64_t last, int64_t *failed) {
    for (int64_t i = first; i < last; i++) {
        const ss_kernel_launch *one = &program->launches[i];
        int32_t code = launch_one(&program->launcher, one, program->arguments + one->first);
        if (code) {
            *failed = i;
            return code;
        }
    }
    return 0;
}

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int holds(const uint32_t *word, uint32_t number) { return __atomic_load_n(word, __ATOMIC_ACQUIRE) == number; }

int32_t ss_await(const uint32_t *word, uint32_t number, double timeout_s, ss_query_function query, void *stream) {
    if (holds(word, number)) return 0;
    double start = now_s(), asked = start;
    for (;;) {
        for (int i = 0; i < LOOKS; i++) {
            if (holds(word, number)) return 0;
            relax();
        }
        double now = now_s();
        if (now - start > AWAKE_S) sched_yield();
        if (now - asked < QUERY_S && now - start <= timeout_s) continue;
        int32_t code = query(stream);
        if (holds(word, number)) return 0; /* it came between the last look and the query */
        if (code != SS_NOT_READY) return code ? code : SS_AWAIT_ENDED;
        if (now - start > timeout_s) return SS_AWAIT_TIMEOUT;
        asked = now;
    }
}
