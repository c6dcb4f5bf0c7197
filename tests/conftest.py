"""Checkpoints built by code, in the places where people have them."""

from __future__ import annotations

import json
import logging
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from running import Done, Run

from patcher.cli.run import run as run_cli

#: Files by name: bytes are written as they are, anything else as JSON.
Files = Mapping[str, Any]

COMMIT = "0123456789abcdef0123456789abcdef01234567"

# How long an example takes says nothing on a busy machine.
settings.register_profile("ckpt-patch", deadline=None)
settings.load_profile("ckpt-patch")

_REPOSITORY = Path(__file__).resolve().parent.parent


def make_checkpoint(directory: Path, files: Files) -> Path:
    """Write ``files`` into ``directory`` (made with its parents) and return it."""
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(content))
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def make_cache(
    cache: Path, repo_id: str, files: Files, *, commit: str = COMMIT, links: bool = True
) -> Path:
    """Make a Hub cache that holds one snapshot, and return the snapshot's directory.

    With ``links`` false the files stand in the snapshot itself, as on systems without links.
    """
    folder = cache / f"models--{repo_id.replace('/', '--')}"
    snapshot = folder / "snapshots" / commit
    make_checkpoint(folder, {"refs/main": commit.encode()})
    if not links:
        return make_checkpoint(snapshot, files)
    snapshot.mkdir(parents=True)
    for number, (name, content) in enumerate(files.items()):
        make_checkpoint(folder / "blobs", {f"{number:040x}": content})
        (snapshot / name).symlink_to(f"../../blobs/{number:040x}")
    return snapshot


def link_twice(entry: Path) -> None:
    """Let an entry of a snapshot reach its blob through a second link, as some mirrors do."""
    middle = entry.with_name(f".{entry.name}.link")
    os.rename(entry, middle)
    entry.symlink_to(middle.name)


def make_local_dir(directory: Path, files: Files, *, commit: str = COMMIT) -> Path:
    """Make what ``hf download --local-dir`` leaves: files, and a note about each."""
    make_checkpoint(directory, files)
    for number, name in enumerate(files):
        note = f"{commit}\n{number:040x}\n1700000000.0\n".encode()
        make_checkpoint(directory / ".cache/huggingface/download", {f"{name}.metadata": note})
    return directory


def shard(*names: str, dtype: str = "F32", item: int = 4) -> bytes:
    """A safetensors file of scalars."""
    header = {
        name: {"dtype": dtype, "shape": [], "data_offsets": [n * item, (n + 1) * item]}
        for n, name in enumerate(names)
    }
    return packed(header, bytes(len(names) * item))


def packed(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file with any header, good or bad; ``length`` is what it claims to have."""
    raw = encoded(header)
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def encoded(content: Any) -> bytes:
    return content if isinstance(content, bytes) else json.dumps(content, indent=2).encode()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real configs and reference results; tests that need it are skipped without."""
    path = _REPOSITORY.parent / "shared"
    if not path.is_dir():
        pytest.skip(f"{path} is not there")
    return path


@pytest.fixture(autouse=True)
def _no_stream_of_another_test() -> None:
    """The Hub's library logs to what was stderr when it was imported: that of an ended test."""
    library = logging.getLogger("huggingface_hub")
    library.handlers.clear()
    library.propagate = True


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run one command line; its history and cache are in the test's folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg-state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg-cache"))
    for name in ("CKPT_PATCH_TARGET", "CKPT_PATCH_ENGINE", "FORCE_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)

    def call(*words: str) -> Done:
        capsys.readouterr()
        code = run_cli(list(words))
        shown = capsys.readouterr()
        return Done(code, shown.out, shown.err)

    return call
