"""Hostile bytes for every parser; ``benchmarks/fuzz.py`` runs the same for as long as one likes."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from faults import hostile, inputs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from pathlib import Path

#: Whole commands cost a hundred times what a parser does.
EXAMPLES = {"commands": 25}


@pytest.mark.parametrize("target", hostile.TARGETS)
def test_no_bytes_lead_anywhere_but_to_an_answer_or_a_refusal(target: str) -> None:
    accepted: set[bool] = set()

    @settings(
        max_examples=EXAMPLES.get(target, 300),
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(inputs.inputs(target))
    def attack(data: bytes) -> None:
        accepted.add(hostile.TARGETS[target](data))

    attack()
    assert False in accepted, "no input was hostile"


@pytest.mark.parametrize("target", [name for name in hostile.TARGETS if name != "index"])
def test_the_seeds_are_accepted(target: str) -> None:
    assert hostile.TARGETS[target](inputs.SEEDS[target][0])


@given(st.text())
@settings(max_examples=300)
def test_a_name_in_a_weight_map_never_leaves_the_checkpoint(name: str) -> None:
    hostile.TARGETS["index"](json.dumps({"weight_map": {"a": name}}).encode())


def test_the_watch_sees_a_file_that_is_opened() -> None:
    with pytest.raises(AssertionError, match="/dev/zero"), hostile.watch().reading_only():
        os.close(os.open("/dev/zero", os.O_RDONLY))


def test_the_watch_sees_a_file_that_is_written(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="write"), hostile.watch().reading_only(str(tmp_path)):
        (tmp_path / "new").write_bytes(b"")


def test_the_watch_sees_a_path_that_is_written(tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    with pytest.raises(AssertionError, match="rename"), hostile.watch().writing_by_name():
        os.rename(tmp_path / "old", tmp_path / "new")


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (b'"before_sha256"', b'"before_sha\\ud800256"'),
        (b'"op": "test"', b'"op": []'),
        (b'"path": "/quantization', b'"path": {}, "x": "/quantization'),
    ],
)
def test_plans_that_once_were_a_traceback(good: bytes, bad: bytes) -> None:
    seed = inputs.SEEDS["plan"][0]
    assert good in seed
    assert not hostile.TARGETS["plan"](seed.replace(good, bad, 1))
