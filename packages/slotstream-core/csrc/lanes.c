/* The threads and queues of lanes.h. What a read is and where its bytes go is in segments.c.
 *
 * One lock guards the queues and the state of all batches; it is held for bookkeeping only. A batch lives as long as
 * somebody refers to it: the caller, a queue, or a thread at one of its jobs; the lanes as long as a batch does. */
#include "lanes.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "segments.h"

#define MOST_LANES 512
#define MOST_STAGING 8
#define MOST_FETCHING (SS_APART / QUEUES) /* jobs of mapped memory of a queue: nobody can take a copy back */
#define SPIN_NS 1000000 /* a thread that sleeps is awake again some 50 us after what it waited for */

enum { DEMAND, AHEAD, QUEUES };

typedef struct lane {
    ss_lanes *lanes;
    pthread_t handle;
    char *scratch;
    int queue;
} lane;

/* A part of scratch, and the job that is read into it and copied from it. */
typedef struct berth {
    ss_wish wish; /* first */
    struct berth *next;
    ss_begun *begun; /* its copies, of mapped memory */
    char *scratch;
    ss_batch *batch;
    int64_t job;
    ss_job_result result;
    int queue;
    ss_copy copies[SS_COPIES];
} berth;

struct ss_lanes {
    ss_lane_settings settings;
    ss_copier *copier; /* null where the host writes slots itself */
    berth *berths;     /* with a copier */
    pid_t owner;
    atomic_int references;
    lane *all;
    int count;
    pthread_mutex_t lock;
    pthread_cond_t wake[QUEUES], finished;
    /* under the lock: */
    ss_batch *first[QUEUES], *last[QUEUES];
    berth *unused[QUEUES];
    berth *begun; /* whose copies somebody has to wait for */
    int sleeping[QUEUES];
    int fetching[QUEUES]; /* jobs of mapped memory under way */
    int demand;  /* batches under way that somebody waits for */
    int running; /* threads that have not ended */
    int waiting; /* threads in ss_batch_wait or ss_lanes_close */
    int closed, helping, joined;
};

struct ss_batch {
    ss_batch_state state; /* first: ss_batch_state_of */
    ss_lanes *lanes;
    atomic_int references;
    ss_plan plan;
    /* under the lock: */
    ss_begun *apart; /* the copies of its job that was begun last, of mapped memory */
    int64_t ended_ns;
    ss_batch *next[QUEUES];
    int queued[QUEUES], gated, running, untouched, over;
    int64_t next_job;
    atomic_int stopped; /* also read by threads at its jobs */
};

static int64_t deadline_of(int64_t milliseconds) {
    const int64_t longest = (int64_t)1 << 40; /* 34 years */
    return now_ns() + (milliseconds < 0 ? 0 : milliseconds > longest ? longest : milliseconds) * 1000000;
}

static void let_lanes_go(ss_lanes *lanes) {
    if (atomic_fetch_sub_explicit(&lanes->references, 1, memory_order_acq_rel) != 1) return;
    if (getpid() == lanes->owner) {
        pthread_mutex_destroy(&lanes->lock);
        for (int queue = 0; queue < QUEUES; queue++) pthread_cond_destroy(&lanes->wake[queue]);
        pthread_cond_destroy(&lanes->finished);
        ss_copier_free(lanes->copier);
    }
    ss_mirrors_release(lanes->settings.mirrors);
    ss_mapped_release(lanes->settings.mapped);
    free(lanes->all);
    free(lanes->berths);
    free(lanes);
}

static void let_batch_go(ss_batch *batch) {
    if (atomic_fetch_sub_explicit(&batch->references, 1, memory_order_acq_rel) != 1) return;
    ss_lanes *lanes = batch->lanes;
    if (getpid() == lanes->owner)
        for (; batch->next_job < batch->plan.job_count; batch->next_job++) ss_plan_give_up(&batch->plan, batch->next_job);
    ss_plan_free(&batch->plan);
    free(batch);
    let_lanes_go(lanes);
}

static void refer(ss_batch *batch) { atomic_fetch_add_explicit(&batch->references, 1, memory_order_relaxed); }

/* From here to ss_lanes_create the lock is held, unless a comment says otherwise. */

static int has_jobs(const ss_batch *batch) { return batch->next_job < batch->plan.job_count; }

static void enqueue(ss_batch *batch, int queue) {
    ss_lanes *lanes = batch->lanes;
    if (batch->queued[queue] || !has_jobs(batch)) return;
    batch->queued[queue] = 1;
    batch->next[queue] = NULL;
    refer(batch);
    if (lanes->last[queue]) lanes->last[queue]->next[queue] = batch;
    else lanes->first[queue] = batch;
    lanes->last[queue] = batch;
}

static void dequeue_first(ss_lanes *lanes, int queue) {
    ss_batch *batch = lanes->first[queue];
    lanes->first[queue] = batch->next[queue];
    if (!lanes->first[queue]) lanes->last[queue] = NULL;
    batch->queued[queue] = 0;
    let_batch_go(batch);
}

static int64_t claim_job(ss_batch *batch) {
    batch->running++;
    batch->untouched = 0;
    return batch->next_job++;
}

static int is_mapped(const ss_batch *batch, int64_t job) { return batch->plan.jobs[job].mapped; }

/* The next job of a queue, its batch referred to; null when there is none to begin now. */
static ss_batch *claim(ss_lanes *lanes, int queue, int64_t *job) {
    if (queue == AHEAD && lanes->demand) return NULL;
    if (lanes->copier && !lanes->unused[queue]) return NULL;
    while (lanes->first[queue]) {
        ss_batch *batch = lanes->first[queue];
        if (has_jobs(batch)) {
            int mapped = is_mapped(batch, batch->next_job);
            if (mapped && lanes->fetching[queue] == MOST_FETCHING) return NULL;
            lanes->fetching[queue] += mapped;
            refer(batch);
            *job = claim_job(batch);
            return batch;
        }
        dequeue_first(lanes, queue);
    }
    return NULL;
}

/* Wake as many sleeping threads as there are jobs for them. */
static void wake(ss_lanes *lanes, int queue, int64_t jobs) {
    if (jobs >= lanes->sleeping[queue]) {
        if (lanes->sleeping[queue]) pthread_cond_broadcast(&lanes->wake[queue]);
    } else {
        for (int64_t i = 0; i < jobs; i++) pthread_cond_signal(&lanes->wake[queue]);
    }
}

/* How many jobs may begin now, or as many as threads sleep. */
static int64_t queued_jobs(const ss_lanes *lanes, int queue) {
    int64_t jobs = 0, allowed = MOST_FETCHING - lanes->fetching[queue];
    for (const ss_batch *batch = lanes->first[queue]; batch && jobs < lanes->sleeping[queue]; batch = batch->next[queue]) {
        int64_t mapped = batch->plan.mapped_jobs - batch->next_job;
        if (mapped > allowed) return jobs + allowed;
        if (mapped > 0) allowed -= mapped;
        jobs += batch->plan.job_count - batch->next_job;
    }
    return jobs;
}

static void finish_if_over(ss_batch *batch) {
    ss_lanes *lanes = batch->lanes;
    if (batch->running || has_jobs(batch) || batch->over) return;
    batch->over = 1;
    ss_plan_over(&batch->plan);
    batch->ended_ns = now_ns();
    __atomic_store_n(&batch->state.done, 1, __ATOMIC_RELEASE);
    if (batch->gated && --lanes->demand == 0) wake(lanes, AHEAD, queued_jobs(lanes, AHEAD));
    if (lanes->waiting) pthread_cond_broadcast(&lanes->finished);
}

/* The jobs no thread has claimed: theirs is the outcome SS_CANCELLED. */
static void cancel(ss_batch *batch) {
    if (batch->over) return;
    atomic_store_explicit(&batch->stopped, 1, memory_order_relaxed);
    batch->state.cancelled = 1;
    for (; has_jobs(batch); batch->next_job++)
        batch->state.failures += ss_plan_give_up(&batch->plan, batch->next_job);
    finish_if_over(batch);
}

/* Without the lock: read one claimed job; returns how many copies of it are left to be made. */
static int64_t run(ss_batch *batch, int64_t job, char *scratch, ss_job_result *result, ss_copy *copies) {
    int64_t started = now_ns();
    *result = (ss_job_result){0};
    ss_lanes *lanes = batch->lanes;
    int64_t left = ss_plan_read(&batch->plan, job, &lanes->settings, scratch, lanes->copier, &batch->stopped, result, copies);
    if (!lanes->copier) ss_plan_close(&batch->plan, job, 0, result);
    result->ns = now_ns() - started;
    return left;
}

static void take_in(ss_batch *batch, const ss_job_result *result) {
    batch->state.bytes_read += result->bytes;
    batch->state.read_ns += result->ns;
    batch->state.failures += result->failures;
    batch->state.left_out += result->left_out;
    batch->running--;
    finish_if_over(batch);
}

/* Without the lock: a job's copies are complete. */
static void end_copies(ss_wish *wish, int32_t code) {
    berth *place = (berth *)wish;
    ss_batch *batch = place->batch;
    ss_lanes *lanes = batch->lanes;
    ss_plan_close(&batch->plan, place->job, code, &place->result);
    pthread_mutex_lock(&lanes->lock);
    int mapped = is_mapped(batch, place->job);
    lanes->fetching[place->queue] -= mapped;
    take_in(batch, &place->result);
    if (lanes->sleeping[place->queue] && lanes->first[place->queue])
        wake(lanes, place->queue, mapped ? queued_jobs(lanes, place->queue) : 1);
    place->next = lanes->unused[place->queue];
    lanes->unused[place->queue] = place;
    let_batch_go(batch);
    pthread_mutex_unlock(&lanes->lock);
}

/* With the lock: read a claimed job, and have it copied; of mapped memory the copies are begun, and somebody has to end
 * them. */
static void stage(ss_lanes *lanes, ss_batch *batch, int64_t job, int queue) {
    berth *place = lanes->unused[queue];
    lanes->unused[queue] = place->next;
    pthread_mutex_unlock(&lanes->lock);
    place->batch = batch;
    place->job = job;
    int64_t left = run(batch, job, place->scratch, &place->result, place->copies);
    place->wish = (ss_wish){.copies = place->copies, .count = left, .over = end_copies};
    ss_begun *begun = left && is_mapped(batch, job) ? ss_copy_begin(lanes->copier, &place->wish) : NULL;
    if (left && !begun) ss_copy_later(lanes->copier, &place->wish);
    else if (!left) end_copies(&place->wish, 0);
    pthread_mutex_lock(&lanes->lock);
    if (!begun) return;
    berth **last = &lanes->begun; /* what was begun first ends first */
    while (*last) last = &(*last)->next;
    place->begun = begun, place->next = NULL, *last = place;
    batch->apart = begun;
}

/* With the lock: wait for copies that were begun; 0 when there are none. */
static int end_begun(ss_lanes *lanes) {
    berth *place = lanes->begun;
    if (!place) return 0;
    lanes->begun = place->next;
    pthread_mutex_unlock(&lanes->lock);
    ss_copy_end(lanes->copier, place->begun);
    pthread_mutex_lock(&lanes->lock);
    return 1;
}

/* With the lock: the first batch of a queue, if its next job is of mapped memory and may begin. */
static ss_batch *next_mapped(ss_lanes *lanes, int queue) {
    while (lanes->first[queue] && !has_jobs(lanes->first[queue])) dequeue_first(lanes, queue);
    ss_batch *batch = lanes->first[queue];
    int may = batch && is_mapped(batch, batch->next_job) && lanes->fetching[queue] < MOST_FETCHING && lanes->unused[queue];
    return may && (queue == DEMAND || !lanes->demand) && !lanes->closed ? batch : NULL;
}

/* With the lock: what is mapped and may begin is begun by this thread, which saves waking another one first; a lane has to
 * end it. */
static void begin_mapped(ss_lanes *lanes, int queue) {
    ss_batch *batch;
    lanes->helping++;
    while ((batch = next_mapped(lanes, queue)) != NULL) {
        lanes->fetching[queue]++;
        refer(batch);
        stage(lanes, batch, claim_job(batch), queue);
    }
    lanes->helping--;
    while (lanes->closed && end_begun(lanes)) {} /* nobody else may be left for it */
    if (lanes->closed) pthread_cond_broadcast(&lanes->finished);
}

static void *work(void *argument) {
    lane *self = argument;
    ss_lanes *lanes = self->lanes;
    pthread_mutex_lock(&lanes->lock);
    for (;;) {
        if (end_begun(lanes)) {
            begin_mapped(lanes, AHEAD);
            continue;
        }
        if (lanes->closed) break;
        int64_t job;
        ss_batch *batch = claim(lanes, self->queue, &job);
        if (!batch) {
            lanes->sleeping[self->queue]++;
            pthread_cond_wait(&lanes->wake[self->queue], &lanes->lock);
            lanes->sleeping[self->queue]--;
            continue;
        }
        if (lanes->copier) {
            stage(lanes, batch, job, self->queue);
            continue;
        }
        pthread_mutex_unlock(&lanes->lock);
        ss_job_result result;
        run(batch, job, self->scratch, &result, NULL);
        pthread_mutex_lock(&lanes->lock);
        take_in(batch, &result);
        let_batch_go(batch);
    }
    lanes->running--;
    pthread_cond_broadcast(&lanes->finished);
    pthread_mutex_unlock(&lanes->lock);
    return NULL;
}

static int usable(const ss_lane_settings *s) {
    if (s->alignment < 1 || (s->alignment & (s->alignment - 1))) return 0;
    int64_t unit = s->alignment > 64 ? s->alignment : 64;
    int scratch = s->scratch && s->scratch_bytes > 0 && s->scratch_stride >= s->scratch_bytes &&
                  (uintptr_t)s->scratch % unit == 0 && s->scratch_stride % unit == 0;
    int ahead = !s->ahead_lanes ||
                (s->ahead_scratch && s->ahead_scratch_bytes > 0 && s->ahead_scratch_stride >= s->ahead_scratch_bytes &&
                 (uintptr_t)s->ahead_scratch % unit == 0 && s->ahead_scratch_stride % unit == 0);
    const ss_device *d = &s->device;
    int device = !d->copy || (d->finish && d->stream && !d->launch == !d->kernel && !d->event == !d->record &&
                              !d->event == !d->follow && s->job_bytes <= s->scratch_bytes &&
                              (!s->ahead_lanes || s->job_bytes <= s->ahead_scratch_bytes));
    return scratch && ahead && device && (!s->mapped || d->copy) && s->demand_lanes >= 1 && s->ahead_lanes >= 0 &&
           s->demand_lanes <= MOST_LANES && s->ahead_lanes <= MOST_LANES && s->merge_bytes >= 0 && s->job_bytes >= 0 &&
           s->staging >= 1 && s->staging <= MOST_STAGING && s->part_bytes >= 0 && s->part_bytes % 64 == 0;
}

static char *scratch_of(const ss_lane_settings *s, int queue, int64_t part) {
    return queue == DEMAND ? (char *)s->scratch + part * s->scratch_stride
                           : (char *)s->ahead_scratch + part * s->ahead_scratch_stride;
}

/* What copies to a device need; 0 without memory for it. */
static int open_device(ss_lanes *lanes) {
    const ss_lane_settings *s = &lanes->settings;
    int64_t demand = s->demand_lanes * s->staging, all = demand + s->ahead_lanes * s->staging;
    if (!s->device.copy) return 1;
    lanes->copier = ss_copier_create(&s->device);
    lanes->berths = calloc((size_t)all, sizeof *lanes->berths);
    for (int64_t i = 0; lanes->berths && i < all; i++) {
        berth *place = &lanes->berths[i];
        place->queue = i < demand ? DEMAND : AHEAD;
        place->scratch = scratch_of(s, place->queue, i < demand ? i : i - demand);
        place->next = lanes->unused[place->queue];
        lanes->unused[place->queue] = place;
    }
    return lanes->copier && lanes->berths;
}

int32_t ss_lanes_create(const ss_lane_settings *settings, ss_lanes **result) {
    if (!settings || !result || !usable(settings)) return SS_BAD_ARGUMENT;
    int wanted = settings->demand_lanes + settings->ahead_lanes;
    ss_lanes *lanes = calloc(1, sizeof *lanes);
    lane *all = calloc((size_t)wanted, sizeof *all);
    if (lanes) lanes->settings = *settings;
    if (!lanes || !all || !open_device(lanes) || pthread_mutex_init(&lanes->lock, NULL) ||
        start_condition(&lanes->wake[DEMAND]) || start_condition(&lanes->wake[AHEAD]) ||
        start_condition(&lanes->finished)) {
        if (lanes) ss_copier_free(lanes->copier), free(lanes->berths);
        free(all);
        free(lanes);
        return SS_NO_MEMORY;
    }
    if (settings->mirrors) ss_mirrors_refer(settings->mirrors);
    if (settings->mapped) ss_mapped_refer(settings->mapped);
    lanes->owner = getpid();
    lanes->all = all;
    atomic_init(&lanes->references, 1);
    pthread_mutex_lock(&lanes->lock);
    for (int i = 0; i < wanted; i++) {
        int queue = i < settings->demand_lanes ? DEMAND : AHEAD;
        int64_t part = queue == DEMAND ? i : i - settings->demand_lanes; /* without a device */
        all[i] = (lane){.lanes = lanes, .scratch = scratch_of(settings, queue, part), .queue = queue};
        if (pthread_create(&all[i].handle, NULL, work, &all[i])) break;
        lanes->count++;
        lanes->running++;
    }
    int started = lanes->count;
    pthread_mutex_unlock(&lanes->lock);
    if (started < wanted) {
        ss_lanes_close(lanes, INT64_MAX);
        ss_lanes_release(lanes);
        return SS_NO_MEMORY;
    }
    *result = lanes;
    return SS_OK;
}

int32_t ss_lanes_close(ss_lanes *lanes, int64_t milliseconds) {
    if (!lanes || getpid() != lanes->owner) return 0;
    int64_t deadline = deadline_of(milliseconds);
    pthread_mutex_lock(&lanes->lock);
    lanes->closed = 1;
    for (int queue = 0; queue < QUEUES; queue++) {
        while (lanes->first[queue]) {
            cancel(lanes->first[queue]);
            dequeue_first(lanes, queue);
        }
        pthread_cond_broadcast(&lanes->wake[queue]);
    }
    lanes->waiting++;
    while (lanes->running + lanes->helping && wait_until(&lanes->finished, &lanes->lock, deadline)) {}
    lanes->waiting--;
    int running = lanes->running + lanes->helping, join = !running && !lanes->joined;
    if (join) lanes->joined = 1;
    pthread_mutex_unlock(&lanes->lock);
    for (int i = 0; join && i < lanes->count; i++) pthread_join(lanes->all[i].handle, NULL);
    return running;
}

void ss_lanes_refer(ss_lanes *lanes) { atomic_fetch_add_explicit(&lanes->references, 1, memory_order_relaxed); }

void ss_lanes_release(ss_lanes *lanes) {
    if (lanes) let_lanes_go(lanes);
}

int32_t ss_batch_create(ss_lanes *lanes, const ss_piece_kind *kinds, int64_t kind_count, const int64_t *records,
                        int64_t record_count, ss_batch **result) {
    if (!lanes || !result) return SS_BAD_ARGUMENT;
    ss_batch *batch = calloc(1, sizeof *batch);
    if (!batch) return SS_NO_MEMORY;
    int32_t code = ss_plan_make(&batch->plan, &lanes->settings, kinds, kind_count, records, record_count);
    if (code != SS_OK) {
        free(batch);
        return code;
    }
    batch->lanes = lanes;
    batch->untouched = 1;
    atomic_init(&batch->references, 1);
    ss_lanes_refer(lanes);
    *result = batch;
    return SS_OK;
}

const ss_batch_state *ss_batch_state_of(const ss_batch *batch) { return &batch->state; }

int64_t ss_batch_reads(const ss_batch *batch) { return batch->plan.segment_count; }

int32_t ss_batch_submit(ss_batch *batch) {
    if (!batch) return SS_BAD_ARGUMENT;
    ss_lanes *lanes = batch->lanes;
    pthread_mutex_lock(&lanes->lock);
    if (lanes->closed) cancel(batch);
    if (!batch->over && !batch->gated) {
        batch->gated = 1;
        lanes->demand++;
    }
    enqueue(batch, DEMAND);
    begin_mapped(lanes, DEMAND);
    wake(lanes, DEMAND, queued_jobs(lanes, DEMAND) + (lanes->begun != NULL));
    pthread_mutex_unlock(&lanes->lock);
    return SS_OK;
}

/* Threads that so many jobs of so many bytes are worth waking: it takes longer than reading something small. */
static int64_t worth_waking(const ss_lanes *lanes, int64_t jobs, int64_t bytes) {
    int64_t together = lanes->settings.job_bytes > 0 ? lanes->settings.job_bytes : 1, most = (bytes + together - 1) / together;
    if (jobs > lanes->sleeping[AHEAD]) jobs = lanes->sleeping[AHEAD];
    return jobs < most ? jobs : most;
}

int32_t ss_batches_read_ahead(ss_batch *const *batches, int64_t count) {
    ss_lanes *lanes = batches[0]->lanes;
    int64_t jobs = 0, bytes = 0, mapped = 0;
    if (!lanes->settings.ahead_lanes) return SS_BAD_ARGUMENT;
    for (int64_t i = 0; i < count; i++)
        if (batches[i]->plan.scratch_bytes > lanes->settings.ahead_scratch_bytes) return SS_TOO_SMALL;
    pthread_mutex_lock(&lanes->lock);
    for (int64_t i = 0; i < count; i++) {
        if (lanes->closed) cancel(batches[i]);
        enqueue(batches[i], AHEAD);
    }
    begin_mapped(lanes, AHEAD);
    for (int64_t i = 0; i < count; i++) {
        const ss_plan *plan = &batches[i]->plan;
        int64_t read = plan->mapped_jobs > batches[i]->next_job ? plan->mapped_jobs : batches[i]->next_job;
        jobs += plan->job_count - read, mapped += read - batches[i]->next_job;
        for (int64_t s = 0; s < plan->segment_count; s++) bytes += plan->segments[s].mapped ? 0 : plan->segments[s].bytes;
    }
    if (mapped > MOST_FETCHING) mapped = MOST_FETCHING;
    int64_t woken = (lanes->begun != NULL) + (lanes->demand ? 0 : mapped + worth_waking(lanes, jobs, bytes));
    pthread_mutex_unlock(&lanes->lock);
    for (int64_t i = 0; i < woken; i++) pthread_cond_signal(&lanes->wake[AHEAD]); /* they need the lock at once */
    return SS_OK;
}

int32_t ss_batch_read_ahead(ss_batch *batch) {
    return batch ? ss_batches_read_ahead(&batch, 1) : SS_BAD_ARGUMENT;
}

/* Without the lock: look for a while whether a batch is done. Nobody needs this processor: a device computes. */
static void watch(const ss_batch *batch) {
    int64_t end = now_ns() + SPIN_NS;
    while (!__atomic_load_n(&batch->state.done, __ATOMIC_ACQUIRE) && now_ns() < end) {}
}

int32_t ss_batch_wait(ss_batch *batch, int64_t milliseconds) {
    ss_lanes *lanes = batch->lanes;
    const ss_lane_settings *settings = &lanes->settings;
    int64_t deadline = deadline_of(milliseconds);
    if (lanes->copier && milliseconds > 0) watch(batch);
    pthread_mutex_lock(&lanes->lock);
    while (!batch->over) {
        if (batch->gated && has_jobs(batch) && !lanes->helping && !settings->device.copy) {
            lanes->helping = 1;
            int64_t job = claim_job(batch);
            pthread_mutex_unlock(&lanes->lock);
            ss_job_result result;
            run(batch, job, (char *)settings->scratch + settings->demand_lanes * settings->staging * settings->scratch_stride, &result,
                NULL);
            pthread_mutex_lock(&lanes->lock);
            lanes->helping = 0;
            take_in(batch, &result);
            if (lanes->closed) pthread_cond_broadcast(&lanes->finished);
            continue;
        }
        if (milliseconds <= 0) break; /* to wait until a time that has passed takes the system 50 us */
        lanes->waiting++;
        int in_time = wait_until(&lanes->finished, &lanes->lock, deadline);
        lanes->waiting--;
        if (!in_time) break;
    }
    int over = batch->over;
    pthread_mutex_unlock(&lanes->lock);
    return over;
}

int ss_batch_follow(ss_batch *batch, void *stream) {
    pthread_mutex_lock(&batch->lanes->lock);
    const ss_plan *plan = &batch->plan;
    int over = batch->over, failed = batch->state.failures > 0 || batch->state.cancelled;
    ss_begun *begun = plan->job_count == 1 && plan->mapped_jobs == 1 ? batch->apart : NULL;
    pthread_mutex_unlock(&batch->lanes->lock);
    if (failed || over) return over && !failed;
    return begun && ss_copy_follow(batch->lanes->copier, begun, stream);
}

int64_t ss_batch_ended_ns(const ss_batch *batch) { return batch->ended_ns; }

void ss_batch_cancel(ss_batch *batch) {
    pthread_mutex_lock(&batch->lanes->lock);
    cancel(batch);
    pthread_mutex_unlock(&batch->lanes->lock);
}

int32_t ss_batch_retract(ss_batch *batch) {
    pthread_mutex_lock(&batch->lanes->lock);
    int possible = batch->untouched && !batch->over;
    if (possible) {
        batch->state.cancelled = 1;
        for (; has_jobs(batch); batch->next_job++) ss_plan_give_up(&batch->plan, batch->next_job);
        finish_if_over(batch);
    }
    pthread_mutex_unlock(&batch->lanes->lock);
    return possible;
}

int64_t ss_batch_failures(const ss_batch *batch, ss_failure *failures, int64_t count) {
    pthread_mutex_lock(&batch->lanes->lock);
    int64_t found = batch->over && batch->state.failures ? ss_plan_failures(&batch->plan, failures, count) : 0;
    pthread_mutex_unlock(&batch->lanes->lock);
    return found;
}

void ss_batch_release(ss_batch *batch) {
    if (batch) let_batch_go(batch);
}
