/* util.h, and the harness itself. */
#include <string.h>

#include "check/check.h"
#include "kernels/args_util.h"

static void fill_and_copy(check *c)
{
    gpu_context *g = check_context(c, &check_nano);
    const uint32_t n = 4 * (1 + check_below(c, 2000));
    const uint32_t value = (uint32_t)check_random(c);
    check_shape(c, "n %u", n);
    const gpu_view x = check_view(c, "x", (uint64_t)n * 4, NULL);
    const gpu_view y = check_view(c, "y", (uint64_t)n * 4, NULL);
    const util_fill_args fill = {n, value};
    rec_dispatch(g->rec, KERNEL_util_fill, (n + 1023) / 1024, 1);
    rec_write(g->rec, x);
    rec_args(g->rec, &fill, sizeof fill);
    const util_copy_args copy = {n};
    rec_dispatch(g->rec, KERNEL_util_copy, (n + 1023) / 1024, 1);
    rec_read(g->rec, x);
    rec_write(g->rec, y);
    rec_args(g->rec, &copy, sizeof copy);
    if (!check_run(c)) return;
    uint32_t *want = check_host(c, (uint64_t)n * 4);
    for (uint32_t i = 0; i < n; i++)
        want[i] = value;
    check_same_u32(c, "y", check_fetch(c, y), want, 1, n);
}

static void sum(check *c)
{
    gpu_context *g = check_context(c, &check_nano);
    const uint32_t n = 1 + check_below(c, 40);
    check_shape(c, "n %u", n);
    const float *x = check_floats(c, (uint64_t)n * 256, -1, 1);
    const gpu_view vx = check_view(c, "x", (uint64_t)n * 1024, x);
    const gpu_view vy = check_view(c, "y", (uint64_t)n * 4, NULL);
    const util_sum_args a = {check_uniform(c, 0.5f, 2)};
    rec_dispatch(g->rec, KERNEL_util_sum, n, 1);
    rec_read(g->rec, vx);
    rec_write(g->rec, vy);
    rec_args(g->rec, &a, sizeof a);
    if (!check_run(c)) return;
    float *want = check_host(c, (uint64_t)n * 4);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t s = 0; s < 8; s++) {
            float t[32];
            for (uint32_t l = 0; l < 32; l++)
                t[l] = x[i * 256 + s * 32 + l] * a.scale;
            for (uint32_t m = 16; m > 0; m /= 2)
                for (uint32_t l = 0; l < m; l++)
                    t[l] += t[l + m];
            want[i] += t[0];
        }
    check_same_f32(c, "y", check_fetch(c, vy), want, 1, n);
}

/* The bandwidth of a copy, the ceiling that other lines are held against. */
static void copy_bench(check *c)
{
    gpu_context *g = check_context(c, &shape_35b);
    const uint32_t n = check_on_emulator(c) ? 1u << 20 : 1u << 28;
    check_shape(c, "%u MiB", n >> 18);
    const gpu_view x = check_view(c, "x", (uint64_t)n * 4, NULL);
    const gpu_view y = check_view(c, "y", (uint64_t)n * 4, NULL);
    const util_fill_args fill = {n, 1};
    const util_copy_args copy = {n};
    rec_dispatch(g->rec, KERNEL_util_fill, n / 1024, 1);
    rec_write(g->rec, x);
    rec_args(g->rec, &fill, sizeof fill);
    rec_cost(g->rec, 4.0 * n, 0);
    rec_dispatch(g->rec, KERNEL_util_copy, n / 1024, 1);
    rec_read(g->rec, x);
    rec_write(g->rec, y);
    rec_args(g->rec, &copy, sizeof copy);
    rec_cost(g->rec, 8.0 * n, 0);
    check_run(c);
}

const check_case check_util_cases[] = {{"util_fill_copy", fill_and_copy, 0},
                                       {"util_sum", sum, 0},
                                       {"util_copy_bench", copy_bench, CHECK_BENCH},
                                       {NULL, NULL, 0}};
