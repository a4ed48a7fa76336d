"""What the measuring programs of the engines share: arguments, the measurement, the result."""
import argparse
import json
import random
import resource
import time

MARGIN = 8  # tokens beyond the longest measurement


class Engine:
    """open() loads; reset() empties the context; feed(ids) computes them and the last logits."""

    name = version = variant = ""
    device = "cpu"
    n_vocab = 0


def lengths(text):
    return [int(n) for n in text.split(",") if n]


def timed(f, *args):
    t0 = time.perf_counter()
    f(*args)
    return time.perf_counter() - t0


def measure(engine, ids, a):
    """Results of all lengths; what would take longer than --limit is left out and named.

    The first feed of a length may read the file, or compile kernels for minutes (MLX, Triton), so it
    is not counted: of the short warm-up anywhere, of every prefill on a GPU.
    """
    unseen = 0 if engine.device == "cpu" else 1
    results, left_out = [], []
    per_token = per_step = 0.0
    for i, n in enumerate((1, 1, 16, 16)):
        engine.reset()
        per_token = timed(engine.feed, ids(n)) / n
        per_step = per_step if n > 1 else per_token
        if i % 2 and per_token > 1.0:
            break
    for n in sorted(set(a.prefill + a.decode)):
        if n * per_token > a.limit:
            left_out.append({"tokens": n, "would_take_s": round(n * per_token, 1)})
            continue
        times = []
        for _ in range(unseen + a.reps if n in a.prefill else 1):
            engine.reset()
            times.append(timed(engine.feed, ids(n)))
        times = times[unseen:] or times
        per_token = min(times) / n
        if n in a.prefill:
            results.append({"kind": "prefill", "tokens": n, "seconds": times})
        if n in a.decode:
            steps = max(2, min(a.steps, int(a.limit / per_step)))
            engine.feed(ids(1))
            times = [timed(engine.feed, ids(1)) for _ in range(steps)]
            results.append({"kind": "decode", "tokens": n, "seconds": times,
                            "bytes_per_token": engine.bytes_per_token(n)})
    return results, left_out


def context_bytes(c, n):
    """Keys and values of n tokens in 16 bits, and the recurrent state in and out, of a config.json."""
    full = c["num_hidden_layers"] // c["full_attention_interval"]
    key = c["linear_num_key_heads"] * c["linear_key_head_dim"]
    value = c["linear_num_value_heads"] * c["linear_value_head_dim"]
    kv = full * n * 2 * c["num_key_value_heads"] * c["head_dim"] * 2
    conv = (c["linear_conv_kernel_dim"] - 1) * (2 * key + value) * 2
    state = value * c["linear_key_head_dim"] * 4
    return kv + 2 * (c["num_hidden_layers"] - full) * (state + conv)


def arguments(doc):
    ap = argparse.ArgumentParser(description=doc.split("\n")[0])
    ap.add_argument("model")
    ap.add_argument("--threads", type=int, default=1)
    ap.add_argument("--prefill", type=lengths, default=[512], metavar="N,N,...")
    ap.add_argument("--decode", type=lengths, default=[256], metavar="N,N,...")
    ap.add_argument("--steps", type=int, default=32, help="decode steps of a measurement")
    ap.add_argument("--reps", type=int, default=1, help="prefills of a measurement")
    ap.add_argument("--limit", type=float, default=60.0, help="most seconds a prefill may take")
    return ap


def main(engine, parser):
    a = parser.parse_args()
    n_ctx = max(a.prefill + a.decode + [64]) + a.steps + MARGIN
    load = timed(engine.open, a.model, a.threads, n_ctx)
    rng = random.Random(1)
    results, left_out = measure(engine, lambda n: rng.choices(range(engine.n_vocab), k=n), a)
    print(json.dumps({
        "engine": engine.name, "version": engine.version, "variant": engine.variant,
        "model": a.model, "threads": a.threads, "load_s": load, "results": results,
        "left_out": left_out,
        "peak_resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
