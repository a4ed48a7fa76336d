/* The stand-in for Apple's frameworks (tests/standin) must see what it is there to see. */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "exec/gpu/metal/source.h"
#include "kernels/args_util.h"
#include "standin.h"

typedef void *id;
typedef struct size3 {
    unsigned long w, h, d;
} size3;

static struct {
    void *handle;
    void (*msg_send)(void);
    id (*get_class)(const char *name);
    id (*sel)(const char *name);
    void *(*push)(void);
    void (*pop)(void *pool);
    id (*device)(void);
    const char *(*configure)(const char *options);
    const char *(*finish)(void);
    const char *(*violation)(void);
    uint64_t (*count)(const char *what);
} s;

/* A message as a call of its type, with and without arguments. */
#define SEND(result, params, object, selector, ...)                                                \
    (((result(*) params)s.msg_send)((object), s.sel(selector), __VA_ARGS__))
#define GET(result, object, selector) (((result(*)(id, id))s.msg_send)((object), s.sel(selector)))
#define SEND0(object, selector)       GET(id, object, selector)

#define FIND(field, name)                                                                          \
    do {                                                                                           \
        void *p = dlsym(s.handle, name);                                                           \
        assert_non_null(p);                                                                        \
        memcpy(&s.field, &p, sizeof p);                                                            \
    } while (0)

static int open_library(void **state)
{
    (void)state;
    s.handle = dlopen(STANDIN, RTLD_NOW | RTLD_LOCAL);
    if (s.handle == NULL) fail_msg("%s", dlerror());
    FIND(msg_send, "objc_msgSend");
    FIND(get_class, "objc_getClass");
    FIND(sel, "sel_registerName");
    FIND(push, "objc_autoreleasePoolPush");
    FIND(pop, "objc_autoreleasePoolPop");
    FIND(device, "MTLCreateSystemDefaultDevice");
    FIND(configure, "standin_configure");
    FIND(finish, "standin_finish");
    FIND(violation, "standin_violation");
    FIND(count, "standin_count");
    return 0;
}

static void begin(const char *options)
{
    const char *bad = s.configure(options);
    if (bad != NULL) fail_msg("%s", bad);
}

static void expect(const char *words)
{
    const char *v = s.violation();
    if (words == NULL && v != NULL) fail_msg("%s", v);
    if (words != NULL && v == NULL) fail_msg("nothing was said; expected \"%s\"", words);
    if (words != NULL && strstr(v, words) == NULL) fail_msg("\"%s\" is not in: %s", words, v);
}

static void expect_left(const char *words)
{
    const char *left = s.finish();
    if (words == NULL && left != NULL) fail_msg("left behind: %s", left);
    if (words != NULL && (left == NULL || strstr(left, words) == NULL))
        fail_msg("\"%s\" is not in: %s", words, left != NULL ? left : "nothing");
}

/* ---- The runtime ---- */

static id string(const char *text)
{
    return SEND(id, (id, id, const char *), s.get_class("NSString"), "stringWithUTF8String:", text);
}

static void test_objects(void **state)
{
    (void)state;
    begin("record=1");
    void *outer = s.push(), *inner = s.push();
    id a = string("kept"), b = string("dropped");
    assert_string_equal(GET(const char *, a, "UTF8String"), "kept");
    assert_ptr_equal(SEND0(a, "retain"), a);
    s.pop(inner);
    expect(NULL);
    (void)SEND0(b, "UTF8String");
    expect("NSString");
    expect("after its end");
    begin("record=1");
    s.pop(outer);
    begin("record=1");
    outer = s.push();
    a = SEND0(string("x"), "retain");
    s.pop(outer);
    expect_left("NSString #1 (1)");
    (void)SEND0(a, "release");
    expect_left(NULL);
    (void)SEND0(a, "release");
    expect("release to NSString #1 after its end");
}

static void test_wrong_messages(void **state)
{
    (void)state;
    static const struct {
        const char *selector, *words;
    } cases[] = {
        {"uTF8String", "NSString does not understand \"uTF8String\""},
        {"stringWithUTF8String:", "NSString does not understand \"stringWithUTF8String:\""},
        {"newCommandQueue", "NSString does not understand \"newCommandQueue\""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        begin("record=1");
        void *pool = s.push();
        (void)SEND0(string("a"), cases[i].selector);
        expect(cases[i].words);
        s.pop(pool);
    }
    begin("record=1");
    assert_null(SEND0(NULL, "UTF8String"));
    expect("message UTF8String to nil");
    begin("record=1");
    assert_null(SEND0(&state, "UTF8String"));
    expect("no object");
    begin("record=1");
    (void)string("x");
    expect("outside of a pool");
    begin("record=1");
    s.push();
    expect_left("pools are open");
    begin("record=1");
    assert_null(s.get_class("MTLNothing"));
    expect("there is no class \"MTLNothing\"");
    begin("record=1,os=14.5");
    assert_null(s.get_class("MTLResidencySetDescriptor"));
    expect(NULL);
}

typedef struct version {
    long major, minor, patch;
} version;

/* A struct on the stack, and numbers that come back. */
static void test_values(void **state)
{
    (void)state;
    begin("os=15.2,chip=M3Ultra,thermal=2");
    void *pool = s.push();
    id p = SEND0(s.get_class("NSProcessInfo"), "processInfo");
    const char *at_least = "isOperatingSystemAtLeastVersion:";
    assert_true(SEND(bool, (id, id, version), p, at_least, ((version){15, 2, 0})));
    assert_false(SEND(bool, (id, id, version), p, at_least, ((version){15, 3, 0})));
    assert_true(SEND(bool, (id, id, version), p, at_least, ((version){14, 9, 0})));
    assert_int_equal(GET(long, p, "thermalState"), 2);
    id d = s.device();
    assert_true(SEND(bool, (id, id, long), d, "supportsFamily:", 1009L));
    assert_false(SEND(bool, (id, id, long), d, "supportsFamily:", 1010L));
    assert_string_equal(GET(const char *, SEND0(d, "name"), "UTF8String"), "Apple M3 Ultra");
    (void)SEND0(d, "release");
    s.pop(pool);
    expect_left(NULL);
}

/* ---- Dispatches ---- */

#define WORDS 4096u
typedef struct rig {
    id device, queue, library, fill, copy, buffer[3], fence;
    void *pool;
} rig;

static id pipeline(rig *r, const char *name)
{
    id error = NULL;
    id f = SEND(id, (id, id, id), r->library, "newFunctionWithName:", string(name));
    id d = SEND0(SEND0(s.get_class("MTLComputePipelineDescriptor"), "alloc"), "init");
    (void)SEND(void, (id, id, id), d, "setComputeFunction:", f);
    id p = SEND(id, (id, id, id, unsigned long, void *, id *), r->device,
                "newComputePipelineStateWithDescriptor:options:reflection:error:", d, 0ul, NULL,
                &error);
    (void)SEND0(d, "release");
    (void)SEND0(f, "release");
    return p;
}

static void rig_open(rig *r, const char *options)
{
    id error = NULL;
    begin(options);
    r->pool = s.push();
    r->device = s.device();
    r->queue = SEND0(r->device, "newCommandQueue");
    r->fence = SEND0(r->device, "newFence");
    id o = SEND0(s.get_class("MTLCompileOptions"), "new");
    (void)SEND(void, (id, id, unsigned long), o, "setLanguageVersion:", 0x30002ul);
    (void)SEND(void, (id, id, long), o, "setMathMode:", 0l);
    (void)SEND(void, (id, id, long), o, "setMathFloatingPointFunctions:", 1l);
    r->library =
        SEND(id, (id, id, id, id, id *), r->device,
             "newLibraryWithSource:options:error:", string(metal_sources[0].text), o, &error);
    (void)SEND0(o, "release");
    r->fill = pipeline(r, "util_fill");
    r->copy = pipeline(r, "util_copy");
    for (int i = 0; i < 3; i++)
        r->buffer[i] = SEND(id, (id, id, unsigned long, unsigned long), r->device,
                            "newBufferWithLength:options:", WORDS * 4ul, 0x100ul);
}

static void rig_close(rig *r)
{
    for (int i = 0; i < 3; i++)
        (void)SEND0(r->buffer[i], "release");
    id all[] = {r->fill, r->copy, r->library, r->fence, r->queue, r->device};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        (void)SEND0(all[i], "release");
    s.pop(r->pool);
}

static id encoder(rig *r, id *cb)
{
    *cb = SEND0(r->queue, "commandBufferWithUnretainedReferences");
    return SEND(id, (id, id, unsigned long), *cb, "computeCommandEncoderWithDispatchType:", 1ul);
}

static void bind(id e, id buffer, unsigned long off, unsigned long i)
{
    (void)SEND(void, (id, id, id, unsigned long, unsigned long), e,
               "setBuffer:offset:atIndex:", buffer, off, i);
}

static void args(id e, const void *p, unsigned long n, unsigned long i)
{
    (void)SEND(void, (id, id, const void *, unsigned long, unsigned long), e,
               "setBytes:length:atIndex:", p, n, i);
}

static void launch(id e, unsigned long groups, unsigned long threads)
{
    (void)SEND(void, (id, id, size3, size3), e,
               "dispatchThreadgroups:threadsPerThreadgroup:", ((size3){groups, 1, 1}),
               ((size3){threads, 1, 1}));
}

static void fill(rig *r, id e, uint32_t value)
{
    const util_fill_args a = {WORDS, value};
    (void)SEND(void, (id, id, id), e, "setComputePipelineState:", r->fill);
    bind(e, r->buffer[0], 0, 0);
    args(e, &a, sizeof a, 1);
    launch(e, WORDS / 1024, 256);
}

static void copy(rig *r, id e, int to)
{
    const util_copy_args a = {WORDS};
    (void)SEND(void, (id, id, id), e, "setComputePipelineState:", r->copy);
    bind(e, r->buffer[0], 0, 0);
    bind(e, r->buffer[to], 0, 1);
    args(e, &a, sizeof a, 2);
    launch(e, WORDS / 1024, 256);
}

static void barrier(id e)
{
    (void)SEND(void, (id, id, unsigned long), e, "memoryBarrierWithScope:", 1ul);
}

static void commit(id e, id cb, bool wait)
{
    if (e != NULL) (void)GET(void, e, "endEncoding");
    (void)GET(void, cb, "commit");
    if (wait) (void)GET(void, cb, "waitUntilCompleted");
}

static uint32_t word(id buffer, uint32_t i)
{
    return GET(uint32_t *, buffer, "contents")[i];
}

static void test_run(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < 4; seed++) {
        char options[64];
        rig r;
        id cb;
        (void)snprintf(options, sizeof options, "seed=%u,delay=2000", seed);
        rig_open(&r, options);
        id e = encoder(&r, &cb);
        fill(&r, e, 7 + seed);
        barrier(e);
        copy(&r, e, 1);
        copy(&r, e, 2);
        commit(e, cb, true);
        assert_int_equal(GET(unsigned long, cb, "status"), 4);
        assert_true(GET(double, cb, "GPUEndTime") >= GET(double, cb, "GPUStartTime"));
        assert_int_equal(word(r.buffer[1], WORDS - 1), 7 + seed);
        assert_int_equal(word(r.buffer[2], 0), 7 + seed);
        assert_int_equal(s.count("groups"), 3 * WORDS / 1024);
        rig_close(&r);
        expect_left(NULL);
    }
}

static void test_missing_barrier(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < 4; seed++)
        for (int kind = 0; kind < 2; kind++) {
            char options[64];
            rig r;
            id cb;
            (void)snprintf(options, sizeof options, "record=1,seed=%u%s", seed,
                           kind == 0 ? "" : ",drop-barrier=1");
            rig_open(&r, options);
            id e = encoder(&r, &cb);
            fill(&r, e, 1);
            if (kind == 1) barrier(e);
            copy(&r, e, 1);
            commit(e, cb, true);
            expect("util_fill");
            expect("util_copy");
            expect("which nothing orders");
            assert_int_equal(GET(unsigned long, cb, "status"), 5);
            rig_close(&r);
        }
}

/* Command buffers of untracked memory are not ordered but by fences, or by what the host saw. */
static void test_command_buffers(void **state)
{
    (void)state;
    static const char *const words[] = {"which nothing orders", NULL, NULL};
    for (int kind = 0; kind < 3; kind++) {
        rig r;
        id cb;
        rig_open(&r, "record=1,delay=3000,seed=3");
        id e = encoder(&r, &cb);
        fill(&r, e, 1);
        if (kind == 1) (void)SEND(void, (id, id, id), e, "updateFence:", r.fence);
        commit(e, cb, kind == 2);
        e = encoder(&r, &cb);
        if (kind == 1) (void)SEND(void, (id, id, id), e, "waitForFence:", r.fence);
        copy(&r, e, 1);
        commit(e, cb, true);
        expect(words[kind]);
        rig_close(&r);
    }
}

static void test_blits(void **state)
{
    (void)state;
    const char *name = "copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:";
    for (int fenced = 0; fenced < 2; fenced++) {
        rig r;
        id cb;
        rig_open(&r, "record=1,seed=5");
        id e = encoder(&r, &cb);
        fill(&r, e, 9);
        if (fenced) (void)SEND(void, (id, id, id), e, "updateFence:", r.fence);
        (void)GET(void, e, "endEncoding");
        e = SEND0(cb, "blitCommandEncoder");
        if (fenced) (void)SEND(void, (id, id, id), e, "waitForFence:", r.fence);
        (void)SEND(void, (id, id, id, unsigned long, id, unsigned long, unsigned long), e, name,
                   r.buffer[0], 16ul, r.buffer[2], 32ul, 64ul);
        commit(e, cb, true);
        expect(fenced ? NULL : "which nothing orders");
        if (fenced) assert_int_equal(word(r.buffer[2], 8), 9);
        if (fenced) assert_int_equal(word(r.buffer[2], 8 + 16), UINT32_MAX);
        rig_close(&r);
    }
}

/* ---- What an encoder must not be told ---- */

static void wrong_slot(rig *r, id e, id cb)
{
    (void)cb;
    bind(e, r->buffer[0], 0, 31);
}
static void wrong_offset(rig *r, id e, id cb)
{
    (void)cb;
    bind(e, r->buffer[0], 8, 0);
}
static void beyond(rig *r, id e, id cb)
{
    (void)cb;
    bind(e, r->buffer[0], WORDS * 4, 0);
}
static void too_many_bytes(rig *r, id e, id cb)
{
    static uint8_t big[5000];
    (void)r;
    (void)cb;
    args(e, big, sizeof big, 0);
}
static void no_arguments(rig *r, id e, id cb)
{
    (void)cb;
    (void)SEND(void, (id, id, id), e, "setComputePipelineState:", r->fill);
    bind(e, r->buffer[0], 0, 0);
    launch(e, 1, 256);
}
static void one_too_many(rig *r, id e, id cb)
{
    (void)cb;
    bind(e, r->buffer[0], 0, 5);
    fill(r, e, 1);
}
static void threads(rig *r, id e, id cb)
{
    const util_fill_args a = {WORDS, 1};
    (void)cb;
    (void)SEND(void, (id, id, id), e, "setComputePipelineState:", r->fill);
    bind(e, r->buffer[0], 0, 0);
    args(e, &a, sizeof a, 1);
    launch(e, 1, 128);
}
static void no_pipeline(rig *r, id e, id cb)
{
    (void)r;
    (void)cb;
    launch(e, 1, 128);
}
static void after_end(rig *r, id e, id cb)
{
    (void)cb;
    (void)GET(void, e, "endEncoding");
    fill(r, e, 1);
}
static void commit_open(rig *r, id e, id cb)
{
    (void)r;
    (void)e;
    (void)GET(void, cb, "commit");
}
static void second_encoder(rig *r, id e, id cb)
{
    (void)r;
    (void)e;
    (void)SEND0(cb, "blitCommandEncoder");
}
static void not_a_buffer(rig *r, id e, id cb)
{
    (void)cb;
    bind(e, r->queue, 0, 0);
}
static void out_of_bounds(rig *r, id e, id cb)
{
    const util_fill_args a = {WORDS + 1024, 1};
    (void)SEND(void, (id, id, id), e, "setComputePipelineState:", r->fill);
    bind(e, r->buffer[0], 0, 0);
    args(e, &a, sizeof a, 1);
    launch(e, WORDS / 1024 + 1, 256);
    commit(e, cb, true);
}
static void early_release(rig *r, id e, id cb)
{
    fill(r, e, 1);
    (void)SEND0(r->buffer[0], "release");
    commit(e, cb, true);
}

static void test_encoder(void **state)
{
    (void)state;
    static const struct {
        void (*run)(rig *r, id e, id cb);
        const char *words;
    } cases[] = {{wrong_slot, "argument 31 of 31"},
                 {wrong_offset, "not a multiple of 16"},
                 {beyond, "offset 16384 of buffer"},
                 {too_many_bytes, "5000 bytes"},
                 {no_arguments, "argument 1 is nothing, not bytes"},
                 {one_too_many, "argument 5 is a buffer, not nothing"},
                 {threads, "groups of 128 x 1 x 1 threads, it has 256"},
                 {no_pipeline, "no pipeline is set"},
                 {after_end, "after endEncoding"},
                 {commit_open, "commit while an encoder is open"},
                 {second_encoder, "a new encoder while an encoder is open"},
                 {not_a_buffer, "MTLCommandQueue instead of MTLBuffer"},
                 {out_of_bounds, "out of bounds"},
                 {early_release, "after its end"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rig r;
        id cb;
        rig_open(&r, "record=1");
        id e = encoder(&r, &cb);
        cases[i].run(&r, e, cb);
        expect(cases[i].words);
    }
}

static void test_memory(void **state)
{
    (void)state;
    static _Alignas(16384) uint8_t page[32768];
    const char *over = "newBufferWithBytesNoCopy:length:options:deallocator:";
    static const struct {
        unsigned long off, bytes;
        const char *words;
    } cases[] = {{0, 16384, NULL},
                 {4096, 16384, "is not at a page of 16384 bytes"},
                 {0, 5000, "5000 bytes are not whole pages"}};
    for (size_t i = 0; i < 3; i++) {
        begin("record=1,page=16384");
        id d = s.device();
        id b = SEND(id, (id, id, void *, unsigned long, unsigned long, void *), d, over,
                    page + cases[i].off, cases[i].bytes, 0x100ul, NULL);
        assert_true((b != NULL) == (cases[i].words == NULL));
        expect(cases[i].words);
    }
    begin("record=1,memory=1m,max-buffer=300k");
    id d = s.device();
    const char *make = "newBufferWithLength:options:";
    for (int i = 0; i < 3; i++)
        assert_non_null(SEND(id, (id, id, unsigned long, unsigned long), d, make, 200000ul, 0ul));
    expect(NULL);
    assert_non_null(SEND(id, (id, id, unsigned long, unsigned long), d, make, 200000ul, 0ul));
    expect("the working set is 786432");
    assert_null(SEND(id, (id, id, unsigned long, unsigned long), d, make, 400000ul, 0ul));
}

/* ---- Faults ---- */

static void test_faults(void **state)
{
    (void)state;
    rig r;
    id cb, error = NULL;
    rig_open(&r, "fail=newCommandQueue@2");
    assert_null(SEND0(r.device, "newCommandQueue"));
    id q = SEND0(r.device, "newCommandQueue");
    assert_non_null(q);
    (void)SEND0(q, "release");
    rig_close(&r);
    expect_left(NULL);
    begin("fail=*@2,error=no sets today");
    void *pool = s.push();
    id d = s.device();
    id sd = SEND0(s.get_class("MTLResidencySetDescriptor"), "alloc");
    assert_null(sd);
    (void)SEND0(d, "release");
    begin("fail=newResidencySetWithDescriptor:error:@1,error=no sets today");
    pool = s.push();
    d = s.device();
    sd = SEND0(s.get_class("MTLResidencySetDescriptor"), "new");
    assert_null(
        SEND(id, (id, id, id, id *), d, "newResidencySetWithDescriptor:error:", sd, &error));
    assert_non_null(error);
    assert_string_equal(GET(const char *, SEND0(error, "localizedDescription"), "UTF8String"),
                        "no sets today");
    s.pop(pool);
    rig_open(&r, "cb-error=8@2,record=1");
    for (int i = 1; i <= 3; i++) {
        id e = encoder(&r, &cb);
        fill(&r, e, (uint32_t)i);
        commit(e, cb, true);
        assert_int_equal(GET(unsigned long, cb, "status"), i == 2 ? 5 : 4);
        if (i == 2) assert_int_equal(GET(long, SEND0(cb, "error"), "code"), 8);
        assert_int_equal(word(r.buffer[0], 5), i == 2 ? 1 : i);
    }
    expect(NULL);
    rig_close(&r);
    expect_left(NULL);
}

static void test_hang(void **state)
{
    (void)state;
    rig r;
    id cb;
    rig_open(&r, "cb-hang=1,record=1");
    id event = SEND0(r.device, "newSharedEvent");
    cb = SEND0(r.queue, "commandBufferWithUnretainedReferences");
    (void)SEND(void, (id, id, id, uint64_t), cb, "encodeSignalEvent:value:", event, (uint64_t)1);
    commit(NULL, cb, false);
    assert_false(SEND(bool, (id, id, uint64_t, uint64_t), event,
                      "waitUntilSignaledValue:timeoutMS:", (uint64_t)1, (uint64_t)20));
    assert_true(GET(unsigned long, cb, "status") < 4);
    expect(NULL);
    (void)GET(void, cb, "waitUntilCompleted");
    expect("never ends");
    (void)SEND0(event, "release");
    rig_close(&r);
    expect_left(NULL);
}

static void test_mutations(void **state)
{
    (void)state;
    static const struct {
        const char *options, *words;
        uint32_t at_0;
    } cases[] = {{"record=1,shift=1:0:4096", "out of bounds", 0},
                 {"record=1,swap=1:0:1", "argument 0 is bytes, not a buffer", 0},
                 {"record=1,stale=2:1", NULL, 1},
                 {"record=1", NULL, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rig r;
        id cb;
        rig_open(&r, cases[i].options);
        id e = encoder(&r, &cb);
        fill(&r, e, 1);
        barrier(e);
        fill(&r, e, 2);
        commit(e, cb, true);
        expect(cases[i].words);
        if (cases[i].words == NULL) assert_int_equal(word(r.buffer[0], 0), cases[i].at_0);
        assert_int_equal(s.count("mutated"), i < 3);
        rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_objects),
        cmocka_unit_test(test_wrong_messages),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_run),
        cmocka_unit_test(test_missing_barrier),
        cmocka_unit_test(test_command_buffers),
        cmocka_unit_test(test_blits),
        cmocka_unit_test(test_encoder),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_hang),
        cmocka_unit_test(test_mutations),
    };
    return cmocka_run_group_tests(tests, open_library, NULL);
}
