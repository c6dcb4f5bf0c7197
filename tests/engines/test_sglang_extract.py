"""The parts of SGLang's extraction that need no release."""

from __future__ import annotations

import itertools
import json
import os
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patcher.engines.extract import sglang_checkpoint
from patcher.engines.extract.sglang import text
from patcher.engines.extract.sglang_examples import FAMILIES, documents
from patcher.engines.extract.sglang_launch import general
from patcher.engines.extract.sglang_models import deaf
from patcher.engines.extract.sglang_rules import Grid
from patcher.engines.extract.sglang_stage import Stage, clean_environment
from patcher.engines.extract.sglang_stubs import CARDS, installed
from patcher.engines.extract.source import DirectorySource, WheelSource
from patcher.engines.sglang import forms
from patcher.engines.sglang.rules import decide
from patcher.metadata.model import describe

if TYPE_CHECKING:
    from pathlib import Path

SCHEME_FIELDS = {"dynamic", "strategy", "symmetric"}
FEATURES = ("a", "b", "c")
VALUES = st.sampled_from(["x", "y", "z", "-"])
GRIDS = st.dictionaries(
    st.tuples(VALUES, VALUES, VALUES), st.sampled_from([None, 1, {"err": "E"}]), min_size=1
)


@given(GRIDS)
def test_rules_say_exactly_what_was_observed(cells: dict[tuple[str, ...], Any]) -> None:
    rows = [(dict(zip(FEATURES, key, strict=True)), value) for key, value in cells.items()]
    rules = Grid(rows, FEATURES).rules()
    assert set(rules[-1]) <= {*FEATURES, "then"}
    for row, value in rows:
        assert decide(rules, row) == value


def test_a_regular_grid_needs_few_rules() -> None:
    rows = [
        ({"a": a, "b": b}, "no" if a == "x" and b != "q" else "yes")
        for a, b in itertools.product("xyz", "pqr")
    ]
    assert len(Grid(rows, ("a", "b")).rules()) <= 3


@pytest.mark.parametrize("family", FAMILIES)
def test_an_example_has_the_forms_that_it_stands_for(family: str) -> None:
    domain = FAMILIES[family]
    for values in itertools.islice(itertools.product(*domain.values()), 0, None, 7):
        wanted = dict(zip(domain, values, strict=True))
        files = documents(wanted)
        found = forms.features(
            files, describe(files), wanted["vendor"], wanted["quantization_flag"]
        )
        if wanted.get("scheme", "-") in {
            "{}",
            "-",
            "null",
            "empty",
            "FP8",
            "FP4",
            "string",
            "falsy",
            "truthy",
        }:
            wanted = {
                k: v for k, v in wanted.items() if k not in {"dynamic", "strategy", "symmetric"}
            }
        assert {name: found.get(name) for name in wanted} == wanted


def test_given_flags_are_taken_out_of_an_outcome() -> None:
    launch = {"attention_backend_flag": "fa3", "decode_flag": "-", "kv_flag": "auto"}
    result = {"err": "ValueError", "msg": "needs fp8_e4m3, got auto."}
    assert general(launch, result)["msg"] == "needs fp8_e4m3, got {kv_flag}."
    resolved = general(launch, {"attention_backend": "fa3", "kv_cache_dtype": "fp8_e4m3"})
    assert resolved == {
        "attention_backend": "{attention_backend_flag}",
        "kv_cache_dtype": "fp8_e4m3",
    }


def test_classes_that_drop_the_quantization_config_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "sglang" / "srt" / "models"
    folder.mkdir(parents=True)
    (folder / "a.py").write_text(
        "class Keeps(Module):\n    def __init__(self): self.quant_config = 1\n"
        "class Child(Keeps): pass\nclass Drops(Module):\n    def f(self): quant_config = 2\n"
        "EntryClass = [Keeps, Child, Drops]\n"
    )
    assert deaf(DirectorySource(str(tmp_path))) == ["Drops"]


def test_a_stage_answers_for_the_card(tmp_path: Path) -> None:
    folder = tmp_path / "sglang"
    folder.mkdir()
    (folder / "probe.py").write_text(
        "import torch\ndef sm():\n    return torch.cuda.get_device_capability()\n"
        "def hip():\n    return torch.version.hip is not None\n"
    )
    answers = {}
    for card in CARDS:
        stage = Stage(DirectorySource(str(tmp_path)), card)
        answers[card.name] = stage.get("sglang.probe:sm")(), stage.get("sglang.probe:hip")()
    assert answers["sm120"] == ((12, 0), False)
    assert answers["gfx942"] == ((9, 4), True)


def test_the_stages_of_a_release_compile_its_code_once(tmp_path: Path) -> None:
    folder = tmp_path / "sglang" / "srt"
    folder.mkdir(parents=True)
    (folder / "probe.py").write_text(
        "import torch\nif torch.cuda.is_available():\n    def f(): pass\n"
    )
    (folder / "environ.py").write_text("def g(): pass\n")  # executed as a whole
    indexes: dict[str, Any] = {}
    found = []
    for card in CARDS[:2]:
        stage = Stage(DirectorySource(str(tmp_path)), card, indexes=indexes)
        names = "sglang.srt.probe:f", "sglang.srt.environ:g"
        found.append([stage.get(name) for name in names])
    for one, other in zip(*found, strict=True):
        assert one is not other
        assert one.__code__ is other.__code__


def test_what_is_known_of_a_struct_is_looked_up_once() -> None:
    answers = installed()
    fields = answers["msgspec"].structs.fields
    assert fields is answers["msgspec.structs"].fields
    struct = msgspec.defstruct("S", [("a", int)])
    assert fields(struct) is fields(struct)
    assert [field.name for field in fields(struct)] == ["a"]


def test_no_environment_variable_reaches_a_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_SOMETHING", "1")
    before = dict(os.environ)
    with clean_environment():
        assert not os.environ
        os.environ["SGLANG_LEFT"] = "1"
    assert dict(os.environ) == before


def test_forms_that_make_the_same_files_are_asked_about_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def outcome(stage: str, _: str, files: Any, flag: str) -> dict[str, Any]:
        asked.append(json.dumps([stage, files, flag]))
        return {"place": len(asked)}

    monkeypatch.setattr(sglang_checkpoint, "outcome", outcome)
    found = sglang_checkpoint.rows(lambda card: card.name, str(tmp_path / "f"))  # type: ignore[arg-type,return-value]
    assert len(set(asked)) == len(asked)
    combinations = {
        family: len(list(itertools.product(*domain.values())))
        for family, domain in FAMILIES.items()
    }
    assert {family: len(rows) for family, rows in found.items()} == combinations
    assert len(asked) < sum(combinations.values())


def test_a_wheel_tells_compiled_modules_by_their_whole_name(tmp_path: Path) -> None:
    members = ["p/_C.abi3.so", "p/deep/_D.cpython-311-x86_64-linux-gnu.so", "p/_E.py", "p/_F.so.1"]
    (tmp_path / "MEMBERS.json").write_text(json.dumps({"url": "https://x", "members": members}))
    wheel = WheelSource("https://x", str(tmp_path))
    stems = ["p/_C", "p/deep/_D", "p/_E", "p/_F", "p/_", "_C", "p/deep"]
    assert [stem for stem in stems if wheel.has_extension(stem)] == ["p/_C", "p/deep/_D"]


def test_the_file_has_one_rule_a_line() -> None:
    facts = {"engine": "sglang", "t": {"features": {"a": ["x"]}, "rules": [{"a": "x", "then": 1}]}}
    assert text(facts).splitlines()[6:9] == ['  "rules": [', '   {"a": "x", "then": 1}', "  ]"]
