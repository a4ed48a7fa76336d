/* options.c - argument parsing and --help, both from a command's table. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "cli/cli.h"
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
static void option_spelling(const cli_option *o, char *buf, size_t n)
{
    if (o->name)
        snprintf(buf, n, "--%s", o->name);
    else
        snprintf(buf, n, "-%c", o->short_name);
}

static int set_choice(const cli_command *cmd, const cli_option *o, const char *value, void *field)
{
    const size_t n = strlen(value);
    for (const char *word = o->choices;; word++) {
        const size_t len = strcspn(word, "|");
        if (len == n && !memcmp(word, value, n)) {
            *(const char **)field = value;
            return -1;
        }
        word += len;
        if (*word == '\0') break;
    }
    char name[64];
    option_spelling(o, name, sizeof name);
    return cli_usage_error(cmd, "%s: expected one of %s, found '%s'", name, o->choices, value);
}

static int set_uint(const cli_command *cmd, const cli_option *o, const char *value, void *field)
{
    char *end = NULL;
    errno = 0;
    const unsigned long long v = strtoull(value, &end, 10);
    const bool digits = value[0] >= '0' && value[0] <= '9'; /* strtoull takes "-1" and " 1" */
    if (digits && *end == '\0' && errno == 0 && (double)v >= o->min && (double)v <= o->max) {
        *(uint64_t *)field = v;
        return -1;
    }
    char name[64];
    option_spelling(o, name, sizeof name);
    return cli_usage_error(cmd, "%s: expected a whole number from %.0f to %.0f, found '%s'", name,
                           o->min, o->max, value);
}

static int set_real(const cli_command *cmd, const cli_option *o, const char *value, void *field)
{
    char *end = NULL;
    const double v = strtod(value, &end);
    /* Only plain decimal numbers: no "nan", no hexadecimal, no leading space. */
    const bool plain = value[0] != '\0' && strspn(value, "+-.0123456789eE") == strlen(value);
    if (plain && *end == '\0' && isfinite(v) && v >= o->min && v <= o->max) {
        *(double *)field = v;
        return -1;
    }
    char name[64];
    option_spelling(o, name, sizeof name);
    return cli_usage_error(cmd, "%s: expected a number from %g to %g, found '%s'", name, o->min,
                           o->max, value);
}

static int set_value(const cli_command *cmd, const cli_option *o, const char *value, void *values)
{
    void *field = (char *)values + o->offset;
    switch (o->kind) {
    case CLI_FLAG:
        *(int *)field = o->value;
        return -1;
    case CLI_TEXT:
        *(const char **)field = value;
        return -1;
    case CLI_CHOICE:
        return set_choice(cmd, o, value, field);
    case CLI_UINT:
        return set_uint(cmd, o, value, field);
    case CLI_REAL:
        return set_real(cmd, o, value, field);
    case CLI_SECTION:
    case CLI_END:
        break;
    }
    return -1;
}

/* ---- Parsing ------------------------------------------------------------------------------ */

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

/* One argument that begins with '-'; *i moves past a value taken from the next argument. */
static int parse_option(const cli_command *cmd, int argc, char **argv, int *i, void *values)
{
    const char *arg = argv[*i];
    const char *value = NULL; /* attached to the option */
    const cli_option *o;
    if (arg[1] == '-') {
        const size_t n = strcspn(arg + 2, "=");
        o = find_long(cmd, arg + 2, n);
        if (arg[2 + n] == '=') value = arg + 2 + n + 1;
        if (!o) return cli_usage_error(cmd, "unknown option '%.*s'", (int)n + 2, arg);
    } else {
        o = find_short(cmd, arg[1]);
        if (arg[2] != '\0') value = arg + 2;
        if (!o) return cli_usage_error(cmd, "unknown option '%s'", arg);
    }
    if (o->kind == CLI_FLAG) {
        if (value) return cli_usage_error(cmd, "'%s': this option takes no value", arg);
        return set_value(cmd, o, NULL, values);
    }
    if (!value) {
        if (*i + 1 >= argc) return cli_usage_error(cmd, "'%s' needs a value", arg);
        value = argv[++*i];
    }
    return set_value(cmd, o, value, values);
}

bool cli_set(const cli_command *cmd, const char *name, const char *value, void *values)
{
    const cli_option *o = find_long(cmd, name, strlen(name));
    if (o) return set_value(cmd, o, value, values) < 0;
    cli_error(cmd, "there is no option '%s'", name);
    return false;
}

int cli_parse(const cli_command *cmd, int argc, char **argv, void *values, int *n_args)
{
    unsigned n = 0;
    bool options_end = false;
    for (int i = 1; i < argc; i++) {
        char *arg = argv[i];
        if (options_end || arg[0] != '-' || arg[1] == '\0') {
            argv[1 + n++] = arg;
        } else if (!strcmp(arg, "--")) {
            options_end = true;
        } else if (!strcmp(arg, "-h") || !strcmp(arg, "--help")) {
            cli_print_help(cmd, stdout);
            return cli_stdout_ok() ? CLI_OK : CLI_FAILED;
        } else if (!strcmp(arg, "--version")) {
            puts("calla " CALLA_VERSION);
            return cli_stdout_ok() ? CLI_OK : CLI_FAILED;
        } else {
            const int rc = parse_option(cmd, argc, argv, &i, values);
            if (rc >= 0) return rc;
        }
    }
    if (n > cmd->n_args_max)
        return cli_usage_error(cmd, "unexpected argument '%s'", argv[1 + cmd->n_args_max]);
    if (n < cmd->n_args_min) return cli_usage_error(cmd, "expected %s", cmd->args);
    if (n_args) *n_args = (int)n;
    return -1;
}

/* ---- Help --------------------------------------------------------------------------------- */

enum { HELP_COLUMN = 30 };

/* Text in words from `column` on, wrapped at `width`; the cursor is at `at`. */
static void print_wrapped(FILE *out, const char *text, int at, int width)
{
    if (at > HELP_COLUMN - 2) {
        fputc('\n', out);
        at = 0;
    }
    fprintf(out, "%*s", HELP_COLUMN - at, "");
    int col = HELP_COLUMN;
    while (*text) {
        const int n = (int)strcspn(text, " ");
        if (col > HELP_COLUMN && col + 1 + n > width) {
            fprintf(out, "\n%*s", HELP_COLUMN, "");
            col = HELP_COLUMN;
        } else if (col > HELP_COLUMN) {
            fputc(' ', out);
            col++;
        }
        fprintf(out, "%.*s", n, text);
        col += n;
        text += n;
        while (*text == ' ')
            text++;
    }
    fputc('\n', out);
}

static void print_option(FILE *out, const cli_option *o, int width)
{
    if (o->kind == CLI_SECTION) {
        fprintf(out, "\n%s:\n", o->help);
        return;
    }
    char left[128];
    size_t n = 0;
    const char *meta = o->kind == CLI_CHOICE ? o->choices : o->metavar;
    char short_form[4] = "   ";
    if (o->short_name) {
        short_form[0] = '-';
        short_form[1] = o->short_name;
        short_form[2] = o->name ? ',' : ' ';
    }
    n = (size_t)snprintf(left, sizeof left, "  %s %s%s%s%s", short_form, o->name ? "--" : "",
                         o->name ? o->name : "", meta ? " " : "", meta ? meta : "");
    fputs(left, out);
    print_wrapped(out, o->help, (int)n, width);
}

void cli_print_help(const cli_command *cmd, FILE *out)
{
    const int width = term_width(out);
    fprintf(out, "usage: calla %s [options]%s%s\n\n%s", cmd->name, cmd->args ? " " : "",
            cmd->args ? cmd->args : "", cmd->about);
    if (cmd->options[0].kind != CLI_SECTION) fputs("\nOptions:\n", out);
    for (const cli_option *o = cmd->options; o->kind != CLI_END; o++)
        print_option(out, o, width);
    static const cli_option help = {
        .kind = CLI_FLAG, .short_name = 'h', .name = "help", .help = "print this help"};
    static const cli_option version = {
        .kind = CLI_FLAG, .name = "version", .help = "print the version"};
    print_option(out, &help, width);
    print_option(out, &version, width);
}

/* ---- Manual page -------------------------------------------------------------------------- */

/* Text of a sentence in roff: hyphens and backslashes as they are, no line a request. */
static void print_roff(FILE *out, const char *text)
{
    bool begin = true;
    for (; *text; text++) {
        if (begin && (*text == '.' || *text == '\'')) fputs("\\&", out);
        begin = *text == '\n';
        if (*text == '\\')
            fputs("\\e", out);
        else if (*text == '-')
            fputs("\\-", out);
        else
            fputc(*text, out);
    }
}

static void print_mdoc_option(FILE *out, const cli_option *o)
{
    fputs(".It", out);
    if (o->short_name) fprintf(out, " Fl %c%s", o->short_name, o->name ? " ," : "");
    if (o->name) fprintf(out, " Fl -%s", o->name);
    if (o->kind == CLI_CHOICE)
        fprintf(out, " Cm %s", o->choices);
    else if (o->metavar)
        fprintf(out, " Ar %s", o->metavar);
    fputc('\n', out);
    print_roff(out, o->help);
    fputs(".\n", out);
}

void cli_print_mdoc(const cli_command *cmd, FILE *out)
{
    fprintf(out, ".Ss calla %s Oo Ar options Oc%s%s\n", cmd->name, cmd->args ? " Ar " : "",
            cmd->args ? cmd->args : "");
    print_roff(out, cmd->about);
    bool list = false;
    for (const cli_option *o = cmd->options; o->kind != CLI_END; o++) {
        if (list && o->kind == CLI_SECTION) fputs(".El\n", out);
        if (o->kind == CLI_SECTION) fprintf(out, ".Pp\n%s:\n", o->help);
        if (!list && o->kind != CLI_SECTION) fputs(".Pp\n", out);
        if (!list || o->kind == CLI_SECTION) fputs(".Bl -tag -width Ds -compact\n", out);
        list = true;
        if (o->kind != CLI_SECTION) print_mdoc_option(out, o);
    }
    if (list) fputs(".El\n", out);
}
