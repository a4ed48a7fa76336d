#include "net/hub.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include "base/file.h"
#include "base/json.h"

#define TOKEN_MAX 4096u

/* ---- Names -------------------------------------------------------------------------------- */

static bool is_word(const char *s, size_t n, const char *extra)
{
    if (n == 0 || s[0] == '.' || s[0] == '-') return false;
    for (size_t i = 0; i < n; i++) {
        const char c = s[i];
        const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                           (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
        if (!plain && !strchr(extra, c)) return false;
        if (c == '.' && i + 1 < n && s[i + 1] == '.') return false;
    }
    return true;
}

calla_status hub_parse(const char *text, hub_repo *out, calla_error *err)
{
    memset(out, 0, sizeof *out);
    const char *at = strchr(text, '@'), *slash = strchr(text, '/');
    const size_t n = at ? (size_t)(at - text) : strlen(text);
    const size_t n_owner = slash ? (size_t)(slash - text) : n;
    const size_t n_name = n_owner < n ? n - n_owner - 1 : 0;
    if (n_owner >= n || n_owner > HUB_NAME_MAX || n_name > HUB_NAME_MAX ||
        !is_word(text, n_owner, "") || !is_word(text + n_owner + 1, n_name, ""))
        return err_set(err, CALLA_ERR_ARGUMENT,
                       "expected a model as OWNER/NAME or OWNER/NAME@REVISION, found '%s'", text);
    if (at) {
        const size_t n_rev = strlen(at + 1);
        if (n_rev > HUB_REV_MAX || !is_word(at + 1, n_rev, "/") || at[1] == '/' ||
            at[n_rev] == '/' || strstr(at, "//"))
            return err_set(err, CALLA_ERR_ARGUMENT,
                           "expected a branch, tag or commit after '@', found '%s'", at + 1);
        memcpy(out->rev, at + 1, n_rev);
    }
    memcpy(out->owner, text, n_owner);
    memcpy(out->name, text + n_owner + 1, n_name);
    return CALLA_OK;
}

/* ---- Endpoint and token ------------------------------------------------------------------- */

static const char *env(const char *name)
{
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}

static calla_status check_token(const char *token, const char *where, calla_error *err)
{
    if (strlen(token) > TOKEN_MAX)
        return err_set(err, CALLA_ERR_ARGUMENT, "%s: expected a token, found more than %u bytes",
                       where, TOKEN_MAX);
    for (const char *p = token; *p; p++)
        if (*p <= ' ' || *p >= 0x7f)
            return err_set(err, CALLA_ERR_ARGUMENT,
                           "%s: expected a token of printable ASCII, found another character",
                           where);
    return CALLA_OK;
}

/* The trimmed first line of a file; NULL when there is no such file or nothing in it. */
static calla_status token_file(const char *path, bool must, char **token, calla_error *err)
{
    char *text = NULL;
    size_t n = 0;
    if (!must && access(path, R_OK) != 0) return CALLA_OK;
    const calla_status st = file_read(path, TOKEN_MAX, &text, &n, err);
    if (st != CALLA_OK) return st;
    const char *p = text;
    while (*p == ' ' || *p == '\t' || *p == '\n' || *p == '\r')
        p++;
    const size_t len = strcspn(p, " \t\r\n");
    if (len > 0) *token = mem_memdup(p, len);
    memset(text, 0, n);
    mem_free(text);
    if (len > 0 && !*token) return err_set(err, CALLA_ERR_MEMORY, "no memory for a token");
    return *token ? check_token(*token, path, err) : CALLA_OK;
}

static calla_status find_token(char **token, calla_error *err)
{
    const char *given = env("HF_TOKEN"), *home = env("HOME"), *path = env("HF_TOKEN_PATH");
    strbuf b = {0};
    if (given) {
        size_t n = strlen(given); /* a line end is what reading a file into it leaves */
        if (n > 0 && given[n - 1] == '\n') n--;
        if (n > 0 && given[n - 1] == '\r') n--;
        if (n == 0) return CALLA_OK;
        *token = mem_memdup(given, n);
        return *token ? check_token(*token, "HF_TOKEN", err)
                      : err_set(err, CALLA_ERR_MEMORY, "no memory for a token");
    }
    if (path)
        (void)strbuf_puts(&b, path);
    else if (env("HF_HOME"))
        (void)strbuf_printf(&b, "%s/token", env("HF_HOME"));
    else if (env("XDG_CACHE_HOME"))
        (void)strbuf_printf(&b, "%s/huggingface/token", env("XDG_CACHE_HOME"));
    else if (home)
        (void)strbuf_printf(&b, "%s/.cache/huggingface/token", home);
    else
        return CALLA_OK;
    const calla_status st = b.failed ? err_set(err, CALLA_ERR_MEMORY, "no memory for a file name")
                                     : token_file(b.data, path != NULL, token, err);
    strbuf_deinit(&b);
    return st;
}

calla_status hub_init(hub *h, const char *given, calla_error *err)
{
    memset(h, 0, sizeof *h);
    const char *endpoint = given ? given : env("HF_ENDPOINT") ? env("HF_ENDPOINT") : HUB_ENDPOINT;
    http_url u;
    if (!http_url_split(endpoint, &u) || strpbrk(u.path, "?#%"))
        return err_set(err, CALLA_ERR_ARGUMENT,
                       "%s: expected an address like https://host[:port], without user, password "
                       "or query",
                       given ? "--endpoint" : "HF_ENDPOINT");
    size_t n = strlen(endpoint);
    while (n > 0 && endpoint[n - 1] == '/')
        n--;
    h->endpoint = mem_memdup(endpoint, n);
    const calla_status st = h->endpoint ? find_token(&h->token, err)
                                        : err_set(err, CALLA_ERR_MEMORY, "no memory for a name");
    if (st != CALLA_OK) hub_deinit(h);
    return st;
}

void hub_deinit(hub *h)
{
    if (h->token) memset(h->token, 0, strlen(h->token));
    mem_free(h->token);
    mem_free(h->endpoint);
    memset(h, 0, sizeof *h);
}

/* A revision may have slashes, which are part of one segment. */
static void put_segment(strbuf *out, const char *s)
{
    for (; *s; s++) {
        if (*s == '/')
            (void)strbuf_puts(out, "%2F");
        else
            (void)strbuf_putc(out, *s);
    }
}

bool hub_listing_url(const hub *h, const hub_repo *repo, strbuf *out)
{
    (void)strbuf_printf(out, "%s/api/models/%s/%s/revision/", h->endpoint, repo->owner, repo->name);
    put_segment(out, repo->rev[0] ? repo->rev : "main");
    return strbuf_puts(out, "?blobs=true");
}

bool hub_file_url(const hub *h, const hub_repo *repo, const char *commit, const char *name,
                  strbuf *out)
{
    return strbuf_printf(out, "%s/%s/%s/resolve/%s/%s", h->endpoint, repo->owner, repo->name,
                         commit, name);
}

calla_status hub_explain(const hub *h, const hub_repo *repo, const char *what,
                         const http_reply *reply, bool *again, calla_error *err)
{
    char host[128];
    const int s = reply->status;
    const char *rev = repo->rev[0] ? repo->rev : "main";
    http_host(h->endpoint, host, sizeof host);
    /* Behind a redirect an address may only have grown old. */
    *again = s >= 500 || s == 429 || s == 408 || ((s == 403 || s == 416) && reply->moved);
    char said[240] = "", wait[48] = "";
    if (reply->message[0]) (void)snprintf(said, sizeof said, ": %s", reply->message);
    if (reply->retry_after > 0)
        (void)snprintf(wait, sizeof wait, ", and asks to wait %.0f s", reply->retry_after);
    if (s == 401)
        return err_set(err, CALLA_ERR_IO, "%s: %s answers 401%s: there is no such model, or %s",
                       what, host, said,
                       h->token ? "the token (HF_TOKEN or its file) does not open it"
                                : "it needs a token (HF_TOKEN)");
    if (s == 403 && !reply->moved)
        return err_set(err, CALLA_ERR_IO,
                       "%s: %s answers 403%s: access is not granted; %s/%s/%s may have terms to "
                       "accept first",
                       what, host, said, h->endpoint, repo->owner, repo->name);
    if (s == 404)
        return err_set(err, CALLA_ERR_IO,
                       "%s: %s answers 404%s: there is no such model or no "
                       "revision '%s'",
                       what, host, said, rev);
    return err_set(err, CALLA_ERR_IO, "%s: expected the file from %s, found status %d%s%s", what,
                   host, s, said, wait);
}

/* ---- The listing -------------------------------------------------------------------------- */

static bool ends_with(const char *s, const char *end)
{
    const size_t n = strlen(s), m = strlen(end);
    return n > m && !strcmp(s + n - m, end);
}

bool hub_wanted(const char *name)
{
    static const char *const whole[] = {"config.json", "generation_config.json", HUB_INDEX};
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        if (!strcmp(name, whole[i])) return true;
    if (!strncmp(name, "tokenizer", 9)) return ends_with(name, ".json");
    if (!strncmp(name, "chat_template", 13)) return ends_with(name, ".jinja");
    return ends_with(name, ".safetensors");
}

/* A name that would leave the folder, or means something to a file system, damns the listing. */
static bool is_sound(const char *name, size_t n)
{
    if (n == 0 || n > 1024 || strlen(name) != n || name[0] == '/') return false;
    for (const char *p = name; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f || *p == '\\') return false;
    for (const char *p = name;; p++) {
        const size_t part = strcspn(p, "/");
        if (part == 0 || (part == 1 && p[0] == '.') || (part == 2 && p[0] == '.' && p[1] == '.'))
            return false;
        p += part;
        if (!*p) return true;
    }
}

static bool is_hex(const char *s, size_t n)
{
    return strlen(s) == n && strspn(s, "0123456789abcdef") == n;
}

static void read_id(const json_value *v, const char *key, size_t n_digits, char *id)
{
    const json_value *s = json_get(v, key);
    if (s && s->type == JSON_STRING && s->n_text == n_digits && is_hex(s->text, n_digits))
        memcpy(id, s->text, n_digits + 1);
}

static bool read_size(const json_value *v, uint64_t *out)
{
    int64_t n;
    if (!v) return true;
    if (!json_int(v, &n) || n < 0 || (uint64_t)n > HUB_SIZE_MAX) return false;
    *out = (uint64_t)n;
    return true;
}

static calla_status read_file_entry(hub_listing *l, const json_value *v, calla_error *err)
{
    const json_value *name = json_get(v, "rfilename"), *lfs = json_get(v, "lfs");
    if (!name || name->type != JSON_STRING)
        return err_set(err, CALLA_ERR_FORMAT, "the listing: expected a file with an rfilename");
    if (!is_sound(name->text, name->n_text))
        return err_set(err, CALLA_ERR_FORMAT,
                       "the listing: expected names of files inside the model, found '%.100s'",
                       name->text);
    if (name->n_text > 200 || !is_word(name->text, name->n_text, "") || !hub_wanted(name->text))
        return CALLA_OK;
    for (size_t i = 0; i < l->n_files; i++) /* some file systems do not tell case */
        if (!strcasecmp(l->files[i].name, name->text))
            return err_set(err, CALLA_ERR_FORMAT, "the listing has '%s' twice", name->text);
    if (l->n_files == HUB_FILES_MAX)
        return err_set(err, CALLA_ERR_FORMAT, "the listing: expected at most %d files, found more",
                       HUB_FILES_MAX);
    hub_file f = {.size = HTTP_UNKNOWN};
    uint64_t linked = HTTP_UNKNOWN;
    if (!read_size(json_get(v, "size"), &f.size) || !read_size(json_get(lfs, "size"), &linked))
        return err_set(err, CALLA_ERR_FORMAT, "the listing: expected a size of '%s' up to 16 TiB",
                       name->text);
    if (f.size == HTTP_UNKNOWN) f.size = linked;
    if (linked != HTTP_UNKNOWN && linked != f.size)
        return err_set(err, CALLA_ERR_FORMAT, "the listing: '%s' has two sizes", name->text);
    read_id(v, "blobId", 40, f.id);
    if (lfs && lfs->type == JSON_OBJECT) {
        f.id[0] = '\0'; /* Git's name would be that of a pointer */
        read_id(lfs, "sha256", 64, f.id);
    }
    f.name = mem_strdup(name->text);
    if (!f.name) return err_set(err, CALLA_ERR_MEMORY, "no memory for a file name");
    l->files[l->n_files++] = f;
    return CALLA_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const hub_file *)a)->name, ((const hub_file *)b)->name);
}

calla_status hub_read_listing(hub_listing *l, const char *text, size_t n, calla_error *err)
{
    json_doc doc = {0};
    const json_limits limits = {.what = "the listing", .max_depth = 32, .max_nodes = 1000000};
    calla_status st;
    memset(l, 0, sizeof *l);
    TRY(json_parse(&doc, text, n, &limits, err));
    const json_value *sha = json_get(doc.root, "sha"), *files = json_get(doc.root, "siblings");
    if (!sha || sha->type != JSON_STRING || !is_hex(sha->text, 40)) {
        st = err_set(err, CALLA_ERR_FORMAT, "the listing: expected a commit as \"sha\"");
        goto fail;
    }
    if (!files || files->type != JSON_ARRAY) {
        st = err_set(err, CALLA_ERR_FORMAT, "the listing: expected an array \"siblings\"");
        goto fail;
    }
    memcpy(l->commit, sha->text, 41);
    l->files = mem_array(HUB_FILES_MAX, sizeof *l->files);
    if (!l->files) {
        st = err_set(err, CALLA_ERR_MEMORY, "no memory for the listing");
        goto fail;
    }
    for (const json_value *v = files->first; v; v = v->next)
        TRY(read_file_entry(l, v, err));
    qsort(l->files, l->n_files, sizeof *l->files, by_name);
fail:
    json_free(&doc);
    if (st != CALLA_OK) hub_listing_deinit(l);
    return st;
}

void hub_listing_deinit(hub_listing *l)
{
    for (size_t i = 0; l->files && i < l->n_files; i++)
        mem_free(l->files[i].name);
    mem_free(l->files);
    memset(l, 0, sizeof *l);
}
