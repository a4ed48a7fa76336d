/* What stays in memory. The system takes the pages of idle buffers away after a while, and the
 * first token after a pause would wait for them: as long as the last use is not
 * METAL_KEEP_ALIVE seconds ago, a thread asks for them again and again. Residency sets are macOS
 * 15's; before, Metal itself keeps what a command buffer binds. */
#include <string.h>
#include <time.h>

#include "exec/gpu/metal/metal_dev.h"

static uint64_t now_ms(void)
{
    return (uint64_t)(time_now() * 1e3);
}

/* Sleeps for a beat, or, when the device is idle, until it is used again. */
static void doze(metal_residency *r)
{
    if (now_ms() - atomic_load(&r->last_use_ms) > (uint64_t)(METAL_KEEP_ALIVE * 1e3)) {
        (void)pthread_cond_wait(&r->wake, &r->lock);
        return;
    }
    struct timespec t;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    t.tv_nsec += (long)(METAL_BEAT * 1e9);
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    (void)pthread_cond_timedwait(&r->wake, &r->lock, &t);
}

static void *beat(void *p)
{
    metal_device *d = p;
    metal_residency *r = &d->residency;
    (void)pthread_mutex_lock(&r->lock);
    while (!r->stop) {
        doze(r);
        if (r->stop) break;
        m_ptr ap = d->api.f.pool_push();
        SEND0(&d->api, request_residency, r->set);
        d->api.f.pool_pop(ap);
    }
    (void)pthread_mutex_unlock(&r->lock);
    return NULL;
}

calla_status metal_residency_start(metal_device *d, calla_error *err)
{
    const metal_api *a = &d->api;
    metal_residency *r = &d->residency;
    char text[256];
    m_id error = NULL;
    if (d->os.major < 15 || a->c.residency_descriptor == NULL) return CALLA_OK;
    m_id allocated = SEND0(a, alloc, a->c.residency_descriptor);
    m_id descriptor = allocated != NULL ? SEND0(a, init, allocated) : NULL;
    if (descriptor != NULL) {
        SEND(a, set_capacity, descriptor, 1024);
        r->set = SEND(a, new_residency, d->device, descriptor, &error);
    }
    metal_error_text(a, error, text, sizeof text);
    metal_release(d, descriptor);
    if (r->set == NULL)
        return err_set(err, CALLA_ERR_DEVICE, "%s gives no residency set (%s)", d->name, text);
    SEND(a, add_residency_set, d->queue, r->set);
    atomic_store(&r->last_use_ms, now_ms());
    (void)pthread_mutex_init(&r->lock, NULL);
    (void)pthread_cond_init(&r->wake, NULL);
    r->running = pthread_create(&r->thread, NULL, beat, d) == 0;
    if (!r->running) metal_say(d, CALLA_LOG_WARN, "no thread keeps the weights in memory");
    return CALLA_OK;
}

void metal_residency_stop(metal_device *d)
{
    metal_residency *r = &d->residency;
    if (r->set == NULL) return;
    if (r->running) {
        (void)pthread_mutex_lock(&r->lock);
        r->stop = true;
        (void)pthread_cond_signal(&r->wake);
        (void)pthread_mutex_unlock(&r->lock);
        (void)pthread_join(r->thread, NULL);
    }
    (void)pthread_cond_destroy(&r->wake);
    (void)pthread_mutex_destroy(&r->lock);
    if (d->hung) return;
    SEND0(&d->api, end_residency, r->set);
    SEND(&d->api, remove_residency_set, d->queue, r->set);
    metal_release(d, r->set);
    r->set = NULL;
}

void metal_residency_add(metal_device *d, m_id buffer)
{
    metal_residency *r = &d->residency;
    if (r->set == NULL) return;
    (void)pthread_mutex_lock(&r->lock);
    SEND(&d->api, add_allocation, r->set, buffer);
    r->dirty = true;
    (void)pthread_mutex_unlock(&r->lock);
}

/* Committed at once: until then the set holds the buffer. */
void metal_residency_remove(metal_device *d, m_id buffer)
{
    metal_residency *r = &d->residency;
    if (r->set == NULL) return;
    (void)pthread_mutex_lock(&r->lock);
    SEND(&d->api, remove_allocation, r->set, buffer);
    SEND0(&d->api, commit_set, r->set);
    r->dirty = false;
    (void)pthread_mutex_unlock(&r->lock);
}

void metal_residency_use(metal_device *d)
{
    metal_residency *r = &d->residency;
    if (r->set == NULL) return;
    const uint64_t now = now_ms(), last = atomic_exchange(&r->last_use_ms, now);
    const bool idle = now - last > (uint64_t)(METAL_KEEP_ALIVE * 1e3);
    if (!r->dirty && !idle) return; /* only this thread makes it dirty */
    (void)pthread_mutex_lock(&r->lock);
    if (r->dirty) SEND0(&d->api, commit_set, r->set);
    r->dirty = false;
    SEND0(&d->api, request_residency, r->set);
    (void)pthread_cond_signal(&r->wake);
    (void)pthread_mutex_unlock(&r->lock);
}
