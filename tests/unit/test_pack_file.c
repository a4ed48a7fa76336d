/* The pack as a file: round trip, every kind of damage, writers side by side, failures. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "exec/gpu/pack_file.h"
#include "support/st_writer.h"

#define N_BLOBS 4u

static const uint64_t sizes[N_BLOBS] = {70001, PACK_PAGE, 1, 35u << 20}; /* three parts */
static uint8_t *blobs[N_BLOBS];
static char *dir, *path, *tmp;

static pack_spec make_spec(void)
{
    return (pack_spec){
        .source = {11, 12}, .dims = {1, 2, 3}, .n_blobs = N_BLOBS, .blob_bytes = sizes};
}

static int set_up(void **state)
{
    (void)state;
    uint32_t x = 1;
    for (uint32_t i = 0; i < N_BLOBS; i++) {
        blobs[i] = mem_alloc((size_t)sizes[i]);
        for (uint64_t k = 0; k < sizes[i]; k++)
            blobs[i][k] = (uint8_t)((x = x * 1664525u + 1013904223u) >> 24);
    }
    dir = stw_mkdir();
    path = path_join(dir, "x.pack");
    tmp = path_join(dir, "x.pack.tmp");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    (void)unlink(path);
    (void)unlink(tmp);
    assert_int_equal(rmdir(dir), 0); /* nothing else was left there */
    mem_free(tmp);
    mem_free(path);
    mem_free(dir);
    for (uint32_t i = 0; i < N_BLOBS; i++)
        mem_free(blobs[i]);
    return 0;
}

static calla_status write_pack(const char *to, pool *p, calla_error *err)
{
    const pack_spec s = make_spec();
    pack_writer *w;
    calla_status st = pack_writer_open(&w, to, &s, err);
    for (uint32_t i = N_BLOBS; i-- > 0 && st == CALLA_OK;) /* any order will do */
        st = pack_writer_blob(w, i, p, blobs[i], err);
    if (st == CALLA_OK) st = pack_writer_commit(w, err);
    pack_writer_destroy(w);
    return st;
}

static void must_write(const char *to)
{
    calla_error err;
    if (write_pack(to, NULL, &err) != CALLA_OK) fail_msg("%s", err.message);
}

/* What a blob's parts must be. */
typedef struct expected {
    uint32_t i;
    uint64_t at; /* bytes so far */
    bool same;
    uint64_t stop_at;
} expected;

static calla_status on_part(void *user, uint64_t off, const uint8_t *data, uint64_t n,
                            calla_error *err)
{
    expected *e = user;
    assert_int_equal(off, e->at);
    assert_true(n != 0 && off + n <= sizes[e->i]);
    e->same = e->same && memcmp(data, blobs[e->i] + off, (size_t)n) == 0;
    e->at += n;
    return e->at >= e->stop_at ? err_set(err, CALLA_ERR_DEVICE, "stop") : CALLA_OK;
}

static calla_status read_blob(const pack_file *f, uint32_t i, pool *p, bool *same, calla_error *err)
{
    expected e = {.i = i, .same = true, .stop_at = UINT64_MAX};
    const calla_status st = pack_file_blob(f, i, p, on_part, &e, err);
    assert_int_equal(e.at, sizes[i]);
    *same = e.same;
    return st;
}

/* Opens the file and reads all blobs. */
static calla_status read_pack(const pack_spec *s, pool *p, calla_error *err)
{
    pack_file f;
    calla_status st = pack_file_open(&f, path, s, err);
    for (uint32_t i = 0; i < s->n_blobs && st == CALLA_OK; i++) {
        bool same;
        st = read_blob(&f, i, p, &same, err);
        if (st == CALLA_OK) assert_true(same);
    }
    pack_file_close(&f);
    return st;
}

static void test_round_trip(void **state)
{
    (void)state;
    const pack_spec s = make_spec();
    calla_error err;
    pool *p;
    struct stat sb;
    assert_int_equal(read_pack(&s, NULL, &err), CALLA_ERR_IO);
    assert_int_equal(pool_create(&p, 3, &err), CALLA_OK);
    for (int i = 0; i < 2; i++) { /* over itself the second time */
        assert_int_equal(write_pack(path, p, &err), CALLA_OK);
        assert_int_equal(read_pack(&s, NULL, &err), CALLA_OK); /* the sum is the same */
        assert_int_equal(read_pack(&s, p, &err), CALLA_OK);
        assert_false(file_exists(tmp));
    }
    assert_int_equal(stat(path, &sb), 0);
    assert_int_equal(sb.st_size, pack_file_bytes(&s));
    assert_int_equal(sb.st_size % PACK_PAGE, 0);
    assert_int_equal(sb.st_mode & 0777, 0600);
    for (uint32_t i = 0; i < N_BLOBS; i++)
        assert_int_equal(pack_sum(p, blobs[i], sizes[i]), pack_sum(NULL, blobs[i], sizes[i]));
    pack_file f; /* the sink's failure is not the file's */
    expected e = {.i = 3, .same = true, .stop_at = 17u << 20};
    assert_int_equal(pack_file_open(&f, path, &s, &err), CALLA_OK);
    assert_int_equal(pack_file_blob(&f, 3, p, on_part, &e, &err), CALLA_ERR_DEVICE);
    assert_true(e.same && e.at < sizes[3]);
    pack_file_close(&f);
    pool_destroy(p);
}

/* ---- damage ---- */

static uint8_t *load_file(uint64_t *n)
{
    filemap map;
    calla_error err;
    assert_int_equal(filemap_open(&map, path, &err), CALLA_OK);
    uint8_t *data = mem_alloc((size_t)map.size);
    memcpy(data, map.data, (size_t)map.size);
    *n = map.size;
    filemap_close(&map);
    return data;
}

static void refused(const uint8_t *data, uint64_t n, const pack_spec *s, calla_status st,
                    const char *words)
{
    pack_file f;
    calla_error err;
    assert_int_equal(pack_file_view(&f, data, n, s, &err), st);
    if (strstr(err.message, words) == NULL) fail_msg("expected %s, found %s", words, err.message);
}

static void test_header_bytes(void **state)
{
    (void)state;
    const pack_spec s = make_spec();
    pack_file f;
    uint64_t n;
    must_write(path);
    uint8_t *data = load_file(&n);
    assert_int_equal(pack_file_view(&f, data, n, &s, NULL), CALLA_OK);
    for (uint32_t i = 0; i < PACK_PAGE; i++) { /* no byte of it may change */
        calla_error err;
        data[i] ^= 1;
        const calla_status st = pack_file_view(&f, data, n, &s, &err);
        if (st == CALLA_OK) fail_msg("byte %u was not missed", i);
        assert_int_equal(st, err.code);
        data[i] ^= 1;
    }
    refused(data, 0, &s, CALLA_ERR_FORMAT, "cut short");
    data[0] ^= 1;
    refused(data, n, &s, CALLA_ERR_FORMAT, "no pack");
    data[0] ^= 1;
    data[8] ^= 1;
    refused(data, n, &s, CALLA_ERR_UNSUPPORTED, "byte order");
    data[8] ^= 1;
    data[12] ^= 2;
    refused(data, n, &s, CALLA_ERR_UNSUPPORTED, "another version: expected 1, found 3");
    data[12] ^= 2;
    data[200] ^= 2;
    refused(data, n, &s, CALLA_ERR_FORMAT, "checksum");
    data[200] ^= 2;
    assert_int_equal(pack_file_view(&f, data, n, &s, NULL), CALLA_OK);
    mem_free(data);
}

/* Headers that are whole, but of something else. */
static void test_other_spec(void **state)
{
    (void)state;
    static const uint64_t other_sizes[N_BLOBS] = {70001, PACK_PAGE, 2, 35u << 20};
    const pack_spec good = make_spec();
    pack_spec s = good;
    uint64_t n;
    must_write(path);
    uint8_t *data = load_file(&n);
    for (uint32_t i = 0; i < PACK_DIMS; i++) {
        s.dims[i]++;
        refused(data, n, &s, CALLA_ERR_UNSUPPORTED, "another shape");
        s = good;
    }
    for (uint32_t i = 0; i < 2; i++) {
        s.source[i]++;
        refused(data, n, &s, CALLA_ERR_UNSUPPORTED, "another checkpoint");
        s = good;
    }
    s.n_blobs--;
    refused(data, n, &s, CALLA_ERR_UNSUPPORTED, "another layout");
    s = good;
    s.blob_bytes = other_sizes;
    refused(data, n, &s, CALLA_ERR_UNSUPPORTED, "another layout");
    mem_free(data);
}

static void test_cut(void **state)
{
    (void)state;
    const pack_spec s = make_spec();
    pack_file f;
    uint64_t n, at = PACK_PAGE;
    calla_error err;
    must_write(path);
    uint8_t *data = load_file(&n);
    const uint64_t few[] = {0, 1, 7, 8, 9, 100, PACK_PAGE - 1, PACK_PAGE, PACK_PAGE + 1};
    for (size_t i = 0; i < sizeof few / sizeof *few; i++)
        refused(data, few[i], &s, CALLA_ERR_FORMAT, "cut short");
    for (uint32_t i = 0; i < N_BLOBS; i++) {
        at += (sizes[i] + PACK_PAGE - 1) / PACK_PAGE * PACK_PAGE;
        refused(data, at - 1, &s, CALLA_ERR_FORMAT, "cut short");
        if (at < n) refused(data, at, &s, CALLA_ERR_FORMAT, "cut short");
    }
    assert_int_equal(at, n);
    refused(data, n + 1, &s, CALLA_ERR_FORMAT, "damaged"); /* (the length alone is looked at) */
    assert_int_equal(truncate(path, (off_t)n - 1), 0);     /* and in a mapped file */
    assert_int_equal(pack_file_open(&f, path, &s, &err), CALLA_ERR_FORMAT);
    mem_free(data);
}

static void test_damaged_blob(void **state)
{
    (void)state;
    const pack_spec s = make_spec();
    pack_file f;
    uint64_t n, at = PACK_PAGE;
    must_write(path);
    uint8_t *data = load_file(&n);
    assert_int_equal(pack_file_view(&f, data, n, &s, NULL), CALLA_OK);
    for (uint32_t i = 0; i < N_BLOBS; i++) {
        const uint64_t places[] = {0, sizes[i] / 2, sizes[i] - 1};
        for (size_t k = 0; k < 3; k++) {
            for (uint32_t j = 0; j < N_BLOBS; j++) {
                bool same;
                calla_error err = {0};
                char words[64];
                data[at + places[k]] ^= (uint8_t)(1u << k);
                const calla_status st = read_blob(&f, j, NULL, &same, &err);
                data[at + places[k]] ^= (uint8_t)(1u << k);
                assert_int_equal(st, i == j ? CALLA_ERR_FORMAT : CALLA_OK);
                assert_int_equal(same, i != j);
                (void)snprintf(words, sizeof words, "blob %u of 4", i);
                if (i == j) assert_non_null(strstr(err.message, words));
            }
        }
        at += (sizes[i] + PACK_PAGE - 1) / PACK_PAGE * PACK_PAGE;
    }
    mem_free(data);
}

/* Exchanged words, exchanged pieces, a longer blob of zeros: another sum each. */
static void test_sum(void **state)
{
    (void)state;
    const size_t n = 3u << 20;
    uint8_t *p = mem_alloc(n + 64);
    const uint64_t zeros = pack_sum(NULL, p, n);
    for (size_t k = 1; k <= 64; k++)
        assert_true(pack_sum(NULL, p, n + k) != zeros);
    memcpy(p, blobs[3], n);
    const uint64_t sum = pack_sum(NULL, p, n);
    for (size_t step = 8; step <= n / 2; step *= 2) { /* two words change places */
        uint64_t a, b;
        memcpy(&a, p + 64, 8);
        memcpy(&b, p + 64 + step, 8);
        assert_true(a != b);
        memcpy(p + 64, &b, 8);
        memcpy(p + 64 + step, &a, 8);
        assert_true(pack_sum(NULL, p, n) != sum);
        memcpy(p + 64, &a, 8);
        memcpy(p + 64 + step, &b, 8);
    }
    assert_true(pack_sum(NULL, p, n) == sum);
    memcpy(p, blobs[3] + (1u << 20), 1u << 20); /* two pieces change places */
    memcpy(p + (1u << 20), blobs[3], 1u << 20);
    assert_true(pack_sum(NULL, p, n) != sum);
    mem_free(p);
}

/* ---- writers ---- */

static void test_one_writer(void **state)
{
    (void)state;
    const pack_spec s = make_spec();
    pack_writer *a, *b;
    calla_error err;
    assert_int_equal(pack_writer_open(&a, path, &s, &err), CALLA_OK);
    assert_int_equal(pack_writer_open(&b, path, &s, &err), CALLA_ERR_IO);
    assert_non_null(strstr(err.message, "another process is writing"));
    assert_null(b);
    assert_int_equal(pack_writer_commit(a, &err), CALLA_ERR_INTERNAL); /* blobs are missing */
    for (uint32_t i = 0; i < N_BLOBS; i++)
        assert_int_equal(pack_writer_blob(a, i, NULL, blobs[i], &err), CALLA_OK);
    assert_int_equal(pack_writer_commit(a, &err), CALLA_OK);
    assert_int_equal(pack_writer_open(&b, path, &s, &err), CALLA_OK); /* another file by now */
    assert_int_equal(read_pack(&s, NULL, &err), CALLA_OK);
    pack_writer_destroy(b); /* not committed: the old one stays */
    pack_writer_destroy(a);
    assert_int_equal(read_pack(&s, NULL, &err), CALLA_OK);
    assert_false(file_exists(tmp));
}

/* Processes write and read at the same time: whatever stands there is whole. */
static void test_side_by_side(void **state)
{
    (void)state;
    const pack_spec s = make_spec();
    pid_t pids[4];
    calla_error err;
    for (int i = 0; i < 4; i++) {
        pids[i] = fork();
        assert_true(pids[i] >= 0);
        if (pids[i] != 0) continue;
        int n_bad = 0;
        for (int k = 0; k < 5; k++) {
            if (write_pack(path, NULL, &err) != CALLA_OK &&
                strstr(err.message, "another process") == NULL)
                n_bad++;
            const calla_status st = read_pack(&s, NULL, &err);
            if (st != CALLA_OK && st != CALLA_ERR_IO) n_bad++;
        }
        _exit(n_bad);
    }
    for (int i = 0; i < 4; i++) {
        int status;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_int_equal(status, 0);
    }
    assert_int_equal(read_pack(&s, NULL, &err), CALLA_OK);
    assert_false(file_exists(tmp));
}

/* A killed writer leaves its temporary file, without a header; it is not believed, and in the way
 * of nobody. */
static void test_killed(void **state)
{
    (void)state;
    const pack_spec s = make_spec();
    pack_file f;
    calla_error err;
    int ready[2], status;
    char byte;
    assert_int_equal(pipe(ready), 0);
    const pid_t pid = fork();
    if (pid == 0) {
        pack_writer *w;
        if (pack_writer_open(&w, path, &s, &err) != CALLA_OK) _exit(1);
        for (uint32_t i = 0; i < N_BLOBS; i++)
            (void)pack_writer_blob(w, i, NULL, blobs[i], &err);
        if (write(ready[1], "x", 1) != 1) _exit(1);
        (void)pause();
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(write_pack(path, NULL, &err), CALLA_ERR_IO);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    (void)close(ready[0]);
    (void)close(ready[1]);
    assert_true(file_exists(tmp));
    assert_false(file_exists(path));
    assert_int_equal(pack_file_open(&f, tmp, &s, &err), CALLA_ERR_FORMAT);
    must_write(path);
    assert_int_equal(read_pack(&s, NULL, &err), CALLA_OK);
    assert_false(file_exists(tmp));
}

/* ---- failures ---- */

static void no_writer(const char *to, const pack_spec *s, const char *words)
{
    pack_writer *w;
    calla_error err;
    assert_int_equal(pack_writer_open(&w, to, s, &err), CALLA_ERR_IO);
    assert_null(w);
    if (strstr(err.message, words) == NULL) fail_msg("expected %s, found %s", words, err.message);
}

static void test_places(void **state)
{
    (void)state;
    const pack_spec s = make_spec();
    char *deep = path_join(dir, "a/b/x.pack"), *in_file = path_join(path, "x.pack");
    calla_error err;
    struct stat sb;
    assert_int_equal(write_pack(deep, NULL, &err), CALLA_OK); /* folders are made */
    deep[strlen(deep) - strlen("/x.pack")] = '\0';
    assert_int_equal(stat(deep, &sb), 0);
    assert_int_equal(sb.st_mode & 0777, 0700);
    (void)chmod(deep, 0500);
    if (geteuid() != 0) { /* who is root may write everywhere */
        deep[strlen(deep)] = '/';
        no_writer(deep, &s, "cannot create");
        deep[strlen(deep) - strlen("/x.pack")] = '\0';
    }
    (void)chmod(deep, 0700);
    deep[strlen(deep)] = '/';
    assert_int_equal(unlink(deep), 0);
    *strrchr(deep, '/') = '\0';
    assert_int_equal(rmdir(deep), 0);
    *strrchr(deep, '/') = '\0';
    assert_int_equal(rmdir(deep), 0);
    must_write(path);
    no_writer(in_file, &s, "cannot");            /* the folder is a file */
    no_writer("/dev/full/x.pack", &s, "cannot"); /* or a device */
    no_writer("/dev/null/a/x.pack", &s, "cannot");
    mem_free(in_file);
    mem_free(deep);
}

/* What stands in the place of the temporary file is not followed and not waited for. */
static void test_traps(void **state)
{
    (void)state;
    const pack_spec s = make_spec();
    char *victim = path_join(dir, "victim");
    stw_write(dir, "victim", "kept", 4);
    assert_int_equal(symlink(victim, tmp), 0);
    no_writer(path, &s, "cannot create");
    assert_int_equal(unlink(tmp), 0);
    assert_int_equal(link(victim, tmp), 0);
    no_writer(path, &s, "not a file of its own");
    assert_int_equal(unlink(tmp), 0);
    assert_int_equal(mkfifo(tmp, 0600), 0);
    no_writer(path, &s, "x.pack.tmp");
    assert_int_equal(unlink(tmp), 0);
    assert_int_equal(mkdir(tmp, 0700), 0);
    no_writer(path, &s, "cannot create");
    assert_int_equal(rmdir(tmp), 0);
    struct stat sb;
    assert_int_equal(stat(victim, &sb), 0);
    assert_int_equal(sb.st_size, 4);
    assert_int_equal(unlink(victim), 0);
    mem_free(victim);
}

static void test_space(void **state)
{
    (void)state;
    static const uint64_t huge[3] = {UINT64_C(1) << 55, 1, 1};
    static const uint64_t over[3] = {UINT64_MAX - PACK_PAGE, PACK_PAGE, UINT64_MAX};
    pack_spec s = {.n_blobs = 3, .blob_bytes = huge};
    pack_file f;
    uint8_t page[PACK_PAGE] = {0};
    calla_error err;
    no_writer(path, &s, "free on its disk");
    assert_false(file_exists(tmp));
    s.blob_bytes = over;
    assert_true(pack_file_bytes(&s) == UINT64_MAX);
    no_writer(path, &s, "too large");
    assert_int_equal(pack_file_view(&f, page, sizeof page, &s, &err), CALLA_ERR_UNSUPPORTED);
}

/* Every write may fail: by a limit of the file's size, as on a full disk. */
static void test_write_fails(void **state)
{
    (void)state;
    const pack_spec s = make_spec();
    struct rlimit old, limit;
    calla_error err;
    must_write(path);
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    const uint64_t all = pack_file_bytes(&s);
    const uint64_t limits[] = {0, 1, PACK_PAGE, PACK_PAGE + 70000, 200000, all - 1, all};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        limit = old;
        limit.rlim_cur = (rlim_t)limits[i];
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        const calla_status st = write_pack(path, NULL, &err);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
        assert_int_equal(st, limits[i] == all ? CALLA_OK : CALLA_ERR_IO);
        if (st != CALLA_OK) assert_non_null(strstr(err.message, "cannot write"));
        assert_false(file_exists(tmp));
        assert_int_equal(read_pack(&s, NULL, &err), CALLA_OK); /* the old one, or the new one */
    }
    (void)signal(SIGXFSZ, SIG_DFL);
}

static void test_no_memory(void **state)
{
    (void)state;
    const pack_spec s = make_spec();
    calla_error err;
    calla_status st = CALLA_ERR_MEMORY;
    int n = 0;
    for (; st != CALLA_OK && n < 100; n++) {
        mem_fail_after(n);
        st = write_pack(path, NULL, &err);
        mem_fail_after(-1);
        if (st != CALLA_OK) assert_int_equal(st, CALLA_ERR_MEMORY);
        assert_false(file_exists(tmp));
    }
    assert_in_range(n, 4, 99);
    mem_fail_after(0);
    st = read_pack(&s, NULL, &err);
    mem_fail_after(-1);
    assert_int_equal(st, CALLA_ERR_MEMORY);
    assert_int_equal(read_pack(&s, NULL, &err), CALLA_OK);
    mem_fail_after(0);
    assert_null(pack_file_path("a", "b"));
    mem_fail_after(-1);
}

static void test_names(void **state)
{
    (void)state;
    char *a = pack_file_path("/cache", "/no/such/Qwen 3%\n"), *b = pack_file_path("c/", "/other/x");
    char *c = pack_file_path("c", "/other/y/../x"), *d = pack_file_path("c", dir);
    assert_int_equal(strncmp(a, "/cache/Qwen_3__-", 16), 0);
    assert_int_equal(strlen(a), 16 + 16 + 5);
    assert_int_equal(strncmp(b, "c/x-", 4), 0);
    assert_string_not_equal(b, c); /* there is nothing whose real path could be taken */
    assert_non_null(strstr(d, "calla-test-"));
    mem_free(a);
    mem_free(b);
    mem_free(c);
    mem_free(d);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(test_round_trip),   T(test_header_bytes), T(test_other_spec), T(test_cut),
        T(test_damaged_blob), T(test_sum),          T(test_one_writer), T(test_side_by_side),
        T(test_killed),       T(test_places),       T(test_traps),      T(test_space),
        T(test_write_fails),  T(test_no_memory),    T(test_names),
    };
#undef T
    return cmocka_run_group_tests(tests, NULL, NULL);
}
