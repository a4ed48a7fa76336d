#include "cli/notify.h"
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

void notify(const char *fmt, ...)
{
    const char *name = getenv("NOTIFY_SOCKET");
    struct sockaddr_un to;
    char text[512];
    va_list args;
    const size_t n_name = name ? strlen(name) : 0;
    if (n_name < 2 || n_name >= sizeof to.sun_path || (name[0] != '/' && name[0] != '@')) return;
    memset(&to, 0, sizeof to);
    to.sun_family = AF_UNIX;
    memcpy(to.sun_path, name, n_name);
    if (name[0] == '@') to.sun_path[0] = '\0'; /* Linux: a name outside the file system */
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    const int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    if (fd < 0) return;
    (void)sendto(fd, text, strlen(text), 0, (const struct sockaddr *)&to,
                 (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n_name));
    (void)close(fd);
}
