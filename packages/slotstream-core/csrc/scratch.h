/* Memory of one call of the steps, cut into arrays. */
#ifndef SLOTSTREAM_SCRATCH_H
#define SLOTSTREAM_SCRATCH_H

#include <stdlib.h>

#include "slotstream_native.h"

typedef struct {
    float *memory, *next;
} scratch;

static inline int32_t reserve(scratch *s, int64_t floats) {
    s->memory = s->next = malloc((size_t)(floats ? floats : 1) * sizeof(float));
    return s->memory ? SS_OK : SS_NO_MEMORY;
}

static inline float *cut(scratch *s, int64_t floats) {
    float *part = s->next;
    s->next += floats;
    return part;
}

#endif
