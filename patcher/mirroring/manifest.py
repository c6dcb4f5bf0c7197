"""``.ckpt-patch/mirror.json``: what a mirror is made of, and of what.

It holds no time and no process, so the same source and target give the same bytes. The text
carries a hash of itself; one that was cut or edited is refused as a whole.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping  # noqa: TC003 - msgspec reads the annotations
from typing import Any, Literal

import msgspec
from msgspec import Struct, to_builtins
from msgspec.structs import replace

from patcher.edits import Operations, sha256
from patcher.errors import RefusedError, UnreadableError
from patcher.headers.files import quoted, read_whole
from patcher.mirroring.linking import Link  # noqa: TC001 - msgspec reads the annotations
from patcher.transaction.journal import NAME

SCHEMA = "ckpt-patch/mirror-manifest@1"
FILE = "mirror.json"
PATH = os.path.join(NAME, FILE)

#: `Manifest.link` of a mirror on the Hub, where nothing is linked.
HUB = "hub"

_MAX_BYTES = 64 * 1024 * 1024
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Source(Struct, frozen=True):
    """Of what it is a mirror: an absolute path without links, and what its place says about it."""

    path: str
    origin: str
    repo_id: str | None
    revision: str | None


class MirroredFile(Struct, frozen=True):
    """One file.

    Attributes:
        path: relative to source and mirror.
        kind: ``patched`` and ``copied`` are files of their own; ``weights`` are not.
        size: bytes of the source's file.
        before_sha256: hash of the source's file; of weights only where the Hub named them by it.
        after_sha256: hash of the file here; equal to ``before_sha256`` unless patched.
        link: how weights came here; ``None`` for other kinds.
        link_target: the text of a symbolic link.
        inode: of the source's file, for weights.
        mtime_ns: of the source's file, for weights.
        patch: RFC 6902, for patched files.
        inverse: RFC 6902, for patched files.
        git_sha1: git's hash of the file here, by which the Hub names it; of mirrors on the Hub.
    """

    path: str
    kind: Literal["patched", "copied", "weights"]
    size: int
    before_sha256: str | None = None
    after_sha256: str | None = None
    link: Link | None = None
    link_target: str | None = None
    inode: int | None = None
    mtime_ns: int | None = None
    patch: Operations = ()
    inverse: Operations = ()
    git_sha1: str | None = None


class Manifest(Struct, frozen=True):
    """All of a mirror.

    Attributes:
        tool_version: version of ckpt-patch that made it.
        source: see `Source`.
        target: the target in its JSON form.
        releases: engine releases that this was judged for: ``engine``, ``runs``, ``needed_for``.
        recipe: ``id``, ``version`` and ``sha256``; ``None`` where nothing was patched.
        link: the value of ``--link``, or `HUB`.
        folders: relative paths.
        folder_links: links to folders inside: path -> text.
        files: sorted by path.
        scope: ``all`` of the source, or what ``config_folder`` takes of it.
    """

    tool_version: str
    source: Source
    target: Mapping[str, Any]
    releases: Mapping[str, Any]
    recipe: Mapping[str, Any] | None
    link: str
    folders: tuple[str, ...]
    folder_links: Mapping[str, str]
    files: tuple[MirroredFile, ...]
    scope: Literal["all", "config"] = "all"

    def to_dict(self) -> dict[str, Any]:
        """The JSON form (schema ``ckpt-patch/mirror-manifest@1``)."""
        return {"schema": SCHEMA, **to_builtins(self)}

    def wanted(self) -> dict[str, Any]:
        """What was asked for, without how it turned out and who did it: the key of a no-op."""
        files = tuple(replace(each, link=None, link_target=None) for each in self.files)
        document = json.dumps(replace(self, tool_version="", files=files).to_dict())
        result: dict[str, Any] = json.loads(document)
        return result


def encode(manifest: Manifest) -> bytes:
    """The text of ``mirror.json``: sorted keys, indented, ASCII, with its own hash."""
    body = manifest.to_dict()
    body["sha256"] = _hash(body)
    return (json.dumps(body, indent=2, sort_keys=True) + "\n").encode("ascii")


def read(root: str) -> Manifest | None:
    """The manifest of a directory; ``None`` where it has none.

    Raises:
        RefusedError: damaged, of an unknown schema, or with a path that no mirror has.
    """
    path = os.path.join(root, PATH)
    if not os.path.lexists(path):
        return None
    try:
        return decode(read_whole(path, PATH, _MAX_BYTES))
    except UnreadableError as error:
        raise _damaged(root, error.message) from error
    except (ValueError, msgspec.ValidationError) as error:
        raise _damaged(root, str(error)) from error


def decode(data: bytes) -> Manifest:
    """Read ``mirror.json`` back.

    Raises:
        ValueError: it is not what `encode` writes (`msgspec.ValidationError`: by its types).
    """
    try:
        body = json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(body, dict) or body.pop("schema", None) != SCHEMA:
        raise ValueError(f"its schema is not {SCHEMA}, which this version reads")
    if body.pop("sha256", None) != _hash({"schema": SCHEMA, **body}):
        raise ValueError("its own hash does not fit")
    manifest = msgspec.convert(body, Manifest)
    paths = [*manifest.folders, *manifest.folder_links, *(file.path for file in manifest.files)]
    wrong = [path for path in paths if not _is_below(path)]
    if wrong or len(set(paths)) != len(paths):
        raise ValueError(f"impossible path {wrong[:1] or 'twice'}")
    hashes = [h for file in manifest.files for h in (file.before_sha256, file.after_sha256) if h]
    if not all(map(_SHA256.fullmatch, hashes)):
        raise ValueError("a hash is none")
    return manifest


def _hash(body: Mapping[str, Any]) -> str:
    return sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode("ascii"))


def _is_below(path: str) -> bool:
    """Whether a relative path can be one, and stays below its root, whatever the root."""
    try:
        os.fsencode(path)
    except UnicodeEncodeError:  # half a surrogate pair, which no name on a disk gives
        return False
    parts = path.split("/")
    return "\0" not in path and {"", ".", ".."}.isdisjoint(parts) and parts[0] != NAME


def _damaged(root: str, why: str) -> RefusedError:
    return RefusedError(
        f"this manifest of a mirror cannot be trusted: {why}",
        path=os.path.join(root, PATH),
        hint=f"move the directory away and make the mirror anew: mv {quoted(root)} "
        f"{quoted(root)}.old",
    )
