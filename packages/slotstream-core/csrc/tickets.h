/* Records read ahead into reserved slots: what a forecast names, what becomes of it, and how far its ranks are believed.
 *
 * A ticket is a record that a forecast named and nobody asked for yet; its slot is held for it, and once more while a
 * thread may write there. Python's `Tickets` says what each function does, step by step, and leaves the same books; the
 * totals are counted in the residency's. One thread calls these functions.
 */
#ifndef SLOTSTREAM_TICKETS_H
#define SLOTSTREAM_TICKETS_H

#include "residency.h"

typedef struct ss_tickets ss_tickets;

/* What reading ahead may take, and from where on it is worth it. */
typedef struct ss_ahead_limits {
    int64_t issued;    /* most experts named by one forecast */
    int64_t reserved;  /* most tickets at once */
    int64_t in_flight; /* most records under way for tickets, dropped ones too */
    int64_t spare;     /* slots without holds to be left */
} ss_ahead_limits;

/* An expert a rank and row, best first, and how often each rank was right. */
typedef struct ss_forecast {
    int32_t *ranked; /* [rows, ranks] */
    double *shares;  /* [ranks] */
    int64_t rows, ranks;
} ss_forecast;

/* A record on its way that was asked for: its read's hold and the batch are the caller's now. */
typedef struct ss_joined {
    int64_t key, slot;
    ss_batch *batch;
} ss_joined;

/* A ticket as others see it. */
typedef struct ss_ticket_state {
    int32_t key, slot;
    int32_t reading; /* whether its read still holds the slot */
    int32_t dropped; /* whether nobody will ask: then it is no ticket any more */
} ss_ticket_state;

/* `residency` has kinds and lives longer; `places` [layer_count, kind_count], too. `lanes` are kept, and may be closed. */
int32_t ss_tickets_create(ss_residency *residency, ss_lanes *lanes, const ss_place *places, ss_tickets **tickets);

/* Reads under way go on: the slots must stay until they ended. */
void ss_tickets_free(ss_tickets *tickets);

ss_residency *ss_tickets_residency(const ss_tickets *tickets);

/* A batch that reads some records, pairs of key and slot, into slots that are held for it; null when there is no memory
 * for it, or the lanes do not take it. */
ss_batch *ss_plan_records(const ss_tickets *tickets, const int32_t *records, int64_t count);

int64_t ss_tickets_count(const ss_tickets *tickets);

/* The first `room` of all tickets and of dropped ones whose read still holds a slot, oldest first; returns how many. */
int64_t ss_tickets_list(const ss_tickets *tickets, ss_ticket_state *states, int64_t room);

/* Take back the slots of reads that ended. */
void ss_settle_tickets(ss_tickets *tickets);

/* Wait, at most so long, for the reads of dropped tickets and settle them: 1 when none is left. */
int ss_finish_dropped(ss_tickets *tickets, int64_t milliseconds);

/* Give up the tickets of records before `key`. */
void ss_drop_tickets(ss_tickets *tickets, int64_t key);

/* Reserve a slot for each of some distinct experts of a layer that is missing, as far as the limits go and at most 64 in a
 * call, and begin to read it; what is resident counts as touched. `asked` are experts on their way for somebody. Returns
 * how many reads were issued, or SS_OUT_OF_RANGE with nothing done when an id or the layer does not exist. */
int64_t ss_read_ahead(ss_tickets *tickets, int64_t layer, const int32_t *ids, int64_t count, const int32_t *asked,
                      int64_t asked_count, const ss_ahead_limits *limits);

/* Rank the experts of every row by its logits [rows, expert_count], and read ahead those whose ranks were right at least
 * so often. `named` is room for `ranks * rows` ids. Returns as ss_read_ahead. */
int64_t ss_foresee(ss_tickets *tickets, int64_t layer, const float *logits, const ss_forecast *forecast, double least,
                   const int32_t *asked, int64_t asked_count, const ss_ahead_limits *limits, int32_t *named);

/* Compare a forecast with the ids a router chose, and move the shares by `rate`. Ids beyond the experts are an error. */
int32_t ss_learn(ss_tickets *tickets, const ss_forecast *forecast, const int32_t *chosen, int64_t count, double rate);

/* Turn the tickets of records that are asked for into residents, reads to wait for, or free slots. `joined` has room for
 * as many as ids. SS_OUT_OF_RANGE, with nothing done, when an id or the layer does not exist. */
int32_t ss_redeem(ss_tickets *tickets, int64_t layer, const int32_t *ids, int64_t count, ss_joined *joined,
                  int64_t *joined_count);

#endif
