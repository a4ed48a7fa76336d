/* json.h - JSON in and out, over YAJL.
 *
 * Does:       parses bytes to events (json_sax) or to a tree (json_parse); writes trees in Python's
 *             default style, which is what the chat template's tojson produces.
 * Why YAJL:   it hands numbers over as text (integers keep their digits) and reads the 20 MB
 *             tokenizer.json in 60 ms as events; see docs/ARCHITECTURE.md.
 * Owns:       a json_doc owns every node and string of its tree.
 * Invariants: strings are valid UTF-8, may hold NUL; object keys are unique (the last value, at the
 *             first one's place) and keep their order.
 * Limits:     nesting json_limits.max_depth, nodes max_nodes, both checked while parsing.
 * Errors:     CALLA_ERR_FORMAT with the byte offset; the sentence begins with json_limits.what.
 */
#ifndef CALLA_BASE_JSON_H
#define CALLA_BASE_JSON_H

#include <stdbool.h>
#include "base/error.h"
#include "base/mem.h"

typedef enum json_type {
    JSON_NULL,
    JSON_FALSE,
    JSON_TRUE,
    JSON_NUMBER,
    JSON_STRING,
    JSON_ARRAY,
    JSON_OBJECT
} json_type;

typedef struct json_value json_value;
struct json_value {
    json_type type;
    const char *text; /* STRING: its bytes; NUMBER: its spelling. NUL-terminated copy, else NULL */
    size_t n_text;
    const char *key; /* member of an object: its key, NUL-terminated */
    size_t n_key;
    size_t n_items;    /* ARRAY, OBJECT */
    json_value *first; /* first item */
    json_value *next;  /* next item of the parent */
};

typedef struct json_limits {
    const char *what;   /* begins error sentences, e.g. a file name; NULL: "JSON" */
    uint32_t max_depth; /* 0: 64 */
    uint64_t max_nodes; /* 0: 16 million */
} json_limits;

typedef struct json_doc {
    arena mem;
    json_value *root;
} json_doc;

/* Parses exactly one JSON value (white space around it allowed). */
calla_status json_parse(json_doc *doc, const char *data, size_t n, const json_limits *limits,
                        calla_error *err);
void json_free(json_doc *doc); /* zeroed struct is fine */

/* Events. A callback returns false to stop; json_sax then fails with CALLA_ERR_FORMAT unless the
 * callback already filled err itself (err->code != CALLA_OK is kept). Any pointer may be NULL. */
typedef struct json_sax {
    void *ctx;
    bool (*on_null)(void *ctx);
    bool (*on_bool)(void *ctx, bool value);
    bool (*on_number)(void *ctx, const char *s, size_t n);
    bool (*on_string)(void *ctx, const char *s, size_t n);
    bool (*on_key)(void *ctx, const char *s, size_t n);
    bool (*on_object)(void *ctx);
    bool (*on_object_end)(void *ctx);
    bool (*on_array)(void *ctx);
    bool (*on_array_end)(void *ctx);
} json_sax;

calla_status json_sax_parse(const json_sax *sax, const char *data, size_t n,
                            const json_limits *limits, calla_error *err);

/* Member of an object by NUL-terminated key; NULL when v is NULL, no object, or has none. */
const json_value *json_get(const json_value *v, const char *key);
/* i-th item; NULL when out of range. */
const json_value *json_at(const json_value *v, size_t i);
/* True when v is a string equal to s. */
bool json_is(const json_value *v, const char *s);
/* Numbers: false when v is NULL, not a number, not integral / out of range / not finite. */
bool json_int(const json_value *v, int64_t *out);
bool json_double(const json_value *v, double *out);

/* Appends v in the style of Python's json.dumps(ensure_ascii=False): ", " and ": " separators, one
 * line, integers as spelled ("-0" is 0), other numbers in Python's repr. */
bool json_write(strbuf *out, const json_value *v);
/* Appends one JSON string with quotes and escapes. */
bool json_write_string(strbuf *out, const char *s, size_t n);

#endif
