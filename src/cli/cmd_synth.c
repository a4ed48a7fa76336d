/* cmd_synth.c - calla synth: a random checkpoint for tests and benchmarks. */
#include <string.h>
#include "base/file.h"
#include "base/mem.h"
#include "base/pool.h"
#include "cli/cli.h"
#include "cli/signals.h"
#include "cli/term.h"
#include "model/synth.h"

typedef struct command_options {
    cli_common common;
    const char *shape;
    uint64_t seed, n_layers;
} command_options;

static const cli_option options[] = {
    CLI_OPT_CHOICE(0, "shape", command_options, shape, "full|slice|nano",
                   "full: the real model, 19.5 GB; slice: 8 of its layers, 4.4 GB; nano: the demo "
                   "model's, 12 MB; default nano"),
    CLI_OPT_UINT(0, "layers", command_options, n_layers, 1, MODEL_LAYERS_MAX, "N",
                 "number of layers in place of the shape's own"),
    CLI_OPT_UINT(0, "seed", command_options, seed, 0, 1e15, "N",
                 "the same seed gives the same bytes; default 1"),
    CLI_ROW_THREADS(command_options, common),
    CLI_OPT_END,
};

static int cmd_synth(int argc, char **argv);

const cli_command cli_synth = {
    .name = "synth",
    .summary = "write a random checkpoint",
    .args = "OUT",
    .about =
        "Writes a checkpoint with random weights to the new folder OUT: the layout of the MLX\n"
        "4-bit conversion, text model only, with a stand-in tokenizer. It says nothing sensible,\n"
        "but takes the memory and the time of the real one. OUT appears only when it is "
        "complete.\n",
    .options = options,
    .n_args_min = 1,
    .n_args_max = 1,
    .main = cmd_synth,
};

/* Ctrl-C and its like end the work at the next chance, with the partial files removed. */
static bool on_progress(void *user, uint64_t done, uint64_t total)
{
    term_progress_update(user, (double)done / 1e6, (double)total / 1e6);
    return signals_stop() == 0;
}

/* The official template comes with the demo model; without that the checkpoint has none. */
static char *find_template(void)
{
    char *dir = NULL;
    if (cli_model_dir(NULL, &dir, NULL) != CALLA_OK) return NULL;
    char *path = path_join(dir, "chat_template.jinja");
    mem_free(dir);
    if (path != NULL && file_exists(path)) return path;
    mem_free(path);
    return NULL;
}

static int cmd_synth(int argc, char **argv)
{
    command_options o = {.common = CLI_COMMON_DEFAULTS, .shape = "nano", .seed = 1};
    calla_error err;
    uint64_t n_bytes = 0;
    term_progress progress;
    const int rc = cli_parse(&cli_synth, argc, argv, &o, NULL);
    if (rc >= 0) return rc;
    char *chat_template = find_template();
    const synth_options so = {
        .shape = o.shape,
        .n_layers = (uint32_t)o.n_layers,
        .seed = o.seed,
        .n_threads = (uint32_t)o.common.n_threads,
        .chat_template = chat_template,
        .progress = on_progress,
        .user = &progress,
    };
    signals_catch_stop();
    term_progress_begin(&progress, "writing", "MB");
    const double start = time_now();
    const calla_status st = synth_write(argv[1], &so, &n_bytes, &err);
    const double seconds = time_now() - start;
    term_progress_end(&progress);
    mem_free(chat_template);
    if (st != CALLA_OK) {
        (void)cli_fail(&cli_synth, &err);
        return signals_stop() != 0 ? 128 + signals_stop() : CLI_FAILED;
    }
    fprintf(stderr, "%s: %llu bytes of tensors in %.1f s, %.0f MB/s\n", argv[1],
            (unsigned long long)n_bytes, seconds, (double)n_bytes / 1e6 / seconds);
    return CLI_OK;
}
