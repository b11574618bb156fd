/* Nibble streams of several frames at once, on AVX2. No Python.h here.
 *
 * One frame's stream offers four chains and no more. A 256-bit register holds the four states of two frames, and two
 * registers in one loop hide each other's latency. There is no slot table: a group's context fits one cache line
 * and the nibble is found by a binary search over its 15 boundaries, in the four lanes of a frame at a time.
 *
 * The search. Boundary i is stored as a key, 16 cum[i] - code, where code < 16 names the nibble; a state's slot is
 * compared as 16 slot. Then d = 16 slot - key has the sign of slot - cum[i], its upper bits are slot - cum[i], and its
 * lower four the code. Over the keys tested, the least unsigned d belongs to the last boundary not above the slot, and
 * gives in one word the nibble and slot - cum; the greatest belongs to the first boundary above it. Their difference
 * is the frequency. The code holds the nibble's quarter in its lower two bits, where vpermilps looks for the number of
 * the element to take: once the quarter is known, the least d so far picks the boundaries inside it.
 * Nibbles that never occur share their boundary with the next one; all of them carry the code of the last.
 *
 * The bytes. A state below 2^23 takes one byte. How many of the states before it do so is a running sum over four
 * lanes, and the sum is the control of the shuffle that brings the byte. A state below 2^15 takes two; that is rare,
 * and then the round is refilled state by state.
 */
#ifndef SLOTPACK_WIDE_H
#define SLOTPACK_WIDE_H

#include "nibbles.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(SLOTPACK_PORTABLE)
#define SLOTPACK_WIDE 1
#include <immintrin.h>

#define WIDE_TARGET __attribute__((target("avx2,popcnt")))
#define WIDE_INLINE static inline __attribute__((always_inline)) WIDE_TARGET
#define WIDE_LOOP static __attribute__((noinline)) WIDE_TARGET
#define WIDE_PAIRS 2
#define WIDE_STREAMS (2 * WIDE_PAIRS)
#define WIDE_ROUNDS 8                     /* rounds between two stores of 16 bytes a stream */
#define WIDE_READ_AHEAD 16                /* bytes of the stream that a round looks at, used or not */

/* The keys of one context: boundaries 0, 8, 12 and 4, then 4 q + 1, 4 q + 2 and 4 q + 3 of each quarter q. */
typedef struct {
    uint32_t pivots[4];
    uint32_t first[4], second[4], third[4];
} wide_keys;

/* One stream; `keys` runs parallel to the contexts that `group_context` names. */
typedef struct {
    const wide_keys *keys;
    const uint16_t *group_context;
    uint32_t states[RANS_LANES];
    const uint8_t *next;
    uint8_t *out;
} wide_stream;

static inline void wide_make_keys(const context *c, wide_keys *keys)
{
    uint32_t key[16];
    for (uint32_t i = 16, last = 15; i-- > 0;) {
        if (i < 15 && c->cum[i] != c->cum[i + 1])
            last = i;
        key[i] = (c->cum[i] << 4) - (last >> 2 | (last & 3) << 2);
    }
    memcpy(keys->pivots, (uint32_t[4]){key[0], key[8], key[12], key[4]}, sizeof keys->pivots);
    for (uint32_t i = 0; i < 4; i++) {
        keys->first[i] = key[4 * i + 1];
        keys->second[i] = key[4 * i + 2];
        keys->third[i] = key[4 * i + 3];
    }
}

static inline int wide_available(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt");
}

/* Constants read from memory: the loop has no registers left for them. */
typedef union {
    uint32_t words[8];
    __m256i v;
} wide_word;

enum { SLOT_MASK, END_KEY, LOW, FLOOR, TAKES_BYTE, TAKES_NONE, EIGHT };

#define ALL(value) {{(value), (value), (value), (value), (value), (value), (value), (value)}}
static const wide_word WIDE_CONSTANTS[] = {
    [SLOT_MASK] = ALL((1u << NIBBLE_BITS) - 1),
    [END_KEY] = ALL(16u << NIBBLE_BITS),
    [LOW] = ALL(RANS_LOW),
    [FLOOR] = ALL(RANS_LOW >> 8),
    [TAKES_BYTE] = ALL(0x80807fffu), /* plus 1 to 4: the number of the byte, and zero in the upper three */
    [TAKES_NONE] = ALL(0x80808080u),
    [EIGHT] = ALL(8),
};
#undef ALL

typedef struct {
    __m256i k0, k8, k12, k4, first, second, third;
} wide_pair;

WIDE_INLINE __m256i wide_join(const void *low, const void *high)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(low)), _mm_loadu_si128(high), 1);
}

/* Takes b where the sign bit of `sign` is set. */
WIDE_INLINE __m256i wide_select(__m256i a, __m256i b, __m256i sign)
{
    return _mm256_castps_si256(
        _mm256_blendv_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), _mm256_castsi256_ps(sign)));
}

WIDE_INLINE __m256i wide_pick(__m256i table, __m256i index)
{
    return _mm256_castps_si256(_mm256_permutevar_ps(_mm256_castsi256_ps(table), index));
}

WIDE_INLINE unsigned wide_signs(__m256i a)
{
    return (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(a));
}

WIDE_INLINE wide_pair wide_open_group(const wide_keys *a, const wide_keys *b)
{
    const __m256i pivots = wide_join(a->pivots, b->pivots);
    return (wide_pair){
        .k0 = _mm256_shuffle_epi32(pivots, 0x00),
        .k8 = _mm256_shuffle_epi32(pivots, 0x55),
        .k12 = _mm256_shuffle_epi32(pivots, 0xaa),
        .k4 = _mm256_shuffle_epi32(pivots, 0xff),
        .first = wide_join(a->first, b->first),
        .second = wide_join(a->second, b->second),
        .third = wide_join(a->third, b->third),
    };
}

/* Pops a nibble from each of eight states, without refilling them. Returns the least d: its lower bits are the code. */
WIDE_INLINE __m256i wide_pop(const wide_pair *keys, const wide_word *constants, __m256i *x)
{
    const __m256i slot = _mm256_slli_epi32(_mm256_and_si256(*x, constants[SLOT_MASK].v), 4);
    const __m256i middle = _mm256_sub_epi32(slot, keys->k8);
    __m256i least = _mm256_min_epu32(middle, _mm256_sub_epi32(slot, keys->k0));
    __m256i greatest = _mm256_max_epu32(middle, _mm256_sub_epi32(slot, constants[END_KEY].v));
    const __m256i quarter = _mm256_sub_epi32(slot, wide_select(keys->k12, keys->k4, middle));
    least = _mm256_min_epu32(least, quarter);
    greatest = _mm256_max_epu32(greatest, quarter);
    const __m256i half = _mm256_sub_epi32(slot, wide_pick(keys->second, least));
    const __m256i final =
        _mm256_sub_epi32(slot, wide_select(wide_pick(keys->third, least), wide_pick(keys->first, least), half));
    least = _mm256_min_epu32(_mm256_min_epu32(least, half), final);
    greatest = _mm256_max_epu32(_mm256_max_epu32(greatest, half), final);
    const __m256i offset = _mm256_srli_epi32(least, 4);
    const __m256i freq = _mm256_sub_epi32(offset, _mm256_srai_epi32(greatest, 4));
    *x = _mm256_add_epi32(_mm256_mullo_epi32(freq, _mm256_srli_epi32(*x, NIBBLE_BITS)), offset);
    return least;
}

/* Gives a byte to each state that is short of one. */
WIDE_INLINE __m256i wide_refill(__m256i x, const wide_word *constants, const uint8_t **a, const uint8_t **b)
{
    const __m256i is_short = _mm256_cmpgt_epi32(constants[LOW].v, x); /* minus one for each that is */
    const unsigned signs = wide_signs(is_short);
    const __m256i base = wide_select(constants[TAKES_NONE].v, constants[TAKES_BYTE].v, is_short);
    const __m256i pairs = _mm256_add_epi32(is_short, _mm256_slli_si256(is_short, 4));
    const __m256i control = _mm256_sub_epi32(_mm256_sub_epi32(base, pairs), _mm256_slli_si256(pairs, 8));
    const __m256i bytes = _mm256_shuffle_epi8(wide_join(*a, *b), control);
    size_t bytes_a = (size_t)__builtin_popcount(signs & 15), bytes_b = (size_t)__builtin_popcount(signs >> 4);
    PINNED(bytes_a); /* or GCC would gather these sums in a vector register */
    PINNED(bytes_b);
    *a += bytes_a;
    *b += bytes_b;
    return _mm256_or_si256(_mm256_sllv_epi32(x, _mm256_and_si256(is_short, constants[EIGHT].v)), bytes);
}

/* The same where a state may be short of two. */
WIDE_LOOP __m256i wide_refill_any(__m256i x, const uint8_t *next[2])
{
    wide_word states = {.v = x};
    for (int lane = 0; lane < 2 * RANS_LANES; lane++)
        next[lane / RANS_LANES] = refill_any(&states.words[lane], next[lane / RANS_LANES]);
    return states.v;
}

/* One nibble from each state of `pairs` pairs of streams. */
WIDE_INLINE void wide_round(const int pairs, const wide_pair *keys, const wide_word *constants, __m256i *x,
                            const uint8_t **next, __m256i *codes)
{
    __m256i lowest = x[0];
    for (int p = 0; p < pairs; p++) {
        codes[p] = wide_pop(&keys[p], constants, &x[p]);
        lowest = p ? _mm256_min_epu32(lowest, x[p]) : x[p]; /* of every state */
    }
    if (UNLIKELY(wide_signs(_mm256_sub_epi32(lowest, constants[FLOOR].v)))) {
        for (int p = 0; p < pairs; p++) {
            const uint8_t *places[2] = {next[2 * p], next[2 * p + 1]};
            x[p] = wide_refill_any(x[p], places);
            next[2 * p] = places[0];
            next[2 * p + 1] = places[1];
        }
    } else {
        for (int p = 0; p < pairs; p++)
            x[p] = wide_refill(x[p], constants, &next[2 * p], &next[2 * p + 1]);
    }
}

/* Turns the codes of eight rounds into bytes. Word j of a half holds four codes of state j & 3: those of rounds
 * 0, 2, 4, 6 (j < 4) or 1, 3, 5, 7. */
WIDE_INLINE __m256i wide_bytes(__m256i codes)
{
    const __m256i threes = _mm256_set1_epi8(0x33);
    const __m256i v = _mm256_or_si256(_mm256_slli_epi32(_mm256_and_si256(codes, threes), 2),
                                      _mm256_and_si256(_mm256_srli_epi32(codes, 2), threes));
    const __m256i stay = _mm256_and_si256(v, _mm256_set1_epi32((int)0xf0f00f0fu));
    const __m256i down = _mm256_and_si256(_mm256_srli_epi32(v, 12), _mm256_set1_epi32(0x0000f0f0));
    const __m256i up = _mm256_and_si256(_mm256_slli_epi32(v, 12), _mm256_set1_epi32(0x0f0f0000));
    const __m256i order = _mm256_setr_epi8(0, 4, 8, 12, 2, 6, 10, 14, 1, 5, 9, 13, 3, 7, 11, 15, /* and the other */
                                           0, 4, 8, 12, 2, 6, 10, 14, 1, 5, 9, 13, 3, 7, 11, 15);
    return _mm256_shuffle_epi8(_mm256_or_si256(stay, _mm256_or_si256(down, up)), order);
}

/* Decodes `groups` groups of 2 * pairs streams. The caller has checked that every stream holds 4 bytes for each byte
 * decoded and WIDE_READ_AHEAD more. Two entries of `streams` may be copies of each other. */
WIDE_INLINE void wide_decode_pairs(const int pairs, wide_stream *streams, size_t groups, size_t group_bytes)
{
    __m256i x[WIDE_PAIRS];
    const uint8_t *next[WIDE_STREAMS];
    const wide_word *constants = WIDE_CONSTANTS;
    PINNED(constants);
    for (int p = 0; p < pairs; p++)
        x[p] = wide_join(streams[2 * p].states, streams[2 * p + 1].states);
    for (int s = 0; s < 2 * pairs; s++)
        next[s] = streams[s].next;
    for (size_t group = 0, at = 0; group < groups; group++) {
        wide_pair keys[WIDE_PAIRS];
        for (int p = 0; p < pairs; p++) {
            const wide_stream *a = &streams[2 * p], *b = &streams[2 * p + 1];
            keys[p] = wide_open_group(&a->keys[a->group_context[group]], &b->keys[b->group_context[group]]);
        }
        for (const size_t stop = at + group_bytes; at != stop; at += 2 * WIDE_ROUNDS) {
            __m256i collected[WIDE_PAIRS];
            for (int p = 0; p < pairs; p++)
                collected[p] = _mm256_setzero_si256();
            for (int round = 0; round < WIDE_ROUNDS; round += 2) {
                __m256i even[WIDE_PAIRS], odd[WIDE_PAIRS];
                wide_round(pairs, keys, constants, x, next, even);
                wide_round(pairs, keys, constants, x, next, odd);
                for (int p = 0; p < pairs; p++) /* d of the boundary found is below 2^16 */
                    collected[p] = _mm256_or_si256(_mm256_srli_epi16(collected[p], 4),
                                                   _mm256_slli_epi16(_mm256_packus_epi32(even[p], odd[p]), 12));
            }
            for (int p = 0; p < pairs; p++) {
                const __m256i bytes = wide_bytes(collected[p]);
                _mm_storeu_si128((void *)(streams[2 * p].out + at), _mm256_castsi256_si128(bytes));
                _mm_storeu_si128((void *)(streams[2 * p + 1].out + at), _mm256_extracti128_si256(bytes, 1));
            }
        }
    }
    for (int p = 0; p < pairs; p++) {
        _mm_storeu_si128((void *)streams[2 * p].states, _mm256_castsi256_si128(x[p]));
        _mm_storeu_si128((void *)streams[2 * p + 1].states, _mm256_extracti128_si256(x[p], 1));
    }
    for (int s = 0; s < 2 * pairs; s++) {
        streams[s].next = next[s];
        streams[s].group_context += groups;
        streams[s].out += groups * group_bytes;
    }
}

WIDE_LOOP void wide_decode_two(wide_stream *streams, size_t groups, size_t group_bytes)
{
    wide_decode_pairs(1, streams, groups, group_bytes);
}

WIDE_LOOP void wide_decode_four(wide_stream *streams, size_t groups, size_t group_bytes)
{
    wide_decode_pairs(2, streams, groups, group_bytes);
}

#else
#define SLOTPACK_WIDE 0
#endif
#endif
