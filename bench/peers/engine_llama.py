"""Measures llama.cpp on one GGUF through llama-cpp-python: one process, one request at a time.

  python bench/peers/engine_llama.py FILE.gguf [--threads N] [--prefill N,..] [--decode N,..] [--steps N]
                                     [--device cpu|gpu] [--ubatch N] [--no-mmap]

Prints one JSON object (see README.md). Needs llama-cpp-python, gguf, numpy (PyPI). llama.cpp's own
defaults: batch 2048, micro-batch 512, f16 cache, flash attention chosen by it, weights mapped and,
where it prefers that, repacked for this processor while loading. With --device gpu every layer is
on the first GPU, for which llama-cpp-python must have been built (setup.sh).
"""

import gguf
import llama_cpp as ll
import numpy as np

import common


def shape(reader):
    get = lambda key: reader.fields[f"qwen35moe.{key}"].contents()
    return {key: get(key) for key in
            ("block_count", "full_attention_interval", "attention.head_count_kv",
             "attention.key_length", "expert_count", "expert_used_count", "ssm.inner_size",
             "ssm.state_size", "ssm.group_count", "ssm.conv_kernel", "vocab_size")}


def bytes_per_token(reader, s, n):
    """What a decode step at n tokens must move: chosen weights, cache rows, state in and out."""
    share = s["expert_used_count"] / s["expert_count"]
    weights = 0.0
    for t in reader.tensors:
        if t.name == "token_embd.weight":
            weights += t.n_bytes / s["vocab_size"]
        else:
            weights += t.n_bytes * (share if "_exps" in t.name else 1.0)
    full = s["block_count"] // s["full_attention_interval"]
    kv = full * n * 2 * s["attention.head_count_kv"] * s["attention.key_length"] * 2
    conv = (s["ssm.conv_kernel"] - 1) * (s["ssm.inner_size"] +
                                         2 * s["ssm.group_count"] * s["ssm.state_size"])
    state = (s["block_count"] - full) * 4 * (s["ssm.inner_size"] * s["ssm.state_size"] + conv)
    return weights + kv + 2 * state


class Llama(common.Engine):
    name = "llama.cpp"
    ubatch, mmap = 0, True

    def open(self, path, threads, n_ctx):
        self.quiet = ll.llama_log_callback(lambda level, text, user: None)
        ll.llama_log_set(self.quiet, None)
        ll.llama_backend_init()
        mp = ll.llama_model_default_params()
        mp.n_gpu_layers = 0 if self.device == "cpu" else 999
        mp.use_mmap = self.mmap
        self.model = ll.llama_model_load_from_file(path.encode(), mp)
        cp = ll.llama_context_default_params()
        cp.n_ctx, cp.n_threads, cp.n_threads_batch = n_ctx, threads, threads
        cp.n_ubatch = self.ubatch or cp.n_ubatch
        self.ctx = ll.llama_init_from_model(self.model, cp) if self.model else None
        if not self.ctx:
            raise SystemExit(f"{path}: llama.cpp does not load it")
        if self.device == "gpu" and not ll.llama_supports_gpu_offload():
            raise SystemExit("this llama.cpp was built without a GPU")
        self.reader = gguf.GGUFReader(path)
        self.shape = shape(self.reader)
        self.n_vocab = self.shape["vocab_size"]
        self.batch = cp.n_batch
        self.version = f"llama-cpp-python {ll.__version__}"
        built = ll.llama_print_system_info().decode()
        self.variant = f"{self.device}, micro-batch {cp.n_ubatch}, {built}"

    def reset(self):
        ll.llama_memory_clear(ll.llama_get_memory(self.ctx), True)

    def feed(self, ids):
        for at in range(0, len(ids), self.batch):
            part = ids[at : at + self.batch]
            array = (ll.llama_token * len(part))(*part)
            if ll.llama_decode(self.ctx, ll.llama_batch_get_one(array, len(part))) != 0:
                raise SystemExit("llama_decode failed")
        ll.llama_synchronize(self.ctx)
        return ll.llama_get_logits_ith(self.ctx, -1)

    def logits(self, ids):
        return np.ctypeslib.as_array(self.feed(ids), (self.n_vocab,))

    def bytes_per_token(self, n):
        return bytes_per_token(self.reader, self.shape, n)


if __name__ == "__main__":
    ap = common.arguments(__doc__)
    ap.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    ap.add_argument("--ubatch", type=int, default=0,
                    help="tokens computed at a time; 0: llama.cpp's own")
    ap.add_argument("--no-mmap", action="store_true",
                    help="read the weights: a mapped file and its repacked copy may not fit")
    engine, a = Llama(), ap.parse_args()
    engine.device, engine.ubatch, engine.mmap = a.device, a.ubatch, not a.no_mmap
    common.main(engine, ap)
