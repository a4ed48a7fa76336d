#include "cli/run.h"
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "base/pool.h"
#include "cli/signals.h"
#include "cli/term.h"
#include "text/chat.h"
#include "text/reasoning.h"

void turn_deinit(turn *t)
{
    strbuf_deinit(&t->text);
    strbuf_deinit(&t->reasoning);
}

/* ---- Engine and session ------------------------------------------------------------------- */

/* The last component of the folder's real path. */
static void model_name(run *r)
{
    char real[PATH_MAX];
    const char *path = realpath(r->model_dir, real) ? real : r->model_dir;
    const char *slash = strrchr(path, '/');
    snprintf(r->model_name, sizeof r->model_name, "%s", slash && slash[1] ? slash + 1 : path);
}

calla_status run_open(run *r, calla_error *err)
{
    calla_status st = CALLA_OK;
    const double t0 = time_now();
    r->logger = cli_logger_make(r->cmd, &r->opt.common);
    TRY(cli_model_dir(r->opt.common.model, &r->model_dir, err));
    model_name(r);
    if (!r->opt.raw) TRY(chat_template_check(r->model_dir, err));
    TRY(cli_pack_dir(&r->opt.common, &r->pack_dir, err));
    term_progress progress;
    term_progress_begin(&progress, "loading weights", "bytes");
    if (r->opt.json || r->opt.quiet) progress.on = false;
    const calla_engine_options options = {
        .model_dir = r->model_dir,
        .backend = r->opt.common.backend,
        .n_threads = (unsigned)r->opt.common.n_threads,
        .kv_type = !r->opt.kv                  ? CALLA_KV_DEFAULT
                   : !strcmp(r->opt.kv, "f32") ? CALLA_KV_F32
                                               : CALLA_KV_BF16,
        .cpu_variant = r->opt.variant,
        .n_ctx = r->opt.n_ctx != RUN_UNSET ? (uint32_t)r->opt.n_ctx : 0,
        .pack_dir = r->pack_dir,
        .precision = cli_precision(&r->opt.common),
        .progress = cli_on_load,
        .progress_user = &progress,
        .log = cli_log,
        .log_user = &r->logger,
    };
    st = calla_engine_create(&r->engine, &options, err);
    term_progress_end(&progress);
    if (st != CALLA_OK) goto fail;
    r->tok = calla_engine_tokenizer(r->engine);
    calla_engine_get_info(r->engine, &r->info);
    r->load_seconds = time_now() - t0;
fail:
    return st;
}

calla_status run_session(run *r, uint64_t n_ctx, calla_error *err)
{
    if (r->opt.n_ctx != RUN_UNSET && n_ctx > r->info.max_context)
        return err_set(err, CALLA_ERR_ARGUMENT,
                       "--ctx: expected at most %u, which is what this model can hold, found %llu",
                       r->info.max_context, (unsigned long long)n_ctx);
    if (n_ctx > r->info.max_context) n_ctx = r->info.max_context;
    r->n_ctx = (uint32_t)n_ctx;
    const calla_session_options options = {.n_ctx = r->n_ctx};
    return calla_session_create(&r->session, r->engine, &options, err);
}

void run_close(run *r)
{
    calla_session_destroy(r->session);
    calla_engine_destroy(r->engine);
    mem_free(r->model_dir);
    mem_free(r->pack_dir);
    r->session = NULL;
    r->engine = NULL;
    r->model_dir = NULL;
    r->pack_dir = NULL;
}

/* ---- One turn ----------------------------------------------------------------------------- */

static bool on_progress(void *user, size_t n_done, size_t n_total)
{
    term_progress_update(user, (double)n_done, (double)n_total);
    return true;
}

calla_status run_feed(run *r, const int32_t *ids, size_t n, turn *t, calla_error *err)
{
    if (n == 0) return CALLA_OK;
    term_progress progress;
    term_progress_begin(&progress, "reading", "tokens");
    if (r->opt.json || r->opt.quiet) progress.on = false;
    const uint32_t before = calla_session_position(r->session);
    const double t0 = time_now();
    calla_status st = calla_session_feed(r->session, ids, n, on_progress, &progress, err);
    /* A signal that came as the previous turn ended may have left its cancellation behind. */
    if (st == CALLA_ERR_CANCELLED && !signals_received()) {
        const size_t done = calla_session_position(r->session) - before;
        st = calla_session_feed(r->session, ids + done, n - done, on_progress, &progress, err);
    }
    t->prompt_seconds += time_now() - t0;
    t->n_fed += calla_session_position(r->session) - before;
    term_progress_end(&progress);
    return st;
}

static uint64_t random_seed(void)
{
    uint32_t seed = 0;
    FILE *f = fopen("/dev/urandom", "rb");
    if (!f || fread(&seed, sizeof seed, 1, f) != 1)
        seed = (uint32_t)time(NULL) * 2654435761u ^ (uint32_t)getpid();
    if (f) fclose(f);
    return seed;
}

calla_sampling run_sampling(const run *r)
{
    const run_options *o = &r->opt;
    calla_sampling s;
    calla_engine_default_sampling(r->engine, &s);
    if (!isnan(o->temp)) s.temperature = (float)o->temp;
    if (!isnan(o->top_p)) s.top_p = (float)o->top_p;
    if (!isnan(o->min_p)) s.min_p = (float)o->min_p;
    if (!isnan(o->presence)) s.presence_penalty = (float)o->presence;
    if (!isnan(o->frequency)) s.frequency_penalty = (float)o->frequency;
    if (!isnan(o->repetition)) s.repetition_penalty = (float)o->repetition;
    if (s.top_p <= 0) s.top_p = 1; /* 0 also means off; say it the usual way */
    if (s.repetition_penalty <= 0) s.repetition_penalty = 1;
    if (o->top_k != RUN_UNSET) s.top_k = (int32_t)o->top_k;
    s.seed = o->seed != RUN_UNSET ? o->seed : random_seed();
    return s;
}

typedef struct sink {
    turn *t;
    reasoning split;
    bool stream;        /* write as it comes (not --json) */
    bool show_thinking; /* on stderr */
    bool dim;           /* stderr takes escape sequences */
    bool in_thinking;   /* thinking was written, the answer has not begun */
    bool safe_out, safe_err;
} sink;

static void output_failed(turn *t)
{
    if (!t->output_error) t->output_error = errno ? errno : EIO;
}

static void leave_thinking(sink *s)
{
    if (!s->in_thinking) return;
    fputs(s->dim ? TERM_RESET "\n\n" : "\n\n", stderr);
    s->in_thinking = false;
}

static void on_text(void *user, bool thinking, const char *text, size_t n)
{
    sink *s = user;
    strbuf_append(thinking ? &s->t->reasoning : &s->t->text, text, n);
    if (!s->stream) return;
    if (thinking) {
        if (!s->show_thinking) return;
        if (!s->in_thinking && s->dim) fputs(TERM_DIM, stderr);
        s->in_thinking = true;
        term_write(stderr, text, n, s->safe_err);
        fflush(stderr);
        return;
    }
    leave_thinking(s);
    if (!term_write(stdout, text, n, s->safe_out)) output_failed(s->t);
}

static bool on_token(void *user, int32_t id, const char *bytes, size_t n)
{
    sink *s = user;
    reasoning_push(&s->split, id, bytes, n, on_text, s);
    if (s->stream && !cli_stdout_ok()) output_failed(s->t);
    return !s->t->output_error && !s->t->text.failed && !s->t->reasoning.failed;
}

calla_status run_generate(run *r, const int32_t *prompt, size_t n_prompt, turn *t, calla_error *err)
{
    sink s = {
        .t = t,
        .stream = !r->opt.json,
        .show_thinking = r->opt.show_thinking < 0 ? term_is_tty(stderr) : r->opt.show_thinking,
        .dim = term_colors(stderr),
        .safe_out = term_is_tty(stdout),
        .safe_err = term_is_tty(stderr),
    };
    if (r->opt.raw)
        reasoning_init_raw(&s.split, r->tok);
    else
        reasoning_init(&s.split, r->tok, prompt, n_prompt);
    const calla_generate_options options = {.sampling = &t->sampling,
                                            .max_tokens = (uint32_t)r->opt.max_tokens};
    const calla_status st =
        calla_session_generate(r->session, &options, on_token, &s, &t->gen, err);
    reasoning_finish(&s.split, on_text, &s);
    leave_thinking(&s);
    /* A raw continuation in a pipe is the exact text; anything else ends its line. */
    const bool ended = t->text.len > 0 && t->text.data[t->text.len - 1] == '\n';
    const bool wanted = t->text.len > 0 && !ended && !(r->opt.raw && !s.safe_out);
    if (s.stream && wanted) putchar('\n');
    if (s.stream && !cli_stdout_ok()) output_failed(t);
    if (st == CALLA_OK && (t->text.failed || t->reasoning.failed))
        return err_set(err, CALLA_ERR_MEMORY, "no memory for the text of the answer");
    return st;
}

/* ---- Report ------------------------------------------------------------------------------- */

const char *run_stop_name(calla_stop stop)
{
    switch (stop) {
    case CALLA_STOP_EOS:
        return "stop";
    case CALLA_STOP_LENGTH:
        return "length";
    case CALLA_STOP_CONTEXT:
        return "context";
    case CALLA_STOP_CANCELLED:
    case CALLA_STOP_CALLBACK:
        return "cancelled";
    }
    return "stop";
}

static const char *stop_sentence(calla_stop stop)
{
    switch (stop) {
    case CALLA_STOP_LENGTH:
        return "; stopped at --max-tokens";
    case CALLA_STOP_CONTEXT:
        return "; stopped: the context is full";
    case CALLA_STOP_CANCELLED:
        return "; stopped by a signal";
    case CALLA_STOP_EOS:
    case CALLA_STOP_CALLBACK:
        break;
    }
    return "";
}

static void print_rate(double n, double seconds)
{
    if (n > 0 && seconds > 0) fprintf(stderr, ", %.*f tokens/s", n < 100 * seconds, n / seconds);
}

void run_report(const run *r, const turn *t)
{
    if (r->opt.quiet) return;
    const bool dim = term_colors(stderr);
    fprintf(stderr, "%sprompt %zu tokens", dim ? TERM_DIM : "", t->n_prompt);
    if (t->n_fed < t->n_prompt) fprintf(stderr, " (%zu new)", t->n_fed);
    print_rate((double)t->n_fed, t->prompt_seconds);
    fprintf(stderr, "; generated %u tokens", t->gen.n_tokens);
    print_rate(t->gen.n_tokens, t->gen.decode_seconds);
    fprintf(stderr, "%s%s\n", stop_sentence(t->gen.stop), dim ? TERM_RESET : "");
    if (!r->opt.verbose) return;
    const calla_sampling *s = &t->sampling;
    fprintf(stderr,
            "loaded in %.2f s; seed %llu, temperature %g, top-p %g, top-k %d, min-p %g, penalties: "
            "presence %g, frequency %g, repetition %g\n",
            r->load_seconds, (unsigned long long)s->seed, (double)s->temperature, (double)s->top_p,
            s->top_k, (double)s->min_p, (double)s->presence_penalty, (double)s->frequency_penalty,
            (double)s->repetition_penalty);
}

void run_print_model(const run *r)
{
    if (r->opt.quiet || r->opt.json || !term_is_tty(stderr)) return;
    const bool dim = term_colors(stderr);
    fprintf(stderr, "%s%s: %s (%s), %u thread%s, context %u tokens%s\n", dim ? TERM_DIM : "",
            r->model_name, r->info.backend, r->info.variant, r->info.n_threads,
            r->info.n_threads == 1 ? "" : "s", r->n_ctx, dim ? TERM_RESET : "");
}
