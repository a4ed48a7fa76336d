#include "net/store.h"
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/json.h"
#include "net/disk.h"
#include "net/part.h"

#define RECORD_MAX ((uint64_t)4 << 20)
#define MODELS_MAX 4096u

static calla_status no_memory(calla_error *err)
{
    return err_set(err, CALLA_ERR_MEMORY, "no memory for a file name");
}

calla_status store_root(char **root, calla_error *err)
{
    const char *own = getenv("CALLA_MODELS"), *data = getenv("XDG_DATA_HOME");
    const char *home = getenv("HOME");
    *root = NULL;
    if (own && *own)
        *root = mem_strdup(own);
    else if (data && data[0] == '/')
        *root = disk_path(data, "calla/models", NULL);
    else if (home && home[0] == '/')
        *root = disk_path(home, ".local/share/calla/models", NULL);
    else
        return err_set(err, CALLA_ERR_IO,
                       "no folder for models: none of CALLA_MODELS, XDG_DATA_HOME and HOME is set");
    return *root ? CALLA_OK : no_memory(err);
}

/* ---- Places ------------------------------------------------------------------------------- */

/* NAME or NAME@REVISION as one file name. */
static bool put_name(strbuf *b, const hub_repo *repo, const char *end)
{
    (void)strbuf_puts(b, repo->name);
    if (repo->rev[0]) (void)strbuf_putc(b, '@');
    for (const char *p = repo->rev; *p; p++) {
        if (*p == '/')
            (void)strbuf_puts(b, "%2F");
        else
            (void)strbuf_putc(b, *p);
    }
    return strbuf_puts(b, end);
}

static char *place(const char *folder, const hub_repo *repo, const char *end)
{
    strbuf b = {0};
    (void)strbuf_printf(&b, "%s/", folder);
    if (put_name(&b, repo, end)) return b.data;
    strbuf_deinit(&b);
    return NULL;
}

calla_status store_place_init(store_place *p, const char *root, const hub_repo *repo,
                              calla_error *err)
{
    strbuf id = {0};
    (void)strbuf_printf(&id, "%s/%s%s%s", repo->owner, repo->name, repo->rev[0] ? "@" : "",
                        repo->rev);
    *p = (store_place){.id = id.data};
    p->owner = disk_path(root, repo->owner, NULL);
    p->parent = disk_path(root, ".pull", repo->owner);
    if (!id.failed && p->owner && p->parent) {
        p->dir = place(p->owner, repo, "");
        p->stage = place(p->parent, repo, ".part");
        p->old = place(p->parent, repo, ".old");
        p->lock = place(p->parent, repo, ".lock");
    }
    if (p->dir && p->stage && p->old && p->lock) return CALLA_OK;
    store_place_deinit(p);
    return no_memory(err);
}

void store_place_deinit(store_place *p)
{
    char *const all[] = {p->id, p->owner, p->dir, p->stage, p->old, p->lock, p->parent};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        mem_free(all[i]);
    memset(p, 0, sizeof *p);
}

static bool is_dir(const char *path)
{
    struct stat sb;
    return stat(path, &sb) == 0 && S_ISDIR(sb.st_mode);
}

calla_status store_lock(const store_place *p, disk_lock *lock, calla_error *err)
{
    calla_status st;
    lock->fd = -1;
    /* Another calla may remove the folder, being empty, between the two. */
    for (int i = 0;; i++) {
        TRY(disk_make_dirs(p->parent, err));
        st = disk_lock_take(lock, p->lock, err);
        if (st == CALLA_OK) break;
        if (st == CALLA_ERR_FULL)
            return err_set(err, st, "%s is being pulled or removed by another calla", p->id);
        if (i == 3 || is_dir(p->parent)) return st;
    }
    if (is_dir(p->old)) {
        if (is_dir(p->dir))
            st = disk_remove_dir(p->old, 1, err);
        else
            st = disk_rename(p->old, p->dir, err);
        if (st != CALLA_OK) disk_lock_drop(lock);
    }
fail:
    return st;
}

void store_tidy(const store_place *p)
{
    (void)rmdir(p->owner); /* each only when it is empty */
    if (rmdir(p->parent) != 0) return;
    char *slash = strrchr(p->parent, '/');
    *slash = '\0';
    (void)rmdir(p->parent);
    *slash = '/';
}

calla_status store_exchange(const store_place *p, calla_error *err)
{
    calla_status st;
    disk_sync_dir(p->stage);
    TRY(disk_make_dirs(p->owner, err));
    if (is_dir(p->dir)) TRY(disk_rename(p->dir, p->old, err));
    st = disk_rename(p->stage, p->dir, err);
    if (st != CALLA_OK) {
        if (is_dir(p->old)) (void)disk_rename(p->old, p->dir, NULL);
        return st;
    }
    disk_sync_dir(p->owner);
    (void)disk_remove_dir(p->old, 1, NULL); /* else the next pull does it */
fail:
    return st;
}

calla_status store_remove(const store_place *p, uint64_t *bytes, calla_error *err)
{
    calla_status st;
    disk_lock lock = {.fd = -1};
    *bytes = 0;
    if (!is_dir(p->dir) && !is_dir(p->stage) && !is_dir(p->old))
        return err_set(err, CALLA_ERR_ARGUMENT, "there is no model %s", p->id);
    if (disk_is_link(p->owner))
        return err_set(err, CALLA_ERR_IO, "%s is a link to another folder: remove %s yourself",
                       p->owner, p->dir);
    TRY(store_lock(p, &lock, err));
    store_record r;
    if (!disk_is_link(p->dir) && store_record_read(&r, is_dir(p->dir) ? p->dir : p->stage)) {
        for (size_t i = 0; i < r.listing.n_files; i++)
            *bytes += r.listing.files[i].size;
        store_record_deinit(&r);
    }
    /* It goes from sight by one rename. */
    if (is_dir(p->dir)) TRY(disk_rename(p->dir, p->old, err));
    TRY(disk_remove_dir(p->old, 1, err));
    TRY(disk_remove_dir(p->stage, 1, err));
fail:
    disk_lock_drop(&lock);
    store_tidy(p);
    return st;
}

/* ---- Records ------------------------------------------------------------------------------ */

calla_status store_record_write(const char *dir, const char *id, const char *endpoint,
                                const hub_listing *l, calla_error *err)
{
    strbuf b = {0};
    char *path = disk_path(dir, STORE_RECORD, NULL);
    (void)strbuf_puts(&b, "{\"model\": ");
    (void)json_write_string(&b, id, strlen(id));
    (void)strbuf_puts(&b, ", \"endpoint\": ");
    (void)json_write_string(&b, endpoint, strlen(endpoint));
    (void)strbuf_printf(&b, ",\n \"sha\": \"%s\", \"siblings\": [", l->commit);
    for (size_t i = 0; i < l->n_files; i++) {
        const hub_file *f = &l->files[i];
        (void)strbuf_printf(&b, "%s\n  {\"rfilename\": \"%s\", \"size\": %llu, ", i ? "," : "",
                            f->name, (unsigned long long)f->size);
        (void)strbuf_printf(
            &b, strlen(f->id) == 64 ? "\"lfs\": {\"sha256\": \"%s\"}}" : "\"blobId\": \"%s\"}",
            f->id);
    }
    (void)strbuf_puts(&b, "\n]}\n");
    const calla_status st =
        b.failed || !path ? no_memory(err) : disk_write(path, b.data, b.len, err);
    mem_free(path);
    strbuf_deinit(&b);
    return st;
}

bool store_record_read(store_record *r, const char *dir)
{
    char *path = disk_path(dir, STORE_RECORD, NULL), *text = NULL;
    size_t n = 0;
    memset(r, 0, sizeof *r);
    const bool ok = path && file_read(path, RECORD_MAX, &text, &n, NULL) == CALLA_OK &&
                    hub_read_listing(&r->listing, text, n, NULL) == CALLA_OK;
    for (size_t i = 0; ok && i < r->listing.n_files; i++)
        if (r->listing.files[i].size == HTTP_UNKNOWN) r->listing.files[i].size = 0;
    mem_free(path);
    mem_free(text);
    return ok;
}

void store_record_deinit(store_record *r)
{
    hub_listing_deinit(&r->listing);
    mem_free(r->endpoint);
    r->endpoint = NULL;
}

/* ---- Finding ------------------------------------------------------------------------------ */

/* Calls f with each visible name in a folder; stops when it says false. */
static void each_name(const char *dir, bool (*f)(void *ctx, const char *name), void *ctx)
{
    DIR *d = opendir(dir);
    const struct dirent *e;
    while (d && (e = readdir(d)) != NULL)
        if (e->d_name[0] != '.' && !f(ctx, e->d_name)) break;
    if (d) (void)closedir(d);
}

static bool is_model(const char *dir)
{
    char *config = disk_path(dir, "config.json", NULL);
    const bool found = config && file_exists(config);
    mem_free(config);
    return found;
}

typedef struct finder {
    const char *root, *name;
    strbuf owners; /* that have it: "a/NAME, b/NAME" */
    size_t n;
    char *dir;
    bool failed;
} finder;

static bool find_in(void *ctx, const char *owner)
{
    finder *f = ctx;
    char *dir = disk_path(f->root, owner, f->name);
    if (!dir) f->failed = true;
    if (dir && is_model(dir)) {
        (void)strbuf_printf(&f->owners, "%s%s/%s", f->n ? ", " : "", owner, f->name);
        f->n++;
        mem_free(f->dir);
        f->dir = dir;
    } else {
        mem_free(dir);
    }
    return !f->failed;
}

static calla_status find_short(const char *root, const char *name, char **dir, calla_error *err)
{
    finder f = {.root = root, .name = name};
    calla_status st = CALLA_OK;
    each_name(root, find_in, &f);
    if (f.failed || f.owners.failed)
        st = no_memory(err);
    else if (f.n > 1)
        st = err_set(err, CALLA_ERR_ARGUMENT, "'%s' may be any of %s: give one of these", name,
                     f.owners.data);
    if (st == CALLA_OK)
        *dir = f.dir;
    else
        mem_free(f.dir);
    strbuf_deinit(&f.owners);
    return st;
}

calla_status store_find(const char *root, const char *name, char **dir, calla_error *err)
{
    hub_repo repo;
    store_place p;
    *dir = NULL;
    if (!strchr(name, '/')) {
        strbuf full = {0}; /* the name must be one; any owner does for that */
        const bool good =
            strbuf_printf(&full, "x/%s", name) && hub_parse(full.data, &repo, NULL) == CALLA_OK;
        strbuf_deinit(&full);
        strbuf file = {0};
        calla_status st = CALLA_OK;
        if (good)
            st =
                put_name(&file, &repo, "") ? find_short(root, file.data, dir, err) : no_memory(err);
        strbuf_deinit(&file);
        return st;
    }
    if (hub_parse(name, &repo, NULL) != CALLA_OK) return CALLA_OK;
    calla_status st = store_place_init(&p, root, &repo, err);
    if (st != CALLA_OK) return st;
    if (is_model(p.dir)) {
        *dir = p.dir;
        p.dir = NULL;
    } else if (is_dir(p.stage)) {
        st = err_set(err, CALLA_ERR_IO, "%s is not complete: calla pull %s goes on with it", name,
                     name);
    }
    store_place_deinit(&p);
    return st;
}

/* ---- Listing ------------------------------------------------------------------------------ */

typedef struct lister {
    store_model *models;
    size_t n;
    const char *root, *owner;
    bool partial, failed;
} lister;

/* "%2F" is a slash of the revision. */
static char *id_of(const char *owner, const char *file, size_t n)
{
    strbuf b = {0};
    (void)strbuf_printf(&b, "%s/", owner);
    for (size_t i = 0; i < n; i++) {
        if (i + 3 <= n && !memcmp(file + i, "%2F", 3)) {
            (void)strbuf_putc(&b, '/');
            i += 2;
        } else {
            (void)strbuf_putc(&b, file[i]);
        }
    }
    if (!b.failed) return b.data;
    strbuf_deinit(&b);
    return NULL;
}

static void measure(store_model *m)
{
    store_record r;
    struct stat sb;
    if (stat(m->dir, &sb) == 0) m->time = (int64_t)sb.st_mtime;
    if (!store_record_read(&r, m->dir)) return;
    memcpy(m->commit, r.listing.commit, sizeof m->commit);
    for (size_t i = 0; i < r.listing.n_files; i++) {
        const hub_file *f = &r.listing.files[i];
        uint64_t size = 0;
        char *path = disk_path(m->dir, f->name, NULL);
        m->bytes += f->size;
        if (m->partial)
            m->bytes_done += part_peek(m->dir, f->name, f->size);
        else if (path && disk_size(path, &size))
            m->bytes_done += size;
        mem_free(path);
    }
    store_record_deinit(&r);
}

static bool list_model(void *ctx, const char *file)
{
    lister *l = ctx;
    const size_t n_file = strlen(file);
    const size_t n = l->partial && n_file > 5 ? n_file - 5 : n_file;
    if (l->partial && (n == n_file || strcmp(file + n, ".part") != 0)) return true;
    strbuf folder = {0};
    (void)strbuf_printf(&folder, "%s/%s%s/%s", l->root, l->partial ? ".pull/" : "", l->owner, file);
    if (folder.failed || !is_dir(folder.data) || (!l->partial && !is_model(folder.data))) {
        l->failed = l->failed || folder.failed;
        strbuf_deinit(&folder);
        return !l->failed;
    }
    store_model m = {.id = id_of(l->owner, file, n), .dir = folder.data, .partial = l->partial};
    if (!m.id || l->n == MODELS_MAX) {
        l->failed = true;
        mem_free(m.id);
        mem_free(m.dir);
        return false;
    }
    measure(&m);
    l->models[l->n++] = m;
    return true;
}

static bool list_owner(void *ctx, const char *owner)
{
    lister *l = ctx;
    strbuf folder = {0};
    (void)strbuf_printf(&folder, "%s/%s%s", l->root, l->partial ? ".pull/" : "", owner);
    l->owner = owner;
    if (folder.failed)
        l->failed = true;
    else
        each_name(folder.data, list_model, l);
    strbuf_deinit(&folder);
    return !l->failed;
}

static int by_id(const void *a, const void *b)
{
    return strcmp(((const store_model *)a)->id, ((const store_model *)b)->id);
}

calla_status store_list(const char *root, store_model **models, size_t *n, calla_error *err)
{
    lister l = {.root = root, .models = mem_array(MODELS_MAX, sizeof(store_model))};
    char *pull = disk_path(root, ".pull", NULL);
    *models = NULL;
    *n = 0;
    if (l.models && pull) {
        each_name(root, list_owner, &l);
        l.partial = true;
        each_name(pull, list_owner, &l);
    }
    const bool failed = !l.models || !pull || l.failed;
    mem_free(pull);
    if (failed) {
        store_list_free(l.models, l.n);
        return err_set(err, CALLA_ERR_MEMORY, "no memory for the list of models");
    }
    qsort(l.models, l.n, sizeof *l.models, by_id);
    *models = l.models;
    *n = l.n;
    return CALLA_OK;
}

void store_list_free(store_model *models, size_t n)
{
    for (size_t i = 0; models && i < n; i++) {
        mem_free(models[i].id);
        mem_free(models[i].dir);
    }
    mem_free(models);
}
