/* output_parser.h - inside of the output parser (output.h); included by output*.c only.
 *
 * The window: bytes not yet given out, win.data[pos .. len). A step either gives out bytes from its
 * front, or finds that more input is needed, or takes a whole construct. A construct is matched by
 * stages (output_match); when it fails, one byte is given out and the search goes on behind it.
 * That is linear, because names and gaps are bounded and no construct contains the beginning of
 * another before its last stage.
 *
 * Invariants: (1) `match` speaks of the construct that begins at pos, or is zero. (2) in_value or a
 * construct at pos: never both text and value. (3) What stands in `out` was decided: it is given to
 * the callback before anything of another kind, and at the end of every push.
 */
#ifndef CALLA_TEXT_OUTPUT_PARSER_H
#define CALLA_TEXT_OUTPUT_PARSER_H

#include "calla.h"
#include "text/output.h"
#include "text/value.h"

typedef enum output_tag {
    TAG_THINK,
    TAG_END_THINK,
    TAG_CALL,
    TAG_END_CALL,
    TAG_FUNCTION,
    TAG_END_FUNCTION,
    TAG_PARAMETER,
    TAG_END_PARAMETER,
    N_TAGS,
    TAG_NONE = N_TAGS
} output_tag;

typedef enum output_found { FOUND_MORE, FOUND_NO, FOUND_YES } output_found;

typedef enum output_stage {
    STAGE_FIRST, /* the first tag */
    STAGE_GAP,   /* white space behind it */
    STAGE_NEXT,  /* the second tag */
    STAGE_NAME,  /* of a function */
    STAGE_GAP2,  /* white space behind a function's opening or a parameter's end */
    STAGE_LAST,  /* the tag that shows that we read rightly */
    STAGE_KEY    /* of a parameter */
} output_stage;

/* Offsets count from the window's pos. */
typedef struct output_match {
    output_stage stage;
    size_t at, from;         /* next byte to look at; where this stage began */
    output_tag first, last;  /* tags found; last: TAG_NONE at the end of the output */
    size_t last_at;          /* where `last` begins, or the end of the output */
    size_t name, n_name;     /* the function's name */
    size_t key, n_key;       /* the parameter's name */
    bool json;               /* "<tool_call>{" */
    bool cut;                /* the output ends inside a tag */
    size_t scan, depth;      /* json: bytes looked at (from pos), brackets open */
    bool in_string, escaped; /* json */
} output_match;

typedef enum output_state { STATE_TEXT, STATE_VALUE, STATE_JSON } output_state;

struct output_parser {
    output_options o;
    calla_status status;
    output_state state;
    bool eof, truncated;
    bool reasoning; /* the part that text belongs to */

    calla_utf8_stream utf8;
    strbuf win;
    size_t pos;
    uint64_t base; /* bytes that were in front of win.data */
    output_match match;

    /* Text. Index of the arrays: the part, 0 reasoning, 1 content. */
    size_t n_newlines[2]; /* held */
    bool begun[2];        /* something was emitted */
    bool no_calls;        /* so far; see call_after_reasoning */
    bool led;             /* something was emitted since the reasoning (re)opened */
    bool line_start;      /* only blanks since the last newline */
    bool after_call;      /* only white space since the last call */
    bool wrapper_open;    /* a call was opened and </tool_call> did not come yet */
    size_t n_gap;         /* newlines since the last call */
    uint64_t no_json;     /* no call as JSON begins before this offset in the input */

    /* A call. */
    const json_value *parameters; /* its schema, or NULL */
    uint32_t n_calls;
    bool has_params;
    bool streaming;   /* the value goes out as a string while it comes */
    bool value_begun; /* its first byte was seen */
    char key[OUTPUT_NAME_MAX];
    size_t n_key;
    strbuf value; /* what waits for conversion */
    value_type type;

    output_kind out_kind;
    strbuf out; /* of kind out_kind, to be given to the callback */
    strbuf scratch;
};

/* output_match.c: looks at the window, gives nothing out. */
output_found output_match_text(output_parser *p);
output_found output_match_value(output_parser *p);
output_found output_match_json(output_parser *p);
bool output_name_ok(const char *s, size_t n);

/* output_call.c */
const json_value *output_find_tool(const json_value *tools, const char *name, size_t n);
void output_call_begin(output_parser *p, const char *name, size_t n);
void output_call_end(output_parser *p, bool complete); /* with the value, if one is open */
void output_param_begin(output_parser *p, const char *key, size_t n);
void output_value_put(output_parser *p, const char *s, size_t n);
void output_value_end(output_parser *p);

/* output.c */
void output_emit(output_parser *p, output_kind kind, const char *s, size_t n);
void output_flush(output_parser *p);

#endif
