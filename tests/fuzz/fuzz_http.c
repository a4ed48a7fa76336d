/* fuzz_http.c - any bytes on a connection of the HTTP layer; any header values for its access
 * rules.
 *
 * The server is real and stays for the whole run; the connection is a Unix socket, since a TCP
 * port a run would use them up. First byte: bit 0 cuts the rest into two pieces, bit 1 hangs up
 * instead of reading the answer, bit 2 reads without closing the sending side first. Checked: no
 * answer without a status line, a simple request (no bytes at all stand for it) is answered, and
 * nothing is left running at the end of each.
 */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/mem.h"
#include "server/http.h"
#include "server/http_access.h"

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0 /* macOS */
#endif

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static http_server *server;
static struct sockaddr_un addr = {.sun_family = AF_UNIX};

static void handle_echo(api_ctx *ctx, http_request *req)
{
    strbuf out = {0};
    const char *q = http_query(req, "q");
    (void)ctx;
    strbuf_append(&out, req->body, req->n_body);
    http_set_header(req, "X-Echo", q && strlen(q) < 20 ? "short" : "long");
    http_respond(req, 200, "text/plain", &out);
}

static void handle_stream(api_ctx *ctx, http_request *req)
{
    sse_stream *s = sse_open(req);
    (void)ctx;
    if (!s) abort();
    for (size_t i = 0; i < 3; i++)
        (void)sse_send(s, i == 1 ? "named" : NULL, req->body, req->n_body);
    sse_close(s);
}

static const http_route routes[] = {
    {"GET", "/", handle_echo, HTTP_NO_MODEL},
    {"POST", "/e", handle_echo, HTTP_NO_MODEL},
    {"POST", "/s", handle_stream, HTTP_NO_MODEL},
    {"GET", "/v1/m/*", handle_echo, HTTP_NO_MODEL},
};

static void stop_server(void)
{
    http_server_destroy(server);
}

static void start_server(void)
{
    static const char *const keys[] = {"key", NULL}, *const origins[] = {"http://a", NULL};
    const char *dir = getenv("TMPDIR");
    calla_error err;
    (void)signal(SIGPIPE, SIG_IGN);
    (void)snprintf(addr.sun_path, sizeof addr.sun_path, "%s/fuzz_http.%ld",
                   dir && strlen(dir) < 60 ? dir : "/tmp", (long)getpid());
    const http_options o = {.routes = routes,
                            .n_routes = sizeof routes / sizeof *routes,
                            .unix_socket = addr.sun_path,
                            .keys = getenv("FUZZ_HTTP_KEYS") ? keys : NULL,
                            .cors_origins = origins,
                            .body_bytes_max = 4096};
    if (http_server_create(&server, &o, &err) != CALLA_OK) {
        fprintf(stderr, "fuzz_http: %s\n", err.message);
        abort();
    }
    (void)atexit(stop_server);
}

/* What the rules say of a value must not depend on bytes around it, and nothing may be read past
 * its end: the copy ends where the allocation does. */
static void check_access(const uint8_t *data, size_t size)
{
    static const char *const keys[] = {"key", "longer-key", NULL};
    char *s = mem_alloc(size + 1);
    if (!s) return;
    if (size > 0) memcpy(s, data, size);
    const bool host = access_host(s, "bound.example", NULL);
    if (host && strstr(s, "evil")) { /* only as a part of *.localhost */
        const char *local = strstr(s, ".localhost");
        if (!local) abort();
    }
    (void)access_origin_same(s, s);
    (void)access_is_json(s);
    if (access_key(NULL, s, keys) && strcmp(s, "key") != 0 && strcmp(s, "longer-key") != 0) abort();
    (void)access_key(s, NULL, keys);
    mem_free(s);
}

static void put(int fd, const uint8_t *data, size_t n)
{
    while (n > 0) {
        const ssize_t k = send(fd, data, n, MSG_NOSIGNAL);
        if (k <= 0) return;
        data += k;
        n -= (size_t)k;
    }
}

/* To the end of the connection, or until nothing comes for so many milliseconds. */
static void read_answer(int fd, bool must, int patience_ms)
{
    char in[65536];
    size_t n = 0;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    while (n < sizeof in && poll(&p, 1, patience_ms) > 0) {
        const ssize_t k = recv(fd, in + n, sizeof in - n, 0);
        if (k <= 0) break;
        n += (size_t)k;
    }
    if ((n > 0 || must) && (n < 12 || memcmp(in, "HTTP/1.", 7) != 0)) abort();
    if (must && memcmp(in + 9, "200", 3) != 0) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char probe[] = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    if (!server) start_server();
    if (size < 1) return 0;
    check_access(data + 1, size - 1);
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&addr, sizeof addr) != 0) abort();
    const size_t cut = data[0] & 1 ? (size - 1) / 2 : size - 1;
    put(fd, data + 1, cut);
    put(fd, data + 1 + cut, size - 1 - cut);
    if (size == 1) {
        put(fd, (const uint8_t *)probe, sizeof probe - 1);
        read_answer(fd, true, -1);
    } else if (data[0] & 4) {
        read_answer(fd, false, 5);
    } else if (!(data[0] & 2)) {
        (void)shutdown(fd, SHUT_WR);
        read_answer(fd, false, -1);
    }
    (void)close(fd);
    /* Not only answered: a check for leaks that comes while a thread still works would see what it
     * has just allocated. */
    for (int i = 0; http_server_n_active(server) + http_server_n_connections(server) > 0; i++) {
        if (i == 10000) abort();
        (void)poll(NULL, 0, 1);
    }
    return 0;
}
