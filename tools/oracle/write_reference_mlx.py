"""Reference logits of MLX-LM on a checkpoint's own bytes, for `calla verify`.

  python tools/oracle/write_reference_mlx.py MODEL OUT --text FILE | --ids FILE [--limit 192]
      [--top 64] [--trace 32] [--arithmetic bf16|f32] [--device cpu|gpu]

Needs mlx, mlx-lm, numpy, and tokenizers for --text (PyPI). bf16 is MLX's own arithmetic; f32 has all
parameters that are not codes widened, which leaves less of MLX's own rounding in the comparison.
"""
import mlx.core as mx
import mlx_lm
import numpy as np
from mlx.utils import tree_map
from mlx_lm.models.base import create_attention_mask
from mlx_lm.utils import load_model

import reference


def as_numpy(x):
    return np.array(x.astype(mx.float32))


def trace(net, ids):
    """The residual stream as exec_tap_fn hands it out: embedding, then two points a layer."""
    model = net.language_model.model
    x = model.embed_tokens(mx.array([ids]))
    points = [as_numpy(x)[0]]
    for layer in model.layers:
        u = layer.input_layernorm(x)
        if layer.is_linear:
            x = x + layer.linear_attn(u, None, None)
        else:
            x = x + layer.self_attn(u, create_attention_mask(x, None), None)
        points.append(as_numpy(x)[0])
        x = x + layer.mlp(layer.post_attention_layernorm(x))
        points.append(as_numpy(x)[0])
    return np.stack(points)


def main():
    ap = reference.arguments(__doc__)
    ap.add_argument("--arithmetic", choices=("bf16", "f32"), default="bf16")
    ap.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    a = ap.parse_args()
    mx.set_default_device(getattr(mx, a.device))
    net, _ = load_model(a.model)
    if a.arithmetic == "f32":
        half = (mx.bfloat16, mx.float16)
        net.update(tree_map(lambda p: p.astype(mx.float32) if p.dtype in half else p,
                            net.parameters()))
    seqs = reference.sequences(a)
    rows = np.concatenate([as_numpy(net(mx.array([s]))[0]) for s in seqs])
    source = f"mlx-lm {mlx_lm.__version__}, mlx {mx.__version__}, {a.arithmetic}"
    reference.write(a, seqs, rows, trace(net, seqs[0][: a.trace]) if a.trace else None, source)


if __name__ == "__main__":
    main()
