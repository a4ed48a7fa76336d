/* Plots of results: well-formed SVG whatever a file holds, its points in their places, refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/plot.h"
#include "bench/plot_svg.h"

/* ---- A reader of XML, as strict as what we write ---- */

static bool is_utf8(const char *s)
{
    while (*s != '\0') {
        const unsigned char c = (unsigned char)*s++;
        int more = c < 0x80                ? 0
                   : c >= 0xc2 && c < 0xe0 ? 1
                   : c >= 0xe0 && c < 0xf0 ? 2
                   : c >= 0xf0 && c < 0xf5 ? 3
                                           : -1;
        if (more < 0 || (c < 0x20 && c != '\n')) return false;
        for (; more > 0; more--)
            if (((unsigned char)*s++ & 0xc0) != 0x80) return false;
    }
    return true;
}

static bool is_entity(const char *s)
{
    static const char *const known[] = {"&lt;", "&gt;", "&amp;", "&quot;"};
    for (size_t i = 0; i < 4; i++)
        if (strncmp(s, known[i], strlen(known[i])) == 0) return true;
    return false;
}

/* From after '<' to '>': a name and attributes in double quotes. NULL when it is anything else. */
static const char *read_tag(const char *s, char *name, bool *empty)
{
    size_t n = 0;
    while (((*s | 32) >= 'a' && (*s | 32) <= 'z') && n < 31)
        name[n++] = *s++;
    name[n] = '\0';
    while (*s == ' ') {
        s += strspn(s, " ");
        s += strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-0123456789");
        if (s[0] != '=' || s[1] != '"') return NULL;
        for (s += 2; *s != '"'; s++)
            if (*s == '<' || *s == '\0' || (*s == '&' && !is_entity(s))) return NULL;
        s++;
    }
    *empty = *s == '/';
    s += *empty;
    return n != 0 && *s == '>' ? s + 1 : NULL;
}

static void assert_xml(const char *s)
{
    char open[16][32], name[32];
    uint32_t depth = 0, n = 0;
    assert_true(is_utf8(s));
    for (; *s != '\0'; n++) {
        if (*s == '&') assert_true(is_entity(s));
        assert_int_not_equal(*s, '>');
        if (*s != '<') {
            assert_true(depth > 0 || *s == '\n');
            s++;
            continue;
        }
        bool empty = false;
        const bool end = s[1] == '/';
        s = read_tag(s + 1 + end, name, &empty);
        if (s == NULL) fail_msg("no tag of XML");
        if (end)
            assert_string_equal(name, open[--depth]);
        else if (!empty) {
            assert_true(depth < 16);
            (void)snprintf(open[depth++], sizeof open[0], "%s", name);
        }
    }
    assert_int_equal(depth, 0);
    assert_true(n > 100);
}

/* ---- Files ---- */

static const char full[] =
    "{\"format\": 3, \"version\": \"0.1.0\", \"commit\": \"abc1234\", "
    "\"date\": \"2026-11-30T01:02:03Z\", \"machine\": \"Some CPU\", \"model\": \"slice\", "
    "\"synthetic\": true, \"backend\": \"cpu\", \"variant\": \"avx2\", \"precision\": \"int16\", "
    "\"kv\": \"bf16\", \"threads\": 2, \"chunk_tokens\": 512, \"limits\": {\"read_bytes_per_s\": "
    "3e10, \"copy_bytes_per_s\": null, \"matrix_flops\": 7e11, \"matrix_kind\": \"int16\", "
    "\"vector_flops\": 3e11}, \"results\": [\n"
    "{\"kind\": \"prefill\", \"tokens\": 512, \"tokens_per_s\": 300.6, \"slowest\": 290, "
    "\"fastest\": 310, \"low\": 295, \"high\": 305, \"bytes_per_token\": 4e7, "
    "\"flops_per_token\": 1e9},\n"
    "{\"kind\": \"prefill\", \"tokens\": 256, \"tokens_per_s\": 222, \"slowest\": 210, "
    "\"fastest\": 230, \"bytes_per_token\": 5e7, \"flops_per_token\": 1e9},\n"
    "{\"kind\": \"decode\", \"tokens\": 4096, \"tokens_per_s\": 41.5, \"slowest\": 40, "
    "\"fastest\": 42, \"low\": 41, \"high\": 41.7, \"bytes_per_token\": 6e8, "
    "\"flops_per_token\": 1.1e9},\n"
    "{\"kind\": \"decode\", \"tokens\": 4096, \"tokens_per_s\": 1, \"without\": \"pdl\"}]}";

/* What versions before format 3 wrote: no spread but slowest and fastest, and half the roofline. */
static const char old[] =
    "{\"format\": 2, \"version\": \"0.1.0\", \"system\": \"Linux\", \"model\": \"full\", "
    "\"backend\": \"cuda\", \"variant\": \"a GPU\", \"threads\": 16, \"copy_bytes_per_s\": 4.2e12, "
    "\"results\": [{\"kind\": \"decode\", \"tokens\": 256, \"tokens_per_s\": 700, "
    "\"slowest\": 600, \"fastest\": 710, \"bytes_per_token\": 1.8e9, \"flops_per_token\": 0, "
    "\"seconds\": [0.1]}]}";

static const char article[] =
    "{\"label\": \"theirs\", \"source\": \"an article\", \"results\": "
    "[{\"kind\": \"decode\", \"tokens\": 4096, \"tokens_per_s\": 186.6}]}";

static calla_status add(plot *p, const char *name, const char *json, calla_error *err)
{
    return plot_add(p, name, json, strlen(json), err);
}

/* The SVG of up to three files, or NULL with *err. */
static char *draw(const char *const *json, size_t n, calla_error *err)
{
    plot *p;
    strbuf out = {0};
    assert_int_equal(plot_create(&p, err), CALLA_OK);
    calla_status st = CALLA_OK;
    for (size_t i = 0; i < n && st == CALLA_OK; i++)
        st = add(p, "dir/file.json", json[i], err);
    if (st == CALLA_OK) st = plot_draw(p, &out, err);
    plot_destroy(p);
    if (st == CALLA_OK) {
        assert_xml(out.data);
        return out.data;
    }
    strbuf_deinit(&out);
    return NULL;
}

static char *must_draw(const char *const *json, size_t n)
{
    calla_error err;
    char *svg = draw(json, n, &err);
    if (svg == NULL) fail_msg("%s", err.message);
    return svg;
}

static uint32_t count(const char *s, const char *what)
{
    uint32_t n = 0;
    for (const char *p = s; (p = strstr(p, what)) != NULL; p += strlen(what))
        n++;
    return n;
}

static void assert_has(const char *svg, const char *what)
{
    if (strstr(svg, what) == NULL) fail_msg("no \"%s\" in the plot", what);
}

/* ---- Tests ---- */

static void test_one(void **state)
{
    (void)state;
    const char *json = full;
    char *svg = must_draw(&json, 1);
    assert_has(svg, "slice, random weights on Some CPU");
    assert_has(svg, "cpu, avx2, int16, bf16 cache, 2 threads, chunks of 512");
    assert_has(svg, "calla abc1234, 2026-11-30<");
    assert_has(svg, "prefill at 512 tokens: 301 tokens/s (295 to 305)"); /* the interval wins */
    assert_has(svg, "prefill at 256 tokens: 222 tokens/s (210 to 230)");
    assert_has(svg, "decode at 4096 tokens: 41.5 tokens/s (41.0 to 41.7)");
    assert_has(svg, ">4K<");
    assert_has(svg, "read 30 GB/s");
    assert_has(svg, "int16 700 GFLOP/s");
    assert_has(svg, "vector units 300 GFLOP/s");
    assert_has(svg, ">prefill 512<");
    assert_has(svg, "prefers-color-scheme");
    assert_has(svg, "bands their 95 % intervals or all measurements. Dashed");
    assert_int_equal(count(svg, "class=\"m f0\""), 6); /* three points, and again on the roofline */
    assert_int_equal(count(svg, "class=\"q l0\""), 3); /* two bounds, the ceiling of the vectors */
    char *again = must_draw(&json, 1);
    assert_string_equal(svg, again);
    mem_free(again);
    mem_free(svg);
}

/* The figure 301 of test_one() stands where the axis says. */
static void test_place(void **state)
{
    (void)state;
    const svg_axis x = {256, 4096, 100, 500, true}, y = {0, 50, 300, 100, false};
    assert_true(fabs(svg_at(&x, 256) - 100) < 1e-9);
    assert_true(fabs(svg_at(&x, 1024) - 300) < 1e-9);
    assert_true(fabs(svg_at(&x, 4096) - 500) < 1e-9);
    assert_true(fabs(svg_at(&y, 12.5) - 250) < 1e-9);
    double v[16];
    assert_int_equal(svg_ticks_binary(&x, v, 16), 5);
    assert_true(v[0] == 256 && v[4] == 4096);
    assert_int_equal(svg_ticks(&y, v, 16), 6);
    assert_true(v[1] == 10);
}

static void test_numbers(void **state)
{
    (void)state;
    char to[SVG_NUMBER];
    assert_string_equal(svg_number(to, 0.25), "0.250");
    assert_string_equal(svg_number(to, 9.996), "10.0");
    assert_string_equal(svg_number(to, 37.64), "37.6");
    assert_string_equal(svg_number(to, 99.97), "100");
    assert_string_equal(svg_number(to, 999.6), "1,000");
    assert_string_equal(svg_number(to, 1234567.0), "1,234,567");
    assert_true(strlen(svg_number(to, 1e18)) < SVG_NUMBER);
    assert_string_equal(svg_length(to, 256), "256");
    assert_string_equal(svg_length(to, 1024), "1K");
    assert_string_equal(svg_length(to, 131072), "128K");
    assert_string_equal(svg_length(to, 1048576), "1M");
    assert_string_equal(svg_length(to, 3840), "3,840");
    assert_string_equal(svg_si(to, 4.53e12, "B/s"), "4.53 TB/s");
    assert_string_equal(svg_si(to, 8.7e14, "FLOP/s"), "870 TFLOP/s");
}

static void test_several(void **state)
{
    (void)state;
    const char *json[] = {full, old, article};
    char *svg = must_draw(json, 3);
    assert_has(svg, "calla bench: several models");
    assert_has(svg, ">theirs<");
    assert_has(svg, "a GPU");
    assert_has(svg, "theirs: decode at 4096 tokens: 187 tokens/s<"); /* no spread is known */
    assert_int_equal(count(svg, "class=\"m o l2\""), 2);             /* legend, decode */
    assert_int_equal(count(svg, "class=\"p l2\""), 0);               /* no line through it */
    assert_int_equal(count(svg, "class=\"q l1\""), 1);               /* 4.2e12 / 1.8e9 */
    mem_free(svg);
    json[1] = full;
    svg = must_draw(json, 2); /* equal labels get the files' names */
    assert_has(svg, "chunks of 512, file.json");
    mem_free(svg);
    svg = must_draw(&json[2], 1); /* decode alone, of which little is known */
    assert_int_equal(count(svg, "Roofline"), 0);
    mem_free(svg);
}

static void test_escapes(void **state)
{
    (void)state;
    const char *json =
        "{\"machine\": \"<script>&\\\"'\\u0000\\u0007\\uffff]]>\", \"model\": \"\xe6\xa8\xa1"
        "\xe6\xa8\xa1 --> <!--\", \"commit\": \"</svg>\", \"label\": \"\", \"kv\": \"%s%n\", "
        "\"limits\": {\"matrix_flops\": 1e12, \"read_bytes_per_s\": 1e9, \"matrix_kind\": \"<b>\"},"
        "\"results\": [{\"kind\": \"decode\", \"tokens\": 7, \"tokens_per_s\": 5, "
        "\"bytes_per_token\": 1e6, \"flops_per_token\": 1e6}]}";
    char *svg = must_draw(&json, 1);
    assert_has(svg, "&lt;script&gt;&amp;&quot;'  ?]]&gt;");
    assert_has(svg, "%s%n cache");
    assert_int_equal(count(svg, "<script"), 0);
    assert_int_equal(count(svg, "</svg>"), 1);
    mem_free(svg);
}

/* A string of a megabyte is cut between characters; so is the name of a file. */
static void test_long(void **state)
{
    (void)state;
    strbuf json = {0};
    (void)strbuf_puts(&json, "{\"model\": \"");
    for (int i = 0; i < 300000; i++)
        (void)strbuf_puts(&json, i % 2 == 0 ? "\xf0\x9f\xa6\x8a" : "\xc3\xa9");
    (void)strbuf_puts(&json, "\", \"results\": [{\"kind\": \"prefill\", \"tokens\": 1000000000, "
                             "\"tokens_per_s\": 1e18}, {\"kind\": \"prefill\", \"tokens\": 1, "
                             "\"tokens_per_s\": 1e-6}]}");
    const char *text = json.data;
    char *svg = must_draw(&text, 1);
    assert_true(strlen(svg) < 40000);
    mem_free(svg);
    strbuf_deinit(&json);
}

static void refuse(const char *json, const char *sentence)
{
    calla_error err;
    char *svg = draw(&json, 1, &err);
    if (svg != NULL) fail_msg("drawn: %s", json);
    if (strstr(err.message, sentence) == NULL) fail_msg("%s: %s", json, err.message);
}

static void test_refusals(void **state)
{
    (void)state;
    refuse("", "file.json");
    refuse("[]", "expected what calla bench");
    refuse("{\"results\": {}}", "file.json: expected what calla bench");
    refuse("{\"format\": 4, \"results\": []}", "format: expected 1 to 3, found 4");
    refuse("{\"results\": []}", "no file holds a prefill");
    refuse("{\"results\": [{\"kind\": \"energy\"}]}", "no file holds a prefill");
    refuse("{\"results\": [1, {\"kind\": \"decode\", \"tokens\": 0}]}", "results[1]: tokens");
    refuse("{\"results\": [{\"kind\": \"decode\", \"tokens\": 1e99}]}", "tokens");
    refuse("{\"results\": [{\"kind\": \"decode\", \"tokens\": 5}]}", "tokens_per_s");
    refuse("{\"results\": [{\"kind\": \"decode\", \"tokens\": 5, \"tokens_per_s\": -1}]}",
           "results[0]: tokens_per_s");
    refuse("{\"results\": [{\"kind\": \"decode\", \"tokens\": 5, \"tokens_per_s\": 1e400}]}",
           "tokens_per_s");
    refuse("{\"results\": [{\"kind\": \"decode\", \"tokens\": 5, \"tokens_per_s\": 9, \"low\": 10}"
           "]}",
           "not within its spread");
    refuse("{\"limits\": {\"matrix_flops\": \"x\"}, \"results\": []}", "matrix_flops: expected");
    refuse("{\"results\": [[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]}", "deep");
    plot *p;
    calla_error err;
    assert_int_equal(plot_create(&p, &err), CALLA_OK);
    for (uint32_t i = 0; i < PLOT_SERIES_MAX; i++)
        assert_int_equal(add(p, "x", full, &err), CALLA_OK);
    assert_int_equal(add(p, "x", full, &err), CALLA_ERR_ARGUMENT);
    strbuf out = {0};
    assert_int_equal(plot_draw(p, &out, &err), CALLA_OK);
    assert_xml(out.data);
    strbuf_deinit(&out);
    assert_int_equal(plot_add_file(p, "tests/data/no-such-file", &err), CALLA_ERR_IO);
    plot_destroy(p);
    plot_destroy(NULL);
}

/* Cut anywhere, or with any byte changed: drawn as well-formed XML, or refused with a sentence. */
static void test_damage(void **state)
{
    (void)state;
    char text[sizeof full];
    calla_error err;
    uint64_t rng = 20261130;
    uint32_t drawn = 0;
    for (uint32_t i = 0; i < 3000; i++) {
        const char *json = text;
        (void)memcpy(text, full, sizeof full);
        rng = rng * 6364136223846793005u + 1442695040888963407u;
        const size_t at = (size_t)(rng >> 33) % (sizeof full - 1);
        text[at] = i < 1000 ? '\0' : "0123456789eE-+.\"{}[],:ntf\\x"[(rng >> 20) % 27];
        err.message[0] = '\0';
        char *svg = draw(&json, 1, &err);
        if (svg == NULL) assert_true(err.message[0] != '\0');
        drawn += svg != NULL;
        mem_free(svg);
    }
    print_message("%u of 3000 damaged files drawn\n", drawn);
    assert_true(drawn > 200 && drawn < 2500);
}

static void test_memory(void **state)
{
    (void)state;
    calla_error err;
    bool done = false;
    for (int64_t i = 0; !done; i++) {
        plot *p = NULL;
        strbuf out = {0};
        mem_fail_after(i);
        calla_status st = plot_create(&p, &err);
        if (st == CALLA_OK) st = add(p, "a", full, &err);
        if (st == CALLA_OK) st = plot_draw(p, &out, &err);
        mem_fail_after(-1);
        done = st == CALLA_OK;
        if (!done) assert_int_equal(st, CALLA_ERR_MEMORY);
        strbuf_deinit(&out);
        plot_destroy(p);
        assert_true(i < 1000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one),      cmocka_unit_test(test_place),
        cmocka_unit_test(test_numbers),  cmocka_unit_test(test_several),
        cmocka_unit_test(test_escapes),  cmocka_unit_test(test_long),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_damage),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
