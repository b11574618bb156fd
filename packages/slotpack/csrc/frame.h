/* Slotpack v1 frames over rans.h: header, tables, the three coded kinds. No Python.h here.
 *
 * Every function returns SLOTPACK_OK or one of the codes below; slotpack/errors.py maps each code to its
 * exception. The order of the checks is part of the contract: the Python reference follows it, and tests
 * require both to refuse a broken frame with the same error.
 */
#ifndef SLOTPACK_FRAME_H
#define SLOTPACK_FRAME_H

#include <stddef.h>
#include <stdint.h>

#define SLOTPACK_HEADER_BYTES 32u
#define SLOTPACK_MAX_RAW_BYTES 41943040u

enum slotpack_code {
    SLOTPACK_OK = 0,
    SLOTPACK_BAD_MAGIC = 1,
    SLOTPACK_TRUNCATED = 2,
    SLOTPACK_TRAILING = 3,
    SLOTPACK_OVERSIZE = 4,
    SLOTPACK_HEADER_FIELD = 5,
    SLOTPACK_BAD_VARINT = 6,
    SLOTPACK_BAD_TABLE = 7,
    SLOTPACK_FREQUENCY_SUM = 8,
    SLOTPACK_STREAM_STATE = 9,
    SLOTPACK_BAD_CONTEXT = 10,
    SLOTPACK_NO_MEMORY = 11,
    SLOTPACK_NOT_SMALLER = 12,   /* encoder only: the coded payload does not fit the given capacity */
    SLOTPACK_TOO_MANY_CONTEXTS = 13 /* encoder only */
};

typedef struct {
    uint32_t raw_bytes;
    uint32_t kind;
    uint32_t weight_bytes;
    uint32_t group_size;
} slotpack_header;

/* Validates the header and its agreement with the frame's length. */
int slotpack_read_header(const uint8_t *frame, size_t frame_bytes, slotpack_header *header);

/* Decodes a whole frame whose header was read by slotpack_read_header into header->raw_bytes bytes. */
int slotpack_decode(const uint8_t *frame, size_t frame_bytes, const slotpack_header *header, uint8_t *raw);

/* One frame of a batch. */
typedef struct {
    const uint8_t *frame;
    size_t frame_bytes;
    slotpack_header header; /* read by slotpack_read_header */
    uint8_t *raw;           /* header.raw_bytes */
    int code;               /* set by slotpack_decode_many; a job that has one already is left alone */
} slotpack_job;

/* Decodes each job as slotpack_decode would, with the same result; a broken frame does not touch the others. With
 * `wide` frames of kind 3 share the vector registers of a processor that has them, up to slotpack_wide_frames() at a
 * time; more jobs than that are taken in turn. */
void slotpack_decode_many(slotpack_job *jobs, size_t count, int wide);

/* How many frames slotpack_decode_many decodes at once on this processor: 1 where it has no wide decoder. */
size_t slotpack_wide_frames(void);

/* Encodes kinds 1 to 3. The caller has checked the sizes. The payload (without the 32-byte header) goes to
 * `payload`, at most `capacity` bytes, and its length to `payload_bytes`. */
int slotpack_encode_payload(const uint8_t *raw, const slotpack_header *header, uint8_t *payload, size_t capacity,
                            size_t *payload_bytes);

void slotpack_write_header(uint8_t *frame, const slotpack_header *header);

/* BF16 helpers of kind 3, exposed to the native test. */
uint32_t slotpack_predict_bias(uint32_t scale, uint32_t center);
uint32_t slotpack_find_center(uint32_t scale, uint32_t bias);

#endif
