"""A stage on which an SGLang release plays: one GPU, no torch, no transformers.

``Stage`` runs definitions of the release through the slicer (see slicer.py). What the release asks
of torch, the driver and the model files is answered here and nowhere else; ``ASSUMED`` says so in
words and stands in every file of facts.
"""

from __future__ import annotations

import builtins
import contextlib
import enum
import functools
import importlib
import json
import logging
import os
import sys
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from patcher.engines.extract.shims import ABSENT, Atom, Shim, third_party
from patcher.engines.extract.slicer import Slicer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from patcher.engines.extract.index import Index
    from patcher.engines.extract.source import Source

ASSUMED = (
    "one GPU with 80 GB, CUDA 13.0 or ROCm 7.0, PyTorch 2.9.1",
    "FlashInfer, sgl-kernel and the other pinned packages installed",
    "no environment variable set, no speculation, no disaggregation",
    "the release's Python code, run without torch, transformers or any kernel",
)

#: Modules that register by decorator or read annotations: executed as a whole, not by demand.
_WHOLE = (
    "sglang.srt.arg_groups.arg_utils",
    "sglang.srt.arg_groups.fields",
    "sglang.srt.arg_groups.model_overrides",
    "sglang.srt.arg_groups.overrides",
    "sglang.srt.environ",
    "sglang.srt.layers.attention.attention_registry",
    "sglang.srt.server_args",
)
#: Directories of the package that have no ``__init__.py``.
_NAMESPACES = frozenset(
    f"sglang{name}" for name in ("", ".srt", ".srt.layers", ".srt.models", ".kernels")
)
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
    """A model's configuration as transformers would hold it, without transformers."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.is_encoder_decoder = False
        self.tie_word_embeddings = False
        self.num_labels = 2
        self.rope_scaling = None
        self.pad_token_id = self.bos_token_id = self.eos_token_id = None
        self.update(values)

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
    "QuantizationType": enum.Enum(
        "QuantizationType", {"INT": "int", "FLOAT": "float"}, type=str
    ),
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


class _Torch(Shim):
    """The Shim of torch, with a version."""

    __slots__ = ()
    __version__ = "2.9.1"


class Stage(Slicer):
    """One release on one GPU; a model path is a directory with a config.json."""

    def __init__(
        self, source: Source, card: Card, *, indexes: dict[str, Index] | None = None
    ) -> None:
        super().__init__(source, "sglang", third_party(), indexes=indexes)
        self.answers.update({**_torch(card), **_installed(), **_environment()})
        self.answers["model dtype"] = Atom("model")
        self.answers.update({"os": os, "os.path": os.path})  # checkpoints are real directories
        self.answers["torch"] = _Torch("torch", self.answers)
        logging.getLogger("sglang").setLevel(logging.CRITICAL + 1)
        for name in ("info_once", "warning_once"):  # SGLang adds these to every logger
            setattr(logging.Logger, name, _nothing)

    def _own_module(self, name: str) -> Any:
        if name not in self._modules:
            path = self._path(name)
            if path and any(name == whole or name.startswith(f"{whole}.") for whole in _WHOLE):
                return self._execute(name, path)
            if path is None and name in _NAMESPACES:
                self._modules[name] = _Package(name, self.module)  # type: ignore[assignment]
                return self._modules[name]
            _add_builtins(super()._own_module(name))
        return super()._own_module(name)

    def _execute(self, name: str, path: str) -> types.ModuleType:
        """All of a module, as Python would import it; it stays in ``sys.modules`` for ``typing``."""
        module = _Package(name, self.module)
        package = name if path.endswith("/__init__.py") else name.rpartition(".")[0]
        vars(module).update(__package__=package, __file__=path, __builtins__=self.builtins)
        sys.modules[name] = self._modules[name] = module  # type: ignore[assignment]
        code = compile(self.source.read(path), path, "exec", dont_inherit=True)
        exec(code, vars(module))  # noqa: S102 - the purpose of the stage
        return module


def _add_builtins(module: Any) -> None:
    """Half of the time goes into looking for ``len`` and ``str`` in a module that has neither."""
    scope = vars(module).get("scope")
    if scope is not None and not scope.index.stars:
        for name, value in vars(builtins).items():
            if name not in scope.index:
                scope.setdefault(name, value)


class _Package(types.ModuleType):
    """A module whose submodules appear when they are looked up."""

    def __init__(self, name: str, module: Callable[[str], Any]) -> None:
        super().__init__(name)
        self._module = module

    def __getattr__(self, key: str) -> Any:
        if key.startswith("__"):
            raise AttributeError(key)
        try:
            return self._module(f"{self.__name__}.{key}")
        except ModuleNotFoundError as error:
            raise AttributeError(key) from error


@contextlib.contextmanager
def clean_environment() -> Iterator[None]:
    """What a launch writes into ``os.environ`` is gone afterwards."""
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _environment() -> dict[str, Any]:
    answers: dict[str, Any] = {"importlib.metadata.entry_points": _none_found}
    for module in _CONFIGS:
        answers[f"{module}.get_config"] = _config
        answers[f"{module}.get_generation_config"] = _nothing
        answers[f"{module}.get_sparse_attention_config"] = _empty
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


def _config(model: str, *_: object, **__: object) -> Config:
    """As ``get_config`` of every release: the language model's fields are lent to the outer one."""
    with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
        config = Config(json.load(file))
    for key, value in vars(config.get_text_config()).items():
        if value is not None and not hasattr(config, key):
            setattr(config, key, value)
    return config


def _torch(card: Card) -> dict[str, Any]:
    major, minor = card.capability
    properties = types.SimpleNamespace(
        name=card.name, major=major, minor=minor, gcnArchName=card.gfx,
        total_memory=80 * _GIB, multi_processor_count=132, warp_size=32,
    )  # fmt: skip
    answers: dict[str, Any] = {
        "torch.version.cuda": None if card.gfx else "13.0",
        "torch.version.hip": "7.0" if card.gfx else None,
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


def _installed() -> dict[str, Any]:
    modules = {name: importlib.import_module(name) for name in _REAL}
    fields = functools.cache(modules["msgspec.structs"].fields)
    answers = {"msgspec.structs.fields": fields, "torchada": ABSENT, "vllm": ABSENT}
    for name in ("transformers", "transformers.configuration_utils"):
        answers[f"{name}.PretrainedConfig"] = Config
    for name in ("uint4", "uint8", "uint4b8", "uint8b128", "float8_e4m3fn", "float4_e2m1f"):
        answers[f"sgl_kernel.scalar_type.scalar_types.{name}"] = Atom(name)
    for name, value in _COMPRESSED_TENSORS.items():
        for module in ("", ".config", ".quantization", ".quantization.quant_args"):
            answers[f"compressed_tensors{module}.{name}"] = value
    return modules | answers


def _none_found(*_: object, **__: object) -> list[Any]:
    return []


def _nothing(*_: object, **__: object) -> None:
    return None


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
