"""``ckpt-patch status``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from patcher.cli.options import gravest, output_options
from patcher.cli.output import error_document
from patcher.errors import CkptPatchError
from patcher.report.escape import plain
from patcher.report.human import columns, shell_path
from patcher.transaction import status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from patcher.cli.output import Output
    from patcher.transaction import Status

WORDS = {
    "pristine": "no patch of ckpt-patch is applied",
    "patched": "patched, and intact",
    "edited": "edited after apply, not by ckpt-patch",
    "reverted": "something else has put the originals back (a download, or git)",
    "interrupted": "a transaction was interrupted",
    "busy": "another ckpt-patch is at work",
    "damaged": "a record is damaged",
}
FILES = {
    "after": "as apply left it",
    "before": "as it was before",
    "edited": "edited since",
    "missing": "missing",
    "unreadable": "cannot be read",
}


@click.command()
@click.argument("checkpoints", metavar="CKPT...", nargs=-1, type=click.Path())
@click.option("--exit-code", is_flag=True, help="Exit 1 unless pristine.")
@output_options()
def command(
    out: Output,
    checkpoints: tuple[str, ...],
    exit_code: bool,
) -> int:
    """Say whether checkpoints are pristine, patched, edited or interrupted."""
    documents, codes = [], []
    paths = checkpoints or (".",)
    for path in paths:
        try:
            present = status(Path(path))
        except CkptPatchError as error:
            if len(paths) == 1:
                raise
            documents.append(error_document(error) | {"path": path})
            codes.append(out.error(error) if out.format != "json" else error.exit_code)
            continue
        documents.append({"schema": "ckpt-patch/status@1", "checkpoint": path, **present.to_dict()})
        codes.append(int(exit_code and present.state != "pristine"))
        if out.format == "human":
            out.answer(_lines(path, present))
        elif out.format == "quiet":
            out.answer(f"{path}: {present.state}" if len(paths) > 1 else present.state)
    if out.format == "json":
        many = {"schema": "ckpt-patch/statuses@1", "results": documents}
        out.document(many if len(paths) > 1 else documents[0])
    return gravest(codes)


def _lines(path: str, present: Status) -> Iterator[str]:
    yield f"{plain(path)}: {WORDS[present.state]}"
    record = present.record
    if record is not None:
        yield (
            f"  transaction {record.id:04d}, {plain(record.recipe)}, {plain(record.created)}, "
            f"by ckpt-patch {plain(record.tool_version)}"
        )
    if present.files:
        yield from columns(((f.file, FILES[f.state]) for f in present.files), "  ")
    if present.problem:
        yield f"  {plain(present.problem)}"
    if present.state in {"patched", "reverted"}:
        yield f"  Undo: ckpt-patch undo {shell_path(path)}"
    elif present.state == "edited":
        yield (f"  Undo only the patch's own keys: ckpt-patch undo --merge {shell_path(path)}")
