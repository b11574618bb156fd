/* Products of dense matrices. Part of kernels_template.h. */
#ifndef SLOTSTREAM_KERNELS_DENSE_H
#define SLOTSTREAM_KERNELS_DENSE_H

/* One to four rows of activations against `panel` rows of the matrix: a value is the sum over the columns in one vector. */
INLINE void dense(const ss_member *m, int64_t row, int panel, int type, const ss_prepared *const *x, int rows,
                  float *const *y) {
    vf total[4][PANEL];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int i = 0; i < PANEL; i++) total[r][i] = (vf){0};
    const char *at[PANEL];
#pragma GCC unroll 4
    for (int i = 0; i < panel; i++) at[i] = m->weight + (row + i) * m->weight_stride;
    int64_t k = 0;
    for (; k + LANES <= m->columns; k += LANES) {
        vf value[4];
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) value[r] = load(x[r]->values + k);
#pragma GCC unroll 4
        for (int i = 0; i < panel; i++) {
            vf weight = load_float(at[i], type, k);
            if (rows > 1) KEEP(weight);
            if (k % 16 == 0) __builtin_prefetch(at[i] + k * (type == SS_BFLOAT16 ? 2 : 4) + PREFETCH_BYTES);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) total[r][i] = FMA(weight, value[r], total[r][i]);
        }
    }
    if (k < m->columns)
#pragma GCC unroll 4
        for (int i = 0; i < panel; i++) {
            vf weight = load_some(at[i], type, k, m->columns - k);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) total[r][i] = FMA(weight, load(x[r]->values + k), total[r][i]);
        }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int i = 0; i < panel; i++) y[r][row + i] = hsum(total[r][i]);
}

INLINE void dense_panel(const ss_member *m, int64_t row, int panel, int type, const ss_prepared *const *x, int count,
                        float *const *y) {
    int r = 0;
    while (r < count) {
        int left = count - r;
        if (ROWS_AT_ONCE == 4 && left >= 4) {
            dense(m, row, panel, type, x + r, 4, y + r), r += 4;
        } else if (left >= 3 && left != 4) {
            dense(m, row, panel, type, x + r, 3, y + r), r += 3;
        } else if (left >= 2) {
            dense(m, row, panel, type, x + r, 2, y + r), r += 2;
        } else {
            dense(m, row, panel, type, x + r, 1, y + r), r += 1;
        }
    }
}

INLINE void dense_rows(const ss_member *m, int64_t begin, int64_t end, int type, const ss_prepared *const *x,
                       int count, float *const *y) {
    int64_t row = begin;
    for (; row + PANEL <= end; row += PANEL) dense_panel(m, row, PANEL, type, x, count, y);
    for (; row < end; row++) dense_panel(m, row, 1, type, x, count, y);
}

static void rows_f32(const ss_member *m, int64_t begin, int64_t end, const ss_prepared *const *x, int count,
                     float *const *y) {
    dense_rows(m, begin, end, SS_FLOAT32, x, count, y);
}
static void rows_bf16(const ss_member *m, int64_t begin, int64_t end, const ss_prepared *const *x, int count,
                      float *const *y) {
    dense_rows(m, begin, end, SS_BFLOAT16, x, count, y);
}

#endif
