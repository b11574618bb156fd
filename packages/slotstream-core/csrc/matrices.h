/* Checks of the caller's matrices, and the plan of a call: which rows go through which matrix. */
#ifndef SLOTSTREAM_MATRICES_H
#define SLOTSTREAM_MATRICES_H

#include "threads.h"

#define SS_LARGEST ((int64_t)1 << 40) /* no count or size may reach it: sums and products of two stay in 63 bits... */
#define SS_LONGEST ((int64_t)1 << 22) /* ...when one of them is a row's length */

int32_t ss_check_matrix(const ss_matrix *matrix);
int32_t ss_check_floats(const void *x, int32_t type, int64_t rows, int64_t columns);

ss_member ss_member_of(const ss_matrix *matrix, int64_t member);
int ss_same_layout(const ss_matrix *a, const ss_matrix *b);

/* Pairs (row of x, matrix) that share a matrix. */
typedef struct ss_group {
    int64_t member;
    int64_t first; /* into the order of the pairs */
    int64_t count;
} ss_group;

/* Sort pairs by member, keeping their order within one; returns the number of groups. `starts` has members + 1 places,
 * `order` and `groups` one a pair. */
int64_t ss_group_pairs(const int32_t *member, int64_t pairs, int64_t members, int64_t *starts, int32_t *order,
                       ss_group *groups);

/* In how many pieces of work the rows of a matrix are shared out, so that there are enough pieces, none is tiny, and the
 * two halves of a job (threads.c) have equally many. */
int64_t ss_piece_count(const ss_matrix *matrix, int64_t matrices, int threads);
/* Where a piece begins: pieces differ by a panel at most, so that the halves have as many rows. */
int64_t ss_piece_begin(const ss_matrix *matrix, int64_t pieces, int64_t piece);

/* Cuts scratch memory into 64-byte aligned parts; with base null it only counts. */
typedef struct ss_arena {
    char *base;
    size_t used;
} ss_arena;
void *ss_cut(ss_arena *arena, int64_t count, size_t size);

/* Prepared rows: room for them, then filling them in parallel. */
typedef struct ss_prepared_rows {
    ss_prepared *rows;
    float *values, *sums;
} ss_prepared_rows;
void ss_cut_prepared(ss_arena *arena, const ss_matrix *matrix, int64_t rows, ss_prepared_rows *prepared);
void ss_prepare_rows(ss_call *call, const ss_matrix *matrix, const void *x, int32_t type, int64_t rows,
                     const ss_prepared_rows *prepared);

/* Rows `begin` to `end` of one matrix for the pairs of a group: y[pair] is y + pair * y_stride. */
void ss_multiply_group(const ss_kernels *kernels, const ss_matrix *matrix, const ss_group *group, const int32_t *order,
                       const int32_t *source, const ss_prepared *x, int64_t begin, int64_t end, float *y,
                       int64_t y_stride);

#endif
