#include "launched_layers.h"

#include <string.h>

#include "clock.h"

static int32_t await(const ss_layer_words *words, const uint32_t *word, uint32_t number) {
    return ss_await(word, number, words->timeout_s, words->query, words->stream);
}

/* Wait for a forecast, if there is one, and keep it; returns the code of waiting for it. */
static int32_t keep_forecast(const ss_layer_words *words, const ss_layer_step *step) {
    if (step->next.layer < 0) return 0;
    int32_t code = await(words, words->foreseen, step->own.number);
    if (!code) memcpy(words->kept, words->logits, (size_t)words->experts * sizeof *words->kept);
    return code;
}

/* Read ahead for the next layer what a kept forecast names. */
static void foresee(const ss_layer_words *words, ss_tickets *tickets, const ss_layer_step *step) {
    const ss_layer_forecast *next = &step->next;
    if (next->layer < 0) return;
    ss_foresee(tickets, next->layer, words->kept, &next->ranks, next->least, NULL, 0, &next->limits, next->named);
}

static int32_t run(const ss_layer_words *words, ss_program *program, const ss_layer_launches *launches,
                   int64_t *failed) {
    if (launches->first == launches->last) return 0;
    *words->announced = launches->number;
    return ss_run_launches(program, launches->first, launches->last, failed);
}

/* Tell the kernels to come where everything lies, and launch them. */
static int32_t go_on(const ss_layer_words *words, ss_program *program, const ss_layer_step *step,
                     const ss_request *request, int64_t *failed) {
    memcpy(words->slots, request->granted.slots, (size_t)words->top * sizeof *words->slots);
    return run(words, program, &step->after, failed);
}

/* A request's batches, one after the other: those joined, then its own; null where it has none. */
static ss_batch *batch_of(const ss_request *request, int64_t number) {
    return number < request->joined_count ? request->joined[number].batch : request->batch;
}

/* Whether everything came that the request waits for. */
static int is_there(const ss_request *request, int64_t wait_ms) {
    for (int64_t i = 0; i <= request->joined_count; i++) {
        ss_batch *batch = batch_of(request, i);
        if (batch && (!ss_batch_wait(batch, wait_ms) || ss_batch_state_of(batch)->failures)) return 0;
    }
    return 1;
}

static int waits(const ss_request *request) { return request->joined_count || request->batch; }

/* Whether what is launched from now on waits itself for everything that the request waits for. */
static int follow(const ss_request *request, void *stream) {
    for (int64_t i = 0; i <= request->joined_count; i++) {
        ss_batch *batch = batch_of(request, i);
        if (batch && !ss_batch_follow(batch, stream)) return 0;
    }
    return 1;
}

/* Take in what a batch brought, whose records are pairs of key and slot. */
static void settle(ss_residency *r, ss_batch *batch, const int32_t *records, int64_t count, int was_ahead) {
    const ss_batch_state *state = ss_batch_state_of(batch);
    r->counts[SS_BYTES_READ] += state->bytes_read;
    r->counts[SS_READ_NS] += state->read_ns;
    if (was_ahead) r->counts[SS_AHEAD_BYTES] += state->bytes_read;
    ss_take_in(r, records, count);
    ss_batch_release(batch);
}

static void settle_all(ss_residency *r, ss_request *request) {
    for (int64_t i = 0; i < request->joined_count; i++) {
        const ss_joined *one = &request->joined[i];
        settle(r, one->batch, (int32_t[]){(int32_t)one->key, (int32_t)one->slot}, 1, 1);
    }
    if (request->batch) settle(r, request->batch, request->granted.absent, request->granted.absent_count, 0);
    request->joined_count = 0;
    request->batch = NULL;
}

int ss_settle_layer(ss_residency *r, ss_request *request, int64_t since_ns, int64_t wait_ms) {
    if (!waits(request)) return 1;
    if (!is_there(request, wait_ms)) return 0;
    int64_t ended_ns = since_ns;
    for (int64_t i = 0; i <= request->joined_count; i++) {
        ss_batch *batch = batch_of(request, i);
        if (batch && ss_batch_ended_ns(batch) > ended_ns) ended_ns = ss_batch_ended_ns(batch);
    }
    r->counts[SS_WAIT_NS] += ended_ns - since_ns;
    settle_all(r, request);
    return 1;
}

int32_t ss_take_layer(const ss_layer_words *words, ss_program *program, ss_tickets *tickets,
                      const ss_layer_step *step, int32_t *held, ss_request *request, int64_t *since_ns, int32_t *code,
                      int64_t *launch) {
    ss_residency *r = ss_tickets_residency(tickets);
    *code = run(words, program, &step->own, launch);
    if (*code) return SS_LAYER_NOT_LAUNCHED;
    *code = await(words, words->chosen, step->own.number);
    if (*code) return SS_LAYER_NOT_CHOSEN;
    if (!ss_settle_layer(r, request, *since_ns, step->wait_ms)) return SS_LAYER_LEFT;
    ss_let_go(r, held + 1, held[0]); /* the kernels that read there ended before this router's */
    held[0] = 0;
    request->granted.held = held + 1;
    if (ss_ask(tickets, step->layer, words->ids, words->top, request) != SS_OK) return SS_LAYER_REFUSED;
    if (request->granted.absent_count && ss_can_fetch(r)) ss_fetch(r, NULL, step->layer, &request->granted);
    ss_bring(tickets, request);
    held[0] = (int32_t)request->granted.held_count;
    *since_ns = now_ns();
    ss_drop_tickets(tickets, (step->layer + 1) * r->expert_count);
    if (step->learnt) ss_learn(tickets, step->learnt, words->ids, words->top, step->rate);
    *code = keep_forecast(words, step);
    if (*code) return SS_LAYER_ASKED;
    int planned = !request->granted.absent_count || request->batch;
    int ready = planned && (ss_settle_layer(r, request, *since_ns, 0) || follow(request, words->stream));
    if (ready) *code = go_on(words, program, step, request, launch);
    foresee(words, tickets, step); /* while the device is at work, if it can be */
    if (!ready) {
        if (!planned || !ss_settle_layer(r, request, *since_ns, step->wait_ms)) return SS_LAYER_ASKED;
        *code = go_on(words, program, step, request, launch);
    }
    return *code ? SS_LAYER_NOT_LAUNCHED : SS_LAYER_PLACED;
}
