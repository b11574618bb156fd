/* The C coder's own test, without Python: built by test_native.py with -fsanitize=address,undefined.
 *
 * Every input lives in an allocation of exactly its size, so an over-read or over-write by one byte is caught.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frame.h"

static uint64_t random_state = 0x243f6a8885a308d3u;

static uint32_t random_u32(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32);
}

static void fail(const char *what)
{
    fprintf(stderr, "failed: %s\n", what);
    exit(1);
}

static uint8_t *exact_copy(const uint8_t *bytes, size_t count)
{
    uint8_t *copy = malloc(count ? count : 1);
    if (copy == NULL)
        fail("out of memory");
    memcpy(copy, bytes, count);
    return copy;
}

/* Decodes from an exact allocation into an exact allocation; returns the code, frees everything. */
static int try_decode(const uint8_t *frame, size_t frame_bytes, const uint8_t *expected)
{
    uint8_t *input = exact_copy(frame, frame_bytes);
    slotpack_header header;
    int code = slotpack_read_header(input, frame_bytes, &header);
    if (code == SLOTPACK_OK) {
        uint8_t *raw = malloc(header.raw_bytes);
        code = slotpack_decode(input, frame_bytes, &header, raw);
        if (code == SLOTPACK_OK && expected && memcmp(raw, expected, header.raw_bytes) != 0)
            fail("decoded bytes differ");
        free(raw);
    }
    free(input);
    return code;
}

/* Decodes copies of frames in one batch, the frame at `broken` with one byte changed: each must do as it does alone. */
static void check_batch(uint8_t *const *frames, const size_t *frame_bytes, uint8_t *const *raws, size_t count,
                        size_t broken)
{
    slotpack_job jobs[8];
    int codes[8];
    for (size_t i = 0; i < count; i++) {
        uint8_t *input = exact_copy(frames[i], frame_bytes[i]);
        if (i == broken)
            input[SLOTPACK_HEADER_BYTES + random_u32() % (frame_bytes[i] - SLOTPACK_HEADER_BYTES)] = (uint8_t)random_u32();
        codes[i] = try_decode(input, frame_bytes[i], NULL);
        jobs[i] = (slotpack_job){.frame = input, .frame_bytes = frame_bytes[i]};
        if (slotpack_read_header(input, frame_bytes[i], &jobs[i].header) != SLOTPACK_OK)
            fail("header in a batch");
        jobs[i].raw = malloc(jobs[i].header.raw_bytes);
    }
    slotpack_decode_many(jobs, count, 1);
    for (size_t i = 0; i < count; i++) {
        if (jobs[i].code != codes[i])
            fail("another code in a batch");
        if (i != broken && (codes[i] || memcmp(jobs[i].raw, raws[i], jobs[i].header.raw_bytes)))
            fail("bytes differ in a batch");
        free((void *)jobs[i].frame);
        free(jobs[i].raw);
    }
}

static void fill(uint8_t *raw, const slotpack_header *header, int flavour)
{
    for (uint32_t i = 0; i < header->raw_bytes; i++)
        raw[i] = flavour == 0 ? 7 : flavour == 1 ? (uint8_t)(random_u32() & random_u32() & 63) : (uint8_t)random_u32();
    if (header->kind == 3 && flavour < 2)
        for (uint32_t i = header->weight_bytes; i + 1 < header->raw_bytes; i += 2) {
            const int is_bias = i >= header->weight_bytes + 2 * (2 * header->weight_bytes / header->group_size);
            const uint32_t bits = (is_bias ? 0xbda0u : 0x3c20u) + (flavour ? random_u32() % 24 : 0);
            raw[i] = (uint8_t)bits;
            raw[i + 1] = (uint8_t)(bits >> 8);
        }
}

static void round_trip_and_mutate(slotpack_header header, int flavour)
{
    uint8_t *raw = malloc(header.raw_bytes);
    const size_t capacity = 4 * (size_t)header.raw_bytes + 2048 * 40 + 65536 * 8;
    uint8_t *frame = malloc(SLOTPACK_HEADER_BYTES + capacity);
    size_t payload_bytes = 0;
    fill(raw, &header, flavour);
    slotpack_write_header(frame, &header);
    if (slotpack_encode_payload(raw, &header, frame + SLOTPACK_HEADER_BYTES, capacity, &payload_bytes) != SLOTPACK_OK)
        fail("encode");
    const size_t frame_bytes = SLOTPACK_HEADER_BYTES + payload_bytes;
    if (try_decode(frame, frame_bytes, raw) != SLOTPACK_OK)
        fail("decode");
    /* A capacity that is too small is reported, and nothing is written beyond it. */
    for (size_t room = 0; room < payload_bytes; room += 1 + payload_bytes / 5) {
        uint8_t *tight = malloc(room ? room : 1);
        size_t ignored;
        if (slotpack_encode_payload(raw, &header, tight, room, &ignored) != SLOTPACK_NOT_SMALLER)
            fail("a full buffer was not reported");
        free(tight);
    }
    for (int round = 0; round < 40; round++) {
        const size_t where = random_u32() % frame_bytes;
        const uint8_t before = frame[where];
        frame[where] = (uint8_t)random_u32();
        try_decode(frame, round & 1 ? frame_bytes : where, NULL);
        frame[where] = before;
    }
    free(raw);
    free(frame);
}

static void check_batches(void)
{
    uint8_t *frames[8], *raws[8];
    size_t frame_bytes[8];
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t groups = 30 + 150 * i % 400, group_bytes = i == 5 ? 16 : 32;
        const slotpack_header header = {(group_bytes + 4) * groups, 3, group_bytes * groups, 2 * group_bytes};
        const size_t capacity = 4 * (size_t)header.raw_bytes + 2048 * 40 + 65536 * 8;
        raws[i] = malloc(header.raw_bytes);
        frames[i] = malloc(SLOTPACK_HEADER_BYTES + capacity);
        fill(raws[i], &header, 1);
        for (uint32_t at = 0; at < header.weight_bytes; at++) /* rare nibbles, and some that never occur */
            raws[i][at] = (uint8_t)(random_u32() % 997 ? 0x77 + (random_u32() & 0x21) : 0x0e + i);
        slotpack_write_header(frames[i], &header);
        if (slotpack_encode_payload(raws[i], &header, frames[i] + SLOTPACK_HEADER_BYTES, capacity, &frame_bytes[i]))
            fail("encode for a batch");
        frame_bytes[i] += SLOTPACK_HEADER_BYTES;
    }
    for (size_t count = 1; count <= 8; count++)
        for (int round = 0; round < 12; round++)
            check_batch(frames, frame_bytes, raws, count, round ? random_u32() % count : count);
    for (int i = 0; i < 8; i++) {
        free(frames[i]);
        free(raws[i]);
    }
}

static void check_bf16_bounds(void)
{
    for (uint32_t scale = 0; scale < 65536; scale++)
        for (uint32_t center = 0; center < 256; center += 51)
            if (slotpack_predict_bias(scale, center) > 0xffff)
                fail("a prediction above 16 bits");
    for (int i = 0; i < 200000; i++)
        if (slotpack_find_center(random_u32() & 0xffff, random_u32() & 0xffff) > 255)
            fail("a center above 255");
}

int main(void)
{
    check_bf16_bounds();
    for (int flavour = 0; flavour < 3; flavour++) {
        for (uint32_t size = 1; size < 5000; size += size / 2 + 1) {
            round_trip_and_mutate((slotpack_header){size, 1, 0, 0}, flavour);
            round_trip_and_mutate((slotpack_header){2 * size, 2, 0, 0}, flavour);
        }
        for (uint32_t groups = 1; groups < 400; groups = groups * 3 + 1) {
            round_trip_and_mutate((slotpack_header){20 * groups, 3, 16 * groups, 32}, flavour);
            round_trip_and_mutate((slotpack_header){36 * groups, 3, 32 * groups, 64}, flavour);
        }
    }
    check_batches();
    puts("coder_test: ok");
    return 0;
}
