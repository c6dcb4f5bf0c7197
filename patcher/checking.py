"""Checkpoint and target in, verdict out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from patcher import cost, cures, engines, findings, recipes, releases
from patcher.engines.base import Launch, Place
from patcher.errors import RefusedError
from patcher.subject import Subject
from patcher.verdict import Cure, Finding, Location, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from patcher.checkpoint import Checkpoint
    from patcher.engines.base import Answer
    from patcher.headers import ScaleCounts
    from patcher.metadata.declarations import Declaration
    from patcher.recipes import Operations
    from patcher.target import Target
    from patcher.verdict import Outcome, ReleaseAnswer

#: The engine whose releases the portable verdict asks when none was named.
PORTABLE_ENGINE = "vllm"
#: Declared dtypes whose static scales live in the weights.
SCALED = {"fp8_e4m3", "fp8_e5m2", "fp8", "nvfp4", "int8"}


def check(checkpoint: Checkpoint, target: Target) -> Verdict:
    """What the target's engine release does with this checkpoint on the target's GPU.

    Reads no weights; the k/v scale tensors are counted from the index or the shard headers, and
    only when static quantization is declared and obeyed.

    Raises:
        UnreadableError: the files do not describe a model, or no facts cover the release.
        RefusedError: the checkpoint is in TensorRT-LLM's own layout.
    """
    _refuse_foreign_layout(checkpoint)
    subject = Subject.of(checkpoint.documents)
    launch = Launch(
        gpu=target.gpu.name,
        capability=target.gpu.capability,
        kv_cache_dtype=target.kv_cache_dtype,
        attention_backend=target.attention_backend,
    )
    if target.version is None:
        return _portable(checkpoint, subject, target, launch)
    return _single(checkpoint, subject, target, launch)


def _refuse_foreign_layout(checkpoint: Checkpoint) -> None:
    layouts = {
        "tensorrt-llm-engine": "a built TensorRT-LLM engine: its KV-cache dtype is compiled in, and "
        "no edit of its JSON changes it",
        "tensorrt-llm-checkpoint": "a checkpoint in TensorRT-LLM's own layout, not Hugging Face's",
    }
    if checkpoint.layout in layouts:
        raise RefusedError(
            layouts[checkpoint.layout],
            path="config.json",
            hint="run check on the Hugging Face checkpoint that it was built from, "
            "then rebuild with trtllm-build",
        )


def _single(checkpoint: Checkpoint, subject: Subject, target: Target, launch: Launch) -> Verdict:
    assert target.engine is not None
    assert target.version is not None
    engine = target.engine
    release, note = engines.nearest(engine, target.version)
    answer = engines.answer(engine, release, subject.values, subject.model, launch)
    decided = _decided_by(answer)
    scales = _scales(checkpoint, subject, decided)
    found = (
        *findings.of_answer(subject, answer, engine, release, target.gpu.name),
        *findings.of_files(subject, decided),
        *_scale_findings(subject, decided, scales),
    )
    conflict = bool(answer.refusals)
    outcome: Outcome = "conflict" if conflict else "unknown" if answer.unknown else "compatible"
    dtype = answer.resolution.kv_cache_dtype if answer.resolution else None
    return Verdict(
        path=str(checkpoint.root),
        origin=_origin(checkpoint),
        model=subject.model,
        target=target,
        facts_version=release,
        declarations=subject.declarations,
        resolution=answer.resolution,
        backends=answer.backends,
        selected=answer.selected,
        outcome=outcome,
        findings=_ordered(found),
        cures=cures.find(subject, engine, release, launch) if conflict else (),
        cost=cost.of(subject.model, dtype),
        evidence=scales,
        notes=tuple(filter(None, (note, answer.unknown))),
    )


def _portable(checkpoint: Checkpoint, subject: Subject, target: Target, launch: Launch) -> Verdict:
    engine = target.engine or PORTABLE_ENGINE
    neutral = recipes.find("kv-cache-model-dtype").operations(subject.declarations, ())
    repair = recipes.find("kv-cache-repair").operations((), subject.missing)
    survey = releases.survey(subject, engine, launch, _merged(neutral, repair))
    refusing = [item for item in survey if item.state == "refuses"]
    judged = [item for item in survey if item.state != "unknown"]
    outcome: Outcome = "conflict" if refusing else "compatible" if judged else "unknown"
    dtype = next(
        (i.kv_cache_dtype for i in reversed(survey) if i.state in {"runs", "refuses"}), "auto"
    )
    found = (
        *_portable_findings(subject, engine, target, survey),
        *findings.of_files(subject, None),
    )
    return Verdict(
        path=str(checkpoint.root),
        origin=_origin(checkpoint),
        model=subject.model,
        target=target,
        facts_version=None,
        declarations=subject.declarations,
        resolution=None,
        backends=(),
        selected=None,
        outcome=outcome,
        findings=_ordered(found),
        cures=tuple(_portable_cures(subject, engine, launch, survey)) if refusing else (),
        cost=cost.of(subject.model, dtype),
        evidence=None,
        notes=_survey_notes(engine, survey),
        portable=survey,
    )


def _merged(first: Operations, second: Operations) -> Operations:
    files = {*first, *second}
    return {file: [*first.get(file, ()), *second.get(file, ())] for file in files}


def _portable_findings(
    subject: Subject, engine: str, target: Target, survey: tuple[ReleaseAnswer, ...]
) -> list[Finding]:
    known = engines.releases(engine)
    name = engines.NAMES[engine]
    found = []
    refusing = [item.release for item in survey if item.state == "refuses"]
    stuck = [item.release for item in survey if item.state == "no-backend"]
    if refusing:
        places = tuple(
            Location(item.file, item.pointer, item.line)
            for item in subject.declarations
            if item.meaning not in findings.QUIET
        ) or tuple(Location(gap.file, gap.pointer, gap.line) for gap in subject.missing)
        found.append(
            Finding(
                "KV005" if subject.missing else "KV001",
                "error",
                f"{name} {releases.ranges(refusing, known)} obeys this declaration and does not "
                f"start on {target.gpu.name}",
                places,
            )
        )
    if stuck:
        found.append(
            Finding(
                "KV001",
                "warning",
                f"{name} {releases.ranges(stuck, known)} cannot run this model on "
                f"{target.gpu.name}, whatever the files say about the KV cache",
            )
        )
    return found


def _portable_cures(
    subject: Subject, engine: str, launch: Launch, survey: tuple[ReleaseAnswer, ...]
) -> list[Cure]:
    last_bad = max(i for i, item in enumerate(survey) if item.state in {"refuses", "no-backend"})
    found = []
    if last_bad + 1 < len(survey):
        version = f">={survey[last_bad + 1].release}"
        dtype = survey[last_bad + 1].kv_cache_dtype
        effect = f"no change to the checkpoint; the cache holds {dtype}"
        found.append(Cure("upgrade", effect, engine=engine, version=version))
    refusing = [item.release for item in survey if item.state == "refuses"]
    best: dict[str, tuple[int, Cure]] = {}
    for release in refusing:
        for cure, _ in cures.patches(subject, engine, release, launch):
            count = best.get(cure.recipe or "", (0, cure))[0]
            best[cure.recipe or ""] = (count + 1, cure)
    ranked = sorted(best.values(), key=lambda item: -item[0])
    return [*found, *(cure for _, cure in ranked)]


def _survey_notes(engine: str, survey: tuple[ReleaseAnswer, ...]) -> tuple[str, ...]:
    known = engines.releases(engine)
    words = {
        "ignores": "does not read the declaration",
        "refuses": "obeys it and does not start",
        "no-backend": "cannot run this model on this GPU at all",
        "runs": "obeys it and runs",
        "unknown": "is not known",
    }
    return tuple(
        f"{engines.NAMES[engine]} {releases.ranges(group, known)} {text}"
        for state, text in words.items()
        if (group := [item.release for item in survey if item.state == state])
    )


def _decided_by(answer: Answer) -> Place | None:
    if answer.resolution is None or isinstance(answer.resolution.decided_by, str):
        return None
    return answer.resolution.decided_by


def _scales(checkpoint: Checkpoint, subject: Subject, decided: Place | None) -> ScaleCounts | None:
    return checkpoint.scales() if _declaration(subject, decided) else None


def _scale_findings(
    subject: Subject, decided: Place | None, scales: ScaleCounts | None
) -> tuple[Finding, ...]:
    declaration = _declaration(subject, decided)
    if declaration is None or scales is None:
        return ()
    return tuple(findings.of_scales(declaration, scales))


def _declaration(subject: Subject, decided: Place | None) -> Declaration | None:
    """The obeyed statement, if its scales should be in the weights."""
    if decided is None:
        return None
    for item in subject.declarations:
        if (item.file, item.pointer) == (decided.file, decided.pointer) and item.meaning in SCALED:
            return item
    return None


def _origin(checkpoint: Checkpoint) -> Mapping[str, Any]:
    origin = checkpoint.origin
    return {"origin": origin.kind, "repo_id": origin.repo_id, "revision": origin.revision}


def _ordered(found: tuple[Finding, ...]) -> tuple[Finding, ...]:
    rank = {"error": 0, "warning": 1, "info": 2}
    return tuple(sorted(dict.fromkeys(found), key=lambda item: (rank[item.severity], item.id)))
