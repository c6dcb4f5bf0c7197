"""A patched revision inside the Hub's cache, beside the one that it is made from.

Engines find it by the repository's name and ``--revision``. It consists of links to blobs; only the
patched files are new. Everything is built in a hidden folder of the repository, and then given its
name piece by piece, so that what has a name is whole::

    blobs/<git's sha1> -> trees/<commit>.json -> snapshots/<commit> -> refs/<name> (commit)

The library's tools treat it as any revision: ``hf cache prune`` keeps it while it has its name.
"""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from patcher import fsio
from patcher.errors import RefusedError, UnconfirmedError, WriteError
from patcher.headers.files import quoted
from patcher.in_cache import refuse_own
from patcher.mirroring import cache_standing, drafting, listing, revision, source, workspace
from patcher.mirroring.building import describe
from patcher.mirroring.making import require_cured, require_still
from patcher.mirroring.manifest import read
from patcher.transaction import interrupts
from patcher.transaction.failures import cause

if TYPE_CHECKING:
    from collections.abc import Iterator

    from patcher.checkpoint import Checkpoint
    from patcher.mirroring.listing import Tree
    from patcher.mirroring.manifest import Manifest, MirroredFile
    from patcher.mirroring.revision import Revision
    from patcher.mirroring.workspace import Workspace
    from patcher.planning import Plan
    from patcher.transaction.interrupts import Interrupts

#: The same for all names, so that each run removes what a killed one has left.
WORKSPACE = workspace.name_for("cache revision")

#: What says that a file system has no links of this kind.
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}


class PreparedRevision(Struct, frozen=True):
    """A revision that can be made.

    Attributes:
        name: by which it will be found.
        folder: of the repository in the cache, absolute, without links.
        plan: the patch.
        tree: the snapshot that it is made from.
        manifest: as it will be, without the links.
        revision: what it consists of.
        standing: what the name means now: nothing, this very revision, or an older one of ours.
    """

    name: str
    folder: str
    plan: Plan
    tree: Tree
    manifest: Manifest
    revision: Revision
    standing: cache_standing.Standing

    @property
    def path(self) -> str:
        """The directory of its snapshot."""
        return os.path.join(self.folder, "snapshots", self.revision.commit)


class CacheRevision(Struct, frozen=True):
    """A revision that is there.

    Attributes:
        name: by which it is found where the Hub is not asked.
        commit: its 40 hexadecimal digits.
        path: the directory of its snapshot.
        outcome: ``made``; ``replaced``: the name meant an older one; ``current``: nothing was done.
        manifest: what it is made of.
        notes: sentences about what was left out.
    """

    name: str
    commit: str
    path: str
    outcome: Literal["made", "replaced", "current"]
    manifest: Manifest
    notes: tuple[str, ...]


def prepare(checkpoint: Checkpoint, plan: Plan, name: str) -> PreparedRevision:
    """See whether the revision can be made; reads metadata, writes nothing.

    Args:
        checkpoint: a snapshot in a Hub cache.
        plan: of this checkpoint.
        name: that it shall have.

    Raises:
        UsageError: the checkpoint is in no Hub cache, or the name cannot be one.
        RefusedError: it would not start, the name is that of a branch or tag, the cache cannot be
            written or has no links, or the source is a revision of ours or in a transaction.
        UnreadableError: a file cannot be read, is missing, or changed since the plan.
    """
    revision.require_name(name)
    folder = cache_standing.folder_of(checkpoint)
    refuse_own(checkpoint.root)
    require_cured(plan)
    source.require_settled(checkpoint.root)
    tree = listing.survey(str(checkpoint.root))
    source.require_complete(checkpoint, plan, tree)
    manifest = drafting.draft(checkpoint, plan, tree, "symlink")
    made = revision.compose(folder, plan, tree, manifest)
    standing = cache_standing.standing(folder, name, made)
    if standing != "current":
        cache_standing.require_writable(folder, plan)
    return PreparedRevision(name, folder, plan, tree, manifest, made, standing)


def make(prepared: PreparedRevision) -> CacheRevision:
    """Make the revision; by its name it is there whole or not at all.

    Raises:
        RefusedError: links are not possible, or something else has got the name.
        UnreadableError: the source has changed.
        WriteError: the disk failed; the name means what it did (`UnconfirmedError`: it is made).
        InterruptedError_: a signal came; the name means what it did.
    """
    folder = prepared.folder
    with interrupts.deferred() as signals, fsio.open_dir(folder) as folder_fd:
        if prepared.standing == "current":
            _tidy(folder_fd, folder, signals)
            return _done(prepared, "current", signals)
        try:
            with workspace.held(folder_fd, folder, WORKSPACE, signals) as work:
                # Another one may have been faster.
                standing = cache_standing.standing(folder, prepared.name, prepared.revision)
                if standing != "current":
                    _make(prepared, work, folder_fd, signals)
        except OSError as error:
            raise WriteError(
                f"{cause(folder_fd, error)}. The revision {prepared.name} is as it was before",
                path=folder,
            ) from error
        outcomes: dict[str, Literal["made", "replaced", "current"]] = {
            "absent": "made", "outdated": "replaced", "current": "current",
        }  # fmt: skip
        return _done(prepared, outcomes[standing], signals)


def _tidy(folder_fd: int, folder: str, signals: Interrupts) -> None:
    """Remove what a killed run left; a revision that is there needs none of it."""
    with suppress(OSError, RefusedError):
        if fsio.exists(folder_fd, WORKSPACE):
            with workspace.held(folder_fd, folder, WORKSPACE, signals):
                return


def _done(
    prepared: PreparedRevision,
    outcome: Literal["made", "replaced", "current"],
    signals: Interrupts,
) -> CacheRevision:
    manifest = read(prepared.path)
    assert manifest is not None
    commit, notes = prepared.revision.commit, (*prepared.tree.notes, *interrupts.late(signals))
    return CacheRevision(prepared.name, commit, prepared.path, outcome, manifest, notes)


def _make(prepared: PreparedRevision, work: Workspace, folder_fd: int, signals: Interrupts) -> None:
    made = prepared.revision
    with fsio.open_dir(work.tree, work.fd) as fd:
        if not os.path.lexists(prepared.path):
            _build(prepared, fd, folder_fd, signals)
        with _inner(folder_fd, "trees") as trees_fd:
            fsio.create(fd, "listing", made.listing)
            fsio.rename(fd, "listing", f"{made.commit}.json", trees_fd)
            fsio.fsync_dir(trees_fd, "trees")
        signals.check()
        with _inner(folder_fd, "snapshots") as snapshots_fd:
            if not fsio.exists(snapshots_fd, made.commit):
                fsio.rename(fd, "snapshot", made.commit, snapshots_fd)
            fsio.fsync_dir(snapshots_fd, "snapshots")
        _name(prepared, fd, folder_fd)


def _build(prepared: PreparedRevision, fd: int, folder_fd: int, signals: Interrupts) -> None:
    """Make the snapshot in the workspace, and the blobs that are new under their names."""
    fsio.mkdir(fd, "snapshot")
    with fsio.open_dir("snapshot", fd) as snapshot_fd:
        _link(prepared, snapshot_fd, signals)
        require_still(prepared.tree)
        signals.check()
        _add_blobs(prepared.revision, fd, folder_fd)
        files = tuple(_files(prepared))
        describe(snapshot_fd, replace(prepared.manifest, files=files))
        for path in (*prepared.tree.folders, "."):
            with fsio.open_dir(path, snapshot_fd) as inner_fd:
                fsio.fsync_dir(inner_fd, path)


def _link(prepared: PreparedRevision, snapshot_fd: int, signals: Interrupts) -> None:
    for path in prepared.tree.folders:
        with fsio.open_dir(os.path.dirname(path) or ".", snapshot_fd) as fd:
            fsio.mkdir(fd, os.path.basename(path))
    for path, text in prepared.revision.links.items():
        signals.check()
        with fsio.open_dir(os.path.dirname(path) or ".", snapshot_fd) as fd:
            try:
                fsio.symlink(fd, os.path.basename(path), text)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                why = f"symbolic links are not possible here ({error.strerror})"
                raise revision.no_links(prepared.folder, prepared.plan, why) from error


def _add_blobs(made: Revision, fd: int, folder_fd: int) -> None:
    with _inner(folder_fd, "blobs") as blobs_fd:
        for blob, data in made.blobs.items():
            if not fsio.exists(blobs_fd, blob):
                fsio.create(fd, blob, data, mode=made.modes[blob])
                _give(fd, blob, blobs_fd, blob)
        fsio.fsync_dir(blobs_fd, "blobs")


def _files(prepared: PreparedRevision) -> Iterator[MirroredFile]:
    """The files of the manifest as links, each with what it leads to."""
    items = {item.path: item for item in prepared.tree.items}
    for file in prepared.manifest.files:
        text, item = prepared.revision.links[file.path], items[file.path]
        inode, size, mtime_ns = item.inode, item.size, item.mtime_ns
        blob = os.path.basename(text)
        if blob in prepared.revision.blobs:
            status = os.stat(os.path.join(prepared.folder, "blobs", blob))
            inode, size, mtime_ns = status.st_ino, status.st_size, status.st_mtime_ns
        yield replace(
            file, link="symlink", link_target=text, inode=inode, size=size, mtime_ns=mtime_ns
        )


def _name(prepared: PreparedRevision, fd: int, folder_fd: int) -> None:
    """Let the name mean the revision: from here on it is found."""
    name, made = prepared.name, prepared.revision
    fsio.create(fd, "ref", made.commit.encode())
    with _inner(folder_fd, "refs") as refs_fd:
        _give(fd, "ref", refs_fd, name)
        if cache_standing.standing(prepared.folder, name, made) == "outdated":
            fsio.rename(fd, "ref", name, refs_fd)
        try:
            fsio.fsync_dir(refs_fd, "refs")
        except OSError as error:
            raise UnconfirmedError(
                f"made, but not confirmed durable: {cause(folder_fd, error)}",
                path=prepared.path,
                hint=f"sync; ckpt-patch verify {quoted(prepared.path)}",
            ) from error


def _give(fd: int, name: str, target_fd: int, target: str) -> None:
    """Give a finished file its name; what has come there meanwhile is not replaced."""
    try:
        fsio.link(fd, name, target_fd, target)
    except FileExistsError:
        return
    except OSError as error:
        if fsio.exists(target_fd, target):  # it happened, and the answer was lost
            return
        if error.errno not in _NO_LINKS:
            raise
        fsio.rename(fd, name, target, target_fd)


@contextmanager
def _inner(folder_fd: int, name: str) -> Iterator[int]:
    """Open a folder of the repository; one that it has not had yet is made."""
    if not fsio.exists(folder_fd, name):
        with suppress(FileExistsError):
            fsio.mkdir(folder_fd, name)
        fsio.fsync_dir(folder_fd, ".")
    with fsio.open_dir(name, folder_fd) as fd:
        yield fd
