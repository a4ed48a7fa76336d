/* The device and what it makes: buffers, libraries, functions, pipelines, residency sets. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/mem.h"
#include "metal.h"

#define BUFFERS_MAX 4096u

static obj *the_device;
static uint64_t allocated;
/* Shadows of tracked buffers. */
static const shadow *tracked[BUFFERS_MAX];
static size_t n_tracked;

/* ---- Buffers ---- */

bool buffer_tracked(const shadow *s)
{
    for (size_t i = 0; i < n_tracked; i++)
        if (tracked[i] == s) return true;
    return false;
}

static void buffer_track(const shadow *s)
{
    if (n_tracked == BUFFERS_MAX) abort();
    tracked[n_tracked++] = s;
}

static void buffer_untrack(const shadow *s)
{
    for (size_t i = 0; i < n_tracked; i++)
        if (tracked[i] == s) tracked[i] = tracked[--n_tracked];
}

static void buffer_dealloc(obj *o)
{
    buffer_body *b = RT_BODY(o, buffer_body);
    if (b->n_in_flight > 0)
        rt_violation("buffer %s #%llu ends while a command buffer that uses it runs", b->label,
                     (unsigned long long)o->serial);
    buffer_untrack(b->shadow);
    shadow_destroy(b->shadow);
    allocated -= b->bytes;
    if (b->mapped == 0) return;
    /* The addresses stay taken: later use is a fault. */
    (void)madvise(b->data, b->mapped, MADV_DONTNEED);
    (void)mprotect(b->data, b->mapped, PROT_NONE);
}

static obj *buffer_make(uint8_t *data, uint64_t bytes, uint64_t mapped, unsigned long options)
{
    obj *o = rt_new(&class_MTLBuffer);
    *RT_BODY(o, buffer_body) =
        (buffer_body){.data = data, .bytes = bytes, .mapped = mapped, .options = options};
    if (rt_opt.mode == MODE_CHECK) {
        RT_BODY(o, buffer_body)->shadow = shadow_create(bytes, true);
        if (RT_BODY(o, buffer_body)->shadow == NULL) abort();
        if ((options & UNTRACKED) == 0) buffer_track(RT_BODY(o, buffer_body)->shadow);
    }
    allocated += bytes;
    rt_count.buffers++;
    if (allocated > rt_opt.working_set)
        rt_violation("%llu bytes are allocated, the working set is %llu",
                     (unsigned long long)allocated, (unsigned long long)rt_opt.working_set);
    return o;
}

/* May a buffer of this length be made? */
static bool length_allowed(uint64_t bytes)
{
    if (bytes == 0) rt_violation("a buffer of no bytes");
    if (bytes > rt_opt.max_buffer)
        rt_violation("a buffer of %llu bytes, maxBufferLength is %llu", (unsigned long long)bytes,
                     (unsigned long long)rt_opt.max_buffer);
    return bytes > 0 && bytes <= rt_opt.max_buffer;
}

static void check_options(unsigned long options)
{
    if ((options & ~0x30ful) != 0 || (options & 0x300) == 0x300 || (options & 0xf) > 1)
        rt_violation("resource options 0x%lx", options);
}

/* New memory is not zero: nothing may depend on it. A page without access follows. */
static obj *new_buffer(obj *self, rt_sel *sel, unsigned long bytes, unsigned long options)
{
    (void)self;
    (void)sel;
    obj *o = NULL;
    rt_lock();
    check_options(options);
    if (length_allowed(bytes) && bytes <= rt_opt.memory - allocated) {
        const uint64_t page = 4096, size = (bytes + page - 1) / page * page + page;
        uint8_t *p = mmap(NULL, size, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p != MAP_FAILED) {
            (void)mprotect(p + size - page, page, PROT_NONE);
            if (bytes <= (64u << 20)) memset(p, 0xff, bytes);
            o = buffer_make(p, bytes, size, options);
        }
    }
    rt_unlock();
    return o;
}

static obj *new_buffer_over(obj *self, rt_sel *sel, void *p, unsigned long bytes,
                            unsigned long options, void *deallocator)
{
    (void)self;
    (void)sel;
    obj *o = NULL;
    rt_lock();
    check_options(options);
    if ((uintptr_t)p % rt_opt.page != 0 || p == NULL)
        rt_violation("newBufferWithBytesNoCopy: %p is not at a page of %llu bytes", p,
                     (unsigned long long)rt_opt.page);
    else if (bytes % rt_opt.page != 0)
        rt_violation("newBufferWithBytesNoCopy: %lu bytes are not whole pages of %llu", bytes,
                     (unsigned long long)rt_opt.page);
    else if (deallocator != NULL)
        rt_violation("newBufferWithBytesNoCopy: a deallocator");
    else if ((options & 0xf0) != 0)
        rt_violation("newBufferWithBytesNoCopy: the memory is not shared (options 0x%lx)", options);
    else if (length_allowed(bytes))
        o = buffer_make(p, bytes, 0, options);
    rt_unlock();
    return o;
}

static void *buffer_contents(obj *self, rt_sel *sel)
{
    (void)sel;
    const buffer_body *b = RT_BODY(self, buffer_body);
    return (b->options & 0xf0) == 0 ? b->data : NULL;
}

static unsigned long buffer_length(obj *self, rt_sel *sel)
{
    (void)sel;
    return RT_BODY(self, buffer_body)->bytes;
}

static void buffer_set_label(obj *self, rt_sel *sel, obj *label)
{
    (void)sel;
    buffer_body *b = RT_BODY(self, buffer_body);
    (void)snprintf(b->label, sizeof b->label, "%s", ns_text(label));
}

static const rt_method buffer_methods[] = {RT_M("contents", buffer_contents, RT_FAILS, 0),
                                           RT_M("length", buffer_length, 0, 0),
                                           RT_M("setLabel:", buffer_set_label, 0, 0),
                                           {NULL, NULL, 0, 0}};
const rt_class class_MTLBuffer = {"MTLBuffer",         &class_NSObject, buffer_methods,
                                  sizeof(buffer_body), buffer_dealloc,  0};

/* ---- Libraries ---- */

typedef struct compile_body {
    unsigned long language;
    long math, functions;
    bool has_language, has_math, has_functions, has_fast;
    obj *macros;
} compile_body;

static void compile_dealloc(obj *o)
{
    rt_release(RT_BODY(o, compile_body)->macros);
}

static void compile_language(obj *self, rt_sel *sel, unsigned long v)
{
    (void)sel;
    RT_BODY(self, compile_body)->language = v;
    RT_BODY(self, compile_body)->has_language = true;
}

static void compile_math(obj *self, rt_sel *sel, long v)
{
    (void)sel;
    RT_BODY(self, compile_body)->math = v;
    RT_BODY(self, compile_body)->has_math = true;
}

static void compile_functions(obj *self, rt_sel *sel, long v)
{
    (void)sel;
    RT_BODY(self, compile_body)->functions = v;
    RT_BODY(self, compile_body)->has_functions = true;
}

static void compile_fast(obj *self, rt_sel *sel, bool v)
{
    (void)sel;
    if (v) rt_violation("setFastMathEnabled: yes; the kernels want exact arithmetic");
    RT_BODY(self, compile_body)->has_fast = true;
}

static void compile_macros(obj *self, rt_sel *sel, obj *dict)
{
    (void)sel;
    rt_lock();
    compile_body *b = RT_BODY(self, compile_body);
    if (dict == NULL || rt_is(dict, &class_NSDictionary, "setPreprocessorMacros:")) {
        rt_release(b->macros);
        b->macros = rt_retain(dict);
    }
    rt_unlock();
}

static const rt_method compile_methods[] = {
    RT_M("setLanguageVersion:", compile_language, 0, 0),
    RT_M("setMathMode:", compile_math, 0, 1500),
    RT_M("setMathFloatingPointFunctions:", compile_functions, 0, 1500),
    RT_M("setFastMathEnabled:", compile_fast, 0, 0),
    RT_M("setPreprocessorMacros:", compile_macros, 0, 0),
    {NULL, NULL, 0, 0}};
const rt_class class_MTLCompileOptions = {"MTLCompileOptions",  &class_NSObject, compile_methods,
                                          sizeof(compile_body), compile_dealloc, 0};

uint64_t exec_hash(const char *s)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (; *s != '\0'; s++)
        h = (h ^ (uint8_t)*s) * 0x100000001b3u;
    return h;
}

static unsigned long newest_language(void)
{
    return rt_opt.os >= 2700   ? 0x40001
           : rt_opt.os >= 2600 ? 0x40000
           : rt_opt.os >= 1500 ? 0x30002
                               : 0x30001;
}

/* What must be said of a compilation; the rung it is for. */
static bool check_compile(const compile_body *c, long *rung, char *log, size_t size)
{
    *rung = -1;
    if (!c->has_language)
        rt_violation("a library without setLanguageVersion: its language follows the SDK");
    if (rt_opt.os >= 1500 ? !c->has_math || c->math != 0 || !c->has_functions || c->functions != 1
                          : !c->has_fast)
        rt_violation("a library without exact arithmetic: set math mode 0 and precise functions, "
                     "or no fast math before macOS 15");
    if (c->macros != NULL && (!ns_dictionary_number(c->macros, "CALLA_RUNG", rung) ||
                              ns_dictionary_count(c->macros) != 1))
        rt_violation("macros other than CALLA_RUNG");
    if (*rung < -1 || *rung > 3) rt_violation("CALLA_RUNG is %ld", *rung);
    const unsigned long want = *rung >= 2 ? 0x40000 : rt_opt.os >= 1500 ? 0x30002 : 0x30001;
    if (c->has_language && c->language != want)
        rt_violation("language 0x%lx for rung %ld, not 0x%lx", c->language, *rung, want);
    log[0] = '\0';
    if (c->language > newest_language())
        (void)snprintf(log, size, "invalid value 'metal%lu.%lu' in '-std='", c->language >> 16,
                       c->language & 0xffff);
    else if (*rung >= 2 && (rt_opt.no_tensor || rt_opt.chip->generation < 10))
        (void)snprintf(log, size, "program_source:9:2: error: no tensors: __HAVE_TENSOR__");
    return log[0] == '\0';
}

static obj *new_library(obj *self, rt_sel *sel, obj *source, obj *options, obj **error)
{
    (void)self;
    (void)sel;
    obj *o = NULL;
    long rung = -1;
    char log[200];
    rt_lock();
    if (rt_is(source, &class_NSString, "newLibraryWithSource:") &&
        rt_is(options, &class_MTLCompileOptions, "newLibraryWithSource:options:")) {
        const char *text = ns_text(source);
        if (check_compile(RT_BODY(options, compile_body), &rung, log, sizeof log)) {
            const uint64_t hash = exec_hash(text);
            const simt_kernel *kernels = exec_kernels(hash, (int)rung);
            if (kernels == NULL)
                rt_violation("newLibraryWithSource: no expansion of this text (%llu bytes, hash "
                             "%016llx, rung %ld)",
                             (unsigned long long)strlen(text), (unsigned long long)hash, rung);
            o = rt_new(&class_MTLLibrary);
            *RT_BODY(o, library_body) = (library_body){hash, (int)rung, kernels};
            rt_count.libraries++;
        } else {
            ns_error_out(error, "MTLLibraryErrorDomain", 3, log);
        }
    }
    rt_unlock();
    return o;
}

static const simt_kernel *library_kernel(const library_body *l, const char *name)
{
    for (const simt_kernel *k = l->kernels; k != NULL && k->name != NULL; k++)
        if (strcmp(k->name, name) == 0) return exec_has(l->hash, name) ? k : NULL;
    return NULL;
}

static obj *new_function(obj *self, rt_sel *sel, obj *name)
{
    (void)sel;
    obj *o = NULL;
    rt_lock();
    if (rt_is(name, &class_NSString, "newFunctionWithName:")) {
        const library_body *l = RT_BODY(self, library_body);
        const simt_kernel *k = library_kernel(l, ns_text(name));
        if (k == NULL) {
            rt_violation("newFunctionWithName: the library has no \"%s\"", ns_text(name));
        } else {
            o = rt_new(&class_MTLFunction);
            *RT_BODY(o, function_body) = (function_body){k, l->rung};
        }
    }
    rt_unlock();
    return o;
}

static const rt_method library_methods[] = {RT_M("newFunctionWithName:", new_function, RT_FAILS, 0),
                                            {NULL, NULL, 0, 0}};
const rt_class class_MTLLibrary = {
    "MTLLibrary", &class_NSObject, library_methods, sizeof(library_body), NULL, 0};
const rt_class class_MTLFunction = {
    "MTLFunction", &class_NSObject, NULL, sizeof(function_body), NULL, 0};

/* ---- Pipelines ---- */

typedef struct descriptor_body {
    obj *function;
    unsigned long max_threads;
    bool whole;
} descriptor_body;

static void descriptor_dealloc(obj *o)
{
    rt_release(RT_BODY(o, descriptor_body)->function);
}

static void descriptor_function(obj *self, rt_sel *sel, obj *f)
{
    (void)sel;
    rt_lock();
    descriptor_body *b = RT_BODY(self, descriptor_body);
    if (rt_is(f, &class_MTLFunction, "setComputeFunction:")) {
        rt_release(b->function);
        b->function = rt_retain(f);
    }
    rt_unlock();
}

static void descriptor_max(obj *self, rt_sel *sel, unsigned long n)
{
    (void)sel;
    if (n == 0 || n > 1024) rt_violation("setMaxTotalThreadsPerThreadgroup: %lu", n);
    RT_BODY(self, descriptor_body)->max_threads = n;
}

static void descriptor_whole(obj *self, rt_sel *sel, bool v)
{
    (void)sel;
    RT_BODY(self, descriptor_body)->whole = v;
}

static const rt_method descriptor_methods[] = {
    RT_M("setComputeFunction:", descriptor_function, 0, 0),
    RT_M("setMaxTotalThreadsPerThreadgroup:", descriptor_max, 0, 0),
    RT_M("setThreadGroupSizeIsMultipleOfThreadExecutionWidth:", descriptor_whole, 0, 0),
    {NULL, NULL, 0, 0}};
const rt_class class_MTLComputePipelineDescriptor = {
    "MTLComputePipelineDescriptor", &class_NSObject,    descriptor_methods,
    sizeof(descriptor_body),        descriptor_dealloc, 0};

static obj *new_pipeline(obj *self, rt_sel *sel, obj *descriptor, unsigned long options,
                         void *reflection, obj **error)
{
    (void)self;
    (void)sel;
    (void)error;
    obj *o = NULL;
    rt_lock();
    if (options != 0 || reflection != NULL) rt_violation("a pipeline with reflection");
    if (rt_is(descriptor, &class_MTLComputePipelineDescriptor, "newComputePipelineState")) {
        const descriptor_body *d = RT_BODY(descriptor, descriptor_body);
        if (rt_is(d->function, &class_MTLFunction, "newComputePipelineState: function")) {
            const function_body *f = RT_BODY(d->function, function_body);
            const unsigned long most = d->max_threads != 0 ? d->max_threads : 1024;
            o = rt_new(&class_MTLComputePipelineState);
            *RT_BODY(o, pipeline_body) = (pipeline_body){
                .kernel = f->kernel,
                .rung = f->rung,
                .max_threads = most < rt_opt.max_threads ? most : rt_opt.max_threads};
            rt_count.pipelines++;
        }
    }
    rt_unlock();
    return o;
}

static void pipeline_dealloc(obj *o)
{
    const pipeline_body *b = RT_BODY(o, pipeline_body);
    if (b->n_in_flight > 0 && rt_opt.cb_hang_at == 0)
        rt_violation("pipeline %s ends while a command buffer that uses it runs", b->kernel->name);
}

static unsigned long pipeline_max(obj *self, rt_sel *sel)
{
    (void)sel;
    return RT_BODY(self, pipeline_body)->max_threads;
}

static unsigned long pipeline_width(obj *self, rt_sel *sel)
{
    (void)self;
    (void)sel;
    return 32;
}

static unsigned long pipeline_memory(obj *self, rt_sel *sel)
{
    (void)self;
    (void)sel;
    return 0;
}

static const rt_method pipeline_methods[] = {
    RT_M("maxTotalThreadsPerThreadgroup", pipeline_max, 0, 0),
    RT_M("threadExecutionWidth", pipeline_width, 0, 0),
    RT_M("staticThreadgroupMemoryLength", pipeline_memory, 0, 0),
    {NULL, NULL, 0, 0}};
const rt_class class_MTLComputePipelineState = {"MTLComputePipelineState", &class_NSObject,
                                                pipeline_methods,          sizeof(pipeline_body),
                                                pipeline_dealloc,          0};

/* ---- Residency ---- */

static void set_free(obj **items, size_t n)
{
    for (size_t i = 0; i < n; i++)
        rt_release(items[i]);
    mem_free(items);
}

static void set_dealloc(obj *o)
{
    set_body *b = RT_BODY(o, set_body);
    set_free(b->committed, b->n_committed);
    set_free(b->items, b->n_items);
}

bool set_has(obj *set, const obj *buffer)
{
    const set_body *b = RT_BODY(set, set_body);
    for (size_t i = 0; i < b->n_committed; i++)
        if (b->committed[i] == buffer) return true;
    return false;
}

static size_t set_index(const set_body *b, const obj *buffer)
{
    size_t i = 0;
    while (i < b->n_items && b->items[i] != buffer)
        i++;
    return i;
}

static void set_add(obj *self, rt_sel *sel, obj *buffer)
{
    (void)sel;
    rt_lock();
    set_body *b = RT_BODY(self, set_body);
    if (rt_is(buffer, &class_MTLBuffer, "addAllocation:") && set_index(b, buffer) == b->n_items) {
        if (b->n_items == b->cap) {
            b->cap = 2 * b->cap + 16;
            b->items = mem_resize(b->items, b->cap * sizeof *b->items);
            if (b->items == NULL) abort();
        }
        b->items[b->n_items++] = rt_retain(buffer);
    }
    rt_unlock();
}

static void set_remove(obj *self, rt_sel *sel, obj *buffer)
{
    (void)sel;
    rt_lock();
    set_body *b = RT_BODY(self, set_body);
    if (rt_is(buffer, &class_MTLBuffer, "removeAllocation:")) {
        const size_t i = set_index(b, buffer);
        if (i == b->n_items) {
            rt_violation("removeAllocation: the set does not have the buffer");
        } else {
            b->items[i] = b->items[--b->n_items];
            rt_release(buffer);
        }
    }
    rt_unlock();
}

static void set_commit(obj *self, rt_sel *sel)
{
    (void)sel;
    rt_lock();
    set_body *b = RT_BODY(self, set_body);
    obj **old = b->committed;
    const size_t n_old = b->n_committed;
    b->committed = mem_array(b->n_items + 1, sizeof *b->committed);
    if (b->committed == NULL) abort();
    b->n_committed = b->n_items;
    for (size_t i = 0; i < b->n_items; i++)
        b->committed[i] = rt_retain(b->items[i]);
    set_free(old, n_old);
    rt_unlock();
}

static void set_request(obj *self, rt_sel *sel)
{
    (void)sel;
    RT_BODY(self, set_body)->requested = true;
}

static void set_end(obj *self, rt_sel *sel)
{
    (void)sel;
    RT_BODY(self, set_body)->requested = false;
}

static const rt_method set_methods[] = {
    RT_M("addAllocation:", set_add, 0, 0), RT_M("removeAllocation:", set_remove, 0, 0),
    RT_M("commit", set_commit, 0, 0),      RT_M("requestResidency", set_request, 0, 0),
    RT_M("endResidency", set_end, 0, 0),   {NULL, NULL, 0, 0}};
const rt_class class_MTLResidencySet = {"MTLResidencySet", &class_NSObject, set_methods,
                                        sizeof(set_body),  set_dealloc,     1500};

static void set_capacity(obj *self, rt_sel *sel, unsigned long n)
{
    (void)self;
    (void)sel;
    if (n > 1u << 20) rt_violation("setInitialCapacity: %lu", n);
}

static const rt_method set_descriptor_methods[] = {RT_M("setInitialCapacity:", set_capacity, 0, 0),
                                                   {NULL, NULL, 0, 0}};
const rt_class class_MTLResidencySetDescriptor = {
    "MTLResidencySetDescriptor", &class_NSObject, set_descriptor_methods, 0, NULL, 1500};

static obj *new_set(obj *self, rt_sel *sel, obj *descriptor, obj **error)
{
    (void)self;
    (void)sel;
    (void)error;
    obj *o = NULL;
    rt_lock();
    if (rt_is(descriptor, &class_MTLResidencySetDescriptor, "newResidencySetWithDescriptor:"))
        o = rt_new(&class_MTLResidencySet);
    rt_unlock();
    return o;
}

/* ---- The device ---- */

static obj *text_of(const char *text)
{
    rt_lock();
    obj *o = rt_autorelease(ns_string(text));
    rt_unlock();
    return o;
}

static obj *device_name(obj *self, rt_sel *sel)
{
    (void)self;
    (void)sel;
    return text_of(rt_opt.chip->device);
}

static obj *device_architecture(obj *self, rt_sel *sel)
{
    (void)self;
    (void)sel;
    rt_lock();
    obj *o = rt_autorelease(rt_new(&class_MTLArchitecture));
    rt_unlock();
    return o;
}

static obj *architecture_name(obj *self, rt_sel *sel)
{
    (void)self;
    (void)sel;
    return text_of(rt_opt.chip->arch);
}

static bool device_family(obj *self, rt_sel *sel, long family)
{
    (void)self;
    (void)sel;
    if (family >= 1001 && family <= 1020) return family <= 1000 + (long)rt_opt.chip->generation;
    if (family == 5001) return true;
    if (family == 5002) return rt_opt.os >= 2600;
    rt_violation("supportsFamily: %ld", family);
    return false;
}

static bool device_unified(obj *self, rt_sel *sel)
{
    (void)self;
    (void)sel;
    return true;
}

static uint64_t device_working_set(obj *self, rt_sel *sel)
{
    (void)self;
    (void)sel;
    return rt_opt.working_set;
}

static unsigned long device_allocated(obj *self, rt_sel *sel)
{
    (void)self;
    (void)sel;
    return allocated;
}

static unsigned long device_max_buffer(obj *self, rt_sel *sel)
{
    (void)self;
    (void)sel;
    return rt_opt.max_buffer;
}

static unsigned long device_tg_memory(obj *self, rt_sel *sel)
{
    (void)self;
    (void)sel;
    return 32768;
}

static obj *new_of(const rt_class *cls)
{
    rt_lock();
    obj *o = rt_new(cls);
    rt_unlock();
    return o;
}

static obj *new_queue(obj *self, rt_sel *sel)
{
    (void)self;
    (void)sel;
    return new_of(&class_MTLCommandQueue);
}

static obj *new_fence(obj *self, rt_sel *sel)
{
    (void)self;
    (void)sel;
    return new_of(&class_MTLFence);
}

static obj *new_event(obj *self, rt_sel *sel)
{
    (void)self;
    (void)sel;
    return new_of(&class_MTLSharedEvent);
}

static const rt_method device_methods[] = {
    RT_M("name", device_name, RT_FAILS, 0),
    RT_M("architecture", device_architecture, RT_FAILS, 0),
    RT_M("supportsFamily:", device_family, 0, 0),
    RT_M("hasUnifiedMemory", device_unified, 0, 0),
    RT_M("recommendedMaxWorkingSetSize", device_working_set, 0, 0),
    RT_M("currentAllocatedSize", device_allocated, 0, 0),
    RT_M("maxBufferLength", device_max_buffer, 0, 0),
    RT_M("maxThreadgroupMemoryLength", device_tg_memory, 0, 0),
    RT_M("newCommandQueue", new_queue, RT_FAILS, 0),
    RT_M("newBufferWithLength:options:", new_buffer, RT_FAILS, 0),
    RT_M("newBufferWithBytesNoCopy:length:options:deallocator:", new_buffer_over, RT_FAILS, 0),
    RT_M("newLibraryWithSource:options:error:", new_library, RT_FAILS | RT_ERROR_5, 0),
    RT_M("newComputePipelineStateWithDescriptor:options:reflection:error:", new_pipeline,
         RT_FAILS | RT_ERROR_6, 0),
    RT_M("newFence", new_fence, RT_FAILS, 0),
    RT_M("newSharedEvent", new_event, RT_FAILS, 0),
    RT_M("newResidencySetWithDescriptor:error:", new_set, RT_FAILS | RT_ERROR_4, 1500),
    {NULL, NULL, 0, 0}};

static void device_dealloc(obj *o)
{
    (void)o;
    the_device = NULL;
}

const rt_class class_MTLDevice = {"MTLDevice", &class_NSObject, device_methods,
                                  0,           device_dealloc,  0};
static const rt_method architecture_methods[] = {RT_M("name", architecture_name, RT_FAILS, 0),
                                                 {NULL, NULL, 0, 0}};
const rt_class class_MTLArchitecture = {
    "MTLArchitecture", &class_NSObject, architecture_methods, 0, NULL, 0};

STANDIN_API obj *MTLCreateSystemDefaultDevice(void);
STANDIN_API obj *MTLCreateSystemDefaultDevice(void)
{
    rt_lock();
    obj *o = NULL;
    if (rt_may("MTLCreateSystemDefaultDevice"))
        o = the_device = the_device != NULL ? rt_retain(the_device) : rt_new(&class_MTLDevice);
    rt_unlock();
    return o;
}

STANDIN_API obj *MTLCopyAllDevices(void);
STANDIN_API obj *MTLCopyAllDevices(void)
{
    obj *d = MTLCreateSystemDefaultDevice();
    rt_lock();
    obj *o = NULL;
    if (d != NULL && rt_may("MTLCopyAllDevices")) o = ns_array(&d, 1);
    rt_release(d);
    rt_unlock();
    return o;
}

void device_reset(void)
{
    the_device = NULL;
    allocated = 0;
    n_tracked = 0;
}
