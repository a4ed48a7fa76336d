/* Merging: short and long words against a naive reading of the rule, on random merge lists. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <string.h>
#include "text/bpe.h"

static uint64_t rng_state;

static uint32_t rng(uint32_t n)
{
    rng_state = rng_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((rng_state >> 33) % n);
}

enum { MERGES_MAX = 60, WORD_MAX = 120 };

typedef struct vocab {
    char text[256 + MERGES_MAX][16];
    int32_t n_tokens;
    bpe_merge merges[MERGES_MAX];
    uint32_t n_merges;
} vocab;

static const char letters[] = "abc";

static int32_t token(vocab *v, const char *text)
{
    for (int32_t i = 0; i < v->n_tokens; i++)
        if (strcmp(v->text[i], text) == 0) return i;
    const size_t n = strlen(text);
    assert_true(n < sizeof v->text[0]);
    memcpy(v->text[v->n_tokens], text, n + 1);
    return v->n_tokens++;
}

/* Pairs of tokens that exist already; several pairs may make the same token ("ab"+"c", "a"+"bc").
 */
static void random_vocab(vocab *v, uint32_t n_merges)
{
    memset(v, 0, sizeof *v);
    v->n_tokens = 3;
    for (int i = 0; i < 3; i++)
        v->text[i][0] = letters[i];
    for (uint32_t k = 0; k < n_merges * 4 && v->n_merges < n_merges; k++) {
        char product[32] = {0};
        bpe_merge m = {.left = (int32_t)rng((uint32_t)v->n_tokens),
                       .right = (int32_t)rng((uint32_t)v->n_tokens),
                       .rank = v->n_merges};
        bool known = strlen(v->text[m.left]) + strlen(v->text[m.right]) > 12;
        for (uint32_t i = 0; i < v->n_merges; i++)
            known = known || (v->merges[i].left == m.left && v->merges[i].right == m.right);
        if (known) continue;
        memcpy(product, v->text[m.left], strlen(v->text[m.left]));
        memcpy(product + strlen(product), v->text[m.right], strlen(v->text[m.right]));
        m.product = token(v, product);
        v->merges[v->n_merges++] = m;
    }
}

static size_t naive(const vocab *v, int32_t *ids, size_t n)
{
    for (;;) {
        const bpe_merge *best = NULL;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++)
            for (uint32_t k = 0; k < v->n_merges; k++) {
                const bpe_merge *m = &v->merges[k];
                const bool here = m->left == ids[i] && m->right == ids[i + 1];
                if (!here || (best != NULL && m->rank >= best->rank)) continue;
                best = m;
                at = i;
            }
        if (best == NULL) return n;
        ids[at] = best->product;
        n--;
        memmove(ids + at + 1, ids + at + 2, (n - at - 1) * sizeof *ids);
    }
}

static void as_the_rule(void **state)
{
    (void)state;
    rng_state = 3;
    print_message("seed %llu\n", (unsigned long long)rng_state);
    bpe_scratch scratch = {0};
    id_list got = {0};
    static vocab v;
    for (unsigned round = 0; round < 3000; round++) {
        bpe b = {0};
        random_vocab(&v, 1 + rng(MERGES_MAX));
        assert_true(bpe_init(&b, v.n_merges));
        for (uint32_t k = 0; k < v.n_merges; k++)
            assert_true(bpe_add(&b, v.merges[k]));
        assert_false(bpe_add(&b, v.merges[0]));
        for (int i = 0; i < 3; i++)
            b.byte_id[(uint8_t)letters[i]] = i;
        for (unsigned w = 0; w < 10; w++) {
            char word[WORD_MAX];
            int32_t want[WORD_MAX];
            const size_t n = 1 + rng(w % 2 == 0 ? WORD_MAX : 30);
            const uint32_t n_letters = 1 + rng(3);
            for (size_t i = 0; i < n; i++) {
                want[i] = (int32_t)rng(n_letters);
                word[i] = letters[want[i]];
            }
            const size_t n_want = naive(&v, want, n);
            got.len = 0;
            assert_true(bpe_word(&b, &scratch, word, n, &got));
            assert_int_equal(got.len, n_want);
            assert_memory_equal(got.data, want, n_want * sizeof *want);
        }
        bpe_deinit(&b);
    }
    mem_free(got.data);
    bpe_scratch_deinit(&scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_the_rule),
    };
    return cmocka_run_group_tests_name("bpe", tests, NULL, NULL);
}
