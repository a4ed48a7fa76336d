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
/* A group that runs. Lanes whose stacks are prepared come first. */
typedef struct simt_slot {
    simt_group group;
    uint8_t *stacks; /* [SIMT_GROUP_MAX][STACK_BYTES] */
    uint32_t n_ready;
    bool active;
} simt_slot;

/* Stacks begin at different cache sets: all lanes touch the same depth. */
#define STACK_COLOURS 32u
#define STACK_COLOUR  192u

struct simt_machine {
    simt_lane main; /* the driver's own context */
    simt_slot *slots;
    uint32_t n_slots;
    bool seeded;
    uint64_t rng;
    uint32_t stir_sg, stir_group; /* of 256: how often another simdgroup, another group runs next */
    bool failed;
    char failure[768];
};

__thread simt_lane *simt_self;

static uint64_t draw(simt_machine *m)
{
    m->rng += 0x9e3779b97f4a7c15u;
    uint64_t z = m->rng;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

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

static simt_lane *take(simt_sg *s, uint32_t lane)
{
    s->runnable &= ~(1u << lane);
    return &s->lanes[lane];
}

/* A runnable lane of g, from simdgroup `first` on; NULL when there is none. */
static simt_lane *pick(simt_group *g, uint32_t first)
{
    for (uint32_t i = 0; i < g->n_sg; i++) {
        simt_sg *s = &g->sgs[(first + i) % g->n_sg];
        if (s->runnable == 0) continue;
        if (!g->seeded) return take(s, simt_lowest(s->runnable));
        const uint32_t turn = (uint32_t)draw(g->machine) % SIMT_LANES;
        const uint32_t later = s->runnable >> turn << turn;
        return take(s, simt_lowest(later != 0 ? later : s->runnable));
    }
    return NULL;
}

/* Lets a runnable lane run, by preference of t's simdgroup; the driver when t's group has none. */
void simt_reschedule(simt_lane *t)
{
    simt_group *g = t->group;
    simt_machine *m = g->machine;
    uint32_t first = t->tid / SIMT_LANES;
    simt_lane *to = NULL;
    if (g->seeded) {
        const uint64_t r = draw(m);
        if ((r & 255) < m->stir_sg) first = (uint32_t)(r >> 16) % g->n_sg;
        if ((r >> 8 & 255) < m->stir_group) {
            simt_slot *other = &m->slots[(r >> 32) % m->n_slots];
            if (other->active) to = pick(&other->group, 0);
        }
    }
    if (to == NULL) to = pick(g, first);
    if (to != NULL)
        simt_switch(t, to);
    else
        to_main(t);
}

void simt_pause(simt_lane *t)
{
    if (!t->group->seeded) return;
    t->sg->runnable |= 1u << t->lane;
    simt_reschedule(t);
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
        t->tg_used = t->n_arrays = 0;
        t->group->launch->kernel->fn(t->group->launch);
        finish(t);
    }
}

/* ---- Rendezvous ---- */

/* A site without its number. */
static int site_length(const char *site)
{
    return (int)strcspn(site, "#");
}

static void barrier_open(simt_group *g, const simt_lane *t)
{
    g->n_at_barrier = 0;
    g->epoch++;
    if (g->at_device) g->dev_epoch++;
    g->at_device = false;
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
        simt_violation(t, "divergent barrier: this simdgroup is at %.*s, others are at %.*s",
                       site_length(site), site, site_length(g->barrier_site), g->barrier_site);
    if (g->n_at_barrier == g->n_sg)
        barrier_open(g, t);
    else
        simt_reschedule(t);
}

/* ---- Threadgroup memory ---- */

/* Every lane declares the arrays in the same order. */
uint32_t simt_tg_declare(simt_lane *t, uint64_t bytes, const char *name)
{
    simt_group *g = t->group;
    const uint32_t i = t->n_arrays++, off = t->tg_used;
    if (bytes > SIMT_TG_BYTES - off)
        simt_violation(t, "threadgroup memory of more than %u bytes: %s takes %llu, %u are in use",
                       SIMT_TG_BYTES, name, (unsigned long long)bytes, off);
    if (i == SIMT_ARRAYS) simt_violation(t, "more than %u threadgroup arrays", SIMT_ARRAYS);
    if (i == g->n_arrays) g->arrays[g->n_arrays++] = (simt_array){name, off, (uint32_t)bytes};
    const simt_array *a = &g->arrays[i];
    if (a->off != off || a->bytes != bytes)
        simt_violation(t, "threadgroup array %s differs between threads", name);
    t->tg_used = (off + (uint32_t)bytes + 15u) & ~15u;
    return i;
}

uint32_t simt_native_declare(simt_lane *t, uint64_t bytes, const char *name)
{
    simt_group *g = t->group;
    const uint32_t i = t->n_arrays++;
    if (bytes > SIMT_NATIVE_BYTES || i == SIMT_ARRAYS)
        simt_violation(t, "memory of a native main loop of more than %u bytes: %s",
                       SIMT_NATIVE_BYTES, name);
    if (i == g->n_arrays)
        g->arrays[g->n_arrays++] = (simt_array){name, SIMT_TG_BYTES, (uint32_t)bytes};
    return i;
}

/* ---- Violations ---- */

void simt_violation(simt_lane *t, const char *fmt, ...)
{
    simt_group *g = t->group;
    simt_machine *m = g->machine;
    char *to = m->failure;
    const int n = snprintf(to, sizeof m->failure,
                           "kernel %s, group (%u, %u), thread %u: ", g->launch->kernel->name, g->gx,
                           g->gy, t->tid);
    va_list ap;
    va_start(ap, fmt);
    if (n >= 0 && (size_t)n < sizeof m->failure)
        (void)vsnprintf(to + n, sizeof m->failure - (size_t)n, fmt, ap);
    va_end(ap);
    m->failed = true;
    for (;;)
        to_main(t);
}

void simt_diverged(simt_lane *t, const char *site)
{
    const simt_sg *s = t->sg;
    const char *here = site != NULL ? site : "the kernel's end";
    const bool others_wait = s->n_arrived > 0 && s->site != site;
    const char *there = others_wait ? s->site : "the kernel's end";
    simt_violation(t, "non-uniform simdgroup operation: this lane is at %.*s, others are at %.*s",
                   site_length(here), here, site_length(there), there);
}

/* No lane of the group is runnable: all have ended, or some wait for those that have. */
static bool group_ended(simt_machine *m, const simt_group *g)
{
    if (g->n_done == g->n_threads) return true;
    for (uint32_t i = 0; i < g->n_sg; i++) {
        const simt_sg *s = &g->sgs[i];
        if (s->done == UINT32_MAX) continue;
        (void)snprintf(
            m->failure, sizeof m->failure,
            "kernel %s, group (%u, %u), simdgroup %u: divergent barrier: it waits at %.*s, "
            "others are at the kernel's end",
            g->launch->kernel->name, g->gx, g->gy, i, site_length(s->site), s->site);
        break;
    }
    m->failed = true;
    return false;
}

/* ---- Machines ---- */

static bool lane_prepare(simt_slot *slot, uint32_t tid)
{
    simt_group *g = &slot->group;
    simt_lane *t = &g->lanes[tid];
    uint8_t *base = slot->stacks + (size_t)tid * STACK_BYTES;
    fiber_deinit(t->sp);
    *t = (simt_lane){.group = g, .sg = &g->sgs[tid / SIMT_LANES]};
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

static bool slot_init(simt_machine *m, simt_slot *slot)
{
    simt_group *g = &slot->group;
    g->machine = m;
    g->seeded = m->seeded;
    g->slot = (uint32_t)(slot - m->slots);
    g->lanes = mem_array(SIMT_GROUP_MAX, sizeof *g->lanes);
    g->tg = mem_alloc_pages(SIMT_TG_ALL);
    slot->stacks = mem_alloc_pages((size_t)SIMT_GROUP_MAX * STACK_BYTES);
    if (g->lanes == NULL || g->tg == NULL || slot->stacks == NULL) return false;
    mem_small_pages(slot->stacks, (size_t)SIMT_GROUP_MAX * STACK_BYTES);
    for (uint32_t i = 0; i < SIMT_SGS_MAX; i++)
        g->sgs[i].lanes = &g->lanes[i * SIMT_LANES];
    return true;
}

static void slot_deinit(simt_slot *slot)
{
    simt_group *g = &slot->group;
    for (uint32_t i = 0; g->lanes != NULL && i < SIMT_GROUP_MAX; i++)
        fiber_deinit(g->lanes[i].sp);
    mem_free(g->lanes);
    mem_free_pages(g->tg, SIMT_TG_ALL);
#if defined(ASAN)
    if (slot->stacks != NULL)
        __asan_unpoison_memory_region(slot->stacks, (size_t)SIMT_GROUP_MAX * STACK_BYTES);
#endif
    mem_free_pages(slot->stacks, (size_t)SIMT_GROUP_MAX * STACK_BYTES);
}

calla_status simt_machine_create(simt_machine **out, uint32_t n_slots, uint64_t seed,
                                 calla_error *err)
{
    static const uint32_t stir[] = {0, 16, 128, 256};
    *out = NULL;
    simt_machine *m = mem_alloc(sizeof *m);
    if (m == NULL) goto no_memory;
    m->seeded = seed != 0;
    m->rng = seed;
    m->stir_sg = stir[draw(m) % 4];
    m->stir_group = stir[draw(m) % 4];
    m->slots = mem_array(n_slots, sizeof *m->slots);
    if (m->slots == NULL) goto no_memory;
    m->n_slots = n_slots;
    m->main.group = &m->slots[0].group;
    for (uint32_t i = 0; i < n_slots; i++)
        if (!slot_init(m, &m->slots[i])) goto no_memory;
    *out = m;
    return CALLA_OK;
no_memory:
    simt_machine_destroy(m);
    return err_set(err, CALLA_ERR_MEMORY, "no memory for the SIMT emulator's stacks");
}

void simt_machine_guard(simt_machine *m)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (uint32_t k = 0; k < m->n_slots; k++)
        for (uint32_t i = 0; i < SIMT_GROUP_MAX; i++)
            (void)mprotect(m->slots[k].stacks + (size_t)i * STACK_BYTES, page, PROT_NONE);
}

void simt_machine_destroy(simt_machine *m)
{
    if (m == NULL) return;
    for (uint32_t i = 0; m->slots != NULL && i < m->n_slots; i++)
        slot_deinit(&m->slots[i]);
    mem_free(m->slots);
    mem_free(m);
}

const char *simt_machine_failure(const simt_machine *m)
{
    return m->failure;
}

/* ---- Running ---- */

static void sg_begin(simt_sg *s)
{
    s->runnable = UINT32_MAX;
    s->done = 0;
    s->n_arrived = 0;
    s->round = 0;
    s->epoch = 0;
    s->at_barrier = false;
}

/* All lanes of the slot's group become runnable. */
static bool group_begin(simt_machine *m, simt_slot *slot)
{
    simt_group *g = &slot->group;
    g->n_threads = g->launch->kernel->threads;
    g->n_sg = g->n_threads / SIMT_LANES;
    g->n_at_barrier = g->n_done = g->epoch = g->dev_epoch = g->n_arrays = 0;
    g->at_device = false;
    for (uint32_t i = 0; i < g->n_sg; i++)
        sg_begin(&g->sgs[i]);
    for (; slot->n_ready < g->n_threads; slot->n_ready++)
        if (!lane_prepare(slot, slot->n_ready)) {
            m->failed = true;
            (void)snprintf(m->failure, sizeof m->failure, "no memory for fibers");
            return false;
        }
    return true;
}

/* The stacks hold abandoned calls. */
static bool run_failed(simt_machine *m)
{
    for (uint32_t i = 0; i < m->n_slots; i++) {
        m->slots[i].n_ready = 0;
        m->slots[i].active = false;
    }
    return false;
}

static void run_lane(simt_machine *m, simt_lane *t)
{
    simt_self = t;
    swap(&m->main, t);
}

bool simt_machine_run(simt_machine *m, const simt_launch *l, uint32_t gx, uint32_t gy)
{
    simt_slot *slot = &m->slots[0];
    simt_group *g = &slot->group;
    g->launch = l;
    g->gx = gx;
    g->gy = gy;
    m->failed = false;
    if (!group_begin(m, slot)) return run_failed(m);
    run_lane(m, take(&g->sgs[0], 0));
    if (m->failed || !group_ended(m, g)) return run_failed(m);
    return true;
}

bool simt_machine_run_all(simt_machine *m, const simt_source *source)
{
    m->failed = false;
    for (;;) {
        uint32_t n_active = 0;
        for (uint32_t i = 0; i < m->n_slots; i++) {
            simt_slot *slot = &m->slots[i];
            if (!slot->active && source->next(source->ctx, &slot->group)) {
                if (!group_begin(m, slot)) return run_failed(m);
                slot->active = true;
            }
            n_active += slot->active;
        }
        if (n_active == 0) return true;
        uint32_t i = m->seeded ? (uint32_t)draw(m) % m->n_slots : 0;
        while (!m->slots[i].active)
            i = (i + 1) % m->n_slots;
        simt_lane *t = pick(&m->slots[i].group, 0);
        if (t != NULL) run_lane(m, t);
        for (i = 0; i < m->n_slots && !m->failed; i++) {
            simt_slot *slot = &m->slots[i];
            simt_lane *left = slot->active ? pick(&slot->group, 0) : NULL;
            if (left != NULL)
                left->sg->runnable |= 1u << left->lane;
            else if (slot->active && group_ended(m, &slot->group)) {
                slot->active = false;
                source->ended(source->ctx, &slot->group);
            }
        }
        if (m->failed) return run_failed(m);
    }
}
