/* utf8.h - reading UTF-8 that may be broken.
 *
 * Does:    one step of decoding, with broken input cut into maximal subparts (Unicode 3.9, as the
 *          WHATWG decoder does): each becomes one U+FFFD. Never looks past n bytes.
 * Threads: pure functions.
 */
#ifndef CALLA_TEXT_UTF8_H
#define CALLA_TEXT_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"

#define UTF8_REPLACEMENT "\xEF\xBF\xBD"

typedef enum utf8_kind {
    UTF8_CHAR, /* a character */
    UTF8_BAD,  /* bytes that no continuation can repair */
    UTF8_SHORT /* a proper prefix of a character, cut off by the end of the input */
} utf8_kind;

/* Reads at s, n >= 1. Returns the bytes that belong to the step (1 to 4); *cp is set for UTF8_CHAR
 * only. */
size_t utf8_read(const char *s, size_t n, uint32_t *cp, utf8_kind *kind);

/* Writes cp (a Unicode scalar value) to out, which has room for 4 bytes; returns the length. */
size_t utf8_write(uint32_t cp, char *out);

/* Appends s with every maximal subpart replaced. False when memory ran out (out->failed). */
bool utf8_repair(strbuf *out, const char *s, size_t n);

#endif
