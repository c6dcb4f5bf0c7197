"""Checkpoint and target in, verdict out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from patcher import cost, engines, findings
from patcher.engines.base import Launch, Place
from patcher.errors import RefusedError
from patcher.subject import Subject
from patcher.verdict import Judgement, Verdict

if TYPE_CHECKING:
    from patcher.checkpoint import Checkpoint
    from patcher.engines.base import Answer
    from patcher.metadata.declarations import Declaration
    from patcher.target import Target
    from patcher.verdict import Cure, Finding, Outcome

#: Declared dtypes whose static scales live in the weights.
SCALED = {"fp8_e4m3", "fp8_e5m2", "nvfp4", "int8"}


def check(checkpoint: Checkpoint, target: Target, *, full: bool = False) -> Verdict:
    """What the target's engine release does with this checkpoint on the target's GPU.

    Without a release it is the portable verdict over all known ones. Reads no weights; the k/v
    scale tensors are counted from the index or the shard headers, and only when static quantization
    is declared and obeyed.

    ``full``: check the header of every shard too, whatever the verdict.

    Raises:
        UnreadableError: the files do not describe a model, or no facts cover the release.
        RefusedError: the checkpoint is in TensorRT-LLM's own layout.
    """
    return judge(checkpoint, read(checkpoint), target, full=full)


def read(checkpoint: Checkpoint) -> Subject:
    """What is judged. Raises as :func:`check`."""
    _refuse_foreign_layout(checkpoint)
    return Subject.of(checkpoint.documents)


def judge(
    checkpoint: Checkpoint, subject: Subject, target: Target, *, full: bool = False
) -> Verdict:
    """As :func:`check`, for a subject that was read before."""
    launch = Launch(
        gpu=target.gpu.name,
        capability=target.gpu.capability,
        kv_cache_dtype=target.kv_cache_dtype,
        attention_backend=target.attention_backend,
        decode_attention_backend=target.decode_attention_backend,
    )
    if target.engine is None or target.version is None:
        from patcher import portable  # noqa: PLC0415 - lazy: it brings the recipes along

        judgement = portable.judge(subject, target.engine or portable.ENGINE, launch)
        if full:
            judgement = replace(judgement, evidence=checkpoint.scales(full=True))
    else:
        judgement = _judge(checkpoint, subject, target, launch, full=full)
    origin = checkpoint.origin
    return Verdict(
        path=checkpoint.name,
        origin={"origin": origin.kind, "repo_id": origin.repo_id, "revision": origin.revision},
        model=subject.model,
        target=target,
        declarations=subject.declarations,
        cost=cost.of(subject.model, judgement.kv_cache_dtype),
        judgement=judgement,
    )


def _refuse_foreign_layout(checkpoint: Checkpoint) -> None:
    layouts = {
        "tensorrt-llm-engine": "a built TensorRT-LLM engine: its KV-cache dtype is compiled in, "
        "and no edit of its JSON changes it",
        "tensorrt-llm-checkpoint": "a checkpoint in TensorRT-LLM's own layout, not Hugging Face's",
    }
    if checkpoint.layout in layouts:
        raise RefusedError(
            layouts[checkpoint.layout],
            path="config.json",
            hint="run check on the Hugging Face checkpoint that it was built from, "
            "then rebuild with trtllm-build",
        )


def _judge(
    checkpoint: Checkpoint, subject: Subject, target: Target, launch: Launch, *, full: bool
) -> Judgement:
    assert target.engine is not None
    assert target.version is not None
    engine = target.engine
    release, note = engines.nearest(engine, target.version)
    answer = engines.answer(engine, release, subject.values, subject.model, launch)
    decided = _decided_by(answer)
    scaled = _scaled(subject, decided)
    conflict = bool(answer.refusals)
    scales = checkpoint.scales(full=full) if full or scaled else None
    found: list[Finding] = [
        *findings.settled_by_scales(
            findings.of_answer(subject, answer, engine, release, launch.gpu),
            checkpoint.scale_values,
        ),
        *findings.of_files(subject, decided),
        *(findings.of_scales(scaled, scales) if scaled and scales else ()),
    ]
    outcome: Outcome = "conflict" if conflict else "unknown" if answer.unknown else "compatible"
    return Judgement(
        outcome=outcome,
        findings=findings.ordered(found),
        cures=_cures(subject, engine, release, launch)
        if conflict or findings.failing(answer)
        else (),
        kv_cache_dtype=answer.resolution.kv_cache_dtype if answer.resolution else None,
        facts_version=release,
        resolution=answer.resolution,
        backends=answer.backends,
        selected=answer.selected,
        evidence=scales,
        notes=tuple(filter(None, (note, answer.unknown, answer.note))),
    )


def _cures(subject: Subject, engine: str, release: str, launch: Launch) -> tuple[Cure, ...]:
    from patcher import cures  # noqa: PLC0415 - lazy: only a conflict needs the recipes

    return cures.find(subject, engine, release, launch)


def _decided_by(answer: Answer) -> Place | None:
    if answer.resolution is None or isinstance(answer.resolution.decided_by, str):
        return None
    return answer.resolution.decided_by


def _scaled(subject: Subject, decided: Place | None) -> Declaration | None:
    """The obeyed statement, if its scales should be in the weights."""
    if decided is None:
        return None
    for item in subject.declarations:
        if (item.file, item.pointer) == (decided.file, decided.pointer) and item.meaning in SCALED:
            return item
    return None
