"""A model hub on this machine that misbehaves as it is told. Standard library only.

Two servers: the hub (listings, small files, redirects for large ones) and, on another port, the
content network that it redirects to. `Hub.fault` decides about each request for a file.
"""

import hashlib
import json
import socket
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BLOCK = 16384


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def git_id(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Request:
    """What a fault sees: where ("hub", "cdn", "listing"), file name, first byte, how many before."""

    def __init__(self, where, name, first, last, n):
        self.where, self.name, self.first, self.last, self.n = where, name, first, last, n


class Hub:
    """Faults are dictionaries: status, headers, stall_at (byte before which it pauses), stall_headers, cut (bytes after
    which the connection ends), no_range, first, last, total (of Content-Range), length, extra
    (bytes too many), flip (bytes inverted), location, linked_etag, linked_size, body."""

    def __init__(self, files, repo="owner/model", commit="c" * 40):
        self.repo, self.commit, self.files = repo, commit, dict(files)
        self.token = None
        self.fault = lambda r: None
        self.rate = 0              # bytes a second of each connection; 0: as fast as it goes
        self.listing = None        # bytes or a dictionary in place of the true one
        self.blobs = True          # the listing has sizes and hashes
        self.moved = {}            # old name of the repository: new name
        self.lock = threading.Lock()
        self.reset_counts()

    def reset_counts(self):
        self.n = {}
        self.sent = {}             # bytes of file contents by name
        self.cdn_authorization = []
        self.hub_authorization = []
        self.revisions = []

    def total_sent(self):
        with self.lock:
            return sum(self.sent.values())

    def is_lfs(self, name):
        return name.endswith(".safetensors") or name == "tokenizer.json"

    def true_listing(self):
        siblings = []
        for name, data in self.files.items():
            s = {"rfilename": name}
            if self.blobs:
                s.update(size=len(data), blobId=git_id(data))
                if self.is_lfs(name):
                    s["lfs"] = {"size": len(data), "sha256": sha256(data), "pointerSize": 134}
            siblings.append(s)
        return {"id": self.repo, "sha": self.commit, "private": False, "siblings": siblings}

    def __enter__(self):
        self.servers = []
        for kind in (HubHandler, CdnHandler):
            s = Server(("127.0.0.1", 0), type(kind.__name__, (kind,), {"hub": self}))
            threading.Thread(target=s.serve_forever, args=(0.02,), daemon=True).start()
            self.servers.append(s)
        self.url = "http://127.0.0.1:%d" % self.servers[0].server_port
        self.cdn_url = "http://localhost:%d" % self.servers[1].server_port
        return self

    def __exit__(self, *args):
        for s in self.servers:
            s.shutdown()
            s.server_close()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request, client_address):
        pass  # clients that go


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub = None

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.do_GET()

    def reply(self, status, body=b"", headers=None):
        self.send_response(status)
        headers = dict(headers or {})
        headers.setdefault("Content-Length", str(len(body)))
        for k, v in headers.items():
            self.send_header(k, v)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def count(self, where, name):
        with self.hub.lock:
            n = self.hub.n.get((where, name), 0)
            self.hub.n[where, name] = n + 1
            return n

    def faulted(self, where, name):
        """(request, fault); the fault is {} when there is none, None when it has answered."""
        first, last = 0, None
        r = self.headers.get("Range")
        if r:
            a, b = r.split("=")[1].split("-")
            first, last = int(a), int(b)
        req = Request(where, name, first, last, self.count(where, name))
        fault = self.hub.fault(req) or {}
        if fault.get("stall_headers"):
            time.sleep(fault["stall_headers"])
        if "status" in fault:
            self.reply(fault["status"], fault.get("body", b"no"), fault.get("headers"))
            return req, None
        if "location" in fault:
            self.reply(302, b"", {"Location": fault["location"]})
            return req, None
        return req, fault

    def send_file(self, name, data, req, fault, headers):
        size = len(data)
        first, last = req.first, size - 1 if req.last is None else min(req.last, size - 1)
        if req.last is not None and first >= size and "total" not in fault:
            self.reply(416, b"", {"Content-Range": "bytes */%d" % size})
            return
        ranged = req.last is not None and not fault.get("no_range")
        body = data[first:last + 1] if ranged else data
        if "flip" in fault:
            body = bytes(b ^ 0xff for b in body[:fault["flip"]]) + body[fault["flip"]:]
        body += b"x" * fault.get("extra", 0)
        h = dict(headers)
        h["Content-Length"] = str(fault.get("length", len(body)))
        if ranged:
            h["Content-Range"] = "bytes %d-%d/%s" % (
                fault.get("first", first), fault.get("last", last), fault.get("total", size))
        self.send_response(206 if ranged else 200)
        for k, v in h.items():
            self.send_header(k, v)
        self.end_headers()
        if self.command == "HEAD":
            return
        body = body[:fault.get("cut", len(body))]
        for at in range(0, len(body), BLOCK):
            piece = body[at:at + BLOCK]
            if at >= fault.get("stall_at", len(body)):
                time.sleep(4)
                fault = {}
            self.wfile.write(piece)
            with self.hub.lock:
                self.hub.sent[name] = self.hub.sent.get(name, 0) + len(piece)
            if self.hub.rate:
                time.sleep(len(piece) / self.hub.rate)
        if len(body) != int(h["Content-Length"]):
            self.close_connection = True
            try:
                self.connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class HubHandler(Handler):
    def do_GET(self):
        hub = self.hub
        url = urllib.parse.urlsplit(self.path)
        path = urllib.parse.unquote(url.path)
        hub.hub_authorization.append(self.headers.get("Authorization"))
        for old, new in hub.moved.items():
            if path.startswith("/api/models/" + old + "/") or path.startswith("/" + old + "/"):
                self.reply(307, b"", {"Location": self.path.replace(old, new, 1)})
                return
        if hub.token and self.headers.get("Authorization") != "Bearer " + hub.token:
            self.reply(401, b"{}", {"X-Error-Message": "Invalid credentials"})
        elif path.startswith("/api/models/%s/revision/" % hub.repo):
            self.listing(url)
        elif path.startswith("/%s/resolve/%s/" % (hub.repo, hub.commit)):
            self.resolve(path.split("/", 5)[5])
        else:
            self.reply(404, b"{}", {"X-Error-Message": "Repository not found"})

    def listing(self, url):
        hub = self.hub
        hub.revisions.append(url.path.split("/revision/")[1])
        _, fault = self.faulted("listing", "")
        if fault is None:
            return
        body = hub.listing if hub.listing is not None else hub.true_listing()
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        self.reply(200, body, {"Content-Type": "application/json"})

    def resolve(self, name):
        hub = self.hub
        req, fault = self.faulted("hub", name)
        if fault is None:
            return
        data = hub.files.get(name)
        if data is None:
            self.reply(404, b"", {"X-Error-Message": "Entry not found"})
        elif hub.is_lfs(name):
            self.reply(302, b"", {
                "Location": "%s/blob/%s?signature=secret-signature" % (hub.cdn_url, name),
                "X-Linked-Size": str(fault.get("linked_size", len(data))),
                "X-Linked-ETag": '"%s"' % fault.get("linked_etag", sha256(data)),
                "X-Repo-Commit": hub.commit})
        else:
            self.send_file(name, data, req, fault, {"ETag": '"%s"' % git_id(data)})


class CdnHandler(Handler):
    def do_GET(self):
        hub = self.hub
        hub.cdn_authorization.append(self.headers.get("Authorization"))
        name = urllib.parse.urlsplit(self.path).path.split("/")[2]
        req, fault = self.faulted("cdn", name)
        if fault is None:
            return
        self.send_file(name, hub.files[name], req, fault, {"ETag": '"anything-%s"' % name})
