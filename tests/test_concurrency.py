"""Two commands at once: one wins, the loser is refused by name or waits, nothing is ever mixed.

Here some rounds of each pair; ``python -m faults`` in this folder runs two hundred.
"""

from __future__ import annotations

import errno
import json
import os
import socket
from typing import TYPE_CHECKING

import pytest
from faults import races, samples
from faults.operations import apply

from patcher import fsio, transaction
from patcher.errors import RefusedError
from patcher.transaction.journal import NAME

if TYPE_CHECKING:
    from pathlib import Path

ROUNDS = 4

#: The exit codes that both commands of a pair may end with, in rising order.
CODES = {
    "apply / apply": {(0, 3)},
    "apply / undo": {(0, 0), (0, 3), (3, 3)},
    "undo / undo": {(0, 0), (0, 3)},
    "check / apply": {(0, 0)},
    "apply / apply, waiting": {(0, 3)},
    "apply / undo, waiting": {(0, 0), (0, 3)},
}


@pytest.mark.parametrize("lock", races.LOCKS)
@pytest.mark.parametrize("pair", races.PAIRS)
def test_a_race(pair: str, lock: str, tmp_path: Path) -> None:
    assert set(races.rounds(tmp_path, pair, lock, ROUNDS).codes) <= CODES[pair]


@pytest.mark.parametrize("lock", races.LOCKS)
def test_a_race_for_the_note_of_a_process_that_is_gone(lock: str, tmp_path: Path) -> None:
    result = races.rounds(tmp_path, "apply / apply", lock, ROUNDS, races.stale_note)
    assert set(result.codes) == {(0, 3)}


def test_the_loser_names_the_winner(tmp_path: Path) -> None:
    root = samples.build(tmp_path / "ckpt" / "snapshot")
    ends = races.race(root, [races.slow_apply, races.slow_apply], races.honest_flock)
    winner, loser = sorted(ends, key=lambda end: end.code)
    assert (winner.code, loser.code) == (0, 3)
    assert f"process {winner.pid} on {socket.gethostname()}, since 20" in loser.message


def test_the_note_where_there_are_no_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object, **_words: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    root = samples.build(tmp_path / "ckpt" / "snapshot")
    monkeypatch.setattr(os, "link", refuse)
    apply(root)
    transaction.undo(root)
    assert not [name for name in os.listdir(root / NAME) if name.startswith("holder")]


def test_a_link_whose_reply_was_lost_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(call: str, _file: str) -> OSError | None:
        return OSError(errno.EEXIST, os.strerror(errno.EEXIST)) if call == "link" else None

    root = samples.build(tmp_path / "ckpt" / "snapshot")
    monkeypatch.setattr(fsio, "hook", lost)
    apply(root)
    assert transaction.status(root).state == "patched"


def test_what_a_killed_process_left_beside_the_note_is_removed_later(tmp_path: Path) -> None:
    root = samples.build(tmp_path / "ckpt" / "snapshot")
    apply(root)
    old, young = root / NAME / "holder.0123456789abcdef", root / NAME / "holder.fedcba9876543210"
    for path in (old, young):
        path.touch()
    os.utime(old, (0, 0))
    transaction.undo(root)
    assert (old.exists(), young.exists()) == (False, True)


def test_a_note_that_came_in_between_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stale note is read, another process replaces it by its own, then it is taken away."""
    root = samples.build(tmp_path / "ckpt" / "snapshot")
    apply(root)
    races.stale_note(root)
    note = root / NAME / "holder"
    living = json.dumps(json.loads(note.read_text()) | {"pid": 1, "host": "elsewhere"})

    def come_between(call: str, _file: str) -> None:
        if call == "rename" and note.exists() and note.read_text() != living:
            note.write_text(living)

    monkeypatch.setattr(fsio, "hook", come_between)
    with pytest.raises(RefusedError, match="process 1 on elsewhere"):
        transaction.undo(root)
    assert note.read_text() == living
