from __future__ import annotations

import time
from pathlib import Path

import pytest

from patcher.engines import facts
from patcher.errors import UnreadableError


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    releases = ("0.9.2", "0.16.0", "0.18.1", "0.18.1.post1")
    monkeypatch.setattr(facts, "releases", lambda _engine: releases)


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    ("version", "release", "words"),
    [
        ("0.16.0", "0.16.0", None),
        ("0.16", "0.16.0", None),
        ("0.16.0rc2.dev313", "0.16.0", "the release it precedes"),
        ("0.16.0+cu128", "0.16.0", "the release it is built from"),
        ("0.16.0.post2", "0.16.0", "the release it is built from"),
        ("0.18.1.post1", "0.18.1.post1", None),
        ("0.17.0", "0.16.0", "the nearest older release"),
        ("0.17.0rc1", "0.16.0", "the nearest older release"),
        ("1.0", "0.18.1.post1", "the newest release with facts"),
    ],
)
def test_the_release_that_answers(version: str, release: str, words: str | None) -> None:
    chosen, note = facts.nearest("vllm", version)
    assert chosen == release
    assert (note is None) if words is None else (words in str(note))


@pytest.mark.usefixtures("known")
def test_an_older_version_is_not_judged() -> None:
    with pytest.raises(UnreadableError, match=r"no facts about vllm 0\.9\.0"):
        facts.nearest("vllm", "0.9.0")


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_packaged_facts_are_in_order_and_small(engine: str) -> None:
    folder = Path(facts.__file__).parent / engine
    releases = facts.releases(engine)
    assert releases
    numbers = [tuple(map(int, release.replace("post", "").split("."))) for release in releases]
    assert numbers == sorted(numbers)
    assert sum(file.stat().st_size for file in folder.glob("*.json")) < 1_800_000


def test_one_release_loads_as_fast_as_a_json_file() -> None:
    facts.releases("vllm")
    facts.load.cache_clear()
    started = time.process_time()
    for part in ("resolution", "selection"):
        facts.load("vllm", "0.33.0", part)
    assert time.process_time() - started < 0.1
