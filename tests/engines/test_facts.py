from __future__ import annotations

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


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_one_release_is_small_enough_to_load_in_a_few_milliseconds(engine: str) -> None:
    """3.4 ms were measured for the 62 KB of vLLM 0.33.0; times do not hold on a busy machine."""
    folder = Path(facts.__file__).parent / engine
    for release in facts.releases(engine):
        files = [path for path in folder.glob("*.json") if path.name.startswith(f"{release}.")]
        assert sum(path.stat().st_size for path in files) <= 150_000, release
