"""The commands under test."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from faults import samples
from faults.cached import CACHED
from faults.harness import KILLED, Action, Fault, die, run
from faults.mirrors import MIRRORS
from faults.operation import Operation, Picture

from patcher import outfile, transaction

if TYPE_CHECKING:
    from pathlib import Path


def nothing(_root: Path) -> None:
    """No preparation."""


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
        """The file is whole, old or new; the checkpoint is untouched; writing again works.

        What a killed run left beside it is removed by a later one.
        """
        outcome = dict(zip(PLANS, ("old", "new"), strict=True))[self._read(root)]
        present = samples.picture(root)
        left = {name for name in present if _TEMPORARY.fullmatch(name)}
        assert {name: present[name] for name in present.keys() - left - {"plan.json"}} == pristine
        for name in left:
            os.utime(root.parent / name, (0, 0))
        write_plan(root)
        assert self._read(root) == PLANS[1]
        assert samples.picture(root).keys() - {"plan.json"} == pristine.keys()
        return outcome

    def _read(self, root: Path) -> bytes:
        return (root.parent / "plan.json").read_bytes()


_PATCHED = samples.edited(samples.AFTER)

#: The commands that keep a transaction.
TRANSACTIONS: dict[str, Operation] = {
    "apply": Operation(nothing, apply, samples.BEFORE, samples.AFTER, fewest=(53, 53)),
    "undo": Operation(apply, transaction.undo, samples.AFTER, samples.BEFORE, fewest=(25, 19)),
    "undo --merge": Operation(
        apply_and_edit,
        merge,
        _PATCHED,
        samples.edited(samples.BEFORE),
        fewest=(38, 38),
        back=merge,
        merged=frozenset({"config.json"}),
    ),
    "undo --force": Operation(
        apply_and_edit, force, _PATCHED, samples.BEFORE, fewest=(32, 32), back=force
    ),
    "recover, half applied": Operation(
        cut_off(apply, 3), transaction.recover, samples.BEFORE, samples.BEFORE, fewest=(19, 16)
    ),
    "recover, all applied": Operation(
        cut_off(apply, 4), transaction.recover, samples.AFTER, samples.AFTER, fewest=(11, 11)
    ),
    "recover, half undone": Operation(
        cut_off_undo, transaction.recover, samples.BEFORE, samples.BEFORE, fewest=(19, 16)
    ),
}

OPERATIONS: dict[str, Operation] = {
    **TRANSACTIONS,
    "plan -o": Output(
        lambda root: (root.parent / "plan.json").write_bytes(PLANS[0]),
        write_plan,
        {},
        {},
        fewest=(6, 6),
        also={5: {"new"}, 130: {"old", "new"}, -15: {"old", "new"}},
    ),
    **MIRRORS,
    **CACHED,
}
