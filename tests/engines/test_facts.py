from __future__ import annotations

from pathlib import Path

import pytest

from patcher import Target
from patcher.engines import answer, examples, facts
from patcher.engines.base import Launch
from patcher.errors import UnreadableError, UsageError


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


# With the packaged facts themselves


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_every_release_with_facts_stands_for_itself(engine: str) -> None:
    for release in facts.releases(engine):
        assert facts.nearest(engine, release) == (release, None)


@pytest.mark.parametrize(
    ("version", "release", "words"),
    [
        ("0.14.1", "0.14.1", None),
        ("0.15.1.post1", "0.15.1", "judged as 0.15.1, the release it is built from"),
        ("0.16.1", "0.16.0", "judged as 0.16.0, the nearest older release with facts"),
        ("0.18.2rc1", "0.18.1", "judged as 0.18.1, the nearest older release with facts"),
        ("0.31.1.dev7+g1234567", "0.31.0", "judged as 0.31.0, the nearest older release"),
        ("0.33.0rc2.dev5+gabcdef0", "0.33.0", "judged as 0.33.0, the release it precedes"),
        ("0.33.0+cu130", "0.33.0", "judged as 0.33.0, the release it is built from"),
        ("0.34.0", "0.33.0", "judged as 0.33.0, the newest release with facts"),
        ("1.0.0.dev1", "0.33.0", "judged as 0.33.0, the newest release with facts"),
    ],
)
def test_a_version_of_vllm_says_whose_facts_it_borrows(
    version: str, release: str, words: str | None
) -> None:
    chosen, note = facts.nearest("vllm", version)
    assert chosen == release
    assert (note is None) if words is None else (f"vllm {version} is {words}" in str(note))


def test_post_releases_with_facts_of_their_own_are_used() -> None:
    assert facts.nearest("sglang", "0.5.10.post1") == ("0.5.10.post1", None)
    chosen, note = facts.nearest("sglang", "0.5.10.post9")
    assert (chosen, "the release it is built from" in str(note)) == ("0.5.10", True)


def test_a_version_older_than_everything_names_what_is_known() -> None:
    with pytest.raises(UnreadableError, match="the oldest is") as caught:
        facts.nearest("vllm", "0.9.2")
    known = str(caught.value.hint).removeprefix("known: ").split(", ")
    assert known == [*facts.read("vllm"), *facts.releases("vllm")]


def test_a_part_that_is_not_there_names_what_is_known() -> None:
    with pytest.raises(UnreadableError, match=r"no selection facts about vllm 0\.10\.2") as caught:
        facts.load("vllm", "0.10.2", "selection")
    assert str(caught.value.hint).startswith("known: 0.11.2, 0.12.0, ")


@pytest.mark.parametrize("version", ["", "newest", "0.16.0-", "../0.16.0"])
def test_what_is_no_version_is_a_usage_error(version: str) -> None:
    with pytest.raises(UsageError, match="is not a version of vllm"):
        facts.nearest("vllm", version)


@pytest.mark.parametrize(
    ("gpu", "engine", "words"),
    [
        ("sm120", "vlm==0.16.0", "unknown engine 'vlm'"),
        ("sm120", "tgi==1.0", "unknown engine 'tgi'"),
        ("sm99", "vllm==0.16.0", "unknown GPU 'sm99'"),
        ("rtx-9999", "vllm==0.16.0", "unknown GPU 'rtx-9999'"),
    ],
)
def test_an_unknown_engine_or_gpu_is_refused_with_a_way_on(
    gpu: str, engine: str, words: str
) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        Target.parse(gpu, engine=engine)
    assert "ckpt-patch" in str(caught.value.hint) or "--engine" in str(caught.value.hint)


def test_an_unknown_backend_is_unknown_and_names_those_that_are_known() -> None:
    documents, model = examples.checkpoint("gqa-128")
    launch = Launch("sm90", "9.0", attention_backend="NO_SUCH")
    told = answer("vllm", "0.33.0", documents, model, launch)
    assert (told.selected, told.refusals) == (None, ())
    words = "vLLM 0.33.0: no facts about the attention backend NO_SUCH; known: "
    assert str(told.unknown).startswith(words)
    named = set(str(told.unknown).removeprefix(words).split(", "))
    assert named == set(facts.load("vllm", "0.33.0", "selection")["backends"])
