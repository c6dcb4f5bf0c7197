"""Patched files through the releases' own parsers; ``make parsers`` does it for every release.

A release whose files are not at hand is skipped by name; the command fetches them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from parsers import sources
from parsers.cases import AS_PUBLISHED, OVERRIDDEN, Case, cases
from parsers.comparing import compare
from parsers.quark import said

from patcher import jsontext, recipes
from patcher.subject import Subject

if TYPE_CHECKING:
    from patcher.engines.extract.source import Source

#: The newest ones, and of vLLM those after which it reads a KV-cache statement differently.
RELEASES = (
    ("vllm", "0.14.1"),
    ("vllm", "0.16.0"),
    ("vllm", "0.20.2"),
    ("vllm", "0.33.0"),
    ("sglang", "0.5.23"),
)
NAMES = [f"{engine}-{release}" for engine, release in RELEASES]
#: 1 MB of JSON; others have the same form.
LARGE = ("nvidia--NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4",)
RESOLVER = "vllm/utils/torch_utils.py"


class Edited:
    """A release in which one file says something else."""

    def __init__(self, source: Source, path: str, old: str, new: str) -> None:
        self._source, self._path, self._old, self._new = source, path, old, new
        self.exists, self.has_extension = source.exists, source.has_extension

    def read(self, path: str) -> str:
        text = self._source.read(path)
        assert path != self._path or self._old in text
        return text.replace(self._old, self._new) if path == self._path else text


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    made = cases(tmp_path_factory.mktemp("cases"))
    return [case for case in made if case.name not in LARGE]


def at_hand(engine: str, release: str) -> Source:
    found = sources.at_hand(engine, release)
    if found is None:
        pytest.skip(f"the files of {engine} {release} are not here; make parsers fetches them")
    return found


@pytest.mark.parametrize(("engine", "release"), RELEASES, ids=NAMES)
def test_every_patch_is_read_as_promised(engine: str, release: str, given: list[Case]) -> None:
    source = at_hand(engine, release)
    result = compare(engine, release, source, given)
    if isinstance(source, sources.Kept) and source.lacking:
        pytest.skip(f"{source.lacking} of {engine} {release} is not here; make parsers fetches it")
    assert result.differences == []
    assert result.cases == len(given)
    assert 0 < result.patched < result.cases
    assert result.unknown < result.cases / 3


def test_a_parser_that_reads_differently_is_noticed(given: list[Case]) -> None:
    source = Edited(at_hand("vllm", "0.16.0"), RESOLVER, '"fp8_e4m3"', '"fp8_e5m2"')
    kimi = [case for case in given if case.name == "Kimi-K2.5, our fixture"]
    (difference,) = compare("vllm", "0.16.0", source, kimi).differences
    assert f"our fixture, {AS_PUBLISHED}: it says 'fp8_e5m2', we say ['fp8_e4m3']" in difference


QUARK = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False}
#: What is edited -> the beginning of what every release says; see patcher/metadata/forms.py.
EDITS: dict[str, tuple[dict[str, Any], str]] = {
    "as published": ({}, "made"),
    "the scheme alone": ({"scheme": {}}, "made"),
    "the group alone": ({"group": []}, "ValueError: Found a different quantization configuration"),
    "the group null": ({"group": None}, "TypeError: object of type 'NoneType' has no len()"),
    "the outputs alone": ({"output": None}, "ValueError: The kv_cache quantization configuration"),
    "the outputs {}": (
        {"group": [], "output": {}},
        "ValueError: Found a different quantization configuration",
    ),
    "the group and the outputs": ({"group": [], "output": None}, "made"),
}


def quark(
    group: list[str] | None = ["*k_proj", "*v_proj"],  # noqa: B006 - never changed
    output: dict[str, Any] | None = QUARK,
    scheme: Any = QUARK,
) -> dict[str, Any]:
    """A block as AMD's tools write it, with those three statements."""
    layer = {"weight": QUARK, "input_tensors": QUARK, "output_tensors": None, "bias": None}
    return {
        "quant_method": "quark",
        "export": {"kv_cache_group": group, "pack_method": "reorder"},
        "exclude": ["lm_head"],
        "global_quant_config": layer,
        "layer_type_quant_config": {},
        "kv_cache_quant_config": scheme,
        "layer_quant_config": {
            name: layer | {"output_tensors": output} for name in ("*k_proj", "*v_proj")
        },
    }


@pytest.mark.parametrize(("engine", "release"), RELEASES, ids=NAMES)
@pytest.mark.parametrize("edit", EDITS)
def test_what_turns_quark_off(engine: str, release: str, edit: str) -> None:
    changed, expected = EDITS[edit]
    answer = said(engine, at_hand(engine, release), quark(**changed))
    assert answer.startswith(expected)


@pytest.mark.parametrize(("engine", "release"), RELEASES, ids=NAMES)
def test_the_recipe_does_exactly_that(engine: str, release: str) -> None:
    document = jsontext.read(
        json.dumps({"model_type": "llama", "quantization_config": quark()}).encode(),
        source="config.json",
    )
    subject = Subject.of({"config.json": document})
    recipe = recipes.find("kv-cache-model-dtype")
    patched = subject.with_operations(recipe.operations(subject.declarations, ()))
    block = patched.values["config.json"]["quantization_config"]
    assert block == quark(group=[], output=None)
    assert said(engine, at_hand(engine, release), block) == "made"


def test_the_cases(given: list[Case]) -> None:
    variants = {case.variant for case in given}
    assert variants == {
        AS_PUBLISHED,
        *recipes.packaged(),
        *(f"{OVERRIDDEN}, {recipe}" for recipe in recipes.packaged()),
    }
    names = [(case.name, case.variant) for case in given]
    assert len(names) == len(set(names))
