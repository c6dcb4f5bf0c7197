"""Make a mirror: look at everything first, build beside the destination, rename.

::

    plan -> list the source -> is the destination free, ours, or foreign?
         -> build a whole tree in the hidden workspace, every own file on disk
         -> is the source still the same? -> rename to the destination (commit)
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from patcher import fsio
from patcher.errors import RefusedError, RollbackError, UnconfirmedError, UsageError, WriteError
from patcher.headers.files import StrPath, quoted
from patcher.mirroring import (
    building,
    config_folder,
    destination,
    drafting,
    listing,
    source,
    workspace,
)
from patcher.mirroring.linking import METHODS
from patcher.mirroring.manifest import Manifest, read
from patcher.transaction import interrupts
from patcher.transaction.failures import cause
from patcher.transaction.interrupts import late

if TYPE_CHECKING:
    from patcher.checkpoint import Checkpoint
    from patcher.mirroring.destination import Destination
    from patcher.mirroring.listing import Tree
    from patcher.mirroring.workspace import Workspace
    from patcher.planning import Plan
    from patcher.transaction.interrupts import Interrupts

Outcome = Literal["made", "replaced", "current"]


class Prepared(Struct, frozen=True):
    """A mirror that can be made.

    Attributes:
        plan: the patch.
        tree: the source.
        manifest: as it will be, without the links, which only show when they are made.
        place: where it will be.
        standing: what is there now: nothing, this very mirror, or an older one.
    """

    plan: Plan
    tree: Tree
    manifest: Manifest
    place: Destination
    standing: destination.Standing


class Mirrored(Struct, frozen=True):
    """A mirror that is there.

    Attributes:
        path: where it is, absolute.
        outcome: ``made``; ``replaced``, an older one; or ``current``, nothing was to be done.
        manifest: what it is made of.
        notes: sentences about what was left out, and which links were not possible.
    """

    path: str
    outcome: Outcome
    manifest: Manifest
    notes: tuple[str, ...]


def prepare(
    checkpoint: Checkpoint,
    plan: Plan,
    target: StrPath,
    link: str = "auto",
    *,
    config_only: bool = False,
) -> Prepared:
    """See whether the mirror can be made; reads metadata, writes nothing.

    Args:
        checkpoint: the source.
        plan: of this checkpoint.
        target: where the mirror shall be.
        link: one of `METHODS`.
        config_only: only what vLLM's ``--hf-config-path`` reads.

    Raises:
        RefusedError: the mirror would not start, the destination is something else or in the wrong
            place, the source is in the middle of a transaction, or a link leads out of it.
        UnreadableError: a file cannot be read, is missing, or changed since the plan.
        UsageError: source and destination are the same, or ``link`` is unknown.
    """
    if link not in METHODS:
        raise UsageError(f"{link!r} is no way to link", hint=f"--link {'|'.join(METHODS)}")
    require_cured(plan)
    place = destination.locate(target)
    destination.require_apart(str(checkpoint.root), place)
    source.require_settled(checkpoint.root)
    tree = listing.survey(str(checkpoint.root))
    if config_only:
        config_folder.require_obeyed(checkpoint, plan, place.path)
        tree = config_folder.narrowed(tree)
    else:
        source.require_complete(checkpoint, plan, tree)
    manifest = drafting.draft(checkpoint, plan, tree, link, config_only=config_only)
    return Prepared(plan, tree, manifest, place, destination.standing(place, manifest))


def make(prepared: Prepared) -> Mirrored:
    """Make the mirror, whole or not at all.

    Raises:
        RefusedError: a link is not possible, or something else has come to the destination.
        UnreadableError: the source has changed.
        WriteError: the disk failed; the destination is as before (`UnconfirmedError`: made).
        InterruptedError_: a signal came; the destination is as before.
    """
    place = prepared.place
    name = workspace.name_for(place.name)
    with interrupts.deferred() as signals, destination.opened(place) as parent_fd:
        if prepared.standing == "current":
            _tidy(parent_fd, place.parent, name, signals)
            return _current(prepared)
        try:
            with workspace.held(parent_fd, place.parent, name, signals) as work:
                mirrored = _make(prepared, work, parent_fd, signals)
        except OSError as error:
            raise WriteError(
                f"{cause(parent_fd, error)}. {place.path} is as it was before", path=place.path
            ) from error
    return replace(mirrored, notes=(*mirrored.notes, *late(signals)))


def _make(prepared: Prepared, work: Workspace, parent_fd: int, signals: Interrupts) -> Mirrored:
    place, tree = prepared.place, prepared.tree
    standing = destination.standing(place, prepared.manifest)  # another one may have been faster
    if standing == "current":
        return _current(prepared)
    signals.check()
    manifest, failed = building.build(prepared, work, signals)
    require_still(tree)
    signals.check()
    outcome = _install(prepared, work, parent_fd, standing)
    if outcome == "current":
        return _current(prepared)
    try:
        fsio.fsync_dir(parent_fd, place.parent)
    except OSError as error:
        raise UnconfirmedError(
            f"made, but not confirmed durable: {cause(parent_fd, error)}",
            path=place.path,
            hint=f"sync; ckpt-patch verify {quoted(place.path)}",
        ) from error
    return Mirrored(place.path, outcome, manifest, (*tree.notes, *failed))


def _tidy(parent_fd: int, parent: str, name: str, signals: Interrupts) -> None:
    """Remove what a killed run left beside its mirror; a mirror that is there needs none of it."""
    with suppress(OSError, RefusedError):
        if fsio.exists(parent_fd, name):
            with workspace.held(parent_fd, parent, name, signals):
                return


def _current(prepared: Prepared) -> Mirrored:
    present = read(prepared.place.path)
    assert present is not None
    return Mirrored(prepared.place.path, "current", present, tuple(prepared.tree.notes))


def require_still(tree: Tree) -> None:
    """The mirror is of one state of the source, not of two.

    Raises:
        UnreadableError: the source has changed.
    """
    for item in tree.items:
        try:
            same = item.is_still(os.stat(item.real, follow_symlinks=False))
        except OSError:
            same = False
        if not same:
            raise listing.moved(item)


def _install(
    prepared: Prepared, work: Workspace, parent_fd: int, standing: destination.Standing
) -> Outcome:
    """Give the finished tree its name: the commit."""
    place = prepared.place
    if standing == "absent":
        try:
            fsio.rename(work.fd, work.tree, place.name, parent_fd)
        except OSError as error:
            if error.errno == errno.EBUSY:
                raise destination.mount_point(place) from error
            if error.errno not in {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR}:
                raise
            # Something has come to the destination. It is this mirror, an older one, or foreign.
            if destination.standing(place, prepared.manifest) == "current":
                return "current"
        else:
            return "made"
    _replace(work, parent_fd, place)
    return "replaced"


def _replace(work: Workspace, parent_fd: int, place: Destination) -> None:
    """Take the place of an older mirror: at one instant where the file system can."""
    try:
        fsio.exchange(work.fd, work.tree, parent_fd, place.name)
    except OSError as error:
        if error.errno not in {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP}:
            raise
    else:
        return
    former = f"old.{os.urandom(8).hex()}"
    fsio.rename(parent_fd, place.name, former, work.fd)
    try:
        fsio.rename(work.fd, work.tree, place.name, parent_fd)
    except OSError as error:
        _put_back(work, former, parent_fd, place, error)
        raise
    workspace.remove(work.fd, former)


def _put_back(
    work: Workspace, former: str, parent_fd: int, place: Destination, error: OSError
) -> None:
    try:
        fsio.rename(work.fd, former, place.name, parent_fd)
    except OSError as second:
        raise RollbackError(
            f"{cause(parent_fd, error)}, and the mirror that was here could not be put back: "
            f"{second}. It is in {os.path.join(place.parent, work.name, former)}",
            path=place.path,
            hint="run the same command again: it makes the mirror anew",
        ) from error


def require_cured(plan: Plan) -> None:
    """A mirror that would not start either is not made.

    Raises:
        RefusedError: it would not.
    """
    verdict = plan.after or plan.before
    if verdict.outcome == "conflict":
        raise RefusedError(
            f"the mirror would not start either: {verdict.errors[0].message}. Nothing was written",
            path=verdict.path,
            hint=f"ckpt-patch check --target {verdict.target.gpu.name} {quoted(verdict.path)}",
        )
