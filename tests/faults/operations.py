"""The commands under test, and what must hold after a fault in one of them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from faults import samples
from faults.harness import KILLED, Action, Fault, die, run

from patcher import outfile, transaction

if TYPE_CHECKING:
    from pathlib import Path

Picture = dict[str, tuple[object, ...]]
Contents = dict[str, bytes]


def nothing(_root: Path) -> None:
    """No preparation."""


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
        also: exit code -> outcomes that it may have besides `harness.PROMISES`.
    """

    before: Action
    action: Action
    old: Contents
    new: Contents
    fewest: tuple[int, int]
    back: Action = transaction.undo
    merged: frozenset[str] = frozenset()
    also: dict[int, set[str]] = field(default_factory=dict)

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


def apply(root: Path) -> object:
    """Apply the sample's change."""
    return transaction.apply(root, samples.change(), attachments={"report.md": b"# report\n"})


def apply_and_edit(root: Path) -> None:
    """Then a person edits a file."""
    apply(root)
    samples.edit(root)


def merge(root: Path) -> object:
    """Undo, keeping the edit."""
    return transaction.undo(root, merge=True)


def force(root: Path) -> object:
    """Undo, with a copy of the edited file in the record."""
    return transaction.undo(root, force=True)


def cut_off(action: Action, rename: int) -> Action:
    """Run a command that is killed just before its Nth rename."""

    def cut(root: Path) -> None:
        assert run(action, root, Fault(die, frozenset({"rename"})), rename).code == KILLED

    return cut


def cut_off_undo(root: Path) -> None:
    """One of two files is restored."""
    apply(root)
    cut_off(transaction.undo, 3)(root)


PLANS = (b'{"old": true}\n', b'{"new": true}\n' * 9)
_TEMPORARY = re.compile(r"\.plan\.json\.[0-9a-f]{8}\.tmp")


def write_plan(root: Path) -> None:
    """What ``plan -o`` does once the plan is made."""
    outfile.write(root.parent / "plan.json", PLANS[1])


class Output(Operation):
    """A command that writes one file outside the checkpoint."""

    def verify(self, root: Path, pristine: Picture) -> str:
        """The file is whole, old or new; the checkpoint is untouched; writing again works."""
        outcome = dict(zip(PLANS, ("old", "new"), strict=True))[self._read(root)]
        present = samples.picture(root)
        left = {name for name in present if _TEMPORARY.fullmatch(name)}
        assert {name: present[name] for name in present.keys() - left - {"plan.json"}} == pristine
        write_plan(root)
        assert self._read(root) == PLANS[1]
        return outcome

    def _read(self, root: Path) -> bytes:
        return (root.parent / "plan.json").read_bytes()


_PATCHED = samples.edited(samples.AFTER)

OPERATIONS: dict[str, Operation] = {
    "apply": Operation(nothing, apply, samples.BEFORE, samples.AFTER, fewest=(56, 56)),
    "undo": Operation(apply, transaction.undo, samples.AFTER, samples.BEFORE, fewest=(26, 20)),
    "undo --merge": Operation(
        apply_and_edit,
        merge,
        _PATCHED,
        samples.edited(samples.BEFORE),
        fewest=(39, 39),
        back=merge,
        merged=frozenset({"config.json"}),
    ),
    "undo --force": Operation(
        apply_and_edit, force, _PATCHED, samples.BEFORE, fewest=(33, 33), back=force
    ),
    "recover, half applied": Operation(
        cut_off(apply, 3), transaction.recover, samples.BEFORE, samples.BEFORE, fewest=(20, 17)
    ),
    "recover, all applied": Operation(
        cut_off(apply, 4), transaction.recover, samples.AFTER, samples.AFTER, fewest=(12, 12)
    ),
    "recover, half undone": Operation(
        cut_off_undo, transaction.recover, samples.BEFORE, samples.BEFORE, fewest=(20, 17)
    ),
    "plan -o": Output(
        lambda root: (root.parent / "plan.json").write_bytes(PLANS[0]),
        write_plan,
        {},
        {},
        fewest=(6, 6),
        also={5: {"new"}, 130: {"old", "new"}, -15: {"old", "new"}},
    ),
}
