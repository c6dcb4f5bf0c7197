"""One commit of a repository: what is in the cache is used as it is, the rest is fetched.

Engines take a cached file as it is, so a patched one is judged as patched. What arrives is compared
with the hash that the Hub states, because over HTTP the client looks at its size only.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from patcher import fsio
from patcher.errors import UnreadableError
from patcher.headers.index import unsafe
from patcher.hub import client
from patcher.hub.failures import NoRevisionError, NotReachedError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from patcher.hub.ids import HubId

_COMMIT = re.compile(r"[0-9a-f]{40}")
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SHA1_LENGTH = 40
_CHUNK = 1 << 20

_NOT_ASKED = "the Hub was not asked (--no-network or HF_HUB_OFFLINE)"


class RemoteFile(Struct, frozen=True):
    """A file on the Hub.

    Attributes:
        size: bytes; ``None`` where the server does not say.
        digest: git's sha1 of the blob, or the sha256 of a large file; ``None`` likewise.
    """

    size: int | None
    digest: str | None


class Snapshot(Struct, frozen=True):
    """A commit of a repository.

    Attributes:
        hub_id: what was asked for.
        commit: 40 hexadecimal digits.
        folder: the snapshot's folder in the cache.
        files: all files by name; ``None`` when the Hub was not asked, and the folder is all there
            is.
        notes: sentences for the user, without a full stop.
    """

    hub_id: HubId
    commit: str
    folder: Path
    files: Mapping[str, RemoteFile] | None
    notes: tuple[str, ...] = ()

    def size(self, name: str) -> int | None:
        """Bytes of a file; ``None`` where the server does not say."""
        return self.files[name].size if self.files else None

    def length(self, name: str) -> int:
        """Bytes of a file; asks for it alone where the list of files has no sizes."""
        size = self.size(name)
        return client.size(self.hub_id, self.commit, name) if size is None else size

    def fetch(self, name: str, limit: int) -> None:
        """Make sure that a file of at most ``limit`` bytes is in ``folder``.

        Raises:
            UnreadableError: it is larger, did not arrive, or arrived damaged.
        """
        assert self.files is not None
        if (self.folder / name).exists():
            return
        file = self.files[name]
        if file.size is not None and file.size > limit:
            raise UnreadableError(
                f"is {file.size:,} bytes long on the Hub, more than the {limit:,} that it may have",
                path=name,
            )
        known = self._blobs([name])
        path = client.fetch(self.hub_id, name)
        if path.parents[name.count("/")].name != self.commit:
            raise UnreadableError(
                "has got a new commit while it was being read",
                path=str(self.hub_id),
                hint="run the command again",
            )
        self._verify(name, known)

    def read(self, name: str, size: int, offset: int) -> bytes:
        """``size`` bytes of a file, which is not downloaded."""
        return client.read_range(self.hub_id, self.commit, name, size, offset)

    def download(self) -> None:
        """Make sure that all files are in ``folder``; what is there is not fetched again."""
        missing = self.missing()
        if not missing:
            return
        known = self._blobs(missing)
        client.fetch_all(self.hub_id, self.commit)
        for name in missing:
            self._verify(name, known)

    def missing(self) -> list[str]:
        """The files that are not in ``folder``."""
        return [name for name in self.files or () if not (self.folder / name).exists()]

    def _blobs(self, names: Collection[str]) -> set[Path]:
        """The blobs of these files that the cache has already."""
        assert self.files is not None
        paths = (self._blob(self.files[name].digest or "") for name in names)
        return {path for path in paths if path.is_file()}

    def _blob(self, digest: str) -> Path:
        return self.folder.parent.parent / "blobs" / digest

    def _verify(self, name: str, known: Collection[Path]) -> None:
        """Compare an arrived file with its hash; take a damaged one out of the cache again."""
        assert self.files is not None
        path = self.folder / name
        if not path.is_file():
            raise UnreadableError(f"{name} did not arrive", path=str(self.hub_id))
        digest = self.files[name].digest or _etag(path)
        if digest is None or _hash(path, digest) == digest:
            return
        blob = self._blob(digest)
        _unlink(path)
        if blob not in known and blob.is_file():  # an old one belongs to other revisions too
            _unlink(blob)
        raise UnreadableError(
            f"{name} arrived damaged: its hash is not {digest}, which the Hub states",
            path=str(self.hub_id),
            hint=f"hf download {self.hub_id.repo_id} {name} --revision {self.commit} "
            "--force-download",
        )


def fetch_metadata(
    hub_id: HubId, names: Collection[str], *, limit: int, no_network: bool = False
) -> Snapshot:
    """A snapshot whose folder has those of the files ``names`` that the repository has.

    ``limit``: bytes that each may have. With ``no_network``, or HF_HUB_OFFLINE, or where the Hub is
    not reached, it is what the cache has.

    Raises:
        UnreadableError: one sentence on why there is nothing to look at.
    """
    if no_network or client.is_offline():
        return _cached(hub_id, names, _NOT_ASKED)
    try:
        snapshot = _listed(hub_id)
    except NotReachedError as error:
        if client.cached_folder(hub_id, names) is None:
            raise
        return _cached(hub_id, names, error.message)
    except NoRevisionError as error:
        if client.cached_folder(hub_id, names) is None:
            raise
        raise NoRevisionError(
            f"{error.message}, and the cache has one of that name",
            path=error.path,
            hint="to take it from there add --no-network, as in: "
            f"ckpt-patch inspect --no-network {hub_id}",
        ) from error
    for name in names:
        if name in (snapshot.files or ()):
            snapshot.fetch(name, limit)
    return snapshot


def download(hub_id: HubId, *, no_network: bool = False) -> Snapshot:
    """A snapshot whose folder has all files of the repository, each verified when it arrived.

    A run that was interrupted is continued with the files that are missing.

    Raises:
        UnreadableError: one sentence on why a file is missing.
    """
    if no_network or client.is_offline():
        raise UnreadableError(f"cannot be downloaded: {_NOT_ASKED}", path=str(hub_id))
    snapshot = _listed(hub_id)
    snapshot.download()
    return snapshot


def _listed(hub_id: HubId) -> Snapshot:
    """What the Hub says about a revision now; nothing is downloaded."""
    info = client.model_info(hub_id)
    commit = info.sha
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        raise UnreadableError("the server names no commit", path=str(hub_id))
    files = {item.rfilename: _file(item) for item in info.siblings or ()}
    if bad := next(filter(unsafe, files), None):
        raise UnreadableError(f"the server names a file {bad!a}", path=str(hub_id))
    return Snapshot(hub_id, commit, client.folder_of(hub_id, commit), files)


def _file(item: Any) -> RemoteFile:
    digest = item.lfs.sha256 if item.lfs else item.blob_id
    good = isinstance(digest, str) and _DIGEST.fullmatch(digest)
    return RemoteFile(item.size, digest if good else None)


def _cached(hub_id: HubId, names: Collection[str], why: str) -> Snapshot:
    folder = client.cached_folder(hub_id, names)
    if folder is None:
        raise NotReachedError(
            f"is not in the Hub cache, and {why}",
            path=str(hub_id),
            hint=f"where there is a network: hf download {hub_id.repo_id} --include '*.json'",
        )
    note = f"{why}; this is what the cache has of {hub_id}: {folder.name}"
    return Snapshot(hub_id, folder.name, folder, None, (note,))


def _etag(path: Path) -> str | None:
    """The hash by which the cache calls the file that a snapshot's entry leads to."""
    blob = Path(os.path.realpath(path))
    named = blob.parent.name == "blobs" and _DIGEST.fullmatch(blob.name)
    return blob.name if named else None


def _hash(path: Path, like: str) -> str:
    """The file's hash, of the kind that ``like`` is."""
    if len(like) == _SHA1_LENGTH:
        digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    else:
        digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _unlink(path: Path) -> None:
    with fsio.open_dir(str(path.parent), follow=True) as folder:
        fsio.unlink(folder, path.name)
