"""``ckpt-patch apply``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from patcher import api
from patcher.checkpoint import open_checkpoint
from patcher.cli import planned
from patcher.cli.options import checkpoint_argument, opened, output_options, target_options
from patcher.errors import UsageError
from patcher.in_cache import open_in_cache, writable_root
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
    "snapshot's link was replaced by a file. `hf cache verify` will call the file wrong, and a "
    "forced download will leave it patched. A new upstream revision will come unpatched, and "
    "`hf cache prune` then deletes this one; ckpt-patch mirror --cache-revision NAME lasts.",
    "local_dir": "the next `hf download --local-dir` into this folder puts the originals back, "
    "because the files' times are new. To avoid that: ckpt-patch mirror, or undo and apply "
    "--keep-mtime.",
}
FATES["hub"] = FATES["cache"]  # --in-cache, of an id whose metadata had to be fetched
#: The same for a local_dir whose files keep their times: the client compares time, then hash.
KEPT = (
    "the patched files keep their old times, so `hf download --local-dir` leaves them as they are "
    "until the Hub has other content for them, or it is forced; rsync and backups that compare "
    "size and time may miss the change."
)


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
@click.option(
    "--in-cache", is_flag=True, help="Patch the snapshot in the Hub cache that CKPT is or names."
)
@click.option(
    "--keep-mtime",
    is_flag=True,
    help="Keep the files' old times: hf download --local-dir then leaves the patch; so may rsync.",
)
@click.option("--wait", type=float, default=0.0, metavar="SECONDS", help="Wait for another writer.")
@output_options()
def command(
    out: Output,
    checkpoint: str,
    recipe: str | None,
    plan_file: Path | None,
    dry_run: bool,
    in_cache: bool,
    keep_mtime: bool,
    wait: float,
    **launch: Any,
) -> None:
    """Patch the metadata so that the target starts. Reversible; no weights are touched."""
    found = opened(out, checkpoint, open_in_cache if in_cache else open_checkpoint)
    if plan_file is not None:
        if recipe or dry_run:
            raise UsageError("--plan goes with neither --recipe nor --dry-run")
        _saved(out, found, plan_file, in_cache=in_cache, wait=wait, keep_mtime=keep_mtime)
        return
    plan = planned.make(found, recipe, launch)
    if not plan.edits:
        _nothing(out, plan, found)
        return
    if dry_run:
        _dry_run(out, plan)
        return
    root = writable_root(found, plan.before.target.to_dict(), in_cache=in_cache)
    applied = api.apply_plan(root, plan, wait=wait, keep_mtime=keep_mtime)
    _notes(out, applied, found, keep_mtime=keep_mtime)
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


def _saved(
    out: Output, opened: Checkpoint, plan_file: Path, *, in_cache: bool, **options: Any
) -> None:
    from patcher import saved_plan  # noqa: PLC0415 - lazy: only --plan needs it

    data = saved_plan.read(plan_file)
    change = saved_plan.load(data, str(plan_file), opened)
    root = writable_root(opened, change.target, in_cache=in_cache)
    applied = api.apply_change(root, change, {"plan.json": data}, **options)
    _notes(out, applied, opened, keep_mtime=options["keep_mtime"])
    if out.format == "json":
        out.document(_document(applied, opened))
    elif out.format == "quiet":
        out.answer(edit.file for edit in change.edits)
    else:
        out.answer(_footer(applied, opened))


def _notes(out: Output, applied: Applied, opened: Checkpoint, *, keep_mtime: bool) -> None:
    for sentence in (*applied.recovered, *applied.warnings):
        out.note(f"Note: {plain(sentence)}.")
    kind = opened.origin.kind
    if kind in FATES:
        out.note(f"Note: {KEPT if keep_mtime and kind == 'local_dir' else FATES[kind]}")


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
