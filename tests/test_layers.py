"""Data flows one way: a lower layer never imports a higher one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "patcher"

LAYERS = (
    {"errors", "jsontext", "fsio", "gpus"},
    {"headers", "target", "hub", "origin", "outfile"},
    {"checkpoint"},
    {"metadata"},
    {"engines"},
    {
        "verdict", "subject", "checking", "portable", "recipes", "cures", "findings", "releases",
        "cost", "readers", "explain", "matrix",
    },
    {"edits", "planning", "saved_plan"},
    {
        "entry", "record", "journal", "lock", "interrupts", "recovery", "transaction", "mirroring",
        "in_cache",
    },
    {"report", "exporting", "history", "doctor", "drift", "foreign", "mounting"},
    {"api"},
    {"cli", "__main__"},
)  # fmt: skip
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}

#: What check on a local checkpoint must not load (start-up time), wherever it is used.
HEAVY = {"huggingface_hub", "deepdiff", "numpy", "jsonpatch", "safetensors", "filelock"}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def level(path: Path) -> int | None:
    """The layer of a file; None for the package's own __init__, which may import anything."""
    name = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return None if name == "__init__" else LEVEL[name]


def imported(tree: ast.AST) -> set[str]:
    """The modules of this package that a file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "patcher":
            names |= {f"patcher.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return {name.split(".")[1] for name in names if name.startswith("patcher.")}


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_only_the_same_or_a_lower_layer(path: Path) -> None:
    own = level(path)
    names = imported(ast.parse(path.read_text(encoding="utf-8"))) - {"__version__"}
    unknown = names - set(LEVEL)
    assert not unknown, f"name the layer of: {unknown}"
    if own is not None:
        assert {name for name in names if LEVEL[name] > own} == set()


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_heavy_libraries_are_imported_late(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
        for node in top
        for alias in node.names
    }
    assert {name.split(".")[0] for name in names} & HEAVY == set()


def test_every_module_is_in_one_layer() -> None:
    names = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in modules()}
    assert names - {"__init__"} <= set(LEVEL)


def test_the_hub_client_is_imported_by_nothing_but_its_own_modules() -> None:
    users = {path for path in modules() if "huggingface_hub" in foreign(path)}
    assert users == {PACKAGE / "hub" / name for name in ("client.py", "uploading.py")}


def foreign(path: Path) -> set[str]:
    """The top-level packages that a file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(str(node.module).split(".")[0])
    return names
