from __future__ import annotations

import pytest

from patcher.releases import ranges

KNOWN = ("0.12.0", "0.13.0", "0.14.1", "0.16.0", "0.18.1", "0.33.0")


@pytest.mark.parametrize(
    ("releases", "text"),
    [
        ([], ""),
        (["0.16.0"], "0.16.0"),
        (["0.16.0", "0.14.1"], "0.14.1 to 0.16.0"),
        (KNOWN, "0.12.0 to 0.33.0"),
        (["0.12.0", "0.14.1", "0.16.0", "0.33.0"], "0.12.0, 0.14.1 to 0.16.0, 0.33.0"),
    ],
)
def test_neighbours_become_ranges(releases: list[str], text: str) -> None:
    assert ranges(releases, KNOWN) == text
