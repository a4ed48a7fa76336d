/* damage.c - `damage MODEL OUT TENSOR nibbles|VALUE`: a copy of the checkpoint MODEL in the new
 * folder OUT, in which one tensor is wrong: the two nibbles of every byte of its codes are swapped,
 * or all its values (bf16, f32) are VALUE. */
#include "support/st_writer.h"

static void copy(const char *from, const char *to, const char *name, bool must)
{
    char *path = path_join(from, name), *data;
    size_t n;
    calla_error err;
    if (file_read(path, 1u << 30, &data, &n, &err) != CALLA_OK) {
        if (must) fail_msg("%s\n", err.message);
    } else {
        stw_write(to, name, data, n);
        mem_free(data);
    }
    mem_free(path);
}

static void wrong(const st_tensor *t, const char *how, uint8_t *out)
{
    if (strcmp(how, "nibbles") == 0) {
        for (uint64_t i = 0; i < t->n_bytes; i++)
            out[i] = (uint8_t)(out[i] >> 4 | out[i] << 4);
        return;
    }
    const float f = strtof(how, NULL);
    const uint16_t h = f32_to_bf16(f);
    if (t->dtype != ST_F32 && t->dtype != ST_BF16) fail_msg("%s: not of floats\n", t->name);
    for (uint64_t i = 0; i < t->n_bytes; i += st_dtype_bytes(t->dtype))
        memcpy(out + i, t->dtype == ST_F32 ? (const void *)&f : (const void *)&h,
               st_dtype_bytes(t->dtype));
}

int main(int argc, char **argv)
{
    static const char *const others[] = {"config.json", "tokenizer.json", "tokenizer_config.json",
                                         "chat_template.jinja", "generation_config.json"};
    if (argc != 5) return 2;
    safetensors *st;
    calla_error err;
    char *path = path_join(argv[1], "model.safetensors"), *data;
    size_t n;
    if (mkdir(argv[2], 0700) != 0) fail_msg("cannot make %s\n", argv[2]);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        copy(argv[1], argv[2], others[i], i < 2);
    if (file_read(path, 1u << 30, &data, &n, &err) != CALLA_OK ||
        safetensors_parse(&st, path, (const uint8_t *)data, n, &err) != CALLA_OK)
        fail_msg("%s\n", err.message);
    const st_tensor *t = safetensors_find(st, argv[3]);
    if (t == NULL) fail_msg("no tensor %s\n", argv[3]);
    wrong(t, argv[4], (uint8_t *)data + (t->data - (const uint8_t *)data));
    stw_write(argv[2], "model.safetensors", data, n);
    safetensors_close(st);
    mem_free(data);
    mem_free(path);
    return 0;
}
