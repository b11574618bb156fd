/* Fuzz target of the decoder: an input alone, and, if it is of kind 3, twice in a batch with a sound frame between. The
 * batch must give the same code and bytes, and decode its sound frame whatever the input does.
 *
 *   clang -g -O1 -fsanitize=fuzzer,address,undefined -Ipackages/slotpack/csrc \
 *     tests/slotpack/native/fuzz_decode.c packages/slotpack/csrc/{frame,batch,encode}.c -o fuzz_decode
 *   ./fuzz_decode -max_len=65536 tests/slotpack/golden
 *
 * With -DREPLAY (any compiler) it becomes a program that runs the files named on its command line instead.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define SOUND_GROUPS 40u
#define SOUND_CAPACITY 200000u

static const slotpack_header SOUND[2] = {{20 * SOUND_GROUPS, 3, 16 * SOUND_GROUPS, 32},
                                         {36 * SOUND_GROUPS, 3, 32 * SOUND_GROUPS, 64}};

/* A frame of made-up weights; returns its length and leaves the bytes that it holds in `raw`. */
static size_t make_sound(const slotpack_header *header, uint8_t *raw, uint8_t *frame)
{
    size_t payload_bytes = 0;
    for (uint32_t i = 0; i < header->raw_bytes; i++)
        raw[i] = (uint8_t)(i < header->weight_bytes ? 0x88 + (i * i >> 3) % 5 * 17 : i & 1 ? 0x3c : 0x20);
    slotpack_write_header(frame, header);
    if (slotpack_encode_payload(raw, header, frame + SLOTPACK_HEADER_BYTES, SOUND_CAPACITY - SLOTPACK_HEADER_BYTES,
                                &payload_bytes))
        abort();
    return SLOTPACK_HEADER_BYTES + payload_bytes;
}

static void check_batch(const uint8_t *data, size_t size, const slotpack_header *header, const uint8_t *raw, int code)
{
    static uint8_t sound_raw[2][36 * SOUND_GROUPS], sound_frame[2][SOUND_CAPACITY];
    static size_t sound_bytes[2];
    slotpack_job jobs[3];
    const int which = header->group_size == 64;
    if (sound_bytes[which] == 0)
        sound_bytes[which] = make_sound(&SOUND[which], sound_raw[which], sound_frame[which]);
    for (int i = 0; i < 3; i++) {
        jobs[i] = i == 1 ? (slotpack_job){sound_frame[which], sound_bytes[which], SOUND[which], NULL, 0}
                         : (slotpack_job){data, size, *header, NULL, 0};
        jobs[i].raw = malloc(jobs[i].header.raw_bytes);
        if (jobs[i].raw == NULL)
            abort();
    }
    slotpack_decode_many(jobs, 3, 1);
    for (int i = 0; i < 3; i++) {
        if (jobs[i].code != (i == 1 ? SLOTPACK_OK : code))
            abort();
        if (jobs[i].code == SLOTPACK_OK && memcmp(jobs[i].raw, i == 1 ? sound_raw[which] : raw, jobs[i].header.raw_bytes))
            abort();
        free(jobs[i].raw);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    slotpack_header header;
    if (slotpack_read_header(data, size, &header) != SLOTPACK_OK || header.raw_bytes > 1u << 20)
        return 0;
    uint8_t *raw = malloc(header.raw_bytes);
    if (raw != NULL) {
        const int code = slotpack_decode(data, size, &header, raw);
        if (header.kind == 3)
            check_batch(data, size, &header, raw, code);
    }
    free(raw);
    return 0;
}

#ifdef REPLAY
int main(int count, char **paths)
{
    for (int i = 1; i < count; i++) {
        FILE *file = fopen(paths[i], "rb");
        if (file == NULL)
            return 1;
        fseek(file, 0, SEEK_END);
        const size_t size = (size_t)ftell(file);
        rewind(file);
        uint8_t *data = malloc(size ? size : 1);
        if (data == NULL || fread(data, 1, size, file) != size)
            return 1;
        fclose(file);
        LLVMFuzzerTestOneInput(data, size);
        free(data);
    }
    printf("replayed %d files\n", count - 1);
    return 0;
}
#endif
