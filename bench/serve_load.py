#!/usr/bin/env python3
"""calla serve under load: many clients, evaluation prompts, clients that leave. Python only.

    bench/serve_load.py [--seconds 600] [--clients 32] [--parallel 8] [--prompts 200] [--seed 1]
    bench/serve_load.py --scale         aggregate tokens/s with 1, 2, 4 and 8 sequences
    bench/serve_load.py --overflow      more requests than the queue holds

Every prompt is first asked alone, greedily; under load each answer must be that answer again, byte
for byte, over three APIs, streamed or not, whoever else is served. --leave of the requests (0.2)
hang up at a random moment. Ends with 1 if there was any error, a sequence that was not freed, or
memory that still grew. CALLA names the program (build/calla).
"""

import argparse
import asyncio
import json
import os
import random
import sys
import time

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path.insert(0, os.path.join(ROOT, "tests", "clients"))
from common import Server  # noqa: E402

PROMPT_BYTES_MAX = 12000
ANSWER_SECONDS = 300
# After half of the run: what fragmentation and the size of single requests may move.
GROWTH_MAX = 0.05


# ---- Prompts -------------------------------------------------------------------------------------

def with_call_ids(messages):
    """Clients send arguments as a string and results with the id of their call."""
    out, ids, n = [], [], 0
    for m in messages:
        m = dict(m)
        if m.get("tool_calls"):
            calls = []
            for c in m["tool_calls"]:
                n += 1
                ids.append("call_%d" % n)
                calls.append({"id": ids[-1], "type": "function", "function": {
                    "name": c["function"]["name"],
                    "arguments": json.dumps(c["function"]["arguments"])}})
            m["tool_calls"] = calls
        if m["role"] == "tool":
            m["tool_call_id"] = ids.pop(0)
        out.append(m)
    return out


def load_prompts(n, seed):
    with open(os.path.join(ROOT, "tests", "eval", "prompts.jsonl"), encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    rows = [r for r in rows if len(json.dumps(r["messages"])) <= PROMPT_BYTES_MAX]
    random.Random(seed).shuffle(rows)
    for r in rows[:n]:
        r["messages"] = with_call_ids(r["messages"])
    return rows[:n]


def chat_body(r, stream):
    body = {"model": "nano", "messages": r["messages"], "temperature": 0, "max_tokens": 600,
            "stream": stream, "chat_template_kwargs": {"enable_thinking": r["enable_thinking"]}}
    if r["tools"]:
        body["tools"] = r["tools"]
    return "/v1/chat/completions", body


def messages_body(r, stream):
    body = {"model": "nano", "temperature": 0, "max_tokens": 600, "stream": stream,
            "messages": [m for m in r["messages"] if m["role"] != "system"],
            "thinking": {"type": "enabled" if r["enable_thinking"] else "disabled"}}
    system = "\n\n".join(m["content"] for m in r["messages"] if m["role"] == "system")
    if system:
        body["system"] = system
    return "/v1/messages", body


# ---- HTTP ----------------------------------------------------------------------------------------

class Answer:
    """What was said: text, reasoning, calls [[name, arguments]], end; first: time to first piece."""

    def __init__(self):
        self.status, self.headers, self.error = 0, {}, None
        self.text = self.reasoning = ""
        self.calls, self.end, self.first = [], None, None
        self.n_pieces, self.done, self.left = 0, False, False

    def said(self):
        return self.text, self.reasoning, [tuple(c) for c in self.calls], self.end


async def body_lines(reader, headers):
    """Lines of a body with a length or in chunks."""
    if "content-length" in headers:
        for line in (await reader.readexactly(int(headers["content-length"]))).split(b"\n"):
            yield line
        return
    rest = b""
    while True:
        size = int((await reader.readline()).split(b";")[0], 16)
        rest += await reader.readexactly(size)
        await reader.readexactly(2)
        if size == 0:
            break
        *lines, rest = rest.split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest


def read_chat(a, o):
    for c in o["choices"]:
        d = c.get("delta") or c.get("message") or {}
        a.text += d.get("content") or ""
        a.reasoning += d.get("reasoning_content") or ""
        for t in d.get("tool_calls") or []:
            i = t.get("index", len(a.calls))
            if i == len(a.calls):
                a.calls.append([t["function"]["name"], ""])
            a.calls[i][1] += t["function"].get("arguments") or ""
        a.end = c["finish_reason"] or a.end
    if "message" in (o["choices"] or [{}])[0]:
        a.done = True


def read_messages(a, o):
    kind = o["type"]
    if kind == "content_block_delta":
        a.text += o["delta"].get("text", "")
        a.reasoning += o["delta"].get("thinking", "")
    elif kind == "message_delta":
        a.end = {"end_turn": "stop", "max_tokens": "length"}[o["delta"]["stop_reason"]]
    elif kind == "message_stop":
        a.done = True


async def ask(address, path, body, leave_after=None):
    """One request on its own connection. leave_after: hang up after so many lines (0: at once)."""
    a, t0 = Answer(), time.monotonic()
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        data = json.dumps(body).encode()
        writer.write(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     b"Content-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data)
        await writer.drain()
        if leave_after == 0:
            await asyncio.sleep(random.random() * 0.5)
            a.left = True
            return a
        a.status = int((await reader.readline()).split(b" ")[1])
        while True:
            name, _, value = (await reader.readline()).decode().strip().partition(":")
            if not name:
                break
            a.headers[name.lower()] = value.strip()
        read = read_chat if path.endswith("completions") else read_messages
        async for line in body_lines(reader, a.headers):
            if leave_after is not None and a.n_pieces >= leave_after:
                a.left = True
                return a
            text = line[6:] if line.startswith(b"data: ") else line
            if text == b"[DONE]":
                a.done = True
            elif text.startswith(b"{"):
                o = json.loads(text)
                if "error" in o:
                    a.error = o["error"]
                    return a
                if a.first is None and a.n_pieces > 0:
                    a.first = time.monotonic() - t0
                a.n_pieces += 1
                read(a, o)
        return a
    finally:
        writer.close()


# ---- The load ------------------------------------------------------------------------------------

class Load:
    def __init__(self, server, options):
        self.server, self.o = server, options
        self.rng = random.Random(options.seed)
        self.prompts = load_prompts(options.prompts, options.seed)
        self.reference = {}
        self.n_requests = self.n_left = self.n_right = 0
        self.errors, self.firsts, self.rss = [], [], []

    async def references(self):
        for r in self.prompts:
            a = await ask(self.server.address, *chat_body(r, False))
            self.reference[r["id"]] = a.said()
            whole = r["completion"].removesuffix("<|im_end|>")
            self.n_right += bool(whole.endswith(a.text) if a.text else a.calls and "<function=" in whole)

    async def one(self):
        r = self.rng.choice(self.prompts)
        plain = not r["tools"] and all(m["role"] != "tool" for m in r["messages"])
        kind = self.rng.random()
        path, body = (messages_body(r, True) if plain and kind < 0.25 else
                      chat_body(r, kind < 0.8))
        leave = self.rng.choice((0, 0, 1, 2, 5, 20)) if self.rng.random() < self.o.leave else None
        a = await asyncio.wait_for(ask(self.server.address, path, body, leave), ANSWER_SECONDS)
        self.n_requests += 1
        if a.left:
            self.n_left += 1
            return
        if a.status != 200 or not a.done:
            raise RuntimeError("%s %s: status %d, %s" % (path, r["id"], a.status,
                                                         a.error or "broken off"))
        if a.said() != self.reference[r["id"]]:
            raise RuntimeError("%s %s: expected %r, found %r" % (
                path, r["id"], self.reference[r["id"]], a.said()))
        if a.first is not None:
            self.firsts.append(a.first)

    async def client(self, end):
        await asyncio.sleep(self.rng.random())
        while time.monotonic() < end:
            try:
                await self.one()
            except Exception as e:
                self.errors.append(repr(e))
                await asyncio.sleep(0.1)

    async def watch(self, end):
        while time.monotonic() < end:
            with open("/proc/%d/statm" % self.server.pid, encoding="ascii") as f:
                self.rss.append(int(f.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 2 ** 20)
            await asyncio.sleep(min(1, self.o.seconds / 100))

    async def run(self):
        t0 = time.monotonic()
        await self.references()
        print("%d prompts asked alone in %.0f s, %d answers right" % (
            len(self.prompts), time.monotonic() - t0, self.n_right), flush=True)
        before, t0 = self.server.metrics(), time.monotonic()
        end = t0 + self.o.seconds
        await asyncio.gather(self.watch(end), *(self.client(end) for _ in range(self.o.clients)))
        return before, time.monotonic() - t0

    def report(self, before, seconds):
        idle = self.server.wait_idle(30)
        m = self.server.metrics()
        tokens = m["calla_tokens_generated_total"] - before["calla_tokens_generated_total"]
        prefilled = m["calla_tokens_prefilled_total"] - before["calla_tokens_prefilled_total"]
        cached = m["calla_tokens_cached_total"] - before["calla_tokens_cached_total"]
        f = sorted(self.firsts) or [0.0]
        print("%.0f s, %d clients, --parallel %d: %d requests (%.1f/s), %d left early, %d errors" % (
            seconds, self.o.clients, self.o.parallel, self.n_requests, self.n_requests / seconds,
            self.n_left, len(self.errors)))
        print("generated %.0f tokens (%.0f/s), prompts %.0f computed and %.0f from the cache" % (
            tokens, tokens / seconds, prefilled, cached))
        print("time to first token: median %.2f s, 95%% %.2f s, longest %.2f s" % (
            f[len(f) // 2], f[len(f) * 95 // 100], f[-1]))
        steps = self.rss[::max(1, len(self.rss) // 10)] + self.rss[-1:]
        print("resident MiB, from begin to end: " + " ".join("%.0f" % x for x in steps))
        half = self.rss[len(self.rss) // 2:]
        mid, last = max(half[:len(half) // 2]), max(half[len(half) // 2:])
        growth = last / mid - 1
        print("largest in the third quarter %.1f MiB, in the last %.1f MiB (%+.2f %%)" % (
            mid, last, growth * 100))
        print("afterwards: running %.0f, queue %.0f, connections %.0f, failed %.0f" % (
            m["calla_running"], m["calla_queue_length"], m["calla_connections"] - 1,
            m['calla_generations_total{end="failed"}']))
        for e in self.errors[:10]:
            print("error: " + e[:1000])
        bad = len(self.errors) + (not idle) + (growth > GROWTH_MAX)
        bad += m['calla_generations_total{end="failed"}'] != 0
        return bad


def serve(o, *options):
    return Server(*options, *(["--threads", o.threads] if o.threads else []))


def load(o):
    with serve(o, "--parallel", str(o.parallel), "--cache-ram", o.cache_ram) as server:
        run = Load(server, o)
        return run.report(*asyncio.run(run.run()))


# ---- Other measurements --------------------------------------------------------------------------

def endless(server, n_tokens, i=0):
    bias = {}
    for t in ("<|im_end|>", "<|endoftext|>"):
        ids = json.loads(server.request("POST", "/tokenize", {"content": t})[2])["tokens"]
        bias[str(ids[0])] = -100
    return "/v1/chat/completions", {
        "messages": [{"role": "user", "content": "Count from %d." % i}], "temperature": 1,
        "seed": i, "max_tokens": n_tokens, "logit_bias": bias, "stream": True}


def scale(o):
    bad = 0
    for n in (1, 2, 4, 8):
        with serve(o, "--parallel", str(n)) as server:
            async def all_of():
                return await asyncio.gather(*(ask(server.address, *endless(server, o.tokens, i))
                                              for i in range(n)))
            asyncio.run(all_of())  # warm
            before, t0 = server.metrics(), time.monotonic()
            answers = asyncio.run(all_of())
            seconds, m = time.monotonic() - t0, server.metrics()
            name = "calla_tokens_generated_total"
            print("%d sequences: %.0f tokens/s together, %d executor steps" % (
                n, (m[name] - before[name]) / seconds,
                m["calla_steps_total"] - before["calla_steps_total"]), flush=True)
            bad += sum(a.end != "length" or not a.done for a in answers)
    return bad


def overflow(o):
    with serve(o, "--parallel", "1", "--queue", "4") as server:
        bodies = [endless(server, 50, i) for i in range(o.clients)]

        async def all_of():
            return await asyncio.gather(*(ask(server.address, *b) for b in bodies))
        answers = asyncio.run(all_of())
        good = sum(a.done and a.end == "length" for a in answers)
        refused = [a for a in answers if a.status == 429]
        waits = {a.headers.get("retry-after") for a in refused}
        print("%d requests at once, 1 sequence, a queue of 4: %d answered, %d refused with 429; "
              "Retry-After: %s" % (o.clients, good, len(refused), waits))
        leaked = not server.wait_idle()
        return (good + len(refused) != o.clients) + (None in waits or not waits) + leaked


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=600)
    p.add_argument("--clients", type=int, default=32)
    p.add_argument("--parallel", type=int, default=8)
    p.add_argument("--prompts", type=int, default=200)
    p.add_argument("--leave", type=float, default=0.2)
    p.add_argument("--cache-ram", default="64M")
    p.add_argument("--tokens", type=int, default=400)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--threads", help="the server's, else its own choice")
    p.add_argument("--scale", action="store_true")
    p.add_argument("--overflow", action="store_true")
    o = p.parse_args()
    bad = scale(o) if o.scale else overflow(o) if o.overflow else load(o)
    print("%s" % ("ok" if not bad else "%d faults" % bad))
    sys.exit(bad != 0)


if __name__ == "__main__":
    main()
