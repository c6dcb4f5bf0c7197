"""Stand-ins for what an engine imports and this machine does not have.

A stand-in may be passed around, called and subclassed, so that code which merely mentions torch can
run. It must never decide anything: as soon as one is compared, tested for truth, counted, hashed or
iterated, ``ShimJudgedError`` ends the evaluation. It derives from BaseException, because engines
are fond of ``except Exception: return False``.
"""

from __future__ import annotations

import os
import types
import typing
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping


class ShimJudgedError(BaseException):
    """The engine's answer depends on a third-party value that nobody has given."""


class Absent:
    """As the value of an answer: importing this name raises ModuleNotFoundError."""


ABSENT = Absent()


class Atom:
    """A named constant that equals itself only, such as ``torch.float16``."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        """The name, as the library itself prints it."""
        return self.name


def _judge(operation: str) -> Callable[..., NoReturn]:
    def judged(self: Shim, *_: object) -> NoReturn:
        name = object.__getattribute__(self, "_name")
        raise ShimJudgedError(f"{name} is unknown here, but {operation} asks for its value")

    return judged


class Shim:
    """An unknown third-party object called ``name``.

    Attributes are looked up in ``known`` under their full dotted name first, so
    ``Shim("torch", {"torch.version.cuda": "13.0"}).version.cuda`` is a real string and everything
    else under torch is another Shim.
    """

    __slots__ = ("_known", "_name")

    def __init__(self, name: str, known: Mapping[str, Any]) -> None:
        object.__setattr__(self, "_name", name)
        object.__setattr__(self, "_known", known)

    def __setattr__(self, _: str, __: object) -> None:
        """Forgotten: what is read later is unknown again."""

    def __getattr__(self, key: str) -> Any:
        """A known value, else a Shim; special methods that are not defined here do not exist."""
        if key.startswith("__"):
            raise AttributeError(key)
        full = f"{self._name}.{key}"
        value = self._known.get(full, self)
        if value is ABSENT:
            raise AttributeError(f"{full} is absent")
        return Shim(full, self._known) if value is self else value

    def __call__(self, *_: object, **__: object) -> Shim:
        """An unknown result."""
        return Shim(f"{self._name}()", self._known)

    def __getitem__(self, _: object) -> Shim:
        """``Shim[...]`` in a type expression."""
        return Shim(f"{self._name}[]", self._known)

    def __or__(self, _: object) -> Shim:
        """``Shim | None`` in a type expression."""
        return self

    __ror__ = __or__

    def __mro_entries__(self, _: tuple[object, ...]) -> tuple[type, ...]:
        """As a base class it adds nothing: an inherited attribute is missing, not invented."""
        return ()

    def __repr__(self) -> str:
        """Visible in any text that it leaks into."""
        return f"<shim {self._name}>"

    __bool__ = _judge("a truth test")
    __eq__ = _judge("==")
    __ne__ = _judge("!=")
    __lt__ = _judge("<")
    __le__ = _judge("<=")
    __gt__ = _judge(">")
    __ge__ = _judge(">=")
    __hash__ = _judge("hash()")
    __len__ = _judge("len()")
    __iter__ = _judge("iteration")
    __contains__ = _judge("'in'")
    __int__ = _judge("int()")
    __float__ = _judge("float()")
    __index__ = _judge("an index")
    __add__ = __radd__ = __sub__ = __rsub__ = _judge("arithmetic")
    __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _judge("arithmetic")
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _judge("arithmetic")
    __instancecheck__ = __subclasscheck__ = _judge("isinstance()")


def _identity(value: Any) -> Any:
    return value


class _TypingExtensions:
    """``typing_extensions`` as far as ``typing`` of this Python goes; the rest are Shims."""

    override = staticmethod(_identity)
    runtime_checkable = staticmethod(typing.runtime_checkable)

    @staticmethod
    def deprecated(*_: object, **__: object) -> Callable[[Any], Any]:
        return _identity

    def __getattr__(self, key: str) -> Any:
        missing = object()
        value = getattr(typing, key, missing)
        return Shim(f"typing_extensions.{key}", {}) if value is missing else value


def release_os(exists: Callable[[str], bool]) -> dict[str, Any]:
    """``os`` and ``os.path`` with the files of the release and an empty environment.

    What the engine decides by files or environment variables of this machine is not a fact.
    """
    path = types.SimpleNamespace(
        **{**vars(os.path), "exists": exists, "isfile": exists, "islink": lambda _: False}
    )
    environment: dict[str, str] = {}
    changed = {"path": path, "environ": environment, "getenv": environment.get}
    return {"os": types.SimpleNamespace(**{**vars(os), **changed}), "os.path": path}


TORCH_DTYPES = ("float32", "float16", "bfloat16", "float64", "uint8", "int8", "int16", "int32")
TORCH_FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")


def third_party() -> MutableMapping[str, Any]:
    """What every engine needs: torch's dtypes and typing_extensions. A new dict each time."""
    answers: dict[str, Any] = {"typing_extensions": _TypingExtensions()}
    for name in (*TORCH_DTYPES, *TORCH_FLOAT8, "int64", "bool"):
        answers[f"torch.{name}"] = Atom(f"torch.{name}")
    answers["torch.half"] = answers["torch.float16"]
    answers["torch.float"] = answers["torch.float32"]
    answers["torch.long"] = answers["torch.int64"]
    answers["torch.int"] = answers["torch.int32"]
    return answers
