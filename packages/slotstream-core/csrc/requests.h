/* What a request of experts needs, in one call: tickets are redeemed, slots held, and what is missing is read.
 *
 * Python's `SlotPool.request` says what happens step by step, and leaves the same books. One thread calls these functions.
 */
#ifndef SLOTSTREAM_REQUESTS_H
#define SLOTSTREAM_REQUESTS_H

#include "threads.h"
#include "tickets.h"

typedef struct ss_request {
    ss_granted granted;
    ss_joined *joined; /* room for as many as ids: records of tickets that are on their way, and the caller's now */
    int64_t joined_count;
    ss_batch *batch; /* reads what is absent, and is the caller's; null when nothing is */
} ss_request;

/* Redeem the tickets of what is asked for, have what they began waited for, and hold a slot for every id. What ss_grant
 * refuses is refused; then, too, what was joined is expected in its slot from now on. */
int32_t ss_ask(ss_tickets *tickets, int64_t layer, const int32_t *ids, int64_t count, ss_request *request);

/* After it: expect what is absent, and hand its reads to the lanes. Where they cannot be planned, for want of memory mostly,
 * SS_NO_MEMORY is returned and what is absent stays so, with its slots held: who asked has it read otherwise. */
int32_t ss_bring(ss_tickets *tickets, ss_request *request);

#endif
