#include "format/safetensors.h"

#include <stdlib.h>

#include "base/ck.h"
#include "base/json.h"
#include "base/mem.h"

struct safetensors {
    filemap map; /* zero when the bytes are borrowed */
    arena mem;   /* names */
    st_tensor *tensors;
    const st_tensor **by_name;
    size_t n;
    uint64_t n_file;
    const uint8_t *header;
    size_t n_header; /* with the 8 bytes of the length */
};

static const struct {
    const char *name;
    uint32_t n_bytes;
} dtypes[] = {
    [ST_U8] = {"U8", 1},     [ST_I8] = {"I8", 1},           [ST_U16] = {"U16", 2},
    [ST_I16] = {"I16", 2},   [ST_U32] = {"U32", 4},         [ST_I32] = {"I32", 4},
    [ST_U64] = {"U64", 8},   [ST_I64] = {"I64", 8},         [ST_F16] = {"F16", 2},
    [ST_BF16] = {"BF16", 2}, [ST_F32] = {"F32", 4},         [ST_F64] = {"F64", 8},
    [ST_BOOL] = {"BOOL", 1}, [ST_F8_E4M3] = {"F8_E4M3", 1}, [ST_F8_E5M2] = {"F8_E5M2", 1},
};
#define N_DTYPES (sizeof dtypes / sizeof *dtypes)

const char *st_dtype_name(st_dtype t)
{
    return dtypes[t].name;
}

uint32_t st_dtype_bytes(st_dtype t)
{
    return dtypes[t].n_bytes;
}

/* ---- Header ---- */

/* What the next event has to be. */
typedef enum want {
    WANT_OBJECT, /* the header itself */
    WANT_NAME,   /* key of an entry */
    WANT_META,
    WANT_META_KEY,
    WANT_META_VALUE,
    WANT_ENTRY,
    WANT_FIELD,
    WANT_DTYPE,
    WANT_SHAPE,
    WANT_DIM,
    WANT_OFFSETS,
    WANT_OFFSET,
    WANT_NOTHING
} want;

enum { HAS_DTYPE = 1, HAS_SHAPE = 2, HAS_OFFSETS = 4, HAS_ALL = 7 };

typedef struct header {
    const char *what;
    arena *mem;
    calla_error err;
    want want;
    st_tensor *items;
    uint64_t *begins, *ends;
    size_t n, cap;
    unsigned has;
    uint32_t n_offsets;
    bool has_metadata;
} header;

static bool bad(header *h, const char *fault)
{
    const char *name =
        h->want >= WANT_ENTRY && h->want <= WANT_OFFSET ? h->items[h->n - 1].name : NULL;
    if (name != NULL)
        (void)err_set(&h->err, CALLA_ERR_FORMAT, "%s: tensor %s: %s", h->what, name, fault);
    else
        (void)err_set(&h->err, CALLA_ERR_FORMAT, "%s: header: %s", h->what, fault);
    return false;
}

static bool bad_memory(header *h)
{
    (void)err_set(&h->err, CALLA_ERR_MEMORY, "no memory for the tensor table of %s", h->what);
    return false;
}

static bool unexpected(header *h)
{
    static const char *const expected[] = {
        [WANT_OBJECT] = "expected a JSON object",
        [WANT_NAME] = "expected a tensor name",
        [WANT_META] = "expected an object of strings as __metadata__",
        [WANT_META_KEY] = "expected an object of strings as __metadata__",
        [WANT_META_VALUE] = "expected an object of strings as __metadata__",
        [WANT_ENTRY] = "expected an object with dtype, shape and data_offsets",
        [WANT_FIELD] = "expected only dtype, shape and data_offsets",
        [WANT_DTYPE] = "expected a string as dtype",
        [WANT_SHAPE] = "expected an array of whole numbers as shape",
        [WANT_DIM] = "expected an array of whole numbers as shape",
        [WANT_OFFSETS] = "expected two whole numbers as data_offsets",
        [WANT_OFFSET] = "expected two whole numbers as data_offsets",
        [WANT_NOTHING] = "expected nothing after the object",
    };
    return bad(h, expected[h->want]);
}

static bool header_grow(header *h)
{
    if (h->n < h->cap) return true;
    const size_t cap = h->cap == 0 ? 64 : h->cap * 2;
    st_tensor *items = mem_resize(h->items, cap * sizeof *items);
    if (items == NULL) return bad_memory(h);
    h->items = items;
    uint64_t *begins = mem_resize(h->begins, cap * sizeof *begins);
    if (begins == NULL) return bad_memory(h);
    h->begins = begins;
    uint64_t *ends = mem_resize(h->ends, cap * sizeof *ends);
    if (ends == NULL) return bad_memory(h);
    h->ends = ends;
    h->cap = cap;
    return true;
}

static bool header_name(header *h, const char *s, size_t n)
{
    if (n == strlen("__metadata__") && memcmp(s, "__metadata__", n) == 0) {
        if (h->has_metadata) return bad(h, "__metadata__ is given twice");
        h->has_metadata = true;
        h->want = WANT_META;
        return true;
    }
    if (n == 0 || n > SAFETENSORS_NAME_MAX)
        return bad(h, "a tensor name is empty or longer than 255 bytes");
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] < 0x20 || s[i] == 0x7f)
            return bad(h, "a tensor name holds a control character");
    if (h->n == SAFETENSORS_TENSORS_MAX) return bad(h, "more than 200000 tensors");
    if (!header_grow(h)) return false;
    st_tensor *t = &h->items[h->n];
    memset(t, 0, sizeof *t);
    t->name = arena_memdup(h->mem, s, n);
    if (t->name == NULL) return bad_memory(h);
    h->begins[h->n] = h->ends[h->n] = 0;
    h->n++;
    h->has = 0;
    h->n_offsets = 0;
    h->want = WANT_ENTRY;
    return true;
}

static bool header_field(header *h, const char *s, size_t n)
{
    static const struct {
        const char *name;
        unsigned bit;
        want want;
    } fields[] = {{"dtype", HAS_DTYPE, WANT_DTYPE},
                  {"shape", HAS_SHAPE, WANT_SHAPE},
                  {"data_offsets", HAS_OFFSETS, WANT_OFFSETS}};
    for (size_t i = 0; i < 3; i++) {
        if (n != strlen(fields[i].name) || memcmp(s, fields[i].name, n) != 0) continue;
        if ((h->has & fields[i].bit) != 0) return bad(h, "a field is given twice");
        h->has |= fields[i].bit;
        h->want = fields[i].want;
        return true;
    }
    return unexpected(h);
}

static bool head_key(void *ctx, const char *s, size_t n)
{
    header *h = ctx;
    if (h->want == WANT_NAME) return header_name(h, s, n);
    if (h->want == WANT_FIELD) return header_field(h, s, n);
    if (h->want != WANT_META_KEY) return unexpected(h);
    h->want = WANT_META_VALUE;
    return true;
}

static bool head_string(void *ctx, const char *s, size_t n)
{
    header *h = ctx;
    if (h->want == WANT_META_VALUE) {
        h->want = WANT_META_KEY;
        return true;
    }
    if (h->want != WANT_DTYPE) return unexpected(h);
    for (size_t i = 0; i < N_DTYPES; i++) {
        if (n != strlen(dtypes[i].name) || memcmp(s, dtypes[i].name, n) != 0) continue;
        h->items[h->n - 1].dtype = (st_dtype)i;
        h->want = WANT_FIELD;
        return true;
    }
    return bad(h, "its dtype is not one of the safetensors format");
}

/* A whole number without sign, fraction or exponent. */
static bool parse_u64(const char *s, size_t n, uint64_t *out)
{
    uint64_t v = 0;
    if (n == 0) return false;
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9') return false;
        if (!ck_mul(v, 10, &v) || !ck_add(v, (uint64_t)(s[i] - '0'), &v)) return false;
    }
    *out = v;
    return true;
}

static bool head_number(void *ctx, const char *s, size_t n)
{
    header *h = ctx;
    uint64_t v = 0;
    if (h->want == WANT_DIM) {
        st_tensor *t = &h->items[h->n - 1];
        if (!parse_u64(s, n, &v)) return unexpected(h);
        if (t->n_dims == SAFETENSORS_DIMS_MAX)
            return bad(h, "its shape has more than 8 dimensions");
        t->shape[t->n_dims++] = v;
        return true;
    }
    if (h->want != WANT_OFFSET || h->n_offsets == 2 || !parse_u64(s, n, &v)) return unexpected(h);
    if (h->n_offsets++ == 0)
        h->begins[h->n - 1] = v;
    else
        h->ends[h->n - 1] = v;
    return true;
}

static bool head_null(void *ctx)
{
    return unexpected(ctx);
}

static bool head_bool(void *ctx, bool value)
{
    (void)value;
    return unexpected(ctx);
}

static bool head_object(void *ctx)
{
    header *h = ctx;
    switch (h->want) {
    case WANT_OBJECT:
        h->want = WANT_NAME;
        return true;
    case WANT_META:
        h->want = WANT_META_KEY;
        return true;
    case WANT_ENTRY:
        h->want = WANT_FIELD;
        return true;
    default:
        return unexpected(h);
    }
}

static bool head_object_end(void *ctx)
{
    header *h = ctx;
    if (h->want == WANT_FIELD && h->has != HAS_ALL)
        return bad(h, "expected dtype, shape and data_offsets, found fewer");
    h->want = h->want == WANT_NAME ? WANT_NOTHING : WANT_NAME;
    return true;
}

static bool head_array(void *ctx)
{
    header *h = ctx;
    if (h->want != WANT_SHAPE && h->want != WANT_OFFSETS) return unexpected(h);
    h->want = h->want == WANT_SHAPE ? WANT_DIM : WANT_OFFSET;
    return true;
}

static bool head_array_end(void *ctx)
{
    header *h = ctx;
    if (h->want == WANT_OFFSET && h->n_offsets != 2) return unexpected(h);
    h->want = WANT_FIELD;
    return true;
}

static calla_status header_parse(header *h, const uint8_t *json, uint64_t n)
{
    const json_sax sax = {
        .ctx = h,
        .on_null = head_null,
        .on_bool = head_bool,
        .on_number = head_number,
        .on_string = head_string,
        .on_key = head_key,
        .on_object = head_object,
        .on_object_end = head_object_end,
        .on_array = head_array,
        .on_array_end = head_array_end,
    };
    const json_limits limits = {.what = h->what};
    return json_sax_parse(&sax, (const char *)json, (size_t)n, &limits, &h->err);
}

/* ---- Layout ---- */

static int cmp_data(const void *pa, const void *pb)
{
    const st_tensor *a = pa, *b = pb;
    if (a->data != b->data) return a->data < b->data ? -1 : 1;
    if (a->n_bytes != b->n_bytes) return a->n_bytes < b->n_bytes ? -1 : 1;
    return strcmp(a->name, b->name);
}

static int cmp_name(const void *pa, const void *pb)
{
    const st_tensor *const *a = pa, *const *b = pb;
    return strcmp((*a)->name, (*b)->name);
}

static calla_status bad_tensor(const header *h, const st_tensor *t, calla_error *err,
                               const char *fault, uint64_t expected, uint64_t found)
{
    return err_set(err, CALLA_ERR_FORMAT, "%s: tensor %s: %s: expected %llu, found %llu", h->what,
                   t->name, fault, (unsigned long long)expected, (unsigned long long)found);
}

/* Sizes against shapes, ranges against the file; fills data and n_bytes. */
static calla_status place_tensors(header *h, const uint8_t *data, uint64_t n_data, calla_error *err)
{
    for (size_t i = 0; i < h->n; i++) {
        st_tensor *t = &h->items[i];
        uint64_t size = st_dtype_bytes(t->dtype);
        for (uint32_t d = 0; d < t->n_dims; d++)
            if (!ck_mul(size, t->shape[d], &size))
                return err_set(err, CALLA_ERR_FORMAT,
                               "%s: tensor %s: its shape is larger than any memory", h->what,
                               t->name);
        if (h->begins[i] > h->ends[i])
            return bad_tensor(h, t, err, "data_offsets end before they begin", h->begins[i],
                              h->ends[i]);
        if (h->ends[i] - h->begins[i] != size)
            return bad_tensor(h, t, err, "bytes between data_offsets contradict dtype and shape",
                              size, h->ends[i] - h->begins[i]);
        if (h->ends[i] > n_data)
            return bad_tensor(h, t, err, "the file is truncated: bytes of data", h->ends[i],
                              n_data);
        t->data = data + h->begins[i];
        t->n_bytes = size;
    }
    return CALLA_OK;
}

/* The tensors, in order of offset, tile the data exactly. */
static calla_status check_layout(const header *h, const uint8_t *data, uint64_t n_data,
                                 calla_error *err)
{
    uint64_t at = 0;
    for (size_t i = 0; i < h->n; i++) {
        const st_tensor *t = &h->items[i];
        const uint64_t begin = (uint64_t)(t->data - data);
        if (begin < at)
            return bad_tensor(h, t, err, "its data overlap those of the tensor before: begin at",
                              at, begin);
        if (begin > at)
            return bad_tensor(h, t, err, "a gap lies before its data: begin at", at, begin);
        at = begin + t->n_bytes;
    }
    if (at != n_data)
        return err_set(err, CALLA_ERR_FORMAT,
                       "%s: expected the file to end after %llu bytes of data, found %llu more",
                       h->what, (unsigned long long)at, (unsigned long long)(n_data - at));
    return CALLA_OK;
}

static calla_status build_table(safetensors *st, header *h, const uint8_t *data, uint64_t n_data,
                                calla_error *err)
{
    const calla_status placed = place_tensors(h, data, n_data, err);
    if (placed != CALLA_OK) return placed;
    if (h->n != 0) qsort(h->items, h->n, sizeof *h->items, cmp_data);
    st->by_name = mem_array(h->n, sizeof *st->by_name);
    if (st->by_name == NULL)
        return err_set(err, CALLA_ERR_MEMORY, "no memory for the tensor table of %s", h->what);
    for (size_t i = 0; i < h->n; i++)
        st->by_name[i] = &h->items[i];
    if (h->n != 0) qsort(st->by_name, h->n, sizeof *st->by_name, cmp_name);
    for (size_t i = 1; i < h->n; i++)
        if (strcmp(st->by_name[i - 1]->name, st->by_name[i]->name) == 0)
            return err_set(err, CALLA_ERR_FORMAT, "%s: tensor %s is given twice", h->what,
                           st->by_name[i]->name);
    return check_layout(h, data, n_data, err);
}

static calla_status check_prefix(const char *what, const uint8_t *data, uint64_t n,
                                 uint64_t *n_header, calla_error *err)
{
    static const char lfs[] = "version https://git-lfs";
    if (n >= sizeof lfs - 1 && memcmp(data, lfs, sizeof lfs - 1) == 0)
        return err_set(
            err, CALLA_ERR_FORMAT,
            "%s: expected a safetensors file, found a Git LFS pointer (run git lfs pull)", what);
    if (n < 8)
        return err_set(err, CALLA_ERR_FORMAT,
                       "%s: expected a safetensors file, found only %llu bytes", what,
                       (unsigned long long)n);
    *n_header = load_le64(data);
    if (*n_header < 2 || *n_header > SAFETENSORS_HEADER_MAX)
        return err_set(err, CALLA_ERR_FORMAT,
                       "%s: expected a header length between 2 and %u, found %llu", what,
                       SAFETENSORS_HEADER_MAX, (unsigned long long)*n_header);
    if (*n_header > n - 8)
        return err_set(err, CALLA_ERR_FORMAT,
                       "%s: the file is truncated: expected a header of %llu bytes, found %llu",
                       what, (unsigned long long)*n_header, (unsigned long long)(n - 8));
    return CALLA_OK;
}

static calla_status table_read(safetensors *st, const char *what, const uint8_t *data, uint64_t n,
                               calla_error *err)
{
    uint64_t n_header = 0;
    const calla_status pre = check_prefix(what, data, n, &n_header, err);
    if (pre != CALLA_OK) return pre;
    header h = {.what = what, .mem = &st->mem, .want = WANT_OBJECT};
    calla_status s = header_parse(&h, data + 8, n_header);
    if (s != CALLA_OK) {
        if (err != NULL) *err = h.err;
    } else {
        s = build_table(st, &h, data + 8 + n_header, n - 8 - n_header, err);
    }
    st->tensors = h.items;
    st->n = h.n;
    st->n_file = n;
    st->header = data;
    st->n_header = (size_t)(8 + n_header);
    mem_free(h.begins);
    mem_free(h.ends);
    return s;
}

calla_status safetensors_parse(safetensors **out, const char *what, const uint8_t *data, uint64_t n,
                               calla_error *err)
{
    *out = NULL;
    safetensors *st = mem_alloc(sizeof *st);
    if (st == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory to open %s", what);
    const calla_status s = table_read(st, what, data, n, err);
    if (s != CALLA_OK) {
        safetensors_close(st);
        return s;
    }
    *out = st;
    return CALLA_OK;
}

calla_status safetensors_open(safetensors **out, const char *path, calla_error *err)
{
    filemap map = {0};
    *out = NULL;
    calla_status s = filemap_open(&map, path, err);
    if (s != CALLA_OK) return s;
    s = safetensors_parse(out, path, map.data, map.size, err);
    if (s != CALLA_OK) {
        filemap_close(&map);
        return s;
    }
    (*out)->map = map;
    return CALLA_OK;
}

void safetensors_close(safetensors *st)
{
    if (st == NULL) return;
    filemap_close(&st->map);
    arena_deinit(&st->mem);
    mem_free(st->tensors);
    mem_free(st->by_name);
    mem_free(st);
}

uint64_t safetensors_file_bytes(const safetensors *st)
{
    return st->n_file;
}

int64_t safetensors_mtime_ns(const safetensors *st)
{
    return st->map.mtime_ns;
}

const uint8_t *safetensors_header(const safetensors *st, size_t *n)
{
    *n = st->n_header;
    return st->header;
}

size_t safetensors_count(const safetensors *st)
{
    return st->n;
}

const st_tensor *safetensors_at(const safetensors *st, size_t i)
{
    return i < st->n ? &st->tensors[i] : NULL;
}

const st_tensor *safetensors_find(const safetensors *st, const char *name)
{
    const st_tensor key = {.name = name}, *pkey = &key;
    if (st->n == 0) return NULL;
    const st_tensor *const *hit = bsearch(&pkey, st->by_name, st->n, sizeof *st->by_name, cmp_name);
    return hit == NULL ? NULL : *hit;
}
