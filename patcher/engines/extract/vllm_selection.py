"""Facts about a vLLM release: which attention backend it would choose, and why not the others.

Every value is the answer of the release's own code, asked predicate by predicate over its whole
domain, so the facts also cover models that nobody thought of. ``facts`` returns the JSON value that
is stored as facts/vllm/<release>.selection.json; engines/vllm/selection.py reads it.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from patcher.engines.extract.explore import Inputs, SplitError, Tree
from patcher.engines.extract.shims import ShimJudgedError
from patcher.engines.extract.vllm_layers import constructor, forced, hooks, stored_dtype
from patcher.engines.extract.vllm_stage import ASSUMPTIONS, FLAGS, TEXT_CONFIG, Stage
from patcher.errors import UnreadableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
    stage = Stage(source, version)
    priorities = _asked("the priorities", lambda: _priorities(stage))
    names = sorted(set(_leaves(priorities)))
    classes = {name: stage.backend_enum()[name].get_class() for name in names}
    checks = _checks(stage)
    return {
        "schema": SCHEMA,
        "engine": "vllm",
        "release": version,
        "assumptions": list(ASSUMPTIONS),
        "domains": _domains(stage),
        "checks": checks,
        "errors": _errors(stage),
        "priorities": [_at(stage, f"{_CUDA}:_get_backend_priorities"), priorities],
        "forced": forced(stage),
        "hooks": hooks(stage),
        "stored_dtype": stored_dtype(stage, {n: c for n, c in classes.items() if c.is_mla()}),
        "constructors": {name: constructor(stage, classes[name]) for name in names},
        "backends": {name: _backend(stage, classes[name], checks) for name in names},
        "third_party": sorted(stage.slicer.assumed),
    }


def _asked(what: str, ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except ShimJudgedError as error:
        raise UnreadableError(f"cannot tell {what}: {error}") from error


def _domains(stage: Stage) -> dict[str, Any]:
    """The values for which the trees hold."""
    ranges = ("head_size", "num_heads", *TEXT_CONFIG)
    return {
        "capability": list(stage.domains["capability"]),
        "kv_cache_dtype": list(stage.kv_cache_dtypes),
        "dtype": list(stage.domains["dtype"]),
        **{name: [stage.domains[name][0], stage.domains[name][-1]] for name in ranges},
    }


def _at(stage: Stage, name: str) -> str:
    module, _, _ = name.partition(":")
    return f"{module.replace('.', '/')}.py:{stage.slicer.line(name)}"


def _leaves(tree: Tree) -> Iterator[str]:
    """All strings in the lists of a tree."""
    if isinstance(tree, dict):
        for cases in tree.values():
            for sub in cases.values():
                yield from _leaves(sub)
    elif isinstance(tree, list):
        yield from tree


def _priorities(stage: Stage) -> Tree:
    function = stage.slicer.get(f"{_CUDA}:_get_backend_priorities")
    parameters = inspect.signature(function).parameters

    def ask(inputs: Inputs) -> Tree:
        offered = {
            "use_mla": inputs.known_value("use_mla"),
            "device_capability": stage.capability(),
            "use_non_causal": False,
        }
        rest = {name: inputs[name] for name in parameters if name not in offered}
        given = {name: value for name, value in offered.items() if name in parameters}
        return [backend.name for backend in function(**given, **rest)]

    return stage.explore(ask)


def _checks(stage: Stage) -> list[list[str | None]]:
    """``validate_configuration`` as rows ``[predicate, flag, reason if not, reason if not flag]``.

    In the release's own order. A row with a flag counts only when the flag is set, except for
    ``is_...``: those must equal the flag.
    """
    order = _Spy(stage, None, dict.fromkeys(FLAGS, True)).order
    rows: list[list[str | None]] = []
    for predicate in order:
        if predicate == "supports_combination":
            rows.append([predicate, None, None, None])
        elif predicate.startswith("is_"):
            flag = f"use_{predicate[3:]}"
            rows.append([predicate, flag, *(_Spy(stage, predicate, {flag: on}).reason for on in (True, False))])
        elif reason := _Spy(stage, predicate, {}).reason:
            rows.append([predicate, None, reason, None])
        else:
            found = ((flag, _Spy(stage, predicate, {flag: True}).reason) for flag in FLAGS)
            rows.extend([predicate, flag, reason, None] for flag, reason in found if reason)
    return rows


class _Spy:
    """One run of ``validate_configuration`` on a backend that refuses ``failing`` only."""

    def __init__(self, stage: Stage, failing: str | None, flags: dict[str, bool]) -> None:
        self.order: dict[str, None] = {}
        self._failing = failing
        self._flags = flags
        base = stage.backend_base()
        predicates = [name for name in dir(base) if name.startswith(("supports_", "is_"))]
        spy = type("Spy", (base,), {name: self._predicate(name) for name in predicates})
        # Names that a release does not have are dropped, those that nobody cares about are off.
        parameters = inspect.signature(spy.validate_configuration).parameters
        values: dict[str, Any] = {
            name: False for name in parameters if name.startswith(("use_", "has_"))
        }
        values |= {name: None for name in parameters if name not in values}
        values |= {name: on for name, on in flags.items() if name in parameters}
        values["attn_type"] = "decoder"
        reasons = spy.validate_configuration(**values)
        self.reason: str | None = reasons[0] if reasons else None

    def _predicate(self, name: str) -> Any:
        def answer(_: type, *__: Any, **___: Any) -> Any:
            self.order[name] = None
            if name == "supports_combination":
                return None
            expected = self._flags.get(f"use_{name[3:]}", False) if name.startswith("is_") else True
            return expected is not (name == self._failing)

        return classmethod(answer)


def _backend(stage: Stage, backend: Any, checks: list[list[str | None]]) -> dict[str, Any]:
    rows: dict[str, Any] = {"class": backend.__name__}
    for predicate in dict.fromkeys(str(row[0]) for row in checks):
        what = f"{backend.__name__}.{predicate}"
        tree = _asked(what, lambda: _predicate(stage, backend, predicate))  # noqa: B023
        code = getattr(backend, predicate).__func__.__code__
        rows[predicate] = [f"{code.co_filename}:{code.co_firstlineno}", tree]
    return rows


def _predicate(stage: Stage, backend: Any, predicate: str) -> Tree:
    function = getattr(backend, predicate)
    if predicate == "supports_combination":
        return stage.explore(lambda inputs: _combination(stage, function, inputs))

    def ask(inputs: Inputs) -> Tree:
        name = _ARGUMENTS.get(predicate)
        return bool(function(*([] if name is None else [_argument(stage, inputs, name)])))

    return stage.explore(ask)


def _argument(stage: Stage, inputs: Inputs, name: str) -> Any:
    """What the selector passes to a predicate for one of its parameters."""
    special: dict[str, Callable[[], Any]] = {
        "device_capability": stage.capability,
        "dtype": stage.dtype,
        "attn_type": lambda: "decoder",
        # A default launch has no --block-size.
        "block_size": lambda: None,
    }
    return special[name]() if name in special else inputs[name]


def _combination(stage: Stage, function: Any, inputs: Inputs) -> Tree:
    names = inspect.signature(stage.backend_base().supports_combination).parameters
    reason = function(**{name: _argument(stage, inputs, name) for name in names})
    if reason is None:
        return None
    return str.__str__(reason).replace(str(stage.capability()), "{device_capability}")


class _Named:
    """A value that prints as ``{name}``."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"{{{self.name}}}"


class _ChosenBackend(_Named):
    """A backend that was asked for and refuses."""

    def get_class(self) -> Any:
        return self

    def validate_configuration(self, *_: object, **__: object) -> Any:
        reasons = type("Reasons", (list,), {"__repr__": lambda _: "{reasons}"})
        return reasons(["refused"])


def _errors(stage: Stage) -> dict[str, str]:
    """The texts of ``get_attn_backend_cls``: ``none`` accepts, and the ``chosen`` one does not."""
    chosen: dict[str, str] = {}

    def no_backends(_: type, *__: object, **___: object) -> Any:
        return [], {}

    platform = type(
        "Platform", (type(stage.platform),), {"get_valid_backends": classmethod(no_backends)}
    )

    def ask(_: Inputs) -> Tree:
        for key, backend in (("none", None), ("chosen", _ChosenBackend("backend"))):
            try:
                platform.get_attn_backend_cls(backend, **_selector_arguments(stage))
            except ValueError as error:
                chosen[key] = f"ValueError: {error}"
        return None

    stage.explore(ask, capability=["9.0"])
    return {"none": chosen["none"].replace("Reasons: {}", "Reasons: {reasons}"), "chosen": chosen["chosen"]}


def _selector_arguments(stage: Stage) -> dict[str, Any]:
    """The arguments of ``get_attn_backend_cls`` but the first, each printing as its name."""
    named = {name: _Named(name) for name in ("head_size", "dtype", "kv_cache_dtype", *FLAGS)}
    parameters = inspect.signature(stage.platform.get_attn_backend_cls).parameters
    if "attn_selector_config" in parameters:
        selector = stage.slicer.get(
            stage.first(
                "vllm.attention.selector:AttentionSelectorConfig",
                "vllm.v1.attention.selector:AttentionSelectorConfig",
            )
        )
        fields = {name: value for name, value in named.items() if name in selector._fields}
        return {"attn_selector_config": selector(**fields, block_size=None)}
    positional = {name: value for name, value in named.items() if name in parameters}
    return {**positional, "block_size": _Named("block_size")}
