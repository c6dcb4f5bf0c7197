"""What a mirror will be made of; of a repository on the Hub, without its weights being fetched."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec import Struct

from patcher.mirroring import destination, drafting, listing
from patcher.mirroring.making import prepare, require_cured
from patcher.mirroring.manifest import Manifest, MirroredFile, Source

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from patcher.checkpoint import Checkpoint
    from patcher.headers.files import StrPath
    from patcher.hub import Snapshot
    from patcher.planning import Plan

_SHA256_LENGTH = 64


class Foreseen(Struct, frozen=True):
    """A mirror that was not made.

    Attributes:
        path: where it would be, absolute.
        manifest: what it would be made of; of files that are not here, without hash and inode.
        downloads: files that would be downloaded before: name -> bytes.
    """

    path: str
    manifest: Manifest
    downloads: Mapping[str, int]


def foresee(checkpoint: Checkpoint, plan: Plan, target: StrPath, link: str = "auto") -> Foreseen:
    """See what `make` would do; arguments and errors are those of `prepare`."""
    remote = checkpoint.remote
    if remote is None:
        prepared = prepare(checkpoint, plan, target, link)
        return Foreseen(prepared.place.path, prepared.manifest, {})
    require_cured(plan)
    place = destination.locate(target)
    destination.require_apart(str(checkpoint.root), place)
    destination.present(place)
    sizes = {name: remote.length(name) for name in sorted(remote.files or ())}
    missing = {name: size for name, size in sizes.items() if not (remote.folder / name).exists()}
    folders = {os.path.dirname(name) for name in sizes} - {""}
    manifest = drafting.planned(
        plan,
        source=Source(str(remote.folder), "hub", remote.hub_id.repo_id, remote.commit),
        link=link,
        folders=tuple(sorted(folders)),
        folder_links={},
        files=tuple(_files(plan, remote, sizes)),
    )
    return Foreseen(place.path, manifest, missing)


def _files(plan: Plan, remote: Snapshot, sizes: Mapping[str, int]) -> Iterator[MirroredFile]:
    edits = {edit.file: edit for edit in plan.edits}
    for name, size in sizes.items():
        digest = remote.files[name].digest if remote.files else None
        known = digest if digest and len(digest) == _SHA256_LENGTH else None
        if edit := edits.get(name):
            before, after = edit.before_sha256, edit.after_sha256
            yield MirroredFile(
                name, "patched", size, before, after, patch=edit.patch, inverse=edit.inverse
            )
        elif listing.is_weights(name, size):
            yield MirroredFile(name, "weights", size, known, known)
        else:
            yield MirroredFile(name, "copied", size, known, known)
