"""Whatever a command makes beside a checkpoint, the checkpoint and its blobs are what they were."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cached import (
    FILES,
    NAME,
    REPO,
    TARGET,
    Cache,
    cache,
    filled,
    needs_new_library,
    serving,
)
from hub_server import COMMIT
from upload_recorder import Recorder, Writable, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from running import Run

pytestmark = needs_new_library

FINE = ("--target", "sm120", "--engine", "vllm==0.33.0")
FLEET = """
[[mirror]]
source = "{}"
target = "sm120"
engine = "vllm==0.16.0"
destination = "fleet"
"""
MIRROR = ("mirror", *TARGET, "SRC")
#: What is run, each with the exit codes that it may have; the least is that of a Hub id, as a
#: mirror on the Hub is of those alone, and a revision in the cache of what is in one.
COMMANDS: dict[str, tuple[tuple[tuple[str, ...], set[int]], ...]] = {
    "check": ((("check", *TARGET, "SRC"), {1}), (("check", *FINE, "SRC"), {0})),
    "inspect": ((("inspect", "SRC"), {0}),),
    "plan": ((("plan", *TARGET, "-o", "plan.json", "SRC"), {0}),),
    "report": ((("report", *TARGET, "-o", "report.md", "SRC"), {0}),),
    "status": ((("status", "SRC"), {0}),),
    "export": ((("export", *TARGET, "-o", "pr", "SRC"), {0}),),
    "mirror --dry-run": (((*MIRROR, "--dry-run", "mirror"), {0}),),
    "mirror --passthrough": ((("mirror", *FINE, "--passthrough", "SRC", "mirror"), {0}),),
    **{
        f"mirror --link {link}, verify --hash, again": (
            ((*MIRROR, "--link", link, "mirror"), {0}),
            (("verify", "--hash", "mirror"), {0}),
            (("mirror", *FINE, "--link", link, "SRC", "mirror"), {0}),
            (("apply", *TARGET, "mirror"), {0}),
            (("undo", "mirror"), {0}),
        )
        for link in ("auto", "hardlink", "symlink", "copy")
    },
    "mirror --config-only, mounts": (
        ((*MIRROR, "--config-only", "folder"), {0}),
        (("mounts", "--at", "/models/x", "folder"), {0}),
    ),
    "mirror --plan": ((("mirror", "--plan", "fleet.toml"), {0}),),
    "mirror --cache-revision": (
        ((*MIRROR, "--cache-revision", NAME), {0, 2}),
        (("verify", f"{REPO}@{NAME}"), {0, 4}),
    ),
    "mirror to the Hub": (((*MIRROR, "hub://me/Kimi-sm120"), {0, 3}),),
    "refused": (((*MIRROR, "home"), {3}), ((*MIRROR, "no/where"), {3})),
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with serving() as hub:
        return filled(hub, tmp_path_factory.mktemp("template") / "home")


@pytest.fixture(scope="module")
def recorder() -> Iterator[Recorder]:
    from huggingface_hub import utils

    with running() as hub:
        yield hub
        close: Any = getattr(utils, "close_session", lambda: None)
        close()


@pytest.fixture
def hub_cache(
    recorder: Recorder, template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cache]:
    """A cache of the library's making, and a Hub that takes uploads too."""
    from huggingface_hub import constants, hf_api

    monkeypatch.chdir(tmp_path)
    with cache(template, recorder, tmp_path / "home", monkeypatch) as made:
        recorder.repositories[REPO] = Writable(dict(FILES), COMMIT)
        monkeypatch.setattr(hf_api.api, "endpoint", recorder.url)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", "hf_x")
        yield made


def tree_hash(root: Path) -> str:
    """One hash of names, kinds, modes, times, links, and of the files that they lead to."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if name.startswith(".ckpt-patch"):
            continue
        status = path.lstat()
        times = None if stat.S_ISDIR(status.st_mode) else status.st_mtime_ns
        text = os.readlink(path) if path.is_symlink() else None
        real = (path.stat().st_ino, path.read_bytes()) if path.is_file() else None
        digest.update(repr((name, status.st_mode, times, text, real)).encode())
    return digest.hexdigest()


def library_hash(folder: Path, names: list[str]) -> dict[str, str]:
    """The same of each thing that the library has put into a repository's folder."""
    found = {name: tree_hash(folder / name) for name in names if (folder / name).is_dir()}
    return found | {
        name: f"{(folder / name).stat().st_mtime_ns} {(folder / name).read_bytes()!r}"
        for name in names
        if (folder / name).is_file()
    }


@pytest.fixture(params=["Hub id", "snapshot", "directory"])
def source(hub_cache: Cache, request: pytest.FixtureRequest) -> Iterator[str]:
    """What is typed for it; at the end the tree and all blobs have the hash that they had."""
    folder = hub_cache.folder
    plain = Path("Kimi").absolute()
    shutil.copytree(hub_cache.snapshot, plain)
    snapshot = str(hub_cache.snapshot.relative_to(Path.cwd()))
    typed = {"Hub id": REPO, "snapshot": snapshot, "directory": "Kimi"}[request.param]
    Path("fleet.toml").write_text(FLEET.format(typed))
    kept = [str(path.relative_to(folder)) for path in folder.glob("*/*")]
    before = (tree_hash(plain), tree_hash(hub_cache.snapshot), library_hash(folder, kept))
    assert len(before[2]) > len(FILES)
    yield typed
    after = (tree_hash(plain), tree_hash(hub_cache.snapshot), library_hash(folder, kept))
    assert after == before


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command(source: str, run: Run, name: str) -> None:
    for words, codes in COMMANDS[name]:
        done = run(*(source if word == "SRC" else word for word in words))
        assert done.code in ({min(codes)} if source == REPO else codes), f"{words}: {done.err}"
        assert "Traceback" not in done.err


def test_apply_in_the_cache_and_undo(source: str, hub_cache: Cache, run: Run) -> None:
    """In between two links are files; the blobs, which other revisions share, never change."""
    if source == "Kimi":
        pytest.skip("a directory is in no cache")
    blobs, tree = tree_hash(hub_cache.folder / "blobs"), tree_hash(hub_cache.snapshot)
    hub_cache.replaced = ("config.json", "hf_quant_config.json")
    assert run("apply", *TARGET, "--in-cache", source).code == 0
    assert tree_hash(hub_cache.snapshot) != tree
    assert tree_hash(hub_cache.folder / "blobs") == blobs
    assert run("undo", source).code == 0


def test_the_hash_sees_a_change(hub_cache: Cache) -> None:
    """Through a link, of a time, of a mode, and of a file that became another with equal bytes."""
    root = hub_cache.snapshot
    entry = root / "README.md"
    blob = entry.resolve()
    seen, data, times = [tree_hash(root)], blob.read_bytes(), blob.stat()
    blob.write_bytes(b"# other\n")
    seen.append(tree_hash(root))
    blob.write_bytes(data)
    os.utime(blob, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert tree_hash(root) == seen[0]
    entry.unlink()
    entry.write_bytes(data)
    seen.append(tree_hash(root))
    entry.chmod(0o600)
    seen.append(tree_hash(root))
    os.utime(entry, ns=(0, 0))
    seen.append(tree_hash(root))
    assert len(set(seen)) == len(seen)
    hub_cache.replaced = ("README.md",)
