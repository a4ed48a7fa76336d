#!/usr/bin/env python3
"""Replicas of calla serve behind HAProxy (docs/SCALING.md). Python and haproxy only.

    bench/replicas.py [--replicas 2] [--conversations 12] [--turns 6] [--json FILE]

Conversations of several turns, all at once, each turn with all before it, greedily: first by least connections alone, then
with stickiness by prompt_cache_key, then by how a conversation begins. For each: answers a second, generated tokens a
second, and the share of prompt tokens that came from a cache. Every answer must be the one that a single server gives.
Then, under the same load, one replica is killed (only what it was answering may fail), started again, and one is asked to
end with SIGTERM (nothing may fail). Ends with 1 when one of that is not so. CALLA names the program (build/calla).
"""

import argparse
import concurrent.futures
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
CALLA = os.environ.get("CALLA", os.path.join(ROOT, "build", "calla"))
TOPICS = ["bread", "tea", "rivers", "clocks", "stones", "music", "trains", "apples", "maps", "birds", "winter", "letters"]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def ready(port, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            c = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            c.request("GET", "/ready")
            if c.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise RuntimeError("port %d was not ready within %d s" % (port, seconds))


class Replica:
    def __init__(self, threads):
        self.port, self.threads = free_port(), threads
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            [CALLA, "serve", "--port", str(self.port), "-m", os.path.join(ROOT, "models", "nano"), "--threads",
             str(self.threads), "--ctx", "8192", "--parallel", "8", "--cache-ram", "256M", "--log-level", "error"],
            stdout=subprocess.DEVNULL)

    def stop(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(60)


class Balancer:
    def __init__(self, replicas, sticky):
        self.port = free_port()
        env = dict(os.environ, BIND="127.0.0.1:%d" % self.port, STICKY="1" if sticky else "0")
        with open(os.path.join(ROOT, "examples", "replicas", "haproxy.cfg"), encoding="utf-8") as f:
            text = f.read()
        for i in range(1, 5):
            if i <= len(replicas):
                env["REPLICA%d" % i] = "127.0.0.1:%d" % replicas[i - 1].port
            else:  # a machine has as many servers as it has replicas
                text = text.replace('    server r%d "$REPLICA%d"\n' % (i, i), "")
        self.config = tempfile.NamedTemporaryFile("w", suffix=".cfg")
        self.config.write(text)
        self.config.flush()
        self.process = subprocess.Popen(["haproxy", "-db", "-f", self.config.name], env=env, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        end = time.monotonic() + 20
        while time.monotonic() < end:  # its checks must have found every replica
            try:
                if ask(self.port, {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 1})[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.2)
        raise RuntimeError("haproxy did not answer")

    def stop(self):
        self.process.terminate()
        self.process.wait(20)
        self.config.close()


def ask(port, body):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        c.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        r = c.getresponse()
        return r.status, json.loads(r.read())
    finally:
        c.close()


def conversation(port, i, turns, keyed, failures):
    """Returns (answers, prompt tokens, of them cached, generated tokens)."""
    system = ("You help with %s. " % TOPICS[i % len(TOPICS)]) + "Be brief and kind. " * 20 + "Conversation %d." % i
    messages, answers, prompt, cached, generated = [{"role": "system", "content": system}], [], 0, 0, 0
    for t in range(turns):
        messages.append({"role": "user", "content": "What is %d + %d?" % (10 * i + t, 7 * t + 3)})
        body = {"messages": messages, "temperature": 0, "max_tokens": 24, "chat_template_kwargs": {"enable_thinking": False}}
        if keyed:
            body["prompt_cache_key"] = "conversation-%d" % i
        try:
            status, answer = ask(port, body)
        except (OSError, http.client.HTTPException, ValueError) as e:
            status, answer = 0, {"error": str(e)}
        if status != 200:
            failures.append((time.monotonic(), i, t, status, answer))
            messages.pop()
            continue
        text = answer["choices"][0]["message"]["content"]
        messages.append({"role": "assistant", "content": text})
        answers.append(text)
        usage = answer["usage"]
        prompt += usage["prompt_tokens"]
        cached += usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
        generated += usage["completion_tokens"]
    return answers, prompt, cached, generated


def run(port, n, turns, keyed, failures):
    t0 = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(n) as pool:
        rows = list(pool.map(lambda i: conversation(port, i, turns, keyed, failures), range(n)))
    seconds = time.monotonic() - t0
    prompt, cached, generated = (sum(r[k] for r in rows) for k in (1, 2, 3))
    return {"seconds": seconds, "answers_per_second": sum(len(r[0]) for r in rows) / seconds,
            "tokens_per_second": generated / seconds, "prompt_tokens": prompt, "cached_share": cached / max(prompt, 1),
            "answers": [r[0] for r in rows]}


def measure(o, threads):
    """The tables; a fresh set of replicas for each, so that none starts with the caches of another."""
    out, want = {}, None
    modes = [("one server", 1, False, False), ("least connections", o.replicas, False, False),
             ("sticky by prompt_cache_key", o.replicas, True, True), ("sticky by beginning", o.replicas, True, False)]
    for name, n, sticky, keyed in modes:
        replicas = [Replica(threads) for _ in range(n)]
        for r in replicas:
            ready(r.port)
        balancer, failures = Balancer(replicas, sticky), []
        row = run(balancer.port, o.conversations, o.turns, keyed, failures)
        balancer.stop()
        for r in replicas:
            r.stop()
        answers = row.pop("answers")
        want = want or answers
        row["different_answers"] = sum(a != b for x, y in zip(answers, want) for a, b in zip(x, y))
        row["failures"] = len(failures)
        out[name] = row
        print("%-28s %6.2f answers/s %8.1f tokens/s  cached %5.1f %%  %d failed, %d other answers" % (
            name, row["answers_per_second"], row["tokens_per_second"], 100 * row["cached_share"], row["failures"],
            row["different_answers"]), flush=True)
    return out


def disturb(o, threads):
    """A replica is killed, started again, and then asked to end, all under load."""
    replicas = [Replica(threads) for _ in range(2)]
    for r in replicas:
        ready(r.port)
    balancer, failures, out = Balancer(replicas, True), [], {}
    for what in ("killed", "terminated"):
        failures.clear()
        load = threading.Thread(target=run, args=(balancer.port, o.conversations, 2 * o.turns, True, failures))
        load.start()
        time.sleep(2)
        at = time.monotonic()
        replicas[0].stop(signal.SIGKILL if what == "killed" else signal.SIGTERM)
        load.join()
        late = [f for f in failures if f[0] > at + 3]
        out[what] = {"requests": 2 * o.turns * o.conversations, "failed": len(failures), "failed_later": len(late)}
        print("one of two replicas %s: %d of %d requests failed, %d of them more than 3 s later" % (
            what, len(failures), 2 * o.turns * o.conversations, len(late)), flush=True)
        replicas[0].start()
        ready(replicas[0].port)
        time.sleep(3)
    balancer.stop()
    for r in replicas:
        r.stop()
    return out


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--replicas", type=int, default=2)
    p.add_argument("--conversations", type=int, default=12)
    p.add_argument("--turns", type=int, default=6)
    p.add_argument("--json")
    o = p.parse_args()
    threads = max(1, (os.cpu_count() or 1) // o.replicas)
    print("%d conversations of %d turns at once, %d replicas of %d threads" % (o.conversations, o.turns, o.replicas, threads))
    tables = measure(o, threads)
    breaks = disturb(o, threads)
    if o.json:
        with open(o.json, "w", encoding="utf-8") as f:
            json.dump({"measured": tables, "disturbed": breaks}, f, indent=1)
    bad = sum(r["failures"] + r["different_answers"] for r in tables.values())
    bad += breaks["killed"]["failed_later"] + breaks["terminated"]["failed"]
    bad += breaks["killed"]["failed"] > o.conversations
    print("1 passed, 0 failed" if bad == 0 else "0 passed, 1 failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
