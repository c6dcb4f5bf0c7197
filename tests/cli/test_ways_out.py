"""The ways out as a user sees them, where something else than a start-up check is in the way."""

from __future__ import annotations

import copy
import json
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import make_checkpoint
from running import snapshot

from patcher.engines.extract.sglang_models import MODELS

if TYPE_CHECKING:
    from running import Run

FIXTURE = Path(__file__).resolve().parents[2] / "fixtures" / "Kimi-K2.5-NVFP4"
AMPERE = ("--target", "sm86", "--engine", "sglang==0.5.23")
FP8 = {"dynamic": False, "num_bits": 8, "type": "float"}


@pytest.fixture
def kimi(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FIXTURE, tmp_path / "Kimi"))


@pytest.fixture
def sparse(tmp_path: Path) -> Path:
    """DeepSeek-V3.2 with an FP8 cache declared: the engines set its dtype themselves."""
    kimi: Any = json.loads((FIXTURE / "config.json").read_bytes())
    config = copy.deepcopy(MODELS["dsa"]) | {
        "architectures": ["DeepseekV32ForCausalLM"],
        "model_type": "deepseek_v32",
        "quantization_config": kimi["quantization_config"] | {"kv_cache_scheme": FP8},
    }
    return make_checkpoint(tmp_path / "DSA", {"config.json": config})


def test_a_kernel_that_will_fail_changes_no_exit_code(kimi: Path, run: Run) -> None:
    before = snapshot(kimi)
    done = run("check", *AMPERE, str(kimi))
    assert done.code == 0
    command = f"ckpt-patch apply {' '.join(AMPERE)} --recipe kv-cache-model-dtype {kimi}"
    for words in (
        "expected to fail at run time",
        "To avoid that:",
        "--kv-cache-dtype bf16",
        command,
    ):
        assert words in done.out
    applied = run("apply", *AMPERE, str(kimi))
    assert applied.code == 0
    assert "expected to fail at run time" in applied.out
    assert applied.out.splitlines()[-1].strip() == command
    assert snapshot(kimi) == before
    assert run(*shlex.split(command)[1:]).code == 0
    after = run("check", *AMPERE, str(kimi))
    assert (after.code, "expected to fail" in after.out) == (0, False)


def test_where_the_engine_decides_apply_is_refused_in_words(sparse: Path, run: Run) -> None:
    target = ("--target", "sm120", "--engine", "sglang==0.5.20")
    before = snapshot(sparse)
    checked = run("check", *target, str(sparse))
    assert checked.code == 0
    because = "othing in the files can help, because SGLang sets fp8_e4m3 for this model on sm120"
    assert f"N{because}" in checked.out
    refused = run("apply", *target, str(sparse))
    assert refused.code == 3
    assert f"n{because}" in refused.err
    assert f"ckpt-patch check {' '.join(target)} {sparse}" in refused.err
    assert snapshot(sparse) == before


def test_half_of_quark_is_noticed_and_its_command_turns_off_the_rest(
    tmp_path: Path, run: Run
) -> None:
    output = {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}
    quark = {
        "quant_method": "quark",
        "export": {"kv_cache_group": [], "pack_method": "reorder"},
        "kv_cache_quant_config": {"*k_proj": {"output_tensors": output}},
        "layer_quant_config": {name: {"output_tensors": output} for name in ("*k_proj", "*v_proj")},
    }
    config = copy.deepcopy(MODELS["mha"]) | {"quantization_config": quark}
    root = make_checkpoint(tmp_path / "Quark", {"config.json": config})
    target = ("--target", "sm90", "--engine", "vllm==0.33.0")
    done = run("check", *target, str(root))
    assert "! KV004" in done.out
    assert "/quantization_config/layer_quant_config/*k_proj/output_tensors" in done.out
    assert run("apply", *target, "--recipe", "kv-cache-model-dtype", str(root)).code == 0
    block = json.loads((root / "config.json").read_text())["quantization_config"]
    assert [layer["output_tensors"] for layer in block["layer_quant_config"].values()] == [None] * 2
    assert block["kv_cache_quant_config"] == quark["kv_cache_quant_config"]
    assert "KV004" not in run("check", *target, str(root)).out
