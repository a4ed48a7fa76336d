/* Engines and sessions on the demonstration model: opening, memory, defaults, and the invariances
 * of the numerics contract, bitwise on logits. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "engine/engine.h"
#include "engine/sysmem.h"

#define MODEL_DIR "models/nano"
#if defined(__SANITIZE_THREAD__) /* some fifty times slower */
#define N_IDS 100u
#else
#define N_IDS 700u
#endif
#define N_HALF   (N_IDS / 2 - 19)
#define N_SCORED (N_IDS / 5)
#define N_HOT    (N_IDS / 2)

static int32_t *ids; /* [N_IDS] real text */

static calla_engine *open_engine(calla_engine_options o)
{
    calla_error err;
    calla_engine *e;
    if (o.model_dir == NULL) o.model_dir = MODEL_DIR;
    if (calla_engine_create(&e, &o, &err) != CALLA_OK) fail_msg("%s", err.message);
    return e;
}

static calla_session *open_session(calla_engine *e)
{
    calla_error err;
    calla_session *s;
    const calla_session_options o = {.n_ctx = N_IDS + 100};
    if (calla_session_create(&s, e, &o, &err) != CALLA_OK) fail_msg("%s", err.message);
    return s;
}

static void feed(calla_session *s, size_t from, size_t to)
{
    calla_error err;
    if (calla_session_feed(s, ids + from, to - from, NULL, NULL, &err) != CALLA_OK)
        fail_msg("%s", err.message);
}

static int set_up(void **state)
{
    (void)state;
    strbuf text = {0};
    calla_error err;
    calla_tokenizer *tok;
    size_t n;
    while (text.len < 8 * N_IDS + 1000)
        (void)strbuf_puts(&text, "The baker of Lima sold 17 loaves, 3 cakes and a pie; it rained.\n"
                                 "Sort these words: pear, apple, fig. Where is the red box? ");
    if (calla_tokenizer_open(&tok, MODEL_DIR, &err) != CALLA_OK ||
        calla_tokenizer_encode(tok, text.data, text.len, 0, &ids, &n, &err) != CALLA_OK) {
        print_error("%s\n", err.message);
        return -1;
    }
    calla_tokenizer_close(tok);
    strbuf_deinit(&text);
    return n >= N_IDS ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    calla_free(ids);
    return 0;
}

/* Logits after all ids, and 12 greedy tokens, of a plain run with the defaults. */
typedef struct outcome {
    float logits[4096];
    int32_t text[12];
} outcome;

static outcome expected;

static void finish(calla_session *s, outcome *out)
{
    calla_error err;
    memcpy(out->logits, calla_session_logits(s), sizeof out->logits);
    const uint32_t n = calla_session_position(s);
    const calla_generate_options o = {.max_tokens = 12, .ignore_eos = true};
    assert_int_equal(calla_session_generate(s, &o, NULL, NULL, NULL, &err), CALLA_OK);
    memcpy(out->text, calla_session_tokens(s) + n, sizeof out->text);
}

static void assert_expected(calla_session *s)
{
    outcome got;
    finish(s, &got);
    assert_memory_equal(got.logits, expected.logits, sizeof got.logits);
    assert_memory_equal(got.text, expected.text, sizeof got.text);
}

/* ---- Opening ---- */

typedef struct log_lines {
    strbuf text;
    int n_warnings;
} log_lines;

static void on_log(void *user, calla_log_level level, const char *line)
{
    log_lines *l = user;
    l->n_warnings += level <= CALLA_LOG_WARN;
    (void)strbuf_printf(&l->text, "%s\n", line);
}

static void test_info(void **state)
{
    (void)state;
    log_lines log = {0};
    calla_engine *e = open_engine((calla_engine_options){
        .n_threads = 2, .chunk_tokens = 100, .log = on_log, .log_user = &log});
    calla_engine_info i;
    calla_engine_get_info(e, &i);
    assert_string_equal(i.model_dir, MODEL_DIR);
    assert_string_equal(i.backend, "cpu");
    assert_int_equal(i.n_threads, 2);
    assert_int_equal(i.chunk_tokens, 100);
    assert_int_equal(i.n_vocab, 4096);
    assert_int_equal(i.n_tokens, 4065);
    assert_int_equal(calla_tokenizer_size(calla_engine_tokenizer(e)), 4065);
    assert_true(i.weight_bytes > 12000000 && i.weight_bytes < 12350960);
    assert_true(i.active_bytes > 1000000 && i.active_bytes < i.weight_bytes);
    assert_int_equal(log.n_warnings, 0);
    assert_non_null(strstr(log.text.data, i.variant));

    calla_sampling p = {.temperature = 9};
    calla_engine_default_sampling(e, &p); /* its generation_config.json says do_sample: false */
    assert_true(p.temperature == 0.0f && p.seed == 0);
    assert_string_equal(calla_version(), CALLA_VERSION);
    strbuf_deinit(&log.text);
    calla_engine_destroy(e);
    calla_engine_destroy(NULL);
}

static void refuse(calla_engine_options o, calla_status st, const char *word)
{
    calla_error err;
    calla_engine *e = (calla_engine *)&err;
    assert_int_equal(calla_engine_create(&e, &o, &err), st);
    assert_null(e);
    if (strstr(err.message, word) == NULL) fail_msg("no \"%s\" in: %s", word, err.message);
}

static void test_refusals(void **state)
{
    (void)state;
    refuse((calla_engine_options){0}, CALLA_ERR_ARGUMENT, "model_dir");
    refuse((calla_engine_options){.model_dir = MODEL_DIR, .backend = "abacus"}, CALLA_ERR_ARGUMENT,
           "abacus");
    refuse((calla_engine_options){.model_dir = MODEL_DIR, .chunk_tokens = 4097}, CALLA_ERR_ARGUMENT,
           "4096");
    refuse((calla_engine_options){.model_dir = MODEL_DIR, .cpu_variant = "mmx"}, CALLA_ERR_ARGUMENT,
           "mmx");
    refuse((calla_engine_options){.model_dir = "models/none"}, CALLA_ERR_IO, "models/none");
    /* 12 MB of weights and some 30 MB besides. */
    refuse((calla_engine_options){.model_dir = MODEL_DIR, .memory_limit_bytes = 1 << 24},
           CALLA_ERR_MEMORY, "weights (mapped, page cache)");
}

/* A copy of the model's folder by links, with one file of other content. */
static void make_folder(char *dir, const char *changed, const char *content)
{
    static const char *const names[] = {"config.json",           "generation_config.json",
                                        "model.safetensors",     "tokenizer.json",
                                        "tokenizer_config.json", "chat_template.jinja"};
    char cwd[1024], from[2048], to[1024];
    assert_non_null(getcwd(cwd, sizeof cwd));
    (void)snprintf(dir, 64, "/tmp/calla-test-XXXXXX");
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        (void)snprintf(from, sizeof from, "%s/%s/%s", cwd, MODEL_DIR, names[i]);
        (void)snprintf(to, sizeof to, "%s/%s", dir, names[i]);
        if (strcmp(names[i], changed) != 0) {
            assert_int_equal(symlink(from, to), 0);
            continue;
        }
        FILE *f = fopen(to, "w");
        assert_non_null(f);
        (void)fputs(content, f);
        (void)fclose(f);
    }
}

static void remove_folder(const char *dir)
{
    static const char *const names[] = {"config.json",           "generation_config.json",
                                        "model.safetensors",     "tokenizer.json",
                                        "tokenizer_config.json", "chat_template.jinja"};
    char path[1024];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        (void)unlink(path);
    }
    (void)rmdir(dir);
}

static void test_other_template(void **state)
{
    (void)state;
    char dir[64];
    make_folder(dir, "chat_template.jinja", "{{ messages }}");
    log_lines log = {0};
    calla_engine *e =
        open_engine((calla_engine_options){.model_dir = dir, .log = on_log, .log_user = &log});
    assert_int_equal(log.n_warnings, 1);
    assert_non_null(strstr(log.text.data, "template"));
    strbuf_deinit(&log.text);
    calla_engine_destroy(e);
    remove_folder(dir);
}

static void test_other_defaults(void **state)
{
    (void)state;
    char dir[64];
    make_folder(dir, "generation_config.json", "{\"top_p\": 1.5, \"do_sample\": true}");
    refuse((calla_engine_options){.model_dir = dir}, CALLA_ERR_FORMAT,
           "generation_config.json: top_p must be between 0 and 1, found 1.5");
    remove_folder(dir);
}

static void test_generation_config(void **state)
{
    (void)state;
    static const struct {
        const char *json, *error; /* error NULL: accepted as `want` */
        calla_sampling want;
    } cases[] = {
        {"{\"do_sample\": true, \"temperature\": 0.5, \"top_k\": 20, \"top_p\": 0.75}",
         NULL,
         {.temperature = 0.5f, .top_k = 20, .top_p = 0.75f}},
        {"{\"do_sample\": true}", NULL, {.temperature = 1.0f}},
        {"{\"do_sample\": true, \"top_k\": null, \"repetition_penalty\": 1.25}",
         NULL,
         {.temperature = 1.0f, .repetition_penalty = 1.25f}},
        {"{\"do_sample\": false, \"temperature\": 0.5}", NULL, {.top_k = 0}},
        {"{\"temperature\": 0.5, \"min_p\": 0.125}", NULL, {.min_p = 0.125f}},
        {"{\"do_sample\": 1}", "do_sample", {.top_k = 0}},
        {"{\"temperature\": \"hot\"}", "temperature must be a number", {.top_k = 0}},
        {"{\"temperature\": -1}", "temperature", {.top_k = 0}},
        {"{\"top_k\": -1}", "top_k", {.top_k = 0}},
        {"{\"top_k\": 1e10}", "top_k", {.top_k = 0}},
        {"{\"top_k\": 2.5}", "top_k", {.top_k = 0}},
        {"{\"min_p\": 1}", "min_p", {.top_k = 0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_doc doc = {0};
        calla_error err;
        calla_sampling got;
        assert_int_equal(json_parse(&doc, cases[i].json, strlen(cases[i].json), NULL, &err), 0);
        const calla_status st = sampling_read(&got, doc.root, &err);
        if (cases[i].error == NULL) {
            assert_int_equal(st, CALLA_OK);
            assert_memory_equal(&got, &cases[i].want, sizeof got);
        } else {
            assert_int_equal(st, CALLA_ERR_FORMAT);
            assert_non_null(strstr(err.message, cases[i].error));
        }
        json_free(&doc);
    }
    calla_sampling none;
    assert_int_equal(sampling_read(&none, NULL, NULL), CALLA_OK);
    assert_true(none.temperature == 0.0f);
}

static void test_plan(void **state)
{
    (void)state;
    calla_error err;
    calla_memory_plan a, b, c;
    calla_engine *e = open_engine((calla_engine_options){.kv_type = CALLA_KV_F32});
    assert_int_equal(calla_engine_plan(e, 1024, &a, &err), CALLA_OK);
    assert_int_equal(calla_engine_plan(e, 4096, &b, &err), CALLA_OK);
    assert_int_equal(a.kv_bytes, 1024 * 2 * 2 * 256 * 4); /* 2 layers, K and V, 1 head, f32 */
    assert_int_equal(b.kv_bytes, 4 * a.kv_bytes);
    assert_int_equal(a.state_bytes, 6 * (4 * 128 * 128 + 3 * 1024) * 4);
    assert_int_equal(b.total_bytes, b.weights_copied + b.kv_bytes + b.state_bytes +
                                        b.scratch_bytes + b.logits_bytes);
    assert_int_equal(calla_engine_plan(e, 0, &c, &err), CALLA_ERR_ARGUMENT);
    assert_int_equal(calla_engine_plan(e, 1u << 30, &c, &err), CALLA_ERR_ARGUMENT);
    calla_engine_destroy(e);

    e = open_engine((calla_engine_options){0}); /* bf16 is the default */
    assert_int_equal(calla_engine_plan(e, 1024, &c, &err), CALLA_OK);
    assert_int_equal(2 * c.kv_bytes, a.kv_bytes);
    calla_engine_destroy(e);
}

/* The limit is exact: what the plan says fits, one byte less does not. */
static void test_limit(void **state)
{
    (void)state;
    calla_error err;
    calla_memory_plan plan;
    calla_engine *e = open_engine((calla_engine_options){0});
    assert_int_equal(calla_engine_plan(e, 4096, &plan, &err), CALLA_OK);
    calla_engine_destroy(e);
    const uint64_t sum = plan.weights_mapped + plan.total_bytes;
    refuse((calla_engine_options){.model_dir = MODEL_DIR, .memory_limit_bytes = sum - 1},
           CALLA_ERR_MEMORY, "expected at most");
    refuse((calla_engine_options){.model_dir = MODEL_DIR, .memory_limit_bytes = sum, .n_ctx = 4097},
           CALLA_ERR_MEMORY, "a session of 4097 tokens");
    e = open_engine((calla_engine_options){.memory_limit_bytes = sum - 1, .n_ctx = 1024});
    calla_engine_destroy(e);
    e = open_engine((calla_engine_options){.memory_limit_bytes = sum});
    calla_session *s, *t;
    const calla_session_options o = {.n_ctx = 4096}, small = {.n_ctx = 1};
    assert_int_equal(calla_session_create(&s, e, &o, &err), CALLA_OK);
    assert_int_equal(calla_session_create(&t, e, &small, &err), CALLA_ERR_MEMORY);
    assert_null(t);
    calla_session_destroy(s);
    assert_int_equal(calla_session_create(&t, e, &small, &err), CALLA_OK);
    calla_session_destroy(t);
    calla_engine_destroy(e);
}

/* Every allocation of an engine fails in turn. */
static void test_allocations(void **state)
{
    (void)state;
    calla_error err;
    calla_engine *e = NULL;
    const calla_engine_options o = {.model_dir = MODEL_DIR, .n_threads = 1, .chunk_tokens = 16};
    const uint64_t before = mem_count();
    assert_int_equal(calla_engine_create(&e, &o, &err), CALLA_OK);
    const int64_t n = (int64_t)(mem_count() - before);
    calla_engine_destroy(e);
    assert_true(n > 20);
    for (int64_t i = 0; i < n; i += i < 20 || i > n - 40 ? 1 : n / 40) {
        mem_fail_after(i);
        const calla_status st = calla_engine_create(&e, &o, &err);
        mem_fail_after(-1);
        if (st != CALLA_ERR_MEMORY) fail_msg("allocation %d: %s", (int)i, err.message);
        assert_null(e);
    }
}

/* ---- Available memory ---- */

static void put(const char *dir, const char *name, const char *content)
{
    char path[1024];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    (void)fputs(content, f);
    (void)fclose(f);
}

static void test_sysmem(void **state)
{
    (void)state;
    uint64_t n = 0;
    assert_true(sysmem_meminfo("MemTotal:  5 kB\nMemAvailable:   7 kB\n", "MemAvailable", &n));
    assert_int_equal(n, 7 * 1024);
    assert_false(sysmem_meminfo("MemTotal:  5 kB\n", "MemAvailable", &n));
    assert_true(sysmem_stat("anon 3\nfile 12\nfile_mapped 9\n", "file", &n));
    assert_int_equal(n, 12);
    assert_true(sysmem_available() > 1 << 24);
#if defined(__linux__)
    static const char *const dirs[] = {"self", "a", "a/b", "memory", "memory/x"};
    static const char *const files[] = {"meminfo",
                                        "self/cgroup",
                                        "a/memory.max",
                                        "a/memory.current",
                                        "a/memory.stat",
                                        "a/b/memory.max",
                                        "memory/x/memory.limit_in_bytes",
                                        "memory/x/memory.usage_in_bytes",
                                        "memory/x/memory.stat",
                                        "memory/memory.limit_in_bytes"};
    char root[64] = "/tmp/calla-test-XXXXXX", path[256];
    assert_non_null(mkdtemp(root));
    for (size_t i = 0; i < 5; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", root, dirs[i]);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    assert_true(sysmem_available_at(root, root) == UINT64_MAX); /* says nothing: no limit */
    put(root, "meminfo", "MemTotal: 999999999 kB\nMemAvailable: 10000 kB\n");
    assert_int_equal(sysmem_available_at(root, root), 10240000);
    put(root, "self/cgroup", "0::/a/b\n");
    put(root, "a/b/memory.max", "max\n");
    put(root, "a/memory.max", "9000000\n"); /* the parent's limit counts */
    assert_int_equal(sysmem_available_at(root, root), 9000000);
    put(root, "a/memory.current", "3000000\n");
    put(root, "a/memory.stat", "anon 500000\nfile 2500000\n"); /* page cache is free memory */
    assert_int_equal(sysmem_available_at(root, root), 8500000);
    put(root, "self/cgroup", "12:cpu,cpuacct:/y\n5:memory:/x\n1:name=systemd:/z\n");
    put(root, "memory/memory.limit_in_bytes", "9223372036854771712\n");
    put(root, "memory/x/memory.limit_in_bytes", "7000000\n");
    put(root, "memory/x/memory.usage_in_bytes", "9000000\n");
    assert_int_equal(sysmem_available_at(root, root), 0);
    put(root, "memory/x/memory.stat", "cache 1\ntotal_cache 6000000\n");
    assert_int_equal(sysmem_available_at(root, root), 4000000);
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", root, files[i]);
        assert_int_equal(unlink(path), 0);
    }
    for (size_t i = 5; i-- > 0;) {
        (void)snprintf(path, sizeof path, "%s/%s", root, dirs[i]);
        assert_int_equal(rmdir(path), 0);
    }
    assert_int_equal(rmdir(root), 0);
#endif
}

/* ---- Invariances ---- */

static void test_chunked(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {7, 64, 1};
    calla_engine *e = open_engine((calla_engine_options){.chunk_tokens = 1024});
    calla_session *s = open_session(e);
    feed(s, 0, N_IDS);
    finish(s, &expected);
    calla_session_reset(s);
    for (size_t i = 0, n = 1; i < N_IDS; i += n, n = n * 3 % 47 + 1) /* split arbitrarily */
        feed(s, i, i + n < N_IDS ? i + n : N_IDS);
    assert_expected(s);
    calla_session_destroy(s);
    calla_engine_destroy(e);
    for (size_t i = 0; i < 3; i++) {
        e = open_engine((calla_engine_options){.chunk_tokens = chunks[i]});
        s = open_session(e);
        feed(s, 0, N_IDS);
        assert_expected(s);
        calla_session_destroy(s);
        calla_engine_destroy(e);
    }
}

static void test_n_threads(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 3; n++) {
        calla_engine *e = open_engine((calla_engine_options){.n_threads = n});
        calla_session *s = open_session(e);
        feed(s, 0, N_IDS);
        assert_expected(s);
        calla_session_destroy(s);
        calla_engine_destroy(e);
    }
}

static void test_restored(void **state)
{
    (void)state;
    calla_error err;
    calla_engine *e = open_engine((calla_engine_options){0});
    calla_session *s = open_session(e), *t, *u = open_session(e);
    calla_snapshot *c;
    feed(s, 0, N_HALF);
    assert_int_equal(calla_session_snapshot(s, &c, &err), CALLA_OK);
    assert_int_equal(calla_session_fork(&t, s, &err), CALLA_OK);
    feed(s, 5, 45); /* a detour */
    assert_int_equal(calla_session_restore(s, c, &err), CALLA_OK);
    feed(u, 100, 150); /* another session, used before */
    assert_int_equal(calla_session_restore(u, c, &err), CALLA_OK);
    calla_snapshot_destroy(c);
    for (size_t i = N_HALF; i < N_IDS; i += 41) { /* interleaved */
        const size_t to = i + 41 < N_IDS ? i + 41 : N_IDS;
        feed(s, i, to);
        feed(t, i, to);
        feed(u, i, to);
    }
    assert_expected(s);
    assert_expected(t);
    assert_expected(u);
    calla_session_destroy(s);
    calla_session_destroy(t);
    calla_session_destroy(u);
    calla_engine_destroy(e);
}

typedef struct row_check {
    calla_session *s;
    size_t n;
} row_check;

static bool on_row(void *user, size_t i, const float *logits, int32_t n_vocab)
{
    row_check *r = user;
    r->n++;
    if (i % 50 != 7) return true;
    calla_session_reset(r->s);
    feed(r->s, 0, i + 1);
    return memcmp(logits, calla_session_logits(r->s), (size_t)n_vocab * sizeof *logits) == 0;
}

/* Scoring's rows are what feeding up to there gives. */
static void test_scored(void **state)
{
    (void)state;
    calla_error err;
    calla_engine *e = open_engine((calla_engine_options){0}); /* the device is free in on_row */
    calla_session *s = open_session(e);
    row_check r = {.s = open_session(e)};
    assert_int_equal(calla_session_score(s, ids, N_SCORED, on_row, &r, &err), CALLA_OK);
    assert_int_equal(r.n, N_SCORED);
    feed(s, N_SCORED, N_IDS);
    assert_expected(s);
    calla_session_destroy(s);
    calla_session_destroy(r.s);
    calla_engine_destroy(e);
}

static bool on_token(void *user, int32_t id, const char *bytes, size_t n_bytes)
{
    uint64_t *n_allocs = user;
    size_t n;
    (void)id;
    assert_non_null(bytes);
    n = n_bytes;
    assert_true(n > 0);
    if (*n_allocs == 0) *n_allocs = mem_count();
    assert_int_equal(*n_allocs, mem_count());
    return true;
}

/* Nothing allocates between tokens, and padding (4065 .. 4095) never comes out, even hot. */
static void test_token_loop(void **state)
{
    (void)state;
    calla_error err;
    calla_engine *e = open_engine((calla_engine_options){0});
    calla_session *s = open_session(e);
    feed(s, 0, 20);
    uint64_t n_allocs = 0;
    const calla_sampling p = {.temperature = 20.0f, .repetition_penalty = 1.1f, .seed = 3};
    const calla_generate_options o = {.sampling = &p, .max_tokens = N_HOT, .ignore_eos = true};
    assert_int_equal(calla_session_generate(s, &o, on_token, &n_allocs, NULL, &err), CALLA_OK);
    assert_int_equal(calla_session_position(s), 20 + N_HOT);
    for (uint32_t i = 20; i < 20 + N_HOT; i++)
        assert_in_range(calla_session_tokens(s)[i], 0, 4064);
    calla_session_destroy(s);
    calla_engine_destroy(e);
}

typedef struct worker {
    calla_engine *engine;
    size_t from;
    float logits[4096];
    int n_bad;
} worker;

static void *work(void *arg)
{
    worker *w = arg;
    const calla_session_options so = {.n_ctx = 300};
    const calla_generate_options o = {.max_tokens = 20, .ignore_eos = true};
    calla_session *s;
    if (calla_session_create(&s, w->engine, &so, NULL) != CALLA_OK) {
        w->n_bad++;
        return NULL;
    }
    for (size_t i = 0; i < 90; i += 30)
        w->n_bad += calla_session_feed(s, ids + w->from + i, 30, NULL, NULL, NULL) != CALLA_OK;
    w->n_bad += calla_session_generate(s, &o, NULL, NULL, NULL, NULL) != CALLA_OK;
    memcpy(w->logits, calla_session_logits(s), sizeof w->logits);
    calla_session_destroy(s);
    return NULL;
}

/* Sessions in several threads on one engine = each alone. */
static void test_shared_engine(void **state)
{
    (void)state;
    enum { n_workers = 3 };
    static worker together[n_workers], alone;
    pthread_t threads[n_workers];
    calla_engine *e = open_engine((calla_engine_options){.n_threads = 2});
    for (size_t i = 0; i < n_workers; i++) {
        together[i] = (worker){.engine = e, .from = i * 30};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &together[i]), 0);
    }
    for (size_t i = 0; i < n_workers; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (size_t i = 0; i < n_workers; i++) {
        alone = (worker){.engine = e, .from = i * 30};
        (void)work(&alone);
        assert_int_equal(alone.n_bad + together[i].n_bad, 0);
        assert_memory_equal(alone.logits, together[i].logits, sizeof alone.logits);
    }
    calla_engine_destroy(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_info),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_other_template),
        cmocka_unit_test(test_other_defaults),
        cmocka_unit_test(test_generation_config),
        cmocka_unit_test(test_plan),
        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_allocations),
        cmocka_unit_test(test_sysmem),
        cmocka_unit_test(test_chunked), /* fills `expected` for those below */
        cmocka_unit_test(test_n_threads),
        cmocka_unit_test(test_restored),
        cmocka_unit_test(test_scored),
        cmocka_unit_test(test_token_loop),
        cmocka_unit_test(test_shared_engine),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
