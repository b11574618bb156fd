#include "mapped.h"

#include <stdatomic.h>
#include <stdlib.h>

#define MOST_REGIONS (1 << 20)

typedef struct region {
    int64_t fd, start, end; /* of the file's bytes that may ever be found */
    const char *address;    /* of `start`; written once, before `bytes` */
    _Atomic int64_t bytes;  /* in reach */
} region;

/* Who enters is counted with the present turn. Once those of the turn before are gone the next one may begin, and who enters
 * then sees every region as it is by that time; so what was shrunk before waits for one turn's users only. */
struct ss_mapped {
    atomic_int references;
    atomic_int turn; /* 0 or 1 */
    _Atomic int64_t users[2];
    int shrunk; /* since the last turn began; the owner's */
    int64_t count;
    region all[];
};

int32_t ss_mapped_create(const int64_t *regions, int64_t count, ss_mapped **result) {
    if (!regions || !result || count < 1 || count > MOST_REGIONS) return SS_BAD_ARGUMENT;
    ss_mapped *mapped = calloc(1, sizeof *mapped + (size_t)count * sizeof *mapped->all);
    if (!mapped) return SS_NO_MEMORY;
    for (int64_t i = 0; i < count; i++) {
        int64_t fd = *regions++, start = *regions++, end = *regions++;
        const region *before = i ? &mapped->all[i - 1] : NULL;
        int in_order = !before || before->fd < fd || (before->fd == fd && before->end <= start);
        if (fd < 0 || start < 0 || end <= start || !in_order) {
            free(mapped);
            return SS_OUT_OF_RANGE;
        }
        mapped->all[i] = (region){.fd = fd, .start = start, .end = end};
    }
    mapped->count = count;
    atomic_init(&mapped->references, 1);
    *result = mapped;
    return SS_OK;
}

void ss_mapped_refer(ss_mapped *mapped) { atomic_fetch_add_explicit(&mapped->references, 1, memory_order_relaxed); }

void ss_mapped_release(ss_mapped *mapped) {
    if (mapped && atomic_fetch_sub_explicit(&mapped->references, 1, memory_order_acq_rel) == 1) free(mapped);
}

int32_t ss_mapped_extend(ss_mapped *mapped, int64_t number, const void *address, int64_t bytes) {
    if (!mapped || !address || number < 0 || number >= mapped->count) return SS_BAD_ARGUMENT;
    region *one = &mapped->all[number];
    int64_t before = atomic_load_explicit(&one->bytes, memory_order_relaxed);
    if (bytes < before || bytes > one->end - one->start || (one->address && address != one->address)) return SS_OUT_OF_RANGE;
    if (!one->address) one->address = address;
    atomic_store_explicit(&one->bytes, bytes, memory_order_release);
    return SS_OK;
}

int32_t ss_mapped_shrink(ss_mapped *mapped, int64_t number, int64_t bytes) {
    if (!mapped || number < 0 || number >= mapped->count) return SS_BAD_ARGUMENT;
    region *one = &mapped->all[number];
    if (bytes < 0 || bytes > atomic_load_explicit(&one->bytes, memory_order_relaxed)) return SS_OUT_OF_RANGE;
    atomic_store(&one->bytes, bytes); /* before the next turn, for everybody */
    mapped->shrunk = 1;
    return SS_OK;
}

int32_t ss_mapped_quiet(ss_mapped *mapped) {
    int turn = atomic_load(&mapped->turn);
    if (atomic_load(&mapped->users[!turn])) return 0;
    if (!mapped->shrunk) return 1;
    mapped->shrunk = 0;
    atomic_store(&mapped->turn, !turn);
    return atomic_load(&mapped->users[turn]) == 0;
}

int64_t ss_mapped_users(const ss_mapped *mapped) { return atomic_load(&mapped->users[0]) + atomic_load(&mapped->users[1]); }

int ss_mapped_enter(ss_mapped *mapped) {
    if (!mapped) return 0;
    for (;;) {
        int turn = atomic_load(&mapped->turn);
        atomic_fetch_add(&mapped->users[turn], 1);
        if (atomic_load(&mapped->turn) == turn) return turn;
        atomic_fetch_sub(&mapped->users[turn], 1); /* it may not be waited for any more */
    }
}

void ss_mapped_leave(ss_mapped *mapped, int entry) {
    if (mapped) atomic_fetch_sub(&mapped->users[entry], 1);
}

const char *ss_mapped_find(const ss_mapped *mapped, int64_t fd, int64_t offset, int64_t bytes) {
    int64_t first = 0, behind = mapped ? mapped->count : 0; /* the last region that begins there or before */
    while (first < behind) {
        int64_t middle = first + (behind - first) / 2;
        const region *one = &mapped->all[middle];
        if (one->fd < fd || (one->fd == fd && one->start <= offset)) first = middle + 1;
        else behind = middle;
    }
    if (!first) return NULL;
    const region *one = &mapped->all[first - 1];
    int64_t in_reach = atomic_load_explicit(&one->bytes, memory_order_acquire), from = offset - one->start;
    return one->fd == fd && from <= in_reach - bytes ? one->address + from : NULL;
}
