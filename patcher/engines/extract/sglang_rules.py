"""Turn a grid of observations into a short ordered list of rules that says exactly the same.

A rule holds where every feature that it names has one of the values that it lists; the first rule
that holds decides. The result is checked against every row, so nothing is approximated.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Row = tuple[dict[str, str], Any]

#: How many outcomes, the most frequent first, are tried for the next rule.
_CANDIDATES = 6


class Grid:
    """Observations as bit masks: bit ``i`` of a mask stands for row ``i``."""

    def __init__(self, rows: Iterable[Row], features: Sequence[str]) -> None:
        self.features = tuple(features)
        self.rows = list(rows)
        self.all = (1 << len(self.rows)) - 1
        turns = [self.features[i:] + self.features[:i] for i in range(len(self.features))]
        #: In which order a box grows decides what it can become.
        self.orders = [*turns, *(turn[::-1] for turn in turns)]
        self.values: dict[str, dict[str, int]] = {name: {} for name in self.features}
        self.outcomes: dict[str, int] = {}
        for position, (row, outcome) in enumerate(self.rows):
            bit = 1 << position
            key = json.dumps(outcome, sort_keys=True)
            self.outcomes[key] = self.outcomes.get(key, 0) | bit
            for name in self.features:
                masks = self.values[name]
                masks[row[name]] = masks.get(row[name], 0) | bit

    def rules(self) -> list[dict[str, Any]]:
        """Ordered rules: feature -> values separated by commas, ``then`` -> outcome."""
        found, left = [], self.all
        while left:
            box, mask, key = self._best(left)
            found.append({**self._named(box), "then": json.loads(key)})
            left &= ~mask
        return found

    def _best(self, left: int) -> tuple[dict[str, set[str]], int, str]:
        remaining = sorted(self.outcomes, key=lambda key: -(self.outcomes[key] & left).bit_count())
        best: tuple[int, dict[str, set[str]], int, str] | None = None
        for key in remaining[:_CANDIDATES]:
            wanted = self.outcomes[key] & left
            if not wanted:
                continue
            seed = self.rows[(wanted & -wanted).bit_length() - 1][0]
            for order in self.orders:
                box, mask = self._grow(seed, order, left & ~wanted)
                score = (mask & left).bit_count()
                if best is None or score > best[0]:
                    best = score, box, mask, key
        assert best is not None
        return best[1:]

    def _grow(
        self, seed: dict[str, str], order: Sequence[str], forbidden: int
    ) -> tuple[dict[str, set[str]], int]:
        """The largest box around ``seed``, feature by feature, that touches no forbidden row."""
        masks = {name: self.values[name][seed[name]] for name in self.features}
        box = {name: {seed[name]} for name in self.features}
        for name in order:
            others = self.all
            for other in self.features:
                if other != name:
                    others &= masks[other]
            for value, mask in self.values[name].items():
                if not others & mask & forbidden:
                    masks[name] |= mask
                    box[name].add(value)
        total = self.all
        for mask in masks.values():
            total &= mask
        return box, total

    def _named(self, box: dict[str, set[str]]) -> dict[str, str]:
        """The conditions; a full one is left out, ``!`` lists what is excluded if shorter."""
        named = {}
        for name in self.features:
            inside = ",".join(value for value in self.values[name] if value in box[name])
            outside = ",".join(value for value in self.values[name] if value not in box[name])
            if outside:
                named[name] = inside if len(inside) <= len(outside) else f"!{outside}"
        return named
