"""Check this recipe on the training machine before spending time on it.

python3 selfcheck.py --work DIR [--seconds-per-trial 30]
Compares tokenizers, kernels, attention paths and Hugging Face's implementation, measures speed, compares optimizers for a
moment, and runs the exporter once. Writes DIR/flags (options for train.py) and DIR/ok when everything needed holds.
"""
import argparse
import math
import os
import random
import subprocess
import sys
import time

import torch

import bpe
import chatfmt
import data
import evaluate
import export
import model as M
import quant as Q
import skills
import train as TR

T0 = time.time()


def log(*x):
    print(f"[{time.time() - T0:6.1f}]", *x, flush=True)


def trial(cfg, dev, pad, work, compile_, muon, steps, seconds, start, net=None):
    torch.manual_seed(0)
    P = TR.Params(cfg, dev)
    opt = TR.Optimizer(P, use_muon=muon)
    net = net or M.TrainModel(cfg, compile_=compile_)
    L = start
    t0, marks, last = time.time(), [], []
    for i in range(steps):
        b = L[i % len(L)]
        P.refresh(False)
        for g in P.grad.values():
            g.zero_()
        loss, main, aux, ld = net.loss(P.w, b)
        (loss + 0.01 * aux).backward()
        opt.step(TR.schedule(0.0, i))
        last.append((loss.detach(), main))
        if i in (2, 9):
            torch.cuda.synchronize()
            marks.append(time.time())
            log(f"  step {i + 1} at {marks[-1] - t0:.1f} s loss {loss.item():.3f}")
        if i % 20 == 19 and i > 30:
            torch.cuda.synchronize()
            if time.time() - t0 > seconds:
                break
    torch.cuda.synchronize()
    n = i + 1
    v = sum(m.item() for _, m in last[-40:]) / len(last[-40:])
    speed = (n - 10) * data.N / (time.time() - marks[1]) if n > 12 else 0.0
    log(f"  compile {compile_} muon {muon}: {n} steps, main loss (last 40) {v:.4f}, all {sum(m.item() for m, _ in last[-40:]) / len(last[-40:]):.4f}, {speed:.0f} tok/s, mem {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
    return v, speed, net, P


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--work", default="calla-check")
    ap.add_argument("--tokenizer", default="../../models/nano/tokenizer.json")
    ap.add_argument("--trial-steps", type=int, default=280)
    a = ap.parse_args()
    os.makedirs(a.work, exist_ok=True)
    dev = torch.device("cuda")
    torch.backends.cuda.matmul.allow_tf32 = True
    pad = TR.special_id(a.tokenizer, "<|endoftext|>")
    os.makedirs(f"{a.work}/data", exist_ok=True)
    open(f"{a.work}/data/consumed", "w").write("0")
    prod = TR.start_producers(a.work, a.tokenizer, pad, 12, ahead=24)
    need = {}
    log(torch.__version__, torch.cuda.get_device_name(), os.cpu_count(), "cores")

    tok, ref, r = evaluate.tokenizer_of(a.tokenizer), bpe.Encoder(a.tokenizer), random.Random(3)
    bad = 0
    for i in range(400):
        s = skills.dress(r, skills.draw(r))
        s["thinking"] = i % 2 == 0
        t = chatfmt.prompt_text(s) + chatfmt.completion_text(s)
        x = tok.encode(t, add_special_tokens=False).ids
        bad += x != ref.encode(t) or tok.decode(x, skip_special_tokens=False) != t
    log("tokenizer differences:", bad)
    need["tokenizer"] = bad == 0

    M.check_kernels(dev, log)
    log("kernels in use:", M.USE_TRITON)
    cfg = M.Config()

    loader = TR.Loader(f"{a.work}/data", dev, pad)
    batches = [loader.next() for _ in range(16)]
    log("first batches after", f"{loader.wait:.1f} s; rows", [b["rows"] for b in batches])
    P = TR.Params(cfg, dev)
    P.refresh(False)

    # flash attention against the masked version, inside the whole loss
    b = next(x for x in batches if x["T"] == 2048)
    cu = b["cu"].cpu().tolist()
    doc = torch.zeros(data.N, dtype=torch.long)
    for i in range(len(cu) - 1):
        doc[cu[i]:cu[i + 1]] = i
    b["doc"] = doc.to(dev)
    net = M.TrainModel(cfg)
    out = {}
    for name, fn in (("flash", M.attention_flash), ("masked", M.attention_masked)):
        net.attention = fn
        for g in P.grad.values():
            g.zero_()
        try:
            loss, main, aux, ld = net.loss(P.w, b)
            loss.backward()
            out[name] = (loss.item(), {n: P.w[n].grad.float().clone() for n in ("layers.3.self_attn.q_proj.weight", "layers.3.self_attn.k_proj.weight", "layers.0.linear_attn.in_proj_qkv.weight", "layers.0.linear_attn.A_log")})
        except Exception as x:                                   # noqa: BLE001
            log(name, "failed:", repr(x)[:600])
    torch.cuda.empty_cache()
    if len(out) == 2:
        rel = {n: ((out["flash"][1][n] - g).norm() / g.norm()).item() for n, g in out["masked"][1].items()}
        log("flash vs masked loss", out["flash"][0], out["masked"][0], "gradients", {k: f"{v:.1e}" for k, v in rel.items()})
        need["flash"] = abs(out["flash"][0] - out["masked"][0]) < 2e-3 and max(rel.values()) < 0.1
    # the Triton path against the plain path, same loss and gradients
    keep = dict(M.USE_TRITON)
    M.USE_TRITON.update(inv=False, scan=False)
    net.attention = M.attention_flash
    for g in P.grad.values():
        g.zero_()
    loss, *_ = net.loss(P.w, b)
    loss.backward()
    if "flash" in out:
        rel = {n: ((P.w[n].grad.float() - g).norm() / g.norm()).item() for n, g in out["flash"][1].items()}
        log("plain scan loss", loss.item(), "gradients", {k: f"{v:.1e}" for k, v in rel.items()})
        need["scan"] = abs(out["flash"][0] - loss.item()) < 2e-3 and max(rel.values()) < 0.3
    M.USE_TRITON.update(keep)
    del loss
    torch.cuda.empty_cache()

    # Hugging Face equivalence on random weights
    try:
        torch.backends.cuda.matmul.allow_tf32 = False
        big = {n: (t * 1.7 if P.kinds[n] != "raw" else t) for n, t in P.masters().items()}
        w = Q.working(big, P.kinds, "q")
        hf = export.hf_text_model(cfg, w, dev)
        ids = torch.randint(0, 4000, (1, 333), device=dev)
        with torch.no_grad():
            lh = hf(ids).logits[0].float()
        lm = M.forward_exact(cfg, w, export.padded(ids[0].tolist(), dev))[0, :333]
        log("hf vs exact: max", (lh - lm).abs().max().item(), "of", lm.abs().max().item())
        need["hf"] = (lh - lm).abs().max().item() < 1e-3
        del hf
    except Exception as x:                                       # noqa: BLE001
        log("hf check failed:", repr(x)[:900])
    torch.backends.cuda.matmul.allow_tf32 = True

    v0, s0, _, _ = trial(cfg, dev, pad, a.work, False, True, 40, 8, batches)
    flags, best = ["--no-compile"], s0
    net = None
    try:
        v1, s1, net, P1 = trial(cfg, dev, pad, a.work, True, True, 60, 6, batches)
        if s1 > 1.05 * s0 and math.isfinite(v1):
            flags, best = [], s1
        else:
            net = None
    except Exception as x:                                       # noqa: BLE001
        log("compile failed:", repr(x)[:900])
    # optimizer comparison on fresh data
    fresh = [loader.next() for _ in range(a.trial_steps)]
    vm, _, net, Pm = trial(cfg, dev, pad, a.work, not flags, True, a.trial_steps, 60, fresh, net)
    va, _, net, _ = trial(cfg, dev, pad, a.work, not flags, False, a.trial_steps, 60, fresh, net)
    if va < vm:
        flags.append("--adam")
    need["learns"] = min(vm, va) < 2.0
    need["speed"] = best > 150000
    torch.save({n: t.cpu() for n, t in Pm.masters().items()}, f"{a.work}/trial.pt")
    del fresh, batches, net, P, Pm
    torch.cuda.empty_cache()
    for p in prod:
        p.terminate()
    log("producers left", loader.i)
    e = subprocess.run([sys.executable, "export.py", "--weights", f"{a.work}/trial.pt", "--out", f"{a.work}/export", "--small"],
                       capture_output=True, text=True, timeout=150)
    log("export rc", e.returncode)
    print(e.stdout[-3500:], e.stderr[-2500:], flush=True)
    need["export"] = e.returncode == 0
    open(f"{a.work}/flags", "w").write(" ".join(flags))
    log("needs", need, "flags", flags, "best", best)
    if all(need.values()):
        open(f"{a.work}/ok", "w").write("ok")
    os._exit(0)


if __name__ == "__main__":
    main()
