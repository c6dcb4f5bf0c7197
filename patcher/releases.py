"""Ranges of engine releases, and what each release answers when none was named."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from patcher import engines
from patcher.engines.base import NOT_KV, Place
from patcher.findings import QUIET, failing
from patcher.verdict import ReleaseAnswer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from patcher.engines.base import Answer, Launch
    from patcher.recipes import Operations
    from patcher.subject import Subject


def ranges(releases: Iterable[str], known: tuple[str, ...]) -> str:
    """``"0.14.1 to 0.17.1, 0.20.2"``: runs of neighbours among ``known``, oldest first."""
    order = {release: index for index, release in enumerate(known)}
    numbered = enumerate(sorted(releases, key=order.__getitem__))
    runs = [
        [release for _, release in run]
        for _, run in groupby(numbered, key=lambda item: order[item[1]] - item[0])
    ]
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)


def survey(
    subject: Subject, engine: str, launch: Launch, neutral: Operations
) -> tuple[ReleaseAnswer, ...]:
    """What every known release of ``engine`` does, in release order.

    ``neutral`` are the operations that turn all statements off: a release that refuses with and
    without them does not refuse because of the declaration.
    """
    quiet = subject.with_operations(neutral) if neutral else subject
    return tuple(
        _judge(subject, quiet, engine, release, launch) for release in engines.releases(engine)
    )


def _reads_a_quantized_statement(subject: Subject, answer: Answer) -> bool:
    places = set(answer.resolution.read) if answer.resolution else set()
    return any(
        Place(item.file, item.pointer) in places
        for item in subject.declarations
        if item.meaning not in QUIET
    )


def _judge(
    subject: Subject, quiet: Subject, engine: str, release: str, launch: Launch
) -> ReleaseAnswer:
    answer = engines.answer(engine, release, subject.values, subject.model, launch)
    dtype = answer.resolution.kv_cache_dtype if answer.resolution else None
    if answer.unknown:
        return ReleaseAnswer(engine, release, "unknown", None)
    reads = _reads_a_quantized_statement(subject, answer)
    expected = failing(answer)
    if expected and not answer.refusals:
        return ReleaseAnswer(engine, release, "fails", dtype, expected[0].finding)
    if not answer.refusals:
        return ReleaseAnswer(engine, release, "runs" if reads else "ignores", dtype)
    cured = quiet is not subject and not (
        engines.answer(engine, release, quiet.values, quiet.model, launch).refusals
    )
    finding = answer.refusals[0].finding
    blamed = cured or (reads and finding != NOT_KV)
    return ReleaseAnswer(engine, release, "refuses" if blamed else "no-backend", dtype, finding)
