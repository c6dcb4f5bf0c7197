"""What a release's own parser says to a case, and what our verdicts promise for it."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from parsers import sglang_parser, vllm_parser
from parsers.cases import AS_PUBLISHED

from patcher import engines, gpus
from patcher.engines import facts
from patcher.engines.base import Launch
from patcher.engines.extract.shims import ShimJudgedError
from patcher.engines.sglang import pool
from patcher.engines.sglang.rules import load as sglang_facts
from patcher.engines.vllm.resolution import resolve, uses_mla

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from parsers.cases import Case

    from patcher.engines.extract.source import Source

    #: A case's dtype, or ``Type: message`` of an error.
    Said = Callable[[Case], str]

#: Any dtype: the model's own rules set it after the files were read.
HOOK = "set by a hook"
#: An open file in an error's text; our facts keep the last part of its name.
_FILE = re.compile(r"<_io\.TextIOWrapper name='[^']*/([^'/]+)'[^>]*>")


@dataclass(slots=True)
class Result:
    """The count of one release.

    Attributes:
        cases: sets of files that went through the parser, ``patched`` of them by a recipe.
        hooked: those whose final dtype is not the parser's affair; they only have to parse.
        unknown: those that we have no verdict about, on no GPU.
    """

    engine: str
    release: str
    cases: int = 0
    patched: int = 0
    hooked: int = 0
    unknown: int = 0
    seconds: float = 0.0
    differences: list[str] = field(default_factory=list)


def compare(engine: str, release: str, source: Source, given: Iterable[Case]) -> Result:
    """Every case through the release's parser, against the verdicts on every NVIDIA GPU."""
    start = time.monotonic()
    result = Result(engine, release)
    parsed, promises = _ENGINES[engine](release, source)
    for case in given:
        answer, promised = told(partial(parsed, case)), promises(case)
        result.cases += 1
        result.patched += case.variant != AS_PUBLISHED
        result.hooked += promised == {HOOK}
        result.unknown += not promised
        if not all(_agree(answer, promise) for promise in promised):
            where = f"{engine} {release}: {case.name}, {case.variant}"
            result.differences.append(f"{where}: it says {answer!r}, we say {sorted(promised)}")
    result.seconds = time.monotonic() - start
    return result


def told(ask: Callable[[], str]) -> str:
    """The answer, or ``Type: message`` of whatever the release raises."""
    try:
        return ask()
    except (Exception, ShimJudgedError) as error:  # noqa: BLE001 - the release's answer
        return _FILE.sub(r"\1", f"{type(error).__name__}: {error}")


def _agree(answer: str, promise: str) -> bool:
    """The same dtype, or the same error, of which our facts keep the first sentence."""
    if promise == HOOK:
        return ": " not in answer
    return answer == promise or (": " in promise and answer.startswith(promise))


def _vllm(release: str, source: Source) -> tuple[Said, Callable[[Case], set[str]]]:
    rules = facts.load("vllm", release, "resolution")
    parser = vllm_parser.Parser(source)

    def parsed(case: Case) -> str:
        model = case.subject.model
        mla = uses_mla(rules, model)
        return parser.kv_cache_dtype(str(case.folder), model, use_mla=mla, overrides=case.overrides)

    def promises(case: Case) -> set[str]:
        model = case.subject.model
        found = resolve(
            rules, case.subject.values, model, capability=None, use_mla=uses_mla(rules, model)
        )
        refused = [refusal.message for refusal in (*found.refusals, *found.late_refusals)]
        promised = set(refused[:1]) | set(_verdicts("vllm", release, case))
        return promised or {str(found.layer_kv_cache_dtype)}

    return parsed, promises


def _sglang(release: str, source: Source) -> tuple[Said, Callable[[Case], set[str]]]:
    rules = sglang_facts(release)
    parser = sglang_parser.Parser(source)

    def parsed(case: Case) -> str:
        names = set(case.subject.model.architectures[:1])
        hears = not names & set(rules["deaf"]["architectures"])
        return parser.kv_cache_dtype(str(case.folder), hears=hears, overrides=case.overrides)

    def promises(case: Case) -> set[str]:
        subject = case.subject
        if "quantization" in case.overrides.get("quantization_config", ()):
            return set()  # never offered: a nested block in config.json is not among its forms
        loaded = pool.load(rules, pool.features(subject.values, subject.model, "sm120"))
        error = {loaded.error} if loaded and loaded.error else set()
        return error | set(_verdicts("sglang", release, case))

    return parsed, promises


def _verdicts(engine: str, release: str, case: Case) -> Iterator[str]:
    """The dtype that each GPU's verdict promises, where it says that the release starts."""
    for gpu in gpus.gpus():
        if gpu.capability is None:
            continue
        launch = Launch(gpu.name, gpu.capability)
        answer = engines.answer(engine, release, case.subject.values, case.subject.model, launch)
        if answer.resolution and not answer.refusals and not answer.unknown:
            hooked = answer.resolution.decided_by == "model hook"
            yield HOOK if hooked else answer.resolution.kv_cache_dtype


_ENGINES = {"vllm": _vllm, "sglang": _sglang}
