/* fuzz_pack.c - any bytes as a pack file. The first byte decides how: odd, the rest is the file;
 * even, the rest changes a good file, three bytes a change (two of the place, one to exclusive-or),
 * and the header's checksum is made right again, so that what lies behind it is met. */
#include "base/hash.h"
#include "exec/gpu/pack_file.h"
#include "support/st_writer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define N_BLOBS 3u
static const uint64_t sizes[N_BLOBS] = {5000, PACK_PAGE, 1};
static const pack_spec spec = {
    .source = {1, 2}, .dims = {3, 4}, .n_blobs = N_BLOBS, .blob_bytes = sizes};
static uint8_t *good;
static size_t n_good;

static void make_good(void)
{
    uint8_t blob[PACK_PAGE] = {7};
    calla_error err;
    pack_writer *w;
    char *dir = stw_mkdir(), *path = path_join(dir, "x.pack");
    if (pack_writer_open(&w, path, &spec, &err) != CALLA_OK) fail_msg("%s", err.message);
    for (uint32_t i = 0; i < N_BLOBS; i++)
        assert_int_equal(pack_writer_blob(w, i, NULL, blob, &err), CALLA_OK);
    assert_int_equal(pack_writer_commit(w, &err), CALLA_OK);
    pack_writer_destroy(w);
    assert_int_equal(file_read(path, 1u << 20, (char **)(void *)&good, &n_good, &err), CALLA_OK);
    (void)unlink(path);
    (void)rmdir(dir);
    mem_free(path);
    mem_free(dir);
}

typedef struct seen {
    uint64_t n;
    unsigned sum;
} seen;

/* All bytes that are given out have to be readable. */
static calla_status on_part(void *user, uint64_t off, const uint8_t *data, uint64_t n,
                            calla_error *err)
{
    seen *s = user;
    (void)err;
    if (off != s->n) abort();
    for (uint64_t k = 0; k < n; k++)
        s->sum += data[k];
    s->n += n;
    return CALLA_OK;
}

/* How many of the blobs are whole. */
static uint32_t check(const uint8_t *data, size_t n)
{
    pack_file f;
    calla_error err = {0};
    uint32_t n_whole = 0;
    const calla_status st = pack_file_view(&f, data, n, &spec, &err);
    if (st != err.code || (st != CALLA_OK && err.message[0] == '\0')) abort();
    for (uint32_t i = 0; i < N_BLOBS && st == CALLA_OK; i++) {
        seen s = {0, 0};
        n_whole += pack_file_blob(&f, i, NULL, on_part, &s, &err) == CALLA_OK;
        if (s.n != sizes[i] || s.sum == ~0u) abort();
    }
    if (st == CALLA_OK && n != pack_file_bytes(&spec)) abort();
    return n_whole;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (good == NULL) {
        make_good();
        if (check(good, n_good) != N_BLOBS) abort();
    }
    if (size == 0) return 0;
    if (data[0] % 2 == 1) {
        (void)check(data + 1, size - 1);
        return 0;
    }
    uint8_t *changed = (uint8_t *)mem_memdup(good, n_good);
    assert_non_null(changed);
    for (size_t i = 1; i + 3 <= size; i += 3)
        changed[(data[i] + 256u * data[i + 1]) % n_good] ^= data[i + 2];
    const uint64_t sum = hash64(changed, PACK_PAGE - 8, PACK_VERSION);
    memcpy(changed + PACK_PAGE - 8, &sum, 8);
    (void)check(changed, n_good);
    mem_free(changed);
    return 0;
}
