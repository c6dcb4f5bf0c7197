"""Measure everything and print one table: ``make bench``, or ``python benchmarks``.

    python benchmarks --rounds 21 --json bench.json
    python benchmarks --write             puts the table into docs/performance.md

Makes a checkpoint of 119 shards that seem to have 586 GB, and environments of its own for the wheel
and for the peers. Takes some minutes.
"""

# ruff: noqa: INP001, S603, T201 - a program that prints and starts others

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mirrors
import rounds
import subjects
import synthetic

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DOCUMENT = subjects.REPOSITORY / "docs" / "performance.md"
_GENERATED = re.compile(
    r"(<!-- generated: make bench -->\n).*(<!-- end of generated -->)", re.DOTALL
)


def measure(root: Path, count: int) -> dict[str, Any]:
    """Everything that the table has, as a document (schema ``ckpt-patch/bench@1``)."""
    place = subjects.Place(root, root / "checkpoint", root / "ours", root / "peers")
    wheel = _wheel(root)
    if why := subjects.install(place.ours, str(wheel), "click", "huggingface_hub"):
        raise SystemExit(f"the wheel cannot be installed: {why}")
    synthetic.make(place.checkpoint)
    environment = rounds.Environment.of(str(root))
    peers, notes = subjects.peer_rows(place, environment)
    with mirrors.with_reflinks(root) as reflinks:
        if isinstance(reflinks, str):
            notes.append(reflinks)
        links = mirrors.rows(place, environment, None if isinstance(reflinks, str) else reflinks)
        limits = subjects.limit_rows(place, environment)
        seconds = rounds.run(
            [*limits, *subjects.our_rows(place, environment), *peers, *links], count
        )
        own = {row.name: mirrors.written(row, Path(row.what.split()[-1])) for row in links}
    return {
        "schema": "ckpt-patch/bench@1",
        "date": time.strftime("%Y-%m-%d"),
        "machine": _machine(),
        "checkpoint": {"shards": 119, "tensors": 281_000, "bytes": 586_000_000_000},
        "rounds": count,
        **rounds.summary(seconds, (*subjects.GOALS, *mirrors.GOALS)),
        "bytes_written": own,
        "wheel_bytes": wheel.stat().st_size,
        "notes": notes,
    }


def _wheel(root: Path) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(root)]
    subprocess.run([*command, str(subjects.REPOSITORY)], check=True)
    return next(root.glob("ckpt_patch-*.whl"))


def _machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1),
    }


def table(found: dict[str, Any]) -> Iterator[str]:
    """The document as Markdown."""
    machine = found["machine"]
    yield (
        f"{found['date']}: {machine['cores']} cores, {machine['kernel']}, Python "
        f"{machine['python']}, load {machine['load']} at the end; medians of {found['rounds']} "
        "rounds. Times are of this machine under this load, ratios are what counts."
    )
    yield ""
    yield from _rows(("what", "ms", "of a processor", "x click"), _times(found["rows"]))
    yield ""
    goals = [
        (
            goal["goal"],
            f"{goal['by_clock']:.2f}",
            f"{goal['by_processor']:.2f}",
            ("yes" if goal["reached"] else "**no**") + f" ({goal['counts']})",
        )
        for goal in found["goals"]
    ]
    yield from _rows(("goal", "by the clock", "by the processor", "reached"), goals)
    yield ""
    for name, size in found["bytes_written"].items():
        yield f"- {name}: {size:,} bytes of its own beside the links to 586 GB"
    yield f"- the wheel: {found['wheel_bytes']:,} bytes"
    yield from (f"- {note}" for note in found["notes"])


def _times(rows: dict[str, Any]) -> list[tuple[str, ...]]:
    click = rows["click"]["busy_ms"]
    return [
        (name, f"{row['wall_ms']:.1f}", f"{row['busy_ms']:.1f}", f"{row['busy_ms'] / click:.2f}")
        for name, row in rows.items()
    ]


def _rows(head: Sequence[str], body: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"| --- |{' ---: |' * (len(head) - 1)}"
    yield from (f"| {' | '.join(row)} |" for row in body)


def main() -> None:
    """Measure, print, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=rounds.LEAST)
    parser.add_argument("--json", type=Path, metavar="FILE", help="everything, for machines")
    parser.add_argument("--write", action="store_true", help="into docs/performance.md")
    options = parser.parse_args()
    if options.rounds < rounds.LEAST:
        parser.error(f"fewer than {rounds.LEAST} rounds say nothing")
    with tempfile.TemporaryDirectory(prefix="ckpt-patch-bench-") as folder:
        found = measure(Path(folder), options.rounds)
    lines = "\n".join(table(found)) + "\n"
    print(lines)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    if options.write:
        text = DOCUMENT.read_text()
        DOCUMENT.write_text(_GENERATED.sub(lambda match: match[1] + lines + match[2], text))


if __name__ == "__main__":
    main()
