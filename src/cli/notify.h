/* notify.h - readiness for a supervisor that speaks systemd's notification protocol.
 *
 * Does:    sends a datagram to the socket that NOTIFY_SOCKET names; nothing when there is none. No
 *          library is needed for that.
 * Threads: any; each call is one datagram.
 */
#ifndef CALLA_CLI_NOTIFY_H
#define CALLA_CLI_NOTIFY_H

#include "base/attrs.h"

/* "READY=1\nSTATUS=...", as sd_notify(3) has it; longer than 512 bytes is cut. */
void notify(const char *fmt, ...) ATTR_PRINTF(1, 2);

#endif
