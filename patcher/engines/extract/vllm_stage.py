"""A vLLM release prepared for questions: GPU, configuration and installed packages are ours.

Everything that a question may depend on is an input (see explore.py): the compute capability, the
KV-cache dtype, the model's dimensions. Everything else is what a default launch on one GPU has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from patcher.engines.extract.explore import Deferred, Inputs, Tree, explore
from patcher.engines.extract.shims import Shim, ShimJudgedError
from patcher.engines.extract.slicer import Slicer
from patcher.engines.extract.vllm_standins import (
    Settings,
    field,
    surroundings,
    uncached_functools,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from patcher.engines.extract.source import Source

CAPABILITIES = ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1")
MODEL_DTYPES = ("float16", "bfloat16", "float32")
FLAGS = (
    "use_mla",
    "use_sparse",
    "has_sink",
    "use_mm_prefix",
    "use_per_head_quant_scales",
    "has_sliding_window",
    "use_rswa",
)
#: Dimensions in the model's text config that releases have looked at, and the values tried.
TEXT_CONFIG = {
    "kv_lora_rank": range(2049),
    "qk_nope_head_dim": range(513),
    "qk_rope_head_dim": range(513),
    "v_head_dim": range(513),
    "index_topk": range(0, 8193, 64),
    "attn_logit_softcapping": range(1001),
    "head_dim": range(128, 513, 128),
    "global_head_dim": range(128, 513, 128),
}
#: What the facts take for granted; part of every facts file.
ASSUMPTIONS = (
    "one NVIDIA GPU; no context parallelism, speculative decoding, KV transfer or batch invariance",
    "all environment variables of vLLM at their defaults",
    "the compiled modules of the x86_64 CUDA wheel can be loaded",
    "FlashInfer with its cubins, Triton and every other imported package is installed",
    "CUDA 12.9 before release 0.20, 13.0 from then on",
)


class TextConfig:
    """The model's config: each dimension may be absent, or have any value of its domain."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def __getattr__(self, key: str) -> Any:
        """The dimension as an input."""
        if key.startswith("__"):
            raise AttributeError(key)
        if key not in TEXT_CONFIG:
            raise ShimJudgedError(f"the release reads {key} of the model's config")
        if not self._stage.inputs.known_value(f"has {key}"):
            raise AttributeError(key)
        return self._stage.inputs[key]


class Release:
    """One release, on every GPU.

    A Stage serves one capability only: some classes look at the GPU while they are defined.

    Attributes:
        version: of the release.
        domains: input name -> values.
        stage: any one of the stages, for what does not depend on the GPU.
    """

    def __init__(self, source: Source, version: str) -> None:
        self.version = version
        slicer = Slicer(source, "vllm", {})
        self._stages = {name: Stage(slicer, version, name) for name in CAPABILITIES}
        self.stage = self._stages["9.0"]
        self.kv_cache_dtypes: tuple[str, ...] = get_args(
            self.stage.slicer.get("vllm.config.cache:CacheDType")
        )
        self.domains: Mapping[str, Sequence[Any]] = {
            "capability": CAPABILITIES,
            "kv_cache_dtype": self.kv_cache_dtypes,
            "dtype": MODEL_DTYPES,
            "head_size": range(1, 1025),
            "num_heads": range(1, 257),
            **dict.fromkeys(FLAGS, (False, True)),
            **dict.fromkeys((f"has {key}" for key in TEXT_CONFIG), (False, True)),
            **TEXT_CONFIG,
        }

    def explore(self, ask: Callable[[Stage], Tree], **domains: Sequence[Any]) -> Tree:
        """The tree of ``ask`` over all inputs; ``domains`` replace or add some."""

        def run(inputs: Inputs) -> Tree:
            stage = self._stages[inputs.known_value("capability")]
            stage.inputs = inputs
            stage.config = stage.new_config()  # hooks write into it
            return ask(stage)

        return explore(run, {**self.domains, **domains})


class Stage:
    """One release on one GPU, with the inputs of the current run.

    Attributes:
        slicer: the release's code.
        inputs: of the run that is under way.
        selected: the backend class that the selector hands to a layer under construction.
        config: the VllmConfig that the engine sees.
        capability: the GPU's DeviceCapability.
    """

    def __init__(self, release: Slicer, version: str, capability: str) -> None:
        self.slicer = release.fresh(self._answers(version))
        self.inputs = Inputs({}, {}, {})
        self.selected: Any = None
        major, minor = capability.split(".")
        kind = self.slicer.get("vllm.platforms.interface:DeviceCapability")
        self.capability = kind(int(major), int(minor))
        self.platform = self._platform()
        self.slicer.answers["vllm.platforms.current_platform"] = self.platform
        self._assume_flashinfer()
        self.config = self.new_config()

    def dtype(self) -> Any:
        """The model's torch dtype; a Deferred as long as nobody looks at it."""
        dtype = self.inputs["dtype"]
        if type(dtype) is Deferred:
            return dtype
        return self.slicer.answers[f"torch.{self.inputs.known_value('dtype')}"]

    def first(self, *names: str) -> str:
        """The first ``module:name`` that the release defines; names move between releases."""
        return next((name for name in names if self.slicer.has(name)), names[-1])

    def backend_enum(self) -> Any:
        """The release's AttentionBackendEnum."""
        return self.slicer.get(
            self.first(
                "vllm.attention.backends.registry:AttentionBackendEnum",
                "vllm.v1.attention.backends.registry:AttentionBackendEnum",
            )
        )

    def backend_base(self) -> Any:
        """The release's AttentionBackend, the base of all backends."""
        return self.slicer.get(
            self.first(
                "vllm.attention.backends.abstract:AttentionBackend",
                "vllm.v1.attention.backend:AttentionBackend",
            )
        )

    def backend(self, name: str) -> Any:
        """The class of a backend."""
        return self.backend_enum()[name].get_class()

    def _answers(self, version: str) -> dict[str, Any]:
        cuda = "12.9" if version.startswith("0.1") else "13.0"
        return {
            **surroundings(),
            "functools": uncached_functools(),
            "pydantic.Field": field,
            "torch.version.cuda": cuda,
            "torch.version.hip": None,
            "torch.cuda.get_device_capability": lambda *_: tuple(self.capability),
            "torch.get_default_dtype": self.dtype,
            "vllm.triton_utils.HAS_TRITON": True,
            "vllm.v1.worker.workspace.current_workspace_manager": lambda: Shim("workspace", {}),
            "vllm.attention.selector.get_attn_backend": lambda *_, **__: self.selected,
            "vllm.v1.attention.selector.get_attn_backend": lambda *_, **__: self.selected,
            "vllm.config.get_current_vllm_config": lambda: self.config,
            "vllm.config.get_current_vllm_config_or_none": lambda: self.config,
            "vllm.config.vllm.get_current_vllm_config": lambda: self.config,
            "vllm.config.vllm.get_current_vllm_config_or_none": lambda: self.config,
        }

    def _assume_flashinfer(self) -> None:
        module = "vllm.utils.flashinfer"
        for name in self.slicer.names(module):
            if name.startswith("has_flashinfer") or name == "has_nvidia_artifactory":
                self.slicer.answers[f"{module}.{name}"] = lambda *_, **__: True

    def _platform(self) -> Any:
        base = self.slicer.get("vllm.platforms.cuda:CudaPlatformBase")

        def get_device_capability(_: type, device_id: int = 0) -> Any:  # noqa: ARG001
            return self.capability

        def get_device_name(_: type, device_id: int = 0) -> str:  # noqa: ARG001
            return "{gpu}"

        return type(
            "Platform",
            (base,),
            {
                "get_device_capability": classmethod(get_device_capability),
                "get_device_name": classmethod(get_device_name),
            },
        )()

    def _defaults(self, name: str) -> Any:
        return self.slicer.get(name) if self.slicer.has(name) else object

    def new_config(self) -> Settings:
        """The configuration of a default launch."""
        text = TextConfig(self)
        inputs = self.input
        model = Settings(
            self._defaults("vllm.config.model:ModelConfig"),
            {
                "use_mla": inputs("use_mla"),
                "is_mm_prefix_lm": inputs("use_mm_prefix"),
                "dtype": self.dtype,
                "rswa_window": self._rswa_window,
            },
            hf_config=text,
            hf_text_config=text,
            get_num_attention_heads=lambda *_: self.inputs["num_heads"],
            get_head_size=lambda: self.inputs["head_size"],
            is_diffusion=False,
        )
        return Settings(
            model_config=model,
            attention_config=Settings(
                self._defaults("vllm.config.attention:AttentionConfig"), backend=None
            ),
            cache_config=Settings(
                self._defaults("vllm.config.cache:CacheConfig"),
                {"cache_dtype": inputs("kv_cache_dtype")},
                block_size=None,
                user_specified_block_size=False,
            ),
            parallel_config=Settings(self._defaults("vllm.config.parallel:ParallelConfig")),
            scheduler_config=Settings(
                self._defaults("vllm.config.scheduler:SchedulerConfig"),
                is_multimodal_model=False,
                max_num_batched_tokens=8192,
            ),
            speculative_config=None,
            kv_transfer_config=None,
        )

    def _rswa_window(self) -> int | None:
        return 128 if self.inputs.known_value("use_rswa") else None

    def input(self, name: str) -> Callable[[], Any]:
        """A reader of one input of the run that is under way."""
        return lambda: self.inputs[name]
