"""What differs between the values of two JSON files, however they are spelled."""

from __future__ import annotations

from typing import Any

from patcher import jsontext


def differences(before: bytes, after: bytes, source: str) -> list[str]:
    """A sentence for each value that differs; empty where the two say the same.

    Raises:
        UnreadableError: one of them is no JSON.
    """
    from deepdiff import DeepDiff  # noqa: PLC0415 - lazy: 130 ms, and few commands compare

    old: Any = jsontext.read(before, source=source).value
    delta = DeepDiff(old, jsontext.read(after, source=source).value, verbose_level=2)
    return [line for line in delta.pretty().splitlines() if line]
