#include "server/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "server/text.h"

struct server_trace {
    char *dir;
};

calla_status server_trace_create(server_trace **out, const char *dir, calla_error *err)
{
    *out = NULL;
    if (mkdir(dir, 0700) != 0 && errno != EEXIST)
        return err_set(err, CALLA_ERR_IO, "%s: cannot make the folder: %s", dir, strerror(errno));
    if (access(dir, W_OK | X_OK) != 0)
        return err_set(err, CALLA_ERR_IO, "%s: cannot write into it: %s", dir, strerror(errno));
    server_trace *t = mem_alloc(sizeof *t);
    if (t) t->dir = mem_strdup(dir);
    if (!t || !t->dir) {
        server_trace_destroy(t);
        return err_set(err, CALLA_ERR_MEMORY, "trace: out of memory");
    }
    *out = t;
    return CALLA_OK;
}

void server_trace_destroy(server_trace *t)
{
    if (!t) return;
    mem_free(t->dir);
    mem_free(t);
}

static void put_bytes(strbuf *out, const char *name, const char *s, size_t n)
{
    if (text_is_utf8(s, n)) {
        strbuf_printf(out, ",\n\"%s\": ", name);
        text_json(out, s, n);
        return;
    }
    strbuf_printf(out, ",\n\"%s_hex\": \"", name);
    for (size_t i = 0; i < n; i++)
        strbuf_printf(out, "%02x", (unsigned char)s[i]);
    strbuf_putc(out, '"');
}

static void put_record(strbuf *out, const request_record *r)
{
    strbuf_printf(out, "{\"id\": \"%s\",\n\"time\": \"", r->id);
    text_time(out, r->unix_time);
    strbuf_printf(out, "\",\n\"method\": \"%s\",\n\"path\": ", r->method);
    text_json(out, r->path, strlen(r->path));
    strbuf_printf(out, ",\n\"status\": %u,\n\"stream\": %s,\n\"gone\": %s", r->status,
                  r->stream ? "true" : "false", r->gone ? "true" : "false");
    put_bytes(out, "request", r->body, r->n_body);
    put_bytes(out, "response", r->answer ? r->answer : "", r->answer ? r->n_answer : 0);
    strbuf_printf(out, ",\n\"timings\": {\"seconds\": %.6f", r->seconds);
    if (r->ttft_seconds >= 0.0) strbuf_printf(out, ", \"first_token\": %.6f", r->ttft_seconds);
    const http_usage *u = r->usage;
    if (u)
        strbuf_printf(out, ", \"queue\": %.6f, \"prefill\": %.6f, \"decode\": %.6f",
                      u->queue_seconds, u->prefill_seconds, u->decode_seconds);
    strbuf_putc(out, '}');
    if (u) {
        strbuf_printf(out,
                      ",\n\"usage\": {\"prompt_tokens\": %" PRIu32 ", \"cached_tokens\": %" PRIu32
                      ", \"generated_tokens\": %" PRIu32,
                      u->n_prompt, u->n_cached, u->n_generated);
        if (u->diverged_at != HTTP_NO_POSITION)
            strbuf_printf(out, ", \"diverged_at\": %" PRIu32, u->diverged_at);
        if (u->stop) strbuf_printf(out, ", \"stop\": \"%s\"", u->stop);
        strbuf_putc(out, '}');
    }
    strbuf_puts(out, "}\n");
}

static calla_status write_file(const char *path, const strbuf *text, calla_error *err)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return err_set(err, CALLA_ERR_IO, "%s: %s", path, strerror(errno));
    size_t off = 0;
    while (off < text->len) {
        const ssize_t n = write(fd, text->data + off, text->len - off);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        off += (size_t)n;
    }
    const int reason = errno;
    if (close(fd) == 0 && off == text->len) return CALLA_OK;
    (void)unlink(path);
    return err_set(err, CALLA_ERR_IO, "%s: cannot be written: %s", path, strerror(reason));
}

calla_status server_trace_write(server_trace *t, const request_record *r, calla_error *err)
{
    strbuf text = {0}, name = {0};
    char stamp[32];
    struct tm tm;
    const time_t seconds = (time_t)r->unix_time;
    (void)gmtime_r(&seconds, &tm);
    (void)strftime(stamp, sizeof stamp, "%Y%m%dT%H%M%SZ", &tm);
    strbuf_printf(&name, "%s/%s-%s.json", t->dir, stamp, r->id);
    put_record(&text, r);
    const calla_status st = text.failed || name.failed
                                ? err_set(err, CALLA_ERR_MEMORY, "trace: out of memory")
                                : write_file(name.data, &text, err);
    strbuf_deinit(&text);
    strbuf_deinit(&name);
    return st;
}
