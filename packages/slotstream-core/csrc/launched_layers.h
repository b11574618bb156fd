/* The host's part of a layer whose kernels are launched, in one call: launch them up to what the router publishes, ask for
 * the experts that it chose, read ahead what a forecast names for the next layer, wait for what is missing, and tell the
 * kernels to come in which slots it lies.
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
    int32_t *slots;           /* of the ids, [top]: arguments of later launches */
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

typedef struct ss_layer_step {
    int64_t layer, first, last; /* launches, the last of which publishes the forecast if there is one */
    uint32_t number;            /* that these publish */
    const ss_forecast *learnt;  /* what was forecast of this layer; null for nothing */
    double rate;
    ss_layer_forecast next;
    int64_t wait_ms; /* longest wait for records */
} ss_layer_step;

enum ss_layer_outcome {
    SS_LAYER_PLACED,       /* everything is in its slot, and the slots are told */
    SS_LAYER_NOT_LAUNCHED, /* `code` says why launch number `launch` was refused; nothing was asked for */
    SS_LAYER_NOT_CHOSEN,   /* `code` is that of ss_await; nothing was asked for */
    SS_LAYER_REFUSED,      /* ss_ask refused: nothing is held, what was joined counts, and nothing was learnt or foreseen */
    SS_LAYER_ASKED         /* slots are held, and what is to come is the caller's to wait for: it is late, failed, or could not
                              be planned; or the forecast never came, and `code` is that of ss_await */
};

/* `held`, a count and as many slots, is what the layer before holds, which goes back once this one's router has spoken, and
 * then what this one holds: top + 1 values. `request` has room for top ids; unless the outcome is SS_LAYER_REFUSED or
 * SS_LAYER_ASKED no batch is left in it. */
int32_t ss_take_layer(const ss_layer_words *words, const ss_program *program, ss_tickets *tickets,
                      const ss_layer_step *step, int32_t *held, ss_request *request, int32_t *code, int64_t *launch);

#endif
