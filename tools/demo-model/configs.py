"""The small JSON files of the checkpoints. Usage: python3 configs.py MODEL_DIR [HF_DIR]"""
import json
import shutil
import sys

import bpe
import model as M


def ids(tokenizer):
    return {a["content"]: a["id"] for a in json.load(open(tokenizer, encoding="utf-8"))["added_tokens"]}


def text_config(c):
    return {
        "attention_bias": False, "attention_dropout": 0.0, "attn_output_gate": True, "bos_token_id": 4032, "dtype": "bfloat16",
        "eos_token_id": 4032, "full_attention_interval": c.interval, "head_dim": c.head_dim, "hidden_act": "silu",
        "hidden_size": c.hidden, "initializer_range": 0.02,
        "layer_types": ["linear_attention" if c.is_linear(i) else "full_attention" for i in range(c.layers)],
        "linear_conv_kernel_dim": c.conv, "linear_key_head_dim": c.dk, "linear_num_key_heads": c.key_heads,
        "linear_num_value_heads": c.value_heads, "linear_value_head_dim": c.dv, "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 32768, "model_type": "qwen3_5_moe_text", "moe_intermediate_size": c.inter,
        "mtp_num_hidden_layers": 0, "mtp_use_dedicated_embeddings": False, "num_attention_heads": c.heads, "num_experts": c.experts,
        "num_experts_per_tok": c.topk, "num_hidden_layers": c.layers, "num_key_value_heads": c.kv_heads, "output_router_logits": False,
        "pad_token_id": None, "partial_rotary_factor": 0.25, "rms_norm_eps": c.eps,
        "rope_parameters": {"mrope_interleaved": True, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25,
                            "rope_theta": int(c.theta), "rope_type": "default"},
        "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": c.shared_inter, "tie_word_embeddings": False,
        "use_cache": True, "vocab_size": c.vocab,
    }


def config(c, sp, quantized):
    out = {"architectures": ["Qwen3_5MoeForConditionalGeneration"], "eos_token_id": [sp["<|im_end|>"], sp["<|endoftext|>"]],
           "image_token_id": sp["<|image_pad|>"], "model_type": "qwen3_5_moe"}
    if quantized:
        q = {"group_size": 64, "bits": 4, "mode": "affine"}
        for i in range(c.layers):
            for n in ("gate", "shared_expert_gate"):
                q[f"language_model.model.layers.{i}.mlp.{n}"] = {"group_size": 64, "bits": 8}
        out["quantization"] = q
        out["quantization_config"] = q
    out.update(text_config=dict(text_config(c), bos_token_id=sp["<|endoftext|>"], eos_token_id=sp["<|endoftext|>"]),
               tie_word_embeddings=False, transformers_version="4.57.1", video_token_id=sp["<|video_pad|>"],
               vision_end_token_id=sp["<|vision_end|>"], vision_start_token_id=sp["<|vision_start|>"])
    return out


def main():
    ck = sys.argv[1]
    sp = ids(f"{ck}/tokenizer.json")
    c = M.Config()
    dump = lambda x, f: json.dump(x, open(f, "w", encoding="utf-8"), ensure_ascii=False, indent=4)
    dump(config(c, sp, True), f"{ck}/config.json")
    gen = {"bos_token_id": sp["<|endoftext|>"], "do_sample": False, "eos_token_id": [sp["<|im_end|>"], sp["<|endoftext|>"]],
           "pad_token_id": sp["<|endoftext|>"]}
    dump(gen, f"{ck}/generation_config.json")
    named = {"audio_bos_token": "<|audio_start|>", "audio_eos_token": "<|audio_end|>", "audio_token": "<|audio_pad|>",
             "image_token": "<|image_pad|>", "video_token": "<|video_pad|>", "vision_bos_token": "<|vision_start|>",
             "vision_eos_token": "<|vision_end|>"}
    tc = {"add_prefix_space": False, "audio_bos_token": "<|audio_start|>", "audio_eos_token": "<|audio_end|>",
          "audio_token": "<|audio_pad|>", "backend": "tokenizers", "bos_token": None, "clean_up_tokenization_spaces": False,
          "eos_token": "<|im_end|>", "errors": "replace", "image_token": "<|image_pad|>", "is_local": True, "model_max_length": 32768,
          "model_specific_special_tokens": named, "pad_token": "<|endoftext|>", "pretokenize_regex": bpe.PRETOKENIZE,
          "split_special_tokens": False, "tokenizer_class": "TokenizersBackend", "unk_token": None, "video_token": "<|video_pad|>",
          "vision_bos_token": "<|vision_start|>", "vision_eos_token": "<|vision_end|>"}
    dump(tc, f"{ck}/tokenizer_config.json")
    if len(sys.argv) > 2:
        hf = sys.argv[2]
        dump(config(c, sp, False), f"{hf}/config.json")
        dump(gen, f"{hf}/generation_config.json")
        for f in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copyfile(f"{ck}/{f}", f"{hf}/{f}")


if __name__ == "__main__":
    main()
