/* cmd_completion.c - `calla completion`: what a shell needs to complete command lines, from the
 * option tables. */
#include <string.h>
#include "cli/cli.h"

typedef struct completion_args {
    int unused;
} completion_args;

static const cli_option options[] = {CLI_OPT_END};

static int cmd_completion(int argc, char **argv);

const cli_command cli_completion = {
    .name = "completion",
    .summary = "completions for bash, zsh or fish",
    .args = "bash|zsh|fish",
    .about =
        "Prints a script that completes commands, options, their words, files and the names of\n"
        "pulled models. `make install` puts all three where the shells look for them; without\n"
        "that: eval \"$(calla completion bash)\" in ~/.bashrc, the same with zsh in ~/.zshrc, and\n"
        "calla completion fish > ~/.config/fish/completions/calla.fish.\n",
    .options = options,
    .n_args_min = 1,
    .n_args_max = 1,
    .main = cmd_completion,
};

/* What may stand where a value is wanted, by the word that stands for it in the help. */
typedef enum value_class { NOTHING, A_FILE, A_DIR, A_MODEL, WORDS } value_class;

static value_class class_of(const char *metavar)
{
    if (!metavar) return NOTHING;
    if (strstr(metavar, "|")) return WORDS;
    if (!strncmp(metavar, "MODEL", 5) || !strncmp(metavar, "NAME...", 7)) return A_MODEL;
    if (strstr(metavar, "DIR") || !strcmp(metavar, "OUT")) return A_DIR;
    if (strstr(metavar, "FILE") || !strcmp(metavar, "PATH")) return A_FILE;
    return NOTHING;
}

static const char *words_of(const cli_option *o)
{
    return o->kind == CLI_CHOICE ? o->choices : o->metavar;
}

static bool takes_value(const cli_option *o)
{
    return o->kind != CLI_FLAG && o->kind != CLI_SECTION;
}

/* The rows of a command, those that need no row too; NULL after the last. */
static const cli_option *row(const cli_command *cmd, size_t i)
{
    static const cli_option help = {
        .kind = CLI_FLAG, .short_name = 'h', .name = "help", .help = "print this help"};
    static const cli_option config = {
        .kind = CLI_TEXT, .name = "config", .metavar = "FILE", .help = "configuration file"};
    size_t n = 0;
    for (const cli_option *o = cmd->options; o->kind != CLI_END; o++)
        if (o->kind != CLI_SECTION && n++ == i) return o;
    if (i == n) return &help;
    return i == n + 1 && cmd->configurable ? &config : NULL;
}

/* Words "a|b" with spaces between. */
static void put_words(const char *words)
{
    for (; *words; words++)
        putchar(*words == '|' ? ' ' : *words);
}

/* Text inside quotes of a kind: without what would end them or mean something. */
static void put_plain(const char *text, const char *drop)
{
    for (; *text; text++)
        if (!strchr(drop, *text)) putchar(*text);
}

/* ---- bash --------------------------------------------------------------------------------- */

static void bash_value(value_class class, const char *words)
{
    switch (class) {
    case WORDS:
        fputs("COMPREPLY=($(compgen -W '", stdout);
        put_words(words);
        fputs("' -- \"$cur\"))", stdout);
        break;
    case A_FILE:
        fputs("_calla_paths -f", stdout);
        break;
    case A_DIR:
        fputs("_calla_paths -d", stdout);
        break;
    case A_MODEL:
        fputs("_calla_models", stdout);
        break;
    case NOTHING:
        fputs("COMPREPLY=()", stdout);
        break;
    }
}

static void bash_command(const cli_command *cmd)
{
    for (size_t i = 0; row(cmd, i); i++) {
        const cli_option *o = row(cmd, i);
        if (!takes_value(o)) continue;
        fputs("    ", stdout);
        if (o->short_name) printf("%s,-%c", cmd->name, o->short_name);
        if (o->short_name && o->name) putchar('|');
        if (o->name) printf("%s,--%s", cmd->name, o->name);
        fputs(") ", stdout);
        bash_value(o->kind == CLI_CHOICE ? WORDS : class_of(o->metavar), words_of(o));
        puts("; return ;;");
    }
}

static void print_bash(void)
{
    fputs("# bash completion for calla, made by `calla completion bash`\n"
          "_calla_paths() {\n"
          "    local IFS=$'\\n'\n"
          "    COMPREPLY=($(compgen \"$1\" -- \"$cur\"))\n"
          "    compopt -o filenames 2>/dev/null\n"
          "}\n"
          "_calla_models() {\n"
          "    _calla_paths -d\n"
          "    COMPREPLY+=($(compgen -W \"$(\"${COMP_WORDS[0]}\" models --names 2>/dev/null)\" -- "
          "\"$cur\"))\n"
          "}\n"
          "_calla() {\n"
          "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
          "    local command=${COMP_WORDS[1]} words=\n"
          "    COMPREPLY=()\n"
          "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
          "        COMPREPLY=($(compgen -W '",
          stdout);
    for (size_t i = 0; cli_commands[i]; i++)
        printf("%s ", cli_commands[i]->name);
    fputs("--help --version' -- \"$cur\"))\n        return\n    fi\n"
          "    case $command,$prev in\n",
          stdout);
    for (size_t i = 0; cli_commands[i]; i++)
        bash_command(cli_commands[i]);
    fputs("    esac\n    case $command in\n", stdout);
    for (size_t i = 0; cli_commands[i]; i++) {
        const cli_command *cmd = cli_commands[i];
        printf("    %s)\n        [[ $cur == -* ]] || { ", cmd->name);
        bash_value(cmd == &cli_config ? WORDS : class_of(cmd->args),
                   cmd == &cli_config ? "run|serve|pull" : cmd->args);
        fputs("; return; }\n        words='", stdout);
        for (size_t k = 0; row(cmd, k); k++)
            if (row(cmd, k)->name) printf("--%s ", row(cmd, k)->name);
        puts("' ;;");
    }
    fputs("    esac\n    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n}\n"
          "complete -F _calla calla\n",
          stdout);
}

/* ---- zsh ---------------------------------------------------------------------------------- */

/* ":message:action" */
static void zsh_value(value_class class, const char *metavar, const char *words)
{
    putchar(':');
    put_plain(metavar ? metavar : "value", "'[]:\\|.");
    putchar(':');
    switch (class) {
    case WORDS:
        putchar('(');
        put_words(words);
        putchar(')');
        break;
    case A_FILE:
        fputs("_files", stdout);
        break;
    case A_DIR:
        fputs("_files -/", stdout);
        break;
    case A_MODEL:
        fputs("_calla_models", stdout);
        break;
    case NOTHING:
        putchar(' ');
        break;
    }
}

static void zsh_option(const cli_option *o)
{
    fputs("            ", stdout);
    if (o->short_name && o->name)
        printf("'(-%c --%s)'{-%c,--%s}'", o->short_name, o->name, o->short_name, o->name);
    else if (o->name)
        printf("'--%s", o->name);
    else
        printf("'-%c", o->short_name);
    putchar('[');
    put_plain(o->help, "'[]\\");
    putchar(']');
    if (takes_value(o))
        zsh_value(o->kind == CLI_CHOICE ? WORDS : class_of(o->metavar), o->metavar, words_of(o));
    puts("' \\");
}

static void print_zsh(void)
{
    fputs("#compdef calla\n# zsh completion for calla, made by `calla completion zsh`\n"
          "_calla_models() {\n"
          "    local -a names\n"
          "    names=(${(f)\"$(calla models --names 2>/dev/null)\"})\n"
          "    compadd -a names\n"
          "    _files -/\n"
          "}\n"
          "_calla() {\n"
          "    local -a commands\n"
          "    commands=(\n",
          stdout);
    for (size_t i = 0; cli_commands[i]; i++) {
        printf("        '%s:", cli_commands[i]->name);
        put_plain(cli_commands[i]->summary, "'\\");
        puts("'");
    }
    fputs("    )\n"
          "    if (( CURRENT == 2 )); then\n"
          "        _describe command commands\n"
          "        return\n"
          "    fi\n"
          "    shift words\n"
          "    (( CURRENT-- ))\n"
          "    case $words[1] in\n",
          stdout);
    for (size_t i = 0; cli_commands[i]; i++) {
        const cli_command *cmd = cli_commands[i];
        printf("    %s)\n        _arguments -s \\\n", cmd->name);
        for (size_t k = 0; row(cmd, k); k++)
            zsh_option(row(cmd, k));
        fputs("            '*", stdout);
        zsh_value(cmd == &cli_config ? WORDS : class_of(cmd->args), "argument",
                  cmd == &cli_config ? "run|serve|pull" : cmd->args);
        puts("' ;;");
    }
    /* Read by the completion system, or by eval. */
    fputs("    esac\n}\n"
          "if [ \"$funcstack[1]\" = _calla ]; then\n"
          "    _calla \"$@\"\n"
          "else\n"
          "    compdef _calla calla\n"
          "fi\n",
          stdout);
}

/* ---- fish --------------------------------------------------------------------------------- */

static void fish_value(value_class class, const char *words)
{
    switch (class) {
    case WORDS:
        fputs(" -x -a '", stdout);
        put_words(words);
        putchar('\'');
        break;
    case A_FILE:
        fputs(" -r -F", stdout);
        break;
    case A_DIR:
        fputs(" -x -a '(__fish_complete_directories)'", stdout);
        break;
    case A_MODEL:
        fputs(" -x -a '(calla models --names 2>/dev/null; __fish_complete_directories)'", stdout);
        break;
    case NOTHING:
        fputs(" -x", stdout);
        break;
    }
}

static void print_fish(void)
{
    puts("# fish completion for calla, made by `calla completion fish`\ncomplete -c calla -f");
    for (size_t i = 0; cli_commands[i]; i++) {
        printf("complete -c calla -n __fish_use_subcommand -a %s -d '", cli_commands[i]->name);
        put_plain(cli_commands[i]->summary, "'\\");
        puts("'");
    }
    for (size_t i = 0; cli_commands[i]; i++) {
        const cli_command *cmd = cli_commands[i];
        for (size_t k = 0; row(cmd, k); k++) {
            const cli_option *o = row(cmd, k);
            printf("complete -c calla -n '__fish_seen_subcommand_from %s'", cmd->name);
            if (o->short_name) printf(" -s %c", o->short_name);
            if (o->name) printf(" -l %s", o->name);
            if (takes_value(o))
                fish_value(o->kind == CLI_CHOICE ? WORDS : class_of(o->metavar), words_of(o));
            fputs(" -d '", stdout);
            put_plain(o->help, "'\\");
            puts("'");
        }
        const bool is_config = cmd == &cli_config;
        const value_class class = is_config ? WORDS : class_of(cmd->args);
        if (class == NOTHING) continue;
        printf("complete -c calla -n '__fish_seen_subcommand_from %s'", cmd->name);
        fish_value(class, is_config ? "run|serve|pull" : cmd->args);
        putchar('\n');
    }
}

static int cmd_completion(int argc, char **argv)
{
    completion_args a;
    const int rc = cli_parse(&cli_completion, argc, argv, &a, NULL);
    if (rc >= 0) return rc;
    if (!strcmp(argv[1], "bash"))
        print_bash();
    else if (!strcmp(argv[1], "zsh"))
        print_zsh();
    else if (!strcmp(argv[1], "fish"))
        print_fish();
    else
        return cli_usage_error(&cli_completion, "expected bash, zsh or fish, found '%s'", argv[1]);
    return cli_stdout_ok() ? CLI_OK : CLI_FAILED;
}
