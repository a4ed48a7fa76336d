/* The forward pass of one batch (docs/MODEL.md section 2). */
#include <math.h>
#include <string.h>

#include "base/fpenv.h"
#include "exec/cpu/cpu.h"
#include "exec/segment.h"

void norm_token(const cpu_exec *ex, uint32_t t, const float *w)
{
    const uint32_t n = ex->shape->hidden;
    ex->kern.rmsnorm(ex->x.p[t], w, n, ex->shape->rms_eps, ex->xn.p[t]);
    prep_cols(ex, ex->xn.p[t], 0, n, ex->xp.p[t]);
}

typedef struct forward_ctx {
    cpu_exec *ex;
    const float *norm;
} forward_ctx;

static void embed_task(void *p, uint32_t t, uint32_t i_thread)
{
    (void)i_thread;
    const forward_ctx *c = p;
    cpu_exec *ex = c->ex;
    const batch_token *tok = &ex->tokens[t];
    const int32_t id = ex->segs[tok->i_seg].tokens[t - ex->seg_first[tok->i_seg]];
    matrix_row(&ex->weights->embed, (uint32_t)id, ex->x.p[t]);
    norm_token(ex, t, c->norm);
    for (uint32_t i = 0; i < MODEL_ROTARY_DIM / 2; i++) {
        const float angle = (float)tok->pos * ex->inv_freq[i];
        ex->rope_cos[(size_t)t * (MODEL_ROTARY_DIM / 2) + i] = cosf(angle);
        ex->rope_sin[(size_t)t * (MODEL_ROTARY_DIM / 2) + i] = sinf(angle);
    }
}

/* x += block output (left in xn), then the norm before the experts. */
static void residual_task(void *p, uint32_t t, uint32_t i_thread)
{
    (void)i_thread;
    const forward_ctx *c = p;
    c->ex->kern.axpy(1.0f, c->ex->xn.p[t], c->ex->shape->hidden, c->ex->x.p[t]);
    norm_token(c->ex, t, c->norm);
}

static void show(const cpu_exec *ex, uint32_t i_layer, exec_point point)
{
    if (ex->tap != NULL)
        ex->tap(ex->tap_user, i_layer, point, ex->x.base, ex->x.stride, ex->n_tokens);
}

static void layers(cpu_exec *ex)
{
    const model_shape *s = ex->shape;
    const layer_weights *l = ex->weights->layers;
    uint32_t i_gdn = 0, i_full = 0;
    forward_ctx c = {ex, l[0].input_norm};
    cpu_run(ex, (cpu_step){.label = "embed, norm"}, embed_task, &c, ex->n_tokens);
    show(ex, 0, EXEC_POINT_EMBED);
    for (uint32_t i = 0; i < s->n_layers; i++) {
        if (shape_is_full(s, i))
            attention_block(ex, i, i_full++);
        else
            gdn_block(ex, i, i_gdn++);
        c.norm = l[i].post_norm;
        cpu_run(ex, (cpu_step){.label = "residual, norm"}, residual_task, &c, ex->n_tokens);
        show(ex, i, EXEC_POINT_MIX);
        moe_block(ex, i, i + 1 < s->n_layers ? l[i + 1].input_norm : NULL);
        show(ex, i, EXEC_POINT_EXPERTS);
    }
}

/* Final norm and lm_head for the tokens whose logits are wanted. */
static void logits(cpu_exec *ex)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < ex->n_segs; i++) {
        const exec_segment *seg = &ex->segs[i];
        if (seg->want == EXEC_LOGITS_NONE) continue;
        const uint32_t skip = seg->want == EXEC_LOGITS_LAST ? seg->n_tokens - 1 : 0;
        for (uint32_t j = skip; j < seg->n_tokens; j++, n++) {
            const uint32_t t = ex->seg_first[i] + j;
            norm_token(ex, t, ex->weights->final_norm);
            ex->slot_x[n] = ex->xn.p[t];
            ex->slot_xp[n] = ex->xp.p[t];
            ex->logit_y[n] = seg->logits + (size_t)(j - skip) * ex->shape->n_vocab;
        }
    }
    if (n == 0) return;
    const linear_job job = {&ex->weights->lm_head, (const float *const *)ex->slot_x,
                            (const float *const *)ex->slot_xp, ex->logit_y, n};
    linear_run(ex, "lm_head", &job, 1);
}

/* Checks the call and lays out the batch; nothing is changed on failure. */
static calla_status begin(cpu_exec *ex, const exec_segment *segs, uint32_t n_segs, calla_error *err)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_segs; i++) {
        const exec_segment *seg = &segs[i];
        const exec_seq *seq = seg->seq;
        const calla_status st = exec_check_segment(seg, i, n, ex->chunk, seq->n_tokens, seq->n_ctx,
                                                   ex->shape->n_vocab, err);
        if (st != CALLA_OK) return st;
        ex->seg_first[i] = n;
        for (uint32_t j = 0; j < seg->n_tokens; j++, n++)
            ex->tokens[n] = (batch_token){seg->seq, seq->n_tokens + j, i};
    }
    ex->segs = segs;
    ex->n_segs = n_segs;
    ex->n_tokens = n;
    return CALLA_OK;
}

calla_status cpu_forward(cpu_exec *ex, const exec_segment *segs, uint32_t n_segs, calla_error *err)
{
    const calla_status st = begin(ex, segs, n_segs, err);
    if (st != CALLA_OK || ex->n_tokens == 0) return st;
    const uint64_t fp = fpenv_flush_denormals();
    layers(ex);
    logits(ex);
    fpenv_restore(fp);
    for (uint32_t i = 0; i < n_segs; i++)
        segs[i].seq->n_tokens += segs[i].n_tokens;
    return CALLA_OK;
}
