/* The encoder half of frame.h. */
#include "frame.h"

#include <stdlib.h>

#include "rans.h"

#define MAX_CONTEXTS 2048u
#define CONTEXT_KEYS 262144u

typedef struct {
    uint8_t *next;
    uint8_t *end;
    int full;
} writer;

static void put_bytes(writer *w, const uint8_t *bytes, size_t count)
{
    if ((size_t)(w->end - w->next) < count) {
        w->full = 1;
        return;
    }
    memcpy(w->next, bytes, count);
    w->next += count;
}

static void put_u32(writer *w, uint32_t value)
{
    uint8_t bytes[4];
    store_u32(bytes, value);
    put_bytes(w, bytes, 4);
}

static void put_varint(writer *w, uint32_t value)
{
    uint8_t bytes[5];
    size_t count = 0;
    for (; value > 127; value >>= 7)
        bytes[count++] = (uint8_t)(value | 128);
    bytes[count++] = (uint8_t)value;
    put_bytes(w, bytes, count);
}

typedef struct {
    uint32_t freq;
    uint32_t cum;
} symbol_share;

/* Scales counts to frequencies that sum to 2^bits exactly; every used symbol keeps at least one. With n used
 * symbols, avail = 2^bits - n and prefix counts P: f_i = 1 + floor(P_i avail / total) - floor(P_(i-1) avail / total). */
static uint32_t normalise(const uint32_t *counts, uint32_t symbols, int bits, symbol_share *shares)
{
    uint64_t total = 0, prefix = 0, before = 0;
    uint32_t used = 0, cum = 0;
    for (uint32_t s = 0; s < symbols; s++) {
        total += counts[s];
        used += counts[s] != 0;
    }
    const uint64_t available = ((uint64_t)1 << bits) - used;
    for (uint32_t s = 0; s < symbols; s++) {
        shares[s].freq = 0;
        shares[s].cum = cum;
        if (counts[s] == 0)
            continue;
        prefix += counts[s];
        const uint64_t after = total ? prefix * available / total : 0;
        shares[s].freq = (uint32_t)(1 + after - before);
        before = after;
        cum += shares[s].freq;
    }
    return used;
}

static void put_table(writer *w, const symbol_share *shares, uint32_t symbols, uint32_t used)
{
    uint32_t expected = 0;
    put_u32(w, used);
    for (uint32_t s = 0; s < symbols; s++) {
        if (shares[s].freq == 0)
            continue;
        put_varint(w, s - expected);
        put_varint(w, shares[s].freq);
        expected = s + 1;
    }
}

/* Length, states and bytes of a finished stream. The bytes were written backwards into the free tail of w. */
static int put_stream(writer *w, const rans_sink *sink, const uint32_t states[RANS_LANES])
{
    const size_t coded = (size_t)(w->end - sink->next);
    const size_t head = 4 + 4 * RANS_LANES;
    if (w->full || sink->full || (size_t)(sink->next - w->next) < head)
        return SLOTPACK_NOT_SMALLER;
    put_u32(w, (uint32_t)(4 * RANS_LANES + coded));
    for (int lane = 0; lane < RANS_LANES; lane++)
        put_u32(w, states[lane]);
    memmove(w->next, sink->next, coded);
    w->next += coded;
    return SLOTPACK_OK;
}

static int encode_section(writer *w, int width, const uint8_t *values, size_t count)
{
    const int bits = width == 2 ? 16 : 12;
    const uint32_t symbols = width == 2 ? 65536 : 256;
    uint32_t *counts = calloc(symbols, sizeof(uint32_t));
    symbol_share *shares = malloc(symbols * sizeof(symbol_share));
    int code = SLOTPACK_NO_MEMORY;
    if (counts && shares) {
        for (size_t i = 0; i < count; i++)
            counts[width == 2 ? load_u16(values + 2 * i) : values[i]]++;
        put_table(w, shares, symbols, normalise(counts, symbols, bits, shares));
        rans_sink sink = {w->next, w->end, w->full};
        uint32_t x[RANS_LANES] = {RANS_LOW, RANS_LOW, RANS_LOW, RANS_LOW};
        for (size_t i = count; i-- > 0 && !sink.full;) {
            const symbol_share share = shares[width == 2 ? load_u16(values + 2 * i) : values[i]];
            x[i & 3] = rans_push(&sink, x[i & 3], share.freq, share.cum, bits);
        }
        code = put_stream(w, &sink, x);
    }
    free(counts);
    free(shares);
    return code;
}

typedef struct {
    uint32_t counts[16];
    symbol_share shares[16];
} nibble_model;

typedef struct {
    uint8_t *centers;
    uint8_t *residuals;
    uint16_t *group_model;
    uint16_t *model_of_key; /* CONTEXT_KEYS; 0xffff where a key is unused */
    nibble_model *models;   /* MAX_CONTEXTS */
} quantised_scratch;

static int split_groups(const uint8_t *raw, const slotpack_header *header, quantised_scratch *scratch, uint32_t *used)
{
    const size_t group_bytes = header->group_size / 2, groups = header->weight_bytes / group_bytes;
    const uint8_t *scales = raw + header->weight_bytes, *biases = scales + 2 * groups;
    for (size_t g = 0; g < groups; g++) {
        const uint32_t scale = load_u16(scales + 2 * g), bias = load_u16(biases + 2 * g);
        const uint32_t center = slotpack_find_center(scale, bias);
        const uint32_t difference = (bias - slotpack_predict_bias(scale, center)) & 0xffff;
        const uint32_t key = center * 1024 + ((scale & 0x7fff) >> 5);
        scratch->centers[g] = (uint8_t)center;
        store_u16(scratch->residuals + 2 * g, difference & 0x8000 ? ~(difference << 1) : difference << 1);
        if (scratch->model_of_key[key] == 0xffff) {
            if (*used == MAX_CONTEXTS)
                return SLOTPACK_TOO_MANY_CONTEXTS;
            scratch->model_of_key[key] = (uint16_t)(*used)++;
        }
        scratch->group_model[g] = scratch->model_of_key[key];
        nibble_model *model = &scratch->models[scratch->group_model[g]];
        for (size_t i = 0; i < group_bytes; i++) {
            model->counts[raw[g * group_bytes + i] & 15]++;
            model->counts[raw[g * group_bytes + i] >> 4]++;
        }
    }
    return SLOTPACK_OK;
}

/* Contexts go out in ascending key order, which makes the bytes independent of the order of the groups. */
static void put_contexts(writer *w, const quantised_scratch *scratch, uint32_t used)
{
    put_u32(w, used);
    for (uint32_t key = 0; key < CONTEXT_KEYS; key++) {
        if (scratch->model_of_key[key] == 0xffff)
            continue;
        nibble_model *model = &scratch->models[scratch->model_of_key[key]];
        normalise(model->counts, 16, 12, model->shares);
        put_u32(w, key);
        for (int nibble = 0; nibble < 16; nibble++)
            put_varint(w, model->shares[nibble].freq);
    }
}

static int put_nibbles(writer *w, const uint8_t *raw, const slotpack_header *header, const quantised_scratch *scratch)
{
    const size_t group_bytes = header->group_size / 2, groups = header->weight_bytes / group_bytes;
    rans_sink sink = {w->next, w->end, w->full};
    uint32_t x[RANS_LANES] = {RANS_LOW, RANS_LOW, RANS_LOW, RANS_LOW};
    for (size_t g = groups; g-- > 0 && !sink.full;) {
        const symbol_share *shares = scratch->models[scratch->group_model[g]].shares;
        /* group_bytes is even, so a nibble's lane is its place within the group. */
        for (size_t i = group_bytes; i-- > 0;) {
            const uint8_t byte = raw[g * group_bytes + i];
            const size_t low_lane = 2 * i & 3, high_lane = low_lane + 1;
            x[high_lane] = rans_push(&sink, x[high_lane], shares[byte >> 4].freq, shares[byte >> 4].cum, 12);
            x[low_lane] = rans_push(&sink, x[low_lane], shares[byte & 15].freq, shares[byte & 15].cum, 12);
        }
    }
    return put_stream(w, &sink, x);
}

static int encode_quantised_with(writer *w, const uint8_t *raw, const slotpack_header *header,
                                 quantised_scratch *scratch)
{
    const size_t groups = header->weight_bytes / (header->group_size / 2);
    uint32_t used = 0;
    int code = split_groups(raw, header, scratch, &used);
    if (code)
        return code;
    if ((code = encode_section(w, 2, raw + header->weight_bytes, groups)) != 0)
        return code;
    if ((code = encode_section(w, 1, scratch->centers, groups)) != 0)
        return code;
    if ((code = encode_section(w, 2, scratch->residuals, groups)) != 0)
        return code;
    put_contexts(w, scratch, used);
    return put_nibbles(w, raw, header, scratch);
}

static int encode_quantised(writer *w, const uint8_t *raw, const slotpack_header *header)
{
    const size_t groups = header->weight_bytes / (header->group_size / 2);
    quantised_scratch scratch = {
        .centers = malloc(groups),
        .residuals = malloc(2 * groups),
        .group_model = malloc(groups * sizeof(uint16_t)),
        .model_of_key = malloc(CONTEXT_KEYS * sizeof(uint16_t)),
        .models = calloc(MAX_CONTEXTS, sizeof(nibble_model)),
    };
    int code = SLOTPACK_NO_MEMORY;
    if (scratch.centers && scratch.residuals && scratch.group_model && scratch.model_of_key && scratch.models) {
        memset(scratch.model_of_key, 0xff, CONTEXT_KEYS * sizeof(uint16_t));
        code = encode_quantised_with(w, raw, header, &scratch);
    }
    free(scratch.centers);
    free(scratch.residuals);
    free(scratch.group_model);
    free(scratch.model_of_key);
    free(scratch.models);
    return code;
}

int slotpack_encode_payload(const uint8_t *raw, const slotpack_header *header, uint8_t *payload, size_t capacity,
                            size_t *payload_bytes)
{
    writer w = {payload, payload + capacity, 0};
    int code;
    if (header->kind == 1)
        code = encode_section(&w, 1, raw, header->raw_bytes);
    else if (header->kind == 2)
        code = encode_section(&w, 2, raw, header->raw_bytes / 2);
    else
        code = encode_quantised(&w, raw, header);
    *payload_bytes = (size_t)(w.next - payload);
    return code;
}

void slotpack_write_header(uint8_t *frame, const slotpack_header *header)
{
    memcpy(frame, "SLTPK001", 8);
    store_u32(frame + 8, header->raw_bytes);
    store_u32(frame + 12, header->kind);
    store_u32(frame + 16, header->weight_bytes);
    store_u32(frame + 20, header->group_size);
    store_u32(frame + 24, 0);
    store_u32(frame + 28, 0);
}
