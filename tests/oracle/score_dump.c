/* score_dump MODEL_DIR bf16|f32 IDS OUT [BACKEND]: teacher-forced logits, for comparison with other
 * engines.
 *
 * IDS: one sequence a line, decimal ids. OUT: for each sequence [n_ids, n_vocab] f32, as they are
 * in memory, one after the other. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "calla.h"

static bool on_logits(void *user, size_t i, const float *logits, int32_t n_vocab)
{
    (void)i;
    return fwrite(logits, sizeof *logits, (size_t)n_vocab, user) == (size_t)n_vocab;
}

static calla_status score_line(calla_engine *engine, char *line, FILE *out, calla_error *err)
{
    size_t n = 0;
    calla_session *s = NULL;
    int32_t *ids = mem_array(strlen(line) + 1, sizeof *ids);
    if (ids == NULL) return CALLA_ERR_MEMORY;
    for (char *end; *(line += strspn(line, " ")) != '\0'; line = end) {
        ids[n++] = (int32_t)strtol(line, &end, 10);
        if (end == line) break;
    }
    const calla_session_options o = {.n_ctx = (uint32_t)n + 1};
    calla_status st = calla_session_create(&s, engine, &o, err);
    if (st == CALLA_OK) st = calla_session_score(s, ids, n, on_logits, out, err);
    calla_session_destroy(s);
    mem_free(ids);
    return st;
}

int main(int argc, char **argv)
{
    calla_error err = {.message = "no memory"};
    calla_engine *engine = NULL;
    char *text = NULL;
    size_t n;
    if (argc != 5 && argc != 6) {
        (void)fprintf(stderr, "usage: score_dump MODEL_DIR bf16|f32 IDS OUT [BACKEND]\n");
        return 2;
    }
    const calla_engine_options o = {
        .model_dir = argv[1],
        .backend = argc == 6 ? argv[5] : "cpu",
        .kv_type = strcmp(argv[2], "f32") == 0 ? CALLA_KV_F32 : CALLA_KV_BF16,
    };
    FILE *out = fopen(argv[4], "wb");
    calla_status st = calla_engine_create(&engine, &o, &err);
    if (st == CALLA_OK) st = file_read(argv[3], 1u << 26, &text, &n, &err);
    char *line = text;
    while (st == CALLA_OK && out != NULL && line != NULL && *line != '\0') {
        char *next = strchr(line, '\n');
        if (next != NULL) *next++ = '\0';
        st = score_line(engine, line, out, &err);
        line = next;
    }
    if (st != CALLA_OK) (void)fprintf(stderr, "score_dump: %s\n", err.message);
    const bool written = out != NULL && fclose(out) == 0;
    mem_free(text);
    calla_engine_destroy(engine);
    return st == CALLA_OK && written ? 0 : 1;
}
