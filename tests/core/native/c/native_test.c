/* The C core's own test, meant to run under sanitizers: every buffer has exactly the size the interface asks for. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "made.h"
#include "matrices.h"

static void products(ss_pool *pool, ss_pool *other, int64_t rows, int64_t columns, int bits, int group, int type) {
    owned o = make(2, rows, columns, bits, group, type);
    for (int64_t count = 1; count <= 9; count += count == 1 ? 2 : 3) {
        float *x = activations(count * columns), *y = exactly((size_t)(count * rows) * 4);
        float *again = exactly((size_t)rows * 4);
        CHECK(ss_multiply(pool, &o.m, 1, x, SS_FLOAT32, count, y) == SS_OK);
        for (int64_t r = 0; r < count; r++) {
            for (int64_t n = 0; n < rows; n++) {
                double expected = 0, size = 0;
                for (int64_t k = 0; k < columns; k++) {
                    double part = (double)o.dense[(rows + n) * columns + k] * x[r * columns + k];
                    expected += part, size += fabs(part);
                }
                near(y[r * rows + n], expected, size * 4);
            }
            CHECK(ss_multiply(other, &o.m, 1, x + r * columns, SS_FLOAT32, 1, again) == SS_OK);
            CHECK(!memcmp(again, y + r * rows, (size_t)rows * 4));
        }
        free(x), free(y), free(again);
    }
    int64_t chosen[3] = {rows - 1, 0, rows / 2};
    float *unpacked = exactly((size_t)(3 * columns) * 4);
    CHECK(ss_unpack_rows(pool, &o.m, 1, chosen, 3, unpacked) == SS_OK);
    for (int64_t i = 0; i < 3 * columns; i++)
        near(unpacked[i], o.dense[(rows + chosen[i / columns]) * columns + i % columns], 1);
    free(unpacked);
    drop(&o);
}

static void experts(ss_pool *pool, ss_pool *other, int64_t hidden, int64_t inner, int bits, int group) {
    owned gate = make(3, inner, hidden, bits, group, SS_FLOAT32), up = make(3, inner, hidden, bits, group, SS_BFLOAT16);
    owned down = make(3, hidden, inner, bits, group, SS_BFLOAT16);
    int64_t rows = 11, top = 2;
    float *x = activations(rows * hidden), *mix = activations(rows * top);
    float *y = exactly((size_t)(rows * hidden) * 4), *again = exactly((size_t)hidden * 4);
    int32_t *slots = exactly((size_t)(rows * top) * 4);
    for (int64_t i = 0; i < rows * top; i++) slots[i] = (int32_t)(draw() >> 16) % 3;
    CHECK(!ss_experts(pool, &gate.m, &up.m, &down.m, x, SS_FLOAT32, rows, slots, mix, top, y));
    double *h = exactly((size_t)inner * 8);
    for (int64_t t = 0; t < rows; t++) {
        CHECK(!ss_experts(other, &gate.m, &up.m, &down.m, x + t * hidden, SS_FLOAT32, 1, slots + t * top,
                          mix + t * top, top, again));
        CHECK(!memcmp(again, y + t * hidden, (size_t)hidden * 4));
        for (int64_t n = 0; n < hidden; n++) {
            double expected = 0, size = 0;
            for (int64_t k = 0; k < top; k++) {
                int64_t slot = slots[t * top + k];
                for (int64_t i = 0; i < inner; i++) {
                    double g = 0, u = 0;
                    for (int64_t c = 0; c < hidden; c++) {
                        g += (double)gate.dense[(slot * inner + i) * hidden + c] * x[t * hidden + c];
                        u += (double)up.dense[(slot * inner + i) * hidden + c] * x[t * hidden + c];
                    }
                    h[i] = g / (1 + exp(-g)) * u;
                    double part = mix[t * top + k] * down.dense[(slot * hidden + n) * inner + i] * h[i];
                    expected += part, size += fabs(part);
                }
            }
            if (n % 16 == 0) near(y[t * hidden + n], expected, size * 10);
            else break; /* the reference is slow: one value a row is enough beside the bitwise comparison */
        }
    }
    free(x), free(mix), free(y), free(again), free(slots), free(h);
    drop(&gate), drop(&up), drop(&down);
}

static void refusals(ss_pool *pool) {
    owned o = make(1, 3, 64, 4, 32, SS_FLOAT32);
    float x[64] = {0}, y[3];
    ss_matrix m = o.m;
    CHECK(ss_multiply(NULL, &m, 0, x, SS_FLOAT32, 1, y) == SS_BAD_ARGUMENT);
    CHECK(ss_multiply(pool, NULL, 0, x, SS_FLOAT32, 1, y) == SS_BAD_ARGUMENT);
    CHECK(ss_multiply(pool, &m, 0, NULL, SS_FLOAT32, 1, y) == SS_BAD_ARGUMENT);
    CHECK(ss_multiply(pool, &m, 0, x, 7, 1, y) == SS_BAD_ARGUMENT);
    CHECK(ss_multiply(pool, &m, 1, x, SS_FLOAT32, 1, y) == SS_OUT_OF_RANGE);
    CHECK(ss_multiply(pool, &m, 0, (char *)x + 1, SS_FLOAT32, 1, y) == SS_MISALIGNED);
    CHECK(ss_multiply(pool, &m, 0, x, SS_FLOAT32, -1, y) == SS_BAD_SHAPE);
    CHECK(ss_multiply(pool, &m, 0, x, SS_FLOAT32, 0, NULL) == SS_OK);
    m = o.m, m.weight_bytes--;
    CHECK(ss_multiply(pool, &m, 0, x, SS_FLOAT32, 1, y) == SS_TOO_SMALL);
    m = o.m, m.scales_bytes--;
    CHECK(ss_multiply(pool, &m, 0, x, SS_FLOAT32, 1, y) == SS_TOO_SMALL);
    m = o.m, m.members = INT32_MAX, m.rows = INT64_MAX / 2;
    CHECK(ss_multiply(pool, &m, 0, x, SS_FLOAT32, 1, y) == SS_BAD_SHAPE);
    m = o.m, m.group = 48;
    CHECK(ss_multiply(pool, &m, 0, x, SS_FLOAT32, 1, y) == SS_BAD_SHAPE);
    m = o.m, m.columns = 63;
    CHECK(ss_multiply(pool, &m, 0, x, SS_FLOAT32, 1, y) == SS_BAD_SHAPE);
    int32_t one = 1, none = 0, before = -1;
    CHECK(ss_multiply_members(pool, &o.m, x, SS_FLOAT32, 1, &one, &none, 1, y) == SS_OUT_OF_RANGE);
    CHECK(ss_multiply_members(pool, &o.m, x, SS_FLOAT32, 1, &none, &before, 1, y) == SS_OUT_OF_RANGE);
    int64_t row = 3;
    CHECK(ss_unpack_rows(pool, &o.m, 0, &row, 1, x) == SS_OUT_OF_RANGE);
    CHECK(ss_experts(pool, &o.m, &o.m, &o.m, x, SS_FLOAT32, 1, &none, x, 1, y) == SS_BAD_SHAPE);
    ss_pool *unused;
    CHECK(ss_pool_create(0, 0, &unused) == SS_BAD_ARGUMENT);
    CHECK(ss_pool_create(1, 99, &unused) == SS_UNSUPPORTED);
    drop(&o);
}

typedef struct caller {
    ss_pool *pool;
    const owned *o;
    const float *x, *expected;
} caller;

static void *call_often(void *argument) {
    const caller *c = argument;
    float y[2 * 200];
    for (int i = 0; i < 60; i++) {
        memset(y, 0, sizeof y);
        CHECK(ss_multiply(c->pool, &c->o->m, 0, c->x, SS_FLOAT32, 2, y) == SS_OK);
        CHECK(!memcmp(y, c->expected, sizeof y));
    }
    return NULL;
}

/* Several callers at once, each of which wants the same few threads; then a forked child, which has none of them. */
static void contention(int32_t variant) {
    owned o = make(1, 200, 64, 4, 64, SS_FLOAT32);
    float *x = activations(2 * 64), expected[2 * 200];
    ss_pool *pool;
    CHECK(!ss_pool_create(5, variant, &pool));
    CHECK(!ss_multiply(pool, &o.m, 0, x, SS_FLOAT32, 2, expected));
    caller same = {.pool = pool, .o = &o, .x = x, .expected = expected};
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) CHECK(!pthread_create(&threads[i], NULL, call_often, &same));
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
#ifndef WITHOUT_FORK
    pid_t child = fork();
    if (!child) {
        call_often(&same);
        ss_pool_destroy(pool);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
#endif
    ss_pool_destroy(pool);
    for (int i = 0; i < 20; i++) { /* threads that have hardly started are ended cleanly too */
        CHECK(!ss_pool_create(4, variant, &pool));
        ss_pool_destroy(pool);
    }
    free(x);
    drop(&o);
}

static void count_piece(void *context, int64_t piece) { atomic_fetch_add(&((atomic_int *)context)[piece], 1); }

/* Every piece of a job is done once: for none, few, more than fit into a ticket's counts, and one job after another. */
static void sharing(int threads) {
    static atomic_int done[200001];
    const int64_t sizes[] = {0, 1, 2, 3, 5, 13, 65534, 65535, 65536, 131070, 131071, 200001};
    ss_pool *pool;
    ss_call call;
    CHECK(!ss_pool_create(threads, 0, &pool));
    CHECK(!ss_begin(pool, 0, &call));
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int again = 0; again < (sizes[s] < 100 ? 200 : 2); again++) {
            ss_share(&call, count_piece, done, sizes[s]);
            for (int64_t i = 0; i < 200001; i += sizes[s] < 100 && i == 20 ? 199980 : 1)
                CHECK(atomic_exchange(&done[i], 0) == (i < sizes[s]));
        }
    ss_end(&call);
    ss_pool_destroy(pool);
}

/* Pieces have every row once, and those of the halves as many rows as whole panels allow. */
static void halves(int threads) {
    for (int64_t matrices = 1; matrices <= 3; matrices++)
        for (int64_t rows = 1; rows < 3000; rows += 37) {
            ss_matrix m = {.members = 3, .rows = rows, .columns = 2560, .bits = 4, .group = 64, .type = SS_BFLOAT16};
            int64_t pieces = ss_piece_count(&m, matrices, threads);
            CHECK(pieces >= 1 && ss_piece_begin(&m, pieces, 0) == 0 && ss_piece_begin(&m, pieces, pieces) == rows);
            for (int64_t p = 0; p < pieces; p++) CHECK(ss_piece_begin(&m, pieces, p) < ss_piece_begin(&m, pieces, p + 1));
            if (pieces % 2 == 0) CHECK(llabs(2 * ss_piece_begin(&m, pieces, pieces / 2) - rows) <= 4);
            else CHECK(matrices == 2 || pieces == (rows + 3) / 4);
        }
}

int main(int count, char **arguments) {
    for (int threads = 1; threads <= 4; threads++) sharing(threads), halves(threads);
    for (int32_t variant = 0; ss_variant_name(variant); variant++) {
        if (!ss_variant_runnable(variant)) continue;
        if (count > 1 && strcmp(arguments[1], ss_variant_name(variant))) continue;
        ss_pool *pool, *other;
        CHECK(!ss_pool_create(3, variant, &pool));
        CHECK(!ss_pool_create(1, variant, &other));
        for (int type = 0; type < 2; type++) {
            for (int bits = 4; bits <= 8; bits += 4)
                for (int group = 32; group <= 128; group *= 2)
                    for (int groups = 1; groups <= 11; groups += 5)
                        products(pool, other, 1 + groups * 2, groups * group, bits, group, type);
            for (int64_t columns = 1; columns < 70; columns += 17) products(pool, other, 7, columns, 0, 0, type);
        }
        products(pool, other, 2, 515 * 32, 4, 32, SS_BFLOAT16);
        experts(pool, other, 96, 64, 4, 32);
        experts(pool, other, 128, 128, 8, 128);
        refusals(pool);
        ss_pool_destroy(pool);
        ss_pool_destroy(other);
        contention(variant);
        printf("%s ok\n", ss_variant_name(variant));
    }
    return 0;
}
