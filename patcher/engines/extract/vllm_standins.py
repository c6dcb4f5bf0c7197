"""What vLLM's selector needs around it: configuration objects, a logger, decorators."""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

from patcher.engines.extract.shims import Shim

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Settings(types.SimpleNamespace):
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


def undecorated(*arguments: Any, **_: Any) -> Any:
    """A class decorator, with or without arguments, that leaves the class as it is written."""
    return arguments[0] if arguments else undecorated


def field(default: Any = Shim("a required setting", {}), **_: Any) -> Any:  # noqa: B008
    """``pydantic.Field``: the default alone."""
    return default


class Module:
    """``torch.nn.Module`` as far as constructors use it."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def register_buffer(self, name: str, value: object, **_: object) -> None:
        """Keep the tensor as an attribute."""
        setattr(self, name, value)


class Quiet:
    """A logger."""

    def __getattr__(self, _: str) -> Callable[..., None]:
        """Any log method."""
        return lambda *_, **__: None


def uncached_functools() -> types.SimpleNamespace:
    """``functools`` without caches: an answer must not outlive the inputs that it was given for."""

    def lru_cache(maxsize: Any = None, typed: bool = False) -> Any:  # noqa: ARG001, FBT001, FBT002
        return maxsize if callable(maxsize) else lambda function: function

    return types.SimpleNamespace(
        **{**vars(functools), "cache": lambda function: function, "lru_cache": lru_cache}
    )
