#include "net/http_client.h"
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include "base/mem.h"
#include "base/pool.h"

#if defined(__has_include)
#if __has_include(<curl/curl.h>)
#define HAVE_CURL_H 1
#endif
#endif

#if defined(HAVE_CURL_H)
#define CURL_DISABLE_TYPECHECK
#include <curl/curl.h>

#define CURL_VERSION_MIN 0x074200u /* 7.66: Retry-After */

/* name, result, parameters */
/* clang-format off */
#define CURL_FUNCTIONS(X) \
    X(global_init, CURLcode, (long flags)) \
    X(version_info, curl_version_info_data *, (CURLversion age)) \
    X(version, char *, (void)) \
    X(easy_init, CURL *, (void)) \
    X(easy_cleanup, void, (CURL *)) \
    X(easy_reset, void, (CURL *)) \
    X(easy_setopt, CURLcode, (CURL *, CURLoption, ...)) \
    X(easy_perform, CURLcode, (CURL *)) \
    X(easy_getinfo, CURLcode, (CURL *, CURLINFO, ...)) \
    X(easy_strerror, const char *, (CURLcode)) \
    X(slist_append, struct curl_slist *, (struct curl_slist *, const char *)) \
    X(slist_free_all, void, (struct curl_slist *))
/* clang-format on */

struct http_library {
    void *handle;
#define X(name, result, parameters) result(*name) parameters;
    CURL_FUNCTIONS(X)
#undef X
};

struct http_client {
    http_library *lib;
    CURL *curl;
};
#else /* built without libcurl's headers: everything is refused in one place */
struct http_library {
    int unused;
};
struct http_client {
    int unused;
};
#endif

/* ---- Addresses ---------------------------------------------------------------------------- */

bool http_url_split(const char *url, http_url *out)
{
    memset(out, 0, sizeof *out);
    const char *p = strstr(url, "://");
    if (!p) return false;
    out->scheme = url;
    out->n_scheme = (size_t)(p - url);
    const bool https = out->n_scheme == 5 && !strncasecmp(url, "https", 5);
    if (!https && !(out->n_scheme == 4 && !strncasecmp(url, "http", 4))) return false;
    p += 3;
    const char *end = p + strcspn(p, "/?#");
    for (const char *q = p; q < end; q++)
        if (*q == '@' || *q == '\\' || *q <= ' ' || *q == 0x7f) return false;
    out->host = p;
    out->path = end;
    if (*p == '[') { /* an IPv6 address */
        const char *bracket = memchr(p, ']', (size_t)(end - p));
        if (!bracket) return false;
        p = bracket + 1;
    } else {
        while (p < end && *p != ':')
            p++;
    }
    out->n_host = (size_t)(p - out->host);
    if (p < end && *p++ != ':') return false;
    out->port = p;
    out->n_port = (size_t)(end - p);
    for (; p < end; p++)
        if (*p < '0' || *p > '9') return false;
    return out->n_host > 0 && out->n_port <= 5;
}

bool http_same_origin(const char *a, const char *b)
{
    http_url x, y;
    if (!http_url_split(a, &x) || !http_url_split(b, &y)) return false;
    const char *port = x.n_scheme == 5 ? "443" : "80";
    if (x.n_port == 0) x.port = port, x.n_port = strlen(port);
    if (y.n_port == 0) y.port = y.n_scheme == 5 ? "443" : "80", y.n_port = strlen(y.port);
    return x.n_scheme == y.n_scheme && x.n_host == y.n_host && x.n_port == y.n_port &&
           !strncasecmp(x.host, y.host, x.n_host) && !memcmp(x.port, y.port, x.n_port);
}

bool http_token_safe(const char *url)
{
    http_url u;
    if (!http_url_split(url, &u)) return false;
    if (u.n_scheme == 5) return true;
    static const char *const local[] = {"localhost", "127.0.0.1", "[::1]"};
    for (size_t i = 0; i < sizeof local / sizeof *local; i++)
        if (strlen(local[i]) == u.n_host && !strncasecmp(local[i], u.host, u.n_host)) return true;
    return false;
}

void http_host(const char *url, char *out, size_t size)
{
    http_url u;
    if (http_url_split(url, &u))
        (void)snprintf(out, size, "%.*s", (int)(u.path - u.host), u.host);
    else
        (void)snprintf(out, size, "?");
}

/* ---- Headers ------------------------------------------------------------------------------ */

static bool take_number(const char **p, uint64_t *out)
{
    uint64_t v = 0;
    const char *q = *p;
    for (; *q >= '0' && *q <= '9'; q++) {
        if (v > UINT64_MAX / 10 - 1) return false;
        v = v * 10 + (uint64_t)(*q - '0');
    }
    if (q == *p) return false;
    *p = q;
    *out = v;
    return true;
}

static void read_number(const char *value, uint64_t *out)
{
    uint64_t v;
    if (take_number(&value, &v) && *value == '\0') *out = v;
}

/* "bytes 0-99/1234", the last may be "*". */
static void read_range(const char *value, http_reply *r)
{
    uint64_t first, last, size = HTTP_UNKNOWN;
    if (strncasecmp(value, "bytes ", 6) != 0) return;
    value += 6;
    if (!take_number(&value, &first) || *value++ != '-' || !take_number(&value, &last) ||
        *value++ != '/' || last < first)
        return;
    if (strcmp(value, "*") != 0) {
        if (!take_number(&value, &size) || *value != '\0' || last >= size) return;
    }
    r->range_first = first;
    r->range_last = last;
    r->range_size = size;
}

static void read_etag(const char *value, char *out, size_t size)
{
    if (!strncmp(value, "W/", 2)) value += 2;
    const size_t n = strlen(value);
    const bool quoted = n >= 2 && value[0] == '"' && value[n - 1] == '"';
    (void)snprintf(out, size, "%.*s", (int)(quoted ? n - 2 : n), value + quoted);
}

void http_reply_header(http_reply *r, const char *line, size_t n)
{
    char text[1024];
    while (n > 0 && (line[n - 1] == '\r' || line[n - 1] == '\n' || line[n - 1] == ' '))
        n--;
    if (n >= sizeof text) return; /* none of those that matter */
    memcpy(text, line, n);
    text[n] = '\0';
    char *value = strchr(text, ':');
    if (!value) return;
    *value++ = '\0';
    while (*value == ' ' || *value == '\t')
        value++;
    if (!strcasecmp(text, "content-length"))
        read_number(value, &r->length);
    else if (!strcasecmp(text, "content-range"))
        read_range(value, r);
    else if (!strcasecmp(text, "etag"))
        read_etag(value, r->etag, sizeof r->etag);
    else if (!strcasecmp(text, "x-linked-size") && r->linked_size == HTTP_UNKNOWN)
        read_number(value, &r->linked_size);
    else if (!strcasecmp(text, "x-linked-etag") && !r->linked_etag[0])
        read_etag(value, r->linked_etag, sizeof r->linked_etag);
    else if (!strcasecmp(text, "x-repo-commit") && !r->commit[0])
        (void)snprintf(r->commit, sizeof r->commit, "%s", value);
    else if (!strcasecmp(text, "x-error-message"))
        (void)snprintf(r->message, sizeof r->message, "%s", value);
}

/* What belongs to one hop is forgotten at the next. */
static void begin_hop(http_reply *r)
{
    r->status = 0;
    r->length = r->range_first = r->range_last = r->range_size = HTTP_UNKNOWN;
    r->retry_after = 0;
    r->etag[0] = r->message[0] = '\0';
}

/* ---- The library -------------------------------------------------------------------------- */

#if defined(HAVE_CURL_H)

static bool find_functions(http_library *lib, const char **missing)
{
    void *p;
#define X(name, result, parameters)                                                                \
    p = dlsym(lib->handle, "curl_" #name);                                                         \
    if (!p && !*missing) *missing = "curl_" #name;                                                 \
    memcpy(&lib->name, &p, sizeof p);
    CURL_FUNCTIONS(X)
#undef X
    return *missing == NULL;
}

calla_status http_library_open(http_library **out, const char *const *names, calla_error *err)
{
#if defined(__APPLE__)
    static const char *const usual[] = {"libcurl.4.dylib", "/usr/lib/libcurl.4.dylib", NULL};
#else
    static const char *const usual[] = {"libcurl.so.4", "libcurl-gnutls.so.4", NULL};
#endif
    *out = NULL;
    http_library *lib = mem_alloc(sizeof *lib);
    if (!lib) return err_set(err, CALLA_ERR_MEMORY, "no memory for libcurl");
    if (!names) names = usual;
    for (size_t i = 0; names[i] && !lib->handle; i++)
        lib->handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    const char *missing = NULL;
    calla_status st = CALLA_OK;
    if (!lib->handle)
        st = err_set(err, CALLA_ERR_UNSUPPORTED,
                     "downloads need libcurl, and %s is not installed (package libcurl4, or curl)",
                     names[0]);
    else if (!find_functions(lib, &missing))
        st = err_set(err, CALLA_ERR_UNSUPPORTED, "libcurl is too old: it has no %s", missing);
    else if (lib->version_info(CURLVERSION_NOW)->version_num < CURL_VERSION_MIN)
        st = err_set(err, CALLA_ERR_UNSUPPORTED, "expected libcurl 7.66 or newer, found %s",
                     lib->version());
    else if (lib->global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        st = err_set(err, CALLA_ERR_UNSUPPORTED, "libcurl cannot be set up");
    if (st == CALLA_OK)
        *out = lib;
    else
        http_library_close(lib);
    return st;
}

/* The code stays loaded: TLS libraries below it do not like to go. */
void http_library_close(http_library *lib)
{
    mem_free(lib);
}

const char *http_library_version(const http_library *lib)
{
    return lib->version();
}

calla_status http_client_create(http_client **out, http_library *lib, calla_error *err)
{
    *out = NULL;
    http_client *c = mem_alloc(sizeof *c);
    if (c) c->lib = lib;
    if (c) c->curl = lib->easy_init();
    if (!c || !c->curl) {
        mem_free(c);
        return err_set(err, CALLA_ERR_MEMORY, "no memory for an HTTP client");
    }
    *out = c;
    return CALLA_OK;
}

void http_client_destroy(http_client *c)
{
    if (!c) return;
    c->lib->easy_cleanup(c->curl);
    mem_free(c);
}

/* ---- One request -------------------------------------------------------------------------- */

typedef struct hop {
    http_client *client;
    const http_call *call;
    http_reply *reply;
    bool told;    /* on_reply was asked */
    bool stopped; /* a callback said no */
    bool stalled; /* nothing came for too long */
    double stall_seconds;
    double moved; /* when something came last */
} hop;

static bool is_redirect(int status)
{
    return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

/* What a server sends back of the secret must reach no message. */
static bool has_token(const http_call *call, const char *p, size_t n)
{
    const size_t n_token = call->token ? strlen(call->token) : 0;
    for (size_t i = 0; n_token > 0 && i + n_token <= n; i++)
        if (!memcmp(p + i, call->token, n_token)) return true;
    return false;
}

static size_t on_header(char *p, size_t size, size_t n, void *user)
{
    hop *h = user;
    h->moved = time_now();
    n *= size;
    /* A reply may be preceded by others: 100 Continue, a proxy's. */
    if (n > 5 && !strncmp(p, "HTTP/", 5)) begin_hop(h->reply);
    if (!has_token(h->call, p, n)) http_reply_header(h->reply, p, n);
    return n;
}

/* The final reply's headers are complete. */
static bool tell_reply(hop *h)
{
    if (h->told) return !h->stopped;
    h->told = true;
    long status = 0;
    curl_off_t wait = 0;
    (void)h->client->lib->easy_getinfo(h->client->curl, CURLINFO_RESPONSE_CODE, &status);
    (void)h->client->lib->easy_getinfo(h->client->curl, CURLINFO_RETRY_AFTER, &wait);
    h->reply->status = (int)status;
    h->reply->retry_after = (double)wait;
    if (!is_redirect(h->reply->status) && h->call->on_reply &&
        !h->call->on_reply(h->call->user, h->reply))
        h->stopped = true;
    return !h->stopped;
}

static size_t on_body(char *p, size_t size, size_t n, void *user)
{
    hop *h = user;
    h->moved = time_now();
    n *= size;
    if (!tell_reply(h)) return 0;
    if (is_redirect(h->reply->status) || !h->call->on_body) return n;
    if (h->call->on_body(h->call->user, p, n)) return n;
    h->stopped = true;
    return 0;
}

/* Called about once a second, whatever happens. libcurl's own limit of speed looks at averages. */
static int on_progress(void *user, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    (void)a, (void)b, (void)c, (void)d;
    hop *h = user;
    h->stalled = time_now() - h->moved > h->stall_seconds;
    return h->stalled || (h->call->cancel && atomic_load(h->call->cancel));
}

static bool set_options(hop *h, const char *url, struct curl_slist *headers, char *error_text)
{
    const http_library *l = h->client->lib;
    CURL *c = h->client->curl;
    bool ok = true;
    l->easy_reset(c); /* keeps connections */
#define SET(option, value) ok = l->easy_setopt(c, option, value) == CURLE_OK && ok
    SET(CURLOPT_URL, url);
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_FOLLOWLOCATION, 0L); /* http_do() follows: it knows where the token may go */
    SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1); /* ranges want connections each */
    SET(CURLOPT_USERAGENT, "calla/" CALLA_VERSION);
    SET(CURLOPT_HTTPHEADER, headers);
    SET(CURLOPT_ERRORBUFFER, error_text);
    SET(CURLOPT_CONNECTTIMEOUT_MS, (long)(h->stall_seconds * 1000));
    SET(CURLOPT_NOPROGRESS, 0L);
    SET(CURLOPT_XFERINFOFUNCTION, on_progress);
    SET(CURLOPT_XFERINFODATA, h);
    SET(CURLOPT_HEADERFUNCTION, on_header);
    SET(CURLOPT_HEADERDATA, h);
    SET(CURLOPT_WRITEFUNCTION, on_body);
    SET(CURLOPT_WRITEDATA, h);
    SET(CURLOPT_BUFFERSIZE, 256L * 1024);
    SET(CURLOPT_NOBODY, h->call->head ? 1L : 0L);
    if (h->call->ranged) {
        char range[48];
        (void)snprintf(range, sizeof range, "%llu-%llu", (unsigned long long)h->call->first,
                       (unsigned long long)h->call->last);
        SET(CURLOPT_RANGE, range); /* copied */
    }
#undef SET
    return ok;
}

static http_outcome outcome_of(const hop *h, CURLcode code, const char *url, const char *detail,
                               calla_error *err)
{
    char host[128];
    http_host(url, host, sizeof host);
    switch (code) {
    case CURLE_OK:
        return HTTP_OK;
    case CURLE_WRITE_ERROR:
        if (h->stopped) return HTTP_STOPPED;
        break;
    case CURLE_ABORTED_BY_CALLBACK:
        if (!h->stalled) return HTTP_CANCELLED;
        (void)err_set(err, CALLA_ERR_IO, "%s: nothing came for %.0f s", host, h->stall_seconds);
        return HTTP_BROKEN;
    case CURLE_PARTIAL_FILE:
        (void)err_set(err, CALLA_ERR_IO, "%s: the connection ended in the middle of a reply", host);
        return HTTP_BROKEN;
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_OUT_OF_MEMORY:
        (void)err_set(err, CALLA_ERR_IO, "%s: %s", host,
                      detail[0] ? detail : h->client->lib->easy_strerror(code));
        return HTTP_REFUSED;
    default:
        break;
    }
    (void)err_set(err, CALLA_ERR_IO, "%s: %s", host,
                  detail[0] ? detail : h->client->lib->easy_strerror(code));
    return HTTP_BROKEN;
}

static http_outcome do_hop(http_client *c, const http_call *call, const char *url,
                           http_reply *reply, calla_error *err)
{
    const http_library *l = c->lib;
    hop h = {.client = c,
             .call = call,
             .reply = reply,
             .stall_seconds = call->stall_seconds > 0 ? call->stall_seconds : 30,
             .moved = time_now()};
    char detail[CURL_ERROR_SIZE] = "";
    strbuf line = {0};
    struct curl_slist *headers = NULL;
    begin_hop(reply);
    if (call->token && http_token_safe(url) && http_same_origin(call->url, url) &&
        strbuf_printf(&line, "Authorization: Bearer %s", call->token))
        headers = l->slist_append(NULL, line.data);
    http_outcome outcome;
    if (line.failed || (line.len > 0 && !headers) || !set_options(&h, url, headers, detail)) {
        (void)err_set(err, CALLA_ERR_MEMORY, "no memory for an HTTP request");
        outcome = HTTP_REFUSED;
    } else {
        const CURLcode code = l->easy_perform(c->curl);
        /* A reply without a body has not been told yet. */
        if (code == CURLE_OK && !tell_reply(&h))
            outcome = HTTP_STOPPED;
        else
            outcome = outcome_of(&h, code, url, detail, err);
    }
    (void)l->easy_setopt(c->curl, CURLOPT_ERRORBUFFER, NULL);
    (void)l->easy_setopt(c->curl, CURLOPT_HTTPHEADER, NULL);
    l->slist_free_all(headers);
    if (line.data) memset(line.data, 0, line.len);
    strbuf_deinit(&line);
    return outcome;
}

http_outcome http_do(http_client *c, const http_call *call, http_reply *reply, calla_error *err)
{
    http_url parts;
    char host[128];
    memset(reply, 0, sizeof *reply);
    reply->linked_size = HTTP_UNKNOWN;
    char *url = mem_strdup(call->url);
    http_outcome outcome = HTTP_REFUSED;
    for (int n = 0; url; n++) {
        if (!http_url_split(url, &parts)) {
            (void)err_set(err, CALLA_ERR_ARGUMENT,
                          "expected an address that begins with http:// or https://%s",
                          n > 0 ? ", and was sent to another" : "");
            break;
        }
        outcome = do_hop(c, call, url, reply, err);
        if (outcome != HTTP_OK || !is_redirect(reply->status)) break;
        const char *next = NULL;
        (void)c->lib->easy_getinfo(c->curl, CURLINFO_REDIRECT_URL, &next);
        http_host(url, host, sizeof host);
        outcome = HTTP_REFUSED;
        if (!next || n >= HTTP_REDIRECTS_MAX) {
            (void)err_set(err, CALLA_ERR_IO, "%s: %s", host,
                          next ? "more than 10 redirects" : "a redirect that names no address");
            break;
        }
        if (parts.n_scheme == 5 && strncasecmp(next, "https:", 6) != 0) {
            (void)err_set(err, CALLA_ERR_IO, "%s: a redirect from https to something else", host);
            break;
        }
        if (!http_same_origin(call->url, next)) reply->moved = true;
        char *copy = mem_strdup(next);
        mem_free(url);
        url = copy;
    }
    if (!url) (void)err_set(err, CALLA_ERR_MEMORY, "no memory for an address");
    mem_free(url);
    return outcome;
}

#else /* HAVE_CURL_H */

calla_status http_library_open(http_library **out, const char *const *names, calla_error *err)
{
    (void)names;
    *out = NULL;
    return err_set(err, CALLA_ERR_UNSUPPORTED,
                   "this calla was built without libcurl's headers, so it cannot download");
}

void http_library_close(http_library *lib)
{
    mem_free(lib);
}

const char *http_library_version(const http_library *lib)
{
    (void)lib;
    return "none";
}

calla_status http_client_create(http_client **out, http_library *lib, calla_error *err)
{
    (void)lib;
    *out = NULL;
    return err_set(err, CALLA_ERR_UNSUPPORTED, "no HTTP client in this build");
}

void http_client_destroy(http_client *c)
{
    mem_free(c);
}

http_outcome http_do(http_client *c, const http_call *call, http_reply *reply, calla_error *err)
{
    (void)c, (void)call;
    begin_hop(reply);
    (void)err_set(err, CALLA_ERR_UNSUPPORTED, "no HTTP client in this build");
    return HTTP_REFUSED;
}

#endif
