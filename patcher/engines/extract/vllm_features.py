"""Which models a vLLM release runs with bidirectional attention over a multimodal prefix.

The rule looks at config.json and was rewritten several times. The attention layer asks it about the
model's config, or, in some releases, about the config that it sees itself: a language model that is
made from a registered class of its own gets the nested one.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from patcher.engines.extract.explore import explore
from patcher.engines.extract.shims import ShimJudgedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from patcher.engines.extract.explore import Inputs, Tree
    from patcher.engines.extract.slicer import Slicer

_MODEL_CONFIG = "vllm.config.model:ModelConfig"
_CONVERTORS = "vllm.transformers_utils.model_arch_config_convertor"
_REGISTRY = "vllm.model_executor.models.registry:_MULTIMODAL_MODELS"
_RULE = "is_mm_prefix_lm"
#: What releases have looked at besides ``model_type``, and the values tried. Of text, all values
#: that the rule does not name are alike: the longer group stands for values not tried.
_FIELDS: dict[str, Sequence[Any]] = {
    "is_mm_prefix_lm": (False, True),
    "use_bidirectional_attention": ("vision", "all", "none"),
    "vision_n_layers": range(1025),
}


def mm_prefix(release: Slicer) -> dict[str, Any] | None:
    """``None`` in releases without such a rule.

    ``asks`` is the config that decides: the ``model``'s or the ``layer``'s. ``language_models`` are
    the types whose layers see the nested config, with the line that says so. ``types`` are the
    trees for the model types that differ from all ``others``.
    """
    rule = getattr(release.get(_MODEL_CONFIG), _RULE, None) and _rule(release)
    if rule is None:
        return None
    others = _answers(rule, "")
    types_ = {name: _answers(rule, name) for name in rule.model_types}
    types_ = {name: tree for name, tree in types_.items() if tree != others}
    return {
        "from": rule.place,
        "asks": "model" if _is_kept(release) else "layer",
        "language_models": dict(_language_models(release, types_)),
        "types": types_,
        "others": others,
    }


def _is_kept(release: Slicer) -> bool:
    """The answer about the outermost config is cached before a nested one takes its place."""
    attribute = inspect.getattr_static(release.get(_MODEL_CONFIG), _RULE)
    early = release.get("vllm.platforms.cuda:CudaPlatformBase").check_and_update_config
    return isinstance(attribute, functools.cached_property) and (
        _RULE in early.__func__.__code__.co_names
    )


class _Rule:
    """The release's rule as a function of two configs.

    Attributes:
        place: file and line.
        model_types: those that it may tell apart.
    """

    def __init__(self, function: Any, convertors: Mapping[str, Any]) -> None:
        code = function.__code__
        self._function = function
        self._convertors = convertors
        self.place = f"{code.co_filename}:{code.co_firstlineno}"
        self.model_types = sorted({*convertors, *_strings(code.co_consts)})

    def __call__(self, model_type: str, inputs: Inputs) -> bool:
        convertor = self._convertors.get(model_type)
        function = getattr(convertor, _RULE) if convertor else self._function
        config, text = _Config(inputs, model_type=model_type), _Config(inputs, "text.")
        return bool(function(SimpleNamespace(hf_config=config, hf_text_config=text)))


def _rule(release: Slicer) -> _Rule:
    base = f"{_CONVERTORS}:ModelArchConfigConvertorBase"
    if release.has(base) and hasattr(release.get(base), _RULE):
        convertors = release.get(f"{_CONVERTORS}:MODEL_ARCH_CONFIG_CONVERTORS")
        return _Rule(getattr(release.get(base), _RULE), convertors)
    found = inspect.getattr_static(release.get(_MODEL_CONFIG), _RULE)
    return _Rule(found.func if isinstance(found, functools.cached_property) else found.fget, {})


def _strings(constants: tuple[Any, ...]) -> Iterator[str]:
    """Single words among the constants of a function: names of model types."""
    for value in constants:
        if isinstance(value, tuple):
            yield from _strings(value)
        elif isinstance(value, str) and re.fullmatch(r"[a-z0-9_]+", value) and value not in _FIELDS:
            yield value


class _Config:
    """One level of config.json: each field may be absent, or have any value of its domain."""

    def __init__(self, inputs: Inputs, prefix: str = "", **known: str) -> None:
        vars(self).update(known, _inputs=inputs, _prefix=prefix)

    def __getattr__(self, key: str) -> Any:
        """The field as an input; those of the language model's config are named ``text.``."""
        if key.startswith("__"):
            raise AttributeError(key)
        if key not in _FIELDS:
            raise ShimJudgedError(f"the release reads {key} of the model's config")
        if not self._inputs.known_value(f"has {self._prefix}{key}"):
            raise AttributeError(key)
        return self._inputs[f"{self._prefix}{key}"]


def _answers(rule: _Rule, model_type: str) -> Tree:
    fields = {
        f"{level}{name}": values for level in ("", "text.") for name, values in _FIELDS.items()
    }
    present = {f"has {name}": (False, True) for name in fields}
    try:
        return explore(lambda inputs: rule(model_type, inputs), {**fields, **present})
    except ShimJudgedError as error:
        return ["unknown", str(error)]


def _language_models(release: Slicer, model_types: Mapping[str, Tree]) -> Iterator[tuple[str, str]]:
    modules = release.get(_REGISTRY)
    for name in model_types:
        pattern = re.compile(rf"{name.replace('_', '')}For\w+", re.IGNORECASE)
        for architecture, (module, _) in modules.items():
            path = f"vllm/model_executor/models/{module}.py"
            if pattern.fullmatch(architecture) and (line := _nested_line(release, path)):
                yield name, f"{path}:{line}"


def _nested_line(release: Slicer, path: str) -> int:
    """Where a model makes its language model with a config of its own; 0: nowhere."""
    if not release.source.exists(path):
        return 0
    for node in ast.walk(ast.parse(release.source.read(path))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == (
            "init_vllm_registered_model"
        ):
            return node.lineno
    return 0
