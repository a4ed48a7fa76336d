/* term.h - what the program knows about the terminal.
 *
 * Does:    width, colours (NO_COLOR and TERM=dumb respected), and one progress line at a time.
 * Threads: one thread.
 */
#ifndef CALLA_CLI_TERM_H
#define CALLA_CLI_TERM_H

#include <stdbool.h>
#include <stdio.h>

/* Columns of the terminal behind `f`; 80 when it is none. At least 40. */
int term_width(FILE *f);

bool term_is_tty(FILE *f);

/* True when escape sequences for dim, bold, ... may be written to `f`. */
bool term_colors(FILE *f);

#define TERM_DIM   "\033[2m"
#define TERM_BOLD  "\033[1m"
#define TERM_RESET "\033[0m"

/* Writes text to `f`. With `safe`, what a terminal would act upon is shown instead: C0 controls but
 * newline and tab as ^X, DEL as ^?, C1 controls as U+FFFD. text: whole UTF-8 characters. False when
 * writing failed. */
bool term_write(FILE *f, const char *text, size_t n, bool safe);

/* Between the lines of an interactive program: keys are neither echoed nor cooked (Ctrl-C still is
 * a signal), so that what is typed meanwhile reaches the line editor whole. term_restore() puts
 * back what was before the first call; it may be called from a signal handler. */
void term_hold_input(void);
void term_restore(void);

/* A line on stderr that redraws itself at most ten times a second: "label 40 % [####....] 1.2k/3k
 * tokens, 512 tokens/s, 3 s left". Draws nothing when stderr is no terminal, and nothing for work
 * that is over within `PROGRESS_DELAY` seconds. */
typedef struct term_progress {
    const char *label, *unit;
    double started, drawn; /* seconds; drawn: 0 before the first drawing */
    double last, rate;     /* TERM_BYTES: done at the last drawing, units a second */
    bool on, begun;
} term_progress;

/* As a unit: "1.2 GB of 3.4 GB, 56 MB/s, 1:23 left", with the speed of the last seconds; what was
 * done at the first update counts for no speed. */
#define TERM_BYTES "B"
/* As a unit: done and total are seconds, total an estimate; "1:23 left". */
#define TERM_ESTIMATE "s"

void term_progress_begin(term_progress *p, const char *label, const char *unit);
void term_progress_update(term_progress *p, double done, double total);
void term_progress_clear(term_progress *p); /* until the next drawing: for a line in between */
void term_progress_end(term_progress *p);   /* clears the line; a zeroed struct is fine */

#endif
