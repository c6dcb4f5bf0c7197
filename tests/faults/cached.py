"""``mirror --cache-revision`` under test: a patched revision beside the one it is made from."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from conftest import COMMIT, make_cache
from faults.mirrors import FILES, WANTED, Maker, nothing
from faults.operation import Operation, Picture
from running import snapshot

from patcher import mirroring
from patcher.mirroring import cache_revision

if TYPE_CHECKING:
    from pathlib import Path

    from patcher.mirroring.cache_revision import CacheRevision

REPOSITORY, NAME = "models--org--name", "patched"

_maker = cache(Maker)


def make(root: Path) -> CacheRevision:
    """The command; ``root`` is the snapshot in the cache."""
    made = _maker(root)
    prepared = cache_revision.prepare(made.checkpoint, made.plans[WANTED], NAME)
    return cache_revision.make(prepared)


@dataclass(frozen=True)
class Cached(Operation):
    """A revision is made in a cache that has one."""

    def build(self, home: Path, *, linked: bool = False) -> Picture:
        """Make the cache; its picture."""
        assert not linked
        make_cache(home, "org/name", {name: FILES[name] for name in FILES if "/" not in name})
        return snapshot(home)

    def place(self, template: Path, case: Path) -> Path:
        """Copy the cache; the snapshot in it."""
        shutil.copytree(template, case, symlinks=True)
        root = case / REPOSITORY / "snapshots" / COMMIT
        _maker(root)
        return root

    def kept(self, root: Path) -> bool:
        """Whether the name means the new revision, which is whole."""
        return self.state(root) == "new"

    def state(self, root: Path) -> str:
        """Whether the name means nothing yet, ``old``, or a whole revision, ``new``."""
        name = root.parents[1] / "refs" / NAME
        if not name.exists():
            return "old"
        verified = mirroring.verify(root.parent / name.read_text(encoding="ascii"))
        assert verified.problems == (), "half a revision"
        return "new"

    def verify(self, root: Path, pristine: Picture) -> str:
        """The name means nothing or a whole revision; what was in the cache is as it was.

        Making it twice is the same as once, and nothing stays in the repository's folder.
        """
        outcome = self.state(root)
        home = root.parents[2]
        assert pristine.items() <= snapshot(home).items(), "the cache has changed"
        assert (make(root).outcome == "current") == (outcome == "new")
        once = snapshot(home)
        assert make(root).outcome == "current"
        assert (snapshot(home), self.state(root)) == (once, "new")
        assert sorted(os.listdir(root.parents[1])) == ["blobs", "refs", "snapshots", "trees"]
        assert pristine.items() <= once.items(), "the cache has changed"
        return outcome


CACHED = {"mirror --cache-revision": Cached(nothing, make, {}, {}, fewest=(50, 0))}
