/* The demonstration model through the Metal driver on the stand-in (tests/standin): golden texts
 * at every rung from the very texts that ship, under shadow memory, and mutations of what the
 * driver encodes for a prompt and a step.
 *   CALLA_TEST_METAL=all   whole golden texts (minutes); else their beginning
 *   CALLA_MUTATIONS=N      how many mutations are drawn (default 4); barriers: each of them; all:
 * every one (hours) CALLA_SEED=N           of what is drawn */
#include <dlfcn.h>

#include "support/golden.h"

#include "exec/gpu/gpu.h"
#include "exec/gpu/metal/source.h"
#include "standin.h"

static struct {
    const char *(*configure)(const char *options);
    const char *(*finish)(void);
    const char *(*violation)(void);
    uint64_t (*count)(const char *what);
    uint32_t (*dispatch)(uint64_t n, const char **kernel);
    uint64_t (*barrier)(uint64_t n);
} s;

static struct {
    checkpoint *ck;
    model_shape shape;
    model_weights weights;
    int32_t text[MAX_IDS];
} m;

static int set_up(void **state)
{
    calla_error err;
    if (golden_set_up(state) != 0) return -1;
    if (checkpoint_open(&m.ck, MODEL_DIR, &err) != CALLA_OK ||
        shape_read(&m.shape, checkpoint_config(m.ck), NULL, &err) != CALLA_OK ||
        weights_bind(&m.weights, m.ck, &m.shape, &err) != CALLA_OK) {
        print_error("%s\n", err.message);
        return -1;
    }
    (void)read_ids(json_get(json_get(golden.root, "perplexity"), "ids"), m.text);
    void *h = dlopen(STANDIN, RTLD_NOW | RTLD_LOCAL);
    if (h == NULL) return -1;
    const struct {
        const char *name;
        void *to;
    } all[] = {{"standin_configure", &s.configure}, {"standin_finish", &s.finish},
               {"standin_violation", &s.violation}, {"standin_count", &s.count},
               {"standin_dispatch", &s.dispatch},   {"standin_barrier", &s.barrier}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        void *p = dlsym(h, all[i].name);
        if (p == NULL) return -1;
        memcpy(all[i].to, &p, sizeof p);
    }
    (void)setenv("CALLA_METAL_FRAMEWORK", STANDIN, 1);
    return 0;
}

static int tear_down(void **state)
{
    weights_unbind(&m.weights);
    checkpoint_close(m.ck);
    return golden_tear_down(state);
}

static void play(const char *options)
{
    const char *bad = s.configure(options);
    if (bad != NULL) fail_msg("%s", bad);
}

static void all_well(const char *what)
{
    const char *left = s.finish(), *v = s.violation();
    if (v != NULL) fail_msg("%s: %s", what, v);
    if (left != NULL) fail_msg("%s: left behind: %s", what, left);
}

static bool want_all(void)
{
    const char *v = getenv("CALLA_TEST_METAL");
    return v != NULL && strcmp(v, "all") == 0;
}

/* ---- Golden texts ---- */

/* The case's prompt, and the first n of its continuation. */
static void begin_case(calla_engine *e, const json_value *test_case, size_t n)
{
    static int32_t ids[MAX_IDS], want[MAX_IDS];
    static reply got;
    calla_error err;
    calla_session *session;
    const size_t n_ids = read_ids(json_get(test_case, "input_ids"), ids);
    (void)read_ids(json_get(test_case, "greedy_ids"), want);
    const calla_session_options so = {.n_ctx = (uint32_t)(n_ids + n + 1)};
    const calla_generate_options o = {.max_tokens = (uint32_t)n};
    calla_generate_result r;
    if (calla_session_create(&session, e, &so, &err) != CALLA_OK ||
        calla_session_feed(session, ids, n_ids, NULL, NULL, &err) != CALLA_OK)
        fail_msg("%s", err.message);
    got.n = 0;
    if (calla_session_generate(session, &o, on_token, &got, &r, &err) != CALLA_OK)
        fail_msg("%s", err.message);
    assert_int_equal(got.n, n);
    assert_memory_equal(got.ids, want, n * sizeof *want);
    calla_session_destroy(session);
}

static void golden_on(const char *rung, const char *options, size_t n)
{
    calla_error err;
    calla_engine *e;
    const calla_engine_options o = {.model_dir = MODEL_DIR, .backend = "metal", .pack_dir = "none"};
    play(options);
    (void)setenv("CALLA_METAL_RUNG", rung, 1);
    if (calla_engine_create(&e, &o, &err) != CALLA_OK) fail_msg("%s", err.message);
    calla_engine_info info;
    calla_engine_get_info(e, &info);
    assert_string_equal(info.backend, "metal");
    if (want_all() && n > 2)
        assert_true(run_cases(e, 110, "bf16") < 0.7);
    else
        begin_case(e, json_at(json_get(golden.root, "cases"), 0), n);
    calla_engine_destroy(e);
    print_message("  %s, %s: %llu dispatches, %llu barriers, %llu encoders\n", rung, options,
                  (unsigned long long)s.count("dispatches"),
                  (unsigned long long)s.count("barriers"), (unsigned long long)s.count("encoders"));
    all_well(rung);
}

static void test_rungs(void **state)
{
    (void)state;
    golden_on("scalar", "record=1,mode=msl,seed=1,delay=100,chip=M1,os=14.5", 3);
    golden_on("simdgroup", "record=1,mode=msl,seed=2,delay=100,chip=M4Pro,os=15.5", 3);
    golden_on("tensor", "record=1,mode=msl,seed=3,delay=100,chip=M5,os=26.2", 3);
    golden_on("tensor4", "record=1,mode=msl,seed=4,delay=100,chip=M5Max,os=26.4", 3);
}

static void test_checked(void **state)
{
    (void)state;
    golden_on("scalar", "record=1,mode=check,seed=5,delay=100,chip=M3Ultra,os=26.4", 2);
    if (want_all()) golden_on("tensor4", "record=1,mode=check,seed=6,delay=100,chip=M5Max", 4);
}

/* ---- Mutations ---- */

#define PROMPT 5u

typedef struct outcome {
    calla_status st;
    uint64_t hash; /* of the logits after the prompt and after a step */
} outcome;

static uint64_t hash_row(uint64_t h, const float *row)
{
    const uint8_t *p = (const uint8_t *)row;
    for (size_t i = 0; i < m.shape.n_vocab * sizeof *row; i++)
        h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

static outcome run_once(const char *options)
{
    calla_error err;
    executor *ex = NULL;
    exec_seq *seq = NULL;
    gpu_device *dev = NULL;
    outcome out = {CALLA_OK, 0xcbf29ce484222325u};
    model_shape shape = m.shape;
    shape.n_layers = 4; /* three of one kind and one of the other */
    float *row = mem_array(shape.n_vocab, sizeof *row);
    const exec_options eo = {.chunk_tokens = 64};
    const gpu_metal_options mo = {
        .framework = STANDIN, .max_rung = METAL_RUNG_SCALAR, .trust = true};
    calla_status st;
    play(options);
    TRY(gpu_metal_create(&dev, &mo, &err));
    TRY(gpu_exec_create(&ex, dev, &shape, &m.weights, &eo, &err));
    TRY(ex->ops->seq_create(ex, 32, &seq, &err));
    ex->ops->seq_reset(ex, seq);
    const exec_segment prompt = {seq, m.text, PROMPT, EXEC_LOGITS_LAST, row};
    TRY(ex->ops->run(ex, &prompt, 1, &err));
    out.hash = hash_row(out.hash, row);
    for (uint32_t i = 0; i < 2; i++) {
        const exec_segment step = {seq, m.text + PROMPT + i, 1, EXEC_LOGITS_LAST, row};
        TRY(ex->ops->run(ex, &step, 1, &err));
        out.hash = hash_row(out.hash, row);
    }
fail:
    out.st = st;
    if (seq != NULL) ex->ops->seq_destroy(ex, seq);
    if (ex != NULL) ex->ops->destroy(ex);
    mem_free(row);
    (void)s.finish();
    return out;
}

typedef struct mutation {
    char text[64];
    const char *kernel, *next; /* next: of a barrier, the kernel behind it */
} mutation;

static mutation *list;
static size_t n_list;

static void add(const char *kernel, const char *next, const char *fmt, ...) ATTR_PRINTF(3, 4);
static void add(const char *kernel, const char *next, const char *fmt, ...)
{
    va_list ap;
    if (n_list % 1024 == 0) list = mem_resize(list, (n_list + 1024) * sizeof *list);
    assert_non_null(list);
    va_start(ap, fmt);
    (void)vsnprintf(list[n_list].text, sizeof list[n_list].text, fmt, ap);
    va_end(ap);
    list[n_list].kernel = kernel;
    list[n_list++].next = next;
}

/* Of the run that was made last. */
static void list_mutations(void)
{
    const unsigned n_barriers = (unsigned)s.count("barriers");
    const unsigned n_dispatches = (unsigned)s.count("dispatches");
    for (unsigned i = 1; i <= n_barriers; i++) {
        const char *before = "", *after = "";
        (void)s.dispatch(s.barrier(i), &before);
        (void)s.dispatch(s.barrier(i) + 1, &after);
        add(before, after, "drop-barrier=%u", i);
    }
    for (unsigned i = 1; i <= n_dispatches; i++) {
        const char *kernel = NULL;
        const unsigned n = s.dispatch(i, &kernel);
        for (unsigned a = 0; a < n; a++) {
            for (unsigned b = a + 1; b < n; b++)
                add(kernel, NULL, "swap=%u:%u:%u", i, a, b);
            if (a + 1 < n) add(kernel, NULL, "shift=%u:%u:16", i, a);
            add(kernel, NULL, "stale=%u:%u", i, a);
        }
    }
}

static uint64_t number_of(const char *name, uint64_t otherwise)
{
    const char *v = getenv(name);
    return v != NULL && strcmp(v, "all") != 0 ? strtoull(v, NULL, 10) : otherwise;
}

/* The two sizes of an expert's product share their declared ranges, and the counts of this prompt
 * leave one of them without work: there is no byte in conflict. */
static bool may_do_nothing(const mutation *x)
{
    return strncmp(x->kernel, "moe_", 4) == 0 && x->next != NULL &&
           strncmp(x->next, "moe_", 4) == 0;
}

static bool is_barrier(const mutation *x)
{
    return x->next != NULL;
}

static void test_mutations(void **state)
{
    (void)state;
    const char *how_many = getenv("CALLA_MUTATIONS");
    const bool all = how_many != NULL && strcmp(how_many, "all") == 0;
    const uint64_t seed = number_of("CALLA_SEED", 1);
    const char *base = "record=1,mode=check,seed=1";
    const outcome want = run_once(base);
    assert_int_equal(want.st, CALLA_OK);
    all_well("no mutation");
    list_mutations();
    const size_t n_barriers = (size_t)s.count("barriers");
    const bool barriers = how_many != NULL && strcmp(how_many, "barriers") == 0;
    const size_t n = all ? n_list : barriers ? n_barriers : (size_t)number_of("CALLA_MUTATIONS", 4);
    size_t n_seen[2] = {0}, n_same[2] = {0}, n_run[2] = {0};
    uint64_t rng = seed;
    for (size_t i = 0; i < n; i++) {
        char options[160];
        rng = rng * 6364136223846793005u + 1442695040888963407u;
        const size_t among = i % 2 == 0 ? n_barriers : n_list; /* every other one a barrier */
        const mutation *x = &list[all || barriers ? i : (size_t)(rng >> 33) % among];
        const int k = is_barrier(x) ? 0 : 1;
        (void)snprintf(options, sizeof options, "%s,%s", base, x->text);
        const outcome got = run_once(options);
        const bool seen = got.st != CALLA_OK || got.hash != want.hash || s.violation() != NULL;
        n_run[k]++;
        n_seen[k] += seen;
        const bool same = s.count("mutated") == 0 || may_do_nothing(x);
        n_same[k] += !seen && same;
        if (!seen && !same)
            print_message("  not seen: %s %s %s\n", x->text, x->kernel,
                          x->next != NULL ? x->next : "");
    }
    print_message("  seed %llu, of %zu mutations: barriers %zu removed, %zu seen, %zu without "
                  "effect; arguments %zu changed, %zu seen, %zu without effect\n",
                  (unsigned long long)seed, n_list, n_run[0], n_seen[0], n_same[0], n_run[1],
                  n_seen[1], n_same[1]);
    assert_int_equal(n_run[0] + n_run[1], n_seen[0] + n_seen[1] + n_same[0] + n_same[1]);
    mem_free(list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rungs), cmocka_unit_test(test_checked),
                                       cmocka_unit_test(test_mutations)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
