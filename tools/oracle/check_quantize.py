#!/usr/bin/env python3
"""calla quantize against MLX: check_quantize.py --calla build/calla --source HF_DIR [--expected MLX_DIR]

Needs mlx and mlx-lm. Quantises HF_DIR, then
- with --expected: every tensor must be equal bit for bit, config.json equal as JSON;
- against mx.quantize on this machine, whose processor path divides where its GPU path multiplies with a reciprocal, so that a
  group whose extreme lies between two codes comes out otherwise: at most 1 % of words differ, and the error is the same;
- MLX-LM must load the folder and generate from it.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import mlx.core as mx


def load(folder):
    out = {}
    for f in sorted(pathlib.Path(folder).glob("*.safetensors")):
        out.update(mx.load(str(f)))
    return out


def bits_of(t):
    return t if t.dtype == mx.uint32 else t.view(mx.uint16)


def check_equal(got, want):
    failed = sorted(set(got) ^ set(want))
    for name in set(got) & set(want):
        a, b = got[name], want[name]
        if a.shape != b.shape or a.dtype != b.dtype or not mx.array_equal(bits_of(a), bits_of(b)).item():
            failed.append(name)
    return failed


def source_of(module, src):
    name = module.replace("language_model.lm_head", "lm_head").replace("language_model.model.", "model.language_model.")
    if ".switch_mlp." not in name:
        return src[name + ".weight"]
    layer, part = name.split("switch_mlp.")
    if part == "down_proj":
        return src[layer + "experts.down_proj"]
    both = src[layer + "experts.gate_up_proj"]
    half = both.shape[1] // 2
    return both[:, :half] if part == "gate_proj" else both[:, half:]


def check_mlx(got, src):
    words = differ = 0
    error = {"calla": 0.0, "mlx": 0.0}
    for name in got:
        if not name.endswith(".scales"):
            continue
        module = name[:-len(".scales")]
        bits = 8 if module.endswith(("mlp.gate", "shared_expert_gate")) else 4
        w = source_of(module, src)
        want = mx.quantize(w, group_size=64, bits=bits)
        ours = [got[module + s] for s in (".weight", ".scales", ".biases")]
        words += want[0].size
        differ += int(mx.sum(ours[0] != want[0]).item())
        for who, q in (("calla", ours), ("mlx", want)):
            d = mx.dequantize(*[x if x.dtype == mx.uint32 else x.astype(mx.float32) for x in q], group_size=64, bits=bits)
            error[who] += mx.sum((d - w.astype(mx.float32)) ** 2).item()
    print(f"mx.quantize here: {differ} of {words} words differ; squared error calla {error['calla']:.6g}, mlx {error['mlx']:.6g}")
    return differ <= words / 100 and error["calla"] <= 1.001 * error["mlx"]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--calla", default="build/calla")
    p.add_argument("--source", required=True)
    p.add_argument("--expected")
    o = p.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        out = tmp + "/out"
        subprocess.run([o.calla, "quantize", o.source, out], check=True)
        got, ok = load(out), True
        if o.expected:
            failed = check_equal(got, load(o.expected))
            same = json.load(open(out + "/config.json")) == json.load(open(o.expected + "/config.json"))
            print(f"{len(got)} tensors, {len(failed)} differ from the expected ones {failed[:5]}; config.json equal: {same}")
            ok = not failed and same
        ok = check_mlx(got, load(o.source)) and ok
        from mlx_lm import generate, load as load_lm
        model, tok = load_lm(out)
        chat = tok.apply_chat_template([{"role": "user", "content": "What is 47 + 38?"}], add_generation_prompt=True,
                                       enable_thinking=False)
        text = generate(model, tok, prompt=chat, max_tokens=12)
        print("MLX-LM says:", text)
        print("1 passed, 0 failed" if ok and text else "0 passed, 1 failed")
        return 0 if ok and text else 1


if __name__ == "__main__":
    sys.exit(main())
