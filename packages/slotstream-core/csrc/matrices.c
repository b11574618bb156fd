#include "matrices.h"

#include <string.h>

#define PIECE_BYTES 65536
#define PANEL_ROWS 4 /* that kernels compute together */
#define PIECES_PER_THREAD 4

static int aligned(const void *pointer, size_t size) { return ((uintptr_t)pointer & (size - 1)) == 0; }
static size_t type_size(int32_t type) { return type == SS_BFLOAT16 ? 2 : 4; }

static int32_t check_dense(const ss_matrix *m) {
    if (m->group || m->scales || m->biases) return SS_BAD_SHAPE;
    if (m->members * m->rows > SS_LARGEST / m->columns) return SS_BAD_SHAPE;
    if (m->weight_bytes < m->members * m->rows * m->columns * (int64_t)type_size(m->type)) return SS_TOO_SMALL;
    return aligned(m->weight, type_size(m->type)) ? SS_OK : SS_MISALIGNED;
}

int32_t ss_check_matrix(const ss_matrix *m) {
    if (!m || !m->weight) return SS_BAD_ARGUMENT;
    if (m->type != SS_FLOAT32 && m->type != SS_BFLOAT16) return SS_BAD_ARGUMENT;
    if (m->members < 1 || m->rows < 1 || m->columns < 1) return SS_BAD_SHAPE;
    if (m->columns > SS_LONGEST || m->rows > SS_LARGEST || m->members > INT32_MAX) return SS_BAD_SHAPE;
    if (m->members > SS_LARGEST / m->rows) return SS_BAD_SHAPE;
    if (!m->bits) return check_dense(m);
    if (m->bits != 4 && m->bits != 8) return SS_BAD_SHAPE;
    if (m->group != 32 && m->group != 64 && m->group != 128) return SS_BAD_SHAPE;
    if (m->columns % m->group) return SS_BAD_SHAPE;
    if (!m->scales || !m->biases) return SS_BAD_ARGUMENT;
    int64_t all_rows = m->members * m->rows;
    if (m->weight_bytes < all_rows * (m->columns * m->bits / 8)) return SS_TOO_SMALL;
    if (m->scales_bytes < all_rows * (m->columns / m->group) * (int64_t)type_size(m->type)) return SS_TOO_SMALL;
    if (!aligned(m->weight, 4) || !aligned(m->scales, type_size(m->type)) || !aligned(m->biases, type_size(m->type)))
        return SS_MISALIGNED;
    return SS_OK;
}

int32_t ss_check_floats(const void *x, int32_t type, int64_t rows, int64_t columns) {
    if (type != SS_FLOAT32 && type != SS_BFLOAT16) return SS_BAD_ARGUMENT;
    if (rows < 0 || rows > INT32_MAX || columns < 1 || columns > SS_LARGEST) return SS_BAD_SHAPE;
    if (rows && !x) return SS_BAD_ARGUMENT;
    return aligned(x, type_size(type)) ? SS_OK : SS_MISALIGNED;
}

ss_member ss_member_of(const ss_matrix *m, int64_t member) {
    int64_t weight_stride = m->bits ? m->columns * m->bits / 8 : m->columns * (int64_t)type_size(m->type);
    int64_t scales_stride = m->bits ? m->columns / m->group * (int64_t)type_size(m->type) : 0;
    int64_t row = member * m->rows;
    return (ss_member){
        .weight = (const char *)m->weight + row * weight_stride,
        .scales = m->bits ? (const char *)m->scales + row * scales_stride : NULL,
        .biases = m->bits ? (const char *)m->biases + row * scales_stride : NULL,
        .weight_stride = weight_stride,
        .scales_stride = scales_stride,
        .columns = m->columns,
        .bits = m->bits,
        .group = m->group,
        .type = m->type,
    };
}

int ss_same_layout(const ss_matrix *a, const ss_matrix *b) { return a->bits == b->bits && a->group == b->group; }

int64_t ss_group_pairs(const int32_t *member, int64_t pairs, int64_t members, int64_t *starts, int32_t *order,
                       ss_group *groups) {
    memset(starts, 0, (size_t)(members + 1) * sizeof *starts);
    for (int64_t p = 0; p < pairs; p++) starts[member[p] + 1]++;
    int64_t count = 0;
    for (int64_t m = 0; m < members; m++) {
        int64_t own = starts[m + 1];
        starts[m + 1] += starts[m];
        if (own) groups[count++] = (ss_group){.member = m, .first = starts[m], .count = own};
    }
    for (int64_t p = 0; p < pairs; p++) order[starts[member[p]]++] = (int32_t)p;
    return count;
}

static int64_t panels_of(const ss_matrix *m) { return (m->rows + PANEL_ROWS - 1) / PANEL_ROWS; }

int64_t ss_piece_count(const ss_matrix *m, int64_t matrices, int threads) {
    int64_t row_bytes = m->bits ? m->columns * m->bits / 8 : m->columns * (int64_t)type_size(m->type);
    int64_t rows = PIECE_BYTES / row_bytes + 1;
    int64_t share = m->rows * matrices / (threads * PIECES_PER_THREAD) + 1;
    if (rows > share) rows = share;
    int64_t panels = panels_of(m), size = (rows + PANEL_ROWS - 1) / PANEL_ROWS;
    int64_t pieces = (panels + size - 1) / size;
    return pieces * matrices % 2 && pieces < panels ? pieces + 1 : pieces;
}

int64_t ss_piece_begin(const ss_matrix *m, int64_t pieces, int64_t piece) {
    return piece < pieces ? panels_of(m) * piece / pieces * PANEL_ROWS : m->rows;
}

void *ss_cut(ss_arena *arena, int64_t count, size_t size) {
    void *part = arena->base ? arena->base + arena->used : NULL;
    arena->used += ((size_t)count * size + 63) & ~(size_t)63;
    return part;
}

void ss_cut_prepared(ss_arena *arena, const ss_matrix *m, int64_t rows, ss_prepared_rows *prepared) {
    prepared->rows = ss_cut(arena, rows, sizeof *prepared->rows);
    prepared->values = ss_cut(arena, rows * ss_values_floats(m->columns), sizeof(float));
    prepared->sums = ss_cut(arena, rows * ss_sums_floats(m->columns, m->group), sizeof(float));
}

typedef struct preparing {
    const ss_kernels *kernels;
    const ss_matrix *matrix;
    const char *x;
    int32_t type;
    const ss_prepared_rows *to;
} preparing;

static void prepare_one(void *context, int64_t row) {
    const preparing *job = context;
    const ss_matrix *m = job->matrix;
    job->kernels->prepare(job->x + row * m->columns * (int64_t)type_size(job->type), job->type, m->columns, m->bits,
                          m->group, job->to->values + row * ss_values_floats(m->columns),
                          job->to->sums + row * ss_sums_floats(m->columns, m->group), &job->to->rows[row]);
}

void ss_prepare_rows(ss_call *call, const ss_matrix *m, const void *x, int32_t type, int64_t rows,
                     const ss_prepared_rows *prepared) {
    preparing job = {.kernels = call->kernels, .matrix = m, .x = x, .type = type, .to = prepared};
    ss_share(call, prepare_one, &job, rows);
}

void ss_multiply_group(const ss_kernels *kernels, const ss_matrix *m, const ss_group *group, const int32_t *order,
                       const int32_t *source, const ss_prepared *x, int64_t begin, int64_t end, float *y,
                       int64_t y_stride) {
    ss_member member = ss_member_of(m, group->member);
    for (int64_t at = 0; at < group->count; at += SS_ROW_BLOCK) {
        int count = group->count - at < SS_ROW_BLOCK ? (int)(group->count - at) : SS_ROW_BLOCK;
        const ss_prepared *rows[SS_ROW_BLOCK];
        float *out[SS_ROW_BLOCK];
        for (int r = 0; r < count; r++) {
            int64_t pair = order ? order[group->first + at + r] : group->first + at + r;
            rows[r] = &x[source ? source[pair] : pair];
            out[r] = y + pair * y_stride;
        }
        kernels->multiply(&member, begin, end, rows, count, out);
    }
}
