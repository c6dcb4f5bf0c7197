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


def planned(checkpoint: Checkpoint, target: Target) -> Plan | None:
    """The plan; None where it is refused, with words that help."""
    if any(cure.kind == "patch" for cure in check(checkpoint, target).cures):
        return plan(checkpoint, target)
    with pytest.raises(RefusedError, match="Nothing was changed") as refusal:
        plan(checkpoint, target)
    assert refusal.value.hint
    return None


@pytest.mark.skipif(not FOLDERS, reason="the corpus is not here")
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_round_trip(folder: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(folder)
    plans: dict[bytes, Plan] = {}
    conflicts = refused = 0
    for target in targets():
        if check(checkpoint, target).outcome != "conflict":
            continue
        conflicts += 1
        made = planned(checkpoint, target)
        if made is None:
            refused += 1
            continue
        assert made.after is not None
        assert made.after.outcome == "compatible", (target, made.after.findings)
        plans[b"".join(edit.after for edit in made.edits)] = made
    assert conflicts == 0 or refused < conflicts or not plans
    for number, made in enumerate(plans.values()):
        root = Path(shutil.copytree(folder, tmp_path / str(number)))
        before = snapshot(root)
        apply(root, made.change())
        assert check(open_checkpoint(root), made.before.target).outcome == "compatible"
        undo(root)
        shutil.rmtree(root / ".ckpt-patch")
        assert snapshot(root) == before


def test_the_corpus_gives_something_to_do() -> None:
    if not FOLDERS:
        pytest.skip("the corpus is not here")
    assert len(FOLDERS) >= 23
