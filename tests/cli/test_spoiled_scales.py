"""A patch after which SGLang would apply scales that are not 1.0 (KV015)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from conftest import make_checkpoint
from running import snapshot
from test_scale_values import LLAMA, shard

if TYPE_CHECKING:
    from pathlib import Path

    from running import Run

SGLANG = ("--target", "sm120", "--engine", "sglang==0.5.20")
PATCH = ("--recipe", "kv-cache-model-dtype")


def _llama(folder: Path, scales: list[float] | None) -> Path:
    files: dict[str, Any] = {"config.json": LLAMA}
    if scales is not None:
        files["model.safetensors"] = shard(scales)
    return make_checkpoint(folder / "Llama", files)


def _scheme(root: Path) -> Any:
    return json.loads((root / "config.json").read_text())["quantization_config"]["kv_cache_scheme"]


@pytest.mark.parametrize("command", ["plan", "apply"])
def test_it_is_refused(command: str, tmp_path: Path, run: Run) -> None:
    root = _llama(tmp_path, [0.5, 1.0])
    before = snapshot(root)
    done = run(command, *SGLANG, *PATCH, str(root))
    assert done.code == 3
    assert "KV015: with the patch, ModelOptFp8KVCacheMethod loads stored scales" in done.err
    assert "(right with --attention-backend trtllm_mha); here they are 0.5 to 1" in done.err
    assert "Nothing was changed" in done.err
    assert "Hint: keep the quantized cache; ckpt-patch explain KV015" in done.err
    assert snapshot(root) == before


def test_scales_of_one_are_exact(tmp_path: Path, run: Run) -> None:
    root = _llama(tmp_path, [1.0, 1.0])
    done = run("apply", *SGLANG, *PATCH, str(root))
    assert done.code == 0
    assert "KV015" not in done.out + done.err
    assert _scheme(root) is None


def test_without_the_shards_it_is_a_warning(tmp_path: Path, run: Run) -> None:
    root = _llama(tmp_path, None)
    done = run("apply", *SGLANG, *PATCH, str(root))
    assert done.code == 0
    assert "Warning: KV015: " in done.out
    assert "the shards are not here to tell." in done.out
    assert _scheme(root) is None


def test_an_engine_that_leaves_them_alone_is_not_warned_about(tmp_path: Path, run: Run) -> None:
    root = _llama(tmp_path, [0.5, 1.0])
    done = run("apply", "--target", "sm120", "--engine", "vllm==0.16.0", *PATCH, str(root))
    assert done.code == 0
    assert _scheme(root) is None


def test_another_backend_of_sglang_takes_the_patch(tmp_path: Path, run: Run) -> None:
    root = _llama(tmp_path, [0.5, 1.0])
    assert run("apply", *SGLANG, "--backend", "trtllm_mha", *PATCH, str(root)).code == 0
