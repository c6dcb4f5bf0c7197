"""The source of a mirror on the Hub: whether the Hub can copy it, and what the mirror will hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from patcher.edits import sha256
from patcher.errors import RefusedError, UnreadableError, UsageError
from patcher.headers.files import quoted
from patcher.hub import HubId, cache, parse, uploading
from patcher.in_cache import mirror_words
from patcher.mirroring import drafting
from patcher.mirroring.listing import LEFT_OUT
from patcher.mirroring.manifest import HUB, Manifest, MirroredFile, Source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from patcher.checkpoint import Checkpoint
    from patcher.hub.uploading import Repository
    from patcher.planning import Plan

_SHOWN = 3


def destination(text: str) -> HubId:
    """The repository that ``owner/name`` names.

    Raises:
        UsageError: it names none, or a revision of one.
    """
    found = parse(text)
    if found is None or found.revision:
        raise UsageError(
            f"{text!r} names no repository that could be made",
            hint="ckpt-patch mirror ORG/NAME hub://YOU/NAME-sm120",
        )
    return found


def require_remote(checkpoint: Checkpoint, place: HubId) -> None:
    """The source must be a repository on the Hub that was asked what it has.

    Raises:
        RefusedError: it is here, or there is no network.
        UsageError: it is the destination.
    """
    origin = checkpoint.origin
    if origin.repo_id == place.repo_id:
        raise UsageError(
            "source and destination are the same repository",
            path=place.repo_id,
            hint=f"to propose the patch there: ckpt-patch export {place.repo_id}",
        )
    if checkpoint.remote is not None:
        return
    if origin.kind == "hub":
        raise needs_network(checkpoint.name, f"hub://{place}")
    path = str(checkpoint.root)
    hint = f"ckpt-patch mirror hf://{origin.repo_id}@{origin.revision} hub://{place}"
    if not origin.repo_id:
        hint = (
            f"if it is on the Hub: ckpt-patch mirror hf://ORG/NAME hub://{place}\n"
            f"if not, send all of it: ckpt-patch apply {quoted(path)} && "
            f"hf upload {place} {quoted(path)} . --exclude '.ckpt-patch/*'"
        )
    raise RefusedError(
        "is a directory here, and the Hub can copy weights only from a repository that it has. "
        "Nothing was written",
        path=path,
        hint=hint,
    )


def needs_network(source: str, place: str) -> RefusedError:
    """The error for a mirror on the Hub without a network."""
    return RefusedError(
        "a mirror on the Hub needs the network, which --no-network or HF_HUB_OFFLINE forbids. "
        "Nothing was written",
        path=place,
        hint="for a mirror on this machine, of what the cache has: ckpt-patch mirror --no-network "
        f"{quoted(source)} {quoted(place.rpartition('/')[2])}",
    )


def find(checkpoint: Checkpoint) -> Repository:
    """The commit that was judged; its metadata must be what was judged.

    Raises:
        RefusedError: the copy in the cache is patched.
        UnreadableError: the Hub does not say.
    """
    assert checkpoint.origin.repo_id is not None
    source = uploading.find(HubId(checkpoint.origin.repo_id, checkpoint.origin.revision))
    if source is None:
        raise UnreadableError("is not on the Hub any more", path=checkpoint.name)
    for name, document in checkpoint.documents.items():
        blob = source.files.get(name)
        if blob is None or blob.digest not in {cache.blob_id(document.data), sha256(document.data)}:
            raise RefusedError(
                "is not what the Hub has: somebody has patched the copy in your cache. Nothing was "
                "written",
                path=str(checkpoint.root / name),
                hint=f"ckpt-patch undo {checkpoint.root}",
            )
    return source


def require_copyable(source: Repository, plan: Plan) -> None:
    """What the Hub would not copy is refused before anything is created.

    Raises:
        RefusedError: the source is gated, or its weights are not stored in Xet.
    """
    fixed = [name for name, blob in source.files.items() if not blob.copyable]
    shown = ", ".join(fixed[:_SHOWN])
    more = f" and {len(fixed) - _SHOWN} more" if len(fixed) > _SHOWN else ""
    cases = (
        (source.gated, "is gated, and a copy would be given to who has not agreed to its terms"),
        (fixed, f"has files that the Hub cannot copy, because they are not in Xet: {shown}{more}"),
    )
    for applies, message in cases:
        if applies:
            raise RefusedError(
                f"{message}. Nothing was written",
                path=source.hub_id.repo_id,
                hint="make it here instead: ckpt-patch "
                + mirror_words(
                    plan.before.path, plan.before.target.to_dict(), source.hub_id.repo_id
                ),
            )


def draft(plan: Plan, source: Repository) -> Manifest:
    """The manifest of the mirror that is to be made."""
    files = tuple(_files(plan, source))
    folders = {parent for file in files for parent in _parents(file.path)}
    place = f"hf://{source.hub_id}"
    return drafting.planned(
        plan,
        source=Source(place, "hub", source.hub_id.repo_id, source.commit),
        link=HUB,
        folders=tuple(sorted(folders)),
        folder_links={},
        files=files,
    )


def _files(plan: Plan, source: Repository) -> Iterator[MirroredFile]:
    edits = {edit.file: edit for edit in plan.edits}
    for path, blob in sorted(source.files.items()):
        if any(path == out or path.startswith(f"{out}/") for out in LEFT_OUT):
            continue
        edit = edits.get(path)
        if edit is not None:
            yield MirroredFile(
                path,
                "patched",
                blob.size,
                edit.before_sha256,
                edit.after_sha256,
                patch=edit.patch,
                inverse=edit.inverse,
                git_sha1=cache.blob_id(edit.after),
            )
        elif blob.large:
            yield MirroredFile(path, "weights", blob.size, blob.digest, blob.digest)
        else:
            yield MirroredFile(path, "copied", blob.size, git_sha1=blob.digest)


def _parents(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path
