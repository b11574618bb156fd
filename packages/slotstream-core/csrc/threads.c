/* A job is published by storing a ticket: its number in the upper half; in the lower, how many shares were taken of the
 * job's first half and of its second. A thread claims a share by raising one of these counts with compare-and-swap; that
 * fails when the job is over, since a ticket is used once, so a thread that comes late touches nothing of a job it
 * missed and nobody waits for it. Shares done are counted apart.
 *
 * A thread takes from its own half in ascending order as long as there is something, so that what it reads lies in one
 * stretch of memory and what it prefetches is what it needs next; then it helps with the other half.
 *
 * A waiting thread first pauses, then yields the processor, and at last sleeps: a machine with more work than
 * processors loses nothing to it. */
#include "threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#define PAUSES 64
#define WORKER_YIELDS 200
#define CALLER_YIELDS 1000
#define MAX_THREADS 256
#define LINE 64
#define KEPT_SCRATCH_BYTES ((size_t)16 << 20)

struct ss_pool {
    const ss_kernels *kernels;
    pid_t owner;
    int threads; /* with the caller */
    int started;
    pthread_t *handles;
    char *scratch;
    size_t scratch_bytes;
    atomic_flag busy;
    pthread_mutex_t lock;
    pthread_cond_t wake, finished;
    atomic_int sleepers, caller_sleeps, stopping, arrived;
    _Alignas(LINE) _Atomic uint64_t ticket;
    _Alignas(LINE) _Atomic int64_t done;
    _Alignas(LINE) _Atomic int64_t pieces;
    _Atomic(ss_work) work;
    _Atomic(void *) context;
};

static void pause_once(void) {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Subnormal numbers count (SUBNORMAL in kernels_template.h) and rounding is to nearest, whatever the caller set. */
static unsigned plain_mode(void) {
#if defined(__x86_64__)
    unsigned before = _mm_getcsr();
    if (before != 0x1f80u) _mm_setcsr(0x1f80u);
    return before;
#else
    return 0;
#endif
}
static void restore_mode(unsigned mode) {
#if defined(__x86_64__)
    _mm_setcsr(mode);
#else
    (void)mode;
#endif
}

#define TAKEN_BITS 16
#define MOST_SHARES 0xffffu /* each half's count fits into TAKEN_BITS */
#define NOTHING_LEFT 0xffffffffu

/* Pieces that are claimed together. */
static int64_t share_size(int64_t pieces) { return (pieces + MOST_SHARES - 1) / MOST_SHARES; }
static int64_t share_count(int64_t pieces) {
    int64_t size = share_size(pieces);
    return size ? (pieces + size - 1) / size : 0;
}

/* The next share of `half`, or of the other one when that is empty; -1 when all are taken. `step` is what claims it. */
static int64_t next_share(uint64_t ticket, int64_t shares, int half, uint64_t *step) {
    int64_t middle = (shares + 1) / 2;
    int64_t first = (int64_t)(ticket >> TAKEN_BITS & MOST_SHARES), second = middle + (int64_t)(ticket & MOST_SHARES);
    if (first < middle && (half == 0 || second >= shares)) {
        *step = (uint64_t)1 << TAKEN_BITS;
        return first;
    }
    *step = 1;
    return second < shares ? second : -1;
}

/* Take shares of the job that `ticket` belongs to until none is left. */
static void take_shares(ss_pool *pool, uint64_t ticket, int half) {
    for (;;) {
        int64_t pieces = atomic_load_explicit(&pool->pieces, memory_order_acquire);
        ss_work work = atomic_load_explicit(&pool->work, memory_order_acquire);
        void *context = atomic_load_explicit(&pool->context, memory_order_acquire);
        int64_t shares = share_count(pieces), size = share_size(pieces);
        uint64_t step;
        int64_t share = next_share(ticket, shares, half, &step);
        if (share < 0) return;
        if (!atomic_compare_exchange_weak_explicit(&pool->ticket, &ticket, ticket + step, memory_order_acq_rel,
                                                   memory_order_acquire)) {
            continue; /* `ticket` is now the current one; another job's fields are read again above */
        }
        ticket += step;
        int64_t end = (share + 1) * size < pieces ? (share + 1) * size : pieces;
        for (int64_t piece = share * size; piece < end; piece++) work(context, piece);
        /* `shares` belongs to this job: the claim succeeded, so the job was not over when it was read */
        if (atomic_fetch_add_explicit(&pool->done, 1, memory_order_seq_cst) + 1 == shares &&
            atomic_load_explicit(&pool->caller_sleeps, memory_order_seq_cst)) {
            pthread_mutex_lock(&pool->lock);
            pthread_cond_signal(&pool->finished);
            pthread_mutex_unlock(&pool->lock);
        }
    }
}

static int work_waits(ss_pool *pool) {
    uint64_t ticket = atomic_load_explicit(&pool->ticket, memory_order_seq_cst), step;
    return next_share(ticket, share_count(atomic_load_explicit(&pool->pieces, memory_order_relaxed)), 0, &step) >= 0;
}

static void *worker(void *argument) {
    ss_pool *pool = argument;
    int half = (atomic_fetch_add_explicit(&pool->arrived, 1, memory_order_relaxed) + 1) % 2; /* the caller has the first */
    plain_mode();
    while (!atomic_load_explicit(&pool->stopping, memory_order_acquire)) {
        uint64_t ticket = atomic_load_explicit(&pool->ticket, memory_order_acquire);
        if (work_waits(pool)) {
            take_shares(pool, ticket, half);
            continue;
        }
        int found = 0;
        for (int i = 0; i < PAUSES && !found; i++) pause_once(), found = work_waits(pool);
        for (int i = 0; i < WORKER_YIELDS && !found; i++) sched_yield(), found = work_waits(pool);
        if (found) continue;
        pthread_mutex_lock(&pool->lock);
        atomic_fetch_add_explicit(&pool->sleepers, 1, memory_order_seq_cst);
        while (!work_waits(pool) && !atomic_load_explicit(&pool->stopping, memory_order_acquire))
            pthread_cond_wait(&pool->wake, &pool->lock);
        atomic_fetch_sub_explicit(&pool->sleepers, 1, memory_order_seq_cst);
        pthread_mutex_unlock(&pool->lock);
    }
    return NULL;
}

static void publish(ss_pool *pool, ss_work work, void *context, int64_t pieces) {
    uint64_t number = (atomic_load_explicit(&pool->ticket, memory_order_relaxed) >> 32) + 1;
    /* The last job has no shares left. Whoever reads one of the new fields below also sees this ticket, so that it
     * cannot claim a share of the last job by the new job's count. */
    atomic_store_explicit(&pool->ticket, number << 32 | NOTHING_LEFT, memory_order_seq_cst);
    atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->work, work, memory_order_release);
    atomic_store_explicit(&pool->context, context, memory_order_release);
    atomic_store_explicit(&pool->pieces, pieces, memory_order_release);
    atomic_store_explicit(&pool->ticket, (number + 1) << 32, memory_order_seq_cst);
    if (atomic_load_explicit(&pool->sleepers, memory_order_seq_cst)) {
        pthread_mutex_lock(&pool->lock);
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->lock);
    }
}

static void wait_for_all(ss_pool *pool, int64_t shares) {
    for (int i = 0; i < PAUSES + CALLER_YIELDS; i++) {
        if (atomic_load_explicit(&pool->done, memory_order_acquire) == shares) return;
        if (i < PAUSES) pause_once();
        else sched_yield();
    }
    pthread_mutex_lock(&pool->lock);
    atomic_store_explicit(&pool->caller_sleeps, 1, memory_order_seq_cst);
    while (atomic_load_explicit(&pool->done, memory_order_seq_cst) != shares)
        pthread_cond_wait(&pool->finished, &pool->lock);
    atomic_store_explicit(&pool->caller_sleeps, 0, memory_order_seq_cst);
    pthread_mutex_unlock(&pool->lock);
}

void ss_share(ss_call *call, ss_work work, void *context, int64_t pieces) {
    ss_pool *pool = call->pool;
    if (call->own_scratch || !pool->started || pieces < 2) {
        for (int64_t i = 0; i < pieces; i++) work(context, i);
        return;
    }
    publish(pool, work, context, pieces);
    take_shares(pool, atomic_load_explicit(&pool->ticket, memory_order_acquire), 0);
    wait_for_all(pool, share_count(pieces));
}

static char *allocate(size_t bytes) {
    void *memory = NULL;
    return posix_memalign(&memory, LINE, bytes ? bytes : LINE) ? NULL : memory;
}

int32_t ss_begin(ss_pool *pool, size_t scratch_bytes, ss_call *call) {
    call->pool = pool;
    call->kernels = pool->kernels;
    call->own_scratch = getpid() != pool->owner || atomic_flag_test_and_set_explicit(&pool->busy, memory_order_acquire);
    if (call->own_scratch) {
        call->scratch = allocate(scratch_bytes);
    } else {
        if (scratch_bytes > pool->scratch_bytes) {
            free(pool->scratch);
            pool->scratch = allocate(scratch_bytes);
            pool->scratch_bytes = pool->scratch ? scratch_bytes : 0;
        }
        call->scratch = pool->scratch;
        if (!call->scratch && scratch_bytes) atomic_flag_clear_explicit(&pool->busy, memory_order_release);
    }
    if (!call->scratch && scratch_bytes) return SS_NO_MEMORY;
    call->mode = plain_mode();
    return SS_OK;
}

void ss_end(ss_call *call) {
    ss_pool *pool = call->pool;
    restore_mode(call->mode);
    if (call->own_scratch) {
        free(call->scratch);
        return;
    }
    if (pool->scratch_bytes > KEPT_SCRATCH_BYTES) {
        free(pool->scratch);
        pool->scratch = NULL;
        pool->scratch_bytes = 0;
    }
    atomic_flag_clear_explicit(&pool->busy, memory_order_release);
}

int ss_thread_count(const ss_pool *pool) { return pool->threads; }

int32_t ss_pool_create(int32_t threads, int32_t variant, ss_pool **result) {
    if (!result || threads < 1 || threads > MAX_THREADS) return SS_BAD_ARGUMENT;
    const ss_kernels *kernels = ss_variant(variant);
    if (!kernels) return SS_UNSUPPORTED;
    ss_pool *pool = (ss_pool *)allocate(sizeof *pool);
    if (!pool) return SS_NO_MEMORY;
    *pool = (ss_pool){.kernels = kernels, .owner = getpid(), .threads = threads};
    atomic_flag_clear(&pool->busy);
    atomic_init(&pool->ticket, NOTHING_LEFT); /* no job: nothing to claim */
    pool->handles = calloc((size_t)threads, sizeof *pool->handles);
    if (!pool->handles || pthread_mutex_init(&pool->lock, NULL)) {
        free(pool->handles);
        free(pool);
        return SS_NO_MEMORY;
    }
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->finished, NULL);
    for (int i = 0; i < threads - 1; i++) {
        if (pthread_create(&pool->handles[i], NULL, worker, pool)) break;
        pool->started++;
    }
    *result = pool;
    return SS_OK;
}

void ss_pool_destroy(ss_pool *pool) {
    if (!pool) return;
    if (getpid() == pool->owner) { /* in a forked child the threads and the locks belong to the parent */
        pthread_mutex_lock(&pool->lock);
        atomic_store_explicit(&pool->stopping, 1, memory_order_release);
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->lock);
        for (int i = 0; i < pool->started; i++) pthread_join(pool->handles[i], NULL);
        pthread_mutex_destroy(&pool->lock);
        pthread_cond_destroy(&pool->wake);
        pthread_cond_destroy(&pool->finished);
    }
    free(pool->scratch);
    free(pool->handles);
    free(pool);
}
