/* Synthetic checkpoints: sizes, determinism, that they open, tokenise and compute sane numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include "exec/executor.h"
#include "model/synth.h"
#include "support/st_writer.h"

static void test_sizes(void **state)
{
    (void)state;
    model_shape s;
    calla_error err = {0};
    assert_int_equal(synth_shape(&s, "full", 0, &err), CALLA_OK);
    assert_int_equal(synth_tensor_bytes(&s), 19508787456u);
    assert_int_equal(synth_n_tokens(&s), 248077);
    assert_int_equal(synth_shape(&s, "nano", 0, &err), CALLA_OK);
    assert_int_equal(synth_tensor_bytes(&s), 12305376u); /* as the demonstration model */
    assert_int_equal(synth_n_tokens(&s), 4065);
    assert_int_equal(synth_shape(&s, "slice", 0, &err), CALLA_OK);
    assert_int_equal(s.n_layers, 8);
    assert_int_equal(s.hidden, 2048);
    assert_int_equal(synth_shape(&s, "slice", 3, &err), CALLA_OK);
    assert_int_equal(s.n_layers, 3);
    assert_int_equal(synth_shape(&s, "huge", 0, &err), CALLA_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "expected full, slice or nano, found huge"));
    assert_int_equal(synth_shape(&s, "nano", 257, &err), CALLA_ERR_ARGUMENT);
}

/* The configuration reads back as the shape it was written from. */
static void test_config(void **state)
{
    (void)state;
    static const char *const names[] = {"full", "slice", "nano"};
    for (int i = 0; i < 3; i++) {
        model_shape want, found;
        strbuf c = {0}, g = {0};
        json_doc cd = {0}, gd = {0};
        calla_error err = {0};
        assert_int_equal(synth_shape(&want, names[i], 0, &err), CALLA_OK);
        assert_true(synth_config(&c, &want) && synth_generation_config(&g, &want));
        assert_int_equal(json_parse(&cd, c.data, c.len, NULL, &err), CALLA_OK);
        assert_int_equal(json_parse(&gd, g.data, g.len, NULL, &err), CALLA_OK);
        if (shape_read(&found, cd.root, gd.root, &err) != CALLA_OK) fail_msg("%s", err.message);
        assert_true(synth_is(cd.root) && !synth_is(gd.root));
        assert_int_equal(found.n_stop_ids, 2);
        want.n_stop_ids = 2;
        want.stop_ids[0] = (int32_t)synth_n_tokens(&want) - 31; /* <|im_end|> */
        want.stop_ids[1] = (int32_t)synth_n_tokens(&want) - 33;
        assert_memory_equal(&want, &found, sizeof want);
        json_free(&cd);
        json_free(&gd);
        strbuf_deinit(&c);
        strbuf_deinit(&g);
    }
}

static char *in_dir(const char *dir, const char *name)
{
    char *path = path_join(dir, name);
    assert_non_null(path);
    return path;
}

/* Removes the files of a written checkpoint, then the folder. */
static void remove_checkpoint(const char *dir)
{
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d))
        if (e->d_name[0] != '.') stw_remove(dir, e->d_name);
    (void)closedir(d);
    assert_int_equal(rmdir(dir), 0);
}

static void assert_same_file(const char *a, const char *b, const char *name)
{
    char *pa = in_dir(a, name), *pb = in_dir(b, name), *da = NULL, *db = NULL;
    size_t na = 0, nb = 0;
    assert_int_equal(file_read(pa, 1 << 25, &da, &na, NULL), CALLA_OK);
    assert_int_equal(file_read(pb, 1 << 25, &db, &nb, NULL), CALLA_OK);
    assert_int_equal(na, nb);
    assert_memory_equal(da, db, na);
    mem_free(da);
    mem_free(db);
    mem_free(pa);
    mem_free(pb);
}

static uint64_t one_value(const checkpoint *ck, const char *name, size_t i)
{
    const st_tensor *t = checkpoint_find(ck, name);
    assert_non_null(t);
    return t->dtype == ST_BF16 ? load_le16(t->data + 2 * i) : load_le32(t->data + 4 * i);
}

/* Logits of a few tokens are finite, differ, and are of order one. */
static void check_forward(const model_shape *s, const model_weights *w)
{
    executor *ex = NULL;
    exec_seq *seq = NULL;
    calla_error err = {0};
    const exec_options options = {.n_threads = 2, .chunk_tokens = 64};
    int32_t tokens[40];
    if (exec_cpu_create(&ex, s, w, &options, &err) != CALLA_OK) fail_msg("%s", err.message);
    assert_int_equal(ex->ops->seq_create(ex, 64, &seq, &err), CALLA_OK);
    float *logits = mem_alloc_aligned(s->n_vocab * sizeof *logits);
    for (int i = 0; i < 40; i++)
        tokens[i] = i * 97 % (int32_t)s->n_vocab;
    const exec_segment seg = {seq, tokens, 40, EXEC_LOGITS_LAST, logits};
    assert_int_equal(ex->ops->run(ex, &seg, 1, &err), CALLA_OK);
    double sum = 0, squares = 0;
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        assert_true(isfinite(logits[i]));
        sum += (double)logits[i];
        squares += (double)logits[i] * (double)logits[i];
    }
    const double mean = sum / s->n_vocab, deviation = sqrt(squares / s->n_vocab - mean * mean);
    if (!(fabs(mean) < 0.5 && deviation > 1 && deviation < 4))
        fail_msg("expected logits of mean 0 and deviation 2, found %g and %g", mean, deviation);
    mem_free_aligned(logits);
    ex->ops->seq_destroy(ex, seq);
    ex->ops->destroy(ex);
}

static void test_write(void **state)
{
    (void)state;
    char *dir = stw_mkdir(), *a = in_dir(dir, "a"), *b = in_dir(dir, "b"), *c = in_dir(dir, "c");
    synth_options o = {.shape = "nano", .n_layers = 4, .seed = 7, .n_threads = 1};
    calla_error err = {0};
    uint64_t n_bytes = 0;
    if (synth_write(a, &o, &n_bytes, &err) != CALLA_OK) fail_msg("%s", err.message);
    o.n_threads = 3;
    assert_int_equal(synth_write(b, &o, NULL, &err), CALLA_OK);
    o.seed = 8;
    assert_int_equal(synth_write(c, &o, NULL, &err), CALLA_OK);
    assert_same_file(a, b, "model.safetensors");
    assert_same_file(a, b, "tokenizer.json");

    checkpoint *ck = NULL, *other = NULL;
    model_shape s;
    model_weights w;
    assert_int_equal(checkpoint_open(&ck, a, &err), CALLA_OK);
    assert_int_equal(shape_read(&s, checkpoint_config(ck), NULL, &err), CALLA_OK);
    if (weights_bind(&w, ck, &s, &err) != CALLA_OK) fail_msg("%s", err.message);
    assert_int_equal(w.mapped_bytes, n_bytes);
    assert_int_equal((uintptr_t)w.embed.data % 2, 1);
    assert_int_equal(checkpoint_open(&other, c, &err), CALLA_OK);
    static const char name[] = "language_model.lm_head.weight";
    assert_int_not_equal(one_value(ck, name, 0), one_value(other, name, 0));
    assert_int_not_equal(one_value(ck, name, 0), one_value(ck, name, 2));
    /* scale and bias belong together: bias = -7.5 scale, rounded */
    for (size_t i = 0; i < 64; i++) {
        const float scale =
            bf16_to_f32((uint16_t)one_value(ck, "language_model.model.embed_tokens.scales", i));
        const float bias =
            bf16_to_f32((uint16_t)one_value(ck, "language_model.model.embed_tokens.biases", i));
        assert_true(bias == bf16_to_f32(f32_to_bf16(-7.5f * scale)));
    }
    check_forward(&s, &w);

    calla_tokenizer *tok = NULL;
    if (calla_tokenizer_open(&tok, a, &err) != CALLA_OK) fail_msg("%s", err.message);
    assert_int_equal(calla_tokenizer_size(tok), 4065);
    assert_int_equal(calla_tokenizer_added_id(tok, "<|im_end|>"), 4034);
    int32_t *ids = NULL;
    size_t n_ids = 0, n_text = 0;
    char *text = NULL;
    assert_int_equal(calla_tokenizer_encode(tok, " the\xc3\xa9<think>", 13, 0, &ids, &n_ids, &err),
                     CALLA_OK);
    assert_int_equal(ids[n_ids - 1], 4056);
    assert_true(n_ids < 7);
    assert_int_equal(calla_tokenizer_decode(tok, ids, n_ids, false, &text, &n_text, &err), 0);
    assert_string_equal(text, " the\xc3\xa9<think>");
    calla_free(ids);
    calla_free(text);
    calla_tokenizer_close(tok);

    assert_int_equal(synth_write(a, &o, NULL, &err), CALLA_ERR_IO);
    assert_non_null(strstr(err.message, "exists already"));
    assert_int_equal(synth_write("", &o, NULL, &err), CALLA_ERR_ARGUMENT);
    char *link = in_dir(dir, "link");
    assert_int_equal(symlink("nowhere", link), 0);
    assert_int_equal(synth_write(link, &o, NULL, &err), CALLA_ERR_IO);
    assert_non_null(strstr(err.message, "exists already"));
    assert_int_equal(unlink(link), 0);
    mem_free(link);
    weights_unbind(&w);
    checkpoint_close(ck);
    checkpoint_close(other);
    remove_checkpoint(a);
    remove_checkpoint(b);
    remove_checkpoint(c);
    mem_free(a);
    mem_free(b);
    mem_free(c);
    stw_rmdir(dir);
}

/* The real vocabulary's size: 248,044 tokens by merges, all different. */
static void test_full_tokenizer(void **state)
{
    (void)state;
    strbuf b = {0};
    calla_error err = {0};
    calla_tokenizer *tok = NULL;
    char *dir = stw_mkdir();
    assert_true(synth_tokenizer(&b, 248077));
    stw_write(dir, "tokenizer.json", b.data, b.len);
    if (calla_tokenizer_open(&tok, dir, &err) != CALLA_OK) fail_msg("%s", err.message);
    assert_int_equal(calla_tokenizer_size(tok), 248077);
    assert_int_equal(calla_tokenizer_added_id(tok, "<|endoftext|>"), 248044);
    assert_int_equal(calla_tokenizer_added_id(tok, "<|audio_pad|>"), 248076);
    calla_tokenizer_close(tok);
    strbuf_deinit(&b);
    stw_rmdir(dir);
}

static bool stop_at_once(void *user, uint64_t done, uint64_t total)
{
    *(uint64_t *)user = total;
    return done == 0;
}

/* Cancelled, refused, or out of memory: nothing is left behind. */
static void test_leaves_nothing(void **state)
{
    (void)state;
    char *dir = stw_mkdir(), *out = in_dir(dir, "out");
    uint64_t total = 0;
    calla_error err = {0};
    synth_options o = {.shape = "nano", .n_threads = 1, .progress = stop_at_once, .user = &total};
    assert_int_equal(synth_write(out, &o, NULL, &err), CALLA_ERR_CANCELLED);
    assert_int_equal(total, 12305376u);
    o.progress = NULL;
    o.chat_template = out; /* does not exist */
    o.n_layers = 1;
    assert_int_equal(synth_write(out, &o, NULL, &err), CALLA_ERR_IO);
    o.chat_template = NULL;
    for (int64_t k = 0; k < 60; k++) {
        mem_fail_after(k);
        const calla_status st = synth_write(out, &o, NULL, &err);
        mem_fail_after(-1);
        if (st != CALLA_OK) assert_int_equal(st, CALLA_ERR_MEMORY);
        if (st == CALLA_OK) remove_checkpoint(out);
    }
    /* A file that cannot grow: the write fails in a worker thread. */
    struct rlimit limit, low;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    low = limit;
    low.rlim_cur = 2000000;
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
    assert_int_equal(synth_write(out, &o, NULL, &err), CALLA_ERR_IO);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_non_null(strstr(err.message, "cannot write model.safetensors: File too large"));
    char *below = in_dir(out, "x");
    assert_int_equal(synth_write(below, &o, NULL, &err), CALLA_ERR_IO);
    assert_non_null(strstr(err.message, "cannot make the folder"));
    mem_free(below);
    mem_free(out);
    stw_rmdir(dir); /* fails unless empty */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),          cmocka_unit_test(test_config),
        cmocka_unit_test(test_write),          cmocka_unit_test(test_full_tokenizer),
        cmocka_unit_test(test_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
