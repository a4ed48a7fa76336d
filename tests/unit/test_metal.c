/* The Metal driver on the stand-in for Apple's frameworks (tests/standin): every operation under
 * every machine it may meet, with every call failing once, command buffers that fail or never end,
 * and mutations of what it encodes. */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/mem.h"
#include "exec/gpu/metal/source.h"
#include "exec/gpu/recorder.h"
#include "kernels/args_util.h"
#include "standin.h"

static struct {
    void *handle;
    const char *(*configure)(const char *options);
    const char *(*finish)(void);
    const char *(*violation)(void);
    uint64_t (*count)(const char *what);
    const char *(*fallible)(uint64_t n);
    uint32_t (*dispatch)(uint64_t n, const char **kernel);
    bool (*knows)(const char *class_name, const char *selector);
} s;

#define FIND(field)                                                                                \
    do {                                                                                           \
        void *p = dlsym(s.handle, "standin_" #field);                                              \
        assert_non_null(p);                                                                        \
        memcpy(&s.field, &p, sizeof p);                                                            \
    } while (0)

static int open_library(void **state)
{
    (void)state;
    s.handle = dlopen(STANDIN, RTLD_NOW | RTLD_LOCAL);
    if (s.handle == NULL) fail_msg("%s", dlerror());
    FIND(configure);
    FIND(finish);
    FIND(violation);
    FIND(count);
    FIND(fallible);
    FIND(dispatch);
    FIND(knows);
    return 0;
}

static void play(const char *fmt, ...) ATTR_PRINTF(1, 2);
static char played[256];
static void play(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(played, sizeof played, fmt, ap);
    va_end(ap);
    const char *bad = s.configure(played);
    if (bad != NULL) fail_msg("%s", bad);
}

/* Nothing was said, and nothing is left. */
static void all_well(const char *what)
{
    const char *left = s.finish(), *v = s.violation();
    if (v != NULL) fail_msg("%s, %s: %s", played, what, v);
    if (left != NULL) fail_msg("%s, %s: left behind: %s", played, what, left);
}

static uint32_t timeout_s = 60;

static calla_status open_device(gpu_device **d, metal_rung rung, calla_error *err)
{
    const gpu_metal_options o = {
        .framework = STANDIN, .max_rung = (int32_t)rung, .trust = true, .timeout_s = timeout_s};
    err->message[0] = '\0';
    return gpu_metal_create(d, &o, err);
}

/* ---- Work that touches every operation ---- */

#define WORDS 16384u /* copies of this many are the GPU's */
#define STEPS 12u
#define PARTS 12u
#define BYTES ((uint64_t)PARTS * WORDS * 4)

typedef struct work {
    gpu_device *d;
    gpu_buffer *data, *host;
    recorder *rec;
    gpu_program *program;
    uint32_t *want, *got;
    bool wrong; /* what was read is not what it should be */
} work;

static gpu_view part(const work *w, uint32_t i)
{
    return (gpu_view){w->data, (uint64_t)i * WORDS * 4, WORDS * 4};
}

/* Each step fills a part or copies one of those before: eight new ones, and then four that were
 * there and have been read. Nothing is overwritten without having been read, so that whatever goes
 * wrong is in the outcome. */
static void record(work *w, uint32_t seed)
{
    const util_copy_args c = {WORDS};
    for (uint32_t i = 0; i < STEPS; i++) {
        const uint32_t to = i < 8 ? 4 + i : i - 8;
        const uint32_t from = i < 4 ? i : i == 4 ? 5 : i < 8 ? i + 3 : i == 10 ? 7 : i;
        if (i == 7 || i == 9) {
            const util_fill_args f = {WORDS, seed * 1000 + i};
            rec_dispatch(w->rec, KERNEL_util_fill, WORDS / 1024, 1);
            rec_write(w->rec, part(w, to));
            rec_args(w->rec, &f, sizeof f);
            for (uint32_t k = 0; k < WORDS; k++)
                w->want[(size_t)to * WORDS + k] = f.value;
        } else {
            rec_dispatch(w->rec, KERNEL_util_copy, WORDS / 1024, 1);
            rec_read(w->rec, part(w, from));
            rec_write(w->rec, part(w, to));
            rec_args(w->rec, &c, sizeof c);
            memcpy(w->want + (size_t)to * WORDS, w->want + (size_t)from * WORDS, WORDS * 4);
        }
    }
    const util_copy_args small = {1024};
    rec_dispatch(w->rec, KERNEL_util_copy, 1, 1);
    rec_read(w->rec, (gpu_view){w->host, 0, 4096});
    rec_write(w->rec, (gpu_view){w->host, 4096, 4096});
    rec_args(w->rec, &small, sizeof small);
}

static calla_status fill_memory(work *w, calla_error *err)
{
    const gpu_ops *ops = w->d->ops;
    calla_status st;
    for (uint32_t i = 0; i < PARTS * WORDS; i++)
        w->want[i] = i * 2654435761u;
    memset(w->want + 2 * (size_t)WORDS, 0, WORDS * 4);
    TRY(ops->write(w->d, (gpu_view){w->data, 0, BYTES}, w->want, err));
    TRY(ops->zero(w->d, part(w, 2), err));
    TRY(ops->copy(w->d, part(w, 3), part(w, 0), err));
    memcpy(w->want + 3 * (size_t)WORDS, w->want, WORDS * 4);
    TRY(ops->zero(w->d, (gpu_view){w->data, 64, 16}, err));
    memset(w->want + 16, 0, 16);
    uint32_t *h = ops->buffer_host(w->host);
    for (uint32_t i = 0; i < 1024; i++)
        h[i] = i;
fail:
    return st;
}

static calla_status run_work(work *w, uint32_t seed, calla_error *err)
{
    const gpu_ops *ops = w->d->ops;
    gpu_recording r;
    uint64_t ticket = 0;
    double seconds = 0, each[STEPS + 1];
    calla_status st;
    TRY(ops->buffer_create(w->d, GPU_MEM_DEVICE, BYTES, "data", &w->data, err));
    TRY(ops->buffer_create(w->d, GPU_MEM_HOST, 8192, "host", &w->host, err));
    TRY(recorder_create(&w->rec, w->d, err));
    TRY(fill_memory(w, err));
    record(w, seed);
    TRY(rec_finish(w->rec, false, &r, err));
    TRY(ops->program_create(w->d, &r, false, &w->program, err));
    TRY(ops->submit(w->d, w->program, &ticket, err));
    TRY(ops->wait(w->d, ticket, &seconds, err));
    TRY(ops->read(w->d, w->got, (gpu_view){w->data, 0, BYTES}, err));
    const uint32_t *h = ops->buffer_host(w->host);
    w->wrong = memcmp(w->got, w->want, (size_t)BYTES) != 0 || h[1024] != 0 || h[2047] != 1023 ||
               !(seconds > 0);
    for (uint32_t i = 0; i < 3; i++)
        TRY(ops->submit(w->d, w->program, &ticket, err));
    TRY(ops->wait(w->d, ticket, NULL, err));
    if (seed == 1) TRY(ops->profile(w->d, w->program, each, err));
fail:
    return st;
}

static void end_work(work *w)
{
    const gpu_ops *ops = w->d->ops;
    ops->program_destroy(w->d, w->program);
    recorder_destroy(w->rec);
    ops->buffer_destroy(w->d, w->data);
    ops->buffer_destroy(w->d, w->host);
    mem_free(w->want);
    mem_free(w->got);
}

/* On a device that is open. */
static calla_status work_on(gpu_device *d, uint32_t seed, bool *wrong, calla_error *err)
{
    work w = {.d = d};
    w.want = mem_alloc((size_t)BYTES);
    w.got = mem_alloc((size_t)BYTES);
    assert_true(w.want != NULL && w.got != NULL);
    err->message[0] = '\0';
    const calla_status st = run_work(&w, seed, err);
    *wrong = st == CALLA_OK && w.wrong;
    end_work(&w);
    return st;
}

/* From opening to the end. */
static calla_status whole(uint32_t seed, bool *wrong, calla_error *err)
{
    gpu_device *d = NULL;
    *wrong = false;
    calla_status st = open_device(&d, METAL_RUNG_SCALAR, err);
    if (st != CALLA_OK) {
        assert_null(d);
        return st;
    }
    st = work_on(d, seed, wrong, err);
    d->ops->destroy(d);
    return st;
}

static void must_be_right(const char *what, uint32_t seed)
{
    calla_error err;
    bool wrong;
    if (whole(seed, &wrong, &err) != CALLA_OK) fail_msg("%s: %s", what, err.message);
    if (wrong) fail_msg("%s, %s: wrong values", played, what);
    all_well(what);
}

/* ---- Tests ---- */

/* All that the driver may say is known. */
static void test_table(void **state)
{
    (void)state;
    static const struct {
        const char *receiver, *selector;
    } rows[] = {
#define METHOD(receiver, field, selector, since, result, parameters) {#receiver, selector},
#include "exec/gpu/metal/selectors.inc"
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!s.knows(rows[i].receiver, rows[i].selector))
            fail_msg("the stand-in does not know %s of %s", rows[i].selector, rows[i].receiver);
}

/* Every system and several chips; late and early command buffers; every order. */
static void test_machines(void **state)
{
    (void)state;
    static const char *const machines[] = {"chip=M1,os=14.0",    "chip=M1Max,os=14.7",
                                           "chip=M2,os=15.0",    "chip=M3Ultra,os=15.6",
                                           "chip=M4Pro,os=26.0", "chip=M5Max,os=26.4"};
    for (uint32_t i = 0; i < sizeof machines / sizeof *machines; i++) {
        play("record=1,mode=check,seed=%u,delay=2000,%s", i, machines[i]);
        must_be_right("a machine", i);
#if !defined(STANDIN_NO_MSL)
        play("record=1,mode=msl,seed=%u,delay=300,%s", i, machines[i]);
        must_be_right("a machine", i);
#endif
    }
    assert_true(s.count("dispatches") > 0);
}

static void test_limits(void **state)
{
    (void)state;
    calla_error err;
    gpu_device *d = NULL;
    gpu_buffer *b = NULL;
    play("record=1,mode=none,memory=1g,max-buffer=200m,working-set=300m");
    assert_int_equal(open_device(&d, METAL_RUNG_SCALAR, &err), CALLA_OK);
    assert_int_equal(d->ops->buffer_create(d, GPU_MEM_DEVICE, 250u << 20, "weights", &b, &err),
                     CALLA_ERR_MEMORY);
    assert_non_null(strstr(err.message, "weights"));
    gpu_buffer *first = NULL;
    assert_int_equal(d->ops->buffer_create(d, GPU_MEM_DEVICE, 180u << 20, "first", &first, &err),
                     CALLA_OK);
    assert_int_equal(d->ops->buffer_create(d, GPU_MEM_DEVICE, 180u << 20, "second", &b, &err),
                     CALLA_ERR_MEMORY);
    assert_non_null(strstr(err.message, "second"));
    d->ops->buffer_destroy(d, first);
    assert_int_equal(d->ops->buffer_create(d, GPU_MEM_DEVICE, 180u << 20, "second", &b, &err),
                     CALLA_OK);
    d->ops->buffer_destroy(d, b);
    d->ops->destroy(d);
    all_well("limits");
}

/* Counts the calls that can fail, then lets each fail: as nil with an error, as nil alone. */
static void test_every_call(void **state)
{
    (void)state;
    calla_error err;
    bool wrong;
    uint32_t n_refused = 0;
    play("record=1,mode=none");
    assert_int_equal(whole(1, &wrong, &err), CALLA_OK);
    all_well("nothing fails");
    const uint64_t n = s.count("fallible");
    assert_true(n > 30);
    for (uint64_t i = 1; i <= n; i++)
        for (int plain = 0; plain < 2; plain++) {
            play("record=1,mode=none,fail=*@%u%s", (unsigned)i, plain ? ",error=" : "");
            const calla_status st = whole(1, &wrong, &err);
            char what[160];
            const char *name = s.fallible(i);
            (void)snprintf(what, sizeof what, "call %u (%s) fails: %s", (unsigned)i,
                           name != NULL ? name : "?", st == CALLA_OK ? "ok" : err.message);
            all_well(what);
            if (st == CALLA_OK) continue;
            if (strlen(err.message) < 10) fail_msg("%s: no sentence", what);
            n_refused++;
        }
    print_message("  %u calls that can fail, each failed twice: %u refusals\n", (unsigned)n,
                  n_refused);
    assert_true(n_refused > n / 2);
}

/* The same with a device that stays open: what failed is refused, and works the next time. */
static void test_next_time(void **state)
{
    (void)state;
    calla_error err;
    static const char *const calls[] = {"newBufferWithLength:options:",
                                        "contents",
                                        "commandBufferWithUnretainedReferences",
                                        "computeCommandEncoderWithDispatchType:",
                                        "blitCommandEncoder",
                                        "newFunctionWithName:",
                                        ("newComputePipelineStateWithDescriptor:options:reflection:"
                                         "error:"),
                                        "waitUntilSignaledValue:timeoutMS:"};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        gpu_device *d = NULL;
        bool wrong;
        uint32_t n_failed = 0;
        /* the first of them after opening: strings and such are used by opening, too */
        for (uint32_t at = 1; at <= 3; at++) {
            play("record=1,mode=check,fail=%s@%u", calls[i], at);
            if (open_device(&d, METAL_RUNG_SCALAR, &err) != CALLA_OK) continue;
            unsigned failed = 0;
            for (uint32_t k = 0; k < 4; k++) {
                if (work_on(d, k, &wrong, &err) != CALLA_OK) failed++;
                if (d->ops->lost(d)) fail_msg("%s: the device is lost", played);
                if (wrong) fail_msg("%s: wrong values", played);
            }
            if (failed > 1) fail_msg("%s: not the next time either: %s", played, err.message);
            n_failed += failed;
            d->ops->destroy(d);
            all_well(calls[i]);
        }
        if (i < 2) assert_true(n_failed > 0);
    }
}

/* Every command buffer with every error. */
static void test_command_buffer_errors(void **state)
{
    (void)state;
    calla_error err;
    bool wrong;
    play("record=1,mode=none");
    assert_int_equal(whole(2, &wrong, &err), CALLA_OK);
    const unsigned n = (unsigned)s.count("commits");
    static const struct {
        unsigned code;
        bool lost;
    } codes[] = {{1, false}, {2, false}, {3, false}, {4, true},  {7, false},
                 {8, false}, {9, false}, {11, true}, {12, false}};
    for (size_t c = 0; c < sizeof codes / sizeof *codes; c++)
        for (unsigned at = 1; at <= n; at++) {
            gpu_device *d = NULL;
            play("record=1,mode=check,seed=%u,cb-error=%u@%u", at, codes[c].code, at);
            assert_int_equal(open_device(&d, METAL_RUNG_SCALAR, &err), CALLA_OK);
            const calla_status st = work_on(d, 2, &wrong, &err);
            if (st != CALLA_ERR_DEVICE) fail_msg("%s: status %d, %s", played, st, err.message);
            if (d->ops->lost(d) != codes[c].lost) fail_msg("%s: lost or not", played);
            const calla_status next = work_on(d, 3, &wrong, &err);
            if (codes[c].lost ? next != CALLA_ERR_DEVICE : next != CALLA_OK)
                fail_msg("%s: the next time: %s (%s)", played, err.message,
                         s.violation() != NULL ? s.violation() : "no violation");
            if (wrong) fail_msg("%s: wrong values the next time", played);
            d->ops->destroy(d);
            all_well("an error of a command buffer");
        }
    play("record=1,mode=none,cb-error=4@1+");
    assert_int_equal(whole(2, &wrong, &err), CALLA_ERR_DEVICE);
    all_well("errors from then on");
    print_message("  %u command buffers, each with %zu errors\n", n, sizeof codes / sizeof *codes);
}

/* A command buffer that never ends: an error in time, a lost device, no call that waits forever. */
static void test_hang(void **state)
{
    (void)state;
    calla_error err;
    timeout_s = 1;
    for (unsigned at = 1; at <= 4; at += 3) {
        gpu_device *d = NULL;
        bool wrong;
        play("record=1,mode=none,cb-hang=%u", at);
        assert_int_equal(open_device(&d, METAL_RUNG_SCALAR, &err), CALLA_OK);
        assert_int_equal(work_on(d, 2, &wrong, &err), CALLA_ERR_DEVICE);
        assert_true(d->ops->lost(d));
        assert_int_equal(work_on(d, 2, &wrong, &err), CALLA_ERR_DEVICE);
        d->ops->destroy(d);
        if (s.violation() != NULL) fail_msg("%s", s.violation());
        (void)s.finish(); /* what the GPU may still use is left, on purpose */
    }
    timeout_s = 60;
}

/* Removing any barrier, exchanging any two arguments, moving any buffer or leaving any argument as
 * it was must be seen, or change nothing. */
static bool is_seen(uint32_t seed, bool *changed)
{
    calla_error err;
    bool wrong;
    const calla_status st = whole(seed, &wrong, &err);
    *changed = s.count("mutated") != 0;
    const bool seen = st != CALLA_OK || wrong || s.violation() != NULL;
    (void)s.finish();
    return seen;
}

/* One change of the arguments of dispatch i. */
static void change(char *text, size_t n, unsigned kind, unsigned i)
{
    switch (kind) {
    case 0:
        (void)snprintf(text, n, "swap=%u:0:1", i);
        return;
    case 1:
        (void)snprintf(text, n, "swap=%u:1:2", i);
        return;
    case 2:
        (void)snprintf(text, n, "shift=%u:0:4096", i);
        return;
    case 3:
        (void)snprintf(text, n, "stale=%u:0", i);
        return;
    default:
        (void)snprintf(text, n, "stale=%u:1", i);
        return;
    }
}

static void test_mutations(void **state)
{
    (void)state;
    calla_error err;
    bool wrong, changed;
    unsigned n_tried = 0, n_seen = 0, n_same = 0;
    play("record=1,mode=check");
    assert_int_equal(whole(2, &wrong, &err), CALLA_OK);
    all_well("no mutation");
    const unsigned n_barriers = (unsigned)s.count("barriers") / 4; /* of the first submission */
    for (unsigned i = 1; i <= n_barriers; i++) {
        play("record=1,mode=check,seed=%u,drop-barrier=%u", i, i);
        if (is_seen(2, &changed))
            n_seen++;
        else
            print_message("  survives: barrier %u\n", i);
        n_tried++;
    }
    print_message("  barriers: %u removed, %u seen\n", n_tried, n_seen);
    assert_int_equal(n_tried, n_seen);
    n_tried = n_seen = 0;
    for (unsigned i = 1; i <= STEPS; i++)
        for (unsigned kind = 0; kind < 5; kind++) {
            char text[64];
            change(text, sizeof text, kind, i + 2); /* after the fill and the copy */
            play("record=1,mode=check,seed=%u,%s", i, text);
            const bool seen = is_seen(2, &changed);
            n_tried++;
            n_same += !changed;
            if (!changed) continue;
            n_seen += seen;
            if (!seen) print_message("  survives: %s\n", text);
        }
    print_message("  arguments: %u changes, %u without effect, %u seen\n", n_tried, n_same, n_seen);
    assert_int_equal(n_tried, n_seen + n_same);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),     cmocka_unit_test(test_machines),
        cmocka_unit_test(test_limits),    cmocka_unit_test(test_every_call),
        cmocka_unit_test(test_next_time), cmocka_unit_test(test_command_buffer_errors),
        cmocka_unit_test(test_hang),      cmocka_unit_test(test_mutations),
    };
    return cmocka_run_group_tests(tests, open_library, NULL);
}
