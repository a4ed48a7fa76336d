/* ask URL [METHOD PATH [BODY [HEADER...]]]: one HTTP request to http://127.0.0.1:PORT or unix:PATH;
 * prints the whole answer, head and all. With URL alone the request's bytes come from stdin.
 * ASK_BYTES=N: hangs up after about N bytes. Exit 1 when nothing came. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/mem.h"

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0 /* macOS */
#endif

static int dial(const char *url)
{
    if (strncmp(url, "unix:", 5) == 0) {
        struct sockaddr_un addr = {.sun_family = AF_UNIX};
        (void)snprintf(addr.sun_path, sizeof addr.sun_path, "%s", url + 5);
        const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        return connect(fd, (const struct sockaddr *)&addr, sizeof addr) == 0 ? fd : -1;
    }
    const char *colon = strrchr(url, ':');
    const struct sockaddr_in addr = {
        .sin_family = AF_INET,
        .sin_port = htons((uint16_t)(colon ? strtoul(colon + 1, NULL, 10) : 0)),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    return connect(fd, (const struct sockaddr *)&addr, sizeof addr) == 0 ? fd : -1;
}

static void make_request(strbuf *out, int argc, char **argv)
{
    const char *body = argc > 4 ? argv[4] : "";
    strbuf_printf(out, "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n", argv[2],
                  argv[3]);
    for (int i = 5; i < argc; i++)
        strbuf_printf(out, "%s\r\n", argv[i]);
    if (body[0]) strbuf_printf(out, "Content-Type: application/json\r\n");
    strbuf_printf(out, "Content-Length: %zu\r\n\r\n%s", strlen(body), body);
}

int main(int argc, char **argv)
{
    strbuf out = {0};
    char block[4096];
    const char *bound = getenv("ASK_BYTES");
    const size_t n_max = bound ? strtoul(bound, NULL, 10) : SIZE_MAX;
    if (argc == 2)
        for (size_t n; (n = fread(block, 1, sizeof block, stdin)) > 0;)
            strbuf_append(&out, block, n);
    else if (argc >= 4)
        make_request(&out, argc, argv);
    else
        return 2;
    const int fd = dial(argv[1]);
    size_t n_got = 0;
    if (fd >= 0) {
        for (size_t off = 0; off < out.len;) {
            const ssize_t n = send(fd, out.data + off, out.len - off, MSG_NOSIGNAL);
            if (n <= 0) break;
            off += (size_t)n;
        }
        for (ssize_t n; n_got < n_max && (n = recv(fd, block, sizeof block, 0)) > 0;) {
            (void)fwrite(block, 1, (size_t)n, stdout);
            n_got += (size_t)n;
        }
        (void)close(fd);
    }
    strbuf_deinit(&out);
    return n_got > 0 ? 0 : 1;
}
