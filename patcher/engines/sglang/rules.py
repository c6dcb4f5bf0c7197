"""Ask a table of facts: ordered rules, of which the first that holds decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from patcher.engines import facts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Table = Mapping[str, Any]


def load(release: str) -> Mapping[str, Any]:
    """The facts about a release; where they equal an older one's, they are stored once."""
    found = facts.load("sglang", release, "rules")
    return load(found["same_as"]) if "same_as" in found else found


def covers(table: Table, given: Mapping[str, str]) -> bool:
    """Whether the release was asked about these values; outside them the rules say nothing."""
    return all(given.get(name, "-") in values for name, values in table["features"].items())


def decide(rules: Sequence[Mapping[str, Any]], given: Mapping[str, str]) -> Any:
    """``then`` of the first rule that holds; a rule's missing feature holds for every value.

    Values are joined by commas; after ``!`` they are the ones for which the rule does not hold.
    """
    for rule in rules:
        if all(_holds(rule[name], given.get(name, "-")) for name in rule if name != "then"):
            return rule["then"]
    raise AssertionError("the last rule of a table has no condition")


def outcome(table: Table, given: Mapping[str, str]) -> dict[str, Any]:
    """All fields of what the release resolves, or its refusal (``err``, ``msg``)."""
    refusal = decide(table["refusal"], given)
    if refusal is not None:
        return {key: _filled(value, given) for key, value in refusal.items()}
    fields = (name for name in table if name not in {"from", "features", "refusal"})
    return {name: _filled(decide(table[name], given), given) for name in fields}


def _holds(condition: str, value: str) -> bool:
    if condition.startswith("!"):
        return value not in condition[1:].split(",")
    return value in condition.split(",")


def _filled(value: Any, given: Mapping[str, str]) -> Any:
    """``{kv_flag}`` and the like stand for what was given."""
    if isinstance(value, str) and "{" in value:
        for name, text in given.items():
            value = value.replace(f"{{{name}}}", text)
    return value
