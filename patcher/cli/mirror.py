"""``ckpt-patch mirror``."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from patcher import mirroring
from patcher.checkpoint import open_checkpoint
from patcher.cli import planned
from patcher.cli.options import opened, output_options, target_options
from patcher.report.escape import plain
from patcher.report.human import number, shell_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from patcher.checkpoint import Checkpoint
    from patcher.cli.output import Output
    from patcher.mirroring import Manifest, Mirrored, Prepared
    from patcher.planning import Plan

WORDS = {
    "made": "Made {}.",
    "replaced": "Replaced the older mirror {}.",
    "current": "Nothing to do: {} is this mirror already.",
}


@click.command(
    epilog="Exit codes: 0 it is there, 3 refused and nothing written, 4 cannot judge, 5 failed and "
    'removed. Example: exec vllm serve "$(ckpt-patch mirror -q --target sm120 SRC DEST)"'
)
@click.argument("source", metavar="SRC", type=click.Path())
@click.argument("destination", metavar="DEST", type=click.Path())
@target_options
@click.option("--recipe", help="A recipe by id or path, instead of the best one.")
@click.option(
    "--link",
    type=click.Choice(tuple(mirroring.METHODS)),
    default="auto",
    show_default=True,
    help="How weights get there; auto tries reflink, hardlink, symlink, and never copies.",
)
@click.option("--passthrough", is_flag=True, help="If no patch is needed, print SRC; make nothing.")
@click.option("--dry-run", is_flag=True, help="Show the diff and what would be linked.")
@output_options()
def command(
    out: Output,
    source: str,
    destination: str,
    recipe: str | None,
    link: str,
    passthrough: bool,
    dry_run: bool,
    **launch: Any,
) -> None:
    """Make a patched copy of SRC at DEST whose weights are links; SRC is not changed."""
    found = opened(out, source)
    plan = planned.make(found, recipe, launch)
    if passthrough and not plan.edits and plan.before.outcome != "conflict":
        _pass_through(out, found, plan)
        return
    if found.remote is not None and not dry_run:
        found.remote.download()
        found = open_checkpoint(found.root)  # from here on a snapshot like any other
        plan = planned.make(found, recipe, launch)
    prepared = mirroring.prepare(found, plan, destination, link)
    if dry_run:
        _dry_run(out, prepared)
        return
    mirrored = mirroring.make(prepared)
    for sentence in mirrored.notes:
        out.note(f"Note: {plain(sentence)}.")
    if out.format == "json":
        out.document(_document(plan, mirrored.manifest, mirrored.path, mirrored.outcome))
    elif out.format == "quiet":
        out.answer(mirrored.path)
    else:
        out.answer(_made(plan, mirrored))


def _pass_through(out: Output, found: Checkpoint, plan: Plan) -> None:
    path = found.name
    if out.format == "json":
        document = {"schema": "ckpt-patch/mirror@1", "destination": path, "outcome": "passthrough"}
        out.document(document | {"files": [], "plan": plan.to_dict()})
        return
    out.note("No patch is needed on this target: SRC itself will do, and nothing was made.")
    out.answer(path)


def _dry_run(out: Output, prepared: Prepared) -> None:
    plan, manifest = prepared.plan, prepared.manifest
    if out.format == "json":
        out.document(_document(plan, manifest, prepared.place.path, "dry-run"))
    elif out.format == "quiet":
        out.answer(prepared.place.path)
    else:
        out.raw(plan.diff())
        out.answer(planned.scope(plan))
        out.answer(_counts(manifest))
        out.answer("Nothing was made (--dry-run).")


def _made(plan: Plan, mirrored: Mirrored) -> Iterator[str]:
    manifest, path = mirrored.manifest, shell_path(mirrored.path)
    if plan.edits:
        yield from planned.values(plan)
    else:
        yield "No patch is needed on this target; the metadata is an exact copy."
    yield from planned.scope(plan)
    yield from _counts(manifest)
    copied = mirrored.outcome != "current" and any(file.link == "copy" for file in manifest.files)
    weights = "copied, none was changed" if copied else "neither read nor changed"
    yield f"{WORDS[mirrored.outcome].format(path)} Weights were {weights}."
    yield f"Look at it later: ckpt-patch verify {path}"


def _counts(manifest: Manifest) -> Iterator[str]:
    """What is linked, how, and what that means."""
    weights = [file for file in manifest.files if file.kind == "weights"]
    kinds = Counter(file.kind for file in manifest.files)
    yield f"Files of its own: {kinds['patched']} patched, {kinds['copied']} copied."
    for link in dict.fromkeys(file.link for file in weights):
        group = [file.size for file in weights if file.link == link]
        how = f"{link}: {mirroring.TRADE_OFFS[link]}" if link else f"--link {manifest.link}"
        yield f"Weights: {count(len(group))}, {_size(sum(group))}, {how}."


def count(files: int) -> str:
    """``1 file``, ``119 files``."""
    return f"{number(files)} file{'' if files == 1 else 's'}"


def _size(size: int) -> str:
    units = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))
    for factor, unit in units:
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


def _document(plan: Plan, manifest: Manifest, path: str, outcome: str) -> dict[str, Any]:
    return {
        "schema": "ckpt-patch/mirror@1",
        "destination": path,
        "outcome": outcome,
        "manifest": manifest.to_dict(),
        "files": manifest.to_dict()["files"],
        "plan": plan.to_dict(),
    }
