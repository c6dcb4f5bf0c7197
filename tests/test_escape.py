from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from patcher.report import escape
from patcher.report.markdown import code, fenced, table


@given(st.text())
def test_nothing_in_a_text_acts_on_a_terminal(text: str) -> None:
    shown = escape.plain(text)
    assert not re.search("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", shown)
    shown.encode()


def test_what_is_harmless_stays() -> None:
    assert escape.plain("Grüße 模型 a/b:c = {1}") == "Grüße 模型 a/b:c = {1}"


def test_an_escape_sequence_is_spelled_out() -> None:
    assert escape.plain("\x1b[31mred\r\n") == "\\x1b[31mred\\x0d\\x0a"
    assert escape.lines("a\x1b\n\tb") == "a\\x1b\n\tb"


def test_markdown_and_html_are_inert() -> None:
    shown = escape.markdown("<img src=x onerror=alert(1)> [a](b) *c* `d` | e")
    assert "<" not in shown
    assert re.search(r"(?<!\\)[\[\]*`|]", shown) is None


@given(st.text(alphabet="`a|\\ \n", max_size=20))
def test_a_code_span_cannot_be_left(text: str) -> None:
    shown = code(text)
    fence = re.match("`+", shown)
    assert fence is not None
    inside = shown[len(fence.group()) : -len(fence.group())]
    assert fence.group() not in re.findall("`+", inside)


@given(st.text(alphabet="`a\n", max_size=30))
def test_a_code_block_cannot_be_closed(text: str) -> None:
    first, *body, last = "\n".join(fenced("json", text)).split("\n")
    assert first == f"{last}json"
    assert all(not line.startswith(last) for line in body)


def test_a_table_row_stays_one_row() -> None:
    assert list(table(("a",), [("x\ny",)])) == ["| a |", "| --- |", "| x y |"]


def test_long_values_are_cut() -> None:
    assert escape.value("x" * 200, limit=10) == '"xxxxxx...'
