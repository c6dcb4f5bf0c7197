"""Two commands at once: one wins, the loser is refused by name or waits, nothing is ever mixed.

Here some rounds of each pair; ``python -m faults`` in this folder runs two hundred.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
from faults import races

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
    root = races.samples.build(tmp_path / "ckpt" / "snapshot")
    ends = races.race(root, [races.slow_apply, races.slow_apply], races.honest_flock)
    winner, loser = sorted(ends, key=lambda end: end.code)
    assert (winner.code, loser.code) == (0, 3)
    assert f"process {winner.pid} on {socket.gethostname()}, since 20" in loser.message
