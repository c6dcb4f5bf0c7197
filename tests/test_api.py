"""The library as the README shows it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import patcher
from patcher.errors import RefusedError

FIXTURE = Path(__file__).resolve().parent.parent / "fixtures" / "Kimi-K2.5-NVFP4"


def test_check_plan_apply_undo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    root = str(shutil.copytree(FIXTURE, tmp_path / "Kimi"))
    original = (tmp_path / "Kimi" / "config.json").read_bytes()
    target = patcher.Target.parse("sm120", engine="vllm==0.16.0")
    verdict = patcher.check(root, target)
    assert (verdict.outcome, [finding.id for finding in verdict.errors]) == ("conflict", ["KV001"])
    assert verdict.to_dict()["schema"] == "ckpt-patch/check@1"
    assert [edit.file for edit in patcher.plan(root, target).edits] == [
        "config.json",
        "hf_quant_config.json",
    ]
    record = patcher.apply(root, target)
    assert record is not None
    assert (record.id, record.recipe) == (1, "kv-cache-model-dtype@1")
    assert patcher.apply(root, target) is None
    undone = patcher.undo(root)
    assert undone is not None
    assert undone.id == 1
    assert (tmp_path / "Kimi" / "config.json").read_bytes() == original
    assert patcher.undo(root) is None
    assert capsys.readouterr() == ("", "")


def test_errors_are_typed(tmp_path: Path) -> None:
    config = {
        "model_type": "glm_moe_dsa",
        "architectures": ["GlmMoeDsaForCausalLM"],
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 192,
        "v_head_dim": 256,
        "index_topk": 2048,
        "num_attention_heads": 64,
        "num_hidden_layers": 78,
        "dtype": "bfloat16",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    target = patcher.Target.parse("sm120", engine="vllm==0.20.2")
    with pytest.raises(RefusedError, match="no edit of this checkpoint's files") as caught:
        patcher.apply(tmp_path, target)
    assert isinstance(caught.value, patcher.CkptPatchError)
    assert caught.value.exit_code == 3
    assert list(tmp_path.iterdir()) == [tmp_path / "config.json"]


def test_every_public_name_is_there() -> None:
    for name in patcher.__all__:
        assert callable(getattr(patcher, name))
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        _ = patcher.nope


def test_the_names_stay_functions_once_their_modules_are_loaded() -> None:
    code = (
        "import patcher.cli.check, patcher.cli.apply, patcher.cli.plan, patcher.cli.undo\n"
        "from patcher import apply, check, plan, undo\n"
        "print(*[f.__name__ for f in (apply, check, plan, undo)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["apply", "check", "plan", "undo"]
