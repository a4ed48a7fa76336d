"""Measures MLX-LM on a checkpoint folder, the same bytes that calla reads.

  python bench/peers/engine_mlx.py DIR [--threads N] [--prefill N,..] [--decode N,..] [--steps N]
                                   [--device cpu|gpu]

Prints one JSON object (see README.md). Needs mlx and mlx-lm (PyPI). Prompts are computed in pieces
of 2048 tokens, as mlx_lm does. MLX has no setting for threads: on a CPU it takes what it takes.
"""
import json
import pathlib
import struct

import mlx.core as mx
import mlx_lm
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

import common

PIECE = 2048


def tensor_bytes(folder):
    """name -> (bytes, first dimension) of every tensor of the language model."""
    out = {}
    for path in pathlib.Path(folder).glob("*.safetensors"):
        with path.open("rb") as f:
            header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        for name, t in header.items():
            if name != "__metadata__" and "vision" not in name and "mtp" not in name:
                out[name] = (t["data_offsets"][1] - t["data_offsets"][0], t["shape"][0])
    return out


def weight_bytes(folder, c):
    n = 0.0
    for name, (size, rows) in tensor_bytes(folder).items():
        if "embed_tokens" in name:
            size /= rows
        if "switch_mlp" in name:
            size *= c["num_experts_per_tok"] / c["num_experts"]
        n += size
    return n


class Mlx(common.Engine):
    name = "mlx-lm"

    def open(self, path, threads, n_ctx):
        self.model, config = load_model(pathlib.Path(path))
        self.config = config.get("text_config", config)
        mx.eval(self.model.parameters())
        self.weights = weight_bytes(path, self.config)
        self.n_vocab = self.config["vocab_size"]
        self.version = f"mlx-lm {mlx_lm.__version__}, mlx {mx.__version__}"
        self.variant = str(mx.default_device())

    def reset(self):
        self.cache = make_prompt_cache(self.model)

    def feed(self, ids):
        for at in range(0, len(ids), PIECE):
            logits = self.model(mx.array([ids[at : at + PIECE]]), cache=self.cache)[:, -1]
            mx.eval(logits, [c.state for c in self.cache])
        return logits

    def bytes_per_token(self, n):
        return self.weights + common.context_bytes(self.config, n)


if __name__ == "__main__":
    ap = common.arguments(__doc__)
    ap.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    engine = Mlx()
    engine.device = ap.parse_args().device
    mx.set_default_device(getattr(mx, engine.device))
    common.main(engine, ap)
