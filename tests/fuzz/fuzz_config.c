/* fuzz_config.c - any bytes as the config.json of a small, well-formed checkpoint: shape_read, and
 * binding with its quantisation block. */
#include "model/weights.h"
#include "support/tiny_model.h"

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
    tiny_model(&l, false, 1);
    stw_save(&l, dir, 0, true);
    stw_free(&l);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (dir == NULL) make_folder();
    stw_write(dir, "config.json", data, size);
    checkpoint *ck = NULL;
    model_shape shape;
    model_weights w = {0};
    calla_error err = {0};
    calla_status st = checkpoint_open(&ck, dir, &err);
    if (st == CALLA_OK)
        st = shape_read(&shape, checkpoint_config(ck), checkpoint_generation_config(ck), &err);
    if (st == CALLA_OK) st = weights_bind(&w, ck, &shape, &err);
    if (st != err.code || (st != CALLA_OK && err.message[0] == '\0')) abort();
    weights_unbind(&w);
    checkpoint_close(ck);
    return 0;
}
