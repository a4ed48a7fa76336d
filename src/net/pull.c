#include "net/pull.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/time.h>
#include <unistd.h>
#include "base/file.h"
#include "base/json.h"
#include "base/pool.h"
#include "base/sha.h"
#include "net/disk.h"
#include "net/part.h"

#define SPAN_BLOCKS_MIN 4u /* of one request, when there are as many */
#define SPAN_BLOCKS_MAX 256u
#define WRONG_MAX       3u   /* answers that contradict the listing, for one range */
#define PAUSE_MAX       30.0 /* seconds */
#define RETRY_AFTER_MAX 600.0
#define PIECE_BYTES     ((uint64_t)2 << 20) /* of one write: see format/residence.h */
#define PIECE_BLOCKS    ((uint32_t)(PIECE_BYTES / PART_BLOCK))
#define PIECE_SECONDS   4.0 /* that a piece may take to come; then it is written as it is */
#define MARK_SECONDS    1.0 /* with PIECE_SECONDS: what a sudden end costs */
#define SPARE_BYTES     ((uint64_t)64 << 20)

typedef struct file {
    hub_file *meta;
    part part;
    bool open;    /* part is */
    bool in_step; /* to be fetched and checked now */
    bool whole;   /* the server takes no ranges: only from the beginning to the end */
    bool taken;   /* whole, and somebody does */
    bool wrong;   /* was, when complete */
} file;

typedef struct pull {
    const pull_options *o;
    store_place place;
    hub_listing listing;
    file *files; /* one for each of listing */
    size_t n_files;
    calla_error err; /* of the first failure */

    pthread_mutex_t mutex; /* guards what follows, and the blocks of all parts */
    pthread_cond_t changed;
    uint32_t n_workers;
    bool failed, again;
    char note[600];
    size_t next_check; /* file that no checker has taken */

    atomic_bool stop;        /* failed or cancelled: everybody ends */
    atomic_bool reached;     /* the endpoint has answered once */
    _Atomic uint64_t coming; /* bytes that came and are not in a map yet */
    _Atomic uint64_t fetched, hashed;
} pull;

/* ---- Failing, waiting --------------------------------------------------------------------- */

static void set_failed(pull *p, const calla_error *err, bool again)
{
    pthread_mutex_lock(&p->mutex);
    if (!p->failed) {
        p->failed = true;
        p->again = again;
        p->err = *err;
    }
    atomic_store(&p->stop, true);
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->mutex);
}

static bool cancelled(const pull *p)
{
    return p->o->cancel && atomic_load(p->o->cancel);
}

static bool stopping(const pull *p)
{
    return atomic_load(&p->stop) || cancelled(p);
}

static void nap(double seconds)
{
    struct timeval tv = {.tv_sec = (time_t)seconds,
                         .tv_usec = (suseconds_t)((seconds - floor(seconds)) * 1e6)};
    (void)select(0, NULL, NULL, NULL, &tv);
}

/* The pause before the n-th try again (from 1); a note says why. */
static void pause_before(pull *p, uint32_t n, double retry_after, const char *why)
{
    double seconds = p->o->retry_seconds * ldexp(1, n < 16 ? (int)n - 1 : 15);
    seconds = fmin(seconds, PAUSE_MAX);
    /* Connections that failed together come back apart. */
    const uint32_t jitter = (uint32_t)((uintptr_t)&seconds >> 4) * 2654435761u >> 24;
    seconds *= 0.75 + jitter / 512.0;
    if (retry_after > seconds) seconds = retry_after;
    pthread_mutex_lock(&p->mutex);
    (void)snprintf(p->note, sizeof p->note, "%s; trying again in %.0f s (%u of %u)", why, seconds,
                   n, p->o->n_retries);
    pthread_mutex_unlock(&p->mutex);
    for (const double end = time_now() + seconds; !stopping(p);) {
        const double left = end - time_now();
        if (left <= 0) break;
        nap(left < 0.1 ? left : 0.1);
    }
}

/* ---- One range ---------------------------------------------------------------------------- */

typedef struct span {
    file *f;
    uint32_t first, n; /* blocks */
} span;

typedef enum verdict { GOOD, AGAIN, WRONG, NO_RANGES, NEVER } verdict;

/* What happens to the body of a request. */
typedef struct sink {
    pull *p;
    span *s;
    uint64_t offset; /* of the next byte */
    uint64_t limit;  /* where the bytes that were asked for end */
    char *piece;     /* [PIECE_BYTES]: the bytes from `written` to offset */
    uint64_t written;
    double flushed, marked; /* when */
    uint32_t n_new;         /* blocks that were not done before */
    verdict verdict;
    double retry_after;
    calla_error err;
} sink;

static bool give_up(sink *k, verdict v)
{
    k->verdict = v;
    return false;
}

static uint32_t blocks_until(const part *p, uint64_t offset)
{
    return offset == p->size ? p->n_blocks : (uint32_t)(offset / PART_BLOCK);
}

/* Writes what has come of a piece. */
static bool flush(sink *k)
{
    const size_t n = (size_t)(k->offset - k->written);
    if (n != 0 && part_write(&k->s->f->part, k->written, k->piece, n, &k->err) != CALLA_OK)
        return give_up(k, NEVER);
    k->written = k->offset;
    k->flushed = time_now();
    return true;
}

/* Blocks that are whole go into the map. */
static void mark(sink *k, bool *ok)
{
    file *f = k->s->f;
    const uint32_t end = blocks_until(&f->part, k->written), first = k->s->first;
    uint32_t n_new = 0;
    *ok = true;
    if (end <= first) return;
    if (part_mark(&f->part, first, end, &k->err) != CALLA_OK) {
        *ok = give_up(k, NEVER);
        return;
    }
    pthread_mutex_lock(&k->p->mutex);
    for (uint32_t i = first; i < end; i++) {
        n_new += f->part.blocks[i] != PART_DONE;
        f->part.blocks[i] = PART_DONE;
    }
    f->part.n_done += n_new;
    pthread_mutex_unlock(&k->p->mutex);
    const uint64_t end_off = end == f->part.n_blocks ? f->part.size : end * PART_BLOCK;
    atomic_fetch_sub(&k->p->coming, end_off - first * PART_BLOCK);
    k->s->first = end;
    k->s->n = end - first < k->s->n ? k->s->n - (end - first) : 0;
    k->n_new += n_new;
    k->marked = time_now();
}

static bool wrong(sink *k, const char *expected, uint64_t e, uint64_t found)
{
    (void)err_set(&k->err, CALLA_ERR_FORMAT,
                  "%s: the server contradicts its listing: expected %s %llu, found %llu",
                  k->s->f->meta->name, expected, (unsigned long long)e, (unsigned long long)found);
    return give_up(k, WRONG);
}

static bool on_reply(void *user, const http_reply *r)
{
    sink *k = user;
    file *f = k->s->f;
    const uint64_t size = f->part.size;
    k->retry_after = r->retry_after;
    atomic_store(&k->p->reached, true);
    if (r->status == 206 || r->status == 200) {
        if (strlen(r->linked_etag) == 64 && strlen(f->meta->id) == 64 &&
            strcmp(r->linked_etag, f->meta->id) != 0) {
            (void)err_set(&k->err, CALLA_ERR_FORMAT,
                          "%s changed at the endpoint while it was pulled: expected SHA-256 %s, "
                          "found %s",
                          f->meta->name, f->meta->id, r->linked_etag);
            return give_up(k, NEVER);
        }
        if (r->linked_size != HTTP_UNKNOWN && r->linked_size != size)
            return wrong(k, "a size of", size, r->linked_size);
    }
    if (r->status == 206) {
        if (r->range_first == HTTP_UNKNOWN) return wrong(k, "a range from", k->offset, 0);
        if (r->range_size != HTTP_UNKNOWN && r->range_size != size)
            return wrong(k, "a size of", size, r->range_size);
        if (r->range_first != k->offset) return wrong(k, "a range from", k->offset, r->range_first);
        if (r->range_last >= k->limit) return wrong(k, "a range to", k->limit - 1, r->range_last);
        return true;
    }
    if (r->status == 200) {
        if (r->length != HTTP_UNKNOWN && r->length != size)
            return wrong(k, "a size of", size, r->length);
        pthread_mutex_lock(&k->p->mutex);
        f->whole = true;
        pthread_mutex_unlock(&k->p->mutex);
        if (k->offset != 0) return give_up(k, NO_RANGES);
        k->limit = size;
        return true;
    }
    bool again;
    (void)hub_explain(k->p->o->hub, k->p->o->repo, f->meta->name, r, &again, &k->err);
    if (r->status == 416) return give_up(k, WRONG);
    return give_up(k, again ? AGAIN : NEVER);
}

static bool on_body(void *user, const void *data, size_t n)
{
    sink *k = user;
    if (n > k->limit - k->offset) return wrong(k, "bytes up to", k->limit, k->offset + n);
    for (const char *p = data; n > 0;) {
        const uint64_t room = PIECE_BYTES - k->offset % PIECE_BYTES;
        const size_t m = n < room ? n : (size_t)room;
        memcpy(k->piece + (k->offset - k->written), p, m);
        k->offset += m;
        p += m;
        n -= m;
        atomic_fetch_add(&k->p->coming, m);
        atomic_fetch_add(&k->p->fetched, m);
        if (m == room && !flush(k)) return false;
    }
    bool ok = true;
    const double now = time_now();
    if (now - k->flushed > PIECE_SECONDS && !flush(k)) return false;
    if (now - k->marked > MARK_SECONDS) mark(k, &ok);
    return ok;
}

/* One request for the rest of a span; n_new: blocks that it brought. */
static verdict request(pull *p, http_client *c, const char *url, span *s, char *piece,
                       uint32_t *n_new, double *retry_after, calla_error *err)
{
    const uint64_t size = s->f->part.size, from = s->first * PART_BLOCK;
    uint64_t to = (uint64_t)(s->first + s->n) * PART_BLOCK;
    if (to > size) to = size;
    const double now = time_now();
    sink k = {.p = p,
              .s = s,
              .offset = from,
              .limit = to,
              .piece = piece,
              .written = from,
              .flushed = now,
              .marked = now,
              .verdict = GOOD};
    const http_call call = {
        .url = url,
        .token = p->o->hub->token,
        .ranged = true,
        .first = from,
        .last = to - 1,
        .stall_seconds = p->o->stall_seconds,
        .cancel = &p->stop,
        .on_reply = on_reply,
        .on_body = on_body,
        .user = &k,
    };
    http_reply reply;
    const http_outcome outcome = http_do(c, &call, &reply, err);
    const verdict v = k.verdict; /* what follows may worsen it */
    bool ok = flush(&k);
    if (ok) mark(&k, &ok);
    *n_new = k.n_new;
    /* A block that came in part comes again. */
    if (k.offset > s->first * PART_BLOCK)
        atomic_fetch_sub(&p->coming, k.offset - s->first * PART_BLOCK);
    *retry_after = k.retry_after;
    if (!ok || v != GOOD) {
        if (k.err.message[0]) *err = k.err;
        return !ok ? NEVER : v;
    }
    if (outcome == HTTP_REFUSED) return NEVER;
    if (outcome == HTTP_OK && k.offset < k.limit) {
        (void)err_set(err, CALLA_ERR_IO, "%s: the reply ended early", s->f->meta->name);
        return AGAIN;
    }
    return outcome == HTTP_OK ? GOOD : AGAIN;
}

/* Fetches a span; what is left of it when it returns was given up. */
static void fetch(pull *p, http_client *c, span *s)
{
    strbuf url = {0};
    uint32_t n_failures = 0, n_wrong = 0;
    calla_error err = {0};
    char *piece = mem_alloc((size_t)PIECE_BYTES);
    if (!piece || !hub_file_url(p->o->hub, p->o->repo, p->listing.commit, s->f->meta->name, &url)) {
        (void)err_set(&err, CALLA_ERR_MEMORY, "no memory for a download");
        set_failed(p, &err, false);
    }
    const bool whole = s->f->taken; /* by this call, if at all */
    while (s->n > 0 && !stopping(p)) {
        uint32_t n_new = 0;
        if (whole) *s = (span){.f = s->f, .n = s->f->part.n_blocks};
        double retry_after = 0;
        const verdict v = request(p, c, url.data, s, piece, &n_new, &retry_after, &err);
        if (n_new > 0) n_failures = n_wrong = 0;
        if (v == GOOD || v == NO_RANGES || stopping(p)) break;
        n_wrong += v == WRONG;
        n_failures++;
        const bool hopeless = v == NEVER || n_wrong >= WRONG_MAX || retry_after > RETRY_AFTER_MAX;
        if (hopeless || n_failures > p->o->n_retries) {
            set_failed(p, &err, v == AGAIN);
            break;
        }
        pause_before(p, n_failures, retry_after, err.message);
    }
    strbuf_deinit(&url);
    mem_free(piece);
}

/* ---- Workers ------------------------------------------------------------------------------ */

/* Under the mutex: takes work; false: there is none now. *any: some is left, or in the works. */
static bool take(pull *p, span *s, bool *any)
{
    uint64_t n_todo = 0;
    *any = false;
    for (size_t i = 0; i < p->n_files; i++) {
        const file *f = &p->files[i];
        if (f->in_step) n_todo += f->part.n_blocks - f->part.n_done;
    }
    if (n_todo == 0) return false;
    *any = true;
    /* Small spans in the end, so that no connection idles while another has much to do. */
    uint64_t most = n_todo / (2 * p->n_workers);
    if (most < SPAN_BLOCKS_MIN) most = SPAN_BLOCKS_MIN;
    if (most > SPAN_BLOCKS_MAX) most = SPAN_BLOCKS_MAX;
    for (size_t i = 0; i < p->n_files; i++) {
        file *f = &p->files[i];
        if (!f->in_step || f->part.n_done == f->part.n_blocks || f->taken) continue;
        const char *const begin = f->part.blocks;
        const char *todo = memchr(begin, PART_TODO, f->part.n_blocks);
        if (!todo) continue;
        *s = (span){.f = f};
        if (f->whole) {
            if (memchr(begin, PART_BUSY, f->part.n_blocks)) continue;
            f->taken = true;
            s->n = f->part.n_blocks;
            return true;
        }
        s->first = (uint32_t)(todo - begin);
        /* Spans end between two pieces. */
        while ((s->n < most || (s->first + s->n) % PIECE_BLOCKS != 0) &&
               s->first + s->n < f->part.n_blocks && todo[s->n] == PART_TODO)
            f->part.blocks[s->first + s->n++] = PART_BUSY;
        return true;
    }
    return false;
}

static void *work(void *arg)
{
    pull *p = arg;
    http_client *c = NULL;
    calla_error err;
    if (http_client_create(&c, p->o->lib, &err) != CALLA_OK) set_failed(p, &err, false);
    pthread_mutex_lock(&p->mutex);
    while (c && !stopping(p)) {
        span s;
        bool any;
        if (!take(p, &s, &any)) {
            if (!any) break;
            pthread_cond_wait(&p->changed, &p->mutex);
            continue;
        }
        const span all = s;
        pthread_mutex_unlock(&p->mutex);
        fetch(p, c, &s);
        pthread_mutex_lock(&p->mutex);
        for (uint32_t i = all.first; i < all.first + all.n; i++)
            if (s.f->part.blocks[i] == PART_BUSY) s.f->part.blocks[i] = PART_TODO;
        if (s.f->whole) s.f->taken = false;
        pthread_cond_broadcast(&p->changed);
    }
    p->n_workers--;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->mutex);
    http_client_destroy(c);
    return NULL;
}

/* ---- Checking ----------------------------------------------------------------------------- */

static calla_status hash_file(pull *p, const file *f, char hex[SHA_HEX_MAX], calla_error *err)
{
    const size_t n_block = 1u << 20;
    char *block = mem_alloc(n_block);
    sha s;
    calla_status st = CALLA_OK;
    if (!block) return err_set(err, CALLA_ERR_MEMORY, "no memory to check %s", f->meta->name);
    const bool git = strlen(f->meta->id) == 40;
    sha_init(&s, git ? SHA_1 : SHA_256);
    if (git) {
        const int n = snprintf(block, n_block, "blob %llu", (unsigned long long)f->part.size);
        sha_update(&s, block, (size_t)n + 1); /* and the NUL */
    }
    for (uint64_t at = 0; at < f->part.size && st == CALLA_OK;) {
        const ssize_t n = pread(f->part.fd, block, n_block, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            st = err_set(err, CALLA_ERR_IO, "cannot read %s: %s", f->part.path,
                         n < 0 ? strerror(errno) : "it became shorter");
        else
            sha_update(&s, block, (size_t)n);
        if (stopping(p)) st = err_set(err, CALLA_ERR_CANCELLED, "stopped");
        if (n > 0) {
            at += (uint64_t)n;
            atomic_fetch_add(&p->hashed, (uint64_t)n);
        }
    }
    sha_final(&s, hex);
    mem_free(block);
    return st;
}

/* A file that is wrong is emptied: once to be fetched again, the second time for good. */
static calla_status check_file(pull *p, file *f, calla_error *err)
{
    char hex[SHA_HEX_MAX];
    calla_status st;
    TRY(hash_file(p, f, hex, err));
    if (!strcmp(hex, f->meta->id)) return part_finish(&f->part, err);
    pthread_mutex_lock(&p->mutex);
    st = part_reset(&f->part, err);
    pthread_mutex_unlock(&p->mutex);
    if (st != CALLA_OK) return st;
    const char *what = strlen(hex) == 40 ? "Git's SHA-1" : "SHA-256";
    if (f->wrong)
        return err_set(err, CALLA_ERR_FORMAT,
                       "%s came complete and wrong twice: expected %s %s, found %s", f->meta->name,
                       what, f->meta->id, hex);
    f->wrong = true;
    pthread_mutex_lock(&p->mutex);
    (void)snprintf(p->note, sizeof p->note, "%s: expected %s %s, found %s; fetching it again",
                   f->meta->name, what, f->meta->id, hex);
    pthread_mutex_unlock(&p->mutex);
fail:
    return st;
}

static void *check(void *arg)
{
    pull *p = arg;
    for (;;) {
        file *f = NULL;
        pthread_mutex_lock(&p->mutex);
        while (!f && p->next_check < p->n_files) {
            f = &p->files[p->next_check++];
            if (!f->in_step || f->part.checked) f = NULL;
        }
        pthread_mutex_unlock(&p->mutex);
        calla_error err;
        if (!f || stopping(p)) break;
        if (check_file(p, f, &err) != CALLA_OK) set_failed(p, &err, false);
    }
    pthread_mutex_lock(&p->mutex);
    p->n_workers--;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->mutex);
    return NULL;
}

/* ---- Steps -------------------------------------------------------------------------------- */

static void report(pull *p, pull_phase phase)
{
    uint64_t done = 0, total = 0;
    char note[sizeof p->note];
    pthread_mutex_lock(&p->mutex);
    for (size_t i = 0; i < p->n_files; i++) {
        const file *f = &p->files[i];
        total += f->meta->size;
        if (f->open) done += part_bytes_done(&f->part);
    }
    memcpy(note, p->note, sizeof note);
    p->note[0] = '\0';
    pthread_mutex_unlock(&p->mutex);
    if (phase == PULL_CHECKING)
        done = atomic_load(&p->hashed);
    else
        done += atomic_load(&p->coming);
    if (note[0] && p->o->on_note) p->o->on_note(p->o->user, note);
    if (p->o->on_progress) p->o->on_progress(p->o->user, phase, done < total ? done : total, total);
}

static void wait_changed(pull *p, double seconds)
{
    struct timeval now;
    (void)gettimeofday(&now, NULL);
    const double until = (double)now.tv_sec + (double)now.tv_usec * 1e-6 + seconds;
    const struct timespec ts = {.tv_sec = (time_t)until,
                                .tv_nsec = (long)((until - floor(until)) * 1e9)};
    (void)pthread_cond_timedwait(&p->changed, &p->mutex, &ts);
}

/* Runs `f` in up to n threads and reports until all have ended. */
static calla_status run_threads(pull *p, void *(*f)(void *), uint32_t n, pull_phase phase,
                                calla_error *err)
{
    pthread_t threads[PULL_CONNECTIONS_MAX];
    uint32_t n_started = 0;
    pthread_mutex_lock(&p->mutex);
    for (; n_started < n; n_started++) {
        p->n_workers++;
        if (pthread_create(&threads[n_started], NULL, f, p) != 0) {
            p->n_workers--;
            break;
        }
    }
    for (double last = 0; p->n_workers > 0;) {
        wait_changed(p, 0.1);
        if (cancelled(p) && !atomic_load(&p->stop)) {
            atomic_store(&p->stop, true);
            pthread_cond_broadcast(&p->changed);
        }
        if (time_now() - last < 0.1) continue;
        last = time_now();
        pthread_mutex_unlock(&p->mutex);
        report(p, phase);
        pthread_mutex_lock(&p->mutex);
    }
    pthread_mutex_unlock(&p->mutex);
    for (uint32_t i = 0; i < n_started; i++)
        (void)pthread_join(threads[i], NULL);
    report(p, phase);
    if (cancelled(p)) return err_set(err, CALLA_ERR_CANCELLED, "stopped");
    if (n_started == 0) return err_set(err, CALLA_ERR_MEMORY, "cannot start a thread");
    if (!p->failed) return CALLA_OK;
    *err = p->err;
    return p->err.code;
}

static bool is_weights(const hub_file *f)
{
    const size_t n = strlen(f->name);
    return n > 12 && !strcmp(f->name + n - 12, ".safetensors");
}

static uint64_t bytes_missing(const pull *p)
{
    uint64_t n = 0;
    for (size_t i = 0; i < p->n_files; i++)
        if (p->files[i].in_step) n += p->files[i].meta->size - part_bytes_done(&p->files[i].part);
    return n;
}

static calla_status open_parts(pull *p, bool weights, calla_error *err)
{
    calla_status st = CALLA_OK;
    uint64_t size = 0;
    for (size_t i = 0; i < p->n_files; i++) {
        file *f = &p->files[i];
        f->in_step = is_weights(f->meta) == weights;
        if (!f->in_step) continue;
        /* Before a file takes its size: some file systems reserve all of it. */
        const uint64_t have = part_peek(p->place.stage, f->meta->name, f->meta->size);
        size += f->meta->size - have;
    }
    const uint64_t free_bytes = disk_free_bytes(p->place.stage);
    if (size > 0 && (free_bytes < size || free_bytes - size < SPARE_BYTES))
        return err_set(
            err, CALLA_ERR_IO,
            "%s: expected room for %.2f GB and a reserve of 0.07 GB in %s, found %.2f GB "
            "free",
            p->place.id, (double)size / 1e9, p->o->root, (double)free_bytes / 1e9);
    for (size_t i = 0; i < p->n_files; i++) {
        file *f = &p->files[i];
        if (!f->in_step) continue;
        f->open = true;
        TRY(part_open(&f->part, p->place.stage, f->meta->name, f->meta->size, err));
    }
fail:
    return st;
}

/* Fetches and checks the small files, or the weights. */
static calla_status run_step(pull *p, bool weights, calla_error *err)
{
    calla_status st;
    TRY(open_parts(p, weights, err));
    const uint32_t n = p->o->n_connections ? p->o->n_connections : 8;
    const uint32_t n_cpu = cpu_count() < PULL_CONNECTIONS_MAX ? cpu_count() : PULL_CONNECTIONS_MAX;
    for (bool more = true; more;) {
        if (bytes_missing(p) > 0) TRY(run_threads(p, work, n, PULL_FETCHING, err));
        p->next_check = 0;
        atomic_store(&p->hashed, 0);
        TRY(run_threads(p, check, n_cpu, PULL_CHECKING, err));
        more = false;
        for (size_t i = 0; i < p->n_files; i++)
            more = more || (p->files[i].in_step && !p->files[i].part.checked);
    }
fail:
    return st;
}

/* ---- The listing -------------------------------------------------------------------------- */

static bool on_listing(void *user, const void *data, size_t n)
{
    return strbuf_append(user, data, n);
}

/* One request with retries; the body goes to `body` (NULL: only the headers). */
static calla_status ask(pull *p, http_client *c, const char *url, strbuf *body, const char *what,
                        http_reply *reply, calla_error *err)
{
    http_call call = {
        .url = url,
        .token = p->o->hub->token,
        .head = body == NULL,
        .stall_seconds = p->o->stall_seconds,
        .cancel = p->o->cancel,
        .on_body = on_listing,
        .user = body,
    };
    for (uint32_t n = 1;; n++) {
        if (body) strbuf_clear(body);
        const http_outcome outcome = http_do(c, &call, reply, err);
        bool again = outcome == HTTP_BROKEN;
        calla_status st = CALLA_ERR_IO;
        if (reply->status != 0) atomic_store(&p->reached, true);
        if (outcome == HTTP_CANCELLED) return err_set(err, CALLA_ERR_CANCELLED, "stopped");
        if (outcome == HTTP_STOPPED && body)
            return err_set(err, CALLA_ERR_FORMAT, "%s: expected at most %zu bytes, found more",
                           what, body->max);
        p->again = false;
        if (outcome == HTTP_OK && reply->status == 200) return CALLA_OK;
        if (outcome == HTTP_OK) st = hub_explain(p->o->hub, p->o->repo, what, reply, &again, err);
        p->again = again;
        /* An address that never answered is likely to be wrong. */
        const uint32_t most = atomic_load(&p->reached) || p->o->n_retries < 2 ? p->o->n_retries : 2;
        if (!again || n > most || reply->retry_after > RETRY_AFTER_MAX) return st;
        pause_before(p, n, reply->retry_after, err->message);
        report(p, PULL_LISTING);
        if (cancelled(p)) return err_set(err, CALLA_ERR_CANCELLED, "stopped");
    }
}

/* What the listing does not say of a file, its headers may. */
static calla_status complete_file(pull *p, http_client *c, hub_file *f, calla_error *err)
{
    if (f->size == HTTP_UNKNOWN || !f->id[0]) {
        strbuf url = {0};
        http_reply r;
        calla_status st = err_set(err, CALLA_ERR_MEMORY, "no memory for an address");
        if (hub_file_url(p->o->hub, p->o->repo, p->listing.commit, f->name, &url))
            st = ask(p, c, url.data, NULL, f->name, &r, err);
        strbuf_deinit(&url);
        if (st != CALLA_OK) return st;
        const char *id = r.linked_etag[0] ? r.linked_etag : r.etag;
        const size_t n = strspn(id, "0123456789abcdef");
        if (f->size == HTTP_UNKNOWN)
            f->size = r.linked_size != HTTP_UNKNOWN ? r.linked_size : r.length;
        if (!f->id[0] && id[n] == '\0' && (n == 64 || n == 40)) memcpy(f->id, id, n + 1);
    }
    if (f->size > HUB_SIZE_MAX || !f->id[0])
        return err_set(err, CALLA_ERR_FORMAT,
                       "%s: the endpoint gives no %s, so it could not be checked", f->name,
                       f->id[0] ? "size" : "SHA-256");
    return CALLA_OK;
}

static const hub_file *find_file(const hub_listing *l, const char *name)
{
    for (size_t i = 0; i < l->n_files; i++)
        if (!strcmp(l->files[i].name, name)) return &l->files[i];
    return NULL;
}

static calla_status read_listing(pull *p, calla_error *err)
{
    http_client *c = NULL;
    strbuf url = {0}, body = {.max = HUB_LIST_MAX};
    http_reply reply;
    calla_status st;
    TRY(http_client_create(&c, p->o->lib, err));
    if (!hub_listing_url(p->o->hub, p->o->repo, &url)) {
        st = err_set(err, CALLA_ERR_MEMORY, "no memory for an address");
        goto fail;
    }
    TRY(ask(p, c, url.data, &body, p->place.id, &reply, err));
    st = hub_read_listing(&p->listing, body.data ? body.data : "", body.len, err);
    if (st != CALLA_OK) {
        st = err_prefix(err, st, "%s", p->place.id);
        goto fail;
    }
    static const char *const needed[] = {"config.json", "tokenizer.json"};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        if (find_file(&p->listing, needed[i])) continue;
        st = err_set(err, CALLA_ERR_UNSUPPORTED, "%s: expected a model with a %s, found none",
                     p->place.id, needed[i]);
        goto fail;
    }
    for (size_t i = 0; i < p->listing.n_files; i++)
        TRY(complete_file(p, c, &p->listing.files[i], err));
fail:
    http_client_destroy(c);
    strbuf_deinit(&url);
    strbuf_deinit(&body);
    return st;
}

/* ---- What is needed, what is here --------------------------------------------------------- */

static void drop_file(hub_listing *l, size_t i)
{
    mem_free(l->files[i].name);
    memmove(l->files + i, l->files + i + 1, (l->n_files - i - 1) * sizeof *l->files);
    l->n_files--;
}

static bool names_shard(const json_value *map, const char *name)
{
    for (const json_value *v = map ? map->first : NULL; v; v = v->next)
        if (json_is(v, name)) return true;
    return false;
}

/* Of the weights, those that the index names; without one, model.safetensors. */
static calla_status choose_weights(hub_listing *l, const char *dir, calla_error *err)
{
    json_doc doc = {0};
    const json_limits limits = {.what = HUB_INDEX};
    const bool indexed = find_file(l, HUB_INDEX) != NULL;
    char *path = disk_path(dir, HUB_INDEX, NULL), *text = NULL;
    size_t n = 0;
    calla_status st = CALLA_OK;
    const json_value *map = NULL;
    if (indexed) {
        TRY(file_read(path ? path : "", (uint64_t)64 << 20, &text, &n, err));
        TRY(json_parse(&doc, text, n, &limits, err));
        map = json_get(doc.root, "weight_map");
        for (const json_value *v = map ? map->first : NULL; v; v = v->next) {
            if (v->type == JSON_STRING && find_file(l, v->text)) continue;
            st = err_set(err, CALLA_ERR_FORMAT, "%s names '%.100s', which the model does not have",
                         HUB_INDEX, v->type == JSON_STRING ? v->text : "?");
            goto fail;
        }
    }
    size_t n_weights = 0, n_dropped = 0;
    for (size_t i = 0; i < l->n_files;) {
        const char *name = l->files[i].name;
        const bool weights = is_weights(&l->files[i]);
        if (weights && !(indexed ? names_shard(map, name) : !strcmp(name, "model.safetensors"))) {
            drop_file(l, i);
            n_dropped++;
            continue;
        }
        n_weights += weights;
        i++;
    }
    if (n_weights == 0 && indexed)
        st = err_set(err, CALLA_ERR_UNSUPPORTED,
                     "%s: expected shards named *.safetensors, found none", HUB_INDEX);
    else if (n_weights == 0)
        st = err_set(err, CALLA_ERR_UNSUPPORTED,
                     "expected weights as model.safetensors, or an index of shards (%s), found "
                     "neither, but %zu other files of weights",
                     HUB_INDEX, n_dropped);
fail:
    json_free(&doc);
    mem_free(text);
    mem_free(path);
    return st;
}

static bool same_file(const hub_listing *l, const hub_file *f)
{
    const hub_file *g = find_file(l, f->name);
    return g && g->size == f->size && !strcmp(g->id, f->id);
}

static calla_status forget(pull *p, const char *name, calla_error *err)
{
    strbuf b = {0};
    calla_status st = CALLA_OK;
    /* The file first: without a map it would count as checked. */
    if (!strbuf_printf(&b, "%s/%s", p->place.stage, name))
        st = err_set(err, CALLA_ERR_MEMORY, "no memory for a file name");
    else
        TRY(disk_remove(b.data, err));
    if (strbuf_puts(&b, ".map")) TRY(disk_remove(b.data, err));
fail:
    strbuf_deinit(&b);
    return st;
}

/* The stage holds what is still good of an earlier pull, and links to what the model in place has
 * in common with the new one. Its record is written last. */
static calla_status prepare_stage(pull *p, const store_record *in_place, calla_error *err)
{
    store_record before;
    calla_status st;
    const bool known = store_record_read(&before, p->place.stage);
    if (!known) TRY(disk_remove_dir(p->place.stage, 1, err));
    TRY(disk_make_dirs(p->place.stage, err));
    for (size_t i = 0; i < before.listing.n_files; i++)
        if (!same_file(&p->listing, &before.listing.files[i]))
            TRY(forget(p, before.listing.files[i].name, err));
    TRY(store_record_write(p->place.stage, p->place.id, p->o->hub->endpoint, &p->listing, err));
    for (size_t i = 0; in_place && i < p->listing.n_files; i++) {
        const hub_file *f = &p->listing.files[i];
        uint64_t size;
        char *from = disk_path(p->place.dir, f->name, NULL);
        if (from && same_file(&in_place->listing, f) && disk_size(from, &size) && size == f->size)
            (void)part_adopt(p->place.stage, f->name, f->size, from);
        mem_free(from);
    }
fail:
    store_record_deinit(&before);
    return st;
}

/* Is the model in place the one that the listing describes, by sizes? */
static bool is_in_place(const pull *p, const store_record *r)
{
    if (strcmp(r->listing.commit, p->listing.commit) != 0) return false;
    for (size_t i = 0; i < r->listing.n_files; i++) {
        uint64_t size = 0;
        char *path = disk_path(p->place.dir, r->listing.files[i].name, NULL);
        const bool good = path && disk_size(path, &size) && size == r->listing.files[i].size;
        mem_free(path);
        if (!good) return false;
    }
    return r->listing.n_files > 0;
}

static calla_status make_files(pull *p, calla_error *err)
{
    for (size_t i = 0; i < p->n_files; i++)
        part_close(&p->files[i].part);
    mem_free(p->files);
    p->n_files = 0;
    p->files = mem_array(p->listing.n_files, sizeof *p->files);
    if (!p->files) return err_set(err, CALLA_ERR_MEMORY, "no memory for the download");
    p->n_files = p->listing.n_files;
    for (size_t i = 0; i < p->n_files; i++)
        p->files[i] = (file){.meta = &p->listing.files[i], .part = {.fd = -1, .map_fd = -1}};
    return CALLA_OK;
}

/* Weights that the model turned out not to need may have been begun by an earlier pull. */
static calla_status clean_stage(pull *p, const hub_listing *all, calla_error *err)
{
    calla_status st = CALLA_OK;
    for (size_t i = 0; i < all->n_files; i++)
        if (!find_file(&p->listing, all->files[i].name)) TRY(forget(p, all->files[i].name, err));
fail:
    return st;
}

static calla_status fetch_all(pull *p, const store_record *in_place, calla_error *err)
{
    calla_status st;
    store_record all = {0};
    TRY(prepare_stage(p, in_place, err));
    TRY(make_files(p, err));
    TRY(run_step(p, false, err));
    if (p->o->accept) TRY(p->o->accept(p->o->user, p->place.stage, err));
    st = choose_weights(&p->listing, p->place.stage, err);
    if (st != CALLA_OK) {
        st = err_prefix(err, st, "%s", p->place.id);
        goto fail;
    }
    TRY(make_files(p, err));
    TRY(run_step(p, true, err));
    for (size_t i = 0; i < p->n_files; i++)
        part_close(&p->files[i].part);
    (void)store_record_read(&all, p->place.stage);
    TRY(clean_stage(p, &all.listing, err));
    TRY(store_record_write(p->place.stage, p->place.id, p->o->hub->endpoint, &p->listing, err));
    TRY(store_exchange(&p->place, err));
fail:
    store_record_deinit(&all);
    return st;
}

static calla_status run(pull *p, pull_result *result, calla_error *err)
{
    calla_status st;
    disk_lock lock = {.fd = -1};
    store_record in_place = {0};
    TRY(store_place_init(&p->place, p->o->root, p->o->repo, err));
    TRY(store_lock(&p->place, &lock, err));
    report(p, PULL_LISTING);
    TRY(read_listing(p, err));
    const bool known = store_record_read(&in_place, p->place.dir);
    if (!known && file_exists(p->place.dir)) {
        st = err_set(err, CALLA_ERR_IO,
                     "%s is there, and was not pulled by calla: move it away first", p->place.dir);
        goto fail;
    }
    if (known && !p->o->check && is_in_place(p, &in_place)) {
        result->complete_before = true;
        hub_listing_deinit(&p->listing);
        p->listing = in_place.listing;
        memset(&in_place.listing, 0, sizeof in_place.listing);
        st = disk_remove_dir(p->place.stage, 1, err);
    } else {
        st = fetch_all(p, known ? &in_place : NULL, err);
    }
    if (st != CALLA_OK) goto fail;
    memcpy(result->commit, p->listing.commit, sizeof result->commit);
    result->n_files = p->listing.n_files;
    for (size_t i = 0; i < p->listing.n_files; i++)
        result->bytes += p->listing.files[i].size;
    result->dir = mem_strdup(p->place.dir);
    if (!result->dir) st = err_set(err, CALLA_ERR_MEMORY, "no memory for a file name");
fail:
    store_record_deinit(&in_place);
    disk_lock_drop(&lock);
    if (p->place.owner) store_tidy(&p->place);
    return st;
}

calla_status pull_run(const pull_options *o, pull_result *result, calla_error *err)
{
    pull p = {.o = o};
    memset(result, 0, sizeof *result);
    pthread_mutex_init(&p.mutex, NULL);
    pthread_cond_init(&p.changed, NULL);
    const calla_status st = run(&p, result, err);
    result->again = p.again;
    result->bytes_fetched = atomic_load(&p.fetched);
    for (size_t i = 0; i < p.n_files; i++)
        part_close(&p.files[i].part);
    mem_free(p.files);
    hub_listing_deinit(&p.listing);
    store_place_deinit(&p.place);
    pthread_cond_destroy(&p.changed);
    pthread_mutex_destroy(&p.mutex);
    return st;
}
