"""``ckpt-patch apply``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from patcher import api
from patcher.cli import planned
from patcher.cli.options import checkpoint_argument, opened, output_options, target_options
from patcher.errors import UsageError
from patcher.report.escape import plain
from patcher.report.human import shell_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from patcher.checkpoint import Checkpoint
    from patcher.cli.output import Output
    from patcher.planning import Plan
    from patcher.transaction import Applied

#: What happens to a patch when the folder is refreshed by the tool that made it.
FATES = {
    "cache": "this is a Hugging Face cache snapshot. The shared blob stays as it is; only this "
    "snapshot's link was replaced by a file. A new upstream revision will come unpatched.",
    "local_dir": "the next `hf download --local-dir` into this folder puts the original back, "
    "because the file's time changed.",
}


@click.command(
    epilog="Exit codes: 0 done or nothing to do, 3 refused and nothing written, 4 cannot judge, "
    "5 failed and rolled back. Example: ckpt-patch apply --target sm120 ./Kimi-K2.5-NVFP4"
)
@checkpoint_argument
@target_options
@click.option("--recipe", help="A recipe by id or path, instead of the best one.")
@click.option(
    "--plan", "plan_file", type=click.Path(path_type=Path), help="Apply a plan saved with plan -o."
)
@click.option("--dry-run", is_flag=True, help="Show the diff; change nothing.")
@click.option("--wait", type=float, default=0.0, metavar="SECONDS", help="Wait for another writer.")
@output_options()
def command(
    out: Output,
    checkpoint: str,
    recipe: str | None,
    plan_file: Path | None,
    dry_run: bool,
    wait: float,
    **launch: Any,
) -> None:
    """Patch the metadata so that the target starts. Reversible; no weights are touched."""
    found = opened(out, checkpoint)
    if plan_file is not None:
        if recipe or dry_run:
            raise UsageError("--plan goes with neither --recipe nor --dry-run")
        _saved(out, found, plan_file, wait)
        return
    plan = planned.make(found, recipe, launch)
    if not plan.edits:
        _nothing(out, plan, found)
        return
    if dry_run:
        _dry_run(out, plan)
        return
    applied = api.apply_plan(found.writable_root(), plan, wait=wait)
    _notes(out, applied, found)
    if out.format == "json":
        out.document(_document(applied, found) | {"plan": plan.to_dict()})
    elif out.format == "quiet":
        out.answer(edit.file for edit in plan.edits)
    else:
        out.answer(planned.values(plan))
        out.answer(planned.scope(plan))
        out.answer(_footer(applied, found))


def _nothing(out: Output, plan: Plan, opened: Checkpoint) -> None:
    if out.format == "json":
        document = {"schema": "ckpt-patch/apply@1", "checkpoint": str(opened.root)}
        out.document(document | {"applied": False, "files": [], "plan": plan.to_dict()})
    elif out.format != "quiet":
        out.answer(planned.nothing(plan, opened))


def _dry_run(out: Output, plan: Plan) -> None:
    if out.format == "json":
        out.document(plan.to_dict())
    elif out.format == "quiet":
        out.answer(edit.file for edit in plan.edits)
    else:
        out.raw(plan.diff())
        out.answer(planned.scope(plan))
        out.answer("Nothing was changed (--dry-run).")


def _saved(out: Output, opened: Checkpoint, plan_file: Path, wait: float) -> None:
    from patcher import saved_plan  # noqa: PLC0415 - lazy: only --plan needs it

    data = saved_plan.read(plan_file)
    change = saved_plan.load(data, str(plan_file), opened)
    applied = api.apply_change(opened.writable_root(), change, {"plan.json": data}, wait=wait)
    _notes(out, applied, opened)
    if out.format == "json":
        out.document(_document(applied, opened))
    elif out.format == "quiet":
        out.answer(edit.file for edit in change.edits)
    else:
        out.answer(_footer(applied, opened))


def _notes(out: Output, applied: Applied, opened: Checkpoint) -> None:
    for sentence in (*applied.recovered, *applied.warnings):
        out.note(f"Note: {plain(sentence)}.")
    if opened.origin.kind in FATES:
        out.note(f"Note: {FATES[opened.origin.kind]}")


def _footer(applied: Applied, opened: Checkpoint) -> Iterator[str]:
    record = applied.record
    folder = f".ckpt-patch/{record.id:04d}.{record.state}"
    yield f"Saved originals and report in {folder}. No weights were read or changed."
    yield f"Applied {plain(record.recipe)}. Undo: ckpt-patch undo {shell_path(str(opened.root))}"


def _document(applied: Applied, opened: Checkpoint) -> dict[str, Any]:
    record = applied.record
    return {
        "schema": "ckpt-patch/apply@1",
        "checkpoint": str(opened.root),
        "applied": True,
        "transaction": record.id,
        "recipe": record.recipe,
        "recovered": list(applied.recovered),
        "warnings": list(applied.warnings),
        "files": [
            {
                "file": item.file,
                "before_sha256": item.before_sha256,
                "after_sha256": item.after_sha256,
                "patch": list(item.patch),
                "inverse": list(item.inverse),
            }
            for item in record.files
        ],
    }
