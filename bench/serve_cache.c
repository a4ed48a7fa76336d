/* serve-cache - what an agent's conversation costs with and without the prefix cache.
 *
 *   serve-cache [-m DIR] [--turns N] [--max-tokens N] [--cache MIB] [--threads N] [--ctx N]
 *
 * Plays one conversation of N turns (20) through two schedulers of one engine, cache off and on. As
 * an agent does, each turn resends everything: a long system prompt, then by turns a question and
 * tool results, each followed by the answer just generated. The prompt follows the chat template:
 * the empty block of thinking stays in the answers behind the last question and is gone from
 * those before it, so that a new question contradicts what was computed since the last one.
 * Prints for each turn the prompt, the tokens computed and the time to the first token, both ways.
 * Exit code 1 if an answer differs. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/pool.h"
#include "engine/scheduler.h"

#define MESSAGES_MAX 256u
#define ANSWER_MAX   1024u

typedef enum role { SYSTEM, QUESTION, TOOL_RESULT, ANSWER } role;

typedef struct message {
    role role;
    int32_t *ids;
    size_t n;
} message;

typedef struct bench {
    calla_engine *engine;
    const calla_tokenizer *tok;
    scheduler *off, *on;
    message messages[MESSAGES_MAX];
    size_t n_messages;
    int32_t *prompt;
    uint32_t boundaries[MESSAGES_MAX];
    size_t n_prompt, n_boundaries;
    uint32_t n_ctx, n_turns, max_tokens;
} bench;

typedef struct answer {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int32_t ids[ANSWER_MAX];
    uint32_t n;
    double t_submit, t_first;
    sched_result result;
    bool done;
} answer;

static void die(const char *what)
{
    (void)fprintf(stderr, "serve-cache: %s\n", what);
    exit(1);
}

/* ---- The conversation ---- */

static message *add(bench *b, role r, const char *text)
{
    calla_error err;
    if (b->n_messages == MESSAGES_MAX) die("too many messages");
    message *m = &b->messages[b->n_messages++];
    m->role = r;
    if (calla_tokenizer_encode(b->tok, text, strlen(text), CALLA_ENCODE_DEFAULT, &m->ids, &m->n,
                               &err) != CALLA_OK)
        die(err.message);
    return m;
}

static void put_text(bench *b, const char *text)
{
    calla_error err;
    int32_t *ids;
    size_t n;
    if (calla_tokenizer_encode(b->tok, text, strlen(text), CALLA_ENCODE_DEFAULT, &ids, &n, &err) !=
        CALLA_OK)
        die(err.message);
    if (n > b->n_ctx - b->n_prompt) die("the context is too small for so many turns");
    memcpy(b->prompt + b->n_prompt, ids, n * sizeof *ids);
    b->n_prompt += n;
    calla_free(ids);
}

static void put_ids(bench *b, const message *m)
{
    if (m->n > b->n_ctx - b->n_prompt) die("the context is too small for so many turns");
    memcpy(b->prompt + b->n_prompt, m->ids, m->n * sizeof *m->ids);
    b->n_prompt += m->n;
}

/* The whole prompt, as the chat template would write it. */
static void render(bench *b)
{
    static const char *const begin[] = {"<|im_start|>system\n", "<|im_start|>user\n",
                                        "<|im_start|>user\n<tool_response>\n",
                                        "<|im_start|>assistant\n"};
    static const char *const end[] = {"<|im_end|>\n", "<|im_end|>\n",
                                      "\n</tool_response><|im_end|>\n", "<|im_end|>\n"};
    size_t last_question = 0;
    for (size_t i = 0; i < b->n_messages; i++)
        if (b->messages[i].role == QUESTION) last_question = i;
    b->n_prompt = b->n_boundaries = 0;
    for (size_t i = 0; i < b->n_messages; i++) {
        const message *m = &b->messages[i];
        put_text(b, begin[m->role]);
        if (m->role == ANSWER && i > last_question) put_text(b, "<think>\n\n</think>\n\n");
        put_ids(b, m);
        put_text(b, end[m->role]);
        b->boundaries[b->n_boundaries++] = (uint32_t)b->n_prompt;
    }
    put_text(b, "<|im_start|>assistant\n<think>\n\n</think>\n\n");
}

/* ---- Asking ---- */

static bool on_token(void *user, const sched_token *t)
{
    answer *a = user;
    (void)pthread_mutex_lock(&a->lock);
    if (a->n == 0) a->t_first = time_now();
    a->ids[a->n++] = t->id;
    (void)pthread_mutex_unlock(&a->lock);
    return a->n < ANSWER_MAX;
}

static void on_done(void *user, const sched_result *r)
{
    answer *a = user;
    (void)pthread_mutex_lock(&a->lock);
    a->result = *r;
    if (a->n == 0) a->t_first = time_now();
    a->done = true;
    (void)pthread_cond_signal(&a->changed);
    (void)pthread_mutex_unlock(&a->lock);
}

static void ask(const bench *b, scheduler *s, answer *a)
{
    static const calla_sampling greedy = {0};
    calla_error err;
    sched_ticket ticket;
    *a = (answer){.t_submit = time_now()};
    (void)pthread_mutex_init(&a->lock, NULL);
    (void)pthread_cond_init(&a->changed, NULL);
    const sched_request r = {.prompt = b->prompt,
                             .n_prompt = b->n_prompt,
                             .sampling = &greedy,
                             .max_tokens = b->max_tokens,
                             .boundaries = b->boundaries,
                             .n_boundaries = b->n_boundaries,
                             .user = a,
                             .on_token = on_token,
                             .on_done = on_done};
    if (scheduler_submit(s, &r, &ticket, &err) != CALLA_OK) die(err.message);
    (void)pthread_mutex_lock(&a->lock);
    while (!a->done)
        (void)pthread_cond_wait(&a->changed, &a->lock);
    (void)pthread_mutex_unlock(&a->lock);
    if (a->result.status != CALLA_OK) die(calla_status_name(a->result.status));
}

/* ---- The run ---- */

static void next_message(bench *b, uint32_t turn)
{
    char text[4096];
    size_t n = 0;
    static const char *const items[] = {"bread", "rice", "tea", "apples", "paper", "lamps"};
    if (turn % 4 == 0) {
        (void)snprintf(text, sizeof text, "What is %u + %u? Then read the next report.", 17 + turn,
                       3 * turn + 5);
        (void)add(b, QUESTION, text);
        return;
    }
    for (uint32_t i = 0; i < 14 + turn % 5 * 3; i++)
        n += (size_t)snprintf(text + n, sizeof text - n,
                              "line %u of report %u: %u boxes of %s in room %u\n", i, turn,
                              (i * 37 + turn * 11) % 90, items[(i + turn) % 6], (i * turn) % 12);
    (void)add(b, TOOL_RESULT, text);
}

static void run(bench *b)
{
    double off_s = 0, on_s = 0;
    uint64_t n_off = 0, n_on = 0;
    uint32_t n_differ = 0;
    static answer off, on;
    (void)printf("turn  message      prompt  computed: off     on   first token: off ms      on "
                 "ms  diverged at\n");
    for (uint32_t turn = 0; turn < b->n_turns; turn++) {
        next_message(b, turn);
        render(b);
        ask(b, b->off, &off);
        ask(b, b->on, &on);
        const uint32_t c_off = off.result.n_prompt - off.result.n_cached;
        const uint32_t c_on = on.result.n_prompt - on.result.n_cached;
        const double f_off = off.t_first - off.t_submit, f_on = on.t_first - on.t_submit;
        const bool same = off.n == on.n && memcmp(off.ids, on.ids, off.n * sizeof *off.ids) == 0;
        (void)printf("%4u  %-11s  %6u  %13u  %5u  %19.1f  %10.1f", turn + 1,
                     turn % 4 == 0 ? "question" : "tool result", on.result.n_prompt, c_off, c_on,
                     f_off * 1e3, f_on * 1e3);
        if (on.result.diverged_at != SCHED_NO_POSITION) (void)printf("  %u", on.result.diverged_at);
        (void)printf("%s\n", same ? "" : "  THE ANSWERS DIFFER");
        off_s += f_off;
        on_s += f_on;
        n_off += c_off;
        n_on += c_on;
        n_differ += !same;
        message *m = add(b, ANSWER, "");
        calla_free(m->ids);
        m->n = on.n;
        m->ids = mem_array(on.n, sizeof *m->ids);
        if (m->ids == NULL && on.n != 0) die("no memory");
        if (on.n != 0) memcpy(m->ids, on.ids, on.n * sizeof *m->ids);
    }
    sched_stats st;
    scheduler_stats(b->on, &st);
    (void)printf("prompt tokens computed: %llu without the cache, %llu with it (%.1f times fewer)\n"
                 "sum of times to first token: %.2f s without, %.2f s with (%.1f times less)\n"
                 "cache: %.1f of %.0f MiB, %u sequences, %u states, %llu states evicted\n"
                 "answers that differ: %u of %u\n",
                 (unsigned long long)n_off, (unsigned long long)n_on, (double)n_off / (double)n_on,
                 off_s, on_s, off_s / on_s, (double)st.cache_bytes / 1048576.0,
                 (double)st.cache_limit_bytes / 1048576.0, st.n_timelines, st.n_states,
                 (unsigned long long)st.n_evicted_states, n_differ, b->n_turns);
    if (n_differ != 0) exit(1);
}

int main(int argc, char **argv)
{
    static bench b = {.n_ctx = 16384, .n_turns = 20, .max_tokens = 40};
    calla_engine_options eo = {.model_dir = "models/nano"};
    uint64_t cache_mib = 256;
    calla_error err;
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *k = argv[i], *v = argv[i + 1];
        if (strcmp(k, "-m") == 0) eo.model_dir = v;
        if (strcmp(k, "--turns") == 0) b.n_turns = (uint32_t)strtoul(v, NULL, 10);
        if (strcmp(k, "--max-tokens") == 0) b.max_tokens = (uint32_t)strtoul(v, NULL, 10);
        if (strcmp(k, "--cache") == 0) cache_mib = strtoul(v, NULL, 10);
        if (strcmp(k, "--threads") == 0) eo.n_threads = (unsigned)strtoul(v, NULL, 10);
        if (strcmp(k, "--ctx") == 0) b.n_ctx = (uint32_t)strtoul(v, NULL, 10);
    }
    scheduler_options so = {.n_ctx = b.n_ctx};
    if (calla_engine_create(&b.engine, &eo, &err) != CALLA_OK) die(err.message);
    if (scheduler_create(&b.off, b.engine, &so, &err) != CALLA_OK) die(err.message);
    so.cache_ram_bytes = cache_mib << 20;
    if (scheduler_create(&b.on, b.engine, &so, &err) != CALLA_OK) die(err.message);
    b.tok = calla_engine_tokenizer(b.engine);
    b.prompt = mem_array(b.n_ctx, sizeof *b.prompt);
    if (b.prompt == NULL) die("no memory");
    strbuf system = {0};
    (void)strbuf_puts(&system, "You are a careful assistant of a warehouse. Rules:\n");
    for (uint32_t i = 0; i < 60; i++)
        (void)strbuf_printf(&system, "%u. Reports of room %u are read before those of room %u.\n",
                            i + 1, i * 7 % 12, (i * 5 + 3) % 12);
    (void)add(&b, SYSTEM, system.data);
    strbuf_deinit(&system);
    run(&b);
    scheduler_destroy(b.on);
    scheduler_destroy(b.off);
    for (size_t i = 0; i < b.n_messages; i++)
        mem_free(b.messages[i].ids);
    mem_free(b.prompt);
    calla_engine_destroy(b.engine);
    return 0;
}
