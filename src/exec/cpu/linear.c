#include "exec/cpu/cpu.h"

#define TASKS_PER_THREAD 8u
#define TASK_ROWS_MAX    128u

size_t linear_scratch_floats(const model_shape *s)
{
    uint32_t cols = s->hidden;
    const uint32_t others[] = {shape_gdn_v_width(s), shape_q_width(s), s->expert_width,
                               s->shared_width};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (others[i] > cols) cols = others[i];
    return MATMUL_SCRATCH_FLOATS(cols);
}

uint32_t linear_task_rows(const cpu_exec *ex, uint64_t total_rows, uint32_t align)
{
    uint64_t n = total_rows / ((uint64_t)ex->n_threads * TASKS_PER_THREAD);
    if (n > TASK_ROWS_MAX) n = TASK_ROWS_MAX;
    n = (n + align - 1) / align * align;
    return n < align ? align : (uint32_t)n;
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

typedef struct linear_ctx {
    cpu_exec *ex;
    const linear_job *jobs;
    uint32_t n_jobs, task_rows;
    uint32_t first_task[LINEAR_JOBS_MAX + 1];
} linear_ctx;

static void linear_task(void *p, uint32_t i_task, uint32_t i_thread)
{
    const linear_ctx *c = p;
    uint32_t j = 0;
    while (i_task >= c->first_task[j + 1])
        j++;
    const linear_job *job = &c->jobs[j];
    const uint32_t row0 = (i_task - c->first_task[j]) * c->task_rows;
    const uint32_t left = job->w->rows - row0;
    linear_rows(c->ex, job, row0, row0 + (left < c->task_rows ? left : c->task_rows),
                thread_scratch(c->ex, i_thread));
}

void linear_run(cpu_exec *ex, const char *label, const linear_job *jobs, uint32_t n_jobs)
{
    cpu_step step = {.label = label};
    linear_ctx c = {.ex = ex, .jobs = jobs, .n_jobs = n_jobs};
    uint64_t total = 0;
    for (uint32_t j = 0; j < n_jobs; j++) {
        const matrix *w = jobs[j].w;
        total += w->rows;
        step.bytes += matrix_bytes(w);
        step.flops += 2.0 * w->rows * w->cols * jobs[j].n_tokens;
    }
    c.task_rows = linear_task_rows(ex, total, MATMUL_STRIP_ROWS);
    for (uint32_t j = 0; j < n_jobs; j++)
        c.first_task[j + 1] = c.first_task[j] + (jobs[j].w->rows + c.task_rows - 1) / c.task_rows;
    cpu_run(ex, step, linear_task, &c, c.first_task[n_jobs]);
}
