from __future__ import annotations

from itertools import product
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from patcher.engines.extract.explore import Inputs, Tree, explore
from patcher.engines.vllm.selection import _Run

DOMAINS: dict[str, Any] = {
    "capability": ("8.9", "9.0"),
    "dtype": ("auto", "fp8", "fp8_e4m3", "nvfp4"),
    "size": range(1, 65),
    "sparse": (False, True),
}

Condition = tuple[str, Any]
CONDITIONS: tuple[Condition, ...] = (
    ("size is 32", lambda i: i["size"] == 32),
    ("size under 9", lambda i: i["size"] < 9),
    ("size even", lambda i: i["size"] % 2 == 0),
    ("size listed", lambda i: i["size"] in [8, 16, 64]),
    ("size in set", lambda i: i["size"] in {8, 16}),
    ("size times 3", lambda i: i["size"] * 3 > 100),
    ("size over 40", lambda i: not i["size"] <= 40),
    ("size in tuple", lambda i: (i["size"], 1) == (5, 1)),
    ("fp8 family", lambda i: i["dtype"].startswith("fp8")),
    ("dtype listed", lambda i: i["dtype"] in ("auto", "nvfp4")),
    ("dtype in dict", lambda i: {"auto": False}.get(i["dtype"], True)),
    ("e4m3", lambda i: "e4m3" in i["dtype"]),
    ("upper", lambda i: i["dtype"].upper() == "FP8"),
    ("sparse", lambda i: bool(i["sparse"])),
    ("hopper", lambda i: i["capability"] == "9.0"),
)


def plain(tree: Tree, values: dict[str, Any]) -> Any:
    domains = {
        name: {"from": 1, "to": 64, "step": 1} if name == "size" else list(domain)
        for name, domain in DOMAINS.items()
        if name != "sparse"
    }
    return _Run({"domains": domains, "release": "test"}, values).value(tree)


@given(st.lists(st.sampled_from(CONDITIONS), min_size=1, max_size=4, unique_by=lambda c: c[0]))
def test_a_tree_answers_as_the_predicate_does(conditions: list[Condition]) -> None:
    def ask(inputs: Any) -> Tree:
        return next((name for name, holds in conditions if holds(inputs)), None)

    tree = explore(ask, DOMAINS)
    for combination in product(*DOMAINS.values()):
        values = dict(zip(DOMAINS, combination, strict=True))
        assert plain(tree, values) == ask(values)


def test_a_predicate_is_run_only_where_it_looks() -> None:
    runs = 0

    def ask(inputs: Inputs) -> Tree:
        nonlocal runs
        runs += 1
        return bool(inputs["size"] == 32)

    assert explore(ask, DOMAINS) == {"size": {"32": True, "*": False}}
    assert runs == 3


def test_equal_answers_are_one_branch_and_an_input_that_does_not_matter_is_none() -> None:
    tree = explore(lambda inputs: bool(inputs["dtype"].startswith("fp8")), DOMAINS)
    assert tree == {"dtype": {"auto nvfp4": False, "*": True}}
    assert explore(lambda inputs: bool(inputs["sparse"]) or True, DOMAINS) is True


def test_messages_hold_the_name_of_what_was_put_in() -> None:
    def ask(inputs: Inputs) -> Tree:
        size = inputs["size"]
        return None if size in (8, 16) else f"needs 8 or 16, got {size} in ({size},)"

    expected = "needs 8 or 16, got {size} in ({size},)"
    assert explore(ask, DOMAINS) == {"size": {"8 16": None, "*": expected}}


def test_a_step_in_the_domain_is_kept() -> None:
    tree = explore(lambda inputs: bool(inputs["top"] >= 128), {"top": range(0, 513, 64)})
    assert tree == {"top": {"0-64": False, "*": True}}
