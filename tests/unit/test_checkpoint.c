/* A folder of shards: what opens, and every refusal. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "format/checkpoint.h"
#include "support/st_writer.h"

static void expect_refused(const char *dir, calla_status code, const char *sentence)
{
    checkpoint *ck = NULL;
    calla_error err = {0};
    const calla_status s = checkpoint_open(&ck, dir, &err);
    if (s == CALLA_OK || strstr(err.message, sentence) == NULL)
        fail_msg("expected \"%s\", found \"%s\"", sentence, s == CALLA_OK ? "ok" : err.message);
    assert_int_equal(s, code);
    assert_int_equal(err.code, code);
    assert_null(ck);
    assert_int_equal(checkpoint_open(&ck, dir, NULL), code);
}

/* Three tensors, "b" alone in shard 1. */
static void three(stw_list *l)
{
    (void)stw_add(l, "a", "U8", "3", "abc");
    stw_add(l, "b", "U8", "2", "de")->shard = 1;
    (void)stw_add(l, "c", "U8", "1", "f");
}

static char *folder(void)
{
    char *dir = stw_mkdir();
    stw_write_text(dir, "config.json", "{\"x\":1}");
    return dir;
}

#define S1    "\"model-00001-of-00002.safetensors\""
#define S2    "\"model-00002-of-00002.safetensors\""
#define INDEX "model.safetensors.index.json"

static void test_sharded(void **state)
{
    (void)state;
    char *dir = folder();
    stw_list l = {0};
    three(&l);
    stw_save(&l, dir, 2, true);
    stw_write_text(dir, "generation_config.json", "{\"top_k\":20}");
    checkpoint *ck = NULL;
    calla_error err = {0};
    assert_int_equal(checkpoint_open(&ck, dir, &err), CALLA_OK);
    assert_string_equal(checkpoint_dir(ck), dir);
    assert_int_equal(checkpoint_count(ck), 3);
    assert_int_equal(checkpoint_n_shards(ck), 2);
    assert_string_equal(checkpoint_shard_name(ck, 1), "model-00002-of-00002.safetensors");
    assert_null(checkpoint_shard_name(ck, 2));
    assert_string_equal(checkpoint_at(ck, 1)->name, "b");
    assert_null(checkpoint_at(ck, 3));
    assert_memory_equal(checkpoint_find(ck, "b")->data, "de", 2);
    assert_memory_equal(checkpoint_find(ck, "c")->data, "f", 1);
    assert_null(checkpoint_find(ck, "d"));
    int64_t x = 0;
    assert_true(json_int(json_get(checkpoint_config(ck), "x"), &x) && x == 1);
    assert_true(json_int(json_get(checkpoint_generation_config(ck), "top_k"), &x) && x == 20);
    checkpoint_close(ck);
    checkpoint_close(NULL);
    stw_free(&l);
    stw_rmdir(dir);
}

static void test_single(void **state)
{
    (void)state;
    char *dir = folder();
    stw_list l = {0};
    three(&l);
    stw_find(&l, "b")->shard = 0;
    stw_save(&l, dir, 0, false);
    checkpoint *ck = NULL;
    calla_error err = {0};
    assert_int_equal(checkpoint_open(&ck, dir, &err), CALLA_OK);
    assert_int_equal(checkpoint_count(ck), 3);
    assert_int_equal(checkpoint_n_shards(ck), 1);
    assert_null(checkpoint_generation_config(ck));
    checkpoint_close(ck);
    /* An index that names the single file is used too. */
    stw_write_text(dir, INDEX,
                   "{\"weight_map\":{\"a\":\"model.safetensors\",\"c\":\"model.safetensors\","
                   "\"b\":\"model.safetensors\"}}");
    assert_int_equal(checkpoint_open(&ck, dir, &err), CALLA_OK);
    checkpoint_close(ck);
    stw_write_text(dir, INDEX, "{\"weight_map\":{\"a\":\"x.safetensors\"}}");
    expect_refused(dir, CALLA_ERR_FORMAT, "expected either model.safetensors or");
    stw_free(&l);
    stw_rmdir(dir);
}

static void test_index_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *index;
        calla_status code;
        const char *sentence;
    } cases[] = {
        {"{\"weight_map\":{\"a\":" S1 ",\"b\":" S2 "}}", CALLA_ERR_FORMAT,
         "tensor c of model-00001-of-00002.safetensors is not named in " INDEX},
        {"{\"weight_map\":{\"a\":" S1 ",\"b\":" S2 ",\"c\":" S1 ",\"d\":" S2 "}}", CALLA_ERR_FORMAT,
         "tensor d is missing: " INDEX " places it in model-00002-of-00002.safetensors"},
        {"{\"weight_map\":{\"a\":" S1 ",\"b\":" S2 ",\"c\":" S2 "}}", CALLA_ERR_FORMAT,
         "tensor c: expected in model-00002-of-00002.safetensors by " INDEX
         ", found in model-00001-of-00002.safetensors"},
        {"{\"weight_map\":{\"a\":\"x.safetensors\"}}", CALLA_ERR_IO,
         "x.safetensors is missing: " INDEX " names it"},
        {"{\"weight_map\":{\"a\":\"../x.safetensors\"}}", CALLA_ERR_FORMAT,
         INDEX ": tensor a: expected the name of a .safetensors file in the same folder, found "
               "\"../x.safetensors\""},
        {"{\"weight_map\":{\"a\":\"..\\\\x.safetensors\"}}", CALLA_ERR_FORMAT,
         "same folder, found"},
        {"{\"weight_map\":{\"a\":\"d/x.safetensors\"}}", CALLA_ERR_FORMAT, "same folder, found"},
        {"{\"weight_map\":{\"a\":\"/x.safetensors\"}}", CALLA_ERR_FORMAT, "same folder, found"},
        {"{\"weight_map\":{\"a\":\"C:x.safetensors\"}}", CALLA_ERR_FORMAT, "same folder, found"},
        {"{\"weight_map\":{\"a\":\".x.safetensors\"}}", CALLA_ERR_FORMAT, "same folder, found"},
        {"{\"weight_map\":{\"a\":\".safetensors\"}}", CALLA_ERR_FORMAT, "same folder, found"},
        {"{\"weight_map\":{\"a\":\"x\\u0000.safetensors\"}}", CALLA_ERR_FORMAT,
         "same folder, found"},
        {"{\"weight_map\":{\"a\":\"config.json\"}}", CALLA_ERR_FORMAT, "same folder, found"},
        {"{\"weight_map\":{\"a\":\"\"}}", CALLA_ERR_FORMAT, "same folder, found"},
        {"{\"weight_map\":{\"a\":7}}", CALLA_ERR_FORMAT, "same folder, found another type"},
        {"{\"weight_map\":{\"a\\u0000\":" S1 "}}", CALLA_ERR_FORMAT, "holds NUL"},
        {"{\"weight_map\":{}}", CALLA_ERR_FORMAT, "expected an object weight_map with tensors"},
        {"{\"weight_map\":[]}", CALLA_ERR_FORMAT, "expected an object weight_map with tensors"},
        {"{}", CALLA_ERR_FORMAT, "expected an object weight_map with tensors"},
        {"[]", CALLA_ERR_FORMAT, INDEX ": expected a JSON object"},
        {"{", CALLA_ERR_FORMAT, INDEX ": not valid JSON at byte"},
        {"version https://git-lfs.github.com/spec/v1\n", CALLA_ERR_FORMAT,
         INDEX ": expected JSON, found a Git LFS pointer"},
    };
    char *dir = folder();
    stw_list l = {0};
    three(&l);
    stw_save(&l, dir, 2, false);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        stw_write_text(dir, INDEX, cases[i].index);
        expect_refused(dir, cases[i].code, cases[i].sentence);
    }
    stw_free(&l);
    stw_rmdir(dir);
}

static void test_shard_refusals(void **state)
{
    (void)state;
    char *dir = folder();
    stw_list l = {0};
    three(&l);
    stw_add(&l, "a", "U8", "3", "abc")->shard = 1;
    stw_save(&l, dir, 2, false);
    stw_write_text(dir, INDEX, "{\"weight_map\":{\"a\":" S1 ",\"b\":" S2 ",\"c\":" S1 "}}");
    expect_refused(dir, CALLA_ERR_FORMAT,
                   "tensor a is given twice: in model-00001-of-00002.safetensors and in "
                   "model-00002-of-00002.safetensors");
    stw_write_text(dir, "model-00002-of-00002.safetensors",
                   "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n");
    expect_refused(dir, CALLA_ERR_FORMAT,
                   "model-00002-of-00002.safetensors: expected a safetensors file, found a Git LFS "
                   "pointer");
    stw_remove(dir, "model-00002-of-00002.safetensors");
    expect_refused(dir, CALLA_ERR_IO, "model-00002-of-00002.safetensors is missing");
    char *shard = path_join(dir, "model-00002-of-00002.safetensors");
    assert_int_equal(mkdir(shard, 0700), 0);
    expect_refused(dir, CALLA_ERR_IO, "model-00002-of-00002.safetensors is not a regular file");
    assert_int_equal(rmdir(shard), 0);
    assert_int_equal(symlink("model-00002-of-00002.safetensors", shard), 0);
    expect_refused(dir, CALLA_ERR_IO, "00002.safetensors: Too many levels of symbolic links");
    stw_remove(dir, "model-00002-of-00002.safetensors");
    mem_free(shard);
    stw_remove(dir, INDEX);
    expect_refused(dir, CALLA_ERR_IO,
                   "expected model.safetensors or model.safetensors.index.json, found neither");
    stw_free(&l);
    stw_rmdir(dir);
}

static void test_folder_refusals(void **state)
{
    (void)state;
    char *dir = folder();
    stw_write_text(dir, "config.json", "{\"a\":}");
    expect_refused(dir, CALLA_ERR_FORMAT, "config.json: not valid JSON at byte");
    stw_write_text(dir, "config.json", "3");
    expect_refused(dir, CALLA_ERR_FORMAT, "config.json: expected a JSON object");
    stw_write_text(dir, "config.json", "{}");
    stw_write_text(dir, "generation_config.json", "");
    expect_refused(dir, CALLA_ERR_FORMAT, "generation_config.json: not valid JSON");
    stw_remove(dir, "generation_config.json");
    char *generation = path_join(dir, "generation_config.json");
    assert_int_equal(symlink("nowhere", generation), 0); /* a broken link is not "no file" */
    expect_refused(dir, CALLA_ERR_IO, "generation_config.json: No such file or directory");
    mem_free(generation);
    stw_remove(dir, "generation_config.json");
    stw_remove(dir, "config.json");
    expect_refused(dir, CALLA_ERR_IO, "config.json: No such file or directory");
    char *file = path_join(dir, "x.safetensors");
    stw_write_text(dir, "x.safetensors", "");
    expect_refused(file, CALLA_ERR_IO, "expected the folder of a checkpoint, found a file");
    stw_remove(dir, "x.safetensors");
    expect_refused(file, CALLA_ERR_IO, "cannot open the folder");
    mem_free(file);
    stw_rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sharded),         cmocka_unit_test(test_single),
        cmocka_unit_test(test_index_refusals),  cmocka_unit_test(test_shard_refusals),
        cmocka_unit_test(test_folder_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
