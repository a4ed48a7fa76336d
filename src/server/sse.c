/* sse.c - event streams: a bounded queue between a producer and the connection's thread.
 *
 * The producer appends whole events to http_req.queue; libmicrohttpd's thread takes what is there
 * and waits, in read_queue, when there is nothing.
 */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "server/http_priv.h"

#define BLOCK_BYTES 16384u

struct sse_stream {
    http_req req; /* never made: a stream is the request, under another name */
};

static sse_stream *to_stream(http_req *r)
{
    return (sse_stream *)r;
}

static http_req *to_req(sse_stream *s)
{
    return &s->req;
}

sse_stream *sse_open(http_request *req)
{
    http_req *r = (http_req *)req;
    if (r->streaming) return NULL;
    pthread_mutex_lock(&r->lock);
    r->streaming = true;
    r->closed = false;
    r->queue.max = HTTP_SSE_QUEUE_BYTES;
    r->n_refs++;
    pthread_mutex_unlock(&r->lock);
    r->response = sse_response(r);
    if (r->response) {
        r->status = 200;
        return to_stream(r);
    }
    sse_abort(to_stream(r));
    return NULL;
}

void sse_abort(sse_stream *s)
{
    http_req *r = to_req(s);
    pthread_mutex_lock(&r->lock);
    r->streaming = false;
    r->n_refs--; /* the connection has its own */
    strbuf_deinit(&r->queue);
    r->queue_off = 0;
    pthread_mutex_unlock(&r->lock);
    if (r->response) MHD_destroy_response(r->response);
    r->response = NULL;
    r->status = 0;
}

http_request *sse_request(sse_stream *s)
{
    return &to_req(s)->pub;
}

static void append_event(strbuf *out, const char *event, const char *data, size_t n)
{
    if (event) {
        strbuf_puts(out, "event: ");
        strbuf_puts(out, event);
        strbuf_putc(out, '\n');
    }
    const char *const end = data + n;
    for (const char *line = data;;) {
        const char *nl = memchr(line, '\n', (size_t)(end - line));
        strbuf_puts(out, "data: ");
        strbuf_append(out, line, (size_t)((nl ? nl : end) - line));
        strbuf_putc(out, '\n');
        if (!nl) break;
        line = nl + 1;
    }
    strbuf_putc(out, '\n');
}

/* Moves what is not yet sent to the front. */
static void compact(http_req *r)
{
    if (r->queue_off == 0) return;
    r->queue.len -= r->queue_off;
    memmove(r->queue.data, r->queue.data + r->queue_off, r->queue.len);
    r->queue.data[r->queue.len] = '\0';
    r->queue_off = 0;
}

bool sse_send(sse_stream *s, const char *event, const char *data, size_t n)
{
    http_req *r = to_req(s);
    pthread_mutex_lock(&r->lock);
    bool ok = !r->gone && !r->overflow && !r->closed;
    if (ok) {
        if (r->queue_off > HTTP_SSE_QUEUE_BYTES / 4 || r->queue_off == r->queue.len) compact(r);
        const size_t before = r->queue.len;
        append_event(&r->queue, event, data, n);
        if (r->queue.failed && r->queue_off > 0) { /* room in front? */
            r->queue.len = before;
            r->queue.failed = false;
            compact(r);
            append_event(&r->queue, event, data, n);
        }
        ok = !r->queue.failed;
        if (!ok)
            r->overflow = true; /* half an event may be queued: read_queue sends no more of it */
        else if (r->server->o.trace)
            append_event(&r->answer, event, data, n);
        pthread_cond_broadcast(&r->cond);
    }
    pthread_mutex_unlock(&r->lock);
    return ok;
}

void sse_close(sse_stream *s)
{
    if (!s) return;
    http_req *r = to_req(s);
    http_clear_hangup(&r->pub);
    pthread_mutex_lock(&r->lock);
    r->closed = true;
    pthread_cond_broadcast(&r->cond);
    pthread_mutex_unlock(&r->lock);
    http_req_unref(r, true);
}

/* Waits for events, the end, or `comment_seconds` of silence; true after silence. */
static bool wait_events(http_req *r)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)r->server->o.comment_seconds;
    while (r->queue_off == r->queue.len && !r->closed && !r->gone && !r->overflow)
        if (pthread_cond_timedwait(&r->cond, &r->lock, &until) == ETIMEDOUT) return true;
    return false;
}

static ssize_t read_queue(void *cls, uint64_t pos, char *buf, size_t max)
{
    static const char comment[] = ": still here\n\n";
    http_req *r = cls;
    (void)pos;
    http_conn_phase(r->conn, r->server, CONN_WORK, 0.0);
    pthread_mutex_lock(&r->lock);
    const bool silent = wait_events(r);
    ssize_t n = MHD_CONTENT_READER_END_WITH_ERROR;
    if (r->gone || r->overflow) {
        /* nothing more */
    } else if (r->queue_off < r->queue.len) {
        const size_t n_left = r->queue.len - r->queue_off;
        const size_t n_now = n_left < max ? n_left : max;
        memcpy(buf, r->queue.data + r->queue_off, n_now);
        r->queue_off += n_now;
        n = (ssize_t)n_now;
    } else if (r->closed) {
        n = MHD_CONTENT_READER_END_OF_STREAM;
    } else if (silent && max >= sizeof comment - 1) {
        memcpy(buf, comment, sizeof comment - 1);
        n = (ssize_t)sizeof comment - 1;
    }
    const bool last = r->closed && r->queue_off == r->queue.len;
    pthread_mutex_unlock(&r->lock);
    http_conn_phase(r->conn, r->server, last ? CONN_LAST : CONN_REPLY, HTTP_REPLY_SECONDS);
    return n;
}

struct MHD_Response *sse_response(http_req *r)
{
    struct MHD_Response *m =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, read_queue, r, NULL);
    if (!m) return NULL;
    if (MHD_add_response_header(m, "Content-Type", "text/event-stream") == MHD_YES &&
        MHD_add_response_header(m, "Cache-Control", "no-cache") == MHD_YES &&
        MHD_add_response_header(m, "X-Accel-Buffering", "no") == MHD_YES)
        return m;
    MHD_destroy_response(m);
    return NULL;
}
