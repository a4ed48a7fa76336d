#include "exec/cpu/cpu.h"

/* Rows of a call with more than LINEAR_FEW tokens: their weights stay in the cache for all. */
#define PIECE_ROWS 128u

size_t linear_scratch_floats(const model_shape *s)
{
    uint32_t cols = s->hidden;
    const uint32_t others[] = {shape_gdn_v_width(s), shape_q_width(s), s->expert_width,
                               s->shared_width};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (others[i] > cols) cols = others[i];
    return MATMUL_SCRATCH_FLOATS(cols);
}

void linear_rows(const cpu_exec *ex, const linear_job *job, uint32_t row0, uint32_t row1,
                 float *scratch)
{
    if (job->w->type == MAT_Q4)
        ex->matmul_q4(job->w, row0, row1, job->xp, job->n_tokens, job->y, scratch);
    else
        kernels_matmul(&ex->kern, job->w->type)(job->w, row0, row1, job->x, job->n_tokens, job->y,
                                                scratch);
}

void linear_span(const cpu_exec *ex, const linear_job *job, uint32_t row0, uint32_t row1,
                 matrix_row_ref next, float *scratch)
{
    matrix w = *job->w;
    linear_job piece = *job;
    piece.w = &w;
    for (uint32_t row = row0; row < row1;) {
        const uint32_t left = row1 - row;
        const uint32_t n = job->n_tokens <= LINEAR_FEW || left < PIECE_ROWS ? left : PIECE_ROWS;
        if (n == left && next.w != NULL && next.w->type == w.type) w.next = next;
        linear_rows(ex, &piece, row, row + n, scratch);
        row += n;
    }
}

typedef struct linear_ctx {
    cpu_exec *ex;
    const linear_job *jobs;
    uint32_t n_jobs;
    uint32_t first_task[LINEAR_JOBS_MAX + 1];
} linear_ctx;

static uint32_t job_of(const linear_ctx *c, uint32_t i_task)
{
    uint32_t j = 0;
    while (j < c->n_jobs && i_task >= c->first_task[j + 1])
        j++;
    return j;
}

/* Where a task begins; no matrix where there is no such task. */
static matrix_row_ref task_row(const linear_ctx *c, uint32_t i_task)
{
    const uint32_t j = job_of(c, i_task);
    if (j == c->n_jobs) return (matrix_row_ref){0};
    return (matrix_row_ref){c->jobs[j].w, (i_task - c->first_task[j]) * LINEAR_TASK_ROWS};
}

static void linear_range(void *p, uint32_t first, uint32_t end, uint32_t next, uint32_t i_thread)
{
    const linear_ctx *c = p;
    while (first < end) {
        const uint32_t j = job_of(c, first);
        const uint32_t begin = c->first_task[j], n_rows = c->jobs[j].w->rows;
        const uint32_t stop = end < c->first_task[j + 1] ? end : c->first_task[j + 1];
        const uint32_t row1 = (stop - begin) * LINEAR_TASK_ROWS;
        linear_span(c->ex, &c->jobs[j], (first - begin) * LINEAR_TASK_ROWS,
                    row1 < n_rows ? row1 : n_rows, task_row(c, stop < end ? stop : next),
                    thread_scratch(c->ex, i_thread));
        first = stop;
    }
}

void linear_run(cpu_exec *ex, const char *label, const linear_job *jobs, uint32_t n_jobs)
{
    cpu_step step = {.label = label};
    linear_ctx c = {.ex = ex, .jobs = jobs, .n_jobs = n_jobs};
    for (uint32_t j = 0; j < n_jobs; j++) {
        const matrix *w = jobs[j].w;
        c.first_task[j + 1] = c.first_task[j] + (w->rows + LINEAR_TASK_ROWS - 1) / LINEAR_TASK_ROWS;
        step.bytes += matrix_bytes(w);
        step.flops += 2.0 * w->rows * w->cols * jobs[j].n_tokens;
    }
    cpu_run_ranges(ex, step, linear_range, &c, c.first_task[n_jobs]);
}
