from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import pytest

from patcher.engines.extract.shims import ABSENT, Shim, ShimJudgedError, third_party
from patcher.engines.extract.slicer import Slicer
from patcher.engines.extract.source import DirectorySource
from patcher.errors import UnreadableError

if TYPE_CHECKING:
    from pathlib import Path

ENGINE = {
    "engine/__init__.py": "",
    "engine/explosive.py": "raise RuntimeError('a whole module was executed')\nVALUE = 7\n",
    "engine/envs.py": """
        import os
        _variables = {"ENGINE_MODE": lambda: os.getenv("ENGINE_MODE", "fast")}
        def __getattr__(name):
            if name in _variables:
                return _variables[name]()
            raise AttributeError(name)
    """,
    "engine/platform.py": """
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            current = "never executed"
        def capability():
            raise NotImplementedError
    """,
    "engine/sub/__init__.py": "from .deep import LIMIT as EXPORTED\nfrom .stars import *\n",
    "engine/sub/deep.py": "from ..platform import capability\nLIMIT = 3\n",
    "engine/sub/stars.py": "STAR = 'seen'\n",
    "engine/backends.py": """
        import torch
        import thirdparty
        from dataclasses import dataclass
        from enum import Enum
        from functools import cache
        from typing import ClassVar, NamedTuple

        import engine.envs as envs
        from engine import explosive
        from engine.platform import capability
        from engine.sub import EXPORTED, STAR

        SUPPORTED = ["auto"]
        SUPPORTED.append("fp8")
        SUPPORTED += ["bf16"]
        if envs.ENGINE_MODE == "fast":
            SPEED = 2
        else:
            SPEED = 1
        try:
            import engine._compiled
            HAS_COMPILED = True
        except ImportError:
            HAS_COMPILED = False
        A, B = 1, 2
        B = A + 40
        TABLE = {}
        for key in ("x", "y"):
            TABLE[key] = key * SPEED

        class Capability(NamedTuple):
            major: int
            minor: int = 0

        class Kind(str, Enum):
            DENSE = "dense"

        class Base(torch.nn.Module):
            supported: ClassVar[list[str]] = SUPPORTED
            @classmethod
            def supports(cls, dtype: UndefinedName) -> bool:
                return dtype in cls.supported
            def dtype_ok(self, dtype):
                return dtype in (torch.float16, torch.bfloat16)

        class Child(Base):
            limit = EXPORTED
            @classmethod
            def on_gpu(cls):
                return capability() >= Capability(9)
            def judged(self):
                try:
                    return thirdparty.version() > 3
                except Exception:
                    return False

        @dataclass
        class Settings:
            name: str
            size: "ClassVar[int]" = 4

        def late():
            from engine.sub.deep import LIMIT
            import engine.sub
            return LIMIT, engine.sub.STAR
    """,
}


@pytest.fixture
def tree(tmp_path: Path) -> DirectorySource:
    for name, text in ENGINE.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return DirectorySource(str(tmp_path))


@pytest.fixture
def slicer(tree: DirectorySource) -> Slicer:
    return Slicer(tree, "engine", third_party())


def value(slicer: Slicer, name: str) -> Any:
    return slicer.get(f"engine.backends:{name}")


def test_a_class_answers_without_its_module_being_executed(slicer: Slicer) -> None:
    child = value(slicer, "Child")
    assert child.supports("fp8") is True
    assert child.supports("fp4") is False
    assert child.limit == 3
    assert "engine.explosive:VALUE" not in slicer.touched
    assert set(slicer.touched) >= {"engine.backends:Child", "engine.sub.deep:LIMIT"}
    assert not any(name.endswith(":Kind") for name in slicer.touched)


def test_statements_that_change_a_name_count(slicer: Slicer) -> None:
    assert value(slicer, "SUPPORTED") == ["auto", "fp8", "bf16"]
    assert value(slicer, "TABLE") == {"x": "xx", "y": "yy"}
    assert (value(slicer, "A"), value(slicer, "B")) == (1, 41)


def test_an_answer_replaces_a_definition(slicer: Slicer) -> None:
    capability = value(slicer, "Capability")
    slicer.answers["engine.platform.capability"] = lambda: capability(8, 9)
    assert value(slicer, "Child").on_gpu() is False


def test_a_fresh_slicer_has_no_state(slicer: Slicer) -> None:
    value(slicer, "SUPPORTED").append("leak")
    assert value(slicer.fresh(third_party()), "SUPPORTED") == ["auto", "fp8", "bf16"]


def test_the_environment_of_this_machine_is_no_fact(
    slicer: Slicer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_MODE", "slow")
    assert slicer.module("engine.envs").ENGINE_MODE == "fast"
    assert value(slicer, "SPEED") == 2


def test_compiled_modules_are_there_if_the_release_has_them(
    tree: DirectorySource, slicer: Slicer, tmp_path: Path
) -> None:
    assert value(slicer, "HAS_COMPILED") is False
    (tmp_path / "engine" / "_compiled.abi3.so").touch()
    assert value(Slicer(tree, "engine", third_party()), "HAS_COMPILED") is True


def test_enums_dataclasses_and_late_imports(slicer: Slicer) -> None:
    assert value(slicer, "Kind")("dense").name == "DENSE"
    assert value(slicer, "Settings")("x").name == "x"
    assert value(slicer, "late")() == (3, "seen")
    assert value(slicer, "STAR") == "seen"


def test_torch_dtypes_can_be_told_apart(slicer: Slicer) -> None:
    torch = slicer.module("torch")
    base = value(slicer, "Base")()
    assert base.dtype_ok(torch.float16) is True
    assert base.dtype_ok(torch.float32) is False


def test_a_shim_never_decides(slicer: Slicer) -> None:
    child = value(slicer, "Child")()
    with pytest.raises(ShimJudgedError, match=r"thirdparty\.version\(\) is unknown here"):
        child.judged()
    assert set(slicer.assumed) == {"torch", "thirdparty"}


def test_a_third_party_value_can_be_given_or_be_absent(tree: DirectorySource) -> None:
    known = Slicer(tree, "engine", {**third_party(), "thirdparty.version": lambda: 4})
    assert value(known, "Child")().judged() is True
    absent = Slicer(tree, "engine", {**third_party(), "thirdparty": ABSENT})
    with pytest.raises(UnreadableError, match="No module named 'thirdparty'"):
        value(absent, "thirdparty")


@pytest.mark.parametrize(
    "judge",
    [
        bool,
        len,
        list,
        hash,
        int,
        lambda shim: shim == 1,
        lambda shim: shim != shim,  # noqa: PLR0124 - the operator is the point
        lambda shim: shim > 1,
        lambda shim: 1 in shim,
        lambda shim: shim in [1, 2],
        lambda shim: isinstance(1, shim),
        lambda shim: {shim: 1},
        lambda shim: shim + 1,
        range,
    ],
)
def test_what_a_shim_refuses(judge: Any) -> None:
    with pytest.raises(ShimJudgedError, match=r"pkg\.thing is unknown here"):
        judge(Shim("pkg", {}).thing)


def test_a_name_that_is_not_there_is_named(slicer: Slicer) -> None:
    with pytest.raises(UnreadableError, match=r"engine\.backends:Missing is not in this release"):
        value(slicer, "Missing")
    with pytest.raises(UnreadableError, match=r"engine\.nowhere:X is not in this release"):
        slicer.get("engine.nowhere:X")


def test_provenance(slicer: Slicer) -> None:
    source = textwrap.dedent(ENGINE["engine/backends.py"]).splitlines()
    assert source[slicer.line("engine.backends:Child") - 1] == "class Child(Base):"
    assert slicer.has("engine.backends:Child")
    assert not slicer.has("engine.backends:Missing")
    assert not slicer.has("engine.nowhere:X")
    assert value(slicer, "Child").on_gpu.__func__.__code__.co_filename == "engine/backends.py"
