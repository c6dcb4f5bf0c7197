"""Whatever people and crashes do in whatever order, the originals come back."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from faults import harness, samples
from faults.harness import Fault
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from patcher import transaction
from patcher.edits import Change, FileEdit
from patcher.errors import RefusedError
from patcher.transaction.journal import NAME

_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None

#: A person's marks: white space behind the file, which no patch touches.
MARKS = [b"\n", b" \n", b"\t\n"]


class Checkpoint(RuleBasedStateMachine):
    """A model of one checkpoint: who has patched what, and what a person has written into it."""

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(dir=_MEMORY))
        self.root = samples.build(self.home / "0" / "snapshot")
        self.moves = 0
        self.patched = False
        self.marks = b""  # a person's edits of config.json since the last download
        self.marks_at_apply = b""
        self.original_times = True

    def teardown(self) -> None:
        shutil.rmtree(self.home)

    def expected(self) -> dict[str, bytes]:
        contents = samples.AFTER if self.patched else samples.BEFORE
        return contents | {"config.json": contents["config.json"] + self.marks}

    def change(self) -> Change:
        """The sample's change, for the file as the person left it."""
        change = samples.change()
        first, second = change.edits
        marked = FileEdit(
            first.file,
            first.patch,
            first.inverse,
            first.before + self.marks,
            first.after + self.marks,
        )
        return Change((marked, second), "0.1.0", "r@1", "ab" * 32, {})

    @property
    def edited(self) -> bool:
        return self.patched and self.marks != self.marks_at_apply

    @rule()
    def apply(self) -> None:
        if self.patched:
            try:
                transaction.apply(self.root, self.change())
            except RefusedError:
                return
            raise AssertionError("applied twice")
        transaction.apply(self.root, self.change())
        self.patched, self.marks_at_apply = True, self.marks

    @rule()
    def undo(self) -> None:
        if self.edited:
            try:
                transaction.undo(self.root)
            except RefusedError as error:
                assert error.detail  # noqa: PT017 - the diff
                return
            raise AssertionError("an edit was thrown away")
        transaction.undo(self.root)
        self.patched = False

    @rule()
    def undo_merge(self) -> None:
        transaction.undo(self.root, merge=True)
        self.original_times &= not self.edited
        self.patched = False

    @rule()
    def undo_force(self) -> None:
        transaction.undo(self.root, force=True)
        if self.patched:
            self.marks = self.marks_at_apply
        self.patched = False

    @rule(mark=st.sampled_from(MARKS))
    def edit_by_hand(self, mark: bytes) -> None:
        with (self.root / "config.json").open("ab") as file:
            file.write(mark)
        self.marks += mark
        self.original_times = False

    @rule(then=st.sampled_from(["undo", "apply"]))
    def download_again(self, then: str) -> None:
        """The original bytes come back behind the tool's back."""
        for name, data in samples.BEFORE.items():
            (self.root / name).write_bytes(data)
        self.original_times = False
        if self.patched and self.marks_at_apply:  # what was patched was no original
            transaction.undo(self.root, force=True)
            self.patched, self.marks = False, self.marks_at_apply
            return
        self.marks = b""
        if self.patched:
            assert transaction.status(self.root).state == "reverted"
        self.patched = then == "apply"
        if then == "apply":
            transaction.apply(self.root, self.change())
            self.marks_at_apply = b""
        else:
            undone = transaction.undo(self.root)
            assert all(each.reverted_outside for each in undone.transactions)

    @rule()
    def move(self) -> None:
        self.moves += 1
        target = self.home / str(self.moves)
        os.rename(self.root.parent, target)
        self.root = target / "snapshot"

    @rule()
    def copy_without_history(self) -> None:
        """A copy has the bytes and no memory; a person goes on with it where nothing is patched."""
        self.moves += 1
        target = self.home / str(self.moves)
        shutil.copytree(self.root.parent, target, ignore=shutil.ignore_patterns(NAME))
        copy = target / "snapshot"
        assert transaction.status(copy).state == "pristine"
        assert transaction.log(copy) == ()
        assert transaction.undo(copy).transactions == ()
        assert transaction.recover(copy) == ()
        assert {name: (copy / name).read_bytes() for name in samples.BEFORE} == self.expected()
        left = target if self.patched else self.root.parent
        shutil.rmtree(left)
        if not self.patched:
            self.root = copy

    @rule(at=st.integers(1, 60))
    def crash_in_apply(self, at: int) -> None:
        change = self.change()
        ran = harness.run(
            lambda root: transaction.apply(root, change), self.root, Fault(harness.die), at
        )
        assert ran.code in {0, 3, harness.KILLED}
        self._recover()
        if not self.patched and self._is(patched=True):
            self.patched, self.marks_at_apply = True, self.marks

    @rule(at=st.integers(1, 40), how=st.sampled_from(["plain", "merge", "force"]))
    def crash_in_undo(self, at: int, how: str) -> None:
        options = {} if how == "plain" else {how: True}
        edited = self.edited
        ran = harness.run(
            lambda root: transaction.undo(root, **options),
            self.root,
            Fault(harness.die),
            at,
        )
        assert ran.code in {0, 3, harness.KILLED}
        self._recover()
        if self.patched and not self._is(patched=True):
            self.patched = False
            self.original_times &= not (edited and how == "merge")
            if how == "force":
                self.marks = self.marks_at_apply

    def _is(self, *, patched: bool) -> bool:
        contents = samples.AFTER if patched else samples.BEFORE
        name = "hf_quant_config.json"
        return (self.root / name).read_bytes() == contents[name]

    def _recover(self) -> None:
        transaction.recover(self.root)
        once = samples.picture(self.root)
        assert transaction.recover(self.root) == ()
        assert samples.picture(self.root) == once

    @invariant()
    def everything_is_as_expected(self) -> None:
        found = {name: (self.root / name).read_bytes() for name in samples.BEFORE}
        assert found == self.expected()
        state = transaction.status(self.root).state
        assert state == ("edited" if self.edited else "patched" if self.patched else "pristine")
        names = set(os.listdir(self.root)) - {NAME}
        assert names == {*samples.BEFORE, "model.safetensors"}
        if self.original_times and not self.patched:
            for name in samples.BEFORE:
                assert (self.root / name).stat().st_mtime_ns == samples.MTIME_NS


TestCheckpoint = Checkpoint.TestCase
TestCheckpoint.settings = settings(
    max_examples=25,
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
