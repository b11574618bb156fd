/* Attention of many rows, as pieces.h describes it; included by pieces_body.h.
 *
 * The lanes of a panel are SS_PANEL rows of one head. Keys come in blocks at fixed positions: products with all lanes,
 * the running maximum and sum of each lane, then products with the values. What a row does not see adds exact zeros,
 * so it does not matter which other rows and keys are in the call.
 */

#define UNSEEN -1e30f

static inline v8 larger8(v8 a, v8 b) {
    i8 above = a > b;
    return (v8)((above & (i8)a) | (~above & (i8)b));
}

/* Which of the rows in LANES lanes see `key`, as a mask. */
static inline i8 seeing(const ss_attention_rows *a, const int64_t *rows, int64_t key) {
    int32_t sees[LANES];
    for (int n = 0; n < LANES; n++) {
        int64_t end = a->position + rows[n] + 1; /* keys up to the row's own */
        int shown = key < end;
        if (a->selected && key < end / a->ratio * a->ratio)
            shown = a->selected[rows[n] * a->blocks + key / a->ratio] != 0;
        sees[n] = -shown;
    }
    return (i8){sees[0], sees[1], sees[2], sees[3], sees[4], sees[5], sees[6], sees[7]};
}

typedef struct {
    float *queries, *scores, *sums; /* [dim, SS_PANEL], [SS_KEY_BLOCK, SS_PANEL], [dim, SS_PANEL] */
    v8 top[SS_PANEL / LANES], total[SS_PANEL / LANES];
    int64_t rows[SS_PANEL];
} attending;

/* The block's scores become weights; what was summed before is brought to the new maximum. */
static inline void weigh(const ss_attention_rows *a, attending *own, int64_t key, int64_t count, int whole) {
    for (int v = 0; v < SS_PANEL / LANES; v++) {
        i8 seen[SS_KEY_BLOCK];
        v8 top = own->top[v];
        for (int64_t i = 0; i < count; i++) {
            float *at = own->scores + i * SS_PANEL + v * LANES;
            seen[i] = whole ? (i8){-1, -1, -1, -1, -1, -1, -1, -1} : seeing(a, own->rows + v * LANES, key + i);
            if (!whole) store8(at, (v8)((seen[i] & (i8)load8(at)) | (~seen[i] & (i8)splat8(UNSEEN))));
            top = larger8(load8(at), top);
        }
        v8 factor = exp8(own->top[v] - top), total = own->total[v] * factor;
        for (int64_t i = 0; i < count; i++) {
            float *at = own->scores + i * SS_PANEL + v * LANES;
            v8 weight = (v8)((i8)exp8(load8(at) - top) & seen[i]);
            store8(at, weight);
            total += weight;
        }
        i8 moved = own->top[v] != top;
        own->top[v] = top, own->total[v] = total;
        if (!(moved[0] | moved[1] | moved[2] | moved[3] | moved[4] | moved[5] | moved[6] | moved[7])) continue;
        for (int64_t d = 0; d < a->dim; d++) {
            float *at = own->sums + d * SS_PANEL + v * LANES;
            store8(at, load8(at) * factor);
        }
    }
}

static inline void attend_keys(const ss_attention_rows *a, attending *own, const float *keys, const float *values,
                               int64_t key, int64_t count, int whole) {
    const float *x[SS_TILE_ROWS];
    float *y[SS_TILE_ROWS];
    for (int64_t i = 0; i < count; i += SS_TILE_ROWS) {
        int64_t rows = count - i < SS_TILE_ROWS ? count - i : SS_TILE_ROWS;
        for (int64_t t = 0; t < rows; t++) {
            x[t] = keys + (key + i + t) * a->dim;
            y[t] = own->scores + (i + t) * SS_PANEL;
        }
        tile_product(x, 1, y, rows, own->queries, a->dim, SS_PANEL, 0);
    }
    weigh(a, own, key, count, whole);
    for (int64_t d = 0; d < a->dim; d += SS_TILE_ROWS) {
        int64_t rows = a->dim - d < SS_TILE_ROWS ? a->dim - d : SS_TILE_ROWS;
        for (int64_t t = 0; t < rows; t++) {
            x[t] = values + key * a->dim + d + t;
            y[t] = own->sums + (d + t) * SS_PANEL;
        }
        tile_product(x, a->dim, y, rows, own->scores, count, SS_PANEL, 1);
    }
}

static void attend_rows(const ss_attention_rows *a, int64_t head, int64_t first, float *scratch) {
    int64_t dim = a->dim, width = a->heads * dim, kv = head / (a->heads / a->kv_heads);
    const float *keys = a->keys + kv * a->kv_stride, *values = a->values + kv * a->kv_stride;
    attending own = {.queries = scratch, .sums = scratch + dim * SS_PANEL, .scores = scratch + 2 * dim * SS_PANEL};
    memset(own.sums, 0, (size_t)(dim * SS_PANEL) * sizeof *own.sums);
    for (int v = 0; v < SS_PANEL / LANES; v++) own.top[v] = splat8(UNSEEN), own.total[v] = splat8(0.0f);
    for (int64_t n = 0; n < SS_PANEL; n++) { /* lanes past the last row repeat it and are not stored */
        own.rows[n] = first + n < a->rows ? first + n : a->rows - 1;
        const float *q = a->q + own.rows[n] * width + head * dim;
        for (int64_t d = 0; d < dim; d++) own.queries[d * SS_PANEL + n] = a->scale * q[d];
    }
    int64_t end = a->position + own.rows[SS_PANEL - 1] + 1;
    for (int64_t key = 0; key < end; key += SS_KEY_BLOCK) {
        int64_t count = end - key < SS_KEY_BLOCK ? end - key : SS_KEY_BLOCK;
        attend_keys(a, &own, keys, values, key, count, !a->selected && key + count <= a->position + first + 1);
    }
    float total[SS_PANEL];
    for (int v = 0; v < SS_PANEL / LANES; v++) store8(total + v * LANES, own.total[v]);
    for (int64_t n = 0; n < SS_PANEL && first + n < a->rows; n++)
        for (int64_t d = 0; d < dim; d++)
            a->out[(first + n) * width + head * dim + d] = own.sums[d * SS_PANEL + n] / total[n];
}
