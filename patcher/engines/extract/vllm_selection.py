"""Facts about a vLLM release: which attention backend it would choose, and why not the others.

Every value is the answer of the release's own code, asked predicate by predicate over its whole
domain, so the facts also cover models that nobody thought of. ``facts`` returns the JSON value that
is stored as facts/vllm/<release>.selection.json; engines/vllm/selection.py reads it.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from patcher.engines.extract.shims import ShimJudgedError
from patcher.engines.extract.vllm_checks import checks, error_texts
from patcher.engines.extract.vllm_deepseek_v4 import deepseek_v4
from patcher.engines.extract.vllm_features import mm_prefix
from patcher.engines.extract.vllm_layers import constructor, forced, hooks, steered, stored_dtype
from patcher.engines.extract.vllm_stage import ASSUMPTIONS, TEXT_CONFIG, Release, Stage
from patcher.errors import UnreadableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from patcher.engines.extract.explore import Tree
    from patcher.engines.extract.source import Source

SCHEMA = "ckpt-patch/facts/vllm-selection@1"
_CUDA = "vllm.platforms.cuda"
_ARGUMENTS = {
    "supports_head_size": "head_size",
    "supports_dtype": "dtype",
    "supports_kv_cache_dtype": "kv_cache_dtype",
    "supports_compute_capability": "device_capability",
    "supports_attn_type": "attn_type",
    "supports_block_size": "block_size",
}


def facts(source: Source, version: str) -> dict[str, Any]:
    """All selection facts of one release.

    Raises:
        UnreadableError: the release's code could not be asked; the message says which predicate.
    """
    release = Release(source, version)
    priorities = _asked("the priorities", lambda: _priorities(release))
    names = sorted(set(_leaves(priorities)))
    mla = [name for name in names if release.stage.backend(name).is_mla()]
    rows = checks(release.stage)
    return {
        "schema": SCHEMA,
        "engine": "vllm",
        "release": version,
        "assumptions": list(ASSUMPTIONS),
        "domains": _domains(release),
        "checks": rows,
        "errors": error_texts(release.stage),
        "priorities": [_at(release, f"{_CUDA}:_get_backend_priorities"), priorities],
        "forced": _asked("the forced backend", lambda: forced(release)),
        "hooks": hooks(release),
        "steered": steered(release),
        "mm_prefix": mm_prefix(release.stage.slicer),
        "deepseek_v4": deepseek_v4(release),
        "stored_dtype": _asked("the stored dtype", lambda: stored_dtype(release, mla)),
        "constructors": {name: constructor(release, name) for name in names},
        "backends": {name: _backend(release, name, rows) for name in names},
        "third_party": sorted(release.stage.slicer.assumed),
    }


def _asked(what: str, ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except ShimJudgedError as error:
        raise UnreadableError(f"cannot tell {what}: {error}") from error


def _domains(release: Release) -> dict[str, Any]:
    """The values for which the trees hold."""
    ranges = ("head_size", "num_heads", *TEXT_CONFIG)
    return {
        "capability": list(release.domains["capability"]),
        "kv_cache_dtype": list(release.kv_cache_dtypes),
        "dtype": list(release.domains["dtype"]),
        **{name: _range(release.domains[name]) for name in ranges},
    }


def _range(values: Any) -> dict[str, int]:
    return {"from": values[0], "to": values[-1], "step": values.step}


def _at(release: Release, name: str) -> str:
    module, _, _ = name.partition(":")
    return f"{module.replace('.', '/')}.py:{release.stage.slicer.line(name)}"


def _leaves(tree: Tree) -> Iterator[str]:
    """All strings in the lists of a tree."""
    if isinstance(tree, dict):
        for cases in tree.values():
            for sub in cases.values():
                yield from _leaves(sub)
    elif isinstance(tree, list):
        yield from tree


def _priorities(release: Release) -> Tree:
    def ask(stage: Stage) -> Tree:
        function = stage.slicer.get(f"{_CUDA}:_get_backend_priorities")
        offered = {
            "use_mla": stage.inputs.known_value("use_mla"),
            "device_capability": stage.capability,
            "use_non_causal": False,
        }
        parameters = inspect.signature(function).parameters
        values = {name: offered.get(name, stage.inputs.get(name)) for name in parameters}
        return [backend.name for backend in function(**values)]

    return release.explore(ask)


def _backend(release: Release, name: str, rows: list[list[str | None]]) -> dict[str, Any]:
    backend = release.stage.backend(name)
    answers: dict[str, Any] = {"class": backend.__name__}
    for predicate in dict.fromkeys(str(row[0]) for row in rows):
        try:
            tree = _predicate(release, name, predicate)
        except ShimJudgedError as error:
            tree = ["unknown", str(error)]
        code = getattr(backend, predicate).__func__.__code__
        answers[predicate] = [f"{code.co_filename}:{code.co_firstlineno}", tree]
    return answers


def _predicate(release: Release, name: str, predicate: str) -> Tree:
    def ask(stage: Stage) -> Tree:
        function = getattr(stage.backend(name), predicate)
        if predicate == "supports_combination":
            return _combination(stage, function)
        argument = _ARGUMENTS.get(predicate)
        return bool(function(*([] if argument is None else [_argument(stage, argument)])))

    return release.explore(ask)


def _argument(stage: Stage, name: str) -> Any:
    """What the selector passes to a predicate for one of its parameters."""
    special: dict[str, Callable[[], Any]] = {
        "device_capability": lambda: stage.capability,
        "dtype": stage.dtype,
        "attn_type": lambda: "decoder",
        # A default launch has no --block-size.
        "block_size": lambda: None,
    }
    return special[name]() if name in special else stage.inputs[name]


def _combination(stage: Stage, function: Any) -> Tree:
    names = inspect.signature(stage.backend_base().supports_combination).parameters
    try:
        reason = function(**{name: _argument(stage, name) for name in names})
    except AttributeError as error:  # the release itself would stop at a config without the key
        return ["unknown", f"the config has no {error}"]
    if reason is None:
        return None
    return str.__str__(reason).replace(str(stage.capability), "{device_capability}")
