"""All faults at all points, as tables: ``cd tests && python -m faults``.

The test suite runs every fault of the first table and a sample of the others. Exit code 1:
something was violated, an outcome never came up, or a command makes fewer calls than recorded.
"""

# ruff: noqa: T201 - a program that prints

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from contextlib import contextmanager
from datetime import datetime, timezone
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from faults import disk, harness, power, races
from faults.operations import OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from faults.harness import Campaign

ROUNDS = 200

problems: list[str] = []


def main() -> int:
    """Print the tables; what was violated goes last."""
    print(f"{datetime.now(timezone.utc):%Y-%m-%d}, Python {sys.version.split()[0]}, Linux "
          f"{os.uname().release}\n")  # fmt: skip
    _faults()
    _power_cuts()
    _races()
    for problem in problems:
        print(problem)
    print(f"{len(problems)} violations")
    return bool(problems)


def _faults() -> None:
    print("| command | fault | points | runs | old | new | absent | violations | seconds |")
    print("| --- | --- | --: | --: | --: | --: | --: | --: | --: |")
    for name, operation in OPERATIONS.items():
        seen: set[str] = set()
        for fault, chosen in harness.FAULTS.items():
            with _scratch() as folder:
                result = _row(
                    f"{name} | {fault}",
                    lambda: harness.campaign(folder, operation, chosen, linked=False),  # noqa: B023
                )
            seen |= {each for each, number in result.outcomes.items() if number > 0}
            if not chosen.calls and result.points < operation.fewest[0]:
                problems.append(f"{name}: {result.points} points, {operation.fewest[0]} recorded")
        if not seen >= {"old", "new"}:
            problems.append(f"{name}: only {seen}")
    print()


def _power_cuts() -> None:
    print("| command | power cut | points | runs | old | new | absent | violations | seconds |")
    print("| --- | --- | --: | --: | --: | --: | --: | --: | --: |")
    for kind in disk.MAKE:
        if (reason := disk.missing(kind)) is not None:
            print(f"| all | {kind} | skipped: {reason} | | | | | | |")
            continue
        with _scratch() as home, disk.disk(kind, home) as mounted:
            for name, operation in OPERATIONS.items():
                for how, flag in disk.CUTS.items():
                    with _scratch() as folder:
                        _row(
                            f"{name} | {kind}, {how}",
                            lambda: power.campaign(folder, mounted, operation, flag, count(1)),  # noqa: B023
                        )
    print()


def _row(title: str, run: Callable[[], Campaign]) -> Campaign:
    start, result, violations = time.monotonic(), harness.Campaign(), 0
    try:
        result = run()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a violation
        violations = 1
        problems.append(f"{title}: {error!r}")
    counts = result.outcomes
    runs = result.points + 1
    print(
        f"| {title} | {result.points} | {runs} | {counts['old']} | {counts['new']} "
        f"| {counts['absent']} | {violations} | {time.monotonic() - start:.1f} |",
        flush=True,
    )
    return result


def _races() -> None:
    print("| two at once | lock | rounds | exit codes | losers that named the winner | seconds |")
    print("| --- | --- | --: | --- | --: | --: |")
    for lock in races.LOCKS:
        for pair in races.PAIRS:
            start = time.monotonic()
            with _scratch() as folder:
                result = races.rounds(folder, pair, lock, ROUNDS)
            codes = ", ".join(f"{a} and {b}: {n}" for (a, b), n in sorted(result.codes.items()))
            print(
                f"| {pair} | {lock} | {ROUNDS} | {codes} | {result.named} "
                f"| {time.monotonic() - start:.1f} |",
                flush=True,
            )
    print()


@contextmanager
def _scratch() -> Iterator[Path]:
    memory = "/dev/shm"
    folder = Path(tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else None))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
