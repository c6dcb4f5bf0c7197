"""The cache of huggingface_hub as it lies on disk. Nothing is written here, and nobody is asked.

::

    models--org--name/blobs/<hash>            files: by git's sha1, large ones by their sha256
                      snapshots/<commit>/     links to blobs, by the names of the repository
                      refs/<branch or tag>    the commit that it means, without a line end
                      trees/<commit>.json     all files of a commit (newer releases of the library)
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

from patcher.errors import UnreadableError
from patcher.headers.files import StrPath, read_whole
from patcher.hub import client

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from patcher.hub.ids import HubId

    #: What the library keeps of each file: ``size``, ``blob_id``, of a large one more.
    Listing = Mapping[str, Mapping[str, Any]]

#: The form of ``trees/<commit>.json`` (huggingface_hub 2.4.0, ``_tree_cache.py``).
LISTING_FORMAT = 1

#: Bytes.
_MAX_REF, _MAX_LISTING = 4096, 64 * 1024 * 1024

_SHA256_LENGTH = 64


def repository(snapshot: StrPath) -> str | None:
    """The folder of the repository, without links, that a snapshot is in; ``None`` for others."""
    snapshots = os.path.dirname(os.path.realpath(snapshot))
    return os.path.dirname(snapshots) if os.path.basename(snapshots) == "snapshots" else None


def read_ref(folder: str, name: str) -> str | None:
    """The commit that a branch, a tag or a name of our own means; ``None`` where it is unknown."""
    path = os.path.join(folder, "refs", name)
    try:
        return read_whole(path, name, _MAX_REF).decode("utf-8", "replace")
    except UnreadableError:
        return None


def name_of(snapshot: StrPath) -> str | None:
    """A name by which a snapshot of a Hub cache is found; ``None`` for others, or without one."""
    folder, commit = repository(snapshot), os.path.basename(os.path.realpath(snapshot))
    refs = os.path.join(folder, "refs") if folder else ""
    names = sorted(os.listdir(refs)) if os.path.isdir(refs) else []
    return next((name for name in names if read_ref(folder or "", name) == commit), None)


def read_listing(folder: str, commit: str) -> Listing | None:
    """All files of a commit; ``None`` where the library has not noted them in a form known here."""
    path = os.path.join(folder, "trees", f"{commit}.json")
    try:
        return decode_listing(read_whole(path, path, _MAX_LISTING))
    except UnreadableError:
        return None


def decode_listing(data: bytes) -> Listing | None:
    """The files in a ``trees/<commit>.json``; ``None`` where its form is not known here."""
    try:
        document = json.loads(data)
        known = document["format_version"] == LISTING_FORMAT
        return {name: dict(file) for name, file in document["files"].items()} if known else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def encode_listing(files: Listing) -> bytes:
    """The text of ``trees/<commit>.json`` as the library writes it."""
    document = {
        "format_version": LISTING_FORMAT,
        "files": {name: files[name] for name in sorted(files)},
    }
    return json.dumps(document, indent=1).encode()


def entry(blob: str, size: int) -> Mapping[str, Any]:
    """What a listing says of a file, told by the name of its blob."""
    if len(blob) != _SHA256_LENGTH:
        return {"size": size, "blob_id": blob}
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{blob}\nsize {size}\n"
    large = {"lfs_sha256": blob, "lfs_size": size}
    return {"size": size, "blob_id": blob_id(pointer.encode()), **large}


def blob_id(data: bytes) -> str:
    """Git's name of a file with these bytes, 40 hexadecimal digits."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def missing(snapshot: StrPath, names: Collection[str]) -> tuple[str, ...]:
    """Those of the files that the commit has and its snapshot has not, as far as is known."""
    folder = repository(snapshot)
    listing = read_listing(folder, os.path.basename(os.path.realpath(snapshot))) if folder else None
    there = [name for name in names if name in (listing or ())]
    return tuple(name for name in there if not os.path.isfile(os.path.join(snapshot, name)))


def whole(hub_id: HubId, names: Collection[str]) -> Path | None:
    """The snapshot of a revision, if it has all of these files that the commit has.

    ``None`` too where the library has not noted which files the commit has. Opens no connection.
    """
    found = client.cached_folder(hub_id, names)
    folder = repository(found) if found else None
    if found is None or folder is None or read_listing(folder, found.name) is None:
        return None
    return None if missing(found, names) else found
