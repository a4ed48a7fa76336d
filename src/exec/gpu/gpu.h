/* gpu.h - the GPU executor's own state (executor.c creates, seq.c keeps sequences, forward.c runs).
 *
 * Owns:       the device, weights, scratch, the arenas of all sequences, recorded programs.
 * Invariants: K, V, recurrent state and ring are one buffer a layer, shared by all sequences: a
 *             sequence is a run of rows and a slot in each. A larger arena replaces a smaller one
 *             when a sequence is created; recorded programs are forgotten then. The first
 *             GPU_PARK_ROWS rows belong to no sequence: one for each of a stream that has ended.
 *             A failed run leaves the sequences of that call empty (position 0): their recurrent
 *             state may have advanced. Others are untouched unless the device is lost.
 * Threads:    those of executor.h.
 */
#ifndef CALLA_EXEC_GPU_GPU_H
#define CALLA_EXEC_GPU_GPU_H

#include "exec/executor.h"
#include "exec/gpu/ops.h"
#include "exec/gpu/pack.h"

#define GPU_DECODE_MAX    EXEC_STREAM_MAX /* sequences of one decode step */
#define GPU_PARK_ROWS     GPU_DECODE_MAX
#define GPU_CHUNK_DEFAULT 2048u
#define GPU_CHUNK_MAX     8192u
#define GPU_CTX_DEFAULT   4096u /* of the first sequence, for the plan */
#define GPU_LOGIT_ROWS    64u   /* rows of lm_head's product at once, for EXEC_LOGITS_ALL */
#define GPU_SEGS_MAX      64u   /* segments of one prefill chunk */
#define GPU_PROGRAMS_MAX  24u

struct exec_seq {
    uint32_t n_ctx, n_tokens;
    uint32_t slot, kv_row;
};

typedef struct gpu_scratch {
    gpu_buffer *buf;
    gpu_view tok, seg, rows_of; /* tables */
    gpu_view x, xn, y, o, rope; /* activations */
    gpu_view ids, weights, route_logits;
    gpu_view logits;
    gpu_view op; /* scratch of the step that is running */
    /* Begin with counters that are zero between programs. */
    gpu_view zero, router, gdn; /* zero: both */
    uint64_t bytes;
} gpu_scratch;

#define GPU_RING 8u /* ids of a sequence that the device may be ahead of the host, and more */

/* stream: 0, or 1 + which of two places the logits go to. */
typedef struct program_key {
    uint32_t n, max_len, logits, stream;
} program_key;

/* Generation with the token table kept by the device (stream.c). */
typedef struct gpu_stream {
    uint32_t n; /* 0: none */
    exec_seq *seqs[GPU_DECODE_MAX];
    uint32_t start[GPU_DECODE_MAX]; /* positions at the beginning */
    sample_entry entries[GPU_DECODE_MAX];
    uint32_t n_submitted, n_taken, max_steps, depth;
    bool ended[GPU_DECODE_MAX]; /* drew a stop id */
    uint64_t ticket[2];
    gpu_view tok, samp, banned, logits[2];
    gpu_buffer *buf, *ring, *counts; /* counts: [GPU_DECODE_MAX][n_vocab] */
} gpu_stream;

typedef struct cached_program {
    program_key key;
    gpu_program *program; /* NULL: free */
    uint64_t last_use;
} cached_program;

typedef struct gpu_exec {
    executor base;
    exec_ops ops; /* base.ops points here: the name is the device's */
    gpu_device *dev;
    const model_shape *shape;
    gpu_weights w;
    gpu_context ctx;
    recorder *rec;
    char variant[128];
    double dispatch_flops; /* gpu_limits */
    uint32_t chunk;
    gpu_scratch s;
    gpu_stream stream;
    gpu_buffer *mm; /* ctx.mm: what the products need by the switches */
    /* arenas */
    gpu_buffer **k, **v;        /* [n_full] */
    gpu_buffer **state, **ring; /* [n_gdn] */
    uint32_t n_full, n_gdn;
    uint32_t n_rows, n_slots;
    exec_seq **seqs; /* by kv_row */
    uint32_t n_seqs, cap_seqs;
    uint8_t *slot_used; /* [n_slots] */
    cached_program programs[GPU_PROGRAMS_MAX];
    uint64_t use_count;
    tok_entry *tok_host; /* [chunk] */
    seg_entry *seg_host;
    float *host;     /* one head's state */
    exec_tap_fn tap; /* NULL: none */
    void *tap_user;
} gpu_exec;

/* executor.c */
/* Takes the device over, also on failure. weights NULL: placed, not loaded. */
calla_status gpu_exec_create(executor **out, gpu_device *dev, const model_shape *shape,
                             const model_weights *weights, const exec_options *options,
                             calla_error *err);
void gpu_programs_forget(gpu_exec *ex);
calla_status gpu_mm_reserve(gpu_exec *ex, calla_error *err);
uint64_t gpu_arena_bytes(const model_shape *s, uint32_t n_rows, uint32_t n_slots);

/* forward.c */
calla_status gpu_forward(gpu_exec *ex, const exec_segment *segs, uint32_t n_segs, calla_error *err);
/* Records one decode step or one prefill chunk into ex->rec. */
void gpu_record_decode(gpu_exec *ex, uint32_t n, uint32_t max_len, uint32_t n_logits);
/* A decode step of the stream, with the draw; which: place of the logits. */
void gpu_record_stream(gpu_exec *ex, uint32_t n, uint32_t max_len, uint32_t which);
/* The program for key if it is kept, else a free place for it (program NULL). */
cached_program *gpu_find_program(gpu_exec *ex, program_key key);
calla_status gpu_submit_recorded(gpu_exec *ex, bool once, gpu_program **out, uint64_t *ticket,
                                 calla_error *err);
void gpu_record_prefill(gpu_exec *ex, uint32_t n, uint32_t n_segs, uint32_t max_len,
                        uint32_t first_layer, uint32_t end_layer);
/* Tokens of a chunk that attention at this length takes in one dispatch of bounded work (0: any);
 * chunk at most, 32 at least. */
uint32_t gpu_tokens_at_once(const model_shape *s, double dispatch_flops, uint32_t chunk,
                            uint32_t max_len);
/* The bound for the grid of attention: at least len, one of few values. */
uint32_t gpu_len_bucket(uint32_t len);

/* stream.c */
uint64_t gpu_stream_bytes(const model_shape *s); /* on the device */
calla_status gpu_stream_create(gpu_exec *ex, calla_error *err);
calla_status gpu_stream_begin(executor *base, const exec_stream *items, uint32_t n,
                              const uint32_t *banned, uint32_t max_steps, calla_error *err);
calla_status gpu_stream_next(executor *base, int32_t *ids, calla_error *err);
calla_status gpu_stream_end(executor *base, float *const *logits, int32_t *ids, calla_error *err);
/* Waits until nothing of the stream is running. */
void gpu_stream_drain(gpu_exec *ex);
void gpu_stream_free(gpu_exec *ex);

/* profile.c */
double gpu_copy_bandwidth(executor *base);
calla_status gpu_profile(executor *base, bool prefill, uint32_t n_tokens, uint32_t n_ctx,
                         exec_stage_fn fn, void *user, calla_error *err);

/* seq.c */
calla_status gpu_seq_create(executor *base, uint32_t n_ctx, exec_seq **out, calla_error *err);
void gpu_seq_destroy(executor *base, exec_seq *seq);
uint64_t gpu_image_bytes(const executor *base, uint32_t n_tokens);
calla_status gpu_seq_save(executor *base, const exec_seq *seq, uint8_t *image, calla_error *err);
calla_status gpu_seq_load(executor *base, exec_seq *seq, const uint8_t *image, uint32_t n_tokens,
                          calla_error *err);
uint64_t gpu_state_bytes(const executor *base);
calla_status gpu_state_save(executor *base, const exec_seq *seq, uint8_t *state, calla_error *err);
calla_status gpu_seq_restore(executor *base, exec_seq *dst, const exec_seq *src, uint32_t n_tokens,
                             const uint8_t *state, calla_error *err);

static inline gpu_exec *gpu_self(executor *ex)
{
    return (gpu_exec *)(void *)ex;
}
static inline const gpu_exec *gpu_self_c(const executor *ex)
{
    return (const gpu_exec *)(const void *)ex;
}

#endif
