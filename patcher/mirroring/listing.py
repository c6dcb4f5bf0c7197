"""What a checkpoint directory holds: what a mirror links, what it copies, what it leaves out."""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING

from msgspec import Struct, field

from patcher.errors import RefusedError, UnreadableError
from patcher.headers.files import kind_of, quoted, unreadable
from patcher.transaction.journal import NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".npz", ".onnx")

#: Bytes; a file of any name that is larger is treated as weights.
LARGE = 64 * 1024 * 1024

#: Belongs to the source and not to its copy: our journal, its history, the notes of a download.
LEFT_OUT = {NAME, ".git", os.path.join(".cache", "huggingface")}

_SHA256 = re.compile(r"[0-9a-f]{64}")


class Item(Struct, frozen=True):
    """A file of the source.

    Attributes:
        path: relative to the checkpoint.
        real: the absolute path, without any link, at which its bytes are: in a Hub cache, the blob.
        device: with ``inode``, which file that is.
        inode: see ``device``.
        size: bytes.
        mtime_ns: modification time of the bytes, nanoseconds since 1970.
        mode: permission bits.
        weights: whether it is linked instead of copied.
        sha256: what the Hub named the blob by; ``None`` where the name says nothing. Not verified.
    """

    path: str
    real: str
    device: int
    inode: int
    size: int
    mtime_ns: int
    mode: int
    weights: bool
    sha256: str | None = None

    def is_still(self, status: os.stat_result) -> bool:
        """Whether a status is that of the same file with the same content, as far as it shows."""
        return (self.device, self.inode, self.size, self.mtime_ns) == (
            status.st_dev,
            status.st_ino,
            status.st_size,
            status.st_mtime_ns,
        )


class Tree(Struct):
    """Everything that a mirror has to bring into being, names in order, folders before contents.

    Attributes:
        root: the checkpoint, absolute, without any link.
        folders: relative paths.
        items: the files; links to files are seen as the files that they lead to.
        links: links to folders of the checkpoint: path -> text that leads there in the mirror too.
        notes: sentences about what is left out.
    """

    root: str
    folders: list[str] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    links: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def survey(root: str) -> Tree:
    """List a checkpoint directory; opens no file.

    Raises:
        RefusedError: a link leads out of the checkpoint and its Hub cache.
        UnreadableError: a link leads nowhere, or a directory cannot be listed.
    """
    tree = Tree(os.path.realpath(root))
    homes = [tree.root, *_cache_homes(root), *_cache_homes(tree.root)]
    pending = [""]
    while pending:
        folder = pending.pop()
        for name in _names(tree.root, folder):
            path = os.path.join(folder, name)
            if path not in LEFT_OUT:
                pending += _take(tree, path, homes)
    for paths in (tree.folders, tree.notes):
        paths.sort()
    tree.items.sort(key=lambda item: item.path)
    return tree


def _names(root: str, folder: str) -> list[str]:
    try:
        return os.listdir(os.path.join(root, folder))
    except OSError as error:
        raise unreadable(os.path.join(root, folder), folder or root, error) from error


def _cache_homes(root: str) -> Iterator[str]:
    """Where the links of a Hub cache snapshot may lead: its repository, and the blobs of all."""
    snapshots = os.path.dirname(os.path.abspath(root))
    repository = os.path.dirname(snapshots)
    folder = os.path.basename(repository)
    if os.path.basename(snapshots) == "snapshots" and folder.startswith("models--"):
        yield os.path.realpath(repository)
        yield os.path.join(os.path.realpath(os.path.dirname(repository)), "blobs")


def _take(tree: Tree, path: str, homes: list[str]) -> list[str]:
    """Note one name; the folders to go on with."""
    full = os.path.join(tree.root, path)
    try:
        own = os.lstat(full)
        linked = stat.S_ISLNK(own.st_mode)
        real = os.path.realpath(full, strict=True) if linked else full
        status = os.stat(real, follow_symlinks=False)
    except OSError as error:
        raise unreadable(full, path, error) from error
    if linked and not any(inside(real, home) for home in homes):
        raise _leads_out(path, full, real)
    if stat.S_ISREG(status.st_mode):
        tree.items.append(_item(path, full, real, status))
    elif not stat.S_ISDIR(status.st_mode):
        tree.notes.append(f"{path} is {kind_of(status.st_mode)} and is left out")
    elif not linked:
        tree.folders.append(path)
        return [path]
    elif inside(real, tree.root):
        target = os.path.relpath(real, tree.root)
        tree.links[path] = os.path.relpath(target, os.path.dirname(path))
    else:
        raise _leads_out(path, full, real)
    return []


def _item(path: str, full: str, real: str, status: os.stat_result) -> Item:
    named = os.path.basename(os.readlink(full)) if os.path.islink(full) else ""
    return Item(
        path=path,
        real=real,
        device=status.st_dev,
        inode=status.st_ino,
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
        mode=stat.S_IMODE(status.st_mode) & 0o777,
        weights=is_weights(path, status.st_size),
        sha256=named if _SHA256.fullmatch(named) else None,
    )


def is_weights(path: str, size: int) -> bool:
    """Whether a file is linked instead of copied."""
    return path.lower().endswith(WEIGHTS) or size > LARGE


def inside(path: str, folder: str) -> bool:
    """Whether a path is the folder or below it; both without links."""
    return os.path.commonpath((path, folder)) == folder


def _leads_out(path: str, full: str, real: str) -> RefusedError:
    return RefusedError(
        f"is a link to {os.readlink(full)}, out of this checkpoint; what is there is neither "
        "linked nor copied. Nothing was written",
        path=path,
        hint=f"mirror the directory that the link leads to (ls -ld {quoted(os.path.dirname(real))})"
        ", or put the file itself in the link's place",
    )


def opened(item: Item) -> int:
    """Open a file of the source for reading; it must be the one that was listed.

    Raises:
        UnreadableError: it cannot be opened, or another one stands there now.
    """
    try:
        fd = os.open(item.real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise unreadable(item.real, item.path, error) from error
    if not item.is_still(os.fstat(fd)):
        os.close(fd)
        raise moved(item)
    return fd


def read(item: Item) -> bytes:
    """All bytes of a file that is copied (at most `LARGE`).

    Raises:
        UnreadableError: as `opened`, or it changed while it was read.
    """
    fd = opened(item)
    with os.fdopen(fd, "rb") as file:
        try:
            data = file.read(item.size + 1)
        except OSError as error:
            raise unreadable(item.real, item.path, error) from error
        if len(data) != item.size or not item.is_still(os.fstat(fd)):
            raise moved(item)
    return data


def moved(item: Item) -> UnreadableError:
    """The error for a source that is still being written."""
    return UnreadableError(
        "has changed while the mirror was being made. Nothing was written",
        path=item.path,
        hint="wait until the download or the copy has finished, then run the command again",
    )
