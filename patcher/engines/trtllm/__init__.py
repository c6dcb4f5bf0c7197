"""What TensorRT-LLM makes of a checkpoint (its PyTorch backend, started through the LLM API).

Its code was read file by file and never run here, and the text that was read carries no release
tags. So a release is a list of the code generations that it may hold: what all of them answer is
the answer, and where they differ the answer is ``unknown`` and says what each would do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from patcher.engines.base import Answer
from patcher.engines.trtllm import generations
from patcher.engines.trtllm.judging import judge

if TYPE_CHECKING:
    from patcher.engines.base import Documents, Launch
    from patcher.metadata.model import Model


def answer(release: str, documents: Documents, model: Model, launch: Launch) -> Answer:
    """What ``release`` does with these files; ``unknown`` wherever its code was not read.

    ``backends`` and ``selected`` stay empty: which attention backend runs was not read.
    """
    candidates = generations.of(release)
    answers = [judge(generation, documents, model, launch) for generation in candidates]
    if len({_outcome(one) for one in answers}) == 1:
        return answers[0]
    common = len({_dtype(one) for one in answers}) == 1
    names: dict[str, list[str]] = {}
    for generation, one in zip(candidates, answers, strict=True):
        names.setdefault(_said(one), []).append(generation.name)
    each = "; ".join(f"{' or '.join(group)}: {said}" for said, group in names.items())
    sentence = (
        f"which generation of the code TensorRT-LLM {release} holds is inferred, not verified, "
        f"and they differ: {each}"
    )
    return Answer(answers[0].resolution if common else None, unknown=sentence)


def flag_values(release: str) -> tuple[str, ...]:
    """The values of ``--kv_cache_dtype`` that every generation this release may hold takes."""
    first, *others = (one.flag_values for one in generations.of(release))
    return tuple(value for value in first if all(value in values for values in others))


def _outcome(one: Answer) -> tuple[str, str | None]:
    """Two generations agree when neither starts, whatever the reasons."""
    return ("does not start", None) if one.refusals else (_said(one), _dtype(one))


def _said(one: Answer) -> str:
    if one.unknown is not None:
        return one.unknown
    if one.refusals:
        return f"does not start ({one.refusals[0].message})"
    dtype = _dtype(one)
    return f"runs with {'the model dtype' if dtype == 'auto' else dtype} in the cache"


def _dtype(one: Answer) -> str | None:
    return one.resolution.kv_cache_dtype if one.resolution else None
