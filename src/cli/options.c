/* options.c - arguments, environment and configuration, from a command's table. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/config.h"
#include "cli/term.h"

/* ---- Messages ----------------------------------------------------------------------------- */

static void print_message(const cli_command *cmd, const char *fmt, va_list args) ATTR_PRINTF(2, 0);
static void print_message(const cli_command *cmd, const char *fmt, va_list args)
{
    fprintf(stderr, "calla %s: ", cmd->name);
    vfprintf(stderr, fmt, args);
}

void cli_error(const cli_command *cmd, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    print_message(cmd, fmt, args);
    va_end(args);
    fputc('\n', stderr);
}

int cli_usage_error(const cli_command *cmd, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    print_message(cmd, fmt, args);
    va_end(args);
    fprintf(stderr, " (calla %s --help)\n", cmd->name);
    return CLI_USAGE;
}

int cli_fail(const cli_command *cmd, const calla_error *err)
{
    cli_error(cmd, "%s", err->message);
    return CLI_FAILED;
}

cli_logger cli_logger_make(const cli_command *cmd, const cli_common *common)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    cli_logger logger = {cmd, CALLA_LOG_WARN};
    for (unsigned i = 0; i < 4; i++)
        if (!strcmp(common->log_level, names[i])) logger.level = (calla_log_level)i;
    return logger;
}

void cli_log(void *user, calla_log_level level, const char *line)
{
    const cli_logger *logger = user;
    if (level <= logger->level) cli_error(logger->cmd, "%s", line);
}

bool cli_on_load(void *user, size_t n_done, size_t n_total)
{
    term_progress *p = user;
    if (n_done < n_total)
        term_progress_update(p, (double)n_done, (double)n_total);
    else
        term_progress_end(p);
    return true;
}

bool cli_stdout_ok(void)
{
    return fflush(stdout) == 0 && !ferror(stdout);
}

/* ---- Values ------------------------------------------------------------------------------- */

/* How the user would write the option, for messages. */
static const char *option_spelling(const cli_option *o, char *buf, size_t n)
{
    if (o->name)
        snprintf(buf, n, "--%s", o->name);
    else
        snprintf(buf, n, "-%c", o->short_name);
    return buf;
}

/* Each of these reads a value into a field of the option's type, or into nothing. label: what the
 * value was given as, "--port" or "config:3: port". */
static int set_choice(const cli_command *cmd, const cli_option *o, const char *label,
                      const char *value, void *field)
{
    const size_t n = strlen(value);
    for (const char *word = o->choices;; word++) {
        const size_t len = strcspn(word, "|");
        if (len == n && !memcmp(word, value, n)) {
            if (field) *(const char **)field = value;
            return -1;
        }
        word += len;
        if (*word == '\0') break;
    }
    return cli_usage_error(cmd, "%s: expected one of %s, found '%s'", label, o->choices, value);
}

static int set_uint(const cli_command *cmd, const cli_option *o, const char *label,
                    const char *value, void *field)
{
    char *end = NULL;
    errno = 0;
    const unsigned long long v = strtoull(value, &end, 10);
    const bool digits = value[0] >= '0' && value[0] <= '9'; /* strtoull takes "-1" and " 1" */
    if (digits && *end == '\0' && errno == 0 && (double)v >= o->min && (double)v <= o->max) {
        if (field) *(uint64_t *)field = v;
        return -1;
    }
    return cli_usage_error(cmd, "%s: expected a whole number from %.0f to %.0f, found '%s'", label,
                           o->min, o->max, value);
}

static int set_real(const cli_command *cmd, const cli_option *o, const char *label,
                    const char *value, void *field)
{
    char *end = NULL;
    const double v = strtod(value, &end);
    /* Only plain decimal numbers: no "nan", no hexadecimal, no leading space. */
    const bool plain = value[0] != '\0' && strspn(value, "+-.0123456789eE") == strlen(value);
    if (plain && *end == '\0' && isfinite(v) && v >= o->min && v <= o->max) {
        if (field) *(double *)field = v;
        return -1;
    }
    return cli_usage_error(cmd, "%s: expected a number from %g to %g, found '%s'", label, o->min,
                           o->max, value);
}

/* What a flag stores when it is said not to be set: what its opposite stores, or 0. */
static int flag_off(const cli_command *cmd, const cli_option *o)
{
    for (const cli_option *p = cmd->options; p->kind != CLI_END; p++)
        if (p->kind == CLI_FLAG && p->offset == o->offset && p->value != o->value) return p->value;
    return 0;
}

/* value NULL: the flag stands alone on a command line. */
static int set_flag(const cli_command *cmd, const cli_option *o, const char *label,
                    const char *value, void *field)
{
    static const char *const words[] = {"true", "1", "yes", "on", "false", "0", "no", "off"};
    size_t i = 0;
    while (value && i < 8 && strcmp(words[i], value) != 0)
        i++;
    if (i == 8) return cli_usage_error(cmd, "%s: expected true or false, found '%s'", label, value);
    if (field) *(int *)field = i < 4 ? o->value : flag_off(cmd, o);
    return -1;
}

/* values NULL: only checks. */
static int set_value(const cli_command *cmd, const cli_option *o, const char *label,
                     const char *value, void *values)
{
    void *field = values ? (char *)values + o->offset : NULL;
    switch (o->kind) {
    case CLI_FLAG:
        return set_flag(cmd, o, label, value, field);
    case CLI_TEXT:
        if (field) *(const char **)field = value;
        return -1;
    case CLI_CHOICE:
        return set_choice(cmd, o, label, value, field);
    case CLI_UINT:
        return set_uint(cmd, o, label, value, field);
    case CLI_REAL:
        return set_real(cmd, o, label, value, field);
    case CLI_SECTION:
    case CLI_END:
        break;
    }
    return -1;
}

/* ---- Command lines ------------------------------------------------------------------------ */

static const cli_option *find_long(const cli_command *cmd, const char *name, size_t n)
{
    for (const cli_option *o = cmd->options; o->kind != CLI_END; o++)
        if (o->name && strlen(o->name) == n && !memcmp(o->name, name, n)) return o;
    return NULL;
}

static const cli_option *find_short(const cli_command *cmd, char c)
{
    for (const cli_option *o = cmd->options; o->kind != CLI_END; o++)
        if (o->short_name && o->short_name == c) return o;
    return NULL;
}

bool cli_set(const cli_command *cmd, const char *name, const char *value, void *values)
{
    char label[64];
    const cli_option *o = find_long(cmd, name, strlen(name));
    if (o) return set_value(cmd, o, option_spelling(o, label, sizeof label), value, values) < 0;
    cli_error(cmd, "there is no option '%s'", name);
    return false;
}

/* An option that the command line gives. */
typedef struct given {
    const cli_option *option;
    const char *value;
} given;

typedef struct command_line {
    given *given;
    size_t n_given;
    unsigned n_args;
    const char *config; /* --config */
} command_line;

static const cli_option config_option = {.kind = CLI_TEXT, .name = "config", .metavar = "FILE"};

/* One argument that begins with '-'; *i moves past a value taken from the next argument. */
static int read_option(const cli_command *cmd, int argc, char **argv, int *i, command_line *line)
{
    const char *arg = argv[*i];
    const char *value = NULL; /* attached to the option */
    const cli_option *o;
    if (arg[1] == '-') {
        const size_t n = strcspn(arg + 2, "=");
        o = find_long(cmd, arg + 2, n);
        if (!o && cmd->configurable && n == 6 && !memcmp(arg + 2, "config", n)) o = &config_option;
        if (arg[2 + n] == '=') value = arg + 2 + n + 1;
        if (!o) return cli_usage_error(cmd, "unknown option '%.*s'", (int)n + 2, arg);
    } else {
        o = find_short(cmd, arg[1]);
        if (arg[2] != '\0') value = arg + 2;
        if (!o) return cli_usage_error(cmd, "unknown option '%s'", arg);
    }
    if (o->kind == CLI_FLAG) {
        if (value) return cli_usage_error(cmd, "'%s': this option takes no value", arg);
    } else if (!value) {
        if (*i + 1 >= argc) return cli_usage_error(cmd, "'%s' needs a value", arg);
        value = argv[++*i];
    }
    if (o == &config_option)
        line->config = value;
    else
        line->given[line->n_given++] = (given){o, value};
    return -1;
}

static int read_line(const cli_command *cmd, int argc, char **argv, command_line *line)
{
    bool options_end = false;
    for (int i = 1; i < argc; i++) {
        char *arg = argv[i];
        if (options_end || arg[0] != '-' || arg[1] == '\0') {
            argv[1 + line->n_args++] = arg;
        } else if (!strcmp(arg, "--")) {
            options_end = true;
        } else if (!strcmp(arg, "-h") || !strcmp(arg, "--help")) {
            cli_print_help(cmd, stdout);
            return cli_stdout_ok() ? CLI_OK : CLI_FAILED;
        } else if (!strcmp(arg, "--version")) {
            puts("calla " CALLA_VERSION);
            return cli_stdout_ok() ? CLI_OK : CLI_FAILED;
        } else {
            const int rc = read_option(cmd, argc, argv, &i, line);
            if (rc >= 0) return rc;
        }
    }
    if (line->n_args > cmd->n_args_max)
        return cli_usage_error(cmd, "unexpected argument '%s'", argv[1 + cmd->n_args_max]);
    if (line->n_args < cmd->n_args_min) return cli_usage_error(cmd, "expected %s", cmd->args);
    return -1;
}

/* ---- Configuration ------------------------------------------------------------------------ */

/* Where the options' values are from, for cli_explain(): one for each row of the table. */
typedef struct origin {
    enum { FROM_DEFAULT, FROM_FILE, FROM_ENVIRONMENT, FROM_COMMAND_LINE } kind;
    int line;
} origin;

enum { ROWS_MAX = 64 };
static struct {
    origin origins[ROWS_MAX];
    bool on;
} explaining;

static void note_origin(const cli_command *cmd, const cli_option *o, origin from)
{
    for (const cli_option *p = cmd->options; p->kind != CLI_END; p++) {
        const ptrdiff_t i = p - cmd->options;
        if (p->kind != CLI_SECTION && p->offset == o->offset && i < ROWS_MAX)
            explaining.origins[i] = from; /* its opposite, too */
    }
}

static bool is_configurable(const char *name, const cli_command **out)
{
    for (const cli_command *const *c = cli_commands; *c; c++) {
        *out = *c;
        if ((*c)->configurable && !strcmp((*c)->name, name)) return true;
    }
    return false;
}

/* Does the entry speak of an option of cmd? rc: -1, or what a wrong value makes of the run. */
static const cli_option *match_entry(const cli_command *cmd, const config_entry *e)
{
    return e->section[0] && strcmp(e->section, cmd->name) != 0
               ? NULL
               : find_long(cmd, e->key, strlen(e->key));
}

/* Every entry must mean something, whichever command reads the file. */
static int check_entry(const cli_command *cmd, const char *path, const config_entry *e)
{
    const cli_command *other = NULL;
    char label[256];
    if (e->section[0] && !is_configurable(e->section, &other))
        return cli_usage_error(cmd,
                               "%s:%d: expected a section [run], [serve] or [pull], found "
                               "[%s]",
                               path, e->line, e->section);
    (void)snprintf(label, sizeof label, "%s:%d: %s", path, e->line, e->key);
    for (const cli_command *const *c = cli_commands; *c; c++) {
        const cli_option *o = (*c)->configurable ? match_entry(*c, e) : NULL;
        if (o) return set_value(*c, o, label, e->value, NULL);
    }
    return cli_usage_error(cmd, "%s:%d: unknown key '%s'%s%s", path, e->line, e->key,
                           e->section[0] ? " of calla " : "", e->section);
}

static int apply_file(const cli_command *cmd, const config_file *file, void *values)
{
    char label[256];
    for (size_t i = 0; i < file->n; i++) {
        const int rc = check_entry(cmd, file->path, &file->entries[i]);
        if (rc >= 0) return rc;
    }
    /* A command's own section wins over what is said for all. */
    for (int own = 0; own < 2; own++) {
        for (size_t i = 0; i < file->n; i++) {
            const config_entry *e = &file->entries[i];
            const cli_option *o = match_entry(cmd, e);
            if (!o || (e->section[0] != '\0') != own) continue;
            (void)snprintf(label, sizeof label, "%s:%d: %s", file->path, e->line, e->key);
            const int rc = set_value(cmd, o, label, e->value, values);
            if (rc >= 0) return rc;
            note_origin(cmd, o, (origin){FROM_FILE, e->line});
        }
    }
    return -1;
}

void cli_env_name(const cli_option *o, char *buf, size_t size)
{
    size_t n = (size_t)snprintf(buf, size, "CALLA_%s", o->name);
    for (size_t i = 6; i < n && i < size - 1; i++) {
        if (buf[i] >= 'a' && buf[i] <= 'z') buf[i] = (char)(buf[i] - 'a' + 'A');
        if (buf[i] == '-') buf[i] = '_';
    }
}

static int apply_environment(const cli_command *cmd, void *values)
{
    for (const cli_option *o = cmd->options; o->kind != CLI_END; o++) {
        char name[64];
        if (!o->name) continue;
        cli_env_name(o, name, sizeof name);
        const char *value = getenv(name);
        if (!value || !*value) continue;
        const int rc = set_value(cmd, o, name, value, values);
        if (rc >= 0) return rc;
        note_origin(cmd, o, (origin){FROM_ENVIRONMENT, 0});
    }
    return -1;
}

/* Kept until the program ends: values point into it. */
static config_file config;

static int configure(const cli_command *cmd, const char *given_path, void *values)
{
    calla_error err;
    if (!config.path && config_open(&config, given_path, &err) != CALLA_OK)
        return cli_usage_error(cmd, "%s", err.message);
    const int rc = apply_file(cmd, &config, values);
    return rc >= 0 ? rc : apply_environment(cmd, values);
}

static const char *find_entry(const char *section, const char *key)
{
    if (!config.path && config_open(&config, NULL, NULL) != CALLA_OK) return NULL;
    for (size_t i = 0; i < config.n; i++)
        if (!strcmp(config.entries[i].section, section) && !strcmp(config.entries[i].key, key))
            return config.entries[i].value;
    return NULL;
}

const char *cli_config_model(void)
{
    return find_entry("", "model");
}

const char *cli_lookup(const cli_command *cmd, const char *name)
{
    char variable[64];
    const cli_option o = {.name = name};
    cli_env_name(&o, variable, sizeof variable);
    const char *value = getenv(variable);
    if (value && *value) return value;
    value = find_entry(cmd->name, name);
    return value ? value : find_entry("", name);
}

cli_config_state cli_check_config(const cli_command *cmd)
{
    calla_error err;
    if (!config.path && config_open(&config, NULL, &err) != CALLA_OK) {
        cli_error(cmd, "%s", err.message);
        return CLI_CONFIG_BAD;
    }
    for (size_t i = 0; i < config.n; i++)
        if (check_entry(cmd, config.path, &config.entries[i]) >= 0) return CLI_CONFIG_BAD;
    return config.found ? CLI_CONFIG_GOOD : CLI_CONFIG_NONE;
}

const char *cli_config_path(void)
{
    return config.path ? config.path : "?";
}

/* ---- What is in force --------------------------------------------------------------------- */

static void print_quoted(const char *text)
{
    putchar('"');
    for (; *text; text++) {
        if (*text == '\n') {
            fputs("\\n", stdout);
            continue;
        }
        if (*text == '"' || *text == '\\') putchar('\\');
        putchar(*text);
    }
    putchar('"');
}

/* The value of an option as a config file has it; false: the command's own choice. */
static bool print_value(const cli_option *o, const void *field)
{
    const char *text = NULL;
    switch (o->kind) {
    case CLI_FLAG:
        if (*(const int *)field < 0) return false;
        printf("%s = %s", o->name, *(const int *)field == o->value ? "true" : "false");
        return true;
    case CLI_TEXT:
    case CLI_CHOICE:
        text = *(const char *const *)field;
        if (!text) return false;
        printf("%s = ", o->name);
        print_quoted(text);
        return true;
    case CLI_UINT: {
        const uint64_t v = *(const uint64_t *)field;
        if ((double)v < o->min || (double)v > o->max) return false;
        return printf("%s = %llu", o->name, (unsigned long long)v) > 0;
    }
    case CLI_REAL: {
        const double v = *(const double *)field;
        if (!(v >= o->min && v <= o->max)) return false;
        return printf("%s = %.10g", o->name, v) > 0;
    }
    default:
        return false;
    }
}

static void print_origin(const cli_option *o, const origin *from)
{
    char name[64];
    switch (from->kind) {
    case FROM_COMMAND_LINE:
        printf("  # command line\n");
        return;
    case FROM_ENVIRONMENT:
        cli_env_name(o, name, sizeof name);
        printf("  # %s\n", name);
        return;
    case FROM_FILE:
        printf("  # %s:%d\n", config.path, from->line);
        return;
    default:
        printf("  # default\n");
    }
}

/* Of a flag and its opposite, one is shown: that which is true. */
static bool is_other_flag(const cli_command *cmd, const cli_option *o, const void *values)
{
    if (o->kind != CLI_FLAG) return false;
    const int value = *(const int *)((const char *)values + o->offset);
    if (value == o->value) return false;
    for (const cli_option *p = cmd->options; p->kind != CLI_END; p++)
        if (p->kind == CLI_FLAG && p->offset == o->offset && (p->value == value || p < o))
            return true;
    return false;
}

static int explain(const cli_command *cmd, const void *values)
{
    printf("[%s]\n", cmd->name);
    for (const cli_option *o = cmd->options; o->kind != CLI_END; o++) {
        const ptrdiff_t i = o - cmd->options;
        if (!o->name || i >= ROWS_MAX || is_other_flag(cmd, o, values)) continue;
        if (!print_value(o, (const char *)values + o->offset))
            printf("# %s is not set: %s\n", o->name, o->help);
        else
            print_origin(o, &explaining.origins[i]);
    }
    return cli_stdout_ok() ? CLI_OK : CLI_FAILED;
}

int cli_explain(const cli_command *cmd, int argc, char **argv)
{
    explaining.on = true;
    const int rc = cmd->main(argc, argv);
    explaining.on = false;
    return rc;
}

int cli_parse(const cli_command *cmd, int argc, char **argv, void *values, int *n_args)
{
    command_line line = {.given = mem_array((size_t)argc + 1, sizeof(given))};
    char label[64];
    if (!line.given) {
        cli_error(cmd, "no memory for the arguments");
        return CLI_FAILED;
    }
    memset(explaining.origins, 0, sizeof explaining.origins);
    int rc = read_line(cmd, argc, argv, &line);
    if (rc < 0 && cmd->configurable) rc = configure(cmd, line.config, values);
    for (size_t i = 0; rc < 0 && i < line.n_given; i++) {
        const cli_option *o = line.given[i].option;
        rc =
            set_value(cmd, o, option_spelling(o, label, sizeof label), line.given[i].value, values);
        note_origin(cmd, o, (origin){FROM_COMMAND_LINE, 0});
    }
    mem_free(line.given);
    if (rc < 0 && explaining.on) rc = explain(cmd, values);
    if (n_args) *n_args = (int)line.n_args;
    return rc;
}
