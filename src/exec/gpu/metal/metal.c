/* The Metal driver: device, limits, creation. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "exec/gpu/metal/metal_dev.h"

/* ---- Inside every operation ---- */

calla_status metal_gone(metal_device *d, calla_error *err)
{
    if (d->fail_first != 0 && d->fail_last == 0) return metal_pending(d, d->last_ticket, err);
    return err_set(err, CALLA_ERR_DEVICE, "%s failed before and must be opened again", d->name);
}

calla_status metal_enter(metal_device *d, m_ptr *ap, calla_error *err)
{
    *ap = NULL;
    if (d->lost) return metal_gone(d, err);
    *ap = d->api.f.pool_push();
    return CALLA_OK;
}

void metal_leave(metal_device *d, m_ptr ap)
{
    d->api.f.pool_pop(ap);
}

void metal_release(const metal_device *d, m_id object)
{
    if (object != NULL) SEND0(&d->api, release, object);
}

void metal_say(const metal_device *d, calla_log_level level, const char *fmt, ...)
{
    char line[1024];
    va_list ap;
    if (d->o.log == NULL) return;
    va_start(ap, fmt);
    (void)vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    d->o.log(d->o.log_user, level, line);
}

/* ---- Heat ---- */

static const char *heat_words(int state)
{
    static const char *const words[] = {"nominal", "fair", "serious", "critical"};
    return state >= 0 && state <= M_THERMAL_CRITICAL ? words[state] : "unknown";
}

void metal_watch_heat(metal_device *d)
{
    const double t = time_now();
    if (t - d->heat_at < 1.0) return;
    d->heat_at = t;
    const int now = (int)SEND0(&d->api, thermal_state, d->process);
    if (now == d->thermal) return;
    if (now >= M_THERMAL_SERIOUS || d->thermal >= M_THERMAL_SERIOUS)
        metal_say(d, CALLA_LOG_WARN, "the machine's thermal state is %s: %s", heat_words(now),
                  now >= M_THERMAL_SERIOUS ? "the GPU is slowed down" : "back to full speed");
    d->thermal = now;
}

/* ---- Limits ---- */

static void limits(gpu_device *dev, gpu_limits *out)
{
    metal_device *d = metal_of(dev);
    m_ptr ap;
    memset(out, 0, sizeof *out);
    out->n_cores = d->chip->n_cores;
    out->native_mm = d->rung == METAL_RUNG_TENSOR4 ? GPU_MM_CODES : GPU_MM_TILES;
    out->total_bytes = d->working_set;
    out->dispatch_flops = METAL_PART_SECONDS * d->rates.flops_s;
    (void)snprintf(out->name, sizeof out->name, "%s, %s", d->name, metal_rung_text(d->rung));
    if (d->lost || metal_enter(d, &ap, NULL) != CALLA_OK) return;
    const uint64_t allocated = SEND0(&d->api, allocated, d->device);
    const uint64_t used = allocated > d->used_bytes ? allocated : d->used_bytes;
    out->free_bytes = used < d->working_set ? d->working_set - used : 0;
    const int heat = (int)SEND0(&d->api, thermal_state, d->process);
    const bool low = SEND0(&d->api, low_power, d->process);
    (void)snprintf(out->name, sizeof out->name, "%s, %s%s%s%s", d->name, metal_rung_text(d->rung),
                   heat != M_THERMAL_NOMINAL ? ", thermal state " : "",
                   heat != M_THERMAL_NOMINAL ? heat_words(heat) : "",
                   low ? ", low power mode" : "");
    metal_leave(d, ap);
}

static void inject_failure(gpu_device *dev, uint32_t n)
{
    metal_of(dev)->inject = n;
}

static bool is_lost(const gpu_device *dev)
{
    return ((const metal_device *)dev)->lost;
}

static uint64_t buffer_bytes(const gpu_buffer *b)
{
    return b->bytes;
}

static void *buffer_host(gpu_buffer *b)
{
    return b->seen ? b->host : NULL;
}

/* ---- Destruction ---- */

static void release_all(metal_device *d)
{
    metal_libraries_drop(d, true);
    metal_residency_stop(d);
    if (d->hung) return; /* what its work may still use stays */
    metal_release(d, d->event);
    metal_release(d, d->fence);
    metal_release(d, d->queue);
    metal_release(d, d->device);
}

static void destroy(gpu_device *dev)
{
    metal_device *d = metal_of(dev);
    if (d == NULL) return;
    if (d->api.f.pool_push != NULL && d->api.m.release.send != NULL) {
        m_ptr ap = d->api.f.pool_push();
        release_all(d);
        metal_leave(d, ap);
    }
    pool_destroy(d->compilers);
    for (uint32_t i = 0; i < METAL_SOURCES; i++) {
        mem_free(d->library[i].text);
        mem_free(d->library[i].log);
    }
    mem_free(d->cache_dir);
    mem_free(d->kernel_dir);
    mem_free(d);
}

static const gpu_ops metal_ops = {
    .name = "metal",
    .destroy = destroy,
    .limits = limits,
    .buffer_create = metal_buffer_create,
    .buffer_destroy = metal_buffer_destroy,
    .buffer_map = metal_buffer_map,
    .buffer_bytes = buffer_bytes,
    .buffer_host = buffer_host,
    .write = metal_write,
    .zero = metal_zero,
    .copy = metal_copy,
    .read = metal_read,
    .program_create = metal_program_create,
    .program_destroy = metal_program_destroy,
    .submit = metal_submit,
    .wait = metal_wait,
    .profile = metal_profile,
    .inject_failure = inject_failure,
    .lost = is_lost,
};

/* ---- Creation ---- */

/* The version by questions, because the answer as a struct would come back in another way. A
 * program that was linked for an older system is told 16 for 26. */
static void find_system(metal_device *d)
{
    const metal_api *a = &d->api;
    uint32_t major = 10, minor = 0;
    while (major < 99 && SEND(a, os_at_least, d->process, (m_version){(long)major + 1, 0, 0}))
        major++;
    while (minor < 99 &&
           SEND(a, os_at_least, d->process, (m_version){(long)major, (long)minor + 1, 0}))
        minor++;
    d->os = (metal_os){major == 16 ? 26 : major, minor};
    metal_text(a, SEND0(a, os_text, d->process), d->system, sizeof d->system);
}

static m_id any_device(const metal_device *d)
{
    const metal_api *a = &d->api;
    m_id found = a->f.default_device();
    if (found != NULL) return found;
    m_id list = a->f.copy_devices();
    if (list != NULL && SEND0(a, array_count, list) > 0) {
        found = SEND(a, array_at, list, 0);
        if (found != NULL) found = SEND0(a, retain, found);
    }
    metal_release(d, list);
    return found;
}

static calla_status find_device(metal_device *d, calla_error *err)
{
    const metal_api *a = &d->api;
    d->process = SEND0(a, process, a->c.process_info);
    if (d->process == NULL)
        return err_set(err, CALLA_ERR_UNSUPPORTED, "the system does not say what it is");
    find_system(d);
    if (d->os.major < 14)
        return err_set(err, CALLA_ERR_UNSUPPORTED, "Metal needs macOS 14 or newer, found %u.%u",
                       d->os.major, d->os.minor);
    d->device = any_device(d);
    if (d->device == NULL)
        return err_set(err, CALLA_ERR_UNSUPPORTED, "Metal finds no GPU on this machine");
    metal_text(a, SEND0(a, device_name, d->device), d->name, sizeof d->name);
    m_id architecture = SEND0(a, architecture, d->device);
    metal_text(a, architecture != NULL ? SEND0(a, architecture_name, architecture) : NULL,
               d->architecture, sizeof d->architecture);
    if (!SEND(a, supports_family, d->device, M_FAMILY_APPLE7) ||
        !SEND0(a, unified_memory, d->device))
        return err_set(err, CALLA_ERR_UNSUPPORTED,
                       "calla needs a GPU of an Apple M1 or newer, found %s", d->name);
    d->chip = metal_chip_find(d->name, d->architecture);
    d->generation = metal_generation(d->architecture, &d->phone);
    if (d->generation == 0 && SEND(a, supports_family, d->device, M_FAMILY_APPLE10))
        d->generation = 17;
    return CALLA_OK;
}

static calla_status find_limits(metal_device *d, calla_error *err)
{
    const metal_api *a = &d->api;
    d->max_buffer = SEND0(a, max_buffer, d->device);
    d->working_set = SEND0(a, working_set, d->device);
    d->page = (uint64_t)sysconf(_SC_PAGESIZE);
    const m_uint bytes = SEND0(a, max_threadgroup_memory, d->device);
    if (bytes < METAL_THREADGROUP)
        return err_set(err, CALLA_ERR_UNSUPPORTED,
                       "%s has %lu bytes of threadgroup memory, expected %u", d->name, bytes,
                       METAL_THREADGROUP);
    return CALLA_OK;
}

static calla_status make_queue(metal_device *d, calla_error *err)
{
    const metal_api *a = &d->api;
    d->queue = SEND0(a, new_queue, d->device);
    d->fence = SEND0(a, new_fence, d->device);
    d->event = SEND0(a, new_event, d->device);
    if (d->queue == NULL || d->fence == NULL || d->event == NULL)
        return err_set(err, CALLA_ERR_DEVICE, "%s gives no command queue", d->name);
    return metal_residency_start(d, err);
}

static void introduce(metal_device *d)
{
    const metal_api *a = &d->api;
    d->thermal = (int)SEND0(a, thermal_state, d->process);
    metal_say(d, CALLA_LOG_INFO,
              "%s (%s, macOS %u.%u), %.1f GiB for a program, thermal state %s, low power mode %s",
              d->name, d->architecture, d->os.major, d->os.minor,
              (double)d->working_set / (1024.0 * 1024.0 * 1024.0), heat_words(d->thermal),
              SEND0(a, low_power, d->process) ? "on" : "off");
}

/* What the options leave open. */
static calla_status take_options(metal_device *d, const gpu_metal_options *o, calla_error *err)
{
    const char *rung = getenv("CALLA_METAL_RUNG");
    metal_rung r;
    d->o = *o;
    if (d->o.framework == NULL) d->o.framework = getenv("CALLA_METAL_FRAMEWORK");
    if (d->o.kernel_dir == NULL) d->o.kernel_dir = getenv("CALLA_KERNEL_DIR");
    if (d->o.timeout_s == 0) d->o.timeout_s = METAL_TIMEOUT;
    if (d->o.max_rung >= METAL_RUNGS)
        return err_set(err, CALLA_ERR_ARGUMENT, "there is no rung %d", (int)d->o.max_rung);
    if (d->o.max_rung < 0 && rung != NULL) {
        if (!metal_rung_parse(rung, &r))
            return err_set(err, CALLA_ERR_ARGUMENT,
                           "CALLA_METAL_RUNG must be scalar, simdgroup, tensor or tensor4, found "
                           "\"%s\"",
                           rung);
        d->o.max_rung = (int32_t)r;
        d->o.trust = true;
    }
    if (o->cache_dir != NULL) d->cache_dir = mem_strdup(o->cache_dir);
    if (d->o.kernel_dir != NULL) d->kernel_dir = mem_strdup(d->o.kernel_dir);
    if ((o->cache_dir != NULL && d->cache_dir == NULL) ||
        (d->o.kernel_dir != NULL && d->kernel_dir == NULL))
        return err_set(err, CALLA_ERR_MEMORY, "no memory for the GPU driver");
    return CALLA_OK;
}

static calla_status create_in_pool(metal_device *d, calla_error *err)
{
    calla_status st;
    TRY(find_device(d, err));
    TRY(find_limits(d, err));
    TRY(make_queue(d, err));
    introduce(d);
    TRY(metal_texts_load(d, err));
    TRY(metal_rung_choose(d, err));
    d->rates = metal_rates_of(d->chip, d->rung);
    metal_say(d, CALLA_LOG_INFO, "matrix tiles: %s%s", metal_rung_text(d->rung),
              d->checked ? "" : ", not checked");
fail:
    return st;
}

calla_status gpu_metal_create(gpu_device **out, const gpu_metal_options *o, calla_error *err)
{
    *out = NULL;
    metal_device *d = mem_alloc(sizeof *d);
    if (d == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for the GPU driver");
    d->base.ops = &metal_ops;
    calla_status st = take_options(d, o, err);
    if (st == CALLA_OK) st = metal_api_open(&d->api, d->o.framework, err);
    if (st == CALLA_OK) {
        m_ptr ap = d->api.f.pool_push();
        st = create_in_pool(d, err);
        metal_leave(d, ap);
    }
    if (st != CALLA_OK) {
        destroy(&d->base);
        return st;
    }
    *out = &d->base;
    return CALLA_OK;
}
