"""Hostile bytes for every parser; ``benchmarks/fuzz.py`` runs the same for as long as one likes."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING

import pytest
from faults import hostile, inputs, watching
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


@given(st.text())
@settings(max_examples=300)
def test_a_name_in_a_manifest_never_leaves_the_mirror(name: str) -> None:
    body = json.loads(inputs.SEEDS["manifest"][0])
    body["files"][-1]["path"] = name
    accepted = hostile.TARGETS["manifest"](json.dumps(body).encode())
    parts = name.split("/")
    assert not accepted or {"", ".", ".."}.isdisjoint(parts)


def test_the_watch_sees_a_file_that_is_opened() -> None:
    with pytest.raises(AssertionError, match="/dev/zero"), watching.watch().reading_only():
        os.close(os.open("/dev/zero", os.O_RDONLY))


def test_the_watch_sees_a_file_that_is_written(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="write"), watching.watch().reading_only(str(tmp_path)):
        (tmp_path / "new").write_bytes(b"")


def test_the_watch_sees_a_path_that_is_written(tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    with pytest.raises(AssertionError, match="rename"), watching.watch().writing_by_name():
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


def test_a_manifest_that_once_was_a_traceback() -> None:
    """Half a surrogate pair in a name."""
    seed = inputs.SEEDS["manifest"][0]
    assert b'"sub/a.json"' in seed
    assert not hostile.TARGETS["manifest"](seed.replace(b"sub/a.json", b"sub/a\\ud800.json"))
    assert hostile.TARGETS["manifest"](seed.replace(b"sub/a.json", b"sub/a\\udc80.json"))


@pytest.mark.parametrize("target", ["recipe", "plan", "record", "manifest"])
def test_what_a_stranger_wrote_is_data_and_never_run(target: str) -> None:
    """Code in the place of every word of a good document, in turn."""
    seed = inputs.SEEDS[target][0]
    hostile.TARGETS[target](seed)
    words = sorted(set(re.findall(rb'"([^"\\\n]+)"', seed)))
    assert len(words) >= 5
    for word in words:
        data = seed.replace(b'"%s"' % word, b"\"__import__('os').system('id')\"")
        hostile.TARGETS[target](data)  # a refusal may import what it needs for its message
        with watching.watch().running_nothing():
            hostile.TARGETS[target](data)


def test_the_watch_sees_what_is_run() -> None:
    with pytest.raises(AssertionError, match="compile"), watching.watch().running_nothing():
        eval("1")
