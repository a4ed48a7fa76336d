/* cmd_config.c - `calla config`: what is in force, and why. */
#include <string.h>
#include "cli/cli.h"
#include "cli/config.h"

extern char **environ;

typedef struct config_args {
    int unused;
} config_args;

static const cli_option options[] = {CLI_OPT_END};

static int cmd_config(int argc, char **argv);

const cli_command cli_config = {
    .name = "config",
    .summary = "the options in force, and where each is from",
    .args = "[COMMAND [OPTION...]]",
    .about =
        "Prints what calla run, serve and pull, or COMMAND with these options, would work with:\n"
        "each option with its value, and whether that is from the command line, the environment,\n"
        "a line of the configuration file, or the default. The output is itself such a file.\n",
    .options = options,
    .main = cmd_config,
};

/* CALLA_PROT=8080 is likely a mistake. */
static void name_unknown(void)
{
    static const char *const others[] = {"CALLA_CONFIG", "CALLA_MODELS", "CALLA_MODEL"};
    for (char **e = environ; *e; e++) {
        const size_t n = strcspn(*e, "=");
        /* The last two are for those who work on calla: exec/gpu/device.h. */
        bool known = strncmp(*e, "CALLA_", 6) != 0 || !strncmp(*e, "CALLA_METAL_", 12) ||
                     !strncmp(*e, "CALLA_KERNEL_DIR", 16);
        for (size_t i = 0; i < sizeof others / sizeof *others; i++)
            known = known || (strlen(others[i]) == n && !strncmp(*e, others[i], n));
        for (const cli_command *const *c = cli_commands; !known && *c; c++) {
            for (const cli_option *o = (*c)->options; o->kind != CLI_END; o++) {
                char name[64];
                if (!(*c)->configurable || !o->name) continue;
                cli_env_name(o, name, sizeof name);
                known = known || (strlen(name) == n && !strncmp(*e, name, n));
            }
        }
        if (!known)
            cli_error(&cli_config, "the environment has %.*s, which is no option", (int)n, *e);
    }
}

static int explain(const cli_command *cmd, int argc, char **argv)
{
    if (cmd->configurable) return cli_explain(cmd, argc, argv);
    return cli_usage_error(&cli_config, "calla %s takes no configuration", cmd->name);
}

static int cmd_config(int argc, char **argv)
{
    config_args a;
    if (argc < 2 || argv[1][0] == '-') {
        const int rc = cli_parse(&cli_config, argc, argv, &a, NULL);
        if (rc >= 0) return rc;
        name_unknown();
        for (const cli_command *const *c = cli_commands; *c; c++) {
            char *one[] = {argv[0], NULL};
            if (!(*c)->configurable) continue;
            if (*c != cli_commands[0]) putchar('\n');
            /* What calla pull cannot do without: a model. */
            char *two[] = {argv[0], "none/none", NULL};
            const bool wants = (*c)->n_args_min > 0;
            const int failed = cli_explain(*c, wants ? 2 : 1, wants ? two : one);
            if (failed != CLI_OK) return failed;
        }
        return CLI_OK;
    }
    name_unknown();
    for (const cli_command *const *c = cli_commands; *c; c++)
        if (!strcmp((*c)->name, argv[1])) return explain(*c, argc - 1, argv + 1);
    return cli_usage_error(&cli_config, "there is no command '%s'", argv[1]);
}
