"""The verdict over all releases, where it is not just a conflict or none."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from patcher import Target, check, engines, releases
from patcher.engines.base import Answer, Refusal, Resolution

if TYPE_CHECKING:
    import pytest

    from patcher.verdict import Verdict

KIMI = Path(__file__).resolve().parent.parent / "fixtures" / "Kimi-K2.5-NVFP4"


def judged(gpu: str) -> tuple[Verdict, dict[str, str]]:
    verdict = check(KIMI, Target.parse(gpu))
    known = engines.releases("vllm")
    states: dict[str, list[str]] = {}
    for item in verdict.judgement.portable:
        states.setdefault(item.state, []).append(item.release)
    return verdict, {state: releases.ranges(group, known) for state, group in states.items()}


def test_a_kernel_that_is_expected_to_fail_is_told_with_its_releases() -> None:
    """Triton has no fp8e4nv below SM89: the releases that choose it start, and then fail."""
    verdict, states = judged("sm80")
    assert states == {
        "ignores": "0.11.2 to 0.13.0",
        "refuses": "0.14.0 to 0.17.1, 0.26.0 to 0.33.0",
        "fails": "0.18.0 to 0.25.1",
    }
    (warning,) = (f for f in verdict.findings if f.severity == "warning" and "kernel" in f.message)
    assert warning.message == (
        "vLLM 0.18.0 to 0.25.1 starts on sm80, and a kernel is expected to fail at run time; "
        "which one: --engine vllm==0.25.1"
    )
    assert verdict.outcome == "conflict"
    assert [cure.kind for cure in verdict.cures] == ["patch"]  # no release after the last bad one


def test_unknown_releases_are_no_reason_to_say_compatible() -> None:
    verdict, states = judged("gfx942")
    assert states == {"no-backend": "0.11.2 to 0.19.1", "unknown": "0.20.0 to 0.33.0"}
    assert verdict.outcome == "unknown"


def test_a_model_that_starts_nowhere_is_a_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> Answer:
        why = Refusal("selector", "KV016", "ValueError: no")
        return Answer(Resolution("auto", "engine default"), refusals=(why,))

    monkeypatch.setattr(engines, "answer", refuses)
    verdict, states = judged("sm90")
    assert states == {"no-backend": "0.11.2 to 0.33.0"}
    assert (verdict.outcome, verdict.cures) == ("conflict", ())
    assert [(f.id, f.severity) for f in verdict.findings if f.id == "KV016"] == [("KV016", "error")]
