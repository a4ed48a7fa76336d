/* base: checked arithmetic, bf16, errors, memory, files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include "base/error.h"
#include "support/st_writer.h"

static void test_checked_arithmetic(void **state)
{
    (void)state;
    uint64_t x = 7;
    assert_true(ck_add(UINT64_MAX - 1, 1, &x) && x == UINT64_MAX);
    assert_false(ck_add(UINT64_MAX, 1, &x));
    assert_true(x == UINT64_MAX);
    assert_true(ck_mul(0xffffffffu, 0x100000001u, &x) && x == UINT64_MAX);
    assert_false(ck_mul(0x100000000u, 0x100000000u, &x));
    assert_true(x == UINT64_MAX);
    assert_true(ck_mul(0, UINT64_MAX, &x) && x == 0);
    assert_true(ck_mul(UINT64_MAX, 0, &x) && x == 0);
}

static void test_loads(void **state)
{
    (void)state;
    static const uint8_t b[] = {0xaa, 1, 2, 3, 4, 5, 6, 7, 0x88};
    assert_int_equal(load_le16(b + 1), 0x0201);
    assert_int_equal(load_le32(b + 1), 0x04030201);
    assert_true(load_le64(b + 1) == 0x8807060504030201u);
    static const uint8_t minus_two[] = {0, 0x00, 0xc0};
    assert_true(load_bf16(minus_two + 1) == -2.0f);
}

static float from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static void test_bf16(void **state)
{
    (void)state;
    static const struct {
        uint32_t f32;
        uint16_t bf16;
    } cases[] = {
        {0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, /* a tie goes to even */
        {0x3f818000, 0x3f82}, {0x3f808001, 0x3f81}, {0x3f807fff, 0x3f80},
        {0x80000000, 0x8000}, {0x7f7fffff, 0x7f80}, /* rounds up to infinity */
        {0x7f800000, 0x7f80}, {0xff800000, 0xff80}, {0x7fc00000, 0x7fc0},
        {0x7f800001, 0x7fc0}, /* NaN stays NaN */
        {0x00000001, 0x0000}, {0x00018000, 0x0002},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(f32_to_bf16(from_bits(cases[i].f32)), cases[i].bf16);
    for (uint32_t h = 0; h <= 0xffff; h++) {
        const float f = bf16_to_f32((uint16_t)h);
        if (!isnan(f)) assert_int_equal(f32_to_bf16(f), h);
    }
}

static void test_errors(void **state)
{
    (void)state;
    calla_error err;
    assert_int_equal(err_set(&err, CALLA_ERR_IO, "file %s: %d", "x", 7), CALLA_ERR_IO);
    assert_int_equal(err.code, CALLA_ERR_IO);
    assert_true(err.offset == CALLA_NO_OFFSET);
    assert_string_equal(err.message, "file x: 7");
    assert_int_equal(err_prefix(&err, CALLA_ERR_IO, "%s", "reading"), CALLA_ERR_IO);
    assert_string_equal(err.message, "reading: file x: 7");
    assert_int_equal(err_set_at(&err, CALLA_ERR_FORMAT, 12, "y"), CALLA_ERR_FORMAT);
    assert_int_equal(err.offset, 12);
    assert_int_equal(err_set(NULL, CALLA_ERR_FULL, "z"), CALLA_ERR_FULL);
    assert_int_equal(err_prefix(NULL, CALLA_ERR_FULL, "z"), CALLA_ERR_FULL);
    char text[2000];
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = '\0';
    (void)err_set(&err, CALLA_ERR_IO, "%s", text);
    assert_int_equal(strlen(err.message), sizeof err.message - 1);
    (void)err_prefix(&err, CALLA_ERR_IO, "%s", "p");
    assert_int_equal(strlen(err.message), sizeof err.message - 1);
    assert_memory_equal(err.message, "p: aaa", 6);
    (void)err_set(&err, CALLA_ERR_IO, "%s", "a\x1b[2J\n\x7f\xc2\x9b\xc3\xa9\xc2");
    assert_string_equal(err.message, "a?[2J????\xc3\xa9\xc2");
    (void)err_prefix(&err, CALLA_ERR_IO, "%s", "p\tq");
    assert_string_equal(err.message, "p?q: a?[2J????\xc3\xa9\xc2");
    assert_string_equal(calla_status_name(CALLA_OK), "ok");
    assert_string_equal(calla_status_name(CALLA_ERR_FULL), "context full");
    assert_string_equal(calla_status_name((calla_status)99), "unknown status");
}

static void test_memory(void **state)
{
    (void)state;
    assert_null(mem_array(SIZE_MAX / 2, 3));
    assert_null(mem_memdup("", SIZE_MAX));
    assert_null(mem_alloc_aligned(SIZE_MAX));
    uint8_t *p = mem_array(1000, 3);
    for (size_t i = 0; i < 3000; i++)
        assert_int_equal(p[i], 0);
    mem_free(p);
    p = mem_alloc(0);
    assert_non_null(p);
    mem_free(p);
    p = mem_alloc_aligned(100);
    assert_int_equal((uintptr_t)p % MEM_ALIGN, 0);
    mem_free_aligned(p);
    p = mem_alloc_pages(10000);
    assert_int_equal(p[9999], 0);
    mem_free_pages(p, 10000);
    mem_free_pages(NULL, 1);
    char *s = mem_strdup("abc");
    assert_string_equal(s, "abc");
    mem_free(s);
    const uint64_t before = mem_count();
    mem_fail_after(1);
    s = mem_alloc(1);
    assert_non_null(s);
    assert_null(mem_alloc(1));
    assert_null(mem_resize(s, 100));
    assert_null(mem_alloc_aligned(1));
    assert_null(mem_alloc_pages(1));
    mem_fail_after(-1);
    assert_int_equal(mem_count() - before, 5);
    mem_free(s);
}

static void test_strbuf(void **state)
{
    (void)state;
    strbuf b = {.max = 10};
    assert_true(strbuf_puts(&b, "0123456789"));
    assert_false(strbuf_putc(&b, 'x'));
    assert_true(b.failed);
    assert_string_equal(b.data, "0123456789");
    strbuf_clear(&b);
    assert_false(b.failed);
    assert_int_equal(b.len, 0);
    assert_true(strbuf_printf(&b, "%d-%s", 42, "ab"));
    assert_string_equal(b.data, "42-ab");
    assert_false(strbuf_printf(&b, "%s", "too long"));
    assert_string_equal(b.data, "42-ab");
    strbuf_deinit(&b);
    assert_int_equal(b.max, 10);
    assert_null(b.data);
    strbuf big = {0};
    for (int i = 0; i < 5000; i++)
        assert_true(strbuf_append(&big, "a\0b", 3));
    assert_int_equal(big.len, 15000);
    assert_int_equal(big.data[15000], 0);
    mem_fail_after(0);
    for (int i = 0; i < 5000 && !big.failed; i++)
        (void)strbuf_append(&big, "a\0b", 3);
    mem_fail_after(-1);
    assert_true(big.failed);
    assert_true(big.len >= 15000 && big.data[big.len] == 0);
    strbuf_deinit(&big);
}

static void test_arena(void **state)
{
    (void)state;
    arena a = {0};
    uint8_t *first = arena_alloc(&a, 1);
    for (size_t n = 0; n < 3000; n += 7) {
        uint8_t *p = arena_alloc(&a, n);
        assert_int_equal((uintptr_t)p % 16, 0);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(p[i], 0);
        if (n != 0) memset(p, 0xff, n);
    }
    assert_int_equal(first[0], 0);
    uint8_t *big = arena_alloc(&a, 1000000);
    assert_int_equal(big[999999], 0);
    char *s = arena_memdup(&a, "a\0b", 3);
    assert_memory_equal(s, "a\0b", 4);
    assert_null(arena_alloc(&a, SIZE_MAX));
    assert_null(arena_memdup(&a, "", SIZE_MAX));
    arena_deinit(&a);
    arena_deinit(&a);
    arena small = {.max = 100};
    assert_non_null(arena_alloc(&small, 90));
    assert_null(arena_alloc(&small, 16));
    arena_deinit(&small);
}

static void test_files(void **state)
{
    (void)state;
    char *dir = stw_mkdir(), *path = path_join(dir, "x.safetensors"), *data = NULL;
    size_t n = 0;
    calla_error err;
    filemap map;
    assert_false(file_exists(path));
    assert_int_equal(file_read(path, 100, &data, &n, &err), CALLA_ERR_IO);
    assert_non_null(strstr(err.message, "No such file"));
    stw_write(dir, "x.safetensors", "a\0b", 3);
    assert_true(file_exists(path));
    assert_true(file_exists(dir)); /* something is there: opening it says what */
    char *inside = path_join(path, "y");
    assert_false(file_exists(inside));
    mem_free(inside);
    assert_int_equal(file_read(path, 3, &data, &n, &err), CALLA_OK);
    assert_int_equal(n, 3);
    assert_memory_equal(data, "a\0b", 4);
    mem_free(data);
    assert_int_equal(file_read(path, 2, &data, &n, &err), CALLA_ERR_FORMAT);
    assert_non_null(strstr(err.message, "has 3 bytes, more than the limit of 2"));
    assert_null(data);
    assert_int_equal(file_read(dir, 2, &data, &n, &err), CALLA_ERR_IO);
    assert_non_null(strstr(err.message, "is not a regular file"));
    assert_int_equal(filemap_open(&map, path, &err), CALLA_OK);
    assert_int_equal(map.size, 3);
    assert_memory_equal(map.data, "a\0b", 3);
    filemap_close(&map);
    filemap_close(&map);
    stw_write(dir, "x.safetensors", "", 0);
    assert_int_equal(filemap_open(&map, path, &err), CALLA_OK);
    assert_null(map.data);
    filemap_close(&map);
    assert_int_equal(file_read(path, 2, &data, &n, &err), CALLA_OK);
    assert_string_equal(data, "");
    mem_free(data);
    stw_remove(dir, "x.safetensors");
    assert_int_equal(mkfifo(path, 0600), 0); /* opening it must not wait for a writer */
    assert_int_equal(filemap_open(&map, path, &err), CALLA_ERR_IO);
    assert_non_null(strstr(err.message, "is not a regular file"));
    mem_free(path);
    path = path_join("d/", "f");
    assert_string_equal(path, "d/f");
    mem_free(path);
    path = path_join("d", "f");
    assert_string_equal(path, "d/f");
    mem_free(path);
    stw_rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checked_arithmetic),
        cmocka_unit_test(test_loads),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_strbuf),
        cmocka_unit_test(test_arena),
        cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
