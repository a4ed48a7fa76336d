/* value_literal.h - JSON objects and arrays, or Python's, rewritten as JSON in one style.
 *
 * Does:    reads strictly what it is told to read and writes ", " and ": " separators, characters
 *          outside ASCII unescaped, numbers as they stand, half surrogates as U+FFFD. Python: both
 *          quotes, its escapes, True, False, None, commas before a closing bracket; keys must be
 *          strings.
 * Why:     base/json.h builds a tree; a value of 16 MiB would make one of half a gigabyte.
 * Threads: pure functions.
 */
#ifndef CALLA_TEXT_VALUE_LITERAL_H
#define CALLA_TEXT_VALUE_LITERAL_H

#include "text/value.h"

/* All of s[0, n) must be one value and white space. False: it is not, and `out` is as before; or
 * memory ran out (out->failed). members may be NULL. */
bool value_literal_write(strbuf *out, const char *s, size_t n, bool python, value_members *members);

/* Length of the JSON number that s begins with, 0 for none. */
size_t value_number_length(const char *s, size_t n);

#endif
