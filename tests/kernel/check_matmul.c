/* Matrix products: values, dequantisation to the bit, and independence of rows and tokens; with
 * activations as integers, the bits of the reference. */
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ck.h"

#define TOKENS_MAX 70u

/* How x meets 4-bit weights. */
typedef enum act { ACT_F32, ACT_I16, ACT_I8 } act;

typedef struct problem {
    matrix w;
    act act;
    uint32_t n_tokens;
    const float *x[TOKENS_MAX]; /* plain order, for the definition */
    const float *xp[TOKENS_MAX];
    matmul_fn fn;
    float *scratch;
} problem;

/* Output rows: y[t] starts at any float; elements around [row0, row1) are watched. */
typedef struct output {
    float *y[TOKENS_MAX];
} output;

static uint64_t row_bytes_of(mat_type type, uint32_t cols)
{
    return type == MAT_Q4 ? cols / 2 : type == MAT_Q8 ? cols : cols * (type == MAT_BF16 ? 2u : 4u);
}

static void store_bf16(uint8_t *p, float f)
{
    const uint16_t h = f32_to_bf16(f);
    p[0] = (uint8_t)h;
    p[1] = (uint8_t)(h >> 8);
}

/* Values of the matrix; for one-hot inputs every weight must be a plain finite number. */
static void draw_matrix(check *c, matrix *w, uint32_t rows, uint32_t cols, mat_type type, values v)
{
    *w = (matrix){.type = type, .rows = rows, .cols = cols, .row_bytes = row_bytes_of(type, cols)};
    const size_t n = (size_t)rows * cols, n_bytes = (size_t)rows * (size_t)w->row_bytes;
    uint8_t *data = check_bytes(c, n_bytes);
    w->data = data;
    if (type == MAT_BF16 || type == MAT_F32) {
        for (size_t i = 0; i < n; i++) {
            const float f = check_draw(c, v, 1e12);
            if (type == MAT_BF16)
                store_bf16(data + 2 * i, f);
            else
                memcpy(data + 4 * i, &f, sizeof f);
        }
        return;
    }
    for (size_t i = 0; i < n_bytes; i++)
        data[i] = (uint8_t)check_random(c);
    const size_t n_groups = n / MODEL_QUANT_GROUP;
    uint8_t *scales = check_bytes(c, n_groups * 2), *biases = check_bytes(c, n_groups * 2);
    for (size_t i = 0; i < n_groups; i++) {
        const float s = check_draw(c, v, 1e12);
        store_bf16(scales + 2 * i, s);
        /* mostly as quantisers choose it: the range straddles zero */
        const float b = check_below(c, 4) == 0 ? check_draw(c, v, 1e12)
                                               : s * (type == MAT_Q4 ? -8.0f : -128.0f);
        store_bf16(biases + 2 * i, b);
    }
    w->scales = scales;
    w->biases = biases;
}

static double weight(const matrix *m, size_t r, size_t j)
{
    const uint8_t *row = m->data + r * m->row_bytes;
    if (m->type == MAT_F32) {
        float f;
        memcpy(&f, row + 4 * j, sizeof f);
        return (double)f;
    }
    if (m->type == MAT_BF16) return (double)load_bf16(row + 2 * j);
    const size_t group = r * (m->cols / MODEL_QUANT_GROUP) + j / MODEL_QUANT_GROUP;
    const double code = m->type == MAT_Q8 ? row[j] : row[j / 2] >> (j % 2 * 4) & 15;
    return (double)load_bf16(m->scales + 2 * group) * code +
           (double)load_bf16(m->biases + 2 * group);
}

static kernel_prep *prep_of(const cpu_kernels *k, act a)
{
    return a == ACT_F32 ? k->prep_q4 : a == ACT_I16 ? k->prep_i16 : k->prep_i8;
}

static matmul_fn fn_of(const cpu_kernels *k, mat_type type, act a)
{
    return a == ACT_I16 ? k->matmul_i16 : a == ACT_I8 ? k->matmul_i8 : kernels_matmul(k, type);
}

/* Floats that hold `cols` prepared columns. */
static size_t prep_floats(act a, uint32_t cols)
{
    const uint32_t group = a == ACT_F32   ? PREP_BYTES_F32
                           : a == ACT_I16 ? PREP_BYTES_I16
                                          : PREP_BYTES_I8;
    return (size_t)(cols / MODEL_QUANT_GROUP) * group / sizeof(float);
}

static void draw_problem(check *c, problem *p, mat_type type)
{
    static const uint32_t row_list[] = {1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 64, 97};
    static const uint32_t group_list[] = {1, 2, 3, 5, 8, 9, 32, 64};
    static const uint32_t token_list[] = {1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 24, 31, 48, 65};
    const values vw = check_values(c), vx = check_values(c);
    uint32_t cols = CHECK_PICK(c, group_list) * 64;
    if ((type == MAT_BF16 || type == MAT_F32) && check_below(c, 2) == 0)
        cols = cols / 4 + check_below(c, 3) * 16;
    uint32_t rows = CHECK_PICK(c, row_list);
    p->n_tokens = CHECK_PICK(c, token_list);
    while ((size_t)rows * cols * p->n_tokens > 600000) /* keeps a case short, also emulated */
        if (p->n_tokens > 13)
            p->n_tokens = p->n_tokens / 2 + 1;
        else
            rows = rows / 2 + 1;
    check_shape(c, "rows %u, cols %u, tokens %u, weights %s, x %s", rows, cols, p->n_tokens,
                values_name(vw), values_name(vx));
    draw_matrix(c, &p->w, rows, cols, type, vw);
    const size_t stride = cols + 16;
    float *x = check_floats(c, stride * p->n_tokens - 16);
    const size_t n_prepared = prep_floats(p->act, cols);
    float *xp = check_floats(c, n_prepared * p->n_tokens);
    for (uint32_t t = 0; t < p->n_tokens; t++) {
        check_fill(c, x + stride * t, cols, vx, 1e12);
        p->x[t] = p->xp[t] = x + stride * t;
        if (type != MAT_Q4) continue;
        prep_of(c->k, p->act)(p->x[t], cols, xp + n_prepared * t);
        p->xp[t] = xp + n_prepared * t;
    }
    p->fn = fn_of(c->k, type, p->act);
    p->scratch = check_floats(c, MATMUL_SCRATCH_FLOATS(cols));
}

static void draw_output(check *c, output *o, uint32_t rows, uint32_t n_tokens)
{
    const size_t stride = rows + check_below(c, 5), lead = check_below(c, 4);
    float *y = check_floats(c, stride * n_tokens + lead);
    for (uint32_t t = 0; t < n_tokens; t++)
        o->y[t] = y + lead + stride * t;
}

/* Against the formula in f64. Any order with at least 16 partial sums meets the fail bound. */
static void compare(check *c, const problem *p, const output *o)
{
    const double n = (double)p->w.cols;
    const double warn = (sqrt(n) + 4) * EPS, fail = (n / 16 + 8) * EPS;
    for (size_t r = 0; r < p->w.rows; r++)
        for (uint32_t t = 0; t < p->n_tokens; t++) {
            double sum = 0, mag = 0, floor = 0;
            for (size_t j = 0; j < p->w.cols; j++) {
                const double w = weight(&p->w, r, j), x = (double)p->x[t][j];
                sum += w * x;
                mag += fabs(w * x);
                floor += TINY * (1 + fabs(x)); /* weights, products may round to a denormal */
            }
            check_close(c, "y", t, r, o->y[t][r], sum, warn * mag + floor, fail * mag + floor);
        }
}

/* Tokens first, first + step, .. of the problem, rows [row0, row1): the same bits as in `all`. */
static void compare_part(check *c, const problem *p, const output *all, uint32_t row0,
                         uint32_t row1, uint32_t first, uint32_t step, uint32_t n)
{
    const float *x[TOKENS_MAX];
    output o;
    matrix w = p->w;
    if (c->n_blocks + 4 > CHECK_BLOCKS_MAX) return;
    if (check_below(c, 2) == 0) w.next = (matrix_row_ref){&p->w, check_below(c, w.rows)};
    draw_output(c, &o, p->w.rows, n);
    for (uint32_t i = 0; i < n; i++)
        x[i] = p->xp[first + i * step];
    p->fn(&w, row0, row1, x, n, o.y, p->scratch);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t r = 0; r < p->w.rows; r++)
            if (r >= row0 && r < row1)
                check_same(c, "part y", i, r, o.y[i][r], all->y[first + i * step][r]);
            else
                check_unwritten(c, "y", i, r, o.y[i][r]);
}

static void compare_parts(check *c, const problem *p, const output *all)
{
    for (uint32_t i = 0; i < 6; i++) {
        const uint32_t row0 = check_below(c, p->w.rows + 1);
        const uint32_t row1 = row0 + check_below(c, p->w.rows + 1 - row0);
        const uint32_t first = check_below(c, p->n_tokens), step = 1 + check_below(c, 3);
        const uint32_t most = (p->n_tokens - 1 - first) / step + 1;
        compare_part(c, p, all, row0, row1, first, step, 1);
        compare_part(c, p, all, row0, row1, first, step, 1 + check_below(c, most));
        compare_part(c, p, all, 0, p->w.rows, first, step, 1 + check_below(c, most));
    }
}

/* x = e_j picks column j: the dequantised weight itself, to the bit (a zero may change sign). */
static void compare_one_hot(check *c, problem *p)
{
    const uint32_t cols = p->w.cols, j = check_below(c, cols);
    float *x = check_floats(c, cols), *xp = check_floats(c, cols);
    for (uint32_t i = 0; i < cols; i++)
        x[i] = i == j ? 1.0f : 0.0f;
    if (p->w.type == MAT_Q4) c->k->prep_q4(x, cols, xp);
    const float *in = p->w.type == MAT_Q4 ? xp : x;
    output o;
    draw_output(c, &o, p->w.rows, 1);
    p->fn(&p->w, 0, p->w.rows, &in, 1, o.y, p->scratch);
    for (uint32_t r = 0; r < p->w.rows; r++)
        check_same(c, "one-hot y", 0, r, o.y[0][r] + 0.0f, (float)weight(&p->w, r, j) + 0.0f);
}

static void check_matmul(check *c, mat_type type)
{
    problem p = {.act = ACT_F32};
    output all;
    draw_problem(c, &p, type);
    draw_output(c, &all, p.w.rows, p.n_tokens);
    p.fn(&p.w, 0, p.w.rows, p.xp, p.n_tokens, all.y, p.scratch);
    compare(c, &p, &all);
    compare_one_hot(c, &p);
    compare_parts(c, &p, &all);
}

/* ---- Activations as integers ---- */

/* q of a group as the definition has it. */
static void quantise(const float *x, float q_max, double *q, float *scale)
{
    float top = 0;
    for (uint32_t i = 0; i < MODEL_QUANT_GROUP; i++)
        top = fmaxf(top, fabsf(x[i]));
    *scale = top < PREP_LEAST ? 0 : top / q_max;
    for (uint32_t i = 0; i < MODEL_QUANT_GROUP; i++)
        q[i] = top < PREP_LEAST ? 0 : nearbyint((double)(x[i] * (q_max / top)));
}

/* Against exact sums of the quantised inputs; the chain over the groups may round twice for each.
 */
static void compare_int(check *c, const problem *p, const output *o)
{
    const uint32_t n_groups = p->w.cols / MODEL_QUANT_GROUP;
    const double warn = (sqrt(2.0 * n_groups) + 4) * EPS, fail = (2.0 * n_groups + 8) * EPS;
    const float q_max = p->act == ACT_I16 ? PREP_I16_MAX : PREP_I8_MAX;
    for (uint32_t t = 0; t < p->n_tokens; t++)
        for (size_t r = 0; r < p->w.rows; r++) {
            double sum = 0, mag = 0, floor = 0, q[MODEL_QUANT_GROUP];
            for (size_t g = 0; g < n_groups; g++) {
                const size_t param = 2 * (r * n_groups + g);
                double codes = 0, total = 0;
                float scale;
                quantise(p->x[t] + g * MODEL_QUANT_GROUP, q_max, q, &scale);
                for (size_t i = 0; i < MODEL_QUANT_GROUP; i++) {
                    const uint8_t *row = p->w.data + r * p->w.row_bytes + g * 32;
                    codes += (row[i / 2] >> (i % 2 * 4) & 15) * q[i];
                    total += q[i];
                }
                const double a = (double)load_bf16(p->w.scales + param) * codes * (double)scale;
                const double b = (double)load_bf16(p->w.biases + param) * total * (double)scale;
                sum += a + b;
                mag += fabs(a) + fabs(b);
                floor += TINY * (2 + fabs(codes) + fabs(total));
            }
            check_close(c, "y", t, r, o->y[t][r], sum, warn * mag + floor, fail * mag + floor);
        }
}

/* All variants agree with the reference to the bit. */
static void compare_reference(check *c, const problem *p, const output *o)
{
    cpu_kernels ref;
    output want;
    const float *x[TOKENS_MAX];
    if (cpu_kernels_select(&ref, "ref", NULL) != CALLA_OK) return;
    const size_t n_prepared = prep_floats(p->act, p->w.cols);
    float *xp = check_floats(c, n_prepared * p->n_tokens);
    for (uint32_t t = 0; t < p->n_tokens; t++) {
        x[t] = xp + n_prepared * t;
        prep_of(&ref, p->act)(p->x[t], p->w.cols, xp + n_prepared * t);
    }
    draw_output(c, &want, p->w.rows, p->n_tokens);
    fn_of(&ref, MAT_Q4, p->act)(&p->w, 0, p->w.rows, x, p->n_tokens, want.y, p->scratch);
    for (uint32_t t = 0; t < p->n_tokens; t++)
        for (uint32_t r = 0; r < p->w.rows; r++)
            check_same(c, "y, by the reference", t, r, o->y[t][r], want.y[t][r]);
}

static void check_matmul_int(check *c, act a)
{
    problem p = {.act = a};
    output all;
    draw_problem(c, &p, MAT_Q4);
    draw_output(c, &all, p.w.rows, p.n_tokens);
    p.fn(&p.w, 0, p.w.rows, p.xp, p.n_tokens, all.y, p.scratch);
    compare_int(c, &p, &all);
    compare_reference(c, &p, &all);
    compare_parts(c, &p, &all);
}

void check_matmul_i16(check *c)
{
    check_matmul_int(c, ACT_I16);
}

void check_matmul_i8(check *c)
{
    check_matmul_int(c, ACT_I8);
}

/* Codes of a group in ascending order, whatever the variant's order is. */
static int by_code(const void *a, const void *b)
{
    const int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

/* Planes lie one after the other or, `woven`, in turns of eight bytes. */
static void group_codes(act a, bool woven, const uint8_t *at, int codes[MODEL_QUANT_GROUP])
{
    for (uint32_t i = 0; i < MODEL_QUANT_GROUP; i++) {
        const uint32_t high = woven ? i / 8 * 16 + i % 8 : i;
        codes[i] = (int8_t)at[high];
        if (a == ACT_I16)
            codes[i] = 256 * codes[i] + (int8_t)at[high + (woven ? 8 : MODEL_QUANT_GROUP)];
    }
    qsort(codes, MODEL_QUANT_GROUP, sizeof *codes, by_code);
}

static bool group_holds(act a, const uint8_t *at, const int want[MODEL_QUANT_GROUP])
{
    int codes[MODEL_QUANT_GROUP];
    group_codes(a, false, at, codes);
    if (memcmp(codes, want, sizeof codes) == 0) return true;
    if (a != ACT_I16) return false;
    group_codes(a, true, at, codes);
    return memcmp(codes, want, sizeof codes) == 0;
}

static void check_prep_int(check *c, act a)
{
    const uint32_t n_groups = 1 + check_below(c, 40), cols = n_groups * MODEL_QUANT_GROUP;
    const size_t group_bytes = prep_floats(a, MODEL_QUANT_GROUP) * sizeof(float);
    const float q_max = a == ACT_I16 ? PREP_I16_MAX : PREP_I8_MAX;
    const values v = check_values(c);
    check_shape(c, "cols %u, x %s", cols, values_name(v));
    float *x = check_floats(c, cols), *xp = check_floats(c, prep_floats(a, cols));
    check_fill(c, x, cols, v, 1e12);
    prep_of(c->k, a)(x, cols, xp);
    for (uint32_t g = 0; g < n_groups; g++) {
        const uint8_t *at = (const uint8_t *)xp + g * group_bytes;
        int want[MODEL_QUANT_GROUP];
        double q[MODEL_QUANT_GROUP], total = 0;
        float params[2], scale;
        quantise(x + (size_t)g * MODEL_QUANT_GROUP, q_max, q, &scale);
        for (uint32_t i = 0; i < MODEL_QUANT_GROUP; i++) {
            want[i] = (int)q[i];
            total += q[i];
        }
        qsort(want, MODEL_QUANT_GROUP, sizeof *want, by_code);
        if (!group_holds(a, at, want)) check_fail(c, "group %u has other codes", g);
        memcpy(params, at + group_bytes - sizeof params, sizeof params);
        check_same(c, "scale", g, 0, params[0], scale);
        check_same(c, "sum", g, 0, params[1] + 0.0f, scale * (float)total + 0.0f);
    }
}

void check_prep_i16(check *c)
{
    check_prep_int(c, ACT_I16);
}

void check_prep_i8(check *c)
{
    check_prep_int(c, ACT_I8);
}

/* ---- Each storage ---- */

void check_matmul_q4(check *c)
{
    check_matmul(c, MAT_Q4);
}

void check_matmul_q8(check *c)
{
    check_matmul(c, MAT_Q8);
}

void check_matmul_bf16(check *c)
{
    check_matmul(c, MAT_BF16);
}

void check_matmul_f32(check *c)
{
    check_matmul(c, MAT_F32);
}

void check_prep_q4(check *c)
{
    const uint32_t cols = 64 * (1 + check_below(c, 70));
    check_shape(c, "cols %u", cols);
    float *x = check_floats(c, cols), *xp = check_floats(c, cols);
    for (uint32_t i = 0; i < cols; i++)
        x[i] = (float)i;
    c->k->prep_q4(x, cols, xp);
    for (uint32_t g = 0; g < cols; g += 64) {
        uint64_t seen = 0;
        for (uint32_t i = 0; i < 64; i++) {
            const double d = (double)xp[g + i] - g;
            if (d >= 0 && d < 64) seen |= (uint64_t)1 << (unsigned)d;
        }
        if (seen != UINT64_MAX) check_fail(c, "group %u is not a permutation of itself", g / 64);
    }
}

/* ---- Benchmark ---- */

typedef struct job {
    matrix w;
    matmul_fn fn;
    kernel_prep *prep;
    uint32_t n_tokens;
    const float *x[512];
    float *y[512], *xp, *scratch;
} job;

static void call_matmul(void *ctx)
{
    job *j = ctx;
    j->fn(&j->w, 0, j->w.rows, j->x, j->n_tokens, j->y, j->scratch);
}

static void call_prep(void *ctx)
{
    job *j = ctx;
    j->prep(j->x[0], j->w.cols, j->xp);
}

static uint8_t *bench_bf16(size_t n, double magnitude)
{
    uint8_t *p = bench_bytes(2 * n);
    for (size_t i = 0; i < n; i++)
        store_bf16(p + 2 * i, (float)(((double)p[2 * i] / 128 - 1) * magnitude));
    return p;
}

static void bench_shape(bench *b, mat_type type, act a, uint32_t rows, uint32_t cols,
                        uint32_t n_tokens)
{
    static job j;
    const size_t n = (size_t)rows * cols;
    j = (job){
        .w = {.type = type, .rows = rows, .cols = cols, .row_bytes = row_bytes_of(type, cols)},
        .fn = fn_of(b->k, type, a),
        .n_tokens = n_tokens};
    double n_bytes = (double)rows * (double)j.w.row_bytes;
    j.w.data = type == MAT_F32    ? (uint8_t *)bench_floats(n)
               : type == MAT_BF16 ? bench_bf16(n, 1)
                                  : bench_bytes(n * (type == MAT_Q4 ? 1 : 2) / 2);
    if (type == MAT_Q4 || type == MAT_Q8) {
        j.w.scales = bench_bf16(n / 64, 0.01);
        j.w.biases = bench_bf16(n / 64, 0.1);
        n_bytes += (double)n / 16;
    }
    j.scratch = bench_floats(MATMUL_SCRATCH_FLOATS(cols));
    float *x = bench_floats((size_t)cols * n_tokens), *y = bench_floats((size_t)rows * n_tokens);
    for (uint32_t t = 0; t < n_tokens; t++) {
        float *prepared = a == ACT_F32 ? NULL : bench_floats(cols);
        j.x[t] = x + (size_t)cols * t;
        if (prepared != NULL) prep_of(b->k, a)(j.x[t], cols, prepared);
        if (prepared != NULL) j.x[t] = prepared;
        j.y[t] = y + (size_t)rows * t;
    }
    n_bytes += 4.0 * n_tokens * ((double)rows + cols);
    char name[64];
    snprintf(name, sizeof name, "[%u %u] tokens %u", rows, cols, n_tokens);
    bench_run(b, name, n_bytes, 2.0 * (double)n * n_tokens, call_matmul, &j);
}

/* Decode from the second-level cache, from memory; an expert's share of a prefill chunk; a dense
 * layer's. */
static void bench_matmul(bench *b, mat_type type, act a)
{
    bench_shape(b, type, a, 512, 2048, 1);
    bench_shape(b, type, a, type == MAT_Q4 ? 131072 : 16384, 2048, 1);
    bench_shape(b, type, a, 2048, 512, 1);
    bench_shape(b, type, a, 512, 2048, 2);
    bench_shape(b, type, a, 512, 2048, 4);
    bench_shape(b, type, a, 512, 2048, 8);
    bench_shape(b, type, a, 512, 2048, 16);
    bench_shape(b, type, a, 512, 2048, 64);
    bench_shape(b, type, a, 512, 2048, 512);
    bench_shape(b, type, a, 2048, 512, 64);
    bench_shape(b, type, a, 1024, 4096, 512);
}

void bench_matmul_q4(bench *b)
{
    bench_matmul(b, MAT_Q4, ACT_F32);
}

void bench_matmul_q8(bench *b)
{
    bench_matmul(b, MAT_Q8, ACT_F32);
}

void bench_matmul_bf16(bench *b)
{
    bench_matmul(b, MAT_BF16, ACT_F32);
}

void bench_matmul_f32(bench *b)
{
    bench_matmul(b, MAT_F32, ACT_F32);
}

void bench_matmul_i16(bench *b)
{
    bench_matmul(b, MAT_Q4, ACT_I16);
}

void bench_matmul_i8(bench *b)
{
    bench_matmul(b, MAT_Q4, ACT_I8);
}

static void bench_prep(bench *b, act a)
{
    static job j;
    j = (job){.w = {.cols = 2048}, .prep = prep_of(b->k, a), .xp = bench_floats(2048)};
    j.x[0] = bench_floats(2048);
    bench_run(b, "cols 2048", 4 * 2.0 * 2048, 0, call_prep, &j);
}

void bench_prep_q4(bench *b)
{
    bench_prep(b, ACT_F32);
}

void bench_prep_i16(bench *b)
{
    bench_prep(b, ACT_I16);
}

void bench_prep_i8(bench *b)
{
    bench_prep(b, ACT_I8);
}
