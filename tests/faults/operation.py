"""A command under test, and what must hold after a fault in it."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from faults import samples
from faults.harness import KILLED, Action

from patcher import transaction

if TYPE_CHECKING:
    from pathlib import Path

Picture = dict[str, tuple[object, ...]]
Contents = dict[str, bytes]

#: What each end of a command promises: ``old``, as if it had not run, or ``new``, as if it had.
PROMISES: dict[tuple[int, str], set[str]] = {
    (0, ""): {"new"},
    (KILLED, ""): {"old", "new"},
    (5, "not-confirmed-durable"): {"new"},
    (5, "write-failed"): {"old"},
    (6, "rollback-incomplete"): {"old", "new"},
    (130, "interrupted"): {"old"},
    (143, "interrupted"): {"old"},
}


@dataclass(frozen=True)
class Operation:
    """A command that changes a checkpoint.

    Attributes:
        before: what runs before it, on a pristine checkpoint.
        action: the command.
        old: what the files hold if it did not run.
        new: what they hold if it ran.
        fewest: the recorded number of mutating calls, for plain files and for links.
        back: how its user takes everything back afterwards.
        merged: files that keep an edit then, and with it a new time.
        also: exit code -> outcomes that it may have besides `PROMISES`.
    """

    before: Action
    action: Action
    old: Contents
    new: Contents
    fewest: tuple[int, int]
    back: Action = transaction.undo
    merged: frozenset[str] = frozenset()
    also: dict[int, set[str]] = field(default_factory=dict)

    def build(self, home: Path, *, linked: bool = False) -> Picture:
        """Make a template to start from; the picture of what everything must go back to."""
        root = samples.build(home / "snapshot", linked=linked)
        pristine = samples.picture(root)
        self.before(root)
        return pristine

    def place(self, template: Path, case: Path) -> Path:
        """Make what one run starts from; the checkpoint in it."""
        shutil.copytree(template, case, symlinks=True)
        return case / "snapshot"

    def kept(self, root: Path) -> bool:
        """Whether the change is there without any recovery, as it must be after exit 0."""
        return transaction.status(root).state != "interrupted"

    def promised(self, code: int, slug: str) -> set[str]:
        """The outcomes that an end of the command allows."""
        return PROMISES.get((code, slug), set()) | self.also.get(code, set())

    def verify(self, root: Path, pristine: Picture) -> str:
        """What must hold after any fault; whether the checkpoint is ``old`` or ``new``.

        Recovering twice is the same as once, all files are old or all are new, no temporary stays,
        and taking it back gives the original bytes, modes, times and links.
        """
        outcome = self._outcome(root)
        transaction.recover(root)
        once = samples.picture(root)
        assert transaction.recover(root) == ()
        assert samples.picture(root) == once
        assert once.keys() == pristine.keys(), "a stray file, or one is gone"
        contents = {name: (root / name).read_bytes() for name in samples.BEFORE}
        assert contents in (self.old, self.new), "neither all old nor all new"
        outcome = outcome or {True: "old", False: "new"}[contents == self.old]
        _check_names(root, contents)
        self.back(root)
        self._check_originals(samples.picture(root), pristine)
        assert transaction.status(root).state == "pristine"
        return outcome

    def _outcome(self, root: Path) -> str | None:
        """What only shows before recovery."""
        if self.old != self.new:
            return None
        return {True: "old", False: "new"}[transaction.status(root).state == "interrupted"]

    def _check_originals(self, found: Picture, pristine: Picture) -> None:
        for name in found:
            if os.path.basename(name) in self.merged:
                kept = samples.edited(samples.BEFORE)[os.path.basename(name)]
                assert found[name][1:5] == (kept, *pristine[name][2:5])
            else:
                assert found[name] == pristine[name]


def _check_names(root: Path, contents: Contents) -> None:
    """The status fits the contents, and no patched file is a link."""
    states = {
        (False, False): "pristine",
        (False, True): "pristine",
        (True, False): "patched",
        (True, True): "edited",
    }
    patched = contents["hf_quant_config.json"] == samples.AFTER["hf_quant_config.json"]
    by_hand = b"kimi_k3" in contents["config.json"]
    assert transaction.status(root).state == states[patched, by_hand]
    for name in contents:
        assert (root / name).stat().st_mode & 0o7777 == 0o640
        assert not patched or not (root / name).is_symlink(), "written through a link"
