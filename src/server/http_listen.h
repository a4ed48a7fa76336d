/* http_listen.h - a listening socket: TCP by address or name, or a Unix socket. */
#ifndef CALLA_SERVER_HTTP_LISTEN_H
#define CALLA_SERVER_HTTP_LISTEN_H

#include "base/error.h"

/* *fd: listening, close-on-exec. *port: the one that was given. */
calla_status listen_tcp(const char *host, uint16_t port, int *fd, uint16_t *port_out,
                        calla_error *err);

/* Makes the socket with mode 0600; one that nobody listens on any more is replaced. */
calla_status listen_unix(const char *path, int *fd, calla_error *err);

#endif
