/* api_custom.h - OpenAI's custom tools: their input is one free text instead of an object.
 *
 * Does:    makes a function with the one parameter `input` of such a tool, which is what the model
 *          sees; and takes the text out of the call's arguments while they stream. The function is
 *          strict, so that the decoder is held to that form.
 * Limits:  a grammar ("lark", "regex") is shown to the model, not enforced.
 * Errors:  400 that names the path.
 */
#ifndef CALLA_SERVER_API_CUSTOM_H
#define CALLA_SERVER_API_CUSTOM_H

#include "server/api_field.h"
#include "server/api_tree.h"

/* {"type": "function", "function": {...}}. custom: {"name", "description", "format"} at `path`.
 * NULL on a fault. */
json_value *custom_function(tree *t, const json_value *custom, const char *path, api_error *e);

/* The arguments of a call with this input. */
json_value *custom_arguments(tree *t, const char *input, size_t n);

/* Reads {"input": "TEXT"}, in pieces cut anywhere. Zero-initialise. */
typedef struct custom_reader {
    unsigned n_quotes; /* 2 around the key, then those around the text */
    char escape[8];    /* an escape that is not yet whole */
    size_t n_escape;
} custom_reader;

/* Appends what these bytes say of the text. */
void custom_read(custom_reader *r, const char *s, size_t n, strbuf *out);

#endif
