/* Which matrix tiles this machine gets: the best that its chip and system can have and that
 * multiply right here. The outcome is kept, because finding it out compiles every kernel. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "exec/gpu/metal/metal_dev.h"
#include "exec/gpu/mm_check.h"

#define CACHE_NAME "metal-selfcheck"
#define CACHE_MAX  4096u

/* ---- The cache ---- */

bool metal_rung_key(const metal_device *d, metal_rung best, strbuf *key)
{
    uint64_t h = 0;
    for (uint32_t i = 0; i < METAL_SOURCES; i++) {
        const char *text = metal_text_of(d, i);
        h = hash64(text, strlen(text), h);
    }
    return strbuf_printf(key,
                         "calla %s, matrix tiles on Metal\nchip %s, %s\nsystem %s\n"
                         "sources %016llx\ntried %d\n",
                         CALLA_VERSION, d->name, d->architecture, d->system, (unsigned long long)h,
                         (int)best);
}

bool metal_rung_read(const char *key, const char *data, size_t n, metal_rung best, metal_rung *r)
{
    static const char word[] = "rung ";
    const size_t n_key = strlen(key), n_word = sizeof word - 1;
    if (n != n_key + n_word + 2 || memcmp(data, key, n_key) != 0 ||
        memcmp(data + n_key, word, n_word) != 0 || data[n - 1] != '\n')
        return false;
    const char digit = data[n - 2];
    if (digit < '0' || digit > (char)('0' + (int)best)) return false;
    *r = (metal_rung)(digit - '0');
    return true;
}

static bool has_cache(const metal_device *d)
{
    return d->cache_dir != NULL && strcmp(d->cache_dir, "none") != 0;
}

static bool cache_find(const metal_device *d, const char *key, metal_rung best, metal_rung *r)
{
    char *data = NULL;
    size_t n = 0;
    char *path = has_cache(d) ? path_join(d->cache_dir, CACHE_NAME) : NULL;
    const bool found = path != NULL && file_read(path, CACHE_MAX, &data, &n, NULL) == CALLA_OK &&
                       metal_rung_read(key, data, n, best, r);
    mem_free(data);
    mem_free(path);
    return found;
}

/* A convenience: what goes wrong is said, and the next start checks again. */
static void cache_keep(const metal_device *d, const char *key, metal_rung r)
{
    strbuf name = {0}, tmp = {0};
    if (!has_cache(d)) return;
    bool ok = strbuf_printf(&name, "%s/" CACHE_NAME, d->cache_dir) &&
              strbuf_printf(&tmp, "%s.%ld", name.data, (long)getpid()) &&
              folder_make_for(name.data, NULL) == CALLA_OK;
    FILE *f = ok ? fopen(tmp.data, "wb") : NULL;
    ok = f != NULL && fprintf(f, "%srung %d\n", key, (int)r) > 0;
    if (f != NULL && fclose(f) != 0) ok = false;
    if (ok && rename(tmp.data, name.data) != 0) ok = false;
    if (!ok) {
        metal_say(d, CALLA_LOG_WARN, "the outcome of the self-check is not kept in %s: %s",
                  d->cache_dir, strerror(errno));
        if (f != NULL) (void)remove(tmp.data);
    }
    strbuf_deinit(&name);
    strbuf_deinit(&tmp);
}

/* ---- The check ---- */

/* Everything compiles, and products are right at real shapes. */
static calla_status check_rung(metal_device *d, calla_error *err)
{
    bool all[KERNEL_COUNT + 1];
    mm_check_report report;
    m_ptr ap;
    for (uint32_t k = 0; k < KERNEL_COUNT; k++)
        all[k] = metal_source_of[k] < METAL_SOURCES;
    calla_status st = metal_libraries_start(d, err);
    if (st == CALLA_OK) st = metal_enter(d, &ap, err);
    if (st != CALLA_OK) return st;
    st = metal_pipelines_make(d, all, err);
    metal_leave(d, ap);
    if (st != CALLA_OK) return st;
    const double t0 = time_now();
    st = mm_check_run(&d->base, &(mm_check_options){.seed = 1, .n_max = d->o.check_tokens}, &report,
                      err);
    if (st == CALLA_OK)
        metal_say(d, CALLA_LOG_INFO, "%s: matrix products at real shapes are right (%.1f s)",
                  metal_rung_text(d->rung), time_now() - t0);
    return st;
}

static calla_status descend(metal_device *d, metal_rung best, calla_error *err)
{
    calla_status st = CALLA_OK;
    for (int r = (int)best; r >= METAL_RUNG_SCALAR; r--) {
        d->rung = (metal_rung)r;
        d->rates = metal_rates_of(d->chip, d->rung);
        metal_libraries_drop(d, false);
        st = check_rung(d, err);
        if (st == CALLA_OK) break;
        if (st != CALLA_ERR_UNSUPPORTED && st != CALLA_ERR_DEVICE) return st;
        if (d->lost) return st;
        metal_say(d, CALLA_LOG_WARN, "%s: not used on this machine: %s", metal_rung_text(d->rung),
                  err->message);
    }
    if (st != CALLA_OK) return err_prefix(err, st, "no kind of matrix tiles works on %s", d->name);
    return st;
}

calla_status metal_rung_choose(metal_device *d, calla_error *err)
{
    metal_rung best = metal_best_rung(d->generation, d->phone, d->os);
    calla_error local;
    strbuf key = {0};
    calla_status st = CALLA_OK;
    if (err == NULL) err = &local;
    if (d->o.trust && d->o.max_rung >= 0) best = (metal_rung)d->o.max_rung;
    if (d->o.max_rung >= 0 && d->o.max_rung < (int32_t)best) best = (metal_rung)d->o.max_rung;
    d->rung = best;
    if (d->o.trust) return metal_libraries_start(d, err);
    if (!metal_rung_key(d, best, &key)) {
        st = err_set(err, CALLA_ERR_MEMORY, "no memory for the self-check");
    } else if (cache_find(d, key.data, best, &d->rung)) {
        d->checked = true;
        st = metal_libraries_start(d, err);
    } else {
        /* A warning, because it takes a minute or two in which nothing else is said. */
        metal_say(d, CALLA_LOG_WARN,
                  "first start on this system: compiling and checking every GPU kernel");
        st = descend(d, best, err);
        d->checked = st == CALLA_OK;
        if (st == CALLA_OK) cache_keep(d, key.data, d->rung);
    }
    strbuf_deinit(&key);
    return st;
}
