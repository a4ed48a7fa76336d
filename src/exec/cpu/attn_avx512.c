/* attn_avx512.c - one block of attention.
 *
 * Scores and the weighted sum of V are the same product: up to 8 rows (queries; their weights) by a
 * panel of 32 columns (keys; dims), a chain of fused multiply-adds for each element, the panel's
 * rows (dims; positions) in order. KV is read as it lies, a line of 64 bytes a step for eight
 * queries, and becomes two vectors by a shift and a mask. What a query computes does not depend on
 * its company.
 */
#include <math.h>

#include "exec/cpu/registry.h"
#include "exec/cpu/simd_avx512.h"

#define DIM   MODEL_HEAD_DIM
#define ROWS  8u /* of a tile: the query heads of a KV head */
#define LANES 16u
#define LINE  64u
#define NEAR  16u /* rows ahead that are brought from the second-level to the first-level cache */

/* The next block is asked for while this one is worked on, a line with each row of a panel: at an
 * even pace, since a burst would fill the queues that loads need too, and in FETCH_STREAMS pages
 * at a time, since memory gives one page's lines no faster than this kernel wants them. */
#define FETCH_STREAMS 8u
#define FETCH_STRIDE  (ATTN_BLOCK * DIM * 2 / FETCH_STREAMS)

/* Rows of 32 elements of K or V. */
typedef struct panel {
    const uint8_t *at;
    size_t step; /* bytes from row to row */
    calla_kv_type type;
    const uint8_t *next; /* where FETCH_STREAMS streams go on */
    bool fetches;
} panel;

/* acc += rows a[n_rows][n] by n rows of b. */
static ATTR_INLINE void tile_typed(const float *const *a, uint32_t n, const panel *b,
                                   __m512 (*acc)[2], const uint32_t n_rows, const bool bf16,
                                   const bool fetch)
{
    const __m512i high = _mm512_set1_epi32((int)0xffff0000);
    const float *row[ROWS];
    const uint8_t *at = b->at, *next = b->next;
    const size_t step = b->step;
    UNROLLED (i, n_rows)
        row[i] = a[i];
    for (size_t k = 0; k < n; k++, at += step) {
        __m512 lo, hi;
        if (bf16) {
            const __m512i pair = _mm512_load_si512(at);
            lo = _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
            hi = _mm512_castsi512_ps(_mm512_and_si512(pair, high));
        } else {
            lo = _mm512_load_ps(at);
            hi = _mm512_load_ps(at + LINE);
        }
        PREFETCH(at + NEAR * step);
        if (fetch) PREFETCH_FAR(next + k % FETCH_STREAMS * FETCH_STRIDE + k / FETCH_STREAMS * LINE);
        UNROLLED (i, n_rows) {
            const __m512 x = _mm512_set1_ps(row[i][k]);
            acc[i][0] = _mm512_fmadd_ps(x, lo, acc[i][0]);
            acc[i][1] = _mm512_fmadd_ps(x, hi, acc[i][1]);
        }
    }
}

static ATTR_INLINE void tile(const float *const *a, uint32_t n, const panel *b, __m512 (*acc)[2],
                             const uint32_t n_rows)
{
    if (b->type != CALLA_KV_BF16)
        tile_typed(a, n, b, acc, n_rows, false, false);
    else if (b->fetches)
        tile_typed(a, n, b, acc, n_rows, true, true);
    else
        tile_typed(a, n, b, acc, n_rows, true, false);
}

/* Scores of n_rows queries against the 32 keys of a group, to p[n_rows][ATTN_BLOCK]. */
static ATTR_INLINE void score_tile(const float *const *q, const panel *k, float *p,
                                   const uint32_t n_rows)
{
    __m512 acc[ROWS][2];
    UNROLLED (i, n_rows)
        acc[i][0] = acc[i][1] = _mm512_setzero_ps();
    tile(q, DIM, k, acc, n_rows);
    UNROLLED (i, n_rows) {
        _mm512_storeu_ps(p + (size_t)i * ATTN_BLOCK, acc[i][0]);
        _mm512_storeu_ps(p + (size_t)i * ATTN_BLOCK + LANES, acc[i][1]);
    }
}

/* Dims [d, d + 32) of n_rows outputs: o = o * factor + p v; factor NULL: 1. */
static ATTR_INLINE void output_tile(const float *p, const float *factor, uint32_t n, const panel *v,
                                    const attn_state *st, uint32_t d, const uint32_t n_rows)
{
    __m512 acc[ROWS][2];
    const float *row[ROWS];
    UNROLLED (i, n_rows) {
        row[i] = p + (size_t)i * ATTN_BLOCK;
        acc[i][0] = _mm512_loadu_ps(st[i].o + d);
        acc[i][1] = _mm512_loadu_ps(st[i].o + d + LANES);
        if (factor != NULL) {
            const __m512 f = _mm512_set1_ps(factor[i]);
            acc[i][0] = _mm512_mul_ps(acc[i][0], f);
            acc[i][1] = _mm512_mul_ps(acc[i][1], f);
        }
    }
    tile(row, n, v, acc, n_rows);
    UNROLLED (i, n_rows) {
        _mm512_storeu_ps(st[i].o + d, acc[i][0]);
        _mm512_storeu_ps(st[i].o + d + LANES, acc[i][1]);
    }
}

static __mmask16 lanes_below(uint32_t j, uint32_t n)
{
    if (j >= n) return 0;
    return (__mmask16)(0xffffu >> (n - j < LANES ? LANES - (n - j) : 0));
}

typedef struct block {
    const float *const *q;
    const uint32_t *n_visible;
    uint32_t n_q, n_seen; /* positions that some query sees */
    calla_kv_type type;
    size_t row_bytes;
    const uint8_t *k, *v;
    float *p, *factor; /* [n_q, ATTN_BLOCK]: scores, then weights; [n_q] */
    attn_state *st;
} block;

/* The largest of the first n scores of p, and of m. */
static ATTR_INLINE float row_max(const float *p, const uint32_t n, float m)
{
    const __m512 none = _mm512_set1_ps(-INFINITY);
    __m512 top = none;
    for (uint32_t j = 0; j < n; j += LANES)
        top = _mm512_max_ps(top, _mm512_mask_loadu_ps(none, lanes_below(j, n), p + j));
    return fmaxf(m, _mm512_reduce_max_ps(top));
}

/* The first n scores of p become weights; their sums lane by lane. */
static ATTR_INLINE __m512 row_exp(float *p, const uint32_t n, float m)
{
    __m512 sum = _mm512_setzero_ps();
    for (uint32_t j = 0; j < n; j += LANES) {
        __mmask16 mask = lanes_below(j, n);
        const __m512 s = _mm512_sub_ps(_mm512_maskz_loadu_ps(mask, p + j), _mm512_set1_ps(m));
        /* a weight below the smallest normal number is 0: denormals would slow what follows */
        mask = _mm512_mask_cmp_ps_mask(mask, s, _mm512_set1_ps(-87), _CMP_GT_OQ);
        const __m512 w = _mm512_maskz_mov_ps(mask, exp512(s));
        _mm512_storeu_ps(p + j, w);
        sum = _mm512_add_ps(sum, w);
    }
    return sum;
}

/* Scores of n_rows <= LANES queries from i0 become weights, states are rescaled, and factor gets
 * what o is to be scaled by. In passes over the rows, since a row alone is a chain of latencies. */
static void softmax_rows(const block *b, uint32_t i0, uint32_t n_rows)
{
    const uint32_t *n = b->n_visible + i0;
    attn_state *st = b->st + i0;
    float *p = b->p + (size_t)i0 * ATTN_BLOCK, *factor = b->factor + i0;
    __m512 sum[LANES];
    float l[LANES];
    for (uint32_t r = 0; r < LANES; r++) {
        factor[r] = 0.0f;
        sum[r] = _mm512_setzero_ps();
        if (r >= n_rows || n[r] == 0) continue;
        const float *row = p + (size_t)r * ATTN_BLOCK;
        const float m =
            n[r] == ATTN_BLOCK ? row_max(row, ATTN_BLOCK, st[r].m) : row_max(row, n[r], st[r].m);
        factor[r] = st[r].m - m;
        st[r].m = m;
    }
    _mm512_storeu_ps(factor, exp512(_mm512_loadu_ps(factor)));
    for (uint32_t r = 0; r < n_rows; r++) {
        float *row = p + (size_t)r * ATTN_BLOCK;
        sum[r] =
            n[r] == ATTN_BLOCK ? row_exp(row, ATTN_BLOCK, st[r].m) : row_exp(row, n[r], st[r].m);
    }
    for (uint32_t r = 0; r < n_rows; r += 4)
        _mm_storeu_ps(l + r, sum4(sum[r], sum[r + 1], sum[r + 2], sum[r + 3]));
    for (uint32_t r = 0; r < n_rows; r++)
        if (n[r] > 0) st[r].l = st[r].l * factor[r] + l[r];
}

/* The panel that begins with line `first` of a block of K or V. Its first rows of queries fetch; a
 * cache of f32 is left to the hardware. */
static panel panel_of(const block *b, const uint8_t *kv, uint32_t first)
{
    const size_t step = b->row_bytes * ATTN_KEYS / DIM;
    const uint8_t *next = kv + ATTN_BLOCK * b->row_bytes + first / FETCH_STREAMS * LINE;
    return (panel){kv + first * step, step, b->type, next, true};
}

static void scores(const block *b)
{
    for (uint32_t j = 0; j < b->n_seen; j += ATTN_KEYS) {
        panel k = panel_of(b, b->k, j / ATTN_KEYS * DIM);
        uint32_t i = 0;
        for (; i + ROWS <= b->n_q; i += ROWS, k.fetches = false)
            score_tile(b->q + i, &k, b->p + (size_t)i * ATTN_BLOCK + j, ROWS);
        for (; i < b->n_q; i++, k.fetches = false)
            score_tile(b->q + i, &k, b->p + (size_t)i * ATTN_BLOCK + j, 1);
    }
}

/* One query, positions [from, n_visible). */
static void output_one(const block *b, panel v, uint32_t i, uint32_t from, const float *factor,
                       uint32_t d)
{
    if (b->n_visible[i] <= from) return;
    v.at += from * v.step;
    output_tile(b->p + (size_t)i * ATTN_BLOCK + from, factor, b->n_visible[i] - from, &v, b->st + i,
                d, 1);
}

/* Dims [d, d + 32): eight queries together as far as all of them see, then each alone. */
static void outputs(const block *b, uint32_t d)
{
    panel v = panel_of(b, b->v, d / ATTN_KEYS * ATTN_BLOCK);
    uint32_t i = 0;
    for (; i + ROWS <= b->n_q; i += ROWS, v.fetches = false) {
        uint32_t common = b->n_visible[i];
        for (uint32_t r = 1; r < ROWS; r++)
            if (b->n_visible[i + r] < common) common = b->n_visible[i + r];
        if (common > 0)
            output_tile(b->p + (size_t)i * ATTN_BLOCK, b->factor + i, common, &v, b->st + i, d,
                        ROWS);
        v.fetches = false;
        for (uint32_t r = i; r < i + ROWS; r++)
            output_one(b, v, r, common, common > 0 ? NULL : b->factor + r, d);
    }
    for (; i < b->n_q; i++)
        output_one(b, v, i, 0, b->factor + i, d);
}

void avx512_attn_block(const float *const *q, const uint32_t *n_visible, uint32_t n_q,
                       const void *k, const void *v, uint32_t n_kv, calla_kv_type kv_type,
                       attn_state *st, float *scratch)
{
    (void)n_kv;
    uint32_t n_seen = 0;
    for (uint32_t i = 0; i < n_q; i++)
        if (n_visible[i] > n_seen) n_seen = n_visible[i];
    const block b = {.q = q,
                     .n_visible = n_visible,
                     .n_q = n_q,
                     .n_seen = n_seen,
                     .type = kv_type,
                     .row_bytes = DIM * (kv_type == CALLA_KV_BF16 ? 2 : 4),
                     .k = k,
                     .v = v,
                     .p = scratch,
                     .factor = scratch + (size_t)n_q * ATTN_BLOCK,
                     .st = st};
    scores(&b);
    for (uint32_t i = 0; i < n_q; i += LANES)
        softmax_rows(&b, i, n_q - i < LANES ? n_q - i : LANES);
    for (uint32_t d = 0; d < DIM; d += ATTN_KEYS)
        outputs(&b, d);
}
