/* constraint.h - which bytes may come next, so that the whole output has a given form.
 *
 * Does:       compiles a JSON schema, "any JSON object", or a request's tools to a pushdown
 *             automaton over bytes, and runs it. Tokens may cut the text anywhere, characters
 *             included. docs/API.md, "Constrained output", lists what schemas may say.
 * Form:       JSON with members in the order of the schema, optional ones left out at will, others
 *             (additionalProperties) last. White space between JSON tokens: nothing, one space, or
 *             a newline and at most CONSTRAINT_INDENT_MAX spaces; no newline after a colon. Numbers
 *             have at most CONSTRAINT_DIGITS_MAX digits on either side of the point.
 * Owns:       all it needs; schema and tools may go after creation. Clones share the compiled form.
 * Invariants: (1) whatever is accepted is valid under the schema. (2) While constraint_try accepts
 *             nothing, constraint_may_end is true: there is no dead end. (3) How the text is cut
 *             into calls changes nothing. (4) Memory is fixed at creation: try and advance do not
 *             allocate.
 * Ambiguity:  alternatives (anyOf) are followed side by side, CONSTRAINT_PATHS_MAX of them; when
 *             there would be more the last are dropped, which keeps (1), (2) and (3) and only gives
 *             up some texts of extremely ambiguous schemas.
 * Cost:       compiling takes at most some 0.2 s, whatever the schema (BUILD_WORK_MAX); 200
 * ordinary tools take a quarter of that. Then a few ns a byte while text goes one way; a token that
 * cannot begin, less. Threads:    one thread a constraint; clones may be used in parallel. Errors:
 * CALLA_ERR_UNSUPPORTED: a keyword that cannot be enforced (its name and the JSON pointer of its
 * place), or a limit below; CALLA_ERR_ARGUMENT: not a schema.
 */
#ifndef CALLA_TEXT_CONSTRAINT_H
#define CALLA_TEXT_CONSTRAINT_H

#include "base/json.h"

#define CONSTRAINT_INDENT_MAX 40u
#define CONSTRAINT_DIGITS_MAX 20u
#define CONSTRAINT_DEPTH_MAX  28u     /* nested rules: $ref, values of any form */
#define CONSTRAINT_PATHS_MAX  32u     /* alternatives followed side by side */
#define CONSTRAINT_STATES_MAX 262144u /* of a compiled form */

typedef struct constraint constraint;

/* Any JSON object (response_format json_object). */
calla_status constraint_json_object(constraint **out, calla_error *err);

/* strict: the schema must be as OpenAI's structured outputs want it: an object, and every object
 * has "additionalProperties": false and requires all of its properties. */
calla_status constraint_json_schema(constraint **out, const json_value *schema, bool strict,
                                    calla_error *err);

typedef enum constraint_tool_mode {
    CONSTRAINT_TOOLS_REQUIRED, /* two newlines at most, calls, end of text */
    CONSTRAINT_TOOLS_AUTO      /* any text; once it says <tool_call>, calls and end of text */
} constraint_tool_mode;

typedef struct constraint_tool_options {
    const json_value *tools; /* array as in the request ({"type": "function", "function": {...}}, or
                                the inner object) */
    const char *name;        /* only this one; NULL: any of them */
    bool parallel;           /* several calls */
    constraint_tool_mode mode;
} constraint_tool_options;

/* Tool calls in the model's own format. Keywords that cannot be enforced are errors in tools with
 * "strict": true, and passed over in others, whose calls then still parse. Each parameter comes at
 * most once, the required ones always; in any order when there are at most eight (fewer with
 * very many tools), else in the schema's. Text values have any characters but the tags that would
 * end them. What is accepted, text/output.h reads as complete calls. */
calla_status constraint_tool_calls(constraint **out, const constraint_tool_options *options,
                                   calla_error *err);

/* An independent copy in the same state. */
calla_status constraint_clone(constraint **out, const constraint *c, calla_error *err);
void constraint_destroy(constraint *c);

/* Could these bytes come next? The state stays. False for n == 0. */
bool constraint_try(constraint *c, const char *bytes, size_t n);
/* These bytes come next. False, and the state stays, when they cannot. */
bool constraint_advance(constraint *c, const char *bytes, size_t n);
/* Could the text end here? */
bool constraint_may_end(const constraint *c);
/* Back to the beginning. */
void constraint_reset(constraint *c);

/* Compiled size, for logs and tests. */
uint32_t constraint_n_states(const constraint *c);
uint64_t constraint_bytes(const constraint *c);

#endif
