/* cmd_tokenize.c - calla tokenize: text to ids, ids to text. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/json.h"
#include "base/mem.h"
#include "cli/cli.h"

typedef struct tokenize_options {
    cli_common common;
    int decode, json, plain;
} tokenize_options;

static const cli_option options[] = {
    CLI_ROW_MODEL(tokenize_options, common),
    CLI_OPT_FLAG('d', "decode", tokenize_options, decode, 1, "read ids, write their text"),
    CLI_OPT_FLAG(0, "json", tokenize_options, json, 1, "one JSON object, with the text of each id"),
    CLI_OPT_FLAG(0, "plain", tokenize_options, plain, 1,
                 "spellings of special tokens stay text, as in a chat message"),
    CLI_OPT_END,
};

static int cmd_tokenize(int argc, char **argv);

const cli_command cli_tokenize = {
    .name = "tokenize",
    .summary = "text to token ids, or back",
    .args = "[FILE]",
    .about =
        "Reads text from FILE, or from the standard input, and writes its token ids on one\n"
        "line. With --decode, reads ids (decimal, separated by white space or commas, brackets\n"
        "ignored) and writes the text they stand for, byte for byte.\n",
    .options = options,
    .n_args_max = 1,
    .main = cmd_tokenize,
};

#define INPUT_MAX (256u << 20)

static calla_status read_stream(FILE *f, const char *name, strbuf *in, calla_error *err)
{
    char part[65536];
    size_t n;
    in->max = INPUT_MAX;
    while ((n = fread(part, 1, sizeof part, f)) > 0)
        if (!strbuf_append(in, part, n))
            return err_set(err, CALLA_ERR_ARGUMENT, "%s: more than %u bytes", name, INPUT_MAX);
    if (ferror(f)) return err_set(err, CALLA_ERR_IO, "%s: %s", name, strerror(errno));
    return CALLA_OK;
}

/* path NULL or "-": the standard input. */
static calla_status read_input(const char *path, strbuf *in, calla_error *err)
{
    if (path == NULL || strcmp(path, "-") == 0)
        return read_stream(stdin, "standard input", in, err);
    FILE *f = fopen(path, "rb");
    if (f == NULL) return err_set(err, CALLA_ERR_IO, "%s: %s", path, strerror(errno));
    const calla_status st = read_stream(f, path, in, err);
    (void)fclose(f);
    return st;
}

/* ids: mem_free(). */
static calla_status parse_ids(const strbuf *in, const calla_tokenizer *tok, int32_t **ids,
                              size_t *n_ids, calla_error *err)
{
    const char *s = in->len != 0 ? in->data : "";
    *n_ids = 0;
    *ids = mem_array(in->len / 2 + 1, sizeof **ids);
    if (*ids == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for the ids");
    for (size_t i = 0;;) {
        i += strspn(s + i, " \t\r\n,[]");
        if (i == in->len) return CALLA_OK;
        const size_t len = strspn(s + i, "0123456789");
        const unsigned long id = strtoul(s + i, NULL, 10);
        if (len == 0 || len > 9 || id >= (unsigned long)calla_tokenizer_size(tok)) {
            const size_t shown = strcspn(s + i, " \t\r\n,[]");
            return err_set_at(err, CALLA_ERR_ARGUMENT, i,
                              "byte %zu of the input: expected an id from 0 to %d, found '%.*s'", i,
                              calla_tokenizer_size(tok) - 1, (int)(shown < 32 ? shown : 32), s + i);
        }
        (*ids)[(*n_ids)++] = (int32_t)id;
        i += len;
    }
}

/* {"n": 2, "ids": [264, 64], "pieces": [" a", "a"], "text": " aa"}; broken UTF-8 is replaced. */
static calla_status write_json(const calla_tokenizer *tok, const int32_t *ids, size_t n_ids,
                               strbuf *out, calla_error *err)
{
    calla_status st = CALLA_OK;
    strbuf_printf(out, "{\"n\": %zu, \"ids\": [", n_ids);
    for (size_t i = 0; i < n_ids; i++)
        strbuf_printf(out, "%s%d", i > 0 ? ", " : "", ids[i]);
    strbuf_puts(out, "], \"pieces\": [");
    for (size_t i = 0; i <= n_ids && st == CALLA_OK; i++) {
        char *text = NULL;
        size_t n = 0;
        if (i == n_ids) { /* after the pieces, the whole */
            st = calla_tokenizer_decode(tok, ids, n_ids, false, &text, &n, err);
            strbuf_puts(out, "], \"text\": ");
        } else {
            st = calla_tokenizer_decode(tok, ids + i, 1, false, &text, &n, err);
            if (i > 0) strbuf_puts(out, ", ");
        }
        if (st == CALLA_OK) json_write_string(out, text, n);
        mem_free(text);
    }
    strbuf_puts(out, "}\n");
    return st;
}

static calla_status write_ids(const int32_t *ids, size_t n_ids, strbuf *out)
{
    for (size_t i = 0; i < n_ids; i++)
        strbuf_printf(out, "%s%d", i > 0 ? " " : "", ids[i]);
    strbuf_putc(out, '\n');
    return CALLA_OK;
}

static calla_status write_text(const calla_tokenizer *tok, const int32_t *ids, size_t n_ids,
                               strbuf *out)
{
    for (size_t i = 0; i < n_ids; i++) {
        size_t n;
        const char *bytes = calla_tokenizer_bytes(tok, ids[i], &n);
        strbuf_append(out, bytes, n);
    }
    return CALLA_OK;
}

static calla_status tokenize(const tokenize_options *o, const char *path, strbuf *out,
                             calla_error *err)
{
    calla_status st;
    char *dir = NULL;
    calla_tokenizer *tok = NULL;
    strbuf in = {0};
    int32_t *ids = NULL;
    size_t n_ids = 0;
    const unsigned flags = o->plain ? CALLA_ENCODE_PLAIN_TEXT : CALLA_ENCODE_DEFAULT;

    TRY(cli_model_dir(o->common.model, &dir, err));
    TRY(calla_tokenizer_open(&tok, dir, err));
    TRY(read_input(path, &in, err));
    if (o->decode)
        TRY(parse_ids(&in, tok, &ids, &n_ids, err));
    else
        TRY(calla_tokenizer_encode(tok, in.data, in.len, flags, &ids, &n_ids, err));
    if (o->json)
        TRY(write_json(tok, ids, n_ids, out, err));
    else if (o->decode)
        TRY(write_text(tok, ids, n_ids, out));
    else
        TRY(write_ids(ids, n_ids, out));
    if (out->failed) st = err_set(err, CALLA_ERR_MEMORY, "no memory for the output");
fail:
    mem_free(ids);
    strbuf_deinit(&in);
    calla_tokenizer_close(tok);
    mem_free(dir);
    return st;
}

static int cmd_tokenize(int argc, char **argv)
{
    tokenize_options o = {.common = CLI_COMMON_DEFAULTS};
    int n_args = 0;
    calla_error err;
    strbuf out = {0};
    int rc = cli_parse(&cli_tokenize, argc, argv, &o, &n_args);
    if (rc >= 0) return rc;
    if (o.plain && o.decode) return cli_usage_error(&cli_tokenize, "--plain is for encoding only");
    if (tokenize(&o, n_args > 0 ? argv[1] : NULL, &out, &err) != CALLA_OK) {
        rc = cli_fail(&cli_tokenize, &err);
    } else {
        if (out.len != 0) (void)fwrite(out.data, 1, out.len, stdout);
        rc = cli_stdout_ok() ? CLI_OK : CLI_FAILED;
        if (rc != CLI_OK) cli_error(&cli_tokenize, "cannot write the output: %s", strerror(errno));
    }
    strbuf_deinit(&out);
    return rc;
}
