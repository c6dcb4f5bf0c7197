"""How a checkpoint stands beside what it came from; needs no network and reads no shard.

What ``transaction.status`` knows is refined by what a download leaves on disk: the refs and the
names of the blobs in a Hub cache, and the notes in a ``--local-dir`` folder.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from patcher import foreign, mirroring, transaction
from patcher.errors import CkptPatchError
from patcher.headers.files import StrPath, read_whole
from patcher.headers.index import unsafe
from patcher.in_cache import located
from patcher.jsontext import CONFIG_LIMITS
from patcher.origin import has_digest, locate, noted_digest, origin_of
from patcher.report.human import shell_path
from patcher.target import command_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from patcher.transaction import Record, Status

#: What to do next, by state; ``{launch}`` is the target of the record.
COMMANDS = {
    "pristine": ("check {path}",),
    "patched": ("undo {path}",),
    "edited": ("undo --merge {path}",),
    "reverted": ("apply {launch}{path}", "undo {path}"),
    "new-revision": ("apply {launch}{path}",),
    "mirror": ("verify {path}",),
    "interrupted": ("recover {path}",),
    "busy": ("status {path}",),
    "damaged": ("log {path}",),
}

_MAX_NOTE = 4096  # bytes; a ref is one line
_SHORT = 12  # characters of a commit


class Look(Struct, frozen=True):
    """One look at a checkpoint: the directory that was meant, and how it stands."""

    root: Path
    status: Status


def look(path: StrPath) -> Look:
    """How a checkpoint stands now; of a Hub id, the snapshot in the cache.

    Raises:
        UnreadableError: no checkpoint directory.
        RefusedError: ``.ckpt-patch`` is a link or another user's.
    """
    root, _ = locate(located(path))
    present = transaction.status(root)
    refined = (refine(root, present) for refine in _REFINEMENTS)
    present = next(filter(None, refined), present)
    return Look(root, present if present.commands else _with_commands(present, root))


def _with_commands(present: Status, root: Path) -> Status:
    words = {"path": shell_path(str(root)), "launch": _launch(present.record)}
    commands = (f"ckpt-patch {text.format(**words)}" for text in COMMANDS[present.state])
    return replace(present, commands=tuple(commands))


def _launch(record: Record | None) -> str:
    """The options that give the target of a record again."""
    known = record is not None and {"gpu", "engine", "version"} <= record.target.keys()
    return f"{command_line(record.target)} " if record and known else ""


def _mirror(root: Path, present: Status) -> Status | None:
    if present.state != "pristine" or not os.path.lexists(root / mirroring.MANIFEST):
        return None
    return replace(present, state="mirror")


def _new_snapshot(root: Path, present: Status) -> Status | None:
    """In a Hub cache, one revision is patched, and ``refs/main`` names another one that is not."""
    own = root if root.parent.name == "snapshots" else Path(os.path.realpath(root))
    main = _main(own) if origin_of(root).kind == "cache" else None
    if main is None or not _is_untouched(main):
        return None
    if present.state == "patched" and main != own:
        problem = f"refs/main names revision {main.name[:_SHORT]} now, which came unpatched"
        return _with_commands(replace(present, state="new-revision", problem=problem), main)
    for sibling in sorted(own.parent.iterdir()) if main == own else ():
        former = _status(sibling)
        if former is not None and former.state == "patched":
            problem = f"revision {sibling.name[:_SHORT]} is patched, and this newer one is not"
            return replace(former, state="new-revision", files=(), problem=problem)
    return None


def _main(snapshot: Path) -> Path | None:
    """The snapshot that ``refs/main`` names, if it is here."""
    ref = snapshot.parent.parent / "refs" / "main"
    try:
        commit = read_whole(ref, str(ref), _MAX_NOTE).decode("ascii", "replace").strip()
    except CkptPatchError:
        return None
    main = snapshot.parent / commit
    return main if not unsafe(commit) and main.is_dir() else None


def _is_untouched(snapshot: Path) -> bool:
    """Whether ckpt-patch was never at work there; after an undo it is its user who decided so."""
    with suppress(CkptPatchError):
        return not transaction.log(snapshot)
    return False


def _status(root: Path) -> Status | None:
    with suppress(CkptPatchError):
        return transaction.status(root)
    return None


def _new_download(root: Path, present: Status) -> Status | None:
    """In a ``--local-dir`` folder, what looks edited is what a later download has brought."""
    edited = [each.file for each in present.files if each.state == "edited"]
    lost = any(each.state in {"missing", "unreadable"} for each in present.files)
    if present.state != "edited" or lost or not all(_is_as_noted(root, name) for name in edited):
        return None
    revision = (origin_of(root).revision or "unknown")[:_SHORT]
    problem = f"{' and '.join(edited)} came with revision {revision}, after the patch"
    return replace(present, state="new-revision", problem=problem) if edited else None


def _is_as_noted(root: Path, name: str) -> bool:
    digest = noted_digest(root, name)
    with suppress(CkptPatchError):
        return digest is not None and has_digest(
            read_whole(root / name, name, CONFIG_LIMITS.size), digest
        )
    return False


def _foreign(root: Path, present: Status) -> Status | None:
    """There is no record, and yet something was changed."""
    traces = foreign.traces(root) if present.state == "pristine" else ()
    if not traces:
        return None
    problem = "; ".join(each.sentence for each in traces)
    commands = dict.fromkeys(each.command for each in traces)
    return replace(present, state="foreign", problem=problem, commands=tuple(commands))


_REFINEMENTS: tuple[Callable[[Path, Status], Status | None], ...] = (
    _mirror,
    _new_snapshot,
    _new_download,
    _foreign,
)
