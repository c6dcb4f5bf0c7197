"""Every real checkpoint that declares a KV cache, on every GPU, with every known vLLM release.

Where a patch is planned, the patched files have no KV conflict on that target; where none can help,
the plan is refused. Each distinct patch is then applied for real and taken back.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from running import snapshot

from patcher import engines, gpus
from patcher.checking import check
from patcher.checkpoint import Checkpoint, open_checkpoint
from patcher.errors import RefusedError
from patcher.metadata import declarations
from patcher.planning import Plan, plan
from patcher.target import Target
from patcher.transaction import apply, undo

CORPUS = Path(__file__).resolve().parents[3] / "shared" / "corpus"


def declaring() -> list[Path]:
    """The directories whose files ask for a quantized KV cache."""
    folders = [path for path in sorted(CORPUS.glob("*--*")) if (path / "config.json").is_file()]
    return [
        folder
        for folder in folders
        if any(
            item.meaning not in {"none", "unreadable"}
            for item in declarations.find(open_checkpoint(folder).documents)
        )
    ]


FOLDERS = declaring() if CORPUS.is_dir() else []


def targets() -> list[Target]:
    return [
        Target(gpu, "vllm", release)
        for gpu in gpus.gpus()
        if gpu.capability
        for release in engines.releases("vllm")
    ]


def recipe_for(checkpoint: Checkpoint, target: Target) -> str | None:
    """The recipe that helps; None where the plan is refused, with words that help."""
    recipes = [cure.recipe for cure in check(checkpoint, target).cures if cure.kind == "patch"]
    if recipes:
        return recipes[0]
    with pytest.raises(RefusedError, match="Nothing was changed") as refusal:
        plan(checkpoint, target)
    assert refusal.value.hint
    return None


@pytest.mark.skipif(not FOLDERS, reason="the corpus is not here")
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_round_trip(folder: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(folder)
    patched: dict[str, Checkpoint] = {}
    for target in targets():
        if check(checkpoint, target).outcome != "conflict":
            continue
        recipe = recipe_for(checkpoint, target)
        if recipe is None:
            continue
        if recipe not in patched:
            patched[recipe] = applied(folder, plan(checkpoint, target), tmp_path / recipe)
        after = check(patched[recipe], target)
        assert after.outcome == "compatible", (target, after.findings)


def applied(folder: Path, made: Plan, root: Path) -> Checkpoint:
    """Apply the plan to a copy, read the result, and take it back byte for byte."""
    shutil.copytree(folder, root)
    before = snapshot(root)
    apply(root, made.change())
    patched = open_checkpoint(root)
    undo(root)
    shutil.rmtree(root / ".ckpt-patch")
    assert snapshot(root) == before
    return patched


def test_the_corpus_gives_something_to_do() -> None:
    if not FOLDERS:
        pytest.skip("the corpus is not here")
    assert len(FOLDERS) >= 23
