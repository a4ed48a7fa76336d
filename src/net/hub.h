/* hub.h - what a Hugging Face-compatible endpoint says about a model.
 *
 * Does:    names (OWNER/NAME[@REVISION]), endpoint and token from options and environment, the list
 *          of a model's files with size and identity, and the addresses of files.
 * Trust:   nothing that the endpoint says is believed before it is checked: names are plain names
 * in the top folder, each once; counts and sizes have limits. Token:   HF_TOKEN, else the file
 * HF_TOKEN_PATH, $HF_HOME/token, or huggingface/token in the user's cache folder. It is in no
 * message.
 */
#ifndef CALLA_NET_HUB_H
#define CALLA_NET_HUB_H

#include "base/mem.h"
#include "net/http_client.h"

#define HUB_ENDPOINT  "https://huggingface.co"
#define HUB_NAME_MAX  96
#define HUB_REV_MAX   128
#define HUB_FILES_MAX 4096               /* of those wanted */
#define HUB_LIST_MAX  ((size_t)16 << 20) /* bytes of the listing */
#define HUB_SIZE_MAX  ((uint64_t)1 << 44)
#define HUB_ID_MAX    65
#define HUB_INDEX     "model.safetensors.index.json"

typedef struct hub_repo {
    char owner[HUB_NAME_MAX + 1], name[HUB_NAME_MAX + 1];
    char rev[HUB_REV_MAX + 1]; /* as given after '@', else "" */
} hub_repo;

/* "OWNER/NAME" or "OWNER/NAME@REVISION". */
calla_status hub_parse(const char *text, hub_repo *out, calla_error *err);

typedef struct hub {
    char *endpoint; /* without a final slash */
    char *token;    /* NULL: none */
} hub;

/* given: --endpoint or NULL. */
calla_status hub_init(hub *h, const char *given, calla_error *err);
void hub_deinit(hub *h);

typedef struct hub_file {
    char *name;
    uint64_t size;       /* HTTP_UNKNOWN: not said */
    char id[HUB_ID_MAX]; /* 64 digits: SHA-256; 40: Git's name of the contents; "": not said */
} hub_file;

typedef struct hub_listing {
    char commit[41];
    hub_file *files; /* those that a model may need, by name */
    size_t n_files;
} hub_listing;

/* Reads the listing (text of n bytes). */
calla_status hub_read_listing(hub_listing *l, const char *text, size_t n, calla_error *err);
void hub_listing_deinit(hub_listing *l);

/* Does calla want a file of this name (in the top folder)? */
bool hub_wanted(const char *name);

/* Addresses, appended to `out`: the listing of a revision, a file of a commit. */
bool hub_listing_url(const hub *h, const hub_repo *repo, strbuf *out);
bool hub_file_url(const hub *h, const hub_repo *repo, const char *commit, const char *name,
                  strbuf *out);

/* The sentence for a status that is no success. *again: another time it may work. */
calla_status hub_explain(const hub *h, const hub_repo *repo, const char *what,
                         const http_reply *reply, bool *again, calla_error *err);

#endif
