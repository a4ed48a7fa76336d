/* cmd_quantize.c - calla quantize: a Hugging Face checkpoint to MLX's 4-bit layout. */
#include <string.h>
#include "base/pool.h"
#include "cli/cli.h"
#include "cli/signals.h"
#include "cli/term.h"
#include "model/quantize.h"

typedef struct command_options {
    cli_common common;
    int keep_mtp;
    uint64_t mtp_bits, shard_mb; /* mtp_bits 0: not given */
} command_options;

static const cli_option options[] = {
    CLI_OPT_FLAG(0, "keep-mtp", command_options, keep_mtp, 1,
                 "keep the head that drafts a second token, which MLX leaves out"),
    CLI_OPT_UINT(0, "mtp-bits", command_options, mtp_bits, 4, 8, "BITS",
                 "4 or 8 bits for its weights; default 8"),
    CLI_OPT_UINT(0, "shard-mb", command_options, shard_mb, 1, 1000000, "MB",
                 "largest shard; default 5 GiB"),
    CLI_ROW_THREADS(command_options, common),
    CLI_OPT_END,
};

static int cmd_quantize(int argc, char **argv);

const cli_command cli_quantize = {
    .name = "quantize",
    .summary = "make a 4-bit checkpoint from a bf16 one",
    .args = "HF_DIR OUT",
    .about =
        "Reads the checkpoint in HF_DIR as Hugging Face publishes it (bf16) and writes it to the\n"
        "new folder OUT in the layout of MLX's 4-bit conversion, which calla and MLX-LM run:\n"
        "groups of 64, routers in 8 bits, no vision tower. OUT appears only when it is "
        "complete.\n",
    .options = options,
    .n_args_min = 2,
    .n_args_max = 2,
    .main = cmd_quantize,
};

static bool on_progress(void *user, uint64_t done, uint64_t total)
{
    term_progress_update(user, (double)done / 1e6, (double)total / 1e6);
    return signals_stop() == 0;
}

static int cmd_quantize(int argc, char **argv)
{
    command_options o = {.common = CLI_COMMON_DEFAULTS};
    calla_error err;
    quantize_result r;
    term_progress progress;
    const int rc = cli_parse(&cli_quantize, argc, argv, &o, NULL);
    if (rc >= 0) return rc;
    if (o.mtp_bits != 0 && o.mtp_bits != 4 && o.mtp_bits != 8)
        return cli_usage_error(&cli_quantize, "--mtp-bits: expected 4 or 8, found %llu",
                               (unsigned long long)o.mtp_bits);
    if (o.mtp_bits != 0 && o.keep_mtp == 0)
        return cli_usage_error(&cli_quantize, "--mtp-bits belongs to --keep-mtp");
    if (o.mtp_bits == 0) o.mtp_bits = 8;
    const quantize_options qo = {
        .mtp_bits = o.keep_mtp != 0 ? (uint32_t)o.mtp_bits : 0,
        .n_threads = (uint32_t)o.common.n_threads,
        .shard_bytes = o.shard_mb * 1000000,
        .progress = on_progress,
        .user = &progress,
    };
    signals_catch_stop();
    term_progress_begin(&progress, "quantizing", "MB");
    const double start = time_now();
    const calla_status st = quantize_write(argv[1], argv[2], &qo, &r, &err);
    const double seconds = time_now() - start;
    term_progress_end(&progress);
    if (st != CALLA_OK) {
        (void)cli_fail(&cli_quantize, &err);
        return signals_stop() != 0 ? 128 + signals_stop() : CLI_FAILED;
    }
    fprintf(stderr, "%s: %u tensors, %llu bytes from %llu, in %.1f s\n", argv[2], r.n_tensors,
            (unsigned long long)r.bytes_out, (unsigned long long)r.bytes_in, seconds);
    if (r.n_vision + r.n_mtp != 0)
        fprintf(stderr, "left out: %u tensors of the vision tower, %u of the MTP head\n",
                r.n_vision, r.n_mtp);
    if (!r.has_tokenizer)
        fprintf(stderr,
                "calla quantize: %s has no tokenizer.json: expected one, %s runs only with it\n",
                argv[1], argv[2]);
    return CLI_OK;
}
