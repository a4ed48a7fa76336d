/* text.h - outside bytes made safe for a log or a JSON document. Pure functions. */
#ifndef CALLA_SERVER_TEXT_H
#define CALLA_SERVER_TEXT_H

#include "base/mem.h"

/* A JSON string with quotes; every invalid subpart of UTF-8 becomes U+FFFD. */
void text_json(strbuf *out, const char *s, size_t n);

/* As UTF-8 for a terminal: control characters become escapes (\n, \x1b), so that one request stays
 * one line and cannot drive the terminal. */
void text_printable(strbuf *out, const char *s, size_t n);

double text_now(void);                          /* seconds since 1970 */
void text_time(strbuf *out, double unix_time);  /* 2026-01-31T23:59:59.123Z */
void text_clock(strbuf *out, double unix_time); /* 23:59:59, local */

bool text_is_utf8(const char *s, size_t n);

#endif
