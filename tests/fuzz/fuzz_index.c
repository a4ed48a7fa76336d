/* fuzz_index.c - any bytes as model.safetensors.index.json beside two small shards. */
#include "format/checkpoint.h"
#include "support/st_writer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char *dir;

static void remove_folder(void)
{
    stw_rmdir(dir);
}

static void make_folder(void)
{
    stw_list l = {0};
    dir = stw_mkdir();
    (void)atexit(remove_folder);
    (void)stw_add(&l, "a", "U8", "3", "abc");
    stw_add(&l, "b", "BF16", "1", "de")->shard = 1;
    stw_save(&l, dir, 2, true);
    stw_write_text(dir, "config.json", "{}");
    stw_free(&l);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (dir == NULL) make_folder();
    stw_write(dir, "model.safetensors.index.json", data, size);
    checkpoint *ck = NULL;
    calla_error err = {0};
    const calla_status st = checkpoint_open(&ck, dir, &err);
    if (st != err.code || (st != CALLA_OK && err.message[0] == '\0')) abort();
    /* Whatever opens holds what the shards hold. */
    if (st == CALLA_OK && (checkpoint_count(ck) == 0 || checkpoint_count(ck) > 2)) abort();
    checkpoint_close(ck);
    return 0;
}
