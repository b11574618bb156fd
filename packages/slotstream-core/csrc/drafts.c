/* What a draft head does before and after its layer. */
#include "scratch.h"
#include "steps.h"

#define pieces ss_chosen_pieces

int32_t ss_join_inputs(const ss_draft_inputs *in, ss_pool *pool, const float *streams, const int64_t *after,
                       int64_t rows, float *out) {
    int64_t width = in->count * in->hidden;
    scratch s;
    int32_t code = reserve(&s, rows * (width + 2 * in->hidden));
    if (code != SS_OK) return code;
    float *normed = cut(&s, rows * width), *embedded = cut(&s, rows * in->hidden), *mapped = cut(&s, rows * in->hidden);
    code = ss_unpack_rows(pool, in->embedding, 0, after, rows, embedded);
    if (code == SS_OK) {
        pieces->rms_norm(embedded, in->hidden, in->embedding_weight, rows, 1, 1, in->hidden, in->eps, embedded,
                         in->hidden);
        code = ss_apply(pool, in->from_embedding, embedded, rows, mapped);
    }
    if (code == SS_OK) {
        pieces->rms_norm(streams, width, in->streams_weight, rows, 1, 1, width, in->eps, normed, width);
        code = ss_apply(pool, in->from_streams, normed, rows * in->count, out);
    }
    for (int64_t t = 0; code == SS_OK && t < rows; t++)
        for (int64_t c = 0; c < in->count; c++)
            for (int64_t i = 0; i < in->hidden; i++) out[t * width + c * in->hidden + i] += mapped[t * in->hidden + i];
    free(s.memory);
    return code;
}

int32_t ss_guess(const ss_reader *reader, const ss_matrix *vocabulary, ss_pool *pool, const float *streams,
                 int64_t *token, float *confidence) {
    int64_t width = reader->count * reader->hidden;
    scratch s;
    int32_t code = reserve(&s, ss_reading_floats(reader) + reader->hidden + vocabulary->rows);
    if (code != SS_OK) return code;
    float *normed = cut(&s, width), *gate = cut(&s, width), *low = cut(&s, reader->down->rows);
    float *mixed = cut(&s, reader->hidden), *logits = cut(&s, vocabulary->rows);
    code = ss_read_streams(reader, pool, streams, width, 1, normed, low, gate, mixed, NULL);
    if (code == SS_OK) code = ss_apply(pool, vocabulary, mixed, 1, logits);
    if (code == SS_OK) *token = pieces->likeliest(logits, vocabulary->rows, confidence);
    free(s.memory);
    return code;
}
