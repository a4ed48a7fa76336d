#include "check/ceilings.h"

#include "base/mem.h"
#include "exec/gpu/ops.h"
#include "kernels/args_util.h"

#define ROUND_BYTES 16384u /* that a group of util_read reads in a round */
#define REPS        5

typedef struct bed {
    gpu_device *d;
    recorder *rec;
    gpu_buffer *buf, *out;
    uint64_t bytes, out_bytes;
    calla_error *err;
} bed;

/* The fastest of a few submissions of what the recorder holds, in seconds. */
static calla_status time_recorded(bed *b, double *best)
{
    gpu_recording r;
    gpu_program *p = NULL;
    calla_status st;
    *best = 0.0;
    TRY(rec_finish(b->rec, false, &r, b->err));
    TRY(b->d->ops->program_create(b->d, &r, false, &p, b->err));
    for (int i = 0; i < REPS; i++) {
        uint64_t ticket;
        double s = 0.0;
        TRY(b->d->ops->submit(b->d, p, &ticket, b->err));
        TRY(b->d->ops->wait(b->d, ticket, &s, b->err));
        if (i == 0 || s < *best) *best = s;
    }
fail:
    if (p != NULL) b->d->ops->program_destroy(b->d, p);
    rec_reset(b->rec);
    return st;
}

/* One dispatch of `groups` groups that reads n_rounds rounds at `at` and writes place `to`. */
static void add_read(bed *b, uint32_t groups, uint32_t n_rounds, uint64_t at, uint64_t to)
{
    const util_read_args a = {n_rounds};
    const uint64_t n = n_rounds == 0 ? 16 : (uint64_t)groups * n_rounds * ROUND_BYTES;
    rec_dispatch(b->rec, KERNEL_util_read, groups, 1);
    rec_read(b->rec, (gpu_view){b->buf, at, n});
    rec_write(b->rec, (gpu_view){b->out, to, (uint64_t)groups * 4});
    rec_args(b->rec, &a, sizeof a);
    rec_cost(b->rec, (double)n, 0.0);
}

static calla_status time_stages(bed *b, uint32_t n, uint32_t groups, bool dependent, double *each)
{
    const uint64_t step = ((uint64_t)groups * 4 + 255) / 256 * 256;
    for (uint32_t i = 0; i < n; i++) /* to one place: each waits for the one before */
        add_read(b, groups, 0, 0, dependent ? 0 : i % (b->out_bytes / step) * step);
    const calla_status st = time_recorded(b, each);
    *each /= n;
    return st;
}

static calla_status time_reads(bed *b, uint64_t bytes, double *rate)
{
    uint32_t n = (uint32_t)(b->bytes / bytes);
    const uint64_t rounds = bytes / ROUND_BYTES;
    const uint32_t n_rounds = rounds >= 2048 ? 8 : rounds >= 512 ? 2 : 1;
    const uint32_t groups = (uint32_t)(rounds / n_rounds);
    if (n > 64) n = 64;
    double s = 0.0;
    for (uint32_t i = 0; i < n; i++)
        add_read(b, groups, n_rounds, (uint64_t)i * bytes, 0);
    const calla_status st = time_recorded(b, &s);
    *rate = s > 0.0 ? (double)groups * n_rounds * ROUND_BYTES * n / s : 0.0;
    return st;
}

calla_status gpu_ceilings_measure(gpu_device *d, bool small, gpu_ceilings *out, calla_error *err)
{
    static const uint32_t groups[CEILING_GROUPS] = {1, 8, 64, 1024};
    static const uint64_t reads[CEILING_READS] = {39, 288, 576, 16384}; /* rounds */
    const uint64_t scale = small ? 64 : 1;
    const uint32_t n = small ? 20 : 500;
    bed b = {.d = d, .err = err, .out_bytes = small ? 1 << 16 : 1 << 22};
    calla_status st;
    b.bytes = (small ? 8 : 1) * reads[CEILING_READS - 1] / scale * ROUND_BYTES;
    TRY(recorder_create(&b.rec, d, err));
    TRY(d->ops->buffer_create(d, GPU_MEM_DEVICE, b.bytes, "to be read", &b.buf, err));
    TRY(d->ops->buffer_create(d, GPU_MEM_DEVICE, b.out_bytes, "sums", &b.out, err));
    TRY(d->ops->zero(d, (gpu_view){b.buf, 0, b.bytes}, err));
    TRY(d->ops->zero(d, (gpu_view){b.out, 0, b.out_bytes}, err));
    for (uint32_t i = 0; i < CEILING_GROUPS; i++) {
        out->groups[i] = groups[i] > 64 && small ? 64 : groups[i];
        TRY(time_stages(&b, n, out->groups[i], true, &out->dependent[i]));
        TRY(time_stages(&b, n, out->groups[i], false, &out->independent[i]));
    }
    for (uint32_t i = 0; i < CEILING_READS; i++) {
        const uint64_t rounds = reads[i] / scale > 0 ? reads[i] / scale : 1;
        out->bytes[i] = rounds * ROUND_BYTES;
        TRY(time_reads(&b, out->bytes[i], &out->read[i]));
    }
fail:
    if (b.buf != NULL) d->ops->buffer_destroy(d, b.buf);
    if (b.out != NULL) d->ops->buffer_destroy(d, b.out);
    recorder_destroy(b.rec);
    return st;
}

/* ---- Products ---- */

#define BLOCK_WORDS 65536u

/* Fills v with words of which all bits but those of `keep` are drawn: they are `set`. The power
 * that a product takes, and so its speed, depends on its values. */
static calla_status fill(gpu_device *d, gpu_view v, uint32_t keep, uint32_t set, calla_error *err)
{
    uint32_t *w = mem_array(BLOCK_WORDS, sizeof *w);
    uint64_t rng = v.bytes + set;
    calla_status st = CALLA_OK;
    if (w == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for values");
    for (uint32_t i = 0; i < BLOCK_WORDS; i++) {
        rng = rng * 6364136223846793005ull + 1442695040888963407ull;
        w[i] = ((uint32_t)(rng >> 32) & ~keep) | set;
    }
    for (uint64_t at = 0; at < v.bytes && st == CALLA_OK; at += 4ull * BLOCK_WORDS) {
        const uint64_t n = v.bytes - at;
        st = d->ops->write(d, gpu_sub(v, at, n < 4ull * BLOCK_WORDS ? n : 4ull * BLOCK_WORDS), w,
                           err);
    }
    mem_free(w);
    return st;
}

/* The real model's widths, which the scratch of products is measured by. */
static const model_shape real_shape = {.hidden = 2048,
                                       .n_heads = 16,
                                       .n_kv_heads = 2,
                                       .head_dim = 256,
                                       .gdn_k_heads = 16,
                                       .gdn_v_heads = 32,
                                       .gdn_k_dim = 128,
                                       .gdn_v_dim = 128,
                                       .n_experts = 256,
                                       .n_experts_used = 8,
                                       .expert_width = 512,
                                       .shared_width = 512};

calla_status gpu_product_measure(gpu_device *d, bool small, gpu_product *out, calla_error *err)
{
    gpu_product p = {.n = small ? 32 : 4096, .rows = small ? 64 : 8192, .cols = small ? 256 : 4096};
    const uint64_t weights = (uint64_t)p.rows * p.cols;
    gpu_limits lim;
    bed b = {.d = d, .err = err};
    uint64_t used = 0;
    double seconds = 0.0;
    calla_status st;
    d->ops->limits(d, &lim);
    TRY(recorder_create(&b.rec, d, err));
    gpu_context g = {
        .rec = b.rec, .shape = &real_shape, .n_cores = lim.n_cores, .native_mm = lim.native_mm};
    const uint64_t sizes[] = {weights / 2, weights / 16, 2ull * p.n * p.cols, 4ull * p.n * p.rows,
                              op_mm_scratch(&g, p.n)};
    gpu_view v[5];
    for (int i = 0; i < 5; i++)
        (void)gpu_carve(NULL, &used, sizes[i]);
    TRY(d->ops->buffer_create(d, GPU_MEM_DEVICE, used, "a product", &b.buf, err));
    used = 0;
    for (int i = 0; i < 5; i++)
        v[i] = gpu_carve(b.buf, &used, sizes[i]);
    TRY(fill(d, v[0], 0, 0, err));
    TRY(fill(d, v[1], 0xff80ff80u, 0xbd803c00u, err)); /* scale +, bias -: weights around 0 */
    TRY(fill(d, v[2], 0x7f807f80u, 0x3f003f00u, err)); /* between 0.5 and 1, of either sign */
    const gpu_q4 w = {v[0], v[1], p.rows, p.cols};
    if (sizes[4] != 0) g.mm = v[4];
    op_gemm(&g, p.n, v[2], &w, false, v[3]);
    TRY(time_recorded(&b, &seconds));
    p.flops = seconds > 0.0 ? 2.0 * (double)weights * p.n / seconds : 0.0;
    *out = p;
fail:
    if (b.buf != NULL) d->ops->buffer_destroy(d, b.buf);
    recorder_destroy(b.rec);
    return st;
}
