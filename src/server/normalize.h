/* normalize.h - messages as clients send them, made into messages as the chat template wants them.
 *
 * Does:       checks every message of an OpenAI-style list and builds a new list:
 *             - developer is system; all system messages are joined, by an empty line, into one
 *               that stands first;
 *             - content (string, null, missing, array of text parts) becomes one string; image,
 *               video, audio and file parts are refused, naming the message;
 *             - `reasoning` is reasoning_content; reasoning that the content left open before a
 *               tool call is closed there;
 *             - arguments of tool calls become objects (api_arguments.h), function_call a tool
 *               call;
 *             - the results of one round of calls are put in the order of the calls.
 * Owns:       the nodes it makes; texts are borrowed from the request's tree.
 * Invariants: every message of the result has role and content (a string); role is system (first
 *             only), user, assistant or tool; arguments are objects.
 *             At least one message is the user's.
 * Errors:     400 naming the client's own field, "messages[3].content[0]".
 */
#ifndef CALLA_SERVER_NORMALIZE_H
#define CALLA_SERVER_NORMALIZE_H

#include "server/api_field.h"
#include "server/api_arguments.h"

#define API_MESSAGES_MAX 16384u
#define API_CALLS_MAX    256u /* tool calls of one message */
#define API_TOOLS_MAX    1024u
#define API_NAME_MAX     256u /* bytes of a function's name */

typedef struct normal_chat {
    tree nodes;
    const json_value *messages; /* array */
    bool continues; /* the last message is an assistant's and is to be continued, not answered */
} normal_chat;

typedef struct normal_source {
    const json_value *messages;
    const char *name;      /* of the client's member: "messages", "input" */
    const int32_t *origin; /* the item of that member that each message was made from; NULL: they
                              are the client's own */
} normal_source;

/* On failure *out is empty. */
bool normalize_messages(normal_chat *out, const normal_source *from, api_error *e);
void normalize_deinit(normal_chat *c); /* zeroed struct is fine */

/* A function's name: not empty, at most API_NAME_MAX bytes, without white space, control
 * characters and < > { } " '. */
bool normalize_name(const json_value *name, const char *path, api_error *e);

/* How the client's tools look: flat: without "function". */
typedef struct tool_places {
    bool flat;
    const int32_t *origin; /* each tool's place in the client's list; NULL: the same */
} tool_places;

/* Checks a list of tools ({"type": "function", "function": {name, description, parameters}}). */
bool normalize_tools(const json_value *tools, const tool_places *places, api_error *e);

/* One part of content, of the types of any API: its text, or a refusal that names `path`. */
bool normalize_part(const json_value *part, const char *path, const char **text, size_t *n,
                    api_error *e);

#endif
