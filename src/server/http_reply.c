/* http_reply.c - answers: bodies, error objects, the headers that all have. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "server/http_access.h"
#include "server/http_priv.h"
#include "server/text.h"

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0 /* macOS; the program ignores SIGPIPE anyway */
#endif

/* ---- Error objects ------------------------------------------------------------------------ */

static const char *openai_type(unsigned status)
{
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 429:
        return "rate_limit_error";
    default:
        return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

static const char *anthropic_type(unsigned status)
{
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 413:
        return "request_too_large";
    case 429:
        return "rate_limit_error";
    case 503:
    case 529:
        return "overloaded_error";
    default:
        return status >= 500 ? "api_error" : "invalid_request_error";
    }
}

static void put_text(strbuf *out, const char *s)
{
    if (s)
        text_json(out, s, strlen(s));
    else
        strbuf_puts(out, "null");
}

void http_error_object(const http_request *req, strbuf *out, const http_error *e,
                       const char *message)
{
    if (req && req->anthropic) {
        strbuf_puts(out, "{\"type\":\"error\",\"error\":{\"type\":");
        put_text(out, e->type ? e->type : anthropic_type(e->status));
        strbuf_puts(out, ",\"message\":");
        put_text(out, message);
        strbuf_puts(out, "},\"request_id\":");
        put_text(out, req->id_text);
        strbuf_puts(out, "}");
        return;
    }
    strbuf_puts(out, "{\"error\":{\"message\":");
    put_text(out, message);
    strbuf_puts(out, ",\"type\":");
    put_text(out, e->type ? e->type : openai_type(e->status));
    strbuf_puts(out, ",\"param\":");
    put_text(out, e->param);
    strbuf_puts(out, ",\"code\":");
    put_text(out, e->code);
    strbuf_puts(out, "}}");
}

void http_respond_error(http_request *req, const http_error *e, const char *fmt, ...)
{
    char message[1024];
    strbuf body = {0};
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    http_error_object(req, &body, e, message);
    http_respond_json(req, e->status, &body);
}

/* ---- Answers ------------------------------------------------------------------------------ */

void http_set_header(http_request *req, const char *name, const char *value)
{
    http_req *r = (http_req *)req;
    size_t i = 0;
    while (i < r->n_headers && strcmp(r->headers[i].name, name) != 0)
        i++;
    if (i == HTTP_SET_HEADERS_MAX) return;
    char *copy = mem_strdup(value);
    if (!copy) return;
    if (i < r->n_headers) {
        mem_free(r->headers[i].value);
        r->headers[i].value = copy;
        return;
    }
    char *name_copy = mem_strdup(name);
    if (!name_copy) {
        mem_free(copy);
        return;
    }
    r->headers[i].name = name_copy;
    r->headers[i].value = copy;
    r->n_headers++;
}

static bool has_header(const http_req *r, const char *name)
{
    for (size_t i = 0; i < r->n_headers; i++)
        if (strcmp(r->headers[i].name, name) == 0) return true;
    return false;
}

void http_respond(http_request *req, unsigned status, const char *content_type, strbuf *body)
{
    static char no_memory[] = "{\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\","
                              "\"param\":null,\"code\":null}}";
    http_req *r = (http_req *)req;
    if (r->streaming) return; /* sse_abort first */
    if (r->response) MHD_destroy_response(r->response);
    r->response = NULL;
    strbuf_clear(&r->answer);
    if (!body->failed) {
        if (r->server->o.trace) strbuf_append(&r->answer, body->data, body->len);
        r->response = body->data ? MHD_create_response_from_buffer_with_free_callback(
                                       body->len, body->data, mem_free)
                                 : MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
    }
    if (r->response)
        *body = (strbuf){.max = body->max};
    else {
        strbuf_deinit(body);
        status = 500;
        content_type = "application/json";
        r->response = MHD_create_response_from_buffer(sizeof no_memory - 1, no_memory,
                                                      MHD_RESPMEM_PERSISTENT);
    }
    r->status = status;
    if (r->response && content_type)
        (void)MHD_add_response_header(r->response, "Content-Type", content_type);
}

void http_respond_json(http_request *req, unsigned status, strbuf *body)
{
    http_respond(req, status, "application/json", body);
}

void http_reply_cors(http_req *r, const char *origin)
{
    http_set_header(&r->pub, "Access-Control-Allow-Origin", origin);
    http_set_header(&r->pub, "Access-Control-Expose-Headers",
                    "x-request-id, request-id, retry-after");
    http_set_header(&r->pub, "Vary", "Origin");
}

enum MHD_Result http_reply_queue(http_req *r)
{
    struct MHD_Response *m = r->response;
    r->response = NULL;
    if (!m) return MHD_NO;
    if ((r->status == 429 || r->status == 503) && !has_header(r, "Retry-After"))
        http_set_header(&r->pub, "Retry-After", r->status == 429 ? "1" : "3");
    for (size_t i = 0; i < r->n_headers; i++)
        (void)MHD_add_response_header(m, r->headers[i].name, r->headers[i].value);
    (void)MHD_add_response_header(m, r->pub.anthropic ? "request-id" : "x-request-id", r->id_text);
    (void)MHD_add_response_header(m, "X-Content-Type-Options", "nosniff");
    if (atomic_load(&r->server->quiet)) (void)MHD_add_response_header(m, "Connection", "close");
    http_conn_phase(r->conn, r->server, r->streaming ? CONN_REPLY : CONN_LAST, HTTP_REPLY_SECONDS);
    const enum MHD_Result rc = MHD_queue_response(r->mhd, r->status, m);
    MHD_destroy_response(m);
    return rc;
}

void http_reply_raw(const http_req *r, int fd, unsigned status, const char *message)
{
    strbuf body = {0}, out = {0};
    const char *reason = status == 400   ? "Bad Request"
                         : status == 408 ? "Request Timeout"
                         : status == 413 ? "Content Too Large"
                         : status == 501 ? "Not Implemented"
                                         : "Service Unavailable\r\nRetry-After: 3";
    http_error_object(r ? &r->pub : NULL, &body, &(http_error){.status = status}, message);
    strbuf_printf(&out,
                  "HTTP/1.1 %u %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n"
                  "Connection: close\r\n\r\n",
                  status, reason, body.len);
    strbuf_append(&out, body.data, body.len);
    /* A few hundred bytes as the first answer of an idle connection: they fit the socket buffer. */
    if (!out.failed && !body.failed) (void)send(fd, out.data, out.len, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)shutdown(fd, SHUT_WR);
    strbuf_deinit(&body);
    strbuf_deinit(&out);
}
