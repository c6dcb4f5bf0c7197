"""What a comparison is: rows of one file, each told by the release and answered by us."""

from __future__ import annotations

import gzip
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    #: What the release said and what we say; ``None`` for a row that is an artefact.
    Pair = tuple[Any, Any] | None

ORACLE = Path(__file__).resolve().parents[3] / "shared" / "oracle"
#: How many differences of one file are kept, and how much of each.
KEPT = 3
LENGTH = 600


@dataclass(slots=True)
class Comparison:
    """The count of one file. A cell is one row: it agrees when everything it tells agrees."""

    file: Path
    engine: str
    release: str
    kind: str
    cells: int = 0
    agreeing: int = 0
    ignored: int = 0
    seconds: float = 0.0
    differences: list[str] = field(default_factory=list)


def comparisons(
    engine: str, kinds: Mapping[tuple[str, str], Callable[[str], Iterator[Pair]]]
) -> Iterator[Comparison]:
    """Every file of an engine, release by release."""
    for release in releases(engine):
        for (name, kind), pairs in kinds.items():
            file = ORACLE / engine / name.format(release)
            if file.exists():
                yield compare(Comparison(file, engine, release, kind), pairs(release))


def compare(result: Comparison, pairs: Iterator[Pair]) -> Comparison:
    """Count the pairs."""
    start = time.monotonic()
    for pair in pairs:
        if pair is None:
            result.ignored += 1
            continue
        told, answered = pair
        result.cells += 1
        if told == answered:
            result.agreeing += 1
        elif len(result.differences) < KEPT:
            where = f"{result.engine} {result.release} {result.kind}"
            result.differences.append(f"{where}: {_short(told)}\n    we say: {_short(answered)}")
    result.seconds = time.monotonic() - start
    return result


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LENGTH else text[:LENGTH] + "..."


def rows(engine: str, kind: str, release: str) -> Iterator[dict[str, Any]]:
    """The rows of one file, without its headers."""
    with gzip.open(ORACLE / engine / f"{kind}-{release}.jsonl.gz", "rt", encoding="utf-8") as file:
        for row in map(json.loads, file):
            if not row.get("meta") and row.get("type") != "header" and "variants" not in row:
                yield row


def releases(engine: str) -> list[str]:
    """The releases that have files, oldest first."""
    names = {path.name.partition("-")[2] for path in (ORACLE / engine).glob("*.gz")}
    found = {name.partition(".json")[0] for name in names}
    return sorted(found, key=lambda release: [int(part) for part in release.split(".")])


def verdict(check: Callable[[], object]) -> str:
    """``agrees``, or what the check of a test says that differs."""
    try:
        check()
    except AssertionError as error:
        return str(error) or "differs"
    return "agrees"
