/* Gated DeltaNet block (docs/MODEL.md 6.3). One task = one key head of one segment: it convolves
 * the channels of its q, k and v, normalises, scans its value heads over the segment's tokens, and
 * applies the gated norm. A task owns its channels and heads of the sequence's state, so tasks
 * need no order among themselves. */
#include <math.h>
#include <string.h>

#include "exec/cpu/cpu.h"

#define GDN_NORM_EPS 1e-6f

typedef struct gdn_ctx {
    cpu_exec *ex;
    const layer_weights *lw;
    uint32_t i_gdn;
} gdn_ctx;

/* Convolution and SiLU of channels [ch0, ch1) for a segment, then the state's last three rows. */
static void conv_segment(const gdn_ctx *c, uint32_t i_seg, uint32_t ch0, uint32_t ch1)
{
    const cpu_exec *ex = c->ex;
    const uint32_t n_ch = shape_conv_channels(ex->shape);
    const uint32_t first = ex->seg_first[i_seg];
    const uint32_t n = ex->segs[i_seg].n_tokens;
    exec_seq *seq = ex->segs[i_seg].seq;
    float *state = seq->conv + (size_t)c->i_gdn * 3 * n_ch;
    for (uint32_t t = 0; t < n; t++) {
        const float *r[4];
        for (uint32_t j = 0; j < 4; j++)
            r[j] = t + j >= 3 ? ex->qkv.p[first + t + j - 3] : state + (size_t)(t + j) * n_ch;
        ex->kern.conv_silu(c->lw->conv, n_ch, r, ch0, ch1, ex->conv.p[first + t]);
    }
    for (uint32_t j = 0; j < 3; j++) { /* ascending: reads of older rows come first */
        const float *src =
            n + j >= 3 ? ex->qkv.p[first + n + j - 3] : state + (size_t)(n + j) * n_ch;
        memcpy(state + (size_t)j * n_ch + ch0, src + ch0, (ch1 - ch0) * sizeof *src);
    }
}

static float softplus(float x)
{
    return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
}

/* b and a of one value head become beta = sigmoid(b) and decay = exp(-exp(A) softplus(a + dt)). */
static void gates_segment(const gdn_ctx *c, uint32_t first, uint32_t n, uint32_t head)
{
    const float rate = expf(c->lw->a_log[head]);
    const float dt = c->lw->dt_bias[head];
    for (uint32_t t = first; t < first + n; t++) {
        float *b = c->ex->b.p[t] + head, *a = c->ex->a.p[t] + head;
        *b = 1.0f / (1.0f + expf(-*b));
        *a = expf(-rate * softplus(*a + dt));
    }
}

static void scan_head(const gdn_ctx *c, uint32_t i_seg, uint32_t head, uint32_t key_head)
{
    const cpu_exec *ex = c->ex;
    const model_shape *s = ex->shape;
    const uint32_t kw = shape_gdn_k_width(s);
    const uint32_t first = ex->seg_first[i_seg];
    const uint32_t n = ex->segs[i_seg].n_tokens;
    const uint32_t v_off = head * MODEL_GDN_DIM;
    float *state =
        ex->segs[i_seg].seq->gdn + ((size_t)c->i_gdn * s->gdn_v_heads + head) * GDN_STATE_FLOATS;
    const float *row0 = ex->conv.p[first];
    gates_segment(c, first, n, head);
    ex->kern.gdn_scan(state, 0, MODEL_GDN_DIM / GDN_SLAB, n, row0 + key_head * MODEL_GDN_DIM,
                      row0 + kw + key_head * MODEL_GDN_DIM, ex->conv.stride, row0 + 2 * kw + v_off,
                      ex->conv.stride, ex->a.p[first] + head, ex->b.p[first] + head, ex->a.stride,
                      ex->mix.p[first] + v_off, ex->mix.stride);
    for (uint32_t t = first; t < first + n; t++) {
        float *o = ex->mix.p[t] + v_off;
        ex->kern.gated_rmsnorm(o, ex->z.p[t] + v_off, c->lw->gdn_norm, MODEL_GDN_DIM, s->rms_eps,
                               o);
        prep_cols(ex, o, v_off, MODEL_GDN_DIM, ex->mixp.p[t]);
    }
}

static void gdn_task(void *p, uint32_t i_task, uint32_t i_thread)
{
    (void)i_thread;
    const gdn_ctx *c = p;
    const cpu_exec *ex = c->ex;
    const model_shape *s = ex->shape;
    const uint32_t i_seg = i_task / s->gdn_k_heads;
    const uint32_t kh = i_task % s->gdn_k_heads;
    const uint32_t ratio = s->gdn_v_heads / s->gdn_k_heads;
    const uint32_t kw = shape_gdn_k_width(s);
    const uint32_t q_off = kh * MODEL_GDN_DIM;
    const uint32_t v_off = 2 * kw + kh * ratio * MODEL_GDN_DIM;
    const uint32_t first = ex->seg_first[i_seg];
    const float q_scale = 1.0f / sqrtf((float)MODEL_GDN_DIM);

    conv_segment(c, i_seg, q_off, q_off + MODEL_GDN_DIM);
    conv_segment(c, i_seg, kw + q_off, kw + q_off + MODEL_GDN_DIM);
    conv_segment(c, i_seg, v_off, v_off + ratio * MODEL_GDN_DIM);
    for (uint32_t t = first; t < first + ex->segs[i_seg].n_tokens; t++) {
        float *q = ex->conv.p[t] + q_off, *k = q + kw;
        ex->kern.l2norm(q, MODEL_GDN_DIM, GDN_NORM_EPS, q_scale, q);
        ex->kern.l2norm(k, MODEL_GDN_DIM, GDN_NORM_EPS, 1.0f, k);
    }
    for (uint32_t h = kh * ratio; h < (kh + 1) * ratio; h++)
        scan_head(c, i_seg, h, kh);
}

void gdn_block(cpu_exec *ex, uint32_t i_layer, uint32_t i_gdn)
{
    const layer_weights *lw = &ex->weights->layers[i_layer];
    const uint32_t n = ex->n_tokens;
    const linear_job in[] = {
        {&lw->in_qkv, rows_c(&ex->xn), rows_c(&ex->xp), ex->qkv.p, n},
        {&lw->in_z, rows_c(&ex->xn), rows_c(&ex->xp), ex->z.p, n},
        {&lw->in_b, rows_c(&ex->xn), rows_c(&ex->xp), ex->b.p, n},
        {&lw->in_a, rows_c(&ex->xn), rows_c(&ex->xp), ex->a.p, n},
    };
    linear_run(ex, "gdn in", in, 4);
    gdn_ctx c = {ex, lw, i_gdn};
    const double state = (double)ex->shape->gdn_v_heads * GDN_STATE_FLOATS;
    const cpu_step scan = {"gdn scan", 2.0 * state * sizeof(float) * ex->n_segs, 7.0 * state * n};
    cpu_run(ex, scan, gdn_task, &c, ex->n_segs * ex->shape->gdn_k_heads);
    const linear_job out = {&lw->gdn_out, rows_c(&ex->mix), rows_c(&ex->mixp), ex->xn.p, n};
    linear_run(ex, "gdn out", &out, 1);
}
