/* Buffers and ordered copies. Memory is one for both sides: small copies are the host's, once the
 * last command buffer that names the buffer has ended; large ones are the GPU's, in its order. */
#include <string.h>

#include "base/ck.h"
#include "base/mem.h"
#include "exec/gpu/metal/metal_dev.h"

static double gib(uint64_t bytes)
{
    return (double)bytes / (1024.0 * 1024.0 * 1024.0);
}

/* ---- Buffers ---- */

static calla_status check_room(metal_device *d, uint64_t bytes, const char *name, calla_error *err)
{
    uint64_t sum;
    if (bytes == 0) return err_set(err, CALLA_ERR_ARGUMENT, "a buffer for %s has no bytes", name);
    if (bytes > d->max_buffer)
        return err_set(err, CALLA_ERR_MEMORY,
                       "%s needs %.2f GiB in one buffer, and one of %s holds %.2f at most", name,
                       gib(bytes), d->name, gib(d->max_buffer));
    if (ck_add(d->used_bytes, bytes, &sum) && sum <= d->working_set) return CALLA_OK;
    return err_set(err, CALLA_ERR_MEMORY,
                   "%s has no room for %s: %.2f GiB in use + %.2f GiB = %.2f GiB, and the system "
                   "gives a program %.2f GiB",
                   d->name, name, gib(d->used_bytes), gib(bytes), gib(d->used_bytes) + gib(bytes),
                   gib(d->working_set));
}

/* b->buffer is set, or there is none. */
static calla_status enlist(metal_device *d, gpu_buffer *b, const char *name, gpu_buffer **out,
                           calla_error *err)
{
    const metal_api *a = &d->api;
    if (b->buffer != NULL) b->host = SEND0(a, contents, b->buffer);
    if (b->buffer == NULL || b->host == NULL) {
        metal_release(d, b->buffer);
        const uint64_t bytes = b->bytes;
        mem_free(b);
        return err_set(err, CALLA_ERR_MEMORY, "%s gives no buffer of %.2f GiB for %s", d->name,
                       gib(bytes), name);
    }
    m_id label = metal_string(a, name);
    if (label != NULL) SEND(a, set_label, b->buffer, label);
    metal_residency_add(d, b->buffer);
    d->used_bytes += b->bytes;
    *out = b;
    return CALLA_OK;
}

calla_status metal_buffer_create(gpu_device *dev, gpu_memory kind, uint64_t bytes, const char *name,
                                 gpu_buffer **out, calla_error *err)
{
    metal_device *d = metal_of(dev);
    m_ptr ap;
    *out = NULL;
    if (name == NULL) name = "a buffer";
    calla_status st = check_room(d, bytes, name, err);
    if (st != CALLA_OK) return st;
    gpu_buffer *b = mem_alloc(sizeof *b);
    if (b == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for a buffer");
    st = metal_enter(d, &ap, err);
    if (st != CALLA_OK) {
        mem_free(b);
        return st;
    }
    b->bytes = bytes;
    b->seen = kind == GPU_MEM_HOST;
    b->buffer =
        SEND(&d->api, new_buffer, d->device, (m_uint)bytes, (m_uint)(M_SHARED | M_UNTRACKED));
    st = enlist(d, b, name, out, err);
    metal_leave(d, ap);
    return st;
}

calla_status metal_buffer_map(gpu_device *dev, const void *host, uint64_t bytes, const char *name,
                              gpu_buffer **out, calla_error *err)
{
    metal_device *d = metal_of(dev);
    m_ptr ap;
    *out = NULL;
    if ((uintptr_t)host % d->page != 0)
        return err_set(err, CALLA_ERR_ARGUMENT, "%s does not begin at a page of %u bytes", name,
                       (unsigned)d->page);
    calla_status st = check_room(d, bytes, name, err);
    if (st != CALLA_OK) return st;
    gpu_buffer *b = mem_alloc(sizeof *b);
    if (b == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for a buffer");
    st = metal_enter(d, &ap, err);
    if (st != CALLA_OK) {
        mem_free(b);
        return st;
    }
    b->bytes = bytes;
    b->mapped = true;
    const m_uint whole = (m_uint)((bytes + d->page - 1) / d->page * d->page);
    b->buffer = SEND(&d->api, new_buffer_over, d->device, (m_ptr)(uintptr_t)host, whole,
                     (m_uint)(M_SHARED | M_UNTRACKED), NULL);
    st = enlist(d, b, name, out, err);
    metal_leave(d, ap);
    return st;
}

/* Also of a lost device. */
void metal_buffer_destroy(gpu_device *dev, gpu_buffer *b)
{
    metal_device *d = metal_of(dev);
    if (b == NULL) return;
    m_ptr ap = d->api.f.pool_push();
    /* Its command buffers hold nothing: they must have ended, not only signalled. */
    (void)metal_reach(d, b->last_serial, true, NULL);
    d->used_bytes -= b->bytes;
    if (!d->hung || b->last_serial <= d->reached) {
        metal_residency_remove(d, b->buffer);
        metal_release(d, b->buffer);
    }
    metal_leave(d, ap);
    mem_free(b);
}

/* ---- Copies ---- */

static calla_status check_view(gpu_view v, bool write, calla_error *err)
{
    if (v.buf == NULL || v.off > v.buf->bytes || v.bytes > v.buf->bytes - v.off)
        return err_set(err, CALLA_ERR_INTERNAL, "a copy outside its buffer");
    if (write && v.buf->mapped)
        return err_set(err, CALLA_ERR_INTERNAL, "a copy into memory that is only read");
    return CALLA_OK;
}

/* The host may touch the view when this has returned. */
static calla_status settle(metal_device *d, gpu_view v, bool write, calla_error *err)
{
    m_ptr ap;
    calla_status st = check_view(v, write, err);
    if (st == CALLA_OK) st = metal_enter(d, &ap, err);
    if (st != CALLA_OK) return st;
    st = metal_reach(d, v.buf->last_serial, false, err);
    metal_leave(d, ap);
    return st;
}

calla_status metal_write(gpu_device *dev, gpu_view dst, const void *src, calla_error *err)
{
    const calla_status st = settle(metal_of(dev), dst, true, err);
    if (st == CALLA_OK) memcpy(dst.buf->host + dst.off, src, (size_t)dst.bytes);
    return st;
}

/* By the GPU: src.buf NULL fills with zeros. */
static calla_status blit(metal_device *d, gpu_view dst, gpu_view src, calla_error *err)
{
    const metal_api *a = &d->api;
    m_ptr ap;
    m_id buffer;
    calla_status st = metal_enter(d, &ap, err);
    if (st != CALLA_OK) return st;
    TRY(metal_begin(d, &buffer, err));
    m_id e = SEND0(a, blit_encoder, buffer);
    if (e == NULL) {
        st = err_set(err, CALLA_ERR_DEVICE, "%s gives no encoder for copies", d->name);
        goto fail;
    }
    if (d->fence_used) SEND(a, blit_wait_fence, e, d->fence);
    if (src.buf != NULL)
        SEND(a, blit_copy, e, src.buf->buffer, (m_uint)src.off, dst.buf->buffer, (m_uint)dst.off,
             (m_uint)dst.bytes);
    else
        SEND(a, blit_fill, e, dst.buf->buffer, (m_range){(m_uint)dst.off, (m_uint)dst.bytes}, 0);
    SEND(a, blit_update_fence, e, d->fence);
    d->fence_used = true;
    SEND0(a, blit_end, e);
    metal_commit(d, buffer, metal_ticket_new(d));
    dst.buf->last_serial = d->last_serial;
    if (src.buf != NULL) src.buf->last_serial = d->last_serial;
fail:
    metal_leave(d, ap);
    return st;
}

static bool for_gpu(gpu_view v)
{
    return v.bytes >= METAL_BLIT_AFTER && v.off % 4 == 0 && v.bytes % 4 == 0;
}

calla_status metal_zero(gpu_device *dev, gpu_view dst, calla_error *err)
{
    metal_device *d = metal_of(dev);
    calla_status st = check_view(dst, true, err);
    if (st != CALLA_OK) return st;
    if (for_gpu(dst)) return blit(d, dst, (gpu_view){NULL, 0, 0}, err);
    st = settle(d, dst, true, err);
    if (st == CALLA_OK) memset(dst.buf->host + dst.off, 0, (size_t)dst.bytes);
    return st;
}

calla_status metal_copy(gpu_device *dev, gpu_view dst, gpu_view src, calla_error *err)
{
    metal_device *d = metal_of(dev);
    if (dst.bytes != src.bytes)
        return err_set(err, CALLA_ERR_INTERNAL, "a copy between views of different sizes");
    calla_status st = check_view(dst, true, err);
    if (st == CALLA_OK) st = check_view(src, false, err);
    if (st != CALLA_OK) return st;
    const bool overlap =
        dst.buf == src.buf && dst.off < src.off + src.bytes && src.off < dst.off + dst.bytes;
    if (for_gpu(dst) && for_gpu(src) && !overlap) return blit(d, dst, src, err);
    st = settle(d, dst, true, err);
    if (st == CALLA_OK) st = settle(d, src, false, err);
    if (st == CALLA_OK)
        memmove(dst.buf->host + dst.off, src.buf->host + src.off, (size_t)dst.bytes);
    return st;
}

calla_status metal_read(gpu_device *dev, void *dst, gpu_view src, calla_error *err)
{
    metal_device *d = metal_of(dev);
    m_ptr ap;
    calla_status st = check_view(src, false, err);
    if (st == CALLA_OK) st = metal_enter(d, &ap, err);
    if (st != CALLA_OK) return st;
    st = metal_reach(d, d->last_serial, false, err);
    /* A failure that was reported is over: its tickets are known. */
    if (st == CALLA_OK && d->fail_last == 0) st = metal_pending(d, d->last_ticket, err);
    metal_leave(d, ap);
    if (st == CALLA_OK) memcpy(dst, src.buf->host + src.off, (size_t)src.bytes);
    return st;
}
