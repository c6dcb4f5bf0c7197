"""The verdict when no release was named: what every known release of the engine does."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from patcher import cures, engines, findings, recipes, releases
from patcher.verdict import FAILING, Cure, Finding, Judgement, Location

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from patcher.engines.base import Launch
    from patcher.recipes import Operations
    from patcher.subject import Subject
    from patcher.verdict import Outcome, ReleaseAnswer, Severity

#: The engine whose releases are asked when none was named.
ENGINE = "vllm"
#: What the states of a release mean, in the order in which they are told.
STATES = {
    "ignores": "does not read the declaration",
    "refuses": "obeys it and does not start",
    "no-backend": "cannot run this model on this GPU at all",
    "runs": "obeys it and runs",
    "fails": "starts, and a kernel is expected to fail at run time",
    "unknown": "is not known",
}

#: The states that are findings: how grave, in which words, and whether the statements are shown.
TOLD: Mapping[str, tuple[Severity, str, bool]] = {
    "refuses": ("error", "obeys this declaration and does not start on {gpu}", True),
    "fails": (
        "warning",
        f"starts on {{gpu}}, and a kernel is {FAILING} at run time; which one: --engine {{newest}}",
        True,
    ),
    "no-backend": (
        "warning",
        "cannot run this model on {gpu}, whatever the files say about the KV cache",
        False,
    ),
}


def judge(subject: Subject, engine: str, launch: Launch) -> Judgement:
    """A conflict if a release that reads the declaration refuses it here, or if none starts."""
    survey = releases.survey(subject, engine, launch, neutral(subject))
    refusing = any(item.state == "refuses" for item in survey)
    works = any(item.state in {"runs", "ignores", "fails"} for item in survey)
    conflict = refusing or _starts_nowhere(survey)
    outcome: Outcome = "conflict" if conflict else "compatible" if works else "unknown"
    obeyed = [item.kv_cache_dtype for item in survey if item.state in {"runs", "fails", "refuses"}]
    found = [*_findings(subject, engine, launch.gpu, survey), *findings.of_files(subject, None)]
    return Judgement(
        outcome=outcome,
        findings=findings.ordered(found),
        cures=tuple(_cures(subject, engine, launch, survey)) if refusing else (),
        kv_cache_dtype=obeyed[-1] if obeyed else "auto",
        notes=tuple(_notes(engine, survey)) or (f"no facts about {engines.NAMES[engine]}",),
        portable=survey,
    )


def neutral(subject: Subject) -> Operations:
    """The operations that turn every statement off and bring deleted keys back."""
    off = recipes.find("kv-cache-model-dtype").operations(subject.declarations, ())
    repair = recipes.find("kv-cache-repair").operations((), subject.missing)
    return {file: [*off.get(file, ()), *repair.get(file, ())] for file in {**off, **repair}}


def _starts_nowhere(survey: tuple[ReleaseAnswer, ...]) -> bool:
    return {item.state for item in survey} == {"no-backend"}


def _of_state(survey: tuple[ReleaseAnswer, ...], *states: str) -> list[str]:
    return [item.release for item in survey if item.state in states]


def _by_finding(survey: tuple[ReleaseAnswer, ...], state: str) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for item in survey:
        if item.state == state and item.finding:
            groups.setdefault(item.finding, []).append(item.release)
    return groups


def _findings(
    subject: Subject, engine: str, gpu: str, survey: tuple[ReleaseAnswer, ...]
) -> Iterator[Finding]:
    known, name = engines.releases(engine), engines.NAMES[engine]
    places = tuple(
        Location(item.file, item.pointer, item.line)
        for item in subject.declarations
        if item.meaning not in findings.QUIET
    ) or tuple(Location(gap.file, gap.pointer, gap.line) for gap in subject.missing)
    nowhere = _starts_nowhere(survey)
    for state, (severity, words, shown) in TOLD.items():
        for finding, group in _by_finding(survey, state).items():
            said = words.format(gpu=gpu, newest=f"{engine}=={group[-1]}")
            yield Finding(
                finding,
                "error" if nowhere else severity,
                f"{name} {releases.ranges(group, known)} {said}",
                places if shown else (),
            )


def _cures(
    subject: Subject, engine: str, launch: Launch, survey: tuple[ReleaseAnswer, ...]
) -> Iterator[Cure]:
    """The releases after the last bad one, then the recipe that helps most of the refusing ones."""
    bad = {"refuses", "no-backend", "fails"}
    later = survey[max(i for i, item in enumerate(survey) if item.state in bad) + 1 :]
    if later:
        cache = later[0].kv_cache_dtype
        effect = f"no change to the checkpoint; the cache holds {cache}"
        yield Cure("upgrade", effect, engine=engine, version=f">={later[0].release}")
    tried = cures.attempts(subject)
    refusing = _of_state(survey, "refuses")
    helped = Counter(
        cure for release in refusing for cure in cures.patches(tried, engine, release, launch)
    )
    yield from (cure for cure, _ in helped.most_common())


def _notes(engine: str, survey: tuple[ReleaseAnswer, ...]) -> Iterator[str]:
    known = engines.releases(engine)
    for state, words in STATES.items():
        if group := _of_state(survey, state):
            yield f"{engines.NAMES[engine]} {releases.ranges(group, known)} {words}"
