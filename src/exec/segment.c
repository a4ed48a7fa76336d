#include "exec/segment.h"

calla_status exec_check_token(int32_t token, uint32_t n_vocab, calla_error *err)
{
    if (token >= 0 && (uint32_t)token < n_vocab) return CALLA_OK;
    return err_set(err, CALLA_ERR_ARGUMENT, "token id %d is outside 0 .. %u", token, n_vocab - 1);
}

calla_status exec_check_room(uint32_t n, uint32_t n_used, uint32_t n_ctx, calla_error *err)
{
    if (n <= n_ctx - n_used) return CALLA_OK;
    return err_set(err, CALLA_ERR_FULL,
                   "%u more tokens do not fit: %u of the context of %u are in use", n, n_used,
                   n_ctx);
}

calla_status exec_check_segment(const exec_segment *seg, uint32_t i, uint32_t n_before,
                                uint32_t chunk, uint32_t n_used, uint32_t n_ctx, uint32_t n_vocab,
                                calla_error *err)
{
    if (seg->n_tokens == 0 || seg->n_tokens > chunk - n_before)
        return err_set(err, CALLA_ERR_ARGUMENT,
                       "a batch holds 1 to %u tokens, segment %u brings %u after %u", chunk, i,
                       seg->n_tokens, n_before);
    calla_status st = exec_check_room(seg->n_tokens, n_used, n_ctx, err);
    for (uint32_t j = 0; j < seg->n_tokens && st == CALLA_OK; j++)
        st = exec_check_token(seg->tokens[j], n_vocab, err);
    return st;
}
