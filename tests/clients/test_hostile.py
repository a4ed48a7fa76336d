#!/usr/bin/env python3
"""What bad clients do to calla serve, while a good one keeps streaming. Standard library only.

After every case the good client must have received more of its stream, and a plain request its
right answer. --quick leaves out the cases that wait for the server's own time limits.
"""

import json
import os
import random
import signal
import socket
import struct
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from common import ANSWERS, Server, Suite, eq, finish, user

suite = Suite()
BODY_MIB = 4
SILENCE_SECONDS = 10  # of the good client's stream: generous, for a busy machine


def tokens(server, text):
    return json.loads(server.request("POST", "/tokenize", {"content": text})[2])["tokens"]


def chat(text, **kw):
    return {"messages": user(text), "temperature": 0,
            "chat_template_kwargs": {"enable_thinking": False}, **kw}


def endless(server, **kw):
    """A request whose answer only ends at its limit."""
    bias = {str(tokens(server, t)[0]): -100 for t in ("<|im_end|>", "<|endoftext|>")}
    return chat("Hello!", **{"max_tokens": 20000, "stream": True, "logit_bias": bias, **kw})


def connect(server, timeout=30):
    host, port = server.address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout)


def head(length=None, path="/v1/chat/completions", method="POST", *more):
    lines = ["%s %s HTTP/1.1" % (method, path), "Host: localhost",
             "Content-Type: application/json", *more]
    if length is not None:
        lines.append("Content-Length: %s" % length)
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def post(body, path="/v1/chat/completions"):
    body = json.dumps(body).encode() if not isinstance(body, bytes) else body
    return head(len(body), path) + body


def drain(s, seconds=30):
    """All that comes until the server closes, or for so long."""
    data, end = b"", time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            s.settimeout(max(0.01, end - time.monotonic()))
            part = s.recv(65536)
            if not part:
                break
            data += part
    except (socket.timeout, ConnectionError):
        pass
    return data


def exchange(server, data, seconds=30, pieces=1):
    """Sends bytes, with "Connection: close" or an error expected; the answer's bytes."""
    with connect(server) as s:
        try:
            step = max(1, len(data) // pieces)
            for i in range(0, len(data), step):
                s.sendall(data[i:i + step])
        except ConnectionError:
            pass  # an answer before the end of the request
        return drain(s, seconds)


def status(answer):
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.") else 0


def read_answer(f):
    """One answer with a length from a file over a socket: (status, body)."""
    line = f.readline()
    length = 0
    while True:
        h = f.readline().strip().lower()
        if not h:
            break
        if h.startswith(b"content-length:"):
            length = int(h.split(b":")[1])
    return int(line.split(b" ")[1]), f.read(length)


class Watcher(threading.Thread):
    """The good client: one stream after the other; counts the pieces and the longest silence."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.stop = server, False
        self.pieces, self.silence, self.silences, self.failed = 0, 0.0, [], ""

    def run(self):
        try:
            while not self.stop:
                self.one()
        except Exception as e:
            self.failed = repr(e)

    def one(self):
        with connect(self.server, SILENCE_SECONDS) as s:
            s.sendall(post(endless(self.server)))
            f = s.makefile("rb")
            last = time.monotonic()
            for line in f:
                now = time.monotonic()
                self.silence, last = max(self.silence, now - last), now
                if line.startswith(b"data: {"):
                    assert b'"error"' not in line[:20], line
                    self.pieces += 1
                if line.startswith(b"data: [DONE]") or self.stop:
                    return
            raise RuntimeError("the stream broke off")


def still_well(server, watcher):
    q, a = ANSWERS[0]
    code, _, body = server.request("POST", "/v1/chat/completions", chat(q))
    eq((code, json.loads(body)["choices"][0]["message"]["content"]), (200, a))
    n, end = watcher.pieces, time.monotonic() + SILENCE_SECONDS
    while watcher.pieces == n and time.monotonic() < end and not watcher.failed:
        time.sleep(0.01)
    assert not watcher.failed, "the good client: " + watcher.failed
    assert watcher.pieces > n, "the good client's stream stands still"


def case(f):
    def run(server, watcher):
        watcher.silence = 0.0
        f(server)
        still_well(server, watcher)
        watcher.silences.append((watcher.silence, f.__name__))
    run.__name__ = f.__name__
    suite.case(run)
    return f


# ---- Slow ones -----------------------------------------------------------------------------------

if "--quick" not in sys.argv:
    @case
    def slow_headers(server):
        """Slow-loris: 100 connections that send a header byte now and then."""
        line = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: " + b"a" * 1000
        socks = [connect(server) for _ in range(100)]
        try:
            for i in range(0, 8):
                for s in socks:
                    s.sendall(line[i * 8:i * 8 + 8])
                eq(server.request("GET", "/health")[0], 200)
                time.sleep(0.5)
            end = time.monotonic() + 40
            left = set(socks)
            while left and time.monotonic() < end:
                for s in list(left):
                    try:
                        s.settimeout(0.01)
                        if not s.recv(4096):
                            left.discard(s)
                    except socket.timeout:
                        pass
                    except ConnectionError:
                        left.discard(s)
            eq(len(left), 0)
        finally:
            for s in socks:
                s.close()


@case
def slow_bodies(server):
    socks = [connect(server) for _ in range(50)]
    body = json.dumps(chat("Hello!", max_tokens=2)).encode()
    for s in socks:
        s.sendall(head(len(body)))
    for i in range(8):
        for s in socks:
            s.sendall(body[i:i + 1])
        time.sleep(0.1)
    for s in socks[:10]:  # ten of them make it
        s.sendall(body[8:])
    eq([read_answer(s.makefile("rb"))[0] for s in socks[:10]], [200] * 10)
    for s in socks:
        s.close()


@case
def a_request_byte_by_byte(server):
    data = post(chat(ANSWERS[0][0]))
    with connect(server) as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for i in range(len(data)):
            s.sendall(data[i:i + 1])
        eq(read_answer(s.makefile("rb"))[0], 200)


@case
def readers_that_do_not_read(server):
    socks = []
    for _ in range(3):
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        host, port = server.address.rsplit(":", 1)
        s.connect((host, int(port)))
        s.sendall(post(endless(server)))
        socks.append(s)
    time.sleep(3)
    for s in socks:
        s.close()


# ---- Too much ------------------------------------------------------------------------------------

@case
def nested_arrays(server):
    deep = b"[" * 100000
    for body in (deep, deep + b"]" * 100000, b'{"a":' * 100000,
                 b'{"messages":' + deep + b"]" * 100000 + b"}",
                 json.dumps({"messages": [{"role": "user", "content": "x"}, {
                     "role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": {
                         "name": "f", "arguments": '{"a":' + "[" * 100000 + "]" * 100000 + "}"}}]}]}
                            ).encode()):
        code, _, answer = server.request("POST", "/v1/chat/completions", body)
        eq(code, 400)
        assert json.loads(answer)["error"]["message"]


@case
def wide_arrays(server):
    for body in (b'{"messages":[' + b"0," * 1000000 + b"0]}",
                 b"{" + b",".join(b'"k%d":1' % i for i in range(100000)) + b"}",
                 json.dumps(chat("x", stop=["a"] * 100000)).encode(),
                 json.dumps(chat("x", tools=[{"type": "function", "function": {
                     "name": "f%d" % i}} for i in range(20000)])).encode()):
        eq(server.request("POST", "/v1/chat/completions", body)[0], 400)


@case
def a_gigabyte_announced(server):
    for length in (1 << 30, 1 << 62):
        t0 = time.monotonic()
        eq(status(exchange(server, head(length) + b"x" * 1000)), 413)
        assert time.monotonic() - t0 < 10
    eq(status(exchange(server, head(1 << 30, "/v1/chat/completions", "POST",
                                    "Expect: 100-continue"))), 413)


@case
def lengths_that_are_none(server):
    for length in ("-1", "1e3", "99999999999999999999999999", "0x10", "", "1 2", "+5"):
        code = status(exchange(server, head(length) + b"{}", 5))
        assert code in (0, 400, 411, 413), (length, code)
    two = head(5, "/v1/chat/completions", "POST", "Content-Length: 6")
    eq(status(exchange(server, two + b"{}    ", 3)), 400)
    both = head(4, "/v1/chat/completions", "POST", "Transfer-Encoding: chunked")
    eq(status(exchange(server, both + b"0\r\n\r\n", 3)), 400)


@case
def long_headers(server):
    for data in (b"GET /" + b"a" * 1000000 + b" HTTP/1.1\r\n\r\n",
                 b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 1000000 + b"\r\n\r\n",
                 b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 100000 + b"\r\n"):
        assert status(exchange(server, data, 5)) in (0, 400, 413, 414, 431)


@case
def noise(server):
    rng = random.Random(1)
    for data in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
                 b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET /\r\n\r\n", b"\r\n" * 1000 + b"x\r\n\r\n",
                 b"GET / HTTP/9.9\r\n\r\n", b"G\0T / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n\0: \0\r\n\r\n",
                 b"GET http:// HTTP/1.1\r\nHost:\r\n\r\n", b"A" * 70000,
                 *(rng.randbytes(rng.randrange(1, 3000)) + b"\r\n\r\n" for _ in range(30))):
        code = status(exchange(server, data, 0.3))
        assert code == 0 or 400 <= code <= 505, (data[:40], code)


# ---- Odd but allowed -----------------------------------------------------------------------------

@case
def pipelined(server):
    """Answers come in the order of the requests."""
    sent, expected = b"", []
    for q, a in ANSWERS[:4]:
        sent += post(chat(q)) + head(None, "/health", "GET")
        expected += [a, None]
    with connect(server, 60) as s:
        s.sendall(sent)
        f = s.makefile("rb")
        for a in expected:
            code, body = read_answer(f)
            eq(code, 200)
            body = json.loads(body)
            eq(body["choices"][0]["message"]["content"] if a else body.get("status"), a or "ok")


@case
def pipelined_a_hundred(server):
    with connect(server, 60) as s:
        s.sendall(head(None, "/v1/models", "GET") * 100)
        f = s.makefile("rb")
        eq([read_answer(f)[0] for _ in range(100)], [200] * 100)


def chunked(body, size, extension=b""):
    return b"".join(b"%x%s\r\n%s\r\n" % (len(body[i:i + size]), extension, body[i:i + size])
                    for i in range(0, len(body), size)) + b"0\r\n\r\n"


CHUNKED = head(None, "/v1/chat/completions", "POST", "Transfer-Encoding: chunked")


@case
def chunked_bodies(server):
    q, a = ANSWERS[1]
    body = json.dumps(chat(q)).encode()
    for size, extension in ((1, b""), (7, b";x=y"), (100000, b"")):
        with connect(server) as s:
            s.sendall(CHUNKED + chunked(body, size, extension))
            code, answer = read_answer(s.makefile("rb"))
        eq((code, json.loads(answer)["choices"][0]["message"]["content"]), (200, a))


@case
def chunked_without_end(server):
    data = CHUNKED + b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    with connect(server) as s:
        try:
            s.sendall(data)
            for _ in range(BODY_MIB * 32):
                s.sendall(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
        except ConnectionError:
            pass
        answer = drain(s, 5)
    assert status(answer) in (0, 413), answer[:100]  # 0: reset before the answer was read
    for size in (b"ffffffffffffffff", b"fffffffffffffffff", b"-1", b"zz", b""):
        code = status(exchange(server, CHUNKED + size + b"\r\n{}", 2))
        assert code in (0, 400, 413), (size, code)


@case
def half_closed(server):
    with connect(server) as s:
        s.sendall(post(chat(ANSWERS[0][0])))
        s.shutdown(socket.SHUT_WR)
        drain(s, 5)


@case
def odd_json(server):
    for body in (b'{"messages":[{"role":"user","content":"\\ud800 x"}],"max_tokens":1}',
                 b'{"messages":[{"role":"user","content":"\xff\xfe\xc0\x80"}],"max_tokens":1}',
                 b'{"messages":[{"role":"user","content":"a\\u0000b"}],"max_tokens":1}',
                 b'{"messages":[],"messages":[{"role":"user","content":"x"}],"max_tokens":1}',
                 b'{"messages":[{"role":"user","content":"x"}],"max_tokens":1e999}',
                 b'{"messages":[{"role":"user","content":"x"}],"seed":' + b"9" * 5000 + b"}",
                 b'{"messages":[{"role":"user","content":"x"}],"temperature":-0.0,"max_tokens":1}',
                 b'{"messages":[{"role":"user","content":"x"}],"max_tokens":1} {}',
                 b'\xef\xbb\xbf{"messages":[{"role":"user","content":"x"}],"max_tokens":1}',
                 b"NaN", b"\0", b'"' + b"\\" * 10001):
        code = server.request("POST", "/v1/chat/completions", body)[0]
        assert code in (200, 400), (body[:60], code)


# ---- Comers and goers ----------------------------------------------------------------------------

@case
def resets(server):
    """Connections that end with a reset, at any moment."""
    rng = random.Random(2)
    data = post(endless(server, max_tokens=3000))
    for i in range(60):
        s = connect(server)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.sendall(data[:rng.randrange(len(data))] if i % 3 else data)
        if i % 6 == 0:
            s.recv(100)
        s.close()


@case
def more_connections_than_allowed(server):
    socks = []
    for _ in range(400):
        try:
            socks.append(connect(server, 2))
        except OSError:
            break
    time.sleep(0.5)
    for s in socks:
        s.close()
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            if server.request("GET", "/health")[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise AssertionError("no answer 20 s after the crowd left")


# ---- The end -------------------------------------------------------------------------------------

def terminate_under_load():
    """SIGTERM: whatever was asked before it is answered whole; then the program ends with 0."""
    q, a = ANSWERS[4]
    with Server("--parallel", "4", "--drain-seconds", "120") as server:  # sanitizers are slow
        done, socks = [], []
        body = endless(server, max_tokens=150)
        for i in range(16):
            s = connect(server, 150)
            s.sendall(post(body) if i % 2 else post(chat(q)))
            socks.append(s)
        while server.metrics()["calla_running"] < 4:
            time.sleep(0.01)
        while server.metrics()['calla_generations_total{end="finished"}'] < 1:
            time.sleep(0.01)
        os.kill(server.pid, signal.SIGTERM)
        for i, s in enumerate(socks):
            data = drain(s, 150)
            if i % 2:
                assert b"data: [DONE]" in data, (i, data[-300:])
                assert b'"finish_reason":"length"' in data, data[-600:]
            else:
                eq(json.loads(data.split(b"\r\n\r\n", 1)[1])["choices"][0]["message"]["content"], a)
            done.append(i)
            s.close()
        eq(server.process.wait(30), 0)
        eq(len(done), 16)


def main():
    with Server("--max-body", str(BODY_MIB), "--cache-ram", "64M") as server:
        watcher = Watcher(server)
        watcher.start()
        while watcher.pieces < 3 and not watcher.failed:
            time.sleep(0.05)
        p, f = suite.run(server, watcher)
        watcher.stop = True
        watcher.join(SILENCE_SECONDS)
        print("the good client: %d pieces, longest silence %.2f s in %s; resident %.0f MiB" % (
            watcher.pieces, *max(watcher.silences, default=(0, "")),
            server.metrics()["process_resident_memory_bytes"] / 2 ** 20))
        if not server.wait_idle():
            print("sequences are left: %s" % server.metrics())
            f += 1
    last = Suite()
    last.case(terminate_under_load)
    p2, f2 = last.run()
    finish(p + p2, f + f2)


if __name__ == "__main__":
    main()
