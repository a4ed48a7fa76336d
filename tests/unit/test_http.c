/* The HTTP layer over real sockets on loopback: routes, limits, access rules, event streams,
 * hang-ups, shutting down. Time limits are set to a second; nothing here measures time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/pool.h"
#include "server/http.h"
#include "server/metrics.h"

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0 /* macOS */
#endif

#define PATIENCE_MS 20000

/* ---- Handlers ----------------------------------------------------------------------------- */

/* Of the handlers below; one server at a time. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool go;       /* releases /wait */
    int n_waiting; /* in /wait */
    int n_hangups;
    sse_stream *stream; /* open, of /stream */
    int n_streams;
} seen = {.lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};

static void on_hangup(void *user)
{
    (void)user;
    pthread_mutex_lock(&seen.lock);
    seen.n_hangups++;
    pthread_cond_broadcast(&seen.cond);
    pthread_mutex_unlock(&seen.lock);
}

static void handle_echo(api_ctx *ctx, http_request *req)
{
    (void)ctx;
    strbuf out = {0};
    const char *q = http_query(req, "q"), *x = http_header(req, "X-Test");
    strbuf_printf(&out, "%s %s [%s] q=%s x=%s n=%zu ", req->method, req->path, req->tail,
                  q ? q : "-", x ? x : "-", req->n_body);
    strbuf_append(&out, req->body, req->n_body < 200 ? req->n_body : 200);
    http_respond(req, 200, "text/plain", &out);
}

static void handle_wait(api_ctx *ctx, http_request *req)
{
    (void)ctx;
    strbuf out = {0};
    http_on_hangup(req, on_hangup, NULL);
    pthread_mutex_lock(&seen.lock);
    seen.n_waiting++;
    pthread_cond_broadcast(&seen.cond);
    const int n = seen.n_hangups;
    while (!seen.go && seen.n_hangups == n)
        pthread_cond_wait(&seen.cond, &seen.lock);
    seen.n_waiting--;
    pthread_mutex_unlock(&seen.lock);
    strbuf_puts(&out, http_gone(req) ? "{\"gone\":true}" : "{\"gone\":false}");
    http_respond_json(req, 200, &out);
}

static void handle_stream(api_ctx *ctx, http_request *req)
{
    (void)ctx;
    sse_stream *s = sse_open(req);
    assert_non_null(s);
    http_on_hangup(req, on_hangup, NULL);
    pthread_mutex_lock(&seen.lock);
    seen.stream = s;
    seen.n_streams++;
    pthread_cond_broadcast(&seen.cond);
    pthread_mutex_unlock(&seen.lock);
}

static void handle_abort(api_ctx *ctx, http_request *req)
{
    (void)ctx;
    sse_stream *s = sse_open(req);
    (void)sse_send(s, NULL, "lost", 4);
    sse_abort(s);
    http_respond_error(req, &(http_error){.status = 429, .param = "x"}, "no \"room\" %d", 7);
}

static void handle_nothing(api_ctx *ctx, http_request *req)
{
    (void)ctx;
    (void)req;
}

static const http_route routes[] = {
    {"GET", "/health", handle_echo, HTTP_OPEN | HTTP_NO_MODEL},
    {"GET", "/echo", handle_echo, HTTP_NO_MODEL},
    {"POST", "/echo", handle_echo, HTTP_NO_MODEL},
    {"GET", "/v1/models/*", handle_echo, HTTP_NO_MODEL},
    {"POST", "/v1/messages", handle_abort, HTTP_ANTHROPIC | HTTP_NO_MODEL},
    {"POST", "/abort", handle_abort, HTTP_NO_MODEL},
    {"POST", "/wait", handle_wait, HTTP_NO_MODEL},
    {"POST", "/stream", handle_stream, HTTP_NO_MODEL},
    {"GET", "/nothing", handle_nothing, HTTP_NO_MODEL},
    {"GET", "/model", handle_echo, 0},
};

/* ---- A client ----------------------------------------------------------------------------- */

static http_server *server;

static void start(http_options *o)
{
    calla_error err = {0};
    o->routes = routes;
    o->n_routes = sizeof routes / sizeof *routes;
    seen.go = false;
    seen.n_hangups = seen.n_streams = 0;
    seen.stream = NULL;
    if (http_server_create(&server, o, &err) != CALLA_OK) fail_msg("%s", err.message);
}

static void stop(void)
{
    http_server_destroy(server);
    server = NULL;
}

static int dial(void)
{
    const struct sockaddr_in addr = {.sin_family = AF_INET,
                                     .sin_port = htons(http_server_port(server)),
                                     .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&addr, sizeof addr), 0);
    return fd;
}

/* As much as the other side takes; stops quietly when it closes. */
static void put(int fd, const char *data, size_t n)
{
    while (n > 0) {
        const ssize_t k = send(fd, data, n, MSG_NOSIGNAL);
        if (k <= 0) return;
        data += k;
        n -= (size_t)k;
    }
}

static void puts_to(int fd, const char *text)
{
    put(fd, text, strlen(text));
}

/* Appends what arrives until `until` is in it, or the end. False at the end of the connection. */
static bool get(int fd, strbuf *in, const char *until)
{
    char buf[4096];
    strbuf_puts(in, ""); /* data is never NULL */
    for (;;) {
        if (until && strstr(in->data, until)) return true;
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, PATIENCE_MS) <= 0) fail_msg("no answer; so far: %s", in->data);
        const ssize_t n = recv(fd, buf, sizeof buf, 0);
        if (n <= 0) return false;
        strbuf_append(in, buf, (size_t)n);
    }
}

/* One request on a connection of its own; the whole answer, in a buffer of the next call. */
static const char *ask(const char *request)
{
    static strbuf in;
    strbuf_clear(&in);
    strbuf_puts(&in, "");
    const int fd = dial();
    puts_to(fd, request);
    (void)get(fd, &in, NULL);
    (void)close(fd);
    return in.data;
}

static void has(const char *answer, const char *part)
{
    if (!strstr(answer, part)) fail_msg("expected \"%s\" in: %s", part, answer);
}

static void has_no(const char *answer, const char *part)
{
    if (strstr(answer, part)) fail_msg("expected no \"%s\" in: %s", part, answer);
}

#define GET(path, more)                                                                            \
    "GET " path " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" more "\r\n"
#define POST(path, more, n, body)                                                                  \
    "POST " path " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"                           \
    "Content-Type: application/json\r\n" more "Content-Length: " n "\r\n\r\n" body

static void wait_for(const int *count, int n)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE_MS / 1000;
    pthread_mutex_lock(&seen.lock);
    while (*count < n)
        if (pthread_cond_timedwait(&seen.cond, &seen.lock, &until) == ETIMEDOUT) {
            pthread_mutex_unlock(&seen.lock);
            fail_msg("waited in vain: %d of %d", *count, n);
        }
    pthread_mutex_unlock(&seen.lock);
}

static void nap(unsigned ms)
{
    const struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};
    (void)nanosleep(&t, NULL);
}

/* Until the server has seen who came and who left. */
static void wait_connections(uint32_t n)
{
    for (unsigned i = 0; http_server_n_connections(server) != n; i++) {
        if (i == PATIENCE_MS) fail_msg("%u connections", http_server_n_connections(server));
        nap(1);
    }
}

/* ---- Routes and errors -------------------------------------------------------------------- */

static void test_routes(void **state)
{
    (void)state;
    start(&(http_options){0});
    has(ask(GET("/echo?q=a%20b&r", "X-Test: y\r\n")), "GET /echo [] q=a b x=y n=0");
    has(ask(GET("/v1/models/a/b", "")), "[a/b]");
    has(ask(POST("/echo", "", "5", "hello")), "n=5 hello");
    const char *a = ask("HEAD /echo HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    has(a, "200 OK");
    has_no(a, "GET /echo");
    a = ask(GET("/nowhere", ""));
    has(a, "404");
    has(a, "{\"error\":{\"message\":\"there is no /nowhere\",\"type\":\"invalid_request_error\","
           "\"param\":null,\"code\":\"not_found\"}}");
    has(a, "application/json");
    has(a, "x-request-id: req_");
    a = ask(GET("/v1/messages/nowhere", ""));
    has(a, "{\"type\":\"error\",\"error\":{\"type\":\"not_found_error\",\"message\":");
    has(a, "\"request_id\":\"req_");
    a = ask("DELETE /echo HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    has(a, "405");
    has(a, "Allow: GET, HEAD, POST");
    a = ask(POST("/abort", "", "2", "{}"));
    has(a, "429");
    has(a, "no \\\"room\\\" 7");
    has(a, "Retry-After: 1");
    has(a, "\"param\":\"x\"");
    has_no(a, "lost");
    has(ask(POST("/v1/messages", "", "2", "{}")), "\"type\":\"rate_limit_error\"");
    has(ask(GET("/nothing", "")), "500");
    a = ask(GET("/model", ""));
    has(a, "503");
    has(a, "still being loaded");
    has(ask("POST /echo HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            "Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}"),
        "415");
    has(ask(POST("/echo", "Content-Encoding: gzip\r\n", "2", "{}")), "415");
    has(ask(POST("/echo", "Content-Encoding: identity\r\n", "2", "{}")), "200 OK");
    has(ask("POST /echo HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}"), "n=2 {}");
    stop();
}

static void test_keep_alive(void **state)
{
    (void)state;
    start(&(http_options){0});
    strbuf in = {0};
    const int fd = dial();
    /* Pipelined, the second chunked, the third refused before its body. */
    puts_to(fd, "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\none"
                "POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
                "2\r\ntw\r\n1\r\no\r\n0\r\n\r\n"
                "POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nbody"
                "GET /echo HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert_false(get(fd, &in, NULL));
    const char *one = strstr(in.data, "n=3 one"), *two = strstr(in.data, "n=3 two"),
               *three = strstr(in.data, "there is no"), *four = strstr(in.data, "n=0");
    if (!one || !two || !three || !four) fail_msg("%s", in.data);
    assert_true(one < two && two < three && three < four);
    (void)close(fd);
    strbuf_deinit(&in);
    stop();
}

/* ---- Limits ------------------------------------------------------------------------------- */

/* A target in absolute form: its authority counts, not the Host. */
static void test_absolute_target(void **state)
{
    (void)state;
    http_options o = {0};
    start(&o);
    static const char *const good[] = {"http://127.0.0.1:8080/echo?q=1",
                                       "HTTP://localhost/echo?q=1", "https://[::1]/echo?q=1"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        char request[256];
        (void)snprintf(request, sizeof request,
                       "GET %s HTTP/1.1\r\nHost: evil.com\r\nConnection: close\r\n\r\n", good[i]);
        const char *a = ask(request);
        has(a, "200 OK");
        has(a, "GET /echo [] q=1");
    }
    has(ask(POST("http://localhost/v1/messages", "", "2", "{}")), "\"request_id\"");
    has(ask(GET("http://localhost", "")), "there is no /\"");
    has(ask(GET("http://evil.com/health", "")), "200 OK"); /* is open to all */
    static const char *const bad[] = {"http://evil.com/echo", "http:///echo",
                                      "http://me@localhost/echo", "http://localhost:x/echo"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char request[256];
        (void)snprintf(request, sizeof request,
                       "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", bad[i]);
        has(ask(request), "\"host_not_allowed\"");
    }
    /* A page of the same origin. */
    has(ask(GET("http://localhost:7/echo", "Origin: http://localhost:7\r\n")), "200 OK");
    has(ask(GET("http://localhost:7/echo", "Origin: http://localhost\r\n")), "403 Forbidden");
    stop();
}

/* Where a body ends must not be a matter of opinion: refused in JSON, and nothing behind it is
 * taken for a request. */
static void test_framing(void **state)
{
    (void)state;
    static const struct {
        const char *headers, *answer;
    } bad[] = {
        {"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "400 Bad Request"},
        {"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "400 Bad Request"},
        {"Content-Length: 5\r\nContent-Length: 6\r\n", "400 Bad Request"},
        {"content-length: 5\r\nContent-Length: 5\r\n", "400 Bad Request"},
        {"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "400 Bad Request"},
        {"Transfer-Encoding: gzip, chunked\r\n", "501 Not Implemented"},
        {"Transfer-Encoding: gzip\r\n", "501 Not Implemented"},
        {"Transfer-Encoding : chunked\r\n", "400 Bad Request"},
        {"Content-Length: 5\r\nTransfer-Encoding\t: chunked\r\n", "400 Bad Request"},
        {"Transfer-Encoding:\r\n chunked\r\n", "400 Bad Request"},
        {"Content-Length:\r\n 5\r\n", "400 Bad Request"},
        {"X: a\rContent-Length: 5\r\n", "400 Bad Request"},
        {"Host: localhost\r\nContent-Length: 5\r\n", "400 Bad Request"},
    };
    http_options o = {0};
    start(&o);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char request[512];
        (void)snprintf(request, sizeof request,
                       "POST /echo HTTP/1.1\r\nHost: localhost\r\n%s\r\n0\r\n\r\n"
                       "GET /echo HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
                       bad[i].headers);
        const char *a = ask(request);
        has(a, bad[i].answer);
        has(a, "Content-Type: application/json");
        has(a, "{\"error\":{\"message\":\"");
        has(a, "Connection: close");
        has_no(a, "200 OK");
        const char *body = strstr(a, "\r\n\r\n");
        assert_non_null(body);
        has_no(body, "HTTP/1.1"); /* one answer */
    }
    const char *a =
        ask("POST /v1/messages HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
    has(a, "400 Bad Request");
    has(a, "\"type\":\"error\""); /* Anthropic's object */
    has(ask("POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: Chunked\r\n"
            "Connection: close\r\n\r\n3\r\none\r\n0\r\n\r\n"),
        "n=3 one");
    stop();
}

static void test_too_large(void **state)
{
    (void)state;
    start(&(http_options){.body_bytes_max = 1000});
    const char *a = ask(POST("/echo", "", "1000000000", ""));
    has(a, "413");
    has(a, "{\"error\":{\"message\":\"body: expected at most 1000 bytes");
    /* All of it is sent, and the answer is still read. */
    strbuf big = {0};
    strbuf_puts(&big, POST("/echo", "", "3000000", ""));
    for (int i = 0; i < 3000000; i++)
        strbuf_putc(&big, 'x');
    has(ask(big.data), "413");
    strbuf_clear(&big);
    strbuf_puts(&big,
                "POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (int i = 0; i < 2000; i++)
        strbuf_puts(&big, "1\r\nx\r\n");
    strbuf_puts(&big, "0\r\n\r\n");
    has(ask(big.data), "413");
    strbuf_clear(&big);
    strbuf_puts(&big, "GET /echo HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-A: ");
    for (int i = 0; i < 20000; i++)
        strbuf_putc(&big, 'x');
    strbuf_puts(&big, "\r\n\r\n");
    a = ask(big.data);
    has(a, "431");
    has(a, "{\"error\"");
    strbuf_clear(&big);
    strbuf_puts(&big, "GET /");
    for (int i = 0; i < 3000; i++)
        strbuf_putc(&big, 'x');
    strbuf_puts(&big, " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    has(ask(big.data), "414");
    strbuf_deinit(&big);
    has(ask(POST("/echo", "", "3", "abc")), "n=3 abc");
    stop();
}

static void test_slow_client(void **state)
{
    (void)state;
    start(&(http_options){.header_seconds = 1, .body_seconds = 1, .idle_seconds = 1});
    const int silent = dial(), head = dial(), body = dial();
    strbuf in = {0};
    puts_to(silent, "GET /echo HTTP/1.1\r\nHost: localhost\r\n\r\n");
    puts_to(head, "GET /echo HTTP/1.1\r\nHost: loc");
    puts_to(body, POST("/echo", "", "10", "abc"));
    assert_false(get(head, &in, NULL));
    has(in.data, "408");
    has(in.data, "headers did not arrive in time");
    strbuf_clear(&in);
    assert_false(get(body, &in, NULL));
    has(in.data, "408");
    has(in.data, "body did not arrive in time");
    strbuf_clear(&in);
    assert_false(get(silent, &in, NULL)); /* one answer, then idle too long */
    has(in.data, "200 OK");
    has_no(in.data, "408");
    (void)close(silent);
    (void)close(head);
    (void)close(body);
    has(ask(GET("/echo", "")), "200 OK");
    strbuf_deinit(&in);
    stop();
}

/* ---- Access ------------------------------------------------------------------------------- */

static void test_keys(void **state)
{
    (void)state;
    const char *const keys[] = {"first-key", "second", NULL};
    start(&(http_options){.keys = keys});
    const char *a = ask(GET("/echo", ""));
    has(a, "401");
    has(a, "\"type\":\"authentication_error\"");
    has(a, "WWW-Authenticate: Bearer");
    has(ask(GET("/echo", "Authorization: Bearer first-key\r\n")), "200 OK");
    has(ask(GET("/echo", "x-api-key: second\r\n")), "200 OK");
    has(ask(GET("/echo", "authorization: bearer second\r\n")), "200 OK");
    /* base64("user:second"), and without the colon */
    has(ask(GET("/echo", "Authorization: Basic dXNlcjpzZWNvbmQ=\r\n")), "200 OK");
    has(ask(GET("/echo", "Authorization: Basic c2Vjb25k\r\n")), "401");
    has(ask(GET("/echo", "x-api-key: secon\r\n")), "401");
    has(ask(GET("/echo", "x-api-key: second2\r\n")), "401");
    has(ask(GET("/echo", "x-api-key:\r\n")), "401");
    has(ask(GET("/echo", "Authorization: Bearer\r\n")), "401");
    has(ask(GET("/nowhere", "")), "401");
    has(ask(GET("/health", "")), "200 OK");
    has(ask(POST("/v1/messages", "", "2", "{}")), "{\"type\":\"error\"");
    stop();
}

static const char *ask_host(const char *host, const char *more)
{
    char text[512];
    (void)snprintf(text, sizeof text,
                   "GET /echo HTTP/1.1\r\nHost: %s\r\n%sConnection: close\r\n\r\n", host, more);
    return ask(text);
}

static void test_host_and_origin(void **state)
{
    (void)state;
    const char *const hosts[] = {"My.Box", NULL}, *const origins[] = {"https://good.org", NULL};
    start(&(http_options){.allow_hosts = hosts, .cors_origins = origins});
    static const char *const good[] = {"localhost", "LocalHost:80", "127.0.0.1:9", "[::1]:80",
                                       "[::1]",     "10.1.2.3",     "my.box:1",    "x.localhost"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        has(ask_host(good[i], ""), "200 OK");
    static const char *const bad[] = {"evil.com",
                                      "localhost.evil.com",
                                      "127.0.0.1.evil.com:80",
                                      "evil.com:127",
                                      "my.box.evil",
                                      "1.2.3",
                                      "a:b:c",
                                      "[::1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        has(ask_host(bad[i], ""), "403");
    has(ask("GET /health HTTP/1.1\r\nHost: evil.com\r\nConnection: close\r\n\r\n"), "200 OK");

    has(ask_host("localhost:1", "Origin: http://localhost:1\r\n"), "200 OK");
    has(ask_host("localhost:1", "Origin: http://localhost:2\r\n"), "403");
    has(ask_host("localhost", "Origin: https://evil.com\r\n"), "403");
    has(ask_host("localhost", "Origin: null\r\n"), "403");
    const char *a = ask_host("localhost", "Origin: https://good.org\r\n");
    has(a, "200 OK");
    has(a, "Access-Control-Allow-Origin: https://good.org");
    has(a, "Vary: Origin");
    a = ask("OPTIONS /echo HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            "Origin: https://good.org\r\nAccess-Control-Request-Method: POST\r\n"
            "Access-Control-Request-Headers: authorization,x-stainless-os\r\n\r\n");
    has(a, "204");
    has(a, "Access-Control-Allow-Headers: authorization,x-stainless-os");
    a = ask("OPTIONS /echo HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            "Origin: https://evil.com\r\nAccess-Control-Request-Method: POST\r\n\r\n");
    has(a, "403");
    has_no(a, "Access-Control-Allow");
    stop();
}

/* ---- Streams ------------------------------------------------------------------------------ */

static sse_stream *open_stream(int *fd)
{
    const int n = seen.n_streams;
    *fd = dial();
    puts_to(*fd, POST("/stream", "", "2", "{}"));
    wait_for(&seen.n_streams, n + 1);
    pthread_mutex_lock(&seen.lock);
    sse_stream *s = seen.stream;
    pthread_mutex_unlock(&seen.lock);
    return s;
}

static void test_stream(void **state)
{
    (void)state;
    int fd;
    strbuf in = {0};
    start(&(http_options){.comment_seconds = 1});
    sse_stream *s = open_stream(&fd);
    assert_true(get(fd, &in, "\r\n\r\n")); /* headers come before any event */
    has(in.data, "Content-Type: text/event-stream");
    assert_true(sse_send(s, NULL, "{\"a\":1}", 7));
    assert_true(get(fd, &in, "data: {\"a\":1}\n\n"));
    assert_true(sse_send(s, "two", "x\ny", 3));
    assert_true(get(fd, &in, "event: two\ndata: x\ndata: y\n\n"));
    assert_true(get(fd, &in, ": still here\n\n"));
    assert_true(sse_send(s, NULL, "[DONE]", 6));
    http_note_usage(sse_request(s), &(http_usage){.n_prompt = 3, .diverged_at = HTTP_NO_POSITION});
    sse_close(s);
    assert_false(get(fd, &in, NULL));
    has(in.data, "data: [DONE]\n\n\r\n0\r\n");
    assert_int_equal(seen.n_hangups, 0);
    (void)close(fd);
    strbuf_deinit(&in);
    stop();
}

static void test_stream_hangup(void **state)
{
    (void)state;
    int fd;
    strbuf in = {0};
    start(&(http_options){0});
    /* Silent, closed. */
    sse_stream *s = open_stream(&fd);
    assert_true(get(fd, &in, "\r\n\r\n"));
    (void)close(fd);
    wait_for(&seen.n_hangups, 1);
    assert_true(http_gone(sse_request(s)));
    assert_false(sse_send(s, NULL, "x", 1));
    sse_close(s);
    /* Half closed counts as gone. */
    s = open_stream(&fd);
    (void)shutdown(fd, SHUT_WR);
    wait_for(&seen.n_hangups, 2);
    assert_false(sse_send(s, NULL, "x", 1));
    sse_close(s);
    (void)close(fd);
    strbuf_deinit(&in);
    stop();
}

/* Nobody reads: sending fails by the bound of the queue and never blocks. */
static void test_stream_overflow(void **state)
{
    (void)state;
    int fd;
    start(&(http_options){0});
    sse_stream *s = open_stream(&fd);
    char *big = mem_alloc(100000);
    assert_non_null(big);
    memset(big, 'x', 100000);
    int n = 0;
    while (n < 1000 && sse_send(s, NULL, big, 100000))
        n++;
    assert_true(n < 1000);
    assert_false(sse_send(s, NULL, "x", 1));
    sse_close(s);
    mem_free(big);
    /* Others are served meanwhile. */
    has(ask(GET("/echo", "")), "200 OK");
    (void)close(fd);
    stop();
}

typedef struct producer {
    sse_stream *s;
    int n;
} producer;

static void *produce(void *arg)
{
    const producer *p = arg;
    char text[32];
    for (int i = 0; i < p->n; i++) {
        const int n = snprintf(text, sizeof text, "event %d", i);
        http_note_token(sse_request(p->s));
        if (!sse_send(p->s, NULL, text, (size_t)n)) break;
        if (i % 500 == 499) nap(1);
    }
    sse_close(p->s);
    return NULL;
}

/* Who closes when the whole answer is there has not left early. */
static void test_prompt_closing(void **state)
{
    (void)state;
    strbuf text = {0};
    metrics *m = NULL;
    calla_error err;
    assert_int_equal(metrics_create(&m, &err), CALLA_OK);
    start(&(http_options){.metrics = m});
    for (int i = 0; i < 300; i++) {
        strbuf in = {0};
        const int fd = dial();
        puts_to(fd, "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n");
        nap(1);
        puts_to(fd, "whole");
        assert_true(get(fd, &in, " whole"));
        (void)close(fd);
        strbuf_deinit(&in);
    }
    wait_connections(0);
    stop();
    metrics_render(m, &text, NULL, 0);
    has(text.data, "calla_requests_total{route=\"/echo\",status=\"200\"} 300\n");
    has(text.data, "calla_clients_gone_total 0\n");
    metrics_destroy(m);
    strbuf_deinit(&text);
}

/* The events of another thread arrive complete and in order. */
static void test_stream_order(void **state)
{
    (void)state;
    enum { N = 20000 };
    int fd;
    pthread_t t;
    strbuf in = {0};
    metrics *m = NULL;
    calla_error err;
    assert_int_equal(metrics_create(&m, &err), CALLA_OK);
    start(&(http_options){.metrics = m});
    producer p = {.n = N};
    p.s = open_stream(&fd);
    assert_int_equal(pthread_create(&t, NULL, produce, &p), 0);
    assert_false(get(fd, &in, NULL));
    pthread_join(t, NULL);
    (void)close(fd);
    /* Without the chunk sizes between. */
    strbuf text = {0};
    for (const char *c = strstr(in.data, "\r\n\r\n") + 4; *c;) {
        size_t n = 0;
        for (; *c != '\r'; c++)
            n = n * 16 + (size_t)(*c <= '9' ? *c - '0' : (*c | 32) - 'a' + 10);
        strbuf_append(&text, c + 2, n);
        c += n + 4;
    }
    const char *at = text.data;
    for (int i = 0; i < N; i++) {
        char want[48];
        const int n = snprintf(want, sizeof want, "data: event %d\n\n", i);
        if (strncmp(at, want, (size_t)n) != 0) fail_msg("event %d: %.40s", i, at);
        at += n;
    }
    assert_int_equal(*at, '\0');
    stop();
    strbuf_clear(&text);
    metrics_render(m, &text, NULL, 0);
    has(text.data, "calla_requests_total{route=\"/stream\",status=\"200\"} 1\n");
    has(text.data, "calla_time_to_first_token_seconds_count 1\n");
    has(text.data, "calla_inter_token_seconds_count 19999\n");
    metrics_destroy(m);
    strbuf_deinit(&in);
    strbuf_deinit(&text);
}

/* ---- Waiting handlers --------------------------------------------------------------------- */

static void test_wait_hangup(void **state)
{
    (void)state;
    start(&(http_options){0});
    const int fd = dial();
    puts_to(fd, POST("/wait", "", "2", "{}"));
    wait_for(&seen.n_waiting, 1);
    has(ask(GET("/echo", "")), "200 OK"); /* others go on */
    assert_int_equal(http_server_n_active(server), 1);
    (void)close(fd);
    wait_for(&seen.n_hangups, 1);
    /* Hidden behind pipelined bytes. */
    const int fd2 = dial();
    puts_to(fd2, POST("/wait", "", "2", "{}"));
    wait_for(&seen.n_waiting, 1);
    puts_to(fd2, "GET /echo HTTP");
    nap(50);
    (void)close(fd2);
#ifdef __linux__
    wait_for(&seen.n_hangups, 2);
#else
    seen.go = true;
#endif
    stop();
}

static void test_quiesce(void **state)
{
    (void)state;
    strbuf in = {0};
    start(&(http_options){0});
    const int fd = dial(), idle = dial(), late = dial();
    puts_to(fd, POST("/wait", "", "2", "{}"));
    puts_to(idle, "GET /echo HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_true(get(idle, &in, "n=0"));
    strbuf_clear(&in);
    puts_to(late, "GET /echo HT");
    wait_for(&seen.n_waiting, 1);
    wait_connections(3);
    const uint16_t port = http_server_port(server);
    http_server_quiesce(server);
    assert_false(get(idle, &in, NULL)); /* closed */
    assert_int_equal(in.len, 0);
    puts_to(late, "TP/1.1\r\nHost: localhost\r\n\r\n"); /* told so, then closed */
    assert_false(get(late, &in, NULL));
    has(in.data, "503");
    has(in.data, "Connection: close");
    strbuf_clear(&in);
    const struct sockaddr_in addr = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int more = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_not_equal(connect(more, (const struct sockaddr *)&addr, sizeof addr), 0);
    assert_int_equal(http_server_n_active(server), 1);
    pthread_mutex_lock(&seen.lock);
    seen.go = true;
    pthread_cond_broadcast(&seen.cond);
    pthread_mutex_unlock(&seen.lock);
    assert_false(get(fd, &in, NULL)); /* finished */
    has(in.data, "{\"gone\":false}");
    (void)close(fd);
    (void)close(idle);
    (void)close(late);
    (void)close(more);
    strbuf_deinit(&in);
    stop();
}

/* Destroying with a client that waits ends its wait by the callback. */
static void test_destroy_busy(void **state)
{
    (void)state;
    start(&(http_options){0});
    const int fd = dial();
    puts_to(fd, POST("/wait", "", "2", "{}"));
    wait_for(&seen.n_waiting, 1);
    stop();
    assert_int_equal(seen.n_hangups, 1);
    (void)close(fd);
}

/* ---- Listening ---------------------------------------------------------------------------- */

static void test_port_in_use(void **state)
{
    (void)state;
    calla_error err;
    http_server *second = NULL;
    start(&(http_options){0});
    const http_options o = {.routes = routes, .n_routes = 1, .port = http_server_port(server)};
    assert_int_equal(http_server_create(&second, &o, &err), CALLA_ERR_IO);
    has(err.message, "is in use by another program");
    assert_null(second);
    const http_options nowhere = {.routes = routes, .n_routes = 1, .host = "192.0.2.1"};
    assert_int_equal(http_server_create(&second, &nowhere, &err), CALLA_ERR_IO);
    has(err.message, "192.0.2.1");
    stop();
}

static void test_unix_socket(void **state)
{
    (void)state;
    char path[100];
    struct stat info;
    strbuf in = {0};
    calla_error err;
    http_server *second = NULL;
    (void)snprintf(path, sizeof path, "build-test-http-%ld.sock", (long)getpid());
    start(&(http_options){.unix_socket = path});
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    const http_options o = {.routes = routes, .n_routes = 1, .unix_socket = path};
    assert_int_equal(http_server_create(&second, &o, &err), CALLA_ERR_IO);
    has(err.message, "in use");
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    (void)snprintf(addr.sun_path, sizeof addr.sun_path, "%s", path);
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&addr, sizeof addr), 0);
    puts_to(fd, "GET /echo HTTP/1.1\r\nHost: whatever\r\nConnection: close\r\n\r\n");
    assert_false(get(fd, &in, NULL));
    has(in.data, "GET /echo");
    (void)close(fd);
    strbuf_deinit(&in);
    stop();
    assert_int_not_equal(stat(path, &info), 0);
}

/* ---- Many --------------------------------------------------------------------------------- */

static atomic_int n_wrong; /* a thread cannot end a test */

static void *client(void *arg)
{
    unsigned seed = *(const unsigned *)arg;
    for (int i = 0; i < 40; i++) {
        seed = seed * 1103515245u + 12345u;
        const int fd = dial();
        strbuf in = {0};
        switch (seed >> 16 & 3) {
        case 0:
            puts_to(fd, GET("/echo", ""));
            (void)get(fd, &in, NULL);
            /* Nothing at all: not even a slot to say so was free. */
            if (in.len != 0 && !strstr(in.data, "\"too many connections\"") &&
                !strstr(in.data, "200 OK"))
                n_wrong++;
            break;
        case 1:
            puts_to(fd, POST("/echo", "", "100", "cut off"));
            break;
        case 2:
            puts_to(fd, "GET /ec");
            break;
        default:
            puts_to(fd, POST("/echo", "", "2", "{}") GET("/echo", "")); /* not read */
            break;
        }
        strbuf_deinit(&in);
        (void)close(fd);
    }
    return NULL;
}

static void test_many(void **state)
{
    (void)state;
    enum { N = 8 };
    pthread_t t[N];
    unsigned seeds[N];
    start(&(http_options){.connections_max = 6});
    for (unsigned i = 0; i < N; i++) {
        seeds[i] = i * 77 + 1;
        assert_int_equal(pthread_create(&t[i], NULL, client, &seeds[i]), 0);
    }
    for (unsigned i = 0; i < N; i++)
        pthread_join(t[i], NULL);
    assert_int_equal(n_wrong, 0);
    wait_connections(0);
    has(ask(GET("/echo", "")), "200 OK");
    stop();
}

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_routes),
        cmocka_unit_test(test_keep_alive),
        cmocka_unit_test(test_absolute_target),
        cmocka_unit_test(test_framing),
        cmocka_unit_test(test_too_large),
        cmocka_unit_test(test_slow_client),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_host_and_origin),
        cmocka_unit_test(test_stream),
        cmocka_unit_test(test_stream_hangup),
        cmocka_unit_test(test_prompt_closing),
        cmocka_unit_test(test_stream_overflow),
        cmocka_unit_test(test_stream_order),
        cmocka_unit_test(test_wait_hangup),
        cmocka_unit_test(test_quiesce),
        cmocka_unit_test(test_destroy_busy),
        cmocka_unit_test(test_port_in_use),
        cmocka_unit_test(test_unix_socket),
        cmocka_unit_test(test_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
