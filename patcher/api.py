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
from patcher.in_cache import located, open_in_cache, require_commit, writable_root

if TYPE_CHECKING:
    import os

    from patcher.edits import Change
    from patcher.exporting import Export
    from patcher.mirroring import Mirrored
    from patcher.mirroring.cache_revision import CacheRevision
    from patcher.mirroring.hub_mirror import HubMirrored
    from patcher.planning import Plan
    from patcher.target import Target
    from patcher.transaction import Applied, Record
    from patcher.verdict import Verdict

    StrPath = str | os.PathLike[str]


def check(path: StrPath, target: Target, *, full: bool = False) -> Verdict:
    """What the target does with the checkpoint at ``path``. Reads no weights, changes nothing.

    ``full``: read and check the header of every shard too.

    Raises:
        UnreadableError: a file cannot be read or does not describe a model.
        RefusedError: TensorRT-LLM's own layout.
    """
    return checking.check(open_checkpoint(path), target, full=full)


def plan(path: StrPath, target: Target, recipe: str | None = None) -> Plan:
    """The patch that makes the target start; changes nothing.

    Raises:
        RefusedError: no edit of these files can help.
        UnreadableError: the verdict is unknown, or a file cannot be read.
    """
    return planning.plan(open_checkpoint(path), target, recipe)


def apply(  # noqa: PLR0913 - the options of the command
    path: StrPath,
    target: Target,
    recipe: str | None = None,
    *,
    in_cache: bool = False,
    wait: float = 0.0,
    keep_mtime: bool = False,
) -> Record | None:
    """Patch the checkpoint; ``None`` when there was nothing to do.

    ``in_cache``: patch the snapshot in the Hub cache, which ``path`` or a Hub id names.
    ``wait``: seconds to wait for another writer. ``keep_mtime``: give the patched files the old
    modification times, so that ``hf download --local-dir`` does not put the originals back.

    Raises:
        RefusedError: nothing was written, the message says why.
        WriteError: the disk failed and everything was rolled back.
    """
    checkpoint = open_in_cache(path) if in_cache else open_checkpoint(path)
    made = planning.plan(checkpoint, target, recipe)
    if not made.edits:
        return None
    root = writable_root(checkpoint, target.to_dict(), in_cache=in_cache)
    return apply_plan(root, made, wait=wait, keep_mtime=keep_mtime).record


def undo(
    path: StrPath, *, merge: bool = False, force: bool = False, wait: float = 0.0
) -> Record | None:
    """Take the last patch back; ``None`` when there was none.

    ``merge`` takes only the patch's own keys out of files that were edited since; ``force``
    restores those files too and keeps a copy of each in the record.

    Raises:
        RefusedError: a file was edited since, or a saved original is damaged; nothing was written.
    """
    undone = transaction.undo(located(path), merge=merge, force=force, wait=wait)
    return undone.transactions[0].record if undone.transactions else None


def mirror(  # noqa: PLR0913 - the options of the command
    source: StrPath,
    destination: StrPath,
    target: Target,
    recipe: str | None = None,
    *,
    link: str = "auto",
    config_only: bool = False,
) -> Mirrored:
    """Make a patched copy whose weights are links; the source is not changed.

    Of a Hub id, what the cache does not have is downloaded first.

    ``link``: ``auto`` (reflink, else hardlink, else symlink), one of these, or ``copy``.
    ``config_only``: only what vLLM's ``--hf-config-path`` reads; no weights are linked.

    Raises:
        RefusedError: no edit helps, the destination is something else, or a link is not possible.
        UnreadableError: the verdict is unknown, or a file cannot be read.
        WriteError: the disk failed and nothing is left of it.
    """
    from patcher import mirroring  # noqa: PLC0415 - lazy: only this call needs it
    from patcher.mirroring.source import downloaded  # noqa: PLC0415 - the same

    checkpoint = open_checkpoint(source)
    made = planning.plan(checkpoint, target, recipe)
    if config_only:
        checkpoint = mirroring.config_folder.downloaded(checkpoint)
    else:
        checkpoint, made = downloaded(checkpoint, made, recipe)
    return mirroring.make(
        mirroring.prepare(checkpoint, made, destination, link, config_only=config_only)
    )


def mirror_to_hub(
    source: StrPath,
    destination: str,
    target: Target,
    recipe: str | None = None,
    *,
    private: bool = False,
) -> HubMirrored:
    """Make a patched copy on the Hub, which copies the weights itself.

    Args:
        source: ``org/name`` or ``org/name@revision``.
        destination: ``owner/name``.
        target: what the copy shall run on.
        recipe: a recipe by id or path, instead of the best one.
        private: whether only its owners shall see it.

    Raises:
        RefusedError: no edit helps, the source is not on the Hub or not to be copied there, the
            destination is something else, or the token may not write.
        UnreadableError: the verdict is unknown, or the Hub does not answer.
        WriteError: it failed half way; the message says what is on the Hub now.
        UsageError: ``destination`` names no repository.
    """
    from patcher.mirroring import hub_mirror, hub_source  # noqa: PLC0415 - lazy: only this call

    place = hub_source.destination(destination)
    checkpoint = open_checkpoint(source)
    hub_source.require_remote(checkpoint, place)
    made = planning.plan(checkpoint, target, recipe)
    return hub_mirror.make(hub_mirror.prepare(checkpoint, made, place, private=private))


def mirror_cache_revision(
    source: StrPath, name: str, target: Target, recipe: str | None = None
) -> CacheRevision:
    """Make a patched revision of a snapshot in the Hub cache, beside it; no weights are copied.

    ``source``: the snapshot, or a Hub id: what the cache does not have is downloaded first.
    ``name``: what ``revision=`` of the Hub's library takes where it does not ask the Hub; where it
    does, take the result's ``commit``.

    Raises:
        RefusedError: no edit helps, the name is a branch or tag, or the cache has no links.
        UnreadableError: the verdict is unknown, or a file cannot be read or is missing.
        WriteError: the disk failed and the name means what it did.
    """
    from patcher.mirroring import cache_revision, cache_standing  # noqa: PLC0415 - lazy
    from patcher.mirroring.source import downloaded  # noqa: PLC0415 - the same

    require_commit(source)
    checkpoint = open_checkpoint(source)
    cache_standing.require_free(checkpoint, name)
    made = planning.plan(checkpoint, target, recipe)
    checkpoint, made = downloaded(checkpoint, made, recipe)
    return cache_revision.make(cache_revision.prepare(checkpoint, made, name))


def export(path: StrPath, target: Target, recipe: str | None = None) -> Export | None:
    """The patch as a checkpoint's author needs it; ``None`` where none is needed.

    Of a checkpoint that is patched, it is the patch that is in force.

    Raises:
        RefusedError: no edit helps, or the original files are not known.
        UnreadableError: the verdict is unknown, or a file cannot be read.
    """
    from patcher import exporting  # noqa: PLC0415 - lazy: only this call needs it

    return exporting.export(open_checkpoint(path), target, recipe)


def apply_plan(
    root: StrPath, plan: Plan, *, wait: float = 0.0, keep_mtime: bool = False
) -> Applied:
    """Write a plan's edits, with its report in the record."""
    from patcher.report import markdown  # noqa: PLC0415 - lazy: only what writes needs them
    from patcher.report.document import Report  # noqa: PLC0415 - the same

    report = Report.of(plan)
    reports = {"report.md": markdown.render(report), "report.json": report.to_json()}
    return apply_change(root, plan.change(), reports, wait=wait, keep_mtime=keep_mtime)


def apply_change(
    root: StrPath,
    change: Change,
    reports: dict[str, bytes],
    *,
    wait: float = 0.0,
    keep_mtime: bool = False,
) -> Applied:
    """Write a change that was planned elsewhere, and remember the checkpoint for ``undo``."""
    from pathlib import Path  # noqa: PLC0415 - lazy: the type is needed only here

    from patcher import history  # noqa: PLC0415 - lazy: only writing needs it

    applied = transaction.apply(
        Path(root), change, attachments=reports, wait=wait, keep_mtime=keep_mtime
    )
    history.remember(Path(root))
    return applied
