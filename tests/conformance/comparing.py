"""What a comparison is: rows of one file, each told by the release and answered by us."""

from __future__ import annotations

import gzip
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    #: What the release said and what we say; ``None`` for a row that is an artefact.
    Pair = tuple[Any, Any] | None

ORACLE = Path(__file__).resolve().parents[3] / "shared" / "oracle"
#: How many differences of one file are kept, and how much of each.
KEPT = 3
LENGTH = 600


@dataclass(slots=True)
class Comparison:
    """The count of one file. A cell is one row: it agrees when everything it tells agrees."""

    engine: str
    release: str
    kind: str
    cells: int = 0
    agreeing: int = 0
    ignored: int = 0
    seconds: float = 0.0
    differences: list[str] = field(default_factory=list)

    @property
    def percent(self) -> float:
        return 100 * self.agreeing / self.cells if self.cells else 0.0


def compare(engine: str, release: str, kind: str, pairs: Iterable[Pair]) -> Comparison:
    """Count the pairs; whatever they raise is a difference that ends the file."""
    result, start = Comparison(engine, release, kind), time.monotonic()
    for pair in pairs:
        if pair is None:
            result.ignored += 1
            continue
        told, answered = pair
        result.cells += 1
        if told == answered:
            result.agreeing += 1
        elif len(result.differences) < KEPT:
            difference = f"{_short(told)}\n    we say: {_short(answered)}"
            result.differences.append(f"{engine} {release} {kind}: {difference}")
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


def releases(engine: str, kind: str, suffix: str = ".jsonl.gz") -> list[str]:
    """The releases that have a file of this kind, oldest first."""
    names = [path.name for path in (ORACLE / engine).glob(f"{kind}-*{suffix}")]
    found = [name[len(kind) + 1 : -len(suffix)] for name in names]
    return sorted(found, key=lambda release: [int(part) for part in release.split(".")])


def verdict(check: Callable[[], object]) -> str:
    """``agrees``, or what the check of a test says that differs."""
    try:
        check()
    except AssertionError as error:
        return str(error) or "differs"
    return "agrees"
