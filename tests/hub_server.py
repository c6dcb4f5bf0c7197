"""A small Hub on the loopback interface: the reads of the protocol, and faults on demand."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeVar
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee0000000000000000000000000000000001"
TOKEN = "hf_aSecretThatNobodyMaySee"

_API = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)/(?P<what>revision|tree)/(?P<rev>[^/]+)")
_FILE = re.compile(r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<rev>[^/]+)/(?P<name>.+)")
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")

_Kind = TypeVar("_Kind", bound="Hub")
Headers = Mapping[str, str]


@dataclass(slots=True)
class Fault:
    """What is answered instead, to requests whose method and path fit, ``times`` times."""

    match: str
    status: int
    headers: Headers = field(default_factory=dict)
    method: str = ""
    times: int = 1_000_000


@dataclass(slots=True)
class Request:
    """One request as the server saw it; ``sent``: bytes of the body, ``start`` in the file."""

    method: str
    path: str
    authorization: str | None
    status: int = 0
    start: int = 0
    sent: int = 0


@dataclass(slots=True)
class Repository:
    """One commit and the names of it; files in ``large`` are stored as LFS would."""

    files: dict[str, bytes]
    commit: str = COMMIT
    refs: tuple[str, ...] = ("main", "refs/pr/1")
    large: tuple[str, ...] = (".safetensors",)
    states_hashes: bool = True

    def etag(self, name: str) -> str:
        data = self.files[name]
        if name.endswith(self.large):
            return hashlib.sha256(data).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    def sibling(self, name: str) -> dict[str, object]:
        if not self.states_hashes:
            return {"rfilename": name}
        size, etag = len(self.files[name]), self.etag(name)
        lfs = {"sha256": etag, "size": size, "pointerSize": 134}
        large = name.endswith(self.large)
        known = {"blobId": "0" * 40, "lfs": lfs} if large else {"blobId": etag}
        return {"rfilename": name, "size": size, **known}

    def tree(self, name: str) -> dict[str, object]:
        size, etag = len(self.files[name]), self.etag(name)
        entry = {"type": "file", "path": name, "size": size, "oid": etag}
        lfs = {"lfs": {"oid": etag, "size": size, "pointerSize": 134}}
        return {**entry, **(lfs if name.endswith(self.large) else {})}


@dataclass(slots=True)
class Hub:
    """The server's state; tests change it between requests."""

    url: str
    repositories: dict[str, Repository] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    flipped: set[str] = field(default_factory=set)
    honours_ranges: bool = True
    log: list[Request] = field(default_factory=list)

    def reset(self) -> None:
        """Forget everything but the address."""
        for kept in (self.repositories, self.faults, self.flipped, self.log):
            kept.clear()
        self.honours_ranges = True

    def paths(self, method: str) -> list[str]:
        return [request.path for request in self.log if request.method == method]

    def weight_bytes(self) -> int:
        """Bytes sent of ``*.safetensors`` that are no part of a header."""
        total = 0
        for request in self.log:
            found = _FILE.fullmatch(request.path)
            if found and found["name"].endswith(".safetensors"):
                data = self.repositories[found["repo"]].files[found["name"]]
                header_end = 8 + int.from_bytes(data[:8], "little")
                total += max(0, request.start + request.sent - header_end)
        return total

    def fault(self, method: str, path: str) -> Fault | None:
        for fault in self.faults:
            if fault.times and fault.method in ("", method) and re.search(fault.match, path):
                fault.times -= 1
                return fault
        return None


@contextmanager
def running() -> Iterator[Hub]:
    """A Hub that answers until the end of the block."""
    with serving(_Handler, Hub) as hub:
        yield hub


@contextmanager
def serving(handler: type[_Handler], kind: Callable[[str], _Kind]) -> Iterator[_Kind]:
    """A server of that kind, whose requests ``handler`` answers."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub = kind(f"http://127.0.0.1:{server.server_port}")
    server.hub = hub  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet: two would wait 40 ms for each other

    def log_message(self, *_: object) -> None:
        """Tests read `Hub.log`."""

    def _answer(self) -> None:
        hub: Hub = self.server.hub  # type: ignore[attr-defined]
        path = unquote(urlsplit(self.path).path)
        self.seen = Request(self.command, path, self.headers.get("Authorization"))
        hub.log.append(self.seen)
        fault = hub.fault(self.command, path)
        if fault:
            self._send(fault.status, b"refused", fault.headers)
            return
        encoded = urlsplit(self.path).path  # a revision's own slashes are quoted
        if api := _API.fullmatch(encoded):
            self._api(hub, api)
        elif file := _FILE.fullmatch(encoded):
            self._file(hub, file)
        else:
            self._send(404, b"")

    do_GET = do_HEAD = _answer  # noqa: N815 - the names that http.server calls

    def _found(self, hub: Hub, match: re.Match[str]) -> Repository | None:
        repository = hub.repositories.get(match["repo"])
        if repository is None:
            self._send(401, b"", {"X-Error-Code": "RepoNotFound"})
        elif unquote(match["rev"]) not in (*repository.refs, repository.commit):
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
            return None
        return repository

    def _api(self, hub: Hub, match: re.Match[str]) -> None:
        repository = self._found(hub, match)
        if repository is None:
            return
        siblings = [repository.sibling(name) for name in sorted(repository.files)]
        tree = [repository.tree(name) for name in sorted(repository.files)]
        info = {"id": match["repo"], "sha": repository.commit, "siblings": siblings}
        body = json.dumps(info if match["what"] == "revision" else tree).encode()
        self._send(200, body, {"Content-Type": "application/json"})

    def _file(self, hub: Hub, match: re.Match[str]) -> None:
        repository, name = self._found(hub, match), unquote(match["name"])
        if repository is None:
            return
        if name not in repository.files:
            commit = {"X-Repo-Commit": repository.commit}
            self._send(404, b"", {"X-Error-Code": "EntryNotFound", **commit})
            return
        data = repository.files[name]
        if name in hub.flipped:
            data = data[:-2] + bytes([data[-2] ^ 1]) + data[-1:]
        headers = {"X-Repo-Commit": repository.commit, "ETag": f'"{repository.etag(name)}"'}
        wanted = _RANGE.fullmatch(self.headers.get("Range", ""))
        if not wanted or not hub.honours_ranges:
            self._send(200, data, headers)
            return
        start = int(wanted[1])
        part = data[start : int(wanted[2] or len(data)) + 1]
        span = f"bytes {start}-{start + len(part) - 1}/{len(data)}"
        self.seen.start = start
        self._send(206, part, {**headers, "Content-Range": span})

    def _send(self, status: int, body: bytes, headers: Headers | None = None) -> None:
        self.seen.status = status
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.seen.sent = len(body)
            self.wfile.write(body)
