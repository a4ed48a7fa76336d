"""calla beside other engines on this machine: alternating, one request at a time, ratios.

  python bench/peers/peers.py --model CHECKPOINT [--llama FILE.gguf[=MICROBATCH]]... [--mlx] [--transformers]
      [--openai NAME=URL]... [--device cpu|gpu [--backend cuda|metal]] [--threads 2] [--prefill 512]
      [--decode 256] [--steps 32] [--rounds 5] [--json FILE [--append]]

Each round runs every engine once, in an order that turns, each as a process of its own, so that one
model at a time is in memory; before it, the model's files are read once, so that they are in the
page cache. An engine's figure is the median over rounds of its median in a round; a ratio is the
median of the rounds' own ratios, calla / engine, so that a machine that slows down between rounds
cancels. The spread is the lowest and the highest round. The machine's read bandwidth and FMA peak
are measured before and after every round; of a GPU it is the copy bandwidth, with calla's own
measurement. An engine that fails is named with its error, and the others go on. See README.md.
"""
import argparse
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).parent
FORMAT = 1


def warm(path):
    """Reads what an engine will map."""
    p = pathlib.Path(path)
    for f in sorted(p.iterdir()) if p.is_dir() else [p]:
        if f.is_file():
            with f.open("rb", buffering=0) as r:
                buffer = bytearray(8 << 20)
                while r.readinto(buffer):
                    pass


def pinned(a):
    """One thread a core, the same cores for everybody; beside a GPU nobody is held to some."""
    if a.device == "gpu":
        return None
    threads = a.threads
    cores = sorted(os.sched_getaffinity(0))[:threads] if hasattr(os, "sched_getaffinity") else []
    return (lambda: os.sched_setaffinity(0, cores)) if cores else None


class Failed(Exception):
    pass


def run(command, a):
    """stdout; stderr goes through, and its last line is the reason of a failure."""
    p = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                       text=True, preexec_fn=pinned(a), check=False)
    sys.stderr.write(p.stderr)
    if p.returncode != 0:
        last = (p.stderr.strip().splitlines() or [""])[-1]
        raise Failed(f"exit {p.returncode}: {last[:300]}")
    return p.stdout


def list_text(numbers):
    return ",".join(map(str, numbers))


class Calla:
    def __init__(self, a):
        self.a, self.path, self.name = a, a.model, "calla"

    def measure(self):
        a, out = self.a, pathlib.Path(self.a.work, f"calla-{os.getpid()}.json")
        run([a.calla, "bench", "-m", a.model, "--threads", a.threads, "--backend", a.backend,
             "--prefill", list_text(a.prefill), "--decode", list_text(a.decode), "--steps", a.steps,
             "--reps", a.reps, "--json", out, *a.calla_args.split()], a)
        r = json.loads(out.read_text())
        out.unlink()
        results = [{"kind": x["kind"], "tokens": x["tokens"], "tokens_per_s": x["tokens_per_s"],
                    "bytes_per_token": x["bytes_per_token"]} for x in r["results"]]
        limits = r.get("limits", r)
        return {"version": version(a.calla), "variant": f"{r['backend']} {r['variant']}",
                "copy_bytes_per_s": limits.get("copy_bytes_per_s") or 0.0, "results": results}


class Program:
    """One of the engine_*.py beside this file."""

    def __init__(self, a, script, name, path, *options):
        self.a, self.script, self.name, self.path, self.options = a, script, name, path, options

    def measure(self):
        a = self.a
        text = run([sys.executable, HERE / self.script, self.path, "--threads", a.threads,
                    "--prefill", list_text(a.prefill), "--decode", list_text(a.decode), "--steps",
                    a.steps, "--reps", a.reps, "--limit", a.limit, *self.options], a)
        r = json.loads(text.splitlines()[-1])
        for x in r["results"]:
            seconds = statistics.median(x.pop("seconds"))
            x["tokens_per_s"] = (x["tokens"] if x["kind"] == "prefill" else 1) / seconds
        keep = ("version", "variant", "load_s", "left_out", "peak_resident_bytes", "results")
        return {k: r[k] for k in keep if k in r}


def version(calla):
    text = subprocess.run([calla, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return text.strip()


def peaks(a):
    """What the processor reads and multiplies at most, as calla bench measures it."""
    if a.device == "gpu":
        return {}
    out = pathlib.Path(a.work, f"peaks-{os.getpid()}.json")
    run([a.calla, "bench", "-m", a.model, "--threads", a.threads, "--backend", "cpu", "--prefill",
         "1", "--reps", "1", "--json", out], a)
    limits = json.loads(out.read_text())["limits"]
    out.unlink()
    return {"read_bytes_per_s": limits["read_bytes_per_s"], "fma_flops": limits["vector_flops"]}


def gpu_name():
    p = subprocess.run("nvidia-smi --query-gpu=name,driver_version --format=csv,noheader", shell=True,
                       stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    return p.stdout.strip().replace(", ", ", driver ") or "GPU"


def machine(a):
    cpu = platform.processor()
    info = pathlib.Path("/proc/cpuinfo")
    if info.exists():
        cpu = re.search(r"model name\s*: (.*)", info.read_text())[1]
    return {"cpu": cpu, "cores": os.cpu_count(), "system": f"{platform.system()} {platform.machine()}",
            **({"gpu": gpu_name()} if a.device == "gpu" else {})}


def commit():
    p = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=HERE, text=True, check=False,
                       stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return p.stdout.strip()


def engines(a):
    out = [Calla(a)]
    for item in a.llama:
        path, _, ubatch = item.partition("=")
        name = "llama.cpp " + pathlib.Path(path).stem + (f", {ubatch} at a time" if ubatch else "")
        out.append(Program(a, "engine_llama.py", name, path, "--device", a.device, "--ubatch",
                           ubatch or 0, *["--no-mmap"] * a.llama_no_mmap))
    if a.mlx:
        out.append(Program(a, "engine_mlx.py", "mlx-lm", a.model, "--device", a.device))
    if a.transformers:
        out.append(Program(a, "engine_transformers.py", "transformers, bf16 weights", a.model,
                           "--device", "cuda" if a.device == "gpu" else "cpu"))
    for item in a.openai:
        name, url = item.split("=", 1)
        out.append(Program(a, "engine_openai.py", name, url, "--name", name,
                           *a.openai_args.split()))
    return out


def one_round(a, i, all_engines):
    k = i % len(all_engines)
    before = peaks(a)
    r = {"peaks": before, "load_average": os.getloadavg()[0], "engines": {}}
    for e in all_engines[k:] + all_engines[:k]:
        if not e.path.startswith("http") and a.device == "cpu" and not a.llama_no_mmap:
            warm(e.path)
        t0 = time.time()
        try:
            r["engines"][e.name] = e.measure()
        except Failed as f:
            r["engines"][e.name] = {"version": "", "failed": str(f), "results": []}
            print(f"round {i + 1}: {e.name}: {f}", file=sys.stderr, flush=True)
            if e.name == "calla":
                raise
        print(f"round {i + 1}: {e.name}, {time.time() - t0:.1f} s: " + "; ".join(
            f"{x['kind']} {x['tokens']} {x['tokens_per_s']:.1f}" for x in
            r["engines"][e.name]["results"]), file=sys.stderr, flush=True)
    after = peaks(a)  # what a machine can do is the best that it showed
    r["peaks"] = {key: max(x, after.get(key, x)) for key, x in before.items()}
    copy = r["engines"]["calla"]["copy_bytes_per_s"]
    if copy:
        r["peaks"]["copy_bytes_per_s"] = copy
    return r


def bandwidth(r):
    return r["peaks"].get("read_bytes_per_s") or r["peaks"].get("copy_bytes_per_s")


def rates(rounds, name):
    """(kind, tokens) -> [(rate, bytes)] of every round that has it"""
    out = {}
    for i, r in enumerate(rounds):
        for x in r["engines"].get(name, {}).get("results", []):
            key = (x["kind"], x["tokens"])
            out.setdefault(key, {})[i] = (x["tokens_per_s"], x.get("bytes_per_token") or 0.0)
    return out


def summary(rounds):
    """Rows of the table: one a measurement and engine."""
    rows, names = [], list(dict.fromkeys(n for r in rounds for n in r["engines"]))
    ours = rates(rounds, "calla")
    for name in names:
        for (kind, n), by_round in rates(rounds, name).items():
            rate = [v[0] for v in by_round.values()]
            ratio = [ours[kind, n][i][0] / by_round[i][0] for i in by_round
                     if i in ours.get((kind, n), {})]
            size = max(v[1] for v in by_round.values()) if kind == "decode" else 0.0
            share = [v[0] * v[1] / bandwidth(rounds[i])
                     for i, v in by_round.items() if bandwidth(rounds[i]) and size]
            rows.append({
                "kind": kind, "tokens": n, "engine": name, "rounds": len(rate),
                "tokens_per_s": statistics.median(rate), "low": min(rate), "high": max(rate),
                "bytes_per_token": size, "bandwidth_share": statistics.median(share) if share else None,
                "ratio": statistics.median(ratio) if ratio else None,
                "ratio_low": min(ratio) if ratio else None,
                "ratio_high": max(ratio) if ratio else None})
    return sorted(rows, key=lambda r: (r["kind"] != "prefill", r["tokens"], names.index(r["engine"])))


def print_table(rows):
    print(f"{'':8}{'tokens':>7}  {'engine':28}{'tokens/s':>10}  {'lowest .. highest':>20}  "
          f"{'GB/token':>8}  {'of that':>8}  {'calla is':>8}")
    for r in rows:
        share = f"{r['bandwidth_share']:8.1%}" if r["bandwidth_share"] else " " * 8
        size = f"{r['bytes_per_token'] / 1e9:8.3f}" if r["bytes_per_token"] else " " * 8
        spread = f"{r['low']:.2f} .. {r['high']:.2f}"
        ratio = ""
        if r["engine"] != "calla" and r["ratio"]:
            ratio = f"{r['ratio']:.2f} x  ({r['ratio_low']:.2f} .. {r['ratio_high']:.2f})"
        print(f"{r['kind']:8}{r['tokens']:7}  {r['engine']:28}{r['tokens_per_s']:10.2f}  {spread:>20}  "
              f"{size}  {share}  {ratio}")


def parse():
    numbers = lambda text: [int(n) for n in text.split(",") if n]
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--model", required=True, help="checkpoint folder of calla and MLX-LM")
    ap.add_argument("--calla", default="build/calla")
    ap.add_argument("--backend", help="of calla; default cpu, or cuda with --device gpu")
    ap.add_argument("--calla-args", default="", help="further options of calla bench, in one word")
    ap.add_argument("--llama", action="append", default=[], metavar="GGUF[=N]",
                    help="N: its micro-batch; default llama.cpp's own, 512")
    ap.add_argument("--llama-no-mmap", action="store_true",
                    help="llama.cpp reads its weights, and no file is read before an engine starts: "
                         "for memory that holds one of them alone")
    ap.add_argument("--mlx", action="store_true")
    ap.add_argument("--transformers", action="store_true")
    ap.add_argument("--device", choices=("cpu", "gpu"), default="cpu", help="of all engines here")
    ap.add_argument("--openai", action="append", default=[], metavar="NAME=URL")
    ap.add_argument("--openai-args", default="", help="further options of engine_openai.py")
    ap.add_argument("--threads", type=int, default=os.cpu_count())
    ap.add_argument("--prefill", type=numbers, default=[512], metavar="N,N,...")
    ap.add_argument("--decode", type=numbers, default=[256], metavar="N,N,...")
    ap.add_argument("--steps", type=int, default=32, help="decode steps of a round")
    ap.add_argument("--reps", type=int, default=1, help="prefills of a round")
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--limit", type=float, default=60.0, help="most seconds a prefill may take")
    ap.add_argument("--work", default=".", help="folder for scratch files")
    ap.add_argument("--json", help="rounds and summary")
    ap.add_argument("--append", action="store_true", help="to the rounds in the JSON file")
    a = ap.parse_args()
    a.backend = a.backend or ("cuda" if a.device == "gpu" else "cpu")
    return a


def main():
    a = parse()
    rounds = []
    if a.append and a.json and pathlib.Path(a.json).exists():
        rounds = json.loads(pathlib.Path(a.json).read_text())["rounds"]
    all_engines = engines(a)
    for _ in range(a.rounds):
        rounds.append(one_round(a, len(rounds), all_engines))
        rows = summary(rounds)
        if a.json:
            pathlib.Path(a.json).write_text(json.dumps({
                "format": FORMAT, "commit": commit(), "machine": machine(a), "threads": a.threads,
                "model": pathlib.Path(a.model).name, "summary": rows, "rounds": rounds}, indent=1))
    read = [bandwidth(r) for r in rounds if bandwidth(r)]
    if read:
        what = "copy" if a.device == "gpu" else "read"
        print(f"{what} bandwidth {statistics.median(read) / 1e9:.1f} GB/s "
              f"({min(read) / 1e9:.1f} .. {max(read) / 1e9:.1f})")
    print_table(rows)


if __name__ == "__main__":
    main()
