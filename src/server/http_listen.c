#include "server/http_listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG 128

/* On failure errno says why and *what which call. */
static int open_at(const struct addrinfo *a, const char **what)
{
    const int yes = 1;
    *what = "open a socket for";
    const int fd = socket(a->ai_family, a->ai_socktype, a->ai_protocol);
    if (fd < 0) return -1;
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    *what = "bind";
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0) {
        *what = "listen on";
        if (listen(fd, BACKLOG) == 0) return fd;
    }
    const int reason = errno;
    (void)close(fd);
    errno = reason;
    return -1;
}

static uint16_t port_of(int fd)
{
    struct sockaddr_storage addr = {0};
    socklen_t n = sizeof addr;
    if (getsockname(fd, (struct sockaddr *)&addr, &n) != 0) return 0;
    if (addr.ss_family == AF_INET6) {
        struct sockaddr_in6 v6;
        memcpy(&v6, &addr, sizeof v6);
        return ntohs(v6.sin6_port);
    }
    struct sockaddr_in v4;
    memcpy(&v4, &addr, sizeof v4);
    return ntohs(v4.sin_port);
}

calla_status listen_tcp(const char *host, uint16_t port, int *fd, uint16_t *port_out,
                        calla_error *err)
{
    char service[8];
    struct addrinfo *found = NULL;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    (void)snprintf(service, sizeof service, "%u", (unsigned)port);
    const int rc = getaddrinfo(host, service, &hints, &found);
    if (rc != 0) return err_set(err, CALLA_ERR_ARGUMENT, "host '%s': %s", host, gai_strerror(rc));
    const char *what = "bind";
    *fd = -1;
    for (const struct addrinfo *a = found; a && *fd < 0; a = a->ai_next)
        *fd = open_at(a, &what);
    const int reason = errno;
    freeaddrinfo(found);
    if (*fd >= 0) {
        *port_out = port_of(*fd);
        return CALLA_OK;
    }
    if (reason == EADDRINUSE)
        return err_set(err, CALLA_ERR_IO,
                       "port %u of %s is in use by another program; --port N takes another, "
                       "--port 0 any free one",
                       (unsigned)port, host);
    return err_set(err, CALLA_ERR_IO, "cannot %s %s port %u: %s", what, host, (unsigned)port,
                   strerror(reason));
}

/* Does somebody accept connections there? */
static bool is_alive(const struct sockaddr_un *addr)
{
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0) return true;
    const bool alive = connect(fd, (const struct sockaddr *)addr, sizeof *addr) == 0;
    (void)close(fd);
    return alive;
}

calla_status listen_unix(const char *path, int *fd, calla_error *err)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    struct stat info;
    *fd = -1;
    if (strlen(path) >= sizeof addr.sun_path)
        return err_set(err, CALLA_ERR_ARGUMENT, "socket '%s': longer than the %zu bytes allowed",
                       path, sizeof addr.sun_path - 1);
    memcpy(addr.sun_path, path, strlen(path));
    if (lstat(path, &info) == 0) {
        if (!S_ISSOCK(info.st_mode))
            return err_set(err, CALLA_ERR_IO, "socket '%s': something else has this name", path);
        if (is_alive(&addr))
            return err_set(err, CALLA_ERR_IO, "socket '%s' is in use by another program", path);
        (void)unlink(path);
    }
    const int s = socket(AF_UNIX, SOCK_STREAM, 0);
    if (s < 0) return err_set(err, CALLA_ERR_IO, "socket '%s': %s", path, strerror(errno));
    (void)fcntl(s, F_SETFD, FD_CLOEXEC);
    /* Nobody can connect before listen(), so chmod() comes in time. */
    if (bind(s, (const struct sockaddr *)&addr, sizeof addr) == 0) {
        if (chmod(path, 0600) == 0 && listen(s, BACKLOG) == 0) {
            *fd = s;
            return CALLA_OK;
        }
        (void)unlink(path);
    }
    const int reason = errno;
    (void)close(s);
    return err_set(err, CALLA_ERR_IO, "socket '%s': %s", path, strerror(reason));
}
