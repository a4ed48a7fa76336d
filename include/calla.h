/* calla.h - local inference for Qwen3.6-35B-A3B: the one public header.
 *
 * Objects, from the outside in:
 *   calla_engine     a checkpoint mapped from disk, its tokenizer, and the executor that runs it
 *   calla_session    one timeline of tokens: KV cache, recurrent state, sampler
 *   calla_snapshot   a copy of a session's state in host memory
 *   calla_tokenizer  text <-> token ids
 *   calla_chat_*     messages (JSON) -> prompt, exactly as the model's official template does it
 *
 * Conventions for every function below:
 *   - Fallible functions return calla_status; CALLA_OK is zero. `err` may be NULL; on failure it
 *     receives the code, one sentence, and the byte offset where that makes sense.
 *   - On failure output handles are NULL and nothing leaks. Every destroy/free accepts NULL;
 *     elsewhere a pointer may be NULL only where the comment says so, or when its length is 0.
 *   - Strings are UTF-8 with an explicit byte length; NUL bytes inside are ordinary bytes.
 *   - Options structs: zero means default. Start from `{0}`.
 *   - The library never prints, never exits the process, and never changes signal handlers.
 *   - Threads: an engine may be shared; its sessions may be used from several threads, one thread
 *     a session at a time (forward passes are serialised inside). calla_session_cancel() may be
 *     called from any thread and from a signal handler. A tokenizer is immutable and may be shared.
 */
#ifndef CALLA_H
#define CALLA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CALLA_VERSION "0.1.0"

#if defined(__GNUC__) || defined(__clang__)
#define CALLA_API __attribute__((visibility("default")))
#else
#define CALLA_API
#endif

/* ---- Errors ------------------------------------------------------------------------------- */

/*      name              text */
#define CALLA_STATUS_LIST(X)                                                                       \
    X(OK, "ok")                                                                                    \
    X(ERR_ARGUMENT, "invalid argument")    /* a call the documentation forbids */                  \
    X(ERR_IO, "input/output error")        /* the operating system said no */                      \
    X(ERR_FORMAT, "malformed input")       /* a file or text breaks its own format */              \
    X(ERR_UNSUPPORTED, "unsupported")      /* well-formed, but not this program's model */         \
    X(ERR_MEMORY, "out of memory")         /* allocation failed, or the plan exceeds the limit */  \
    X(ERR_FULL, "context full")            /* the session has no room for the tokens */            \
    X(ERR_CANCELLED, "cancelled")          /* calla_session_cancel, or a callback said stop */     \
    X(ERR_TEMPLATE, "chat template error") /* the official template refuses these messages */      \
    X(ERR_INTERNAL, "internal error")      /* a bug of calla's */                                  \
    X(ERR_DEVICE, "device error")          /* the GPU or its driver failed */

typedef enum calla_status {
#define CALLA_STATUS_ENUM(name, text) CALLA_##name,
    CALLA_STATUS_LIST(CALLA_STATUS_ENUM)
#undef CALLA_STATUS_ENUM
} calla_status;

#define CALLA_NO_OFFSET UINT64_MAX

typedef struct calla_error {
    calla_status code;
    uint64_t offset;   /* byte position in the input, or CALLA_NO_OFFSET */
    char message[512]; /* one sentence, NUL-terminated: the thing, what was expected, what found */
} calla_error;

/* Short constant text of a status code; never NULL. */
CALLA_API const char *calla_status_name(calla_status status);

/* The version of the library, equal to CALLA_VERSION of the header it was built with. */
CALLA_API const char *calla_version(void);

/* Frees memory that the library returned in a `char **` or `int32_t **` output. */
CALLA_API void calla_free(void *p);

/* ---- Logging ------------------------------------------------------------------------------ */

typedef enum calla_log_level {
    CALLA_LOG_ERROR,
    CALLA_LOG_WARN,
    CALLA_LOG_INFO,
    CALLA_LOG_DEBUG
} calla_log_level;

/* One line without newline. May be called from any thread that calls into the library. */
typedef void (*calla_log_fn)(void *user, calla_log_level level, const char *line);

/* How far a long call is; return false to end it with CALLA_ERR_CANCELLED. */
typedef bool (*calla_progress_fn)(void *user, size_t n_done, size_t n_total);

/* ---- Tokenizer ---------------------------------------------------------------------------- */

typedef struct calla_tokenizer calla_tokenizer;

/* Reads tokenizer.json (and the added tokens of tokenizer_config.json, when present) from the
 * checkpoint folder `dir`. Both published forms of `merges` are accepted. */
CALLA_API calla_status calla_tokenizer_open(calla_tokenizer **out, const char *dir,
                                            calla_error *err);
CALLA_API void calla_tokenizer_close(calla_tokenizer *tok);

/* Number of ids that stand for a token: BPE vocabulary plus added tokens (248,077 for the model).
 */
CALLA_API int32_t calla_tokenizer_size(const calla_tokenizer *tok);

typedef enum calla_encode_flags {
    CALLA_ENCODE_DEFAULT = 0,   /* added tokens spelled in the text become control tokens */
    CALLA_ENCODE_PLAIN_TEXT = 1 /* tokens marked "special" are inert: their spelling stays text */
} calla_encode_flags;

/* Encodes `text`, at most 256 MiB; each maximal subpart of invalid UTF-8 counts as U+FFFD. *ids is
 * allocated by the callee, calla_free() it; *n_ids is its length. Time is linear, but for a factor
 * log n in one unbroken word of n bytes. */
CALLA_API calla_status calla_tokenizer_encode(const calla_tokenizer *tok, const char *text,
                                              size_t n_bytes, unsigned flags, int32_t **ids,
                                              size_t *n_ids, calla_error *err);

/* The bytes of one token: a pointer into the tokenizer, valid until close, not NUL-terminated.
 * Added tokens give their spelling; padding ids and ids out of range give NULL and length 0. */
CALLA_API const char *calla_tokenizer_bytes(const calla_tokenizer *tok, int32_t id,
                                            size_t *n_bytes);

/* True when `id` is an added token marked special (control token: never shown to people). */
CALLA_API bool calla_tokenizer_is_special(const calla_tokenizer *tok, int32_t id);

/* The id of an added token by its exact spelling ("<|im_end|>"), or -1. */
CALLA_API int32_t calla_tokenizer_added_id(const calla_tokenizer *tok, const char *spelling);

/* Decodes ids to UTF-8 text: bytes are concatenated, then invalid sequences become U+FFFD (one per
 * maximal subpart). skip_special drops special tokens. *text: calla_free(), NUL-terminated. */
CALLA_API calla_status calla_tokenizer_decode(const calla_tokenizer *tok, const int32_t *ids,
                                              size_t n_ids, bool skip_special, char **text,
                                              size_t *n_bytes, calla_error *err);

/* Streaming decoder: never emits half a character. At most 3 bytes are held back. */
typedef struct calla_utf8_stream {
    unsigned char held[4];
    unsigned n_held;
} calla_utf8_stream;

/* Feeds n bytes; writes complete characters (and U+FFFD for proven invalid subparts) to out, which
 * needs room for 3 * (n + 3) bytes. Returns the bytes written. Start from `{0}`. */
CALLA_API size_t calla_utf8_stream_push(calla_utf8_stream *s, const char *bytes, size_t n,
                                        char *out);
/* At the end of a text: emits what is still held as U+FFFD. out needs 12 bytes. */
CALLA_API size_t calla_utf8_stream_finish(calla_utf8_stream *s, char *out);

/* ---- Chat --------------------------------------------------------------------------------- */

typedef struct calla_chat_options {
    bool no_generation_prompt; /* default: end with "<|im_start|>assistant\n<think>\n" */
    bool disable_thinking;     /* enable_thinking = false: "<think>\n\n</think>\n\n" instead */
    bool preserve_thinking;    /* keep the reasoning of earlier turns */
    bool add_vision_id;        /* "Picture N: " before image placeholders */
} calla_chat_options;

/* Renders a conversation byte for byte as the official chat template (Qwen3.6) does.
 *   messages_json  JSON array of message objects (role, content, reasoning_content, tool_calls)
 *   tools_json     JSON array of tool objects, or NULL
 * CALLA_ERR_TEMPLATE carries the template's own error sentence. *text: calla_free(). */
CALLA_API calla_status calla_chat_render(const char *messages_json, size_t n_messages_bytes,
                                         const char *tools_json, size_t n_tools_bytes,
                                         const calla_chat_options *options, char **text,
                                         size_t *n_bytes, calla_error *err);

/* Renders and encodes. Control tokens that the template writes are control tokens; the same
 * spellings inside message contents, tool definitions or tool results stay text. *ids:
 * calla_free(). */
CALLA_API calla_status calla_chat_encode(const calla_tokenizer *tok, const char *messages_json,
                                         size_t n_messages_bytes, const char *tools_json,
                                         size_t n_tools_bytes, const calla_chat_options *options,
                                         int32_t **ids, size_t *n_ids, calla_error *err);

/* ---- Engine ------------------------------------------------------------------------------- */

typedef struct calla_engine calla_engine;

typedef enum calla_kv_type {
    CALLA_KV_DEFAULT = 0, /* bf16 */
    CALLA_KV_BF16 = 1,
    CALLA_KV_F32 = 2 /* twice the memory; matches a float32 reference most closely */
} calla_kv_type;

/* How a CPU takes the inputs of products with 4-bit matrices. Within one precision a token's
 * results depend on its sequence alone, and all kernel variants agree to the last bits. A GPU has
 * its own way and ignores this. docs/SPEED.md has the speed, docs/RESULTS.md the accuracy. */
typedef enum calla_precision {
    CALLA_PRECISION_DEFAULT = 0, /* int16 where this CPU has kernels for it, else exact */
    CALLA_PRECISION_EXACT = 1,   /* f32: the closest to the reference, about half as fast */
    CALLA_PRECISION_INT16 = 2,   /* 16-bit integers, one scale for 64 of them; nearer to f32 than
                                    bf16 is */
    CALLA_PRECISION_INT8 = 3     /* 8-bit integers, likewise: the fastest for prompts */
} calla_precision;

typedef struct calla_engine_options {
    const char *model_dir; /* folder of the checkpoint; required */
    const char *backend;   /* "auto" (default: a GPU where there is one, else "cpu"), "cpu",
                              "metal", "cuda", "simt" (the GPU's kernels, emulated, for tests) */
    unsigned n_threads;    /* default: one per available core */
    calla_kv_type kv_type;
    uint32_t chunk_tokens;       /* prefill chunk; default 512 (GPU: 2048), at most 4096 */
    uint64_t memory_limit_bytes; /* default: what the system reports as available */
    const char *cpu_variant;     /* highest kernels: "ref", "avx2", "avxvnni", "avx512", "neon",
                                    "i8mm"; default: the best this CPU has */
    uint32_t n_ctx;              /* refuse at once when a session of so many tokens would not fit;
                                    default 4096 */
    const char *pack_dir;       /* folder where weights packed for a GPU are kept, about as large as
                                   the checkpoint (made when missing); default, or "none": packed
                                   anew each time */
    calla_progress_fn progress; /* loading weights into a GPU, or from disk into memory, in bytes;
                                   NULL: none */
    void *progress_user;
    calla_log_fn log; /* NULL: silent */
    void *log_user;
    calla_precision precision; /* of a CPU */
} calla_engine_options;

/* Opens a checkpoint: maps and checks every file, binds the weights, loads the tokenizer. Refuses,
 * with one sentence naming the file or tensor, anything it would have to guess about. A CPU reads
 * the weights in place; nothing proportional to their size is allocated. While the engine lives its
 * files must not be cut short: reading a page that is gone raises SIGBUS. */
CALLA_API calla_status calla_engine_create(calla_engine **out, const calla_engine_options *options,
                                           calla_error *err);
/* All sessions of the engine must be destroyed before. */
CALLA_API void calla_engine_destroy(calla_engine *engine);

/* Borrowed; lives as long as the engine. */
CALLA_API const calla_tokenizer *calla_engine_tokenizer(const calla_engine *engine);

typedef struct calla_engine_info {
    const char *model_dir;
    const char *backend; /* "cpu", "metal", "cuda", "simt" */
    const char *variant; /* kernel variant in use, or the device's name: "avx512", "NVIDIA H200" */
    uint32_t n_threads, chunk_tokens;
    int32_t n_vocab;       /* rows of the output matrix */
    int32_t n_tokens;      /* ids that stand for a token; the rest is padding, never sampled */
    uint32_t max_context;  /* max_position_embeddings */
    uint64_t weight_bytes; /* text weights in the mapping */
    uint64_t active_bytes; /* weight bytes read per decoded token */
} calla_engine_info;

CALLA_API void calla_engine_get_info(const calla_engine *engine, calla_engine_info *info);

/* What a session of n_ctx tokens needs beyond the mapped weights. */
typedef struct calla_memory_plan {
    uint64_t weights_mapped; /* page cache, shared, reclaimable */
    uint64_t weights_copied; /* norms and other small tensors widened to f32 */
    uint64_t kv_bytes;       /* per session */
    uint64_t state_bytes;    /* per session: recurrent and convolution state */
    uint64_t scratch_bytes;  /* per engine */
    uint64_t logits_bytes;   /* per session: logits, sampler, token ids */
    uint64_t total_bytes;    /* all but weights_mapped, one session */
} calla_memory_plan;

CALLA_API calla_status calla_engine_plan(const calla_engine *engine, uint32_t n_ctx,
                                         calla_memory_plan *plan, calla_error *err);

/* ---- Sampling ----------------------------------------------------------------------------- */

/* Order: penalties, temperature, top-k, top-p, min-p, then one draw. temperature 0 is greedy: the
 * largest logit, lowest id on a tie. presence/frequency count the generated tokens of this
 * response (as vLLM does), repetition counts prompt and response. Padding ids are never drawn. */
typedef struct calla_sampling {
    float temperature;        /* 0: greedy */
    float top_p;              /* (0, 1]; 0 or 1: off */
    float min_p;              /* [0, 1); 0: off */
    int32_t top_k;            /* 0: off */
    float presence_penalty;   /* subtracted once from ids already generated */
    float frequency_penalty;  /* subtracted per occurrence */
    float repetition_penalty; /* > 0; 0 or 1: off */
    uint64_t seed;            /* same seed, same prompt, same text */
} calla_sampling;

/* The checkpoint's own defaults (generation_config.json; greedy when do_sample is false). The seed
 * is 0. */
CALLA_API void calla_engine_default_sampling(const calla_engine *engine, calla_sampling *sampling);

/* ---- Sessions ----------------------------------------------------------------------------- */

typedef struct calla_session calla_session;
typedef struct calla_snapshot calla_snapshot;

typedef struct calla_session_options {
    uint32_t n_ctx; /* most tokens the session can hold; default 4096, at most max_context */
} calla_session_options;

/* Memory is planned first and refused with the sum when it does not fit. */
CALLA_API calla_status calla_session_create(calla_session **out, calla_engine *engine,
                                            const calla_session_options *options, calla_error *err);
CALLA_API void calla_session_destroy(calla_session *session);

/* Appends tokens to the timeline. Results do not depend on how the tokens are divided into calls
 * or chunks. CALLA_ERR_FULL when they do not fit (nothing is fed then). progress is called after
 * each chunk; the tokens done before it said stop remain in the session. */
CALLA_API calla_status calla_session_feed(calla_session *session, const int32_t *ids, size_t n_ids,
                                          calla_progress_fn progress, void *user, calla_error *err);

typedef enum calla_stop {
    CALLA_STOP_EOS,       /* the model ended the text (stop id not part of the output) */
    CALLA_STOP_LENGTH,    /* max_tokens */
    CALLA_STOP_CONTEXT,   /* the context is full */
    CALLA_STOP_CANCELLED, /* calla_session_cancel */
    CALLA_STOP_CALLBACK   /* the callback returned false */
} calla_stop;

/* One generated token: its id and its raw bytes (maybe part of a character; see
 * calla_utf8_stream). Return false to stop after this token. */
typedef bool (*calla_token_fn)(void *user, int32_t id, const char *bytes, size_t n_bytes);

typedef struct calla_generate_options {
    const calla_sampling *sampling; /* NULL: the checkpoint's defaults */
    uint32_t max_tokens;            /* 0: until the context is full */
    bool ignore_eos;                /* benchmarks only */
} calla_generate_options;

typedef struct calla_generate_result {
    calla_stop stop;
    uint32_t n_tokens;     /* generated, the stop id not counted */
    double decode_seconds; /* wall time of the decode steps */
} calla_generate_result;

/* Samples and appends tokens until something stops it. The session must have been fed at least
 * one token. Every token handed to the callback is part of the timeline when this returns, except
 * the stop id. Cancellation is a normal end: CALLA_OK with CALLA_STOP_CANCELLED. */
CALLA_API calla_status calla_session_generate(calla_session *session,
                                              const calla_generate_options *options,
                                              calla_token_fn on_token, void *user,
                                              calla_generate_result *result, calla_error *err);

/* Makes the running feed or generate stop within one chunk or token; also stops the next one if
 * none is running. Async-signal-safe. */
CALLA_API void calla_session_cancel(calla_session *session);

/* Tokens in the timeline. */
CALLA_API uint32_t calla_session_position(const calla_session *session);
/* The tokens themselves, [position]; borrowed until the next feed/generate/restore. */
CALLA_API const int32_t *calla_session_tokens(const calla_session *session);
/* Logits after the last token, [n_vocab]; NULL before the first feed. Borrowed likewise. */
CALLA_API const float *calla_session_logits(const calla_session *session);
/* Forgets everything. */
CALLA_API void calla_session_reset(calla_session *session);

/* Copies the state at the current position. A snapshot may be restored into any session of the
 * same engine whose n_ctx suffices, any number of times; what follows is bitwise what would have
 * followed without the detour. It may outlive its session, and its engine (no use is left then). */
CALLA_API calla_status calla_session_snapshot(const calla_session *session, calla_snapshot **out,
                                              calla_error *err);
CALLA_API calla_status calla_session_restore(calla_session *session, const calla_snapshot *snapshot,
                                             calla_error *err);
CALLA_API uint32_t calla_snapshot_position(const calla_snapshot *snapshot);
CALLA_API uint64_t calla_snapshot_bytes(const calla_snapshot *snapshot);
CALLA_API void calla_snapshot_destroy(calla_snapshot *snapshot);

/* A second, independent session with the same timeline and options. */
CALLA_API calla_status calla_session_fork(calla_session **out, const calla_session *session,
                                          calla_error *err);

/* Teacher-forced scoring, for evaluation: feeds ids and reports, for each position i, the logits
 * that predict ids[i + 1]. The rows are borrowed for the duration of the call of `on_logits`. */
typedef bool (*calla_logits_fn)(void *user, size_t i, const float *logits, int32_t n_vocab);
CALLA_API calla_status calla_session_score(calla_session *session, const int32_t *ids, size_t n_ids,
                                           calla_logits_fn on_logits, void *user, calla_error *err);

#ifdef __cplusplus
}
#endif

#endif
