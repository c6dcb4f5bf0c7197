"""The library in four calls: what the command line does, without printing.

from patcher import Target, apply, check, plan, undo

target = Target.parse("sm120", engine="vllm==0.16.0")
if check("./Kimi-K2.5-NVFP4", target).outcome == "conflict":
    apply("./Kimi-K2.5-NVFP4", target)
undo("./Kimi-K2.5-NVFP4")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from patcher import checking, planning, transaction
from patcher.checkpoint import open_checkpoint

if TYPE_CHECKING:
    import os

    from patcher.edits import Change
    from patcher.mirroring import Mirrored
    from patcher.planning import Plan
    from patcher.target import Target
    from patcher.transaction import Applied, Record
    from patcher.verdict import Verdict

    StrPath = str | os.PathLike[str]


def check(path: StrPath, target: Target) -> Verdict:
    """What the target does with the checkpoint at ``path``. Reads no weights, changes nothing.

    Raises:
        UnreadableError: a file cannot be read or does not describe a model.
        RefusedError: TensorRT-LLM's own layout.
    """
    return checking.check(open_checkpoint(path), target)


def plan(path: StrPath, target: Target, recipe: str | None = None) -> Plan:
    """The patch that makes the target start; changes nothing.

    Raises:
        RefusedError: no edit of these files can help.
        UnreadableError: the verdict is unknown, or a file cannot be read.
    """
    return planning.plan(open_checkpoint(path), target, recipe)


def apply(
    path: StrPath, target: Target, recipe: str | None = None, *, wait: float = 0.0
) -> Record | None:
    """Patch the checkpoint; ``None`` when there was nothing to do.

    ``wait``: seconds to wait for another writer.

    Raises:
        RefusedError: nothing was written, the message says why.
        WriteError: the disk failed and everything was rolled back.
    """
    checkpoint = open_checkpoint(path)
    made = planning.plan(checkpoint, target, recipe)
    if not made.edits:
        return None
    return apply_plan(checkpoint.writable_root(), made, wait=wait).record


def undo(
    path: StrPath, *, merge: bool = False, force: bool = False, wait: float = 0.0
) -> Record | None:
    """Take the last patch back; ``None`` when there was none.

    ``merge`` takes only the patch's own keys out of files that were edited since; ``force``
    restores those files too and keeps a copy of each in the record.

    Raises:
        RefusedError: a file was edited since, or a saved original is damaged; nothing was written.
    """
    from pathlib import Path  # noqa: PLC0415 - lazy: the type is needed only here

    undone = transaction.undo(Path(path), merge=merge, force=force, wait=wait)
    return undone.transactions[0].record if undone.transactions else None


def mirror(
    source: StrPath,
    destination: StrPath,
    target: Target,
    recipe: str | None = None,
    *,
    link: str = "auto",
) -> Mirrored:
    """Make a patched copy whose weights are links; the source is not changed.

    ``link``: ``auto`` (reflink, else hardlink, else symlink), one of these, or ``copy``.

    Raises:
        RefusedError: no edit helps, the destination is something else, or a link is not possible.
        UnreadableError: the verdict is unknown, or a file cannot be read.
        WriteError: the disk failed and nothing is left of it.
    """
    from patcher import mirroring  # noqa: PLC0415 - lazy: only this call needs it

    checkpoint = open_checkpoint(source)
    made = planning.plan(checkpoint, target, recipe)
    return mirroring.make(mirroring.prepare(checkpoint, made, destination, link))


def apply_plan(root: StrPath, plan: Plan, *, wait: float = 0.0) -> Applied:
    """Write a plan's edits, with its report in the record."""
    from patcher.report import markdown  # noqa: PLC0415 - lazy: deepdiff costs 130 ms
    from patcher.report.document import Report  # noqa: PLC0415 - the same

    report = Report.of(plan)
    reports = {"report.md": markdown.render(report), "report.json": report.to_json()}
    return apply_change(root, plan.change(), reports, wait=wait)


def apply_change(
    root: StrPath, change: Change, reports: dict[str, bytes], *, wait: float = 0.0
) -> Applied:
    """Write a change that was planned elsewhere, and remember the checkpoint for ``undo``."""
    from pathlib import Path  # noqa: PLC0415 - lazy: the type is needed only here

    from patcher import history  # noqa: PLC0415 - lazy: only writing needs it

    applied = transaction.apply(Path(root), change, attachments=reports, wait=wait)
    history.remember(Path(root))
    return applied
