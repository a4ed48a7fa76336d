/* Golden logits of the demonstration model: case "passage-thinking" of tests/golden, which PyTorch
 * computed in f32. What this build's kernels and their references do wrong alike shows here. */
#include <math.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/sha.h"
#include "cli/selftest.h"

#define GOLDEN_BAR 2e-2 /* max |dlogit|; activations of 16 bits: 5e-3 */
#define N_TOP      8u

/* Of models/nano/config.json: the weights may be damaged, that is what is looked for. */
static const char config_sha256[] =
    "250fb9c06081aba80f9a2b60d1e5960be734f2d210cdbafc411ff6999a427cea";

static const int32_t prompt[] = {
    4033, 275,  198,  279,  1227, 3556, 3809, 352,  1034, 304, 220,  16,   24,  18,  21,
    13,   294,  2070, 289,  2207, 13,   1214, 758,  11,   261, 1645, 1113, 586, 259, 987,
    723,  13,   2183, 335,  220,  21,   20,   1128, 304,  261, 1507, 13,   441, 289, 366,
    1262, 971,  362,  3697, 13,   2214, 1104, 261,  1177, 581, 401,  1773, 13,  441, 2051,
    220,  17,   24,   1606, 13,   1061, 687,  483,  840,  259, 1475, 563,  420, 655, 261,
    3556, 3809, 494,  527,  30,   4034, 198,  4033, 281,  198, 4056, 198};
static const int32_t reply[] = {279,  455, 747, 25,   294,  2070, 289,  2207, 305,
                                4057, 273, 279, 3556, 3809, 2159, 2207, 13};

/* The largest logits after the first n tokens. */
static const struct golden {
    size_t n;
    int32_t ids[N_TOP];
    float logits[N_TOP];
} golden[] = {
    {1,
     {275, 380, 11, 528, 24, 16, 84, 64},
     {14.523974f, 13.919916f, 2.007011f, 1.811699f, 1.566723f, 1.466594f, 1.320723f, 1.207075f}},
    {22,
     {758, 687, 760, 1068, 759, 526, 1586, 2056},
     {23.651548f, 9.996430f, 9.539451f, 8.422291f, 7.832063f, 6.547810f, 6.357115f, 6.351048f}},
    {44,
     {366, 396, 1575, 2357, 904, 799, 1128, 768},
     {18.405678f, 9.197255f, 8.139524f, 7.515246f, 7.454792f, 7.254392f, 6.983376f, 6.682185f}},
    {87,
     {279, 40, 82, 294, 4056, 16, 17, 79},
     {18.662645f, 13.391000f, 4.612455f, 4.570856f, 4.450870f, 3.747333f, 3.233341f, 2.678289f}},
};

#define N_PROMPT (sizeof prompt / sizeof *prompt)
#define N_REPLY  (sizeof reply / sizeof *reply)

static bool is_demo(const char *dir)
{
    char *path = path_join(dir, "config.json"), *text = NULL;
    char hex[SHA_HEX_MAX];
    size_t n;
    sha s;
    bool same = false;
    if (path != NULL && file_read(path, 1u << 20, &text, &n, NULL) == CALLA_OK) {
        sha_init(&s, SHA_256);
        sha_update(&s, text, n);
        sha_final(&s, hex);
        same = strcmp(hex, config_sha256) == 0;
    }
    mem_free(text);
    mem_free(path);
    return same;
}

static calla_status run_golden(selftest_log *t, calla_session *s, calla_error *err)
{
    const calla_generate_options o = {.sampling = &(calla_sampling){0}, .max_tokens = N_REPLY + 1};
    calla_status st = CALLA_OK;
    double worst = 0.0;
    size_t at = 0, worst_at = 0;
    for (size_t i = 0; i < sizeof golden / sizeof *golden; i++) {
        const struct golden *g = &golden[i];
        TRY(calla_session_feed(s, prompt + at, g->n - at, NULL, NULL, err));
        at = g->n;
        for (uint32_t j = 0; j < N_TOP; j++) {
            const double d =
                fabs((double)calla_session_logits(s)[g->ids[j]] - (double)g->logits[j]);
            if (d <= worst) continue;
            worst = d;
            worst_at = at;
        }
    }
    if (worst <= GOLDEN_BAR)
        selftest_verdict(t, true, "the demonstration model's logits: max |dlogit| %.1e (bar %.0e)",
                         worst, GOLDEN_BAR);
    else
        selftest_verdict(t, false,
                         "the demonstration model's logits are off by %.3g after %zu tokens (bar "
                         "%.0e): `calla verify` finds the layer",
                         worst, worst_at, GOLDEN_BAR);
    TRY(calla_session_generate(s, &o, NULL, NULL, NULL, err));
    selftest_verdict(t,
                     calla_session_position(s) >= N_PROMPT + N_REPLY &&
                         memcmp(calla_session_tokens(s) + N_PROMPT, reply, sizeof reply) == 0,
                     "its answer of %zu tokens", N_REPLY);
fail:
    return st;
}

calla_status selftest_golden(selftest_log *t, const char *dir, calla_error *err)
{
    const calla_engine_options eo = {.model_dir = dir, .backend = "cpu"};
    const calla_session_options so = {.n_ctx = N_PROMPT + N_REPLY + 2};
    calla_engine *e = NULL;
    calla_session *s = NULL;
    if (!is_demo(dir)) return CALLA_OK;
    selftest_heading(t, "the model on the CPU against PyTorch in f32");
    calla_status st = calla_engine_create(&e, &eo, err);
    if (st == CALLA_OK) st = calla_session_create(&s, e, &so, err);
    if (st == CALLA_OK) st = run_golden(t, s, err);
    calla_session_destroy(s);
    calla_engine_destroy(e);
    return st;
}
