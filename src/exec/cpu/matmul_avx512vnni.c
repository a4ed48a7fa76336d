/* matmul_avx512vnni.c - 4-bit matrices by activations of 8 or 16 bits, in bytes (kernels.h).
 *
 * vpdpbusd adds four products of an unsigned by a signed byte to each of 16 sums: a code by a
 * byte of q. 16 bits are two planes of bytes; the sum over the high one is shifted left by 8 and
 * goes on over the low one. Sums of integers are exact, so the two ways below agree by themselves;
 * what is rounded, the chain over the groups, has outputs in lanes in both.
 *
 * few    one or two tokens. Codes are read in the order of memory, which the hardware's prefetcher
 * follows: a load holds two groups of a row. A tree of additions brings the sums of 16 loads into
 *        two vectors; those of 16 rows are transposed for the chain.
 * strip  more tokens: vec_int.inc.
 */
#include "exec/cpu/ahead.h"
#include "exec/cpu/registry.h"
#include "exec/cpu/vec.h"

#define LANES VLEN

typedef __m512i vi;

static ATTR_INLINE vi vi_zero(void)
{
    return _mm512_setzero_si512();
}
static ATTR_INLINE vi vi_shl8(vi a)
{
    return _mm512_slli_epi32(a, 8);
}
static ATTR_INLINE vi vi_load(const void *p)
{
    return _mm512_loadu_si512(p);
}
static ATTR_INLINE void vi_store(void *p, vi a)
{
    _mm512_storeu_si512(p, a);
}
static ATTR_INLINE vi vi_set(int32_t word)
{
    return _mm512_set1_epi32(word);
}
static ATTR_INLINE vf vi_f32(vi a)
{
    return _mm512_cvtepi32_ps(a);
}
static ATTR_INLINE vi vi_low(vi a)
{
    return _mm512_and_si512(a, _mm512_set1_epi8(15));
}
static ATTR_INLINE vi vi_high(vi a)
{
    return vi_low(_mm512_srli_epi32(a, 4));
}
static ATTR_INLINE vi vi_dot(vi sum, vi u, vi s)
{
    return _mm512_dpbusd_epi32(sum, u, s);
}

/* Words 0 .. 7 of 16 rows, p[i] + off each; words beyond n_bytes are not read and zero.
 * out[j]: word j of all rows. */
static ATTR_INLINE void words(const uint8_t *const p[LANES], size_t off, uint32_t n_bytes,
                              __m512i out[8])
{
    const __mmask16 m = (__mmask16)(n_bytes >= 32 ? 0xffffu : (1u << n_bytes / 2) - 1);
    __m512i a[8], b[8];
    UNROLLED (i, 8) { /* row i below, row i + 8 above */
        const __m256i low = _mm256_maskz_loadu_epi16(m, p[i] + off);
        const __m256i high = _mm256_maskz_loadu_epi16(m, p[i + 8] + off);
        a[i] = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    }
    UNROLLED (i, 4) {
        b[2 * i] = _mm512_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm512_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
    }
    UNROLLED (i, 2) { /* 128-bit lanes: words j, j + 4 of rows 4 i ..; the same of 8 + 4 i .. */
        a[4 * i] = _mm512_unpacklo_epi64(b[4 * i], b[4 * i + 2]);
        a[4 * i + 1] = _mm512_unpackhi_epi64(b[4 * i], b[4 * i + 2]);
        a[4 * i + 2] = _mm512_unpacklo_epi64(b[4 * i + 1], b[4 * i + 3]);
        a[4 * i + 3] = _mm512_unpackhi_epi64(b[4 * i + 1], b[4 * i + 3]);
    }
    const __m512i even = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
    const __m512i odd = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
    UNROLLED (i, 4) {
        out[i] = _mm512_permutex2var_epi64(a[i], even, a[4 + i]);
        out[4 + i] = _mm512_permutex2var_epi64(a[i], odd, a[4 + i]);
    }
}

/* Parameters of groups [g, g + n), n <= 16, of 16 rows: out[group][row]. */
static ATTR_INLINE void params(const uint8_t *const p[LANES], uint32_t g, uint32_t n,
                               float out[LANES][LANES])
{
    __m512i word[8];
    words(p, (size_t)g * 2, n * 2, word);
    UNROLLED (i, 8) {
        _mm512_store_si512(out[2 * i], _mm512_slli_epi32(word[i], 16));
        _mm512_store_si512(out[2 * i + 1],
                           _mm512_and_si512(word[i], _mm512_set1_epi32((int)0xffff0000)));
    }
}

#define INT_TOKENS 6
#include "exec/cpu/vec_int.inc"

/* ---- One token ---- */

/* Sums of neighbouring lanes of a and b: pairs of a in lanes 0, 1, of b in 2, 3 of each 128 bits.
 */
static ATTR_INLINE __m512i pairs(__m512i a, __m512i b)
{
    const __m512 af = _mm512_castsi512_ps(a), bf = _mm512_castsi512_ps(b);
    return _mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(af, bf, 0x88)),
                            _mm512_castps_si512(_mm512_shuffle_ps(af, bf, 0xdd)));
}

/* What a pair of groups of a token holds, by plane, even columns before odd ones: lanes 0 .. 7 the
 * first group, 8 .. 15 the second. Pairs go round: a run of 16 from any of them is contiguous. */
static ATTR_INLINE void x_arrange(const uint8_t *x, uint32_t n_planes, uint32_t n_pairs,
                                  uint8_t *out)
{
    const uint32_t step = prep_bytes(n_planes);
    const bool one_start = n_pairs % LANES == 0 || LANES % n_pairs == 0; /* runs begin at pair 0 */
    const uint32_t n_most = n_pairs > LANES ? n_pairs : LANES;
    for (uint32_t i = 0; i < (one_start ? n_most : n_pairs + LANES - 1); i++) {
        const uint8_t *first = x + (size_t)(i % n_pairs) * 2 * step;
        UNROLLED (j, 2 * n_planes) {
            const __m256i a = _mm256_loadu_si256((const void *)(first + j * GROUP_BYTES));
            const __m256i b = _mm256_loadu_si256((const void *)(first + step + j * GROUP_BYTES));
            _mm256_store_si256((void *)(out + j * 64), a);
            _mm256_store_si256((void *)(out + j * 64 + GROUP_BYTES), b);
        }
        out += 2 * n_planes * 64;
    }
}

/* Sums of one pair of groups of a row, by lanes as in x. */
static ATTR_INLINE __m512i pair_sums(const uint8_t *code, const uint8_t *x, uint32_t n_planes)
{
    const vi c = vi_load(code), even = vi_low(c), odd = vi_high(c);
    __m512i s = _mm512_setzero_si512();
    UNROLLED (i, n_planes) {
        if (i > 0) s = _mm512_slli_epi32(s, 8);
        s = _mm512_dpbusd_epi32(s, even, _mm512_load_si512(x + i * 128));
        s = _mm512_dpbusd_epi32(s, odd, _mm512_load_si512(x + i * 128 + 64));
    }
    return s;
}

/* Sums of 16 pairs of groups, which lie together: of their first groups, of their second ones. */
static ATTR_INLINE void run_sums(const uint8_t *code, ahead *a, const uint8_t *x, uint32_t n_planes,
                                 int32_t *first, int32_t *second)
{
    __m512i q[4];
    UNROLLED (i, 4) {
        __m512i s[4];
        if (i < 3) fetch_column(a); /* the fourth: one_chain */
        UNROLLED (j, 4) {
            const uint32_t at = 4 * i + j;
            PREFETCH(code + FETCH_NEAR + at * 64);
            s[j] = pair_sums(code + at * 64, x + at * n_planes * 128, n_planes);
        }
        q[i] = pairs(pairs(s[0], s[1]), pairs(s[2], s[3]));
    }
    /* q[i], in 128-bit lanes: two halves of the first groups of pairs 4 i .., two of the second */
    const __m512i low = _mm512_add_epi32(_mm512_shuffle_i32x4(q[0], q[1], 0x88),
                                         _mm512_shuffle_i32x4(q[0], q[1], 0xdd));
    const __m512i high = _mm512_add_epi32(_mm512_shuffle_i32x4(q[2], q[3], 0x88),
                                          _mm512_shuffle_i32x4(q[2], q[3], 0xdd));
    _mm512_store_si512(first, _mm512_shuffle_i32x4(low, high, 0x88));
    _mm512_store_si512(second, _mm512_shuffle_i32x4(low, high, 0xdd));
}

/* Scratch of one token. */
typedef struct one {
    const uint8_t *x, *arranged;
    int32_t *sum[2]; /* [16 rows][n_pairs], first and second groups */
    uint32_t n_pairs;
} one;

/* The chain over the groups, rows in lanes; meanwhile a column is fetched for each run of sums, so
 * that memory does not wait. */
static ATTR_INLINE __m512 one_chain(uint32_t n_planes, const one *o, const int_rows *r, ahead *a)
{
    ATTR_ALIGNED(64) float scale[LANES][LANES];
    ATTR_ALIGNED(64) float bias[LANES][LANES];
    const uint32_t step = prep_bytes(n_planes);
    const uint8_t *x = o->x, *at[2][LANES];
    UNROLLED (i, LANES) {
        at[0][i] = (const uint8_t *)(o->sum[0] + i * o->n_pairs);
        at[1][i] = (const uint8_t *)(o->sum[1] + i * o->n_pairs);
    }
    __m512 y = _mm512_setzero_ps();
    for (uint32_t p = 0; p < o->n_pairs; p += 8) {
        const uint32_t n = least(o->n_pairs - p, 8);
        __m512i word[2][8];
        words(at[0], (size_t)p * 4, n * 4, word[0]);
        words(at[1], (size_t)p * 4, n * 4, word[1]);
        params(r->scale, 2 * p, 2 * n, scale);
        params(r->bias, 2 * p, 2 * n, bias);
        UNROLLED (i, LANES) {
            if (i / 2 == n) break;
            if (i % 2 == 0) fetch_column(a);
            y = group_add(y, word[i % 2][i / 2], _mm512_load_ps(scale[i]), _mm512_load_ps(bias[i]),
                          x_param(x, n_planes, 0), x_param(x, n_planes, 1));
            x += step;
        }
    }
    return y;
}

#define FEW_TOKENS 2u /* the codes of 16 rows wait for the second in the nearest cache */

/* Scratch of token t. */
static ATTR_INLINE one one_at(uint32_t n_planes, uint32_t n_pairs, const float *x, uint32_t t,
                              float *scratch)
{
    const size_t x_bytes = (size_t)(n_pairs + LANES - 1) * n_planes * 128;
    const size_t sum_bytes = (size_t)LANES * n_pairs * sizeof(int32_t);
    uint8_t *const at = (uint8_t *)scratch + t * (x_bytes + 2 * sum_bytes);
    x_arrange((const uint8_t *)x, n_planes, n_pairs, at);
    return (one){
        .x = (const uint8_t *)x,
        .arranged = at,
        .sum = {(int32_t *)(void *)(at + x_bytes), (int32_t *)(void *)(at + x_bytes + sum_bytes)},
        .n_pairs = n_pairs};
}

/* Whole blocks of 16 rows of [row0, row1); the first row that is left. */
static ATTR_INLINE uint32_t few_rows(uint32_t n_planes, const matrix *w, uint32_t row0,
                                     uint32_t row1, const float *const *x, uint32_t n_tokens,
                                     float *const *y, float *scratch)
{
    one o[FEW_TOKENS];
    const uint32_t n_pairs = w->cols / GROUP / 2;
    ahead a = ahead_of(w, row0, row1);
    uint32_t row = row0;
    for (uint32_t t = 0; t < n_tokens; t++)
        o[t] = one_at(n_planes, n_pairs, x[t], t, scratch);
    for (; row + LANES <= row1; row += LANES) {
        const uint8_t *code = w->data + row * w->row_bytes;
        const int_rows r = rows_at(w, row, LANES);
        const ahead_rows then = rows_after(w, row + LANES, row1);
        for (uint32_t t = 0; t < n_tokens; t++) {
            ahead again = {.at = code}; /* the second token fetches what is there already */
            ahead *const f = t == 0 ? &a : &again;
            for (uint32_t i = 0, p = 0; i < n_pairs; i++, p = (p + LANES) % n_pairs) {
                PREFETCH(then.scales + (size_t)i * 64);
                PREFETCH(then.biases + (size_t)i * 64);
                run_sums(code + (size_t)i * LANES * 64, f,
                         o[t].arranged + (size_t)p * n_planes * 128, n_planes,
                         o[t].sum[0] + i * LANES, o[t].sum[1] + i * LANES);
            }
            _mm512_storeu_ps(y[t] + row, one_chain(n_planes, &o[t], &r, f));
        }
    }
    return row;
}

/* ---- Entry points ---- */

static ATTR_INLINE void matmul(uint32_t n_planes, const matrix *w, uint32_t row0, uint32_t row1,
                               const float *const *x, uint32_t n_tokens, float *const *y,
                               float *scratch)
{
    /* codes of one row after the other, in whole vectors */
    const uint32_t few = w->cols >= 512 ? FEW_TOKENS : 1; /* as far as the scratch suffices */
    if (n_tokens <= few && w->cols % (2 * GROUP) == 0 && w->row_bytes == w->cols / 2)
        row0 = few_rows(n_planes, w, row0, row1, x, n_tokens, y, scratch);
    strips(n_planes, w, row0, row1, x, n_tokens, y, scratch);
}

void avx512_matmul_i16(const matrix *w, uint32_t row0, uint32_t row1, const float *const *x,
                       uint32_t n_tokens, float *const *y, float *scratch)
{
    matmul(2, w, row0, row1, x, n_tokens, y, scratch);
}

void avx512_matmul_i8(const matrix *w, uint32_t row0, uint32_t row1, const float *const *x,
                      uint32_t n_tokens, float *const *y, float *scratch)
{
    matmul(1, w, row0, row1, x, n_tokens, y, scratch);
}

/* A group: even columns, then odd ones. */
static ATTR_INLINE void prep_group(const float *x, uint32_t n_planes, uint8_t *out)
{
    const float q_max = n_planes == 2 ? PREP_I16_MAX : PREP_I8_MAX;
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    __m512 v[4], top = _mm512_setzero_ps();
    UNROLLED (i, 2) {
        const __m512 a = _mm512_loadu_ps(x + i * 32), b = _mm512_loadu_ps(x + i * 32 + 16);
        v[i] = _mm512_permutex2var_ps(a, even, b);
        v[2 + i] = _mm512_permutex2var_ps(a, odd, b);
        top = _mm512_max_ps(top, _mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
    }
    const float most = _mm512_reduce_max_ps(top);
    const float inverse = most < PREP_LEAST ? 0.0f : q_max / most;
    const float scale = most < PREP_LEAST ? 0.0f : most / q_max;
    __m512i total = _mm512_setzero_si512();
    UNROLLED (i, 4) {
        const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(v[i], _mm512_set1_ps(inverse)));
        total = _mm512_add_epi32(total, q);
        __m512i first = q;
        if (n_planes == 2) {
            first = _mm512_srai_epi32(_mm512_add_epi32(q, _mm512_set1_epi32(128)), 8);
            _mm_storeu_si128((__m128i *)(void *)(out + GROUP + i * 16), _mm512_cvtepi32_epi8(q));
        }
        _mm_storeu_si128((__m128i *)(void *)(out + i * 16), _mm512_cvtepi32_epi8(first));
    }
    const float sum = scale * (float)_mm512_reduce_add_epi32(total);
    memcpy(out + n_planes * GROUP, &scale, sizeof scale);
    memcpy(out + n_planes * GROUP + 4, &sum, sizeof sum);
}

void avx512_prep_i16(const float *x, uint32_t cols, void *xp)
{
    for (uint32_t g = 0; g < cols / GROUP; g++)
        prep_group(x + (size_t)g * GROUP, 2, (uint8_t *)xp + (size_t)g * PREP_BYTES_I16);
}

void avx512_prep_i8(const float *x, uint32_t cols, void *xp)
{
    for (uint32_t g = 0; g < cols / GROUP; g++)
        prep_group(x + (size_t)g * GROUP, 1, (uint8_t *)xp + (size_t)g * PREP_BYTES_I8);
}
