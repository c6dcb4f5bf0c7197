"""``mirror --plan``: many mirrors from one file, each for itself, one report."""

from __future__ import annotations

import io
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import make_checkpoint, shard
from hypothesis import given
from hypothesis import strategies as st
from running import Run, snapshot

from patcher import mirroring
from patcher.errors import InterruptedError_, UnreadableError
from patcher.mirroring import fleet

if TYPE_CHECKING:
    from collections.abc import Iterator

FIXTURE = Path(__file__).resolve().parent.parent / "fixtures" / "Kimi-K2.5-NVFP4"
FILES = {
    "config.json": (FIXTURE / "config.json").read_bytes(),
    "hf_quant_config.json": (FIXTURE / "hf_quant_config.json").read_bytes(),
    "model-00001-of-00001.safetensors": shard("w"),
}
VLLM = {"target": "sm120", "engine": "vllm==0.16.0"}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Two sources in a folder that is not the current one; neither is changed by any test."""
    folder = tmp_path / "models"
    for name in ("a", "b"):
        make_checkpoint(folder / name, FILES)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    before = [snapshot(folder / name) for name in ("a", "b")]
    yield folder
    assert [snapshot(folder / name) for name in ("a", "b")] == before
    assert list(elsewhere.iterdir()) == []


def write(folder: Path, *rows: dict[str, str]) -> str:
    lines = []
    for row in rows:
        lines += ["[[mirror]]", *(f"{key} = {json.dumps(value)}" for key, value in row.items())]
    path = folder / "fleet.toml"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def row(source: str, destination: str, **more: str) -> dict[str, str]:
    return {"source": source, "destination": destination, **VLLM, **more}


def test_all_are_made_and_one_that_fails_stops_none(place: Path, run: Run) -> None:
    plan = write(
        place, row("a", "out-a"), row("none", "out-none"),
        row("b", "out-b", engine="vllm==0.33.0", link="symlink"),
        row("a", "out-unknown", engine="vllm==0.1.0"), row("b", "b/inside"),
    )  # fmt: skip
    done = run("mirror", "--plan", plan)
    assert done.code == 3  # refused is graver than cannot be read
    assert "2 of 5 mirrors are there, 3 failed. No source was changed." in done.out
    table = [line.split("  ")[0] for line in done.out.splitlines()[:6]]
    assert table == ["outcome", "made", "failed", "made", "failed", "failed"]
    assert "none: does not exist" in done.out
    assert "lies inside the source itself" in done.out
    assert "5 of 5: " in done.err
    assert sorted(path.name for path in place.iterdir()) == [
        "a",
        "b",
        "fleet.toml",
        "out-a",
        "out-b",
    ]
    patched = json.loads((place / "out-a/config.json").read_bytes())
    assert patched["quantization_config"]["kv_cache_scheme"] is None
    assert (place / "out-b/config.json").read_bytes() == FILES["config.json"]
    assert run("verify", str(place / "out-a")).code == 0


def test_a_second_run_has_nothing_to_do(place: Path, run: Run) -> None:
    plan = write(place, row("a", "out-a"), row("b", "out-b"))
    assert run("mirror", "--plan", plan).code == 0
    before = snapshot(place)
    again = run("mirror", "--plan", plan)
    assert again.code == 0
    assert again.out.count("is there already") == 2
    assert snapshot(place) == before


def test_json_and_quiet(place: Path, run: Run) -> None:
    plan = write(place, row("a", "out-a"), row("none", "out-none"))
    done = run("mirror", "--json", "--plan", plan)
    document = json.loads(done.out)
    assert (done.code, document["exit_code"]) == (4, 4)
    assert (document["schema"], document["mirrors"]) == ("ckpt-patch/fleet@1", 2)
    made, failed = document["results"]
    assert (made["outcome"], made["destination"]) == ("made", str(place / "out-a"))
    assert [file["file"] for file in made["files"]] == ["config.json", "hf_quant_config.json"]
    assert made["target"]["version"] == "0.16.0"
    assert made["error"] is None
    assert (failed["outcome"], failed["files"]) == ("failed", [])
    assert failed["error"]["exit_code"] == 4
    quiet = run("mirror", "-q", "--plan", plan)
    assert (quiet.code, quiet.out) == (4, f"{place / 'out-a'}\n")
    assert "does not exist" in quiet.err


def test_dry_run_writes_nothing(place: Path, run: Run) -> None:
    plan = write(place, row("a", "out-a"), row("b", "out-b"))
    before = snapshot(place)
    done = run("mirror", "--dry-run", "--plan", plan)
    assert done.code == 0
    assert done.out.count("would be made") == 2
    assert "2 of 2 mirrors can be made; nothing was (--dry-run), 0 failed" in done.out
    assert snapshot(place) == before


def test_from_standard_input_paths_start_here(
    place: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Path(write(place, row("a", "out-a"))).read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    monkeypatch.chdir(place)
    assert run("mirror", "-q", "--plan", "-").out == f"{place / 'out-a'}\n"
    done = run("mirror", "--plan", "-")  # all was read
    assert done.code == 4
    assert done.err.endswith("ckpt-patch mirror --dry-run --plan -\n")


def test_other_options_are_refused(place: Path, run: Run) -> None:
    plan = write(place, row("a", "out-a"))
    for words in (("a", "x"), ("--target", "sm120"), ("--link", "copy"), ("--config-only",)):
        done = run("mirror", "--plan", plan, *words)
        assert done.code == 2
        assert "--plan goes without" in done.err
    assert not (place / "out-a").exists()


def test_a_usage_error_of_one_entry_is_a_refusal(place: Path, run: Run) -> None:
    plan = write(place, row("a", "a"), row("b", "out-b"))
    done = run("mirror", "--plan", plan)
    assert done.code == 3
    assert "source and destination are the same" in done.out
    assert (place / "out-b").is_dir()


def test_an_interrupt_ends_the_run_with_a_report(
    place: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = write(place, row("a", "out-a"), row("b", "out-b"), row("b", "out-c"))
    real, calls = mirroring.make, []

    def make(prepared: Any) -> Any:
        calls.append(prepared)
        if len(calls) == 2:
            raise InterruptedError_("a signal came")
        return real(prepared)

    monkeypatch.setattr(mirroring, "make", make)
    done = run("mirror", "--plan", plan)
    assert done.code == 130
    assert "1 of 3 mirrors are there, 0 failed, 2 were not begun" in done.out


def refusal(folder: Path, text: str) -> UnreadableError:
    with pytest.raises(UnreadableError) as caught:
        fleet.parse(text.encode(), "fleet.toml", folder)
    assert caught.value.path == "fleet.toml"
    assert "ckpt-patch mirror --dry-run --plan" in (caught.value.hint or "")
    return caught.value


GOOD = 'source = "a"\ntarget = "sm120"\ndestination = "x"\n'


@pytest.mark.parametrize(
    ("text", "pointer", "words"),
    [
        ("", None, "no [[mirror]]"),
        ("a = [", None, "no valid TOML"),
        ("mirror = 3", "/mirror", "Expected `array`"),
        ("mirror = [3]", "/mirror/0", "Expected `object`"),
        ("typo = 1\n[[mirror]]\n" + GOOD, "/typo", "unknown"),
        (f"[[mirror]]\n{GOOD}[[mirror]]\n{GOOD}engin = 'v'", "/mirror/1/engin", "unknown"),
        ('[[mirror]]\nsource = "a"', "/mirror/0", "missing required field"),
        (f"[[mirror]]\n{GOOD}link = 'reflnk'", "/mirror/0/link", "Invalid enum value"),
        (f"[[mirror]]\n{GOOD}engine = 3", "/mirror/0/engine", "Expected `str"),
        (f"[[mirror]]\n{GOOD}engine = 'llvm==1'", "/mirror/0", "unknown engine"),
        ("[[mirror]]\n" + GOOD.replace("sm120", "sm999"), "/mirror/0", "unknown GPU"),
        ("[[mirror]]\n" + GOOD.replace('"x"', '""'), "/mirror/0/destination", "no path"),
        ("[[mirror]]\n" + GOOD.replace('"x"', '"~/x"'), "/mirror/0/destination", "not expanded"),
        ("[[mirror]]\n" + GOOD.replace('"a"', '"a\\u0000"'), "/mirror/0/source", "no path"),
        ("[[mirror]]\n" + GOOD.replace('"x"', '"hf://a/b"'), "/mirror/0/destination", "directory"),
        (f"[[mirror]]\n{GOOD}[[mirror]]\n{GOOD}", "/mirror/1/destination", "same as"),
        (
            f"[[mirror]]\n{GOOD}[[mirror]]\n" + GOOD.replace('"x"', '"x/y"'),
            "/mirror/1/destination", "same as",
        ),
        ('schema = "ckpt-patch/fleet-plan@2"\n[[mirror]]\n' + GOOD, "/schema", "expected"),
        ("#" * (fleet.MAX_BYTES + 1), None, "larger than"),
    ],
)  # fmt: skip
def test_a_file_that_is_wrong(tmp_path: Path, text: str, pointer: str | None, words: str) -> None:
    error = refusal(tmp_path, text)
    assert error.pointer == pointer
    assert words in error.message


def test_nothing_is_made_of_a_file_that_is_wrong_anywhere(place: Path, run: Run) -> None:
    plan = write(place, row("a", "out-a"), row("b", "out-b", link="never"))
    done = run("mirror", "--plan", plan)
    assert done.code == 4
    assert "fleet.toml:/mirror/1/link" in done.err
    assert not (place / "out-a").exists()
    assert run("mirror", "--plan", "nowhere.toml").code == 4


def test_where_paths_start_and_what_is_a_hub_id(tmp_path: Path) -> None:
    (tmp_path / "org/here").mkdir(parents=True)
    text = "".join(
        f"[[mirror]]\n{GOOD}".replace('"a"', f'"{source}"').replace('"x"', f'"x{n}"')
        for n, source in enumerate(
            ("a", "/abs", "org/name@v1", "org/here", "hf://org/here", "../b")
        )
    )
    found = fleet.parse(text.encode(), "fleet.toml", tmp_path)
    assert [entry.source for entry in found] == [
        f"{tmp_path}/a", "/abs", "hf://org/name@v1", f"{tmp_path}/org/here",
        "hf://org/here", f"{tmp_path}/../b",
    ]  # fmt: skip
    assert [entry.destination for entry in found] == [f"{tmp_path}/x{n}" for n in range(6)]


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_read(data: bytes) -> None:
    with suppress(UnreadableError):
        assert fleet.parse(data, "fleet.toml", Path("/"))
