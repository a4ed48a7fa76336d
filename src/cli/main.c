/* main.c - the `calla` program: finds the command and runs it. */
#include <signal.h>
#include <string.h>
#include "cli/cli.h"
#include "cli/signals.h"

const cli_command *const cli_commands[] = {
#define CLI_POINTER(name) &cli_##name,
    CLI_COMMANDS(CLI_POINTER)
#undef CLI_POINTER
        NULL};

static void print_overview(FILE *out)
{
    fputs("calla - local inference for Qwen3.6-35B-A3B\n\nusage: calla COMMAND [options]\n\n", out);
    for (size_t i = 0; cli_commands[i]; i++)
        fprintf(out, "  %-10s %s\n", cli_commands[i]->name, cli_commands[i]->summary);
    fputs("\ncalla COMMAND --help explains a command; calla --version prints the version.\n", out);
}

/* For tools/man.sh: all commands as a part of calla(1), a page of one, or the names of all. */
static int describe(int argc, char **argv)
{
    for (size_t i = 0; cli_commands[i]; i++) {
        if (!strcmp(argv[1], "--commands"))
            puts(cli_commands[i]->name);
        else if (argc < 3)
            cli_print_mdoc(cli_commands[i], stdout);
        else if (!strcmp(argv[2], cli_commands[i]->name))
            cli_print_page(cli_commands[i], stdout);
    }
    return cli_stdout_ok() ? CLI_OK : CLI_FAILED;
}

int main(int argc, char **argv)
{
    /* A closed pipe is an error of write(), reported once, not a silent death. */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* so is a file that may not grow */
    signals_explain_bus();

    if (argc < 2) {
        print_overview(stderr);
        return CLI_USAGE;
    }
    const char *name = argv[1];
    if (!strcmp(name, "-h") || !strcmp(name, "--help") || !strcmp(name, "help")) {
        print_overview(stdout);
        return cli_stdout_ok() ? CLI_OK : CLI_FAILED;
    }
    if (!strcmp(name, "--version")) {
        puts("calla " CALLA_VERSION);
        return cli_stdout_ok() ? CLI_OK : CLI_FAILED;
    }
    if (!strcmp(name, "--mdoc") || !strcmp(name, "--commands")) return describe(argc, argv);
    for (size_t i = 0; cli_commands[i]; i++)
        if (!strcmp(name, cli_commands[i]->name)) return cli_commands[i]->main(argc - 1, argv + 1);
    fprintf(stderr, "calla: unknown %s '%s'; calla --help lists the commands\n",
            name[0] == '-' ? "option" : "command", name);
    return CLI_USAGE;
}
