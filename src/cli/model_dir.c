/* model_dir.c - where the model is and where packed weights are kept, when nobody says so. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__APPLE__)
#include <mach-o/dyld.h>
#endif
#include "base/file.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "net/store.h"

#ifndef CALLA_PREFIX
#define CALLA_PREFIX "/usr/local"
#endif

#if defined(__APPLE__)
#define CACHE_DIR "%s/Library/Caches" /* of HOME */
#else
#define CACHE_DIR "%s/.cache"
#endif

/* The folder of the running program, links resolved; NULL when the system does not tell. */
static char *program_dir(void)
{
    char path[4096];
#if defined(__APPLE__)
    char raw[4096];
    uint32_t size = sizeof raw;
    if (_NSGetExecutablePath(raw, &size) != 0 || !realpath(raw, path)) return NULL;
#else
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n <= 0) return NULL;
    path[n] = '\0';
#endif
    char *slash = strrchr(path, '/');
    if (!slash) return NULL;
    *slash = '\0';
    return mem_strdup(path[0] ? path : "/");
}

static bool is_model(const char *dir)
{
    char *config = path_join(dir, "config.json");
    const bool found = config && file_exists(config);
    mem_free(config);
    return found;
}

static bool is_there(const char *path)
{
    return access(path, R_OK) == 0;
}

/* build/calla, calla, bin/calla: the source tree before what is installed. NULL: nowhere. */
static char *found(const char *in_tree, const char *installed, bool (*is_it)(const char *path))
{
    char *base = program_dir();
    const char *const places[][3] = {{base, "/", in_tree},
                                     {base, "/../", in_tree},
                                     {base, "/../share/calla/", installed},
                                     {CALLA_PREFIX, "/share/calla/", installed},
                                     {"", "", in_tree}};
    char *path = NULL;
    for (size_t i = 0; !path && i < sizeof places / sizeof places[0]; i++) {
        strbuf b = {0};
        if (!places[i][0]) continue;
        (void)strbuf_printf(&b, "%s%s%s", places[i][0], places[i][1], places[i][2]);
        if (!b.failed && is_it(b.data))
            path = b.data;
        else
            strbuf_deinit(&b);
    }
    mem_free(base);
    return path;
}

char *cli_data_file(const char *in_tree, const char *installed)
{
    return found(in_tree, installed, is_there);
}

/* A folder that is there, else a pulled model of that name. */
static calla_status named_model(const char *given, char **dir, calla_error *err)
{
    hub_repo repo;
    char *root = NULL;
    calla_status st = CALLA_OK;
    if (!file_exists(given) && given[0] != '/' && given[0] != '.') {
        if (store_root(&root, NULL) == CALLA_OK) st = store_find(root, given, dir, err);
        mem_free(root);
        if (st != CALLA_OK || *dir) return st;
        if (!strchr(given, '/') || hub_parse(given, &repo, NULL) == CALLA_OK)
            return err_set(err, CALLA_ERR_IO,
                           "no model '%s': it is no folder, and calla models does not list it",
                           given);
    }
    *dir = mem_strdup(given);
    return *dir ? CALLA_OK : err_set(err, CALLA_ERR_MEMORY, "no memory for a file name");
}

calla_status cli_model_dir(const char *given, char **dir, calla_error *err)
{
    *dir = NULL;
    if (given && !*given)
        return err_set(err, CALLA_ERR_ARGUMENT,
                       "expected the folder of a checkpoint, found an empty name");
    if (!given) given = getenv("CALLA_MODEL");
    if (!given || !*given) given = cli_config_model();
    if (given && *given) return named_model(given, dir, err);
    *dir = found("models/nano", "models/nano", is_model);
    if (*dir) return CALLA_OK;
    return err_set(err, CALLA_ERR_IO,
                   "no model: -m and CALLA_MODEL are not given, and the demo model was found "
                   "neither beside the program nor in " CALLA_PREFIX "/share/calla/models/nano");
}

calla_status cli_pack_dir(const cli_common *common, char **dir, calla_error *err)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    const char *backend = common->backend;
    strbuf b = {0};
    *dir = NULL;
    if (common->pack_dir && !*common->pack_dir)
        return err_set(err, CALLA_ERR_ARGUMENT,
                       "--pack-dir: expected a folder or none, found an empty name");
    if (common->pack_dir)
        (void)strbuf_puts(&b, common->pack_dir);
    else if (!strcmp(backend, "cpu") || !strcmp(backend, "simt"))
        return CALLA_OK;
    else if (cache && cache[0] == '/')
        (void)strbuf_printf(&b, "%s/calla", cache);
    else if (home && home[0] == '/')
        (void)strbuf_printf(&b, CACHE_DIR "/calla", home);
    else
        return CALLA_OK;
    if (b.failed) {
        strbuf_deinit(&b);
        return err_set(err, CALLA_ERR_MEMORY, "no memory for a file name");
    }
    *dir = b.data;
    return CALLA_OK;
}

calla_precision cli_precision(const cli_common *common)
{
    if (common->precision == NULL) return CALLA_PRECISION_DEFAULT;
    return strcmp(common->precision, "exact") == 0  ? CALLA_PRECISION_EXACT
           : strcmp(common->precision, "int8") == 0 ? CALLA_PRECISION_INT8
                                                    : CALLA_PRECISION_INT16;
}
