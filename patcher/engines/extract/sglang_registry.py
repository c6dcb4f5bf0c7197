"""Which attention backends an SGLang release agrees to construct once ServerArgs has passed.

The functions that create a backend refuse some models and GPUs themselves, before they reach the
backend's own constructor; here every constructor ends the attempt, so only those refusals remain.
"""

from __future__ import annotations

import re
import traceback
import types
from typing import TYPE_CHECKING, Any, NoReturn

from patcher.engines.extract.sglang_stubs import CARDS, nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from patcher.engines.extract.sglang_stage import Stage, Stages

FEATURES = ("backend", "mla", "gpu")
_REGISTRY = "sglang.srt.layers.attention.attention_registry"
_RUNNER = "sglang.srt.model_executor.model_runner"
WRAPPER = f"{_REGISTRY}:attn_backend_wrapper"
PROVENANCE = (f"{_REGISTRY}:ATTENTION_BACKENDS", f"{_RUNNER}:ModelRunner")
_SET_UP = re.compile(r"from (sglang[\w.]+) import check_environments")
_SET = re.compile(r"\{('[^}]*')\}")
_IMPORT = re.compile(r"from (sglang\.srt\.(?:layers\.attention|hardware_backend)\.[\w.]+) import")


class _ConstructedError(Exception):
    """The constructor of a backend was reached."""


class _Backends:
    """Any module of attention backends."""

    def __getattr__(self, key: str) -> Callable[..., Any]:
        if key.startswith("__"):
            raise AttributeError(key)
        return _construct


class _Linear(_Backends):
    """Any module of linear attention: its functions set something up, its classes are the end."""

    def __getattr__(self, key: str) -> Callable[..., Any]:
        made = super().__getattr__(key)
        return nothing if key[0].islower() else made


def _construct(*_: object, **__: object) -> NoReturn:
    raise _ConstructedError


def rows(stages: Stages, backends: list[str]) -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
    """Backend x MLA or not x GPU -> ``{}``, or the refusal's ``err`` and ``msg``."""
    for card in CARDS:
        stage = stages(card)
        create = creator(stage)
        for backend in backends:
            for mla in ("yes", "no"):
                launch = dict(zip(FEATURES, (backend, mla, card.name), strict=True))
                yield launch, refusal(create, backend, mla=mla == "yes")


def creator(stage: Stage) -> Callable[[str, Any], None]:
    """A function that makes the backend of that name for a model runner."""
    module = _REGISTRY if stage.has(_REGISTRY) else _RUNNER
    path = f"{module.replace('.', '/')}.py"
    for name in _IMPORT.findall(stage.source.read(path)):
        stage.answers[name] = _Backends()
    context = "sglang.srt.runtime_context"
    stage.answers[f"{context}.get_spec"] = lambda: types.SimpleNamespace(speculative_algorithm=None)
    stage.answers[f"{context}.get_parallel"] = lambda: types.SimpleNamespace(dcp_enabled=False)
    if module == _REGISTRY:
        known = stage.get(f"{module}:ATTENTION_BACKENDS")
        return lambda name, runner: known[name](runner)
    method = stage.get(f"{module}:ModelRunner")._get_attention_backend_from_str  # noqa: SLF001
    return lambda name, runner: method(runner, name)


def wrapper(stage: Stage, path: str) -> Callable[[Any], str | None]:
    """What the release says of the resolved backends (a view of ServerArgs) of a wrapped model.

    The model runner puts a wrapper around the backend of a model with linear attention or a state
    space; it may refuse the backend. ``stage`` is for this only: its backends are stand-ins.
    """
    source = stage.source.read(f"{_REGISTRY.replace('.', '/')}.py")
    for name in _IMPORT.findall(source):
        stage.answers[name] = _Linear()
    for name in _SET_UP.findall(source):
        stage.answers[f"{name}.check_environments"] = nothing
    model = stage.get("sglang.srt.configs.model_config:ModelConfig")(path)
    wrap = stage.get(WRAPPER)

    def refused(view: Any) -> str | None:
        runner = _runner(stage, model, view)
        try:
            wrap(runner, None)
        except _ConstructedError:
            return None
        except (AssertionError, ValueError, RuntimeError, NotImplementedError) as error:
            return f"{type(error).__name__}: {_ordered(str(error))}"
        raise ValueError(f"{path} was not wrapped")

    return refused


def _runner(stage: Stage, model: Any, view: Any) -> Any:
    """A model runner of the release that knows no more than what its wrapper asks for."""
    runner = object.__new__(stage.get(f"{_RUNNER}:ModelRunner"))
    vars(runner).update(
        model_config=model,
        server_args=view,
        use_mla_backend=False,
        is_draft_worker=False,
        prefill_attention_backend_str=view.prefill_attention_backend or view.attention_backend,
        decode_attention_backend_str=view.decode_attention_backend or view.attention_backend,
    )
    return runner


def _ordered(message: str) -> str:
    """With the names of a set sorted, which Python prints in another order every time."""
    return _SET.sub(lambda found: f"{{{', '.join(sorted(found[1].split(', ')))}}}", message)


def refusal(create: Callable[[str, Any], None], backend: str, *, mla: bool) -> dict[str, Any]:
    """What stopped the creation before a constructor was reached; ``{}`` if nothing did."""
    arguments = types.SimpleNamespace(
        attention_backend=backend,
        prefill_attention_backend=None,
        decode_attention_backend=None,
        speculative_algorithm=None,
        enable_dp_attention=False,
        get_attention_backends=lambda: (backend, backend),
    )
    runner = types.SimpleNamespace(
        use_mla_backend=mla,
        server_args=arguments,
        model_config=types.SimpleNamespace(is_encoder_decoder=False, attention_chunk_size=None),
        init_new_workspace=False,
        is_hybrid=False,
        is_draft_worker=False,
        kv_cache_dtype=None,
    )
    try:
        create(backend, runner)
    except (AssertionError, ValueError, RuntimeError, NotImplementedError) as error:
        file = traceback.extract_tb(error.__traceback__)[-1].filename
        if file.endswith(("attention_registry.py", "model_runner.py")):
            return {"err": type(error).__name__, "msg": str(error)}
    except Exception:  # noqa: BLE001, S110 - a constructor was reached, or more than a stub is needed
        pass
    return {}
