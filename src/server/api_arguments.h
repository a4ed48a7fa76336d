/* api_arguments.h - the arguments of tool calls that come back in a conversation.
 *
 * Does:    makes an object of what clients send: a string of JSON, an object, "", null or nothing
 *          ({}), and a string of JSON of one of these, as clients make it from arguments that they
 *          could not read. JSON that was cut off, as in a call that max_tokens ended, is closed:
 *          an agent sends it back with its complaint, and the conversation must go on.
 * Closing: a string ends where it was cut, a literal is completed, a number loses what is no
 *          number yet, a member without a value goes. Only the end is mended, nothing else.
 * Errors:  400 that names the path: JSON that is wrong before its end, or not that of an object.
 */
#ifndef CALLA_SERVER_API_ARGUMENTS_H
#define CALLA_SERVER_API_ARGUMENTS_H

#include "server/api_field.h"
#include "server/api_tree.h"

#define API_JSON_DEPTH 128u /* of a request's body, and of arguments inside */
#define API_JSON_NODES 2000000u

/* An object node in t; NULL on a fault. args: the member, or NULL. */
json_value *arguments_read(tree *t, const json_value *args, const char *path, api_error *e);

/* Appends the n bytes of JSON and what closes them. False: they do not begin an object, are wrong
 * before their end, are nested too deep, or there is no memory (out->failed). */
bool arguments_close(strbuf *out, const char *s, size_t n);

#endif
