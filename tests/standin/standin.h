/* standin.h - an Objective-C runtime and a Metal framework that stand in for Apple's.
 *
 * Does:       one shared library exports what the Metal driver looks up in libobjc, Foundation and
 *             Metal. Every message is checked (receiver, selector, life, arguments, state of the
 *             encoder, order of the dispatches), and dispatches run on the SIMT emulator.
 * Options:    "name=value,..." from CALLA_STANDIN or standin_configure():
 *   chip=M1|M1Max|M2|M3Ultra|M4Pro|M5|M5Max   os=14.0|15.0|26.0|26.4...     what it plays
 *   memory= working-set= max-buffer= BYTES    (k, m, g)    page=BYTES
 *   mode=check|msl|none   check: the portable kernels with shadow memory; msl: the expansion of
 *                         the very text that was handed over; none: dispatches do nothing
 *   seed=N                order of independent dispatches, groups, lanes; delays; 0: ascending
 *   delay=US              the longest delay before a command buffer runs
 *   record=1              violations are kept for standin_violation() instead of aborting
 *   fail=SELECTOR@N       the N-th call of it fails; fail=*@N: the N-th call that can fail
 *   error=TEXT            what such a failure says; error= (empty): nil without an error
 *   cb-error=CODE@N       the N-th command buffer ends with this error; CODE@N+: and all after it
 *   cb-hang=N             the N-th command buffer never ends
 *   no-tensor=1           the compiler lacks __HAVE_TENSOR__
 *   wrong=RUNG            kernels of libraries of this rung are wrong where a size exceeds 1024
 *   max-threads=N         what pipelines allow at most
 *   drop-barrier=N swap=N:A:B shift=N:A:BYTES stale=N:A   mutations of the N-th barrier, or of the
 *                         arguments of the N-th dispatch (counted from 1; indices A, B)
 * Errors:     a violation is one sentence on stderr and an abort. At exit, objects that live and
 *             pools that are open are one.
 * Threads:    as Metal's.
 */
#ifndef CALLA_TESTS_STANDIN_H
#define CALLA_TESTS_STANDIN_H

#include <stdbool.h>
#include <stdint.h>

/* All found with dlsym. */

/* Forgets everything and plays anew; NULL, or what is wrong with the options. */
const char *standin_configure(const char *options);
/* Waits for what runs. NULL, or what was left behind. */
const char *standin_finish(void);
/* The first violation since standin_configure(), or NULL. */
const char *standin_violation(void);
/* "messages", "fallible", "barriers", "dispatches", "groups", "buffers", "encoders", "objects",
 * "checked" ... (standin.c); 0 for another word. */
uint64_t standin_count(const char *what);
/* The selector of the n-th call that could fail (from 1), or NULL. */
const char *standin_fallible(uint64_t n);
/* The n-th dispatch (from 1): how many arguments its kernel has, the struct included, and its
 * name; 0: there was none, or it is forgotten (a million are kept). */
uint32_t standin_dispatch(uint64_t n, const char **kernel);
/* The number of the dispatch before the n-th barrier; 0: there was none. */
uint64_t standin_barrier(uint64_t n);
/* Does an object of this class (or the class itself) understand the selector? */
bool standin_knows(const char *class_name, const char *selector);

#endif
