"""``ckpt-patch engines``: what is known, and what changed between two releases."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from patcher import engines
from patcher.engines import facts

if TYPE_CHECKING:
    from running import Run


def document(run: Run, *words: str) -> dict[str, Any]:
    done = run(*words, "--json")
    assert done.code == 0
    parsed: dict[str, Any] = json.loads(done.out)
    return parsed


@pytest.mark.parametrize("words", [("engines",), ("engines", "list")])
def test_every_release_is_listed_with_its_source_and_date(run: Run, words: tuple[str]) -> None:
    listed = document(run, *words)
    assert listed["schema"] == "ckpt-patch/engines@1"
    assert listed["releases"]["vllm"] == list(engines.releases("vllm"))
    rows = {(row["engine"], row["release"]): row for row in listed["facts"]}
    known = [(name, each) for name in engines.NAMES for each in engines.releases(name)]
    by_rule = [("vllm", each) for each in facts.read("vllm")]
    assert sorted(rows) == sorted([*known, *by_rule])
    assert {rows[each]["how"] for each in by_rule} == {"read"}
    assert rows["vllm", "0.16.0"]["how"] == "run"
    assert rows["vllm", "0.16.0"]["date"] == "2026-02-26"
    assert rows["trtllm", "1.2.0"]["how"] == "read"
    assert all(re.fullmatch(r"202\d-\d\d-\d\d", row["date"]) for row in rows.values())


def test_the_list_for_people_says_what_its_words_mean(run: Run) -> None:
    shown = run("engines", "list").out
    assert re.search(r"^vllm==0\.16\.0 +2026-02-26  run$", shown, re.MULTILINE)
    assert "\nrun   the release's own code was run" in shown
    assert "\nread  the code was read, not run" in shown
    assert "probed" not in shown


def test_the_quiet_list_is_one_release_a_line(run: Run) -> None:
    lines = run("engines", "list", "-q").out.splitlines()
    assert "vllm==0.16.0" in lines
    assert all(re.fullmatch(r"\w+==[\w.]+", line) for line in lines)


def test_what_changed_for_one_card(run: Run) -> None:
    changed = document(run, "engines", "diff", "vllm==0.17.1", "vllm==0.18.0", "-t", "sm120")
    assert (changed["schema"], changed["engine"]) == ("ckpt-patch/engines-diff@1", "vllm")
    assert (changed["before"], changed["after"], changed["gpus"]) == ("0.17.1", "0.18.0", ["sm120"])
    rows = {(row["attention"], row["flag"], row["statement"]): row for row in changed["changes"]}
    assert rows["mla-dense-576", "fp8_e4m3", None] == {
        "gpus": ["sm120"],
        "attention": "mla-dense-576",
        "flag": "fp8_e4m3",
        "statement": None,
        "before": {
            "starts": False,
            "backend": None,
            "kv_cache_dtype": None,
            "why": "KV001, selector",
        },
        "after": {
            "starts": True,
            "backend": "TRITON_MLA",
            "kv_cache_dtype": "fp8_e4m3",
            "why": None,
        },
    }
    declared = rows["mla-dense-576", "auto", "ModelOpt kv_cache_scheme FP8"]
    assert (declared["before"]["why"], declared["after"]["backend"]) == (
        "KV001, selector",
        "TRITON_MLA",
    )
    assert not [key for key in rows if key[0] == "gqa-128" and key[1] != "float16"]
    assert "selection.backends" in changed["facts"]


def test_a_resolver_that_starts_to_read_is_a_change(run: Run) -> None:
    changed = document(run, "engines", "diff", "vllm==0.13.0", "vllm==0.14.0", "-t", "h100")
    (row,) = [
        row
        for row in changed["changes"]
        if (row["attention"], row["statement"]) == ("gqa-128", "ModelOpt kv_cache_scheme FP8")
    ]
    assert (row["before"]["kv_cache_dtype"], row["after"]["kv_cache_dtype"]) == ("auto", "fp8_e4m3")


def test_the_table_of_changes(run: Run) -> None:
    done = run("engines", "diff", "vllm==0.17.1", "vllm==0.18.0", "--target", "sm120")
    line = re.compile(
        r"^  sm120  mla-dense-576  fp8_e4m3 +refuses \(KV001, selector\) +TRITON_MLA, fp8_e4m3$",
        re.MULTILINE,
    )
    assert done.out.startswith("vLLM 0.17.1 -> 0.18.0: ")
    assert line.search(done.out)


def test_cards_with_the_same_change_share_a_row(run: Run) -> None:
    changed = document(run, "engines", "diff", "vllm==0.17.1", "vllm==0.18.0")
    row = next(
        row
        for row in changed["changes"]
        if (row["attention"], row["flag"], row["statement"]) == ("mla-dense-576", "fp8", None)
    )
    assert {"sm120", "sm121", "sm89"} <= set(row["gpus"])
    assert "sm90" not in row["gpus"]
    (amd,) = (
        row
        for row in changed["changes"]
        if row["flag"] == "fp8" and row["statement"] is None and "gfx942" in row["gpus"]
    )
    assert (amd["gpus"], amd["after"]["backend"]) == (["gfx942", "gfx950"], "TRITON_MLA")


def test_a_release_does_not_differ_from_itself(run: Run) -> None:
    done = run("engines", "diff", "vllm==0.18.0", "vllm==0.18.0")
    assert done.code == 0
    assert (
        done.out == "vLLM 0.18.0 -> 0.18.0: every launch that was compared ends in the same way.\n"
    )
    assert run("engines", "diff", "vllm==0.18.0", "vllm==0.18.0", "-q").out == ""


def test_a_version_without_facts_is_compared_as_the_one_that_stands_for_it(run: Run) -> None:
    done = run("engines", "diff", "vllm==0.18.0rc1", "vllm==0.18.0")
    assert "note  vllm 0.18.0rc1 is judged as 0.18.0, the release it precedes" in done.err


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        (("vllm==0.16.0", "sglang==0.5.23"), "two releases of one engine are compared"),
        (("vllm", "vllm==0.16.0"), "which release of vLLM?"),
        (("auto", "vllm==0.16.0"), "no engine is installed here"),
        (("vllm==x", "vllm==0.16.0"), "'x' is no vllm version"),
    ],
)
def test_what_cannot_be_compared(run: Run, pair: tuple[str, str], words: str) -> None:
    done = run("engines", "diff", *pair)
    assert done.code == 2
    assert words in done.err
    assert "vllm==" in done.err


def test_a_version_older_than_all_facts_is_not_compared(run: Run) -> None:
    assert run("engines", "diff", "vllm==0.9.0", "vllm==0.16.0").code == 4


def test_probing_without_an_engine_says_how(run: Run) -> None:
    done = run("engines", "probe")
    assert done.code == 2
    assert "has no vLLM or SGLang installed" in done.err
    assert "Hint: ckpt-patch engines probe --python /path/to" in done.err
