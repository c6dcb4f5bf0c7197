"""What stands in the Hub's cache where a patched revision shall be."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Literal

from patcher.errors import RefusedError, UnreadableError, UsageError
from patcher.headers.files import quoted
from patcher.hub import HubId, NotReachedError, cache, client
from patcher.in_cache import mirror_words
from patcher.mirroring import manifest, revision

if TYPE_CHECKING:
    from patcher.checkpoint import Checkpoint
    from patcher.mirroring.revision import Revision
    from patcher.planning import Plan

Standing = Literal["absent", "outdated", "current"]

_COMMIT = re.compile(r"[0-9a-f]{40}")


def require_free(checkpoint: Checkpoint, name: str) -> None:
    """See whether a name is free on the Hub, where the Hub was asked anyway.

    Raises:
        UsageError: it cannot be the name of a revision.
        RefusedError: the repository has a branch or tag of that name.
    """
    revision.require_name(name)
    repo_id = checkpoint.origin.repo_id
    if checkpoint.remote is None or repo_id is None:
        return
    try:
        client.model_info(HubId(repo_id, name))
    except (NotReachedError, UnreadableError):  # the usual answer: there is no such revision
        return
    raise _foreign(name, f"{repo_id} has a branch or tag of that name on the Hub")


def folder_of(checkpoint: Checkpoint) -> str:
    """The repository's folder in the cache, absolute and without links.

    Raises:
        UsageError: the checkpoint is in no Hub cache.
    """
    folder = cache.repository(checkpoint.root)
    if folder is None or checkpoint.origin.repo_id is None:
        raise UsageError(
            "is in no Hub cache, which --cache-revision is for",
            path=checkpoint.name,
            hint="a copy whose weights are links: ckpt-patch mirror "
            f"{quoted(checkpoint.name)} {quoted(checkpoint.root.name)}-patched",
        )
    return folder


def standing(folder: str, name: str, made: Revision) -> Standing:
    """What a name means now: nothing (or not yet all of it), an older revision of ours, or this.

    Raises:
        RefusedError: it is a branch or tag, or somebody has changed what is there.
    """
    there = os.path.lexists(os.path.join(folder, "snapshots", made.commit))
    _require_intact(folder, made, there=there)
    named = cache.read_ref(folder, name)
    if named == made.commit:
        noted = cache.read_listing(folder, made.commit) == cache.decode_listing(made.listing)
        return "current" if there and noted else "absent"
    if named is None and not os.path.lexists(os.path.join(folder, "refs", name)):
        return "absent"
    ours = os.path.join(folder, "snapshots", named or "", manifest.PATH)
    if named and _COMMIT.fullmatch(named) and os.path.lexists(ours):
        return "outdated"
    raise _foreign(
        name, "the cache has a branch or tag of that name, which ckpt-patch did not make"
    )


def require_writable(folder: str, plan: Plan) -> None:
    """See before anything is written whether it can be.

    Raises:
        RefusedError: a folder of the cache cannot be written, or is a link to another place.
    """
    for name in ("", "blobs", "snapshots", "refs", "trees"):
        path = os.path.join(folder, name) if name else folder
        if os.path.islink(path):
            why = "is a link, and a revision takes its name by a rename inside one file system"
        elif os.path.lexists(path) and not os.access(path, os.W_OK | os.X_OK):
            why = "cannot be written"
        else:
            continue
        words = mirror_words(
            plan.before.path, plan.before.target.to_dict(), plan.before.origin["repo_id"]
        )
        raise RefusedError(
            f"{why}. Nothing was written",
            path=path,
            hint=f"make a copy whose weights are links, outside of the cache: ckpt-patch {words}",
        )


def _require_intact(folder: str, made: Revision, *, there: bool) -> None:
    """What has a name by its content must have that content; a kill leaves nothing else."""
    paths = (os.path.join(folder, "blobs", blob) for blob in made.blobs)
    held = zip(paths, made.blobs.values(), strict=True)
    wrong = [path for path, data in held if os.path.lexists(path) and not _holds(path, data)]
    snapshot = os.path.join(folder, "snapshots", made.commit)
    if there and (wrong or not _is_whole(snapshot, made)):
        wrong.insert(0, snapshot)
    if wrong:
        raise RefusedError(
            "is not as ckpt-patch made it. Nothing was written",
            path=wrong[0],
            hint="remove it, then run the command again: "
            f"rm -r {' '.join(quoted(path) for path in wrong)}",
        )


def _is_whole(snapshot: str, made: Revision) -> bool:
    try:
        if manifest.read(snapshot) is None:
            return False
        paths = {os.path.join(snapshot, path): text for path, text in made.links.items()}
        return all(os.readlink(path) == text and os.stat(path) for path, text in paths.items())
    except (OSError, RefusedError):
        return False


def _holds(path: str, data: bytes) -> bool:
    try:
        if os.path.getsize(path) != len(data) or not os.path.isfile(path):
            return False
        with open(path, "rb") as file:
            return file.read() == data
    except OSError:
        return False


def _foreign(name: str, why: str) -> RefusedError:
    return RefusedError(
        f"{why}. Nothing was written",
        path=name,
        hint=f"choose another name: --cache-revision {name}-ckpt-patch",
    )
