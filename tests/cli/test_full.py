"""``check --full``: every header is read and checked, whatever the index says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conftest import make_checkpoint, shard

from patcher import Target, check
from patcher.errors import UnreadableError
from patcher.headers import INDEX_FILE

if TYPE_CHECKING:
    from running import Run

FIXTURE = Path(__file__).resolve().parents[2] / "fixtures" / "Kimi-K2.5-NVFP4"
K, V = (f"model.layers.0.self_attn.{x}_proj.{x}_scale" for x in "kv")
CONFLICT = ("check", "--target", "sm120", "--engine", "vllm==0.16.0")
COMPATIBLE = ("check", "--target", "sm120", "--engine", "vllm==0.33.0")
PORTABLE = ("check", "--target", "sm120")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Its index names less than its shards have."""
    root = tmp_path / "checkpoint"
    shutil.copytree(FIXTURE, root)
    shards = {"a.safetensors": shard(K, "w"), "b.safetensors": shard(V)}
    index = {"metadata": {}, "weight_map": {"w": "a.safetensors"}}
    return make_checkpoint(root, {**shards, INDEX_FILE: index})


@pytest.mark.parametrize("words", [CONFLICT, COMPATIBLE, PORTABLE])
def test_the_headers_are_the_evidence(words: tuple[str, ...], checkpoint: Path, run: Run) -> None:
    evidence = json.loads(run(*words, "--full", "--json", str(checkpoint)).out)["evidence"]
    counted = ("source", "shards", "tensors", "k_scales", "v_scales", "paired", "weight_bytes_read")
    assert [evidence[name] for name in counted] == ["headers", 2, 3, 1, 1, 1, 0]


@pytest.mark.parametrize("words", [CONFLICT, COMPATIBLE, PORTABLE])
def test_a_damaged_shard_is_found(words: tuple[str, ...], checkpoint: Path, run: Run) -> None:
    whole = (checkpoint / "b.safetensors").read_bytes()
    (checkpoint / "b.safetensors").write_bytes(whole[:-1])
    assert run(*words, str(checkpoint)).code in {0, 1}
    done = run(*words, "--full", str(checkpoint))
    assert done.code == 4
    assert "b.safetensors" in done.err
    assert "is cut off" in done.err


def test_in_the_library(checkpoint: Path) -> None:
    target = Target.parse("sm120", engine="vllm==0.33.0")
    evidence = check(checkpoint, target, full=True).judgement.evidence
    assert evidence is not None
    assert (evidence.source, evidence.tensors) == ("headers", 3)
    (checkpoint / "a.safetensors").write_bytes(b"damaged")
    with pytest.raises(UnreadableError, match="too short"):
        check(checkpoint, target, full=True)
