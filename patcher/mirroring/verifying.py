"""Is a mirror still what was made, and its source still what it was made of?

Needs no network and reads no weights, unless asked to.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import stat
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from patcher.errors import CkptPatchError, RefusedError, UnreadableError
from patcher.headers.files import StrPath, open_regular, quoted
from patcher.hub import cache
from patcher.in_cache import located
from patcher.mirroring import config_folder, listing
from patcher.mirroring.manifest import HUB, Manifest, MirroredFile, read
from patcher.transaction.journal import NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA = "ckpt-patch/verify@1"

_CHUNK = 8 * 1024 * 1024

#: What the Hub and its client put beside the files of a mirror.
OF_A_DOWNLOAD = (".gitattributes", ".cache")


class Problem(Struct, frozen=True):
    """One thing that is not as the manifest says.

    Attributes:
        kind: ``missing``, ``edited`` and ``added`` are about the mirror's own names; ``dangling``
            is a link whose source is gone; ``base`` is a source that has changed.
        file: relative to the mirror.
        message: what is wrong with it.
    """

    kind: Literal["missing", "edited", "added", "dangling", "base"]
    file: str
    message: str


class Verified(Struct, frozen=True):
    """A mirror that was looked at.

    Attributes:
        path: where it is.
        manifest: what it should be.
        problems: none when all is well.
        notes: sentences about what could not be looked at.
        hashed: files of weights whose bytes were read and are right.
    """

    path: str
    manifest: Manifest
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    hashed: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The document of ``verify --json`` (schema ``ckpt-patch/verify@1``)."""
        return {
            "schema": SCHEMA,
            "checkpoint": self.path,
            "ok": not self.problems,
            "source": self.manifest.source.path,
            "files": len(self.manifest.files),
            "hashed": self.hashed,
            "problems": [
                {"kind": each.kind, "file": each.file, "message": each.message}
                for each in self.problems
            ],
            "notes": list(self.notes),
        }


def verify(path: StrPath, *, hashed: bool = False) -> Verified:
    """Look at a mirror and its source; changes nothing.

    Args:
        path: the mirror, or the Hub id of a revision that was made in the cache.
        hashed: read all weights too, where their hash is known.

    Raises:
        RefusedError: it is not a mirror, or its manifest is damaged.
        UnreadableError: there is no such directory.
    """
    root = os.path.abspath(located(path))
    if not os.path.isdir(root):
        raise UnreadableError(
            "there is no such directory",
            path=root,
            hint=f"ls -ld {quoted(os.path.dirname(root))}",
        )
    manifest = read(root)
    if manifest is None:
        raise RefusedError(
            "is not a mirror made by ckpt-patch",
            path=root,
            hint=f"ckpt-patch status {quoted(root)}",
        )
    problems, notes = list(here(root, manifest)), []
    if os.path.isdir(manifest.source.path):
        problems += _base(manifest)
    else:
        notes.append(f"the source {manifest.source.path} is not here, so it was not compared")
    count = 0
    if hashed:
        found, count, unknown = _hash_weights(root, manifest)
        problems += found
        notes += unknown
    # A changed source shows through a hard link and at the source: once is enough.
    unique = {(each.kind, each.file): each for each in reversed(problems)}
    ordered = sorted(unique.values(), key=lambda each: (each.file, each.kind))
    return Verified(root, manifest, tuple(ordered), tuple(notes), count)


def here(root: str, manifest: Manifest) -> tuple[Problem, ...]:
    """What is wrong with the mirror itself; its source is only seen through its links."""
    return (*_own(root, manifest), *_added(root, manifest))


def _own(root: str, manifest: Manifest) -> Iterator[Problem]:
    for file in manifest.files:
        path = os.path.join(root, file.path)
        try:
            status = os.lstat(path)
        except OSError:
            yield Problem("missing", file.path, "is missing")
            continue
        how = file.link or (HUB if manifest.link == HUB else "own")
        yield from _CHECKS[how](path, status, file)
    for link, text in manifest.folder_links.items():
        path = os.path.join(root, link)
        if not os.path.lexists(path):
            yield Problem("missing", link, "is missing")
        elif not os.path.islink(path) or os.readlink(path) != text:
            yield Problem("edited", link, f"is not the link to {text} that it was")


def _own_file(path: str, status: os.stat_result, file: MirroredFile) -> Iterator[Problem]:
    if not stat.S_ISREG(status.st_mode):
        yield Problem("edited", file.path, "is no regular file any more")
    elif _sha256(path, file.path) != file.after_sha256:
        yield Problem("edited", file.path, "has been edited since the mirror was made")


def _downloaded(path: str, status: os.stat_result, file: MirroredFile) -> Iterator[Problem]:
    """A file that came from the Hub, maybe as a link into its cache."""
    try:
        status = os.stat(path)
    except OSError:
        yield Problem("dangling", file.path, "is a link into the Hub's cache to what is gone")
        return
    if file.kind == "weights":
        if status.st_size != file.size:
            yield Problem("edited", file.path, f"has changed: {_difference(status, file)}")
    elif not {_sha256(path, file.path), _blob_id(path)} & _known(file):
        yield Problem("edited", file.path, "is not what the mirror on the Hub has")


def _symlink(path: str, status: os.stat_result, file: MirroredFile) -> Iterator[Problem]:
    if not stat.S_ISLNK(status.st_mode) or os.readlink(path) != file.link_target:
        yield Problem("edited", file.path, f"is not the link to {file.link_target} that it was")
        return
    try:
        behind = os.stat(path)
    except OSError:
        yield Problem("dangling", file.path, f"is a link to {file.link_target}, which is gone")
        return
    if not _same(behind, file, inode=True):
        yield Problem("base", file.path, f"leads to other bytes: {_difference(behind, file)}")


def _hardlink(_path: str, status: os.stat_result, file: MirroredFile) -> Iterator[Problem]:
    if not stat.S_ISREG(status.st_mode) or status.st_ino != file.inode:
        yield Problem("edited", file.path, "is not the source's file any more (other inode)")
    elif not _same(status, file, inode=False):
        yield Problem("base", file.path, f"was written in place: {_difference(status, file)}")


def _independent(_path: str, status: os.stat_result, file: MirroredFile) -> Iterator[Problem]:
    if not stat.S_ISREG(status.st_mode) or not _same(status, file, inode=False):
        yield Problem("edited", file.path, f"has changed: {_difference(status, file)}")


_CHECKS = {
    "own": _own_file,
    HUB: _downloaded,
    "symlink": _symlink,
    "hardlink": _hardlink,
    "reflink": _independent,
    "copy": _independent,
}


def _same(status: os.stat_result, file: MirroredFile, *, inode: bool) -> bool:
    """Devices are not compared: their numbers change when a machine starts anew."""
    return (status.st_size, status.st_mtime_ns) == (file.size, file.mtime_ns) and (
        not inode or status.st_ino == file.inode
    )


def _difference(status: os.stat_result, file: MirroredFile) -> str:
    if status.st_size != file.size:
        return f"{status.st_size:,} bytes instead of {file.size:,}"
    if status.st_mtime_ns != file.mtime_ns:
        return "another modification time"
    return "another inode"


def _added(root: str, manifest: Manifest) -> Iterator[Problem]:
    """Names that the manifest does not have; below a folder that it does not have, only that."""
    known = {*manifest.folders, *manifest.folder_links, *(file.path for file in manifest.files)}
    ours = {NAME, *(OF_A_DOWNLOAD if manifest.link == HUB else ())}
    for folder in ("", *manifest.folders):
        path = os.path.join(root, folder)
        for name in sorted(os.listdir(path)) if os.path.isdir(path) else ():
            relative = os.path.join(folder, name)
            if relative not in known and relative not in ours:
                yield Problem("added", relative, "was not put here by ckpt-patch")


def _base(manifest: Manifest) -> Iterator[Problem]:
    """What has changed at the source since."""
    try:
        tree = listing.survey(manifest.source.path)
        if manifest.scope == "config":
            tree = config_folder.narrowed(tree)
    except CkptPatchError as error:
        yield Problem("base", error.path or "", f"in the source: {error.message}")
        return
    present = {item.path: item for item in tree.items}
    for file in manifest.files:
        item = present.pop(file.path, None)
        if item is None:
            yield Problem("base", file.path, "is gone from the source")
        elif file.kind == "weights":
            if (item.inode, item.size, item.mtime_ns) != (file.inode, file.size, file.mtime_ns):
                yield Problem("base", file.path, "is another file in the source now")
        elif _sha256(item.real, file.path) != file.before_sha256:
            yield Problem("base", file.path, "has other content in the source now")
    for path in present:
        yield Problem("base", path, "is new in the source")


def _hash_weights(root: str, manifest: Manifest) -> tuple[list[Problem], int, list[str]]:
    """Compare bytes with the hash that the Hub named them by, else with an independent source."""
    problems, right, unknown = [], 0, 0
    for file in manifest.files:
        if file.kind != "weights":
            continue
        expected = file.after_sha256
        if expected is None and file.link in {"reflink", "copy"}:
            expected = _sha256(os.path.join(manifest.source.path, file.path), file.path)
        if expected is None:
            unknown += 1
        elif _sha256(os.path.join(root, file.path), file.path) != expected:
            problems.append(Problem("edited", file.path, "has other bytes than its hash says"))
        else:
            right += 1
    notes = [f"files of weights without a known hash to compare with: {unknown}"] if unknown else []
    return problems, right, notes


def _known(file: MirroredFile) -> set[str | None]:
    """The hashes, of either kind, that a file has."""
    return {file.after_sha256, file.git_sha1} - {None}


def _blob_id(path: str) -> str | None:
    try:
        return cache.blob_id(pathlib.Path(path).read_bytes())
    except OSError:
        return None


def _sha256(path: str, name: str) -> str | None:
    """The hash of a regular file; ``None`` where there is none that can be read."""
    digest = hashlib.sha256()
    try:
        with open_regular(path, name) as (fd, _):
            while chunk := os.read(fd, _CHUNK):
                digest.update(chunk)
    except (OSError, UnreadableError):
        return None
    return digest.hexdigest()
