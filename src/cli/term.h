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

/* A line on stderr that redraws itself at most ten times a second: "label 40 % [####....] 1.2k/3k
 * tokens, 512 tokens/s, 3 s left". Draws nothing when stderr is no terminal, and nothing for work
 * that is over within `PROGRESS_DELAY` seconds. */
typedef struct term_progress {
    const char *label, *unit;
    double started, drawn; /* seconds; drawn: 0 before the first drawing */
    bool on;
} term_progress;

void term_progress_begin(term_progress *p, const char *label, const char *unit);
void term_progress_update(term_progress *p, double done, double total);
void term_progress_end(term_progress *p); /* clears the line; a zeroed struct is fine */

#endif
