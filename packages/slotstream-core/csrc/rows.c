/* Unpacking of single rows: embeddings, n-gram records, and the widening of stored floats. */
#include <string.h>

#include "matrices.h"

#define ROWS_PER_PIECE 16

typedef struct unpacking {
    const ss_kernels *kernels;
    ss_member member;
    const int64_t *chosen; /* rows of the member; null: record after record */
    int64_t count, record_bytes;
    int32_t round_to_bf16;
    float *y;
} unpacking;

static void round_row(float *y, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &y[i], 4);
        if ((bits & 0x7fffffffu) > 0x7f800000u) continue; /* NaN */
        bits = (bits + 0x7fffu + (bits >> 16 & 1)) & 0xffff0000u;
        memcpy(&y[i], &bits, 4);
    }
}

static void unpack_piece(void *context, int64_t piece) {
    const unpacking *job = context;
    int64_t end = (piece + 1) * ROWS_PER_PIECE < job->count ? (piece + 1) * ROWS_PER_PIECE : job->count;
    for (int64_t i = piece * ROWS_PER_PIECE; i < end; i++) {
        ss_member member = job->member;
        float *y = job->y + i * member.columns;
        if (!job->chosen) {
            member.weight += i * job->record_bytes;
            member.scales += i * job->record_bytes;
            member.biases += i * job->record_bytes;
        }
        job->kernels->unpack_row(&member, job->chosen ? job->chosen[i] : 0, y);
        if (job->round_to_bf16) round_row(y, member.columns);
    }
}

static int32_t run(ss_pool *pool, unpacking *job) {
    ss_call call;
    int32_t code = ss_begin(pool, 0, &call);
    if (code) return code;
    job->kernels = call.kernels;
    ss_share(&call, unpack_piece, job, (job->count + ROWS_PER_PIECE - 1) / ROWS_PER_PIECE);
    ss_end(&call);
    return SS_OK;
}

int32_t ss_unpack_rows(ss_pool *pool, const ss_matrix *matrix, int64_t member, const int64_t *chosen, int64_t count,
                       float *y) {
    if (!pool) return SS_BAD_ARGUMENT;
    int32_t code = ss_check_matrix(matrix);
    if (code) return code;
    if (member < 0 || member >= matrix->members) return SS_OUT_OF_RANGE;
    if (count < 0 || count > INT32_MAX) return SS_BAD_SHAPE;
    if (!count) return SS_OK;
    if (!chosen || !y) return SS_BAD_ARGUMENT;
    if ((uintptr_t)chosen % 8 || (uintptr_t)y % 4) return SS_MISALIGNED;
    for (int64_t i = 0; i < count; i++)
        if (chosen[i] < 0 || chosen[i] >= matrix->rows) return SS_OUT_OF_RANGE;
    unpacking job = {.member = ss_member_of(matrix, member), .chosen = chosen, .count = count, .y = y};
    return run(pool, &job);
}

int32_t ss_unpack_records(ss_pool *pool, const void *records, int64_t count, int64_t record_bytes, int64_t columns,
                          int32_t bits, int32_t group, int32_t type, int32_t round_to_bf16, float *y) {
    if (!pool || count < 0 || count > INT32_MAX || record_bytes < 0 || record_bytes > SS_LONGEST)
        return SS_BAD_ARGUMENT;
    if (!count) return SS_OK;
    if (!records || !y) return SS_BAD_ARGUMENT;
    if (bits != 4 && bits != 8) return SS_BAD_SHAPE;
    const char *base = records;
    ss_matrix row = {.weight = base, .members = 1, .rows = 1, .columns = columns, .bits = bits, .group = group};
    row.type = type;
    if (columns < 1 || columns > SS_LONGEST || (group != 32 && group != 64 && group != 128)) return SS_BAD_SHAPE;
    row.weight_bytes = columns * bits / 8;
    row.scales_bytes = columns / group * (type == SS_BFLOAT16 ? 2 : 4);
    row.scales = base + row.weight_bytes;
    row.biases = base + row.weight_bytes + row.scales_bytes;
    int32_t code = ss_check_matrix(&row);
    if (code) return code;
    if (row.weight_bytes + 2 * row.scales_bytes > record_bytes) return SS_TOO_SMALL;
    if (record_bytes % (type == SS_BFLOAT16 ? 2 : 4) || (uintptr_t)y % 4) return SS_MISALIGNED;
    unpacking job = {.member = ss_member_of(&row, 0), .count = count, .record_bytes = record_bytes};
    job.round_to_bf16 = round_to_bf16;
    job.y = y;
    return run(pool, &job);
}
