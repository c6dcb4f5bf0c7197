"""What an SGLang release's loader makes of every form of KV-cache metadata.

One example of each combination of forms (see ``patcher.engines.sglang.forms``) is written to a
directory and given to the release's ``ModelConfig._verify_quantization``, ``get_quant_config`` and
``get_quant_method``, which read it as they would read a checkpoint.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import types
from typing import TYPE_CHECKING, Any

from patcher.engines.extract.sglang_examples import FAMILIES, documents
from patcher.engines.extract.sglang_models import write
from patcher.engines.extract.sglang_stage import clean_environment
from patcher.engines.extract.sglang_stubs import CARDS, nothing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from patcher.engines.extract.sglang_stage import Stage, Stages

_MODEL_CONFIG = "sglang.srt.configs.model_config:ModelConfig"
_QUANT_CONFIG = "sglang.srt.model_loader.weight_utils:get_quant_config"
_ATTENTION = "sglang.srt.layers.radix_attention:RadixAttention"
_POOL = "sglang.srt.mem_cache.kv_cache_dtype:configure_kv_cache_dtype"
_RUNNER = "sglang.srt.model_executor.model_runner:ModelRunner"
FEATURES = ("kv_flag", "algo", "gpu")
PROVENANCE = (
    f"{_MODEL_CONFIG}._verify_quantization",
    _QUANT_CONFIG,
    "sglang.srt.layers.quantization.modelopt_quant:ModelOptFp4Config.from_config",
    "sglang.srt.layers.quantization.modelopt_quant:ModelOptFp8Config.from_config",
    "sglang.srt.layers.quantization.modelopt_quant:ModelOptMixedPrecisionConfig.from_config",
)
POOL = (_POOL, f"{_RUNNER}.configure_kv_cache_dtype")
_VENDORS = {"cuda": "sm120", "hip": "gfx942"}


#: An open file in an error's text, with the name of the example's directory.
_FILE = re.compile(r"<_io\.TextIOWrapper name='[^']*/([^'/]+)'[^>]*>")


class _ReachedError(Exception):
    """The part of a method that matters is over."""


def rows(stages: Stages, folder: str) -> dict[str, list[tuple[dict[str, str], dict[str, Any]]]]:
    """Family -> forms with their outcome: ``quantization``, ``class``, ``algo``, ``scales``.

    ``algo`` is what the pool's dtype is chosen by, ``scales`` the class that loads k/v scales. A
    refusal has ``stage`` (config or loader), ``err`` and ``msg`` instead.
    """
    os.makedirs(folder, exist_ok=True)
    by_vendor = {vendor: stages(_card(name)) for vendor, name in _VENDORS.items()}
    found: dict[str, list[tuple[dict[str, str], dict[str, Any]]]] = {}
    known: dict[str, dict[str, Any]] = {}  # forms without effect on the files are asked once
    for family, domain in FAMILIES.items():
        found[family] = []
        for values in itertools.product(*domain.values()):
            forms = dict(zip(domain, values, strict=True))
            files, flag = documents(forms), forms["quantization_flag"]
            key = json.dumps([files, flag, forms["vendor"]])
            if key not in known:
                known[key] = outcome(by_vendor[forms["vendor"]], folder, files, flag)
            found[family].append((forms, known[key]))
    return found


def _card(name: str) -> Any:
    return next(card for card in CARDS if card.name == name)


def outcome(stage: Stage, folder: str, files: Mapping[str, Any], flag: str) -> dict[str, Any]:
    """What the release does with a checkpoint of these files; ``flag`` is ``--quantization``."""
    for name in os.listdir(folder):  # some file systems are slow to truncate
        os.remove(os.path.join(folder, name))
    path = write(folder, files)
    with clean_environment():
        return _load(stage, path, flag)


def _load(stage: Stage, path: str, flag: str) -> dict[str, Any]:
    config = model_config(stage, path, None if flag == "-" else flag)
    try:
        config._verify_quantization()  # noqa: SLF001 - the release's own name
    except Exception as error:  # noqa: BLE001 - whatever the release raises is its answer
        return _refusal("config", None, error)
    if config.quantization is None:
        return {"quantization": None, "class": None, "algo": None, "scales": None}
    load = types.SimpleNamespace(model_loader_extra_config={}, download_dir=None)
    layer = stage.get(_ATTENTION)
    try:
        quant = stage.get(_QUANT_CONFIG)(config, load, {})
        method = quant.get_quant_method(layer.__new__(layer), "model.layers.0.self_attn.attn")
    except Exception as error:  # noqa: BLE001 - as above
        return _refusal("loader", config.quantization, error)
    return {
        "quantization": config.quantization,
        "class": type(quant).__name__,
        "algo": getattr(quant, "kv_cache_quant_algo", "<no attr>"),
        "scales": None if method is None else type(method).__name__,
        "capability": quant.get_min_capability(),
    }


def model_config(stage: Stage, path: str, quantization: str | None) -> Any:
    """A ModelConfig as far as the quantization check needs one."""
    kind = stage.get(_MODEL_CONFIG)
    config = kind.__new__(kind)
    config.hf_config = stage.get("sglang.srt.configs.model_config:get_config")(path)
    config.hf_text_config = config.hf_config.get_text_config()
    config.model_path, config.quantization = path, quantization
    config.revision, config.dtype = None, stage.answers["torch.bfloat16"]
    config.is_draft_model = config.is_draft_quantization_explicit = False
    return config


def _refusal(stage: str, quantization: str | None, error: Exception) -> dict[str, Any]:
    text = _FILE.sub(r"\1", str(error))
    return {"stage": stage, "quantization": quantization, "err": type(error).__name__, "msg": text}


def pools(stages: Stages, flags: list[str]) -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
    """The pool's dtype for each ServerArgs value and each algorithm that the checkpoint states.

    ``bf16`` is asked for even where the command line does not know it: models set it.
    """
    algos = {"FP8": "FP8", "fp8": "fp8", "other": "NVFP4", "none": None}
    for card in (_card("sm90"), _card("sm120"), _card("gfx942"), _card("gfx950")):
        stage = stages(card)
        for flag, (name, algo) in itertools.product(dict.fromkeys((*flags, "bf16")), algos.items()):
            try:
                dtype = {"dtype": repr(pool(stage, flag, algo)).removeprefix("torch.")}
            except Exception as error:  # noqa: BLE001 - whatever the release raises is its answer
                dtype = {"err": type(error).__name__, "msg": str(error).replace(flag, "{kv_flag}")}
            yield dict(zip(FEATURES, (flag, name, card.name), strict=True)), dtype


def pool(stage: Stage, flag: str, algo: str | None) -> Any:
    """The dtype that the memory pool is made of; ``model`` for the model's own."""
    model = types.SimpleNamespace(quant_config=types.SimpleNamespace(kv_cache_quant_algo=algo))
    own = stage.answers["model dtype"]
    if stage.has(_POOL):
        return stage.get(_POOL)(
            server_args_kv_cache_dtype=flag,
            model=model,
            model_dtype=own,
            is_draft_worker=False,
            is_dflash=False,
            speculative_draft_attention_backend=None,
        )[1]
    arguments = types.SimpleNamespace(kv_cache_dtype=flag)
    runner = types.SimpleNamespace(
        server_args=arguments,
        model=model,
        dtype=own,
        is_draft_worker=False,
        profile_max_num_token=_reached,
        _record_kv_cache_dtype=nothing,
    )
    kind = stage.get(_RUNNER)
    if hasattr(kind, "configure_kv_cache_dtype"):
        kind.configure_kv_cache_dtype(runner)
    else:
        with contextlib.suppress(_ReachedError):
            kind.init_memory_pool(runner, 80)
    return runner.kv_cache_dtype


def _reached(*_: object, **__: object) -> None:
    raise _ReachedError
