"""What config.json asks of a vLLM release's attention layers besides sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from patcher.engines.vllm.trees import Trees

if TYPE_CHECKING:
    from collections.abc import Mapping


def mm_prefix(facts: Mapping[str, Any], outer: Mapping[str, Any], text: Mapping[str, Any]) -> bool:
    """Whether the layers attend to a multimodal prefix in both directions.

    Args:
        facts: the selection facts of the release; their rule is described in
            extract/vllm_features.py.
        outer: config.json.
        text: the language model's part of it.

    Raises:
        UnknownError: the release's rule could not be asked.
    """
    rule = facts["mm_prefix"]
    if rule is None:
        return False
    nested = rule["asks"] == "layer" and outer.get("model_type") in rule["language_models"]
    config = text if nested else outer
    levels = {"": config, "text.": text}
    stated = {
        f"{level}{name}": value
        for level, fields in levels.items()
        for name, value in fields.items()
        if isinstance(value, (bool, int, str))
    }
    inputs = _Present(stated)
    tree = rule["types"].get(config.get("model_type"), rule["others"])
    return bool(Trees(facts, inputs).value(tree))


class _Present(dict[str, Any]):
    """Fields; ``has NAME`` says whether NAME is there."""

    def get(self, key: str, default: Any = None) -> Any:
        if key.startswith("has "):
            return key.removeprefix("has ") in self
        return super().get(key, default)
