"""A Hub on the loopback interface that can be written to, and notes what it was sent.

No server that takes uploads can be installed, so this one gives the answers of the protocol as far
as huggingface_hub asks, and does what a commit says: weights arrive only by copying on the server.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

from hub_server import Hub, Repository, Request, _Handler, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

_CREATE = re.compile(r"/api/repos/create")
_POST = re.compile(
    r"/api/models/(?P<repo>[^/]+/[^/]+)/"
    r"(?P<what>preupload|paths-info|commit|lfs-files|discussions)(?:/(?P<rev>.+))?"
)


@dataclass(slots=True)
class Writable(Repository):
    """A repository with what matters when it is copied; ``xet``: how its large files are stored."""

    private: bool = False
    gated: str | bool = False
    xet: bool = True

    def tree(self, name: str) -> dict[str, object]:
        entry = Repository.tree(self, name)
        if "lfs" in entry and self.xet:
            return entry | {"xetHash": hashlib.sha256(b"xet" + self.files[name]).hexdigest()}
        return entry


@dataclass(slots=True)
class Sent:
    """A request with a body."""

    path: str
    body: Any
    bytes: int
    authorization: str | None


@dataclass(slots=True)
class Recorder(Hub):
    """The server's state.

    Attributes:
        sent: requests with a body, in order; a commit's body is the list of its lines.
        ignored: paths that a ``.gitignore`` would keep out.
        failed: what the copying answers for files that it does not copy: ``sha256 -> error``.
        lose_commit: whether the answers to commits are lost, though they are done.
    """

    sent: list[Sent] = field(default_factory=list)
    ignored: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    duplicated: set[tuple[str, str]] = field(default_factory=set)
    lose_commit: int = 0
    commits: int = 0

    def reset(self) -> None:
        Hub.reset(self)
        for kept in (self.sent, self.ignored, self.failed, self.duplicated):
            kept.clear()
        self.lose_commit = self.commits = 0

    def posted(self, what: str) -> list[Sent]:
        return [each for each in self.sent if what in each.path]

    def next_commit(self) -> str:
        self.commits += 1
        return f"{0xB0B0_0000 + self.commits:040x}"

    def content(self, sha256: str) -> bytes:
        everything = (data for each in self.repositories.values() for data in each.files.values())
        return next(data for data in everything if hashlib.sha256(data).hexdigest() == sha256)


@contextmanager
def running() -> Iterator[Recorder]:
    """A Hub that can be written to, until the end of the block."""
    with serving(_Writer, Recorder) as hub:
        yield hub


class _Writer(_Handler):
    #: The pull requests that were opened: repository -> title.
    proposed: ClassVar[dict[str, str]] = {}

    def _api(self, hub: Hub, match: re.Match[str]) -> None:
        repository = self._found(hub, match)
        if repository is None:
            return
        assert isinstance(repository, Writable)
        names = sorted(repository.files)
        if match["what"] == "tree":
            self._json([repository.tree(name) for name in names])
            return
        info = {"id": match["repo"], "sha": repository.commit}
        seen = {"private": repository.private, "gated": repository.gated}
        self._json(info | seen | {"siblings": [repository.sibling(name) for name in names]})

    def do_POST(self) -> None:  # noqa: N802 - the name that http.server calls
        hub: Recorder = self.server.hub  # type: ignore[attr-defined]
        path = unquote(urlsplit(self.path).path)
        raw = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        sent = Sent(path, self._read(raw), len(raw), self.headers.get("Authorization"))
        hub.sent.append(sent)
        self.seen = Request(self.command, path, sent.authorization)
        hub.log.append(self.seen)
        fault = hub.fault("POST", path)
        if fault:
            body = json.dumps({"error": fault.headers.get("Error", "refused")}).encode()
            self._send(fault.status, body, fault.headers)
        elif _CREATE.fullmatch(path):
            self._create(hub, sent.body)
        elif post := _POST.fullmatch(path):
            answer = {
                "preupload": self._preupload,
                "paths-info": self._paths_info,
                "lfs-files": self._duplicate,
                "commit": self._commit,
                "discussions": self._discussion,
            }
            repository = hub.repositories.get(post["repo"])
            if repository is None:
                self._send(404, b"", {"X-Error-Code": "RepoNotFound"})
            else:
                answer[post["what"]](hub, post["repo"], repository, sent.body)
        else:
            self._send(404, b"")

    def _read(self, raw: bytes) -> Any:
        kind = self.headers.get("Content-Type", "")
        if kind == "application/x-ndjson":
            return [json.loads(line) for line in raw.splitlines()]
        return parse_qs(raw.decode()) if "form" in kind else json.loads(raw)

    def _json(self, body: Any) -> None:
        self._send(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _create(self, hub: Recorder, body: Any) -> None:
        name = f"{body['organization']}/{body['name']}"
        if name in hub.repositories:
            self._send(409, json.dumps({"url": f"{hub.url}/{name}"}).encode())
            return
        hub.repositories[name] = Writable(
            {".gitattributes": b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"},
            hub.next_commit(),
            ("main",),
            private=body.get("visibility") == "private" or bool(body.get("private")),
        )
        self._json({"url": f"{hub.url}/{name}"})

    def _preupload(self, hub: Recorder, _: str, repository: Repository, body: Any) -> None:
        def about(name: str) -> dict[str, object]:
            oid = {"oid": repository.etag(name)} if name in repository.files else {}
            ignored = name in hub.ignored
            return {"path": name, "uploadMode": "regular", "shouldIgnore": ignored, **oid}

        self._json({"files": [about(file["path"]) for file in body["files"]]})

    def _paths_info(self, _: Recorder, __: str, repository: Repository, body: Any) -> None:
        there = [name for name in body["paths"] if name in repository.files]
        self._json([repository.tree(name) for name in there])

    def _duplicate(self, hub: Recorder, _: str, __: Repository, body: Any) -> None:
        oids = [file["sha256"] for file in body["files"]]
        hub.duplicated |= {(body["target"]["name"], oid) for oid in oids}
        bad = [{"sha256": oid, "error": hub.failed[oid]} for oid in oids if oid in hub.failed]
        self._json({"failed": bad})

    def _discussion(self, _: Recorder, name: str, __: Repository, body: Any) -> None:
        self.proposed[name] = body["title"]
        self._json({"num": 1})

    def do_GET(self) -> None:  # noqa: N802 - the name that http.server calls
        """Also what the client asks about the pull request that it opened."""
        name = urlsplit(self.path).path.removeprefix("/api/models/").partition("/discussions/1")
        if not name[1]:
            self._answer()
            return
        self.seen = Request(self.command, self.path, None)
        about = {"num": 1, "title": self.proposed[name[0]], "status": "draft", "events": []}
        repo = {"repo": {"name": name[0], "type": "model"}, "createdAt": "2026-11-30T12:00:00.000Z"}
        changes = {"isPullRequest": True, "changes": {"base": "main"}, "filesWithConflicts": []}
        self._json(about | repo | changes)

    def _commit(self, hub: Recorder, name: str, repository: Repository, lines: Any) -> None:
        header, *operations = lines
        url = f"{hub.url}/{name}/commit/{repository.commit}"
        if "create_pr=1" in self.path or "refs/pr/" in unquote(self.path):  # old clients, new ones
            proposed = {"pullRequestUrl": f"{hub.url}/{name}/discussions/1"}
            self._json({"commitUrl": url, "commitOid": hub.next_commit()} | proposed)
            return
        if header["value"].get("parentCommit", repository.commit) != repository.commit:
            said = {"X-Error-Message": "A commit has happened since. Please refresh and try again."}
            self._send(412, b"", said)
            return
        for line in operations:
            value = line["value"]
            if line["key"] == "file":
                repository.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "deletedFile":
                del repository.files[value["path"]]
            elif (name, value["oid"]) in hub.duplicated:
                repository.files[value["path"]] = hub.content(value["oid"])
            else:
                self._send(400, b'{"error": "an LFS pointer without its object"}')
                return
        repository.commit = hub.next_commit()
        if hub.lose_commit:
            hub.lose_commit -= 1
            self.close_connection = True
            self.connection.close()
            return
        url = f"{hub.url}/{name}/commit/{repository.commit}"
        self._json({"commitUrl": url, "commitOid": repository.commit})
