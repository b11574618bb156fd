#include "residency.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif

#include "clock.h"
#include "segments.h"
#include "threads.h"

#define ABSENT (-1)
#define MOST_PIECES 64           /* of a record */
#define ROOM_BYTES (1 << 14)     /* for the pieces of a record that change on their way */
#define RECORD_BYTES (1 << 18)   /* of a record that is read by those who compute */
#define PROJECTIONS 3            /* gate, up and down: each has its kinds side by side, the longest first */
#define NO_WAITING 8             /* RWF_NOWAIT of <linux/fs.h>: only what is in the page cache */

static void hold(ss_residency *r, int32_t slot) { r->counts[SS_IDLE] -= r->holds[slot]++ == 0; }

/* The next slot of the clock without holds and without its bit, as `Clock.victim`. One exists. */
static int32_t victim(ss_residency *r) {
    int64_t hand = r->counts[SS_HAND];
    for (;;) {
        int32_t slot = (int32_t)hand;
        hand = hand + 1 < r->slot_count ? hand + 1 : 0;
        if (r->holds[slot]) continue;
        if (r->referenced[slot]) {
            r->referenced[slot] = 0;
            continue;
        }
        r->counts[SS_HAND] = hand;
        return slot;
    }
}

int32_t ss_take_slot(ss_residency *r) {
    if (r->counts[SS_FREE]) return r->free[--r->counts[SS_FREE]];
    int32_t slot = victim(r), key = r->key_of[slot];
    r->slot_of[key] = ABSENT;
    r->marks[key] &= (uint8_t)~SS_WARMED;
    r->key_of[slot] = ABSENT;
    r->counts[SS_EVICTIONS]++;
    return slot;
}

/* Forget where the first `count` ids stand among the distinct ones. */
static void forget_positions(ss_residency *r, const int32_t *ids, int64_t count) {
    for (int64_t i = 0; i < count; i++) r->position[ids[i]] = -1;
}

/* The distinct ids' number, with their keys in `absent` for now; negative when one does not exist. */
static int64_t find_distinct(ss_residency *r, int64_t layer, const int32_t *ids, int64_t count, int32_t *keys) {
    int64_t distinct = 0;
    for (int64_t i = 0; i < count; i++) {
        if (ids[i] < 0 || ids[i] >= r->expert_count) {
            forget_positions(r, ids, i);
            return -1;
        }
        if (r->position[ids[i]] >= 0) continue;
        r->position[ids[i]] = (int32_t)distinct;
        keys[distinct++] = (int32_t)(layer * r->expert_count) + ids[i];
    }
    return distinct;
}

/* Where a record is, or will be; -1 when it is to be read. */
static int32_t find(const ss_residency *r, int32_t key) {
    int32_t slot = r->slot_of[key];
    return slot != ABSENT ? slot : r->coming[key];
}

static int64_t idle_needed(const ss_residency *r, const int32_t *keys, int64_t distinct) {
    int64_t needed = 0;
    for (int64_t i = 0; i < distinct; i++) {
        int32_t slot = find(r, keys[i]);
        needed += slot == ABSENT || !r->holds[slot];
    }
    return needed;
}

int32_t ss_grant(ss_residency *r, int64_t layer, const int32_t *ids, int64_t count, ss_granted *granted) {
    if (layer < 0 || layer >= r->layer_count) return SS_OUT_OF_RANGE;
    int32_t *keys = granted->absent;
    int64_t distinct = find_distinct(r, layer, ids, count, keys), hits = 0, absent = 0, coming = 0;
    if (distinct < 0) return SS_OUT_OF_RANGE;
    if (idle_needed(r, keys, distinct) > r->counts[SS_IDLE]) {
        forget_positions(r, ids, count);
        return SS_TOO_SMALL;
    }
    for (int64_t i = 0; i < distinct; i++) { /* every hit is held before any victim is chosen */
        int32_t key = keys[i], slot = find(r, key);
        r->uses[key]++;
        if (slot == ABSENT) {
            keys[absent++] = key;
            continue;
        }
        if (r->slot_of[key] == ABSENT) granted->coming[coming++] = key;
        if (r->marks[key] & SS_WARMED) r->counts[SS_WARM_USED]++;
        r->marks[key] &= (uint8_t)~SS_WARMED;
        hold(r, slot);
        r->referenced[slot] = 1;
        granted->held[hits++] = slot;
    }
    for (int64_t i = 0; i < absent; i++) {
        int32_t slot = ss_take_slot(r);
        hold(r, slot);
        granted->held[hits + i] = slot;
        r->position[keys[i] - layer * r->expert_count] = slot + INT32_MIN; /* told apart from positions by its sign */
    }
    for (int64_t i = absent - 1; i >= 0; i--) { /* the keys become pairs where they stand */
        granted->absent[2 * i + 1] = granted->held[hits + i];
        granted->absent[2 * i] = keys[i];
    }
    for (int64_t i = 0; i < count; i++) {
        int32_t at = r->position[ids[i]];
        granted->slots[i] = at < 0 ? at - INT32_MIN : find(r, (int32_t)(layer * r->expert_count) + ids[i]);
    }
    forget_positions(r, ids, count);
    granted->held_count = hits + absent;
    granted->absent_count = absent;
    granted->coming_count = coming;
    r->counts[SS_REQUESTS]++;
    r->counts[SS_HITS] += hits;
    r->counts[SS_MISSES] += absent;
    return SS_OK;
}

void ss_let_go(ss_residency *r, const int32_t *slots, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        int32_t slot = slots[i];
        if (--r->holds[slot]) continue;
        r->counts[SS_IDLE]++;
        if (r->key_of[slot] != ABSENT) continue;
        r->referenced[slot] = 0;
        r->free[r->counts[SS_FREE]++] = slot;
    }
}

void ss_publish(ss_residency *r, int32_t key, int32_t slot) {
    r->slot_of[key] = slot;
    r->key_of[slot] = key;
    r->marks[key] |= SS_CHECKED;
}

void ss_expect(ss_residency *r, const int32_t *records, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        hold(r, records[2 * i + 1]);
        r->coming[records[2 * i]] = records[2 * i + 1];
    }
}

void ss_take_in(ss_residency *r, const int32_t *records, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        int32_t key = records[2 * i], slot = records[2 * i + 1];
        r->coming[key] = ABSENT;
        ss_publish(r, key, slot);
        ss_let_go(r, &slot, 1);
    }
}

/* Whether all bytes came; with `cached`, from the page cache, without waiting for anything else. */
static int read_parts(int32_t fd, const struct iovec *parts, int32_t count, int64_t bytes, int64_t offset,
                      int cached) {
#if defined(__linux__) && defined(SYS_preadv2) && INTPTR_MAX == INT64_MAX
    int64_t read;
    do {
        if (cached) read = syscall(SYS_preadv2, fd, parts, (long)count, (long)offset, 0L, NO_WAITING);
        else if (count == 1) read = pread(fd, parts->iov_base, parts->iov_len, (off_t)offset); /* a third cheaper */
        else read = preadv(fd, parts, count, (off_t)offset);
    } while (read < 0 && errno == EINTR);
    return read == bytes;
#else
    (void)fd, (void)parts, (void)count, (void)bytes, (void)offset, (void)cached;
    return 0;
#endif
}

int ss_can_fetch(const ss_residency *r) {
    int64_t record = 0, room = 0;
    if (!r->kinds || !r->places || r->kind_count > MOST_PIECES) return 0;
    for (int64_t k = 0; k < r->kind_count; k++) {
        record += r->kinds[k].disk_bytes;
        if (r->kinds[k].change != SS_AS_STORED) room += r->kinds[k].disk_bytes;
    }
    return record <= RECORD_BYTES && room <= ROOM_BYTES;
}

typedef struct fetching {
    const ss_residency *residency;
    const ss_place *places; /* of the layer */
    int64_t layer;
    const int32_t *absent; /* pairs of key and slot */
    int64_t shares;        /* that a record is cut into, of neighbouring kinds: what threads share */
    uint8_t *came;         /* by record and share */
    _Atomic int64_t ns;
} fetching;

static char *place_of(const ss_piece_kind *kind, int32_t slot) {
    return (char *)kind->slots + slot * kind->slot_bytes;
}

static int64_t start_of(const ss_place *place, int64_t expert) { return place->start + expert * place->stride; }

/* Whether the pieces of a record lie one after the other. */
static int is_one_piece(const ss_residency *r, const ss_place *places) {
    for (int64_t k = 1; k < r->kind_count; k++)
        if (places[k].fd != places[0].fd || places[k].start != places[k - 1].start + r->kinds[k - 1].disk_bytes) return 0;
    return 1;
}

/* Read the kinds from `first` to before `end` of one record, neighbours on disk together, into its slot; 0 when they did
 * not come whole and sound. The first and longest must be in the page cache; what belongs to it mostly is there, too. */
static int fetch_kinds(const fetching *f, int32_t key, int32_t slot, int64_t first, int64_t end) {
    const ss_residency *r = f->residency;
    _Alignas(16) char room[ROOM_BYTES];
    char *next = room;
    int64_t expert = key - f->layer * r->expert_count, last;
    int check = !(r->marks[key] & SS_CHECKED);
    for (int cached = 1; first < end; first = last, cached = 0) {
        struct iovec parts[MOST_PIECES];
        int64_t offset = start_of(&f->places[first], expert), bytes = 0;
        for (last = first; last < end; last++) {
            const ss_piece_kind *kind = &r->kinds[last];
            const ss_place *place = &f->places[last];
            if (place->fd != f->places[first].fd || start_of(place, expert) != offset + bytes) break;
            int changes = kind->change != SS_AS_STORED;
            parts[last - first] = (struct iovec){changes ? next : place_of(kind, slot), (size_t)kind->disk_bytes};
            if (changes) next += kind->disk_bytes;
            bytes += kind->disk_bytes;
        }
        if (!read_parts((int32_t)f->places[first].fd, parts, (int32_t)(last - first), bytes, offset, cached)) return 0;
        for (int64_t k = first; k < last; k++)
            if (!ss_settle_piece(&r->kinds[k], parts[k - first].iov_base, place_of(&r->kinds[k], slot), check)) return 0;
    }
    return 1;
}

static void fetch_share(void *context, int64_t number) {
    fetching *f = context;
    int64_t started = now_ns(), kinds = f->residency->kind_count / f->shares, share = number % f->shares;
    const int32_t *record = f->absent + number / f->shares * 2;
    f->came[number] = (uint8_t)fetch_kinds(f, record[0], record[1], share * kinds, (share + 1) * kinds);
    atomic_fetch_add_explicit(&f->ns, now_ns() - started, memory_order_relaxed);
}

int32_t ss_fetch_into(ss_residency *r, ss_pool *pool, int64_t layer, const int32_t *records, int64_t count,
                      uint8_t *came) {
    int64_t started = now_ns(), record_bytes = 0;
    if (!count) return SS_OK;
    const ss_place *places = r->places + layer * r->kind_count;
    int64_t shares = r->kind_count % PROJECTIONS || is_one_piece(r, places) ? 1 : PROJECTIONS;
    uint8_t *parts = calloc((size_t)(count * shares), 1);
    if (!parts) return SS_NO_MEMORY;
    fetching f = {.residency = r, .places = places, .layer = layer, .absent = records, .shares = shares, .came = parts};
    ss_call call;
    if (pool && ss_begin(pool, 0, &call) == SS_OK) {
        ss_share(&call, fetch_share, &f, count * shares);
        ss_end(&call);
    } else {
        for (int64_t i = 0; i < count * shares; i++) fetch_share(&f, i);
    }
    for (int64_t k = 0; k < r->kind_count; k++) record_bytes += r->kinds[k].disk_bytes;
    for (int64_t i = 0; i < count; i++) {
        came[i] = 1;
        for (int64_t share = 0; share < shares; share++) came[i] &= parts[i * shares + share];
        if (!came[i]) continue;
        r->marks[records[2 * i]] |= SS_CHECKED;
        r->counts[SS_BYTES_READ] += record_bytes;
    }
    free(parts);
    r->counts[SS_READ_NS] += atomic_load_explicit(&f.ns, memory_order_relaxed);
    r->counts[SS_WAIT_NS] += now_ns() - started;
    return SS_OK;
}

int32_t ss_fetch(ss_residency *r, ss_pool *pool, int64_t layer, ss_granted *granted) {
    int64_t count = granted->absent_count;
    uint8_t *came = calloc((size_t)count + 1, 1);
    if (!came) return SS_NO_MEMORY;
    int32_t code = ss_fetch_into(r, pool, layer, granted->absent, count, came);
    granted->absent_count = 0;
    for (int64_t i = 0; i < count; i++) {
        int32_t key = granted->absent[2 * i], slot = granted->absent[2 * i + 1];
        if (came[i]) {
            ss_publish(r, key, slot);
        } else {
            int32_t *kept = granted->absent + 2 * granted->absent_count++;
            kept[0] = key, kept[1] = slot;
        }
    }
    free(came);
    return code;
}
