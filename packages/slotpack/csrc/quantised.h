/* A frame of kind 3 whose sections and contexts are decoded and whose nibbles are not, or not all: frame.c opens and
 * finishes it, and batch.c decodes the nibbles of several at once in between. No Python.h here.
 */
#ifndef SLOTPACK_QUANTISED_H
#define SLOTPACK_QUANTISED_H

#include "frame.h"
#include "nibbles.h"

typedef struct {
    context *contexts;        /* owned */
    uint32_t context_count;
    uint16_t *group_context;  /* owned; which context each group uses */
    size_t groups, group_bytes;
    size_t decoded;           /* groups whose nibbles are in `weights`; states and source stand behind them */
    uint32_t states[RANS_LANES];
    rans_source source;
    const uint8_t *after, *end; /* the byte after the stream, and after the frame */
    uint8_t *weights;
} quantised_frame;

/* Decodes scales and biases to their places in `raw`, reads the contexts and opens the nibble stream. The frame and
 * `raw` must outlive the result. After a refusal there is nothing to finish. */
int slotpack_open_quantised(const uint8_t *frame, size_t frame_bytes, const slotpack_header *header, uint8_t *raw,
                            quantised_frame *opened);

/* Decodes the groups that are left, checks how the stream and the frame end, and frees what the frame owns. */
int slotpack_finish_quantised(quantised_frame *opened);

#endif
