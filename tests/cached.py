"""A Hub cache filled by the real library from our Hub, and what stands by while it is used."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import shard
from hub_server import COMMIT, Hub, Repository, running

from patcher import planning
from patcher.checkpoint import open_checkpoint
from patcher.mirroring import cache_revision
from patcher.target import Target

if TYPE_CHECKING:
    from collections.abc import Iterator

    from patcher.mirroring.cache_revision import CacheRevision

REPO = "acme/Kimi-K2.5-NVFP4"
FOLDER = "models--acme--Kimi-K2.5-NVFP4"
#: An older commit, which the cache has as a pull request; only its README differs.
OTHER = "1" * 40
NEWER = "d" * 40
SHARD = "model.safetensors"
PATCHED = ("config.json", "hf_quant_config.json")
TARGET = ("--target", "sm120", "--engine", "vllm==0.16.0")
VLLM_016 = Target.parse("sm120", engine="vllm==0.16.0")
#: Of the revision that tests make.
NAME = "patched-sm120"
FIXTURE = Path(__file__).resolve().parent.parent / "fixtures" / "Kimi-K2.5-NVFP4"
FILES = {
    **{name: (FIXTURE / name).read_bytes() for name in PATCHED},
    SHARD: shard("lm_head.weight"),
    "README.md": b"# Kimi\n",
    "sub/tokenizer.json": b"{}",
    "sub/__init__.py": b"",
}
HF = Path(sys.executable).with_name("hf")

#: The form of the cache, and commands, that these tests are about came with newer releases.
needs_new_library = pytest.mark.skipif(
    importlib.util.find_spec("huggingface_hub._tree_cache") is None or not HF.exists(),
    reason="needs a huggingface_hub that keeps trees/, and its command hf",
)


def repository(commit: str = COMMIT, readme: bytes = FILES["README.md"]) -> Repository:
    return Repository({**FILES, "README.md": readme}, commit=commit)


@dataclass
class Cache:
    """The cache of one test.

    Attributes:
        gone: commits whose snapshots, and blobs that only they have, may be gone at the end.
        replaced: names in the snapshot of main that may be files of their own at the end.
    """

    hub: Hub
    home: Path
    patch: pytest.MonkeyPatch
    gone: set[str] = field(default_factory=set)
    replaced: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        return self.home / "hub" / FOLDER

    @property
    def snapshot(self) -> Path:
        return self.folder / "snapshots" / COMMIT

    def ref(self, name: str) -> str:
        """The commit that a name means; empty where it means none."""
        path = self.folder / "refs" / name
        return path.read_text() if path.is_file() else ""

    def offline(self) -> None:
        """Forbid the network, as HF_HUB_OFFLINE=1 does, and notice who tries nevertheless."""
        from huggingface_hub import constants

        self.patch.setattr(constants, "HF_HUB_OFFLINE", True)
        self.no_sockets()

    def no_sockets(self) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise AssertionError("a socket was made")

        for name in ("socket", "create_connection", "getaddrinfo"):
            self.patch.setattr(socket, name, refuse)

    def moves(self, commit: str = NEWER) -> None:
        """A new commit upstream, of which only the README is new."""
        self.hub.repositories[REPO] = repository(commit, b"# newer\n")

    def hf(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The library's own command, online."""
        return self.process(str(HF), *words)

    def process(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        clean = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
        own = {"HF_ENDPOINT": self.hub.url, "HF_HOME": str(self.home), "NO_COLOR": "1"}
        return subprocess.run(
            words, capture_output=True, text=True, check=False, env={**clean, **own, **variables}
        )

    def kept(self) -> dict[str, str]:
        """What everything that the library put here holds: blobs, snapshots, refs."""
        found = {}
        for path in sorted(self.folder.rglob("*")):
            name = str(path.relative_to(self.folder))
            if path.is_symlink():
                found[name] = os.readlink(path)
            elif path.is_file() and not name.startswith("trees/"):
                found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        return found


@contextmanager
def serving() -> Iterator[Hub]:
    """A Hub; the client keeps its connections, so it is closed before."""
    from huggingface_hub import utils

    with running() as hub:
        yield hub
        close: Any = getattr(utils, "close_session", lambda: None)
        close()


def pointed(patch: pytest.MonkeyPatch, hub: Hub, home: Path) -> None:
    """Let the library in this process use this Hub and this cache."""
    from huggingface_hub import constants, file_download

    template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    patch.setattr(constants, "ENDPOINT", hub.url)
    for module in (constants, file_download):
        patch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
    patch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    patch.setattr(constants, "HF_HUB_OFFLINE", False)
    patch.setattr("time.sleep", lambda _: None)


def filled(hub: Hub, home: Path) -> Path:
    """A cache with two commits, made by the library."""
    from huggingface_hub import snapshot_download

    with pytest.MonkeyPatch.context() as patch:
        pointed(patch, hub, home)
        for commit, revision in ((OTHER, "refs/pr/1"), (COMMIT, "main")):
            readme = b"# old\n" if commit == OTHER else FILES["README.md"]
            hub.repositories[REPO] = repository(commit, readme)
            snapshot_download(REPO, revision=revision)
    return home


@contextmanager
def cache(template: Path, hub: Hub, home: Path, patch: pytest.MonkeyPatch) -> Iterator[Cache]:
    """A copy of the cache; at the end everything that the library had put there is unchanged."""
    shutil.copytree(template, home, symlinks=True)
    hub.reset()
    hub.repositories[REPO] = repository()
    pointed(patch, hub, home)
    made = Cache(hub, home, patch)
    before = made.kept()
    yield made
    after = made.kept()
    for name, content in before.items():
        if name == "refs/main" or name in (f"snapshots/{COMMIT}/{file}" for file in made.replaced):
            continue
        if name in after or not made.gone:
            assert after.get(name) == content, f"{name} is not what it was"
        else:
            assert name.startswith("blobs/") or any(commit in name for commit in made.gone), name


def make(root: Path, name: str = NAME, target: Target = VLLM_016) -> CacheRevision:
    checkpoint = open_checkpoint(root)
    plan = planning.plan(checkpoint, target)
    return cache_revision.make(cache_revision.prepare(checkpoint, plan, name))


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
