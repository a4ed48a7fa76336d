"""Measures transformers on random weights of a checkpoint's shape, in bf16: 3.6 times the bytes.

  python bench/peers/engine_transformers.py DIR [--device cuda] [--prefill N,..] [--decode N,..] [--steps N]

Prints one JSON object (see README.md). Needs torch and transformers (PyPI), which have no path for
the 4-bit file; of DIR only config.json is read. Its own defaults: eager, sdpa attention, grouped
products of the experts. With flash-linear-attention its kernels compute Gated DeltaNet, without it
transformers' reference does; `variant` says which.
"""
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

import common

PIECE = 2048


def delta_kernels():
    """Where transformers takes the delta rule from."""
    try:
        import fla
    except ImportError:
        return "reference delta rule"
    return f"flash-linear-attention {fla.__version__}"


def weight_bytes(model, c):
    n = 0.0
    for name, p in model.named_parameters():
        size = p.numel() * p.element_size()
        if "embed_tokens" in name:
            size /= p.shape[0]
        if ".experts." in name:
            size *= c.num_experts_per_tok / c.num_experts
        n += size
    return n


def randomise(model):
    """Matrices of a variance that keeps activations of ordinary size, so that routing is random."""
    for p in model.parameters():
        if p.dim() > 1:
            torch.nn.init.normal_(p, std=p.shape[-1] ** -0.5)


class Transformers(common.Engine):
    name = "transformers"

    def open(self, path, threads, n_ctx):
        torch.set_num_threads(threads)
        torch.manual_seed(1)
        self.config = AutoConfig.from_pretrained(path).get_text_config()
        with torch.device(self.device):
            self.model = AutoModelForCausalLM.from_config(self.config, dtype=torch.bfloat16).eval()
        randomise(self.model)
        self.weights = weight_bytes(self.model, self.config)
        self.n_vocab = self.config.vocab_size
        self.version = f"transformers {transformers.__version__}, torch {torch.__version__}"
        self.variant = f"{self.device} bf16 weights, eager, {delta_kernels()}"

    def reset(self):
        self.cache = DynamicCache(config=self.config)

    @torch.inference_mode()
    def feed(self, ids):
        for at in range(0, len(ids), PIECE):
            part = torch.tensor([ids[at : at + PIECE]], device=self.device)
            logits = self.model(input_ids=part, past_key_values=self.cache, use_cache=True,
                                logits_to_keep=1).logits
        if self.device != "cpu":
            torch.cuda.synchronize()
        return logits

    def bytes_per_token(self, n):
        return self.weights + common.context_bytes(self.config.to_dict(), n)


if __name__ == "__main__":
    ap = common.arguments(__doc__)
    ap.add_argument("--device", default="cuda")
    engine = Transformers()
    engine.device = ap.parse_args().device
    common.main(engine, ap)
