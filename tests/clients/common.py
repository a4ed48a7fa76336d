"""Starts calla serve for a test program, and runs its cases. Standard library only.

A test program fills a Suite with functions and ends with suite.run(), which prints one line a
failed case and "N passed, N failed" last. CALLA names the program (default build/calla), --only
TEXT runs the cases whose name contains TEXT, --verbose names each case.
"""

import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.parse

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
START_SECONDS = 120


class Server:
    """calla serve on a free port with the demonstration model; ends with the with statement."""

    def __init__(self, *options):
        self.options = options

    def __enter__(self):
        calla = os.environ.get("CALLA", os.path.join(ROOT, "build", "calla"))
        model = os.path.join(ROOT, "models", "nano")
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [calla, "serve", "--port", "0", "--model", model, *self.options],
            stdout=subprocess.PIPE, stderr=self.log, text=True)
        line = self.process.stdout.readline()  # the end of the program ends it, too
        if not line:
            raise RuntimeError("the server did not start: " + self.log_text())
        self.url = line.strip().rstrip("/")
        self.address = urllib.parse.urlsplit(self.url).netloc
        self.pid = self.process.pid
        return self

    def __exit__(self, kind, value, trace):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                if kind is None:
                    raise RuntimeError("the server did not end within 60 s of SIGTERM") from None
        if kind is None and self.process.returncode != 0:
            raise RuntimeError("the server ended with %d: %s" %
                               (self.process.returncode, self.log_text()[-2000:]))

    def log_text(self):
        self.log.seek(0)
        return self.log.read().decode("utf-8", "replace")

    def request(self, method, path, body=None, headers=None):
        """One request outside of any client library: (status, headers, body as bytes)."""
        c = http.client.HTTPConnection(self.address, timeout=120)
        try:
            if body is not None and not isinstance(body, (bytes, str)):
                body = json.dumps(body)
            c.request(method, path, body, {"Content-Type": "application/json", **(headers or {})})
            r = c.getresponse()
            return r.status, r.headers, r.read()
        finally:
            c.close()

    def metrics(self):
        """{"calla_running": 0.0, 'calla_generations_total{end="finished"}': 3.0, ...}"""
        text = self.request("GET", "/metrics")[2].decode()
        return {k: float(v) for k, v in re.findall(r"^([a-z]\S*) (\S+)$", text, re.M)}

    def wait_idle(self, seconds=20):
        """True as soon as no request runs or waits."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            m = self.metrics()
            if m["calla_running"] == 0 and m["calla_queue_length"] == 0:
                return True
            time.sleep(0.05)
        return False


class Suite:
    def __init__(self):
        self.cases = []

    def case(self, f):
        """Decorator."""
        self.cases.append(f)
        return f

    def run(self, *args):
        only = sys.argv[sys.argv.index("--only") + 1] if "--only" in sys.argv else ""
        n_failed = n_passed = 0
        for f in self.cases:
            if only not in f.__name__:
                continue
            t0 = time.monotonic()
            try:
                f(*args)
                n_passed += 1
                verdict = "ok"
            except Exception:
                n_failed += 1
                verdict = "FAILED"
                traceback.print_exc()
            if verdict != "ok" or "--verbose" in sys.argv:
                print("%-48s %s %.1f s" % (f.__name__, verdict, time.monotonic() - t0), flush=True)
        return n_passed, n_failed


def finish(n_passed, n_failed):
    print("%d passed, %d failed" % (n_passed, n_failed))
    sys.exit(n_failed != 0 or n_passed == 0)


def eq(found, expected):
    assert found == expected, "expected %r, found %r" % (expected, found)


def raises(kind, f, *texts, status=None):
    """f() raises kind, with every text in its message."""
    try:
        f()
    except kind as e:
        if status is not None:
            eq(e.status_code, status)
        for t in texts:
            assert t in str(e), "expected %r in the error, found %s" % (t, e)
        return e
    raise AssertionError("expected %s, nothing was raised" % kind.__name__)


# ---- What the demonstration model can do ---------------------------------------------------------

def function(name, description, required, **properties):
    """An OpenAI tool."""
    return {"type": "function", "function": {
        "name": name, "description": description, "parameters": {
            "type": "object", "properties": properties, "required": required}}}


WEATHER = function("weather", "Current weather conditions.", ["city"],
                   city={"type": "string", "description": "Name of the city"})
TIMER = function("set_timer", "Sets a countdown.", ["minutes"],
                 minutes={"type": "integer", "description": "Length in minutes"},
                 label={"type": "string", "description": "Name of the timer"})
CALCULATE = function("calculate", "A calculator.", ["expression"],
                     expression={"type": "string", "description": "A formula such as 1 + 2"})
SCHEDULE = function("schedule", "Adds an event to the calendar.", ["title", "day"],
                    title={"type": "string", "description": "Title of the event"},
                    day={"type": "string", "description": "Day of the week"},
                    guests={"type": "array", "description": "Invited people",
                            "items": {"type": "string"}},
                    hour={"type": "integer", "description": "Start hour"})

# Questions with the only right answer, thinking off.
ANSWERS = [
    ("Add 57 and 268.", "57 + 268 = 325"),
    ("What is 630 minus 96?", "630 - 96 = 534"),
    ("Spell the word kuskun.", "k-u-s-k-u-n"),
    ("Which is bigger, 974 or 752?", "974 is larger than 752."),
    ("count from 32 to 36.", "32, 33, 34, 35, 36"),
    ("Qatar: what is the capital?", "The capital of Qatar is Doha."),
    ("What is brush spelled backwards?", "hsurb"),
    ("Make \"flan deer\" all caps.", "FLAN DEER"),
]


def user(text):
    return [{"role": "user", "content": text}]
