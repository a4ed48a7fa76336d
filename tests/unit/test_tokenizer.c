/* The tokenizer: golden ids, both forms of the file, added tokens, spans, decoding, refusals. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include "tokenizer_fixture.h"

static calla_tokenizer *standin, *nano;

static int open_both(void **state)
{
    (void)state;
    calla_error err = {0};
    standin = fixture_open();
    if (calla_tokenizer_open(&nano, "models/nano", &err) != CALLA_OK)
        print_error("%s\n", err.message);
    return standin != NULL && nano != NULL ? 0 : 1;
}

static int close_both(void **state)
{
    (void)state;
    calla_tokenizer_close(standin);
    calla_tokenizer_close(nano);
    return 0;
}

/* The golden rows hold ids of the real vocabulary: those that the stand-in cannot have. */
static bool comparable(int64_t id)
{
    return id <= 103815 || id >= FIXTURE_FIRST_ADDED;
}

static void golden_rows(void **state)
{
    (void)state;
    char *data;
    size_t n, n_rows = 0;
    assert_int_equal(
        file_read("tests/data/qwen3.6/tokenizer-golden.jsonl", 1u << 20, &data, &n, NULL),
        CALLA_OK);
    for (size_t i = 0; i < n; n_rows++) {
        const size_t len = strcspn(data + i, "\n");
        json_doc doc = {0};
        assert_int_equal(json_parse(&doc, data + i, len, NULL, NULL), CALLA_OK);
        const json_value *text = json_get(doc.root, "text"), *want = json_get(doc.root, "ids");
        int32_t *ids;
        size_t n_ids;
        assert_int_equal(
            calla_tokenizer_encode(standin, text->text, text->n_text, 0, &ids, &n_ids, NULL),
            CALLA_OK);
        assert_int_equal(n_ids, want->n_items);
        size_t k = 0;
        for (const json_value *v = want->first; v != NULL; v = v->next, k++) {
            int64_t id;
            assert_true(json_int(v, &id));
            if (comparable(id)) assert_int_equal(ids[k], id);
        }
        char *back;
        size_t n_back;
        assert_int_equal(calla_tokenizer_decode(standin, ids, n_ids, false, &back, &n_back, NULL),
                         CALLA_OK);
        if (json_get(doc.root, "nfc") == NULL) assert_int_equal(back[n_back], 0);
        mem_free(back);
        mem_free(ids);
        json_free(&doc);
        i += len + 1;
    }
    assert_int_equal(n_rows, 57);
    mem_free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_rows),
    };
    return cmocka_run_group_tests_name("tokenizer", tests, open_both, close_both);
}
