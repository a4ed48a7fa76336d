/* matmul_avx512.c - matrix products.
 *
 * One order for all: each output has one accumulator of 16 lanes; FMA over the columns in order,
 * 16 at a time (for Q4 in prep_q4's order); then sum4's tree. So the paths below agree bitwise:
 *
 * direct  few tokens. Tiles of 4 rows x up to 4 tokens; codes become weights in registers. Four
 *         rows share the loads of x and hide the latency of FMA.
 * strip   more tokens. Four rows are widened once into scratch, then tiles of 4 rows x 6 tokens
 *         stream over them. Columns go in blocks, so that the strip's block stays in the
 * first-level cache; the accumulators wait in memory meanwhile.
 *
 * A 4-bit code becomes its weight without arithmetic: a group's 16 possible values
 * scale * {0..15} + bias fit one register, and vpermps looks only at the lowest four bits of each
 * index, so a vector of bytes widened to 32 bits gives the low nibbles at once, and the high ones
 * after one shift. That is why prep_q4 puts even elements before odd ones. Each product is exact
 * (8 + 4 bits), so the table rounds once, as the reference does.
 */
#include "exec/cpu/registry.h"
#include "exec/cpu/simd_avx512.h"

#include "base/ck.h"

#define GROUP MODEL_QUANT_GROUP
/* Parameters are widened this many groups at a time. */
#define GROUPS_MAX 64u
#define ROWS       4u /* of a tile */
#define DIRECT_MAX 4u /* tokens of a direct tile */
#define TILE_MAX   6u /* tokens of a strip tile */
/* Bytes of codes between use and prefetch: four rows at once are four streams in one page, which
 * the hardware prefetcher does not follow. Running past the end of the matrix is harmless. */
#define AHEAD 8192u

/* scale and bias of up to GROUPS_MAX groups of ROWS rows, as f32. */
typedef struct params {
    float scale[ROWS][GROUPS_MAX], bias[ROWS][GROUPS_MAX];
} params;

static ATTR_INLINE void widen(const uint8_t *p, uint32_t n, float *out)
{
    for (uint32_t i = 0; i < n; i += 16) {
        const uint32_t left = n - i;
        const __mmask16 m = (__mmask16)(left < 16 ? (1u << left) - 1 : 0xffffu);
        const __m512i u = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, p + (size_t)i * 2));
        _mm512_storeu_si512(out + i, _mm512_slli_epi32(u, 16));
    }
}

/* Groups [group, group + n) of rows [row, row + n_rows). */
static ATTR_INLINE void params_load(params *p, const matrix *w, uint32_t row, uint32_t n_rows,
                                    uint32_t group, uint32_t n)
{
    UNROLLED (i, n_rows) {
        const size_t at = ((size_t)(row + i) * (w->cols / GROUP) + group) * 2;
        widen(w->scales + at, n, p->scale[i]);
        widen(w->biases + at, n, p->bias[i]);
    }
}

/* Fetches the parameters that belong to the codes AHEAD. */
static ATTR_INLINE void params_ahead(const matrix *w, uint32_t row, uint32_t n_groups)
{
    const uint64_t at = (uint64_t)row * n_groups * 2 + AHEAD / 16;
    for (uint32_t i = 0; i < ROWS * n_groups * 2; i += 64) {
        _mm_prefetch((const char *)w->scales + at + i, _MM_HINT_T0);
        _mm_prefetch((const char *)w->biases + at + i, _MM_HINT_T0);
    }
}

static ATTR_INLINE __m512 iota(void)
{
    return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

static ATTR_INLINE __m512i load_u8x16(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}

/* ---- Tiles ---- */

typedef __m512 tile[ROWS][TILE_MAX];

static ATTR_INLINE void tile_zero(tile acc, uint32_t n_rows, uint32_t n_tokens)
{
    UNROLLED (i, n_rows)
        UNROLLED (t, n_tokens)
            acc[i][t] = _mm512_setzero_ps();
}

/* acc += w x^T for 16 columns of which the weights are at hand. */
static ATTR_INLINE void tile_fma(tile acc, uint32_t n_rows, uint32_t n_tokens, const __m512 *w,
                                 const float *const *x, size_t col)
{
    UNROLLED (t, n_tokens) {
        const __m512 xv = _mm512_loadu_ps(x[t] + col);
        UNROLLED (i, n_rows)
            acc[i][t] = _mm512_fmadd_ps(w[i], xv, acc[i][t]);
    }
}

static ATTR_INLINE void tile_store(tile acc, uint32_t n_rows, uint32_t n_tokens, float *const *y,
                                   uint32_t row)
{
    UNROLLED (t, n_tokens) {
        if (n_rows == ROWS)
            _mm_storeu_ps(y[t] + row, sum4(acc[0][t], acc[1][t], acc[2][t], acc[3][t]));
        else
            y[t][row] = sum1(acc[0][t]);
    }
}

/* ---- Direct: weights made in registers ---- */

static ATTR_INLINE void direct_q4(tile acc, uint32_t n_rows, uint32_t n_tokens, const matrix *w,
                                  uint32_t row, const float *const *x)
{
    params p;
    const uint32_t n_groups = w->cols / GROUP;
    const char *ahead = (const char *)w->data + (uint64_t)row * w->row_bytes + AHEAD;
    for (uint32_t g0 = 0; g0 < n_groups; g0 += GROUPS_MAX) {
        const uint32_t n = n_groups - g0 < GROUPS_MAX ? n_groups - g0 : GROUPS_MAX;
        params_load(&p, w, row, n_rows, g0, n);
        if (n_rows == ROWS) params_ahead(w, row, n_groups);
        const uint8_t *codes = w->data + (uint64_t)row * w->row_bytes + (uint64_t)g0 * (GROUP / 2);
        for (uint32_t g = 0; g < n; g++) {
            __m512 table[ROWS];
            const size_t col = (size_t)(g0 + g) * GROUP;
            if (n_rows == ROWS) {
                _mm_prefetch(ahead + (size_t)(g0 + g) * (GROUP / 2 * ROWS), _MM_HINT_T0);
                _mm_prefetch(ahead + (size_t)(g0 + g) * (GROUP / 2 * ROWS) + 64, _MM_HINT_T0);
            }
            UNROLLED (i, n_rows)
                table[i] = _mm512_fmadd_ps(_mm512_set1_ps(p.scale[i][g]), iota(),
                                           _mm512_set1_ps(p.bias[i][g]));
            UNROLLED (half, 2) {
                __m512i c[ROWS];
                __m512 v[ROWS];
                UNROLLED (i, n_rows) {
                    c[i] =
                        load_u8x16(codes + i * w->row_bytes + (size_t)g * (GROUP / 2) + half * 16);
                    v[i] = _mm512_permutexvar_ps(c[i], table[i]);
                }
                tile_fma(acc, n_rows, n_tokens, v, x, col + half * 32);
                UNROLLED (i, n_rows)
                    v[i] = _mm512_permutexvar_ps(_mm512_srli_epi32(c[i], 4), table[i]);
                tile_fma(acc, n_rows, n_tokens, v, x, col + half * 32 + 16);
            }
        }
    }
}

static ATTR_INLINE void direct_q8(tile acc, uint32_t n_rows, uint32_t n_tokens, const matrix *w,
                                  uint32_t row, const float *const *x)
{
    params p;
    const uint32_t n_groups = w->cols / GROUP;
    const char *ahead = (const char *)w->data + (uint64_t)row * w->row_bytes + AHEAD;
    for (uint32_t g0 = 0; g0 < n_groups; g0 += GROUPS_MAX) {
        const uint32_t n = n_groups - g0 < GROUPS_MAX ? n_groups - g0 : GROUPS_MAX;
        params_load(&p, w, row, n_rows, g0, n);
        const uint8_t *codes = w->data + (uint64_t)row * w->row_bytes + (uint64_t)g0 * GROUP;
        for (uint32_t g = 0; g < n; g++) {
            const size_t col = (size_t)(g0 + g) * GROUP;
            UNROLLED (i, n_rows)
                _mm_prefetch(ahead + (col + i * 16) * ROWS, _MM_HINT_T0);
            UNROLLED (part, 4) {
                __m512 v[ROWS];
                UNROLLED (i, n_rows) {
                    const __m512i c =
                        load_u8x16(codes + i * w->row_bytes + (size_t)g * GROUP + part * 16);
                    v[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(c), _mm512_set1_ps(p.scale[i][g]),
                                           _mm512_set1_ps(p.bias[i][g]));
                }
                tile_fma(acc, n_rows, n_tokens, v, x, col + part * 16);
            }
        }
    }
}

static ATTR_INLINE void direct_plain(mat_type type, tile acc, uint32_t n_rows, uint32_t n_tokens,
                                     const matrix *w, uint32_t row, const float *const *x)
{
    const uint8_t *at = w->data + (uint64_t)row * w->row_bytes;
    for (size_t col = 0; col < w->cols; col += 16) {
        __m512 v[ROWS];
        UNROLLED (i, n_rows)
            v[i] = type == MAT_BF16 ? load_bf16x16(at + i * w->row_bytes + col * 2)
                                    : _mm512_loadu_ps(at + i * w->row_bytes + col * 4);
        tile_fma(acc, n_rows, n_tokens, v, x, col);
    }
}

static ATTR_INLINE void direct_tile(mat_type type, uint32_t n_rows, uint32_t n_tokens,
                                    const matrix *w, uint32_t row, const float *const *x,
                                    float *const *y)
{
    tile acc;
    tile_zero(acc, n_rows, n_tokens);
    if (type == MAT_Q4)
        direct_q4(acc, n_rows, n_tokens, w, row, x);
    else if (type == MAT_Q8)
        direct_q8(acc, n_rows, n_tokens, w, row, x);
    else
        direct_plain(type, acc, n_rows, n_tokens, w, row, x);
    tile_store(acc, n_rows, n_tokens, y, row);
}

static ATTR_INLINE void direct(mat_type type, uint32_t n_tokens, const matrix *w, uint32_t row0,
                               uint32_t row1, const float *const *x, float *const *y)
{
    uint32_t row = row0;
    for (; row + ROWS <= row1; row += ROWS)
        direct_tile(type, ROWS, n_tokens, w, row, x, y);
    for (; row < row1; row++)
        for (uint32_t t = 0; t < n_tokens; t++)
            direct_tile(type, 1, 1, w, row, x + t, y + t);
}

/* ---- Strip: weights made once for many tokens ---- */

#define BLOCK_COLS 1024u /* x 4 rows x 4 bytes: a third of the first-level cache */

/* Columns [col, col + n) of a row in the order of x, n <= BLOCK_COLS. */
static void row_q4(const matrix *w, uint32_t row, uint32_t col, uint32_t n, float *out)
{
    params p;
    params_load(&p, w, row, 1, col / GROUP, n / GROUP);
    const uint8_t *codes = w->data + (uint64_t)row * w->row_bytes + col / 2;
    for (uint32_t g = 0; g < n / GROUP; g++, codes += GROUP / 2, out += GROUP) {
        const __m512 table =
            _mm512_fmadd_ps(_mm512_set1_ps(p.scale[0][g]), iota(), _mm512_set1_ps(p.bias[0][g]));
        UNROLLED (half, 2) {
            const __m512i c = load_u8x16(codes + half * 16);
            _mm512_store_ps(out + half * 32, _mm512_permutexvar_ps(c, table));
            _mm512_store_ps(out + half * 32 + 16,
                            _mm512_permutexvar_ps(_mm512_srli_epi32(c, 4), table));
        }
    }
}

static void row_q8(const matrix *w, uint32_t row, uint32_t col, uint32_t n, float *out)
{
    params p;
    params_load(&p, w, row, 1, col / GROUP, n / GROUP);
    const uint8_t *codes = w->data + (uint64_t)row * w->row_bytes + col;
    for (uint32_t i = 0; i < n; i += 16) {
        const __m512 c = _mm512_cvtepi32_ps(load_u8x16(codes + i));
        const uint32_t g = i / GROUP;
        _mm512_store_ps(out + i, _mm512_fmadd_ps(c, _mm512_set1_ps(p.scale[0][g]),
                                                 _mm512_set1_ps(p.bias[0][g])));
    }
}

static void row_widen(const matrix *w, uint32_t row, uint32_t col, uint32_t n, float *out)
{
    const uint8_t *at = w->data + (uint64_t)row * w->row_bytes;
    if (w->type == MAT_Q4)
        row_q4(w, row, col, n, out);
    else if (w->type == MAT_Q8)
        row_q8(w, row, col, n, out);
    else
        for (size_t i = 0; i < n; i += 16)
            _mm512_store_ps(out + i, w->type == MAT_BF16 ? load_bf16x16(at + (col + i) * 2)
                                                         : _mm512_loadu_ps(at + (col + i) * 4));
}

/* What a strip is doing: columns [col, col + n) of rows [row, row + ROWS). */
typedef struct strip {
    const float *w; /* [ROWS, n], 64-byte aligned */
    float *waiting; /* accumulators between blocks: [n_tokens, ROWS, 16] */
    uint32_t row, col, n;
    bool first, last; /* block of columns */
} strip;

static ATTR_INLINE void strip_tile(uint32_t n_tokens, const strip *s, uint32_t t,
                                   const float *const *x, float *const *y)
{
    tile acc;
    float *waiting = s->waiting + (size_t)t * ROWS * 16;
    tile_zero(acc, ROWS, n_tokens);
    if (!s->first)
        UNROLLED (i, n_tokens)
            UNROLLED (r, ROWS)
                acc[r][i] = _mm512_load_ps(waiting + (i * ROWS + r) * 16);
    for (uint32_t col = 0; col < s->n; col += 16) {
        __m512 v[ROWS];
        UNROLLED (r, ROWS)
            v[r] = _mm512_load_ps(s->w + r * s->n + col);
        tile_fma(acc, ROWS, n_tokens, v, x + t, (size_t)s->col + col);
    }
    if (s->last)
        tile_store(acc, ROWS, n_tokens, y + t, s->row);
    else
        UNROLLED (i, n_tokens)
            UNROLLED (r, ROWS)
                _mm512_store_ps(waiting + (i * ROWS + r) * 16, acc[r][i]);
}

static void strip_tokens(const strip *s, const float *const *x, uint32_t n_tokens, float *const *y)
{
    for (uint32_t t = 0; t < n_tokens;) {
        const uint32_t left = n_tokens - t;
        uint32_t n = TILE_MAX; /* the last two tiles share evenly */
        if (left < 2 * TILE_MAX) n = left <= TILE_MAX ? left : (left + 1) / 2;
        switch (n) {
        case 1:
            strip_tile(1, s, t, x, y);
            break;
        case 2:
            strip_tile(2, s, t, x, y);
            break;
        case 3:
            strip_tile(3, s, t, x, y);
            break;
        case 4:
            strip_tile(4, s, t, x, y);
            break;
        case 5:
            strip_tile(5, s, t, x, y);
            break;
        default:
            strip_tile(6, s, t, x, y);
            break;
        }
        t += n;
    }
}

/* Tokens in blocks whose x stay in the second-level cache while the strips pass, and whose
 * accumulators fit the scratch. */
#define X_BLOCK_FLOATS (256u * 1024)

static void strips(const matrix *w, uint32_t row0, uint32_t row1, const float *const *x,
                   uint32_t n_tokens, float *const *y, float *scratch)
{
    const uint32_t cols = w->cols;
    uint32_t block = X_BLOCK_FLOATS / cols;
    if (block < 4 * TILE_MAX) block = 4 * TILE_MAX;
    const size_t room = cols > BLOCK_COLS ? MATMUL_SCRATCH_FLOATS(cols) - ROWS * BLOCK_COLS : 0;
    if (room > 0 && block > room / (ROWS * 16)) block = (uint32_t)(room / (ROWS * 16));
    strip s = {.w = scratch, .waiting = scratch + ROWS * BLOCK_COLS};
    for (uint32_t t = 0; t < n_tokens; t += block) {
        const uint32_t n = n_tokens - t < block ? n_tokens - t : block;
        for (s.row = row0; s.row + ROWS <= row1; s.row += ROWS)
            for (s.col = 0; s.col < cols; s.col += BLOCK_COLS) {
                s.n = cols - s.col < BLOCK_COLS ? cols - s.col : BLOCK_COLS;
                s.first = s.col == 0;
                s.last = s.col + s.n == cols;
                for (uint32_t r = 0; r < ROWS; r++)
                    row_widen(w, s.row + r, s.col, s.n, scratch + r * s.n);
                strip_tokens(&s, x + t, n, y + t);
            }
    }
}

/* ---- Entry points ---- */

static ATTR_INLINE void few(mat_type type, const matrix *w, uint32_t row0, uint32_t row1,
                            const float *const *x, uint32_t n_tokens, float *const *y)
{
    switch (n_tokens) {
    case 1:
        direct(type, 1, w, row0, row1, x, y);
        break;
    case 2:
        direct(type, 2, w, row0, row1, x, y);
        break;
    case 3:
        direct(type, 3, w, row0, row1, x, y);
        break;
    default:
        direct(type, DIRECT_MAX, w, row0, row1, x, y);
        break;
    }
}

static ATTR_INLINE void matmul(mat_type type, const matrix *w, uint32_t row0, uint32_t row1,
                               const float *const *x, uint32_t n_tokens, float *const *y,
                               float *scratch)
{
    const uint32_t whole = row0 + (row1 - row0) / ROWS * ROWS;
    uint32_t done = 0;
    if (n_tokens > 2 * DIRECT_MAX) {
        strips(w, row0, whole, x, n_tokens, y, scratch);
        row0 = whole; /* up to three rows remain */
    }
    for (uint32_t left = n_tokens; left > 0; left = n_tokens - done) {
        const uint32_t n = left <= DIRECT_MAX      ? left
                           : left < 2 * DIRECT_MAX ? (left + 1) / 2
                                                   : DIRECT_MAX;
        few(type, w, row0, row1, x + done, n, y + done);
        done += n;
    }
}

void avx512_prep_q4(const float *x, uint32_t cols, void *out)
{
    float *xp = out;
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    for (uint32_t i = 0; i < cols; i += 32) {
        const __m512 a = _mm512_loadu_ps(x + i), b = _mm512_loadu_ps(x + i + 16);
        _mm512_storeu_ps(xp + i, _mm512_permutex2var_ps(a, even, b));
        _mm512_storeu_ps(xp + i + 16, _mm512_permutex2var_ps(a, odd, b));
    }
}

void avx512_matmul_q4(const matrix *w, uint32_t row0, uint32_t row1, const float *const *x,
                      uint32_t n_tokens, float *const *y, float *scratch)
{
    matmul(MAT_Q4, w, row0, row1, x, n_tokens, y, scratch);
}

void avx512_matmul_q8(const matrix *w, uint32_t row0, uint32_t row1, const float *const *x,
                      uint32_t n_tokens, float *const *y, float *scratch)
{
    matmul(MAT_Q8, w, row0, row1, x, n_tokens, y, scratch);
}

void avx512_matmul_bf16(const matrix *w, uint32_t row0, uint32_t row1, const float *const *x,
                        uint32_t n_tokens, float *const *y, float *scratch)
{
    matmul(MAT_BF16, w, row0, row1, x, n_tokens, y, scratch);
}

void avx512_matmul_f32(const matrix *w, uint32_t row0, uint32_t row1, const float *const *x,
                       uint32_t n_tokens, float *const *y, float *scratch)
{
    matmul(MAT_F32, w, row0, row1, x, n_tokens, y, scratch);
}
