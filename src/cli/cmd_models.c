/* cmd_models.c - `calla models` and `calla rm`: what is pulled. */
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "base/json.h"
#include "cli/cli.h"
#include "exec/gpu/pack_file.h"
#include "net/store.h"

/* ---- calla models ------------------------------------------------------------------------- */

typedef struct models_args {
    int json, names;
} models_args;

static const cli_option models_options[] = {
    CLI_OPT_FLAG(0, "json", models_args, json, 1, "a JSON array"),
    CLI_OPT_FLAG(0, "names", models_args, names, 1, "the names only"),
    CLI_OPT_END,
};

static int cmd_models(int argc, char **argv);

const cli_command cli_models = {
    .name = "models",
    .summary = "list the models that were pulled",
    .about =
        "Lists the models that calla pull has downloaded: name, size, commit, date. They are in\n"
        "$CALLA_MODELS, else $XDG_DATA_HOME/calla/models, else ~/.local/share/calla/models.\n",
    .options = models_options,
    .main = cmd_models,
};

static void date_of(int64_t seconds, char *out, size_t n)
{
    const time_t t = (time_t)seconds;
    struct tm tm;
    if (!localtime_r(&t, &tm) || strftime(out, n, "%Y-%m-%d", &tm) == 0)
        (void)snprintf(out, n, "?");
}

static void put_text(strbuf *b, const store_model *m, int width)
{
    char date[32];
    date_of(m->time, date, sizeof date);
    (void)strbuf_printf(b, "%-*s  %8.2f GB  %-12.12s  %s", width, m->id, (double)m->bytes / 1e9,
                        m->commit, date);
    if (m->partial && m->bytes > 0)
        (void)strbuf_printf(b, "  %.0f %% pulled",
                            100.0 * (double)m->bytes_done / (double)m->bytes);
    else if (m->partial)
        (void)strbuf_puts(b, "  0 % pulled");
    else if (m->bytes_done != m->bytes)
        (void)strbuf_puts(b, "  damaged: calla pull mends it");
    (void)strbuf_putc(b, '\n');
}

static void put_json(strbuf *b, const store_model *m)
{
    (void)strbuf_puts(b, "{\"model\": ");
    (void)json_write_string(b, m->id, strlen(m->id));
    (void)strbuf_puts(b, ", \"dir\": ");
    (void)json_write_string(b, m->dir, strlen(m->dir));
    (void)strbuf_printf(b,
                        ", \"bytes\": %llu, \"bytes_here\": %llu, \"complete\": %s, \"commit\": ",
                        (unsigned long long)m->bytes, (unsigned long long)m->bytes_done,
                        !m->partial && m->bytes == m->bytes_done ? "true" : "false");
    (void)json_write_string(b, m->commit, strlen(m->commit));
    (void)strbuf_printf(b, ", \"time\": %lld}", (long long)m->time);
}

static int cmd_models(int argc, char **argv)
{
    models_args a = {0};
    const int rc = cli_parse(&cli_models, argc, argv, &a, NULL);
    if (rc >= 0) return rc;
    calla_error err = {0};
    char *root = NULL;
    store_model *models = NULL;
    size_t n = 0;
    strbuf b = {0};
    int width = 0;
    calla_status st;
    TRY(store_root(&root, &err));
    TRY(store_list(root, &models, &n, &err));
    for (size_t i = 0; i < n; i++)
        if ((int)strlen(models[i].id) > width) width = (int)strlen(models[i].id);
    if (a.json) (void)strbuf_putc(&b, '[');
    for (size_t i = 0; i < n; i++) {
        if (a.json && i > 0) (void)strbuf_puts(&b, ",\n ");
        if (a.json)
            put_json(&b, &models[i]);
        else if (a.names)
            (void)strbuf_printf(&b, "%s\n", models[i].id);
        else
            put_text(&b, &models[i], width);
    }
    if (a.json) (void)strbuf_puts(&b, "]\n");
    if (b.failed) st = err_set(&err, CALLA_ERR_MEMORY, "no memory for the list");
    if (n == 0 && !a.json && !a.names)
        cli_error(&cli_models, "none in %s; calla pull OWNER/NAME gets one", root);
    if (!b.failed && b.len > 0) (void)fwrite(b.data, 1, b.len, stdout);
fail:
    strbuf_deinit(&b);
    store_list_free(models, n);
    mem_free(root);
    if (st != CALLA_OK) return cli_fail(&cli_models, &err);
    return cli_stdout_ok() ? CLI_OK : CLI_FAILED;
}

/* ---- calla rm ----------------------------------------------------------------------------- */

typedef struct rm_args {
    int unused;
} rm_args;

static const cli_option rm_options[] = {CLI_OPT_END};

static int cmd_rm(int argc, char **argv);

const cli_command cli_rm = {
    .name = "rm",
    .summary = "remove models that were pulled",
    .args = "NAME...",
    .about = "Removes models that calla pull has downloaded, complete or not, and what was packed\n"
             "of them for a GPU. A program that runs one of them keeps it until it ends.\n",
    .options = rm_options,
    .n_args_min = 1,
    .n_args_max = 1000,
    .main = cmd_rm,
};

static bool is_called(const char *id, const char *name)
{
    const char *slash = strchr(id, '/');
    return !strcmp(id, name) || (slash && !strcmp(slash + 1, name));
}

/* The one model that is called so. */
static calla_status find_repo(const char *root, const char *name, hub_repo *repo, calla_error *err)
{
    store_model *models;
    size_t n;
    const char *found = NULL;
    calla_status st = store_list(root, &models, &n, err);
    if (st != CALLA_OK) return st;
    for (size_t i = 0; i < n && st == CALLA_OK; i++) {
        if (!is_called(models[i].id, name)) continue;
        if (found && strcmp(found, models[i].id) != 0)
            st = err_set(err, CALLA_ERR_ARGUMENT, "'%s' may be %s or %s: give one of these", name,
                         found, models[i].id);
        found = models[i].id;
    }
    if (st == CALLA_OK && !found)
        st = err_set(err, CALLA_ERR_ARGUMENT, "there is no model '%s'; calla models lists them",
                     name);
    if (st == CALLA_OK) st = hub_parse(found, repo, err);
    store_list_free(models, n);
    return st;
}

/* The file goes with the model it was made of. */
static void remove_pack(const char *model_dir)
{
    const cli_common common = CLI_COMMON_DEFAULTS;
    char *dir = NULL;
    if (cli_pack_dir(&common, &dir, NULL) == CALLA_OK && dir) {
        char *path = pack_file_path(dir, model_dir);
        if (path) (void)unlink(path);
        mem_free(path);
    }
    mem_free(dir);
}

static calla_status remove_model(const char *root, const char *name, calla_error *err)
{
    hub_repo repo;
    store_place p = {0};
    uint64_t bytes = 0;
    calla_status st;
    TRY(find_repo(root, name, &repo, err));
    TRY(store_place_init(&p, root, &repo, err));
    remove_pack(p.dir);
    TRY(store_remove(&p, &bytes, err));
    cli_error(&cli_rm, "%s is removed (%.2f GB)", p.id, (double)bytes / 1e9);
fail:
    store_place_deinit(&p);
    return st;
}

static int cmd_rm(int argc, char **argv)
{
    rm_args a = {0};
    int n = 0;
    int rc = cli_parse(&cli_rm, argc, argv, &a, &n);
    if (rc >= 0) return rc;
    calla_error err = {0};
    char *root = NULL;
    if (store_root(&root, &err) != CALLA_OK) return cli_fail(&cli_rm, &err);
    rc = CLI_OK;
    for (int i = 1; i <= n; i++)
        if (remove_model(root, argv[i], &err) != CALLA_OK) rc = cli_fail(&cli_rm, &err);
    mem_free(root);
    return rc;
}
