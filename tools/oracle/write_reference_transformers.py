"""Reference logits of Hugging Face transformers (PyTorch), for `calla verify`.

  python tools/oracle/write_reference_transformers.py MODEL OUT --text FILE | --ids FILE
      [--limit 192] [--top 64] [--trace 32] [--arithmetic f32|bf16] [--device cpu|cuda]

Needs torch, transformers, numpy, and tokenizers for --text (PyPI). MODEL is a folder in Hugging
Face's own layout, or one in MLX's: its codes are then widened to code * scale + bias, so that both
engines compute with the same weights. All weights are in memory in the chosen arithmetic.
"""
import json
import struct

import numpy as np
import torch
import transformers

import reference

KINDS = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "U32": torch.int32}


def tensors(folder):
    """name -> tensor of every safetensors file; nothing is copied before it is used."""
    out = {}
    for path in sorted(folder.glob("*.safetensors")):
        data = np.memmap(path, np.uint8, "r")
        n = struct.unpack("<Q", data[:8].tobytes())[0]
        for name, t in json.loads(data[8 : 8 + n].tobytes()).items():
            if name == "__metadata__":
                continue
            a, b = (8 + n + x for x in t["data_offsets"])
            raw = torch.from_numpy(np.array(data[a:b]))
            out[name] = raw.view(KINDS[t["dtype"]]).reshape(t["shape"])
    return out


def widen(codes, scales, biases):
    """MLX's affine layout: the first code is in the lowest bits of each word."""
    scales = scales.float()
    n_bits = next(b for b in (4, 8) if codes.shape[-1] * (32 // b) % scales.shape[-1] == 0
                  and codes.shape[-1] * (32 // b) // scales.shape[-1] == 64)
    shifts = torch.arange(0, 32, n_bits, dtype=torch.int32)
    x = (codes.unsqueeze(-1) >> shifts & (1 << n_bits) - 1).flatten(-2).float()
    x = x.unflatten(-1, (scales.shape[-1], 64))
    return (x * scales.unsqueeze(-1) + biases.float().unsqueeze(-1)).flatten(-2)


def from_mlx(t):
    """The same weights under the names and in the layouts of transformers."""
    out = {}
    for name, x in t.items():
        stem = name.rsplit(".", 1)[0]
        if name.endswith((".scales", ".biases")):
            continue
        if stem + ".scales" in t:
            x = widen(x, t[stem + ".scales"], t[stem + ".biases"])
        x = x.float()
        if name.endswith("conv1d.weight"):
            x = x.transpose(1, 2)
        elif name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
            x = x - 1.0  # stored as 1 + w
        out[name.removeprefix("language_model.")] = x
    for name in [n for n in out if n.endswith("switch_mlp.gate_proj.weight")]:
        stem = name.removesuffix("switch_mlp.gate_proj.weight")
        parts = [out.pop(f"{stem}switch_mlp.{p}_proj.weight") for p in ("gate", "up", "down")]
        out[stem + "experts.gate_up_proj"] = torch.cat(parts[:2], 1)
        out[stem + "experts.down_proj"] = parts[2]
    return out


def load(folder, dtype):
    config = transformers.AutoConfig.from_pretrained(folder).get_text_config()
    t = tensors(folder)
    if not any(n.endswith(".scales") for n in t):
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    net = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    net.load_state_dict({n: x.to(dtype) for n, x in from_mlx(t).items()}, strict=True)
    return net


def trace(net, ids):
    """The residual stream as exec_tap_fn hands it out, by hooks around the layers' parts."""
    points, hooks = [], []
    keep = lambda x: points.append(x[0].float().cpu().numpy())
    layers = net.model.layers
    hooks.append(layers[0].register_forward_pre_hook(lambda m, args: keep(args[0])))
    for layer in layers:
        hooks.append(layer.post_attention_layernorm.register_forward_pre_hook(
            lambda m, args: keep(args[0])))
        hooks.append(layer.register_forward_hook(
            lambda m, args, out: keep(out[0] if isinstance(out, tuple) else out)))
    net(torch.tensor([ids], device=net.device), use_cache=False)
    for h in hooks:
        h.remove()
    return np.stack(points)


@torch.inference_mode()
def main():
    ap = reference.arguments(__doc__)
    ap.add_argument("--arithmetic", choices=("f32", "bf16"), default="f32")
    ap.add_argument("--device", default="cpu")
    a = ap.parse_args()
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[a.arithmetic]
    net = load(a.model, dtype).to(a.device).eval()
    seqs = reference.sequences(a)
    rows = []
    for s in seqs:
        logits = net(torch.tensor([s], device=a.device), use_cache=False).logits
        rows.append(logits[0].float().cpu().numpy())
    source = f"transformers {transformers.__version__}, torch {torch.__version__}, {a.arithmetic}"
    points = trace(net, seqs[0][: a.trace]) if a.trace else None
    reference.write(a, seqs, np.concatenate(rows), points, source)


if __name__ == "__main__":
    main()
