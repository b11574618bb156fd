/* Which record lies in which slot, who holds it, and which slot goes next: the bookkeeping of a slot pool.
 *
 * The arrays belong to the caller, who reads and changes them too, between calls; Python's `Residency` says what each
 * means and does the same step by step. One thread calls these functions.
 */
#ifndef SLOTSTREAM_RESIDENCY_H
#define SLOTSTREAM_RESIDENCY_H

#include "lanes.h"

enum ss_count {
    SS_IDLE,       /* slots without holds */
    SS_FREE,       /* of `free`, the entries in use; slots are taken from its end */
    SS_HAND,       /* of the clock */
    SS_REQUESTS,   /* granted */
    SS_HITS,
    SS_MISSES,
    SS_EVICTIONS,
    SS_WARM_USED,  /* records of a warm start asked for while they were there */
    SS_BYTES_READ, /* by ss_fetch */
    SS_READ_NS,    /* of all threads in ss_fetch together */
    SS_WAIT_NS,    /* of the thread that called it */
    SS_AHEAD_RECORDS, /* and so on to SS_AHEAD_BYTES: records read ahead, see tickets.h */
    SS_AHEAD_USED,
    SS_AHEAD_JOINED,
    SS_AHEAD_RETRACTED,
    SS_AHEAD_WASTED,
    SS_AHEAD_BYTES,
    SS_WASTED_BYTES,
    SS_FAILED_RECORDS,
    SS_COUNTS
};

enum ss_mark { SS_CHECKED = 1 /* its scales were found to be finite */, SS_WARMED = 2 /* and not asked for yet */ };

/* Where the pieces of one kind of one layer lie: expert e's at `start + e * stride`. */
typedef struct ss_place {
    int64_t fd, start, stride;
} ss_place;

typedef struct ss_residency {
    int64_t layer_count, expert_count, slot_count, kind_count;
    int32_t *slot_of; /* by key, layer * expert_count + expert: -1 where a record is not resident */
    int32_t *coming;  /* by key: the slot of a record that was asked for and is on its way, else -1 */
    uint8_t *marks;   /* by key: ss_mark */
    int64_t *uses;    /* by key */
    int32_t *key_of;  /* by slot; -1 where no record is mapped */
    int32_t *holds;   /* by slot */
    uint8_t *referenced;
    int32_t *free;
    int64_t *counts;            /* ss_count */
    const ss_piece_kind *kinds; /* and places, [layer_count, kind_count]: null when ss_fetch is not to be used */
    const ss_place *places;
    int32_t *position; /* by expert, scratch: -1 between calls */
} ss_residency;

/* What a request came to. The caller gives room for as many values as ids were asked for, for `absent` twice as many. */
typedef struct ss_granted {
    int32_t *slots;  /* of each id */
    int32_t *held;   /* slots of distinct records, those of hits first */
    int32_t *absent; /* key and slot of each record that is still to be read into its slot */
    int32_t *coming; /* key of each hit that is on its way */
    int64_t held_count, absent_count, coming_count;
} ss_granted;

/* Hold a slot for every distinct id, choosing and unmapping a victim for each that is neither resident nor on its way.
 * SS_OUT_OF_RANGE when an id does not exist, SS_TOO_SMALL when fewer slots are idle than that needs; nothing has changed
 * then. */
int32_t ss_grant(ss_residency *residency, int64_t layer, const int32_t *ids, int64_t count, ss_granted *granted);

/* Read into their slots those absent records whose long pieces are in the page cache, and map them; what remains absent
 * is kept in order. `pool` shares the work; null for the calling thread alone. Whatever else happens to a read, the record
 * stays absent and its slot unmapped. */
int32_t ss_fetch(ss_residency *residency, ss_pool *pool, int64_t layer, ss_granted *granted);

/* The same for records, pairs of key and slot, whose slots are lent: nothing is mapped. came [count]: 1 for each that is
 * in its slot, 0 for the others, and for all of them where there was no memory. */
int32_t ss_fetch_into(ss_residency *residency, ss_pool *pool, int64_t layer, const int32_t *records, int64_t count,
                      uint8_t *came);

/* Whether records are small enough for that: others are for threads of their own. */
int ss_can_fetch(const ss_residency *residency);

/* A slot without holds and record, evicting if none is free. One without holds exists. */
int32_t ss_take_slot(ss_residency *residency);

/* Hold the slot of each of some records, pairs of key and slot, for the read that brings what was asked for. */
void ss_expect(ss_residency *residency, const int32_t *records, int64_t count);

/* Undo that: these reads ended, and the records are complete in their slots. */
void ss_take_in(ss_residency *residency, const int32_t *records, int64_t count);

/* Map a record whose bytes are complete, and sound, in a slot that is held. */
void ss_publish(ss_residency *residency, int32_t key, int32_t slot);

/* Undo a hold on each of some slots; those that hold no record then become free. */
void ss_let_go(ss_residency *residency, const int32_t *slots, int64_t count);

#endif
