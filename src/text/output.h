/* output.h - takes the model's output apart while it is generated.
 *
 * Does:       turns bytes into reasoning, content and tool calls. One state machine over bytes, for
 *             streamed and whole answers alike; docs/API.md, "How model output is parsed", has the
 *             rules. Values of parameters get the types that the tools declare (value.h).
 * Owns:       its buffers. `tools` is borrowed until output_parser_destroy.
 * Invariants: (1) the concatenated events are the same for every way of cutting the input into
 *             pushes. (2) Every event holds whole characters of valid UTF-8; broken input bytes
 *             become U+FFFD. (3) The fragments of a complete call are one valid JSON object.
 *             (4) Begin, arguments and end of a call are not mixed with anything else, and indices
 *             count from 0. (5) Reasoning and content have no newline at either end.
 * Held back:  only bytes that may begin a tag, up to OUTPUT_HOLD_MAX; a newline at the end of a
 *             text or value; a value that is not a string, until it ends (OUTPUT_VALUE_MAX; longer
 *             ones go out as strings); a call written as JSON, until it ends (OUTPUT_JSON_MAX).
 * Cost:       linear in the input, whatever the input. No recursion.
 * Threads:    one.
 * Errors:     CALLA_ERR_MEMORY only, and every later call fails likewise. Model output of any form
 *             is no error: what is not understood is content.
 */
#ifndef CALLA_TEXT_OUTPUT_H
#define CALLA_TEXT_OUTPUT_H

#include "base/json.h"

#define OUTPUT_NAME_MAX  256u             /* bytes of a function's or a parameter's name */
#define OUTPUT_GAP_MAX   1024u            /* bytes of white space between two tags */
#define OUTPUT_HOLD_MAX  4096u            /* bytes held while a tag is undecided */
#define OUTPUT_VALUE_MAX (16u * 1048576u) /* bytes of a value that is converted */
#define OUTPUT_JSON_MAX  1048576u         /* bytes of a call written as JSON */

typedef enum output_kind {
    OUTPUT_REASONING,  /* text, n */
    OUTPUT_CONTENT,    /* text, n */
    OUTPUT_CALL_BEGIN, /* index; text, n: the function's name */
    OUTPUT_CALL_ARGS,  /* index; text, n: a fragment; together they are the arguments' JSON */
    OUTPUT_CALL_END    /* index, complete */
} output_kind;

/* complete: the call is whole; its fragments are valid JSON in Python's default style ("{}" when it
 * has no parameters; a parameter given twice stands there twice, and JSON readers keep the last).
 * Not complete: the output ended inside the call. The fragments are then unfinished on purpose, so
 * that no client takes them for a call; text, n of CALL_END is what would close them (the partial
 * value as a string), for answers that are sent whole. text is empty when complete. */
typedef struct output_event {
    output_kind kind;
    uint32_t index;   /* CALL_*: number of the call */
    bool complete;    /* CALL_END */
    const char *text; /* borrowed during the callback; not NUL-terminated */
    size_t n;
} output_event;

typedef void (*output_fn)(void *user, const output_event *event);

typedef struct output_options {
    bool start_in_reasoning; /* from the rendered prompt: its last <think> is still open */
    const json_value *tools; /* array of tools as in the request ({"type": "function", "function":
                                {...}}, or the inner object); NULL: tags of tools are content */
    bool
        call_after_reasoning; /* the reasoning that is open in the prompt has no calls: a constraint
                                 begins behind it, and what stands in it is not held to it */
    output_fn on_event;       /* called from push and finish */
    void *user;
} output_options;

typedef struct output_parser output_parser;

calla_status output_parser_create(output_parser **out, const output_options *options,
                                  calla_error *err);
void output_parser_destroy(output_parser *p);

/* The bytes of one or more tokens, without special tokens. Characters may be cut anywhere. */
calla_status output_parser_push(output_parser *p, const char *bytes, size_t n);

/* The output is over. truncated: the model was stopped (length, context, stop string, cancelled)
 * rather than having ended its turn itself: a call still open is not complete. Call once; nothing
 * may be pushed afterwards. */
calla_status output_parser_finish(output_parser *p, bool truncated);

/* ---- Whole answers ---- */

typedef struct output_call {
    char *name; /* NUL-terminated */
    size_t n_name;
    strbuf arguments; /* valid JSON, also when not complete (closed then) */
    bool complete;
} output_call;

/* Collects events: zero-initialise, pass output_result_event as on_event and the result as user. */
typedef struct output_result {
    strbuf reasoning, content; /* data is NULL when empty */
    output_call *calls;
    size_t n_calls, cap_calls;
    bool failed; /* memory ran out; what is there is not all */
} output_result;

void output_result_event(void *result, const output_event *event);
void output_result_deinit(output_result *r);

#endif
