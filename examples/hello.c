/* hello.c - a whole conversation with calla in one page.
 *
 *   cc hello.c $(pkg-config --cflags --libs calla) -o hello
 *   ./hello MODEL_DIR "What is 47 + 38?" "And minus 5?"
 *
 * Each argument is one turn. Thinking is off, so that the answer comes at once. */
#include <calla.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(calla_status status, const calla_error *err)
{
    if (status == CALLA_OK) return;
    fprintf(stderr, "hello: %s (%s)\n", err->message, calla_status_name(status));
    exit(1);
}

/* Tokens end anywhere, also inside a character: the stream holds back what is not whole. */
static bool print_token(void *user, int32_t id, const char *bytes, size_t n_bytes)
{
    char text[3 * (4096 + 3)];
    (void)id;
    if (n_bytes > 4096) return false;
    fwrite(text, 1, calla_utf8_stream_push(user, bytes, n_bytes, text), stdout);
    fflush(stdout);
    return true;
}

/* One user message as the JSON that calla_chat_encode reads; turns here must not need escapes. */
static void feed_turn(calla_session *session, const calla_tokenizer *tok, const char *text)
{
    const calla_chat_options options = {.disable_thinking = true};
    char json[1024];
    calla_error err;
    int32_t *ids;
    size_t n_ids;
    const int n = snprintf(json, sizeof json, "[{\"role\": \"user\", \"content\": \"%s\"}]", text);
    if (n < 0 || (size_t)n >= sizeof json) {
        fprintf(stderr, "hello: this turn is too long for the example\n");
        exit(1);
    }
    check(calla_chat_encode(tok, json, (size_t)n, NULL, 0, &options, &ids, &n_ids, &err), &err);
    check(calla_session_feed(session, ids, n_ids, NULL, NULL, &err), &err);
    calla_free(ids);
}

/* The stop id ends the reply and is not part of it; the next turn needs it, and a line end. */
static void close_reply(calla_session *session, const calla_tokenizer *tok)
{
    static const char end[] = "<|im_end|>\n";
    calla_error err;
    int32_t *ids;
    size_t n_ids;
    check(calla_tokenizer_encode(tok, end, strlen(end), 0, &ids, &n_ids, &err), &err);
    check(calla_session_feed(session, ids, n_ids, NULL, NULL, &err), &err);
    calla_free(ids);
}

int main(int argc, char **argv)
{
    calla_engine *engine;
    calla_session *session;
    calla_error err;
    if (argc < 3) {
        fprintf(stderr, "usage: hello MODEL_DIR TURN...\n");
        return 2;
    }
    const calla_engine_options options = {.model_dir = argv[1]};
    check(calla_engine_create(&engine, &options, &err), &err);
    check(calla_session_create(&session, engine, NULL, &err), &err);
    const calla_tokenizer *tok = calla_engine_tokenizer(engine);

    for (int i = 2; i < argc; i++) {
        calla_utf8_stream stream = {0};
        char rest[12];
        printf("> %s\n", argv[i]);
        feed_turn(session, tok, argv[i]);
        check(calla_session_generate(session, NULL, print_token, &stream, NULL, &err), &err);
        fwrite(rest, 1, calla_utf8_stream_finish(&stream, rest), stdout);
        printf("\n");
        close_reply(session, tok);
    }
    calla_session_destroy(session);
    calla_engine_destroy(engine);
    return 0;
}
