#include "frame.h"

#include <stdlib.h>

#include "nibbles.h"
#include "quantised.h"
#include "rans.h"

#define MAX_CONTEXTS 2048u
#define CONTEXT_KEYS 262144u
#define BYTE_BITS 12
#define WORD_BITS 16
#define NO_CONTEXT 0xffffu

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

static int top_bit(uint32_t value)
{
#if defined(__GNUC__)
    return 31 - __builtin_clz(value);
#else
    int bit = 0;
    while (value >>= 1)
        bit++;
    return bit;
#endif
}

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
    const int shift = top_bit(product) - 7; /* relative to the hidden bit */
    const int result_exponent = (int)exponent + shift;
    if (result_exponent < 1) /* subnormal: a whole number of smallest steps, nothing to round */
        return sign | product << (exponent - 1);
    /* Eight bits more below, so that there is always a shift to the right: whether it rounds up is not predictable. */
    const uint32_t wide = product << 8, drop = (uint32_t)(shift + 8);
    const uint32_t rounded = (wide + (1u << (drop - 1)) - 1 + (wide >> drop & 1)) >> drop;
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

/* A section's table: slots name entries, entries name symbols. Most tables have a few hundred entries, so the second
 * step costs less than slots wide enough to hold everything. */
typedef struct {
    uint32_t freq;
    uint32_t cum;
    uint32_t symbol;
} table_entry;

typedef struct {
    table_entry entries[1 << WORD_BITS];
    uint16_t slots[1 << WORD_BITS];
} section_table;

static int read_table(reader *r, uint32_t symbol_limit, int bits, section_table *table)
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
        table->entries[i] = (table_entry){freq, total, (uint32_t)symbol};
        for (uint32_t slot = total; slot < total + freq; slot++)
            table->slots[slot] = (uint16_t)i;
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

/* Pops one symbol into `out`; the new state is not refilled. */
static inline void pop_symbol(const section_table *table, uint32_t *x, int width, uint8_t *out)
{
    const int bits = width == 2 ? WORD_BITS : BYTE_BITS;
    const uint32_t slot = *x & (((uint32_t)1 << bits) - 1);
    const table_entry *entry = &table->entries[table->slots[slot]];
    if (width == 2)
        store_u16(out, entry->symbol);
    else
        *out = (uint8_t)entry->symbol;
    *x = rans_pop(*x, entry->freq, slot - entry->cum, bits);
}

/* The symbols of a section, `width` (1 or 2, known when compiled) bytes each. Returns 0 where the stream ends early. */
static inline int decode_symbols(const section_table *table, int width, uint32_t states[RANS_LANES],
                                 rans_source *source, uint8_t *out, size_t count)
{
    size_t i = 0;
    uint32_t x[RANS_LANES] = {states[0], states[1], states[2], states[3]};
    for (; i + RANS_LANES <= count && source->end - source->next >= 2 * RANS_LANES; i += RANS_LANES)
        for (int lane = 0; lane < RANS_LANES; lane++) {
            pop_symbol(table, &x[lane], width, out + (i + (size_t)lane) * (size_t)width);
            source->next = rans_refill_two(&x[lane], source->next);
        }
    for (; i < count; i++) {
        pop_symbol(table, &x[i & 3], width, out + i * (size_t)width);
        x[i & 3] = rans_refill(source, x[i & 3]);
        if (UNLIKELY(source->starved))
            return 0;
    }
    memcpy(states, x, sizeof x);
    return 1;
}

/* One section of `count` symbols into `out`, `width` (1 or 2) bytes each. */
static int decode_section(reader *r, int width, uint8_t *out, size_t count, section_table *table)
{
    uint32_t x[RANS_LANES];
    rans_source source;
    int code = read_table(r, width == 2 ? 65536 : 256, width == 2 ? WORD_BITS : BYTE_BITS, table);
    if (code)
        return code;
    if ((code = open_stream(r, &source, x)) != 0)
        return code;
    const int whole = width == 2 ? decode_symbols(table, 2, x, &source, out, count)
                                 : decode_symbols(table, 1, x, &source, out, count);
    return whole ? close_stream(&source, x) : SLOTPACK_TRUNCATED;
}

static int read_contexts(reader *r, quantised_frame *opened, uint16_t *index_of_key)
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
    opened->contexts = malloc(sizeof(context) * count);
    if (opened->contexts == NULL)
        return SLOTPACK_NO_MEMORY;
    opened->context_count = count;
    for (uint32_t i = 0; i < count; i++) {
        context *target = &opened->contexts[i];
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

/* What is needed only until the frame is open. */
typedef struct {
    section_table *table;
    uint8_t *centers;       /* one a group */
    uint16_t *index_of_key; /* CONTEXT_KEYS */
} quantised_scratch;

static int open_quantised_with(reader *r, quantised_frame *opened, const quantised_scratch *scratch)
{
    const size_t groups = opened->groups;
    uint8_t *scales = opened->weights + groups * opened->group_bytes;
    uint8_t *biases = scales + 2 * groups;
    uint16_t *group_context = opened->group_context;
    uint8_t *residuals = (uint8_t *)group_context; /* each word makes way for its group's context */
    int code;
    if ((code = decode_section(r, 2, scales, groups, scratch->table)) != 0)
        return code;
    if ((code = decode_section(r, 1, scratch->centers, groups, scratch->table)) != 0)
        return code;
    if ((code = decode_section(r, 2, residuals, groups, scratch->table)) != 0)
        return code;
    if ((code = read_contexts(r, opened, scratch->index_of_key)) != 0)
        return code;
    for (size_t g = 0; g < groups; g++) {
        const uint32_t scale = load_u16(scales + 2 * g), center = scratch->centers[g];
        const uint32_t residual = unzigzag(load_u16(residuals + 2 * g));
        store_u16(biases + 2 * g, slotpack_predict_bias(scale, center) + residual);
        group_context[g] = scratch->index_of_key[context_key(scale, center)];
        if (group_context[g] == NO_CONTEXT)
            return SLOTPACK_BAD_CONTEXT;
    }
    if ((code = open_stream(r, &opened->source, opened->states)) != 0)
        return code;
    opened->after = r->next;
    opened->end = r->end;
    return SLOTPACK_OK;
}

static void free_quantised(quantised_frame *opened)
{
    free(opened->group_context);
    free(opened->contexts);
    opened->group_context = NULL;
    opened->contexts = NULL;
}

int slotpack_open_quantised(const uint8_t *frame, size_t frame_bytes, const slotpack_header *header, uint8_t *raw,
                            quantised_frame *opened)
{
    const size_t group_bytes = header->group_size / 2, groups = header->weight_bytes / group_bytes;
    reader r = {frame + SLOTPACK_HEADER_BYTES, frame + frame_bytes};
    quantised_scratch scratch = {
        .table = malloc(sizeof(section_table)),
        .centers = malloc(groups),
        .index_of_key = malloc(CONTEXT_KEYS * sizeof(uint16_t)),
    };
    *opened = (quantised_frame){
        .group_context = malloc(groups * sizeof(uint16_t)),
        .groups = groups,
        .group_bytes = group_bytes,
        .weights = raw,
    };
    int code = SLOTPACK_NO_MEMORY;
    if (scratch.table && scratch.centers && scratch.index_of_key && opened->group_context) {
        memset(scratch.index_of_key, 0xff, CONTEXT_KEYS * sizeof(uint16_t));
        code = open_quantised_with(&r, opened, &scratch);
    }
    free(scratch.table);
    free(scratch.centers);
    free(scratch.index_of_key);
    if (code)
        free_quantised(opened);
    return code;
}

static int decode_nibbles(quantised_frame *opened)
{
    const size_t group_bytes = opened->group_bytes, first = opened->decoded;
    uint8_t *out = opened->weights + first * group_bytes;
    const size_t fast = decode_groups(opened->contexts, opened->group_context + first, opened->groups - first,
                                      group_bytes, opened->states, &opened->source, out);
    out += fast * group_bytes;
    for (size_t g = first + fast; g < opened->groups; g++, out += group_bytes)
        if (!decode_group_checked(&opened->contexts[opened->group_context[g]], opened->states, &opened->source, out,
                                  group_bytes))
            return SLOTPACK_TRUNCATED;
    return close_stream(&opened->source, opened->states);
}

int slotpack_finish_quantised(quantised_frame *opened)
{
    const int code = decode_nibbles(opened);
    free_quantised(opened);
    return code == SLOTPACK_OK && opened->after != opened->end ? SLOTPACK_TRAILING : code;
}

static int decode_plain(reader *r, int width, uint8_t *raw, size_t count)
{
    section_table *table = malloc(sizeof(section_table));
    if (table == NULL)
        return SLOTPACK_NO_MEMORY;
    const int code = decode_section(r, width, raw, count, table);
    free(table);
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
    quantised_frame opened;
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
        code = slotpack_open_quantised(frame, frame_bytes, header, raw, &opened);
        return code ? code : slotpack_finish_quantised(&opened);
    }
    if (code == SLOTPACK_OK && r.next != r.end)
        return SLOTPACK_TRAILING;
    return code;
}
