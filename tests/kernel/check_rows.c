/* Norms, activations and the convolution: one row of floats at a time. */
#include "check.h"

#include <math.h>
#include <stdio.h>

static const uint32_t n_list[] = {16, 32, 48, 64, 80, 128, 240, 256, 512, 2048, 4096};

static double silu64(double x)
{
    return x / (1 + exp(-x));
}

/* What f32 may lose in silu(x) beyond rounding: e^-x overflows below x = -88, where the result is
 * less than |x| times the smallest normal number. */
static double silu_floor(double x)
{
    return fabs(x) * (double)FLT_MIN + TINY;
}

static float *draw_row(check *c, uint32_t n, values v, double large)
{
    float *x = check_floats(c, n);
    check_fill(c, x, n, v, large);
    return x;
}

/* ---- Norms ---- */

/* The f64 factor 1 / sqrt(sum / div + eps); relative error of its f32 twin at most factor_error. */
static double inv_norm(const float *x, uint32_t n, double div, double eps)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return 1 / sqrt(sum / div + eps);
}

static double factor_error(uint32_t n)
{
    return (n / 32.0 + 8) * EPS;
}

void check_rmsnorm(check *c)
{
    const uint32_t n = CHECK_PICK(c, n_list);
    const values vx = check_values(c), vw = check_values(c);
    const float eps = check_below(c, 4) == 0 ? 1e-5f : 1e-6f;
    const bool in_place = check_below(c, 2) == 0;
    check_shape(c, "n %u, x %s, w %s%s", n, values_name(vx), values_name(vw),
                in_place ? ", in place" : "");
    const float *x = draw_row(c, n, vx, 1e15);
    const size_t lead = check_below(c, 4); /* w need not be aligned */
    const float *w = draw_row(c, n + (uint32_t)lead, vw, 1e10) + lead;
    float *y = in_place ? check_copy(c, x, n) : check_floats(c, n);
    c->k->rmsnorm(in_place ? y : x, w, n, eps, y);
    const double inv = inv_norm(x, n, n, (double)eps);
    for (uint32_t i = 0; i < n; i++) {
        const double want = (double)x[i] * inv * (double)w[i],
                     floor = TINY * (1 + fabs((double)w[i]));
        check_close(c, "y", 0, i, y[i], want, fabs(want) * 8 * EPS + floor,
                    fabs(want) * factor_error(n) + floor);
    }
}

void check_l2norm(check *c)
{
    const uint32_t n = CHECK_PICK(c, n_list);
    const values v = check_values(c);
    const float scale = check_below(c, 2) == 0 ? 1.0f : 0.08838835f, eps = 1e-6f;
    const bool in_place = check_below(c, 2) == 0;
    check_shape(c, "n %u, x %s, scale %g%s", n, values_name(v), (double)scale,
                in_place ? ", in place" : "");
    const float *x = draw_row(c, n, v, 1e15);
    float *y = in_place ? check_copy(c, x, n) : check_floats(c, n);
    c->k->l2norm(in_place ? y : x, n, eps, scale, y);
    const double inv = inv_norm(x, n, 1, (double)eps) * (double)scale;
    for (uint32_t i = 0; i < n; i++) {
        const double want = (double)x[i] * inv;
        check_close(c, "y", 0, i, y[i], want, fabs(want) * 8 * EPS + 2 * TINY,
                    fabs(want) * factor_error(n) + 2 * TINY);
    }
}

void check_gated_rmsnorm(check *c)
{
    const uint32_t n = CHECK_PICK(c, n_list), alias = check_below(c, 3);
    const values vx = check_values(c), vz = check_values(c), vw = check_values(c);
    const float eps = 1e-6f;
    check_shape(c, "n %u, x %s, z %s, w %s, y %s", n, values_name(vx), values_name(vz),
                values_name(vw),
                alias == 0   ? "apart"
                : alias == 1 ? "= x"
                             : "= z");
    const float *x = draw_row(c, n, vx, 1e15), *z = draw_row(c, n, vz, 1e10);
    const float *w = draw_row(c, n, vw, 1e10);
    float *y = alias == 0 ? check_floats(c, n) : check_copy(c, alias == 1 ? x : z, n);
    c->k->gated_rmsnorm(alias == 1 ? y : x, alias == 2 ? y : z, w, n, eps, y);
    const double inv = inv_norm(x, n, n, (double)eps);
    for (uint32_t i = 0; i < n; i++) {
        const double part = (double)x[i] * inv * (double)w[i], s = silu64((double)z[i]);
        const double floor =
            TINY * (1 + fabs((double)w[i])) * (1 + fabs(s)) + silu_floor((double)z[i]) * fabs(part);
        check_close(c, "y", 0, i, y[i], part * s, fabs(part * s) * 12 * EPS + floor,
                    fabs(part * s) * (factor_error(n) + 4 * EPS) + floor);
    }
}

/* ---- Activations ---- */

/* Arguments around every turning point of exp, besides the drawn families. */
static float draw_gate(check *c, values v)
{
    static const float edges[] = {-3.4e38f, -1e30f, -1000.0f, -104.0f, -103.0f, -89.0f, -88.8f,
                                  -88.7f,   -88.0f, -87.4f,   -87.3f,  -17.4f,  17.4f,  87.3f,
                                  88.7f,    89.0f,  104.0f,   1000.0f, 1e30f,   3.4e38f};
    if (check_below(c, 8) == 0) return CHECK_PICK(c, edges);
    if (check_below(c, 2) == 0) return (float)(check_unit(c) * 110);
    return check_draw(c, v, 1e20);
}

void check_silu_mul(check *c)
{
    const uint32_t n = CHECK_PICK(c, n_list), alias = check_below(c, 3);
    const values vg = check_values(c), vu = check_values(c);
    check_shape(c, "n %u, g %s, u %s, y %s", n, values_name(vg), values_name(vu),
                alias == 0   ? "apart"
                : alias == 1 ? "= g"
                             : "= u");
    float *g = check_floats(c, n), *u = draw_row(c, n, vu, 1.0);
    for (uint32_t i = 0; i < n; i++)
        g[i] = draw_gate(c, vg);
    float *y = alias == 0 ? check_floats(c, n) : check_copy(c, alias == 1 ? g : u, n);
    c->k->silu_mul(alias == 1 ? y : g, alias == 2 ? y : u, n, y);
    for (uint32_t i = 0; i < n; i++) {
        const double s = silu64((double)g[i]), want = s * (double)u[i];
        if (fabs(want) > (double)FLT_MAX) continue;
        const double floor = silu_floor((double)g[i]) * fabs((double)u[i]) + 2 * TINY;
        check_close(c, "y", 0, i, y[i], want, fabs(want) * 2 * EPS + floor,
                    fabs(want) * 4 * EPS + floor); /* exp 2 ulp, then three roundings */
    }
}

void check_sigmoid_mul(check *c)
{
    const uint32_t n = CHECK_PICK(c, n_list);
    const values vg = check_values(c), vy = check_values(c);
    check_shape(c, "n %u, g %s, y %s", n, values_name(vg), values_name(vy));
    float *g = check_floats(c, n), *y = draw_row(c, n, vy, 1e20);
    for (uint32_t i = 0; i < n; i++)
        g[i] = draw_gate(c, vg);
    const float *y0 = check_copy(c, y, n);
    c->k->sigmoid_mul(g, n, y);
    for (uint32_t i = 0; i < n; i++) {
        const double want = (double)y0[i] / (1 + exp(-(double)g[i]));
        const double floor = (double)FLT_MIN * fabs((double)y0[i]) + 2 * TINY;
        check_close(c, "y", 0, i, y[i], want, fabs(want) * 2 * EPS + floor,
                    fabs(want) * 4 * EPS + floor); /* exp 2 ulp, then three roundings */
    }
}

void check_axpy(check *c)
{
    const uint32_t n = CHECK_PICK(c, n_list);
    const values va = check_values(c), vx = check_values(c), vy = check_values(c);
    check_shape(c, "n %u, a %s, x %s, y %s", n, values_name(va), values_name(vx), values_name(vy));
    const float a = check_draw(c, va, 1e15), *x = draw_row(c, n, vx, 1e15);
    float *y = draw_row(c, n, vy, 1e15);
    const float *y0 = check_copy(c, y, n);
    c->k->axpy(a, x, n, y);
    for (uint32_t i = 0; i < n; i++) {
        const double term = (double)a * (double)x[i], mag = fabs(term) + fabs((double)y0[i]);
        check_close(c, "y", 0, i, y[i], term + (double)y0[i], mag * EPS + TINY,
                    mag * 2 * EPS + TINY);
    }
}

/* ---- Convolution ---- */

void check_conv_silu(check *c)
{
    const uint32_t n = 16 * (1 + check_below(c, 20));
    const uint32_t ch0 = 16 * check_below(c, n / 16);
    const uint32_t ch1 = ch0 + 16 * check_below(c, (n - ch0) / 16 + 1);
    const values vw = check_values(c), vx = check_values(c);
    check_shape(c, "channels [%u, %u) of %u, w %s, rows %s", ch0, ch1, n, values_name(vw),
                values_name(vx));
    const float *w = draw_row(c, n * MODEL_CONV_KERNEL + 3, vw, 1e10) + check_below(c, 4);
    const float *rows[MODEL_CONV_KERNEL];
    for (uint32_t j = 0; j < MODEL_CONV_KERNEL; j++)
        rows[j] = draw_row(c, n, vx, 1e10);
    float *y = check_floats(c, n);
    c->k->conv_silu(w, n, rows, ch0, ch1, y);
    for (uint32_t i = 0; i < n; i++) {
        if (i < ch0 || i >= ch1) {
            check_unwritten(c, "y", 0, i, y[i]);
            continue;
        }
        double sum = 0, mag = 0;
        for (uint32_t j = 0; j < MODEL_CONV_KERNEL; j++) {
            const double term = (double)w[j * n + i] * (double)rows[j][i];
            sum += term;
            mag += fabs(term);
        }
        /* the slope of silu is at most 1.1; the sum's error passes through it */
        const double want = silu64(sum), floor = silu_floor(sum) + 8 * TINY;
        check_close(c, "y", 0, i, y[i], want, 2 * EPS * mag + 4 * EPS * fabs(want) + floor,
                    6 * EPS * mag + 8 * EPS * fabs(want) + floor);
    }
}

/* ---- Benchmark ---- */

typedef struct job {
    const cpu_kernels *k;
    const float *b, *w, *rows[MODEL_CONV_KERNEL];
    float *a, *y;
    uint32_t n;
} job;

static void call_rmsnorm(void *ctx)
{
    const job *j = ctx;
    j->k->rmsnorm(j->a, j->w, j->n, 1e-6f, j->y);
}

static void call_l2norm(void *ctx)
{
    const job *j = ctx;
    j->k->l2norm(j->a, j->n, 1e-6f, 0.09f, j->y);
}

static void call_gated_rmsnorm(void *ctx)
{
    const job *j = ctx;
    j->k->gated_rmsnorm(j->a, j->b, j->w, j->n, 1e-6f, j->y);
}

static void call_silu_mul(void *ctx)
{
    const job *j = ctx;
    j->k->silu_mul(j->a, j->b, j->n, j->y);
}

static void call_sigmoid_mul(void *ctx)
{
    const job *j = ctx;
    j->k->sigmoid_mul(j->a, j->n, j->y);
}

static void call_axpy(void *ctx)
{
    const job *j = ctx;
    j->k->axpy(1e-9f, j->a, j->n, j->y);
}

static void call_conv_silu(void *ctx)
{
    const job *j = ctx;
    j->k->conv_silu(j->w, j->n, j->rows, 0, j->n, j->y);
}

/* n_rows: floats moved per element; flops count exp as one. */
static void bench_row(bench *b, uint32_t n, double n_rows, double flops, void (*call)(void *))
{
    static job j;
    j = (job){.k = b->k,
              .a = bench_floats(n),
              .b = bench_floats(n),
              .w = bench_floats((size_t)n * MODEL_CONV_KERNEL),
              .y = bench_floats(n),
              .n = n};
    for (uint32_t i = 0; i < MODEL_CONV_KERNEL; i++)
        j.rows[i] = bench_floats(n);
    if (call == call_sigmoid_mul) /* in place: must not wander off to denormals */
        for (uint32_t i = 0; i < n; i++)
            j.a[i] += 30;
    char name[32];
    snprintf(name, sizeof name, "n %u", n);
    bench_run(b, name, 4 * n_rows * n, flops * n, call, &j);
}

void bench_rmsnorm(bench *b)
{
    bench_row(b, 2048, 3, 4, call_rmsnorm);
}

void bench_l2norm(bench *b)
{
    bench_row(b, 128, 2, 3, call_l2norm);
}

void bench_gated_rmsnorm(bench *b)
{
    bench_row(b, 128, 4, 8, call_gated_rmsnorm);
}

void bench_silu_mul(bench *b)
{
    bench_row(b, 512, 3, 5, call_silu_mul);
}

void bench_sigmoid_mul(bench *b)
{
    bench_row(b, 4096, 3, 4, call_sigmoid_mul);
}

void bench_axpy(bench *b)
{
    bench_row(b, 2048, 3, 2, call_axpy);
}

void bench_conv_silu(bench *b)
{
    bench_row(b, 8192, 9, 12, call_conv_silu);
}
