#include "tickets.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ABSENT (-1)
#define MOST_PIECES 64   /* of a record */
#define MOST_TOGETHER 64 /* reads issued by one call */

typedef struct ticket {
    ss_batch *batch; /* null once its read ended and gave the slot back */
    int64_t bytes;   /* that it brought */
    int32_t key, slot;
    uint8_t dropped, cancelled, failed;
} ticket;

struct ss_tickets {
    ss_residency *residency;
    ss_lanes *lanes;
    const ss_place *places;
    ticket *all; /* oldest first; each holds a slot, so there are at most as many as slots */
    int64_t count, named_count;
    uint8_t *named; /* by key: whether there is a ticket that was not dropped */
    uint8_t *seen;  /* by expert, scratch: 0 between calls */
};

int32_t ss_tickets_create(ss_residency *residency, ss_lanes *lanes, const ss_place *places, ss_tickets **result) {
    if (!lanes || !places || !residency->kinds || residency->kind_count < 1 || residency->kind_count > MOST_PIECES)
        return SS_BAD_ARGUMENT;
    ss_tickets *t = calloc(1, sizeof *t);
    if (!t) return SS_NO_MEMORY;
    *t = (ss_tickets){.residency = residency, .lanes = lanes, .places = places};
    ss_lanes_refer(lanes); /* who closes them need not be who asks */
    t->all = calloc((size_t)residency->slot_count, sizeof *t->all);
    t->named = calloc((size_t)(residency->layer_count * residency->expert_count), 1);
    t->seen = calloc((size_t)residency->expert_count, 1);
    *result = t;
    if (t->all && t->named && t->seen) return SS_OK;
    ss_tickets_free(t);
    return SS_NO_MEMORY;
}

void ss_tickets_free(ss_tickets *t) {
    for (int64_t i = 0; i < t->count; i++) ss_batch_release(t->all[i].batch);
    ss_lanes_release(t->lanes);
    free(t->all);
    free(t->named);
    free(t->seen);
    free(t);
}

ss_residency *ss_tickets_residency(const ss_tickets *t) { return t->residency; }

int64_t ss_tickets_count(const ss_tickets *t) { return t->named_count; }

int64_t ss_tickets_list(const ss_tickets *t, ss_ticket_state *states, int64_t room) {
    for (int64_t i = 0; i < t->count && i < room; i++)
        states[i] = (ss_ticket_state){t->all[i].key, t->all[i].slot, t->all[i].batch != NULL, t->all[i].dropped};
    return t->count;
}

static void hold(ss_residency *r, int32_t slot) { r->counts[SS_IDLE] -= r->holds[slot]++ == 0; }

static void let_go(ss_residency *r, int32_t slot) { ss_let_go(r, &slot, 1); }

/* Take in what a read came to, which has ended, and its hold of the slot. */
static void settle(ss_tickets *t, ticket *one) {
    ss_residency *r = t->residency;
    const ss_batch_state *state = ss_batch_state_of(one->batch);
    one->bytes = state->bytes_read;
    one->failed = state->failures > 0;
    r->counts[SS_BYTES_READ] += state->bytes_read;
    r->counts[SS_READ_NS] += state->read_ns;
    r->counts[SS_AHEAD_BYTES] += state->bytes_read;
    if (one->failed && !one->cancelled) r->counts[SS_FAILED_RECORDS]++;
    if (one->dropped) r->counts[SS_WASTED_BYTES] += state->bytes_read;
    ss_batch_release(one->batch);
    one->batch = NULL;
    let_go(r, one->slot);
}

static int is_over(const ticket *one) {
    return __atomic_load_n(&ss_batch_state_of(one->batch)->done, __ATOMIC_ACQUIRE) && ss_batch_wait(one->batch, 0);
}

/* Forget dropped tickets whose slots are given back, keeping the order of the others. */
static void tidy(ss_tickets *t) {
    int64_t kept = 0;
    for (int64_t i = 0; i < t->count; i++)
        if (t->all[i].batch || !t->all[i].dropped) t->all[kept++] = t->all[i];
    t->count = kept;
}

void ss_settle_tickets(ss_tickets *t) {
    for (int64_t i = 0; i < t->count; i++)
        if (t->all[i].batch && is_over(&t->all[i])) settle(t, &t->all[i]);
    tidy(t);
}

int ss_finish_dropped(ss_tickets *t, int64_t milliseconds) {
    for (int64_t i = 0; i < t->count; i++) {
        ticket *one = &t->all[i];
        if (!one->batch || !one->dropped) continue;
        if (!ss_batch_wait(one->batch, milliseconds)) return 0;
        settle(t, one);
    }
    tidy(t);
    return 1;
}

/* Nobody asks for it under this ticket any more. */
static void strike(ss_tickets *t, ticket *one) {
    one->dropped = 1;
    t->named[one->key] = 0;
    t->named_count--;
}

void ss_drop_tickets(ss_tickets *t, int64_t key) {
    ss_residency *r = t->residency;
    for (int64_t i = 0; i < t->count; i++) {
        ticket *one = &t->all[i];
        if (one->dropped || one->key >= key) continue;
        strike(t, one);
        if (one->batch) {
            one->cancelled = 1;
            ss_batch_cancel(one->batch);
        } else {
            r->counts[SS_WASTED_BYTES] += one->bytes;
        }
        r->counts[SS_AHEAD_WASTED]++;
        let_go(r, one->slot);
    }
    tidy(t);
}

static int are_experts(ss_residency *r, int64_t layer, const int32_t *ids, int64_t count) {
    if (layer < 0 || layer >= r->layer_count) return 0;
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= r->expert_count) return 0;
    return 1;
}

ss_batch *ss_plan_records(const ss_tickets *t, const int32_t *records, int64_t count) {
    ss_residency *r = t->residency;
    int64_t width = 2 + 2 * r->kind_count, few[2 + 2 * MOST_PIECES];
    int64_t *numbers = count == 1 ? few : malloc((size_t)(count * width) * sizeof *numbers);
    if (!numbers) return NULL;
    for (int64_t i = 0; i < count; i++) {
        int32_t key = records[2 * i];
        int64_t *record = numbers + i * width, layer = key / r->expert_count, expert = key % r->expert_count;
        record[0] = records[2 * i + 1];
        record[1] = !(r->marks[key] & SS_CHECKED);
        for (int64_t k = 0; k < r->kind_count; k++) {
            const ss_place *place = &t->places[layer * r->kind_count + k];
            record[2 + 2 * k] = place->fd;
            record[3 + 2 * k] = place->start + expert * place->stride;
        }
    }
    ss_batch *batch = NULL;
    int32_t code = ss_batch_create(t->lanes, r->kinds, r->kind_count, numbers, count, &batch);
    if (numbers != few) free(numbers);
    return code == SS_OK ? batch : NULL;
}

/* Reserve a slot for a missing record and plan its read; 0 without memory for it. */
static int reserve(ss_tickets *t, int64_t layer, int32_t expert) {
    ss_residency *r = t->residency;
    int32_t key = (int32_t)(layer * r->expert_count) + expert, slot = ss_take_slot(r);
    hold(r, slot); /* the ticket's */
    ss_batch *batch = ss_plan_records(t, (int32_t[]){key, slot}, 1);
    if (!batch) {
        let_go(r, slot);
        return 0;
    }
    hold(r, slot); /* the read's */
    t->all[t->count++] = (ticket){.batch = batch, .key = key, .slot = slot};
    t->named[key] = 1;
    t->named_count++;
    return 1;
}

/* Hand the newest tickets, from `first` on, to the lanes; where these refuse, there are no such tickets. */
static int64_t hand_over(ss_tickets *t, int64_t first) {
    ss_residency *r = t->residency;
    int64_t count = t->count - first;
    ss_batch *batches[MOST_TOGETHER];
    for (int64_t i = 0; i < count; i++) batches[i] = t->all[first + i].batch;
    if (!count || ss_batches_read_ahead(batches, count) == SS_OK) {
        r->counts[SS_AHEAD_RECORDS] += count;
        return count;
    }
    for (; t->count > first; t->count--) {
        ticket *one = &t->all[t->count - 1];
        t->named[one->key] = 0;
        t->named_count--;
        ss_batch_release(one->batch);
        let_go(r, one->slot);
        let_go(r, one->slot);
    }
    return 0;
}

static int64_t least_of(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t room_for(const ss_tickets *t, const ss_ahead_limits *limits) {
    int64_t under_way = 0;
    for (int64_t i = 0; i < t->count; i++) under_way += t->all[i].batch != NULL;
    int64_t room = least_of(limits->reserved - t->named_count, limits->in_flight - under_way);
    room = least_of(room, t->residency->counts[SS_IDLE] - (limits->spare > 0 ? limits->spare : 0));
    return least_of(room, t->residency->slot_count - t->count);
}

int64_t ss_read_ahead(ss_tickets *t, int64_t layer, const int32_t *ids, int64_t count, const int32_t *asked,
                      int64_t asked_count, const ss_ahead_limits *limits) {
    ss_residency *r = t->residency;
    if (!are_experts(r, layer, ids, count) || !are_experts(r, layer, asked, asked_count)) return SS_OUT_OF_RANGE;
    ss_settle_tickets(t);
    for (int64_t i = 0; i < asked_count; i++) t->seen[asked[i]] = 1;
    int64_t first = layer * r->expert_count, issued = 0;
    for (int64_t i = 0; i < count; i++) { /* no reservation evicts what is about to be used */
        int32_t slot = r->slot_of[first + ids[i]];
        if (slot != ABSENT) r->referenced[slot] = 1;
        if (slot != ABSENT || t->named[first + ids[i]]) t->seen[ids[i]] = 1;
    }
    int64_t room = room_for(t, limits);
    for (int64_t i = 0; i < count && issued < room && issued < MOST_TOGETHER; i++) {
        if (t->seen[ids[i]]) continue;
        t->seen[ids[i]] = 1;
        if (!reserve(t, layer, ids[i])) break;
        issued++;
    }
    issued = hand_over(t, t->count - issued);
    for (int64_t i = 0; i < count; i++) t->seen[ids[i]] = 0;
    for (int64_t i = 0; i < asked_count; i++) t->seen[asked[i]] = 0;
    return issued;
}

/* Whether a logit comes before another: the larger one, and what is no number after every number. */
static int comes_before(float logit, float other) { return logit > other || (isnan(other) && !isnan(logit)); }

/* The `ranks` best experts of a row, best first, lower ids first among equals. */
static void rank(const float *logits, int64_t experts, int32_t *ranked, int64_t ranks) {
    int64_t kept = 0;
    for (int64_t expert = 0; expert < experts; expert++) {
        float logit = logits[expert];
        if (kept == ranks) {
            if (!comes_before(logit, logits[ranked[kept - 1]])) continue;
            kept--;
        }
        int64_t at = kept++;
        for (; at > 0 && comes_before(logit, logits[ranked[at - 1]]); at--) ranked[at] = ranked[at - 1];
        ranked[at] = (int32_t)expert;
    }
}

/* The distinct experts at ranks that are believed, best ranks first; returns how many. */
static int64_t believe(ss_tickets *t, const ss_forecast *f, double least, int64_t most, int32_t *named) {
    int64_t count = 0;
    for (int64_t k = 0; k < f->ranks; k++) {
        if (!(f->shares[k] >= least)) continue;
        for (int64_t row = 0; row < f->rows; row++) {
            int32_t expert = f->ranked[row * f->ranks + k];
            if (t->seen[expert]) continue;
            t->seen[expert] = 1;
            named[count++] = expert;
        }
    }
    for (int64_t i = 0; i < count; i++) t->seen[named[i]] = 0;
    return least_of(count, most);
}

int64_t ss_foresee(ss_tickets *t, int64_t layer, const float *logits, const ss_forecast *f, double least,
                   const int32_t *asked, int64_t asked_count, const ss_ahead_limits *limits, int32_t *named) {
    int64_t experts = t->residency->expert_count;
    if (f->ranks > experts || !are_experts(t->residency, layer, asked, asked_count)) return SS_OUT_OF_RANGE;
    for (int64_t row = 0; row < f->rows; row++)
        rank(logits + row * experts, experts, f->ranked + row * f->ranks, f->ranks);
    int64_t count = believe(t, f, least, limits->issued, named);
    return ss_read_ahead(t, layer, named, count, asked, asked_count, limits);
}

int32_t ss_learn(ss_tickets *t, const ss_forecast *f, const int32_t *chosen, int64_t count, double rate) {
    ss_residency *r = t->residency;
    if (!are_experts(r, 0, chosen, count) || !are_experts(r, 0, f->ranked, f->rows * f->ranks)) return SS_OUT_OF_RANGE;
    for (int64_t i = 0; i < count; i++) t->seen[chosen[i]] = 1;
    for (int64_t k = 0; k < f->ranks; k++) {
        int64_t right = 0;
        for (int64_t row = 0; row < f->rows; row++) right += t->seen[f->ranked[row * f->ranks + k]];
        f->shares[k] += rate * ((double)right / (double)f->rows - f->shares[k]);
    }
    for (int64_t i = 0; i < count; i++) t->seen[chosen[i]] = 0;
    return SS_OK;
}

static ticket *find(ss_tickets *t, int32_t key) {
    int64_t i = 0;
    while (t->all[i].dropped || t->all[i].key != key) i++;
    return &t->all[i];
}

/* What becomes of a ticket whose record is asked for; 1 when its read goes to `joined`. */
static int redeem(ss_tickets *t, ticket *one, ss_joined *joined) {
    ss_residency *r = t->residency;
    strike(t, one);
    if (one->batch && ss_batch_retract(one->batch)) {
        r->counts[SS_AHEAD_RETRACTED]++;
        one->dropped = 0, one->cancelled = 1; /* not waste: it read nothing */
        settle(t, one);
    } else if (one->batch && !is_over(one)) {
        r->counts[SS_AHEAD_JOINED]++;
        *joined = (ss_joined){one->key, one->slot, one->batch};
        one->batch = NULL;
        let_go(r, one->slot);
        return 1;
    } else {
        one->dropped = 0; /* its bytes are not waste */
        if (one->batch) settle(t, one);
        if (!one->failed) {
            ss_publish(r, one->key, one->slot);
            r->counts[SS_AHEAD_USED]++;
        }
    }
    one->dropped = 1;
    let_go(r, one->slot);
    return 0;
}

int32_t ss_redeem(ss_tickets *t, int64_t layer, const int32_t *ids, int64_t count, ss_joined *joined,
                  int64_t *joined_count) {
    ss_residency *r = t->residency;
    *joined_count = 0;
    if (!are_experts(r, layer, ids, count)) return SS_OUT_OF_RANGE;
    ss_settle_tickets(t);
    for (int64_t i = 0; i < count && t->named_count; i++) {
        int32_t key = (int32_t)(layer * r->expert_count) + ids[i];
        if (t->named[key]) *joined_count += redeem(t, find(t, key), &joined[*joined_count]);
    }
    tidy(t);
    return SS_OK;
}
