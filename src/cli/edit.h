/* edit.h - reads lines from a terminal, with editing and a history that outlives the program.
 *
 * Does:    libedit's editing; its Ctrl-C drops the line, its Ctrl-Z suspends the program. Built
 * with CALLA_EDIT_DLOPEN="file", the library is opened when it is first needed (macOS has one of
 *          its own); when it is not there, lines are read as the terminal gives them.
 * Owns:    the editor and its history file, $XDG_STATE_HOME/calla/history; by default
 *          ~/.local/state/calla/history, on macOS ~/Library/Application Support/calla/history.
 * Threads: one thread.
 */
#ifndef CALLA_CLI_EDIT_H
#define CALLA_CLI_EDIT_H

#include "base/mem.h"

typedef struct editor editor;

/* NULL when the editor cannot start. */
editor *editor_create(void);
void editor_destroy(editor *e);

typedef enum line_result { LINE_OK, LINE_INTERRUPTED, LINE_END } line_result;

/* Appends one line without its newline. continued: the prompt of a further line of one message. */
line_result editor_read(editor *e, bool continued, strbuf *out);

#endif
