"""What is at a destination on the Hub, and what a commit has to change there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from patcher.errors import RefusedError
from patcher.hub import HubId, uploading
from patcher.mirroring.manifest import FILE, Manifest, decode
from patcher.transaction.journal import NAME

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from patcher.hub.uploading import Blob, Repository
    from patcher.mirroring.manifest import MirroredFile
    from patcher.planning import Plan

#: The path of the manifest in the repository.
MANIFEST = f"{NAME}/{FILE}"

#: Bytes that a manifest may have.
_MAX_MANIFEST = 64 * 1024 * 1024

#: What the Hub itself puts into a new repository.
_OF_THE_HUB = {".gitattributes"}


class OccupiedError(RefusedError):
    """What is at the destination is somebody else's; nothing was written."""

    slug = "hub-occupied"


class Changes(Struct, frozen=True):
    """What one commit does; false where there is nothing to do.

    Attributes:
        present: the destination; ``None``: it does not exist.
        manifest: of the mirror that is there; ``None``: there is none.
        copies: paths that the Hub copies from the source.
        additions: paths that are sent: patched files and the manifest.
        deletions: paths that the source does not have any more.
        kept: paths that somebody has edited there, and that stay as they are.
    """

    present: Repository | None
    manifest: Manifest | None
    copies: tuple[str, ...] = ()
    additions: tuple[str, ...] = ()
    deletions: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.copies or self.additions or self.deletions)

    @property
    def parent(self) -> str:
        """The commit that was looked at; empty where there is none."""
        return self.present.commit if self.present else ""


def changes(name: str, wanted: Manifest, plan: Plan) -> Changes:
    """From what is there to what is wanted.

    Raises:
        OccupiedError: it is something else, or somebody has edited what would be overwritten.
        UnreadableError: the Hub does not say.
    """
    present = uploading.find(HubId(name))
    there = present.files if present else {}
    former = _manifest(name, present) if present else None
    if former and former.source.repo_id != wanted.source.repo_id:
        raise _foreign(name, f"is a mirror of {former.source.repo_id}")
    old = {file.path: file for file in former.files} if former else {}
    new = {file.path: file for file in wanted.files}
    todo = [file for file in wanted.files if not fits(there.get(file.path), file)]
    gone = [file for file in old.values() if file.path not in new and file.path in there]
    theirs = {
        file.path
        for file in (*todo, *gone)
        if former and file.path in there and not fits(there[file.path], old.get(file.path))
    }
    kept = {p for p in theirs if p in new and new[p].kind == "copied" and new[p] == old.get(p)}
    if theirs - kept:
        raise _edited(name, sorted(theirs - kept))
    todo = [file for file in todo if file.path not in kept]
    patched = {edit.file for edit in plan.edits}
    additions = [file.path for file in todo if file.path in patched]
    if former is None or former.wanted() != wanted.wanted():
        additions.append(MANIFEST)
    return Changes(
        present,
        former,
        tuple(file.path for file in todo if file.path not in patched),
        tuple(additions),
        tuple(file.path for file in gone),
        tuple(sorted(kept)),
    )


def fits(blob: Blob | None, file: MirroredFile | None) -> bool:
    """Whether a file on the Hub is the one of the manifest: by git's hash, or by that of LFS."""
    return blob is not None and file is not None and blob.digest in {
        file.git_sha1, file.after_sha256
    }  # fmt: skip


def unlike(there: Repository | None, wanted: Manifest, done: Changes) -> list[str]:
    """What a commit that was made does not have as it was wanted."""
    files: Mapping[str, Blob] = there.files if there else {}
    return list(_unlike(files, wanted, done))


def _unlike(files: Mapping[str, Blob], wanted: Manifest, done: Changes) -> Iterator[str]:
    yield from (
        file.path
        for file in wanted.files
        if file.path not in done.kept and not fits(files.get(file.path), file)
    )
    if MANIFEST not in files:
        yield MANIFEST


def _manifest(name: str, present: Repository) -> Manifest | None:
    """The manifest of the mirror that is there; ``None`` where nothing is.

    Raises:
        OccupiedError: there is something else.
    """
    if MANIFEST not in present.files:
        if set(present.files) <= _OF_THE_HUB:
            return None
        raise _foreign(name, "holds files and is not a mirror made by ckpt-patch")
    try:
        return decode(uploading.read(present, MANIFEST, _MAX_MANIFEST))
    except (ValueError, msgspec.ValidationError) as error:
        raise _foreign(name, f"has a manifest that cannot be trusted ({error})") from error


def _foreign(name: str, why: str) -> OccupiedError:
    return OccupiedError(
        f"{why}. Nothing was written",
        path=name,
        hint=f"choose a repository that does not exist yet, such as hub://{name}-mirror",
    )


def _edited(name: str, paths: list[str]) -> OccupiedError:
    return OccupiedError(
        "somebody has edited files there that this mirror would overwrite. Nothing was written",
        path=name,
        hint="to have the mirror's own again: hf repos delete-files "
        f"{name} {' '.join(paths)}, then run the same command again\n"
        "or choose another name for the mirror",
        detail="".join(f"{path}: is not what ckpt-patch put there\n" for path in paths),
    )
