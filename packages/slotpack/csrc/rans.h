/* Four-way interleaved byte rANS: the arithmetic of Slotpack v1. No Python.h here.
 *
 * READ ME FIRST
 *
 * A state x lives in [L, 2^31) with L = 2^23. A symbol of frequency f (out of M = 2^bits) owning the
 * slots [cum, cum + f) is pushed by
 *
 *     x -> (x / f) * M + cum + x % f            (push)
 *     x -> f * (x / M) + x % M - cum            (pop, its inverse: x % M names the slot)
 *
 * A push multiplies x by about M / f, so low bytes leave the state first while x >= (L / M * 256) * f:
 * after that the pushed state is again below 256 * L = 2^31. A pop divides, so bytes are shifted in while
 * x < L. Both loops move the same bytes, in opposite order: the encoder walks the symbols from last to
 * first and writes its bytes from the end of a buffer towards the front, the decoder reads forward.
 *
 * Symbol i uses state i & 3. The states are independent, so a superscalar core overlaps four pops; only
 * the position in the byte stream is shared. Encoding starts from L, therefore a correct stream ends with
 * every state equal to L and every byte read. Those two facts are the validity check of the format.
 */
#ifndef SLOTPACK_RANS_H
#define SLOTPACK_RANS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define RANS_LOW ((uint32_t)1 << 23)
#define RANS_HIGH ((uint32_t)1 << 31)
#define RANS_LANES 4

static inline uint32_t load_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline void store_u32(uint8_t *p, uint32_t value)
{
    p[0] = (uint8_t)value;
    p[1] = (uint8_t)(value >> 8);
    p[2] = (uint8_t)(value >> 16);
    p[3] = (uint8_t)(value >> 24);
}

static inline uint32_t load_u16(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}

static inline void store_u16(uint8_t *p, uint32_t value)
{
    p[0] = (uint8_t)value;
    p[1] = (uint8_t)(value >> 8);
}

/* Writes backwards from the end of a buffer. `full` is set instead of writing before `start`. */
typedef struct {
    uint8_t *start;
    uint8_t *next;
    int full;
} rans_sink;

static inline uint32_t rans_push(rans_sink *sink, uint32_t x, uint32_t freq, uint32_t cum, int bits)
{
    /* At most 2^31 (freq = M), hence 64-bit only as a matter of safety at the edge. */
    const uint64_t ceiling = ((uint64_t)(RANS_LOW >> bits) << 8) * freq;
    while (x >= ceiling) {
        if (sink->next == sink->start) {
            sink->full = 1;
            return RANS_LOW;
        }
        *--sink->next = (uint8_t)x;
        x >>= 8;
    }
    return ((x / freq) << bits) + x % freq + cum;
}

/* Reads forwards; never past `end`. */
typedef struct {
    const uint8_t *next;
    const uint8_t *end;
    int starved;
} rans_source;

static inline uint32_t rans_refill(rans_source *source, uint32_t x)
{
    while (x < RANS_LOW) {
        if (source->next == source->end) {
            source->starved = 1;
            return RANS_LOW;
        }
        x = x << 8 | *source->next++;
    }
    return x;
}

/* Refills a state that is at most two bytes short, without a branch: how short it is cannot be predicted. A state just
 * popped is at least 2^23 >> 16 = 2^7, so this holds for every table of up to 16 bits. Reads next[0] and next[1]. */
static inline const uint8_t *rans_refill_two(uint32_t *x, const uint8_t *next)
{
    const uint32_t missing_bytes = ((*x - RANS_LOW) >> 31) + ((*x - (RANS_LOW >> 8)) >> 31); /* *x is below 2^31 */
    const uint32_t two = (uint32_t)next[0] << 8 | next[1];
    *x = *x << (8 * missing_bytes) | two >> (16 - 8 * missing_bytes);
    return next + missing_bytes;
}

static inline uint32_t rans_pop(uint32_t x, uint32_t freq, uint32_t offset, int bits)
{
    /* offset = slot - cum, below freq. */
    return freq * (x >> bits) + offset;
}

#endif
