/* api.h - Objective-C and Metal from plain C, found at run time.
 *
 * Does:       declares the public binary interface in our own words, so that neither Apple's
 *             headers nor its frameworks are needed to build or to start the program. What is said
 *             to whom stands in selectors.inc; here it becomes one function pointer a method, all
 *             of them objc_msgSend with its true type (it must not be called in another way).
 * Owns:       the libraries stay open until the process ends.
 * Invariants: a message to nothing (NULL) is answered with nothing, so each object is checked where
 *             it comes from.
 * Errors:     CALLA_ERR_UNSUPPORTED when the machine has no Metal, or lacks a function or a class.
 */
#ifndef CALLA_EXEC_GPU_METAL_API_H
#define CALLA_EXEC_GPU_METAL_API_H

#include "base/error.h"

typedef void *m_id;
typedef void *m_sel;
typedef void *m_ptr;
typedef const void *m_data;
typedef const char *m_str;
typedef m_id *m_error;
typedef void *m_block;
typedef unsigned long m_uint;
typedef long m_int;
typedef uint64_t m_u64;
typedef bool m_bool;
typedef struct m_size {
    unsigned long width, height, depth;
} m_size;
typedef struct m_range {
    unsigned long location, length;
} m_range;
typedef struct m_version {
    long major, minor, patch;
} m_version;

enum {
#define VALUE(name, apple, value) name = (value),
#include "exec/gpu/metal/selectors.inc"
};

typedef struct metal_api {
    struct {
#define FUNCTION(field, symbol, result, parameters) result(*field) parameters;
#include "exec/gpu/metal/selectors.inc"
    } f;
    struct {
#define CLASS(field, name, since) m_id field; /* NULL: this system is older */
#include "exec/gpu/metal/selectors.inc"
    } c;
    struct {
#define METHOD(receiver, field, selector, since, result, parameters)                               \
    struct {                                                                                       \
        m_sel sel;                                                                                 \
        result(*send) parameters;                                                                  \
    } field;
#include "exec/gpu/metal/selectors.inc"
    } m;
} metal_api;

/* A message, without and with arguments. */
#define SEND0(api, method, object) ((api)->m.method.send((object), (api)->m.method.sel))
#define SEND(api, method, object, ...)                                                             \
    ((api)->m.method.send((object), (api)->m.method.sel, __VA_ARGS__))

/* Opens the libraries of the table; `one`, when not NULL, is a single library that stands for all
 * of them ($CALLA_METAL_FRAMEWORK: tests, or a layer that records calls). */
calla_status metal_api_open(metal_api *api, const char *one, calla_error *err);

/* The pool's: NULL without memory. */
m_id metal_string(const metal_api *a, const char *text);
/* The text of a string into a fixed place, cut when too long; empty for NULL. */
void metal_text(const metal_api *a, m_id string, char *text, size_t bytes);
/* What an NSError says; "no description" for NULL. */
void metal_error_text(const metal_api *a, m_id error, char *text, size_t bytes);

#endif
