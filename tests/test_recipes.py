from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patcher import jsontext, recipes
from patcher.errors import UnreadableError, UsageError
from patcher.metadata.declarations import Declaration
from patcher.subject import Subject

if TYPE_CHECKING:
    from pathlib import Path

FP8 = {"dynamic": False, "num_bits": 8, "type": "float"}
NVFP4 = {"dynamic": False, "num_bits": 4, "type": "float"}


def declaration(value: Any, meaning: str, **other: Any) -> Declaration:
    fields: dict[str, Any] = {
        "file": "config.json",
        "pointer": "/quantization_config/kv_cache_scheme",
        "line": 3,
        "value": value,
        "producer": "modelopt",
        "scope": "main",
        "meaning": meaning,
    }
    return Declaration(**(fields | other))


def changes(recipe: str, *declarations: Declaration) -> list[tuple[str, Any]]:
    found = recipes.find(recipe).operations(declarations, ())
    return [
        (op["path"], op["value"]) for ops in found.values() for op in ops if op["op"] == "replace"
    ]


def test_the_packaged_recipes() -> None:
    assert list(recipes.packaged()) == ["kv-cache-fp8", "kv-cache-model-dtype", "kv-cache-repair"]


def test_turning_off_writes_null_after_a_test_of_the_old_value() -> None:
    found = recipes.find("kv-cache-model-dtype").operations((declaration(FP8, "fp8_e4m3"),), ())
    path = "/quantization_config/kv_cache_scheme"
    assert found == {
        "config.json": [
            {"op": "test", "path": path, "value": FP8},
            {"op": "replace", "path": path, "value": None},
        ]
    }


def test_quark_lists_become_empty_and_null_statements_stay() -> None:
    quark = declaration(["*k_proj"], "fp8_e4m3", producer="quark", neutral=[], pointer="/x")
    assert changes("kv-cache-model-dtype", quark, declaration(None, "none")) == [("/x", [])]


def test_statements_that_no_engine_obeys_are_left_alone() -> None:
    own = declaration("quantized", "int8", producer="transformers", file="generation_config.json")
    assert changes("kv-cache-model-dtype", own) == []


@pytest.mark.parametrize(("old", "new"), [("NVFP4", "FP8"), (NVFP4, FP8)], ids=["string", "object"])
def test_fp8_instead_of_nvfp4_keeps_the_form(old: Any, new: Any) -> None:
    assert changes("kv-cache-fp8", declaration(old, "nvfp4")) == [
        ("/quantization_config/kv_cache_scheme", new)
    ]


def test_fp8_recipe_touches_only_nvfp4() -> None:
    assert changes("kv-cache-fp8", declaration(FP8, "fp8_e4m3")) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "schema is None"),
        ("schema = 1", "schema is 1"),
        ("schema = ", "not a valid recipe"),
        (
            'schema = "ckpt-patch/recipe@1"\nid = "x"\nversion = 1\ntitle = "t"\neffect = "e"',
            "rule",
        ),
        (
            'schema = "ckpt-patch/recipe@1"\nid = "x"\nversion = "1"\ntitle = "t"\neffect = "e"\n'
            '[[rule]]\naction = "restore"',
            "version",
        ),
        (
            'schema = "ckpt-patch/recipe@1"\nid = "x"\nversion = 1\ntitle = "t"\neffect = "e"\n'
            '[[rule]]\naction = "run"\ncommand = "rm"',
            "unknown keys: command",
        ),
        (
            'schema = "ckpt-patch/recipe@1"\nid = "x"\nversion = 1\ntitle = "t"\neffect = "e"\n'
            '[[rule]]\naction = "delete"',
            "action",
        ),
        (
            'schema = "ckpt-patch/recipe@1"\nid = "x"\nversion = 1\ntitle = "t"\neffect = "e"\n'
            '[[rule]]\naction = "set"\nproducers = ["modelopt"]',
            "needs a value",
        ),
    ],
)
def test_a_bad_recipe_is_refused_by_name(text: str, words: str) -> None:
    with pytest.raises(UnreadableError, match=words) as caught:
        recipes.parse(text.encode(), "mine.toml")
    assert caught.value.path == "mine.toml"


@given(st.binary(max_size=300))
def test_no_bytes_make_a_recipe_fail_otherwise(data: bytes) -> None:
    with pytest.raises(UnreadableError):
        recipes.parse(data, "mine.toml")


def test_an_unknown_recipe_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="kv-cache-model-dtype"):
        recipes.find("nope")


def test_a_recipe_file_is_found_by_path(tmp_path: Path) -> None:
    source = recipes.folder() / "kv-cache-repair.toml"
    copy = tmp_path / "mine.toml"
    copy.write_bytes(source.read_bytes())
    assert recipes.find(str(copy)) == recipes.find("kv-cache-repair")
    with pytest.raises(UnreadableError, match="cannot read the recipe"):
        recipes.find(str(tmp_path / "none.toml"))
    copy.write_bytes(b"#" * (recipes.MAX_BYTES + 1))
    with pytest.raises(UnreadableError, match="larger than 1 MB"):
        recipes.find(str(copy))


def test_trying_a_patch_leaves_the_files_alone() -> None:
    text = (
        b'{"quantization_config": {"quant_method": "modelopt", "kv_cache_scheme": "FP8", "a": []}}'
    )
    subject = Subject.of({"config.json": jsontext.read(text, source="config.json")})
    operations = recipes.find("kv-cache-model-dtype").operations(subject.declarations, ())
    tried = subject.with_operations(operations).values["config.json"]["quantization_config"]
    original = subject.values["config.json"]["quantization_config"]
    assert tried == {"quant_method": "modelopt", "kv_cache_scheme": None, "a": []}
    assert original["kv_cache_scheme"] == "FP8"
    assert tried["a"] is original["a"]
