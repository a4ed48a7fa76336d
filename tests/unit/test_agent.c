/* Traces and their replay: what is read and refused, and, on the demonstration model, that prompts
 * are the trace's, that the cache changes counts and no answer, and that what was generated stands
 * in later prompts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/json.h"
#include "bench/agent.h"
#include "bench/agent_trace.h"

static void refused(const char *text, const char *want)
{
    agent_trace t;
    calla_error err;
    assert_int_equal(agent_trace_parse(&t, "t", text, strlen(text), &err), CALLA_ERR_FORMAT);
    if (strstr(err.message, want) == NULL) fail_msg("'%s' is not in '%s'", want, err.message);
    assert_int_equal(t.n, 0);
}

static void test_lines(void **state)
{
    (void)state;
    static const char text[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"x\": 1.50}\n"
        "\r\n"
        "{\"after\": 1, \"messages\": [2, 3], \"usage\": {\"generated_tokens\": 7}}\n"
        "{\"after\": 3, \"keep\": 2, \"messages\": [\"\\u0000\"]}\n"
        "{\"request\": \"{\\\"messages\\\": []}\", \"path\": \"/v1/messages\", \"status\": 200}\n"
        "{\"request\": \"no matter\", \"path\": \"/tokenize\"}\n"
        "{\"request\": \"no matter\", \"status\": 400}\n"
        "{\"request_hex\": \"ff\"}\n"
        "{\"request\": {\"input\": \"b\"}, \"path\": \"/v1/responses\"}\n"
        "{\"input\": \"c\"}";
    agent_trace t;
    calla_error err;
    assert_int_equal(agent_trace_parse(&t, "t", text, sizeof text - 1, &err), CALLA_OK);
    assert_int_equal(t.n, 6);
    assert_int_equal(t.n_left_out, 3);
    assert_string_equal(t.requests[0].where, "t:1");
    assert_string_equal(t.requests[0].path, "/v1/chat/completions");
    assert_string_equal(t.requests[1].body, "{\"x\": 1.5, \"messages\": "
                                            "[{\"role\": \"user\", \"content\": \"a\"}, 2, 3]}");
    assert_string_equal(t.requests[1].where, "t:3");
    assert_int_equal(t.requests[1].n_generated, 7);
    assert_string_equal(
        t.requests[2].body,
        "{\"x\": 1.5, \"messages\": [{\"role\": \"user\", \"content\": \"a\"}, 2, \"\\u0000\"]}");
    assert_int_equal(t.requests[2].n_generated, 0);
    assert_string_equal(t.requests[3].path, "/v1/messages");
    assert_string_equal(t.requests[3].body, "{\"messages\": []}");
    assert_string_equal(t.requests[4].body, "{\"input\": \"b\"}");
    assert_string_equal(t.requests[5].path, "/v1/responses");
    agent_trace_close(&t);
}

static void test_refusals(void **state)
{
    (void)state;
    refused("", "t: no request");
    refused("{\"request\": \"x\", \"status\": 500}", "(1 others)");
    refused("{\"messages\": []}\n{\"messages\"", "t:2: ");
    refused("\n[]", "t:2: expected an object");
    refused("{\"a\": 1}", "t:1: expected \"messages\", \"input\"");
    refused("{\"request\": 5}", "t:1: \"request\"");
    refused("{\"request\": \"\", \"path\": 5}", "t:1: \"path\"");
    refused("{\"after\": 1, \"messages\": []}", "t:1: \"after\": expected the number");
    refused("{\"messages\": []}\n{\"after\": 0, \"messages\": []}", "t:2: \"after\"");
    refused("{\"messages\": []}\n\n{\"after\": 2, \"messages\": []}", "t:3: \"after\"");
    refused("{\"messages\": []}\n{\"after\": 1}", "t:2: \"messages\"");
    refused("{\"messages\": [1]}\n{\"after\": 1, \"keep\": 2, \"messages\": []}", "t:2: \"keep\"");
    refused("{\"messages\": [1]}\n{\"after\": 1, \"keep\": -1, \"messages\": []}", "t:2: \"keep\"");
    refused("{\"input\": \"x\"}\n{\"after\": 1, \"messages\": []}", "t:2: \"after\"");
    refused("{\"request\": \"[\"}\n{\"after\": 1, \"messages\": []}", "t:1: ");
    refused("{\"messages\": 1}\n{\"after\": 1, \"messages\": []}", "t:2: \"after\"");
}

/* ---- On the demonstration model ---- */

/* A tool's round, a helper with the same beginning, a request repeated, a question behind thinking,
 * a conversation taken back, and another API. */
static const char session[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"You count boxes. Rooms have numbers.\"},"
    " {\"role\": \"user\", \"content\": \"How many are in room 7?\"}], \"tools\": [{\"type\": "
    "\"function\", \"function\": {\"name\": \"look\", \"parameters\": {\"type\": \"object\"}}}]}\n"
    "{\"after\": 1, \"messages\": [{\"role\": \"assistant\", \"content\": \"\", "
    "\"reasoning_content\": \"I have to look at the room before I answer.\", \"tool_calls\": "
    "[{\"id\": \"c1\", \"type\": \"function\", \"function\": {\"name\": \"look\", \"arguments\": "
    "\"{\\\"room\\\": 7}\"}}]}, {\"role\": \"tool\", \"tool_call_id\": \"c1\", \"content\": "
    "\"12 boxes of tea, 3 of paper\"}]}\n"
    "{\"after\": 1, \"keep\": 1, \"messages\": [{\"role\": \"user\", \"content\": \"Name the rooms."
    "\"}]}\n"
    "{\"after\": 2, \"messages\": []}\n"
    "{\"after\": 2, \"messages\": [{\"role\": \"assistant\", \"content\": \"There are 15 boxes.\", "
    "\"reasoning_content\": \"12 and 3 is 15.\"}, {\"role\": \"user\", \"content\": \"And without "
    "the paper?\"}]}\n"
    "{\"after\": 1, \"keep\": 1, \"messages\": [{\"role\": \"user\", \"content\": \"How many are "
    "in "
    "room 8? I said 7 before.\"}], \"usage\": {\"generated_tokens\": 5}}\n"
    "{\"path\": \"/v1/messages\", \"request\": {\"max_tokens\": 9, \"system\": \"You count boxes. "
    "Rooms have numbers.\", \"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}]}}\n";
#define N_TURNS 7u

static char path[] = "/tmp/calla-test-agent-XXXXXX";

static void write_session(const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static uint32_t n_told;

static void on_turn(void *user, const agent_turn *turn, uint32_t of)
{
    (void)user;
    assert_int_equal(of, N_TURNS);
    assert_int_equal(turn->request, ++n_told);
}

static void check_costs(const agent_result *r)
{
    for (uint32_t i = 0; i < r->n; i++) {
        const agent_cost *c = &r->turns[i].cache, *p = &r->turns[i].plain;
        assert_true(c->n_cached < c->n_prompt);
        assert_int_equal(p->n_cached, 0);
        assert_int_equal(p->n_prompt, c->n_prompt);
        assert_true(c->first_token_s > 0 && c->total_s >= c->first_token_s);
        assert_true(p->first_token_s > 0 && p->total_s >= p->first_token_s);
        assert_false(r->turns[i].differs);
    }
}

static void test_replay(void **state)
{
    calla_error err;
    agent_result r;
    const agent_options o = {.engine = *state, .trace = path, .no_cache = true, .on_turn = on_turn};
    write_session(session);
    n_told = 0;
    if (agent_run(&r, &o, &err) != CALLA_OK) fail_msg("%s", err.message);
    const agent_turn *t = r.turns;
    assert_int_equal(r.n, N_TURNS);
    assert_int_equal(n_told, N_TURNS);
    assert_int_equal(r.n_differ, 0);
    check_costs(&r);
    assert_int_equal(t[0].cache.n_cached, 0);
    /* The prompt goes on from the answer just generated, whose tokens are as many as the recorded
     * one's: all but the last of them are cached. */
    assert_true(t[0].n_generated > 10);
    assert_true(t[1].cache.n_cached >= t[0].cache.n_prompt + t[0].n_generated - 1);
    assert_true(t[1].cache.n_cached > t[1].cache.n_prompt / 2);
    /* The helper shares the system prompt, the repeated request nearly all. */
    assert_true(t[2].cache.n_cached > 0);
    assert_int_equal(t[3].cache.n_prompt, t[1].cache.n_prompt);
    assert_true(t[3].cache.n_cached > t[1].cache.n_cached);
    assert_int_equal(t[3].n_generated, t[1].n_generated);
    /* The question drops the thinking before it: less is shared than was computed. */
    assert_true(t[4].cache.n_cached > 0 && t[4].cache.n_cached < t[3].cache.n_prompt);
    assert_true(t[5].cache.n_cached > 0);
    assert_int_equal(t[4].n_generated, AGENT_ANSWER_TOKENS);
    assert_int_equal(t[5].n_generated, 5);
    assert_int_equal(t[6].n_generated, 9);
    assert_true(r.cache_bytes > 0 && r.cache_bytes <= r.cache_limit_bytes);
    agent_result_deinit(&r);
}

/* What is written is JSON with the same numbers. */
static void test_report(void **state)
{
    calla_error err;
    agent_result r;
    strbuf json = {0}, csv = {0};
    json_doc doc = {0};
    const agent_options o = {.engine = *state, .trace = path, .n_turns = 2};
    write_session(session);
    if (agent_run(&r, &o, &err) != CALLA_OK) fail_msg("%s", err.message);
    assert_int_equal(r.n, 2);
    (void)strbuf_putc(&json, '{');
    agent_put_json(&json, &r);
    (void)strbuf_putc(&json, '}');
    if (json_parse(&doc, json.data, json.len, NULL, &err) != CALLA_OK) fail_msg("%s", err.message);
    int64_t prompt, cached, computed, sum;
    const json_value *turn = json_at(json_get(doc.root, "agent"), 1);
    const json_value *total = json_get(doc.root, "agent_total");
    assert_true(json_int(json_get(turn, "prompt_tokens"), &prompt));
    assert_true(json_int(json_get(turn, "cached_tokens"), &cached));
    assert_true(json_int(json_get(turn, "computed_tokens"), &computed));
    assert_int_equal(prompt, r.turns[1].cache.n_prompt);
    assert_int_equal(prompt, cached + computed);
    assert_true(cached > 0);
    assert_null(json_get(turn, "no_cache"));
    assert_true(json_int(json_get(total, "prompt_tokens"), &sum));
    assert_int_equal(sum, r.turns[0].cache.n_prompt + r.turns[1].cache.n_prompt);
    agent_put_csv(&csv, &r);
    size_t n_lines = 0;
    for (const char *p = csv.data; *p != '\0'; p++)
        n_lines += *p == '\n';
    assert_int_equal(n_lines, 3);
    json_free(&doc);
    strbuf_deinit(&csv);
    strbuf_deinit(&json);
    agent_result_deinit(&r);
}

static void test_limits(void **state)
{
    calla_error err;
    agent_result r;
    agent_options o = {.engine = *state, .trace = path, .n_ctx = 240};
    write_session(session);
    if (agent_run(&r, &o, &err) != CALLA_OK) fail_msg("%s", err.message);
    assert_true(r.n_too_long > 0 && r.n > 0);
    assert_int_equal(r.n + r.n_too_long, N_TURNS);
    agent_result_deinit(&r);
    o.n_ctx = 16;
    assert_int_equal(agent_run(&r, &o, &err), CALLA_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "context of 16"));
    o.n_ctx = 0;
    write_session("{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n"
                  "{\"messages\": [{\"role\": \"nobody\", \"content\": \"a\"}]}\n");
    assert_int_equal(agent_run(&r, &o, &err), CALLA_ERR_FORMAT);
    assert_non_null(strstr(err.message, ":2: messages[0].role"));
    o.trace = "models/nano/none";
    assert_int_equal(agent_run(&r, &o, &err), CALLA_ERR_IO);
}

/* Records in a folder are put in the order of their times. */
static void test_folder(void **state)
{
    (void)state;
    static const char *const files[][2] = {
        {"b.json", "{\"time\": \"2026-01-02T00:00:00.000Z\", \"request\": \"{\\\"n\\\": 2}\"}"},
        {"a.json", "{\"time\": \"2026-01-02T00:00:00.001Z\", \"request\": \"{\\\"n\\\": 3}\"}"},
        {"c.json", "{\"time\": \"2026-01-01T23:59:59.999Z\", \"request\": \"{\\\"n\\\": 1}\",\n"
                   "\"usage\": {\"generated_tokens\": 4}}\n"},
        {"note.txt", "no record"},
    };
    char dir[] = "/tmp/calla-test-agent-dir-XXXXXX";
    char name[128];
    agent_trace t;
    calla_error err;
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        (void)snprintf(name, sizeof name, "%s/%s", dir, files[i][0]);
        FILE *f = fopen(name, "w");
        assert_non_null(f);
        assert_true(fputs(files[i][1], f) >= 0);
        assert_int_equal(fclose(f), 0);
    }
    assert_int_equal(agent_trace_open(&t, dir, &err), CALLA_OK);
    assert_int_equal(t.n, 3);
    assert_string_equal(t.requests[0].body, "{\"n\": 1}");
    assert_int_equal(t.requests[0].n_generated, 4);
    assert_string_equal(t.requests[1].body, "{\"n\": 2}");
    assert_string_equal(t.requests[2].body, "{\"n\": 3}");
    agent_trace_close(&t);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        (void)snprintf(name, sizeof name, "%s/%s", dir, files[i][0]);
        (void)unlink(name);
    }
    assert_int_equal(agent_trace_open(&t, dir, &err), CALLA_ERR_FORMAT);
    (void)rmdir(dir);
}

/* The session that comes with the program can be read, and needs less than it is said to. */
static void test_shipped(void **state)
{
    (void)state;
    agent_trace t;
    calla_error err;
    struct stat s;
    assert_int_equal(stat("bench/agent/session.jsonl", &s), 0);
    assert_true(s.st_size <= 200 * 1024);
    if (agent_trace_open(&t, "bench/agent/session.jsonl", &err) != CALLA_OK)
        fail_msg("%s", err.message);
    assert_int_equal(t.n, 28);
    assert_int_equal(t.n_left_out, 0);
    agent_trace_close(&t);
}

static int setup(void **state)
{
    const calla_engine_options eo = {.model_dir = "models/nano", .n_threads = 2};
    calla_engine *e;
    calla_error err;
    const int fd = mkstemp(path);
    if (fd < 0 || close(fd) != 0 || calla_engine_create(&e, &eo, &err) != CALLA_OK) return 1;
    *state = e;
    return 0;
}

static int teardown(void **state)
{
    calla_engine_destroy(*state);
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),  cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_folder), cmocka_unit_test(test_shipped),
        cmocka_unit_test(test_replay), cmocka_unit_test(test_report),
        cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
