"""Broken checkpoints at the command line: exit code, message, remedy, and nothing changed."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from running import Run, as_nobody, snapshot

FIXTURE = Path(__file__).resolve().parents[2] / "fixtures" / "Kimi-K2.5-NVFP4"
TARGET = ("--target", "sm120", "--engine", "vllm==0.16.0")
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 9530\n"

Break = Callable[[Path], object]


def replace(name: str, data: bytes) -> Break:
    return lambda root: (root / name).write_bytes(data)


def remove(root: Path) -> None:
    (root / "config.json").unlink()


def make_directory(root: Path) -> None:
    remove(root)
    (root / "config.json").mkdir()


def make_fifo(root: Path) -> None:
    remove(root)
    os.mkfifo(root / "config.json")


def make_dangling(root: Path) -> None:
    remove(root)
    (root / "config.json").symlink_to("../../blobs/gone")


def truncate(root: Path) -> None:
    data = (root / "config.json").read_bytes()
    (root / "config.json").write_bytes(data[:700])


def oversize(root: Path) -> None:
    data = (root / "config.json").read_bytes()
    (root / "config.json").write_bytes(data + b" " * (17 * 1024 * 1024))


#: what is broken -> how, and words of the message and of the remedy.
BROKEN: dict[str, tuple[Break, str, str]] = {
    "no config": (remove, "config.json", "hf download"),
    "truncated": (truncate, "config.json at byte", "download"),
    "empty": (replace("config.json", b""), "config.json", "hf download"),
    "LFS pointer": (replace("config.json", LFS), "Git LFS pointer", "git lfs pull"),
    "LFS sidecar": (replace("hf_quant_config.json", LFS), "Git LFS pointer", "git lfs pull"),
    "too large": (oversize, "16", "config.json"),
    "a directory": (make_directory, "config.json", "directory"),
    "a FIFO": (make_fifo, "config.json", "FIFO"),
    "a dangling link": (make_dangling, "../../blobs/gone", "config.json"),
    "UTF-16": (replace("config.json", "{}".encode("utf-16")), "config.json", "UTF-8"),
    "not JSON": (
        replace("config.json", b"model_type: llama"),
        "config.json at byte 0",
        "json.tool",
    ),
    "a list": (replace("config.json", b"[]"), "config.json", "object"),
    "too deep": (replace("config.json", b"[" * 5000 + b"]" * 5000), "config.json at byte", "200"),
}


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FIXTURE, tmp_path / "Kimi K2.5 (模型)"))


@pytest.mark.parametrize("command", ["check", "apply", "plan", "inspect"])
@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_file_is_named_with_its_remedy(
    fault: str, command: str, broken: Path, run: Run
) -> None:
    breaks, *words = BROKEN[fault]
    breaks(broken)
    before = snapshot(broken)
    options = () if command == "inspect" else TARGET
    done = run(command, *options, str(broken))
    assert done.code == 4
    assert done.out == ""
    lines = done.err.strip().splitlines()
    assert lines[0].startswith("Error: ")
    assert len(lines) <= 2, done.err
    for word in words:
        assert word in done.err
    assert snapshot(broken) == before


@pytest.mark.parametrize("fault", BROKEN)
def test_the_same_as_json(fault: str, broken: Path, run: Run) -> None:
    BROKEN[fault][0](broken)
    done = run("check", *TARGET, "--json", str(broken))
    document = json.loads(done.out)
    assert done.code == 4
    assert document["schema"] == "ckpt-patch/error@1"
    assert document["error"]["exit_code"] == 4


def duplicate(root: Path) -> None:
    text = (root / "config.json").read_text()
    key = '"quant_algo": "NVFP4",'
    (root / "config.json").write_text(text.replace(key, f'{key}\n"kv_cache_scheme": null,'))


def test_a_duplicate_statement_is_a_warning_for_check_and_stops_apply(
    broken: Path, run: Run
) -> None:
    duplicate(broken)
    before = snapshot(broken)
    checked = run("check", *TARGET, str(broken))
    assert checked.code == 1
    assert '! KV012  the key "kv_cache_scheme" stands twice' in checked.out
    applied = run("apply", *TARGET, str(broken))
    assert applied.code == 4
    assert "config.json:/quantization_config/kv_cache_scheme: this key stands twice" in applied.err
    assert "remove one of the two by hand" in applied.err
    assert snapshot(broken) == before


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("nvidia/Kimi-K2.5-NVFP4", "hf download nvidia/Kimi-K2.5-NVFP4"),
        ("nvidia/Kimi-K2.5-NVFP4@main", "hf download nvidia/Kimi-K2.5-NVFP4"),
        ("./nowhere", "nowhere"),
    ],
)
def test_a_path_that_is_not_here(
    path: str, words: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("check", *TARGET, path)
    assert done.code == 4
    assert words in done.err


def test_a_file_where_a_directory_was_expected(broken: Path, run: Run) -> None:
    done = run("check", *TARGET, str(broken / "config.json"))
    assert done.code == 4
    assert "is a file" in done.err
    assert "Kimi K2.5" in done.err


def lock_directory(root: Path) -> None:
    root.chmod(0o555)


def lock_file(root: Path) -> None:
    (root / "config.json").chmod(0o444)


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that every user can reach; those of pytest are private."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("lock", [lock_directory, lock_file])
def test_apply_refuses_what_it_cannot_write_and_check_still_works(
    lock: Break, reachable: Path, run: Run
) -> None:
    broken = Path(shutil.copytree(FIXTURE, reachable / "Kimi"))
    for path in (broken, *broken.iterdir()):
        if os.geteuid() == 0:
            os.chown(path, 65534, 65534)
    lock(broken)
    before = snapshot(broken)
    applied = as_nobody(run, "apply", *TARGET, str(broken))
    assert applied.code == 3
    assert "Nothing was changed" in applied.err
    assert "ckpt-patch mirror" in applied.err
    assert snapshot(broken) == before
    checked = as_nobody(run, "check", *TARGET, str(broken))
    assert checked.code == 1


def test_hostile_text_cannot_act_on_the_terminal(broken: Path, run: Run) -> None:
    config = json.loads((broken / "config.json").read_text())
    config["model_type"] = "\x1b]0;owned\x07\u202e"
    config["quantization_config"]["kv_cache_scheme"]["\x1b[2J"] = "\r\n"
    (broken / "config.json").write_text(json.dumps(config))
    for command in (("check", *TARGET), ("inspect",), ("plan", *TARGET), ("apply", *TARGET)):
        done = run(*command, str(broken))
        assert done.code in {0, 1}
        assert not {"\x1b", "\x07", "\r", "\u202e"} & set(done.out + done.err)


def test_several_checkpoints_give_the_gravest_code(broken: Path, run: Run, tmp_path: Path) -> None:
    fine = Path(shutil.copytree(FIXTURE, tmp_path / "fine"))
    make_fifo(broken)
    done = run("check", *TARGET, str(fine), str(broken))
    assert done.code == 4
    assert "KV001" in done.out
    documents = json.loads(run("check", *TARGET, "--json", str(fine), str(broken)).out)
    assert [each["schema"] for each in documents["results"]] == [
        "ckpt-patch/check@1",
        "ckpt-patch/error@1",
    ]
