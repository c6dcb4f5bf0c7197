"""How a release is asked about architectures of its own, on a made-up release."""

from __future__ import annotations

import json
import types
from typing import TYPE_CHECKING

import pytest

from patcher.engines.extract import sglang_own
from patcher.engines.extract.sglang_launch import general
from patcher.engines.extract.sglang_models import write
from patcher.engines.extract.sglang_registry import wrapper
from patcher.engines.extract.sglang_stage import Stage
from patcher.engines.extract.sglang_stubs import CARDS
from patcher.engines.extract.source import DirectorySource

if TYPE_CHECKING:
    from pathlib import Path

FILES = {
    "srt/configs/nemotron_h.py": (
        "from transformers import PretrainedConfig\n"
        "class NemotronHConfig(PretrainedConfig):\n"
        "    def __init__(self, *, chunk_size=256, **kwargs):\n"
        "        self.mamba_chunk_size = chunk_size\n"
        "        super().__init__(**kwargs)\n"
        "    @property\n"
        "    def mamba_layers(self): return self.hybrid_override_pattern.count('M')\n"
    ),
    "srt/configs/model_config.py": (
        "from sglang.srt.utils.hf_transformers_utils import get_config\n"
        "class ModelConfig:\n"
        "    def __init__(self, path): self.hf_config = get_config(path)\n"
    ),
    "srt/utils/hf_transformers_utils.py": "def get_config(path): raise OSError('transformers')\n",
    "srt/model_executor/model_runner.py": (
        "class ModelRunner:\n"
        "    def __init__(self): raise OSError('a GPU')\n"
        "    @property\n"
        "    def mamba2_config(self):\n"
        "        from sglang.srt.configs.nemotron_h import NemotronHConfig\n"
        "        config = self.model_config.hf_config\n"
        "        return config if isinstance(config, NemotronHConfig) else None\n"
    ),
    "srt/layers/attention/attention_registry.py": (
        "def attn_backend_wrapper(runner, full):\n"
        "    if runner.mamba2_config is None:\n"
        "        return full\n"
        "    from sglang.srt.layers.attention.hybrid import (\n"
        "        MambaBackend,\n        set_up,\n    )\n"
        "    set_up(runner)\n"
        "    allowed = {'triton', 'fa3', 'flashinfer'}\n"
        "    names = runner.prefill_attention_backend_str, runner.decode_attention_backend_str\n"
        "    assert set(names) <= allowed, f'Only {allowed}. Got prefill={names[0]}.'\n"
        "    return MambaBackend(runner)\n"
    ),
    "srt/layers/attention/hybrid.py": "import triton_kernels\n",
    "srt/models/nemotron_h.py": "class NemotronHMoEDecoderLayer: pass\n",
    "srt/models/mimo_v2.py": "class MiMoV2FlashForCausalLM: pass\n",
}


@pytest.fixture
def release(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        file = tmp_path / "sglang" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


def _stage(release: Path) -> Stage:
    return Stage(DirectorySource(str(release)), CARDS[-4])


def _model(folder: Path, model_type: str) -> str:
    config = {"model_type": model_type, "chunk_size": 128, "hybrid_override_pattern": "MEM*"}
    return write(str(folder / model_type), {"config.json": config})


def test_the_release_builds_the_configuration_that_it_has_a_class_for(release: Path) -> None:
    load = _stage(release).get("sglang.srt.configs.model_config:ModelConfig")
    own = load(_model(release, "nemotron_h")).hf_config
    assert (own.mamba_chunk_size, own.mamba_layers, own.model_type) == (128, 2, "nemotron_h")
    plain = load(_model(release, "qwen3_next")).hf_config
    assert plain.chunk_size == 128
    assert not hasattr(plain, "mamba_chunk_size")


def test_the_wrapper_says_which_backends_it_takes(release: Path) -> None:
    refused = wrapper(_stage(release), _model(release, "nemotron_h"))

    def view(main: str, decode: str | None = None) -> types.SimpleNamespace:
        return types.SimpleNamespace(
            attention_backend=main, prefill_attention_backend=None, decode_attention_backend=decode
        )

    assert refused(view("triton")) is None
    assert refused(view("triton", "fa3")) is None
    wanted = "AssertionError: Only {'fa3', 'flashinfer', 'triton'}. Got prefill=triton."
    assert refused(view("triton", "fa4")) == wanted


def test_a_model_that_is_not_wrapped_ends_the_extraction(release: Path) -> None:
    with pytest.raises(ValueError, match="was not wrapped"):
        wrapper(_stage(release), _model(release, "llama"))(
            types.SimpleNamespace(
                attention_backend="fa3",
                prefill_attention_backend=None,
                decode_attention_backend=None,
            )
        )


def test_a_release_is_asked_about_what_it_can_load(release: Path) -> None:
    assert list(sglang_own.known(_stage(release))) == [
        "NemotronHForCausalLM",
        "MiMoV2FlashForCausalLM",
    ]
    (release / "sglang/srt/layers/attention/attention_registry.py").write_text("")
    assert list(sglang_own.known(_stage(release))) == ["MiMoV2FlashForCausalLM"]


def test_every_architecture_has_a_configuration_of_its_own_name() -> None:
    for name, own in sglang_own.OWN.items():
        assert own.config["architectures"] == [name]
        assert own.wrapped == (own.config["model_type"] in sglang_own.CLASSES)
        json.dumps(own.config)
    assert set(sglang_own.TWINS) | set(sglang_own.TWINS.values()) <= set(sglang_own.OWN)


def test_given_flags_are_taken_out_of_what_the_model_runner_says() -> None:
    launch = {"attention_backend_flag": "-", "decode_flag": "fa4", "kv_flag": "auto"}
    result = {"stopped": "AssertionError: Got prefill=triton, decode=fa4."}
    wanted = "AssertionError: Got prefill=triton, decode={decode_flag}."
    assert general(launch, result)["stopped"] == wanted
