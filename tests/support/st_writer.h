/* st_writer.h - writes safetensors files and checkpoint folders for tests.
 *
 * Does:    keeps a list of tensors that a test may change freely (rename, retype, drop), then
 *          writes them as one file or several with an index. A tensor without data is a hole: a
 *          20 GB file costs nothing. Also temporary folders and whole small files.
 * Errors:  any failure ends the test program through cmocka's fail_msg.
 * Usage:   include after <cmocka.h>, in one file per program; without cmocka (fuzz targets) a
 *          failure aborts.
 */
#ifndef CALLA_TESTS_ST_WRITER_H
#define CALLA_TESTS_ST_WRITER_H

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/ck.h"
#include "base/file.h"
#include "base/mem.h"
#include "format/safetensors.h"

#ifndef assert_non_null
#define fail_msg(...)          (fprintf(stderr, __VA_ARGS__), abort())
#define stw_check(x)           ((x) ? (void)0 : fail_msg("failed: %s\n", #x))
#define assert_non_null(x)     stw_check((x) != NULL)
#define assert_false(x)        stw_check(!(x))
#define assert_int_equal(a, b) stw_check((a) == (b))
#endif

typedef struct stw_tensor {
    char name[128];
    char dtype[12];
    char shape[48]; /* "256x512x4"; "" is a scalar */
    uint8_t *data;  /* mem_free; NULL: a hole of zeros */
    unsigned shard;
} stw_tensor;

typedef struct stw_list {
    stw_tensor *items;
    size_t n, cap;
} stw_list;

static uint64_t stw_bytes(const stw_tensor *t)
{
    uint64_t n = 0;
    for (int d = 0; d <= ST_F8_E5M2; d++)
        if (strcmp(st_dtype_name((st_dtype)d), t->dtype) == 0) n = st_dtype_bytes((st_dtype)d);
    for (const char *p = t->shape; *p != '\0';) {
        char *end;
        n *= strtoull(p, &end, 10);
        p = *end == 'x' ? end + 1 : end;
    }
    return n;
}

/* Adds a tensor; data is copied, NULL makes a hole. The pointer dies with the next add. */
ATTR_UNUSED static stw_tensor *stw_add(stw_list *l, const char *name, const char *dtype,
                                       const char *shape, const void *data)
{
    if (l->n == l->cap) {
        l->cap = l->cap == 0 ? 64 : 2 * l->cap;
        l->items = mem_resize(l->items, l->cap * sizeof *l->items);
        assert_non_null(l->items);
    }
    stw_tensor *t = &l->items[l->n++];
    memset(t, 0, sizeof *t);
    (void)snprintf(t->name, sizeof t->name, "%s", name);
    (void)snprintf(t->dtype, sizeof t->dtype, "%s", dtype);
    (void)snprintf(t->shape, sizeof t->shape, "%s", shape);
    if (data != NULL) t->data = (uint8_t *)mem_memdup(data, (size_t)stw_bytes(t));
    return t;
}

ATTR_UNUSED static stw_tensor *stw_find(stw_list *l, const char *name)
{
    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->items[i].name, name) == 0) return &l->items[i];
    fail_msg("no tensor %s in the list", name);
    return NULL;
}

ATTR_UNUSED static void stw_drop(stw_list *l, stw_tensor *t)
{
    mem_free(t->data);
    memmove(t, t + 1, (size_t)(l->items + l->n - (t + 1)) * sizeof *t);
    l->n--;
}

ATTR_UNUSED static void stw_free(stw_list *l)
{
    for (size_t i = 0; i < l->n; i++)
        mem_free(l->items[i].data);
    mem_free(l->items);
    memset(l, 0, sizeof *l);
}

/* The header of the tensors of one shard, without padding, as MLX writes it. */
ATTR_UNUSED static void stw_header(const stw_list *l, unsigned shard, strbuf *out)
{
    uint64_t at = 0;
    (void)strbuf_puts(out, "{\"__metadata__\":{\"format\":\"mlx\"}");
    for (size_t i = 0; i < l->n; i++) {
        const stw_tensor *t = &l->items[i];
        if (t->shard != shard) continue;
        (void)strbuf_printf(out, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", t->name, t->dtype);
        for (const char *p = t->shape; *p != '\0'; p++)
            (void)strbuf_putc(out, *p == 'x' ? ',' : *p);
        const uint64_t end = at + stw_bytes(t);
        (void)strbuf_printf(out, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
                            (unsigned long long)end);
        at = end;
    }
    (void)strbuf_putc(out, '}');
    assert_false(out->failed);
}

static void stw_pwrite(int fd, const void *p, size_t n, uint64_t at)
{
    assert_int_equal(pwrite(fd, p, n, (off_t)at), (ssize_t)n);
}

/* Writes one shard. odd: a space after the header, where needed, makes the data begin at an odd
 * address; otherwise the header stays as it is. */
ATTR_UNUSED static void stw_save_shard(const stw_list *l, unsigned shard, const char *path,
                                       bool odd)
{
    strbuf head = {0};
    stw_header(l, shard, &head);
    if (odd && head.len % 2 == 0) (void)strbuf_putc(&head, ' ');
    uint8_t len[8];
    for (int i = 0; i < 8; i++)
        len[i] = (uint8_t)((uint64_t)head.len >> (8 * i));
    const int fd = open(path, O_CREAT | O_TRUNC | O_RDWR, 0600);
    if (fd < 0) fail_msg("cannot create %s", path);
    stw_pwrite(fd, len, 8, 0);
    stw_pwrite(fd, head.data, head.len, 8);
    uint64_t at = 8 + head.len;
    for (size_t i = 0; i < l->n; i++) {
        const stw_tensor *t = &l->items[i];
        if (t->shard != shard) continue;
        const uint64_t n = stw_bytes(t);
        if (t->data != NULL) stw_pwrite(fd, t->data, (size_t)n, at);
        at += n;
    }
    assert_int_equal(ftruncate(fd, (off_t)at), 0);
    assert_int_equal(close(fd), 0);
    strbuf_deinit(&head);
}

/* ---- Folders ---- */

/* A fresh temporary folder; stw_rmdir removes it with the files in it. */
ATTR_UNUSED static char *stw_mkdir(void)
{
    const char *base = getenv("TMPDIR");
    char *dir = path_join(base != NULL && base[0] != '\0' ? base : P_tmpdir, "calla-test-XXXXXX");
    assert_non_null(dir);
    if (mkdtemp(dir) == NULL) fail_msg("cannot make a temporary folder %s", dir);
    return dir;
}

ATTR_UNUSED static void stw_write(const char *dir, const char *name, const void *data, size_t n)
{
    char *path = path_join(dir, name);
    FILE *f = fopen(path, "wb");
    if (f == NULL) fail_msg("cannot create %s", path);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    mem_free(path);
}

ATTR_UNUSED static void stw_write_text(const char *dir, const char *name, const char *text)
{
    stw_write(dir, name, text, strlen(text));
}

/* Text with the first occurrence of `from` replaced; mem_free. */
ATTR_UNUSED static char *stw_replaced(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    if (at == NULL) fail_msg("no %s in the text", from);
    strbuf b = {0};
    (void)strbuf_append(&b, text, (size_t)(at - text));
    (void)strbuf_puts(&b, to);
    (void)strbuf_puts(&b, at + strlen(from));
    assert_false(b.failed);
    return b.data;
}

ATTR_UNUSED static void stw_remove(const char *dir, const char *name)
{
    char *path = path_join(dir, name);
    (void)remove(path);
    mem_free(path);
}

static void stw_shard_name(char out[48], unsigned i, unsigned n)
{
    (void)snprintf(out, 48, "model-%05u-of-%05u.safetensors", i + 1, n);
}

/* Files a test may have made: shards 0 .. 8 of up to 8, and the usual JSON files. */
ATTR_UNUSED static void stw_rmdir(char *dir)
{
    static const char *const names[] = {"model.safetensors",     "model.safetensors.index.json",
                                        "config.json",           "generation_config.json",
                                        "x.safetensors",         "tokenizer.json",
                                        "tokenizer_config.json", "other.safetensors"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        stw_remove(dir, names[i]);
    for (unsigned n = 1; n <= 8; n++)
        for (unsigned i = 0; i < n; i++) {
            char name[48];
            stw_shard_name(name, i, n);
            stw_remove(dir, name);
        }
    if (rmdir(dir) != 0) fail_msg("cannot remove %s", dir);
    mem_free(dir);
}

/* Writes the tensors as model.safetensors (n_shards 0) or as n_shards files with their index. */
ATTR_UNUSED static void stw_save(const stw_list *l, const char *dir, unsigned n_shards, bool odd)
{
    if (n_shards == 0) {
        char *path = path_join(dir, "model.safetensors");
        stw_save_shard(l, 0, path, odd);
        mem_free(path);
        return;
    }
    strbuf index = {0};
    char name[48];
    (void)strbuf_puts(&index, "{\"metadata\":{},\"weight_map\":{");
    for (size_t i = 0; i < l->n; i++) {
        stw_shard_name(name, l->items[i].shard, n_shards);
        (void)strbuf_printf(&index, "%s\"%s\":\"%s\"", i == 0 ? "" : ",", l->items[i].name, name);
    }
    (void)strbuf_puts(&index, "}}");
    stw_write(dir, "model.safetensors.index.json", index.data, index.len);
    strbuf_deinit(&index);
    for (unsigned i = 0; i < n_shards; i++) {
        stw_shard_name(name, i, n_shards);
        char *path = path_join(dir, name);
        stw_save_shard(l, i, path, odd);
        mem_free(path);
    }
}

#endif
