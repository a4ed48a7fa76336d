/* cmd_run.c - `calla run`: one answer, or chat. */
#include <errno.h>
#include <math.h>
#include <string.h>
#include "base/json.h"
#include "cli/run.h"
#include "cli/signals.h"
#include "cli/term.h"

static const cli_option options[] = {
    CLI_OPT_SECTION("Input"),
    CLI_OPT_TEXT('p', "prompt", run_options, prompt, "TEXT", "the message to answer"),
    CLI_OPT_TEXT('f', "file", run_options, file, "FILE",
                 "read the message from a file; - is standard input"),
    CLI_OPT_TEXT(0, "system", run_options, system, "TEXT", "system prompt"),
    CLI_OPT_TEXT(0, "tools", run_options, tools, "FILE",
                 "JSON array of tool definitions to offer to the model"),
    CLI_OPT_FLAG(0, "think", run_options, think, 1, "let the model think first (default)"),
    CLI_OPT_FLAG(0, "no-think", run_options, think, 0, "answer at once"),
    CLI_OPT_FLAG(0, "raw", run_options, raw, 1, "no chat: continue the text as it stands"),
    CLI_OPT_SECTION("Sampling (defaults: the model's own)"),
    CLI_OPT_REAL(0, "temp", run_options, temp, 0, 100, "X",
                 "temperature; 0 takes the likeliest token"),
    CLI_OPT_REAL(0, "top-p", run_options, top_p, 0, 1, "X",
                 "keep the likeliest tokens that together have this probability; 1: all"),
    CLI_OPT_UINT(0, "top-k", run_options, top_k, 0, 1000000, "N",
                 "keep the N likeliest tokens; 0: all"),
    CLI_OPT_REAL(0, "min-p", run_options, min_p, 0, 0.999, "X",
                 "drop tokens below this fraction of the likeliest one's probability"),
    CLI_OPT_REAL(0, "presence-penalty", run_options, presence, -2, 2, "X",
                 "taken from the score of tokens already generated"),
    CLI_OPT_REAL(0, "frequency-penalty", run_options, frequency, -2, 2, "X",
                 "taken once for each time a token was generated"),
    CLI_OPT_REAL(0, "repetition-penalty", run_options, repetition, 0.1, 10, "X",
                 "divides the score of tokens in prompt and answer; 1: off"),
    CLI_OPT_UINT(0, "seed", run_options, seed, 0, RUN_SEED_MAX, "N",
                 "repeats a run exactly; default random, shown by --verbose and --json"),
    CLI_OPT_UINT(0, "max-tokens", run_options, max_tokens, 1, 1000000, "N",
                 "stop after N tokens; default when the context is full"),
    CLI_OPT_SECTION("Output"),
    CLI_OPT_FLAG(0, "json", run_options, json, 1, "print one JSON document when all is done"),
    CLI_OPT_FLAG(0, "show-thinking", run_options, show_thinking, 1,
                 "thinking on stderr (default when that is a terminal)"),
    CLI_OPT_FLAG(0, "hide-thinking", run_options, show_thinking, 0, "do not show thinking"),
    CLI_OPT_FLAG('q', "quiet", run_options, quiet, 1, "no figures and no progress on stderr"),
    CLI_OPT_FLAG('v', "verbose", run_options, verbose, 1, "also print seed and sampling settings"),
    CLI_OPT_SECTION("Model"),
    CLI_ROW_MODEL(run_options, common),
    CLI_OPT_UINT(0, "ctx", run_options, n_ctx, 16, 1048576, "N",
                 "most tokens of prompt and answer together; default prompt + 4096, chat 16384"),
    CLI_OPT_CHOICE(0, "kv", run_options, kv, "bf16|f32", "format of the attention cache"),
    CLI_ROW_BACKEND(run_options, common),
    CLI_OPT_CHOICE(0, "variant", run_options, variant, "ref|avx2|avxvnni|avx512|neon|i8mm",
                   "best CPU kernels to use; default the best that this processor has"),
    CLI_ROW_THREADS(run_options, common),
    CLI_ROW_PRECISION(run_options, common),
    CLI_ROW_PACK_DIR(run_options, common),
    CLI_ROW_LOG_LEVEL(run_options, common),
    CLI_OPT_END,
};

static int cmd_run(int argc, char **argv);

const cli_command cli_run = {
    .name = "run",
    .summary = "answer a prompt, or chat",
    .about = "Answers the message given by -p, -f or standard input. With none of these, on a\n"
             "terminal, it chats: /help there lists what can be typed.\n"
             "The answer goes to stdout; thinking, progress and figures go to stderr.\n",
    .options = options,
    .configurable = true,
    .main = cmd_run,
};

/* ---- Input -------------------------------------------------------------------------------- */

/* Reads a stream to its end. */
static calla_status read_stream(FILE *f, const char *name, strbuf *out, calla_error *err)
{
    char block[16384];
    size_t n;
    out->max = RUN_INPUT_MAX;
    while ((n = fread(block, 1, sizeof block, f)) > 0)
        if (!strbuf_append(out, block, n))
            return err_set(err, CALLA_ERR_ARGUMENT, "%s: expected at most %u bytes, found more",
                           name, RUN_INPUT_MAX);
    if (ferror(f)) return err_set(err, CALLA_ERR_IO, "%s: %s", name, strerror(errno));
    return CALLA_OK;
}

static calla_status read_file(const char *path, strbuf *out, calla_error *err)
{
    if (!strcmp(path, "-")) return read_stream(stdin, "standard input", out, err);
    FILE *f = fopen(path, "rb");
    if (!f) return err_set(err, CALLA_ERR_IO, "%s: %s", path, strerror(errno));
    const calla_status st = read_stream(f, path, out, err);
    fclose(f);
    return st;
}

/* The message from -p, -f or stdin, as valid UTF-8. */
static calla_status read_prompt(const run *r, strbuf *out, calla_error *err)
{
    strbuf bytes = {0};
    calla_status st = CALLA_OK;
    char *clean = NULL;
    size_t n = 0;
    bool changed = false;
    if (r->opt.prompt)
        strbuf_puts(&bytes, r->opt.prompt);
    else
        TRY(read_file(r->opt.file ? r->opt.file : "-", &bytes, err));
    if (bytes.len == 0) {
        st = err_set(err, CALLA_ERR_ARGUMENT, "the prompt is empty");
        goto fail;
    }
    clean = utf8_clean(bytes.data, bytes.len, &n, &changed);
    if (!clean || !strbuf_append(out, clean, n))
        st = err_set(err, CALLA_ERR_MEMORY, "no memory for a prompt of %zu bytes", bytes.len);
    if (changed)
        cli_error(r->cmd, "the prompt is not valid UTF-8; what is not was replaced by U+FFFD");
fail:
    mem_free(clean);
    strbuf_deinit(&bytes);
    return st;
}

static calla_status read_tools(const char *path, conversation *c, calla_error *err)
{
    strbuf text = {0};
    json_doc doc = {0};
    const json_limits limits = {.what = path};
    calla_status st = CALLA_OK;
    TRY(read_file(path, &text, err));
    TRY(json_parse(&doc, text.data ? text.data : "", text.len, &limits, err));
    if (doc.root->type != JSON_ARRAY)
        st = err_set(err, CALLA_ERR_FORMAT,
                     "%s: expected a JSON array of tools, found another type", path);
    else if (!(c->tools = mem_memdup(text.data, text.len)))
        st = err_set(err, CALLA_ERR_MEMORY, "no memory for the tools");
    c->n_tools = text.len;
fail:
    json_free(&doc);
    strbuf_deinit(&text);
    return st;
}

/* ---- One answer --------------------------------------------------------------------------- */

static void write_real(strbuf *out, const char *key, double v)
{
    strbuf_printf(out, ", \"%s\": %.9g", key, isfinite(v) ? v : 0.0);
}

static void write_rate(strbuf *out, const char *key, double n, double seconds)
{
    write_real(out, key, seconds > 0 ? n / seconds : 0.0);
}

/* One line; documented in the man page. */
static bool print_json(const run *r, const turn *t)
{
    strbuf out = {0};
    const calla_sampling *s = &t->sampling;
    strbuf_puts(&out, "{\"model\": ");
    json_write_string(&out, r->model_name, strlen(r->model_name));
    strbuf_printf(&out, ", \"backend\": \"%s\", \"variant\": \"%s\", \"threads\": %u",
                  r->info.backend, r->info.variant, r->info.n_threads);
    strbuf_puts(&out, ", \"text\": ");
    json_write_string(&out, t->text.data ? t->text.data : "", t->text.len);
    strbuf_puts(&out, ", \"reasoning\": ");
    if (t->reasoning.len > 0)
        json_write_string(&out, t->reasoning.data, t->reasoning.len);
    else
        strbuf_puts(&out, "null");
    strbuf_printf(&out, ", \"finish_reason\": \"%s\"", run_stop_name(t->gen.stop));
    strbuf_printf(&out, ", \"prompt_tokens\": %zu, \"generated_tokens\": %u", t->n_prompt,
                  t->gen.n_tokens);
    strbuf_printf(&out, ", \"context\": %u, \"seed\": %llu", r->n_ctx, (unsigned long long)s->seed);
    write_real(&out, "temperature", (double)s->temperature);
    write_real(&out, "top_p", (double)s->top_p);
    strbuf_printf(&out, ", \"top_k\": %d", s->top_k);
    write_real(&out, "min_p", (double)s->min_p);
    write_real(&out, "presence_penalty", (double)s->presence_penalty);
    write_real(&out, "frequency_penalty", (double)s->frequency_penalty);
    write_real(&out, "repetition_penalty", (double)s->repetition_penalty);
    write_real(&out, "load_seconds", r->load_seconds);
    write_real(&out, "prompt_seconds", t->prompt_seconds);
    write_real(&out, "generate_seconds", t->gen.decode_seconds);
    write_rate(&out, "prompt_tokens_per_second", (double)t->n_fed, t->prompt_seconds);
    write_rate(&out, "generated_tokens_per_second", t->gen.n_tokens, t->gen.decode_seconds);
    strbuf_puts(&out, "}\n");
    const bool ok = !out.failed && fwrite(out.data, 1, out.len, stdout) == out.len;
    strbuf_deinit(&out);
    return cli_stdout_ok() && ok;
}

/* The ids of the prompt: the text itself (--raw), or a conversation of one message. */
static calla_status encode_prompt(run *r, conversation *c, const strbuf *text, int32_t **ids,
                                  size_t *n, calla_error *err)
{
    if (r->opt.raw)
        return calla_tokenizer_encode(r->tok, text->data, text->len, CALLA_ENCODE_DEFAULT, ids, n,
                                      err);
    const calla_chat_options options_chat = {.disable_thinking = !r->opt.think};
    calla_status st = CALLA_OK;
    TRY(conversation_add(c, "user", text->data, text->len, NULL, 0, err));
    TRY(conversation_encode(c, r->tok, &options_chat, ids, n, err));
fail:
    return st;
}

static calla_status answer(run *r, const int32_t *ids, size_t n, turn *t, calla_error *err)
{
    calla_status st = CALLA_OK;
    const uint64_t n_ctx = r->opt.n_ctx != RUN_UNSET ? r->opt.n_ctx
                           : r->opt.max_tokens > 0   ? n + r->opt.max_tokens
                                                     : n + RUN_CTX_ANSWER;
    TRY(run_session(r, n_ctx, err));
    if (n >= r->n_ctx) {
        st = err_set(err, CALLA_ERR_FULL,
                     "the prompt has %zu tokens and the context holds %u: shorten it%s", n,
                     r->n_ctx, r->n_ctx < r->info.max_context ? " or give a larger --ctx" : "");
        goto fail;
    }
    run_print_model(r);
    t->n_prompt = n;
    t->sampling = run_sampling(r);
    signals_begin(r->session);
    st = run_feed(r, ids, n, t, err);
    if (st == CALLA_OK) st = run_generate(r, ids, n, t, err);
    t->signal = signals_received();
    signals_end();
    if (st == CALLA_ERR_CANCELLED && t->signal) {
        t->gen.stop = CALLA_STOP_CANCELLED; /* while the prompt was read */
        st = CALLA_OK;
    }
fail:
    return st;
}

static int run_once(run *r, conversation *c, const strbuf *text)
{
    calla_error err = {0};
    int32_t *ids = NULL;
    size_t n = 0;
    turn t = {0};
    int rc = CLI_OK;
    calla_status st = encode_prompt(r, c, text, &ids, &n, &err);
    if (st == CALLA_OK) st = answer(r, ids, n, &t, &err);
    calla_free(ids);
    if (st != CALLA_OK) {
        rc = cli_fail(r->cmd, &err);
    } else {
        if (r->opt.json && !print_json(r, &t)) t.output_error = errno ? errno : EIO;
        if (t.output_error) rc = CLI_FAILED;
        if (t.output_error && t.output_error != EPIPE)
            cli_error(r->cmd, "standard output: %s", strerror(t.output_error));
        if (!t.output_error && !r->opt.json) run_report(r, &t);
        if (t.signal) rc = 128 + t.signal;
    }
    turn_deinit(&t);
    return rc;
}

/* ---- Command ------------------------------------------------------------------------------ */

static int check_options(const run *r, bool chat)
{
    const run_options *o = &r->opt;
    if (o->prompt && o->file)
        return cli_usage_error(r->cmd, "-p and -f exclude each other; give the message once");
    if (o->raw && (o->system || o->tools))
        return cli_usage_error(r->cmd, "--raw renders no chat, so it takes no --system or --tools");
    if (chat && (o->json || o->raw))
        return cli_usage_error(r->cmd, "--%s needs a prompt: -p, -f or standard input",
                               o->json ? "json" : "raw");
    return -1;
}

static int cmd_run(int argc, char **argv)
{
    run r = {.cmd = &cli_run,
             .opt = {.common = CLI_COMMON_DEFAULTS,
                     .think = 1,
                     .show_thinking = -1,
                     .temp = (double)NAN,
                     .top_p = (double)NAN,
                     .min_p = (double)NAN,
                     .presence = (double)NAN,
                     .frequency = (double)NAN,
                     .repetition = (double)NAN,
                     .top_k = RUN_UNSET,
                     .seed = RUN_UNSET,
                     .n_ctx = RUN_UNSET}};
    int rc = cli_parse(r.cmd, argc, argv, &r.opt, NULL);
    if (rc >= 0) return rc;
    const bool chat = !r.opt.prompt && !r.opt.file && term_is_tty(stdin) && term_is_tty(stdout);
    rc = check_options(&r, chat);
    if (rc >= 0) return rc;

    calla_error err = {0};
    strbuf text = {0};
    conversation c = {0};
    calla_status st = CALLA_OK;
    if (!chat) TRY(read_prompt(&r, &text, &err));
    TRY(conversation_set_system(&c, r.opt.system, &err));
    if (r.opt.tools) TRY(read_tools(r.opt.tools, &c, &err));
    TRY(run_open(&r, &err));
    rc = chat ? run_chat(&r, &c) : run_once(&r, &c, &text);
fail:
    if (st != CALLA_OK) rc = cli_fail(r.cmd, &err);
    run_close(&r);
    conversation_deinit(&c);
    strbuf_deinit(&text);
    return rc;
}
