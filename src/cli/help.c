/* help.c - --help and the manual page, both from a command's table. */
#include <string.h>
#include "cli/cli.h"
#include "cli/term.h"

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
    static const cli_option config = {
        .kind = CLI_TEXT,
        .name = "config",
        .metavar = "FILE",
        .help = "defaults of these options; default $CALLA_CONFIG, then ~/.config/calla/config"};
    if (cmd->configurable) print_option(out, &config, width);
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

/* after_text: a paragraph ends before. */
static void print_mdoc_options(const cli_command *cmd, FILE *out, bool after_text)
{
    bool list = false;
    for (const cli_option *o = cmd->options; o->kind != CLI_END; o++) {
        if (list && o->kind == CLI_SECTION) fputs(".El\n", out);
        if (o->kind == CLI_SECTION)
            fprintf(out, "%s%s:\n", list || after_text ? ".Pp\n" : "", o->help);
        if (!list && o->kind != CLI_SECTION && after_text) fputs(".Pp\n", out);
        if (!list || o->kind == CLI_SECTION) fputs(".Bl -tag -width Ds -compact\n", out);
        list = true;
        if (o->kind != CLI_SECTION) print_mdoc_option(out, o);
    }
    if (list) fputs(".El\n", out);
}

void cli_print_mdoc(const cli_command *cmd, FILE *out)
{
    fprintf(out, ".Ss calla %s Oo Ar options Oc%s%s\n", cmd->name, cmd->args ? " Ar " : "",
            cmd->args ? cmd->args : "");
    print_roff(out, cmd->about);
    print_mdoc_options(cmd, out, true);
}

void cli_print_page(const cli_command *cmd, FILE *out)
{
    fputs(".Dt CALLA\\-", out);
    for (const char *p = cmd->name; *p; p++)
        fputc(*p >= 'a' && *p <= 'z' ? *p - 'a' + 'A' : *p, out);
    fprintf(out, " 1\n.Os\n.Sh NAME\n.Nm calla\\-%s\n.Nd ", cmd->name);
    print_roff(out, cmd->summary);
    fprintf(out, "\n.Sh SYNOPSIS\n.Nm calla %s\n.Op Ar options\n", cmd->name);
    if (cmd->args) fprintf(out, ".Ar %s\n", cmd->args);
    fputs(".Sh DESCRIPTION\n", out);
    print_roff(out, cmd->about);
    fputs(".Sh OPTIONS\n", out);
    print_mdoc_options(cmd, out, false);
    fputs(".Pp\n"
          "Also\n.Fl h\n.Pq Fl -help\nand\n.Fl -version",
          out);
    fputs(cmd->configurable ? ",\nand the environment and\n.Fl -config Ar FILE\n"
                              "as calla(1) says under CONFIGURATION.\n"
                            : " .\n",
          out);
    fputs(".Sh EXIT STATUS\n0 done, 1 failed, 2 wrong usage, 128 and more: stopped by a signal; "
          "see\n.Xr calla 1 .\n.Sh SEE ALSO\n.Xr calla 1\n",
          out);
}
