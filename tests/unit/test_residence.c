/* Shards in the page cache: what is said of it, dropping and filling, large pages by reading and by
 * ckpt_writer. Where the system cannot, the tests skip and say so. */
#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* RUSAGE_THREAD */
#endif
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#if defined(__linux__)
#include <sys/vfs.h>
#endif

#include "format/ckpt_writer.h"
#include "format/residence.h"
#include "support/st_writer.h"

#define MB       ((uint64_t)1 << 20)
#define N_BYTES  (24 * MB + 77) /* of a tensor, and a shard has one and a small one */
#define EXT4_TAG 0xef53
#if !defined(RUSAGE_THREAD)
#define RUSAGE_THREAD RUSAGE_SELF
#endif
#define XFS_TAG 0x58465342

static void fill_pattern(void *user, size_t i, uint64_t offset, size_t n, uint8_t *out)
{
    (void)user;
    for (size_t k = 0; k < n; k++)
        out[k] = (uint8_t)((offset + k) * 2654435761u >> 13 ^ i);
}

/* Two shards, their data at odd addresses. */
static checkpoint *write_model(const char *dir)
{
    static const cw_file files[] = {{"config.json", "{}", 2}};
    static const char *const names[] = {"a", "b", "c", "d"};
    const uint64_t sizes[] = {333, N_BYTES, 5, N_BYTES};
    cw_list list = {0};
    calla_error err;
    for (size_t i = 0; i < 4; i++)
        assert_true(cw_add(&list, names[i], ST_U8, 1, &sizes[i]));
    const cw_options o = {.fill = fill_pattern,
                          .files = files,
                          .n_files = 1,
                          .n_threads = 2,
                          .shard_bytes = N_BYTES + 1000,
                          .odd = true};
    if (ckpt_write(dir, &list, &o, &err) != CALLA_OK) fail_msg("%s", err.message);
    mem_free(list.items);
    checkpoint *ck = NULL;
    if (checkpoint_open(&ck, dir, &err) != CALLA_OK) fail_msg("%s", err.message);
    assert_int_equal(checkpoint_n_shards(ck), 2);
    return ck;
}

static void check_contents(const checkpoint *ck)
{
    static uint8_t want[N_BYTES];
    for (size_t i = 0; i < checkpoint_count(ck); i++) {
        const st_tensor *t = checkpoint_at(ck, i);
        fill_pattern(NULL, i, 0, (size_t)t->n_bytes, want);
        assert_memory_equal(t->data, want, t->n_bytes);
    }
}

/* Linux that gives files here large pages. */
static bool has_large_pages(const char *dir)
{
#if defined(__linux__)
    struct utsname u;
    struct statfs fs;
    int major = 0, minor = 0;
    if (uname(&u) != 0 || sscanf(u.release, "%d.%d", &major, &minor) != 2) return false;
    if (major < 6 || (major == 6 && minor < 16) || statfs(dir, &fs) != 0) return false;
    if (fs.f_type != EXT4_TAG && fs.f_type != XFS_TAG) return false;
    char line[512];
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "r");
    bool ok = f != NULL && fgets(line, sizeof line, f) != NULL && strcmp(line, "2097152\n") == 0;
    if (f != NULL) (void)fclose(f);
    return ok;
#else
    (void)dir;
    return false;
#endif
}

static void check_large(const char *what, const char *dir, const residence *r)
{
    print_message("%s: %llu of %llu bytes in large pages\n", what, (unsigned long long)r->large,
                  (unsigned long long)r->cached);
    if (has_large_pages(dir))
        assert_true(r->large >= 24 * MB); /* of 48: memory may be in small pieces */
    else
        print_message("large pages: not checked, this system need not have them\n");
}

typedef struct calls {
    size_t n, last, total, stop_after;
} calls;

static bool on_progress(void *user, size_t n_done, size_t n_total)
{
    calls *c = user;
    assert_true(n_done > c->last && n_done <= n_total);
    c->last = n_done;
    c->total = n_total;
    c->n++;
    return c->n != c->stop_after;
}

static char *g_dir, *g_model;

static int setup(void **state)
{
    (void)state;
    g_dir = stw_mkdir();
    g_model = path_join(g_dir, "model");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    static const char *const names[] = {"model-00001-of-00002.safetensors",
                                        "model-00002-of-00002.safetensors", CHECKPOINT_INDEX,
                                        "config.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        stw_remove(g_model, names[i]);
    (void)rmdir(g_model);
    (void)rmdir(g_dir);
    mem_free(g_model);
    mem_free(g_dir);
    return 0;
}

static void look(const checkpoint *ck, residence *r)
{
    assert_int_equal(residence_look(ck, r, NULL), CALLA_OK);
    if (!r->known) return;
    assert_int_equal(r->bytes, checkpoint_file_bytes(ck));
    assert_true(r->large <= r->cached && r->cached <= r->bytes);
}

static void test_life(void **state)
{
    (void)state;
    residence r;
    uint64_t n = 1;
    calls c = {0};
    checkpoint *ck = write_model(g_model);
    look(ck, &r);
    if (!r.known) {
        assert_int_equal(residence_fill(ck, on_progress, &c, &n, NULL), CALLA_OK);
        assert_int_equal(n + c.n, 0);
        checkpoint_close(ck);
        print_message("this system does not say what is in memory\n");
        skip();
    }
    assert_int_equal(r.cached, r.bytes);
    check_large("written", g_model, &r);

    /* All is there: nothing to do. */
    assert_int_equal(residence_fill(ck, on_progress, &c, &n, NULL), CALLA_OK);
    assert_int_equal(n + c.n, 0);

    /* checkpoint_open has read the headers: what they are in may stay. */
    assert_int_equal(residence_drop(ck, NULL), CALLA_OK);
    look(ck, &r);
    const uint64_t missing = r.bytes - r.cached;
    if (missing == 0) {
        checkpoint_close(ck);
        print_message("files here are in memory only\n");
        skip();
    }
    assert_true(missing >= 40 * MB);
    calla_error err;
    c = (calls){.stop_after = 1};
    assert_int_equal(residence_fill(ck, on_progress, &c, &n, &err), CALLA_ERR_CANCELLED);
    assert_int_equal(c.n, 1);
    assert_true(n == c.last && n < missing && c.total == missing);
    c = (calls){0};
    const uint64_t before = n;
    assert_int_equal(residence_fill(ck, on_progress, &c, &n, NULL), CALLA_OK);
    assert_true(c.n > 0 && c.last == c.total && n == c.total);
    assert_true(before + n >= missing); /* more where some was pushed out meanwhile */
    look(ck, &r);
    assert_int_equal(r.cached, r.bytes);
    check_large("read", g_model, &r);
    check_contents(ck);
    checkpoint_close(ck);
}

/* Faults of this thread while it touches each page of all shards. Not checked by the address
 * sanitizer, whose shadow of those pages would fault as well. */
ATTR_NO_ASAN static long touch_faults(const checkpoint *ck)
{
    struct rusage before, after;
    assert_int_equal(getrusage(RUSAGE_THREAD, &before), 0);
    for (size_t i = 0; i < checkpoint_n_shards(ck); i++) {
        uint64_t n;
        const volatile uint8_t *p = checkpoint_shard_bytes(ck, i, &n);
        for (uint64_t at = 0; at < n; at += 4096)
            (void)p[at];
    }
    assert_int_equal(getrusage(RUSAGE_THREAD, &after), 0);
    return after.ru_minflt - before.ru_minflt;
}

/* Whether the system maps pages on demand (Linux 5.14). */
static bool can_populate(void)
{
#if defined(__linux__)
    void *p = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    const bool ok = madvise(p, 4096, 22 /* MADV_POPULATE_READ */) == 0;
    assert_int_equal(munmap(p, 4096), 0);
    return ok;
#else
    return false;
#endif
}

/* What is mapped faults no more. */
static void test_map(void **state)
{
    (void)state;
    residence r;
    checkpoint *ck = write_model(g_model);
    look(ck, &r);
    assert_int_equal(residence_map(ck, -1.0), 0);
    const uint64_t mapped = residence_map(ck, 10.0);
    if (!r.known || !can_populate()) {
        checkpoint_close(ck);
        print_message("this system does not say what is in memory, or does not map it at once\n");
        skip();
    }
    assert_int_equal(mapped, r.cached);
    const long with = touch_faults(ck);
    checkpoint_close(ck);

    calla_error err;
    assert_int_equal(checkpoint_open(&ck, g_model, &err), CALLA_OK);
    const long without = touch_faults(ck);
    checkpoint_close(ck);
    print_message("faults: %ld, of what is not mapped %ld\n", with, without);
    assert_true(with * 4 < without); /* the thread may have faults of its own */
}

/* A file that has gone meanwhile is named. */
static void test_gone(void **state)
{
    (void)state;
    residence r;
    calla_error err = {0};
    checkpoint *ck = write_model(g_model);
    look(ck, &r);
    stw_remove(g_model, "model-00002-of-00002.safetensors");
    const calla_status st = residence_look(ck, &r, &err);
#if defined(__linux__)
    assert_int_equal(st, CALLA_ERR_IO);
    assert_non_null(strstr(err.message, "model-00002-of-00002.safetensors"));
#else
    assert_int_equal(st, CALLA_OK);
#endif
    checkpoint_close(ck);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_life, setup, teardown),
        cmocka_unit_test_setup_teardown(test_map, setup, teardown),
        cmocka_unit_test_setup_teardown(test_gone, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
