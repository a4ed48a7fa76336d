/* Command buffers on their way, and what became of them. */
#include <string.h>

#include "exec/gpu/metal/metal_dev.h"

#define SLICE_MS 20u /* a failed command buffer signals nothing: its status is asked so often */

/* ---- Failures ---- */

void metal_note_failure(metal_device *d, uint64_t ticket, const calla_error *err)
{
    if (d->fail_first != 0 && d->fail_last == 0) return;
    d->fail_first = ticket;
    d->fail_last = 0;
    d->fail_error = *err;
}

calla_status metal_pending(metal_device *d, uint64_t ticket, calla_error *err)
{
    if (d->fail_first == 0 || ticket < d->fail_first) return CALLA_OK;
    if (d->fail_last == 0) d->fail_last = d->last_ticket;
    if (ticket > d->fail_last) return CALLA_OK;
    return err_set(err, d->fail_error.code, "%s", d->fail_error.message);
}

static const char *words(m_int code)
{
    switch (code) {
    case M_ERROR_INTERNAL:
        return "an internal error of the driver";
    case M_ERROR_TIMEOUT:
        return "it took too long and was ended by the system";
    case M_ERROR_PAGE_FAULT:
        return "a kernel reached for memory that is not there";
    case M_ERROR_REVOKED:
        return "the system keeps this program from the GPU after repeated faults; start it again";
    case M_ERROR_NOT_PERMITTED:
        return "this program may not use the GPU now (it is in the background)";
    case M_ERROR_MEMORY:
        return "there was not enough memory; close other programs or ask for a shorter context";
    case M_ERROR_RESOURCE:
        return "a buffer was not valid any more";
    case M_ERROR_REMOVED:
        return "the GPU is gone";
    case M_ERROR_STACK:
        return "a kernel's stack overflowed";
    default:
        return "an error without a name";
    }
}

/* The fence of work that failed may never be updated. */
static calla_status renew_fence(metal_device *d, calla_error *err)
{
    m_id fence = SEND0(&d->api, new_fence, d->device);
    if (fence == NULL) return err_set(err, CALLA_ERR_DEVICE, "%s gives no fence", d->name);
    metal_release(d, d->fence);
    d->fence = fence;
    d->fence_used = d->fence_stale = false;
    return CALLA_OK;
}

static void failed(metal_device *d, const metal_flight *f)
{
    const metal_api *a = &d->api;
    char text[256];
    calla_error e;
    m_id error = SEND0(a, buffer_error, f->buffer);
    const m_int code = error != NULL ? SEND0(a, error_code, error) : 0;
    metal_error_text(a, error, text, sizeof text);
    err_set(&e, CALLA_ERR_DEVICE, "%s failed while running a program: %s (Metal error %ld: %s)",
            d->name, words(code), code, text);
    if (code == M_ERROR_REVOKED || code == M_ERROR_REMOVED) d->lost = true;
    metal_note_failure(d, f->ticket, &e);
    d->fence_stale = true;
    metal_say(d, CALLA_LOG_INFO, "%s", e.message);
}

static calla_status hung(metal_device *d, const metal_flight *f, calla_error *err)
{
    calla_error e;
    err_set(&e, CALLA_ERR_DEVICE,
            "%s has not finished a command buffer in %u seconds and is given up", d->name,
            d->o.timeout_s);
    metal_note_failure(d, f->ticket, &e);
    d->lost = d->hung = true;
    return err_set(err, e.code, "%s", e.message);
}

/* ---- Waiting ---- */

/* Until the command buffer has signalled or failed. */
static calla_status await(metal_device *d, const metal_flight *f, calla_error *err)
{
    const metal_api *a = &d->api;
    const double until = time_now() + d->o.timeout_s;
    while (SEND0(a, signaled_value, d->event) < f->serial &&
           !SEND(a, wait_signaled, d->event, f->serial, SLICE_MS)) {
        const m_uint status = SEND0(a, status, f->buffer);
        if (status == M_STATUS_ERROR || status == M_STATUS_COMPLETED) break;
        if (time_now() > until) return hung(d, f, err);
    }
    return CALLA_OK;
}

/* The oldest one has signalled or failed: its outcome and time. */
static void collect_oldest(metal_device *d)
{
    const metal_api *a = &d->api;
    const metal_flight f = d->flight[0];
    SEND0(a, wait_completed, f.buffer);
    if (SEND0(a, status, f.buffer) != M_STATUS_COMPLETED) {
        failed(d, &f);
    } else {
        metal_ticket *t = &d->ticket[f.ticket % METAL_TICKETS];
        const double s = SEND0(a, gpu_end, f.buffer) - SEND0(a, gpu_start, f.buffer);
        if (t->ticket == f.ticket && s > 0) t->seconds += s;
    }
    metal_release(d, f.buffer);
    d->n_flight--;
    memmove(d->flight, d->flight + 1, d->n_flight * sizeof *d->flight);
    if (f.serial > d->reached) d->reached = f.serial;
}

calla_status metal_reach(metal_device *d, uint64_t serial, bool collect, calla_error *err)
{
    const metal_api *a = &d->api;
    if (serial <= d->reached && !collect) return CALLA_OK;
    while (d->n_flight > 0 && d->flight[0].serial <= serial) {
        const metal_flight *f = &d->flight[0];
        if (d->hung) return metal_gone(d, err);
        const calla_status st = await(d, f, err);
        if (st != CALLA_OK) return st;
        /* Only a command buffer without a fault signals its own value, so the last one need not
         * be asked; a later value says nothing of it. */
        if (!collect && f->serial == serial && SEND0(a, signaled_value, d->event) == serial) {
            d->reached = serial;
            return CALLA_OK;
        }
        collect_oldest(d);
    }
    return CALLA_OK;
}

calla_status metal_wait(gpu_device *dev, uint64_t ticket, double *seconds, calla_error *err)
{
    metal_device *d = metal_of(dev);
    m_ptr ap;
    if (seconds != NULL) *seconds = 0;
    if (ticket == 0 || ticket > d->last_ticket)
        return err_set(err, CALLA_ERR_ARGUMENT, "there was no submission %llu",
                       (unsigned long long)ticket);
    /* A device that was lost on the way still tells what became of this ticket. */
    calla_status st = d->lost ? metal_pending(d, ticket, err) : CALLA_OK;
    if (st == CALLA_OK) st = metal_enter(d, &ap, err);
    if (st != CALLA_OK) return st;
    const metal_ticket *t = &d->ticket[ticket % METAL_TICKETS];
    if (t->ticket == ticket) st = metal_reach(d, t->serial, seconds != NULL, err);
    if (st == CALLA_OK) st = metal_pending(d, ticket, err);
    if (st == CALLA_OK && seconds != NULL && t->ticket == ticket) *seconds = t->seconds;
    metal_leave(d, ap);
    return st;
}

/* ---- Starting ---- */

calla_status metal_begin(metal_device *d, m_id *buffer, calla_error *err)
{
    *buffer = NULL;
    calla_status st = CALLA_OK;
    /* Nothing new runs beside what is left of work that failed. */
    while (st == CALLA_OK && (d->n_flight == METAL_FLIGHT || (d->fence_stale && d->n_flight > 0)))
        st = metal_reach(d, d->flight[0].serial, true, err);
    if (st == CALLA_OK && d->lost) st = metal_gone(d, err);
    if (st == CALLA_OK && d->fence_stale) st = renew_fence(d, err);
    if (st != CALLA_OK) return st;
    metal_residency_use(d);
    *buffer = SEND0(&d->api, command_buffer, d->queue);
    if (*buffer != NULL) return CALLA_OK;
    return err_set(err, CALLA_ERR_DEVICE, "%s gives no command buffer", d->name);
}

void metal_commit(metal_device *d, m_id buffer, uint64_t ticket)
{
    const metal_api *a = &d->api;
    metal_flight *f = &d->flight[d->n_flight++];
    *f = (metal_flight){buffer, ++d->last_serial, ticket};
    (void)SEND0(a, retain, buffer);
    SEND(a, signal_event, buffer, d->event, f->serial);
    SEND0(a, commit, buffer);
    metal_ticket *t = &d->ticket[ticket % METAL_TICKETS];
    if (t->ticket == ticket) t->serial = f->serial;
}

uint64_t metal_ticket_new(metal_device *d)
{
    const uint64_t t = ++d->last_ticket;
    d->ticket[t % METAL_TICKETS] = (metal_ticket){t, d->last_serial, 0};
    return t;
}
