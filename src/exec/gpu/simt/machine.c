/* A fiber runs its lane for group after group: simt_finish() marks the lane done and lets others
 * run; when the next group makes it runnable again, it returns. After a violation the stacks hold
 * abandoned calls and are prepared anew. */
#include "exec/gpu/simt/simt.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"
#include "exec/gpu/simt/fiber.h"

#if defined(__SANITIZE_ADDRESS__)
#define ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ASAN 1
#endif
#endif
#if defined(ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define STACK_BYTES (256u << 10)
#else
#define STACK_BYTES (64u << 10)
#endif
/* Stacks begin at different cache sets: all lanes touch the same depth. */
#define STACK_COLOURS 32u
#define STACK_COLOUR  192u

struct simt_machine {
    simt_lane main; /* the driver's own context */
    simt_group group;
    uint8_t *stacks;  /* [SIMT_GROUP_MAX][STACK_BYTES], the lowest page of each without access */
    uint32_t n_ready; /* lanes whose stack is prepared */
    simt_lane *current;
    bool failed;
    char failure[512];
};

__thread simt_lane *simt_self;

/* ---- Switching ---- */

static void swap(simt_lane *from, simt_lane *to)
{
#if defined(ASAN)
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, (size_t)to->stack_bytes);
#endif
    fiber_swap(&from->sp, to->sp);
#if defined(ASAN)
    __sanitizer_finish_switch_fiber(from->fake_stack, NULL, NULL);
#endif
}

void simt_switch(simt_lane *from, simt_lane *to)
{
    if (from == to) return;
    simt_self = to;
    swap(from, to);
}

static void to_main(simt_lane *t)
{
    simt_self = NULL;
    swap(t, &t->group->machine->main);
}

/* Lets a runnable lane run, of t's simdgroup or the next ones; the driver when there is none. */
void simt_reschedule(simt_lane *t)
{
    simt_group *g = t->group;
    const uint32_t first = t->tid / SIMT_LANES;
    for (uint32_t i = 0; i < g->n_sg; i++) {
        simt_sg *s = &g->sgs[(first + i) % g->n_sg];
        if (s->runnable == 0) continue;
        const uint32_t lane = simt_lowest(s->runnable);
        s->runnable &= s->runnable - 1;
        simt_switch(t, &s->lanes[lane]);
        return;
    }
    to_main(t);
}

static void finish(simt_lane *t)
{
    simt_sg *s = t->sg;
    if (s->n_arrived != 0) simt_diverged(t, NULL);
    s->done |= 1u << t->lane;
    t->group->n_done++;
    simt_reschedule(t);
}

static void lane_main(void *arg)
{
    simt_lane *t = arg;
#if defined(ASAN)
    simt_lane *m = &t->group->machine->main;
    const void *bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(NULL, &bottom, &bytes);
    if (m->stack == NULL) {
        memcpy(&m->stack, &bottom, sizeof bottom);
        m->stack_bytes = bytes;
    }
#endif
    for (;;) {
        t->tg_used = 0;
        t->group->launch->kernel->fn(t->group->launch);
        finish(t);
    }
}

/* ---- Rendezvous ---- */

static void barrier_open(simt_group *g, const simt_lane *t)
{
    g->n_at_barrier = 0;
    for (uint32_t i = 0; i < g->n_sg; i++) {
        simt_sg *s = &g->sgs[i];
        s->at_barrier = false;
        s->runnable = UINT32_MAX;
        s->round++;
    }
    t->sg->runnable &= ~(1u << t->lane);
}

void simt_barrier_sg(simt_lane *t, const char *site)
{
    simt_group *g = t->group;
    simt_sg *s = t->sg;
    s->n_arrived = 0;
    s->at_barrier = true;
    if (g->n_at_barrier++ == 0) g->barrier_site = site;
    if (g->barrier_site != site)
        simt_violation(t, "divergent barrier: %s, but other simdgroups wait at %s", site,
                       g->barrier_site);
    if (g->n_at_barrier == g->n_sg)
        barrier_open(g, t);
    else
        simt_reschedule(t);
}

/* ---- Violations ---- */

static void violation_v(simt_lane *t, const char *fmt, va_list ap)
{
    simt_group *g = t->group;
    simt_machine *m = g->machine;
    char *to = m->failure;
    int n = snprintf(to, sizeof m->failure,
                     "kernel %s, group (%u, %u), thread %u: ", g->launch->kernel->name, g->gx,
                     g->gy, t->tid);
    if (n >= 0 && (size_t)n < sizeof m->failure)
        (void)vsnprintf(to + n, sizeof m->failure - (size_t)n, fmt, ap);
    m->failed = true;
}

void simt_violation(simt_lane *t, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    violation_v(t, fmt, ap);
    va_end(ap);
    for (;;)
        to_main(t);
}

void simt_diverged(simt_lane *t, const char *site)
{
    const simt_sg *s = t->sg;
    const char *has = site != NULL ? site : "the kernel's end";
    if (s->done != 0 && s->n_arrived <= 1)
        simt_violation(t, "non-uniform simdgroup operation: %s, but other lanes have ended", has);
    simt_violation(t, "non-uniform simdgroup operation: %s, but other lanes are at %s", has,
                   s->site);
}

/* No lane is runnable: all have ended, or some wait for those that have. */
static void check_ended(simt_machine *m)
{
    simt_group *g = &m->group;
    if (m->failed || g->n_done == g->n_threads) return;
    for (uint32_t i = 0; i < g->n_sg; i++) {
        const simt_sg *s = &g->sgs[i];
        if (s->done == UINT32_MAX) continue;
        m->failed = true;
        (void)snprintf(
            m->failure, sizeof m->failure,
            "kernel %s, group (%u, %u), simdgroup %u: waits at %s, but other %s have ended",
            g->launch->kernel->name, g->gx, g->gy, i, s->site,
            s->at_barrier ? "simdgroups" : "lanes");
        return;
    }
}

/* ---- Running ---- */

static bool lane_prepare(simt_machine *m, uint32_t tid)
{
    simt_lane *t = &m->group.lanes[tid];
    uint8_t *base = m->stacks + (size_t)tid * STACK_BYTES;
    fiber_deinit(t->sp);
    *t = (simt_lane){.group = &m->group, .sg = &m->group.sgs[tid / SIMT_LANES]};
    t->tid = tid;
    t->lane = tid % SIMT_LANES;
    t->stack = base;
    t->stack_bytes = STACK_BYTES;
#if defined(ASAN)
    __asan_unpoison_memory_region(base, STACK_BYTES);
#endif
    uint8_t *top = base + STACK_BYTES - (tid % STACK_COLOURS) * STACK_COLOUR;
    t->sp = fiber_init(base, top, lane_main, t);
    return t->sp != NULL;
}

calla_status simt_machine_create(simt_machine **out, calla_error *err)
{
    *out = NULL;
    simt_machine *m = mem_alloc(sizeof *m);
    if (m != NULL) {
        m->group.machine = m;
        m->main.group = &m->group;
        m->group.lanes = mem_array(SIMT_GROUP_MAX, sizeof *m->group.lanes);
        m->group.tg = mem_alloc_aligned(SIMT_TG_BYTES);
        m->stacks = mem_alloc_pages((size_t)SIMT_GROUP_MAX * STACK_BYTES);
    }
    if (m == NULL || m->group.lanes == NULL || m->group.tg == NULL || m->stacks == NULL) {
        simt_machine_destroy(m);
        return err_set(err, CALLA_ERR_MEMORY, "no memory for the SIMT emulator's stacks");
    }
    mem_small_pages(m->stacks, (size_t)SIMT_GROUP_MAX * STACK_BYTES);
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (uint32_t i = 0; i < SIMT_GROUP_MAX; i++)
        (void)mprotect(m->stacks + (size_t)i * STACK_BYTES, page, PROT_NONE);
    for (uint32_t i = 0; i < SIMT_GROUP_MAX / SIMT_LANES; i++)
        m->group.sgs[i].lanes = &m->group.lanes[i * SIMT_LANES];
    *out = m;
    return CALLA_OK;
}

void simt_machine_destroy(simt_machine *m)
{
    if (m == NULL) return;
    for (uint32_t i = 0; m->group.lanes != NULL && i < SIMT_GROUP_MAX; i++)
        fiber_deinit(m->group.lanes[i].sp);
    mem_free(m->group.lanes);
    mem_free_aligned(m->group.tg);
    if (m->stacks != NULL) {
#if defined(ASAN)
        __asan_unpoison_memory_region(m->stacks, (size_t)SIMT_GROUP_MAX * STACK_BYTES);
#endif
        mem_free_pages(m->stacks, (size_t)SIMT_GROUP_MAX * STACK_BYTES);
    }
    mem_free(m);
}

static void sg_begin(simt_sg *s)
{
    s->runnable = UINT32_MAX;
    s->done = 0;
    s->n_arrived = 0;
    s->round = 0;
    s->at_barrier = false;
}

bool simt_machine_run(simt_machine *m, const simt_launch *l, uint32_t gx, uint32_t gy)
{
    simt_group *g = &m->group;
    g->launch = l;
    g->gx = gx;
    g->gy = gy;
    g->n_threads = l->kernel->threads;
    g->n_sg = g->n_threads / SIMT_LANES;
    g->n_at_barrier = 0;
    g->n_done = 0;
    for (uint32_t i = 0; i < g->n_sg; i++)
        sg_begin(&g->sgs[i]);
    for (; m->n_ready < g->n_threads; m->n_ready++)
        if (!lane_prepare(m, m->n_ready)) {
            m->failed = true;
            (void)snprintf(m->failure, sizeof m->failure, "no memory for fibers");
            return false;
        }
    m->failed = false;
    g->sgs[0].runnable &= ~1u;
    simt_self = &g->lanes[0];
    swap(&m->main, simt_self);
    check_ended(m);
    if (m->failed) m->n_ready = 0;
    return !m->failed;
}

const char *simt_machine_failure(const simt_machine *m)
{
    return m->failure;
}
