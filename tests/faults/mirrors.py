"""``mirror`` under test: a fresh one, and one that takes the place of an older one."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from faults import samples
from faults.harness import KILLED, Action
from faults.operation import Operation, Picture
from running import snapshot

from patcher import fsio, mirroring, planning
from patcher.checkpoint import open_checkpoint
from patcher.target import Target

if TYPE_CHECKING:
    from faults.harness import Answer

    from patcher.mirroring import Mirrored, Prepared

_FIXTURE = Path(__file__).resolve().parents[2] / "fixtures" / "Kimi-K2.5-NVFP4"
_HEADER = b'{"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}'

SHARD = "model-00001-of-00002.safetensors"
FILES = {
    "config.json": (_FIXTURE / "config.json").read_bytes(),
    "hf_quant_config.json": (_FIXTURE / "hf_quant_config.json").read_bytes(),
    "sub/tokenizer.json": b"{}",
    SHARD: len(_HEADER).to_bytes(8, "little") + _HEADER + bytes(4),
}

#: Two releases that need the patch, so mirrors for them differ in their manifests alone.
WANTED, FORMER = "0.16.0", "0.17.1"


class Maker:
    """Makes mirrors of one source, with plans that are made once."""

    def __init__(self, source: Path) -> None:
        self.checkpoint = open_checkpoint(source)
        self.plans = {
            version: planning.plan(
                self.checkpoint, Target.parse("sm120", engine=f"vllm=={version}")
            )
            for version in (WANTED, FORMER)
        }

    def prepare(self, root: Path, link: str = "auto", version: str = WANTED) -> Prepared:
        """See whether it can be made."""
        return mirroring.prepare(self.checkpoint, self.plans[version], root, link)

    def make(self, root: Path, link: str = "auto", version: str = WANTED) -> Mirrored:
        """Make it."""
        return mirroring.make(self.prepare(root, link, version))


#: A child that is forked later finds the plans made; a source of the same path has the same bytes.
maker = cache(Maker)


def build(source: Path) -> Path:
    """Write a small checkpoint."""
    for name, data in FILES.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, ns=(samples.MTIME_NS, samples.MTIME_NS))
    return source


def command(link: str = "auto", *, swaps: bool = True) -> Action:
    """``mirror --link`` from ``snapshot`` to ``mirror`` beside it.

    ``swaps``: whether the system can exchange two names at one instant.
    """

    def make(source: Path) -> object:
        if not swaps:
            fsio.hook = _without_exchange(fsio.hook)
        return maker(source).make(source.parent / "mirror", link)

    return make


def _without_exchange(inner: fsio.Hook | None) -> fsio.Hook:
    def hook(call: str, file: str) -> Answer:
        if call == "exchange":
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        return inner(call, file) if inner is not None else None

    return hook


def nothing(_source: Path) -> None:
    """No mirror is there before."""


def older(source: Path) -> object:
    """A mirror for another release is there before."""
    return maker(source).make(source.parent / "mirror", version=FORMER)


_AUTO = command()


@dataclass(frozen=True)
class Mirror(Operation):
    """A run of mirror.

    ``before`` runs in each copy, as an older mirror knows its inodes; ``back`` is the same command
    again.
    """

    back: Action = _AUTO

    def build(self, home: Path, *, linked: bool = False) -> Picture:
        """Make the source; its picture."""
        assert not linked
        return snapshot(build(home / "snapshot"))

    def place(self, template: Path, case: Path) -> Path:
        """Copy the source, and make the older mirror."""
        source = super().place(template, case)
        maker(source)
        self.before(source)
        return source

    def kept(self, root: Path) -> bool:
        """Whether the mirror is there, and is the new one."""
        return self.state(root.parent / "mirror") == "new"

    def state(self, mirror: Path) -> str:
        """Whether the mirror is ``old``, ``new``, or ``absent`` against all promises."""
        if not os.path.lexists(mirror):
            return "old" if self.before is nothing else "absent"
        verified = mirroring.verify(mirror)
        assert verified.problems == (), "half a mirror"
        return {WANTED: "new", FORMER: "old"}[verified.manifest.target["version"]]

    def verify(self, root: Path, pristine: Picture) -> str:
        """The mirror is absent or whole, old or new; the source is untouched; again makes it new.

        Making it twice is the same as once, and nothing stays beside it.
        """
        mirror = root.parent / "mirror"
        outcome = self.state(mirror)
        assert snapshot(root) == pristine, "the source has changed"
        assert (self._again(root) == "current") == (outcome == "new")
        once = snapshot(mirror)
        assert self._again(root) == "current"
        assert (snapshot(mirror), self.state(mirror)) == (once, "new")
        assert sorted(os.listdir(root.parent)) == ["mirror", "snapshot"], "something stays"
        assert snapshot(root) == pristine, "the source has changed"
        return outcome

    def _again(self, root: Path) -> str:
        mirrored = self.back(root)
        assert isinstance(mirrored, mirroring.Mirrored)
        return mirrored.outcome


def _fresh(link: str, fewest: int) -> Mirror:
    same = command(link)
    return Mirror(nothing, same, {}, {}, fewest=(fewest, 0), back=same)


MIRRORS: dict[str, Operation] = {
    "mirror": _fresh("auto", fewest=35),
    "mirror --link symlink": _fresh("symlink", fewest=32),
    "mirror --link copy": _fresh("copy", fewest=37),
    "mirror, replacing": Mirror(older, _AUTO, {}, {}, fewest=(45, 0)),
    # Between the two renames there is no mirror, and exit 6 says where the older one is.
    "mirror, replacing by two renames": Mirror(
        older,
        command(swaps=False),
        {},
        {},
        fewest=(46, 0),
        also={KILLED: {"absent"}, 6: {"absent"}},
    ),
}
