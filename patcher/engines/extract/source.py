"""The Python files of an engine release, from a directory or straight out of its wheel on PyPI.

An engine's wheel weighs half a gigabyte; the files that matter weigh one megabyte. A wheel is a zip
file, and the server answers range requests, so ``WheelSource`` reads the zip directory once and
then single members, each when it is asked for, and keeps them in a cache directory.
"""

from __future__ import annotations

import io
import json
import os
import urllib.error
import urllib.request
import zipfile
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from patcher.errors import UnreadableError

_SIMPLE_JSON = "application/vnd.pypi.simple.v1+json"
_CHUNK = 1 << 16
_TIMEOUT = 60


class Source(Protocol):
    """Paths are POSIX and relative to the folder that holds the package: ``vllm/envs.py``."""

    def exists(self, path: str) -> bool:
        """Whether this file is part of the release."""

    def read(self, path: str) -> str:
        """Text of the file. Raises UnreadableError."""

    def has_extension(self, stem: str) -> bool:
        """Whether a compiled module ``stem.<tags>.so`` is part of the release."""


@dataclass(frozen=True, slots=True)
class DirectorySource:
    """A source tree or ``site-packages``."""

    root: str

    def exists(self, path: str) -> bool:
        """Whether this file is there."""
        return os.path.isfile(os.path.join(self.root, path))

    def read(self, path: str) -> str:
        """Text of the file. Raises UnreadableError."""
        try:
            with open(os.path.join(self.root, path), encoding="utf-8") as file:
                return file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise UnreadableError(str(error), path=path) from error

    def has_extension(self, stem: str) -> bool:
        """Whether a compiled module of this name lies in the directory."""
        folder, _, name = os.path.join(self.root, stem).rpartition("/")
        return os.path.isdir(folder) and any(
            found.startswith(f"{name}.") and found.endswith(".so") for found in os.listdir(folder)
        )


class WheelSource:
    """The members of one wheel on PyPI, read over HTTP when needed and then kept in ``cache``."""

    def __init__(self, url: str, cache: str) -> None:
        self.url = url
        self._files = DirectorySource(cache)
        self._cache = cache

    @cached_property
    def names(self) -> frozenset[str]:
        """All members of the wheel."""
        path = os.path.join(self._cache, "MEMBERS.json")
        if not os.path.exists(path):
            members = json.dumps(
                {"url": self.url, "members": sorted(self._zip.namelist())}, indent=0
            )
            _write(path, members.encode())
        with open(path, encoding="utf-8") as file:
            return frozenset(json.load(file)["members"])

    def exists(self, path: str) -> bool:
        """Whether the wheel has this member."""
        return path in self.names

    def read(self, path: str) -> str:
        """Text of the member; one range request the first time. Raises UnreadableError."""
        if not self._files.exists(path):
            try:
                data = self._zip.read(path)
            except (KeyError, zipfile.BadZipFile) as error:
                raise UnreadableError(f"{error} in {self.url}", path=path) from error
            _write(os.path.join(self._cache, path), data)
        return self._files.read(path)

    def has_extension(self, stem: str) -> bool:
        """Whether the wheel holds a compiled module of this name."""
        return stem in self._extensions

    @cached_property
    def _extensions(self) -> frozenset[str]:
        """Every compiled module without its tags; releases ask for thousands that are not there."""
        return frozenset(
            os.path.join(folder, name.partition(".")[0])
            for folder, name in map(os.path.split, self.names)
            if name.endswith(".so")
        )

    @cached_property
    def _zip(self) -> zipfile.ZipFile:
        return zipfile.ZipFile(io.BufferedReader(_HttpFile(self.url), _CHUNK))


def _write(path: str, data: bytes) -> None:
    """A cache file, complete or not there at all."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.{os.getpid()}.part"
    with open(temporary, "wb") as file:
        file.write(data)
    os.replace(temporary, path)


class _HttpFile(io.RawIOBase):
    """A remote file that can be read at any offset."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._position = 0
        with _open(url, method="HEAD") as response:
            self._size = int(response.headers["Content-Length"])

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        end = min(self._position + len(buffer), self._size)
        if end <= self._position:
            return 0
        wanted = {"Range": f"bytes={self._position}-{end - 1}"}
        with _open(self._url, headers=wanted) as response:
            if response.status != 206:  # noqa: PLR2004 - Partial Content
                raise UnreadableError("the server does not answer range requests", path=self._url)
            data = response.read()
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


def _open(url: str, method: str = "GET", headers: dict[str, str] | None = None) -> Any:
    if not url.startswith("https://"):
        raise UnreadableError("only https is fetched", path=url)
    request = urllib.request.Request(url, method=method, headers=headers or {})  # noqa: S310 - see above
    try:
        return urllib.request.urlopen(request, timeout=_TIMEOUT)  # noqa: S310 - see above
    except (urllib.error.URLError, TimeoutError) as error:
        raise UnreadableError(f"cannot fetch: {error}", path=url) from error


def _project_files(project: str) -> list[dict[str, Any]]:
    with _open(f"https://pypi.org/simple/{project}/", headers={"Accept": _SIMPLE_JSON}) as response:
        files: list[dict[str, Any]] = json.load(response)["files"]
    return files


def wheels(project: str) -> dict[str, str]:
    """Every final, unyanked release of ``project`` on PyPI with the URL of its x86_64 Linux wheel.

    Where a release was rebuilt, the highest build number counts, as it does for pip.
    """
    from packaging.utils import parse_wheel_filename  # noqa: PLC0415 - maintainers' command only

    found: dict[str, tuple[tuple[Any, ...], str]] = {}
    for file in _project_files(project):
        name = file["filename"]
        if not name.endswith("x86_64.whl") or file.get("yanked"):
            continue
        _, version, build, _ = parse_wheel_filename(name)
        if not version.is_prerelease and build >= found.get(str(version), ((), ""))[0]:
            found[str(version)] = (tuple(build), file["url"])
    return {version: url for version, (_, url) in found.items()}


def wheel_source(project: str, version: str) -> WheelSource:
    """The release's wheel; cached under ``$XDG_CACHE_HOME/ckpt-patch/sources``.

    Raises:
        UnreadableError: PyPI has no such release.
    """
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    cache = os.path.join(home, "ckpt-patch", "sources", f"{project}-{version}")
    members = os.path.join(cache, "MEMBERS.json")
    if os.path.exists(members):
        with open(members, encoding="utf-8") as file:
            return WheelSource(json.load(file)["url"], cache)
    url = wheels(project).get(version)
    if url is None:
        raise UnreadableError(f"PyPI has no x86_64 wheel of {project} {version}")
    return WheelSource(url, cache)
