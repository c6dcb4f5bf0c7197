"""What vLLM's code needs around it when single definitions run: a GPU, a logger, libraries."""

from __future__ import annotations

import dataclasses
import enum
import functools
import re
import types
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from patcher.engines.extract.shims import ABSENT, Shim, third_party
from patcher.engines.extract.slicer import Slicer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from patcher.engines.extract.index import Index
    from patcher.engines.extract.source import Source


class Settings(SimpleNamespace):
    """A configuration object: what is not set here has the default of the release's own class.

    Where there is none, the value is unknown, not false: deciding anything by it ends the run.
    ``inputs`` are attributes that are looked up when they are read.
    """

    def __init__(
        self,
        defaults: type = object,
        inputs: Mapping[str, Callable[[], Any]] = types.MappingProxyType({}),
        **values: Any,
    ) -> None:
        super().__init__(**values)
        vars(self)["_defaults"] = defaults
        vars(self)["_inputs"] = inputs

    def __getattr__(self, key: str) -> Any:
        """The default if it is plain data (not a property or method), or an unknown value."""
        if key.startswith("__"):
            raise AttributeError(key)
        if key in vars(self)["_inputs"]:
            return vars(self)["_inputs"][key]()
        value = getattr(vars(self)["_defaults"], key, self)
        plain = value is None or type(value) in {bool, int, float, str, list, dict}
        return value if plain else Shim(f"configuration.{key}", {})


class Module:
    """``torch.nn.Module`` as far as constructors use it."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def register_buffer(self, name: str, value: object, **_: object) -> None:
        """Keep the tensor as an attribute."""
        setattr(self, name, value)

    register_parameter = register_buffer


class Quiet:
    """A logger."""

    def __getattr__(self, _: str) -> Callable[..., None]:
        """Any log method."""
        return lambda *_, **__: None


class HfConfig:
    """``transformers.PretrainedConfig``: keyword arguments become attributes."""

    def __init__(self, **fields: object) -> None:
        vars(self).update(fields)


class QuantizationStrategy(str, enum.Enum):
    """The strategies of compressed-tensors 0.13 and later (vLLM compares with its members)."""

    TENSOR = "tensor"
    CHANNEL = "channel"
    GROUP = "group"
    BLOCK = "block"
    TOKEN = "token"  # noqa: S105 - a strategy
    TENSOR_GROUP = "tensor_group"
    ATTN_HEAD = "attn_head"


def as_dataclass(cls: Any = None, **_: object) -> Any:
    """The ``config`` decorator; pydantic's validation is called by hand where it matters."""
    if cls is None:
        return as_dataclass
    try:
        return dataclasses.dataclass(cls)
    except (TypeError, ValueError):  # defaults that only pydantic accepts
        return cls


def field(default: Any = Shim("a required setting", {}), **_: Any) -> Any:  # noqa: B008
    """``pydantic.Field``: the default alone."""
    return default


def _validator(*_: object, **__: object) -> Callable[[Any], Any]:
    return lambda function: function


def uncached_functools() -> SimpleNamespace:
    """``functools`` without caches: an answer must not outlive the inputs that it was given for."""

    def lru_cache(maxsize: Any = None, typed: bool = False) -> Any:  # noqa: ARG001, FBT001, FBT002
        return maxsize if callable(maxsize) else lambda function: function

    return SimpleNamespace(
        **{**vars(functools), "cache": lambda function: function, "lru_cache": lru_cache}
    )


def surroundings() -> dict[str, Any]:
    """What every question needs: third-party packages, no logging, pydantic as dataclasses."""
    return {
        **third_party(),
        "torch.nn.Module": Module,
        "pydantic.dataclasses.dataclass": as_dataclass,
        "vllm.config.utils.config": as_dataclass,
        "vllm.logger.init_logger": lambda _: Quiet(),
    }


# For the probes of vllm_probe_*, which look at one GPU and never at the selector.


def platform(capability: int) -> SimpleNamespace:
    """``current_platform`` on an NVIDIA GPU; ``capability`` is 90 for SM 9.0."""
    found = SimpleNamespace(
        to_int=lambda: capability, major=capability // 10, minor=capability % 10
    )
    no = dict.fromkeys(
        ("is_rocm", "is_cpu", "is_xpu", "is_tpu", "is_out_of_tree", "is_device_capability"),
        lambda *_, **__: False,
    )
    return SimpleNamespace(
        **no,
        is_cuda=lambda: True,
        is_cuda_alike=lambda: True,
        verify_quantization=lambda _: None,
        has_device_capability=lambda wanted, *_, **__: capability >= _number(wanted),
        is_device_capability_family=lambda *_, **__: False,
        is_fp8_fnuz=lambda: False,
        fp8_dtype=lambda: "torch.float8_e4m3fn",
        supported_quantization=[],
        get_device_capability=lambda *_, **__: found,
    )


def _number(capability: int | tuple[int, int]) -> int:
    return capability[0] * 10 + capability[1] if isinstance(capability, tuple) else capability


def answers(capability: int = 90) -> dict[str, Any]:
    """The surroundings of one probe."""
    known = surroundings()
    known |= {
        "vllm.platforms.current_platform": platform(capability),
        "pydantic.model_validator": _validator,
        "pydantic.field_validator": _validator,
        "vllm.envs.VLLM_USE_MODELSCOPE": False,
        "bitblas": ABSENT,
        "regex": re,
        "torch.get_default_dtype": lambda: known["torch.bfloat16"],
        "torch.cuda.get_device_capability": lambda *_: (capability // 10, capability % 10),
        "compressed_tensors.quantization.QuantizationStrategy": QuantizationStrategy,
    }
    for name in ("PretrainedConfig", "PreTrainedConfig"):
        known[f"transformers.{name}"] = HfConfig
        known[f"transformers.configuration_utils.{name}"] = HfConfig
    known["transformers.DeepseekV3Config"] = HfConfig
    return known


@functools.cache
def _parsed(_: Source) -> dict[str, Index]:
    """The parsed files of a release: probes take a new slicer each, but read the same sources."""
    return {}


def slicer(source: Source) -> Slicer:
    """A slicer of one vLLM release in the surroundings of a probe."""
    indexes = _parsed(source)  # type: ignore[arg-type]
    made = Slicer(source, "vllm", answers(), indexes=indexes)
    # utils.torch_utils assigns to torch.cuda, which a Shim does not allow.
    made.answers["vllm.utils.torch_utils.torch"] = made.module("torch")
    return made


def namespace(**fields: Any) -> SimpleNamespace:
    """A ``self`` for a method that reads these attributes."""
    return SimpleNamespace(**fields)


def failure(call: Callable[[], object]) -> str | None:
    """``Type: message`` of the exception that ``call`` raises, ``None`` when it returns."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - the engine's errors are the answer
        return f"{type(error).__name__}: {error}"
    return None


def at(release: Slicer, *names: str) -> str:
    """``module:line`` of the first of these names that the release has: provenance."""
    for name in names:
        if release.has(name):
            return f"{name.partition(':')[0]}:{release.line(name)}"
    return "absent"
