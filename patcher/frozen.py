"""``dataclass(frozen=True, slots=True)`` at a fifth of its cost; that is all it can do.

The standard decorator writes and compiles six methods for each class, in half a millisecond; of
forty classes that was the greatest part of what ``check`` did before it read a byte. Here only
``__init__`` is compiled, and all classes share the other methods. ``fields``, ``replace``,
``asdict``, ``copy`` and ``pickle`` work as ever. A class that leaves fields out of comparison or
``repr``, or has ``__post_init__``, takes the standard decorator.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(*, frozen: bool, slots: bool) -> Any:
        """The decorator; both arguments are true, and stand there for readers and type checkers."""
        assert frozen
        assert slots
        return _made


__all__ = ["dataclass"]


def _made(cls: type) -> type:
    cls.__doc__ = cls.__doc__ or cls.__name__  # else its signature is made to one, at some cost
    made: type = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    for name, method in _SHARED.items():
        if name not in cls.__dict__:
            setattr(made, name, method)
    setattr(made, "__init__", _init(made))  # noqa: B010 - mypy refuses the assignment
    return made


def _init(cls: Any) -> Any:
    """Compile ``__init__``: the one method whose parameters differ from class to class."""
    names: dict[str, Any] = {"put": object.__setattr__, "absent": dataclasses.MISSING}
    parameters, body = [], []
    for field in dataclasses.fields(cls):
        name, value = field.name, field.name
        if field.default is not dataclasses.MISSING:
            names[f"default_{name}"] = field.default
            parameters.append(f"{name}=default_{name}")
        elif field.default_factory is not dataclasses.MISSING:
            names[f"default_{name}"] = field.default_factory
            parameters.append(f"{name}=absent")
            value = f"default_{name}() if {name} is absent else {name}"
        else:
            parameters.append(name)
        body.append(f" put(self, {name!r}, {value})")
    source = f"def __init__(self, {', '.join(parameters)}):\n" + "\n".join(body)
    exec(source, names)  # noqa: S102 - as the standard decorator does, with names from our own code
    return names["__init__"]


def _values(self: Any) -> tuple[Any, ...]:
    return tuple([getattr(self, name) for name in self.__match_args__])


def _eq(self: Any, other: Any) -> bool:
    return _values(self) == _values(other) if other.__class__ is self.__class__ else NotImplemented


def _hash(self: Any) -> int:
    return hash(_values(self))


def _repr(self: Any) -> str:
    shown = zip(self.__match_args__, _values(self), strict=True)
    return f"{type(self).__qualname__}({', '.join(f'{name}={value!r}' for name, value in shown)})"


def _refuse(self: Any, name: str, *_value: Any) -> NoReturn:  # noqa: ARG001 - the signature of both
    raise dataclasses.FrozenInstanceError(f"cannot change or delete {name!r}")


def _restore(self: Any, state: tuple[Any, ...]) -> None:
    for name, value in zip(self.__match_args__, state, strict=True):
        object.__setattr__(self, name, value)


_SHARED = {
    "__eq__": _eq,
    "__hash__": _hash,
    "__repr__": _repr,
    "__setattr__": _refuse,
    "__delattr__": _refuse,
    "__getstate__": _values,
    "__setstate__": _restore,
}
