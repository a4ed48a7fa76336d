/* Mixture of experts (docs/MODEL.md 6.6).
 *
 * Tokens are grouped by expert so that an expert's weights are read once for all its tokens of the
 * chunk. A (token, rank) pair has a slot: a row of the slot buffers; the slots of an expert are
 * adjacent. The shared expert is one more group whose slots are all tokens. Expert outputs are
 * summed per token in rank order, whatever the grouping was. */
#include <math.h>
#include <string.h>

#include "exec/cpu/cpu.h"

#define ACT_ROWS 64u /* of gate and up in a task: whole groups, so that they can be prepared */

typedef struct moe_ctx {
    cpu_exec *ex;
    const layer_weights *lw;
    const float *next_norm;
    uint32_t shared_tasks, expert_tasks; /* tasks of the shared group and of each other group */
} moe_ctx;

/* The n_experts_used largest logits, ties to the lower expert; weights are their softmax, which
 * equals the softmax over all experts renormalised over the winners. */
static void route_token(const cpu_exec *ex, uint32_t t)
{
    const uint32_t used = ex->shape->n_experts_used;
    const float *logit = ex->logits.p[t];
    uint32_t *id = ex->route_expert + (size_t)t * used;
    float *weight = ex->route_weight + (size_t)t * used;
    uint32_t n = 0;
    for (uint32_t e = 0; e < ex->shape->n_experts; e++) {
        if (n == used && !(logit[e] > logit[id[n - 1]])) continue;
        uint32_t i = n < used ? n++ : n - 1;
        for (; i > 0 && logit[e] > logit[id[i - 1]]; i--)
            id[i] = id[i - 1];
        id[i] = e;
    }
    float sum = 0.0f;
    for (uint32_t i = 0; i < used; i++) {
        weight[i] = expf(logit[id[i]] - logit[id[0]]);
        sum += weight[i];
    }
    for (uint32_t i = 0; i < used; i++)
        weight[i] /= sum;
}

/* Slots in expert order, within an expert in token order; groups[0] is the shared expert. */
static void group_tokens(cpu_exec *ex, const layer_weights *lw)
{
    const uint32_t n_experts = ex->shape->n_experts;
    const uint32_t n_pairs = ex->n_tokens * ex->shape->n_experts_used;
    uint32_t *count = ex->expert_count;
    memset(count, 0, (n_experts + 1) * sizeof *count);
    for (uint32_t i = 0; i < n_pairs; i++)
        count[ex->route_expert[i] + 1]++;

    ex->groups[0] =
        (moe_group){lw->shared_gate, lw->shared_up, lw->shared_down, n_pairs, ex->n_tokens};
    ex->n_groups = 1;
    for (uint32_t e = 0; e < n_experts; e++) {
        if (count[e + 1] != 0) {
            ex->groups[ex->n_groups++] =
                (moe_group){expert_matrix(&lw->gate, e), expert_matrix(&lw->up, e),
                            expert_matrix(&lw->down, e), count[e], count[e + 1]};
        }
        count[e + 1] += count[e];
    }
    for (uint32_t i = 0; i < n_pairs; i++) {
        const uint32_t t = i / ex->shape->n_experts_used;
        const uint32_t slot = count[ex->route_expert[i]]++;
        ex->route_slot[i] = slot;
        ex->slot_x[slot] = ex->xn.p[t];
        ex->slot_xp[slot] = ex->xp.p[t];
    }
    for (uint32_t t = 0; t < ex->n_tokens; t++) {
        ex->slot_x[n_pairs + t] = ex->xn.p[t];
        ex->slot_xp[n_pairs + t] = ex->xp.p[t];
    }
}

/* The group of a task, the task's place in it and the group's tasks; n_groups: there is no such
 * task. */
static uint32_t group_of(const moe_ctx *c, uint32_t i_task, uint32_t *at, uint32_t *n)
{
    *n = c->shared_tasks;
    *at = i_task;
    if (i_task < *n) return 0;
    *n = c->expert_tasks;
    *at = (i_task - c->shared_tasks) % *n;
    return 1 + (i_task - c->shared_tasks) / *n;
}

/* Where a thread comes to next, in tasks of so many rows. */
static matrix_row_ref next_row(const moe_ctx *c, uint32_t i_task, uint32_t task_rows, bool down)
{
    uint32_t at, n;
    const uint32_t i = group_of(c, i_task, &at, &n);
    if (i >= c->ex->n_groups) return (matrix_row_ref){0};
    const moe_group *g = &c->ex->groups[i];
    return (matrix_row_ref){down ? &g->down : &g->gate, at * task_rows};
}

/* gate and up for rows [row0, row1), activation, and its Q4 order. */
static void act_rows(const cpu_exec *ex, const moe_group *g, uint32_t row0, uint32_t row1,
                     matrix_row_ref next, float *scratch)
{
    const float *const *x = (const float *const *)ex->slot_x + g->first;
    const float *const *xp = (const float *const *)ex->slot_xp + g->first;
    const linear_job gate = {&g->gate, x, xp, ex->slot_gate.p + g->first, g->n};
    const linear_job up = {&g->up, x, xp, ex->slot_up.p + g->first, g->n};
    linear_span(ex, &gate, row0, row1, (matrix_row_ref){&g->up, row0}, scratch);
    linear_span(ex, &up, row0, row1, next, scratch);
    for (uint32_t s = g->first; s < g->first + g->n; s++) {
        float *h = ex->slot_gate.p[s] + row0;
        ex->kern.silu_mul(h, ex->slot_up.p[s] + row0, row1 - row0, h);
        prep_cols(ex, h, row0, row1 - row0, ex->slot_act.p[s]);
    }
}

static void act_range(void *p, uint32_t first, uint32_t end, uint32_t next, uint32_t i_thread)
{
    const moe_ctx *c = p;
    uint32_t at, n;
    while (first < end) {
        const moe_group *g = &c->ex->groups[group_of(c, first, &at, &n)];
        const uint32_t few = g->n <= LINEAR_FEW ? n - at : 1; /* one stays in the cache */
        const uint32_t n_done = end - first < few ? end - first : few;
        first += n_done;
        act_rows(c->ex, g, at * ACT_ROWS, (at + n_done) * ACT_ROWS,
                 next_row(c, first < end ? first : next, ACT_ROWS, false),
                 thread_scratch(c->ex, i_thread));
    }
}

static void down_range(void *p, uint32_t first, uint32_t end, uint32_t next, uint32_t i_thread)
{
    const moe_ctx *c = p;
    const cpu_exec *ex = c->ex;
    uint32_t at, n;
    while (first < end) {
        const moe_group *g = &ex->groups[group_of(c, first, &at, &n)];
        const uint32_t n_done = end - first < n - at ? end - first : n - at;
        const uint32_t row1 = (at + n_done) * LINEAR_TASK_ROWS;
        const linear_job down = {&g->down, rows_c(&ex->slot_gate) + g->first,
                                 rows_c(&ex->slot_act) + g->first, ex->slot_out.p + g->first, g->n};
        first += n_done;
        linear_span(ex, &down, at * LINEAR_TASK_ROWS, row1 < g->down.rows ? row1 : g->down.rows,
                    next_row(c, first < end ? first : next, LINEAR_TASK_ROWS, true),
                    thread_scratch(ex, i_thread));
    }
}

static void combine_task(void *p, uint32_t t, uint32_t i_thread)
{
    (void)i_thread;
    const moe_ctx *c = p;
    const cpu_exec *ex = c->ex;
    const uint32_t hidden = ex->shape->hidden;
    const uint32_t used = ex->shape->n_experts_used;
    float *x = ex->x.p[t];
    for (uint32_t i = t * used; i < (t + 1) * used; i++)
        ex->kern.axpy(ex->route_weight[i], ex->slot_out.p[ex->route_slot[i]], hidden, x);
    const float gate = 1.0f / (1.0f + expf(-ex->shared_logit.p[t][0]));
    ex->kern.axpy(gate, ex->slot_out.p[ex->n_tokens * used + t], hidden, x);
    if (c->next_norm != NULL) norm_token(ex, t, c->next_norm);
}

static void route_task(void *p, uint32_t t, uint32_t i_thread)
{
    (void)i_thread;
    const moe_ctx *c = p;
    route_token(c->ex, t);
}

void moe_block(cpu_exec *ex, uint32_t i_layer, const float *next_norm)
{
    const model_shape *s = ex->shape;
    const layer_weights *lw = &ex->weights->layers[i_layer];
    const uint32_t n = ex->n_tokens;
    const linear_job in[] = {
        {&lw->router, rows_c(&ex->xn), rows_c(&ex->xp), ex->logits.p, n},
        {&lw->shared_router, rows_c(&ex->xn), rows_c(&ex->xp), ex->shared_logit.p, n},
    };
    linear_run(ex, "router", in, 2);
    moe_ctx c = {.ex = ex, .lw = lw, .next_norm = next_norm};
    cpu_run(ex, (cpu_step){.label = "top experts"}, route_task, &c, n);
    group_tokens(ex, lw);

    cpu_step act = {.label = "experts gate, up"}, down = {.label = "experts down"};
    for (uint32_t i = 0; i < ex->n_groups; i++) {
        const moe_group *g = &ex->groups[i];
        act.bytes += matrix_bytes(&g->gate) + matrix_bytes(&g->up);
        act.flops += 4.0 * g->gate.rows * g->gate.cols * g->n;
        down.bytes += matrix_bytes(&g->down);
        down.flops += 2.0 * g->down.rows * g->down.cols * g->n;
    }
    c.shared_tasks = s->shared_width / ACT_ROWS;
    c.expert_tasks = s->expert_width / ACT_ROWS;
    cpu_run_ranges(ex, act, act_range, &c, c.shared_tasks + (ex->n_groups - 1) * c.expert_tasks);

    c.shared_tasks = c.expert_tasks = (s->hidden + LINEAR_TASK_ROWS - 1) / LINEAR_TASK_ROWS;
    cpu_run_ranges(ex, down, down_range, &c, ex->n_groups * c.expert_tasks);
    cpu_run(ex, (cpu_step){.label = "sum of experts"}, combine_task, &c, n);
}
