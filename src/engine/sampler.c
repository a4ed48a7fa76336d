#include "engine/sampler.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/ck.h"
#include "base/mem.h"

#define Z_MIN   (-50.0f) /* sampler.h: lighter ids are left out */
#define BUCKETS 4096u    /* of width 1/64 over z in (-64, 0] */
#define PROBES  256u     /* ids that are refused one by one before all are asked about */
#define BLOCK   64u      /* ids whose maximum is kept; loops of this length are vectorised */

typedef struct candidate {
    float z; /* logit, then (logit - largest) / temperature */
    float w; /* exp(z) */
    int32_t id;
} candidate;

struct sampler {
    calla_sampling p;
    uint32_t n_vocab, n_blocks;
    const int32_t *banned;
    size_t n_banned;
    uint64_t rng[4];
    float *z;         /* [n_blocks * BLOCK] the row, penalised; later scaled; -infinity behind */
    float *w;         /* [n_blocks * BLOCK] exp(z), 0 below Z_MIN */
    float *block_max; /* [n_blocks] of z, before it is scaled */
    candidate *cand;  /* [n_vocab] */
    double *hist;     /* [BUCKETS] */
    uint32_t *n_generated; /* [n_vocab] in this response */
    int32_t *touched;      /* [n_touched] ids with a penalty, in order of appearance */
    uint8_t *is_touched;   /* [n_vocab] */
    size_t n_touched;
    const int32_t *bias_ids; /* [n_bias] */
    const float *bias;       /* [n_bias] */
    size_t n_bias;
};

/* ---- Parameters ---- */

static bool in_range(float x, float lo, float hi)
{
    return x >= lo && x <= hi; /* false for NaN */
}

calla_status sampling_check(const calla_sampling *p, calla_error *err)
{
    const struct {
        const char *name;
        float value, lo, hi;
    } ranges[] = {
        {"temperature", p->temperature, 0.0f, 100.0f},
        {"top_p", p->top_p, 0.0f, 1.0f},
        {"presence_penalty", p->presence_penalty, -100.0f, 100.0f},
        {"frequency_penalty", p->frequency_penalty, -100.0f, 100.0f},
        {"repetition_penalty", p->repetition_penalty, 0.0f, 100.0f},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++)
        if (!in_range(ranges[i].value, ranges[i].lo, ranges[i].hi))
            return err_set(err, CALLA_ERR_ARGUMENT, "%s must be between %g and %g, found %g",
                           ranges[i].name, (double)ranges[i].lo, (double)ranges[i].hi,
                           (double)ranges[i].value);
    if (!(p->min_p >= 0.0f && p->min_p < 1.0f))
        return err_set(err, CALLA_ERR_ARGUMENT, "min_p must be at least 0 and below 1, found %g",
                       (double)p->min_p);
    if (p->top_k < 0)
        return err_set(err, CALLA_ERR_ARGUMENT, "top_k must not be negative, found %d",
                       (int)p->top_k);
    return CALLA_OK;
}

/* ---- Generator: xoshiro256**, seeded through splitmix64 ---- */

static uint64_t rotl(uint64_t x, unsigned k)
{
    return x << k | x >> (64 - k);
}

static void rng_seed(uint64_t s[4], uint64_t seed)
{
    for (int i = 0; i < 4; i++) {
        seed += 0x9e3779b97f4a7c15u;
        uint64_t x = seed;
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
        x = (x ^ x >> 27) * 0x94d049bb133111ebu;
        s[i] = x ^ x >> 31;
    }
}

static uint64_t rng_word(uint64_t s[4])
{
    const uint64_t r = rotl(s[1] * 5, 7) * 9;
    const uint64_t t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return r;
}

/* Uniform in [0, 1), 53 bits. */
static double rng_next(uint64_t s[4])
{
    return (double)(rng_word(s) >> 11) * 0x1p-53;
}

/* ---- Life ---- */

uint64_t sampler_bytes(uint32_t n_vocab)
{
    const uint64_t per_id = sizeof(candidate) + 2 * sizeof(int32_t) + 1;
    const uint64_t n_blocks = ((uint64_t)n_vocab + BLOCK - 1) / BLOCK;
    return sizeof(sampler) + BUCKETS * sizeof(double) + n_vocab * per_id +
           n_blocks * (2 * BLOCK + 1) * sizeof(float);
}

calla_status sampler_create(sampler **out, uint32_t n_vocab, const int32_t *banned, size_t n_banned,
                            calla_error *err)
{
    *out = NULL;
    sampler *s = mem_alloc(sizeof *s);
    if (s == NULL) goto fail;
    s->n_vocab = n_vocab;
    s->banned = banned;
    s->n_banned = n_banned;
    s->n_blocks = (n_vocab - 1) / BLOCK + 1;
    s->z = mem_array(s->n_blocks, BLOCK * sizeof *s->z);
    s->w = mem_array(s->n_blocks, BLOCK * sizeof *s->w);
    s->block_max = mem_array(s->n_blocks, sizeof *s->block_max);
    s->cand = mem_array(n_vocab, sizeof *s->cand);
    s->hist = mem_array(BUCKETS, sizeof *s->hist);
    s->n_generated = mem_array(n_vocab, sizeof *s->n_generated);
    s->touched = mem_array(n_vocab, sizeof *s->touched);
    s->is_touched = mem_array(n_vocab, 1);
    if (s->z == NULL || s->w == NULL || s->block_max == NULL || s->cand == NULL ||
        s->hist == NULL || s->n_generated == NULL || s->touched == NULL || s->is_touched == NULL)
        goto fail;
    for (size_t i = n_vocab; i < (size_t)s->n_blocks * BLOCK; i++)
        s->z[i] = -INFINITY;
    *out = s;
    return CALLA_OK;
fail:
    sampler_destroy(s);
    return err_set(err, CALLA_ERR_MEMORY, "no memory for the sampler of %u token ids", n_vocab);
}

void sampler_destroy(sampler *s)
{
    if (s == NULL) return;
    mem_free(s->z);
    mem_free(s->w);
    mem_free(s->block_max);
    mem_free(s->cand);
    mem_free(s->hist);
    mem_free(s->n_generated);
    mem_free(s->touched);
    mem_free(s->is_touched);
    mem_free(s);
}

/* ---- Penalties ---- */

static void touch(sampler *s, int32_t id)
{
    if (s->is_touched[id]) return;
    s->is_touched[id] = 1;
    s->touched[s->n_touched++] = id;
}

static bool repeats_matter(const sampler *s)
{
    return s->p.repetition_penalty != 0.0f && s->p.repetition_penalty != 1.0f;
}

void sampler_begin(sampler *s, const calla_sampling *p, const int32_t *history, size_t n_history)
{
    for (size_t i = 0; i < s->n_touched; i++) {
        s->is_touched[s->touched[i]] = 0;
        s->n_generated[s->touched[i]] = 0;
    }
    s->n_touched = 0;
    s->n_bias = 0;
    s->p = *p;
    rng_seed(s->rng, p->seed);
    if (!repeats_matter(s)) return;
    for (size_t i = 0; i < n_history; i++)
        touch(s, history[i]);
}

void sampler_set_bias(sampler *s, const int32_t *ids, const float *values, size_t n)
{
    s->bias_ids = ids;
    s->bias = values;
    s->n_bias = n;
}

void sampler_accept(sampler *s, int32_t id)
{
    touch(s, id);
    s->n_generated[id]++;
}

static void apply_penalties(sampler *s)
{
    const float presence = s->p.presence_penalty, frequency = s->p.frequency_penalty;
    const float repetition = repeats_matter(s) ? s->p.repetition_penalty : 1.0f;
    if (presence == 0.0f && frequency == 0.0f && repetition == 1.0f) return;
    for (size_t i = 0; i < s->n_touched; i++) {
        const int32_t id = s->touched[i];
        const uint32_t n = s->n_generated[id];
        float x = s->z[id];
        x = x > 0.0f ? x / repetition : x * repetition;
        if (n != 0) x -= presence + frequency * (float)n;
        s->z[id] = x;
    }
}

/* ---- Selection ---- */

/* Before: larger z, then lower id. A total order, so ties are cut the same way every time. */
static bool before(const candidate *a, const candidate *b)
{
    return a->z != b->z ? a->z > b->z : a->id < b->id;
}

static void swap(candidate *a, candidate *b)
{
    const candidate t = *a;
    *a = *b;
    *b = t;
}

/* Moves the smallest prefix (in the order above) whose amount reaches `need` > 0 to the front of
 * c[n] and returns its length; the amount is the sum of weights (by_mass) or the count. Expected
 * linear time: the pivots are drawn, from a fixed seed. */
static size_t select_prefix(candidate *c, size_t n, bool by_mass, double need)
{
    size_t lo = 0, hi = n;
    uint64_t pivots = 1;
    while (lo < hi) {
        pivots = pivots * 6364136223846793005u + 1442695040888963407u;
        swap(&c[lo + (size_t)(pivots >> 33) % (hi - lo)], &c[hi - 1]);
        const candidate pivot = c[hi - 1];
        size_t mid = lo;
        double left = 0.0;
        for (size_t i = lo; i < hi - 1; i++) {
            if (!before(&c[i], &pivot)) continue;
            left += by_mass ? (double)c[i].w : 1.0;
            swap(&c[i], &c[mid++]);
        }
        swap(&c[mid], &c[hi - 1]);
        const double with_pivot = left + (by_mass ? (double)pivot.w : 1.0);
        if (left >= need) {
            hi = mid;
        } else if (with_pivot >= need) {
            return mid + 1;
        } else {
            need -= with_pivot;
            lo = mid + 1;
        }
    }
    return lo;
}

/* exp for z in [Z_MIN, 0], else 0; relative error below 2e-7, the same on every platform. */
static float exp_neg(float z)
{
    const float x = z >= Z_MIN ? z : Z_MIN;
    const int32_t n = (int32_t)(x * 1.44269504f - 0.5f); /* rounds: x <= 0 */
    const float f = x - (float)n * 0.693145752f - (float)n * 1.42860677e-6f;
    float p = 1.0f / 720.0f;
    p = p * f + 1.0f / 120.0f;
    p = p * f + 1.0f / 24.0f;
    p = p * f + 1.0f / 6.0f;
    p = p * f + 0.5f;
    p = p * f + 1.0f;
    p = p * f + 1.0f;
    const int32_t bits = (n + 127) * (1 << 23);
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    const float e = p * scale;
    return z >= Z_MIN ? e : 0.0f;
}

/* z becomes (z - top) / temperature. */
static void scale_row(sampler *s, float top)
{
    const float inverse = 1.0f / s->p.temperature;
    const float by = inverse < FLT_MAX ? inverse : FLT_MAX;
    for (uint32_t b = 0; b < s->n_blocks; b++) {
        float *z = s->z + (size_t)b * BLOCK;
        for (uint32_t i = 0; i < BLOCK; i++)
            z[i] = (z[i] - top) * by;
    }
}

static void weigh_row(sampler *s)
{
    for (uint32_t b = 0; b < s->n_blocks; b++) {
        const float *z = s->z + (size_t)b * BLOCK;
        float *w = s->w + (size_t)b * BLOCK;
        for (uint32_t i = 0; i < BLOCK; i++)
            w[i] = exp_neg(z[i]);
    }
}

/* Falling, n <= SAMPLE_K_MAX. */
static void sort_few(candidate *c, size_t n)
{
    for (size_t i = 1; i < n; i++)
        for (size_t j = i; j > 0 && before(&c[j], &c[j - 1]); j--)
            swap(&c[j], &c[j - 1]);
}

/* The top_k first ids, falling if they are few. The top_k-th largest block maximum bounds them from
 * below, so that few blocks are looked into. z is not scaled yet. */
static size_t gather_top_k(sampler *s, float top)
{
    const uint32_t k = (uint32_t)s->p.top_k;
    float bound = -INFINITY;
    if (k < s->n_blocks) {
        for (uint32_t b = 0; b < s->n_blocks; b++)
            s->cand[b] = (candidate){s->block_max[b], 0.0f, (int32_t)b};
        const size_t n = select_prefix(s->cand, s->n_blocks, false, (double)k);
        bound = s->cand[0].z;
        for (size_t i = 1; i < n; i++)
            if (s->cand[i].z < bound) bound = s->cand[i].z;
    }
    size_t n = 0;
    for (uint32_t b = 0; b < s->n_blocks; b++) {
        if (s->block_max[b] < bound) continue;
        for (uint32_t i = b * BLOCK; i < (b + 1) * BLOCK && i < s->n_vocab; i++)
            if (s->z[i] >= bound) s->cand[n++] = (candidate){s->z[i], 0.0f, (int32_t)i};
    }
    n = select_prefix(s->cand, n, false, (double)k);
    if (k <= SAMPLE_K_MAX) sort_few(s->cand, n);
    size_t n_kept = 0;
    const float inverse = 1.0f / s->p.temperature;
    const float by = inverse < FLT_MAX ? inverse : FLT_MAX;
    for (size_t i = 0; i < n; i++) {
        const float z = (s->cand[i].z - top) * by;
        if (z >= Z_MIN) s->cand[n_kept++] = (candidate){z, exp_neg(z), s->cand[i].id};
    }
    return n_kept;
}

static uint32_t bucket_of(float z)
{
    return (uint32_t)(z * -64.0f);
}

/* The first ids whose share of the whole mass reaches top_p. A histogram of z settles all but one
 * bucket, so that little is left to select from. */
static size_t gather_top_p(sampler *s)
{
    memset(s->hist, 0, BUCKETS * sizeof *s->hist);
    for (uint32_t i = 0; i < s->n_vocab; i++)
        if (s->w[i] > 0.0f) s->hist[bucket_of(s->z[i])] += (double)s->w[i];
    double need = 0.0;
    for (uint32_t b = 0; b < BUCKETS; b++)
        need += s->hist[b];
    need *= (double)s->p.top_p;
    uint32_t edge = 0;
    while (edge < BUCKETS - 1 && s->hist[edge] < need)
        need -= s->hist[edge++];

    size_t n = 0, n_edge = 0; /* sure ones grow from the front, the edge's from the back */
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        if (s->w[i] == 0.0f) continue;
        const uint32_t b = bucket_of(s->z[i]); /* writes first, keeps later: no branch to guess */
        s->cand[n] = s->cand[s->n_vocab - 1 - n_edge] = (candidate){s->z[i], s->w[i], (int32_t)i};
        n += b < edge;
        n_edge += b == edge;
    }
    candidate *at_edge = s->cand + s->n_vocab - n_edge;
    const size_t n_take = select_prefix(at_edge, n_edge, true, need);
    memmove(s->cand + n, at_edge, n_take * sizeof *s->cand);
    return n + n_take;
}

static size_t gather_all(sampler *s)
{
    size_t n = 0;
    for (uint32_t i = 0; i < s->n_vocab; i++)
        if (s->w[i] > 0.0f) s->cand[n++] = (candidate){s->z[i], s->w[i], (int32_t)i};
    return n;
}

static double mass(const candidate *c, size_t n)
{
    double sum = 0.0;
    for (size_t i = 0; i < n; i++)
        sum += (double)c[i].w;
    return sum;
}

static bool uses_top_k(const sampler *s)
{
    return s->p.top_k > 0 && (uint32_t)s->p.top_k < s->n_vocab;
}

/* Few candidates: the draw is that of op_sample. */
static bool uses_few(const sampler *s)
{
    return uses_top_k(s) && (uint32_t)s->p.top_k <= SAMPLE_K_MAX;
}

static bool uses_top_p(const sampler *s)
{
    return s->p.top_p > 0.0f && s->p.top_p < 1.0f;
}

/* What top-p leaves of the n candidates of top-k. */
static size_t cut_top_p(sampler *s, size_t n)
{
    if (!uses_top_p(s)) return n;
    return select_prefix(s->cand, n, true, (double)s->p.top_p * mass(s->cand, n));
}

static size_t cut_min_p(sampler *s, size_t n)
{
    if (s->p.min_p == 0.0f) return n;
    size_t n_kept = 0;
    for (size_t i = 0; i < n; i++)
        if (s->cand[i].w >= s->p.min_p) s->cand[n_kept++] = s->cand[i];
    return n_kept;
}

/* The candidates that top-k, top-p and min-p leave; top: the largest logit. */
static size_t gather(sampler *s, float top)
{
    if (uses_top_k(s)) return cut_min_p(s, cut_top_p(s, gather_top_k(s, top)));
    scale_row(s, top);
    weigh_row(s);
    return cut_min_p(s, uses_top_p(s) ? gather_top_p(s) : gather_all(s));
}

/* ---- The draw ---- */

/* Maps floats to integers of the same order: NaN lies outside the two infinities. */
static int32_t order_key(float x)
{
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits ^ (bits >> 31 & INT32_MAX);
}

static bool row_is_bad(const float *row, uint32_t n)
{
    int32_t lo = 0, hi = 0;
    for (uint32_t i = 0; i < n; i++) {
        const int32_t k = order_key(row[i]);
        lo = k < lo ? k : lo;
        hi = k > hi ? k : hi;
    }
    return lo < order_key(-INFINITY) || hi >= order_key(INFINITY);
}

static calla_status check_row(const sampler *s, const float *logits, calla_error *err)
{
    for (uint32_t i = 0; i < s->n_vocab; i += BLOCK) {
        const uint32_t n = s->n_vocab - i;
        if (!(n >= BLOCK ? row_is_bad(logits + i, BLOCK) : row_is_bad(logits + i, n))) continue;
        uint32_t at = i;
        while (logits[at] < INFINITY)
            at++;
        return err_set(err, CALLA_ERR_INTERNAL, "the logit of token id %u is %s, expected a number",
                       at, isnan(logits[at]) ? "NaN" : "+infinity");
    }
    return CALLA_OK;
}

static void measure_block(sampler *s, uint32_t b)
{
    const float *z = s->z + (size_t)b * BLOCK;
    float max[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    for (uint32_t i = 0; i < BLOCK; i += 4)
        for (uint32_t j = 0; j < 4; j++)
            max[j] = z[i + j] > max[j] ? z[i + j] : max[j];
    const float m0 = max[0] > max[1] ? max[0] : max[1], m1 = max[2] > max[3] ? max[2] : max[3];
    s->block_max[b] = m0 > m1 ? m0 : m1;
}

/* The id of the largest z, the lowest on a tie; false: all are -infinity. */
static bool find_best(const sampler *s, uint32_t *best)
{
    float top = -INFINITY;
    uint32_t i_block = 0;
    for (uint32_t b = 0; b < s->n_blocks; b++)
        if (s->block_max[b] > top) top = s->block_max[i_block = b];
    if (top == -INFINITY) return false;
    *best = i_block * BLOCK;
    while (s->z[*best] != top)
        ++*best;
    return true;
}

/* Whose fault it is: the caller's when the bias forbids ids. */
static calla_status nothing_left(const sampler *s, calla_error *err)
{
    for (size_t i = 0; i < s->n_bias; i++)
        if (s->bias[i] == -INFINITY)
            return err_set(err, CALLA_ERR_ARGUMENT, "the bias forbids every token that may follow");
    return err_set(err, CALLA_ERR_INTERNAL, "none of %u token ids may follow", s->n_vocab);
}

/* Fills z and block_max from the row; *best is the largest logit's id. */
static calla_status load_row(sampler *s, const float *logits, uint32_t *best, calla_error *err)
{
    const calla_status st = check_row(s, logits, err);
    if (st != CALLA_OK) return st;
    memcpy(s->z, logits, s->n_vocab * sizeof *logits);
    for (size_t i = 0; i < s->n_bias; i++)
        s->z[s->bias_ids[i]] += s->bias[i];
    apply_penalties(s);
    for (size_t i = 0; i < s->n_banned; i++)
        s->z[s->banned[i]] = -INFINITY;
    for (uint32_t b = 0; b < s->n_blocks; b++)
        measure_block(s, b);
    return find_best(s, best) ? CALLA_OK : nothing_left(s, err);
}

static int32_t draw(sampler *s, size_t n)
{
    int32_t id = s->cand[0].id;
    double left = rng_next(s->rng) * mass(s->cand, n);
    for (size_t i = 0; i < n; i++) {
        id = s->cand[i].id;
        left -= (double)s->cand[i].w;
        if (left < 0.0) break;
    }
    return id;
}

/* Among the falling candidates of top-k: top-p, min-p and the draw with integer weights, each below
 * 2^26, so that the sum of all fits. */
static int32_t draw_few(sampler *s, size_t n)
{
    uint32_t weight[SAMPLE_K_MAX] = {0}, total = 0, before = 0, kept = 0;
    for (size_t i = 0; i < n; i++)
        total += weight[i] = (uint32_t)(s->cand[i].w * 0x1p25f);
    uint32_t need = uses_top_p(s) ? (uint32_t)(s->p.top_p * (float)total) : total;
    if (need == 0) need = 1;
    for (size_t i = 0; i < n; i++) {
        const bool keep = before < need && s->cand[i].w >= s->p.min_p;
        before += weight[i];
        if (!keep) weight[i] = 0;
        kept += weight[i];
    }
    uint32_t left = (uint32_t)((rng_word(s->rng) >> 32) * kept >> 32);
    size_t i = 0;
    while (i + 1 < n && left >= weight[i])
        left -= weight[i++];
    return s->cand[i].id;
}

/* top: the largest logit. */
static int32_t draw_row(sampler *s, float top)
{
    return uses_few(s) ? draw_few(s, gather_top_k(s, top)) : draw(s, gather(s, top));
}

calla_status sampler_draw(sampler *s, const float *logits, int32_t *id, calla_error *err)
{
    uint32_t best = 0;
    const calla_status st = load_row(s, logits, &best, err);
    if (st != CALLA_OK) return st;
    *id = s->p.temperature == 0.0f ? (int32_t)best : draw_row(s, s->z[best]);
    return CALLA_OK;
}

/* ---- The filtered draw ---- */

static void drop(sampler *s, uint32_t id)
{
    s->z[id] = -INFINITY;
    measure_block(s, id / BLOCK);
}

/* Drops refused ids in falling order until the best one is allowed, PROBES at most. *n_left: probes
 * not used; 0 when the best is still unknown. False: nothing is left. */
static bool drop_to_allowed(sampler *s, sampler_allow_fn allow, void *user, uint32_t *best,
                            uint32_t *n_left)
{
    for (*n_left = PROBES; *n_left != 0; --*n_left) {
        if (!find_best(s, best)) return false;
        if (allow(user, (int32_t)*best)) return true;
        drop(s, *best);
    }
    return true;
}

/* Drops every refused id, and those whose z is below `bound` unasked. */
static bool drop_refused(sampler *s, sampler_allow_fn allow, void *user, float bound,
                         uint32_t *best)
{
    for (uint32_t b = 0; b < s->n_blocks; b++) {
        if (s->block_max[b] == -INFINITY) continue;
        for (uint32_t i = b * BLOCK; i < (b + 1) * BLOCK && i < s->n_vocab; i++)
            if (s->z[i] < bound || (s->z[i] > -INFINITY && !allow(user, (int32_t)i)))
                s->z[i] = -INFINITY;
        measure_block(s, b);
    }
    return find_best(s, best);
}

/* The top_k first allowed ids, falling, into cand; 0: more than n_probes were refused, and ask
 * about all instead (z is as if they had not been taken out). */
static size_t probe_top_k(sampler *s, sampler_allow_fn allow, void *user, uint32_t n_probes)
{
    size_t n = 0;
    uint32_t id = 0;
    float top = 0.0f;
    const float inverse = 1.0f / s->p.temperature;
    const float by = inverse < FLT_MAX ? inverse : FLT_MAX;
    bool enough = false;
    while (!enough && find_best(s, &id)) {
        const float z = s->z[id];
        if (n != 0 && (z - top) * by < Z_MIN) break;
        if (allow(user, (int32_t)id)) {
            if (n == 0) top = z;
            s->cand[n++] = (candidate){z, 0.0f, (int32_t)id};
            enough = n == (size_t)s->p.top_k;
        } else if (n_probes-- == 0) {
            for (size_t i = 0; i < n; i++)
                s->z[s->cand[i].id] = s->cand[i].z;
            for (size_t i = 0; i < n; i++)
                measure_block(s, (uint32_t)s->cand[i].id / BLOCK);
            return 0;
        }
        drop(s, id);
    }
    for (size_t i = 0; i < n; i++) {
        s->cand[i].z = (s->cand[i].z - top) * by;
        s->cand[i].w = exp_neg(s->cand[i].z);
    }
    return n;
}

calla_status sampler_draw_filtered(sampler *s, const float *logits, sampler_allow_fn allow,
                                   void *user, int32_t *id, calla_error *err)
{
    uint32_t best = 0, n_left = 0;
    const calla_status st = load_row(s, logits, &best, err);
    if (st != CALLA_OK) return st;
    bool found = drop_to_allowed(s, allow, user, &best, &n_left);
    const bool greedy = s->p.temperature == 0.0f;
    if (found && n_left != 0 && !greedy && uses_top_k(s) && (uint32_t)s->p.top_k <= PROBES) {
        const size_t n = probe_top_k(s, allow, user, n_left);
        if (n != 0) {
            *id = uses_few(s) ? draw_few(s, n) : draw(s, cut_min_p(s, cut_top_p(s, n)));
            return CALLA_OK;
        }
    }
    if (found && (n_left == 0 || !greedy)) {
        /* Of lighter ids the draw takes no notice (Z_MIN); the factor allows for rounding. */
        const float bound = n_left != 0 ? s->z[best] + 1.01f * Z_MIN * s->p.temperature : -INFINITY;
        found = drop_refused(s, allow, user, bound, &best);
    }
    if (!found) return nothing_left(s, err);
    *id = greedy ? (int32_t)best : draw_row(s, s->z[best]);
    return CALLA_OK;
}

/* ---- Draws on a GPU ---- */

bool sampler_export(const sampler *s, sample_entry *e)
{
    const bool greedy = s->p.temperature == 0.0f;
    if (s->n_bias != 0 || (!greedy && !uses_few(s))) return false;
    const float inverse = greedy ? 1.0f : 1.0f / s->p.temperature;
    *e = (sample_entry){
        .top_k = greedy ? 1u : (uint32_t)s->p.top_k,
        .greedy = greedy,
        .counted =
            s->p.presence_penalty != 0.0f || s->p.frequency_penalty != 0.0f || repeats_matter(s),
        .by = inverse < FLT_MAX ? inverse : FLT_MAX,
        .top_p = uses_top_p(s) ? s->p.top_p : 0.0f,
        .min_p = s->p.min_p,
        .presence = s->p.presence_penalty,
        .frequency = s->p.frequency_penalty,
        .repetition = repeats_matter(s) ? s->p.repetition_penalty : 1.0f,
    };
    for (int i = 0; i < 4; i++) {
        e->rng[2 * i] = (uint32_t)s->rng[i];
        e->rng[2 * i + 1] = (uint32_t)(s->rng[i] >> 32);
    }
    return true;
}

void sampler_export_counts(const sampler *s, uint32_t *counts)
{
    memset(counts, 0, s->n_vocab * sizeof *counts);
    for (size_t i = 0; i < s->n_touched; i++)
        counts[s->touched[i]] = s->n_generated[s->touched[i]] | SAMPLE_TOUCHED;
}

void sampler_skip(sampler *s)
{
    if (s->p.temperature != 0.0f) (void)rng_word(s->rng);
}
