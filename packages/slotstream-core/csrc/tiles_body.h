/* The code of the tiles in pieces.h, for many rows; included by pieces_body.h.
 *
 * A panel holds SS_PANEL outputs of a matrix for some columns, unpacked, column after column. A tile multiplies up to
 * SS_TILE_ROWS rows with it: each output is one sum over the columns in ascending order, whatever shares its tile.
 */

#define SS_INLINED static inline __attribute__((always_inline))

static inline float widened(const void *values, int64_t at, int32_t type) {
    if (type == SS_TILE_FLOAT32) return ((const float *)values)[at];
    uint32_t bits = (uint32_t)((const uint16_t *)values)[at] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* LANES outputs of a dense panel; one past the matrix repeats the last, and its results are not stored. */
SS_INLINED void dense_half(const ss_tile_matrix *m, int64_t row, int64_t outputs, int64_t first, int64_t last,
                           float *panel, int32_t type) {
    int64_t rows[LANES];
    for (int64_t n = 0; n < LANES; n++) rows[n] = (row + (n < outputs ? n : outputs - 1)) * m->columns;
    for (int64_t k = first; k < last; k++) {
        v8 values;
        for (int n = 0; n < LANES; n++) values[n] = widened(m->weight, rows[n] + k, type);
        store8(panel + (k - first) * SS_PANEL, values);
    }
}

/* The packed word at `at` of each of LANES rows. */
static inline i8 words8(const uint8_t *const *octets, int64_t at) {
    int32_t words[LANES];
    for (int n = 0; n < LANES; n++) memcpy(&words[n], octets[n] + at, sizeof words[n]);
    return (i8){words[0], words[1], words[2], words[3], words[4], words[5], words[6], words[7]};
}

/* Scales or biases of LANES rows. */
static inline v8 factors8(const ss_tile_matrix *m, const void *values, const int64_t *rows, int64_t group) {
    float found[LANES];
    for (int n = 0; n < LANES; n++) found[n] = widened(values, rows[n] * (m->columns / m->group) + group, m->type);
    return load8(found);
}

/* LANES outputs of a packed panel, as `dense_half`. */
SS_INLINED void packed_half(const ss_tile_matrix *m, int64_t row, int64_t outputs, int64_t first, int64_t last,
                            float *panel, int32_t bits) {
    const uint8_t *octets[LANES];
    int64_t rows[LANES], row_bytes = m->columns * bits / 8, columns = 32 / bits;
    for (int64_t n = 0; n < LANES; n++) {
        rows[n] = row + (n < outputs ? n : outputs - 1);
        octets[n] = (const uint8_t *)m->weight + rows[n] * row_bytes;
    }
    const int32_t mask = (1 << bits) - 1;
    for (int64_t k = first; k < last;) {
        v8 scale = factors8(m, m->scales, rows, k / m->group), bias = factors8(m, m->biases, rows, k / m->group);
        for (int64_t end = k + m->group; k < end; k += columns) {
            i8 words = words8(octets, k * bits / 8);
            for (int j = 0; j < 32 / bits; j++) {
                i8 values = (words >> (bits * j)) & mask;
                store8(panel + (k - first + j) * SS_PANEL, MULTIPLY_ADD(AS_FLOATS(values), scale, bias));
            }
        }
    }
}

/* What the next panel is unpacked from: too many short stretches for the processor to foresee. */
static inline void fetch_ahead(const ss_tile_matrix *m, int64_t row, int64_t first, int64_t last) {
    int64_t row_bytes = m->columns * m->bits / 8, from = first * m->bits / 8, to = last * m->bits / 8;
    for (int64_t n = row; n < row + SS_PANEL && n < m->rows; n++)
        for (int64_t at = from; at < to; at += 64)
            __builtin_prefetch((const uint8_t *)m->weight + n * row_bytes + at);
}

static void tile_panel(const ss_tile_matrix *m, int64_t row, int64_t first, int64_t last, float *panel) {
    int64_t outputs = m->rows - row < SS_PANEL ? m->rows - row : SS_PANEL;
    if (last < m->columns) fetch_ahead(m, row, last, 2 * last - first < m->columns ? 2 * last - first : m->columns);
    else fetch_ahead(m, row + SS_PANEL, 0, last - first);
    for (int64_t half = 0; half < outputs; half += LANES) {
        int64_t at = row + half, own = outputs - half;
        if (m->bits == 4) packed_half(m, at, own, first, last, panel + half, 4);
        else if (m->bits == 8) packed_half(m, at, own, first, last, panel + half, 8);
        else if (m->type == SS_TILE_FLOAT32) dense_half(m, at, own, first, last, panel + half, SS_TILE_FLOAT32);
        else dense_half(m, at, own, first, last, panel + half, !SS_TILE_FLOAT32);
    }
}

/* How many rows and vectors a tile has is known where this is inlined, so that its sums stay in registers. */
SS_INLINED void tile_of(const float *const *x, int64_t step, float *const *y, const float *panel, int64_t depth,
                        int64_t width, int rows, int vectors, int add) {
    v8 sums[SS_TILE_ROWS][SS_PANEL / LANES] = {{{0}}};
    const float *from[SS_TILE_ROWS];
    for (int t = 0; t < rows; t++) from[t] = x[t];
    for (int64_t k = 0; k < depth; k++) {
        v8 weights[SS_PANEL / LANES];
        for (int v = 0; v < vectors; v++) weights[v] = load8(panel + k * SS_PANEL + v * LANES);
        for (int t = 0; t < rows; t++) {
            v8 value = splat8(from[t][k * step]);
            for (int v = 0; v < vectors; v++) sums[t][v] = MULTIPLY_ADD(value, weights[v], sums[t][v]);
        }
    }
    for (int t = 0; t < rows; t++)
        for (int v = 0; v < vectors; v++) {
            int64_t own = width - v * LANES;
            float *to = y[t] + v * LANES;
            if (own >= LANES) {
                store8(to, add ? load8(to) + sums[t][v] : sums[t][v]);
                continue;
            }
            float part[LANES];
            store8(part, sums[t][v]);
            for (int64_t n = 0; n < own; n++) to[n] = add ? to[n] + part[n] : part[n];
        }
}

SS_INLINED void tile_of_rows(const float *const *x, int64_t step, float *const *y, const float *panel, int64_t depth,
                             int64_t width, int rows, int add) {
    if (width <= LANES) tile_of(x, step, y, panel, depth, width, rows, 1, add);
    else if (step == 1) tile_of(x, 1, y, panel, depth, width, rows, 2, add);
    else tile_of(x, step, y, panel, depth, width, rows, 2, add);
}

static void tile_product(const float *const *x, int64_t step, float *const *y, int64_t rows, const float *panel,
                         int64_t depth, int64_t width, int32_t add) {
    switch (rows) {
    case 1: tile_of_rows(x, step, y, panel, depth, width, 1, add); break;
    case 2: tile_of_rows(x, step, y, panel, depth, width, 2, add); break;
    case 3: tile_of_rows(x, step, y, panel, depth, width, 3, add); break;
    case 4: tile_of_rows(x, step, y, panel, depth, width, 4, add); break;
    case 5: tile_of_rows(x, step, y, panel, depth, width, 5, add); break;
    default: tile_of_rows(x, step, y, panel, depth, width, SS_TILE_ROWS, add);
    }
}
