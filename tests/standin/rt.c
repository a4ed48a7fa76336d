/* Objects, classes, selectors, pools, and the lookup behind objc_msgSend. */
#include "rt.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/mem.h"
#include "standin.h"

#define OBJECTS_MAX (1u << 23)
#define SELS_MAX    1024u
#define CLASSES_MAX 64u
#define LOG_MAX     (1u << 20)
#define POOL_MAX    65536u

struct rt_sel {
    char name[112];
};

/* The pools of a thread: objects in order, NULL where a pool begins. */
typedef struct pools {
    obj *items[POOL_MAX];
    size_t n, n_open;
    uint64_t generation;
} pools;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t woken = PTHREAD_COND_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t pools_key;
static obj *obj_space;
static size_t n_objects;
static rt_sel sels[SELS_MAX];
static size_t n_sels;
static obj *class_objects[CLASSES_MAX];
static uint64_t n_open_pools, generation;
static const rt_sel **fallible;  /* [LOG_MAX] */
static uint64_t n_calls_failing; /* of rt_opt.fail.sel */
static char first_violation[1024];
rt_counts rt_count;
rt_options rt_opt;

rt_imp standin_lookup(obj *self, rt_sel *sel);
void standin_nil(void);

/* ---- Saying what is wrong ---- */

void rt_violation(const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    rt_count.violations++;
    if (first_violation[0] == '\0') memcpy(first_violation, text, sizeof text);
    if (rt_opt.record) return;
    fprintf(stderr, "stand-in: %s\n", text);
    abort();
}

void rt_lock(void)
{
    (void)pthread_mutex_lock(&lock);
}

void rt_unlock(void)
{
    (void)pthread_mutex_unlock(&lock);
}

void rt_wait(void)
{
    (void)pthread_cond_wait(&woken, &lock);
}

bool rt_wait_value(const uint64_t *value, uint64_t v, uint64_t timeout_ms)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    const uint64_t ns = (uint64_t)t.tv_nsec + timeout_ms % 1000 * 1000000u;
    t.tv_sec += (time_t)(timeout_ms / 1000 + ns / 1000000000u);
    t.tv_nsec = (long)(ns % 1000000000u);
    int rc = 0;
    while (*value < v && rc == 0)
        rc = pthread_cond_timedwait(&woken, &lock, &t);
    return *value >= v;
}

void rt_wake(void)
{
    (void)pthread_cond_broadcast(&woken);
}

/* ---- Objects ---- */

bool rt_inherits(const rt_class *c, const rt_class *from)
{
    for (; c != NULL; c = c->super)
        if (c == from) return true;
    return false;
}

obj *rt_new(const rt_class *cls)
{
    if (n_objects == OBJECTS_MAX) {
        fprintf(stderr, "stand-in: no room for more objects\n");
        abort();
    }
    obj *o = &obj_space[n_objects++];
    o->cls = cls;
    o->refs = 1;
    o->serial = ++rt_count.objects;
    const size_t n = cls->body_bytes;
    o->body = n > 0 ? mem_alloc(n) : NULL;
    if (n > 0 && o->body == NULL) abort();
    return o;
}

obj *rt_retain(obj *o)
{
    if (o == NULL) return NULL;
    if (o->dead)
        rt_violation("retain of %s #%llu after its end", o->cls->name,
                     (unsigned long long)o->serial);
    if (!o->immortal) o->refs++;
    return o;
}

void rt_release(obj *o)
{
    if (o == NULL || o->immortal) return;
    if (o->dead) {
        rt_violation("release of %s #%llu after its end: released once too often", o->cls->name,
                     (unsigned long long)o->serial);
        return;
    }
    if (--o->refs > 0) return;
    if (o->cls->dealloc != NULL) o->cls->dealloc(o);
    o->dead = true;
    mem_free(o->body);
    o->body = NULL;
}

/* A pointer that came from outside: is it one of ours? */
static bool is_object(const obj *o)
{
    const uintptr_t at = (uintptr_t)o, first = (uintptr_t)obj_space;
    return at >= first && (at - first) % sizeof *o == 0 && (at - first) / sizeof *o < n_objects;
}

bool rt_is(obj *o, const rt_class *cls, const char *what)
{
    if (o == NULL)
        rt_violation("%s: nil instead of %s", what, cls->name);
    else if (!is_object(o))
        rt_violation("%s: %p is no object", what, (void *)o);
    else if (o->dead)
        rt_violation("%s: %s #%llu after its end", what, o->cls->name,
                     (unsigned long long)o->serial);
    else if (o->is_class || !rt_inherits(o->cls, cls))
        rt_violation("%s: %s%s instead of %s", what, o->is_class ? "class " : "", o->cls->name,
                     cls->name);
    else
        return true;
    return false;
}

/* ---- Pools ---- */

static void pools_end(void *p)
{
    pools *s = p;
    if (s->n_open > 0) rt_violation("a thread ends with %zu autorelease pools open", s->n_open);
    mem_free(s);
}

static pools *my_pools(void)
{
    pools *s = pthread_getspecific(pools_key);
    if (s == NULL) {
        s = mem_alloc(sizeof *s);
        if (s == NULL) abort();
        (void)pthread_setspecific(pools_key, s);
    }
    if (s->generation != generation) s->n = s->n_open = 0;
    s->generation = generation;
    return s;
}

static void pool_push_item(pools *s, obj *o)
{
    if (s->n == POOL_MAX) {
        rt_violation("more than %u objects in autorelease pools of a thread", POOL_MAX);
        return;
    }
    s->items[s->n++] = o;
}

obj *rt_autorelease(obj *o)
{
    if (o == NULL || o->immortal) return o;
    pools *s = my_pools();
    if (s->n_open == 0) {
        rt_violation("%s #%llu is autoreleased outside of a pool", o->cls->name,
                     (unsigned long long)o->serial);
        return o;
    }
    pool_push_item(s, o);
    return o;
}

STANDIN_API void *objc_autoreleasePoolPush(void);
STANDIN_API void *objc_autoreleasePoolPush(void)
{
    pools *s = my_pools();
    rt_lock();
    pool_push_item(s, NULL);
    s->n_open++;
    n_open_pools++;
    rt_unlock();
    return (char *)s + s->n; /* a token: never followed */
}

STANDIN_API void objc_autoreleasePoolPop(void *token);
STANDIN_API void objc_autoreleasePoolPop(void *token)
{
    pools *s = my_pools();
    const size_t at = (size_t)((uintptr_t)token - (uintptr_t)s);
    rt_lock();
    if (at == 0 || at > s->n || s->items[at - 1] != NULL)
        rt_violation("%p is no autorelease pool of this thread", token);
    else
        while (s->n >= at) {
            obj *o = s->items[--s->n];
            if (o != NULL) {
                rt_release(o);
            } else {
                s->n_open--;
                n_open_pools--;
            }
        }
    rt_unlock();
}

/* ---- NSObject ---- */

static obj *object_retain(obj *self, rt_sel *sel)
{
    (void)sel;
    rt_lock();
    rt_retain(self);
    rt_unlock();
    return self;
}

static void object_release(obj *self, rt_sel *sel)
{
    (void)sel;
    rt_lock();
    rt_release(self);
    rt_unlock();
}

static obj *object_autorelease(obj *self, rt_sel *sel)
{
    (void)sel;
    rt_lock();
    rt_autorelease(self);
    rt_unlock();
    return self;
}

static unsigned long object_retain_count(obj *self, rt_sel *sel)
{
    (void)sel;
    return self->refs;
}

static obj *object_init(obj *self, rt_sel *sel)
{
    (void)sel;
    return self;
}

static obj *class_new(obj *self, rt_sel *sel)
{
    (void)sel;
    rt_lock();
    obj *o = rt_new(self->cls);
    rt_unlock();
    return o;
}

static const rt_method *find(const rt_class *c, bool is_class, const char *name)
{
    for (; c != NULL; c = c->super)
        for (const rt_method *m = c->methods; m != NULL && m->sel != NULL; m++)
            if (((m->flags & RT_CLASS) != 0) == is_class && strcmp(m->sel, name) == 0) return m;
    return NULL;
}

static bool object_responds(obj *self, rt_sel *sel, rt_sel *to)
{
    (void)sel;
    const rt_method *m = find(self->cls, self->is_class, to->name);
    if (m != NULL) return m->since <= rt_opt.os;
    bool known = false;
    for (const rt_class *const *c = rt_classes; *c != NULL; c++)
        known = known || find(*c, false, to->name) != NULL || find(*c, true, to->name) != NULL;
    if (!known) rt_violation("respondsToSelector: \"%s\", which no class here knows", to->name);
    return false;
}

static const rt_method object_methods[] = {RT_M("retain", object_retain, 0, 0),
                                           RT_M("release", object_release, 0, 0),
                                           RT_M("autorelease", object_autorelease, 0, 0),
                                           RT_M("retainCount", object_retain_count, 0, 0),
                                           RT_M("init", object_init, 0, 0),
                                           RT_M("respondsToSelector:", object_responds, 0, 0),
                                           RT_M("alloc", class_new, RT_CLASS | RT_FAILS, 0),
                                           RT_M("new", class_new, RT_CLASS | RT_FAILS, 0),
                                           {NULL, NULL, 0, 0}};
const rt_class class_NSObject = {"NSObject", NULL, object_methods, 0, NULL, 0};

/* ---- Failing on purpose ---- */

static obj *fail_nil(void)
{
    return NULL;
}

static void error_out(obj **error)
{
    if (error == NULL || rt_opt.error_nil) return;
    rt_lock();
    ns_error_out(error, "StandInDomain", 7, rt_opt.error);
    rt_unlock();
}

static obj *fail_3(obj *self, rt_sel *sel, obj **error)
{
    (void)self;
    (void)sel;
    error_out(error);
    return NULL;
}

static obj *fail_4(obj *self, rt_sel *sel, void *a, obj **error)
{
    (void)a;
    return fail_3(self, sel, error);
}

static obj *fail_5(obj *self, rt_sel *sel, void *a, void *b, obj **error)
{
    (void)a;
    (void)b;
    return fail_3(self, sel, error);
}

static obj *fail_6(obj *self, rt_sel *sel, void *a, void *b, void *c, obj **error)
{
    (void)a;
    (void)b;
    (void)c;
    return fail_3(self, sel, error);
}

static rt_imp failing(uint32_t flags)
{
    if ((flags & RT_ERROR_3) != 0) return (rt_imp)fail_3;
    if ((flags & RT_ERROR_4) != 0) return (rt_imp)fail_4;
    if ((flags & RT_ERROR_5) != 0) return (rt_imp)fail_5;
    if ((flags & RT_ERROR_6) != 0) return (rt_imp)fail_6;
    return (rt_imp)fail_nil;
}

static rt_sel *intern(const char *name)
{
    size_t i = 0;
    while (i < n_sels && strcmp(sels[i].name, name) != 0)
        i++;
    if (i < n_sels) return &sels[i];
    if (i == SELS_MAX || strlen(name) >= sizeof sels[i].name) abort();
    (void)snprintf(sels[i].name, sizeof sels[i].name, "%s", name);
    n_sels++;
    return &sels[i];
}

/* Shall this call fail? Counts it. */
static bool must_fail(uint32_t flags, const rt_sel *sel)
{
    if ((flags & RT_FAILS) != 0) {
        if (rt_count.fallible < LOG_MAX) fallible[rt_count.fallible] = sel;
        rt_count.fallible++;
    }
    const rt_fault *f = &rt_opt.fail;
    if (f->at == 0) return false;
    if (strcmp(f->sel, "*") == 0) return (flags & RT_FAILS) != 0 && rt_count.fallible == f->at;
    return strcmp(f->sel, sel->name) == 0 && ++n_calls_failing == f->at;
}

bool rt_may(const char *function)
{
    return !must_fail(RT_FAILS, intern(function));
}

/* ---- Messages ---- */

static const char *kind(const obj *o)
{
    return o->is_class ? "class " : "";
}

static rt_imp lookup_locked(obj *self, rt_sel *sel)
{
    const bool known = sel >= sels && sel < sels + n_sels;
    rt_count.messages++;
    if (!known) {
        rt_violation("a message with a selector that was never registered");
    } else if (self == NULL) {
        rt_count.nil_messages++;
        if (strcmp(sel->name, "release") != 0) rt_violation("message %s to nil", sel->name);
    } else if (!is_object(self)) {
        rt_violation("message %s to %p, which is no object", sel->name, (void *)self);
    } else if (self->dead) {
        rt_violation("message %s to %s #%llu after its end", sel->name, self->cls->name,
                     (unsigned long long)self->serial);
    } else {
        const rt_method *m = find(self->cls, self->is_class, sel->name);
        if (m == NULL)
            rt_violation("%s%s does not understand \"%s\"", kind(self), self->cls->name, sel->name);
        else if (m->since > rt_opt.os)
            rt_violation("%s%s does not understand \"%s\" before macOS %u.%u", kind(self),
                         self->cls->name, sel->name, m->since / 100, m->since % 100);
        else
            return must_fail(m->flags, sel) ? failing(m->flags) : m->imp;
    }
    return standin_nil;
}

rt_imp standin_lookup(obj *self, rt_sel *sel)
{
    rt_lock();
    const rt_imp imp = lookup_locked(self, sel);
    rt_unlock();
    return imp;
}

const char *rt_sel_name(const rt_sel *s)
{
    return s->name;
}

STANDIN_API rt_sel *sel_registerName(const char *name);
STANDIN_API rt_sel *sel_registerName(const char *name)
{
    rt_lock();
    rt_sel *s = intern(name);
    rt_unlock();
    return s;
}

STANDIN_API obj *objc_getClass(const char *name);
STANDIN_API obj *objc_getClass(const char *name)
{
    for (size_t i = 0; rt_classes[i] != NULL; i++)
        if (strcmp(rt_classes[i]->name, name) == 0)
            return rt_classes[i]->since <= rt_opt.os ? class_objects[i] : NULL;
    rt_violation("there is no class \"%s\"", name);
    return NULL;
}

/* ---- Beginning and end ---- */

static void start(void)
{
    (void)pthread_key_create(&pools_key, pools_end);
    void *p = mmap(NULL, OBJECTS_MAX * sizeof *obj_space, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    fallible = mem_alloc_pages(LOG_MAX * sizeof *fallible);
    if (p == MAP_FAILED || fallible == NULL) abort();
    obj_space = p;
    for (size_t i = 0; rt_classes[i] != NULL; i++) {
        obj *o = class_objects[i] = &obj_space[n_objects++];
        o->cls = rt_classes[i];
        o->is_class = o->immortal = true;
        o->refs = 1;
    }
}

static void reset(void)
{
    rt_count = (rt_counts){0};
    n_open_pools = 0;
    generation++;
    n_calls_failing = 0;
    first_violation[0] = '\0';
}

__attribute__((constructor)) static void load(void)
{
    (void)pthread_once(&once, start);
    const char *text = getenv("CALLA_STANDIN");
    const char *bad = rt_options_parse(&rt_opt, text != NULL ? text : "");
    if (bad == NULL) return;
    fprintf(stderr, "stand-in: CALLA_STANDIN: %s\n", bad);
    abort();
}

static const char *left_behind(void)
{
    static char text[1024];
    int n = 0;
    uint32_t n_live = 0;
    for (size_t i = 0; i < n_objects; i++) {
        const obj *o = &obj_space[i];
        if (o->dead || o->immortal) continue;
        if (n_live++ < 8 && n >= 0 && (size_t)n < sizeof text)
            n += snprintf(text + n, sizeof text - (size_t)n, "%s%s #%llu (%u)",
                          n_live > 1 ? ", " : "", o->cls->name, (unsigned long long)o->serial,
                          o->refs);
    }
    if (n_live > 8 && (size_t)n < sizeof text)
        (void)snprintf(text + n, sizeof text - (size_t)n, " and %u more", n_live - 8);
    if (n_live > 0) return text;
    if (n_open_pools == 0) return NULL;
    (void)snprintf(text, sizeof text, "%llu autorelease pools are open",
                   (unsigned long long)n_open_pools);
    return text;
}

STANDIN_API const char *standin_finish(void)
{
    metal_drain();
    rt_lock();
    const char *text = left_behind();
    rt_unlock();
    return text;
}

/* What a failed test left behind is forgotten, not freed. */
STANDIN_API const char *standin_configure(const char *options)
{
    metal_drain();
    rt_lock();
    metal_reset();
    for (size_t i = 0; i < n_objects; i++)
        if (!obj_space[i].immortal) obj_space[i].dead = true;
    reset();
    const char *bad = rt_options_parse(&rt_opt, options);
    rt_unlock();
    return bad;
}

STANDIN_API const char *standin_violation(void)
{
    return first_violation[0] != '\0' ? first_violation : NULL;
}

STANDIN_API const char *standin_fallible(uint64_t n)
{
    return n >= 1 && n <= rt_count.fallible && n <= LOG_MAX ? fallible[n - 1]->name : NULL;
}

STANDIN_API bool standin_knows(const char *class_name, const char *selector)
{
    for (const rt_class *const *c = rt_classes; *c != NULL; c++)
        if (strcmp((*c)->name, class_name) == 0)
            return find(*c, false, selector) != NULL || find(*c, true, selector) != NULL;
    return false;
}

STANDIN_API uint64_t standin_count(const char *what)
{
    const struct {
        const char *name;
        uint64_t n;
    } all[] = {{"messages", rt_count.messages},   {"fallible", rt_count.fallible},
               {"barriers", rt_count.barriers},   {"dispatches", rt_count.dispatches},
               {"groups", rt_count.groups},       {"buffers", rt_count.buffers},
               {"encoders", rt_count.encoders},   {"objects", rt_count.objects},
               {"commits", rt_count.commits},     {"violations", rt_count.violations},
               {"pipelines", rt_count.pipelines}, {"libraries", rt_count.libraries},
               {"nil", rt_count.nil_messages},    {"checked", rt_count.checked},
               {"waves", rt_count.waves},         {"mutated", rt_count.mutated}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(all[i].name, what) == 0) return all[i].n;
    return 0;
}

__attribute__((destructor)) static void unload(void)
{
    if (pthread_mutex_trylock(&lock) != 0) return; /* a crash on the way out */
    rt_unlock();
    const char *text = standin_finish();
    if (text == NULL && rt_count.violations == 0) return;
    if (rt_opt.record && text == NULL) return;
    fprintf(stderr, "stand-in: left behind: %s\n", text != NULL ? text : first_violation);
    if (!rt_opt.record) abort();
}
