#include "launches.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"

#define LOOKS 64         /* at the word, between looks at the clock */
#define AWAKE_S 0.0003   /* from then on another thread may have the processor in between */
#define QUERY_S 0.001    /* between looks at the device */

struct ss_program {
    ss_launcher launcher;
    int64_t count;
    ss_kernel_launch *launches;
    void **arguments; /* of all launches: where they are among the constants */
    ss_table table;
    int taking; /* whether the run before may still be taking what was sent */
    ss_graphs *graphs;
};

int ss_check_launches(const ss_kernel_launch *launches, int64_t count, const int32_t *indices, int64_t index_count,
                      int64_t constant_count) {
    for (int64_t i = 0; i < count; i++) {
        const ss_kernel_launch *one = &launches[i];
        if (!one->kernel || one->blocks <= 0 || one->blocks > INT32_MAX || one->threads <= 0 ||
            one->threads > SS_MOST_THREADS || one->first < 0 || one->count < 0 || one->first > index_count ||
            one->count > index_count - one->first)
            return 0;
    }
    for (int64_t i = 0; i < index_count; i++)
        if (indices[i] < 0 || indices[i] >= constant_count) return 0;
    return 1;
}

ss_program *ss_program_create(const ss_launcher *launcher, const ss_kernel_launch *launches, int64_t count,
                              const int32_t *indices, uint64_t *constants, const ss_table *table) {
    int64_t arguments = 0;
    for (int64_t i = 0; i <= count; i++) {
        int64_t end = launches[i].first + launches[i].count;
        if (end > arguments) arguments = end;
    }
    ss_program *program = calloc(1, sizeof *program);
    if (!program) return NULL;
    *program = (ss_program){.launcher = *launcher, .count = count, .table = *table};
    program->launches = malloc((size_t)(count + 1) * sizeof *program->launches);
    program->arguments = malloc((size_t)(arguments + 1) * sizeof *program->arguments);
    program->graphs = ss_graphs_create(&launcher->graphs, launcher->stream);
    if (!program->launches || !program->arguments || !program->graphs) {
        ss_program_free(program);
        return NULL;
    }
    memcpy(program->launches, launches, (size_t)(count + 1) * sizeof *launches);
    for (int64_t i = 0; i < arguments; i++) program->arguments[i] = &constants[indices[i]];
    return program;
}

void ss_program_free(ss_program *program) {
    if (!program) return;
    ss_graphs_free(program->graphs);
    free(program->launches);
    free(program->arguments);
    free(program);
}

int64_t ss_program_count(const ss_program *program) { return program->count; }

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
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

static int32_t launch_one(const ss_launcher *launcher, const ss_kernel_launch *one, void **of_all) {
    static const ss_launch_attribute early = {.id = SS_LAUNCH_EARLY, .value = {1}};
    const void *kernel = (const void *)(intptr_t)one->kernel;
    void **arguments = of_all + one->first;
    ss_grid blocks = {(uint32_t)one->blocks, 1, 1}, threads = {(uint32_t)one->threads, 1, 1};
    if (!launcher->early) return launcher->launch(kernel, blocks, threads, arguments, 0, launcher->stream);
    ss_launch_config config = {blocks, threads, 0, launcher->stream, &early, 1};
    return launcher->early(&config, kernel, arguments);
}

/* Launch what takes the table in and a range; `taken` says whether the first of these was accepted. */
typedef struct running {
    const ss_program *program;
    int64_t failed;
    int taken;
} running;

static int32_t launch_range(void *what, int64_t first, int64_t last) {
    running *now = what;
    const ss_program *program = now->program;
    now->taken = 0, now->failed = program->count;
    int32_t code = launch_one(&program->launcher, &program->launches[program->count], program->arguments);
    now->taken = !code;
    for (int64_t i = first; i < last && !code; i++) {
        now->failed = i;
        code = launch_one(&program->launcher, &program->launches[i], program->arguments);
    }
    return code;
}

/* Let the next run take what the table holds: 0, or the code of waiting for the run before. */
static int32_t send(ss_program *program) {
    ss_table *table = &program->table;
    const ss_launcher *launcher = &program->launcher;
    int32_t code = 0;
    if (program->taking)
        code = ss_await(table->taken, (uint32_t)table->sent[0], table->timeout_s, launcher->query, launcher->stream);
    if (code) return code;
    program->taking = 0;
    table->words[0] = table->sent[0] + 1;
    memcpy(table->sent, table->words, (size_t)table->count * sizeof *table->sent);
    return 0;
}

int32_t ss_run_launches(ss_program *program, int64_t first, int64_t last, int64_t *failed) {
    if (first == last) return 0;
    running now = {.program = program, .failed = program->count};
    int32_t code = send(program);
    void *graph = code ? NULL : ss_graph_of(program->graphs, first, last, launch_range, &now);
    if (graph) {
        now.failed = first;
        code = program->launcher.graphs.launch(graph, program->launcher.stream);
        now.taken = !code;
    } else if (!code) {
        code = launch_range(&now, first, last);
    }
    if (now.taken) program->taking = 1;
    if (code) *failed = now.failed;
    return code;
}
