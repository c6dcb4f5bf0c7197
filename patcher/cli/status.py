"""``ckpt-patch status``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from patcher.cli.options import gravest, output_options
from patcher.cli.output import error_document
from patcher.drift import look
from patcher.errors import CkptPatchError
from patcher.report.escape import plain
from patcher.report.human import columns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from patcher.cli.output import Output
    from patcher.transaction import Status

WORDS = {
    "pristine": "no patch of ckpt-patch is applied",
    "patched": "patched, and intact",
    "edited": "edited after apply, not by ckpt-patch",
    "reverted": "something else has put the originals back (a download, or git)",
    "new-revision": "a download has brought a revision that is not patched",
    "foreign": "changed by something else than ckpt-patch",
    "mirror": "a mirror made by ckpt-patch",
    "interrupted": "a transaction was interrupted",
    "busy": "another ckpt-patch is at work",
    "damaged": "a record is damaged",
}
#: What could not be told.
UNKNOWN = {"busy", "damaged"}
FILES = {
    "after": "as apply left it",
    "before": "as it was before",
    "edited": "edited since",
    "missing": "missing",
    "unreadable": "cannot be read",
}
LABELS = {"patched": "Undo", "edited": "Undo only the patch's own keys"}


@click.command(
    epilog="Exit codes: 0 it is said, 1 not pristine (--exit-code only), 4 cannot be told. "
    "Example: ckpt-patch status ./Kimi-K2.5-NVFP4"
)
@click.argument("checkpoints", metavar="CKPT...", nargs=-1, type=click.Path())
@click.option("--exit-code", is_flag=True, help="Exit 1 unless pristine.")
@output_options()
def command(
    out: Output,
    checkpoints: tuple[str, ...],
    exit_code: bool,
) -> int:
    """Say whether checkpoints are as they were left: pristine, patched, edited, reverted, ..."""
    documents, codes = [], []
    paths = checkpoints or (".",)
    for path in paths:
        try:
            present = look(path).status
        except CkptPatchError as error:
            if len(paths) == 1:
                raise
            documents.append(error_document(error) | {"path": path})
            codes.append(out.error(error) if out.format != "json" else error.exit_code)
            continue
        documents.append({"schema": "ckpt-patch/status@1", "checkpoint": path, **present.to_dict()})
        changed = exit_code and present.state != "pristine"
        codes.append(4 if present.state in UNKNOWN else int(changed))
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
    if present.problem:
        yield f"  {plain(present.problem)}"
    record = present.record
    if record is not None:
        yield (
            f"  transaction {record.id:04d}, {plain(record.recipe)}, {plain(record.created)}, "
            f"by ckpt-patch {plain(record.tool_version)}"
        )
    if present.files:
        yield from columns(((f.file, FILES[f.state]) for f in present.files), "  ")
    label = LABELS.get(present.state, "Next")
    for command in present.commands:
        yield f"  {label}: {command}"
        label = "Or"
