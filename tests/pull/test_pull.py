"""calla pull, models, rm against a hub that stalls, cuts off, redirects, lies and changes; and killed
at random moments. Standard library only.

CALLA names the program. --kills N (default 10) and --seed N for the last case, --only TEXT,
--verbose as in the other suites.
"""

import json
import os
import pty
import random
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
sys.path.insert(0, os.path.join(ROOT, "tests", "clients"))
sys.dont_write_bytecode = True
from common import Suite, eq, finish  # noqa: E402
from hub_server import Hub, git_id, sha256  # noqa: E402

CALLA = os.path.abspath(os.environ.get("CALLA", os.path.join(ROOT, "build", "calla")))
NANO = os.path.join(ROOT, "models", "nano")
TOKEN = "hf_averysecrettoken"
suite = Suite()


def argument(name, default):
    return int(sys.argv[sys.argv.index(name) + 1]) if name in sys.argv else default


def read(path):
    with open(path, "rb") as f:
        return f.read()


def nano():
    return {n: read(os.path.join(NANO, n)) for n in os.listdir(NANO)}


def fake(seed=1, sizes=(3400000, 1048576, 2097153), names=None):
    """The small files of the demonstration model, and shards of noise."""
    r = random.Random(seed)
    files = {n: d for n, d in nano().items() if not n.endswith(".safetensors")}
    shards = names or ["model-%05d-of-%05d.safetensors" % (i + 1, len(sizes))
                       for i in range(len(sizes))]
    for name, size in zip(shards, sizes):
        files[name] = r.randbytes(size)
    files["model.safetensors.index.json"] = json.dumps(
        {"weight_map": {"tensor.%d" % i: n for i, n in enumerate(shards)}}).encode()
    files["pytorch_model.bin"] = b"not wanted" * 100
    files["original/consolidated.safetensors"] = b"not wanted either"
    files["other.safetensors"] = b"nor this"
    files[".gitattributes"] = b"* text"
    return files


def wanted(files):
    return {n: d for n, d in files.items()
            if n not in ("README.md", "pytorch_model.bin", ".gitattributes", "other.safetensors")
            and "/" not in n}


class Result:
    def __init__(self, rc, out, err):
        self.rc, self.out, self.err = rc, out, err


class Home:
    """A user's home: models below .local/share."""

    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="calla-pull-")
        self.models = os.path.join(self.dir, ".local", "share", "calla", "models")
        self.env = {"HOME": self.dir, "PATH": os.environ["PATH"], "no_proxy": "*",
                    **{k: v for k, v in os.environ.items() if k.endswith("SAN_OPTIONS")}}

    def __enter__(self):
        return self

    def __exit__(self, *args):
        shutil.rmtree(self.dir, ignore_errors=True)

    def calla(self, *args, env=None):
        p = subprocess.run([CALLA, *args], env={**self.env, **(env or {})}, timeout=120,
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, text=True, errors="replace")
        r = Result(p.returncode, p.stdout, p.stderr)
        assert TOKEN not in r.out + r.err, "the token was printed"
        assert "secret-signature" not in r.err, "a signature was printed"
        return r

    def start(self, hub, *args):
        return subprocess.Popen(self.command(hub, *args), env=self.env, stdin=subprocess.DEVNULL,
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def command(self, hub, *args):
        return [CALLA, "pull", "--endpoint", hub.url, "--retry-wait", "0.01", "--timeout", "1",
                *(args or ("owner/model",))]

    def pull(self, hub, *args, env=None):
        return self.calla(*self.command(hub, *args)[1:], env=env)

    def path(self, name="owner/model"):
        return os.path.join(self.models, name)

    def complete(self, hub, name="owner/model"):
        """The model is there, with the right bytes and nothing else, and nothing lies beside it."""
        files = wanted(hub.files)
        found = sorted(os.listdir(self.path(name)))
        eq(found, sorted([*files, ".calla-pull.json"]))
        for n, data in files.items():
            assert read(os.path.join(self.path(name), n)) == data, n + " has other bytes"
        assert not os.path.exists(os.path.join(self.models, ".pull")), "something was left"

    def absent(self, name="owner/model"):
        assert not os.path.exists(self.path(name)), "something is there under the final name"

    def fails(self, hub, *texts, rc=1, args=(), env=None):
        r = self.pull(hub, *args, env=env)
        assert r.rc == rc or (rc is None and r.rc in (1, 3)), (r.rc, r.err)
        eq(r.out, "")
        for t in texts:
            assert t in r.err, "expected %r, found %r" % (t, r.err)
        self.absent()
        return r


def first_times(n, fault, where="cdn", name=None):
    """The first n requests (for a file) meet a fault."""
    return lambda r: fault if r.where == where and r.n < n and name in (None, r.name) else None


# ---- What goes well ------------------------------------------------------------------------------

@suite.case
def pulls_lists_runs_and_removes():
    with Home() as home, Hub(nano(), repo="calla/nano") as hub:
        r = home.pull(hub, "calla/nano")
        eq(r.rc, 0)
        eq(r.out, home.path("calla/nano") + "\n")
        assert "at commit cccccccccccc" in r.err, r.err
        home.complete(hub, "calla/nano")
        assert set(hub.cdn_authorization) == {None}
        listed = json.loads(home.calla("models", "--json").out)
        eq([m["model"] for m in listed], ["calla/nano"])
        eq((listed[0]["complete"], listed[0]["commit"]), (True, "c" * 40))
        assert "calla/nano" in home.calla("models").out
        for name in ("calla/nano", "nano"):
            r = home.calla("run", "-m", name, "-p", "Hello!", "--no-think")
            eq((r.rc, r.out), (0, "Hello! I am Calla. How can I help you?\n"))
        hub.reset_counts()
        r = home.pull(hub, "calla/nano")
        eq((r.rc, r.out), (0, home.path("calla/nano") + "\n"))
        assert "is here already" in r.err, r.err
        eq(hub.total_sent(), 0)
        eq(home.calla("rm", "nano").rc, 0)
        eq(os.listdir(home.models), [])
        eq(home.calla("rm", "nano").rc, 1)
        r = home.calla("run", "-m", "nano", "-p", "x")
        assert r.rc == 1 and "no model 'nano'" in r.err, r.err


@suite.case
def pulls_shards_in_parallel_ranges():
    with Home() as home, Hub(fake()) as hub:
        eq(home.pull(hub).rc, 0)
        home.complete(hub)
        assert hub.n["cdn", "model-00001-of-00003.safetensors"] > 1
        assert ("cdn", "other.safetensors") not in hub.n
        eq(hub.total_sent(), sum(map(len, wanted(hub.files).values())))


@suite.case
def one_connection():
    with Home() as home, Hub(fake()) as hub:
        eq(home.pull(hub, "--connections", "1", "owner/model").rc, 0)
        home.complete(hub)


@suite.case
def empty_and_edge_sizes():
    with Home() as home, Hub(fake(2, (1, 1 << 20, (1 << 20) + 1, 0, (2 << 20) - 1))) as hub:
        eq(home.pull(hub).rc, 0)
        home.complete(hub)


@suite.case
def revisions_have_folders_of_their_own():
    with Home() as home, Hub(fake(3, (1000,))) as hub:
        eq(home.pull(hub, "owner/model@refs/pr/1").rc, 0)
        eq(hub.revisions, ["refs%2Fpr%2F1"])
        home.complete(hub, "owner/model@refs%2Fpr%2F1")
        eq(home.pull(hub, "owner/model@v1.0").rc, 0)
        home.complete(hub, "owner/model@v1.0")
        eq(home.pull(hub).rc, 0)
        listed = json.loads(home.calla("models", "--json").out)
        eq([m["model"] for m in listed],
           ["owner/model", "owner/model@refs/pr/1", "owner/model@v1.0"])
        eq(home.calla("rm", "owner/model@refs/pr/1", "model@v1.0").rc, 0)
        home.complete(hub)


@suite.case
def two_owners_of_one_name():
    with Home() as home, Hub(nano(), repo="a/nano") as hub:
        eq(home.pull(hub, "a/nano").rc, 0)
        hub.repo = "b/nano"
        eq(home.pull(hub, "b/nano").rc, 0)
        r = home.calla("run", "-m", "nano", "-p", "x")
        assert r.rc == 1 and "'nano' may be any of" in r.err, r.err
        eq(home.calla("rm", "nano").rc, 1)
        eq(home.calla("tokenize", "-m", "b/nano", env={}).rc, 0)


@suite.case
def a_newer_revision_fetches_what_is_new():
    with Home() as home, Hub(fake(4)) as hub:
        eq(home.pull(hub).rc, 0)
        hub.files["model-00002-of-00003.safetensors"] = random.Random(9).randbytes(1500000)
        hub.commit = "d" * 40
        hub.reset_counts()
        hub.fault = lambda r: {"status": 500} if r.where == "cdn" else None
        eq(home.pull(hub, "--retries", "1", "owner/model").rc, 3)
        assert os.path.exists(home.path()), "the old one must stay until the new one is complete"
        hub.fault = lambda r: None
        hub.reset_counts()
        eq(home.pull(hub).rc, 0)
        home.complete(hub)
        eq(sorted(hub.sent), ["model-00002-of-00003.safetensors"])


@suite.case
def check_mends_what_is_damaged():
    with Home() as home, Hub(fake(5)) as hub:
        eq(home.pull(hub).rc, 0)
        path = os.path.join(home.path(), "model-00001-of-00003.safetensors")
        with open(path, "r+b") as f:
            f.seek(2000000)
            f.write(b"damage")
        eq(home.pull(hub).rc, 0)
        assert read(path) != hub.files["model-00001-of-00003.safetensors"]
        hub.reset_counts()
        r = home.pull(hub, "--check", "owner/model")
        eq(r.rc, 0)
        assert "fetching it again" in r.err, r.err
        home.complete(hub)
        eq(list(hub.sent), ["model-00001-of-00003.safetensors"])
        os.unlink(path)
        assert "damaged" in home.calla("models").out
        eq(home.pull(hub).rc, 0)
        home.complete(hub)


@suite.case
def listings_without_sizes():
    with Home() as home, Hub(fake(6)) as hub:
        hub.blobs = False
        eq(home.pull(hub).rc, 0)
        home.complete(hub)


@suite.case
def a_bar_on_a_terminal():
    with Home() as home, Hub(fake(7)) as hub:
        hub.rate = 400000
        master, slave = pty.openpty()
        p = subprocess.Popen(home.command(hub, "owner/model"), env=home.env, stdin=slave,
                             stdout=subprocess.DEVNULL, stderr=slave)
        os.close(slave)
        text = b""
        try:
            while True:
                text += os.read(master, 65536)
        except OSError:
            pass
        os.close(master)
        eq(p.wait(), 0)
        for t in (b"pulling", b"MB of 6.8 MB", b"/s", b" s left", b"[#"):
            assert t in text, (t, text)
        home.complete(hub)


# ---- Who may ask ---------------------------------------------------------------------------------

@suite.case
def tokens_go_to_the_endpoint_only():
    with Home() as home, Hub(fake(8, (3000000,))) as hub:
        hub.token = TOKEN
        home.fails(hub, "answers 401: Invalid credentials", "needs a token (HF_TOKEN)")
        home.fails(hub, "does not open it", env={"HF_TOKEN": "hf_wrong"})
        hub.fault = lambda r: {"status": 403, "headers": {"X-Error-Message": "not for " + TOKEN}}
        home.fails(hub, "answers 403", env={"HF_TOKEN": TOKEN})  # and calla() looks for the token
        hub.fault = lambda r: None
        hub.reset_counts()
        eq(home.pull(hub, env={"HF_TOKEN": TOKEN + "\n"}).rc, 0)
        home.complete(hub)
        eq(set(hub.hub_authorization), {"Bearer " + TOKEN})
        assert hub.cdn_authorization and set(hub.cdn_authorization) == {None}
        for root, _, names in os.walk(home.models):
            for n in names:
                assert TOKEN.encode() not in read(os.path.join(root, n))


@suite.case
def tokens_from_files():
    with Home() as home, Hub(fake(8, (1000,))) as hub:
        hub.token = TOKEN
        usual = os.path.join(home.dir, ".cache", "huggingface", "token")
        os.makedirs(os.path.dirname(usual))
        with open(usual, "w") as f:
            f.write(TOKEN + "\n")
        eq(home.pull(hub).rc, 0)
        home.calla("rm", "model")
        other = os.path.join(home.dir, "other")
        os.rename(usual, other)
        home.fails(hub, "needs a token")
        eq(home.pull(hub, env={"HF_TOKEN_PATH": other}).rc, 0)
        home.calla("rm", "model")
        home.fails(hub, "cannot open", env={"HF_TOKEN_PATH": other + "x"})
        home.fails(hub, "HF_TOKEN: expected a token of printable ASCII",
                   env={"HF_TOKEN": TOKEN + "\r\nX: y"})


@suite.case
def redirects():
    with Home() as home, Hub(fake(8, (1000,))) as hub:
        hub.token = TOKEN
        hub.moved = {"old/name": "owner/model"}
        eq(home.pull(hub, "old/name", env={"HF_TOKEN": TOKEN}).rc, 0)
        home.complete(hub, "old/name")
        hub.fault = lambda r: {"location": hub.url + "/owner/model/resolve/%s/%s" %
                               (hub.commit, r.name)} if r.where == "hub" else None
        home.fails(hub, "more than 10 redirects", env={"HF_TOKEN": TOKEN})
        hub.fault = lambda r: {"location": "file:///etc/passwd"} if r.where == "hub" else None
        home.fails(hub, "expected an address that begins with", env={"HF_TOKEN": TOKEN})
        hub.fault = lambda r: {"status": 302} if r.where == "hub" else None
        home.fails(hub, "a redirect that names no address", env={"HF_TOKEN": TOKEN})


# ---- Statuses ------------------------------------------------------------------------------------

@suite.case
def refusals_are_told_at_once():
    with Home() as home, Hub(fake(10, (1000,))) as hub:
        for status, text in ((401, "answers 401"), (403, "terms to accept"), (404, "answers 404"),
                             (400, "found status 400"), (410, "found status 410")):
            hub.reset_counts()
            hub.fault = lambda r: {"status": status} if r.where == "listing" else None
            home.fails(hub, text)
            eq(hub.n["listing", ""], 1)
            hub.fault = lambda r: {"status": status} if r.where == "hub" else None
            home.fails(hub, text)
        hub.fault = lambda r: None
        home.fails(hub, "answers 404: Repository not found", args=("owner/none",))
        eq(os.listdir(home.models) if os.path.exists(home.models) else [], [".pull"])


@suite.case
def servers_that_are_busy_are_asked_again():
    for status in (429, 500, 502, 503, 408):
        with Home() as home, Hub(fake(10, (3000000,))) as hub:
            hub.fault = lambda r: {"status": status} if r.n < 2 else None
            r = home.pull(hub)
            eq(r.rc, 0)
            assert "trying again in" in r.err, r.err
            home.complete(hub)
            home.calla("rm", "model")
            for where in ("listing", "cdn"):
                hub.fault = lambda r: {"status": status} if r.where == where else None
                home.fails(hub, "status %d" % status, rc=3,
                           args=("--retries", "2", "owner/model"))


@suite.case
def retry_after_is_heeded():
    with Home() as home, Hub(fake(10, (1000,))) as hub:
        hub.fault = first_times(1, {"status": 429, "headers": {"Retry-After": "2"}})
        t0 = time.monotonic()
        eq(home.pull(hub).rc, 0)
        assert time.monotonic() - t0 >= 2, "it did not wait"
        home.complete(hub)
        home.calla("rm", "model")
        hub.reset_counts()
        hub.fault = first_times(1, {"status": 503, "headers": {"Retry-After": "100000"}})
        home.fails(hub, "asks to wait 100000 s", rc=3)


@suite.case
def old_signatures_are_renewed():
    with Home() as home, Hub(fake(10, (3000000,))) as hub:
        hub.fault = first_times(2, {"status": 403})
        eq(home.pull(hub).rc, 0)
        home.complete(hub)


@suite.case
def nobody_there():
    with Home() as home, Hub(fake(10, (1000,))) as hub:
        url = hub.url
    hub.url = url
    home.fails(hub, "Failed to connect", rc=3)


# ---- Broken replies ------------------------------------------------------------------------------

@suite.case
def stalls():
    with Home() as home, Hub(fake(11, (3000000, 3000000))) as hub:
        hub.fault = lambda r: {"stall_at": 200000} if r.where == "cdn" and r.n == 0 else None
        r = home.pull(hub)
        eq(r.rc, 0)
        assert "nothing came for 1 s" in r.err, r.err
        home.complete(hub)
    with Home() as home, Hub(fake(11, (3000000,))) as hub:
        hub.fault = lambda r: {"stall_headers": 3} if r.where == "cdn" else None
        home.fails(hub, "nothing came for 1 s", rc=3, args=("--retries", "1", "owner/model"))
        hub.fault = lambda r: {"stall_headers": 3} if r.where == "listing" else None
        home.fails(hub, "nothing came for 1 s", rc=3, args=("--retries", "1", "owner/model"))


@suite.case
def cut_connections_go_on_where_they_were():
    with Home() as home, Hub(fake(12, (7000000,))) as hub:
        hub.fault = lambda r: {"cut": 1500000} if r.where == "cdn" else None
        r = home.pull(hub, "--connections", "1", "owner/model")
        eq(r.rc, 0)
        assert "the connection ended in the middle" in r.err, r.err
        home.complete(hub)
        home.calla("rm", "model")
        hub.fault = lambda r: {"cut": 1000} if r.where == "cdn" else None
        home.fails(hub, "the connection ended", rc=3, args=("--retries", "2", "owner/model"))
        hub.fault = lambda r: None
        eq(home.pull(hub).rc, 0)
        home.complete(hub)


@suite.case
def servers_without_ranges():
    with Home() as home, Hub(fake(13)) as hub:
        hub.fault = lambda r: {"no_range": True} if r.where != "listing" else None
        eq(home.pull(hub).rc, 0)
        home.complete(hub)
    with Home() as home, Hub(fake(13)) as hub:
        hub.fault = lambda r: {"no_range": True, **({"cut": 900000} if r.n % 3 else {})}
        eq(home.pull(hub).rc, 0)
        home.complete(hub)
    with Home() as home, Hub(fake(13, (3000000,))) as hub:
        hub.fault = lambda r: {"no_range": True, "cut": 1500000} if r.where == "cdn" else None
        home.fails(hub, "the connection ended", rc=3, args=("--retries", "2", "owner/model"))


@suite.case
def wrong_ranges_are_refused():
    for fault in ({"first": 5}, {"total": 4000000}, {"last": 3000001, "total": 3000002},
                  {"extra": 7, "length": 3000007}):
        with Home() as home, Hub(fake(14, (3000000,))) as hub:
            hub.fault = lambda r: fault if r.where == "cdn" else None
            home.fails(hub, "the server contradicts its listing")
            hub.fault = lambda r: None
            eq(home.pull(hub).rc, 0)
            home.complete(hub)
    with Home() as home, Hub(fake(14, (3000000,))) as hub:
        hub.fault = first_times(1, {"first": 5})
        eq(home.pull(hub).rc, 0)
        home.complete(hub)


@suite.case
def lies_about_sizes():
    for d in (-1, 1, 1 << 20, -(1 << 20)):
        with Home() as home, Hub(fake(15, (3000000,))) as hub:
            hub.listing = hub.true_listing()
            for s in hub.listing["siblings"]:
                if s["rfilename"].startswith("model-0"):
                    s["size"] += d
                    s["lfs"]["size"] += d
            home.fails(hub, "the server contradicts its listing: expected a size of %d, found 3000000"
                       % (3000000 + d))
            hub.fault = lambda r: {"linked_size": 3000000 + d, "total": 3000000 + d}
            home.fails(hub, rc=None)
            hub.listing = None
            hub.fault = lambda r: None
            eq(home.pull(hub).rc, 0)
            home.complete(hub)


@suite.case
def unsatisfied_ranges():
    with Home() as home, Hub(fake(15, (3000000,))) as hub:
        hub.fault = lambda r: {"status": 416} if r.where == "cdn" else None
        home.fails(hub, "found status 416")


@suite.case
def contents_that_change():
    with Home() as home, Hub(fake(16, (3000000, 100000))) as hub:
        hub.fault = first_times(1, {"flip": 1000}, name="model-00001-of-00002.safetensors")
        r = home.pull(hub)
        eq(r.rc, 0)
        assert "fetching it again" in r.err, r.err
        home.complete(hub)
        home.calla("rm", "model")
        hub.fault = lambda r: {"flip": 1} if r.name == "model-00002-of-00002.safetensors" else None
        r = home.fails(hub, "came complete and wrong twice: expected SHA-256")
        hub.reset_counts()
        hub.fault = lambda r: None
        eq(home.pull(hub).rc, 0)
        home.complete(hub)
        eq(list(hub.sent), ["model-00002-of-00002.safetensors"])
    with Home() as home, Hub(fake(16, (3000000,))) as hub:
        hub.fault = lambda r: {"linked_etag": "e" * 64} if r.where == "hub" else None
        home.fails(hub, "changed at the endpoint while it was pulled")
    with Home() as home, Hub(fake(16, (3000000,))) as hub:
        hub.fault = lambda r: {"flip": 5} if r.name == "config.json" else None
        home.fails(hub, "config.json came complete and wrong twice: expected Git's SHA-1")


# ---- Hostile listings ----------------------------------------------------------------------------

@suite.case
def names_that_leave_the_folder():
    for name in ("../x.safetensors", "/etc/x.safetensors", "a\\b.safetensors", "..", ".", "a//b", "",
                 "a/../b.json", "x\n.json", "a/", "tok\u0000enizer.json", "\u007f"):
        with Home() as home, Hub(fake(17, (1000,))) as hub:
            hub.listing = hub.true_listing()
            hub.listing["siblings"].append({"rfilename": name, "size": 3, "blobId": "0" * 40})
            home.fails(hub, "expected names of files inside the model")
            eq(hub.total_sent(), 0)
            eq(sorted(os.listdir(home.dir)), [".local"])


@suite.case
def names_twice():
    for name in ("config.json", "CONFIG.JSON", "Config.json"):
        with Home() as home, Hub(fake(17, (1000,))) as hub:
            hub.listing = hub.true_listing()
            hub.listing["siblings"].append({"rfilename": name, "size": 3, "blobId": "0" * 40})
            if name == "config.json":
                home.fails(hub, "twice")
            else:
                eq(home.pull(hub).rc, 0)  # another name, which calla does not want
    with Home() as home, Hub(fake(17, (1000,))) as hub:
        hub.listing = hub.true_listing()
        hub.listing["siblings"].append({"rfilename": "MODEL-00001-of-00001.safetensors", "size": 3,
                                        "blobId": "0" * 40})
        home.fails(hub, "twice")


@suite.case
def listings_that_are_none():
    good = Hub(fake(18, (1000,))).true_listing()

    def changed(**values):
        d = {**good, **values}
        return {k: v for k, v in d.items() if v is not None}

    def file(**values):
        return changed(siblings=good["siblings"] + [values])

    noise = random.Random(1).randbytes(3000)
    cases = [
        (b"", "the listing"), (b"<html>", "the listing"), (noise, "the listing"),
        (b"[]", 'a commit as "sha"'), (b"{}", 'a commit as "sha"'), (b"null", 'a commit as "sha"'),
        (changed(sha="xyz"), 'a commit as "sha"'), (changed(sha="../../../" + "a" * 31), "sha"),
        (changed(siblings=None), '"siblings"'), (changed(siblings={}), '"siblings"'),
        (changed(siblings=[1]), "with an rfilename"), (changed(siblings=[]), "a config.json"),
        (file(rfilename=5), "with an rfilename"),
        (file(rfilename="x.safetensors", size=-1), "expected a size"),
        (file(rfilename="x.safetensors", size="1"), "expected a size"),
        (file(rfilename="x.safetensors", size=1 << 60), "expected a size"),
        (file(rfilename="x.safetensors", size=5, lfs={"size": 6, "sha256": "0" * 64}), "two sizes"),
        (b"[" * 100000, "the listing"),
        (b'{"sha": "' + b"a" * (17 << 20) + b'"}', "expected at most 16777216 bytes"),
        (json.dumps(good)[:-40].encode(), "the listing"),
    ]
    for body, text in cases:
        with Home() as home, Hub(fake(18, (1000,))) as hub:
            hub.listing = body
            home.fails(hub, text)
            eq(hub.total_sent(), 0)


@suite.case
def files_without_identity():
    with Home() as home, Hub(fake(18, (1000,))) as hub:
        hub.listing = hub.true_listing()
        for s in hub.listing["siblings"]:
            s.get("lfs", {}).pop("sha256", None)
        hub.fault = lambda r: {"linked_etag": "no hash"} if r.where == "hub" else None
        home.fails(hub, "gives no SHA-256, so it could not be checked")


@suite.case
def other_models_are_refused_early():
    with Home() as home, Hub(fake(19, (3000000,))) as hub:
        config = json.loads(hub.files["config.json"])
        hub.files["config.json"] = json.dumps({"model_type": "llama"}).encode()
        home.fails(hub, "not a model that calla runs (--any pulls it)")
        assert not any(n.startswith("model-0") for n in hub.sent), hub.sent
        eq(home.pull(hub, "--any", "owner/model").rc, 0)
        home.complete(hub)
        assert config
    for missing in ("config.json", "tokenizer.json"):
        with Home() as home, Hub(fake(19, (1000,))) as hub:
            del hub.files[missing]
            home.fails(hub, "expected a model with a " + missing)


@suite.case
def indexes_that_name_what_is_not_there():
    for names in (["../../x.safetensors"], ["model-00002-of-00002.safetensors"], [5], []):
        with Home() as home, Hub(fake(20, (1000,))) as hub:
            hub.files["model.safetensors.index.json"] = json.dumps(
                {"weight_map": dict(enumerate(names))}).encode()
            home.fails(hub, "which the model does not have" if names else "expected shards named")
    with Home() as home, Hub(fake(20, (1000,))) as hub:
        hub.files["model.safetensors.index.json"] = b"{"
        home.fails(hub, "model.safetensors.index.json")
    with Home() as home, Hub(fake(20, (1000,))) as hub:
        del hub.files["model.safetensors.index.json"]
        home.fails(hub, "found neither")


# ---- This machine --------------------------------------------------------------------------------

@suite.case
def the_disk_is_asked_first():
    with Home() as home, Hub(fake(21, (1000,))) as hub:
        hub.listing = hub.true_listing()
        for s in hub.listing["siblings"]:
            if s["rfilename"].startswith("model-0"):
                s["size"] = s["lfs"]["size"] = 1 << 43
        home.fails(hub, "expected room for 8796.09 GB", "free")
        eq(json.loads(home.calla("models", "--json").out)[0]["complete"], False)
        eq(home.calla("rm", "owner/model").rc, 0)
        eq(os.listdir(home.models), [])


@suite.case
def folders_that_are_in_the_way():
    with Home() as home, Hub(fake(21, (1000,))) as hub:
        os.makedirs(home.path())
        r = home.pull(hub)
        eq(r.rc, 1)
        assert "was not pulled by calla: move it away first" in r.err, r.err
        os.rmdir(home.path())
        os.rmdir(os.path.dirname(home.path())) if os.path.exists(os.path.dirname(home.path())) else None
        shutil.rmtree(home.models, ignore_errors=True)
        os.makedirs(os.path.dirname(home.models), exist_ok=True)
        with open(home.models, "w"):
            pass
        home.fails(hub, "cannot make the folder")
        if os.getuid() != 0:
            os.unlink(home.models)
            os.makedirs(home.models)
            os.chmod(home.models, stat.S_IRUSR | stat.S_IXUSR)
            home.fails(hub, "cannot make the folder")


@suite.case
def names_are_checked():
    with Home() as home, Hub(fake(21, (1000,))) as hub:
        for name in ("", "x", "/x", "x/", "a/b/c", "../x", "a/..", "a/b@", "a/b@../x", "a/b@-x", "a b/c",
                     "a/b@x y", "a/b?c", "a/" + "b" * 97, "a/b@" + "c" * 129, "a/b@x/", "a\\b/c"):
            r = home.pull(hub, name)
            eq(r.rc, 2)
            eq(len(r.err.splitlines()), 1)
        for url in ("ftp://x", "x", "http://", "http://a@b", "http://h:99999999", "http://h/?q"):
            r = home.calla("pull", "--endpoint", url, "a/b")
            assert r.rc == 1 and "--endpoint: expected an address" in r.err, (url, r.err)


@suite.case
def one_at_a_time():
    with Home() as home, Hub(fake(22, (3000000,))) as hub:
        hub.rate = 300000
        p = home.start(hub)
        while hub.total_sent() < 300000:
            time.sleep(0.02)
        r = home.pull(hub)
        eq(r.rc, 1)
        assert "is being pulled or removed by another calla" in r.err, r.err
        r = home.calla("rm", "owner/model")
        assert r.rc == 1 and "is being pulled" in r.err, r.err
        assert "% pulled" in home.calla("models").out
        r = home.calla("run", "-m", "owner/model", "-p", "x")
        assert r.rc == 1 and "is not complete: calla pull" in r.err, r.err
        hub.rate = 0
        eq(p.wait(60), 0)
        home.complete(hub)


@suite.case
def links_are_not_followed():
    with Home() as home, Hub(nano(), repo="calla/nano") as hub:
        eq(home.pull(hub, "calla/nano").rc, 0)
        apart = os.path.join(home.dir, "apart")
        os.rename(os.path.dirname(home.path("calla/nano")), apart)
        kept = os.path.join(apart, "nano")
        files = sorted(os.listdir(kept))
        os.symlink(apart, home.path("linked"))
        r = home.calla("rm", "linked/nano")
        assert r.rc == 1 and "is a link to another folder" in r.err, r.err
        os.mkdir(home.path("calla"))
        os.symlink(kept, home.path("calla/nano"))
        eq(home.calla("rm", "calla/nano").rc, 0)
        assert not os.path.lexists(home.path("calla/nano"))
        os.mkdir(home.path("calla"))
        os.symlink(kept, home.path("calla/nano"))
        hub.commit = "d" * 40  # a newer one takes the place of the link
        eq(home.pull(hub, "calla/nano").rc, 0)
        assert not os.path.islink(home.path("calla/nano"))
        eq(sorted(os.listdir(kept)), files)


@suite.case
def signals_stop_it_and_it_goes_on():
    for sig in (signal.SIGINT, signal.SIGTERM):
        with Home() as home, Hub(fake(23, (8 << 20,))) as hub:
            hub.rate = 1000000
            p = home.start(hub)
            while hub.total_sent() < 5000000:
                time.sleep(0.02)
            p.send_signal(sig)
            t0 = time.monotonic()
            eq(p.wait(30), 128 + sig)
            assert time.monotonic() - t0 < 5
            home.absent()
            hub.rate = 0
            hub.reset_counts()
            eq(home.pull(hub).rc, 0)
            home.complete(hub)
            assert hub.total_sent() < 6 << 20, hub.total_sent()


@suite.case
def killed_at_random_moments():
    seed = argument("--seed", 20260000)
    n_kills = argument("--kills", 10)
    r = random.Random(seed)
    print("seed %d, %d kills" % (seed, n_kills))
    n_done = n_rounds = n_sent = 0
    while n_done < n_kills:
        n_rounds += 1
        with Home() as home, Hub(fake(r.random(), (5 << 20, 3000000, 1, 2 << 20))) as hub:
            old = None
            if r.random() < 0.5:  # an older commit is in place
                eq(home.pull(hub).rc, 0)
                old = {n: read(os.path.join(home.path(), n)) for n in wanted(hub.files)}
                hub.commit = "e" * 40
                for n in ("model-00001-of-00004.safetensors", "generation_config.json"):
                    hub.files[n] = r.randbytes(len(hub.files[n]))
            hub.reset_counts()
            hub.rate = r.choice((150000, 400000, 1500000))
            for _ in range(r.randint(3, 8)):
                if r.random() < 0.3:
                    hub.fault = lambda q: {"cut": r.randint(0, 2000000)} if q.n % 2 else None
                else:
                    hub.fault = lambda q: None
                p = home.start(hub)
                try:
                    p.wait(r.uniform(0.02, 2.5))
                    break  # it was complete
                except subprocess.TimeoutExpired:
                    p.kill()
                    p.wait()
                    n_done += 1
                if not os.path.exists(home.path()):
                    continue
                found = {n: read(os.path.join(home.path(), n)) for n in os.listdir(home.path())
                         if not n.startswith(".")}
                assert found in (old, wanted(hub.files)), "a half-written model"
            hub.fault = lambda q: None
            hub.rate = 0
            eq(home.pull(hub).rc, 0)
            home.complete(hub)
            n_sent += hub.total_sent()
    print("%d kills in %d pulls, %.1f MB sent" % (n_done, n_rounds, n_sent / 1e6))


finish(*suite.run())
