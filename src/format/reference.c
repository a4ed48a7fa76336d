#include "format/reference.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ck.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"

#define LOG_SUM_SLACK 1e-2 /* of a writer that computed in f32 */

/* ---- Reading ---- */

typedef struct reader {
    reference *r;
    const char *what;
    calla_error *err;
} reader;

static float load_f32(const uint8_t *p)
{
    const uint32_t u = load_le32(p);
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static calla_status bad(const reader *c, const char *name, const char *fault)
{
    return err_set(c->err, CALLA_ERR_FORMAT, "%s: tensor %s: %s", c->what, name, fault);
}

/* Tensor `name` of type and rank, its shape in dims; *data NULL when it is absent. */
static calla_status find(const reader *c, const char *name, st_dtype dtype, uint32_t n_dims,
                         uint64_t *dims, const uint8_t **data)
{
    const st_tensor *t = safetensors_find(c->r->file, name);
    *data = NULL;
    if (t == NULL) return CALLA_OK;
    if (t->dtype != dtype || t->n_dims != n_dims)
        return err_set(c->err, CALLA_ERR_FORMAT,
                       "%s: tensor %s: expected %s of %u dimensions, "
                       "found %s of %u",
                       c->what, name, st_dtype_name(dtype), n_dims, st_dtype_name(t->dtype),
                       t->n_dims);
    memcpy(dims, t->shape, n_dims * sizeof *dims);
    *data = t->data;
    return CALLA_OK;
}

/* The same, which must be there with `rows` rows of `cols` (1: one dimension). */
static calla_status need(const reader *c, const char *name, st_dtype dtype, uint64_t rows,
                         uint64_t cols, const uint8_t **data)
{
    uint64_t dims[2] = {0, 1};
    const calla_status st = find(c, name, dtype, cols == 1 ? 1 : 2, dims, data);
    if (st != CALLA_OK) return st;
    if (*data == NULL) return bad(c, name, "it is missing");
    if (dims[0] != rows || dims[1] != cols)
        return err_set(c->err, CALLA_ERR_FORMAT,
                       "%s: tensor %s: expected %llu x %llu, found %llu x %llu", c->what, name,
                       (unsigned long long)rows, (unsigned long long)cols,
                       (unsigned long long)dims[0], (unsigned long long)dims[1]);
    return CALLA_OK;
}

static calla_status read_tokens(const reader *c)
{
    reference *r = c->r;
    uint64_t n = 0;
    calla_status st = find(c, "tokens", ST_I32, 1, &n, &r->tokens);
    if (st != CALLA_OK) return st;
    if (r->tokens == NULL || n == 0 || n > REFERENCE_TOKENS_MAX)
        return bad(c, "tokens", "expected 1 to 16777216 ids");
    r->n_tokens = (uint32_t)n;
    st = find(c, "first", ST_I32, 1, &n, &r->first);
    if (st != CALLA_OK) return st;
    if (r->first == NULL || n == 0 || n > r->n_tokens)
        return bad(c, "first", "expected where each sequence begins");
    r->n_seqs = (uint32_t)n;
    for (uint32_t i = 0; i < r->n_seqs; i++) {
        const uint32_t at = load_le32(r->first + 4 * (size_t)i);
        const uint32_t before = i == 0 ? 0 : load_le32(r->first + 4 * (size_t)(i - 1));
        if (at >= r->n_tokens || (i == 0 ? at != 0 : at <= before))
            return bad(c, "first", "expected 0 and ascending positions of tokens");
    }
    return CALLA_OK;
}

static calla_status read_all_logits(const reader *c, const st_tensor *t)
{
    reference *r = c->r;
    if ((t->dtype != ST_F32 && t->dtype != ST_BF16) || t->n_dims != 2 ||
        t->shape[0] != r->n_tokens || t->shape[1] == 0 || t->shape[1] > REFERENCE_VOCAB_MAX)
        return bad(c, "logits", "expected F32 or BF16, a row of n_vocab for each token");
    r->n_vocab = (uint32_t)t->shape[1];
    r->is_bf16 = t->dtype == ST_BF16;
    r->logits = t->data;
    const uint64_t n = (uint64_t)r->n_tokens * r->n_vocab;
    for (uint64_t i = 0; i < n; i++)
        if (!isfinite(r->is_bf16 ? load_bf16(r->logits + 2 * i) : load_f32(r->logits + 4 * i)))
            return bad(c, "logits", "a value is not finite");
    return CALLA_OK;
}

/* Ids distinct and in range, logits descending, all within the sum. seen: [n_vocab] stamps. */
static const char *row_fault(const reference *r, uint32_t i, uint32_t *seen)
{
    const double log_sum = (double)reference_log_sum(r, i);
    double sum = 0.0, before = (double)INFINITY;
    if (!isfinite(log_sum) || !isfinite(reference_target_logit(r, i)))
        return "log_sum and target_logit must be finite";
    for (uint32_t j = 0; j < r->k; j++) {
        const uint32_t id = (uint32_t)reference_top_id(r, i, j);
        const double x = (double)reference_top_logit(r, i, j);
        if (id >= r->n_vocab || seen[id] == i + 1) return "top_ids must be distinct ids";
        if (!isfinite(x) || x > before) return "top_logits must be finite and descending";
        seen[id] = i + 1;
        before = x;
        sum += exp(x - log_sum);
    }
    if (!(sum <= 1.0 + LOG_SUM_SLACK)) return "log_sum is less than the sum of top_logits";
    if ((double)reference_target_logit(r, i) > (double)reference_top_logit(r, i, 0) + 1e-3)
        return "target_logit is larger than the largest";
    return NULL;
}

static calla_status read_top_logits(const reader *c)
{
    reference *r = c->r;
    uint64_t dims[2] = {0, 0};
    const uint8_t *n_vocab;
    calla_status st = need(c, "n_vocab", ST_I32, 1, 1, &n_vocab);
    if (st == CALLA_OK) st = find(c, "top_ids", ST_I32, 2, dims, &r->top_ids);
    if (st != CALLA_OK) return st;
    r->n_vocab = load_le32(n_vocab);
    if (r->n_vocab == 0 || r->n_vocab > REFERENCE_VOCAB_MAX)
        return bad(c, "n_vocab", "expected 1 to 16777216");
    if (r->top_ids == NULL) return bad(c, "logits", "it is missing, and so is top_ids");
    if (dims[0] != r->n_tokens || dims[1] < 2 || dims[1] > REFERENCE_TOP_MAX ||
        dims[1] > r->n_vocab)
        return bad(c, "top_ids", "expected 2 to 65536 ids of the vocabulary for each token");
    r->k = (uint32_t)dims[1];
    st = need(c, "top_logits", ST_F32, r->n_tokens, r->k, &r->top_logits);
    if (st == CALLA_OK) st = need(c, "log_sum", ST_F32, r->n_tokens, 1, &r->log_sum);
    if (st == CALLA_OK) st = need(c, "target_logit", ST_F32, r->n_tokens, 1, &r->target);
    if (st != CALLA_OK) return st;
    uint32_t *seen = mem_array(r->n_vocab, sizeof *seen);
    if (seen == NULL) return err_set(c->err, CALLA_ERR_MEMORY, "no memory to read %s", c->what);
    const char *fault = NULL;
    for (uint32_t i = 0; i < r->n_tokens && fault == NULL; i++)
        fault = row_fault(r, i, seen);
    mem_free(seen);
    return fault == NULL ? CALLA_OK : bad(c, "top_ids", fault);
}

static calla_status read_trace(const reader *c)
{
    reference *r = c->r;
    uint64_t dims[3] = {0, 0, 0};
    uint32_t first, n;
    const calla_status st = find(c, "trace", ST_F32, 3, dims, &r->trace);
    if (st != CALLA_OK || r->trace == NULL) return st;
    reference_seq(r, 0, &first, &n);
    if (dims[0] < 3 || dims[0] % 2 == 0 || dims[0] > 4096 || dims[1] == 0 || dims[1] > n ||
        dims[2] == 0 || dims[2] > 1u << 20)
        return bad(c, "trace",
                   "expected 2 * layers + 1 points, tokens of the first sequence, "
                   "and a width");
    r->n_points = (uint32_t)dims[0];
    r->n_traced = (uint32_t)dims[1];
    r->n_width = (uint32_t)dims[2];
    const uint64_t count = dims[0] * dims[1] * dims[2]; /* fits: the file holds so many */
    for (uint64_t i = 0; i < count; i++)
        if (!isfinite(load_f32(r->trace + 4 * i))) return bad(c, "trace", "a value is not finite");
    return CALLA_OK;
}

static calla_status read_file(const reader *c)
{
    reference *r = c->r;
    calla_status st = read_tokens(c);
    if (st != CALLA_OK) return st;
    const st_tensor *logits = safetensors_find(r->file, "logits");
    st = logits != NULL ? read_all_logits(c, logits) : read_top_logits(c);
    for (uint32_t i = 0; i < r->n_tokens && st == CALLA_OK; i++)
        if ((uint32_t)reference_token(r, i) >= r->n_vocab)
            st = bad(c, "tokens", "an id is outside the vocabulary");
    return st == CALLA_OK ? read_trace(c) : st;
}

static calla_status finish(reference *out, const char *what, calla_status st, calla_error *err)
{
    const reader c = {out, what, err};
    if (st == CALLA_OK) st = read_file(&c);
    if (st != CALLA_OK) reference_close(out);
    return st;
}

calla_status reference_open(reference *out, const char *path, calla_error *err)
{
    memset(out, 0, sizeof *out);
    return finish(out, path, safetensors_open(&out->file, path, err), err);
}

calla_status reference_parse(reference *out, const char *what, const uint8_t *data, uint64_t n,
                             calla_error *err)
{
    memset(out, 0, sizeof *out);
    return finish(out, what, safetensors_parse(&out->file, what, data, n, err), err);
}

void reference_close(reference *r)
{
    safetensors_close(r->file);
    memset(r, 0, sizeof *r);
}

int32_t reference_token(const reference *r, uint32_t i)
{
    return (int32_t)load_le32(r->tokens + 4 * (size_t)i);
}

void reference_seq(const reference *r, uint32_t i, uint32_t *first, uint32_t *n)
{
    *first = load_le32(r->first + 4 * (size_t)i);
    *n = (i + 1 < r->n_seqs ? load_le32(r->first + 4 * (size_t)(i + 1)) : r->n_tokens) - *first;
}

void reference_row(const reference *r, uint32_t i, float *out)
{
    const size_t at = (size_t)i * r->n_vocab;
    for (uint32_t v = 0; v < r->n_vocab; v++)
        out[v] =
            r->is_bf16 ? load_bf16(r->logits + 2 * (at + v)) : load_f32(r->logits + 4 * (at + v));
}

int32_t reference_top_id(const reference *r, uint32_t i, uint32_t j)
{
    return (int32_t)load_le32(r->top_ids + 4 * ((size_t)i * r->k + j));
}

float reference_top_logit(const reference *r, uint32_t i, uint32_t j)
{
    return load_f32(r->top_logits + 4 * ((size_t)i * r->k + j));
}

float reference_log_sum(const reference *r, uint32_t i)
{
    return load_f32(r->log_sum + 4 * (size_t)i);
}

float reference_target_logit(const reference *r, uint32_t i)
{
    return load_f32(r->target + 4 * (size_t)i);
}

void reference_point(const reference *r, uint32_t i_point, uint32_t t, float *out)
{
    const size_t at = ((size_t)i_point * r->n_traced + t) * r->n_width;
    for (uint32_t i = 0; i < r->n_width; i++)
        out[i] = load_f32(r->trace + 4 * (at + i));
}

/* ---- Writing ---- */

calla_status reference_begin(reference_writer *w, calla_error *err)
{
    const size_t n = w->n_tokens, k = w->k;
    bool ok = true;
    if (w->k == 0 || w->k >= w->n_vocab) {
        w->k = 0;
        w->logits = mem_array(n, w->n_vocab * sizeof(float));
        ok = w->logits != NULL;
    } else {
        w->top_ids = mem_array(n, k * sizeof(int32_t));
        w->top_logits = mem_array(n, k * sizeof(float));
        w->log_sum = mem_array(n, sizeof(float));
        w->target = mem_array(n, sizeof(float));
        ok = w->top_ids != NULL && w->top_logits != NULL && w->log_sum != NULL && w->target != NULL;
    }
    if (w->n_traced != 0) {
        w->trace = mem_array((size_t)w->n_points * w->n_traced, w->n_width * sizeof(float));
        ok = ok && w->trace != NULL;
    }
    if (ok) return CALLA_OK;
    reference_writer_deinit(w);
    return err_set(err, CALLA_ERR_MEMORY, "no memory for the logits of %u positions", w->n_tokens);
}

/* The k largest of x in descending order, by insertion: k is small beside n. */
static void take_top(const float *x, uint32_t n, uint32_t k, int32_t *ids, float *values)
{
    uint32_t have = 0;
    for (uint32_t v = 0; v < n; v++) {
        if (have == k && !(x[v] > values[k - 1])) continue;
        uint32_t j = have < k ? have++ : k - 1;
        for (; j > 0 && x[v] > values[j - 1]; j--) {
            values[j] = values[j - 1];
            ids[j] = ids[j - 1];
        }
        values[j] = x[v];
        ids[j] = (int32_t)v;
    }
}

void reference_put(reference_writer *w, uint32_t i, const float *logits)
{
    if (w->k == 0) {
        memcpy(w->logits + (size_t)i * w->n_vocab, logits, w->n_vocab * sizeof *logits);
        return;
    }
    float *top = w->top_logits + (size_t)i * w->k;
    take_top(logits, w->n_vocab, w->k, w->top_ids + (size_t)i * w->k, top);
    double sum = 0.0;
    for (uint32_t v = 0; v < w->n_vocab; v++)
        sum += exp((double)logits[v] - (double)top[0]);
    w->log_sum[i] = (float)((double)top[0] + log(sum));
    w->target[i] = logits[w->tokens[i + 1 < w->n_tokens ? i + 1 : i]];
}

typedef struct part {
    const char *name, *dtype;
    const void *data;
    uint32_t n_dims;
    uint64_t dims[3];
} part;

static calla_status save(FILE *f, const strbuf *head, const part *parts, size_t n_parts)
{
    uint8_t len[8];
    for (int i = 0; i < 8; i++)
        len[i] = (uint8_t)((uint64_t)head->len >> (8 * i));
    bool ok = fwrite(len, 1, 8, f) == 8 && fwrite(head->data, 1, head->len, f) == head->len;
    for (size_t i = 0; i < n_parts && ok; i++) {
        const size_t n = (size_t)(parts[i].dims[0] * parts[i].dims[1] * parts[i].dims[2]);
        ok = fwrite(parts[i].data, 4, n, f) == n;
    }
    return ok ? CALLA_OK : CALLA_ERR_IO;
}

static size_t list_parts(const reference_writer *w, const int32_t *n_vocab, part *p)
{
    const uint64_t n = w->n_tokens, k = w->k;
    size_t c = 0;
    p[c++] = (part){"tokens", "I32", w->tokens, 1, {n, 1, 1}};
    p[c++] = (part){"first", "I32", w->first, 1, {w->n_seqs, 1, 1}};
    if (k == 0) {
        p[c++] = (part){"logits", "F32", w->logits, 2, {n, w->n_vocab, 1}};
    } else {
        p[c++] = (part){"top_ids", "I32", w->top_ids, 2, {n, k, 1}};
        p[c++] = (part){"top_logits", "F32", w->top_logits, 2, {n, k, 1}};
        p[c++] = (part){"log_sum", "F32", w->log_sum, 1, {n, 1, 1}};
        p[c++] = (part){"target_logit", "F32", w->target, 1, {n, 1, 1}};
        p[c++] = (part){"n_vocab", "I32", n_vocab, 1, {1, 1, 1}};
    }
    if (w->n_traced != 0)
        p[c++] = (part){"trace", "F32", w->trace, 3, {w->n_points, w->n_traced, w->n_width}};
    return c;
}

static void write_header(const reference_writer *w, const part *p, size_t n_parts, strbuf *head)
{
    uint64_t at = 0;
    (void)strbuf_puts(head, "{\"__metadata__\": {\"format\": \"calla-reference\"");
    if (w->source != NULL) {
        (void)strbuf_puts(head, ", \"source\": ");
        (void)json_write_string(head, w->source, strlen(w->source));
    }
    (void)strbuf_putc(head, '}');
    for (size_t i = 0; i < n_parts; i++) {
        (void)strbuf_printf(head, ", \"%s\": {\"dtype\": \"%s\", \"shape\": [", p[i].name,
                            p[i].dtype);
        for (uint32_t d = 0; d < p[i].n_dims; d++)
            (void)strbuf_printf(head, "%s%llu", d == 0 ? "" : ", ",
                                (unsigned long long)p[i].dims[d]);
        const uint64_t end = at + 4 * p[i].dims[0] * p[i].dims[1] * p[i].dims[2];
        (void)strbuf_printf(head, "], \"data_offsets\": [%llu, %llu]}", (unsigned long long)at,
                            (unsigned long long)end);
        at = end;
    }
    (void)strbuf_putc(head, '}');
    while (head->len % 8 != 0 && strbuf_putc(head, ' ')) {
    }
}

calla_status reference_write(const reference_writer *w, const char *path, calla_error *err)
{
    part parts[9];
    const int32_t n_vocab = (int32_t)w->n_vocab;
    const size_t n_parts = list_parts(w, &n_vocab, parts);
    strbuf head = {0}, temporary = {0};
    calla_status st = CALLA_ERR_IO;
    write_header(w, parts, n_parts, &head);
    const bool direct = file_is_special(path); /* a device or a pipe: not to be replaced */
    (void)strbuf_printf(&temporary, "%s%s", path, direct ? "" : ".part");
    if (head.failed || temporary.failed) {
        st = err_set(err, CALLA_ERR_MEMORY, "no memory to write %s", path);
        goto out;
    }
    FILE *f = fopen(temporary.data, "wb");
    if (f != NULL) st = save(f, &head, parts, n_parts);
    if (f != NULL && fclose(f) != 0) st = CALLA_ERR_IO;
    if (st == CALLA_OK && !direct && rename(temporary.data, path) != 0) st = CALLA_ERR_IO;
    if (st != CALLA_OK) {
        (void)err_set(err, CALLA_ERR_IO, "cannot write %s: %s", path, strerror(errno));
        if (f != NULL && !direct) (void)remove(temporary.data);
    }
out:
    strbuf_deinit(&head);
    strbuf_deinit(&temporary);
    return st;
}

void reference_writer_deinit(reference_writer *w)
{
    mem_free(w->logits);
    mem_free(w->top_logits);
    mem_free(w->log_sum);
    mem_free(w->target);
    mem_free(w->trace);
    mem_free(w->top_ids);
    w->logits = w->top_logits = w->log_sum = w->target = w->trace = NULL;
    w->top_ids = NULL;
}
