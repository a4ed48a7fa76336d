/* signals.h - Ctrl-C while the model works, and a mapped file that shrinks.
 *
 * Does:    between begin and end, the first SIGINT or SIGTERM cancels the session, the second ends
 *          the program at once with 128 + signal. Outside, signals do what they did before.
 * Threads: one session at a time, from the main thread.
 */
#ifndef CALLA_CLI_SIGNALS_H
#define CALLA_CLI_SIGNALS_H

#include "calla.h"

void signals_begin(calla_session *session);

/* The signal that came since signals_begin(), or 0. */
int signals_received(void);

void signals_end(void);

/* For work without a session that looks between two steps: from now on SIGINT, SIGTERM and SIGHUP
 * only leave their number in signals_stop(). */
void signals_catch_stop(void);
int signals_stop(void);

/* From now on a Ctrl-C outside begin and end does nothing (chat). */
void signals_ignore_interrupt(void);

/* From now on the program ends with a sentence and exit code 1 when a page of a mapped file cannot
 * be read: by default SIGBUS kills it without a word. */
void signals_explain_bus(void);

#endif
