"""``ckpt-patch mirror SRC hub://OWNER/NAME``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from patcher.cli import planned
from patcher.cli.mirror_directory import count, needs_nothing, pass_through, size
from patcher.cli.options import opened
from patcher.hub import client
from patcher.mirroring import hub_mirror, hub_source
from patcher.report.escape import plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from patcher.cli.mirror import Asked
    from patcher.cli.output import Output
    from patcher.hub import HubId
    from patcher.mirroring.hub_mirror import HubMirrored, HubPrepared
    from patcher.mirroring.hub_standing import Changes

SCHEME = "hub://"

WORDS = {
    "made": "Made hub://{}, commit {}.",
    "replaced": "Brought hub://{} up to date, commit {}.",
    "current": "Nothing to do: hub://{} is this mirror already, commit {}.",
}


def _place(source: str, text: str) -> HubId:
    """The destination.

    Raises:
        RefusedError: there is no network.
        UsageError: it is no repository.
    """
    if click.get_current_context().meta.get("ckpt-patch.no_network", False) or client.is_offline():
        raise hub_source.needs_network(source, text)
    return hub_source.destination(text.removeprefix(SCHEME))


def run(out: Output, asked: Asked) -> None:
    """Make the mirror, or say what would be done."""
    asked.require_only("DEST", "--private")
    place = _place(asked.source, asked.place)
    found = opened(out, asked.source)
    hub_source.require_remote(found, place)
    plan = planned.make(found, asked.recipe, asked.launch)
    if asked.passthrough and needs_nothing(plan):
        pass_through(out, found.name, plan)
        return
    prepared = hub_mirror.prepare(found, plan, place, private=asked.private)
    if asked.dry_run:
        _show(out, prepared, None, _would(prepared))
    else:
        mirrored = hub_mirror.make(prepared)
        _show(out, prepared, mirrored, _made(prepared, mirrored))


def _show(
    out: Output, prepared: HubPrepared, mirrored: HubMirrored | None, words: Iterator[str]
) -> None:
    if out.format == "json":
        out.document(_document(prepared, mirrored))
    elif out.format == "quiet":
        out.answer(prepared.name)
    else:
        if mirrored is None:
            out.raw(prepared.plan.diff())
        out.answer(words)


def _would(prepared: HubPrepared) -> Iterator[str]:
    changes, name = prepared.changes, prepared.name
    yield from planned.scope(prepared.plan)
    if changes.present is None:
        visible = "private" if prepared.private else "public, unless its owner's default is private"
        yield f"Would create hub://{name} ({visible}); it does not exist, or is not shown to you."
    if not changes:
        yield WORDS["current"].format(name, changes.parent)
    else:
        yield "One commit would be made:"
        yield from _operations(prepared, changes)
    yield "Nothing was written (--dry-run)."


def _made(prepared: HubPrepared, mirrored: HubMirrored) -> Iterator[str]:
    plan, name = prepared.plan, mirrored.name
    if plan.edits:
        yield from planned.values(plan)
    else:
        yield "No patch is needed on this target; the metadata is an exact copy."
    yield from planned.scope(plan)
    if mirrored.changes:
        yield from _operations(prepared, mirrored.changes)
    yield WORDS[mirrored.outcome].format(name, mirrored.commit)
    yield f"Weights were neither read nor changed. Use it like any other: hf download {name}"


def _operations(prepared: HubPrepared, changes: Changes) -> Iterator[str]:
    """What one commit does, and where the bytes go."""
    files = prepared.source.files
    large = [path for path in changes.copies if files[path].large]
    small = [path for path in changes.copies if not files[path].large]
    source = plain(str(prepared.source.hub_id))
    if large:
        yield (
            f"Copied by the Hub: {count(len(large))}, {size(_sum(prepared, large))}, of {source}; "
            "none of it passes through this machine."
        )
    if small:
        yield f"Copied through this machine: {count(len(small))}, {size(_sum(prepared, small))}."
    if changes.additions:
        yield f"Sent from here: {plain(', '.join(changes.additions))}."
    if changes.deletions:
        yield f"Deleted: {plain(', '.join(changes.deletions))}."
    if changes.kept:
        yield f"Left as somebody has edited it: {plain(', '.join(changes.kept))}."


def _sum(prepared: HubPrepared, paths: list[str]) -> int:
    return sum(prepared.source.files[path].size for path in paths)


def _document(prepared: HubPrepared, mirrored: HubMirrored | None) -> dict[str, Any]:
    changes = (mirrored or prepared).changes
    manifest = prepared.manifest.to_dict()
    return {
        "schema": "ckpt-patch/mirror@1",
        "destination": f"{SCHEME}{prepared.name}",
        "outcome": mirrored.outcome if mirrored else "dry-run",
        "commit": mirrored.commit if mirrored else None,
        "parent": changes.parent or None,
        "operations": {
            "create": prepared.changes.present is None,
            "copy": list(changes.copies),
            "add": list(changes.additions),
            "delete": list(changes.deletions),
            "kept": list(changes.kept),
        },
        "copied_bytes": prepared.copied_bytes,
        "manifest": manifest,
        "files": manifest["files"],
        "plan": prepared.plan.to_dict(),
    }
