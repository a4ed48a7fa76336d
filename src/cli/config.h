/* config.h - the configuration file.
 *
 * File:    lines "key = value", where a key is the long name of an option. Keys before the first
 * section are for all commands that have them, those after "[run]" for calla run. "#" begins a
 * comment at the beginning of a line and after a space; a value in double quotes may have any of
 * these, and \" and \\ in it stand for a quote and a backslash. Errors:  sentences begin with file
 * and line.
 */
#ifndef CALLA_CLI_CONFIG_H
#define CALLA_CLI_CONFIG_H

#include "base/error.h"
#include "base/mem.h"

#define CONFIG_BYTES_MAX   (1u << 20)
#define CONFIG_ENTRIES_MAX 1000u

typedef struct config_entry {
    const char *section; /* "": before the first */
    const char *key, *value;
    int line;
} config_entry;

typedef struct config_file {
    char *path; /* for messages; where the file would be when there is none */
    bool found;
    char *text; /* which the entries point into */
    config_entry *entries;
    size_t n;
} config_file;

/* given: --config, or NULL: $CALLA_CONFIG, $XDG_CONFIG_HOME/calla/config, ~/.config/calla/config. A
 * file that was asked for must be there; "none" is no file. */
calla_status config_open(config_file *c, const char *given, calla_error *err);
void config_close(config_file *c);

/* Reads `text` of n bytes, which it takes over (NUL-terminated). */
calla_status config_parse(config_file *c, char *text, size_t n, calla_error *err);

#endif
