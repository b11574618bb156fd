#include "requests.h"

int32_t ss_ask(ss_tickets *tickets, int64_t layer, const int32_t *ids, int64_t count, ss_request *request) {
    ss_residency *residency = ss_tickets_residency(tickets);
    request->batch = NULL;
    request->granted.held_count = request->granted.absent_count = request->granted.coming_count = 0;
    int32_t code = ss_redeem(tickets, layer, ids, count, request->joined, &request->joined_count);
    for (int64_t i = 0; i < request->joined_count; i++) {
        const ss_joined *one = &request->joined[i];
        residency->coming[one->key] = (int32_t)one->slot; /* the read's hold is the one that it had */
        ss_batch_submit(one->batch);
    }
    return code == SS_OK ? ss_grant(residency, layer, ids, count, &request->granted) : code;
}

int32_t ss_bring(ss_tickets *tickets, ss_request *request) {
    const ss_granted *granted = &request->granted;
    if (!granted->absent_count) return SS_OK;
    request->batch = ss_plan_records(tickets, granted->absent, granted->absent_count);
    if (!request->batch) return SS_NO_MEMORY;
    ss_expect(ss_tickets_residency(tickets), granted->absent, granted->absent_count);
    return ss_batch_submit(request->batch);
}
