/* ahead.h - fetching the codes that a product of one or two tokens will read.
 *
 * Does:    codes are asked for in the second-level cache in blocks of FETCH_STREAMS * 4 KB, one
 *          block ahead, a line of each of its pages in turn (a column): one page's lines come no
 *          faster than they are wanted, least of all where pages are small. Who reads them brings
 *          them near from there, FETCH_NEAR bytes ahead. A call fetches as many columns as it
 *          reads: its own rows beyond the first block, then the first block of what its thread
 *          reads next (matrix.next). Rows that end within a block leave as much of that one
 *          unfetched, and rows whose groups are no multiple of 8 leave their last ones, with
 *          vectors of 256 bits.
 * Invariants: nothing is read: running past the end of a matrix is harmless.
 */
#ifndef CALLA_EXEC_CPU_AHEAD_H
#define CALLA_EXEC_CPU_AHEAD_H

#include "base/attrs.h"
#include "model/weights.h"

#define FETCH_STREAMS 4u
#define FETCH_PAGE    4096u
#define FETCH_BLOCK   (FETCH_STREAMS * FETCH_PAGE)
#define FETCH_NEAR    2048u

typedef struct ahead {
    const uint8_t *at, *page_end;  /* the next column */
    const uint8_t *own_end, *next; /* where `next` takes over, NULL: nowhere */
} ahead;

static ATTR_INLINE void ahead_to(ahead *a, const uint8_t *at)
{
    a->at = at;
    a->page_end = at + FETCH_PAGE;
    if (a->next == NULL || at < a->own_end) return;
    a->at = a->next;
    a->page_end = a->next + FETCH_PAGE;
    a->next = NULL;
}

/* For rows [row0, row1) of w. */
static ATTR_INLINE ahead ahead_of(const matrix *w, uint32_t row0, uint32_t row1)
{
    const matrix_row_ref n = w->next;
    ahead a = {.own_end = w->data + row1 * w->row_bytes,
               .next = n.w == NULL ? NULL : n.w->data + n.row * n.w->row_bytes};
    ahead_to(&a, w->data + row0 * w->row_bytes + FETCH_BLOCK);
    return a;
}

static ATTR_INLINE void fetch_column(ahead *a)
{
    UNROLLED (i, FETCH_STREAMS)
        PREFETCH_FAR(a->at + (size_t)i * FETCH_PAGE);
    a->at += 64;
    if (a->at == a->page_end) ahead_to(a, a->at + FETCH_BLOCK - FETCH_PAGE);
}

/* What is read from row `row` on, in a call that ends before row1. */
typedef struct ahead_rows {
    const uint8_t *codes, *scales, *biases;
} ahead_rows;

static ATTR_INLINE ahead_rows rows_after(const matrix *w, uint32_t row, uint32_t row1)
{
    const matrix_row_ref then =
        row >= row1 && w->next.w != NULL ? w->next : (matrix_row_ref){w, row};
    const uint64_t param = (uint64_t)then.row * (then.w->cols / MODEL_QUANT_GROUP) * 2;
    return (ahead_rows){then.w->data + then.row * then.w->row_bytes, then.w->scales + param,
                        then.w->biases + param};
}

#endif
