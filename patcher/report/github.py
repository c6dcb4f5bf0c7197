"""GitHub Actions annotations: one workflow command per finding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from patcher.report.escape import plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from patcher.verdict import Verdict

#: GitHub shows ten annotations of a kind per step (actions/toolkit, docs/problem-matchers.md).
LIMIT = 9
LEVELS = {"error": "error", "warning": "warning", "info": "notice"}


def workflow_commands(verdict: Verdict, path: str) -> Iterator[str]:
    """``::error file=...,line=...,title=...::message`` lines; at most nine and a count."""
    findings = verdict.findings
    for finding in findings[:LIMIT]:
        place = finding.locations[0] if finding.locations else None
        where = f"file={_property(f'{path}/{place.file}')},line={place.line}," if place else ""
        title = _property(f"{finding.id} on {verdict.target.gpu.name}")
        yield f"::{LEVELS[finding.severity]} {where}title={title}::{_data(finding.message)}"
    if len(findings) > LIMIT:
        yield f"::notice::{len(findings) - LIMIT} more findings"


def _data(text: str) -> str:
    return plain(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
