/* error.h - the one error convention.
 *
 * Does:    fills calla_error (include/calla.h). A fallible function returns calla_status, zero is
 *          success, and takes an optional `calla_error *err` (NULL is allowed everywhere).
 *          Control characters in what a sentence quotes become '?'.
 * Threads: pure functions.
 */
#ifndef CALLA_BASE_ERROR_H
#define CALLA_BASE_ERROR_H

#include "base/attrs.h"
#include "calla.h"

/* Writes code and a formatted one-sentence message; byte offset becomes CALLA_NO_OFFSET.
 * Returns `code`, so that `return err_set(err, CALLA_ERR_IO, "...")` reads well. */
calla_status err_set(calla_error *err, calla_status code, const char *fmt, ...) ATTR_PRINTF(3, 4);

/* As err_set, with the byte position in the input where the fault was found. */
calla_status err_set_at(calla_error *err, calla_status code, uint64_t offset, const char *fmt, ...)
    ATTR_PRINTF(4, 5);

/* Puts "PREFIX: " before an existing message (a file name, say). Keeps the code. */
calla_status err_prefix(calla_error *err, calla_status code, const char *fmt, ...)
    ATTR_PRINTF(3, 4);

/* The static analyser does not see into error.c: tell it that these return their code. */
#if defined(__clang_analyzer__) && !defined(CALLA_ERROR_C)
#define err_set(err, code, ...)         ((void)err_set(err, code, __VA_ARGS__), (code))
#define err_set_at(err, code, off, ...) ((void)err_set_at(err, code, off, __VA_ARGS__), (code))
#define err_prefix(err, code, ...)      ((void)err_prefix(err, code, __VA_ARGS__), (code))
#endif

/* In a function that has `calla_status st` and a label `fail`. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        st = (call);                                                                               \
        if (st != CALLA_OK) goto fail;                                                             \
    } while (0)

#endif
