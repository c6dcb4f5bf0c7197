"""Where the releases' own files are: unpacked trees, or the cache that the extraction fills."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from patcher.engines.extract.sglang import wheel
from patcher.engines.extract.source import DirectorySource, WheelSource, wheel_source
from patcher.errors import UnreadableError

if TYPE_CHECKING:
    from patcher.engines.extract.source import Source

#: Folders of unpacked wheels, ``vllm-0.16.0`` or ``sglang-0.5.23``, separated by colons.
TREES = "CKPT_PATCH_TREES"
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))


class Kept(WheelSource):
    """The cached members of a wheel, and nothing from the network; ``lacking`` is what was asked
    for and is not there."""

    lacking: str | None = None

    def read(self, path: str) -> str:
        """Text of a cached member. Raises UnreadableError."""
        if not self._files.exists(path):
            self.lacking = path
            raise UnreadableError("not in the cache", path=path)
        return self._files.read(path)


def at_hand(engine: str, release: str) -> Source | None:
    """The release's files, if no network is needed for them."""
    name = f"{engine}-{release}"
    for folder in filter(None, os.environ.get(TREES, "").split(":")):
        if (Path(folder) / name).is_dir():
            return DirectorySource(str(Path(folder) / name))
    cache = _CACHE / "ckpt-patch" / "sources" / name
    return Kept("", str(cache)) if (cache / "MEMBERS.json").is_file() else None


def fetched(engine: str, release: str) -> Source:
    """The release's files, the missing ones out of its wheel on PyPI.

    Raises:
        UnreadableError: PyPI has no such wheel, or cannot be reached.
    """
    found = at_hand(engine, release)
    if isinstance(found, DirectorySource):
        return found
    return wheel_source("vllm", release) if engine == "vllm" else wheel(release)
