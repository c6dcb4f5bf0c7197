"""``ckpt-patch undo``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from patcher import history
from patcher.cli.options import output_options
from patcher.errors import RefusedError
from patcher.in_cache import located
from patcher.report.escape import plain
from patcher.transaction import status, undo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from patcher.cli.output import Output
    from patcher.transaction import Undone, UndoneTransaction

ACTIONS = {
    "restore": "restored (bytes, mode, time and kind of link)",
    "merge": "the patch's own keys taken back; your edits stay",
    "overwrite": "restored; a copy of the edited file is in the record",
    "none": "was put back by something else already",
}


@click.command(
    epilog="Exit codes: 0 undone or nothing to undo, 3 refused and nothing written. "
    "Example: ckpt-patch undo ./Kimi-K2.5-NVFP4"
)
@click.argument("checkpoint", metavar="[CKPT]", required=False, type=click.Path())
@click.option("--to", type=int, metavar="N", help="Take back every transaction after N; 0: all.")
@click.option("--all", "everything", is_flag=True, help="Take back every transaction.")
@click.option("--merge", is_flag=True, help="In edited files take back only the patch's own keys.")
@click.option("--force", is_flag=True, help="Restore edited files too; keep a copy in the record.")
@click.option("--dry-run", is_flag=True, help="Show the diff; change nothing.")
@click.option("--wait", type=float, default=0.0, metavar="SECONDS", help="Wait for another writer.")
@output_options()
def command(
    out: Output,
    checkpoint: str | None,
    to: int | None,
    everything: bool,
    **options: Any,
) -> None:
    """Take the last patch back, byte for byte.

    Without CKPT: the current directory if it is patched, else the checkpoint patched last.
    """
    root = located(checkpoint) if checkpoint else _default(out)
    undone = undo(root, to=0 if everything else to, **options)
    for sentence in (*undone.recovered, *undone.warnings):
        out.note(f"Note: {plain(sentence)}.")
    if out.format == "json":
        out.document(_document(undone, root, dry_run=options["dry_run"]))
    elif out.format == "quiet":
        out.answer(step.file for each in undone.transactions for step in each.steps)
    elif not undone.transactions:
        out.answer(f"Nothing to undo: {plain(str(root))} has no patch applied.")
    elif options["dry_run"]:
        for each in undone.transactions:
            out.raw("".join(step.diff() for step in each.steps))
        out.answer("Nothing was changed (--dry-run).")
    else:
        for each in undone.transactions:
            out.answer(_lines(each))


def _default(out: Output) -> Path:
    here = Path.cwd()
    try:
        if status(here).state != "pristine":
            return here
    except RefusedError:
        return here
    found = history.last()
    if found is None:
        raise RefusedError(
            "neither the current directory nor any checkpoint in your history is patched",
            hint="name it: ckpt-patch undo CKPT",
        )
    out.note(f"Undoing the checkpoint patched last: {plain(str(found))}")
    return found


def _lines(each: UndoneTransaction) -> Iterator[str]:
    for step in each.steps:
        yield f"{step.file}  {ACTIONS[step.action]}"
    yield (
        f"Undone: transaction {each.record.id:04d} ({plain(each.record.recipe)}). "
        "No weights were read or changed."
    )


def _document(undone: Undone, root: Path, *, dry_run: bool) -> dict[str, Any]:
    return {
        "schema": "ckpt-patch/undo@1",
        "checkpoint": str(root),
        "dry_run": dry_run,
        "recovered": list(undone.recovered),
        "warnings": list(undone.warnings),
        "transactions": [
            {
                "transaction": each.record.id,
                "recipe": each.record.recipe,
                "files": [
                    {
                        "file": step.file,
                        "action": step.action,
                        "before_sha256": None if step.present is None else step.present.sha256,
                        "after_sha256": step.wanted.sha256,
                    }
                    for step in each.steps
                ],
            }
            for each in undone.transactions
        ],
    }
