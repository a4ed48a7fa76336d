"""Measures a server with OpenAI's completions interface, streaming, one request at a time.

  python bench/peers/engine_openai.py URL [--name NAME] [--text | --vocab N] [--ignore-eos] [--prefill N,..] [--decode N,..] [--steps N]

Prints one JSON object (see README.md). Standard library only. The prompt of a request is n token
ids that no request had before (--text: about n words, for servers that take no ids; the server's
own count is then reported). Prefill is the time to the first token, which includes the network and
one step; decode is the time between tokens that arrive alone. --ignore-eos asks for that (llama.cpp
and vLLM know it): an answer may otherwise end early. $OPENAI_API_KEY is sent when set.
"""
import json
import os
import random
import time
import urllib.error
import urllib.request

import common


class Server:
    def __init__(self, a):
        self.url, self.text, self.vocab = a.model.rstrip("/"), a.text, a.vocab
        self.more = {"ignore_eos": True} if a.ignore_eos else {}
        self.rng = random.Random(time.time_ns())

    def get(self, path):
        with urllib.request.urlopen(self.request(path), timeout=600) as r:
            return json.load(r)

    def request(self, path, body=None):
        headers = {"Content-Type": "application/json"}
        if "OPENAI_API_KEY" in os.environ:
            headers["Authorization"] = "Bearer " + os.environ["OPENAI_API_KEY"]
        data = json.dumps(body).encode() if body is not None else None
        return urllib.request.Request(self.url + path, data, headers)

    def post(self, path, body):
        try:
            return urllib.request.urlopen(self.request(path, body), timeout=600)
        except urllib.error.HTTPError as e:
            raise SystemExit(f"{self.url}{path}: {e.code}: {e.read().decode(errors='replace')[:500]}")

    def prompt(self, n):
        if self.text:
            return " ".join(f"{self.rng.randrange(10)}" for _ in range(n // 2))
        return self.rng.choices(range(256, self.vocab), k=n)

    def complete(self, model, n, steps):
        """(prompt tokens, seconds to the first token, seconds between the rest)"""
        body = {"model": model, "prompt": self.prompt(n), "max_tokens": steps + 1, "stream": True,
                "temperature": 1.0, "stream_options": {"include_usage": True}, **self.more}
        at, tokens, t0 = [], n, time.perf_counter()
        with self.post("/completions", body) as r:
            for line in r:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                if event.get("choices") and event["choices"][0].get("finish_reason") is None:
                    at.append(time.perf_counter())
                if event.get("usage"):
                    tokens = event["usage"]["prompt_tokens"]
        if not at:
            raise SystemExit(f"{self.url}: no token came")
        return tokens, at[0] - t0, [b - a for a, b in zip(at, at[1:])]


def main():
    ap = common.arguments(__doc__)
    ap.add_argument("--name", default="server", help="what the results call it")
    ap.add_argument("--text", action="store_true", help="prompts of words, not of token ids")
    ap.add_argument("--vocab", type=int, default=100000, help="ids are below this; default 100000")
    ap.add_argument("--ignore-eos", action="store_true", help="ask that an answer does not end early")
    a = ap.parse_args()
    s = Server(a)
    model = s.get("/models")["data"][0]["id"]
    s.complete(model, 16, 4)
    results = []
    for n in sorted(set(a.prefill + a.decode)):
        first, between = [], []
        for _ in range(a.reps if n in a.prefill else 1):
            tokens, t, between = s.complete(model, n, a.steps if n in a.decode else 1)
            first.append(t)
        # asked is the key by which engines are compared
        if n in a.prefill:
            results.append({"kind": "prefill", "tokens": n, "counted": tokens, "seconds": first})
        if n in a.decode and len(between) > 2:
            results.append({"kind": "decode", "tokens": n, "counted": tokens,
                            "seconds": between[1:]})
    print(json.dumps({"engine": a.name, "version": model, "variant": a.model, "model": model,
                      "threads": None, "load_s": None, "results": results, "left_out": []}))


if __name__ == "__main__":
    main()
