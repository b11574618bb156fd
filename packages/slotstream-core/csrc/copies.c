#include "copies.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#define STREAMS 2 /* while one's copies are under way, the other's can begin */
#define COPY_DEFAULT 4 /* cudaMemcpyDefault: the runtime sees from the addresses which way it goes */
#define STREAM_NON_BLOCKING 1
#define EVENT_WITHOUT_TIME 2
#define MOST_BLOCKS 8 /* enough to keep the bus busy; what is too much would only queue on it */
#define THREADS 256
#define ROW 512 /* bytes that a warp fetches with one load */
#define LINE 128
#define ROWS_A_BLOCK (4 * THREADS / 32)

typedef struct ss_begun {
    void *handle;
    int made, busy;
    ss_wish *wishes; /* of what was begun apart, and what that came to */
    int32_t code;
    void *event;        /* after the copies that were begun last; made once */
    atomic_int marked;  /* whether it is */
} stream;

struct ss_copier {
    ss_device device;
    pthread_mutex_t lock;
    pthread_cond_t settled;
    /* under the lock: */
    ss_wish *first, *last; /* not taken yet */
    stream streams[STREAMS + SS_APART];
};

ss_copier *ss_copier_create(const ss_device *device) {
    ss_copier *copier = calloc(1, sizeof *copier);
    if (!copier) return NULL;
    copier->device = *device;
    if (!pthread_mutex_init(&copier->lock, NULL)) {
        if (!pthread_cond_init(&copier->settled, NULL)) return copier;
        pthread_mutex_destroy(&copier->lock);
    }
    free(copier);
    return NULL;
}

void ss_copier_free(ss_copier *copier) {
    if (!copier) return;
    pthread_cond_destroy(&copier->settled);
    pthread_mutex_destroy(&copier->lock);
    free(copier);
}

static int32_t rows_of(const ss_copy *copy) {
    return (int32_t)(((int64_t)((uintptr_t)copy->from % LINE) + copy->bytes + ROW - 1) / ROW);
}

static int32_t launch(const ss_device *device, ss_pieces *pieces, void *handle) {
    int32_t blocks = (pieces->ends[pieces->count - 1] + ROWS_A_BLOCK - 1) / ROWS_A_BLOCK;
    ss_grid grid = {(uint32_t)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS), 1, 1}, threads = {THREADS, 1, 1};
    void *arguments[] = {pieces};
    return device->launch(device->kernel, grid, threads, arguments, 0, handle);
}

/* Begin what some threads wish for by launches of the kernel. */
static int32_t begin_by_kernel(const ss_device *device, const ss_wish *wishes, void *handle) {
    ss_pieces pieces;
    int32_t count = 0, rows = 0, code = 0;
    for (const ss_wish *one = wishes; one && !code; one = one->next) {
        for (int64_t i = 0; i < one->count && !code; i++) {
            const ss_copy *copy = &one->copies[i];
            pieces.from[count] = copy->from;
            pieces.to[count] = copy->to;
            pieces.bytes[count] = (int32_t)copy->bytes;
            pieces.ends[count++] = rows += rows_of(copy);
            if (count < SS_COPIES && (i + 1 < one->count || one->next)) continue;
            pieces.count = count;
            code = launch(device, &pieces, handle);
            count = rows = 0;
        }
    }
    return code;
}

static int32_t begin_one_by_one(const ss_device *device, const ss_wish *wishes, void *handle) {
    int32_t code = 0;
    for (const ss_wish *one = wishes; one && !code; one = one->next)
        for (int64_t i = 0; i < one->count && !code; i++)
            code = device->copy(one->copies[i].to, one->copies[i].from, (size_t)one->copies[i].bytes, COPY_DEFAULT, handle);
    return code;
}

/* Without the lock: begin copies on a stream; returns a code, whatever is under way then. */
static int32_t begin(const ss_device *device, stream *on, const ss_wish *wishes) {
    if (!on->made) {
        int32_t code = device->stream(&on->handle, STREAM_NON_BLOCKING);
        if (code) return code;
        on->made = 1;
    }
    return device->launch ? begin_by_kernel(device, wishes, on->handle) : begin_one_by_one(device, wishes, on->handle);
}

/* Without the lock: return when none is under way on a stream, with the code of beginning them, or of this. */
static int32_t end(const ss_device *device, stream *on, int32_t code) {
    int32_t finished = on->made ? device->finish(on->handle) : code;
    return code ? code : finished;
}

/* With the lock: take one of some streams, null where all are in use. */
static stream *take_stream(ss_copier *copier, int first, int count) {
    for (int i = first; i < first + count; i++) {
        if (copier->streams[i].busy) continue;
        copier->streams[i].busy = 1;
        return &copier->streams[i];
    }
    return NULL;
}

void ss_copy_later(ss_copier *copier, ss_wish *wish) {
    wish->next = NULL;
    pthread_mutex_lock(&copier->lock);
    if (copier->last) copier->last->next = wish;
    else copier->first = wish;
    copier->last = wish;
    stream *on = take_stream(copier, 0, STREAMS);
    while (on && copier->first) {
        ss_wish *wishes = copier->first;
        copier->first = copier->last = NULL;
        pthread_mutex_unlock(&copier->lock);
        int32_t code = end(&copier->device, on, begin(&copier->device, on, wishes));
        for (ss_wish *one = wishes, *next; one; one = next) {
            next = one->next; /* once it is over, its memory is its owner's again */
            one->over(one, code);
        }
        pthread_mutex_lock(&copier->lock);
    }
    if (on) on->busy = 0;
    pthread_mutex_unlock(&copier->lock);
}

/* Without the lock: let others follow what was begun on a stream. What marked copies before these stays right: they ended. */
static void mark(const ss_device *device, stream *on) {
    int made = on->event || (device->event && !device->event(&on->event, EVENT_WITHOUT_TIME));
    atomic_store_explicit(&on->marked, made && !on->code && !device->record(on->event, on->handle), memory_order_release);
}

ss_begun *ss_copy_begin(ss_copier *copier, ss_wish *wish) {
    pthread_mutex_lock(&copier->lock);
    stream *on = take_stream(copier, STREAMS, SS_APART);
    pthread_mutex_unlock(&copier->lock);
    if (!on) return NULL;
    wish->next = NULL;
    on->wishes = wish;
    on->code = begin(&copier->device, on, wish);
    mark(&copier->device, on);
    return on;
}

int ss_copy_follow(ss_copier *copier, ss_begun *begun, void *stream) {
    return atomic_load_explicit(&begun->marked, memory_order_acquire) && !copier->device.follow(stream, begun->event, 0);
}

void ss_copy_end(ss_copier *copier, ss_begun *on) {
    ss_wish *wish = on->wishes;
    int32_t code = end(&copier->device, on, on->code);
    pthread_mutex_lock(&copier->lock);
    on->busy = 0;
    pthread_mutex_unlock(&copier->lock);
    wish->over(wish, code);
}

typedef struct waited {
    ss_wish wish; /* first */
    ss_copier *copier;
    int32_t code;
    int done;
} waited;

static void settle(ss_wish *wish, int32_t code) {
    waited *mine = (waited *)wish;
    ss_copier *copier = mine->copier;
    pthread_mutex_lock(&copier->lock);
    mine->code = code;
    mine->done = 1;
    pthread_cond_broadcast(&copier->settled);
    pthread_mutex_unlock(&copier->lock);
}

int32_t ss_copy_all(ss_copier *copier, const ss_copy *copies, int64_t count) {
    if (!count) return 0;
    waited mine = {.wish = {.copies = copies, .count = count, .over = settle}, .copier = copier};
    ss_copy_later(copier, &mine.wish);
    pthread_mutex_lock(&copier->lock);
    while (!mine.done) pthread_cond_wait(&copier->settled, &copier->lock);
    pthread_mutex_unlock(&copier->lock);
    return mine.code;
}
