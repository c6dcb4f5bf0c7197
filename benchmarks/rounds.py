"""Rows measured in turns: every row in every round, so that a busy machine is busy for all alike.

A time says little on a machine that others use; the ratio of two rows of the same round says much.
What is reported is the median of those ratios over all rounds.
"""

# ruff: noqa: INP001, S603 - a part of a program that starts the programs it compares

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Prepare = Callable[[], object]

#: Fewer say nothing about a median.
LEAST = 11


@dataclass(frozen=True)
class Taken:
    """Seconds by the clock, and of a processor."""

    wall: float
    busy: float


@dataclass(frozen=True)
class Row:
    """Something that is measured.

    Attributes:
        name: in the table.
        measure: does it once.
        what: the command, or what is done, for the JSON.
    """

    name: str
    measure: Callable[[], Taken]
    what: str


@dataclass(frozen=True)
class Goal:
    """``row`` takes at most ``limit`` times the sum of ``bound``: row -> how often.

    What computes is judged by the time of its processor, which others' work stretches less; what
    ``waits`` for a disk, by the clock.
    """

    row: str
    bound: Mapping[str, float]
    limit: float
    waits: bool = False

    def ratios(self, seconds: Mapping[str, Sequence[float]]) -> list[float]:
        """The ratio in each round."""
        bounds = zip(*([n * s for s in seconds[r]] for r, n in self.bound.items()), strict=True)
        return [
            own / sum(bound)
            for own, bound in zip(seconds[self.row], map(list, bounds), strict=True)
        ]

    def __str__(self) -> str:
        """``check <= 1.5 x (click + headers)``."""
        terms = " + ".join(f"{n:g} x {r}" if n != 1 else r for r, n in self.bound.items())
        return f"{self.row} <= {self.limit:g} x ({terms})"


@dataclass(frozen=True)
class Environment:
    """What the programs see: no network, no update checks, folders of their own, compiled code."""

    variables: Mapping[str, str]

    @classmethod
    def of(cls, home: str) -> Environment:
        """Everything that programs write goes below ``home``."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        own = {
            "HF_HUB_OFFLINE": "1",
            "HF_HUB_DISABLE_UPDATE_CHECK": "1",
            "HF_HOME": f"{home}/hf",
            "XDG_STATE_HOME": f"{home}/state",
            "XDG_CACHE_HOME": f"{home}/cache",
        }
        return cls(kept | own)

    def row(
        self,
        name: str,
        words: Sequence[str],
        *,
        codes: Sequence[int] = (0,),
        before: Prepare | None = None,
        **variables: str,
    ) -> Row:
        """A program, timed from its start to its end; ``before`` is not."""

        def measure() -> Taken:
            if before:
                before()
            own = {**self.variables, **variables}
            with tempfile.TemporaryFile() as errors:
                begin = time.perf_counter()
                # Popen has no way to learn what a child took, so it is waited for by hand.
                child = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=errors, env=own)
                _, status, usage = os.wait4(child.pid, 0)
                wall = time.perf_counter() - begin
                child.returncode = os.waitstatus_to_exitcode(status)
                if child.returncode not in codes:
                    errors.seek(0)
                    words_of_it = errors.read().decode(errors="replace")[-2000:]
                    raise SystemExit(f"{name}: exit {child.returncode}: {words_of_it}")
            return Taken(wall, usage.ru_utime + usage.ru_stime)

        return Row(name, measure, " ".join(words))


def timed(name: str, do: Callable[[], object], what: str, before: Prepare | None = None) -> Row:
    """A row that this process does itself."""

    def measure() -> Taken:
        if before:
            before()
        begin, busy = time.perf_counter(), time.process_time()
        do()
        return Taken(time.perf_counter() - begin, time.process_time() - busy)

    return Row(name, measure, what)


def run(rows: Sequence[Row], rounds: int) -> dict[str, list[Taken]]:
    """What every row took in every round, after one round that warms the caches.

    The order is turned round by round, so that no row has the same neighbour always.
    """
    taken: dict[str, list[Taken]] = {row.name: [] for row in rows}
    for number in range(-1, rounds):
        turn = number % len(rows)
        for row in (*rows[turn:], *rows[:turn]):
            once = row.measure()
            if number >= 0:
                taken[row.name].append(once)
        print(f"round {number + 1} of {rounds}", file=sys.stderr)  # noqa: T201
    return taken


def summary(taken: Mapping[str, Sequence[Taken]], goals: Sequence[Goal]) -> dict[str, Any]:
    """Medians in milliseconds, and every goal with the medians of its ratios."""
    wall = {name: [once.wall for once in row] for name, row in taken.items()}
    busy = {name: [once.busy for once in row] for name, row in taken.items()}
    return {
        "rows": {
            name: {
                "wall_ms": round(statistics.median(wall[name]) * 1000, 2),
                "busy_ms": round(statistics.median(busy[name]) * 1000, 2),
                "wall_seconds": [round(value, 6) for value in wall[name]],
                "busy_seconds": [round(value, 6) for value in busy[name]],
            }
            for name in taken
        },
        "goals": [_judged(goal, wall, busy) for goal in goals],
    }


def _judged(
    goal: Goal, wall: Mapping[str, Sequence[float]], busy: Mapping[str, Sequence[float]]
) -> dict[str, Any]:
    by_clock = statistics.median(goal.ratios(wall))
    by_processor = statistics.median(goal.ratios(busy))
    counts = by_clock if goal.waits else by_processor
    return {
        "goal": str(goal),
        "limit": goal.limit,
        "by_clock": round(by_clock, 3),
        "by_processor": round(by_processor, 3),
        "counts": "clock" if goal.waits else "processor",
        "reached": counts <= goal.limit,
    }
