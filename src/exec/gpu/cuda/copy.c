/* Ordered copies. Writes pass through a ring of pinned segments: the caller's memory is free at
 * once, the copy engine works at full speed, and while it empties one segment the next is filled.
 */
#include <string.h>
#include "base/mem.h"
#include "exec/gpu/cuda/cuda_dev.h"

#define PIECE_BYTES   ((size_t)256 << 10) /* of one segment, for one thread */
#define COPIERS_MAX   8u
#define COPIERS_AFTER ((uint64_t)4 << 20) /* writes up to this size need no threads */

calla_status cuda_copy_init(cuda_device *d, calla_error *err)
{
    calla_status st = CALLA_OK;
    void *p = NULL;
    CU(d, d->api.host_alloc(&p, (size_t)CUDA_SEGMENTS * CUDA_SEGMENT_BYTES, CU_HOST_PORTABLE),
       "making the ring of writes", err);
    d->ring = p;
    for (uint32_t i = 0; i < CUDA_SEGMENTS; i++) {
        d->segment[i].host = d->ring + (size_t)i * CUDA_SEGMENT_BYTES;
        CU(d, d->api.event_create(&d->segment[i].done, 0), "making an event", err);
    }
fail:
    return st;
}

void cuda_copy_deinit(cuda_device *d)
{
    pool_destroy(d->copiers);
    for (uint32_t i = 0; i < CUDA_SEGMENTS; i++)
        if (d->segment[i].done != NULL) d->api.event_destroy(d->segment[i].done);
    if (d->ring != NULL) d->api.host_free(d->ring);
}

/* ---- Filling a segment ---- */

typedef struct fill_job {
    uint8_t *to;
    const uint8_t *from;
    size_t bytes;
} fill_job;

static void fill_piece(void *ctx, uint32_t i_task, uint32_t i_thread)
{
    const fill_job *j = ctx;
    const size_t at = (size_t)i_task * PIECE_BYTES;
    const size_t n = j->bytes - at < PIECE_BYTES ? j->bytes - at : PIECE_BYTES;
    (void)i_thread;
    memcpy(j->to + at, j->from + at, n);
}

/* A mapped file comes in at the speed of page faults: several threads are as fast as the link. */
static void fill(cuda_device *d, uint8_t *to, const void *from, size_t bytes)
{
    if (d->copiers == NULL || bytes <= PIECE_BYTES) {
        memcpy(to, from, bytes);
        return;
    }
    fill_job j = {to, from, bytes};
    pool_run(d->copiers, fill_piece, &j, (uint32_t)((bytes + PIECE_BYTES - 1) / PIECE_BYTES));
}

/* Closes the current segment and opens the next one, when its last copies have ended. */
static calla_status next_segment(cuda_device *d, calla_error *err)
{
    calla_status st = CALLA_OK;
    cuda_segment *s = &d->segment[d->i_segment];
    CU(d, d->api.event_record(s->done, d->stream), "writing to its memory", err);
    s->busy = true;
    d->i_segment = (d->i_segment + 1) % CUDA_SEGMENTS;
    s = &d->segment[d->i_segment];
    if (s->busy) CU(d, d->api.event_sync(s->done), "writing to its memory", err);
    s->busy = false;
    s->used = 0;
fail:
    return st;
}

calla_status cuda_write(gpu_device *dev, gpu_view dst, const void *src, calla_error *err)
{
    cuda_device *d = (cuda_device *)dev;
    calla_status st = cuda_enter(d, err);
    if (st != CALLA_OK) return st;
    const uint8_t *from = src;
    cu_ptr to = dst.buf->ptr + dst.off;
    uint64_t left = dst.bytes;
    if (left > COPIERS_AFTER && d->copiers == NULL) {
        const uint32_t n = cpu_count();
        TRY(pool_create(&d->copiers, n < COPIERS_MAX ? n : COPIERS_MAX, err));
    }
    while (left > 0) {
        cuda_segment *s = &d->segment[d->i_segment];
        size_t n = CUDA_SEGMENT_BYTES - s->used;
        /* Large writes use whole segments, small ones are not cut. */
        if (left > n && s->used != 0) {
            TRY(next_segment(d, err));
            continue;
        }
        if (left < n) n = (size_t)left;
        fill(d, s->host + s->used, from, n);
        CU(d, d->api.copy(to, (cu_ptr)(uintptr_t)(s->host + s->used), n, d->stream),
           "writing to its memory", err);
        s->used += n + (~n + 1) % MEM_ALIGN;
        from += n;
        to += n;
        left -= n;
        if (s->used == CUDA_SEGMENT_BYTES) TRY(next_segment(d, err));
    }
fail:
    cuda_leave(d);
    return st;
}

calla_status cuda_zero(gpu_device *dev, gpu_view dst, calla_error *err)
{
    cuda_device *d = (cuda_device *)dev;
    calla_status st = cuda_enter(d, err);
    if (st != CALLA_OK) return st;
    CU(d, d->api.fill(dst.buf->ptr + dst.off, 0, (size_t)dst.bytes, d->stream),
       "clearing its memory", err);
fail:
    cuda_leave(d);
    return st;
}

calla_status cuda_copy(gpu_device *dev, gpu_view dst, gpu_view src, calla_error *err)
{
    cuda_device *d = (cuda_device *)dev;
    if (dst.bytes != src.bytes)
        return err_set(err, CALLA_ERR_INTERNAL, "a copy between views of different sizes");
    calla_status st = cuda_enter(d, err);
    if (st != CALLA_OK) return st;
    CU(d, d->api.copy(dst.buf->ptr + dst.off, src.buf->ptr + src.off, (size_t)dst.bytes, d->stream),
       "copying within its memory", err);
fail:
    cuda_leave(d);
    return st;
}

calla_status cuda_read(gpu_device *dev, void *dst, gpu_view src, calla_error *err)
{
    cuda_device *d = (cuda_device *)dev;
    calla_status st = cuda_enter(d, err);
    if (st != CALLA_OK) return st;
    CU(d, d->api.copy((cu_ptr)(uintptr_t)dst, src.buf->ptr + src.off, (size_t)src.bytes, d->stream),
       "reading its memory", err);
    CU(d, d->api.stream_sync(d->stream), "reading its memory", err);
    /* A failure that was reported is over: its tickets are known, and this may be another's data.
     */
    if (d->fail_last == 0) TRY(cuda_pending(d, d->last_ticket, err));
fail:
    cuda_leave(d);
    return st;
}
