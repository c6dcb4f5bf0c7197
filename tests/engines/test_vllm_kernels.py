from __future__ import annotations

import json
from pathlib import Path

import pytest

from patcher.engines import answer, facts
from patcher.engines.base import Launch
from patcher.metadata.model import describe

FIXTURE = Path(__file__).resolve().parents[2] / "fixtures" / "Kimi-K2.5-NVFP4"
DOCUMENTS = {path.name: json.loads(path.read_text()) for path in FIXTURE.glob("*.json")}


@pytest.mark.parametrize(
    ("release", "gpu", "capability", "warned"),
    [
        ("0.20.2", "sm86", "8.6", True),
        ("0.20.2", "sm89", "8.9", False),
        ("0.20.2", "sm120", "12.0", False),
        ("0.26.0", "sm86", "8.6", False),  # refuses by itself
        ("0.12.0", "sm86", "8.6", False),  # does not read the declaration
    ],
)
def test_fp8_in_triton_below_sm89(release: str, gpu: str, capability: str, *, warned: bool) -> None:
    model = describe(DOCUMENTS)
    given = answer("vllm", release, DOCUMENTS, model, Launch(gpu, capability))
    told = [n for n in given.notices if n.message.startswith("expected to fail at run time")]
    assert bool(told) == warned
    assert all(n.severity == "warning" and "fp8e4nv" in n.message for n in told)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_every_row_has_a_source_and_a_date(engine: str) -> None:
    for row in facts.load(engine, "kernels", "read")["kernels"]:
        assert row["source"]
        assert row["date"] >= "2026-11-30"
