"""``ckpt-patch mirror SRC DEST``: a patched copy in a directory, and what all mirrors print."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from patcher import mirroring
from patcher.cli import planned
from patcher.cli.options import opened
from patcher.mirroring import listing, source
from patcher.report.escape import plain
from patcher.report.human import number, shell_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from patcher.checkpoint import Checkpoint
    from patcher.cli.mirror import Asked
    from patcher.cli.output import Output
    from patcher.mirroring import Foreseen, Manifest, Mirrored
    from patcher.planning import Plan

WORDS = {
    "made": "Made {}.",
    "replaced": "Replaced the older mirror {}.",
    "current": "Nothing to do: {} is this mirror already.",
}


def run(out: Output, asked: Asked) -> None:
    """Make the mirror, and say what it consists of."""
    asked.require_only("DEST", "--link")
    place = asked.place
    found = opened(out, asked.source)
    plan = planned.make(found, asked.recipe, asked.launch)
    if asked.passthrough and needs_nothing(plan):
        pass_through(out, _itself(found, plan, asked.recipe), plan)
        return
    if asked.dry_run:
        _dry_run(out, plan, mirroring.foresee(found, plan, place, asked.link))
        return
    arrived = found.remote is not None and bool(found.remote.missing())
    found, plan = source.downloaded(found, plan, asked.recipe)
    mirrored = mirroring.make(mirroring.prepare(found, plan, place, asked.link))
    for sentence in mirrored.notes:
        out.note(f"Note: {plain(sentence)}.")
    if out.format == "json":
        out.document(document(plan, mirrored.manifest, mirrored.path, mirrored.outcome))
    elif out.format == "quiet":
        out.answer(mirrored.path)
    else:
        out.answer(_made(plan, mirrored, arrived=arrived))


def _itself(found: Checkpoint, plan: Plan, recipe: str | None) -> str:
    """SRC as engines take it: none takes ``org/name@revision``, so that is its snapshot."""
    if not is_pinned(found):
        return found.name
    here, _ = source.downloaded(found, plan, recipe)
    source.require_complete(found, plan, listing.survey(str(here.root)))
    return str(here.root)


def is_pinned(found: Checkpoint) -> bool:
    """Whether it is a repository on the Hub at a revision that was named."""
    return found.origin.kind == "hub" and found.name != found.origin.repo_id


def needs_nothing(plan: Plan) -> bool:
    """Whether the source itself will do on this target."""
    return not plan.edits and plan.before.outcome != "conflict"


def pass_through(out: Output, path: str, plan: Plan, name: str | None = None) -> None:
    """Say that SRC itself will do; ``name`` is what an engine calls it, if not ``path``."""
    if out.format == "json":
        said = {"schema": "ckpt-patch/mirror@1", "destination": path, "outcome": "passthrough"}
        out.document(said | {"files": [], "plan": plan.to_dict()})
        return
    out.note("No patch is needed on this target: SRC itself will do, and nothing was made.")
    out.answer(name or path)


def _dry_run(out: Output, plan: Plan, foreseen: Foreseen) -> None:
    downloads = foreseen.downloads
    if out.format == "json":
        described = document(plan, foreseen.manifest, foreseen.path, "dry-run")
        out.document(described | {"downloads": dict(downloads)})
    elif out.format == "quiet":
        out.answer(foreseen.path)
    else:
        out.raw(plan.diff())
        out.answer(planned.scope(plan))
        if downloads:
            amount = size(sum(downloads.values()))
            files = count(len(downloads))
            out.answer(f"To be downloaded to the Hub cache first: {files}, {amount}.")
        out.answer(_counts(foreseen.manifest))
        out.answer("Nothing was made (--dry-run).")


def _made(plan: Plan, mirrored: Mirrored, *, arrived: bool) -> Iterator[str]:
    manifest, path = mirrored.manifest, shell_path(mirrored.path)
    if mirrored.outcome != "current":
        yield from _changes(plan)
    yield from _counts(manifest)
    copied = mirrored.outcome != "current" and any(file.link == "copy" for file in manifest.files)
    weights = "copied, none was changed" if copied else "neither read nor changed"
    if arrived:
        weights = "downloaded and compared with their hashes, none was changed"
    yield f"{WORDS[mirrored.outcome].format(path)} Weights were {weights}."
    yield f"Look at it later: ckpt-patch verify {path}"


def _changes(plan: Plan) -> Iterator[str]:
    if plan.edits:
        yield from planned.values(plan)
    else:
        yield "No patch is needed on this target; the metadata is an exact copy."
    yield from planned.scope(plan)


def _counts(manifest: Manifest) -> Iterator[str]:
    """What is linked, how, and what that means."""
    weights = [file for file in manifest.files if file.kind == "weights"]
    kinds = Counter(file.kind for file in manifest.files)
    yield f"Files of its own: {kinds['patched']} patched, {kinds['copied']} copied."
    for link in dict.fromkeys(file.link for file in weights):
        group = [file.size for file in weights if file.link == link]
        how = f"{link}: {mirroring.TRADE_OFFS[link]}" if link else f"--link {manifest.link}"
        yield f"Weights: {count(len(group))}, {size(sum(group))}, {how}."


def count(files: int) -> str:
    """``1 file``, ``119 files``."""
    return f"{number(files)} file{'' if files == 1 else 's'}"


def size(amount: int) -> str:
    """Bytes as people say them: ``594.1 GB``."""
    units = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))
    for factor, unit in units:
        if amount >= factor:
            return f"{amount / factor:.1f} {unit}"
    return f"{amount} bytes"


def document(plan: Plan, manifest: Manifest, path: str, outcome: str) -> dict[str, Any]:
    """The answer as JSON (schema ``ckpt-patch/mirror@1``)."""
    return {
        "schema": "ckpt-patch/mirror@1",
        "destination": path,
        "outcome": outcome,
        "manifest": manifest.to_dict(),
        "files": manifest.to_dict()["files"],
        "plan": plan.to_dict(),
    }
