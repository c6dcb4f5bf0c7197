"""The JSON of a safetensors header: as strict as serde_json, which the safetensors package uses."""

from __future__ import annotations

import json
import reprlib
from collections import Counter
from typing import Any

from patcher.errors import UnreadableError


def parse(raw: bytes, name: str, start: int) -> dict[str, Any]:
    """The object that ``raw``, which begins ``start`` bytes into the file ``name``, holds.

    Raises:
        UnreadableError: with the offset in the file.
    """
    if not raw.startswith(b"{"):
        found = "a byte order mark" if raw.startswith(b"\xef\xbb\xbf") else ascii(raw[:1])[1:]
        raise UnreadableError(
            f"the header must begin with '{{', not with {found if raw else 'the end of it'}",
            path=name,
            offset=start,
        )
    if b"\0" in raw:  # found first: the holes of a half-written file cost no further memory
        raise UnreadableError(
            "the header has NUL bytes: the file is damaged, or padded with something else than "
            "spaces",
            path=name,
            offset=start + raw.index(b"\0"),
        )
    at = start
    try:
        return _load(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        reason, at = "it is not UTF-8", at + error.start
    except json.JSONDecodeError as error:
        before = error.pos if raw.isascii() else len(error.doc[: error.pos].encode())
        reason, at = error.msg, at + before
    except RecursionError:
        reason = "it is nested too deeply"
    except MemoryError:
        reason = "it takes more memory than there is"
    except ValueError as error:
        reason = str(error)
    raise UnreadableError(f"the header cannot be used: {reason}", path=name, offset=at)


def _load(text: str) -> dict[str, Any]:
    """Parse; ValueError for what serde_json refuses and the checks of values would not notice."""
    value: dict[str, Any] = json.loads(
        text,
        object_pairs_hook=_unique,
        # A hook costs a call per number; of the negative ones only "-0" becomes a good int.
        parse_int=_natural if "-0" in text else None,
    )
    if "\\u" in text:
        _refuse_lone_surrogates(value)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        (twice, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the name {reprlib.repr(twice)} stands twice in one object")
    return value


def _natural(literal: str) -> int:
    if literal.startswith("-"):
        raise ValueError(f"the number {literal} is negative")
    return int(literal)


def _refuse_lone_surrogates(value: dict[str, Any]) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("it has half of a surrogate pair as an escape") from None
