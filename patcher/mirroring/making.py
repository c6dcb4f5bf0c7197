"""Make a mirror: look at everything first, build beside the destination, rename.

::

    plan -> list the source -> is the destination free, ours, or foreign?
         -> build a whole tree in the hidden workspace, every own file on disk
         -> is the source still the same? -> rename to the destination (commit)
"""

from __future__ import annotations

import errno
import os
import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from patcher import __version__, fsio
from patcher.edits import sha256
from patcher.errors import RefusedError, UnconfirmedError, UsageError, WriteError
from patcher.headers.files import quoted
from patcher.mirroring import building, destination, listing, workspace
from patcher.mirroring.linking import METHODS
from patcher.mirroring.manifest import Manifest, MirroredFile, Source
from patcher.transaction import interrupts
from patcher.transaction.failures import cause
from patcher.transaction.interrupts import late

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from patcher.checkpoint import Checkpoint
    from patcher.mirroring.destination import Destination
    from patcher.mirroring.listing import Item, Tree
    from patcher.mirroring.workspace import Workspace
    from patcher.planning import Plan
    from patcher.transaction.interrupts import Interrupts

Outcome = Literal["made", "replaced", "current"]


@dataclass(frozen=True, slots=True)
class Prepared:
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


@dataclass(frozen=True, slots=True)
class Mirrored:
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


def prepare(checkpoint: Checkpoint, plan: Plan, target: Path | str, link: str = "auto") -> Prepared:
    """See whether the mirror can be made; reads metadata, writes nothing.

    Args:
        checkpoint: the source.
        plan: of this checkpoint.
        target: where the mirror shall be.
        link: one of `METHODS`.

    Raises:
        RefusedError: the mirror would not start, the destination is something else or in the wrong
            place, the source is in the middle of a transaction, or a link leads out of it.
        UnreadableError: a file cannot be read, or changed since the plan.
        UsageError: source and destination are the same, or ``link`` is unknown.
    """
    if link not in METHODS:
        raise UsageError(f"{link!r} is no way to link", hint=f"--link {'|'.join(METHODS)}")
    _require_cured(plan)
    place = destination.locate(target)
    destination.require_apart(str(checkpoint.root), place)
    destination.require_settled(checkpoint.root)
    tree = listing.survey(str(checkpoint.root))
    manifest = _manifest(checkpoint, plan, tree, link)
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
        if prepared.standing == "current" and not fsio.exists(parent_fd, name):
            return _current(prepared)
        try:
            with workspace.held(parent_fd, place.parent, name, signals) as work:
                mirrored = _make(prepared, work, parent_fd, signals)
        except OSError as error:
            raise WriteError(
                f"{cause(parent_fd, error)}. {place.path} is as it was before", path=place.path
            ) from error
    return replace(mirrored, notes=(*mirrored.notes, *late(signals)))


def _make(
    prepared: Prepared, work: Workspace, parent_fd: int, signals: Interrupts
) -> Mirrored:
    place, tree = prepared.place, prepared.tree
    standing = destination.standing(place, prepared.manifest)  # another one may have been faster
    if standing == "current":
        return _current(prepared)
    signals.check()
    manifest, failed = building.build(prepared, work, signals)
    _require_still(tree)
    signals.check()
    if not _install(work, parent_fd, place, standing):
        return _make(prepared, replace(work, tree=_again(work)), parent_fd, signals)
    try:
        fsio.fsync_dir(parent_fd, place.parent)
    except OSError as error:
        raise UnconfirmedError(
            f"made, but not confirmed durable: {cause(parent_fd, error)}",
            path=place.path,
            hint=f"sync; ckpt-patch verify {quoted(place.path)}",
        ) from error
    outcome: Outcome = "made" if standing == "absent" else "replaced"
    return Mirrored(place.path, outcome, manifest, (*tree.notes, *failed))
