"""Answers out of the trees of a vLLM release's facts (see extract/explore.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class UnknownError(Exception):
    """The facts do not cover this input."""


class Trees:
    """The facts of one release and the inputs of one question."""

    def __init__(self, facts: Mapping[str, Any], inputs: dict[str, Any]) -> None:
        self.facts = facts
        self.inputs = inputs

    def value(self, tree: Any) -> Any:
        """The answer in a tree.

        Raises:
            UnknownError: an input that matters is outside the domain that was tried, or the
                release's code could not be asked.
        """
        while isinstance(tree, dict):
            ((name, cases),) = tree.items()
            value = self.inputs.get(name)
            self._check_domain(name, value)
            keys = (key for key in cases if key != "*" and _matches(key, value))
            tree = cases[next(keys, "*")]
        if isinstance(tree, list) and tree[:1] == ["unknown"]:
            raise UnknownError(tree[1])
        return tree

    def text(self, template: str) -> str:
        """The engine's words with the inputs that it put into them."""
        text = template
        for name in ("capability", "head_size", "kv_cache_dtype", "num_heads", "gpu"):
            text = text.replace(f"{{{name}}}", str(self.inputs[name]))
        for name, domain in self.facts["domains"].items():
            if isinstance(domain, dict):
                text = text.replace(f"{{{name}}}", str(self.inputs.get(name)))
        major, minor = self.inputs["capability"].split(".")
        named = f"DeviceCapability(major={major}, minor={minor})"
        return text.replace("{device_capability}", named)

    def _check_domain(self, name: str, value: Any) -> None:
        domain = self.facts["domains"].get(name)
        if domain is None:
            return
        if isinstance(domain, dict):
            known = value in range(domain["from"], domain["to"] + 1, domain["step"])
        else:
            known = value in domain
        if not known:
            release = self.facts["release"]
            raise UnknownError(f"the facts about {release} do not cover {name} {value}")


def _matches(key: str, value: Any) -> bool:
    """Whether ``value`` is one of ``"auto fp8"``, ``"true"`` or ``"8-64 128"``."""
    if isinstance(value, bool):
        return key == str(value).lower()
    if isinstance(value, str):
        return value in key.split()
    bounds = (word.partition("-") for word in key.split())
    return any(int(low) <= value <= int(high or low) for low, _, high in bounds)
