#include "server/server_log.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/json.h"
#include "server/text.h"

struct server_log {
    server_log_options o;
    pthread_mutex_t lock; /* one line at a time */
};

calla_status server_log_create(server_log **out, const server_log_options *options,
                               calla_error *err)
{
    server_log *log = mem_alloc(sizeof *log);
    *out = NULL;
    if (!log) return err_set(err, CALLA_ERR_MEMORY, "log: out of memory");
    log->o = *options;
    pthread_mutex_init(&log->lock, NULL);
    *out = log;
    return CALLA_OK;
}

void server_log_destroy(server_log *log)
{
    if (!log) return;
    pthread_mutex_destroy(&log->lock);
    mem_free(log);
}

static double rate(uint32_t n, double seconds)
{
    return seconds > 0.0 ? (double)n / seconds : 0.0;
}

static void format_json(strbuf *out, bool prompts, const request_record *r)
{
    strbuf_puts(out, "{\"time\":\"");
    text_time(out, r->unix_time);
    strbuf_printf(out,
                  "\",\"level\":\"info\",\"event\":\"request\",\"id\":\"%s\",\"method\":", r->id);
    text_json(out, r->method, strlen(r->method));
    strbuf_puts(out, ",\"path\":");
    text_json(out, r->path, strlen(r->path));
    strbuf_printf(out, ",\"status\":%u,\"ms\":%.1f,\"stream\":%s,\"gone\":%s", r->status,
                  r->seconds * 1e3, r->stream ? "true" : "false", r->gone ? "true" : "false");
    const http_usage *u = r->usage;
    if (u) {
        strbuf_printf(out,
                      ",\"prompt_tokens\":%" PRIu32 ",\"cached_tokens\":%" PRIu32
                      ",\"generated_tokens\":%" PRIu32 ",\"queue_ms\":%.1f,\"prefill_ms\":%.1f"
                      ",\"decode_ms\":%.1f,\"tokens_per_second\":%.1f",
                      u->n_prompt, u->n_cached, u->n_generated, u->queue_seconds * 1e3,
                      u->prefill_seconds * 1e3, u->decode_seconds * 1e3,
                      rate(u->n_generated, u->decode_seconds));
        if (r->ttft_seconds >= 0.0) strbuf_printf(out, ",\"ttft_ms\":%.1f", r->ttft_seconds * 1e3);
        if (u->diverged_at != HTTP_NO_POSITION)
            strbuf_printf(out, ",\"diverged_at\":%" PRIu32, u->diverged_at);
        if (u->diverged_message != HTTP_NO_POSITION)
            strbuf_printf(out, ",\"diverged_message\":%" PRIu32, u->diverged_message);
        if (u->stop) strbuf_printf(out, ",\"stop\":\"%s\"", u->stop);
    }
    if (prompts && r->n_body > 0) {
        strbuf_puts(out, ",\"body\":");
        text_json(out, r->body, r->n_body);
    }
    strbuf_putc(out, '}');
}

static void format_text(strbuf *out, bool prompts, const request_record *r)
{
    text_clock(out, r->unix_time);
    strbuf_printf(out, " %s %s ", r->id, r->method);
    text_printable(out, r->path, strlen(r->path));
    if (r->status > 0)
        strbuf_printf(out, " %u", r->status);
    else
        strbuf_puts(out, " -");
    strbuf_printf(out, " %.0f ms", r->seconds * 1e3);
    if (r->gone) strbuf_puts(out, ", client gone");
    const http_usage *u = r->usage;
    if (u) {
        strbuf_printf(
            out, ", prompt %" PRIu32 " (%" PRIu32 " cached), generated %" PRIu32 ", %.1f tokens/s",
            u->n_prompt, u->n_cached, u->n_generated, rate(u->n_generated, u->decode_seconds));
        if (r->ttft_seconds >= 0.0)
            strbuf_printf(out, ", first after %.0f ms", r->ttft_seconds * 1e3);
        if (u->diverged_at != HTTP_NO_POSITION)
            strbuf_printf(out, ", diverged at token %" PRIu32, u->diverged_at);
        if (u->diverged_message != HTTP_NO_POSITION)
            strbuf_printf(out, " (message %" PRIu32 ")", u->diverged_message);
        if (u->stop) strbuf_printf(out, ", %s", u->stop);
    }
    if (prompts && r->n_body > 0) {
        strbuf_puts(out, "\n  ");
        text_printable(out, r->body, r->n_body);
    }
}

void server_log_format(strbuf *out, bool json, bool prompts, const request_record *r)
{
    if (json)
        format_json(out, prompts, r);
    else
        format_text(out, prompts, r);
}

static void write_line(server_log *log, strbuf *line)
{
    strbuf_putc(line, '\n');
    if (!line->failed) {
        pthread_mutex_lock(&log->lock);
        for (size_t off = 0; off < line->len;) {
            const ssize_t n = write(log->o.fd, line->data + off, line->len - off);
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0) break; /* nowhere to report that stderr is gone */
            off += (size_t)n;
        }
        pthread_mutex_unlock(&log->lock);
    }
    strbuf_deinit(line);
}

void server_log_request(server_log *log, const request_record *r)
{
    strbuf line = {0};
    if (log->o.level < CALLA_LOG_INFO) return;
    server_log_format(&line, log->o.json, log->o.prompts, r);
    write_line(log, &line);
}

void server_log_line(server_log *log, calla_log_level level, const char *fmt, ...)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    if (level > log->o.level) return;
    char text[1024];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    strbuf line = {0};
    const double now = text_now();
    if (log->o.json) {
        strbuf_puts(&line, "{\"time\":\"");
        text_time(&line, now);
        strbuf_printf(&line, "\",\"level\":\"%s\",\"event\":\"log\",\"message\":", names[level]);
        text_json(&line, text, strlen(text));
        strbuf_putc(&line, '}');
    } else {
        text_clock(&line, now);
        strbuf_printf(&line, " %s%s", level <= CALLA_LOG_WARN ? names[level] : "",
                      level <= CALLA_LOG_WARN ? ": " : "");
        text_printable(&line, text, strlen(text));
    }
    write_line(log, &line);
}
