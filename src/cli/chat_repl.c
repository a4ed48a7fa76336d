/* chat_repl.c - interactive chat: commands, history across turns.
 *
 * The session holds the tokens of the conversation so far. Each turn the whole conversation is
 * rendered and compared with it; only what is new is computed. The template drops the thinking of
 * earlier turns, so the rendered prompt leaves the session's timeline where the last answer began,
 * and recurrent state cannot be rolled back: hence a snapshot at the end of each user turn, before
 * the header of the answer, which is restored in the next turn.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include "cli/edit.h"
#include "cli/run.h"
#include "cli/signals.h"
#include "cli/term.h"

typedef struct chat {
    run *r;
    conversation *c;
    editor *editor;
    bool leave;
    int rc; /* of the program */
    calla_snapshot *snapshot;
    int32_t *snapshot_ids; // [calla_snapshot_position(snapshot)]
    uint64_t n_generated;
} chat;

/* ---- Reading ------------------------------------------------------------------------------ */

static bool ends_with(const strbuf *b, const char *tail)
{
    const size_t n = strlen(tail);
    return b->len >= n && !memcmp(b->data + b->len - n, tail, n);
}

/* One message: a line, lines continued by a final backslash, or a block between """. */
static line_result read_message(const chat *ch, strbuf *out)
{
    strbuf_clear(out);
    line_result got = editor_read(ch->editor, false, out);
    if (got == LINE_OK && out->len >= 3 && !memcmp(out->data, "\"\"\"", 3)) {
        while (got == LINE_OK && (out->len < 6 || !ends_with(out, "\"\"\""))) {
            if (out->len > 3) strbuf_putc(out, '\n');
            got = editor_read(ch->editor, true, out);
        }
        if (got != LINE_OK || out->failed) return got;
        memmove(out->data, out->data + 3, out->len - 6);
        out->len -= 6;
        out->data[out->len] = '\0';
        return got;
    }
    while (got == LINE_OK && ends_with(out, "\\")) {
        out->data[out->len - 1] = '\n';
        got = editor_read(ch->editor, true, out);
    }
    return got;
}

/* ---- A turn ------------------------------------------------------------------------------- */

static void drop_snapshot(chat *ch)
{
    calla_snapshot_destroy(ch->snapshot);
    mem_free(ch->snapshot_ids);
    ch->snapshot = NULL;
    ch->snapshot_ids = NULL;
}

/* Keeps the state at the session's position for the next turn. A failure only costs time then. */
static void take_snapshot(chat *ch)
{
    const calla_session *s = ch->r->session;
    calla_error err;
    drop_snapshot(ch);
    const size_t n = calla_session_position(s);
    ch->snapshot_ids = mem_array(n, sizeof(int32_t));
    if (ch->snapshot_ids) memcpy(ch->snapshot_ids, calla_session_tokens(s), n * sizeof(int32_t));
    if (!ch->snapshot_ids || calla_session_snapshot(s, &ch->snapshot, &err) != CALLA_OK)
        drop_snapshot(ch);
}

static bool is_prefix(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b)
{
    return n_a <= n_b && (n_a == 0 || !memcmp(a, b, n_a * sizeof *a));
}

/* Brings the session to the longest known prefix of ids; returns its length. */
static size_t rewind_session(chat *ch, const int32_t *ids, size_t n)
{
    calla_session *s = ch->r->session;
    const size_t at = calla_session_position(s);
    if (is_prefix(calla_session_tokens(s), at, ids, n)) return at;
    if (ch->snapshot) {
        const size_t kept = calla_snapshot_position(ch->snapshot);
        if (is_prefix(ch->snapshot_ids, kept, ids, n) &&
            calla_session_restore(s, ch->snapshot, NULL) == CALLA_OK)
            return kept;
    }
    calla_session_reset(s);
    return 0;
}

/* Feeds ids[0 .. n) with a snapshot where the user's turn ends (n_user tokens). */
static calla_status feed_turn(chat *ch, const int32_t *ids, size_t n_user, size_t n, turn *t,
                              calla_error *err)
{
    calla_status st = CALLA_OK;
    size_t at = rewind_session(ch, ids, n);
    if (at < n_user) {
        TRY(run_feed(ch->r, ids + at, n_user - at, t, err));
        take_snapshot(ch);
        at = n_user;
    }
    TRY(run_feed(ch->r, ids + at, n - at, t, err));
fail:
    return st;
}

/* *ids: the whole prompt; *n_user: how many of them stand before the header of the answer. */
static calla_status encode_turn(chat *ch, int32_t **ids, size_t *n, size_t *n_user,
                                calla_error *err)
{
    int32_t *user = NULL;
    calla_chat_options options = {.disable_thinking = !ch->r->opt.think};
    calla_status st = CALLA_OK;
    *ids = NULL;
    TRY(conversation_encode(ch->c, ch->r->tok, &options, ids, n, err));
    options.no_generation_prompt = true;
    TRY(conversation_encode(ch->c, ch->r->tok, &options, &user, n_user, err));
    if (!is_prefix(user, *n_user, *ids, *n)) *n_user = 0;
fail:
    calla_free(user);
    return st;
}

static calla_status check_room(const chat *ch, size_t n, calla_error *err)
{
    const run *r = ch->r;
    if (n < r->n_ctx) return CALLA_OK;
    return err_set(err, CALLA_ERR_FULL,
                   "the conversation has %zu tokens and the context holds %u: /reset begins a new "
                   "one%s",
                   n, r->n_ctx,
                   r->n_ctx < r->info.max_context ? ", or start again with a larger --ctx" : "");
}

static calla_status run_turn(chat *ch, const strbuf *text, turn *t, calla_error *err)
{
    run *r = ch->r;
    int32_t *ids = NULL;
    size_t n = 0, n_user = 0;
    calla_status st = CALLA_OK;
    bool added = false;
    TRY(conversation_add(ch->c, "user", text->data, text->len, NULL, 0, err));
    added = true;
    TRY(encode_turn(ch, &ids, &n, &n_user, err));
    TRY(check_room(ch, n, err));
    t->n_prompt = n;
    t->sampling = run_sampling(r);
    signals_begin(r->session);
    st = feed_turn(ch, ids, n_user, n, t, err);
    if (st == CALLA_OK) st = run_generate(r, ids, n, t, err);
    t->signal = signals_received();
    signals_end();
    if (st == CALLA_OK)
        st = conversation_add(ch->c, "assistant", t->text.data ? t->text.data : "", t->text.len,
                              t->reasoning.data, t->reasoning.len, err);
fail:
    if (st != CALLA_OK && added) conversation_pop(ch->c); /* unanswered */
    calla_free(ids);
    return st;
}

static void say(chat *ch, const strbuf *text)
{
    calla_error err = {0};
    turn t = {0};
    const calla_status st = run_turn(ch, text, &t, &err);
    ch->n_generated += t.gen.n_tokens;
    if (st == CALLA_OK) {
        run_report(ch->r, &t);
        if (t.gen.stop == CALLA_STOP_CONTEXT)
            fprintf(stderr,
                    "The context of %u tokens is full: /reset begins a new conversation, "
                    "or start again with a larger --ctx.\n",
                    ch->r->n_ctx);
    } else if (st == CALLA_ERR_CANCELLED && t.signal) {
        fprintf(stderr, "Stopped while reading; the message was dropped.\n");
    } else {
        cli_fail(ch->r->cmd, &err);
    }
    if (t.output_error || t.signal == SIGTERM) {
        ch->leave = true;
        ch->rc = t.signal == SIGTERM ? 128 + SIGTERM : CLI_FAILED;
    }
    turn_deinit(&t);
}

/* ---- Commands ----------------------------------------------------------------------------- */

typedef struct command {
    const char *name, *args, *help;
    void (*run)(chat *ch, char *arg); /* arg: the rest of the line, trimmed */
} command;

static void do_help(chat *ch, char *arg);

static void do_reset(chat *ch, char *arg ATTR_UNUSED)
{
    conversation_clear(ch->c);
    drop_snapshot(ch);
    calla_session_reset(ch->r->session);
    fprintf(stderr, "A new conversation begins.\n");
}

static void do_think(chat *ch, char *arg ATTR_UNUSED)
{
    ch->r->opt.think = 1;
    fprintf(stderr, "The model thinks before it answers.\n");
}

static void do_no_think(chat *ch, char *arg ATTR_UNUSED)
{
    ch->r->opt.think = 0;
    fprintf(stderr, "The model answers at once.\n");
}

static void do_system(chat *ch, char *arg)
{
    calla_error err = {0};
    if (*arg && conversation_set_system(ch->c, arg, &err) != CALLA_OK) {
        cli_fail(ch->r->cmd, &err);
        return;
    }
    fprintf(stderr, "System prompt: ");
    if (ch->c->system)
        term_write(stderr, ch->c->system, ch->c->n_system, true);
    else
        fputs("none", stderr);
    fputc('\n', stderr);
}

static void do_save(chat *ch, char *arg)
{
    strbuf out = {0};
    if (!*arg) {
        cli_error(ch->r->cmd, "/save needs a file name");
        return;
    }
    FILE *f = fopen(arg, "wx"); /* never over an existing file */
    bool ok = f && conversation_write(ch->c, &out) && strbuf_putc(&out, '\n') &&
              fwrite(out.data, 1, out.len, f) == out.len;
    if (f && fclose(f) != 0) ok = false;
    if (ok)
        fprintf(stderr, "Saved %zu messages to %s.\n", ch->c->n_messages, arg);
    else
        cli_error(ch->r->cmd, "%s: %s", arg, strerror(errno));
    strbuf_deinit(&out);
}

static void do_stats(chat *ch, char *arg ATTR_UNUSED)
{
    const run *r = ch->r;
    const unsigned at = calla_session_position(r->session);
    fprintf(stderr, "%zu messages; context %u of %u tokens (%.0f %%); %" PRIu64 " generated\n",
            ch->c->n_messages, at, r->n_ctx, 100.0 * at / r->n_ctx, ch->n_generated);
    if (ch->snapshot)
        fprintf(stderr, "snapshot at token %u, %.1f MB\n", calla_snapshot_position(ch->snapshot),
                (double)calla_snapshot_bytes(ch->snapshot) / 1e6);
}

static void do_set(chat *ch, char *arg)
{
    static const char *const names[] = {"temp",
                                        "top-p",
                                        "top-k",
                                        "min-p",
                                        "presence-penalty",
                                        "frequency-penalty",
                                        "repetition-penalty",
                                        "seed",
                                        "max-tokens"};
    char *value = arg + strcspn(arg, " \t");
    if (*value) *value++ = '\0';
    value += strspn(value, " \t");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(arg, names[i]) != 0) continue;
        if (cli_set(ch->r->cmd, arg, value, &ch->r->opt))
            fprintf(stderr, "%s is %s from now on.\n", arg, value);
        return;
    }
    fprintf(stderr, "/set NAME VALUE, where NAME is one of:");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        fprintf(stderr, " %s", names[i]);
    fputc('\n', stderr);
}

static void do_exit(chat *ch, char *arg ATTR_UNUSED)
{
    ch->leave = true;
}

static const command commands[] = {
    {"/help", "", "this list", do_help},
    {"/reset", "", "forget the conversation, keep the system prompt", do_reset},
    {"/think", "", "let the model think first", do_think},
    {"/no-think", "", "answer at once", do_no_think},
    {"/system", "TEXT", "set the system prompt; alone: show it", do_system},
    {"/set", "NAME VALUE", "change a sampling option, as in: /set temp 0.7", do_set},
    {"/stats", "", "tokens in the context", do_stats},
    {"/save", "FILE", "write the messages as JSON", do_save},
    {"/exit", "", "leave (also Ctrl-D)", do_exit},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static void do_help(chat *ch ATTR_UNUSED, char *arg ATTR_UNUSED)
{
    for (size_t i = 0; i < N_COMMANDS; i++)
        fprintf(stderr, "  %s %-*s %s\n", commands[i].name, 21 - (int)strlen(commands[i].name),
                commands[i].args, commands[i].help);
    fputs(
        "A final \\ continues a message on the next line; \"\"\" before and after makes a block.\n"
        "A message that begins with / is written with two: //etc/hosts. Ctrl-C stops an answer.\n",
        stderr);
}

/* A line that begins with one slash. */
static void do_command(chat *ch, char *line)
{
    char *arg = line + strcspn(line, " \t\n");
    const size_t n = (size_t)(arg - line);
    arg += strspn(arg, " \t\n");
    size_t len = strlen(arg);
    while (len > 0 && strchr(" \t\n", arg[len - 1]))
        arg[--len] = '\0';
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strlen(commands[i].name) != n || memcmp(commands[i].name, line, n) != 0) continue;
        commands[i].run(ch, arg);
        return;
    }
    fprintf(stderr, "There is no command %.*s; /help lists them.\n", (int)n, line);
}

/* ---- Loop --------------------------------------------------------------------------------- */

static bool is_blank(const strbuf *b)
{
    return b->len == 0 || strspn(b->data, " \t\n") == b->len;
}

static void chat_loop(chat *ch)
{
    strbuf text = {.max = RUN_INPUT_MAX};
    while (!ch->leave) {
        const line_result got = read_message(ch, &text);
        if (got == LINE_END) break;
        if (got == LINE_INTERRUPTED || is_blank(&text)) continue;
        if (text.data[0] == '/' && text.data[1] == '/') {
            memmove(text.data, text.data + 1, text.len); /* with the NUL */
            text.len--;
            say(ch, &text);
        } else if (text.data[0] == '/') {
            do_command(ch, text.data);
        } else {
            say(ch, &text);
        }
    }
    strbuf_deinit(&text);
}

int run_chat(run *r, conversation *c)
{
    chat ch = {.r = r, .c = c};
    calla_error err = {0};
    if (run_session(r, r->opt.n_ctx != RUN_UNSET ? r->opt.n_ctx : RUN_CTX_CHAT, &err) != CALLA_OK)
        return cli_fail(r->cmd, &err);
    signals_ignore_interrupt();
    ch.editor = editor_create();
    if (ch.editor) {
        term_hold_input();
        run_print_model(r);
        fprintf(stderr, "/help lists the commands; Ctrl-D leaves.\n");
        chat_loop(&ch);
    } else {
        cli_error(r->cmd, "the line editor could not be started");
        ch.rc = CLI_FAILED;
    }
    editor_destroy(ch.editor);
    term_restore();
    drop_snapshot(&ch);
    return ch.rc;
}
