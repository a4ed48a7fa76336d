/* calla-eval: the demonstration model's evaluation set (tests/eval/README.md), greedily.
 *
 *   calla-eval [-m DIR] [--short] [--every N] [--kv bf16|f32] [--threads N]
 *
 * --short leaves out the long contexts, --every N takes each N-th of the rest. Prints right/all per
 * skill, with thinking off and on. Fails when a skill is off by more than one item from what
 * known-wrong.json (and, for the whole set, accuracy.json) says, or when a rendered prompt differs
 * from the recorded one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/pool.h"
#include "calla.h"

#define DATA       "tests/eval/"
#define SKILLS_MAX 64u

typedef struct skill {
    char name[32];
    unsigned n[2], right[2], expected[2]; /* thinking off, on */
} skill;

typedef struct eval {
    calla_engine *engine;
    const calla_tokenizer *tok;
    json_doc known_wrong, accuracy;
    skill skills[SKILLS_MAX];
    size_t n_skills;
    unsigned n_items, n_surprises, n_same_errors, n_other_prompts;
    size_t n_tokens;
} eval;

static void die(const char *what, const calla_error *err)
{
    (void)fprintf(stderr, "calla-eval: %s: %s\n", what, err->message);
    exit(1);
}

static const char *text_of(const json_value *item, const char *key)
{
    const json_value *v = json_get(item, key);
    return v != NULL && v->type == JSON_STRING ? v->text : NULL;
}

static bool thinks(const json_value *item)
{
    const json_value *v = json_get(item, "enable_thinking");
    return v != NULL && v->type == JSON_TRUE;
}

/* The reply of the reference when it is known to be wrong, else NULL. */
static const char *known_reply(const eval *e, const char *id)
{
    for (const json_value *v = e->known_wrong.root->first; v != NULL; v = v->next)
        if (json_is(json_get(v, "id"), id)) return text_of(v, "reply");
    return NULL;
}

static skill *skill_of(eval *e, const char *name)
{
    for (size_t i = 0; i < e->n_skills; i++)
        if (strcmp(e->skills[i].name, name) == 0) return &e->skills[i];
    if (e->n_skills == SKILLS_MAX) exit(1);
    skill *s = &e->skills[e->n_skills++];
    (void)snprintf(s->name, sizeof s->name, "%s", name);
    return s;
}

/* ---- One item ---- */

/* The prompt's ids, through calla's own chat renderer; its text must be the recorded one. */
static void encode_prompt(eval *e, const json_value *item, int32_t **ids, size_t *n)
{
    calla_error err;
    strbuf messages = {0}, tools = {0};
    char *text = NULL;
    size_t n_text;
    const calla_chat_options o = {.disable_thinking = !thinks(item)};
    const json_value *t = json_get(item, "tools");
    (void)json_write(&messages, json_get(item, "messages"));
    if (t != NULL && t->type == JSON_ARRAY) (void)json_write(&tools, t);
    if (calla_chat_encode(e->tok, messages.data, messages.len, tools.data, tools.len, &o, ids, n,
                          &err) != CALLA_OK ||
        calla_chat_render(messages.data, messages.len, tools.data, tools.len, &o, &text, &n_text,
                          &err) != CALLA_OK)
        die(text_of(item, "id"), &err);
    const char *recorded = text_of(item, "prompt");
    if (recorded != NULL && strcmp(recorded, text) != 0) {
        e->n_other_prompts++;
        (void)printf("%s: rendered prompt differs\n", text_of(item, "id"));
    }
    calla_free(text);
    strbuf_deinit(&messages);
    strbuf_deinit(&tools);
}

static bool on_token(void *user, int32_t id, const char *bytes, size_t n_bytes)
{
    (void)id;
    return strbuf_append(user, bytes, n_bytes);
}

static void generate(eval *e, const json_value *item, strbuf *out)
{
    calla_error err;
    calla_session *s;
    int32_t *ids, *completion;
    size_t n, n_completion;
    encode_prompt(e, item, &ids, &n);
    const char *c = text_of(item, "completion");
    if (calla_tokenizer_encode(e->tok, c, strlen(c), 0, &completion, &n_completion, &err) !=
        CALLA_OK)
        die(text_of(item, "id"), &err);
    const uint32_t limit = (uint32_t)n_completion + (thinks(item) ? 48 : 16);
    const calla_session_options so = {.n_ctx = (uint32_t)n + limit};
    const calla_sampling greedy = {0};
    const calla_generate_options o = {.sampling = &greedy, .max_tokens = limit};
    if (calla_session_create(&s, e->engine, &so, &err) != CALLA_OK ||
        calla_session_feed(s, ids, n, NULL, NULL, &err) != CALLA_OK ||
        calla_session_generate(s, &o, on_token, out, NULL, &err) != CALLA_OK)
        die(text_of(item, "id"), &err);
    e->n_tokens += calla_session_position(s);
    calla_session_destroy(s);
    calla_free(ids);
    calla_free(completion);
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool same_stripped(const char *a, size_t n_a, const char *b, size_t n_b)
{
    while (n_a != 0 && is_space(a[0]))
        a++, n_a--;
    while (n_a != 0 && is_space(a[n_a - 1]))
        n_a--;
    while (n_b != 0 && is_space(b[0]))
        b++, n_b--;
    while (n_b != 0 && is_space(b[n_b - 1]))
        n_b--;
    return n_a == n_b && memcmp(a, b, n_a) == 0;
}

static void run_item(eval *e, const json_value *item)
{
    strbuf out = {0};
    (void)strbuf_puts(&out, "");
    generate(e, item, &out);
    const int on = thinks(item) ? 1 : 0;
    const char *reply = out.data, *expected = text_of(item, "expected");
    if (on) {
        reply = strstr(out.data, "</think>");
        if (reply != NULL) reply += strlen("</think>");
    }
    const bool right = reply != NULL && same_stripped(reply, out.len - (size_t)(reply - out.data),
                                                      expected, strlen(expected));
    const char *known = known_reply(e, text_of(item, "id"));
    skill *s = skill_of(e, text_of(item, "skill"));
    s->n[on]++;
    s->right[on] += right;
    s->expected[on] += known == NULL;
    e->n_items++;
    if (known != NULL && strcmp(known, out.data) == 0) e->n_same_errors++;
    if (right != (known == NULL)) {
        e->n_surprises++;
        (void)printf("%s: %s; expected \"%s\", found \"%s\"\n", text_of(item, "id"),
                     right ? "right, the reference is not" : "wrong, the reference is right",
                     expected, out.data);
    }
    strbuf_deinit(&out);
}

/* ---- The whole ---- */

static void read_json(json_doc *doc, const char *path)
{
    calla_error err;
    char *text;
    size_t n;
    if (file_read(path, 1u << 20, &text, &n, &err) != CALLA_OK ||
        json_parse(doc, text, n, NULL, &err) != CALLA_OK)
        die(path, &err);
    mem_free(text);
}

static void run_all(eval *e, bool only_short, unsigned every)
{
    calla_error err;
    char *text;
    size_t n;
    unsigned i_item = 0;
    if (file_read(DATA "prompts.jsonl", 1u << 26, &text, &n, &err) != CALLA_OK)
        die("prompts.jsonl", &err);
    for (char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        json_doc item = {0};
        if (json_parse(&item, line, (size_t)(end - line), NULL, &err) != CALLA_OK)
            die("prompts.jsonl", &err);
        const bool is_long = strncmp(text_of(item.root, "skill"), "long_", 5) == 0;
        if (!(is_long && only_short) && i_item++ % every == 0) run_item(e, item.root);
        json_free(&item);
        if (i_item % 50 == 0) (void)fflush(stdout);
    }
    mem_free(text);
}

static bool report(const eval *e, bool whole)
{
    bool ok = e->n_other_prompts == 0;
    unsigned n[2] = {0}, right[2] = {0};
    for (size_t i = 0; i < e->n_skills; i++) {
        const skill *s = &e->skills[i];
        const json_value *row = json_get(json_get(e->accuracy.root, "4bit"), s->name);
        (void)printf("%-18s", s->name);
        for (int on = 0; on < 2; on++) {
            int64_t table_n = s->n[on], table = s->expected[on];
            if (whole && (!json_int(json_at(row, (size_t)on * 2), &table_n) ||
                          !json_int(json_at(row, (size_t)on * 2 + 1), &table)))
                ok = false;
            const bool same = table_n == s->n[on] && llabs(table - (int64_t)s->right[on]) <= 1;
            ok = ok && same;
            n[on] += s->n[on];
            right[on] += s->right[on];
            (void)printf("  %s %2u/%2u (table %lld)%s", on ? "on" : "off", s->right[on], s->n[on],
                         (long long)table, same ? "" : " DIFFERS");
        }
        (void)putchar('\n');
    }
    (void)printf("%-18s  off %u/%u  on %u/%u; %u replies differ from the reference in being right "
                 "or wrong, %u of its known errors repeated\n",
                 "all", right[0], n[0], right[1], n[1], e->n_surprises, e->n_same_errors);
    return ok && (whole || e->n_surprises <= 1);
}

int main(int argc, char **argv)
{
    static eval e;
    calla_error err;
    calla_engine_options o = {.model_dir = "models/nano"};
    bool only_short = false;
    unsigned every = 1;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--short") == 0) {
            only_short = true;
            continue;
        }
        if (strcmp(argv[i], "-m") == 0)
            o.model_dir = value;
        else if (strcmp(argv[i], "--every") == 0)
            every = (unsigned)strtoul(value, NULL, 10);
        else if (strcmp(argv[i], "--threads") == 0)
            o.n_threads = (unsigned)strtoul(value, NULL, 10);
        else if (strcmp(argv[i], "--kv") == 0)
            o.kv_type = strcmp(value, "f32") == 0 ? CALLA_KV_F32 : CALLA_KV_BF16;
        else if (strcmp(argv[i], "--precision") == 0)
            o.precision = strcmp(value, "exact") == 0  ? CALLA_PRECISION_EXACT
                          : strcmp(value, "int8") == 0 ? CALLA_PRECISION_INT8
                                                       : CALLA_PRECISION_INT16;
        else
            every = 0;
        i++;
    }
    if (every == 0) {
        (void)fprintf(stderr, "usage: calla-eval [-m DIR] [--short] [--every N] [--kv bf16|f32] "
                              "[--threads N] [--precision exact|int16|int8]\n");
        return 2;
    }
    read_json(&e.known_wrong, DATA "known-wrong.json");
    read_json(&e.accuracy, DATA "accuracy.json");
    if (calla_engine_create(&e.engine, &o, &err) != CALLA_OK) die(o.model_dir, &err);
    e.tok = calla_engine_tokenizer(e.engine);
    const double t0 = time_now();
    run_all(&e, only_short, every);
    const bool ok = report(&e, every == 1 && !only_short);
    (void)printf("%u prompts, %zu tokens, %.1f s\n", e.n_items, e.n_tokens, time_now() - t0);
    (void)printf("%d passed, %d failed\n", ok ? 1 : 0, ok ? 0 : 1);
    json_free(&e.known_wrong);
    json_free(&e.accuracy);
    calla_engine_destroy(e.engine);
    return ok ? 0 : 1;
}
