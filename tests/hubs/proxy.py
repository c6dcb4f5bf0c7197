"""A proxy in front of a Hub server that does what goes wrong on the way to the real one.

It also mends one thing: olah answers 401 where the Hub answers 404 with an ``X-Error-Code``.
"""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

_FILE = re.compile(r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<name>.+)")
_HOP = {"transfer-encoding", "connection", "date", "server", "content-length", "keep-alive"}

#: Repository and revision (a commit or a branch) -> its files.
Known = Mapping[tuple[str, str], Mapping[str, bytes]]


@dataclass(slots=True)
class Fault:
    """What happens to requests whose path contains ``match``, ``times`` times.

    Attributes:
        status: Answered instead of asking the server; with ``headers`` and ``body``.
        cut: Bytes of the body after which the connection is closed.
        flip: Offset of the byte that arrives wrong.
        ignore_range: The whole file is sent, with 200.
        elsewhere: The file is answered with a redirect to the second host, as the Hub's storage.
    """

    match: str
    method: str = ""
    times: int = 1_000_000
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    cut: int | None = None
    flip: int | None = None
    ignore_range: bool = False
    elsewhere: bool = False


@dataclass(slots=True)
class Seen:
    """One request, and how many bytes of a body were sent for it."""

    host: str
    method: str
    path: str
    authorized: bool
    range: str | None
    status: int = 0
    sent: int = 0


@dataclass(slots=True)
class Proxy:
    """The proxy's state; tests change it between requests."""

    url: str
    storage: str
    upstream: str
    known: Known
    faults: list[Fault] = field(default_factory=list)
    log: list[Seen] = field(default_factory=list)

    def take(self, method: str, path: str) -> Fault | None:
        for fault in self.faults:
            if fault.times and fault.method in ("", method) and fault.match in path:
                fault.times -= 1
                return fault
        return None

    def missing(self, path: str) -> str | None:
        """The Hub's error code for a path of a repository that exists."""
        found = _FILE.fullmatch(path)
        if not found or (found["repo"], "main") not in self.known:
            return None
        files = self.known.get((found["repo"], unquote(found["revision"])))
        if files is None:
            return "RevisionNotFound"
        return None if unquote(found["name"]) in files else "EntryNotFound"


@contextmanager
def running(upstream: str, known: Known) -> Iterator[Proxy]:
    """The proxy on 127.0.0.1, and the storage host that it redirects to on 127.0.0.2."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(ThreadingHTTPServer((host, 0), _Handler))
            for host in ("127.0.0.1", "127.0.0.2")
        ]
        front, storage = (f"http://{s.server_address[0]!s}:{s.server_port}" for s in servers)
        proxy = Proxy(front, storage, urlsplit(upstream).netloc, known)
        for server in servers:
            server.proxy = proxy  # type: ignore[attr-defined]
            thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
        yield proxy


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def log_message(self, *_: object) -> None:
        """Tests read `Proxy.log`."""

    def _answer(self) -> None:
        self.proxy: Proxy = self.server.proxy  # type: ignore[attr-defined]
        path = urlsplit(self.path).path
        host = self.headers.get("Host", "")
        authorized = "Authorization" in self.headers
        self.seen = Seen(host, self.command, path, authorized, self.headers.get("Range"))
        self.proxy.log.append(self.seen)
        if host in self.proxy.storage:
            self._relay(Fault(""))
            return
        fault = self.proxy.take(self.command, path) or Fault("")
        if fault.status:
            self._send(fault.status, fault.body, fault.headers)
        elif code := self.proxy.missing(path):
            self._send(404, b"", {"X-Error-Code": code})
        else:
            self._relay(fault)

    do_GET = do_HEAD = do_POST = _answer  # noqa: N815 - the names that http.server calls

    def _relay(self, fault: Fault) -> None:
        status, headers, body = self._asked(fault)
        if fault.elsewhere and status < 300:
            self._redirect(headers, len(body))
            return
        if fault.flip is not None and len(body) > fault.flip:
            body = body[: fault.flip] + bytes([body[fault.flip] ^ 1]) + body[fault.flip + 1 :]
        self._send(status, body, {**headers, **fault.headers}, fault.cut)

    def _asked(self, fault: Fault) -> tuple[int, dict[str, str], bytes]:
        """The server's answer. HEAD is asked as it is, so its length is a header, not a body."""
        length = int(self.headers.get("Content-Length") or 0)
        sent = self.rfile.read(length) if length else None
        dropped = {"host", "connection", *(("range",) if fault.ignore_range else ())}
        headers = {k: v for k, v in self.headers.items() if k.lower() not in dropped}
        connection = http.client.HTTPConnection(self.proxy.upstream, timeout=60)
        connection.request(self.command, self.path, sent, headers)
        answer = connection.getresponse()
        found = {k: v.replace(self.proxy.upstream, urlsplit(self.proxy.url).netloc)
                 for k, v in answer.getheaders() if k.lower() not in _HOP}  # fmt: skip
        if self.command == "HEAD":
            found["Content-Length"] = answer.getheader("Content-Length", "0")
        body = answer.read()
        connection.close()
        return answer.status, found, body

    def _redirect(self, headers: dict[str, str], length: int) -> None:
        """As the Hub does for large files: what the client must know is in X-Linked-*."""
        lower = {key.lower(): value for key, value in headers.items()}
        total = lower.get("content-range", "").rpartition("/")[2] or lower.get("content-length")
        kept = {
            "Location": self.proxy.storage + self.path,
            "X-Linked-Etag": f'"{lower["etag"].strip(chr(34))}"',
            "X-Linked-Size": total or str(length),
            "X-Repo-Commit": lower.get("x-repo-commit", ""),
            "ETag": '"pointer"',
        }
        self._send(302, b"", kept)

    def _send(
        self, status: int, body: bytes, headers: Mapping[str, str], cut: int | None = None
    ) -> None:
        self.seen.status = status
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.seen.sent = len(body[:cut])
            self.wfile.write(body[:cut])
        if cut is not None:
            self.wfile.flush()
            self.close_connection = True
