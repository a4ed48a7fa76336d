/* The emulator itself: wrong kernels are caught, right ones are not, failures are reported once. */
#include <string.h>

#include "check/check.h"
#include "exec/gpu/simt/simt.h"
#include "simt_wrong.h"

extern const simt_kernel simt_wrong_kernels[];

#define N       256u /* words of a buffer */
#define VISIBLE 64u  /* words of a binding */

/* A device of its own with the wrong kernels, and two buffers. */
typedef struct bed {
    check *c;
    gpu_device *d;
    gpu_buffer *x, *y;
    calla_error err;
} bed;

static bool bed_open(bed *b, check *c, uint64_t seed)
{
    const gpu_simt_options o = {.seed = seed, .check = true};
    uint32_t words[N];
    for (uint32_t i = 0; i < N; i++)
        words[i] = i;
    *b = (bed){.c = c};
    calla_status st;
    TRY(simt_device_create(&b->d, &o, simt_wrong_kernels, &b->err));
    TRY(b->d->ops->buffer_create(b->d, GPU_MEM_DEVICE, sizeof words, "left", &b->x, &b->err));
    TRY(b->d->ops->buffer_create(b->d, GPU_MEM_DEVICE, sizeof words, "right", &b->y, &b->err));
    TRY(b->d->ops->write(b->d, (gpu_view){b->x, 0, sizeof words}, words, &b->err));
fail:
    if (st != CALLA_OK) check_fail(c, "%s", b->err.message);
    return st == CALLA_OK;
}

static void bed_close(bed *b)
{
    if (b->d == NULL) return;
    b->d->ops->buffer_destroy(b->d, b->x);
    b->d->ops->buffer_destroy(b->d, b->y);
    b->d->ops->destroy(b->d);
}

static gpu_dispatch dispatch_of(const bed *b, uint32_t kernel, uint32_t n_groups, uint32_t n)
{
    gpu_dispatch x = {.kernel = kernel, .grid_x = n_groups, .grid_y = 1, .n_bindings = 2};
    const wrong_args a = {n};
    x.bind[0] = (gpu_binding){{b->x, 0, VISIBLE * 4}, GPU_READ};
    x.bind[1] = (gpu_binding){{b->y, 0, VISIBLE * 4}, GPU_WRITE};
    x.args_bytes = sizeof a;
    memcpy(x.args, &a, sizeof a);
    return x;
}

/* Runs n dispatches, serially or with no order at all. */
static calla_status run(bed *b, const gpu_dispatch *x, uint32_t n, bool serial)
{
    static const uint32_t first_none[8] = {0}, first_each[8] = {0, 0, 1, 2, 3},
                          dep[] = {0, 1, 2, 3};
    static const uint32_t level[8] = {0};
    const gpu_recording r = {.dispatch = x,
                             .level = level,
                             .dep_first = serial ? first_each : first_none,
                             .dep = dep,
                             .n = n,
                             .n_levels = 1};
    gpu_program *p = NULL;
    uint64_t ticket;
    calla_status st;
    TRY(b->d->ops->program_create(b->d, &r, true, &p, &b->err));
    TRY(b->d->ops->submit(b->d, p, &ticket, &b->err));
    TRY(b->d->ops->wait(b->d, ticket, NULL, &b->err));
fail:
    b->d->ops->program_destroy(b->d, p);
    return st;
}

static void expect_caught(bed *b, calla_status st, const char *name, const char *sentence)
{
    if (st == CALLA_OK)
        check_fail(b->c, "%s: not caught (\"%s\")", name, sentence);
    else if (st != CALLA_ERR_DEVICE || strstr(b->err.message, sentence) == NULL)
        check_fail(b->c, "%s: expected \"%s\", found \"%s\"", name, sentence, b->err.message);
}

static void expect_fine(bed *b, calla_status st, const char *name)
{
    if (st != CALLA_OK) check_fail(b->c, "%s: %s", name, b->err.message);
}

/* Kernels that go wrong by themselves. sentence NULL: this form is right. */
typedef struct wrong {
    uint32_t kernel, n_groups, n;
    const char *sentence;
} wrong;

static const wrong wrongs[] = {
    {WRONG_wrong_copy, 1, 32, NULL},
    {WRONG_wrong_divergent_simd, 1, 32, NULL},
    {WRONG_wrong_divergent_simd, 1, 31, "non-uniform simdgroup operation"},
    {WRONG_wrong_divergent_simd, 1, 1, "the kernel's end"},
    {WRONG_wrong_two_sites, 1, 32, NULL},
    {WRONG_wrong_two_sites, 1, 16, "simd_max_u32"},
    {WRONG_wrong_two_sites, 1, 16, "simd_sum_u32"},
    {WRONG_wrong_divergent_barrier, 1, 2, NULL},
    {WRONG_wrong_divergent_barrier, 1, 1, "divergent barrier"},
    {WRONG_wrong_two_barriers, 1, 2, NULL},
    {WRONG_wrong_two_barriers, 1, 1, "divergent barrier"},
    {WRONG_wrong_tg_race, 1, 0, NULL},
    {WRONG_wrong_tg_race, 1, 1, "threadgroup array part (256 bytes)"},
    {WRONG_wrong_tg_race, 1, 2, "no barrier in between"},
    {WRONG_wrong_sg_race, 1, 0, NULL},
    {WRONG_wrong_sg_race, 1, 1, "threadgroup array part"},
    {WRONG_wrong_tg_war, 1, 0, NULL},
    {WRONG_wrong_tg_war, 1, 1, "no barrier in between"},
    {WRONG_wrong_device_race, 1, 0, NULL},
    {WRONG_wrong_device_race, 1, 1, "binding y (256 bytes, at 0 of buffer right)"},
    {WRONG_wrong_device_race, 1, 2, "no TG_BARRIER_DEVICE in between"},
    {WRONG_wrong_device_race, 1, 3, "no TG_BARRIER_DEVICE in between"},
    {WRONG_wrong_groups, 4, 1, "of the same dispatch wrote it"},
    {WRONG_wrong_bounds, 1, 0, NULL},
    {WRONG_wrong_bounds, 1, 2, "out of bounds"},
    {WRONG_wrong_bounds, 1, 3, "misaligned"},
    {WRONG_wrong_tg_bounds, 1, 0, NULL},
    {WRONG_wrong_tg_bounds, 1, 1, "out of bounds"},
    {WRONG_wrong_tg_bounds, 1, 2, "misaligned"},
    {WRONG_wrong_tg_unwritten, 1, 32, NULL},
    {WRONG_wrong_tg_unwritten, 1, 31, "nothing has been written there"},
    {WRONG_wrong_tg_big, 1, 0, "threadgroup memory of more than 32768 bytes"},
};

static void wrong_kernels(check *c)
{
    const uint64_t seed = check_below(c, 4) == 0 ? 0 : check_random(c);
    check_shape(c, "seed %llu", (unsigned long long)seed);
    for (size_t i = 0; i < sizeof wrongs / sizeof *wrongs && !check_failed(c); i++) {
        const wrong *w = &wrongs[i];
        const char *name = simt_wrong_kernels[w->kernel].name;
        bed b;
        if (bed_open(&b, c, seed)) {
            const gpu_dispatch x = dispatch_of(&b, w->kernel, w->n_groups, w->n);
            const calla_status st = run(&b, &x, 1, true);
            if (w->sentence != NULL)
                expect_caught(&b, st, name, w->sentence);
            else
                expect_fine(&b, st, name);
            /* The device works after that. */
            const gpu_dispatch right = dispatch_of(&b, WRONG_wrong_copy, 2, 32);
            expect_fine(&b, run(&b, &right, 1, true), "afterwards");
        }
        bed_close(&b);
    }
}

/* Declarations that do not fit what the kernel does. */
static void wrong_declarations(check *c)
{
    bed b;
    if (!bed_open(&b, c, check_random(c))) goto done;
    gpu_dispatch x = dispatch_of(&b, WRONG_wrong_copy, 1, 32);
    x.bind[0].view.bytes = 31 * 4;
    expect_caught(
        &b, run(&b, &x, 1, true), "short binding",
        "read of 4 bytes of binding x (124 bytes, at 0 of buffer left) at byte 124: out of");
    x = dispatch_of(&b, WRONG_wrong_copy, 1, 32);
    x.bind[1].access = GPU_READ;
    expect_caught(&b, run(&b, &x, 1, true), "write to read-only", "it is declared as only read");
    x = dispatch_of(&b, WRONG_wrong_copy, 1, 32);
    x.bind[0].view.buf = b.y;
    x.bind[0].view.off = 512;
    expect_caught(&b, run(&b, &x, 1, true), "unwritten", "nothing has been written there");
    x = dispatch_of(&b, WRONG_wrong_update, 1, 32);
    x.bind[1].view = (gpu_view){b.x, 512, VISIBLE * 4};
    expect_caught(&b, run(&b, &x, 1, true), "only written", "it is declared as only written");
    x.bind[1].access = GPU_READ_WRITE;
    expect_fine(&b, run(&b, &x, 1, true), "update");
    x.args_bytes = 8;
    if (run(&b, &x, 1, true) != CALLA_ERR_ARGUMENT) check_fail(c, "arguments of a wrong size");
done:
    bed_close(&b);
}

/* Between groups: atomics and the last to arrive are right, plain accesses are not. */
static void wrong_groups(check *c)
{
    const uint32_t n_groups = 2 + check_below(c, 30);
    check_shape(c, "%u groups", n_groups);
    bed b;
    if (!bed_open(&b, c, check_random(c))) goto done;
    const gpu_view y = {b.y, 0, VISIBLE * 4};
    (void)b.d->ops->zero(b.d, y, NULL);
    gpu_dispatch x = dispatch_of(&b, WRONG_wrong_groups, n_groups, 0);
    x.bind[1].access = GPU_READ_WRITE;
    expect_fine(&b, run(&b, &x, 1, true), "atomics");
    x = dispatch_of(&b, WRONG_wrong_groups, n_groups & ~1u, 2);
    x.bind[1].access = GPU_READ_WRITE;
    expect_caught(&b, run(&b, &x, 1, true), "read of another's", "of the same dispatch");
    (void)b.d->ops->zero(b.d, y, NULL);
    x = dispatch_of(&b, WRONG_wrong_last_arriver, n_groups, 0);
    x.bind[1].access = GPU_READ_WRITE;
    expect_fine(&b, run(&b, &x, 1, true), "last arriver");
    uint32_t got[2] = {0};
    expect_fine(&b, b.d->ops->read(b.d, got, (gpu_view){b.y, 0, 8}, &b.err), "read");
    const uint32_t want[2] = {n_groups, n_groups * (n_groups - 1) / 2};
    check_same_u32(c, "count and sum", got, want, 1, 2);
    (void)b.d->ops->zero(b.d, y, NULL);
    x = dispatch_of(&b, WRONG_wrong_last_arriver, n_groups, 1);
    x.bind[1].access = GPU_READ_WRITE;
    expect_caught(&b, run(&b, &x, 1, true), "parts stored plainly",
                  "of the same dispatch wrote it");
done:
    bed_close(&b);
}

/* Between dispatches: without an order, what they touch must not meet. */
static void wrong_order(check *c)
{
    bed b;
    if (!bed_open(&b, c, check_below(c, 3) == 0 ? 0 : check_random(c))) goto done;
    const gpu_view y = {b.y, 0, VISIBLE * 4};
    (void)b.d->ops->zero(b.d, y, NULL);
    gpu_dispatch x[2] = {dispatch_of(&b, WRONG_wrong_copy, 1, 32),
                         dispatch_of(&b, WRONG_wrong_copy, 1, 32)};
    expect_fine(&b, run(&b, x, 2, true), "in order");
    expect_caught(&b, run(&b, x, 2, false), "write, write", "are not ordered");
    x[1].bind[1].view.off = 512; /* another part */
    expect_fine(&b, run(&b, x, 2, false), "apart");
    x[1].bind[0].view.buf = b.y; /* the first one's result */
    expect_caught(&b, run(&b, x, 2, false), "write, read", "byte 0 of buffer right");
    expect_fine(&b, run(&b, x, 2, true), "write, read, in order");
    const gpu_dispatch t = x[0];
    x[0] = x[1];
    x[1] = t;
    expect_caught(&b, run(&b, x, 2, false), "read, write", "are not ordered");
    /* Declared to meet, but not touched. */
    x[0] = dispatch_of(&b, WRONG_wrong_copy, 1, 16);
    x[1] = dispatch_of(&b, WRONG_wrong_copy, 1, 16);
    x[1].bind[1].view.off = 64;
    expect_fine(&b, run(&b, x, 2, false), "not touched");
done:
    bed_close(&b);
}

/* An injected failure is reported for its submission and for those queued behind it. */
static void failures(check *c)
{
    bed b;
    if (!bed_open(&b, c, 1)) goto done;
    const gpu_ops *ops = b.d->ops;
    const gpu_dispatch x = dispatch_of(&b, WRONG_wrong_copy, 1, 32);
    const uint32_t none[2] = {0};
    const gpu_recording r = {
        .dispatch = &x, .level = none, .dep_first = none, .n = 1, .n_levels = 1};
    gpu_program *p = NULL;
    uint64_t t[4] = {0};
    expect_fine(&b, ops->program_create(b.d, &r, true, &p, &b.err), "program");
    ops->inject_failure(b.d, 2);
    for (int i = 0; i < 3; i++)
        expect_fine(&b, ops->submit(b.d, p, &t[i], &b.err), "submit");
    expect_fine(&b, ops->wait(b.d, t[0], NULL, &b.err), "before the failure");
    expect_caught(&b, ops->wait(b.d, t[1], NULL, &b.err), "the failure", "injected");
    expect_fine(&b, ops->submit(b.d, p, &t[3], &b.err), "submit");
    expect_caught(&b, ops->wait(b.d, t[2], NULL, &b.err), "queued behind", "injected");
    expect_fine(&b, ops->wait(b.d, t[3], NULL, &b.err), "after the report");
    double seconds[1] = {-1};
    expect_fine(&b, ops->profile(b.d, p, seconds, &b.err), "profile");
    if (seconds[0] < 0) check_fail(c, "no time in the profile");
    ops->program_destroy(b.d, p);
done:
    bed_close(&b);
}

const check_case check_simt_cases[] = {
    {"simt_wrong_kernels", wrong_kernels, CHECK_EMULATOR},
    {"simt_wrong_declarations", wrong_declarations, CHECK_EMULATOR},
    {"simt_wrong_groups", wrong_groups, CHECK_EMULATOR},
    {"simt_wrong_order", wrong_order, CHECK_EMULATOR},
    {"simt_failures", failures, CHECK_EMULATOR},
    {NULL, NULL, 0}};
