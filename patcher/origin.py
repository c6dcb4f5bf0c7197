"""Where a checkpoint directory came from, and from a path argument to that directory."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from patcher import hub
from patcher.errors import UnreadableError
from patcher.headers.files import StrPath, kind_of, quoted, read_whole, unreadable
from patcher.headers.index import unsafe

#: Where ``hf download --local-dir`` notes what it wrote, one ``<file>.metadata`` per file.
LOCAL_DIR_NOTES = os.path.join(".cache", "huggingface", "download")

#: Bytes; refs and notes are a line or three.
_MAX_NOTE = 4096

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA1_LENGTH = 40


class Origin(Struct, frozen=True):
    """Where the files came from.

    Attributes:
        kind: ``cache``: a snapshot in a Hub cache; ``local_dir``: ``hf download --local-dir``;
            ``hub``: a repository on the Hub, of which the cache has as much as was needed.
        repo_id: ``org/name``; known for ``cache`` and ``hub`` only.
        revision: the commit; ``None`` for ``directory``.
        ref: ``main``, when the argument was a cached repository and its ref was followed; the
            branch, tag or commit that was asked for on the Hub.
        download: the command that fetches a file of it, up to the file's name; with the
            placeholder ``ORG/NAME`` where the repository is not known.
        notes: what was decided for the user, as sentences without a full stop.
    """

    kind: Literal["directory", "cache", "local_dir", "hub"]
    repo_id: str | None
    revision: str | None
    download: str
    ref: str | None = None
    notes: tuple[str, ...] = ()


def of_snapshot(snapshot: hub.Snapshot) -> Origin:
    """The origin of a repository on the Hub."""
    repo_id, ref = snapshot.hub_id.repo_id, snapshot.hub_id.revision or "main"
    download = f"hf download {repo_id} --revision {snapshot.commit}"
    return Origin("hub", repo_id, snapshot.commit, download, ref, snapshot.notes)


def locate(path: StrPath) -> tuple[Path, Origin]:
    """The checkpoint directory that ``path`` means, absolute, links not resolved, and its origin.

    A repository folder of a Hub cache (``models--org--name``) means the snapshot that its
    ``refs/main`` names.

    Raises:
        UnreadableError: it is no directory; the hint says what to give or to download instead.
    """
    text = os.fspath(path)
    if not text:
        raise UnreadableError("the path is empty", hint="ckpt-patch check DIRECTORY")
    root = Path(text)
    try:
        root = root.absolute()
        mode = os.stat(root).st_mode
    except (OSError, ValueError) as error:
        raise _no_such(text, root, error) from error
    if not stat.S_ISDIR(mode):
        raise _no_directory(text, root, mode)
    folder = root.parent if root.name == "snapshots" else root
    if _repo_id(folder.name) and (folder / "snapshots").is_dir():
        root = _main_snapshot(folder)
        return root, origin_of(root, ref="main")
    origin = origin_of(root)
    if hub_id := hub.parse(text):
        note = f"{text} is a directory here; the repository on the Hub is hf://{hub_id}"
        origin = replace(origin, notes=(note,))
    return root, origin


def origin_of(root: Path, ref: str | None = None) -> Origin:
    """Read the origin off the directory's place and the notes inside it; never raises."""
    # A link to a snapshot is seen by where it leads, a cache folder that is a link by its own name.
    for place in (root, Path(os.path.realpath(root))):
        repo_id = _repo_id(place.parent.parent.name)
        if repo_id and place.parent.name == "snapshots":
            cache = place.parent.parent.parent
            download = f"hf download {repo_id} --revision {place.name} --cache-dir {quoted(cache)}"
            return Origin("cache", repo_id, place.name, download, ref)
    download = f"hf download ORG/NAME --local-dir {quoted(root)}"
    notes = _notes(root / LOCAL_DIR_NOTES)
    if not notes:
        return Origin("directory", None, None, download)
    commit = next(filter(None, map(_commit, notes)), None)
    if commit:
        download += f" --revision {commit}"
    return Origin("local_dir", None, commit, download)


def _repo_id(folder: str) -> str | None:
    """``org/name`` of ``models--org--name``; repositories without an organisation exist too."""
    kind, *parts = folder.split("--")
    return "/".join(parts) if kind == "models" and len(parts) in (1, 2) and all(parts) else None


def _main_snapshot(folder: Path) -> Path:
    snapshots = folder / "snapshots"
    known = sorted(os.listdir(snapshots))
    hint = " or ".join(f"ckpt-patch check {quoted(snapshots / name)}" for name in known)
    hint = hint or f"hf download {_repo_id(folder.name)}"
    ref = str(folder / "refs" / "main")
    try:
        commit = read_whole(ref, ref, _MAX_NOTE).decode("utf-8", "replace").strip()
    except UnreadableError as error:
        raise UnreadableError(
            f"is a cached repository, but its refs/main {error.message}",
            path=str(folder),
            hint=hint,
        ) from error
    if unsafe(commit) or not (snapshots / commit).is_dir():
        raise UnreadableError(
            f"is a cached repository, but its refs/main says {commit!a}, of which there is no "
            "snapshot",
            path=str(folder),
            hint=hint,
        )
    return snapshots / commit


def _notes(folder: Path) -> list[Path]:
    """The notes of a local_dir download, that of config.json first."""
    try:
        names = [name for name in os.listdir(folder) if name.endswith(".metadata")]
    except OSError:
        return []
    names.sort(key=lambda name: (name != "config.json.metadata", name))
    return [folder / name for name in names]


def _commit(note: Path) -> str | None:
    """The first line of a note; the others are the etag and the time of the download."""
    try:
        first, *_ = read_whole(note, note.name, _MAX_NOTE).decode("ascii", "replace").split("\n")
    except UnreadableError:
        return None
    return first if _COMMIT.fullmatch(first) else None


def noted_digest(root: Path, name: str) -> str | None:
    """The hash that ``hf download --local-dir`` noted for a file: the second of three lines."""
    note = root / LOCAL_DIR_NOTES / f"{name}.metadata"
    try:
        lines = read_whole(note, note.name, _MAX_NOTE).decode("ascii", "replace").split("\n")
    except UnreadableError:
        return None
    return lines[1] if len(lines) > 1 else None


def has_digest(data: bytes, digest: str | None) -> bool:
    """Whether bytes have the hash by which the Hub names a file: git's sha1, or sha256."""
    import hashlib  # noqa: PLC0415 - lazy: it loads OpenSSL, and few commands hash

    from patcher.hub.cache import blob_id  # noqa: PLC0415 - the same

    if digest is not None and len(digest) == _SHA1_LENGTH:
        return blob_id(data) == digest
    return hashlib.sha256(data).hexdigest() == digest


def _no_such(text: str, root: Path, error: OSError | ValueError) -> UnreadableError:
    found = unreadable(root, text, error)
    return UnreadableError(found.message, path=text, hint=f"ls -ld {quoted(root.parent)}")


def _no_directory(text: str, root: Path, mode: int) -> UnreadableError:
    beside = f"ckpt-patch check {quoted(root.parent)}"
    by_suffix = {
        ".json": ("is a file; a checkpoint is the directory that holds it", beside),
        ".safetensors": (
            "is a file of weights; what is said about the KV cache stands in config.json beside it",
            beside,
        ),
        ".gguf": (
            "is a GGUF file; ckpt-patch reads the config.json of Hugging Face checkpoints",
            "llama.cpp takes the type of its KV cache from --cache-type-k and --cache-type-v",
        ),
    }
    message, hint = by_suffix.get(root.suffix, (f"is {kind_of(mode)}, not a directory", None))
    if stat.S_ISREG(mode):
        return UnreadableError(message, path=text, hint=hint)
    return UnreadableError(f"is {kind_of(mode)}, not a directory", path=text)
