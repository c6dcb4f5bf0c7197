"""Whether a checkpoint can be mirrored: all of it is here, and nobody is at work in it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from patcher import fsio, planning
from patcher.checkpoint import open_checkpoint
from patcher.errors import RefusedError, UnreadableError
from patcher.headers import INDEX_FILE, tally_index
from patcher.headers.files import quoted
from patcher.transaction.journal import NAME, Journal
from patcher.transaction.recovery import INTERRUPTED

if TYPE_CHECKING:
    from pathlib import Path

    from patcher.checkpoint import Checkpoint
    from patcher.mirroring.listing import Tree
    from patcher.planning import Plan

_SHOWN = 3


def downloaded(
    checkpoint: Checkpoint, plan: Plan, recipe: str | None = None
) -> tuple[Checkpoint, Plan]:
    """All of a repository on the Hub, as a snapshot like any other, with its plan.

    What is here already is returned as it is.

    Args:
        checkpoint: the source.
        plan: of it, made before anything large is fetched.
        recipe: that the plan was asked for with.

    Raises:
        UnreadableError: a file did not arrive, or arrived damaged.
    """
    if checkpoint.remote is None:
        return checkpoint, plan
    checkpoint.remote.download()
    here = open_checkpoint(checkpoint.root)
    return here, planning.plan(here, plan.before.target, recipe)


def require_settled(root: Path) -> None:
    """The source must not be in the middle of a transaction: its files would not fit together.

    Raises:
        RefusedError: it is.
    """
    try:
        with fsio.open_dir(os.path.join(root, NAME)) as fd:
            unsettled = Journal(root, fd, fd).transactions(*INTERRUPTED)
    except OSError:
        return
    if any(each.state != "staging" for each in unsettled):
        raise RefusedError(
            "a transaction of the source is not finished. Nothing was written",
            path=str(root),
            hint=f"wait for it, or finish it: ckpt-patch recover {quoted(root)}",
        )


def require_complete(checkpoint: Checkpoint, plan: Plan, tree: Tree) -> None:
    """All shards must be here: of a repository on the Hub, the cache may have the metadata alone.

    The plan has looked for those that the index names, if the verdict asked for them.

    Raises:
        UnreadableError: some are missing, or the index cannot be read.
    """
    here = {item.path for item in tree.items}
    wanted = {name for name, kind in checkpoint.entries.items() if kind == "remote"}
    seen = plan.before.judgement.evidence if checkpoint.remote is None else None
    if seen and seen.source == "index":
        wanted.update(seen.missing_shards)
    elif INDEX_FILE in here:
        path = os.path.join(tree.root, INDEX_FILE)
        wanted |= tally_index(path, download=checkpoint.origin.download)[0].shards
    missing = sorted(wanted - here)
    if checkpoint.origin.kind == "hub" and not any(item.weights for item in tree.items):
        missing = missing or ["its weights"]
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise UnreadableError(
            f"is not complete here, so it cannot be mirrored: {', '.join(missing[:_SHOWN])}{more} "
            "missing. Nothing was written",
            path=checkpoint.name,
            hint=f"{checkpoint.origin.download}; then run the command again",
        )
