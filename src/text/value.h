/* value.h - the text of a tool parameter becomes a JSON value of its declared type.
 *
 * Does:       reads the schema of one parameter, once; converts texts by it. Declared types decide,
 *             never the look: in a parameter declared as a string, "123" and "null" are strings.
 * Rules:      integers keep all their digits, "3.0" is 3; numbers stay as written; booleans in any
 *             case; objects and arrays are JSON or else Python literals (True, None, single
 *             quotes, trailing commas); several types are tried in their order, strings last. What
 *             cannot be converted stays a string, so that the tool's own check reports it.
 * Errors:     the bool results are false when memory ran out, and for nothing else.
 * Cost:       linear in text and schema; no recursion.
 * Threads:    pure functions.
 */
#ifndef CALLA_TEXT_VALUE_H
#define CALLA_TEXT_VALUE_H

#include "base/json.h"

#define VALUE_DEPTH_MAX 64u /* nesting of objects and arrays; deeper ones stay strings */

typedef enum value_kind {
    VALUE_INTEGER,
    VALUE_NUMBER,
    VALUE_BOOLEAN,
    VALUE_OBJECT,
    VALUE_ARRAY,
    VALUE_N_KINDS
} value_kind;

typedef struct value_type {
    value_kind kinds[VALUE_N_KINDS]; /* in the order to try them, each once */
    unsigned n_kinds;
    bool string;   /* strings are allowed */
    bool nullable; /* null is allowed */
} value_type;

/* The type of parameter `key`, from a tool's `parameters` schema (NULL: none; then, as for a key
 * that is not declared, a string). Follows "#/$defs/NAME" and "#/definitions/NAME". */
void value_type_of(value_type *t, const json_value *parameters, const char *key, size_t n_key);
/* Is the key among the declared properties? */
bool value_is_declared(const json_value *parameters, const char *key, size_t n_key);
/* Only strings: the text needs no conversion, whatever it is. */
bool value_is_text(const value_type *t);
/* Could a text that begins with s still become null? */
bool value_may_be_null(const char *s, size_t n);

/* Appends the JSON value of the text. */
bool value_write(strbuf *out, const value_type *t, const char *s, size_t n);

/* Two members of a JSON object, as ranges of `out`; not there: begin == end. */
typedef struct value_members {
    const char *keys[2];
    size_t begin[2], end[2];
} value_members;

/* Appends the JSON object s, strictly read, and looks up members of the outermost level. *ok says
 * whether it was one; if not, `out` is as before. */
bool value_write_object(strbuf *out, const char *s, size_t n, value_members *members, bool *ok);

#endif
