/* sparse.c - `sparse DIR [gates4]`: the full-size MLX checkpoint as files of holes, from the list
 * of its tensors. gates4: with 4-bit gates, as conversions of the earlier model have them. */
#include "support/st_writer.h"

static char *read_text(const char *path)
{
    char *text = NULL;
    size_t n = 0;
    if (file_read(path, 1 << 20, &text, &n, NULL) != CALLA_OK) fail_msg("cannot read %s\n", path);
    return text;
}

int main(int argc, char **argv)
{
    if (argc < 2) return 2;
    const bool gates4 = argc > 2;
    stw_list l = {0};
    char *text = read_text("tests/data/qwen3.6/mlx-tensors.tsv");
    for (char *line = strchr(text, '\n') + 1; *line != '\0'; line = strchr(line, '\n') + 1) {
        char name[128], dtype[12], shape[48], shard[64];
        if (sscanf(line, "%127s %11s %47s %*s %63s", name, dtype, shape, shard) != 4) return 1;
        const bool gate = strstr(name, ".mlp.gate.weight") != NULL;
        const bool shared = strstr(name, ".mlp.shared_expert_gate.weight") != NULL;
        const char *as = gates4 && gate ? "256x256" : gates4 && shared ? "1x256" : shape;
        stw_add(&l, name, dtype, as, NULL)->shard =
            (unsigned)strtoul(shard + strlen("model-"), NULL, 10) - 1;
    }
    stw_save(&l, argv[1], 4, true);
    char *config = read_text("tests/data/qwen3.6/config.json");
    for (char *p = config; gates4 && (p = strstr(p, "\"bits\": 8")) != NULL;)
        p[8] = '4';
    stw_write_text(argv[1], "config.json", config);
    mem_free(config);
    mem_free(text);
    stw_free(&l);
    return 0;
}
