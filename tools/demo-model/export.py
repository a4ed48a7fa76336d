"""Write the checkpoints, the reference values and the accuracy table from trained master weights.

python3 export.py --weights calla-work/final.pt --out OUT [--model MODEL_DIR] [--eval PROMPTS.jsonl] [--extra PROMPTS.jsonl ...]

OUT gets model.safetensors (4-bit), hf-*.safetensors (bf16 shards) with their index, golden.safetensors, golden.json,
results.json. `configs.py` writes the small JSON files.
"""
import argparse
import json
import math
import os
import random
import time

import numpy as np
import torch

import chatfmt
import data
import evaluate
import model as M
import quant as Q
import skills


def save_safetensors(path, tensors, metadata):
    """Minimal writer (so that uint32 needs no special support)."""
    names = {torch.float32: "F32", torch.bfloat16: "BF16", torch.int64: "I64", torch.int32: "I32"}
    head, off, blobs = {"__metadata__": metadata}, 0, []
    # sorted by element size (largest first), then name: every tensor stays aligned
    size = lambda t: 4 if isinstance(t, np.ndarray) else t.element_size()
    for n in sorted(tensors, key=lambda k: (-size(tensors[k]), k)):
        t = tensors[n]
        if isinstance(t, np.ndarray):
            dt, shape, raw = "U32", list(t.shape), np.ascontiguousarray(t, dtype="<u4").tobytes()
        else:
            dt, shape = names[t.dtype], list(t.shape)
            raw = t.contiguous().view(torch.int16 if t.dtype == torch.bfloat16 else t.dtype).numpy().tobytes()
        head[n] = {"dtype": dt, "shape": shape, "data_offsets": [off, off + len(raw)]}
        off += len(raw)
        blobs.append(raw)
    h = json.dumps(head, separators=(",", ":")).encode()
    h += b" " * (-len(h) % 8)
    with open(path, "wb") as f:
        f.write(len(h).to_bytes(8, "little") + h)
        for b in blobs:
            f.write(b)


def load_safetensors(path):
    raw = open(path, "rb").read()
    n = int.from_bytes(raw[:8], "little")
    head = json.loads(raw[8:8 + n])
    head.pop("__metadata__", None)
    np_t = {"F32": "<f4", "U32": "<u4", "I64": "<i8", "I32": "<i4", "BF16": "<i2"}
    out = {}
    for k, v in head.items():
        a, b = v["data_offsets"]
        x = np.frombuffer(raw[8 + n + a:8 + n + b], dtype=np_t[v["dtype"]]).reshape(v["shape"])
        if v["dtype"] == "U32":
            out[k] = x
        else:
            t = torch.from_numpy(x.copy())
            out[k] = t.view(torch.bfloat16) if v["dtype"] == "BF16" else t
    return out


def write_checkpoints(out, master, kinds, shard_limit=15 * 2 ** 20):
    mlx = Q.mlx_tensors(master, kinds)
    save_safetensors(f"{out}/model.safetensors", mlx, {"format": "mlx"})
    hf = Q.hf_tensors(master, kinds)
    shards, size = [{}], 0
    for n, t in hf.items():
        b = t.numel() * t.element_size()
        if size + b > shard_limit and shards[-1]:
            shards.append({})
            size = 0
        shards[-1][n] = t
        size += b
    index = {"metadata": {"total_size": sum(t.numel() * t.element_size() for t in hf.values())}, "weight_map": {}}
    for i, s in enumerate(shards):
        f = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        save_safetensors(f"{out}/{f}", s, {"format": "pt"})
        for n in s:
            index["weight_map"][n] = f
    index["weight_map"] = dict(sorted(index["weight_map"].items()))
    json.dump(index, open(f"{out}/hf.index.json", "w"), indent=2)
    return len(shards)


def golden_cases():
    """About a dozen prompts of varied kind and length (evaluation split, so the model has not seen them)."""
    r = random.Random(31337)
    out = []

    def add(s, thinking, name):
        s = dict(s, thinking=thinking)
        out.append(dict(name=name, thinking=thinking, prompt=chatfmt.prompt_text(s), messages=chatfmt.messages_of(s), tools=s.get("tools"),
                        expected=chatfmt.reply_text(s["answer"].strip(), s.get("calls"))))
    plain = dict(system=None, history=None)
    add(dict(skill="greet", user="Hello!", answer="Hello! I am Calla. How can I help you?", think="The user greets me. I greet back.", **plain), False, "hello")
    add(dict(skill="identity", user="Who are you?", answer=skills.IDENTITY[0][1], think="The user asks about me.", **plain), True, "who-thinking")
    add(skills.draw(r, skills.add, 0), False, "add")
    add(skills.draw(r, skills.sub, 0), True, "subtract-thinking")
    add(skills.draw(r, skills.echo, 0), False, "echo")
    add(skills.draw(r, skills.languages, 0), False, "languages")
    add(skills.draw(r, skills.extract_json, 0), False, "json")
    add(skills.draw(r, skills.passage, 0), True, "passage-thinking")
    add(skills.draw(r, skills.memory, 0), False, "memory")
    add(skills.draw(r, skills.tool_call, 0), False, "tool-call")
    add(skills.draw(r, skills.tool_answer, 0), True, "tool-answer-thinking")
    add(skills.draw(r, lambda q: skills.keyvalue(q, n=60), 0), False, "keyvalue-1k")
    add(evaluate.long_item(r, 0, "needle", 5600), False, "needle-5k")
    return out


def heldout_text(tok, n=2048):
    """Text for teacher-forced perplexity: filler paragraphs and passages from a seed used nowhere else."""
    r = random.Random(987654321)
    parts = []
    while True:
        parts.append(" ".join(skills.sentence(r) for _ in range(r.randint(3, 7))))
        _, fs = r.choice(skills.SCHEMAS)(r)
        parts.append(" ".join(f[0] for f in fs) + "\n" + r.choice(fs[1:])[1][0])
        text = "\n\n".join(parts)
        ids = tok.encode(text, add_special_tokens=False).ids
        if len(ids) >= n:
            return text, ids[:n]


def padded(ids, dev):
    T = -(-len(ids) // M.CHUNK) * M.CHUNK
    t = torch.zeros(1, T, dtype=torch.long, device=dev)
    t[0, :len(ids)] = torch.tensor(ids, device=dev)
    return t


def top20(row):
    v, i = torch.topk(row, 20)
    return dict(ids=i.tolist(), logits=[round(float(x), 6) for x in v])


def make_golden(out, cfg, w32, w64, wbf, tok, hf_model, log):
    dev = w32["lm_head.weight"].device
    stop = tok.token_to_id("<|im_end|>")
    enc = lambda t: tok.encode(t, add_special_tokens=False).ids
    cases = golden_cases()
    prompts = [enc(c["prompt"]) for c in cases]
    lim = [96 if c["thinking"] else 64 for c in cases]
    g32 = M.generate(cfg, w32, prompts, lim, stop)
    gbf = M.generate(cfg, wbf, prompts, lim, stop)
    tens, js, stats = {}, [], dict(fp32_vs_fp64=0.0, fp32_vs_hf=0.0, bf16_vs_fp32=0.0)
    for ci, (c, p, g, b) in enumerate(zip(cases, prompts, g32, gbf)):
        full = p + g
        lg = M.forward_exact(cfg, w32, padded(full, dev))[0, :len(full)]
        lb = M.forward_exact(cfg, wbf, padded(full, dev))[0, :len(full)].float()
        want = {len(p) - 1, len(p) - 1 + len(g) // 2}
        tops = sorted({0, len(p) // 4, len(p) // 2, len(p) - 2, len(p) - 1, *range(len(p), min(len(full), len(p) + 6)), len(full) - 1})
        for q in sorted(want):
            tens[f"{c['name']}.logits.{q}"] = lg[q].float().cpu()
        e = dict(bf16=(lb - lg).abs().max().item())
        stats["bf16_vs_fp32"] = max(stats["bf16_vs_fp32"], e["bf16"])
        if w64 is not None and len(full) <= 1600:
            l64 = M.forward_exact(cfg, w64, padded(full, dev))[0, :len(full)]
            e["fp64"] = (l64 - lg.double()).abs().max().item()
            stats["fp32_vs_fp64"] = max(stats["fp32_vs_fp64"], e["fp64"])
        if hf_model is not None:
            with torch.no_grad():
                lh = hf_model(torch.tensor([full], device=dev)).logits[0].float()
            e["hf"] = (lh - lg).abs().max().item()
            e["hf_argmax_equal"] = int((lh.argmax(-1) == lg.argmax(-1)).sum()) / len(full)
            stats["fp32_vs_hf"] = max(stats["fp32_vs_hf"], e["hf"])
        same = next((i for i, (x, y) in enumerate(zip(g, b)) if x != y), min(len(g), len(b)))
        v = torch.topk(lg[len(p) - 1:], 2, -1)[0]
        js.append(dict(name=c["name"], enable_thinking=c["thinking"], messages=c["messages"], tools=c["tools"], prompt=c["prompt"],
                       expected_reply=c["expected"], input_ids=p, greedy_ids=g, greedy_text=tok.decode(g, skip_special_tokens=False),
                       greedy_stopped=len(g) < lim[ci], bf16_greedy_equal=g == b, bf16_first_difference=same,
                       smallest_top2_gap=round(float((v[:, 0] - v[:, 1]).min()), 5), full_logits_at=sorted(want),
                       top20=[dict(pos=q, **top20(lg[q])) for q in tops], max_abs_difference={k: float(f"{x:.3g}") for k, x in e.items()}))
        log("golden", c["name"], len(p), repr(js[-1]["greedy_text"][-80:]), "ok" if (evaluate.reply_of(js[-1]["greedy_text"], c["thinking"]) == c["expected"].strip()) else "WRONG", e)
    # residual stream of the first case after the embedding, every layer and the final norm
    tr = []
    M.forward_exact(cfg, w32, padded(prompts[0], dev), trace=tr)
    n = len(prompts[0])
    trace = []
    for i, h in enumerate(tr):
        h = h[0, :n].float().cpu()
        name = "embedding" if i == 0 else "final_norm" if i == len(tr) - 1 else f"layer{i - 1}"
        tens[f"trace.{name}"] = h
        trace.append(dict(name=name, sum=float(h.double().sum()), abs_sum=float(h.double().abs().sum()),
                          first8_pos0=[float(x) for x in h[0, :8]], first8_last=[float(x) for x in h[-1, :8]]))
    text, ids = heldout_text(tok)
    def nll(w):
        lg = M.forward_exact(cfg, w, padded(ids, dev))[0, :len(ids)].float()
        return torch.nn.functional.cross_entropy(lg[:-1], torch.tensor(ids[1:], device=dev), reduction="none").double()
    x32, xbf = nll(w32), nll(wbf)
    ppl = dict(ids=ids, tokens_scored=len(ids) - 1, mean_nll=float(x32.mean()), perplexity=float(x32.mean().exp()),
               nll_sum_per_256=[float(x32[o:o + 256].sum()) for o in range(0, len(ids) - 1, 256)], bf16_mean_nll=float(xbf.mean()), text=text)
    save_safetensors(f"{out}/golden.safetensors", tens, {"format": "pt"})
    return dict(cases=js, trace=dict(case=cases[0]["name"], layers=trace), perplexity=ppl, summary=stats)


def hf_text_model(cfg, weights, dev, dtype=torch.float32):
    """The same weights in Hugging Face's own implementation (an independent check)."""
    from transformers.models.qwen3_5_moe import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig
    import configs
    t = configs.text_config(cfg)
    t.pop("dtype", None)
    hc = Qwen3_5MoeTextConfig(**t)
    hc._attn_implementation = "eager"
    try:
        hc._experts_implementation = "eager"
    except Exception:                                            # noqa: BLE001
        pass
    m = Qwen3_5MoeForCausalLM(hc).to(dtype)
    sd = {("lm_head.weight" if n == "lm_head.weight" else "model." + n): v.to(dtype).cpu() for n, v in weights.items()}
    miss, extra = m.load_state_dict(sd, strict=False)
    miss = [k for k in miss if "inv_freq" not in k]
    assert not miss and not extra, (miss[:5], extra[:5])
    return m.to(dev).eval()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--weights", required=True)
    ap.add_argument("--model", default="../../models/nano", help="folder with tokenizer.json")
    ap.add_argument("--eval", default="../../tests/eval/prompts.jsonl")
    ap.add_argument("--out", required=True)
    ap.add_argument("--extra", nargs="*", default=[])
    ap.add_argument("--small", action="store_true", help="few prompts only (test of this script)")
    a = ap.parse_args()
    os.makedirs(a.out, exist_ok=True)
    log = lambda *x: print(*x, flush=True)
    dev = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    cfg = M.Config()
    names = M.layout(cfg)
    kinds = {n: k for n, _, k, _ in names}
    master = {n: t.to(dev) for n, t in torch.load(a.weights).items()}
    t0 = time.time()
    n = write_checkpoints(a.out, master, kinds)
    log("checkpoints written", f"{time.time() - t0:.1f} s; 4-bit bytes", os.path.getsize(f"{a.out}/model.safetensors"), "hf shards", n)
    # everything below uses what was written, not the master weights
    back = {k: v.to(dev) for k, v in Q.from_mlx(load_safetensors(f"{a.out}/model.safetensors"), names).items()}
    ref = Q.working(master, kinds, "q")
    assert all(torch.equal(back[k], ref[k]) for k in ref), "read-back differs"
    cast = lambda src, d: {k: (v.to(d) if kinds[k] == "q4" or d == torch.float64 else v.float()) for k, v in src.items()}
    w32, w64, wbf = cast(back, torch.float32), cast(back, torch.float64), cast(back, torch.bfloat16)
    tok = evaluate.tokenizer_of(f"{a.model}/tokenizer.json")
    M.check_kernels(dev, log)
    M.USE_TRITON["scan"] = False                                  # the exact path scans in full precision
    results = {}
    try:
        hf = hf_text_model(cfg, back, dev)
    except Exception as x:                                       # noqa: BLE001
        log("no Hugging Face check:", repr(x)[:500])
        hf = None
    golden = make_golden(a.out, cfg, w32, w64, wbf, tok, hf, log)
    log("golden", golden["summary"], "ppl", golden["perplexity"]["perplexity"], f"{time.time() - t0:.1f} s")
    json.dump(golden, open(f"{a.out}/golden.json", "w"), ensure_ascii=False, indent=1)
    if hf is not None:
        try:                                                     # the cached decoding path of the other implementation
            okc = []
            for c in golden["cases"][:6]:
                x = torch.tensor([c["input_ids"]], device=dev)
                y = hf.generate(x, max_new_tokens=len(c["greedy_ids"]) + 1, do_sample=False, pad_token_id=0, eos_token_id=tok.token_to_id("<|im_end|>"))
                okc.append(y[0, x.shape[1]:].tolist()[:len(c["greedy_ids"])] == c["greedy_ids"])
            results["hf_cached_greedy_equal"] = okc
            log("hf cached greedy equal:", okc)
        except Exception as x:                                   # noqa: BLE001
            log("hf generate failed:", repr(x)[:300])
    del hf
    wm = Q.working(master, kinds, "bf16", torch.bfloat16)
    for f in [a.eval] + a.extra:
        items = [json.loads(x) for x in open(f, encoding="utf-8")]
        if a.small:
            items = items[::30]
        key = os.path.basename(os.path.dirname(f))
        for mode, w in (("4bit", wbf), ("bf16", wm)):
            t1 = time.time()
            table, rec = evaluate.score(cfg, w, items, tok)
            log(key, mode, f"{time.time() - t1:.1f} s")
            evaluate.show(table, log)
            results[f"{key}:{mode}"] = dict(table=table, wrong=[r for r in rec if not r["ok"]])
            if mode == "4bit":
                by = {i["id"]: i for i in items}
                for r in [r for r in rec if not r["ok"]][:30]:
                    log("   ", r["id"], repr(evaluate.prompt_of(by[r["id"]])[-150:]), "=>", repr(r["output"][-120:]), "| wanted", repr(by[r["id"]]["expected"][:100]))
            json.dump(results, open(f"{a.out}/results.json", "w"), ensure_ascii=False)
    log(f"all {time.time() - t0:.1f} s")


if __name__ == "__main__":
    main()
