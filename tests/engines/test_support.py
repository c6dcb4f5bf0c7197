"""The page of what is supported says what the facts say."""

from __future__ import annotations

from pathlib import Path

import pytest

from patcher import engines
from patcher.engines.extract import support

REPOSITORY = Path(__file__).resolve().parents[2]
REMEDY = f"run: {support.COMMAND}"


@pytest.fixture(scope="module")
def page() -> str:
    return support.page()


def test_the_page_is_what_the_facts_say(page: str) -> None:
    path = REPOSITORY / support.PAGE
    if not path.parent.is_dir():
        pytest.skip(f"{path.parent} is not there")
    assert path.read_text(encoding="utf-8") == page, REMEDY


def test_the_readme_section_is_what_the_facts_say() -> None:
    text = (REPOSITORY / support.README).read_text(encoding="utf-8")
    assert f"{support.START}\n{support.section()}{support.END}\n" in text, REMEDY


def test_every_engine_and_its_newest_release_are_in_the_section() -> None:
    lines = support.section().splitlines()
    assert len(lines) == 2 + len(engines.NAMES)
    for line, (engine, name) in zip(lines[2:], engines.NAMES.items(), strict=True):
        known = engines.releases(engine)
        assert line.startswith(f"| {name} | {len(known)}, {known[0]} to {known[-1]} | 202")


def test_the_famous_case_is_on_the_page(page: str) -> None:
    row = next(
        line
        for line in page.splitlines()
        if "sm120" in line.partition("| mla-dense-576 |")[0] and "KV001" in line
    )
    assert "0.11.2 to 0.13.0: TRITON_MLA, model dtype" in row
    assert "0.14.0 to 0.17.1: refuses (KV001, selector)" in row
    assert "0.18.0 to 0.33.0: TRITON_MLA, fp8_e4m3" in row


def test_only_what_is_between_the_markers_is_replaced() -> None:
    text = f"# Title\n\n{support.START}\nold\n{support.END}\nend\n"
    fresh = support.between_markers(text)
    assert fresh == f"# Title\n\n{support.START}\n{support.section()}{support.END}\nend\n"
    assert support.between_markers(fresh) == fresh
    assert support.between_markers("no markers\n") == "no markers\n"
