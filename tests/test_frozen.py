"""Our decorator does what the standard one does, for what it is used for."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import field
from typing import TYPE_CHECKING, Any

import pytest

from patcher import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping


@frozen.dataclass(frozen=True, slots=True)
class Ours:
    """With a default of each kind."""

    name: str
    size: int = 3
    more: Mapping[str, int] = field(default_factory=dict)

    @property
    def doubled(self) -> int:
        return self.size * 2


@dataclasses.dataclass(frozen=True, slots=True)
class Theirs:
    """The same."""

    name: str
    size: int = 3
    more: Mapping[str, int] = field(default_factory=dict)

    @property
    def doubled(self) -> int:
        return self.size * 2


BOTH: list[Any] = [Ours, Theirs]


@pytest.mark.parametrize("kind", BOTH)
def test_values(kind: Any) -> None:
    value = kind("a", more={"b": 1})
    assert (value.name, value.size, value.more, value.doubled) == ("a", 3, {"b": 1}, 6)
    assert value == kind("a", 3, {"b": 1})
    assert value != kind("a", 4, {"b": 1})
    assert value != ("a", 3, {"b": 1})
    assert repr(value) == f"{kind.__name__}(name='a', size=3, more={{'b': 1}})"
    assert kind("a").more is not kind("a").more
    assert kind.__match_args__ == ("name", "size", "more")
    assert not hasattr(value, "__dict__")


@pytest.mark.parametrize("kind", BOTH)
def test_the_tools_of_dataclasses(kind: Any) -> None:
    value = kind("a")
    assert [item.name for item in dataclasses.fields(value)] == ["name", "size", "more"]
    assert dataclasses.replace(value, size=5) == kind("a", 5)
    assert dataclasses.asdict(value) == {"name": "a", "size": 3, "more": {}}
    assert copy.copy(value) == copy.deepcopy(value) == value
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("kind", BOTH)
def test_it_is_frozen_and_hashed_by_its_values(kind: Any) -> None:
    value = kind("a", 1, ())
    assert {value: 1}[kind("a", 1, ())] == 1
    with pytest.raises(TypeError):
        hash(kind("a"))  # a dict is in it
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.size = 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        del value.size
    with pytest.raises((dataclasses.FrozenInstanceError, AttributeError, TypeError)):
        value.other = 1


@pytest.mark.parametrize("kind", BOTH)
def test_wrong_arguments(kind: Any) -> None:
    for words, named in (((), {}), (("a", 1, {}, 2), {}), (("a",), {"other": 1})):
        with pytest.raises(TypeError):
            kind(*words, **named)
