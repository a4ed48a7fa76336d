"""Writes a GGUF of random weights with the shape of a calla checkpoint, for llama.cpp.

  python bench/peers/make_gguf.py CHECKPOINT OUT.gguf [--mix q4_0|q4_k_m] [--seed 1]

Needs gguf and numpy (PyPI). CHECKPOINT is a folder with config.json, such as `calla synth` writes:
the two files then ask for the same products. Architecture qwen35moe; tensor types as llama.cpp's
own quantiser chooses them for the mix. Blocks are random bytes under scales that keep activations
of ordinary size, so nothing is quantised and a 20 GB file takes a minute or two; memory stays below
1 GB. There is no vocabulary: token ids go in, logits come out.
"""
import argparse
import json
import pathlib

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T

CHUNK = 64 << 20  # bytes of random blocks made at a time


def text_config(folder):
    config = json.loads(pathlib.Path(folder, "config.json").read_text())
    return config.get("text_config", config)


def more_bits(layer, n_layers):
    """llama.cpp's rule for the layers that get Q6_K in a *_M mix."""
    return layer < n_layers // 8 or layer >= 7 * n_layers // 8 or (layer - n_layers // 8) % 3 == 2


def tensors(c, mix):
    """(name, shape with the fastest index last, type) in file order."""
    n, hidden = c["num_hidden_layers"], c["hidden_size"]
    q = c["num_attention_heads"] * c["head_dim"]
    kv = c["num_key_value_heads"] * c["head_dim"]
    key = c["linear_num_key_heads"] * c["linear_key_head_dim"]
    value = c["linear_num_value_heads"] * c["linear_value_head_dim"]
    heads, experts = c["linear_num_value_heads"], c["num_experts"]
    ff, shared = c["moe_intermediate_size"], c["shared_expert_intermediate_size"]
    conv = 2 * key + value
    base = {"q4_0": T.Q4_0, "q4_k_m": T.Q4_K}[mix]
    yield "token_embd.weight", (c["vocab_size"], hidden), base
    yield "output_norm.weight", (hidden,), T.F32
    yield "output.weight", (c["vocab_size"], hidden), T.Q6_K
    for i in range(n):
        b = f"blk.{i}."
        big = T.Q6_K if mix == "q4_k_m" and more_bits(i, n) else base
        yield b + "attn_norm.weight", (hidden,), T.F32
        yield b + "post_attention_norm.weight", (hidden,), T.F32
        if (i + 1) % c["full_attention_interval"] == 0:
            yield b + "attn_q.weight", (2 * q, hidden), base
            yield b + "attn_k.weight", (kv, hidden), base
            yield b + "attn_v.weight", (kv, hidden), big
            yield b + "attn_output.weight", (hidden, q), base
            yield b + "attn_q_norm.weight", (c["head_dim"],), T.F32
            yield b + "attn_k_norm.weight", (c["head_dim"],), T.F32
        else:
            yield b + "attn_qkv.weight", (conv, hidden), big
            yield b + "attn_gate.weight", (value, hidden), base
            yield b + "ssm_conv1d.weight", (conv, c["linear_conv_kernel_dim"]), T.F32
            yield b + "ssm_dt.bias", (heads,), T.F32
            yield b + "ssm_a", (heads,), T.F32
            yield b + "ssm_beta.weight", (heads, hidden), base
            yield b + "ssm_alpha.weight", (heads, hidden), base
            yield b + "ssm_norm.weight", (c["linear_value_head_dim"],), T.F32
            yield b + "ssm_out.weight", (hidden, value), base
        yield b + "ffn_gate_inp.weight", (experts, hidden), T.F32
        yield b + "ffn_gate_exps.weight", (experts, ff, hidden), base
        yield b + "ffn_up_exps.weight", (experts, ff, hidden), base
        yield b + "ffn_down_exps.weight", (experts, hidden, ff), big
        yield b + "ffn_gate_inp_shexp.weight", (hidden,), T.F32
        yield b + "ffn_gate_shexp.weight", (shared, hidden), base
        yield b + "ffn_up_shexp.weight", (shared, hidden), base
        yield b + "ffn_down_shexp.weight", (hidden, shared), big


def metadata(w, c):
    rope = c.get("rope_parameters", c)
    w.add_context_length(c["max_position_embeddings"])
    w.add_vocab_size(c["vocab_size"])
    w.add_embedding_length(c["hidden_size"])
    w.add_block_count(c["num_hidden_layers"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_key_length(c["head_dim"])
    w.add_value_length(c["head_dim"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_rope_freq_base(rope["rope_theta"])
    w.add_rope_dimension_count(int(c["head_dim"] * rope.get("partial_rotary_factor", 0.25)))
    w.add_rope_dimension_sections([11, 11, 10, 0])
    w.add_expert_count(c["num_experts"])
    w.add_expert_used_count(c["num_experts_per_tok"])
    w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    w.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])
    w.add_ssm_conv_kernel(c["linear_conv_kernel_dim"])
    w.add_ssm_state_size(c["linear_key_head_dim"])
    w.add_ssm_group_count(c["linear_num_key_heads"])
    w.add_ssm_time_step_rank(c["linear_num_value_heads"])
    w.add_ssm_inner_size(c["linear_num_value_heads"] * c["linear_value_head_dim"])
    w.add_uint32("qwen35moe.full_attention_interval", c["full_attention_interval"])
    w.add_tokenizer_model("none")


# Where a block's float16 scales are, and the weight's standard deviation per unit of scale; for the
# K types with minima the second scale is 7.5 times the first, so that the mean is near zero.
BLOCKS = {T.Q4_0: ((0,), 4.6), T.Q4_K: ((0, 2), 240.0), T.Q6_K: ((208,), 1370.0)}


def random_blocks(rng, kind, n_blocks, std):
    size = gguf.GGML_QUANT_SIZES[kind][1]
    raw = rng.integers(0, 1 << 64, size=(n_blocks * size + 7) // 8, dtype=np.uint64)
    blocks = raw.view(np.uint8)[: n_blocks * size].reshape(n_blocks, size)
    where, unit = BLOCKS[kind]
    for i, at in enumerate(where):
        scale = np.float16(std / unit * (7.5 if i == 1 else 1.0))
        blocks[:, at : at + 2] = np.array([scale]).view(np.uint8)
    return blocks


def floats(rng, name, shape):
    if name.endswith("norm.weight"):
        x = 1.0 + 0.1 * rng.standard_normal(shape)
    elif name.endswith("ssm_a"):
        x = -np.exp(rng.uniform(-4.0, 1.0, shape))
    elif "conv1d" in name:
        x = 0.5 * rng.standard_normal(shape)
    else:
        x = rng.standard_normal(shape) / np.sqrt(shape[-1])
    return x.astype(np.float32)


def write_tensor(f, rng, name, shape, kind):
    if kind == T.F32:
        f.write(floats(rng, name, shape).tobytes())
        return
    n_weights, n_bytes = gguf.GGML_QUANT_SIZES[kind]
    left = int(np.prod(shape)) // n_weights
    while left:
        m = min(left, CHUNK // n_bytes)
        f.write(random_blocks(rng, kind, m, shape[-1] ** -0.5).data)
        left -= m


def file_bytes(shape, kind):
    n_weights, n_bytes = gguf.GGML_QUANT_SIZES[kind]
    return int(np.prod(shape)) // n_weights * n_bytes


def write(out, c, mix, seed):
    """The header comes from gguf; the data is streamed behind it."""
    w = gguf.GGUFWriter(out, "qwen35moe")
    w.add_name(f"random, {mix}, {c['num_hidden_layers']} layers")
    metadata(w, c)
    items = list(tensors(c, mix))
    for name, shape, kind in items:
        w.add_tensor_info(name, shape, np.dtype(np.float32), file_bytes(shape, kind),
                          raw_dtype=None if kind == T.F32 else kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    f, rng = w.fout[0], np.random.default_rng(seed)
    pad = lambda: f.write(bytes(-f.tell() % w.data_alignment))
    pad()
    for name, shape, kind in items:
        write_tensor(f, rng, name, shape, kind)
        pad()
    n = f.tell()
    w.close()
    return n


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("checkpoint")
    ap.add_argument("out")
    ap.add_argument("--mix", choices=("q4_0", "q4_k_m"), default="q4_k_m")
    ap.add_argument("--seed", type=int, default=1)
    a = ap.parse_args()
    part = a.out + ".part"
    n = write(part, text_config(a.checkpoint), a.mix, a.seed)
    pathlib.Path(part).rename(a.out)
    print(f"{a.out}: {n / 1e9:.3f} GB")


if __name__ == "__main__":
    main()
