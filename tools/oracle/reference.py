"""Writes the reference files that `calla verify` reads; the format is in src/format/reference.h.

Shared by write_reference_mlx.py and write_reference_transformers.py. Needs numpy.
"""
import argparse
import json
import pathlib
import struct

import numpy as np


def arguments(doc):
    ap = argparse.ArgumentParser(description=doc.split("\n")[0])
    ap.add_argument("model", type=pathlib.Path, help="checkpoint folder")
    ap.add_argument("out", type=pathlib.Path, help="reference file, .safetensors")
    ap.add_argument("--text", type=pathlib.Path, help="UTF-8 text, one sequence")
    ap.add_argument("--ids", type=pathlib.Path, help="token ids, a sequence a line")
    ap.add_argument("--limit", type=int, default=192, help="tokens of a sequence; default 192")
    ap.add_argument("--top", type=int, default=64, help="logits kept a position, 0: all")
    ap.add_argument("--trace", type=int, default=32,
                    help="tokens of the first sequence whose residual stream is kept")
    return ap


def sequences(a):
    """Lists of ids, from --ids or --text (tokenizers is needed for text)."""
    if (a.text is None) == (a.ids is None):
        raise SystemExit("one of --text and --ids says what to compute")
    if a.ids:
        seqs = [[int(i) for i in line.split()] for line in a.ids.read_text().splitlines()]
    else:
        from tokenizers import Tokenizer

        tok = Tokenizer.from_file(str(a.model / "tokenizer.json"))
        seqs = [tok.encode(a.text.read_text(encoding="utf-8"), add_special_tokens=False).ids]
    return [s[: a.limit] for s in seqs if s]


def log_sum_exp(x):
    top = x.max(-1, keepdims=True)
    return (top + np.log(np.exp(x - top).sum(-1, keepdims=True)))[..., 0]


def cut(rows, seqs, k):
    """What is kept of full logits [n, n_vocab] when only the k largest are."""
    rows = rows.astype(np.float64)
    part = np.argpartition(-rows, k - 1)[:, :k]
    value = np.take_along_axis(rows, part, 1)
    order = np.argsort(-value, 1, kind="stable")
    target = np.concatenate([s[1:] + s[-1:] for s in seqs])  # the last predicts nothing
    return {
        "top_ids": np.take_along_axis(part, order, 1).astype(np.int32),
        "top_logits": np.take_along_axis(value, order, 1).astype(np.float32),
        "log_sum": log_sum_exp(rows).astype(np.float32),
        "target_logit": rows[np.arange(len(rows)), target].astype(np.float32),
        "n_vocab": np.array([rows.shape[1]], np.int32),
    }


def save(path, tensors, source):
    """A safetensors file; source says who computed this and how."""
    kinds = {"float32": "F32", "int32": "I32"}
    header, at = {"__metadata__": {"format": "calla-reference", "source": source}}, 0
    for name, x in tensors.items():
        header[name] = {"dtype": kinds[x.dtype.name], "shape": list(x.shape),
                        "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for x in tensors.values():
            f.write(np.ascontiguousarray(x).data)


def write(a, seqs, rows, trace, source):
    """rows: logits [n, n_vocab] of all sequences; trace: [2 * n_layers + 1, m, hidden] or None."""
    tensors = {
        "tokens": np.concatenate([np.array(s, np.int32) for s in seqs]),
        "first": np.cumsum([0] + [len(s) for s in seqs[:-1]]).astype(np.int32),
    }
    if a.top and a.top < rows.shape[1]:
        tensors |= cut(rows, seqs, a.top)
    else:
        tensors["logits"] = rows.astype(np.float32)
    if trace is not None:
        tensors["trace"] = trace.astype(np.float32)
    save(a.out, tensors, source)
    print(f"{a.out}: {len(rows)} positions, {a.out.stat().st_size / 1e6:.1f} MB; {source}")
