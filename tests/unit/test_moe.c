/* Routing, where the golden model has no case: equal router logits. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "exec/executor.h"
#include "model/weights.h"
#include "support/st_writer.h"
#include "support/tiny_model.h"

#define N_VOCAB    96
#define DOWN_BYTES (64 * 64 * 2) /* of one expert */

static const int32_t ids[] = {3, 14, 15, 92, 65, 35};

/* Logits after ids of the tiny model whose routers see no difference between experts, with
 * down_proj of the experts in `zeroed` (a bit each) zero. */
static void run_model(unsigned zeroed, float *logits)
{
    stw_list l = {0};
    calla_error err = {0};
    checkpoint *ck = NULL;
    model_shape shape;
    model_weights w;
    executor *ex = NULL;
    exec_seq *seq = NULL;
    char *dir = stw_mkdir();
    tiny_model(&l, true, 5);
    for (unsigned i = 0; i < 4; i++) {
        char name[80];
        (void)snprintf(name, sizeof name, "model.language_model.layers.%u.mlp.gate.weight", i);
        stw_tensor *t = stw_find(&l, name);
        memset(t->data, 0, (size_t)stw_bytes(t));
        (void)snprintf(name, sizeof name, "model.language_model.layers.%u.mlp.experts.down_proj",
                       i);
        t = stw_find(&l, name);
        for (unsigned e = 0; e < 4; e++)
            if (zeroed >> e & 1) memset(t->data + e * DOWN_BYTES, 0, DOWN_BYTES);
    }
    stw_save(&l, dir, 0, false);
    stw_write_text(dir, "config.json", TINY_CONFIG_HF);
    if (checkpoint_open(&ck, dir, &err) != CALLA_OK ||
        shape_read(&shape, checkpoint_config(ck), NULL, &err) != CALLA_OK ||
        weights_bind(&w, ck, &shape, &err) != CALLA_OK ||
        exec_cpu_create(&ex, &shape, &w, &(exec_options){.n_threads = 1}, &err) != CALLA_OK ||
        ex->ops->seq_create(ex, 16, &seq, &err) != CALLA_OK)
        fail_msg("%s", err.message);
    const exec_segment seg = {seq, ids, sizeof ids / sizeof *ids, EXEC_LOGITS_LAST, logits};
    assert_int_equal(ex->ops->run(ex, &seg, 1, &err), CALLA_OK);
    ex->ops->seq_destroy(ex, seq);
    ex->ops->destroy(ex);
    weights_unbind(&w);
    checkpoint_close(ck);
    stw_free(&l);
    stw_rmdir(dir);
}

/* Two of four experts are used: 0 and 1, whatever 2 and 3 hold. */
static void test_ties_go_to_the_lower_expert(void **state)
{
    (void)state;
    float all[N_VOCAB], low[N_VOCAB], without_0[N_VOCAB], without_1[N_VOCAB];
    run_model(0, all);
    for (int i = 0; i < N_VOCAB; i++)
        assert_true(isfinite(all[i]));
    run_model(1u << 2 | 1u << 3, low);
    assert_memory_equal(all, low, sizeof all);
    run_model(1u << 0, without_0);
    assert_memory_not_equal(all, without_0, sizeof all);
    run_model(1u << 1, without_1);
    assert_memory_not_equal(all, without_1, sizeof all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ties_go_to_the_lower_expert),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
