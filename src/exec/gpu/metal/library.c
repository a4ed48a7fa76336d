/* From texts to pipelines, on as many threads as there are processors. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "exec/gpu/metal/metal_dev.h"

#define COMPILERS_MAX 8u
#define TEXT_MAX      ((uint64_t)16 << 20)
#define LOG_LINES     200u /* of a compiler, for each text */

/* ---- Texts ---- */

calla_status metal_texts_load(metal_device *d, calla_error *err)
{
    if (d->kernel_dir == NULL) return CALLA_OK;
    for (uint32_t i = 0; i < METAL_SOURCES; i++) {
        char name[64];
        size_t n;
        (void)snprintf(name, sizeof name, "%s.metal", metal_sources[i].name);
        char *path = path_join(d->kernel_dir, name);
        if (path == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for a path");
        const calla_status st = file_read(path, TEXT_MAX, &d->library[i].text, &n, err);
        mem_free(path);
        if (st != CALLA_OK) return st;
    }
    metal_say(d, CALLA_LOG_INFO, "GPU kernels are taken from %s", d->kernel_dir);
    return CALLA_OK;
}

const char *metal_text_of(const metal_device *d, uint32_t i)
{
    return d->library[i].text != NULL ? d->library[i].text : metal_sources[i].text;
}

/* ---- Libraries ---- */

/* The options of a family's compilation; to be released. */
static m_id make_options(const metal_device *d, const metal_source *s)
{
    const metal_api *a = &d->api;
    m_id allocated = SEND0(a, alloc, a->c.compile_options);
    m_id o = allocated != NULL ? SEND0(a, init, allocated) : NULL;
    if (o == NULL) return NULL;
    const metal_rung rung = s->has_tiles ? d->rung : METAL_RUNG_SCALAR;
    SEND(a, set_language, o, METAL_LANGUAGE(rung, d->os.major));
    if (d->os.major >= 15) {
        SEND(a, set_math, o, M_MATH_SAFE);
        SEND(a, set_functions, o, M_FUNCTIONS_PRECISE);
    } else {
        SEND(a, set_fast_math, o, false);
    }
    if (!s->has_tiles) return o;
    const char digits[2] = {(char)('0' + (int)rung), '\0'};
    m_id key = metal_string(a, "CALLA_RUNG"), value = metal_string(a, digits);
    m_id macros =
        key != NULL && value != NULL ? SEND(a, dictionary_with, a->c.dictionary, value, key) : NULL;
    if (macros == NULL) {
        metal_release(d, o);
        return NULL;
    }
    SEND(a, set_macros, o, macros);
    return o;
}

/* The first line of a compiler's log (may be NULL) that names an error, or its first line. */
static void first_error(const char *log, char *text, size_t bytes)
{
    if (log == NULL || *log == '\0') log = "no description";
    const char *p = strstr(log, "error:");
    if (p == NULL) p = log;
    while (p != log && p[-1] != '\n')
        p--;
    (void)snprintf(text, bytes, "%.*s", (int)strcspn(p, "\n"), p);
}

static void compile(void *ctx, uint32_t i, uint32_t i_thread)
{
    metal_device *d = ctx;
    metal_library *l = &d->library[i];
    const metal_source *s = &metal_sources[i];
    const metal_api *a = &d->api;
    char text[1024];
    m_id error = NULL;
    (void)i_thread;
    if (d->library_tried[i]) return;
    d->library_tried[i] = true;
    m_ptr ap = a->f.pool_push();
    m_id options = make_options(d, s);
    m_id string = metal_string(a, metal_text_of(d, i));
    if (options != NULL && string != NULL)
        l->library = SEND(a, new_library, d->device, string, options, &error);
    metal_release(d, options);
    if (l->library == NULL) {
        m_id words = error != NULL ? SEND0(a, error_text, error) : NULL;
        const char *log = words != NULL ? SEND0(a, utf8, words) : NULL;
        l->log = log != NULL ? mem_strdup(log) : NULL;
        first_error(log, text, sizeof text);
        err_set(&l->err, CALLA_ERR_UNSUPPORTED,
                "the GPU kernels \"%s\" (%s) cannot be compiled on this system: %s", s->name,
                s->has_tiles ? metal_rung_text(d->rung) : "no tiles", text);
    }
    a->f.pool_pop(ap);
}

static void *compile_all(void *p)
{
    metal_device *d = p;
    pool_run(d->compilers, compile, d, METAL_SOURCES);
    return NULL;
}

calla_status metal_libraries_start(metal_device *d, calla_error *err)
{
    if (d->compilers == NULL) {
        const uint32_t n = cpu_count();
        const calla_status st =
            pool_create(&d->compilers, n < COMPILERS_MAX ? n : COMPILERS_MAX, err);
        if (st != CALLA_OK) return st;
    }
    metal_libraries_join(d);
    d->is_compiling = pthread_create(&d->compiling, NULL, compile_all, d) == 0;
    if (!d->is_compiling) (void)compile_all(d);
    return CALLA_OK;
}

void metal_libraries_join(metal_device *d)
{
    if (!d->is_compiling) return;
    (void)pthread_join(d->compiling, NULL);
    d->is_compiling = false;
}

void metal_libraries_drop(metal_device *d, bool all)
{
    metal_libraries_join(d);
    /* Command buffers hold nothing: what they run must have ended. */
    (void)metal_reach(d, d->last_serial, true, NULL);
    if (d->hung) return;
    for (uint32_t k = 0; kernel_table[k].name != NULL; k++) {
        const uint32_t s = metal_source_of[k];
        if (s >= METAL_SOURCES || (!all && !metal_sources[s].has_tiles)) continue;
        metal_release(d, d->pipeline[k]);
        d->pipeline[k] = NULL;
    }
    for (uint32_t i = 0; i < METAL_SOURCES; i++) {
        if (!all && !metal_sources[i].has_tiles) continue;
        metal_release(d, d->library[i].library);
        d->library[i].library = NULL;
        d->library_tried[i] = false;
    }
}

/* ---- Pipelines ---- */

typedef struct pipeline_job {
    metal_device *d;
    uint32_t kernel[KERNEL_COUNT + 1]; /* [n] */
    uint32_t n;
    _Atomic uint32_t n_done;
    double said; /* when the progress was last told */
    pthread_mutex_t lock;
    calla_status st; /* the first failure */
    calla_error err;
} pipeline_job;

static m_id make_pipeline(metal_device *d, uint32_t k, m_id *error)
{
    const metal_api *a = &d->api;
    m_id pipeline = NULL, function = NULL;
    m_id allocated = SEND0(a, alloc, a->c.pipeline_descriptor);
    m_id descriptor = allocated != NULL ? SEND0(a, init, allocated) : NULL;
    m_id name = metal_string(a, kernel_table[k].name);
    if (name != NULL)
        function = SEND(a, new_function, d->library[metal_source_of[k]].library, name);
    if (descriptor != NULL && function != NULL) {
        SEND(a, set_function, descriptor, function);
        SEND(a, set_max_threads, descriptor, kernel_table[k].threads);
        SEND(a, set_whole_simdgroups, descriptor, true);
        pipeline = SEND(a, new_pipeline, d->device, descriptor, 0, NULL, error);
    }
    metal_release(d, function);
    metal_release(d, descriptor);
    return pipeline;
}

static calla_status check_pipeline(const metal_device *d, uint32_t k, m_id p, calla_error *err)
{
    const metal_api *a = &d->api;
    const char *name = kernel_table[k].name;
    const m_uint threads = SEND0(a, max_threads, p), width = SEND0(a, width, p);
    const m_uint bytes = SEND0(a, threadgroup_memory, p);
    if (width != 32)
        return err_set(err, CALLA_ERR_UNSUPPORTED,
                       "GPU kernel %s: simdgroups of %lu threads, expected 32", name, width);
    if (threads < kernel_table[k].threads)
        return err_set(err, CALLA_ERR_UNSUPPORTED,
                       "GPU kernel %s needs groups of %u threads, and %s allows it %lu", name,
                       kernel_table[k].threads, d->name, threads);
    if (bytes > METAL_THREADGROUP)
        return err_set(err, CALLA_ERR_UNSUPPORTED,
                       "GPU kernel %s takes %lu bytes of threadgroup memory, expected up to %u",
                       name, bytes, METAL_THREADGROUP);
    return CALLA_OK;
}

static calla_status pipeline_of(metal_device *d, uint32_t k, calla_error *err)
{
    const char *name = kernel_table[k].name;
    const uint32_t s = metal_source_of[k];
    char log[4096], text[1024];
    m_id error = NULL;
    if (s >= METAL_SOURCES)
        return err_set(err, CALLA_ERR_INTERNAL, "GPU kernel %s is not for Metal", name);
    if (d->library[s].library == NULL)
        return err_set(err, d->library[s].err.code, "%s", d->library[s].err.message);
    m_id p = make_pipeline(d, k, &error);
    if (p == NULL) {
        metal_error_text(&d->api, error, log, sizeof log);
        first_error(log, text, sizeof text);
        return err_set(err, CALLA_ERR_UNSUPPORTED,
                       "GPU kernel %s cannot be made ready on this system: %s", name, text);
    }
    const calla_status st = check_pipeline(d, k, p, err);
    if (st == CALLA_OK)
        d->pipeline[k] = p;
    else
        metal_release(d, p);
    return st;
}

static void make_one(void *ctx, uint32_t i, uint32_t i_thread)
{
    pipeline_job *j = ctx;
    metal_device *d = j->d;
    calla_error err;
    m_ptr ap = d->api.f.pool_push();
    const calla_status st = pipeline_of(d, j->kernel[i], &err);
    d->api.f.pool_pop(ap);
    const uint32_t n_done = atomic_fetch_add(&j->n_done, 1) + 1;
    if (st != CALLA_OK) {
        (void)pthread_mutex_lock(&j->lock);
        if (j->st == CALLA_OK) j->err = err;
        j->st = j->st == CALLA_OK ? st : j->st;
        (void)pthread_mutex_unlock(&j->lock);
    }
    /* Thread 0 is the caller's, and it alone may log. */
    if (i_thread != 0 || time_now() - j->said < 1.0) return;
    j->said = time_now();
    metal_say(d, CALLA_LOG_INFO, "compiling GPU kernels: %u of %u", n_done, j->n);
}

/* What the compiler said of libraries that it refused, once, line by line. */
static void tell_logs(metal_device *d)
{
    for (uint32_t i = 0; i < METAL_SOURCES; i++) {
        const char *p = d->library[i].log;
        for (uint32_t n = 0; p != NULL && *p != '\0' && n < LOG_LINES; n++) {
            const size_t k = strcspn(p, "\n");
            metal_say(d, CALLA_LOG_INFO, "%s: %.*s", metal_sources[i].name, (int)k, p);
            p += k + (p[k] == '\n');
        }
        mem_free(d->library[i].log);
        d->library[i].log = NULL;
    }
}

static void tell_pipeline(const metal_device *d, uint32_t k)
{
    const metal_api *a = &d->api;
    m_id p = d->pipeline[k];
    if (p == NULL) return;
    metal_say(d, CALLA_LOG_DEBUG,
              "GPU kernel %s: groups of %u threads, %lu at most, %lu bytes of threadgroup memory",
              kernel_table[k].name, kernel_table[k].threads, SEND0(a, max_threads, p),
              SEND0(a, threadgroup_memory, p));
}

calla_status metal_pipelines_make(metal_device *d, const bool *want, calla_error *err)
{
    pipeline_job j = {.d = d, .said = time_now(), .st = CALLA_OK};
    for (uint32_t k = 0; kernel_table[k].name != NULL; k++)
        if (want[k] && d->pipeline[k] == NULL) j.kernel[j.n++] = k;
    if (j.n == 0) return CALLA_OK;
    metal_libraries_join(d);
    tell_logs(d);
    const double t0 = time_now();
    (void)pthread_mutex_init(&j.lock, NULL);
    pool_run(d->compilers, make_one, &j, j.n);
    (void)pthread_mutex_destroy(&j.lock);
    metal_say(d, CALLA_LOG_DEBUG, "%u GPU kernels compiled in %.2f s", j.n, time_now() - t0);
    for (uint32_t i = 0; i < j.n && d->o.log != NULL; i++)
        tell_pipeline(d, j.kernel[i]);
    if (j.st == CALLA_OK) return CALLA_OK;
    return err_set(err, j.st, "%s", j.err.message);
}
