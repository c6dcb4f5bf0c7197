"""Patching a repository on the Hub: not unless the user says so, and then its snapshot alone.

The record is in the snapshot's own ``.ckpt-patch``: the library's tools delete it together with the
snapshot that it is about, and engines look for files by name and in the top level only.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from patcher import hub
from patcher.checkpoint import METADATA_FILES, open_checkpoint
from patcher.errors import RefusedError, UnreadableError, UsageError
from patcher.headers.files import StrPath, quoted
from patcher.hub import cache
from patcher.jsontext import CONFIG_LIMITS
from patcher.target import command_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from patcher.checkpoint import Checkpoint


def open_in_cache(path: StrPath, *, no_network: bool = False) -> Checkpoint:
    """Open a snapshot of a Hub cache, which is to be patched there.

    A Hub id whose metadata is in the cache, as far as the library's listing says, is taken from
    there without a connection; of any other it is fetched.

    Raises:
        UnreadableError: it is neither here nor to be had, or a metadata file is missing.
        UsageError: it is no snapshot of a Hub cache.
        RefusedError: it is a revision that ``mirror --cache-revision`` made.
    """
    hub_id = hub.remote(os.fspath(path))
    here = cache.whole(hub_id, METADATA_FILES) if hub_id else None
    found = open_checkpoint(here or path, no_network=no_network)
    if found.origin.kind not in {"cache", "hub"}:
        raise UsageError(
            "is no snapshot of a Hub cache, which --in-cache is for",
            path=os.fspath(path),
            hint=f"ckpt-patch apply {quoted(path)}",
        )
    refuse_own(found.root)
    if found.remote is None and (absent := cache.missing(found.root, METADATA_FILES)):
        raise UnreadableError(
            f"is not complete in the cache: {', '.join(absent)} missing",
            path=os.fspath(path),
            hint=f"{found.origin.download} {' '.join(absent)}",
        )
    if here is None:
        return found
    note = f"{hub_id} is {here.name} in the cache; the Hub was not asked for a newer commit"
    return replace(found, origin=replace(found.origin, notes=(note,)))


def located(path: StrPath) -> Path:
    """What a command on a directory is about: of a Hub id, its snapshot in the cache.

    Opens no connection; other paths are returned as they are.

    Raises:
        UnreadableError: the cache has none.
    """
    hub_id = hub.remote(os.fspath(path))
    if hub_id is None:
        return Path(path)
    limit = CONFIG_LIMITS.size
    return hub.fetch_metadata(hub_id, METADATA_FILES, limit=limit, no_network=True).folder


def writable_root(
    checkpoint: Checkpoint, target: Mapping[str, Any], *, in_cache: bool = False
) -> Path:
    """The directory to write to.

    Args:
        checkpoint: what is to be patched.
        target: of the patch, in its JSON form.
        in_cache: whether the user asked for the cache.

    Raises:
        RefusedError: it is a repository on the Hub; the hint names the ways to patch it.
    """
    if in_cache or checkpoint.origin.kind != "hub":
        return checkpoint.root
    name, options = checkpoint.name, command_line(target)
    ways = {
        "a copy whose weights are links": mirror_words(name, target, checkpoint.origin.repo_id),
        "a revision of its own in the cache": f"mirror {options} {name} --cache-revision "
        f"patched-{target['gpu']}",
        "the snapshot in the cache": f"apply --in-cache {options} {name}",
    }
    raise RefusedError(
        "is a repository on the Hub, and its files in the cache are shared. Nothing was written",
        path=name,
        hint="\n".join(f"{what}: ckpt-patch {command}" for what, command in ways.items()),
    )


def mirror_words(source: str, target: Mapping[str, Any], repo_id: str | None = None) -> str:
    """``mirror --target sm120 org/name name-sm120``: a command for a copy beside where we are."""
    name = os.path.basename(repo_id or source.rstrip("/"))
    place = quoted(f"{name}-{target['gpu']}")
    return f"mirror {command_line(target)} {quoted(source)} {place}"


def require_commit(path: StrPath) -> None:
    """As `refuse_own`, for a Hub id, before the Hub is asked for a revision that it does not know.

    Raises:
        RefusedError: it is such a revision.
    """
    hub_id = hub.remote(os.fspath(path))
    if hub_id is None or hub_id.revision is None:
        return
    if (here := cache.whole(hub_id, METADATA_FILES)) is not None:
        refuse_own(here)


def refuse_own(snapshot: Path) -> None:
    """A revision of ours is named by its content, and is made from a commit.

    Raises:
        RefusedError: the snapshot is such a revision.
    """
    from patcher.mirroring import manifest  # noqa: PLC0415 - lazy: most checkpoints are local

    made = manifest.read(str(snapshot)) if cache.repository(snapshot) else None
    if made is None:
        return
    source, name = made.source, cache.name_of(snapshot) or f"patched-{made.target['gpu']}"
    raise RefusedError(
        "is a revision that ckpt-patch made, not one of the repository. Nothing was written",
        path=str(snapshot),
        hint="patch what it was made from: ckpt-patch mirror "
        f"{command_line(made.target)} {source.repo_id}@{source.revision} --cache-revision {name}",
    )
