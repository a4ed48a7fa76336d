/* run.h - shared by the two ways of `calla run`: one answer, and chat.
 *
 * Does:   opens engine and session; runs a turn: feed tokens with a progress line, generate,
 *         stream the text, report.
 * Output: the answer goes to stdout, everything else (thinking, progress, figures) to stderr.
 */
#ifndef CALLA_CLI_RUN_H
#define CALLA_CLI_RUN_H

#include "base/mem.h"
#include "cli/cli.h"
#include "cli/conversation.h"

#define RUN_INPUT_MAX  (16u << 20)            /* bytes of a prompt */
#define RUN_SEED_MAX   9007199254740991.0     /* exact in JSON readers that use doubles */
#define RUN_CTX_CHAT   16384u                 /* default contexts, in tokens */
#define RUN_CTX_ANSWER 4096u                  /* room for an answer beyond the prompt */
#define RUN_UNSET      ((uint64_t)UINT64_MAX) /* integer option not given; reals use NAN */

typedef struct run_options {
    cli_common common;
    const char *prompt, *file, *system, *tools, *kv, *variant;
    int think, show_thinking; /* show_thinking -1: when stderr is a terminal */
    int raw, json, verbose, quiet;
    double temp, top_p, min_p, presence, frequency, repetition;
    uint64_t top_k, seed, max_tokens, n_ctx;
} run_options;

typedef struct run {
    const cli_command *cmd;
    run_options opt;
    cli_logger logger;
    char *model_dir, *pack_dir;
    char model_name[128];
    calla_engine *engine;
    const calla_tokenizer *tok; /* of the engine */
    calla_engine_info info;
    calla_session *session;
    uint32_t n_ctx;
    double load_seconds;
} run;

/* What one turn did. Zero-initialise; turn_deinit() frees the texts. */
typedef struct turn {
    strbuf text, reasoning;
    size_t n_prompt; /* tokens of the whole prompt */
    size_t n_fed;    /* of these, computed now */
    double prompt_seconds;
    calla_sampling sampling;
    calla_generate_result gen;
    int output_error; /* errno when stdout did not take the text, else 0 */
    int signal;       /* what stopped it, or 0 */
} turn;
void turn_deinit(turn *t);

/* Opens the model (refuses another chat template unless raw). run_close() also after failure. */
calla_status run_open(run *r, calla_error *err);
void run_close(run *r);

/* The session, of n_ctx tokens. More than the model can hold is refused when --ctx asked for it,
 * else cut. */
calla_status run_session(run *r, uint64_t n_ctx, calla_error *err);

/* The checkpoint's defaults, what the user gave, and a seed: turn.sampling. */
calla_sampling run_sampling(const run *r);

/* Appends ids to the session with a progress line and counts them in t. Between signals_begin()
 * and signals_end(). */
calla_status run_feed(run *r, const int32_t *ids, size_t n, turn *t, calla_error *err);

/* Generates by t->sampling, streaming to stdout and stderr unless --json. `prompt` is what stands
 * before the answer: it decides whether the model begins by thinking. Between signals_begin/end. */
calla_status run_generate(run *r, const int32_t *prompt, size_t n_prompt, turn *t,
                          calla_error *err);

/* The line of figures on stderr. */
void run_report(const run *r, const turn *t);

const char *run_stop_name(calla_stop stop); /* "stop", "length", "context", "cancelled" */

/* One dim line: model, backend, threads, context. Only on a terminal. */
void run_print_model(const run *r);

/* Interactive chat; returns the exit code. c: system prompt and tools are set. */
int run_chat(run *r, conversation *c);

#endif
