#include "mirrors.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#define WINDOW_S 0.5        /* busy time after which what was measured before counts half */
#define REMEASURE_AFTER 256 /* records that go elsewhere before a directory is tried again */
#define MOST_DIRECTORIES 64

typedef struct directory {
    ss_directory_state state;
    int64_t under_way;
    int32_t measured_anew; /* what is measured next counts alone: it was slow long ago */
    double since_s, busy_s, bytes;
} directory;

struct ss_mirrors {
    pthread_mutex_t lock; /* of everything below */
    pid_t owner;
    atomic_int references;
    int32_t count;
    directory all[];
};

int32_t ss_mirrors_create(int32_t directories, ss_mirrors **result) {
    if (!result || directories < 1 || directories > MOST_DIRECTORIES) return SS_BAD_ARGUMENT;
    ss_mirrors *mirrors = calloc(1, sizeof *mirrors + (size_t)directories * sizeof *mirrors->all);
    if (!mirrors || pthread_mutex_init(&mirrors->lock, NULL)) {
        free(mirrors);
        return SS_NO_MEMORY;
    }
    mirrors->owner = getpid();
    mirrors->count = directories;
    for (int32_t i = 0; i < directories; i++) mirrors->all[i].state.usable = 1;
    atomic_init(&mirrors->references, 1);
    *result = mirrors;
    return SS_OK;
}

void ss_mirrors_refer(ss_mirrors *mirrors) {
    atomic_fetch_add_explicit(&mirrors->references, 1, memory_order_relaxed);
}

void ss_mirrors_release(ss_mirrors *mirrors) {
    if (!mirrors || atomic_fetch_sub_explicit(&mirrors->references, 1, memory_order_acq_rel) != 1) return;
    if (getpid() == mirrors->owner) pthread_mutex_destroy(&mirrors->lock);
    free(mirrors);
}

int32_t ss_mirrors_count(const ss_mirrors *mirrors) { return mirrors->count; }

/* From here to ss_mirrors_choose the lock is held. */

static double rate_of(const directory *one) { return one->busy_s > 0 && one->bytes > 0 ? one->bytes / one->busy_s : 0; }

static double assumed_rate(const ss_mirrors *mirrors) {
    double sum = 0;
    int32_t known = 0;
    for (int32_t i = 0; i < mirrors->count; i++) {
        double rate = mirrors->all[i].state.usable ? rate_of(&mirrors->all[i]) : 0;
        if (rate > 0) sum += rate, known++;
    }
    return known ? sum / known : 1.0;
}

/* One directory at least is usable. */
static int32_t choose(ss_mirrors *mirrors, int64_t bytes, int64_t records) {
    double assumed = assumed_rate(mirrors), least = 0;
    int32_t chosen = -1;
    for (int32_t i = 0; i < mirrors->count; i++) {
        const directory *one = &mirrors->all[i];
        if (!one->state.usable) continue;
        if (one->state.passed_over >= REMEASURE_AFTER) {
            chosen = i;
            mirrors->all[i].measured_anew = 1;
            break;
        }
        double rate = rate_of(one), expected = (double)(one->state.queued_bytes + bytes) / (rate > 0 ? rate : assumed);
        if (chosen < 0 || expected < least) chosen = i, least = expected;
    }
    for (int32_t i = 0; i < mirrors->count; i++) {
        ss_directory_state *state = &mirrors->all[i].state;
        int64_t passed = i == chosen ? 0 : state->passed_over + records;
        if (state->usable) state->passed_over = (int32_t)(passed < REMEASURE_AFTER ? passed : REMEASURE_AFTER);
    }
    return chosen;
}

int32_t ss_mirrors_choose(ss_mirrors *mirrors, int64_t bytes, int64_t records) {
    pthread_mutex_lock(&mirrors->lock);
    int32_t chosen = choose(mirrors, bytes, records);
    mirrors->all[chosen].state.queued_bytes += bytes;
    pthread_mutex_unlock(&mirrors->lock);
    return chosen;
}

void ss_mirrors_settle(ss_mirrors *mirrors, int32_t number, int64_t bytes) {
    pthread_mutex_lock(&mirrors->lock);
    int64_t *queued = &mirrors->all[number].state.queued_bytes;
    *queued = *queued > bytes ? *queued - bytes : 0;
    pthread_mutex_unlock(&mirrors->lock);
}

void ss_mirrors_begin(ss_mirrors *mirrors, int32_t number, double now_s) {
    pthread_mutex_lock(&mirrors->lock);
    directory *one = &mirrors->all[number];
    if (!one->under_way++) one->since_s = now_s;
    pthread_mutex_unlock(&mirrors->lock);
}

void ss_mirrors_end(ss_mirrors *mirrors, int32_t number, double now_s, int64_t bytes) {
    pthread_mutex_lock(&mirrors->lock);
    directory *one = &mirrors->all[number];
    if (one->measured_anew) one->measured_anew = 0, one->busy_s = 0, one->bytes = 0;
    one->busy_s += now_s - one->since_s;
    one->since_s = now_s;
    one->under_way--;
    one->bytes += (double)bytes;
    one->state.total_bytes += bytes;
    if (one->busy_s > WINDOW_S) one->busy_s /= 2, one->bytes /= 2;
    pthread_mutex_unlock(&mirrors->lock);
}

int32_t ss_mirrors_leave_out(ss_mirrors *mirrors, int32_t failed, const ss_fault *fault, int64_t bytes,
                             int32_t *newly) {
    pthread_mutex_lock(&mirrors->lock);
    int32_t others = 0, chosen = -1;
    for (int32_t i = 0; i < mirrors->count; i++) others += i != failed && mirrors->all[i].state.usable;
    *newly = others && mirrors->all[failed].state.usable;
    if (*newly) {
        mirrors->all[failed].state.usable = 0;
        mirrors->all[failed].state.fault = *fault;
    }
    if (others) chosen = choose(mirrors, bytes, 1);
    pthread_mutex_unlock(&mirrors->lock);
    return chosen;
}

void ss_mirrors_state(ss_mirrors *mirrors, int32_t number, ss_directory_state *state) {
    pthread_mutex_lock(&mirrors->lock);
    *state = mirrors->all[number].state;
    state->bytes_per_s = rate_of(&mirrors->all[number]);
    pthread_mutex_unlock(&mirrors->lock);
}
