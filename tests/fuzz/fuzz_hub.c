/* fuzz_hub.c - any bytes as a model hub's listing, as header lines, and as the name of a model. */
#include <stdlib.h>
#include <string.h>

#include "net/hub.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Names that pass are names of files in one folder. */
static void check_listing(const char *text, size_t n)
{
    hub_listing l;
    calla_error err = {0};
    const calla_status st = hub_read_listing(&l, text, n, &err);
    if (st != err.code || (st != CALLA_OK && err.message[0] == '\0')) abort();
    for (size_t i = 0; i < l.n_files; i++) {
        const hub_file *f = &l.files[i];
        const size_t n_id = strlen(f->id);
        if (strchr(f->name, '/') || strchr(f->name, '\\') || f->name[0] == '.' || !*f->name)
            abort();
        if (f->size > HUB_SIZE_MAX && f->size != HTTP_UNKNOWN) abort();
        if (n_id != 0 && n_id != 40 && n_id != 64) abort();
        if (i > 0 && !strcmp(f->name, l.files[i - 1].name)) abort();
    }
    hub_listing_deinit(&l);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = mem_memdup(data, size);
    if (text == NULL) abort();
    check_listing(text, size);

    http_reply reply;
    memset(&reply, 0, sizeof reply);
    for (const char *p = text; p < text + size;) {
        const size_t n = strcspn(p, "\n");
        http_reply_header(&reply, p, n);
        p += n + 1;
    }
    if (strlen(reply.etag) >= sizeof reply.etag || strlen(reply.message) >= sizeof reply.message)
        abort();

    http_url url;
    if (http_url_split(text, &url) && url.path < url.host) abort();
    (void)http_same_origin(text, "https://host:1");
    hub_repo repo;
    if (hub_parse(text, &repo, NULL) == CALLA_OK &&
        (repo.owner[0] == '\0' || repo.name[0] == '\0' || strstr(text, "..") != NULL))
        abort();
    mem_free(text);
    return 0;
}
