/* Addresses, headers, names of models, listings; a machine without libcurl; files in parts. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/mem.h"
#include "net/disk.h"
#include "net/hub.h"
#include "net/part.h"
#include "net/store.h"

static void addresses(void **state)
{
    (void)state;
    static const char *const good[] = {
        "http://h",          "https://h:1/", "HTTPS://H/p?q#f",      "http://[::1]",
        "http://[::1]:80/x", "http://h?x",   "https://a.b-c_d:65535"};
    static const char *const bad[] = {"",
                                      "h",
                                      "ftp://h",
                                      "http:/h",
                                      "http://",
                                      "http:///p",
                                      "http://u@h",
                                      "http://u:p@h/",
                                      "http://h:x",
                                      "http://h:123456",
                                      "http://[::1",
                                      "http://h h",
                                      "http://h\\x",
                                      "file:///etc",
                                      "javascript:alert(1)",
                                      "http://h\n/x"};
    http_url u;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_true(http_url_split(good[i], &u));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(http_url_split(bad[i], &u));
    assert_true(http_same_origin("http://h", "http://H:80/x"));
    assert_true(http_same_origin("https://h:443/a", "https://h/b"));
    assert_false(http_same_origin("https://h", "http://h"));
    assert_false(http_same_origin("http://h", "http://h:81"));
    assert_false(http_same_origin("http://h", "http://h.evil"));
    assert_false(http_same_origin("http://h", "http://x.h"));
    assert_true(http_token_safe("https://h"));
    assert_true(http_token_safe("http://127.0.0.1:8/x"));
    assert_false(http_token_safe("http://127.0.0.1.evil/"));
    assert_false(http_token_safe("http://h"));
}

static void headers(void **state)
{
    (void)state;
    http_reply r;
    memset(&r, 0, sizeof r);
    r.length = r.range_first = r.range_last = r.range_size = r.linked_size = HTTP_UNKNOWN;
#define LINE(text) http_reply_header(&r, text, sizeof(text) - 1)
    LINE("Content-Length: 12\r\n");
    LINE("content-range: bytes 3-14/100\r\n");
    LINE("ETag: W/\"abc\"\r\n");
    LINE("X-Linked-ETag: \"first\"\r\n");
    LINE("X-Linked-ETag: \"second\"\r\n");
    LINE("X-Linked-Size: 7\r\n");
    assert_int_equal(r.length, 12);
    assert_int_equal(r.range_first, 3);
    assert_int_equal(r.range_last, 14);
    assert_int_equal(r.range_size, 100);
    assert_string_equal(r.etag, "abc");
    assert_string_equal(r.linked_etag, "first");
    assert_int_equal(r.linked_size, 7);
    static const char *const bad[] = {
        "bytes 5-3/100", "bytes 0-100/100", "bytes -5/100", "bytes */100",
        "lines 0-1/2",   "bytes 0-1/2x",    "bytes 0-1",    "bytes 99999999999999999999-1/2",
        "bytes 0x0-1/2"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char line[128];
        const int n = snprintf(line, sizeof line, "Content-Range: %s\r\n", bad[i]);
        r.range_first = HTTP_UNKNOWN;
        http_reply_header(&r, line, (size_t)n);
        assert_true(r.range_first == HTTP_UNKNOWN);
    }
    r.length = HTTP_UNKNOWN;
    LINE("Content-Length: -1\r\n");
    LINE("Content-Length: 99999999999999999999999\r\n");
    LINE("Content-Length: 1,2\r\n");
    LINE("no colon");
    LINE("");
    assert_true(r.length == HTTP_UNKNOWN);
}

static void model_names(void **state)
{
    (void)state;
    hub_repo r;
    assert_int_equal(hub_parse("mlx-community/Qwen3.6-35B-A3B-4bit", &r, NULL), CALLA_OK);
    assert_string_equal(r.owner, "mlx-community");
    assert_string_equal(r.name, "Qwen3.6-35B-A3B-4bit");
    assert_string_equal(r.rev, "");
    assert_int_equal(hub_parse("a/b@refs/pr/12", &r, NULL), CALLA_OK);
    assert_string_equal(r.rev, "refs/pr/12");
    static const char *const bad[] = {
        "",     "a",      "a/",     "/b",       "a/b/c", "../b",    "a/..",  "a/.b",      "a/-b",
        "a/b@", "a/b@/x", "a/b@x/", "a/b@a..b", "a/b c", "a/b%2Fc", "a/b\n", "\xc3\xa4/b"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(hub_parse(bad[i], &r, NULL), CALLA_ERR_ARGUMENT);
}

static const char listing[] =
    "{\"sha\": \"0123456789abcdef0123456789abcdef01234567\", \"siblings\": ["
    "{\"rfilename\": \"README.md\", \"size\": 5},"
    "{\"rfilename\": \"config.json\", \"size\": 2, \"blobId\": "
    "\"00112233445566778899aabbccddeeff00112233\"},"
    "{\"rfilename\": \"model.safetensors\", \"size\": 3, \"lfs\": {\"size\": 3, \"sha256\": "
    "\"0000000000000000000000000000000000000000000000000000000000000001\"}}]}";

static void listings(void **state)
{
    (void)state;
    hub_listing l;
    assert_int_equal(hub_read_listing(&l, listing, sizeof listing - 1, NULL), CALLA_OK);
    assert_int_equal(l.n_files, 2);
    assert_string_equal(l.files[0].name, "config.json");
    assert_int_equal(l.files[1].size, 3);
    assert_int_equal(strlen(l.files[1].id), 64);
    hub_listing_deinit(&l);
    /* Every allocation fails once. */
    for (int64_t n = 0;; n++) {
        calla_error err = {0};
        mem_fail_after(n);
        const calla_status st = hub_read_listing(&l, listing, sizeof listing - 1, &err);
        mem_fail_after(-1);
        if (st == CALLA_OK) break;
        assert_int_equal(st, CALLA_ERR_MEMORY);
        assert_null(l.files);
    }
    hub_listing_deinit(&l);
    for (size_t n = 0; n < sizeof listing - 1; n++)
        assert_int_not_equal(hub_read_listing(&l, listing, n, NULL), CALLA_OK);
}

static void no_libcurl(void **state)
{
    (void)state;
    static const char *const names[] = {"libcurl-that-is-not-there.so.99", NULL};
    static const char *const other[] = {"libm.so.6", NULL};
    http_library *lib;
    calla_error err;
    assert_int_equal(http_library_open(&lib, names, &err), CALLA_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "downloads need libcurl"));
    assert_null(lib);
#if defined(__linux__)
    assert_int_equal(http_library_open(&lib, other, &err), CALLA_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "it has no curl_"));
#else
    (void)other;
#endif
}

static char dir[] = "/tmp/calla-net-XXXXXX";

static int make_dir(void **state)
{
    (void)state;
    return mkdtemp(dir) ? 0 : 1;
}

static int remove_dir(void **state)
{
    (void)state;
    return disk_remove_dir(dir, 3, NULL) == CALLA_OK ? 0 : 1;
}

static void fill(part *p, uint32_t i)
{
    static char block[PART_BLOCK];
    memset(block, 'a' + (int)i % 26, sizeof block);
    assert_int_equal(part_write(p, i * PART_BLOCK, block, (size_t)part_block_bytes(p, i), NULL),
                     CALLA_OK);
    assert_int_equal(part_mark(p, i, i + 1, NULL), CALLA_OK);
    p->blocks[i] = PART_DONE;
    p->n_done++;
}

static void put(const char *name, const char *text)
{
    char *path = disk_path(dir, name, NULL);
    assert_int_equal(disk_write(path, text, strlen(text), NULL), CALLA_OK);
    mem_free(path);
}

static void parts(void **state)
{
    (void)state;
    const uint64_t size = 3 * PART_BLOCK + 5;
    part p;
    assert_int_equal(part_open(&p, dir, "f", size, NULL), CALLA_OK);
    assert_int_equal(p.n_blocks, 4);
    fill(&p, 3);
    fill(&p, 1);
    part_close(&p);
    assert_int_equal(part_peek(dir, "f", size), PART_BLOCK + 5);
    assert_int_equal(part_open(&p, dir, "f", size, NULL), CALLA_OK);
    assert_false(p.checked);
    assert_string_equal(p.blocks, ".#.#");
    fill(&p, 0);
    fill(&p, 2);
    part_close(&p);
    assert_int_equal(part_peek(dir, "f", size), size);
    assert_int_equal(part_open(&p, dir, "f", size, NULL), CALLA_OK);
    assert_false(p.checked); /* complete, and nobody has checked it */
    assert_int_equal(part_finish(&p, NULL), CALLA_OK);
    part_close(&p);
    assert_int_equal(part_open(&p, dir, "f", size, NULL), CALLA_OK);
    assert_true(p.checked);
    part_close(&p);
    /* Another size, or a map that is none: from the beginning. */
    assert_int_equal(part_open(&p, dir, "f", size + 1, NULL), CALLA_OK);
    assert_int_equal(p.n_done, 0);
    assert_false(p.checked);
    fill(&p, 0);
    part_close(&p);
    static const char *const maps[] = {"", "#", "##", "##x#", "#####", "bbbb"};
    for (size_t i = 0; i < sizeof maps / sizeof *maps; i++) {
        put("f.map", maps[i]);
        assert_int_equal(part_open(&p, dir, "f", size + 1, NULL), CALLA_OK);
        assert_int_equal(p.n_done, 0);
        part_close(&p);
    }
}

static void store_names(void **state)
{
    (void)state;
    char *found;
    calla_error err;
    char *own = disk_path(dir, "a", "m@x%2Fy");
    assert_int_equal(disk_make_dirs(own, NULL), CALLA_OK);
    put("a/m@x%2Fy/config.json", "{}");
    assert_int_equal(store_find(dir, "a/m@x/y", &found, &err), CALLA_OK);
    assert_string_equal(found, own);
    mem_free(found);
    assert_int_equal(store_find(dir, "m@x/y", &found, &err), CALLA_OK); /* a slash: an owner m@x */
    assert_null(found);
    static const char *const none[] = {"a/m", "m", "../a/m", "a/..", "", ".", "a"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        assert_int_equal(store_find(dir, none[i], &found, &err), CALLA_OK);
        assert_null(found);
    }
    mem_free(own);
}

static void locks(void **state)
{
    (void)state;
    disk_lock a, b;
    char *path = disk_path(dir, "l", NULL);
    assert_int_equal(disk_lock_take(&a, path, NULL), CALLA_OK);
    assert_int_equal(disk_lock_take(&b, path, NULL), CALLA_ERR_FULL);
    disk_lock_drop(&a);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(disk_lock_take(&b, path, NULL), CALLA_OK);
    disk_lock_drop(&b);
    mem_free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses),   cmocka_unit_test(headers),    cmocka_unit_test(model_names),
        cmocka_unit_test(listings),    cmocka_unit_test(no_libcurl), cmocka_unit_test(parts),
        cmocka_unit_test(store_names), cmocka_unit_test(locks),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
