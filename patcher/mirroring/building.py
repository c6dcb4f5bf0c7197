"""Build the tree of a mirror inside the workspace."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec.structs import replace

from patcher import fsio
from patcher.edits import sha256
from patcher.mirroring import linking, listing
from patcher.mirroring.manifest import FILE, encode
from patcher.transaction.journal import NAME

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from patcher.mirroring.listing import Item
    from patcher.mirroring.making import Prepared
    from patcher.mirroring.manifest import Manifest, MirroredFile
    from patcher.mirroring.workspace import Workspace
    from patcher.transaction.interrupts import Interrupts


def build(
    prepared: Prepared, work: Workspace, signals: Interrupts
) -> tuple[Manifest, tuple[str, ...]]:
    """Build everything, durably; the manifest with its links, and sentences about them.

    Raises:
        RefusedError: a link is not possible.
        UnreadableError: the source has changed.
        InterruptedError_: a signal came.
        OSError: the disk failed.
    """
    tree, manifest = prepared.tree, prepared.manifest
    wanted = {file.path: file for file in manifest.files}
    edited = {edit.file: edit.after for edit in prepared.plan.edits}
    done: list[MirroredFile] = []
    failed: dict[str, None] = {}  # a set that keeps its order
    with fsio.open_dir(work.tree, work.fd) as root_fd:
        for folder in tree.folders:
            with _folder(root_fd, os.path.dirname(folder)) as fd:
                fsio.mkdir(fd, os.path.basename(folder))
        for item in tree.items:
            signals.check()
            with _folder(root_fd, os.path.dirname(item.path)) as fd:
                if item.weights:
                    file = _link(prepared, item, fd, wanted[item.path], failed, signals)
                else:
                    file = _own(item, fd, wanted[item.path], edited.get(item.path))
            done.append(file)
        for path, text in tree.links.items():
            with _folder(root_fd, os.path.dirname(path)) as fd:
                fsio.symlink(fd, os.path.basename(path), text)
        built = replace(manifest, files=tuple(done))
        describe(root_fd, built)
        for folder in (*tree.folders, ""):
            with _folder(root_fd, folder) as fd:
                fsio.fsync_dir(fd, folder or work.tree)
    return built, tuple(failed)


def _folder(root_fd: int, path: str) -> AbstractContextManager[int]:
    """Open a folder of the new tree, in which nobody else works."""
    return fsio.open_dir(path or ".", root_fd)


def _link(  # noqa: PLR0913, PLR0917 - one step of the loop above
    prepared: Prepared,
    item: Item,
    folder_fd: int,
    file: MirroredFile,
    failed: dict[str, None],
    signals: Interrupts,
) -> MirroredFile:
    start = os.path.join(prepared.place.path, os.path.dirname(item.path))
    text = os.path.relpath(item.real, start)
    spot = linking.Spot(folder_fd, os.path.basename(item.path), text)
    placed = linking.place(item, spot, prepared.manifest.link, signals.check)
    for link, why in placed.failed:
        failed[f"{link} is not possible here ({why})"] = None
    return replace(file, link=placed.link, link_target=text if placed.link == "symlink" else None)


def _own(item: Item, folder_fd: int, file: MirroredFile, after: bytes | None) -> MirroredFile:
    """A file that belongs to the mirror: patched, or an exact copy with its time."""
    name = os.path.basename(item.path)
    if after is not None:
        fsio.create(folder_fd, name, after, mode=item.mode)
        return file
    data = listing.read(item)
    if sha256(data) != file.before_sha256:
        raise listing.moved(item)
    fsio.create(folder_fd, name, data, mode=item.mode, mtime_ns=item.mtime_ns)
    return file


def describe(root_fd: int, manifest: Manifest) -> None:
    """The last thing to be written: what all of it is."""
    fsio.mkdir(root_fd, NAME)
    with fsio.open_dir(NAME, root_fd) as fd:
        fsio.create(fd, ".gitignore", b"*\n")
        fsio.create(fd, FILE, encode(manifest), mode=0o444)
        fsio.fsync_dir(fd, NAME)
