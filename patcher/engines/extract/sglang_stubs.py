"""What stands in for torch, transformers and the driver on SGLang's stage (see sglang_stage.py)."""

from __future__ import annotations

import enum
import functools
import importlib
import json
import os
import re
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from patcher.engines.extract.shims import ABSENT, Atom

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: Third-party packages whose own code answers; pure Python or installed with ckpt-patch.
_REAL = ("msgspec", "msgspec.json", "msgspec.msgpack", "msgspec.structs", "packaging.version")
_UTILS = ("sglang.srt.utils", "sglang.srt.utils.common")
_CONFIGS = (
    "sglang.srt.configs.model_config",
    "sglang.srt.hf_transformers_utils",
    "sglang.srt.utils.hf_transformers",
    "sglang.srt.utils.hf_transformers.config",
    "sglang.srt.utils.hf_transformers_utils",
)
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU as torch describes it; ``gfx`` is empty on NVIDIA."""

    name: str
    capability: tuple[int, int]
    gfx: str = ""


CARDS = (
    *(
        Card(f"sm{major}{minor}", (major, minor))
        for major, minor in (
            (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1),
        )
    ),
    Card("gfx942", (9, 4), "gfx942"),
    Card("gfx950", (9, 5), "gfx950"),
)  # fmt: skip


class Config:
    """A model's configuration as transformers would hold it, without transformers.

    It is also the base of a release's own classes, which give it the fields that they do not set.
    """

    def __init__(self, values: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        self.is_encoder_decoder = False
        self.tie_word_embeddings = False
        self.num_labels = 2
        self.rope_scaling = None
        self.pad_token_id = self.bos_token_id = self.eos_token_id = None
        self.update({**(values or {}), **more})

    def update(self, values: Mapping[str, Any]) -> None:
        """Nested models become Configs; quantization stays a dict, as in transformers."""
        for key, value in values.items():
            nested = isinstance(value, dict) and key.endswith(("text_config", "vision_config"))
            setattr(self, key, Config(value) if nested else value)

    def get_text_config(self, **_: object) -> Config:
        """The language model's own configuration."""
        text: Config = getattr(self, "text_config", self)
        return text

    def to_dict(self) -> dict[str, Any]:
        """Plain values again."""
        return {k: v.to_dict() if isinstance(v, Config) else v for k, v in vars(self).items()}


class Arguments(types.SimpleNamespace):
    """``compressed_tensors.QuantizationArgs``: what is stated, else its defaults."""

    @classmethod
    def model_validate(cls, values: Any) -> Arguments:
        """As pydantic would, without its checks."""
        defaults = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": False}
        strategy = "group" if values.get("group_size") else "tensor"
        empty = {"group_size": None, "block_structure": None, "actorder": None}
        return cls(**{**defaults, **empty, "strategy": strategy, **values})

    parse_obj = model_validate


def _enum(name: str, members: str) -> Any:
    values = {member.replace("-", "_"): member for member in members.split()}
    return enum.Enum(name, {key.rstrip("_"): value for key, value in values.items()}, type=str)


_COMPRESSED_TENSORS = {
    "QuantizationArgs": Arguments,
    "QuantizationType": enum.Enum("QuantizationType", {"INT": "int", "FLOAT": "float"}, type=str),
    "QuantizationStrategy": enum.Enum(
        "QuantizationStrategy",
        {name.upper(): name for name in ("tensor", "channel", "group", "block", "token")},
        type=str,
    ),
    "CompressionFormat": _enum(
        "CompressionFormat",
        "dense sparse-bitmask sparse-24-bitmask int-quantized float-quantized naive-quantized "
        "pack-quantized marlin-24 mixed-precision nvfp4-pack-quantized mxfp4-pack-quantized",
    ),
}


def environment(class_of: Callable[[str], Any]) -> dict[str, Any]:
    """What the release asks of the machine and of the model's files.

    ``class_of`` gives the release's own class for a ``model_type``, or ``None``.
    """
    answers: dict[str, Any] = {"importlib.metadata.entry_points": _none_found}
    for module in _CONFIGS:
        answers[f"{module}.get_config"] = functools.partial(_config, class_of)
        answers[f"{module}.get_generation_config"] = nothing
        answers[f"{module}.get_sparse_attention_config"] = _empty
    for module in ("transformers.utils", "transformers.utils.hub"):
        answers[f"{module}.cached_file"] = _file
    for module in ("sglang.srt.distributed", "sglang.srt.distributed.parallel_state"):
        for group in ("tensor_model_parallel", "moe_tensor_parallel", "moe_expert_parallel"):
            answers[f"{module}.get_{group}_world_size"] = _one
            answers[f"{module}.get_{group}_rank"] = _zero
    for module in _UTILS:
        answers[f"{module}.get_nvgpu_memory_capacity"] = _memory
        answers[f"{module}.get_amdgpu_memory_capacity"] = _memory
    for module in (*_UTILS, "sglang.srt.utils.patch_torch"):
        answers[f"{module}.register_fake_if_exists"] = _decorator
    return answers


def _config(class_of: Callable[[str], Any], model: str, *_: object, **__: object) -> Config:
    """As ``get_config`` of every release: the language model's fields are lent to the outer one."""
    with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
        values = json.load(file)
    own = class_of(values.get("model_type", ""))
    config: Config = own(**values) if own else Config(values)
    for key, value in vars(config.get_text_config()).items():
        if value is not None and not hasattr(config, key):
            setattr(config, key, value)
    return config


def _file(model: str, name: str, **_: object) -> str | None:
    """As ``transformers.utils.cached_file`` for a directory."""
    path = os.path.join(model, name)
    return path if os.path.exists(path) else None


def torch(card: Card) -> dict[str, Any]:
    """``torch`` as far as it describes the card."""
    major, minor = card.capability
    properties = types.SimpleNamespace(
        name=card.name, major=major, minor=minor, gcnArchName=card.gfx,
        total_memory=80 * _GIB, multi_processor_count=132, warp_size=32,
    )  # fmt: skip
    answers: dict[str, Any] = {
        "torch.version.cuda": None if card.gfx else "13.0",
        "torch.version.hip": "7.0" if card.gfx else None,
        "torch.float4_e2m1fn_x2": Atom("torch.float4_e2m1fn_x2"),
        "torch.cuda.is_available": lambda: True,
        "torch.cuda.is_initialized": lambda: True,
        "torch.cuda.device_count": lambda: 1,
        "torch.cuda.current_device": lambda: 0,
        "torch.cuda.get_device_capability": lambda *_: card.capability,
        "torch.cuda.get_device_properties": lambda *_: properties,
        "torch.cuda.get_device_name": lambda *_: "AMD" if card.gfx else "NVIDIA",
        "torch.distributed.is_initialized": lambda: False,
        "torch.cuda.mem_get_info": lambda *_: (78 * _GIB, 80 * _GIB),
    }
    for name in ("xpu", "mps", "backends.mps"):
        answers[f"torch.{name}.is_available"] = lambda: False
    for name in ("torch.version.musa", "torch.musa", "torch.npu", "torch.hpu", "torch.cpu"):
        answers[name] = ABSENT
    return answers


def installed() -> dict[str, Any]:
    """Third-party names with their values."""
    modules: dict[str, Any] = {name: importlib.import_module(name) for name in _REAL}
    # Else a third of a launch would go into reading the annotations of ServerArgs again.
    structs = modules["msgspec.structs"]
    structs = _changed(structs, fields=functools.cache(structs.fields))
    modules |= {
        "msgspec.structs": structs,
        "msgspec": _changed(modules["msgspec"], structs=structs),
    }
    # Every pattern of SGLang that is used here means the same to ``re``.
    answers: dict[str, Any] = {"torchada": ABSENT, "vllm": ABSENT, "regex": re}
    for name in ("transformers", "transformers.configuration_utils"):
        answers[f"{name}.PretrainedConfig"] = Config
    for name in ("uint4", "uint8", "uint4b8", "uint8b128", "float8_e4m3fn", "float4_e2m1f"):
        answers[f"sgl_kernel.scalar_type.scalar_types.{name}"] = Atom(name)
    for name, value in _COMPRESSED_TENSORS.items():
        for module in ("", ".config", ".quantization", ".quantization.quant_args"):
            answers[f"compressed_tensors{module}.{name}"] = value
    return modules | answers


def _changed(module: Any, **names: Any) -> types.SimpleNamespace:
    return types.SimpleNamespace(**{**vars(module), **names})


def _none_found(*_: object, **__: object) -> list[Any]:
    return []


def nothing(*_: object, **__: object) -> None:
    """Whatever is asked."""
    return


def _empty(*_: object, **__: object) -> dict[str, Any]:
    return {}


def _one() -> int:
    return 1


def _zero() -> int:
    return 0


def _memory() -> int:
    """Of the one GPU, in MiB."""
    return 80 * 1024


def _decorator(*_: object, **__: object) -> Callable[[Any], Any]:
    return lambda function: function
