"""Tables of docs/RESULTS.md from the JSON files in bench/results (`make results`).

  python3 tools/results.py [--check] [FILE.md]...

Between `<!-- table: NAME.json ... -->` and `<!-- end -->` stands what this writes from those files:
of bench/peers/peers.py, `calla bench --json` (one each), or `calla verify --json` (several, a row
each; NAME.json=WORDS names the row). --check changes nothing and fails when a table is out of date.
Standard library only.
"""
import json
import pathlib
import re
import sys

RESULTS = pathlib.Path(__file__).parent.parent / "bench/results"
BLOCK = re.compile(r"(<!-- table: (.*?) -->\n).*?(<!-- end -->)", re.S)


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(map(str, l)) + " |\n" for l in lines)


def speed(x):
    return f"{x:,.1f}" if x < 1000 else f"{x:,.0f}"


def spread(low, high):
    return "" if low == high else f" ({speed(low)} .. {speed(high)})"


def percent(x):
    return f"{100 * x:.0f} %" if x else ""


def peers(d):
    """summary of peers.py: a row for each measurement and engine"""
    read = [r["peaks"]["read_bytes_per_s"] / 1e9 for r in d["rounds"] if r["peaks"]]
    versions = {n: e["version"] for r in d["rounds"] for n, e in r["engines"].items()}
    rows = []
    for r in d["summary"]:
        ratio = ""
        if r["engine"] != "calla" and r["ratio"]:
            between = f" ({r['ratio_low']:.2f} .. {r['ratio_high']:.2f})" if r["rounds"] > 1 else ""
            ratio = f"{r['ratio']:.2f}{between}"
        size = f"{r['bytes_per_token'] / 1e9:.3f}" if r["bytes_per_token"] else ""
        rows.append([f"{r['kind']} {r['tokens']}", r["engine"],
                     speed(r["tokens_per_s"]) + spread(r["low"], r["high"]), size,
                     percent(r["bandwidth_share"]), ratio])
    m = d["machine"]
    text = f"{m['cpu']}, {d['threads']} thread{'s' if d['threads'] != 1 else ''}; {len(d['rounds'])} round{'s' if len(d['rounds']) != 1 else ''}"
    if read:
        text += f"; read bandwidth {min(read):.1f} .. {max(read):.1f} GB/s"
    text += "; " + ", ".join(f"{n}: {v}" for n, v in versions.items() if n != "calla") + ".\n\n"
    return text + table(["", "engine", "tokens/s, median of rounds", "GB a token",
                         "of read bandwidth", "calla is ... times as fast"], rows)


def bench(d):
    rows = []
    for r in d["results"]:
        rate = r["bytes_per_token"] * r["tokens_per_s"] / 1e9
        copy = d["copy_bytes_per_s"]
        rows.append([f"{r['kind']} {r['tokens']}", r.get("without", ""),
                     speed(r["tokens_per_s"]) + spread(r["slowest"], r["fastest"]),
                     f"{rate:,.0f}" if rate else "",
                     percent(rate * 1e9 / copy) if copy and rate else "",
                     f"{r['flops_per_token'] * r['tokens_per_s'] / 1e12:.2f}" if r["flops_per_token"] else ""])
    text = f"{d['model']}: {d['backend']} ({d['variant']}), calla {d.get('version', '')}.\n\n"
    return text + table(["", "without", "tokens/s, median (slowest .. fastest)", "GB/s",
                         "of copy bandwidth", "TFLOP/s"], rows)


def verify(named):
    rows = []
    for words, d in named:
        number = lambda x, form: "not finite" if x is None else format(x, form)
        drift = max((p["added"] or 0.0 for p in d.get("drift", [])), default=None)
        rows.append([words or f"{d['backend']} ({d['variant']})", d["positions"],
                     number(d["perplexity_ratio"], ".6f"), f"{100 * d['top1']:.2f} %",
                     number(d["kl_mean"], ".1e"), number(d["dlogit_max"], ".2g"),
                     "" if drift is None else f"{drift:.1e}", d.get("fault") or "none"])
    return table(["", "positions", "perplexity ratio", "same most likely token", "mean KL, nats",
                  "max abs dlogit", "largest drift of a block", "stands out"], rows)


def block(m):
    named = []
    for word in re.findall(r'(\S+?\.json)(?:="([^"]*)")?', m[2]):
        named.append((word[1], json.loads((RESULTS / word[0]).read_text())))
    d = named[0][1]
    text = peers(d) if "summary" in d else bench(d) if "results" in d else verify(named)
    return f"{m[1]}{text}{m[3]}"


def main():
    check = "--check" in sys.argv[1:]
    files = [a for a in sys.argv[1:] if a != "--check"] or ["docs/RESULTS.md"]
    stale = 0
    for path in map(pathlib.Path, files):
        old = path.read_text(encoding="utf-8")
        new = BLOCK.sub(block, old)
        print(f"{path}: {len(BLOCK.findall(old))} tables" + ("" if new == old else ", changed"))
        stale += new != old
        if not check:
            path.write_text(new, encoding="utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
