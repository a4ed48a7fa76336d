/* pystr.h - the few pieces of Python string behaviour that a chat template can observe.
 *
 * Does:    str.strip, substring search, str() of a JSON value, over valid UTF-8.
 * Why:     the reference renders the template in Python; its trimming set and its spelling of
 *          values are visible in the prompt, so "nearly the same" would be another prompt.
 * Threads: pure functions.
 * Cost:    linear.
 */
#ifndef CALLA_TEXT_PYSTR_H
#define CALLA_TEXT_PYSTR_H

#include "base/json.h"

/* Narrows *begin .. *end of s as str.strip() does: every character for which str.isspace() holds.
 */
void pystr_strip(const char *s, size_t *begin, size_t *end);

/* Position of the first / last occurrence of a non-empty needle in s[begin, end), or `end`. */
size_t pystr_find(const char *s, size_t begin, size_t end, const char *needle);
size_t pystr_rfind(const char *s, size_t begin, size_t end, const char *needle);

/* Appends str(json.loads(v)): strings as they are, None, True, repr() of the rest. False when the
 * buffer failed. Recursion is bounded by the depth limit of the tree. */
bool pystr_write(strbuf *out, const json_value *v);

#endif
