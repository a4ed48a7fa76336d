"""Train the demonstration model from scratch on synthetic data (one GPU).

python3 train.py --minutes 18 --work calla-work --tokenizer ../../models/nano/tokenizer.json

The schedule follows the clock: learning rate and quantisation-aware phase are functions of the elapsed share of --minutes.
Matrices get Muon (orthogonalised momentum), the rest AdamW. In the second phase the forward pass uses the weights as the
4-bit checkpoint will hold them (straight-through gradient), so that the exported checkpoint is the trained one.
"""
import argparse
import glob
import json
import math
import os
import subprocess
import sys
import threading
import time

import numpy as np
import torch

import data
import model as M
import quant as Q


class Params:
    """fp32 master weights in flat buffers, working copies the model computes with, and gradients, all as views."""

    def __init__(self, cfg, device, seed=1):
        self.cfg, self.device = cfg, device
        self.names = M.layout(cfg)
        self.kinds = {n: k for n, _, k, _ in self.names}
        gen = torch.Generator().manual_seed(seed)
        size = {"q4": 0, "q8": 0, "raw": 0}
        self.place = {}
        for n, s, k, _ in self.names:
            self.place[n] = (k, size[k], math.prod(s), s)
            size[k] += math.prod(s)
        self.master = {k: torch.empty(v, device=device) for k, v in size.items()}
        for n, s, k, _ in self.names:
            self.view(self.master, n).copy_(M.init_tensor(n, s, cfg, gen))
        dt = {"q4": torch.bfloat16, "q8": torch.float32, "raw": torch.float32}
        self.work = {k: torch.empty(v, device=device, dtype=dt[k]) for k, v in size.items()}
        self.grad = {k: torch.zeros_like(v) for k, v in self.work.items()}
        self.w = {}
        for n, *_ in self.names:
            p = self.view(self.work, n).detach().requires_grad_()
            p.grad = self.view(self.grad, n)
            self.w[n] = p
        raw = [(n, *self.place[n][1:3]) for n, _, k, _ in self.names if k == "raw"]
        self.raw_zero = sum(m for n, _, m in raw if Q.is_zero_centred(n))
        self.adam4 = sum(math.prod(s) for _, s, k, o in self.names if k == "q4" and o == "adam")
        # classes of equally shaped matrices in the Muon part of the q4 buffer: (offset, count, rows, cols)
        self.muon = []
        for n, s, k, o in self.names:
            if o != "muon":
                continue
            off, m = self.place[n][1:3]
            r, c = s[-2:]
            if n.endswith("gate_up_proj"):
                r //= 2
            key = n.split(".", 2)[2]
            cnt = m // (r * c)
            if self.muon and self.muon[-1][4] == key:
                self.muon[-1][1] += cnt
            else:
                self.muon.append([off, cnt, r, c, key])

    def view(self, bufs, n):
        k, off, m, s = self.place[n]
        return bufs[k][off:off + m].view(s)

    def masters(self):
        return {n: self.view(self.master, n) for n, *_ in self.names}

    @torch.no_grad()
    def refresh(self, qat):
        """master -> working copies."""
        m4, m8, mr = self.master["q4"], self.master["q8"], self.master["raw"]
        if qat:
            self.work["q4"].copy_(Q.fake_quant(m4, 4))
            self.work["q8"].copy_(Q.fake_quant(m8, 8))
            self.work["raw"].copy_(mr)
            z = self.raw_zero
            self.work["raw"][:z].copy_(Q.snap_raw("norm.weight", mr[:z]))
            self.work["raw"][z:].copy_(mr[z:].bfloat16())
        else:
            self.work["q4"].copy_(m4)
            self.work["q8"].copy_(m8)
            self.work["raw"].copy_(mr)


def newton_schulz(G, steps=5):
    """Approximate orthogonalisation of a batch of matrices [n, r, c]."""
    X = G.bfloat16()
    tall = X.shape[-2] > X.shape[-1]
    if tall:
        X = X.transpose(-1, -2)
    X = X / (X.float().norm(dim=(-2, -1), keepdim=True) + 1e-7).bfloat16()
    for _ in range(steps):
        A = X @ X.transpose(-1, -2)
        B = -4.7750 * A + 2.0315 * (A @ A)
        X = 3.4445 * X + B @ X
    return (X.transpose(-1, -2) if tall else X).float()


class Optimizer:
    def __init__(self, params, muon_lr=3e-3, adam_lr=2.5e-3, use_muon=True, weight_decay=0.05):
        self.p, self.muon_lr, self.adam_lr, self.use_muon, self.wd = params, muon_lr, adam_lr, use_muon, weight_decay
        self.t = 0
        self.m = {k: torch.zeros_like(v) for k, v in params.master.items()}
        self.v = {k: torch.zeros_like(v) for k, v in params.master.items()}

    @torch.no_grad()
    def step(self, scale):
        self.t += 1
        p = self.p
        a = p.adam4 if self.use_muon else p.master["q4"].numel()
        self._adam("q4", 0, a, scale, self.wd if not self.use_muon else 0.0)
        self._adam("q8", 0, p.master["q8"].numel(), scale, 0.0)
        self._adam("raw", 0, p.master["raw"].numel(), scale, 0.0)
        if self.use_muon:
            g, m, w = p.grad["q4"][a:].float(), self.m["q4"][a:], p.master["q4"][a:]
            m.mul_(0.95).add_(g)
            u = g.add_(m, alpha=0.95)
            w.mul_(1 - self.muon_lr * scale * self.wd)
            for off, cnt, r, c, _ in p.muon:
                o, n = off - a, cnt * r * c
                x = newton_schulz(u[o:o + n].view(cnt, r, c))
                w[o:o + n].view(cnt, r, c).add_(x, alpha=-self.muon_lr * scale * 0.2 * max(r, c) ** 0.5)

    def _adam(self, k, lo, hi, scale, wd, b1=0.9, b2=0.97, eps=1e-8):
        p = self.p
        g, m, v, w = p.grad[k][lo:hi].float(), self.m[k][lo:hi], self.v[k][lo:hi], p.master[k][lo:hi]
        m.lerp_(g, 1 - b1)
        v.lerp_(g * g, 1 - b2)
        if wd:
            w.mul_(1 - self.adam_lr * scale * wd)
        d = (v / (1 - b2 ** self.t)).sqrt_().add_(eps)
        w.addcdiv_(m, d, value=-self.adam_lr * scale / (1 - b1 ** self.t))


class Loader:
    """Reads shards in order in a thread and hands out micro-batches on the GPU."""

    def __init__(self, folder, device, pad_id, start=0):
        self.folder, self.device, self.pad, self.i, self.wait = folder, device, pad_id, start, 0.0
        self.queue, self.lock = [], threading.Condition()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        i = self.i
        while True:
            f = f"{self.folder}/shard{i}.npz"
            while not os.path.exists(f):
                time.sleep(0.02)
            a = dict(np.load(f))
            out = []
            for j in range(int(a["count"][0])):
                T, mx = (int(x) for x in a[f"meta{j}"])
                out.append((torch.from_numpy(a[f"tok{j}"].astype(np.int64)), torch.from_numpy(a[f"pos{j}"].astype(np.int64)),
                            torch.from_numpy(a[f"w{j}"].astype(np.float32)), torch.from_numpy(a[f"cu{j}"]), T, mx))
            with self.lock:
                while len(self.queue) > 32:
                    self.lock.wait()
                self.queue += out
                self.lock.notify_all()
            os.remove(f)
            i += 1
            with open(f"{self.folder}/consumed", "w") as g:
                g.write(str(i))

    def next(self):
        t = time.time()
        with self.lock:
            while not self.queue:
                self.lock.wait()
            tok, pos, w, cu, T, mx = self.queue.pop(0)
            self.lock.notify_all()
        self.wait += time.time() - t
        d = self.device
        tok, pos, w, cu = (x.to(d, non_blocking=True) for x in (tok, pos, w, cu))
        return dict(tok=tok, pos=pos, weight=w, cu=cu, maxlen=mx, rows=tok.shape[0] // T, target=torch.roll(tok, -1),
                    valid=(tok != self.pad).float(), T=T)


def start_producers(work, tokenizer, pad_id, workers, ahead=96):
    os.makedirs(f"{work}/data", exist_ok=True)
    here = os.path.dirname(os.path.abspath(__file__))
    return [subprocess.Popen([sys.executable, f"{here}/data.py", *map(str, (k, workers, f"{work}/data", os.path.abspath(tokenizer), pad_id, ahead))],
                             cwd=here, env=dict(os.environ, RAYON_NUM_THREADS="1", OMP_NUM_THREADS="1")) for k in range(workers)]


def schedule(frac, step, hold=0.35, low=0.01):
    x = 1.0 if frac < hold else 0.5 * (1 + math.cos(math.pi * min(1.0, (frac - hold) / (1 - hold))))
    return min(1.0, (step + 1) / 100) * max(low, x)


def special_id(tokenizer, text):
    return next(a["id"] for a in json.load(open(tokenizer, encoding="utf-8"))["added_tokens"] if a["content"] == text)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--minutes", type=float, default=20)
    ap.add_argument("--work", default="calla-work")
    ap.add_argument("--tokenizer", default="../../models/nano/tokenizer.json")
    ap.add_argument("--workers", type=int, default=12)
    ap.add_argument("--no-compile", action="store_true")
    ap.add_argument("--adam", action="store_true", help="AdamW for everything")
    ap.add_argument("--muon-lr", type=float, default=3e-3)
    ap.add_argument("--adam-lr", type=float, default=2.5e-3)
    ap.add_argument("--qat-start", type=float, default=0.5)
    ap.add_argument("--aux", type=float, default=0.01)
    ap.add_argument("--eval-at", default="0.33,0.66")
    ap.add_argument("--resume", default="", help="a final.pt, or a folder with the bf16 checkpoint")
    ap.add_argument("--open-words", action="store_true", help="letter-level skills on arbitrary words (see README)")
    ap.add_argument("--start-frac", type=float, default=0.0)
    ap.add_argument("--start-shard", type=int, default=0)
    a = ap.parse_args()
    a.tokenizer = os.path.abspath(a.tokenizer)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    dev = torch.device("cuda")
    log = lambda *x: print(*x, flush=True)
    pad = special_id(a.tokenizer, "<|endoftext|>")
    os.makedirs(f"{a.work}/data", exist_ok=True)
    with open(f"{a.work}/data/consumed", "w") as f:
        f.write(str(a.start_shard))
    if a.open_words:
        os.environ["CALLA_OPEN_WORDS"] = "1"
    producers = start_producers(a.work, a.tokenizer, pad, a.workers)
    M.check_kernels(dev, log)
    cfg = M.Config()
    P = Params(cfg, dev)
    if os.path.isdir(a.resume):
        import export
        for f in sorted(glob.glob(f"{a.resume}/model-*.safetensors")):
            hf = export.load_safetensors(f)
            for n, *_ in P.names:
                if Q.hf_name(n) in hf:
                    P.view(P.master, n).copy_(hf[Q.hf_name(n)].float())
    elif a.resume:
        for n, t in torch.load(a.resume).items():
            P.view(P.master, n).copy_(t)
    opt = Optimizer(P, a.muon_lr, a.adam_lr, not a.adam)
    net = M.TrainModel(cfg, compile_=not a.no_compile)
    log("parameters:", sum(v.numel() for v in P.master.values()))
    load = Loader(f"{a.work}/data", dev, pad, a.start_shard)
    evals = [float(x) for x in a.eval_at.split(",") if x]
    # the clock starts after the first step, so that compilation is not counted
    t0, step, tokens, paused, last_save, qat = None, 0, 0, 0.0, 0.0, False
    hist, tl, bad = [], time.time(), 0
    while True:
        el = 0.0 if t0 is None else time.time() - t0 - paused
        frac = a.start_frac + (1 - a.start_frac) * el / (a.minutes * 60)
        if frac >= 1:
            break
        qat = frac >= a.qat_start
        P.refresh(qat)
        for g in P.grad.values():
            g.zero_()
        b = load.next()
        loss, main_ce, aux, ld = net.loss(P.w, b)
        (loss + (a.aux if frac < 0.5 else 0.5 * a.aux) * aux).backward()
        hist.append((loss.detach(), main_ce, aux.detach() if torch.is_tensor(aux) else torch.tensor(0.0), b["T"]))
        if step % 25 == 24:
            torch.cuda.synchronize()
            if not math.isfinite(hist[-1][0].item()):
                bad += 1
                log("non-finite loss at step", step)
                if bad > 3:
                    raise SystemExit("diverged")
        opt.step(schedule(frac, step))
        step += 1
        tokens += data.N
        if t0 is None:
            torch.cuda.synchronize()
            t0 = time.time()
            log(f"first step after {t0 - tl:.1f} s")
            tl = t0
        if step % 200 == 0:
            torch.cuda.synchronize()
            now = time.time()
            by = {}
            for l, m, x, T in hist:
                by.setdefault(T, []).append((l.item(), m.item(), x.item()))
            s = " ".join(f"{T}:{sum(v[0] for v in vs) / len(vs):.3f}/{sum(v[1] for v in vs) / len(vs):.4f}" for T, vs in sorted(by.items()))
            lo, hi = min(float(x.min()) for x in ld), max(float(x.max()) for x in ld)
            log(f"step {step} frac {frac:.3f} loss/main {s} aux {hist[-1][2].item():.3f} load {lo:.4f}..{hi:.3f} qat {int(qat)} "
                f"lr {schedule(frac, step):.3f} tok/s {200 * data.N / (now - tl):.0f} wait {load.wait:.1f} mem {torch.cuda.max_memory_allocated() / 2**30:.1f}")
            hist, tl = [], now
        if evals and frac >= evals[0]:
            evals.pop(0)
            te = time.time()
            try:
                import evaluate
                evaluate.quick(P, a.tokenizer, log)
            except Exception as x:                               # noqa: BLE001
                log("quick evaluation failed:", repr(x)[:300])
            torch.cuda.synchronize()
            paused += time.time() - te
            tl += time.time() - te
        if el - last_save > 120:
            last_save = el
            torch.save({n: t.cpu() for n, t in P.masters().items()}, f"{a.work}/ckpt.tmp")
            os.rename(f"{a.work}/ckpt.tmp", f"{a.work}/ckpt.pt")
            json.dump(dict(step=step, frac=frac, shard=load.i, tokens=tokens), open(f"{a.work}/ckpt.json", "w"))
    torch.save({n: t.cpu() for n, t in P.masters().items()}, f"{a.work}/final.tmp")
    os.rename(f"{a.work}/final.tmp", f"{a.work}/final.pt")
    json.dump(dict(steps=step, tokens=tokens, minutes=a.minutes, qat_start=a.qat_start, muon_lr=a.muon_lr, adam_lr=a.adam_lr,
                   muon=not a.adam, wait_s=round(load.wait, 1)), open(f"{a.work}/final.json", "w"))
    log("done: steps", step, "tokens", tokens)
    for p in producers:
        p.terminate()
    os._exit(0)


if __name__ == "__main__":
    main()
