/* The nibble stream of kind 3: where decoding spends nearly all of its time. No Python.h here.
 *
 * Four states, hence four chains of dependent instructions, are all the parallelism a stream has. One link of a
 * chain is: mask, load the nibble, load its frequency, multiply, add, compare, move. What can be done beside the
 * chain is kept out of it: the cum of a nibble is subtracted while the product is made, the two bytes that a pair of
 * states may take are loaded before it is known who takes them, and the table of the next group is fetched while
 * this group is decoded. Between groups the states stay in registers.
 *
 * SLOTPACK_PORTABLE leaves the instructions written by hand out, so that tests reach what other processors run.
 */
#ifndef SLOTPACK_NIBBLES_H
#define SLOTPACK_NIBBLES_H

#include "rans.h"

#define NIBBLE_BITS 12

#if defined(__GNUC__)
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)
#define ALWAYS_INLINE inline __attribute__((always_inline))
#define PREFETCH(address) __builtin_prefetch(address)
/* Keeps a value in its register as it is, so that sums are not made in another order. */
#define PINNED(value) __asm__("" : "+r"(value))
#else
#define UNLIKELY(condition) (condition)
#define ALWAYS_INLINE inline
#define PREFETCH(address) ((void)(address))
#define PINNED(value) ((void)(value))
#endif

/* One quantisation context: the nibble owning each of 4,096 slots, and each nibble's share of them. One byte a
 * slot keeps a context near 4 KiB: a block uses dozens of them, and they should stay in the nearest caches. */
typedef struct {
    uint32_t freq[16];
    uint32_t cum[16];
    uint32_t has_rare; /* a nibble with f < 16: popping it can leave a state two bytes short */
    uint8_t nibble[1 << NIBBLE_BITS];
} context;

/* Pops one nibble; the new state is not refilled. */
static inline uint32_t pop_nibble(const context *c, uint32_t *x)
{
    uint32_t slot = *x & ((1u << NIBBLE_BITS) - 1);
    const uint32_t nibble = c->nibble[slot];
    slot -= c->cum[nibble];
    PINNED(slot);
    *x = rans_pop(*x, c->freq[nibble], slot, NIBBLE_BITS);
    return nibble;
}

/* Takes at most one byte into each of two states; a state in [2^15, 2^23) needs exactly one. Whether a state is short
 * is a coin toss that no branch predictor can learn, so there must be no branch. On x86-64 GCC turns every spelling in
 * C back into one (seen with GCC 12), hence the seven instructions by hand. Reads next[0] and next[1]. */
static inline const uint8_t *refill_pair(uint32_t *a, uint32_t *b, const uint8_t *next)
{
    uint32_t byte = next[0];
    const uint32_t after = next[1];
    const uint32_t longer_a = *a << 8 | byte;
#if defined(__x86_64__) && defined(__GNUC__) && !defined(SLOTPACK_PORTABLE)
    __asm__("cmpl %[low], %[x]\n\tcmovb %[longer], %[x]\n\tcmovb %[after], %[byte]\n\tadcq $0, %[next]"
            : [x] "+r"(*a), [byte] "+r"(byte), [next] "+r"(next)
            : [longer] "r"(longer_a), [after] "r"(after), [low] "i"(RANS_LOW)
            : "cc");
    const uint32_t longer_b = *b << 8 | byte;
    __asm__("cmpl %[low], %[x]\n\tcmovb %[longer], %[x]\n\tadcq $0, %[next]"
            : [x] "+r"(*b), [next] "+r"(next)
            : [longer] "r"(longer_b), [low] "i"(RANS_LOW)
            : "cc");
    return next;
#else
    const uint32_t a_short = (*a - RANS_LOW) >> 31, b_short = (*b - RANS_LOW) >> 31; /* states are below 2^31 */
    byte ^= (byte ^ after) & (0u - a_short);
    *a ^= (*a ^ longer_a) & (0u - a_short);
    *b ^= (*b ^ (*b << 8 | byte)) & (0u - b_short);
    return next + a_short + b_short;
#endif
}

static inline const uint8_t *refill_any(uint32_t *x, const uint8_t *next)
{
    while (*x < RANS_LOW)
        *x = *x << 8 | *next++;
    return next;
}

/* The four states and the place in the stream: values, so that they live in registers. */
typedef struct {
    uint32_t x0, x1, x2, x3;
    const uint8_t *next;
} rounds;

/* Decodes one group with no bounds checks and fetches the table at `ahead` meanwhile, 64 bytes a nibble. */
static ALWAYS_INLINE rounds decode_group(const context *c, rounds r, const uint8_t *ahead, uint8_t *out,
                                         size_t out_bytes, const int has_rare)
{
    const uint32_t floor = RANS_LOW >> 8; /* below it a state is short of two bytes: only nibbles with f < 16 */
    for (const uint8_t *stop = out + out_bytes; out != stop; out += 2) {
        for (int line = 0; line < RANS_LANES; line++)
            PREFETCH(ahead + 64 * line);
        ahead += 64 * RANS_LANES;
        uint32_t low = pop_nibble(c, &r.x0);
        out[0] = (uint8_t)(low | pop_nibble(c, &r.x1) << 4);
        low = pop_nibble(c, &r.x2);
        out[1] = (uint8_t)(low | pop_nibble(c, &r.x3) << 4);
        if (has_rare && UNLIKELY(((r.x0 - floor) | (r.x1 - floor) | (r.x2 - floor) | (r.x3 - floor)) >> 31)) {
            r.next = refill_any(&r.x0, r.next);
            r.next = refill_any(&r.x1, r.next);
            r.next = refill_any(&r.x2, r.next);
            r.next = refill_any(&r.x3, r.next);
        } else {
            r.next = refill_pair(&r.x0, &r.x1, r.next);
            r.next = refill_pair(&r.x2, &r.x3, r.next);
        }
    }
    return r;
}

/* Decodes groups while the stream is sure to hold what they may take: 2 bytes a nibble, and 2 that refill_pair looks
 * at. Returns how many were decoded; `states` and `source` stand behind them. */
static inline size_t decode_groups(const context *contexts, const uint16_t *group_context, size_t groups,
                                   size_t group_bytes, uint32_t states[RANS_LANES], rans_source *source, uint8_t *out)
{
    rounds r = {states[0], states[1], states[2], states[3], source->next};
    const size_t margin = 4 * group_bytes + 2;
    size_t group = 0;
    for (; group < groups && (size_t)(source->end - r.next) >= margin; group++, out += group_bytes) {
        const context *c = &contexts[group_context[group]];
        const uint8_t *ahead = (const uint8_t *)&contexts[group_context[group + (group + 1 < groups)]];
        if (c->has_rare)
            r = decode_group(c, r, ahead, out, group_bytes, 1);
        else
            r = decode_group(c, r, ahead, out, group_bytes, 0);
    }
    states[0] = r.x0;
    states[1] = r.x1;
    states[2] = r.x2;
    states[3] = r.x3;
    source->next = r.next;
    return group;
}

/* One group near the end of the stream, where every byte must be asked for. Returns 0 where the stream ends early. */
static inline int decode_group_checked(const context *c, uint32_t x[RANS_LANES], rans_source *source, uint8_t *out,
                                       size_t out_bytes)
{
    for (size_t i = 0; i < 2 * out_bytes; i++) {
        uint32_t state = x[i & 3];
        const uint32_t nibble = pop_nibble(c, &state);
        x[i & 3] = rans_refill(source, state);
        if (UNLIKELY(source->starved))
            return 0;
        out[i / 2] = (uint8_t)(i & 1 ? out[i / 2] | nibble << 4 : nibble);
    }
    return 1;
}

#endif
