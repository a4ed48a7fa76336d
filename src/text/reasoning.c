#include "text/reasoning.h"

void reasoning_init(reasoning *r, const calla_tokenizer *tok, const int32_t *prompt, size_t n)
{
    *r = (reasoning){.tok = tok,
                     .begin_id = calla_tokenizer_added_id(tok, "<think>"),
                     .end_id = calla_tokenizer_added_id(tok, "</think>")};
    while (n > 0 && !r->thinking) {
        const int32_t id = prompt[--n];
        if (id == r->end_id) break;
        r->thinking = id == r->begin_id;
    }
}

void reasoning_init_raw(reasoning *r, const calla_tokenizer *tok)
{
    *r = (reasoning){.tok = tok, .begin_id = -1, .end_id = -1, .raw = true};
}

static void emit_bytes(reasoning *r, const char *bytes, size_t n, reasoning_fn emit, void *user)
{
    enum { STEP = 256 };
    char out[3 * (STEP + 3)];
    while (n > 0) {
        const size_t step = n < STEP ? n : STEP;
        const size_t n_out = calla_utf8_stream_push(&r->utf8, bytes, step, out);
        if (n_out > 0) emit(user, r->thinking, out, n_out);
        bytes += step;
        n -= step;
    }
}

/* The part ends: no character and no newline reaches over into the next one. */
static void end_part(reasoning *r, reasoning_fn emit, void *user)
{
    char out[12];
    const size_t n_out = calla_utf8_stream_finish(&r->utf8, out);
    if (n_out > 0) emit(user, r->thinking, out, n_out);
    r->begun = false;
    r->n_newlines = 0;
}

static void switch_part(reasoning *r, bool thinking, reasoning_fn emit, void *user)
{
    if (r->thinking == thinking) return; /* a repeated or stray tag */
    end_part(r, emit, user);
    r->thinking = thinking;
}

void reasoning_push(reasoning *r, int32_t id, const char *bytes, size_t n, reasoning_fn emit,
                    void *user)
{
    if (id >= 0 && (id == r->begin_id || id == r->end_id)) {
        switch_part(r, id == r->begin_id, emit, user);
        return;
    }
    if (calla_tokenizer_is_special(r->tok, id)) return;
    if (r->raw) {
        emit_bytes(r, bytes, n, emit, user);
        return;
    }
    size_t end = n; /* without trailing newlines */
    while (end > 0 && bytes[end - 1] == '\n')
        end--;
    if (end == 0) {
        if (r->begun) r->n_newlines += n;
        return;
    }
    size_t begin = 0;
    while (!r->begun && bytes[begin] == '\n')
        begin++;
    for (; r->n_newlines > 0; r->n_newlines--)
        emit_bytes(r, "\n", 1, emit, user);
    r->begun = true;
    emit_bytes(r, bytes + begin, end - begin, emit, user);
    r->n_newlines = n - end;
}

void reasoning_finish(reasoning *r, reasoning_fn emit, void *user)
{
    end_part(r, emit, user);
}
