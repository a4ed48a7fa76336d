/* executor.h - the waist: whole chunks and whole decode steps, never single operators.
 *
 * Does:       runs the forward pass for segments of tokens, each appended to its own sequence.
 * Invariants: (1) A token's results depend on its sequence's history only: neither on how a
 *             sequence is cut into segments and calls, nor on the other segments of a call, nor on
 *             the number of threads - bitwise; but a GPU takes a segment of one token by another
 *             path than longer ones, which rounds otherwise (docs/ARCHITECTURE.md). (2) A failed
 * call leaves every sequence as it was, or marks it broken (its position is another); it never
 * affects sequences that were not in the call. CALLA_ERR_ARGUMENT and CALLA_ERR_FULL mean that a
 * segment was refused before anything was computed: the others would run without it. Threads: one
 * caller at a time for all that takes `executor *` (who holds the device). Memory:     everything
 * is allocated at creation; run() allocates nothing on the CPU, and for a GPU the recordings of its
 * programs.
 */
#ifndef CALLA_EXEC_EXECUTOR_H
#define CALLA_EXEC_EXECUTOR_H

#include "kernels/args_basic.h"
#include "model/weights.h"

typedef struct executor executor;
typedef struct exec_seq exec_seq; /* KV cache and recurrent state of one sequence */

typedef enum exec_logits {
    EXEC_LOGITS_NONE,
    EXEC_LOGITS_LAST, /* logits: [n_vocab], after the segment's last token */
    EXEC_LOGITS_ALL   /* logits: [n_tokens, n_vocab] */
} exec_logits;

typedef struct exec_segment {
    exec_seq *seq;
    const int32_t *tokens; /* [n_tokens], each in [0, n_vocab) */
    uint32_t n_tokens;     /* >= 1; the sum over a call is at most chunk_tokens */
    exec_logits want;
    float *logits; /* f32, NULL when want is NONE */
} exec_segment;

typedef struct exec_options {
    uint32_t n_threads;    /* 0: all */
    uint32_t chunk_tokens; /* most tokens per run() call; 0: 512, GPU 2048 */
    calla_kv_type kv_type;
    const char *variant; /* NULL: best */
    calla_precision precision;
    /* For a GPU. */
    uint32_t n_ctx;             /* a sequence of so many tokens must fit as well; 0: 4096 */
    const char *pack_dir;       /* folder where packed weights are kept; NULL or "none": nowhere */
    const checkpoint *source;   /* of the weights, for pack_dir; NULL: nothing is kept */
    calla_progress_fn progress; /* loading, in bytes; false cancels; may be NULL */
    void *progress_user;
    calla_log_fn log; /* may be NULL */
    void *log_user;
} exec_options;

#define EXEC_STREAM_MAX 16u /* sequences of a stream */

/* One sequence of a stream: generation on the device, without the host between two tokens. */
typedef struct exec_stream {
    exec_seq *seq;
    int32_t token;          /* the first that it takes */
    sample_entry sampling;  /* how the device draws: sampler_export() */
    const uint32_t *counts; /* [n_vocab], when sampling.counted */
} exec_stream;

typedef struct exec_plan {
    uint64_t kv_bytes;      /* per sequence of n_ctx tokens */
    uint64_t state_bytes;   /* per sequence */
    uint64_t scratch_bytes; /* per executor */
    uint64_t weight_bytes;  /* copies in a device's memory; CPU: 0 */
} exec_plan;

/* One dispatch of a GPU's step. */
typedef struct exec_stage {
    const char *kernel, *label;
    uint32_t level; /* dispatches of one level depend on lower ones only */
    uint32_t groups, threads;
    double bytes, flops; /* that must move through memory; operations */
    double seconds;      /* measured, or 0 */
} exec_stage;
typedef void (*exec_stage_fn)(void *user, const exec_stage *stage);

/* Places where the residual stream of a forward pass can be looked at. */
typedef enum exec_point {
    EXEC_POINT_EMBED,  /* before layer 0 */
    EXEC_POINT_MIX,    /* a layer's Gated DeltaNet or attention has been added */
    EXEC_POINT_EXPERTS /* and its experts: the layer's output */
} exec_point;
/* x[t][hidden], t < n_tokens: row t is base + t * stride. Valid during the call. */
typedef void (*exec_tap_fn)(void *user, uint32_t i_layer, exec_point point, const float *base,
                            size_t stride, uint32_t n_tokens);

typedef struct exec_ops {
    const char *name; /* "cpu" */
    /* Prompt tokens in one call that also takes a step of sequences that generate: so many that
     * they hardly feel it. Small where time goes by tokens, large where it goes by calls; 0: as
     * many as a call takes. */
    uint32_t piece_tokens;
    void (*destroy)(executor *ex);
    const char *(*variant)(const executor *ex); /* kernel variant in use */
    uint32_t (*n_threads)(const executor *ex);
    void (*plan)(const executor *ex, uint32_t n_ctx, exec_plan *plan);
    calla_status (*seq_create)(executor *ex, uint32_t n_ctx, exec_seq **out, calla_error *err);
    void (*seq_destroy)(executor *ex, exec_seq *seq);
    uint32_t (*seq_position)(const exec_seq *seq); /* tokens in the sequence */
    void (*seq_reset)(executor *ex, exec_seq *seq);
    /* Appends every segment's tokens. A sequence appears at most once in a call. */
    calla_status (*run)(executor *ex, const exec_segment *segs, uint32_t n_segs, calla_error *err);
    /* State image in host memory, the same for every executor with the same kv_type:
     * size by seq_image_bytes(position); load fails with CALLA_ERR_FULL when n_ctx is too small. */
    uint64_t (*seq_image_bytes)(const executor *ex, uint32_t n_tokens);
    calla_status (*seq_save)(executor *ex, const exec_seq *seq, uint8_t *image, calla_error *err);
    calla_status (*seq_load)(executor *ex, exec_seq *seq, const uint8_t *image, uint32_t n_tokens,
                             calla_error *err);
    /* The part of a sequence that is not one row a token (recurrent and convolution state), for
     * the prefix cache: an image private to this executor, the same size at every position. */
    uint64_t (*seq_state_bytes)(const executor *ex);
    calla_status (*seq_state_save)(executor *ex, const exec_seq *seq, uint8_t *state,
                                   calla_error *err);
    /* dst continues from position n_tokens of src's history, bitwise as src did there; state is
     * what seq_state_save gave at that position of the same history. Copies the first n_tokens
     * key-value rows when dst is another sequence (src and dst->n_ctx must hold them); dst == src
     * goes back in place. A failure leaves dst at position 0. */
    calla_status (*seq_restore)(executor *ex, exec_seq *dst, const exec_seq *src, uint32_t n_tokens,
                                const uint8_t *state, calla_error *err);
    /* Streams; NULL where the device cannot draw. begin: n sequences that take at most max_steps
     * tokens each; ids whose bit is set in banned [(n_vocab + 31) / 32] are never drawn;
     * CALLA_ERR_FULL while another stream runs. next: the token that each sequence draws, after it
     * took the one before; the device may already be a step ahead. A stream in which a sequence
     * drew a stop id (sampling.stops) must be ended. end: every sequence has taken all tokens that
     * it was given and has drawn, but a stop id and what max_steps steps leave over; logits[i] (may
     * be NULL) are those after the last that it took, and ids[i] is drawn from them, -1 where that
     * was not done; ids may be NULL. run() and the rest may be called in between
     * for other sequences. A failure ends the stream and leaves its sequences at position 0. */
    calla_status (*stream_begin)(executor *ex, const exec_stream *items, uint32_t n,
                                 const uint32_t *banned, uint32_t max_steps, calla_error *err);
    calla_status (*stream_next)(executor *ex, int32_t *ids, calla_error *err);
    calla_status (*stream_end)(executor *ex, float *const *logits, int32_t *ids, calla_error *err);
    /* For benchmarks; NULL where there is nothing to tell. Copy bandwidth of the device's memory,
     * bytes read plus written a second; each dispatch of a step, timed alone. */
    double (*copy_bandwidth)(executor *ex);
    /* From now on without the mechanisms of the list "a,b"; NULL: with all. An unknown name is
     * CALLA_ERR_ARGUMENT. */
    calla_status (*ablate)(executor *ex, const char *list, calla_error *err);
    calla_status (*profile)(executor *ex, bool prefill, uint32_t n_tokens, uint32_t n_ctx,
                            exec_stage_fn fn, void *user, calla_error *err);
    /* For comparisons: from now on run() hands every point of every layer to fn, in order, for the
     * tokens of the call in order (calls of one segment only). NULL: no more. Results stay the
     * same; a GPU becomes slow. NULL where there is nothing to look at. */
    void (*tap)(executor *ex, exec_tap_fn fn, void *user);
} exec_ops;

struct executor {
    const exec_ops *ops;
};

/* shape and weights are borrowed and must outlive the executor. */
calla_status exec_cpu_create(executor **out, const model_shape *shape, const model_weights *weights,
                             const exec_options *options, calla_error *err);

/* What exec_cpu_create would allocate and what a sequence would need, without creating anything. */
void exec_cpu_plan(const model_shape *shape, const exec_options *options, uint32_t n_ctx,
                   exec_plan *plan);

/* The same for a GPU, by the name of its driver: "metal", "cuda", "simt" (a GPU emulated on
 * the CPU).
 * CALLA_ERR_UNSUPPORTED when this machine or build has none, CALLA_ERR_MEMORY when the weights do
 * not fit. The weights are copied; the mapping is not read again. */
calla_status exec_gpu_open(executor **out, const char *driver, const model_shape *shape,
                           const model_weights *weights, const exec_options *options,
                           calla_error *err);
void exec_gpu_plan(const model_shape *shape, const exec_options *options, uint32_t n_ctx,
                   exec_plan *plan);

/* The file with a GPU's packed weights. */
typedef struct exec_pack {
    char *path;     /* mem_free */
    uint64_t bytes; /* that it has or will have */
    bool usable;    /* it is there, and its header fits; else why: CALLA_ERR_IO when not there */
    calla_error why;
} exec_pack;
/* options: pack_dir and source, which must be set. */
calla_status exec_gpu_pack(exec_pack *out, const model_shape *shape, const exec_options *options,
                           calla_error *err);

/* What a GPU would be asked to do, without one: the dispatches of a decode step (n_tokens 1..16,
 * one token each of as many sequences) or of a prefill chunk, at a context of n_ctx tokens. chip
 * (exec/predict.h): NULL for an H200. */
typedef struct exec_chip exec_chip;
calla_status exec_gpu_schedule(const model_shape *shape, const exec_chip *chip, bool prefill,
                               uint32_t n_tokens, uint32_t n_ctx, exec_stage_fn fn, void *user,
                               calla_error *err);

#endif
