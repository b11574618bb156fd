#include "matrices.h"

#define ROWS_PREPARED_AT_ONCE 64

typedef struct product {
    const ss_kernels *kernels;
    const ss_matrix *matrix;
    const ss_group *groups;
    const int32_t *order;
    const int32_t *source;
    const ss_prepared *x;
    int64_t pieces_per_group;
    float *y;
} product;

static void product_piece(void *context, int64_t piece) {
    const product *job = context;
    const ss_group *group = &job->groups[piece / job->pieces_per_group];
    int64_t pieces = job->pieces_per_group, part = piece % pieces;
    int64_t begin = ss_piece_begin(job->matrix, pieces, part), end = ss_piece_begin(job->matrix, pieces, part + 1);
    ss_multiply_group(job->kernels, job->matrix, group, job->order, job->source, job->x, begin, end, job->y,
                      job->matrix->rows);
}

static void share_product(ss_call *call, product *job, int64_t groups) {
    job->pieces_per_group = ss_piece_count(job->matrix, groups, ss_thread_count(call->pool));
    ss_share(call, product_piece, job, groups * job->pieces_per_group);
}

static int32_t check_output(const float *y, int64_t count) {
    if (count && !y) return SS_BAD_ARGUMENT;
    return (uintptr_t)y % sizeof *y ? SS_MISALIGNED : SS_OK;
}

int32_t ss_multiply(ss_pool *pool, const ss_matrix *matrix, int64_t member, const void *x, int32_t x_type,
                    int64_t x_rows, float *y) {
    if (!pool) return SS_BAD_ARGUMENT;
    int32_t code = ss_check_matrix(matrix);
    if (!code) code = ss_check_floats(x, x_type, x_rows, matrix->columns);
    if (!code) code = check_output(y, x_rows);
    if (code) return code;
    if (member < 0 || member >= matrix->members) return SS_OUT_OF_RANGE;
    int64_t block = x_rows < ROWS_PREPARED_AT_ONCE ? x_rows : ROWS_PREPARED_AT_ONCE;
    ss_arena arena = {0};
    ss_prepared_rows prepared;
    ss_cut_prepared(&arena, matrix, block, &prepared);
    ss_call call;
    if ((code = ss_begin(pool, arena.used, &call))) return code;
    arena = (ss_arena){.base = call.scratch};
    ss_cut_prepared(&arena, matrix, block, &prepared);
    int64_t x_bytes = matrix->columns * (x_type == SS_BFLOAT16 ? 2 : 4);
    for (int64_t at = 0; at < x_rows; at += block) {
        int64_t rows = x_rows - at < block ? x_rows - at : block;
        ss_prepare_rows(&call, matrix, (const char *)x + at * x_bytes, x_type, rows, &prepared);
        ss_group all = {.member = member, .first = 0, .count = rows};
        product job = {.kernels = call.kernels, .matrix = matrix, .groups = &all, .x = prepared.rows};
        job.y = y + at * matrix->rows;
        share_product(&call, &job, 1);
    }
    ss_end(&call);
    return SS_OK;
}

typedef struct gather_plan {
    int64_t *starts;
    int32_t *order;
    ss_group *groups;
    ss_prepared_rows x;
} gather_plan;

static void cut_gather(ss_arena *arena, const ss_matrix *matrix, int64_t x_rows, int64_t pairs, gather_plan *plan) {
    plan->starts = ss_cut(arena, matrix->members + 1, sizeof *plan->starts);
    plan->order = ss_cut(arena, pairs, sizeof *plan->order);
    plan->groups = ss_cut(arena, pairs, sizeof *plan->groups);
    ss_cut_prepared(arena, matrix, x_rows, &plan->x);
}

int32_t ss_multiply_members(ss_pool *pool, const ss_matrix *matrix, const void *x, int32_t x_type, int64_t x_rows,
                            const int32_t *source, const int32_t *member, int64_t pairs, float *y) {
    if (!pool) return SS_BAD_ARGUMENT;
    int32_t code = ss_check_matrix(matrix);
    if (!code) code = ss_check_floats(x, x_type, x_rows, matrix->columns);
    if (!code) code = check_output(y, pairs);
    if (code) return code;
    if (pairs < 0 || pairs > INT32_MAX) return SS_BAD_SHAPE;
    if (!pairs) return SS_OK;
    if (!source || !member) return SS_BAD_ARGUMENT;
    for (int64_t p = 0; p < pairs; p++)
        if (source[p] < 0 || source[p] >= x_rows || member[p] < 0 || member[p] >= matrix->members)
            return SS_OUT_OF_RANGE;
    ss_arena arena = {0};
    gather_plan plan;
    cut_gather(&arena, matrix, x_rows, pairs, &plan);
    ss_call call;
    if ((code = ss_begin(pool, arena.used, &call))) return code;
    arena = (ss_arena){.base = call.scratch};
    cut_gather(&arena, matrix, x_rows, pairs, &plan);
    int64_t groups = ss_group_pairs(member, pairs, matrix->members, plan.starts, plan.order, plan.groups);
    ss_prepare_rows(&call, matrix, x, x_type, x_rows, &plan.x);
    product job = {.kernels = call.kernels, .matrix = matrix, .groups = plan.groups, .order = plan.order,
                   .source = source, .x = plan.x.rows, .y = y};
    share_product(&call, &job, groups);
    ss_end(&call);
    return SS_OK;
}
