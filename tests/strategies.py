"""Hypothesis strategies: JSON values, JSON texts in many hands, patches and broken bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jsonpatch
from hypothesis import strategies as st

from patcher.jsontext import format_pointer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

BOM = b"\xef\xbb\xbf"


def _survives(text: str) -> bool:
    """Two surrogates in a row are one character after a round trip, in every JSON library."""
    return bool(json.loads(json.dumps(text)) == text)


_characters = st.one_of(
    st.sampled_from('abc~/"\\\n\t\x00\x7f #[]{}:,-01\u00e9\uff5c\u2028\ud800\udfff\U0001f600'),
    st.characters(),
)
strings = st.text(_characters, max_size=6).filter(_survives)
# Few enough to collide, and hard ones: indices, escapes, the empty key.
keys = st.one_of(st.sampled_from(["a", "b", "c", "0", "1", "01", "-", "", "~", "/", "~1"]), strings)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, 1, 1.0, -0.0, 10**30, 1e308, float("inf"), float("-inf")]),
    st.floats(allow_nan=False),
    strings,
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


@dataclass(frozen=True)
class Hand:
    """The way ``json.dumps`` is told to write, and what it cannot be told."""

    indent: int | str | None
    separators: tuple[str, str]
    ensure_ascii: bool
    newline: str
    bom: bool
    end: str

    def write(self, value: Any) -> bytes:
        text = json.dumps(
            value,
            indent=self.indent,
            separators=self.separators,
            ensure_ascii=self.ensure_ascii,
        )
        text = "".join(f"\\u{ord(c):04x}" if "\ud800" <= c <= "\udfff" else c for c in text)
        return BOM * self.bom + (text + self.end).replace("\n", self.newline).encode()


@st.composite
def hands(draw: st.DrawFn) -> Hand:
    indent = draw(st.sampled_from([None, 0, 1, 2, 4, "\t"]))
    space = draw(st.booleans())
    comma = ", " if space and indent is None else ","
    return Hand(
        indent=indent,
        separators=(comma, ": " if space else ":"),
        ensure_ascii=draw(st.booleans()),
        newline=draw(st.sampled_from(["\n", "\r\n"])),
        bom=draw(st.booleans()),
        end=draw(st.sampled_from(["", "\n", "\n\n", " "])),
    )


_SPACES = ("", "", "", " ", "  ", "\n", "\n  ", "\r\n\t", "\n\n    ", " \n", "\r")


def scrawl(value: Any, random: Random, *, twice: bool = True) -> str:
    """Write ``value`` with any white space, any spelling and, if ``twice``, some keys twice."""

    def space() -> str:
        return random.choice(_SPACES)

    def join(members: list[str], brackets: str) -> str:
        inside = ",".join(space() + member + space() for member in members) or space()
        return brackets[0] + inside + brackets[1]

    def write(value: Any) -> str:
        if isinstance(value, list):
            return join([write(item) for item in value], "[]")
        if isinstance(value, dict):
            items = list(value.items())
            if twice and items and random.random() < 0.2:
                items.insert(random.randrange(len(items)), random.choice(items))
            return join(
                [_spell(key, random) + space() + ":" + space() + write(v) for key, v in items],
                "{}",
            )
        return _spell(value, random)

    return space() + write(value) + space()


def _spell(value: Any, random: Random) -> str:
    raw = isinstance(value, str) and _survives(value) and value.isprintable()
    text = json.dumps(value, ensure_ascii=not raw or random.random() < 0.5)
    if isinstance(value, str):
        return text.replace("/", "\\/") if random.random() < 0.5 else text
    return text.replace("e", "E") if isinstance(value, float) and "f" not in text else text


_randoms = st.randoms(use_true_random=False)
texts = st.builds(scrawl, values, _randoms)
texts_without_duplicates = st.builds(
    scrawl,
    st.lists(values, min_size=1, max_size=4) | st.dictionaries(keys, values, min_size=1),
    _randoms,
    twice=st.just(value=False),
)


def pointers(value: Any) -> list[tuple[str | int, ...]]:
    """List the path of every value, the whole first."""
    return list(_paths(value, ()))


def _paths(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    yield path
    items = enumerate(value) if isinstance(value, list) else ()
    for key, item in value.items() if isinstance(value, dict) else items:
        yield from _paths(item, (*path, key))


def places(value: Any) -> list[tuple[str | int, ...]]:
    """List the path of every value and of every place where one could be added."""
    found = pointers(value)
    for path in list(found):
        inner = value
        for token in path:
            inner = inner[token]
        if isinstance(inner, list):
            found += [(*path, "-"), (*path, len(inner))]
        if isinstance(inner, dict):
            found += [(*path, "new"), (*path, "a")]
    return found


def operation(value: Any, new: Any, choose: Callable[[list[Any]], Any]) -> dict[str, Any]:
    """Make one operation on ``value`` that mostly can be applied."""
    name = choose(["add", "remove", "replace", "test", "move", "copy"])
    existing = format_pointer(choose(pointers(value)))
    place = format_pointer(choose(places(value)))
    path = place if name in {"add", "move", "copy"} else existing
    made = {"op": name, "path": path}
    if name in {"move", "copy"}:
        made["from"] = existing
    if name in {"add", "replace"}:
        made["value"] = new
    if name == "test":
        made["value"] = choose([jsonpatch.JsonPointer(path).resolve(value), new])
    return made


@st.composite
def patches(draw: st.DrawFn, value: Any) -> list[dict[str, Any]]:
    """Draw up to four operations; each is made for what those before it leave."""

    def choose(options: list[Any]) -> Any:
        return options[draw(st.integers(0, len(options) - 1))]

    patch: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, 4))):
        patch.append(operation(value, draw(values), choose))
        try:
            value = jsonpatch.apply_patch(value, patch[-1:])
        except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException):
            break
    return patch


def _break(text: str, random: Random) -> bytes:
    data = bytearray(text.encode())
    for _ in range(random.randint(1, 3)):
        start = random.randint(0, len(data))
        junk = random.choice([b"", b"\0", b"\xff", b",", b"[", b"}", b'"', b"\\", b"1e5", b"//"])
        data[start : start + random.randint(0, 2)] = junk
    return bytes(data)


# Any bytes, and JSON texts with a few bytes changed, cut out or put in.
broken_bytes = st.one_of(st.binary(max_size=40), st.builds(_break, texts, _randoms))
