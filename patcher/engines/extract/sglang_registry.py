"""Which attention backends an SGLang release agrees to construct once ServerArgs has passed.

The functions that create a backend refuse some models and GPUs themselves, before they reach the
backend's own constructor; here every constructor ends the attempt, so only those refusals remain.
"""

from __future__ import annotations

import re
import traceback
import types
from typing import TYPE_CHECKING, Any, NoReturn

from patcher.engines.extract.sglang_stubs import CARDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from patcher.engines.extract.sglang_stage import Stage, Stages

FEATURES = ("backend", "mla", "gpu")
_REGISTRY = "sglang.srt.layers.attention.attention_registry"
_RUNNER = "sglang.srt.model_executor.model_runner"
PROVENANCE = (f"{_REGISTRY}:ATTENTION_BACKENDS", f"{_RUNNER}:ModelRunner")
_IMPORT = re.compile(r"from (sglang\.srt\.(?:layers\.attention|hardware_backend)\.[\w.]+) import")


class _ConstructedError(Exception):
    """The constructor of a backend was reached."""


class _Backends:
    """Any module of attention backends."""

    def __getattr__(self, key: str) -> Callable[..., NoReturn]:
        if key.startswith("__"):
            raise AttributeError(key)
        return _construct


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
