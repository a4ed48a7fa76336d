/* cli.h - what all commands of the `calla` program share.
 *
 * Does:     one table per command (cli_command, cli_option) from which arguments are parsed and
 *           --help is printed; the default model folder; sentences on stderr.
 * Contract: results on stdout, everything else on stderr. Exit codes: CLI_OK, CLI_FAILED,
 * CLI_USAGE, CLI_AGAIN (trying again may help), 128 + signal number after a signal. An error is one
 * line, "calla COMMAND: sentence". Adding a command: write cmd_NAME.c with `const cli_command
 * cli_NAME = {...}` and add its line to CLI_COMMANDS below; then `make man`. Nothing else needs to
 * change.
 */
#ifndef CALLA_CLI_CLI_H
#define CALLA_CLI_CLI_H

#include <stdio.h>
#include "base/error.h"

/* One line a command, in the order of `calla --help`; the table of a command is cli_NAME. */
/* clang-format off */
#define CLI_COMMANDS(X) \
    X(run) \
    X(serve) \
    X(pull) \
    X(models) \
    X(rm) \
    X(config) \
    X(doctor) \
    X(completion) \
    X(bench) \
    X(tokenize) \
    X(inspect) \
    X(synth) \
    X(quantize) \
    X(verify) \
    X(selftest)
/* clang-format on */

enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2, CLI_AGAIN = 3 };

typedef enum cli_kind {
    CLI_END,     /* last row */
    CLI_SECTION, /* a heading in --help (help); takes no argument */
    CLI_FLAG,    /* no value; stores `value` in an int */
    CLI_TEXT,    /* const char *, borrowed from argv */
    CLI_CHOICE,  /* const char *, one of the words of `choices` ("a|b|c") */
    CLI_UINT,    /* uint64_t in [min, max] */
    CLI_REAL     /* double in [min, max] */
} cli_kind;

/* One option. The value goes to the field at `offset` of the command's own options struct, which
 * the command fills with defaults before cli_parse(). */
typedef struct cli_option {
    cli_kind kind;
    char short_name;  /* 'm' for -m, 0: none */
    const char *name; /* "model" for --model; NULL: only the short form */
    size_t offset;    /* offsetof(struct, field) */
    const char *metavar;
    const char *help; /* one sentence, no final stop; wrapped to the width of the terminal */
    double min, max;
    const char *choices;
    int value;
} cli_option;

#define CLI_OPT_SECTION(title)                                                                     \
    {                                                                                              \
        .kind = CLI_SECTION, .help = (title)                                                       \
    }
#define CLI_OPT_FLAG(s, n, type, field, v, h)                                                      \
    {                                                                                              \
        .kind = CLI_FLAG, .short_name = (s), .name = (n), .offset = offsetof(type, field),         \
        .value = (v), .help = (h)                                                                  \
    }
#define CLI_OPT_TEXT(s, n, type, field, meta, h)                                                   \
    {                                                                                              \
        .kind = CLI_TEXT, .short_name = (s), .name = (n), .offset = offsetof(type, field),         \
        .metavar = (meta), .help = (h)                                                             \
    }
#define CLI_OPT_CHOICE(s, n, type, field, words, h)                                                \
    {                                                                                              \
        .kind = CLI_CHOICE, .short_name = (s), .name = (n), .offset = offsetof(type, field),       \
        .choices = (words), .help = (h)                                                            \
    }
#define CLI_OPT_UINT(s, n, type, field, lo, hi, meta, h)                                           \
    {                                                                                              \
        .kind = CLI_UINT, .short_name = (s), .name = (n), .offset = offsetof(type, field),         \
        .min = (lo), .max = (hi), .metavar = (meta), .help = (h)                                   \
    }
#define CLI_OPT_REAL(s, n, type, field, lo, hi, meta, h)                                           \
    {                                                                                              \
        .kind = CLI_REAL, .short_name = (s), .name = (n), .offset = offsetof(type, field),         \
        .min = (lo), .max = (hi), .metavar = (meta), .help = (h)                                   \
    }
#define CLI_OPT_END                                                                                \
    {                                                                                              \
        .kind = CLI_END                                                                            \
    }

/* Options most commands take: embed a cli_common and put the row macros into the table. -h,
 * --help and --version need no row. */
typedef struct cli_common {
    const char *model;     /* -m as given, or NULL: see cli_model_dir() */
    const char *backend;   /* "auto" when not given */
    uint64_t n_threads;    /* 0: one per available core */
    const char *precision; /* as given, or NULL: see cli_precision() */
    const char *log_level; /* "error", "warn", "info", "debug" */
    const char *pack_dir;  /* as given, or NULL: see cli_pack_dir() */
} cli_common;

#define CLI_COMMON_DEFAULTS                                                                        \
    {                                                                                              \
        .backend = "auto", .log_level = "warn"                                                     \
    }
#define CLI_ROW_MODEL(type, common)                                                                \
    CLI_OPT_TEXT('m', "model", type, common.model, "MODEL",                                        \
                 "checkpoint folder, or name of a pulled model; default $CALLA_MODEL, then the "   \
                 "demo model")
#define CLI_ROW_BACKEND(type, common)                                                              \
    CLI_OPT_CHOICE(0, "backend", type, common.backend, "auto|cpu|metal|cuda|simt",                 \
                   "where the model runs")
#define CLI_ROW_THREADS(type, common)                                                              \
    CLI_OPT_UINT(0, "threads", type, common.n_threads, 1, 256, "N",                                \
                 "threads; default one per available core")
#define CLI_ROW_PRECISION(type, common)                                                            \
    CLI_OPT_CHOICE(0, "precision", type, common.precision, "exact|int16|int8",                     \
                   "how a CPU takes the inputs of 4-bit matrices; int16 is the default, int8 the " \
                   "fastest for prompts, exact the closest to a reference in f32")
#define CLI_ROW_PACK_DIR(type, common)                                                             \
    CLI_OPT_TEXT(0, "pack-dir", type, common.pack_dir, "DIR",                                      \
                 "folder for weights packed for a GPU, none: packed at every start; default "      \
                 "$XDG_CACHE_HOME/calla or ~/.cache/calla; macOS: ~/Library/Caches/calla")
#define CLI_ROW_LOG_LEVEL(type, common)                                                            \
    CLI_OPT_CHOICE(0, "log-level", type, common.log_level, "error|warn|info|debug",                \
                   "how much to report on stderr")

typedef struct cli_command {
    const char *name;
    const char *summary; /* a few words for `calla --help` */
    const char *args;    /* positional arguments in the usage line, "DIR"; NULL: none */
    const char *about;   /* paragraph of `calla NAME --help`, lines ended by \n */
    const cli_option *options;
    unsigned n_args_min, n_args_max;
    bool configurable;                  /* options also from environment and configuration file */
    int (*main)(int argc, char **argv); /* cmd_NAME; argv[0] is the command's name */
} cli_command;

#define CLI_DECLARE(name) extern const cli_command cli_##name;
CLI_COMMANDS(CLI_DECLARE)
#undef CLI_DECLARE

extern const cli_command *const cli_commands[]; /* all, ended by NULL */

/* Parses argv into the struct `values`: over the defaults there, for a configurable command, the
 * configuration file (config.h), over that the environment (CALLA_PORT for --port), over all the
 * command line. Positional arguments are moved to argv[1 .. *n_args].
 * Returns -1 to go on; else the exit code (0 after --help, 2 after a usage error, already told). */
int cli_parse(const cli_command *cmd, int argc, char **argv, void *values, int *n_args);

/* Sets one option by its long name, as `--name value` would. False: no such option, or the value is
 * bad (already told). */
bool cli_set(const cli_command *cmd, const char *name, const char *value, void *values);

/* Runs a command as far as its cli_parse(), which prints the options in force instead. */
int cli_explain(const cli_command *cmd, int argc, char **argv);
/* "CALLA_API_KEY_FILE" */
void cli_env_name(const cli_option *o, char *buf, size_t size);
/* What the configuration file says of the model for all commands, or NULL. */
const char *cli_config_model(void);
/* What environment and configuration say of an option, or NULL. */
const char *cli_lookup(const cli_command *cmd, const char *name);
/* Is the configuration file all right? What is wrong is told in the name of cmd. */
typedef enum cli_config_state { CLI_CONFIG_NONE, CLI_CONFIG_GOOD, CLI_CONFIG_BAD } cli_config_state;
cli_config_state cli_check_config(const cli_command *cmd);
const char *cli_config_path(void); /* after one of these */

/* `calla NAME --help`, and the same as a subsection of the manual page (`make man`). */
void cli_print_help(const cli_command *cmd, FILE *out);
void cli_print_mdoc(const cli_command *cmd, FILE *out);
void cli_print_page(const cli_command *cmd, FILE *out); /* but for its .Dd line: see tools/man.sh */

/* "calla NAME: ..." on stderr. cli_usage_error adds where help is and returns CLI_USAGE;
 * cli_fail prints err->message and returns CLI_FAILED. */
void cli_error(const cli_command *cmd, const char *fmt, ...) ATTR_PRINTF(2, 3);
int cli_usage_error(const cli_command *cmd, const char *fmt, ...) ATTR_PRINTF(2, 3);
int cli_fail(const cli_command *cmd, const calla_error *err);

/* The folder of the model: `given`, else $CALLA_MODEL, else the demo model "nano" beside the
 * program, in the install prefix, or in the source tree. What is no folder may be the name of a
 * pulled model. *dir: mem_free(). */
calla_status cli_model_dir(const char *given, char **dir, calla_error *err);

/* "512M", "4G": bytes. False: it is something else. */
bool cli_size(const char *text, uint64_t *out);

/* A file of the source tree, or where it is installed below share/calla; NULL: in neither place.
 * mem_free(). */
char *cli_data_file(const char *in_tree, const char *installed);

/* Where packed weights are kept: as given ("none" too); else the user's cache folder when the
 * backend may be a real GPU; else, and when there is no such folder, NULL. *dir: mem_free(). */
calla_status cli_pack_dir(const cli_common *common, char **dir, calla_error *err);

/* --precision; the default when it was not given. */
calla_precision cli_precision(const cli_common *common);

/* A calla_progress_fn whose user is a term_progress that was begun: draws it, ends it at the end.
 */
bool cli_on_load(void *user, size_t n_done, size_t n_total);

/* A calla_log_fn whose user is a cli_logger: prints the line when its level is at most
 * logger->level. */
typedef struct cli_logger {
    const cli_command *cmd;
    calla_log_level level;
} cli_logger;
cli_logger cli_logger_make(const cli_command *cmd, const cli_common *common);
void cli_log(void *user, calla_log_level level, const char *line);

/* Flushes stdout; false when something written to it was lost (closed pipe, full disk). */
bool cli_stdout_ok(void);

#endif
