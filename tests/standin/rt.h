/* rt.h - the runtime's objects, for the files of the stand-in.
 *
 * Invariants: an object's place in memory is never used again, so that every use after the last
 *             release is seen. `body` dies with the object. Functions here want the lock held, but
 *             for those that say otherwise.
 */
#ifndef CALLA_TESTS_STANDIN_RT_H
#define CALLA_TESTS_STANDIN_RT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/attrs.h"

#define STANDIN_API __attribute__((visibility("default")))

typedef struct obj obj;
typedef struct rt_class rt_class;
typedef struct rt_sel rt_sel;
typedef void (*rt_imp)(void);

enum {
    RT_CLASS = 1,   /* a class method */
    RT_FAILS = 2,   /* can return nil or NO */
    RT_ERROR_3 = 4, /* its third, ... argument (receiver and selector counted) is an error out */
    RT_ERROR_4 = 8,
    RT_ERROR_5 = 16,
    RT_ERROR_6 = 32,
    RT_ERRORS = RT_ERROR_3 | RT_ERROR_4 | RT_ERROR_5 | RT_ERROR_6
};

typedef struct rt_method {
    const char *sel;
    rt_imp imp;
    uint32_t flags;
    uint32_t since; /* version of macOS, 15.2 as 1502; 0: always */
} rt_method;
#define RT_M(sel, fn, ...)                                                                         \
    {                                                                                              \
        sel, (rt_imp)(fn), __VA_ARGS__                                                             \
    }

struct rt_class {
    const char *name;
    const rt_class *super;
    const rt_method *methods; /* up to a NULL sel */
    size_t body_bytes;
    void (*dealloc)(obj *o);
    uint32_t since;
};

struct obj {
    const rt_class *cls;
    uint32_t refs;
    bool is_class, dead, immortal;
    uint64_t serial;
    void *body;
};

extern const rt_class class_NSObject;
/* All classes, up to NULL. */
extern const rt_class *const rt_classes[];

void rt_lock(void);
void rt_unlock(void);
/* Until a state changes (rt_wake); the lock is released meanwhile. */
void rt_wait(void);
void rt_wake(void);
/* Until *value is at least v; false when it is not in time. */
bool rt_wait_value(const uint64_t *value, uint64_t v, uint64_t timeout_ms);

/* Any thread, with or without the lock. */
void rt_violation(const char *fmt, ...) ATTR_PRINTF(1, 2);

obj *rt_new(const rt_class *cls); /* +1 */
obj *rt_retain(obj *o);           /* NULL is fine */
void rt_release(obj *o);
obj *rt_autorelease(obj *o);
/* Is it an object of this class (or one below it) that lives? Else a violation that names what. */
bool rt_is(obj *o, const rt_class *cls, const char *what);
#define RT_BODY(o, type) ((type *)(o)->body)
/* Of a C function that can fail: counted as a message is; false when it must. */
bool rt_may(const char *function);
bool rt_inherits(const rt_class *c, const rt_class *from);
const char *rt_sel_name(const rt_sel *s);

/* foundation.c */
extern const rt_class class_NSString, class_NSError, class_NSNumber, class_NSDictionary,
    class_NSMutableDictionary, class_NSProcessInfo, class_NSArray, class_NSURL;
obj *ns_string(const char *text);                                  /* +1 */
const char *ns_text(obj *string);                                  /* borrowed */
obj *ns_error(const char *domain, long code, const char *message); /* +1 */
obj *ns_array(obj *const *items, size_t n);                        /* +1; retains them */
/* The value of a key as a number or text of a number; false: there is none. */
bool ns_dictionary_number(obj *dict, const char *key, long *value);
size_t ns_dictionary_count(obj *dict);
void ns_error_out(obj **out, const char *domain, long code, const char *message);

/* options.c */
typedef struct rt_fault {
    char sel[96];
    uint64_t at;
} rt_fault;
typedef struct rt_chip {
    const char *name, *device, *arch;
    uint32_t generation, cores;
    uint64_t memory;
} rt_chip;
typedef struct rt_options {
    const rt_chip *chip;
    uint32_t os; /* 1502: 15.2 */
    uint64_t memory, working_set, max_buffer, page;
    enum { MODE_CHECK, MODE_MSL, MODE_NONE } mode;
    uint64_t seed, delay_us;
    bool record, no_tensor;
    rt_fault fail;
    char error[256];
    bool error_nil;
    uint64_t cb_error_at, cb_hang_at;
    long cb_error;
    bool cb_error_sticky;
    int wrong_rung; /* -1: none */
    uint64_t max_threads, thermal, low_power;
    uint64_t drop_barrier;
    uint64_t mutated; /* dispatch */
    enum mutation { MUTATE_NONE, MUTATE_SWAP, MUTATE_SHIFT, MUTATE_STALE } mutation;
    uint32_t mutate_a;
    uint64_t mutate_b;
} rt_options;
extern rt_options rt_opt;
/* NULL, or what is wrong. */
const char *rt_options_parse(rt_options *o, const char *text);

/* Counters of standin_count(). */
typedef struct rt_counts {
    uint64_t messages, fallible, barriers, dispatches, groups, buffers, encoders, objects, commits,
        violations, pipelines, libraries, nil_messages, checked, waves, mutated;
} rt_counts;
extern rt_counts rt_count;

/* Forgets the device and what ran on it. */
void metal_reset(void);
void device_reset(void);
void encode_reset(void);
/* Waits for the command buffers in flight. */
void metal_drain(void);

#endif
