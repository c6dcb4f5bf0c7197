"""A plan in words: what changes, for whom it is needed, what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from patcher import engines, jsontext
from patcher.cli.options import one_target
from patcher.planning import SPOILED, plan
from patcher.releases import ranges
from patcher.report.escape import plain, value
from patcher.report.human import apply_command, columns, number, shell_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from patcher.checkpoint import Checkpoint
    from patcher.planning import Plan


def make(checkpoint: Checkpoint, recipe: str | None, launch: dict[str, Any]) -> Plan:
    """The plan for one checkpoint and the one GPU of this command line."""
    return plan(checkpoint, one_target("apply", str(checkpoint.root), launch), recipe)


def values(plan: Plan) -> Iterator[str]:
    """One line per changed value, old and new."""
    rows = []
    for edit in plan.edits:
        before = jsontext.read(edit.before, source=edit.file).value
        for operation in edit.patch:
            if operation["op"] == "test":
                continue
            pointer = operation["path"]
            old = jsontext.resolve(before, pointer)
            shown = "(absent)" if old is jsontext.MISSING else value(old)
            rows.append((edit.file, plain(pointer), f"{shown} -> {value(operation['value'])}"))
    yield from columns(rows)


def scope(plan: Plan) -> Iterator[str]:
    """For which releases the patch is needed, and what it costs."""
    before, after = plan.before, plan.after
    yield from (f"{plain(note)}." for note in before.judgement.notes)
    if before.judgement.portable:
        engine = before.judgement.portable[0].engine
        fine = [i.release for i in before.judgement.portable if i.state == "runs"]
        if fine:
            known = engines.releases(engine)
            spared = ranges(fine, known).rpartition(" ")[2]
            yield (
                f"The patch is not needed with {engines.NAMES[engine]} {ranges(fine, known)}. "
                f"If you run one of them, name it: --engine {engine}=={spared}"
            )
    for finding in after.findings if after else ():
        if finding.id == SPOILED:
            yield f"Warning: {finding.id}: {plain(finding.message)}."
    cost = before.cost.before, after.cost.before if after else None
    if cost[0] is not None and cost[1] is not None and cost[0] != cost[1]:
        yield (
            f"KV cache: {number(cost[0])} -> {number(cost[1])} bytes per token "
            f"({cost[1] / cost[0]:.3g} times)."
        )


def nothing(plan: Plan, checkpoint: Checkpoint) -> Iterator[str]:
    """Why there is nothing to do."""
    from patcher.transaction import status  # noqa: PLC0415 - lazy: only this answer needs it

    present = status(checkpoint.root)
    record = present.record
    patches = [cure.recipe for cure in plan.before.cures if cure.kind == "patch"]
    if present.state == "patched" and record is not None:
        yield (
            f"Nothing to do: already applied as {record.id:04d} on {record.created[:10]} "
            f"({plain(record.recipe)})."
        )
        yield f"Undo: ckpt-patch undo {shell_path(str(checkpoint.root))}"
    elif plan.before.is_failing and patches:
        yield "It starts, and is expected to fail at run time; that was read, not run, so"
        yield "nothing was changed. To patch all the same:"
        yield f"  {apply_command(plan.before, patches[0])}"
    elif plan.before.outcome == "compatible":
        yield "Nothing to do: no patch is needed on this target. Nothing was changed."
        yield from (f"{plain(note)}." for note in plan.before.judgement.notes)
    else:
        yield "Nothing to do: the recipe has nothing to change here. Nothing was changed."
