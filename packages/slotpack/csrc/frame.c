#include "frame.h"

#include <stdlib.h>

#include "rans.h"

#define MAX_CONTEXTS 2048u
#define CONTEXT_KEYS 262144u
#define NIBBLE_BITS 12
#define BYTE_BITS 12
#define WORD_BITS 16
#define NO_CONTEXT 0xffffu

#if defined(__GNUC__)
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)
#else
#define UNLIKELY(condition) (condition)
#endif

static const uint8_t MAGIC[8] = {'S', 'L', 'T', 'P', 'K', '0', '0', '1'};

typedef struct {
    const uint8_t *next;
    const uint8_t *end;
} reader;

static size_t remaining(const reader *r)
{
    return (size_t)(r->end - r->next);
}

static int read_u32(reader *r, uint32_t *value)
{
    if (remaining(r) < 4)
        return SLOTPACK_TRUNCATED;
    *value = load_u32(r->next);
    r->next += 4;
    return SLOTPACK_OK;
}

/* Canonical unsigned LEB128 of at most 32 bits. */
static int read_varint(reader *r, uint32_t *value)
{
    uint32_t result = 0;
    for (int index = 0; index < 5; index++) {
        if (r->next == r->end)
            return SLOTPACK_TRUNCATED;
        const uint8_t byte = *r->next++;
        if (index == 4 && byte > 15)
            return SLOTPACK_BAD_VARINT;
        result |= (uint32_t)(byte & 127) << (7 * index);
        if (byte < 128) {
            if (byte == 0 && index > 0)
                return SLOTPACK_BAD_VARINT;
            *value = result;
            return SLOTPACK_OK;
        }
    }
    return SLOTPACK_BAD_VARINT;
}

/* ---- BF16 in integers ------------------------------------------------------------------------------- */

uint32_t slotpack_predict_bias(uint32_t scale, uint32_t center)
{
    const uint32_t exponent_field = scale >> 7 & 255;
    const uint32_t sign = (scale & 0x8000) ^ 0x8000;
    if (exponent_field == 255)
        return 0;
    const uint32_t exponent = exponent_field ? exponent_field : 1;
    const uint32_t mantissa = (scale & 127) | (exponent_field ? 128 : 0);
    const uint32_t product = mantissa * center; /* below 2^16 */
    if (product == 0)
        return sign;
    int shift = -7; /* top bit of the product, relative to the hidden bit */
    for (uint32_t rest = product; rest > 1; rest >>= 1)
        shift++;
    const int result_exponent = (int)exponent + shift;
    if (result_exponent < 1) /* subnormal: a whole number of smallest steps, nothing to round */
        return sign | product << (exponent - 1);
    uint32_t rounded;
    if (shift <= 0) {
        rounded = product << -shift;
    } else {
        const uint32_t half = 1u << (shift - 1);
        const uint32_t tail = product & ((1u << shift) - 1);
        rounded = product >> shift;
        rounded += tail > half || (tail == half && (rounded & 1));
    }
    /* rounded is in [128, 256]; 256 carries into the exponent by itself. */
    const uint32_t bits = ((uint32_t)(result_exponent - 1) << 7) + rounded;
    return sign | (bits >= 0x7f80 ? 0x7f80 : bits);
}

uint32_t slotpack_find_center(uint32_t scale, uint32_t bias)
{
    const uint32_t scale_field = scale >> 7 & 255, bias_field = bias >> 7 & 255;
    if (scale_field == 255 || bias_field == 255)
        return 0;
    if ((scale & 0x7fff) == 0 || (bias & 0x7fff) == 0 || ((scale ^ bias) & 0x8000) == 0)
        return 0;
    const int difference = (int)(bias_field ? bias_field : 1) - (int)(scale_field ? scale_field : 1);
    if (difference >= 16)
        return 255;
    if (difference <= -16)
        return 0;
    uint32_t numerator = (bias & 127) | (bias_field ? 128 : 0);
    uint32_t denominator = (scale & 127) | (scale_field ? 128 : 0);
    if (difference > 0)
        numerator <<= difference;
    else
        denominator <<= -difference;
    uint32_t quotient = numerator / denominator;
    const uint32_t twice = numerator % denominator * 2;
    quotient += twice > denominator || (twice == denominator && (quotient & 1));
    return quotient > 255 ? 255 : quotient;
}

static uint32_t unzigzag(uint32_t word)
{
    return (word & 1 ? ~(word >> 1) : word >> 1) & 0xffff;
}

static uint32_t context_key(uint32_t scale, uint32_t center)
{
    return center * 1024 + ((scale & 0x7fff) >> 5);
}

/* ---- decoding ---------------------------------------------------------------------------------------- */

/* What a slot of a section decodes to. freq is stored minus one so that 65,536 fits. */
typedef struct {
    uint16_t symbol;
    uint16_t freq_minus_one;
    uint16_t offset; /* slot - cum */
} slot_entry;

static int read_table(reader *r, uint32_t symbol_limit, int bits, slot_entry *slots)
{
    uint32_t used, total = 0;
    uint64_t next_symbol = 0;
    int code = read_u32(r, &used);
    if (code)
        return code;
    if (used == 0 || used > symbol_limit)
        return SLOTPACK_BAD_TABLE;
    for (uint32_t i = 0; i < used; i++) {
        uint32_t delta, freq;
        if ((code = read_varint(r, &delta)) != 0)
            return code;
        const uint64_t symbol = next_symbol + delta;
        if (symbol >= symbol_limit)
            return SLOTPACK_BAD_TABLE;
        next_symbol = symbol + 1;
        if ((code = read_varint(r, &freq)) != 0)
            return code;
        if (freq == 0)
            return SLOTPACK_BAD_TABLE;
        if (freq > ((uint32_t)1 << bits) - total)
            return SLOTPACK_FREQUENCY_SUM;
        for (uint32_t k = 0; k < freq; k++) {
            slot_entry *entry = &slots[total + k];
            entry->symbol = (uint16_t)symbol;
            entry->freq_minus_one = (uint16_t)(freq - 1);
            entry->offset = (uint16_t)k;
        }
        total += freq;
    }
    return total == (uint32_t)1 << bits ? SLOTPACK_OK : SLOTPACK_FREQUENCY_SUM;
}

/* Takes the stream's bytes out of the reader and its four states. */
static int open_stream(reader *r, rans_source *source, uint32_t states[RANS_LANES])
{
    uint32_t stream_bytes;
    const int code = read_u32(r, &stream_bytes);
    if (code)
        return code;
    if (stream_bytes > remaining(r) || stream_bytes < 4 * RANS_LANES)
        return SLOTPACK_TRUNCATED;
    for (int lane = 0; lane < RANS_LANES; lane++) {
        states[lane] = load_u32(r->next + 4 * lane);
        if (states[lane] < RANS_LOW || states[lane] >= RANS_HIGH)
            return SLOTPACK_STREAM_STATE;
    }
    source->next = r->next + 4 * RANS_LANES;
    source->end = r->next + stream_bytes;
    source->starved = 0;
    r->next += stream_bytes;
    return SLOTPACK_OK;
}

static int close_stream(const rans_source *source, const uint32_t states[RANS_LANES])
{
    if (source->starved)
        return SLOTPACK_TRUNCATED;
    if (source->next != source->end)
        return SLOTPACK_TRAILING;
    for (int lane = 0; lane < RANS_LANES; lane++)
        if (states[lane] != RANS_LOW)
            return SLOTPACK_STREAM_STATE;
    return SLOTPACK_OK;
}

/* One section of `count` symbols into `out`, `width` (1 or 2) bytes each. */
static int decode_section(reader *r, int width, uint8_t *out, size_t count, slot_entry *slots)
{
    const int bits = width == 2 ? WORD_BITS : BYTE_BITS;
    const uint32_t mask = ((uint32_t)1 << bits) - 1;
    uint32_t x[RANS_LANES];
    rans_source source;
    int code = read_table(r, width == 2 ? 65536 : 256, bits, slots);
    if (code)
        return code;
    if ((code = open_stream(r, &source, x)) != 0)
        return code;
    for (size_t i = 0; i < count; i++) {
        const uint32_t state = x[i & 3];
        const slot_entry entry = slots[state & mask];
        if (width == 2)
            store_u16(out + 2 * i, entry.symbol);
        else
            out[i] = (uint8_t)entry.symbol;
        x[i & 3] = rans_refill(&source, rans_pop(state, (uint32_t)entry.freq_minus_one + 1, entry.offset, bits));
        if (UNLIKELY(source.starved))
            return SLOTPACK_TRUNCATED;
    }
    return close_stream(&source, x);
}

/* One quantisation context: the nibble owning each of 4,096 slots, and each nibble's share of them. One byte a
 * slot keeps a context near 4 KiB: a block uses dozens of them, and they should stay in the nearest caches. */
typedef struct {
    uint32_t freq[16];
    uint32_t cum[16];
    int has_rare; /* a nibble with f < 16: popping it can leave a state two bytes short */
    uint8_t nibble[1 << NIBBLE_BITS];
} context;

static int read_contexts(reader *r, context **contexts, uint16_t *index_of_key)
{
    uint32_t count;
    int code = read_u32(r, &count);
    if (code)
        return code;
    if (count == 0 || count > MAX_CONTEXTS)
        return SLOTPACK_BAD_CONTEXT;
    /* A context takes at least 20 bytes of input, so the allocation is bounded by what was received. */
    if (remaining(r) < (size_t)count * 20)
        return SLOTPACK_TRUNCATED;
    *contexts = malloc(sizeof(context) * count);
    if (*contexts == NULL)
        return SLOTPACK_NO_MEMORY;
    for (uint32_t i = 0; i < count; i++) {
        context *target = &(*contexts)[i];
        uint32_t key, total = 0;
        target->has_rare = 0;
        if ((code = read_u32(r, &key)) != 0)
            return code;
        if (key >= CONTEXT_KEYS || index_of_key[key] != NO_CONTEXT)
            return SLOTPACK_BAD_CONTEXT;
        index_of_key[key] = (uint16_t)i;
        for (uint32_t nibble = 0; nibble < 16; nibble++) {
            uint32_t freq;
            if ((code = read_varint(r, &freq)) != 0)
                return code;
            if (freq > (1u << NIBBLE_BITS) - total)
                return SLOTPACK_FREQUENCY_SUM;
            target->freq[nibble] = freq;
            target->cum[nibble] = total;
            target->has_rare |= freq > 0 && freq < 16;
            memset(target->nibble + total, (int)nibble, freq);
            total += freq;
        }
        if (total != 1u << NIBBLE_BITS)
            return SLOTPACK_FREQUENCY_SUM;
    }
    return SLOTPACK_OK;
}

/* Pops the slot of state x in context c; the nibble goes to s. The new state is not refilled. */
#define POP_NIBBLE(x, s)                                              \
    do {                                                              \
        const uint32_t slot_ = (x) & ((1u << NIBBLE_BITS) - 1);       \
        s = c->nibble[slot_];                                         \
        x = rans_pop((x), c->freq[s], slot_ - c->cum[s], NIBBLE_BITS); \
    } while (0)

/* Takes one byte into a state that is short of it; a state in [2^15, 2^23) needs exactly one. Whether a state is
 * short is a coin toss that no branch predictor can learn, so there must be no branch. On x86-64 GCC turns every
 * spelling in C back into one (seen with GCC 12), hence the three instructions by hand. */
static inline uint32_t refill_one(uint32_t x, const uint8_t **next)
{
    const uint32_t longer = x << 8 | **next;
#if defined(__x86_64__) && defined(__GNUC__)
    __asm__("cmpl %[low], %[x]\n\tcmovb %[longer], %[x]\n\tadcq $0, %[next]"
            : [x] "+r"(x), [next] "+r"(*next)
            : [longer] "r"(longer), [low] "i"(RANS_LOW)
            : "cc");
    return x;
#else
    const uint32_t is_short = (x - RANS_LOW) >> 31; /* states are below 2^31 */
    *next += is_short;
    return x ^ ((x ^ longer) & (0u - is_short));
#endif
}

/* Decodes one group with no bounds checks: the caller guarantees 2 bytes of input a nibble. */
static inline const uint8_t *decode_rounds(const context *c, uint32_t states[RANS_LANES], const uint8_t *next,
                                           uint8_t *out, size_t out_bytes, const int has_rare)
{
    uint32_t x0 = states[0], x1 = states[1], x2 = states[2], x3 = states[3];
    const uint32_t floor = RANS_LOW >> 8; /* below it a state is short of two bytes: only nibbles with f < 16 */
    for (uint8_t *stop = out + out_bytes; out != stop; out += 2) {
        uint32_t s0, s1, s2, s3;
        POP_NIBBLE(x0, s0);
        POP_NIBBLE(x1, s1);
        POP_NIBBLE(x2, s2);
        POP_NIBBLE(x3, s3);
        if (has_rare && UNLIKELY(((x0 - floor) | (x1 - floor) | (x2 - floor) | (x3 - floor)) >> 31)) {
            while (x0 < RANS_LOW)
                x0 = x0 << 8 | *next++;
            while (x1 < RANS_LOW)
                x1 = x1 << 8 | *next++;
            while (x2 < RANS_LOW)
                x2 = x2 << 8 | *next++;
            while (x3 < RANS_LOW)
                x3 = x3 << 8 | *next++;
        } else {
            x0 = refill_one(x0, &next);
            x1 = refill_one(x1, &next);
            x2 = refill_one(x2, &next);
            x3 = refill_one(x3, &next);
        }
        store_u16(out, s0 | s1 << 4 | s2 << 8 | s3 << 12);
    }
    states[0] = x0;
    states[1] = x1;
    states[2] = x2;
    states[3] = x3;
    return next;
}

static const uint8_t *decode_group(const context *c, uint32_t states[RANS_LANES], const uint8_t *next, uint8_t *out,
                                   size_t out_bytes)
{
    return c->has_rare ? decode_rounds(c, states, next, out, out_bytes, 1)
                       : decode_rounds(c, states, next, out, out_bytes, 0);
}

/* The same group near the end of the stream, where every byte must be asked for. */
static int decode_group_checked(const context *c, uint32_t x[RANS_LANES], rans_source *source, uint8_t *out,
                                size_t out_bytes)
{
    for (size_t i = 0; i < 2 * out_bytes; i++) {
        uint32_t state = x[i & 3], nibble;
        POP_NIBBLE(state, nibble);
        x[i & 3] = rans_refill(source, state);
        if (UNLIKELY(source->starved))
            return SLOTPACK_TRUNCATED;
        if (i & 1)
            out[i / 2] = (uint8_t)(out[i / 2] | nibble << 4);
        else
            out[i / 2] = (uint8_t)nibble;
    }
    return SLOTPACK_OK;
}

static int decode_nibbles(reader *r, const slotpack_header *header, const uint16_t *group_context,
                          const context *contexts, uint8_t *out)
{
    const size_t group_bytes = header->group_size / 2;
    const size_t groups = header->weight_bytes / group_bytes;
    uint32_t x[RANS_LANES];
    rans_source source;
    int code = open_stream(r, &source, x);
    if (code)
        return code;
    for (size_t g = 0; g < groups; g++, out += group_bytes) {
        const context *c = &contexts[group_context[g]];
        /* 2 bytes a nibble, and the 8 bytes that load_be64 looks ahead. */
        if ((size_t)(source.end - source.next) >= 4 * group_bytes + 8)
            source.next = decode_group(c, x, source.next, out, group_bytes);
        else if ((code = decode_group_checked(c, x, &source, out, group_bytes)) != 0)
            return code;
    }
    return close_stream(&source, x);
}

typedef struct {
    slot_entry *slots;       /* 65,536 */
    uint8_t *centers;        /* one a group */
    uint8_t *residuals;      /* one 16-bit word a group; later the context index */
    uint16_t *index_of_key;  /* CONTEXT_KEYS */
    context *contexts;
} quantised_scratch;

static int decode_quantised_with(reader *r, const slotpack_header *header, uint8_t *raw, quantised_scratch *scratch)
{
    const size_t groups = header->weight_bytes / (header->group_size / 2);
    uint8_t *scales = raw + header->weight_bytes;
    uint8_t *biases = scales + 2 * groups;
    uint16_t *group_context = (uint16_t *)(void *)scratch->residuals;
    int code;
    if ((code = decode_section(r, 2, scales, groups, scratch->slots)) != 0)
        return code;
    if ((code = decode_section(r, 1, scratch->centers, groups, scratch->slots)) != 0)
        return code;
    if ((code = decode_section(r, 2, scratch->residuals, groups, scratch->slots)) != 0)
        return code;
    if ((code = read_contexts(r, &scratch->contexts, scratch->index_of_key)) != 0)
        return code;
    for (size_t g = 0; g < groups; g++) {
        const uint32_t scale = load_u16(scales + 2 * g), center = scratch->centers[g];
        const uint32_t residual = unzigzag(load_u16(scratch->residuals + 2 * g));
        store_u16(biases + 2 * g, slotpack_predict_bias(scale, center) + residual);
        group_context[g] = scratch->index_of_key[context_key(scale, center)];
        if (group_context[g] == NO_CONTEXT)
            return SLOTPACK_BAD_CONTEXT;
    }
    return decode_nibbles(r, header, group_context, scratch->contexts, raw);
}

static int decode_quantised(reader *r, const slotpack_header *header, uint8_t *raw)
{
    const size_t groups = header->weight_bytes / (header->group_size / 2);
    quantised_scratch scratch = {
        .slots = malloc(sizeof(slot_entry) << WORD_BITS),
        .centers = malloc(groups),
        .residuals = malloc(2 * groups),
        .index_of_key = malloc(CONTEXT_KEYS * sizeof(uint16_t)),
        .contexts = NULL,
    };
    int code = SLOTPACK_NO_MEMORY;
    if (scratch.slots && scratch.centers && scratch.residuals && scratch.index_of_key) {
        memset(scratch.index_of_key, 0xff, CONTEXT_KEYS * sizeof(uint16_t));
        code = decode_quantised_with(r, header, raw, &scratch);
    }
    free(scratch.slots);
    free(scratch.centers);
    free(scratch.residuals);
    free(scratch.index_of_key);
    free(scratch.contexts);
    return code;
}

static int decode_plain(reader *r, int width, uint8_t *raw, size_t count)
{
    slot_entry *slots = malloc(sizeof(slot_entry) << (width == 2 ? WORD_BITS : BYTE_BITS));
    if (slots == NULL)
        return SLOTPACK_NO_MEMORY;
    const int code = decode_section(r, width, raw, count, slots);
    free(slots);
    return code;
}

static int check_shape(const slotpack_header *header, uint32_t reserved)
{
    const uint32_t gs = header->group_size, weights = header->weight_bytes;
    if (header->raw_bytes == 0 || header->kind > 3 || reserved != 0)
        return SLOTPACK_HEADER_FIELD;
    if (header->kind != 3)
        return weights || gs || (header->kind == 2 && header->raw_bytes % 2) ? SLOTPACK_HEADER_FIELD : SLOTPACK_OK;
    if ((gs != 32 && gs != 64) || weights == 0 || weights > header->raw_bytes || weights % (gs / 2))
        return SLOTPACK_HEADER_FIELD;
    const uint64_t groups = weights / (gs / 2);
    return weights + 4 * groups == header->raw_bytes ? SLOTPACK_OK : SLOTPACK_HEADER_FIELD;
}

int slotpack_read_header(const uint8_t *frame, size_t frame_bytes, slotpack_header *header)
{
    if (frame_bytes > SLOTPACK_MAX_RAW_BYTES + SLOTPACK_HEADER_BYTES)
        return SLOTPACK_OVERSIZE;
    if (memcmp(frame, MAGIC, frame_bytes < 8 ? frame_bytes : 8) != 0)
        return SLOTPACK_BAD_MAGIC;
    if (frame_bytes < SLOTPACK_HEADER_BYTES)
        return SLOTPACK_TRUNCATED;
    header->raw_bytes = load_u32(frame + 8);
    header->kind = load_u32(frame + 12);
    header->weight_bytes = load_u32(frame + 16);
    header->group_size = load_u32(frame + 20);
    if (header->raw_bytes > SLOTPACK_MAX_RAW_BYTES)
        return SLOTPACK_OVERSIZE;
    const int code = check_shape(header, load_u32(frame + 24) | load_u32(frame + 28));
    if (code || header->kind != 0)
        return code;
    const size_t exact = (size_t)header->raw_bytes + SLOTPACK_HEADER_BYTES;
    return frame_bytes < exact ? SLOTPACK_TRUNCATED : frame_bytes > exact ? SLOTPACK_TRAILING : SLOTPACK_OK;
}

int slotpack_decode(const uint8_t *frame, size_t frame_bytes, const slotpack_header *header, uint8_t *raw)
{
    reader r = {frame + SLOTPACK_HEADER_BYTES, frame + frame_bytes};
    int code = SLOTPACK_OK;
    switch (header->kind) {
    case 0:
        memcpy(raw, r.next, header->raw_bytes);
        return SLOTPACK_OK;
    case 1:
        code = decode_plain(&r, 1, raw, header->raw_bytes);
        break;
    case 2:
        code = decode_plain(&r, 2, raw, header->raw_bytes / 2);
        break;
    default:
        code = decode_quantised(&r, header, raw);
    }
    if (code == SLOTPACK_OK && r.next != r.end)
        return SLOTPACK_TRAILING;
    return code;
}
