/* http_access.h - who may ask: Host, Origin, keys, media types. Pure functions over header values.
 *
 * DNS rebinding: a page of evil.com can point evil.com at 127.0.0.1 and then talk to this server as
 * its own origin, but its requests say "Host: evil.com". So a Host that is a name must be known;
 * an address or "localhost" cannot have been rebound. Pages elsewhere send their Origin.
 */
#ifndef CALLA_SERVER_HTTP_ACCESS_H
#define CALLA_SERVER_HTTP_ACCESS_H

#include <stdbool.h>
#include <stddef.h>

/* Host header value, or NULL (HTTP/1.0: true). Lists end with NULL and may be NULL; "*" in `allow`
 * allows every name. */
bool access_host(const char *host, const char *bound, const char *const *allow);

/* Origin is "http://" or "https://" and the Host: a page that this server itself delivered. */
bool access_origin_same(const char *origin, const char *host);
/* What a browser can send as an origin, or "*": a scheme, "://" and a host, no path. */
bool access_origin_valid(const char *origin);
bool access_origin_listed(const char *origin, const char *const *origins);

/* One of the keys is in "Authorization: Bearer KEY" or "x-api-key: KEY", or is the password of
 * "Authorization: Basic" (which browsers ask for). The time depends on the lengths and the number
 * of keys only. */
bool access_key(const char *authorization, const char *x_api_key, const char *const *keys);

/* "application/json", with parameters or without; NULL (no header) too. */
bool access_is_json(const char *content_type);

#endif
