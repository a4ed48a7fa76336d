#include "check/ceilings.h"

#include "exec/gpu/recorder.h"
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
