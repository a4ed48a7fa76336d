/* api_gen.h - one internal request and one internal stream of events for all APIs.
 *
 * Does:       a protocol (api_chat.c and others) fills gen_request from JSON; gen_run submits it,
 *             n times for n choices, parses the tokens, finds stop strings, and calls the protocol
 *             with events (streamed) or once at the end (whole answers). The whole answer is
 *             collected either way.
 * Owns:       a job owns all that belongs to its request. A streamed job frees itself after its
 *             last event; the handler that called gen_run must not touch it afterwards.
 * Invariants: (1) per choice: GEN_BEGIN, then text and calls as the parser orders them, then
 *             GEN_END; `finish` once, after the last choice's GEN_END. (2) No part of a stop string
 *             is in an event. (3) When the client has gone, the choices are cancelled.
 * Threads:    the handler's until gen_run; then `lock` guards it. Events come from the scheduler's
 *             worker and never block.
 */
#ifndef CALLA_SERVER_API_GEN_H
#define CALLA_SERVER_API_GEN_H

#include <pthread.h>
#include <stdatomic.h>

#include "server/api.h"
#include "server/api_custom.h"
#include "server/api_prompt.h"
#include "server/api_random.h"
#include "text/constraint.h"
#include "text/output.h"

#define API_CHOICES_MAX    8u
#define API_STOPS_MAX      16u
#define API_STOP_BYTES_MAX 1024u

struct api_ctx {
    calla_engine *engine;
    scheduler *scheduler;
    const calla_tokenizer *tok;
    replay *replay;
    char model[128];
    char fingerprint[32];
    int64_t created; /* seconds since 1970 */
    char created_at[32];
    uint32_t n_ctx;
    calla_engine_info info;
};

/* ---- The request ---- */

typedef struct gen_stop {
    const char *s;
    size_t n;
} gen_stop;

typedef enum gen_form { GEN_FREE, GEN_JSON, GEN_SCHEMA } gen_form;

typedef struct gen_request {
    api_prompt prompt;
    api_prompt more[API_CHOICES_MAX - 1]; /* completions: further prompts */
    uint32_t n_prompts;
    calla_sampling sampling;
    uint32_t max_tokens; /* 0: until the context is full */
    int32_t *bias_ids;   /* [n_bias], owned, as bias */
    float *bias;
    size_t n_bias;
    bool logprobs;
    uint32_t n_top;
    uint32_t n; /* choices of all prompts */
    gen_stop stops[API_STOPS_MAX];
    size_t n_stops;
    bool limit_thinking;
    uint32_t thinking_budget;
    const json_value *tools;    /* NULL: none, tags of calls are content */
    bool must_call;             /* tool_choice required, or named */
    tree_list customs;          /* names of the tools whose input is free text (api_custom.h) */
    const json_value *callable; /* the tools that may be called; NULL: all of them */
    bool serial;                /* parallel_tool_calls false: at most one call */
    gen_form form;              /* of the content */
    api_path form_path;         /* the member that asks for it */
    const json_value *schema;
    bool strict;          /* the schema's */
    constraint *forms[2]; /* the output has one of these; NULL: no matter. Owned */
    bool stream, include_usage;
    const json_value *model; /* as requested */
} gen_request;

/* ---- Events ---- */

typedef enum gen_kind {
    GEN_BEGIN,
    GEN_REASONING, /* text */
    GEN_CONTENT,   /* text */
    GEN_CALL,      /* begins: index, text is the name, id */
    GEN_ARGS,      /* index, text is a fragment */
    GEN_CALL_END,  /* index, complete */
    GEN_END
} gen_kind;

typedef struct gen_event {
    gen_kind kind;
    const char *text;
    size_t n;
    uint32_t index;
    bool complete;
} gen_event;

typedef enum gen_finish {
    GEN_STOP,        /* the model ended its turn */
    GEN_STOP_STRING, /* choice->stop says which */
    GEN_LENGTH,      /* max_tokens, or the context */
    GEN_CALLS,       /* ended its turn with calls */
    GEN_CANCELLED,
    GEN_FAILED /* choice->result.message says why */
} gen_finish;

typedef struct gen_job gen_job;

typedef struct gen_logprob {
    int32_t id;
    float logprob;
    uint32_t n_top;
    size_t before; /* bytes of content before the token */
} gen_logprob;

typedef struct gen_call {
    char id[RANDOM_ID_MAX];
    bool custom; /* its arguments are the text itself */
} gen_call;

typedef struct gen_choice {
    gen_job *job;
    uint32_t index;
    _Atomic sched_ticket ticket; /* 0: not submitted */
    output_parser *parser;       /* NULL: text as it comes */
    calla_utf8_stream utf8;      /* then */
    strbuf held;                 /* content that may begin a stop string */
    size_t n_content;            /* bytes of content so far, held ones included */
    bool begun, ended, done, failed;
    const gen_stop *stop;
    id_list ids;
    custom_reader reader; /* of the present call, when it is custom */
    strbuf input;         /* scratch */
    size_t n_first_call;  /* ids when the first call was complete; 0: none yet */
    output_result answer;
    gen_call *calls; /* [answer.n_calls] */
    size_t cap_calls;
    gen_logprob *logprobs; /* [n_logprobs]; [n_sent] are in events already */
    sched_top *tops;       /* [n_logprobs * n_top] */
    size_t n_logprobs, cap_logprobs, n_sent;
    gen_finish finish;
    sched_result result;
    char message[256];
    uint32_t n_cached; /* known from GEN_BEGIN on */
} gen_choice;

typedef struct gen_protocol {
    bool (*parse)(gen_job *job, api_error *e); /* fills job->in from job->body */
    const char *id_prefix, *call_prefix;
    const char *prompt_name;         /* the member that has the prompt */
    size_t wire_bytes;               /* of gen_job.wire */
    void (*wire_deinit)(void *wire); /* NULL: nothing to do */
    bool flat_tools;                 /* the client's tools are without "function" */
    bool collects;                   /* events are wanted for whole answers too */
    void (*event)(gen_job *job, gen_choice *choice, const gen_event *event);
    void (*finish)(gen_job *job);              /* end of the stream */
    void (*answer)(gen_job *job, strbuf *out); /* the whole answer's JSON */
} gen_protocol;

/* Those that make a prompt of messages. */
extern const gen_protocol gen_chat, gen_responses, gen_messages;

struct gen_job {
    api_ctx *ctx;
    http_request *req;
    const gen_protocol *protocol;
    json_doc body;
    tree nodes;                  /* what the protocol builds from the body */
    id_list origin, tool_origin; /* the client's item that a message, a tool was made from; empty:
                                    they are the client's own */
    normal_chat chat;
    gen_request in;
    char id[RANDOM_ID_MAX];
    int64_t created;
    sse_stream *sse; /* NULL: whole answer */
    strbuf line;     /* scratch of the protocol's events */
    void *wire;      /* state of the protocol */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t n_submitted, n_done;
    bool refused;     /* a choice could not be submitted: the others are unheard */
    atomic_bool gone; /* the client */
    gen_choice choices[API_CHOICES_MAX];
};

/* A request from its body to its answer. */
void gen_handle(api_ctx *ctx, http_request *req, const gen_protocol *protocol);
/* A job without a client, its body parsed as JSON. NULL: a fault. */
gen_job *gen_create(api_ctx *ctx, const gen_protocol *protocol, const char *body, size_t n_body,
                    api_error *e);
/* A job of this request, its body parsed as JSON. NULL: answered already. */
gen_job *gen_begin(api_ctx *ctx, http_request *req, const gen_protocol *protocol);
void gen_destroy(gen_job *job);
/* Answers with the error and destroys the job. */
void gen_refuse(gen_job *job, const api_error *e);
/* Checks the lengths, builds the constraints, runs, answers, destroys. in.prompt is filled. */
void gen_run(gen_job *job);
/* Normalizes messages, made from the member protocol->prompt_name, and builds in.prompt. */
bool gen_chat_prompt(gen_job *job, const json_value *messages, const calla_chat_options *options,
                     api_error *e);

/* Sends job->line as one event and empties it. */
void gen_send(gen_job *job, const char *event);
/* Sends the error of a choice that failed. */
void gen_send_failure(gen_job *job, const gen_choice *c, const char *event);
/* The end of OpenAI's streams: usage, if it is wanted, and [DONE]. */
void gen_send_tail(gen_job *job, const char *object);
const api_prompt *gen_prompt(const gen_choice *c);
uint32_t gen_n_prompt(const gen_job *job); /* tokens of all prompts */
/* The first choice that failed, or NULL; the error of such a choice. */
const gen_choice *gen_failed(const gen_job *job);
void gen_failure(const gen_choice *c, api_error *e);
/* Index of the (normalized) message that has this token of the prompt, or HTTP_NO_POSITION. */
uint32_t gen_message_at(const gen_job *job, uint32_t token);
/* Compiles in.forms from what the request wants. */
bool gen_constrain(gen_job *job, api_error *e);
void api_respond_error(http_request *req, const api_error *e);

/* ---- Members that the APIs share (api_params.c) ---- */

typedef struct gen_sampling {
    api_real temperature, top_p, min_p, presence, frequency, repetition;
    api_int top_k, seed;
    const json_value *logit_bias;
    api_bool stream;
    api_bool enable_thinking;
    api_int thinking_budget;
    const json_value *kwargs; /* chat_template_kwargs */
    const json_value *model;
} gen_sampling;

/* Reads them from the body into in. */
bool gen_read_sampling(gen_job *job, gen_sampling *s, api_error *e);
bool gen_read_stops(gen_job *job, const char *name, api_error *e);
/* {"include_usage"}. */
bool gen_read_stream_options(gen_job *job, const json_value *options, api_error *e);
/* name: of an API_INT of at least 1; -1 and absent: no limit. */
bool gen_read_limit(gen_job *job, const char *name, api_error *e);
/* How much to think: chat_template_kwargs, enable_thinking, thinking_budget, effort (NULL: not
 * given). Fills options and in. */
bool gen_read_thinking(gen_job *job, const gen_sampling *s, const json_value *effort,
                       const char *effort_path, calla_chat_options *options, api_error *e);
/* A custom tool as the function that the model sees; its calls are told as text. NULL: a fault. */
json_value *gen_custom_tool(gen_job *job, const json_value *custom, const char *path, api_error *e);
/* tools in the form of chat completions; checked and set. An empty list is none. */
bool gen_set_tools(gen_job *job, const json_value *tools, api_error *e);
/* "auto", "none", "required", or an object: a name, or {"type": "allowed_tools"} (chat completions,
 * responses). */
bool gen_read_tool_choice(gen_job *job, const json_value *choice, api_error *e);
/* A call of any tool, or of the named one, is required. */
bool gen_require_call(gen_job *job, const json_value *name, const char *path, api_error *e);
/* {"type": "text" | "json_object" | "json_schema", ...}; the schema is inside `inner`. */
bool gen_read_format(gen_job *job, const json_value *format, const char *path, const char *inner,
                     api_error *e);

/* ---- Pieces of answers (api_write.c) ---- */

void put_string(strbuf *b, const char *s, size_t n);
void put_text(strbuf *b, const char *s); /* NUL-terminated */
/* A number that JSON has: infinities become +-9999. */
void put_real(strbuf *b, double x);
void put_model(strbuf *b, const gen_job *job);
/* How objects of chat completions and completions begin. */
void put_head(strbuf *b, const gen_job *job, const char *object);
/* "usage": {...} in OpenAI's form, summed over the choices. */
void put_usage(strbuf *b, const gen_job *job);
void put_timings(strbuf *b, const gen_job *job);
const char *finish_name(gen_finish f); /* OpenAI's */
/* The spelling of a token as a JSON string, and its bytes as an array. */
void put_token(strbuf *b, const api_ctx *ctx, int32_t id);
void put_token_bytes(strbuf *b, const api_ctx *ctx, int32_t id);
/* Rows [from, to) as {"token", "logprob", "bytes", "top_logprobs"}. */
void put_logprobs(strbuf *b, const gen_choice *c, size_t from, size_t to);

#endif
