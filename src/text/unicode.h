/* unicode.h - character classes and NFC, from libutf8proc's tables.
 *
 * Does:   the four classes the pre-tokenizer distinguishes; NFC of text that may be broken UTF-8.
 * Why:    libutf8proc's own utf8proc_map() orders combining marks with a quadratic sort (a megabyte
 *         of marks takes hours); nfc_append() sorts long runs by counting, and never touches
 *         Latin, kana, CJK and Hangul text, which is NFC as it stands.
 * Limits: classes are those of Unicode 16.0 (the reference's regex engine), or later if the library
 *         is. NFC is the library's (15.0 for libutf8proc 2.8); the reference's is Unicode 9.0,
 * which differs for 109 rare marks, and only where they stand out of canonical order.
 */
#ifndef CALLA_TEXT_UNICODE_H
#define CALLA_TEXT_UNICODE_H

#include "text/utf8.h"

typedef enum char_class {
    CLASS_OTHER = 1 << 0,  /* none of the below */
    CLASS_LETTER = 1 << 1, /* category L* */
    CLASS_MARK = 1 << 2,   /* category M* */
    CLASS_NUMBER = 1 << 3, /* category N* */
    CLASS_SPACE = 1 << 4,  /* White_Space except CR and LF */
    CLASS_NEWLINE = 1 << 5 /* CR, LF */
} char_class;

char_class unicode_class(uint32_t cp);

/* Scratch memory of nfc_append. Zero-initialise. */
typedef struct nfc_scratch {
    int32_t *cps; /* [cap] code points of a segment; the second half is room for sorting */
    size_t cap;
} nfc_scratch;

/* Appends the NFC of s; every maximal subpart of broken UTF-8 becomes U+FFFD first. False when
 * memory ran out. */
bool nfc_append(strbuf *out, nfc_scratch *scratch, const char *s, size_t n);
void nfc_scratch_deinit(nfc_scratch *scratch);

#endif
