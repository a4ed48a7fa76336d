#include <math.h>
#include <string.h>

#include "exec/null.h"

typedef struct candidate {
    float z;
    uint32_t id;
} candidate;

static uint64_t rotl(uint64_t x, int k)
{
    return x << k | x >> (64 - k);
}

static uint32_t rng_next(uint32_t words[8])
{
    uint64_t s[4];
    for (int i = 0; i < 4; i++)
        s[i] = (uint64_t)words[2 * i + 1] << 32 | words[2 * i];
    const uint64_t r = rotl(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    for (int i = 0; i < 4; i++) {
        words[2 * i] = (uint32_t)s[i];
        words[2 * i + 1] = (uint32_t)(s[i] >> 32);
    }
    return (uint32_t)(r >> 32);
}

static float exp_neg(float z)
{
    if (z < -50.0f) return 0.0f;
    const int32_t n = (int32_t)(z * 1.44269504f - 0.5f);
    const float f = z - (float)n * 0.693145752f - (float)n * 1.42860677e-6f;
    static const float c[] = {1.0f / 120.0f, 1.0f / 24.0f, 1.0f / 6.0f, 0.5f, 1.0f, 1.0f};
    float p = 1.0f / 720.0f;
    for (int i = 0; i < 6; i++)
        p = p * f + c[i];
    return p * ldexpf(1.0f, n);
}

static float penalised(const sample_entry *e, float x, uint32_t count)
{
    if (e->counted == 0 || count == 0) return x;
    const uint32_t n = count & ~SAMPLE_TOUCHED;
    x = x > 0.0f ? x / e->repetition : x * e->repetition;
    return n != 0 ? x - (e->presence + e->frequency * (float)n) : x;
}

/* The top_k first, falling. */
static uint32_t select_top(const sample_entry *e, const float *logits, uint32_t n_vocab,
                           const uint32_t *banned, const uint32_t *counts, candidate *best)
{
    uint32_t n = 0;
    for (uint32_t id = 0; id < n_vocab; id++) {
        if ((banned[id / 32] >> (id & 31) & 1) != 0) continue;
        const float z = penalised(e, logits[id], counts == NULL ? 0 : counts[id]);
        if (n != 0 && n == e->top_k && z <= best[n - 1].z) continue;
        uint32_t i = n < e->top_k ? n++ : n - 1;
        for (; i != 0 && best[i - 1].z < z; i--)
            best[i] = best[i - 1];
        best[i] = (candidate){z, id};
    }
    return n;
}

uint32_t exec_null_draw(sample_entry *e, const float *logits, uint32_t n_vocab,
                        const uint32_t *banned, uint32_t *counts)
{
    candidate best[SAMPLE_K_MAX] = {{0.0f, 0}};
    uint32_t weight[SAMPLE_K_MAX] = {0}, total = 0, before = 0, kept = 0, i = 0;
    const uint32_t n = select_top(e, logits, n_vocab, banned, counts, best);
    if (e->greedy == 0) {
        float w[SAMPLE_K_MAX] = {0.0f};
        for (i = 0; i < n; i++) {
            w[i] = exp_neg((best[i].z - best[0].z) * e->by);
            total += weight[i] = (uint32_t)(w[i] * 0x1p25f);
        }
        uint32_t need = e->top_p != 0.0f ? (uint32_t)(e->top_p * (float)total) : total;
        if (need == 0) need = 1;
        for (i = 0; i < n; i++) {
            const bool keep = before < need && w[i] >= e->min_p;
            before += weight[i];
            if (!keep) weight[i] = 0;
            kept += weight[i];
        }
        uint32_t left = (uint32_t)((uint64_t)rng_next(e->rng) * kept >> 32);
        for (i = 0; i + 1 < n && left >= weight[i]; i++)
            left -= weight[i];
    }
    if (counts != NULL) counts[best[i].id] = (counts[best[i].id] + 1) | SAMPLE_TOUCHED;
    return best[i].id;
}
