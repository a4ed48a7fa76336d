#include "format/checkpoint.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/ck.h"
#include "base/hash.h"

typedef struct shard {
    const char *name;
    safetensors *st;
} shard;

struct checkpoint {
    char *dir;
    json_doc config, generation, index;
    shard *shards; /* sorted by name */
    size_t n_shards;
    st_tensor *tensors; /* sorted by name */
    size_t n_tensors;
    uint64_t file_bytes;
};

/* One member of the index's weight_map. */
typedef struct entry {
    const char *tensor, *shard;
} entry;

/* ---- JSON files ---- */

static bool is_lfs_pointer(const char *data, size_t n)
{
    static const char lfs[] = "version https://git-lfs";
    return n >= sizeof lfs - 1 && memcmp(data, lfs, sizeof lfs - 1) == 0;
}

static calla_status read_json(const checkpoint *ck, const char *name, json_doc *doc,
                              calla_error *err)
{
    calla_status st = CALLA_OK;
    char *data = NULL, *path = path_join(ck->dir, name);
    size_t n = 0;
    if (path == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for the path of %s", name);
    TRY(file_read(path, CHECKPOINT_JSON_MAX, &data, &n, err));
    if (is_lfs_pointer(data, n)) {
        st = err_set(err, CALLA_ERR_FORMAT,
                     "%s: expected JSON, found a Git LFS pointer (run git lfs pull)", path);
        goto fail;
    }
    const json_limits limits = {.what = path, .max_nodes = CHECKPOINT_NODES_MAX};
    TRY(json_parse(doc, data, n, &limits, err));
    if (doc->root->type != JSON_OBJECT)
        st = err_set(err, CALLA_ERR_FORMAT, "%s: expected a JSON object", path);
fail:
    mem_free(data);
    mem_free(path);
    return st;
}

static calla_status has_file(const checkpoint *ck, const char *name, bool *yes, calla_error *err)
{
    char *path = path_join(ck->dir, name);
    if (path == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for the path of %s", name);
    *yes = file_exists(path);
    mem_free(path);
    return CALLA_OK;
}

/* ---- Index ---- */

static int cmp_entry_shard(const void *pa, const void *pb)
{
    const entry *a = pa, *b = pb;
    return strcmp(a->shard, b->shard);
}

static int cmp_entry_tensor(const void *pa, const void *pb)
{
    const entry *a = pa, *b = pb;
    return strcmp(a->tensor, b->tensor);
}

/* A plain file name of this folder. */
static bool shard_name_ok(const json_value *v)
{
    static const char suffix[] = ".safetensors";
    const size_t n_suffix = sizeof suffix - 1;
    if (v->type != JSON_STRING || v->n_text <= n_suffix || v->n_text > 255) return false;
    if (v->text[0] == '.' || strcmp(v->text + v->n_text - n_suffix, suffix) != 0) return false;
    for (size_t i = 0; i < v->n_text; i++) {
        const unsigned char c = (unsigned char)v->text[i];
        if (c < 0x20 || c == 0x7f || c == '/' || c == '\\' || c == ':') return false;
    }
    return true;
}

static calla_status index_entry(entry *e, const json_value *m, calla_error *err)
{
    if (strlen(m->key) != m->n_key || m->n_key > SAFETENSORS_NAME_MAX)
        return err_set(err, CALLA_ERR_FORMAT,
                       CHECKPOINT_INDEX ": a tensor name is longer than 255 bytes or holds NUL");
    if (!shard_name_ok(m)) {
        const bool string = m->type == JSON_STRING;
        return err_set(err, CALLA_ERR_FORMAT,
                       CHECKPOINT_INDEX ": tensor %s: expected the name of a .safetensors file in "
                                        "the same folder, found %s%.100s%s",
                       m->key, string ? "\"" : "", string ? m->text : "another type",
                       string ? "\"" : "");
    }
    *e = (entry){m->key, m->text};
    return CALLA_OK;
}

/* The weight_map as an array; *entries: mem_free. */
static calla_status index_read(checkpoint *ck, entry **entries, size_t *n, calla_error *err)
{
    const calla_status read = read_json(ck, CHECKPOINT_INDEX, &ck->index, err);
    if (read != CALLA_OK) return read;
    const json_value *map = json_get(ck->index.root, "weight_map");
    if (map == NULL || map->type != JSON_OBJECT || map->n_items == 0)
        return err_set(err, CALLA_ERR_FORMAT,
                       CHECKPOINT_INDEX ": expected an object weight_map with tensors");
    *entries = mem_array(map->n_items, sizeof **entries);
    if (*entries == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for " CHECKPOINT_INDEX);
    for (const json_value *m = map->first; m != NULL; m = m->next) {
        const calla_status st = index_entry(*entries + (*n)++, m, err);
        if (st != CALLA_OK) return st;
    }
    return CALLA_OK;
}

/* ---- Shards ---- */

static calla_status open_shard(checkpoint *ck, const char *name, bool indexed, calla_error *err)
{
    char *path = path_join(ck->dir, name);
    if (path == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for the path of %s", name);
    shard *s = &ck->shards[ck->n_shards];
    s->name = name;
    calla_status st;
    if (indexed && !file_exists(path))
        st = err_set(err, CALLA_ERR_IO, "%s is missing: " CHECKPOINT_INDEX " names it", path);
    else
        st = safetensors_open(&s->st, path, err);
    if (st == CALLA_OK) {
        ck->n_shards++;
        ck->file_bytes += safetensors_file_bytes(s->st);
    }
    mem_free(path);
    return st;
}

static calla_status open_shards(checkpoint *ck, entry *entries, size_t n, calla_error *err)
{
    qsort(entries, n, sizeof *entries, cmp_entry_shard);
    size_t n_shards = 0;
    bool single = false; /* the index names model.safetensors */
    for (size_t i = 0; i < n; i++) {
        n_shards += i == 0 || strcmp(entries[i - 1].shard, entries[i].shard) != 0;
        single = single || strcmp(entries[i].shard, CHECKPOINT_SINGLE) == 0;
    }
    if (n_shards > CHECKPOINT_SHARDS_MAX)
        return err_set(err, CALLA_ERR_FORMAT,
                       CHECKPOINT_INDEX ": expected at most %u shards, found %zu",
                       CHECKPOINT_SHARDS_MAX, n_shards);
    bool both = false;
    if (!single) {
        const calla_status st = has_file(ck, CHECKPOINT_SINGLE, &both, err);
        if (st != CALLA_OK) return st;
    }
    if (both)
        return err_set(err, CALLA_ERR_FORMAT,
                       "%s: expected either " CHECKPOINT_SINGLE " or " CHECKPOINT_INDEX
                       " with other shards, found both",
                       ck->dir);
    ck->shards = mem_array(n_shards, sizeof *ck->shards);
    if (ck->shards == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for the shards");
    for (size_t i = 0; i < n; i++) {
        if (i != 0 && strcmp(entries[i - 1].shard, entries[i].shard) == 0) continue;
        const calla_status st = open_shard(ck, entries[i].shard, true, err);
        if (st != CALLA_OK) return st;
    }
    return CALLA_OK;
}

static calla_status open_single(checkpoint *ck, calla_error *err)
{
    bool found = false;
    const calla_status st = has_file(ck, CHECKPOINT_SINGLE, &found, err);
    if (st != CALLA_OK) return st;
    if (!found)
        return err_set(err, CALLA_ERR_IO,
                       "%s: expected " CHECKPOINT_SINGLE " or " CHECKPOINT_INDEX ", found neither",
                       ck->dir);
    ck->shards = mem_array(1, sizeof *ck->shards);
    if (ck->shards == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for the shards");
    return open_shard(ck, CHECKPOINT_SINGLE, false, err);
}

/* ---- Table ---- */

typedef struct placed {
    const st_tensor *t;
    const char *shard;
} placed;

static int cmp_placed(const void *pa, const void *pb)
{
    const placed *a = pa, *b = pb;
    const int c = strcmp(a->t->name, b->t->name);
    return c != 0 ? c : strcmp(a->shard, b->shard);
}

/* p[n] sorted by name, no name twice. */
static calla_status collect(const checkpoint *ck, placed *p, size_t n, calla_error *err)
{
    size_t k = 0;
    for (size_t i = 0; i < ck->n_shards; i++) {
        const size_t count = safetensors_count(ck->shards[i].st);
        for (size_t j = 0; j < count; j++)
            p[k++] = (placed){safetensors_at(ck->shards[i].st, j), ck->shards[i].name};
    }
    if (n != 0) qsort(p, n, sizeof *p, cmp_placed);
    for (size_t i = 1; i < n; i++)
        if (strcmp(p[i - 1].t->name, p[i].t->name) == 0)
            return err_set(err, CALLA_ERR_FORMAT, "tensor %s is given twice: in %s and in %s",
                           p[i].t->name, p[i - 1].shard, p[i].shard);
    return CALLA_OK;
}

/* Index and shards name the same tensors in the same places; both sorted by tensor. */
static calla_status match_index(entry *e, size_t n_e, const placed *p, size_t n_p, calla_error *err)
{
    qsort(e, n_e, sizeof *e, cmp_entry_tensor);
    for (size_t i = 0, j = 0; i < n_e || j < n_p;) {
        const int c = i == n_e ? 1 : j == n_p ? -1 : strcmp(e[i].tensor, p[j].t->name);
        if (c < 0)
            return err_set(err, CALLA_ERR_FORMAT,
                           "tensor %s is missing: " CHECKPOINT_INDEX " places it in %s",
                           e[i].tensor, e[i].shard);
        if (c > 0)
            return err_set(err, CALLA_ERR_FORMAT,
                           "tensor %s of %s is not named in " CHECKPOINT_INDEX, p[j].t->name,
                           p[j].shard);
        if (strcmp(e[i].shard, p[j].shard) != 0)
            return err_set(err, CALLA_ERR_FORMAT,
                           "tensor %s: expected in %s by " CHECKPOINT_INDEX ", found in %s",
                           e[i].tensor, e[i].shard, p[j].shard);
        i++;
        j++;
    }
    return CALLA_OK;
}

static calla_status build_table(checkpoint *ck, entry *e, size_t n_e, calla_error *err)
{
    size_t n = 0;
    for (size_t i = 0; i < ck->n_shards; i++)
        n += safetensors_count(ck->shards[i].st);
    placed *p = mem_array(n, sizeof *p);
    ck->tensors = mem_array(n, sizeof *ck->tensors);
    calla_status st = CALLA_OK;
    if (p == NULL || ck->tensors == NULL) {
        st = err_set(err, CALLA_ERR_MEMORY, "no memory for the table of tensors");
        goto fail;
    }
    TRY(collect(ck, p, n, err));
    if (e != NULL) TRY(match_index(e, n_e, p, n, err));
    for (size_t i = 0; i < n; i++)
        ck->tensors[i] = *p[i].t;
    ck->n_tensors = n;
fail:
    mem_free(p);
    return st;
}

static calla_status open_all(checkpoint *ck, calla_error *err)
{
    calla_status st;
    entry *entries = NULL;
    size_t n = 0;
    struct stat sb;
    if (stat(ck->dir, &sb) != 0)
        return err_set(err, CALLA_ERR_IO, "cannot open the folder %s: %s", ck->dir,
                       strerror(errno));
    if (!S_ISDIR(sb.st_mode))
        return err_set(err, CALLA_ERR_IO, "%s: expected the folder of a checkpoint, found a file",
                       ck->dir);
    TRY(read_json(ck, "config.json", &ck->config, err));
    bool found = false;
    TRY(has_file(ck, "generation_config.json", &found, err));
    if (found) TRY(read_json(ck, "generation_config.json", &ck->generation, err));
    TRY(has_file(ck, CHECKPOINT_INDEX, &found, err));
    if (found) {
        TRY(index_read(ck, &entries, &n, err));
        TRY(open_shards(ck, entries, n, err));
    } else {
        TRY(open_single(ck, err));
    }
    TRY(build_table(ck, entries, n, err));
fail:
    mem_free(entries);
    return st;
}

calla_status checkpoint_open(checkpoint **out, const char *dir, calla_error *err)
{
    *out = NULL;
    checkpoint *ck = mem_alloc(sizeof *ck);
    if (ck != NULL) ck->dir = mem_strdup(dir);
    if (ck == NULL || ck->dir == NULL) {
        mem_free(ck);
        return err_set(err, CALLA_ERR_MEMORY, "no memory to open %s", dir);
    }
    const calla_status st = open_all(ck, err);
    if (st != CALLA_OK) {
        checkpoint_close(ck);
        return st;
    }
    *out = ck;
    return CALLA_OK;
}

void checkpoint_close(checkpoint *ck)
{
    if (ck == NULL) return;
    for (size_t i = 0; i < ck->n_shards; i++)
        safetensors_close(ck->shards[i].st);
    mem_free(ck->shards);
    mem_free(ck->tensors);
    json_free(&ck->config);
    json_free(&ck->generation);
    json_free(&ck->index);
    mem_free(ck->dir);
    mem_free(ck);
}

const char *checkpoint_dir(const checkpoint *ck)
{
    return ck->dir;
}

size_t checkpoint_count(const checkpoint *ck)
{
    return ck->n_tensors;
}

const st_tensor *checkpoint_at(const checkpoint *ck, size_t i)
{
    return i < ck->n_tensors ? &ck->tensors[i] : NULL;
}

static int cmp_tensor_name(const void *pa, const void *pb)
{
    const st_tensor *a = pa, *b = pb;
    return strcmp(a->name, b->name);
}

const st_tensor *checkpoint_find(const checkpoint *ck, const char *name)
{
    const st_tensor key = {.name = name};
    if (ck->n_tensors == 0) return NULL;
    return bsearch(&key, ck->tensors, ck->n_tensors, sizeof key, cmp_tensor_name);
}

size_t checkpoint_n_shards(const checkpoint *ck)
{
    return ck->n_shards;
}

const char *checkpoint_shard_name(const checkpoint *ck, size_t i)
{
    return i < ck->n_shards ? ck->shards[i].name : NULL;
}

const uint8_t *checkpoint_shard_bytes(const checkpoint *ck, size_t i, uint64_t *n)
{
    size_t n_header;
    *n = safetensors_file_bytes(ck->shards[i].st);
    return safetensors_header(ck->shards[i].st, &n_header);
}

uint64_t checkpoint_file_bytes(const checkpoint *ck)
{
    return ck->file_bytes;
}

static uint64_t identify_shard(const shard *s, uint64_t h)
{
    size_t n;
    const uint8_t *header = safetensors_header(s->st, &n);
    const uint64_t facts[] = {safetensors_file_bytes(s->st), (uint64_t)safetensors_mtime_ns(s->st)};
    h = hash64(s->name, strlen(s->name), h);
    h = hash64(facts, sizeof facts, h);
    return hash64(header, n, h);
}

checkpoint_identity checkpoint_identify(const checkpoint *ck)
{
    checkpoint_identity id = {{1, 2}};
    for (size_t i = 0; i < ck->n_shards; i++)
        for (int k = 0; k < 2; k++)
            id.hash[k] = identify_shard(&ck->shards[i], id.hash[k]);
    return id;
}

const json_value *checkpoint_config(const checkpoint *ck)
{
    return ck->config.root;
}

const json_value *checkpoint_generation_config(const checkpoint *ck)
{
    return ck->generation.root;
}
