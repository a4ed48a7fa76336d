"""Agreement of calla with MLX-LM on the same checkpoint bytes, teacher-forced.

  python tools/oracle/agree_mlx.py [--model models/nano] [--build build] [--eval 10] [--limit N] [--mlx bf16,f32]
                                   [--backend cpu] [--write-ids FILE | --rows FILE]

Needs mlx, mlx-lm, numpy, tokenizers (PyPI), and `make build/oracle/score_dump`. The text is the
golden perplexity text and the evaluation set's dialogues (prompt and right answer). Both engines
get the same ids; MLX runs once with its own arithmetic (bfloat16 activations) and once with all
its parameters that are not codes widened to float32, which shows how much of a difference is
rounding of MLX's own. KL is KL(MLX || calla) in nats. MLX takes about 80 ms a token on a CPU.
For a GPU on another machine: --write-ids writes what score_dump needs there and stops; --rows
compares what score_dump wrote there.
"""
import argparse
import json
import pathlib
import subprocess
import tempfile

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map
from mlx_lm.utils import load_model
from tokenizers import Tokenizer


def sequences(model, n_eval):
    """Lists of ids: the golden text, then every k-th short evaluation dialogue."""
    golden = json.loads(pathlib.Path("tests/golden/golden.json").read_text())
    tok = Tokenizer.from_file(str(model / "tokenizer.json"))
    items = [json.loads(s) for s in pathlib.Path("tests/eval/prompts.jsonl").open(encoding="utf-8")]
    items = [i for i in items if "prompt" in i]
    out = [golden["perplexity"]["ids"]]
    for i in items[:: len(items) // n_eval] if n_eval else []:
        out.append(tok.encode(i["prompt"] + i["completion"], add_special_tokens=False).ids)
    return out


def ids_text(seqs):
    return "".join(" ".join(map(str, s)) + "\n" for s in seqs)


def run_calla(build, model, kv, seqs, n_vocab, backend):
    with tempfile.TemporaryDirectory() as d:
        ids, out = pathlib.Path(d, "ids"), pathlib.Path(d, "out")
        ids.write_text(ids_text(seqs))
        subprocess.run([f"{build}/oracle/score_dump", model, kv, ids, out, backend], check=True)
        return np.fromfile(out, np.float32).reshape(-1, n_vocab)


def run_mlx(model, seqs, dtype):
    net, config = load_model(model)
    if dtype is not None:
        widen = lambda p: p.astype(dtype) if p.dtype in (mx.bfloat16, mx.float16) else p
        net.update(tree_map(widen, net.parameters()))
    return np.concatenate([np.array(net(mx.array([s]))[0].astype(mx.float32)) for s in seqs])


def log_softmax(x):
    x = x.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def compare(ours, theirs, seqs, tokens):
    """One row of the table. The last position of a sequence predicts nothing."""
    target = np.concatenate([s[1:] + [-1] for s in seqs])
    keep = target >= 0
    a, b, t = ours[keep][:, :tokens], theirs[keep][:, :tokens], target[keep]
    la, lb = log_softmax(a), log_softmax(b)
    kl = (np.exp(lb) * (lb - la)).sum(-1)
    nll = lambda l: -l[np.arange(len(t)), t].mean()
    same = a.argmax(-1) == b.argmax(-1)
    top2 = np.sort(b, -1)[:, -2:]
    gap = (top2[:, 1] - top2[:, 0])[~same]
    return dict(positions=len(t), top1=same.mean(), flips=int((~same).sum()),
                widest_gap=float(gap.max()) if len(gap) else 0.0,
                ratio=float(np.exp(nll(la) - nll(lb))), ppl=float(np.exp(nll(la))),
                kl_mean=kl.mean(), kl_max=kl.max(), dlogit=np.abs(a - b).max())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--model", type=pathlib.Path, default=pathlib.Path("models/nano"))
    ap.add_argument("--build", default="build")
    ap.add_argument("--eval", type=int, default=10, help="evaluation dialogues, 0: none")
    ap.add_argument("--limit", type=int, default=1 << 20, help="ids of each sequence")
    ap.add_argument("--mlx", default="bf16,f32", help="arithmetic of MLX")
    ap.add_argument("--backend", default="cpu", help="of calla")
    ap.add_argument("--write-ids", type=pathlib.Path)
    ap.add_argument("--rows", type=pathlib.Path)
    a = ap.parse_args()
    mx.set_default_device(mx.cpu)
    config = json.loads((a.model / "config.json").read_text())
    n_vocab = config.get("text_config", config)["vocab_size"]
    tokens = Tokenizer.from_file(str(a.model / "tokenizer.json")).get_vocab_size()
    seqs = [s[: a.limit] for s in sequences(a.model, a.eval)]
    if a.write_ids:
        a.write_ids.write_text(ids_text(seqs))
        return
    dtypes = {"bf16": None, "f32": mx.float32}
    theirs = {name: run_mlx(a.model, seqs, dtypes[name]) for name in a.mlx.split(",")}
    print("| calla, cache | MLX-LM arithmetic | positions | top-1 agreement | perplexity ratio | KL mean | KL max | max abs dlogit |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for kv in ("bf16", "f32") if a.backend == "cpu" and not a.rows else ("bf16",):
        if a.rows:
            ours = np.fromfile(a.rows, np.float32).reshape(-1, n_vocab)
        else:
            ours = run_calla(a.build, a.model, kv, seqs, n_vocab, a.backend)
        for name, rows in theirs.items():
            r = compare(ours, rows, seqs, tokens)
            print(f"| {kv} | {name} | {r['positions']} | {r['top1']:.4%} ({r['flips']} differ, gap of MLX's two best there "
                  f"at most {r['widest_gap']:.3f}) | {r['ratio']:.6f} | {r['kl_mean']:.2e} | {r['kl_max']:.2e} | {r['dlogit']:.4f} |")


if __name__ == "__main__":
    main()
