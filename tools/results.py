"""Tables and plots of docs/RESULTS.md from the JSON files in bench/results (`make results`).

  python3 tools/results.py [--check] [--calla PROGRAM] [FILE.md]...

Between `<!-- table: NAME.json ... -->` and `<!-- end -->` stands what this writes from those files;
NAME.json="WORDS" names a row; a missing end is added. What a file holds says which table it is:
  calla bench --json            ten lengths, or what each mechanism is worth (--ablate)
  calla bench --agent --json    a conversation, turn by turn
  calla verify --json           several files, a row each
  calla inspect --predict       predicted speeds
  bench/peers/peers.py          a row for each measurement and engine
  beside FILES                  with that word first: speed at 4,096 tokens, a row for each file
  against PREDICTED MEASURED    with that word first: predicted and measured speed
article.json (what others report) adds its column to mechanisms, or its row.
`<!-- plot: NAME.json ... -->`: docs/plots/NAME.svg of those files, by `calla bench --plot`; it is
drawn when PROGRAM is given. `<!-- bench: NAME.json ... -->`: that, and the first one's table.
--check changes nothing and fails when anything is out of date.
Standard library only.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

TOP = pathlib.Path(__file__).parent.parent
RESULTS = TOP / "bench/results"
PLOTS = TOP / "docs/plots"
START = r"^<!-- (table|plot|bench): ([^\n]*?) -->\n"
BLOCK = re.compile(rf"({START})(?:(?!<!-- ).*\n)*(<!-- end -->)", re.M)
NO_END = re.compile(rf"({START})(?!(?:(?!<!-- ).*\n)*<!-- end -->)", re.M)
AT = 4096  # tokens at which machines are put side by side
LENGTHS = [256, 1024, 4096, 16384, 32768, 131072]  # of predictions


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(map(str, l)) + " |\n" for l in lines)


def speed(x):
    return f"{x:,.1f}" if x < 1000 else f"{x:,.0f}"


def rate(x):
    """three digits: a measurement of speed has no more"""
    return f"{x:,.0f}" if x >= 99.95 else f"{x:.{1 if x >= 9.995 else 2}f}"


def spread(low, high):
    return "" if low == high else f" ({speed(low)} .. {speed(high)})"


def percent(x):
    return f"{100 * x:.0f} %" if x else ""


def gain(x):
    return f"{100 * x:+.1f} %"


def si(x, unit):
    for scale, name in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if x >= scale:
            return f"{x / scale:,.3g} {name}{unit}"
    return f"{x:,.0f} {unit}"


def load(name):
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def article():
    return load("article.json")


def peers(d):
    """summary of peers.py: a row for each measurement and engine"""
    gpu = d["machine"].get("gpu")
    limit = "copy" if gpu else "read"
    read = [r["peaks"][f"{limit}_bytes_per_s"] / 1e9 for r in d["rounds"] if r["peaks"]]
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
    text = f"{gpu}; " if gpu else ""
    text += f"{m['cpu']}, {d['threads']} thread{'s' if d['threads'] != 1 else ''}; {len(d['rounds'])} round{'s' if len(d['rounds']) != 1 else ''}"
    if read:
        text += f"; {limit} bandwidth {speed(min(read))} .. {speed(max(read))} GB/s"
    text += "; " + ", ".join(f"{n}: {v}" for n, v in versions.items() if n != "calla")
    if d.get("note"):
        text += f". {d['note'].rstrip('.')}"
    return text + ".\n\n" + table(["", "engine", "tokens/s, median of rounds", "GB a token",
                                   f"of {limit} bandwidth", "calla is ... times as fast"], rows)


# ---- calla bench ----

def limits(d):
    given = d.get("limits") or {}
    return {"read": given.get("read_bytes_per_s"), "matrix": given.get("matrix_flops"),
            "copy": given.get("copy_bytes_per_s") or d.get("copy_bytes_per_s"),
            "kind": given.get("matrix_kind") or "matrix products",
            "vector": given.get("vector_flops")}


def conditions(d):
    """one paragraph: what, where, with what, and the limits of that run"""
    backend = d["backend"]
    words = [d.get("machine") or d["variant"]]
    if d.get("memory_bytes"):
        words[0] += f" ({d['memory_bytes'] / 2**30:,.0f} GiB)"
    if d.get("variant") and d["variant"] != d.get("machine"):
        backend += f" ({d['variant']})"
    words.append(backend)
    words += [d[k] for k in ("precision",) if d.get(k)]
    if d.get("kv"):
        words.append(f"{d['kv']} cache")
    if d["backend"] == "cpu":
        words.append(f"{d['threads']} thread{'s' if d['threads'] != 1 else ''}")
    if d.get("chunk_tokens"):
        words.append(f"chunks of {d['chunk_tokens']:,} tokens")
    model = d["model"] + (", random weights" if d.get("synthetic") else "")
    weights = d.get("weights") or {}
    if weights.get("large_pages") is not None and d["backend"] == "cpu":
        words.append("weights in pages of " + ("2 MB" if weights["large_pages"] else "4 KB"))
    text = f"{model}; {', '.join(words)}; calla {d.get('commit') or d.get('version', '')}"
    if d.get("date"):
        text += f", {d['date'][:10]}"
    l = limits(d)
    found = [f"read {si(l['read'], 'B/s')}" if l["read"] else "",
             f"copy {si(l['copy'], 'B/s')}" if l["copy"] else "",
             f"{l['kind']} {si(l['matrix'], 'FLOP/s')}" if l["matrix"] else "",
             f"f32 {si(l['vector'], 'FLOP/s')}" if l["vector"] else ""]
    found = ", ".join(f for f in found if f)
    if found:
        text += f". Limits: {found}"
    heat = d.get("thermal") or {}
    if heat.get("throttled") is not None:
        text += ". " + ("Throttled during the run" if heat["throttled"] else "Not throttled")
    if d.get("flags"):
        text += f". `{d['flags']}`"
    if d.get("note"):
        text += f". {d['note'].rstrip('.')}"
    return text + ".\n\n"


def interval(r):
    """95 % of the median where it is known, else what was seen"""
    low, high = r.get("low") or r.get("slowest"), r.get("high") or r.get("fastest")
    return f" ({rate(low)} .. {rate(high)})" if low and high and low < high else ""


def sweep(d):
    l = limits(d)
    at = {}
    for r in d["results"]:
        at.setdefault((r["kind"], r["tokens"]), r)
    work = {n: (r.get("flops_per_token") or 0) * r["tokens_per_s"]
            for (kind, n), r in at.items() if kind == "prefill"}
    unit, name = (1e12, "TFLOP/s") if max(work.values(), default=0) >= 1e12 else (1e9, "GFLOP/s")
    rows = []
    for n in sorted({n for _, n in at}):
        p, s = at.get(("prefill", n)), at.get(("decode", n))
        row = [f"{n:,}"] + [""] * 7
        if p:
            row[1:4] = [rate(p["tokens_per_s"]) + interval(p), rate(work[n] / unit) if work[n] else "",
                        percent(work[n] / l["matrix"]) if work[n] and l["matrix"] else ""]
        if s:
            size = s.get("bytes_per_token") or 0
            moved = size * s["tokens_per_s"]
            row[4:] = [rate(s["tokens_per_s"]) + interval(s), f"{size / 1e9:.3f}" if size else "",
                       rate(moved / 1e9) if moved else "",
                       percent(moved / (l["read"] or l["copy"])) if moved and (l["read"] or l["copy"]) else ""]
        rows.append(row)
    text = conditions(d) + table(
        ["tokens", "prefill, tokens/s", name, "of matrix peak", "decode at that context, tokens/s",
         "GB a token", "GB/s", "of read" if l["read"] or not l["copy"] else "of copy"], rows)
    left = {}
    for x in d.get("left_out", []):
        left.setdefault((x["kind"], x["why"]), []).append(f"{x['tokens']:,}")
    if left:
        text += "\nNot measured: " + "; ".join(
            f"{kind} {', '.join(n)} ({why})" for (kind, why), n in left.items()) + ".\n"
    return text


def ablation(d):
    theirs = {(m["name"], m["tokens"]): m["gain"] for m in article()["mechanisms"]}
    rows, results = [], d["results"]
    for i, r in enumerate(results):
        if not r.get("without"):
            continue
        w = results[i - 1]
        ours = gain(w["tokens_per_s"] / r["tokens_per_s"] - 1)
        if r.get("low") and w.get("low"):
            ours += f" ({gain(w['low'] / r['high'] - 1)} .. {gain(w['high'] / r['low'] - 1)})"
        at = {n: g for (name, n), g in theirs.items() if name == r["without"]}
        said = ", ".join([gain(g) for n, g in at.items() if n == r["tokens"]] +
                         [f"{gain(g)} at {n:,}" for n, g in sorted(at.items()) if n != r["tokens"]])
        rows.append([r["without"], f"{r['kind']} {r['tokens']:,}", rate(w["tokens_per_s"]),
                     rate(r["tokens_per_s"]), ours, said or "not given"])
    return conditions(d) + table(["mechanism", "measured on", "with, tokens/s", "without", "gain",
                                  "gain in the article (M5 Max)"], rows)


def agent(d):
    t, rows = d["agent_total"], []
    plain = "no_cache" in t
    for u in d["agent"]:
        row = [u["turn"], f"{u['prompt_tokens']:,}", f"{u['computed_tokens']:,}",
               f"{u['first_token_s']:.2f} s", u["generated"], f"{u['total_s']:.2f} s"]
        if plain:
            row += [f"{u['no_cache']['first_token_s']:.2f} s", f"{u['no_cache']['total_s']:.2f} s"]
        rows.append(row)
    text = ""
    if d.get("backend"):
        text = conditions(d)
    text += (f"{t['turns']} turns, {t['prompt_tokens']:,} tokens of prompt: "
             f"{100 * t['cached_tokens'] / max(1, t['prompt_tokens']):.1f} % from the cache, "
             f"{t['computed_tokens']:,} computed; time to first token {t['first_token_s']:.1f} s "
             f"together, {t['first_token_median_s']:.2f} s in the median; {t['total_s']:.1f} s in all.")
    if plain:
        n = t["no_cache"]
        text += (f" Without the cache {n['computed_tokens']:,} computed, "
                 f"{n['first_token_s']:.1f} s to first tokens "
                 f"({n['first_token_s'] / t['first_token_s']:.1f} times as long), {n['total_s']:.1f} s"
                 f" in all; {t['answers_differ']} of {t['turns']} answers differ.")
    head = ["turn", "prompt", "computed", "first token", "generated", "all of it"]
    if plain:
        head += ["without the cache: first token", "all of it"]
    return text + "\n\n" + table(head, rows)


# ---- Others ----

def verify(named):
    rows = []
    for words, d in named:
        if "verify" in d:  # article.json
            v = d["verify"]
            rows.append([words, v["positions"], f"{1 + v['perplexity_change']:.4f}",
                         f"{100 * v['top1']:.2f} %", "not given", "not given", "not given", ""])
            continue
        number = lambda x, form: "not finite" if x is None else format(x, form)
        drift = max((p["added"] or 0.0 for p in d.get("drift", [])), default=None)
        rows.append([words or f"{d['backend']} ({d['variant']})", d["positions"],
                     number(d["perplexity_ratio"], ".6f"), f"{100 * d['top1']:.2f} %",
                     number(d["kl_mean"], ".1e"), number(d["dlogit_max"], ".2g"),
                     "" if drift is None else f"{drift:.1e}", d.get("fault") or "none"])
    return table(["", "positions", "perplexity ratio", "same most likely token", "mean KL, nats",
                  "max abs dlogit", "largest drift of a block", "stands out"], rows)


def predicted(chip, kind, n):
    return next(p for p in chip["predictions"] if p["kind"] == kind and p["n"] == n)


def predict(d):
    rows = []
    for c in d["chips"]:
        rows.append([f"{c['device']}, {c['tiles']}", f"{c['read'] / 1e9:,.0f}",
                     f"{c['tile'] / 1e12:.1f}"] +
                    [" / ".join(f"{predicted(c, k, n)['tokens_per_second']:,.0f}"
                                for k in ("decode", "prefill")) for n in LENGTHS])
    return table(["GPU, tiles", "reads, GB/s", "tiles, TFLOP/s"] + [f"{n:,}" for n in LENGTHS], rows)


def find(d, kind, n):
    return next((r for r in d["results"] if (r["kind"], r["tokens"]) == (kind, n)
                 and not r.get("without")), None)


def against(named):
    """predicted and measured: the file of predictions, and one of calla bench"""
    (_, p), (_, m) = named
    name = m.get("machine") or m["variant"]
    chip = next(c for c in p["chips"] if c["device"] in name or name in c["device"])
    rows = []
    for n in LENGTHS:
        row = [f"{n:,}"]
        for kind in ("decode", "prefill"):
            r, q = find(m, kind, n), predicted(chip, kind, n)["tokens_per_second"]
            row += [f"{q:,.0f}", f"{r['tokens_per_s']:,.0f}" if r else "",
                    f"{r['tokens_per_s'] / q:.2f}" if r else ""]
        rows.append(row)
    return table(["tokens", "decode: predicted", "measured", "ratio", "prefill: predicted",
                  "measured", "ratio"], rows)


def beside(named):
    rows = []
    for words, d in named:
        if "chips" in d:
            for c in d["chips"]:
                if "M5" in c["device"]:
                    dec, pre = (predicted(c, k, AT) for k in ("decode", "prefill"))
                    rows.append([f"calla, {c['tiles']}", c["device"],
                                 f"{pre['tokens_per_second']:,.0f}",
                                 f"{dec['tokens_per_second']:,.0f}",
                                 f"{dec['kernels']} / {dec['stages']}", "**predicted**"])
            continue
        p, s = find(d, "prefill", AT), find(d, "decode", AT)
        counts = f"{s['kernels_per_token']:.0f} / {s['stages_per_token']:.0f}" \
            if s and s.get("kernels_per_token") and s.get("stages_per_token") else ""
        ours = not d.get("source")
        rows.append([words or "calla", d.get("machine") or d["variant"],
                     ("" if ours else "some ") + rate(p["tokens_per_s"]) if p else "not measured",
                     (rate if ours else speed)(s["tokens_per_s"]) if s else "not measured", counts,
                     "measured" if ours else "reported"])
        if not ours:
            rows.append(["MLX-LM, by the article's ratios", d["machine"]] + [
                " .. ".join(rate(x) for x in sorted({r["tokens_per_s"] / q for q in q2}))
                for r, q2 in ((p, d["ratio_to_mlx_lm"]["prefill"]), (s, d["ratio_to_mlx_lm"]["decode"]))
            ] + ["", "follows from reported"])
    return table(["engine", "machine", f"prefill of {AT:,}, tokens/s", f"decode at {AT:,}",
                  "kernels / stages a token", ""], rows)


def tables(m):
    words, named = m[3].split(" ", 1), []
    kind = words[0] if not re.match(r"\S+\.json", words[0]) else ""
    for name, label in re.findall(r'(\S+?\.json)(?:="([^"]*)")?', m[3]):
        named.append((label, load(name)))
    if kind:
        return {"beside": beside, "against": against}[kind](named)
    d = named[0][1]
    if "chips" in d:
        return predict(d)
    if "summary" in d:
        return peers(d)
    if "agent" in d:
        return agent(d)
    if "results" in d:
        return (ablation if any(r.get("without") for r in d["results"]) else sweep)(d)
    return verify(named)


def main():
    args, calla = sys.argv[1:], None
    check = "--check" in args
    if "--calla" in args:
        i = args.index("--calla")
        calla = args[i + 1]
        del args[i:i + 2]
    files = [a for a in args if a != "--check"] or ["docs/RESULTS.md"]
    stale = []

    def plot(m):
        """draws, or checks, docs/plots/NAME.svg; the line that shows it"""
        names = m[3].split()
        svg = PLOTS / (pathlib.Path(names[0]).stem + ".svg")
        if calla:
            with tempfile.TemporaryDirectory() as tmp:
                new = pathlib.Path(tmp) / "new.svg"
                subprocess.run([calla, "bench", "--plot", new, *(RESULTS / n for n in names)],
                               check=True, stdout=subprocess.DEVNULL)
                text = new.read_text(encoding="utf-8")
            if not svg.exists() or svg.read_text(encoding="utf-8") != text:
                stale.append(svg.name)
                if not check:
                    svg.parent.mkdir(exist_ok=True)
                    svg.write_text(text, encoding="utf-8")
        elif not svg.exists():
            stale.append(svg.name)
        what = ", ".join(pathlib.Path(n).stem for n in names)
        return f"![Throughput against length, and roofline: {what}](plots/{svg.name})\n"

    def block(m):
        text = "" if m[2] == "table" else plot(m)
        if m[2] == "bench":
            text += "\n" + sweep(load(m[3].split()[0]))
        return m[1] + (text or tables(m)) + m[4]

    for path in map(pathlib.Path, files):
        old = path.read_text(encoding="utf-8")
        new = BLOCK.sub(block, NO_END.sub(r"\1<!-- end -->\n", old))
        if new != old:
            stale.append(str(path))
            if not check:
                path.write_text(new, encoding="utf-8")
        print(f"{path}: {len(BLOCK.findall(new))} tables and plots")
    if stale:
        print(("out of date: " if check else "changed: ") + ", ".join(stale))
    return 1 if check and stale else 0


if __name__ == "__main__":
    os.chdir(TOP)
    sys.exit(main())
