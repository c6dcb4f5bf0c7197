"""Hostile bytes for every parser; ``benchmarks/fuzz.py`` runs the same for as long as one likes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from faults import hostile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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
    @given(hostile.inputs(target))
    def attack(data: bytes) -> None:
        accepted.add(hostile.TARGETS[target](data))

    attack()
    assert False in accepted, "no input was hostile"


@pytest.mark.parametrize("target", [name for name in hostile.TARGETS if name != "index"])
def test_the_seeds_are_accepted(target: str) -> None:
    assert hostile.TARGETS[target](hostile.SEEDS[target][0])


@given(st.text())
@settings(max_examples=300)
def test_a_name_in_a_weight_map_never_leaves_the_checkpoint(name: str) -> None:
    text = (b'{"weight_map": {"a": %s}}') % __import__("json").dumps(name).encode()
    hostile.TARGETS["index"](text)


def _open_device() -> None:
    os.close(os.open("/dev/zero", os.O_RDONLY))


def _write_file() -> None:
    (hostile.sandbox() / "new").write_bytes(b"")


def _rename() -> None:
    os.rename(hostile.sandbox() / "absent", "x")


@pytest.mark.parametrize("act", [_open_device, _write_file, _rename])
def test_the_watch_sees(act: object) -> None:
    assert callable(act)
    with pytest.raises((AssertionError, FileNotFoundError)) as caught:  # noqa: SIM117
        with hostile.watch().reading_only(str(Path.home())):
            act()
    del caught
