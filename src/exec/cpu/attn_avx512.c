/* attn_avx512.c - one block of attention.
 *
 * Scores go in tiles of 4 queries x 4 positions (one 16-lane accumulator each, then sum4's tree),
 * the softmax row by row, the weighted sum of V in tiles of 4 queries x 64 dims, positions in
 * order. K is widened to f32 16 rows at a time and V 64 dims at a time, into the same 16 KB, which
 * so stay in the first-level cache and serve all queries. Every score and every output element has
 * the same chain of operations whatever the other rows are; queries that fill a tile up are copies
 * of the last.
 */
#include <math.h>

#include "exec/cpu/registry.h"
#include "exec/cpu/simd_avx512.h"

#define DIM    MODEL_HEAD_DIM
#define ROWS   4u  /* queries, and positions, of a tile */
#define K_ROWS 16u /* widened together */
#define PART   64u /* dims of V widened together, and of an output tile */
#define LANES  16u

typedef struct block {
    const float *const *q;
    const uint32_t *n_visible;
    uint32_t n_q, n_seen; /* positions that some query sees */
    const void *k, *v;
    calla_kv_type type;
    float *wide; /* [K_ROWS, DIM] of K or [ATTN_BLOCK, PART] of V */
    float *p;    /* [n_q, ATTN_BLOCK]: scores, then weights */
    attn_state *st;
} block;

/* Columns [d, d + n_cols) of n_rows rows: out[n_rows, n_cols]. */
static void kv_widen(const void *kv, calla_kv_type type, uint32_t row, uint32_t n_rows, uint32_t d,
                     uint32_t n_cols, float *out)
{
    for (size_t j = row; j < row + n_rows; j++)
        for (size_t i = d; i < d + n_cols; i += LANES, out += LANES)
            _mm512_store_ps(out, type == CALLA_KV_BF16
                                     ? load_bf16x16((const uint16_t *)kv + j * DIM + i)
                                     : _mm512_load_ps((const float *)kv + j * DIM + i));
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Scores of queries [i0, i0 + 4) against positions [j0, j0 + 4) of the n_rows that are wide now,
 * the first of which is `first`; as far as there are such. */
static void score_tile(const block *b, uint32_t i0, uint32_t first, uint32_t n_rows, uint32_t j0)
{
    /* The first eight queries fetch the rows that the next call will want, a block further on: at
     * an even pace, since a burst would fill the queues that loads need too. */
    const size_t row_bytes = DIM * (b->type == CALLA_KV_BF16 ? 2 : 4);
    const size_t ahead = (ATTN_BLOCK + first + j0 + i0 / 2) * row_bytes;
    __m512 acc[ROWS][ROWS];
    const float *q[ROWS], *k[ROWS];
    UNROLLED (i, ROWS) {
        q[i] = b->q[least(i0 + i, b->n_q - 1)];
        k[i] = b->wide + (size_t)least(j0 + i, n_rows - 1) * DIM;
        UNROLLED (j, ROWS)
            acc[i][j] = _mm512_setzero_ps();
    }
    for (uint32_t d = 0; d < DIM; d += LANES) {
        __m512 kv[ROWS];
        if (i0 < 2 * ROWS) {
            const size_t at = ahead + d / LANES * (row_bytes / 8);
            _mm_prefetch((const char *)b->k + at, _MM_HINT_T1);
            _mm_prefetch((const char *)b->v + at, _MM_HINT_T1);
        }
        UNROLLED (j, ROWS)
            kv[j] = _mm512_load_ps(k[j] + d);
        UNROLLED (i, ROWS) {
            const __m512 qv = _mm512_loadu_ps(q[i] + d);
            UNROLLED (j, ROWS)
                acc[i][j] = _mm512_fmadd_ps(qv, kv[j], acc[i][j]);
        }
    }
    UNROLLED (i, ROWS) {
        float *row = b->p + (size_t)least(i0 + i, b->n_q - 1) * ATTN_BLOCK;
        _mm_storeu_ps(row + first + j0, sum4(acc[i][0], acc[i][1], acc[i][2], acc[i][3]));
    }
}

static __mmask16 lanes_below(uint32_t j, uint32_t n)
{
    if (j >= n) return 0;
    return (__mmask16)(0xffffu >> (n - j < LANES ? LANES - (n - j) : 0));
}

/* Scores of one query become weights; its state is rescaled. Returns what o is to be scaled by. */
static float softmax_row(const block *b, uint32_t i)
{
    const uint32_t n = b->n_visible[i];
    float *p = b->p + (size_t)i * ATTN_BLOCK;
    attn_state *st = &b->st[i];
    const __m512 none = _mm512_set1_ps(-INFINITY);
    __m512 top = none, sum = _mm512_setzero_ps();
    for (uint32_t j = 0; j < n; j += LANES)
        top = _mm512_max_ps(top, _mm512_mask_loadu_ps(none, lanes_below(j, n), p + j));
    const float m = fmaxf(st->m, _mm512_reduce_max_ps(top));
    const __m512 mv = _mm512_set1_ps(m);
    for (uint32_t j = 0; j < n; j += LANES) {
        __mmask16 mask = lanes_below(j, n);
        const __m512 s = _mm512_sub_ps(_mm512_maskz_loadu_ps(mask, p + j), mv);
        /* a weight below the smallest normal number is 0: denormals would slow what follows */
        mask = _mm512_mask_cmp_ps_mask(mask, s, _mm512_set1_ps(-87), _CMP_GT_OQ);
        const __m512 w = _mm512_maskz_mov_ps(mask, exp512(s));
        _mm512_storeu_ps(p + j, w);
        sum = _mm512_add_ps(sum, w);
    }
    const float f = _mm512_cvtss_f32(exp512(_mm512_set1_ps(st->m - m)));
    st->m = m;
    st->l = st->l * f + sum1(sum);
    return f;
}

/* o += p v for n_q queries from i0, dims [d, d + PART), positions [j, n). */
static ATTR_INLINE void output_tile(const block *b, uint32_t n_q, uint32_t i0, uint32_t d,
                                    uint32_t j, uint32_t n)
{
    __m512 acc[ROWS][PART / LANES];
    UNROLLED (i, n_q)
        UNROLLED (c, PART / LANES)
            acc[i][c] = _mm512_loadu_ps(b->st[i0 + i].o + d + c * LANES);
    for (; j < n; j++) {
        const float *v = b->wide + (size_t)j * PART;
        __m512 vv[PART / LANES];
        UNROLLED (c, PART / LANES)
            vv[c] = _mm512_load_ps(v + c * LANES);
        UNROLLED (i, n_q) {
            const __m512 p = _mm512_set1_ps(b->p[(size_t)(i0 + i) * ATTN_BLOCK + j]);
            UNROLLED (c, PART / LANES)
                acc[i][c] = _mm512_fmadd_ps(p, vv[c], acc[i][c]);
        }
    }
    UNROLLED (i, n_q)
        UNROLLED (c, PART / LANES)
            _mm512_storeu_ps(b->st[i0 + i].o + d + c * LANES, acc[i][c]);
}

/* Four queries together as far as all of them see, then each alone. */
static void outputs(const block *b, uint32_t d)
{
    uint32_t i = 0;
    for (; i + ROWS <= b->n_q; i += ROWS) {
        uint32_t common = b->n_visible[i];
        for (uint32_t r = 1; r < ROWS; r++)
            common = least(common, b->n_visible[i + r]);
        output_tile(b, ROWS, i, d, 0, common);
        for (uint32_t r = 0; r < ROWS; r++)
            if (b->n_visible[i + r] > common)
                output_tile(b, 1, i + r, d, common, b->n_visible[i + r]);
    }
    for (; i < b->n_q; i++)
        output_tile(b, 1, i, d, 0, b->n_visible[i]);
}

static void scores(const block *b)
{
    for (uint32_t j = 0; j < b->n_seen; j += K_ROWS) {
        const uint32_t n = least(b->n_seen - j, K_ROWS);
        kv_widen(b->k, b->type, j, n, 0, DIM, b->wide);
        for (uint32_t i = 0; i < b->n_q; i += ROWS)
            for (uint32_t jj = 0; jj < n; jj += ROWS)
                score_tile(b, i, j, n, jj);
    }
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
                     .k = k,
                     .v = v,
                     .type = kv_type,
                     .wide = scratch,
                     .p = scratch + (size_t)ATTN_BLOCK * DIM,
                     .st = st};
    scores(&b);
    for (uint32_t i = 0; i < n_q; i++) {
        if (n_visible[i] == 0) continue;
        const __m512 f = _mm512_set1_ps(softmax_row(&b, i));
        for (uint32_t d = 0; d < DIM; d += LANES)
            _mm512_storeu_ps(st[i].o + d, _mm512_mul_ps(_mm512_loadu_ps(st[i].o + d), f));
    }
    for (uint32_t d = 0; d < DIM; d += PART) {
        kv_widen(v, kv_type, 0, n_seen, d, PART, b.wide);
        outputs(&b, d);
    }
}
