/* Every refusal of a safetensors header, and what is accepted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "support/st_writer.h"

/* Length, header text, n_data bytes of data (0, 1, 2, ...). */
static uint8_t *make_file(const char *header, size_t n_data, size_t *n)
{
    const size_t n_header = strlen(header);
    *n = 8 + n_header + n_data;
    uint8_t *p = mem_alloc(*n);
    assert_non_null(p);
    for (int i = 0; i < 8; i++)
        p[i] = (uint8_t)((uint64_t)n_header >> (8 * i));
    memcpy(p + 8, header, n_header);
    for (size_t i = 0; i < n_data; i++)
        p[8 + n_header + i] = (uint8_t)i;
    return p;
}

static void test_accepts(void **state)
{
    (void)state;
    size_t n = 0;
    /* Order in the header is not order in the file; the header ends at an odd address. */
    uint8_t *file = make_file("{\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"
                              "\"__metadata__\":{\"format\":\"mlx\",\"x\":\"\"},"
                              "\"a\":{\"data_offsets\":[0,4],\"shape\":[],\"dtype\":\"U32\"},"
                              "\"empty\":{\"dtype\":\"F32\",\"shape\":[0,7],"
                              "\"data_offsets\":[16,16]}}   ",
                              16, &n);
    safetensors *st = NULL;
    calla_error err = {0};
    assert_int_equal(safetensors_parse(&st, "mem", file, n, &err), CALLA_OK);
    assert_int_equal(safetensors_count(st), 3);
    assert_int_equal(safetensors_file_bytes(st), n);
    assert_string_equal(safetensors_at(st, 0)->name, "a");
    assert_string_equal(safetensors_at(st, 1)->name, "b");
    assert_string_equal(safetensors_at(st, 2)->name, "empty");
    assert_null(safetensors_at(st, 3));
    const st_tensor *b = safetensors_find(st, "b");
    assert_non_null(b);
    assert_ptr_equal(b->data, file + n - 12);
    assert_int_equal(b->n_bytes, 12);
    assert_int_equal(b->dtype, ST_BF16);
    assert_int_equal(b->n_dims, 2);
    assert_int_equal(b->shape[0], 2);
    assert_int_equal(b->shape[1], 3);
    assert_int_equal(b->data[0], 4);
    assert_int_equal(safetensors_find(st, "a")->n_dims, 0);
    assert_int_equal(safetensors_find(st, "empty")->n_bytes, 0);
    assert_null(safetensors_find(st, "c"));
    safetensors_close(st);
    mem_free(file);

    file = make_file("{}", 0, &n);
    assert_int_equal(safetensors_parse(&st, "mem", file, n, &err), CALLA_OK);
    assert_int_equal(safetensors_count(st), 0);
    assert_null(safetensors_find(st, "a"));
    safetensors_close(st);
    mem_free(file);
    safetensors_close(NULL);
}

typedef struct refusal {
    const char *header;
    size_t n_data;
    const char *sentence; /* part of it */
} refusal;

#define T(dtype, shape, offsets)                                                                   \
    "{\"t\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static const refusal refusals[] = {
    {T("\"U32\"", "[2]", "[0,8]"), 7,
     "mem: tensor t: the file is truncated: bytes of data: "
     "expected 8, found 7"},
    {T("\"U32\"", "[2]", "[0,8]"), 9,
     "expected the file to end after 8 bytes of data, found 1 more"},
    {"{}", 1, "expected the file to end after 0 bytes of data, found 1 more"},
    {T("\"U32\"", "[3]", "[0,8]"), 8,
     "bytes between data_offsets contradict dtype and shape: expected 12, found 8"},
    {T("\"U8\"", "[2]", "[8,6]"), 8, "data_offsets end before they begin: expected 8, found 6"},
    {T("\"U8\"", "[2]", "[1,3]"), 3, "a gap lies before its data: begin at: expected 0, found 1"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
     "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[3,7]}}",
     7, "tensor b: its data overlap those of the tensor before: begin at: expected 4, found 3"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
     "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
     4, "tensor b: its data overlap"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
     "\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}",
     8, "mem: tensor a is given twice"},
    {T("\"U32\"", "[4294967296,4294967296]", "[0,8]"), 8, "its shape is larger than any memory"},
    {T("\"U8\"", "[18446744073709551616]", "[0,8]"), 8, "whole numbers as shape"},
    {T("\"U8\"", "[-1]", "[0,1]"), 1, "whole numbers as shape"},
    {T("\"U8\"", "[1.0]", "[0,1]"), 1, "whole numbers as shape"},
    {T("\"U8\"", "[1e0]", "[0,1]"), 1, "whole numbers as shape"},
    {T("\"U8\"", "[[1]]", "[0,1]"), 1, "whole numbers as shape"},
    {T("\"U8\"", "[null]", "[0,1]"), 1, "whole numbers as shape"},
    {T("\"U8\"", "1", "[0,1]"), 1, "an array of whole numbers as shape"},
    {T("\"U8\"", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1, "more than 8 dimensions"},
    {T("\"U8\"", "[1]", "[0]"), 1, "two whole numbers as data_offsets"},
    {T("\"U8\"", "[1]", "[0,1,1]"), 1, "two whole numbers as data_offsets"},
    {T("\"U8\"", "[1]", "[0,true]"), 1, "two whole numbers as data_offsets"},
    {T("\"U8\"", "[1]", "[0,18446744073709551615]"), 1, "contradict dtype and shape"},
    {T("\"U9\"", "[1]", "[0,1]"), 1, "tensor t: its dtype is not one of the safetensors format"},
    {T("7", "[1]", "[0,1]"), 1, "expected a string as dtype"},
    {"{\"t\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "dtype, shape and data_offsets, found fewer"},
    {"{\"t\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", 1, "a field is given twice"},
    {"{\"t\":{\"colour\":\"U8\"}}", 1, "expected only dtype, shape and data_offsets"},
    {"{\"t\":[]}", 0, "tensor t: expected an object with dtype"},
    {"{\"__metadata__\":{\"a\":1}}", 0, "__metadata__"},
    {"{\"__metadata__\":[]}", 0, "__metadata__"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__ is given twice"},
    {"{\"\":{}}", 0, "a tensor name is empty"},
    {"{\"a\\u0000b\":{}}", 0, "a tensor name holds a control character"},
    {"[]", 0, "mem: header: expected a JSON object"},
    {"7 ", 0, "mem: header: expected a JSON object"},
    {"{\"t\":", 0, "mem: not valid JSON at byte"},
    {"{}{}", 0, "mem: not valid JSON at byte 3"},
    {"{} x", 0, "mem: not valid JSON at byte"},
    {"{\"t\xff\":{}}", 0, "mem: not valid JSON"},
};

static void check_refused(const uint8_t *file, size_t n, calla_status code, const char *sentence)
{
    safetensors *st = NULL;
    calla_error err = {0};
    const calla_status s = safetensors_parse(&st, "mem", file, n, &err);
    if (s == CALLA_OK || strstr(err.message, sentence) == NULL)
        fail_msg("expected \"%s\", found \"%s\"", sentence, s == CALLA_OK ? "ok" : err.message);
    assert_int_equal(s, code);
    assert_int_equal(err.code, code);
    assert_null(st);
    assert_int_equal(safetensors_parse(&st, "mem", file, n, NULL), code);
}

static void test_refuses(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        size_t n = 0;
        uint8_t *file = make_file(refusals[i].header, refusals[i].n_data, &n);
        check_refused(file, n, CALLA_ERR_FORMAT, refusals[i].sentence);
        mem_free(file);
    }
}

static void test_refuses_prefix(void **state)
{
    (void)state;
    uint8_t bytes[16] = {0};
    check_refused(NULL, 0, CALLA_ERR_FORMAT,
                  "mem: expected a safetensors file, found only 0 bytes");
    check_refused(bytes, 7, CALLA_ERR_FORMAT, "found only 7 bytes");
    check_refused(bytes, 16, CALLA_ERR_FORMAT, "a header length between 2 and 67108864, found 0");
    bytes[0] = 9;
    check_refused(bytes, 16, CALLA_ERR_FORMAT,
                  "the file is truncated: expected a header of 9 bytes, found 8");
    memset(bytes, 0xff, 8);
    check_refused(bytes, 16, CALLA_ERR_FORMAT, "found 18446744073709551615");
    static const char lfs[] = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n";
    check_refused((const uint8_t *)lfs, sizeof lfs - 1, CALLA_ERR_FORMAT,
                  "found a Git LFS pointer");
}

/* A long name, many tensors, and every prefix of a file. */
static void test_limits(void **state)
{
    (void)state;
    strbuf h = {0};
    size_t n = 0;
    (void)strbuf_puts(&h, "{\"");
    for (int i = 0; i < 256; i++)
        (void)strbuf_putc(&h, 'n');
    (void)strbuf_puts(&h, "\":{}}");
    uint8_t *file = make_file(h.data, 0, &n);
    check_refused(file, n, CALLA_ERR_FORMAT, "longer than 255 bytes");
    mem_free(file);

    strbuf_clear(&h);
    for (int i = 0; i <= 200000; i++)
        (void)strbuf_printf(&h, "%s\"%d\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}",
                            i == 0 ? "{" : ",", i);
    (void)strbuf_puts(&h, "}");
    file = make_file(h.data, 0, &n);
    check_refused(file, n, CALLA_ERR_FORMAT, "more than 200000 tensors");
    mem_free(file);
    strbuf_deinit(&h);

    file = make_file(T("\"U32\"", "[2]", "[0,8]"), 8, &n);
    for (size_t k = 0; k < n; k++) {
        safetensors *st = NULL;
        uint8_t *cut = (uint8_t *)mem_memdup(file, k);
        assert_int_not_equal(safetensors_parse(&st, "mem", cut, k, NULL), CALLA_OK);
        assert_null(st);
        mem_free(cut);
    }
    mem_free(file);
}

static void test_files(void **state)
{
    (void)state;
    char *dir = stw_mkdir();
    char *path = path_join(dir, "x.safetensors");
    safetensors *st = NULL;
    calla_error err = {0};
    assert_int_equal(safetensors_open(&st, path, &err), CALLA_ERR_IO);
    assert_non_null(strstr(err.message, "cannot open"));
    assert_int_equal(safetensors_open(&st, dir, &err), CALLA_ERR_IO);
    assert_non_null(strstr(err.message, "is not a regular file"));
    stw_write(dir, "x.safetensors", "", 0);
    assert_int_equal(safetensors_open(&st, path, &err), CALLA_ERR_FORMAT);
    stw_list l = {0};
    (void)stw_add(&l, "a", "U8", "3", "abc");
    (void)stw_add(&l, "b", "BF16", "2x2", "01234567");
    stw_save_shard(&l, 0, path, true);
    assert_int_equal(safetensors_open(&st, path, &err), CALLA_OK);
    assert_memory_equal(safetensors_find(st, "b")->data, "01234567", 8);
    assert_int_equal((uintptr_t)safetensors_find(st, "a")->data % 2, 1);
    safetensors_close(st);
    stw_free(&l);
    mem_free(path);
    stw_rmdir(dir);
}

static void test_out_of_memory(void **state)
{
    (void)state;
    size_t n = 0;
    uint8_t *file = make_file(T("\"U32\"", "[2]", "[0,8]"), 8, &n);
    calla_status s = CALLA_ERR_MEMORY;
    int64_t k = 0;
    for (; s != CALLA_OK; k++) {
        safetensors *st = NULL;
        calla_error err = {0};
        mem_fail_after(k);
        s = safetensors_parse(&st, "mem", file, n, &err);
        mem_fail_after(-1);
        if (s != CALLA_OK) {
            assert_int_equal(s, CALLA_ERR_MEMORY);
            assert_null(st);
        }
        safetensors_close(st);
        assert_true(k < 1000);
    }
    assert_true(k > 3);
    mem_free(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepts),        cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_refuses_prefix), cmocka_unit_test(test_limits),
        cmocka_unit_test(test_files),          cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
