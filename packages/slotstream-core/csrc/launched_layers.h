/* The host's part of a layer whose kernels are launched, in one call: wait for what its router publishes, ask for the experts
 * that it chose, tell the kernels to come in which slots these lie or are going to lie, launch them up to what the next
 * router publishes, and read ahead what a forecast names for that one.
 *
 * The thread that the residency and the tickets belong to calls this.
 */
#ifndef SLOTSTREAM_LAUNCHED_LAYERS_H
#define SLOTSTREAM_LAUNCHED_LAYERS_H

#include "launches.h"
#include "requests.h"

/* Where kernels and the host tell each other something. */
typedef struct ss_layer_words {
    const uint32_t *chosen; /* holds the number of a launch once its ids are there */
    const int32_t *ids;     /* [top] */
    const uint32_t *foreseen; /* likewise of the forecast; null where there is none */
    const float *logits;      /* of the forecast, [experts] */
    float *kept;              /* room for as many: the next launches publish other ones */
    int32_t *slots;           /* of the ids, [top]: arguments of later launches, like the next one */
    uint64_t *announced;      /* what launches publish with what they publish */
    int64_t top, experts;
    double timeout_s; /* longest wait for a number */
    ss_query_function query;
    void *stream;
} ss_layer_words;

/* What is forecast of a layer. */
typedef struct ss_layer_forecast {
    int64_t layer; /* negative: nothing is */
    ss_forecast ranks; /* of one row */
    double least;
    ss_ahead_limits limits;
    int32_t *named; /* room for as many as ranks */
} ss_layer_forecast;

/* Launches that end with what a layer publishes, the forecast last if there is one. */
typedef struct ss_layer_launches {
    int64_t first, last; /* the same: there are none */
    uint32_t number;     /* that they publish */
} ss_layer_launches;

typedef struct ss_layer_step {
    int64_t layer;
    ss_layer_launches own;     /* none, but for the number, where the call for the layer before made them */
    ss_layer_launches after;   /* of the layer's experts and the next layer; or none */
    const ss_forecast *learnt; /* what was forecast of this layer; null for nothing */
    double rate;
    ss_layer_forecast next;
    int64_t wait_ms; /* longest wait for records */
} ss_layer_step;

enum ss_layer_outcome {
    SS_LAYER_PLACED,       /* everything is in its slot, or is going to be when the next launches begin; the slots are told,
                              and `after` is launched */
    SS_LAYER_NOT_LAUNCHED, /* `code` says why launch number `launch` was refused; one of `own`: nothing was asked for; one of
                              `after`: the rest is as with SS_LAYER_PLACED */
    SS_LAYER_NOT_CHOSEN,   /* `code` is that of ss_await; nothing was asked for */
    SS_LAYER_REFUSED,      /* ss_ask refused: nothing is held, what was joined counts, nothing was learnt or foreseen */
    SS_LAYER_LEFT,         /* what the layer before left is late or failed, and still the caller's; nothing was asked for */
    SS_LAYER_ASKED         /* slots are held, and what is to come is the caller's to wait for: it is late, failed, or could
                              not be planned; or the forecast never came, and `code` is that of ss_await */
};

/* What is on its way to a layer's slots by copies alone is waited for by the kernels themselves: it is left in the request,
 * to be settled by the next call, or by `ss_settle_layer` after the last one and once what follows is done. Its wait counts
 * from `since_ns` to its end. On entry `request` is what the layer before left, or nothing. `held`, a count and as many
 * slots, is what the layer before holds, which goes back once this one's router has spoken, and then what this one holds:
 * top + 1 values. `request` has room for top ids. */
int32_t ss_take_layer(const ss_layer_words *words, ss_program *program, ss_tickets *tickets,
                      const ss_layer_step *step, int32_t *held, ss_request *request, int64_t *since_ns, int32_t *code,
                      int64_t *launch);

/* Take in what a layer left: 1, and nothing is left; 0, with nothing done, where it is late or failed. */
int ss_settle_layer(ss_residency *residency, ss_request *request, int64_t since_ns, int64_t wait_ms);

#endif
