"""The report as Markdown: readable as text, rendered by GitHub, safe with hostile input."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from patcher.engines import NAMES
from patcher.report.document import UNTOUCHED, undo_command
from patcher.report.escape import lines, markdown, plain, value
from patcher.report.human import ATTENTION, cure_command, number

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from patcher.report.document import Report
    from patcher.verdict import Verdict


def render(report: Report) -> bytes:
    """The whole page."""
    plan = report.plan
    sections = [
        _head(report),
        verdict_section("Verdict before", plan.before),
        *([verdict_section("Verdict after", plan.after)] if plan.after else []),
        _readers(report),
        _backends(plan.before),
        _patch(report),
        _bottom(report),
    ]
    return ("\n\n".join("\n".join(section) for section in sections) + "\n").encode(
        "utf-8", "backslashreplace"
    )


def _head(report: Report) -> Iterator[str]:
    plan = report.plan
    yield f"# ckpt-patch report: {markdown(plan.before.path)}"
    yield ""
    recipe = f"{plan.recipe.id}@{plan.recipe.version}" if plan.recipe else "none: nothing to do"
    yield f"- recipe: {markdown(recipe)}" + (
        f" ({markdown(plan.recipe.title)})" if plan.recipe else ""
    )
    yield f"- outcome: {plan.before.outcome}" + (f" -> {plan.after.outcome}" if plan.after else "")
    yield f"- undo: {code(undo_command(plan))}"


def verdict_section(title: str, verdict: Verdict) -> Iterator[str]:
    """One verdict as a section; also the body of ``check --format markdown``."""
    model = verdict.model
    target = verdict.target
    yield f"## {title}: {verdict.outcome}"
    yield ""
    release = (
        f"{target.version} (facts of {verdict.judgement.facts_version})"
        if target.version
        else "all known"
    )
    yield from table(
        ("", ""),
        (
            (
                "model",
                f"{markdown(model.model_type or 'unknown')}, {ATTENTION[model.attention]}, "
                f"head size {model.head_size}, {model.attention_layers} attention layers",
            ),
            ("GPU", f"{target.gpu.name} ({target.gpu.summary})"),
            ("engine", f"{NAMES[target.engine or 'vllm']} {markdown(release)}"),
            ("KV cache", _cache(verdict)),
        ),
    )
    for finding in verdict.findings:
        yield ""
        yield f"**{finding.id}** ({finding.severity}): {markdown(finding.message)}"
        for place in finding.locations:
            yield f"- {code(f'{place.file}:{place.line}')} {code(place.pointer)}"
        if finding.detail:
            yield f"- the engine says: {code(finding.detail)}"
    for note in verdict.judgement.notes:
        yield f"\n{markdown(note)}."
    if verdict.cures:
        yield "\nWays out, least harm first:"
        for index, cure in enumerate(verdict.cures, 1):
            yield f"{index}. {code(cure_command(cure, verdict))}: {markdown(cure.effect)}"


def _cache(verdict: Verdict) -> str:
    cost = verdict.cost
    words = []
    if verdict.resolution:
        dtype = verdict.resolution.kv_cache_dtype
        decided = verdict.resolution.decided_by
        where = decided if isinstance(decided, str) else f"{decided.file}:{decided.pointer}"
        words.append(f"{dtype}, decided by {where}")
    if cost.before is not None and cost.after is not None:
        words.append(
            f"{number(cost.before)} bytes per token, {number(cost.after)} with KV quantization off"
        )
    return markdown("; ".join(words) or "not known")


def _readers(report: Report) -> Iterator[str]:
    yield "## What each engine reads"
    yield ""
    yield from table(
        ("engine", "file that wins here", "order"),
        (
            (NAMES[item.engine], code(item.file or "none"), markdown(item.order))
            for item in report.readers
        ),
    )
    yield ""
    yield "Statements in the files:"
    yield ""
    before = report.plan.before
    yield from table(
        ("file", "line", "pointer", "value", "means", "read by the judged release"),
        (
            (
                code(item.file),
                str(item.line),
                code(item.pointer),
                code(value(item.value)),
                markdown(item.meaning),
                ("yes" if before.was_read(item) else "no") if before.resolution else "see verdict",
            )
            for item in before.declarations
        ),
    )


def _backends(verdict: Verdict) -> Iterator[str]:
    yield "## Attention backends"
    yield ""
    if not verdict.judgement.backends:
        yield "No single release was judged, so no list of backends applies."
        return
    yield from table(
        ("backend", "answer", "reasons", "stage"),
        (
            (
                code(item.name),
                "accepts" if item.accepts else "refuses",
                markdown("; ".join(item.reasons)) or "-",
                item.stage,
            )
            for item in verdict.judgement.backends
        ),
    )


def _patch(report: Report) -> Iterator[str]:
    yield "## Patch"
    yield ""
    edits = report.plan.edits
    if not edits:
        yield "Nothing was changed."
        return
    yield from fenced("diff", lines(report.plan.diff()))
    yield ""
    yield "What changed in the values:"
    yield ""
    yield from (f"- {code(change)}" for change in report.changes)
    for edit in edits:
        yield ""
        yield f"### {markdown(edit.file)}"
        yield ""
        yield f"- sha256 before: `{edit.before_sha256}`"
        yield f"- sha256 after: `{edit.after_sha256}`"
        yield ""
        yield "RFC 6902 patch:"
        yield ""
        yield from fenced("json", lines(json.dumps(list(edit.patch), indent=2)))
        yield ""
        yield "Inverse (undo itself restores the saved bytes):"
        yield ""
        yield from fenced("json", lines(json.dumps(list(edit.inverse), indent=2)))


def _bottom(report: Report) -> Iterator[str]:
    yield "## Not touched"
    yield ""
    yield from (f"- {markdown(item)}" for item in UNTOUCHED)
    yield ""
    yield "## Undo"
    yield ""
    yield from fenced("sh", lines(undo_command(report.plan)))


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """A GitHub table; cells must be escaped already."""
    yield "| " + " | ".join(head) + " |"
    yield "|" + " --- |" * len(head)
    for row in rows:
        yield "| " + " | ".join(cell.replace("\n", " ") for cell in row) + " |"


def code(text: str) -> str:
    """A code span that holds any text: its fence is longer than every run of backticks inside."""
    shown = plain(text).replace("|", "\\|")
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if shown.startswith("`") or shown.endswith("`") or not shown else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def fenced(language: str, text: str) -> Iterator[str]:
    """A code block that no line of the text can close."""
    longest = max((len(run) for run in re.findall("`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    yield f"{fence}{language}"
    yield text.rstrip("\n")
    yield fence
