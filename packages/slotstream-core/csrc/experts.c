/* The routed experts of one layer in one call: gate and up of a range of rows, the activation, then down, then the
 * weighted sum. Pairs of a row and an expert are grouped by expert, so that every weight is unpacked once for up to
 * SS_ROW_BLOCK rows; groups and ranges are what threads share. */
#include "matrices.h"

#define PAIRS_AT_ONCE 1024

typedef struct block {
    const ss_kernels *kernels;
    const ss_matrix *gate, *up, *down;
    int64_t pairs, top, groups, hidden, inner;
    const float *mix;
    float *y;
    /* scratch */
    int64_t *starts;
    int32_t *order, *source;
    ss_group *plan;
    ss_prepared_rows x, x_up, h;
    float *gates, *ups, *outputs;
    /* shares of the current step */
    int64_t pieces_per_group;
} block;

static void cut_block(ss_arena *arena, int64_t rows, block *b) {
    int64_t pairs = rows * b->top;
    b->starts = ss_cut(arena, b->gate->members + 1, sizeof *b->starts);
    b->order = ss_cut(arena, pairs, sizeof *b->order);
    b->source = ss_cut(arena, pairs, sizeof *b->source);
    b->plan = ss_cut(arena, pairs, sizeof *b->plan);
    ss_cut_prepared(arena, b->gate, rows, &b->x);
    if (ss_same_layout(b->gate, b->up)) b->x_up = b->x;
    else ss_cut_prepared(arena, b->up, rows, &b->x_up);
    ss_cut_prepared(arena, b->down, pairs, &b->h);
    b->gates = ss_cut(arena, pairs * b->inner, sizeof(float));
    b->ups = ss_cut(arena, pairs * b->inner, sizeof(float));
    b->outputs = b->mix ? ss_cut(arena, pairs * b->hidden, sizeof(float)) : NULL;
}

static void share_out(ss_call *call, block *b, const ss_matrix *matrix, ss_work work) {
    b->pieces_per_group = ss_piece_count(matrix, b->groups, ss_thread_count(call->pool));
    ss_share(call, work, b, b->groups * b->pieces_per_group);
}

static int64_t range(const block *b, const ss_matrix *matrix, int64_t piece, int64_t *begin) {
    int64_t part = piece % b->pieces_per_group;
    *begin = ss_piece_begin(matrix, b->pieces_per_group, part);
    return ss_piece_begin(matrix, b->pieces_per_group, part + 1);
}

static void inner_piece(void *context, int64_t piece) {
    const block *b = context;
    const ss_group *group = &b->plan[piece / b->pieces_per_group];
    int64_t begin, end = range(b, b->gate, piece, &begin);
    ss_multiply_group(b->kernels, b->gate, group, b->order, b->source, b->x.rows, begin, end, b->gates, b->inner);
    ss_multiply_group(b->kernels, b->up, group, b->order, b->source, b->x_up.rows, begin, end, b->ups, b->inner);
    for (int64_t i = 0; i < group->count; i++) {
        int64_t at = (int64_t)b->order[group->first + i] * b->inner + begin;
        b->kernels->gate(b->gates + at, b->ups + at, end - begin, b->gates + at);
    }
}

static void down_piece(void *context, int64_t piece) {
    const block *b = context;
    const ss_group *group = &b->plan[piece / b->pieces_per_group];
    int64_t begin, end = range(b, b->down, piece, &begin);
    ss_multiply_group(b->kernels, b->down, group, b->order, NULL, b->h.rows, begin, end, b->outputs, b->hidden);
}

static void mix_row(void *context, int64_t row) {
    const block *b = context;
    b->kernels->mix(b->outputs + row * b->top * b->hidden, b->hidden, b->mix + row * b->top, b->top, b->hidden,
                    b->y + row * b->hidden);
}

static void run_block(ss_call *call, block *b, const void *x, int32_t x_type, const int32_t *slots, int64_t rows) {
    b->pairs = rows * b->top;
    for (int64_t p = 0; p < b->pairs; p++) b->source[p] = (int32_t)(p / b->top);
    b->groups = ss_group_pairs(slots, b->pairs, b->gate->members, b->starts, b->order, b->plan);
    ss_prepare_rows(call, b->gate, x, x_type, rows, &b->x);
    if (!ss_same_layout(b->gate, b->up)) ss_prepare_rows(call, b->up, x, x_type, rows, &b->x_up);
    share_out(call, b, b->gate, inner_piece);
    ss_prepare_rows(call, b->down, b->gates, SS_FLOAT32, b->pairs, &b->h);
    share_out(call, b, b->down, down_piece);
    if (b->mix) ss_share(call, mix_row, b, rows);
}

static int32_t check(const ss_matrix *gate, const ss_matrix *up, const ss_matrix *down, const void *x, int32_t x_type,
                     int64_t x_rows, const int32_t *slots, int64_t top, const float *y) {
    int32_t code = ss_check_matrix(gate);
    if (!code) code = ss_check_matrix(up);
    if (!code) code = ss_check_matrix(down);
    if (code) return code;
    if (gate->rows != up->rows || gate->columns != up->columns || down->rows != gate->columns ||
        down->columns != gate->rows || gate->members != up->members || gate->members != down->members)
        return SS_BAD_SHAPE;
    if (top < 1 || top > PAIRS_AT_ONCE || down->rows > SS_LONGEST) return SS_BAD_SHAPE;
    if ((code = ss_check_floats(x, x_type, x_rows, gate->columns))) return code;
    if (x_rows && (!y || !slots)) return SS_BAD_ARGUMENT;
    if ((uintptr_t)y % sizeof *y) return SS_MISALIGNED;
    for (int64_t p = 0; p < x_rows * top; p++)
        if (slots[p] < 0 || slots[p] >= gate->members) return SS_OUT_OF_RANGE;
    return SS_OK;
}

int32_t ss_experts(ss_pool *pool, const ss_matrix *gate, const ss_matrix *up, const ss_matrix *down, const void *x,
                   int32_t x_type, int64_t x_rows, const int32_t *slots, const float *mix, int64_t top, float *y) {
    if (!pool) return SS_BAD_ARGUMENT;
    int32_t code = check(gate, up, down, x, x_type, x_rows, slots, top, y);
    if (code || !x_rows) return code;
    int64_t at_once = PAIRS_AT_ONCE / top < x_rows ? PAIRS_AT_ONCE / top : x_rows;
    block b = {.gate = gate, .up = up, .down = down, .top = top, .mix = mix};
    b.hidden = down->rows;
    b.inner = gate->rows;
    ss_arena arena = {0};
    cut_block(&arena, at_once, &b);
    ss_call call;
    if ((code = ss_begin(pool, arena.used, &call))) return code;
    b.kernels = call.kernels;
    arena = (ss_arena){.base = call.scratch};
    cut_block(&arena, at_once, &b);
    int64_t x_bytes = gate->columns * (x_type == SS_BFLOAT16 ? 2 : 4);
    for (int64_t at = 0; at < x_rows; at += at_once) {
        int64_t rows = x_rows - at < at_once ? x_rows - at : at_once;
        b.y = y + at * b.hidden * (mix ? 1 : top);
        b.mix = mix ? mix + at * top : NULL;
        if (!mix) b.outputs = b.y;
        run_block(&call, &b, (const char *)x + at * x_bytes, x_type, slots + at * top, rows);
    }
    ss_end(&call);
    return SS_OK;
}
