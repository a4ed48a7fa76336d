/* Loading weights into a GPU: the pack file of the demonstration model, and the plan of memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <utime.h>

#include <cmocka.h>

#include "exec/gpu/gpu.h"
#include "exec/gpu/pack_file.h"
#include "support/st_writer.h"

#define MODEL_DIR "models/nano"
#define LINES_MAX 8

/* Changes with the layout: then PACK_VERSION counts up, and this is what the test found. */
#define NANO_SUM UINT64_C(0x3bf5017fe9a00312)

static char *dir; /* a copy of the model, so that it can be touched; packs in it as well */
static checkpoint *ck;
static model_shape shape;
static model_weights weights;
static gpu_device *dev;

static struct {
    char line[LINES_MAX][1024];
    calla_log_level level[LINES_MAX];
    int n;
} lines;

static void on_line(void *user, calla_log_level level, const char *line)
{
    (void)user;
    if (lines.n == LINES_MAX) return;
    (void)snprintf(lines.line[lines.n], sizeof lines.line[0], "%s", line);
    lines.level[lines.n++] = level;
}

static void open_model(void)
{
    calla_error err;
    if (checkpoint_open(&ck, dir, &err) != CALLA_OK ||
        shape_read(&shape, checkpoint_config(ck), NULL, &err) != CALLA_OK ||
        weights_bind(&weights, ck, &shape, &err) != CALLA_OK)
        fail_msg("%s", err.message);
}

static void close_model(void)
{
    weights_unbind(&weights);
    checkpoint_close(ck);
}

/* ---- a device that reads the host's memory ---- */

static gpu_ops mapping_ops;
static const gpu_ops *simt;
static struct {
    gpu_buffer *buf;
    const uint8_t *host;
    uint64_t bytes;
} maps[64];
static uint32_t n_maps, n_mapped;

static calla_status map_buffer(gpu_device *d, const void *host, uint64_t bytes, const char *name,
                               gpu_buffer **out, calla_error *err)
{
    const uint8_t *p = host;
    volatile uint8_t last;
    assert_int_equal((uintptr_t)p % (uintptr_t)sysconf(_SC_PAGESIZE), 0);
    last = p[(bytes + PACK_PAGE - 1) / PACK_PAGE * PACK_PAGE - 1];
    (void)last;
    calla_status st = simt->buffer_create(d, GPU_MEM_DEVICE, bytes, name, out, err);
    if (st != CALLA_OK) return st;
    st = simt->write(d, (gpu_view){*out, 0, bytes}, host, err);
    for (uint32_t i = 0; i < 64; i++)
        if (maps[i].buf == NULL) {
            maps[i].buf = *out;
            maps[i].host = p;
            maps[i].bytes = bytes;
            break;
        }
    n_maps++;
    n_mapped++;
    return st;
}

/* What was mapped is still there, and the same. */
static void unmap_buffer(gpu_device *d, gpu_buffer *b)
{
    for (uint32_t i = 0; i < 64; i++) {
        if (maps[i].buf != b) continue;
        uint8_t *now = malloc((size_t)maps[i].bytes);
        assert_non_null(now);
        assert_int_equal(simt->read(d, now, (gpu_view){b, 0, maps[i].bytes}, NULL), CALLA_OK);
        assert_memory_equal(now, maps[i].host, (size_t)maps[i].bytes);
        free(now);
        maps[i].buf = NULL;
        n_maps--;
    }
    simt->buffer_destroy(d, b);
}

static int set_up(void **state)
{
    (void)state;
    static const char *const names[] = {"model.safetensors", "config.json"};
    calla_error err;
    dir = stw_mkdir();
    for (size_t i = 0; i < 2; i++) {
        char *from = path_join(MODEL_DIR, names[i]), *data;
        size_t n;
        if (file_read(from, 1u << 26, &data, &n, &err) != CALLA_OK) fail_msg("%s", err.message);
        stw_write(dir, names[i], data, n);
        mem_free(data);
        mem_free(from);
    }
    open_model();
    const gpu_simt_options o = {.threads = 1};
    if (gpu_simt_create(&dev, &o, &err) != CALLA_OK) fail_msg("%s", err.message);
    lines.n = 0;
    return 0;
}

static exec_options options(void)
{
    return (exec_options){
        .n_threads = 2, .pack_dir = dir, .source = ck, .log = on_line, .chunk_tokens = 64};
}

static exec_pack look(void)
{
    const exec_options o = options();
    exec_pack p;
    calla_error err;
    assert_int_equal(exec_gpu_pack(&p, &shape, &o, &err), CALLA_OK);
    return p;
}

static int tear_down(void **state)
{
    (void)state;
    exec_pack p = look();
    (void)unlink(p.path);
    mem_free(p.path);
    close_model();
    dev->ops->destroy(dev);
    stw_rmdir(dir); /* nothing else is there */
    return 0;
}

static int set_up_mapping(void **state)
{
    (void)set_up(state);
    simt = dev->ops;
    mapping_ops = *simt;
    mapping_ops.buffer_map = map_buffer;
    mapping_ops.buffer_destroy = unmap_buffer;
    dev->ops = &mapping_ops;
    n_mapped = 0;
    return 0;
}

static int tear_down_mapping(void **state)
{
    assert_int_equal(n_maps, 0);
    assert_true(n_mapped != 0);
    return tear_down(state);
}

/* All blobs as they are on the device. */
static uint8_t *image(const gpu_weights *w)
{
    uint8_t *all = mem_alloc((size_t)w->bytes), *p = all;
    calla_error err;
    for (uint32_t i = 0; i < w->n_bufs; i++) {
        const uint64_t n = dev->ops->buffer_bytes(w->bufs[i]);
        assert_int_equal(dev->ops->read(dev, p, (gpu_view){w->bufs[i], 0, n}, &err), CALLA_OK);
        p += n;
    }
    assert_int_equal(p - all, w->bytes);
    return all;
}

static uint8_t *load(const exec_options *o)
{
    gpu_weights w;
    calla_error err;
    lines.n = 0;
    if (gpu_weights_load(&w, dev, &shape, &weights, o, &err) != CALLA_OK)
        fail_msg("%s", err.message);
    uint8_t *all = image(&w);
    gpu_weights_free(&w, dev);
    return all;
}

static void check_load(const uint8_t *want, calla_log_level level, const char *first,
                       const char *last)
{
    const exec_options o = options();
    uint8_t *got = load(&o);
    assert_memory_equal(got, want, (size_t)gpu_weights_bytes(&shape));
    mem_free(got);
    assert_int_equal(lines.n, first == last ? 1 : 2);
    assert_int_equal(lines.level[0], level);
    if (strstr(lines.line[0], first) == NULL)
        fail_msg("expected %s, found %s", first, lines.line[0]);
    if (strstr(lines.line[lines.n - 1], last) == NULL)
        fail_msg("expected %s, found %s", last, lines.line[lines.n - 1]);
}

static uint8_t *load_fresh(void)
{
    exec_options o = options();
    o.pack_dir = NULL;
    uint8_t *fresh = load(&o);
    assert_int_equal(lines.n, 0);
    return fresh;
}

static void change_file(const char *path, uint64_t at)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)at, SEEK_SET), 0);
    const int c = fgetc(f);
    assert_int_equal(fseek(f, (long)at, SEEK_SET), 0);
    assert_int_equal(fputc(c ^ 4, f), c ^ 4);
    assert_int_equal(fclose(f), 0);
}

static void test_cache(void **state)
{
    (void)state;
    static const char kept[] = "packed weights kept in", read[] = "packed weights read from";
    uint8_t *fresh = load_fresh();
    exec_pack p = look();
    assert_false(p.usable);
    assert_int_equal(p.why.code, CALLA_ERR_IO);
    check_load(fresh, CALLA_LOG_INFO, kept, kept);
    check_load(fresh, CALLA_LOG_INFO, read, read);
    mem_free(p.path);
    p = look();
    assert_true(p.usable);
    struct stat sb;
    assert_int_equal(stat(p.path, &sb), 0);
    assert_int_equal(sb.st_size, p.bytes);

    change_file(p.path, p.bytes - 20000); /* in the last layer */
    check_load(fresh, CALLA_LOG_WARN, "the checksum of blob 8 of 9 differs", kept);
    check_load(fresh, CALLA_LOG_INFO, read, read);
    assert_int_equal(truncate(p.path, (off_t)p.bytes / 2), 0);
    check_load(fresh, CALLA_LOG_WARN, "cut short", kept);
    assert_int_equal(truncate(p.path, 0), 0);
    check_load(fresh, CALLA_LOG_WARN, "cut short", kept);
    change_file(p.path, 12);
    check_load(fresh, CALLA_LOG_INFO, "another version", kept);
    change_file(p.path, 100);
    check_load(fresh, CALLA_LOG_WARN, "damaged header", kept);
    mem_free(p.path);
    shape.rope_theta *= 2.0f;
    p = look();
    assert_false(p.usable);
    assert_non_null(strstr(p.why.message, "another shape"));
    mem_free(p.path);
    shape.rope_theta /= 2.0f;
    check_load(fresh, CALLA_LOG_INFO, read, read);

    exec_options none = options();
    none.pack_dir = "none";
    assert_int_equal(exec_gpu_pack(&p, &shape, &none, NULL), CALLA_ERR_ARGUMENT);
    mem_free(load(&none));
    assert_int_equal(lines.n, 0);
    mem_free(fresh);
}

/* Another layout must not pass for this one. Where the pack has values of exp and pow, whose last
 * bits are the system's, both are 1 here. */
static void test_version(void **state)
{
    (void)state;
    static const float zeros[1024];
    assert_in_range(shape.gdn_v_heads, 1, 1024);
    for (uint32_t i = 0; i < shape.n_layers; i++)
        weights.layers[i].a_log = zeros;
    shape.rope_theta = 1.0f;
    uint8_t *fresh = load_fresh();
    const uint64_t sum = pack_sum(NULL, fresh, gpu_weights_bytes(&shape));
    if (sum != NANO_SUM)
        fail_msg("the layout is another (0x%016llx): count PACK_VERSION up",
                 (unsigned long long)sum);
    mem_free(fresh);
}

static void test_other_checkpoint(void **state)
{
    (void)state;
    uint8_t *fresh = load_fresh();
    check_load(fresh, CALLA_LOG_INFO, "kept in", "kept in");
    char *file = path_join(dir, "model.safetensors");
    const struct utimbuf t = {1700000000, 1700000000};
    close_model();
    assert_int_equal(utime(file, &t), 0);
    open_model();
    check_load(fresh, CALLA_LOG_INFO, "another checkpoint", "kept in");
    check_load(fresh, CALLA_LOG_INFO, "read from", "read from");
    const checkpoint_identity a = checkpoint_identify(ck);
    close_model();
    change_file(file, 60); /* a letter of a name in the header: its time is put back */
    assert_int_equal(utime(file, &t), 0);
    calla_error err;
    if (checkpoint_open(&ck, dir, &err) == CALLA_OK) {
        const checkpoint_identity b = checkpoint_identify(ck);
        assert_true(a.hash[0] != b.hash[0] && a.hash[1] != b.hash[1]);
        checkpoint_close(ck);
    }
    change_file(file, 60);
    open_model();
    mem_free(file);
    mem_free(fresh);
}

/* Two processes at once: both load; one file. */
static void test_two_processes(void **state)
{
    (void)state;
    uint8_t *fresh = load_fresh();
    const exec_options o = options();
    pid_t pids[2];
    for (int i = 0; i < 2; i++) {
        pids[i] = fork();
        if (pids[i] != 0) continue;
        uint8_t *got = load(&o);
        _exit(memcmp(got, fresh, (size_t)gpu_weights_bytes(&shape)) != 0);
    }
    for (int i = 0; i < 2; i++) {
        int status;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_int_equal(status, 0);
    }
    check_load(fresh, CALLA_LOG_INFO, "read from", "read from");
    mem_free(fresh);
}

/* What goes wrong with the file never keeps the model from loading. */
static void test_no_file(void **state)
{
    (void)state;
    static const char *const places[] = {"/dev/full", "/dev/null/x", "/dev/full/a/b"};
    uint8_t *fresh = load_fresh();
    exec_options o = options();
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        o.pack_dir = places[i];
        uint8_t *got = load(&o);
        assert_memory_equal(got, fresh, (size_t)gpu_weights_bytes(&shape));
        mem_free(got);
        assert_int_equal(lines.n, 1);
        assert_int_equal(lines.level[0], CALLA_LOG_WARN);
        assert_non_null(strstr(lines.line[0], "packed weights are not kept"));
    }
    mem_free(fresh);
}

/* Every allocation may fail: with a file there, and without one. */
static void test_no_memory(void **state)
{
    (void)state;
    const exec_options o = options();
    uint8_t *fresh = load_fresh();
    for (int with = 0; with < 2; with++) {
        calla_status st = CALLA_ERR_MEMORY;
        int n = 0;
        for (; st != CALLA_OK && n < 200; n++) {
            gpu_weights w;
            calla_error err;
            mem_fail_after(n);
            st = gpu_weights_load(&w, dev, &shape, &weights, &o, &err);
            mem_fail_after(-1);
            if (st == CALLA_OK) {
                uint8_t *got = image(&w);
                assert_memory_equal(got, fresh, (size_t)gpu_weights_bytes(&shape));
                mem_free(got);
            } else {
                assert_int_equal(st, CALLA_ERR_MEMORY);
                assert_null(w.bufs);
            }
            gpu_weights_free(&w, dev);
        }
        assert_in_range(n, 10, 199);
        exec_pack p = look();
        if (!p.usable) mem_free(load(&o));
        mem_free(p.path);
    }
    mem_free(fresh);
}

/* ---- progress ---- */

typedef struct steps {
    size_t n, done, stop_at;
} steps;

static bool on_step(void *user, size_t done, size_t total)
{
    steps *s = user;
    assert_true(done > s->done && done <= total);
    assert_int_equal(total, gpu_weights_bytes(&shape));
    s->done = done;
    return ++s->n != s->stop_at;
}

static void test_progress(void **state)
{
    (void)state;
    exec_options o = options();
    o.progress = on_step;
    for (size_t stop = 3; stop < 4; stop--) { /* 3 .. 0, then SIZE_MAX */
        for (int k = 0; k < 2; k++) {
            steps s = {.stop_at = stop};
            gpu_weights w;
            calla_error err;
            o.progress_user = &s;
            const calla_status st = gpu_weights_load(&w, dev, &shape, &weights, &o, &err);
            assert_int_equal(st, stop == 0 ? CALLA_OK : CALLA_ERR_CANCELLED);
            assert_int_equal(s.n, stop == 0 ? shape.n_layers + 1 : stop);
            if (stop == 0) assert_int_equal(s.done, gpu_weights_bytes(&shape));
            gpu_weights_free(&w, dev);
        }
    }
    exec_pack p = look(); /* written by the last but one, read by the last */
    assert_true(p.usable);
    mem_free(p.path);
}

/* ---- memory ---- */

static calla_status create(executor **ex, uint64_t memory, uint32_t n_ctx, calla_error *err)
{
    const gpu_simt_options so = {.threads = 1, .memory_bytes = memory};
    exec_options o = options();
    gpu_device *d;
    assert_int_equal(gpu_simt_create(&d, &so, err), CALLA_OK);
    o.n_ctx = n_ctx;
    o.pack_dir = NULL;
    return gpu_exec_create(ex, d, &shape, &weights, &o, err);
}

static void test_memory(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {0, 1, 1000, 32768};
    calla_error err;
    executor *ex;
    exec_seq *seq, *more;
    exec_plan p;
    assert_int_equal(create(&ex, 0, 0, &err), CALLA_OK); /* the emulator's own plan */
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const uint32_t n = lengths[i] == 0 ? 4096 : lengths[i];
        ex->ops->plan(ex, n, &p);
        assert_int_equal(p.weight_bytes, gpu_weights_bytes(&shape));
        const uint64_t sum = p.weight_bytes + p.scratch_bytes + p.kv_bytes + p.state_bytes;
        executor *small;
        char words[64];
        assert_int_equal(create(&small, sum - 1, lengths[i], &err), CALLA_ERR_MEMORY);
        (void)snprintf(words, sizeof words, "a sequence of %u tokens = %.2f GiB", n,
                       (double)sum / 1073741824.0);
        if (strstr(err.message, words) == NULL)
            fail_msg("expected %s, found %s", words, err.message);
        if (create(&small, sum, lengths[i], &err) != CALLA_OK) fail_msg("%s", err.message);
        if (small->ops->seq_create(small, n, &seq, &err) != CALLA_OK) fail_msg("%s", err.message);
        assert_int_equal(small->ops->seq_create(small, 1, &more, &err), CALLA_ERR_MEMORY);
        assert_non_null(strstr(err.message, "not enough GPU memory for a sequence of 1 tokens"));
        small->ops->seq_destroy(small, seq);
        small->ops->destroy(small);
    }
    ex->ops->destroy(ex);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
#define M(f) cmocka_unit_test_setup_teardown(f, set_up_mapping, tear_down_mapping)
    const struct CMUnitTest tests[] = {
        T(test_cache),
        T(test_version),
        T(test_other_checkpoint),
        T(test_two_processes),
        T(test_no_file),
        T(test_no_memory),
        T(test_progress),
        T(test_memory),
        M(test_cache),
        M(test_other_checkpoint),
        M(test_two_processes),
        M(test_no_memory),
        M(test_progress),
        cmocka_unit_test_setup_teardown(test_no_file, set_up_mapping, tear_down),
    };
#undef T
#undef M
    return cmocka_run_group_tests(tests, NULL, NULL);
}
