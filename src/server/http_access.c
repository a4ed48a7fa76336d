#include "server/http_access.h"

#include <arpa/inet.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>

#define NAME_MAX_BYTES  255u
#define BASIC_MAX_BYTES 511u

/* Nothing, or a colon and digits. */
static bool is_port(const char *s)
{
    if (s[0] == '\0') return true;
    return s[0] == ':' && s[1 + strspn(s + 1, "0123456789")] == '\0';
}

/* The name or address of "name", "name:port", "[v6]:port"; false when it is none. */
static bool host_name(const char *host, char name[NAME_MAX_BYTES + 1])
{
    const bool v6 = host[0] == '[';
    const char *from = v6 ? host + 1 : host;
    const char *end = from + strcspn(from, v6 ? "]" : ":");
    if (v6 && *end == '\0') return false;
    if (!is_port(v6 ? end + 1 : end)) return false; /* a v6 address needs brackets */
    size_t n = (size_t)(end - from);
    if (n > 0 && from[n - 1] == '.') n--; /* "localhost." */
    if (n == 0 || n > NAME_MAX_BYTES) return false;
    memcpy(name, from, n);
    name[n] = '\0';
    return true;
}

static bool is_address(const char *name)
{
    unsigned char addr[16];
    return inet_pton(AF_INET, name, addr) == 1 || inet_pton(AF_INET6, name, addr) == 1;
}

bool access_host(const char *host, const char *bound, const char *const *allow)
{
    char name[NAME_MAX_BYTES + 1];
    if (!host) return true;
    if (!host_name(host, name)) return false;
    if (is_address(name) || strcasecmp(name, "localhost") == 0) return true;
    const size_t n = strlen(name), n_local = strlen(".localhost");
    if (n > n_local && strcasecmp(name + n - n_local, ".localhost") == 0) return true;
    if (bound && strcasecmp(name, bound) == 0) return true;
    for (; allow && *allow; allow++)
        if (strcmp(*allow, "*") == 0 || strcasecmp(name, *allow) == 0) return true;
    return false;
}

bool access_origin_same(const char *origin, const char *host)
{
    if (!host) return false;
    if (strncasecmp(origin, "http://", 7) == 0) return strcasecmp(origin + 7, host) == 0;
    if (strncasecmp(origin, "https://", 8) == 0) return strcasecmp(origin + 8, host) == 0;
    return false;
}

bool access_origin_valid(const char *origin)
{
    if (strcmp(origin, "*") == 0 || strcmp(origin, "null") == 0) return true;
    const size_t scheme = strcspn(origin, ":");
    if (scheme == 0 || strncmp(origin + scheme, "://", 3) != 0) return false;
    const char *host = origin + scheme + 3;
    for (const char *p = origin; *p != '\0'; p++)
        if (*p <= ' ' || *p >= 0x7f) return false;
    return *host != '\0' && host[strcspn(host, "/?#@")] == '\0';
}

bool access_origin_listed(const char *origin, const char *const *origins)
{
    for (; origins && *origins; origins++)
        if (strcmp(*origins, "*") == 0 || strcasecmp(*origins, origin) == 0) return true;
    return false;
}

/* 1 when equal. Looks at every byte of `given`, whatever the key is. */
static unsigned same_key(const char *given, size_t n_given, const char *key)
{
    const size_t n_key = strlen(key);
    size_t diff = n_given ^ n_key;
    for (size_t i = 0; i < n_given; i++) {
        const unsigned char k = (unsigned char)key[i < n_key ? i : n_key];
        diff |= (size_t)((unsigned char)given[i] ^ k);
    }
    return diff == 0;
}

static unsigned any_key(const char *given, const char *const *keys)
{
    volatile unsigned found = 0; /* no early exit */
    const size_t n = strlen(given);
    for (size_t i = 0; keys[i]; i++)
        found |= same_key(given, n, keys[i]);
    return n > 0 ? found : 0;
}

static int base64_value(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *p = c ? strchr(digits, c) : NULL;
    return p ? (int)(p - digits) : -1;
}

/* The password of "user:password" in base64; false when it is none. */
static bool basic_password(const char *text, char out[BASIC_MAX_BYTES + 1])
{
    unsigned bits = 0, n_bits = 0;
    size_t n = 0;
    for (int v; (v = base64_value(*text)) >= 0; text++) {
        bits = (bits << 6 | (unsigned)v) & 0xffffu;
        n_bits += 6;
        if (n_bits < 8) continue;
        if (n == BASIC_MAX_BYTES) return false;
        n_bits -= 8;
        out[n++] = (char)(unsigned char)(bits >> n_bits);
    }
    out[n] = '\0';
    const char *colon = memchr(out, ':', n);
    if (!colon) return false;
    memmove(out, colon + 1, strlen(colon + 1) + 1);
    return true;
}

bool access_key(const char *authorization, const char *x_api_key, const char *const *keys)
{
    if (!keys || !keys[0]) return true;
    unsigned found = 0;
    if (authorization && strncasecmp(authorization, "Bearer ", 7) == 0)
        found |= any_key(authorization + 7 + strspn(authorization + 7, " "), keys);
    char password[BASIC_MAX_BYTES + 1];
    if (authorization && strncasecmp(authorization, "Basic ", 6) == 0 &&
        basic_password(authorization + 6, password))
        found |= any_key(password, keys);
    if (x_api_key) found |= any_key(x_api_key, keys);
    return found != 0;
}

bool access_is_json(const char *content_type)
{
    static const char json[] = "application/json";
    if (!content_type) return true;
    content_type += strspn(content_type, " \t");
    if (strncasecmp(content_type, json, sizeof json - 1) != 0) return false;
    const char *rest = content_type + sizeof json - 1;
    rest += strspn(rest, " \t");
    return *rest == '\0' || *rest == ';';
}
