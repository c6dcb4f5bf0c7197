"""A fault at every mutating call of ``mirror --cache-revision``, and eight of them at once."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cached import (
    FILES,
    NAME,
    OTHER,
    PATCHED,
    VLLM_016,
    Cache,
    cache,
    filled,
    git_sha1,
    make,
    needs_new_library,
    serving,
)  # fmt: skip
from faults import harness, races
from faults.operation import PROMISES
from hub_server import COMMIT

from patcher import fsio, mirroring, planning
from patcher.checkpoint import open_checkpoint
from patcher.mirroring import cache_revision
from patcher.target import Target

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = needs_new_library


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with serving() as hub:
        return filled(hub, tmp_path_factory.mktemp("template") / "home")


@pytest.fixture
def hub_cache(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cache]:
    with serving() as hub, cache(template, hub, tmp_path / "home", monkeypatch) as made:
        yield made


def state(folder: Path, old: str, new: str) -> str:
    """Whether the name means ``old`` or ``new``; whatever has a name must be whole."""
    assert Counter(path.name for path in folder.glob("refs/*") if path.name.startswith(".")) == {}
    for root in (folder / "snapshots").iterdir():
        assert root.name in {COMMIT, OTHER, old, new}
        assert all(path.exists() for path in root.rglob("*")), f"{root} has a link to nothing"
        assert {str(p.relative_to(root)) for p in root.rglob("*") if p.is_symlink()} == {*FILES}
    for blob in (folder / "blobs").iterdir():
        data = blob.read_bytes()
        assert blob.name in {git_sha1(data), hashlib.sha256(data).hexdigest()}
    ref = folder / "refs" / NAME
    named = ref.read_text() if ref.exists() else ""
    return {old: "old", new: "new"}[named]


@pytest.mark.parametrize(
    ("fault", "replaces"),
    [("kill", False), ("kill", True), ("torn write", False), ("ENOSPC from here on", False),
     ("EIO once", False), ("EIO from here on", False), ("SIGTERM", False),
     ("done, but reported failed", False), ("done, but reported failed", True)],
)  # fmt: skip
def test_a_fault_at_every_call(
    template: Path, tmp_path: Path, fault: str, *, replaces: bool
) -> None:
    home = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else tmp_path
    scratch = home / f"ckpt-patch.{os.getpid()}.{tmp_path.name}"
    folder = scratch / "models--acme--Kimi-K2.5-NVFP4"
    root = folder / "snapshots" / COMMIT
    source = next((template / "hub").glob("models--*"))
    ends: Counter[tuple[int, str]] = Counter()
    try:
        shutil.copytree(source, folder, symlinks=True)
        checkpoint = open_checkpoint(root)
        plan = planning.plan(checkpoint, VLLM_016)
        fine = planning.plan(checkpoint, Target.parse("sm120", engine="vllm==0.33.0"))
        old = cache_revision.prepare(checkpoint, fine, NAME).revision.commit if replaces else ""
        new = cache_revision.prepare(checkpoint, plan, NAME).revision.commit
        for at in range(1, 1000, 1 if fault == "kill" else 3):
            shutil.rmtree(scratch)
            shutil.copytree(source, folder, symlinks=True)
            if replaces:
                cache_revision.make(cache_revision.prepare(checkpoint, fine, NAME))
            prepared = cache_revision.prepare(checkpoint, plan, NAME)
            ran = harness.run(
                lambda _root: cache_revision.make(prepared),  # noqa: B023 - run at once
                root,
                harness.FAULTS[fault],
                at,
            )
            outcome = state(folder, old, new)
            assert outcome in PROMISES.get((ran.code, ran.slug), set()), (at, ran, outcome)
            again = cache_revision.make(cache_revision.prepare(checkpoint, plan, NAME))
            assert again.outcome == {"new": "current"}.get(outcome, again.outcome)
            assert state(folder, old, new) == "new"
            assert sorted(os.listdir(folder)) == ["blobs", "refs", "snapshots", "trees"]
            ends[ran.code, outcome] += 1
            if not ran.fired:
                break
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    assert ends[0, "new"] > 0
    assert {70, 3, 4}.isdisjoint(code for code, _ in ends)
    wanted = {"kill": (137, "old"), "EIO once": (5, "old"), "SIGTERM": (143, "old")}
    assert fault not in wanted or ends[wanted[fault]] > 5


def test_the_name_comes_last_and_all_is_on_disk_before(
    hub_cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, str]] = []
    monkeypatch.setattr(fsio, "hook", lambda call, file: calls.append((call, file)))
    made = make(hub_cache.snapshot)
    commit = calls.index(("link", NAME))
    before = calls[:commit]
    for name in PATCHED:
        blob = os.path.basename(os.readlink(Path(made.path, name)))
        assert before.index(("fsync", blob)) < before.index(("link", blob))
        assert before.index(("link", blob)) < before.index(("fsync_dir", "blobs"))
    assert before.index(("fsync_dir", "blobs")) < before.index(("rename", made.commit))
    assert before.index(("fsync_dir", "trees")) < before.index(("rename", made.commit))
    assert before.index(("rename", made.commit)) < before.index(("fsync_dir", "snapshots"))
    assert calls[commit + 1] == ("fsync_dir", "refs")


def test_eight_at_once(hub_cache: Cache) -> None:
    def command(_folder: Path) -> None:
        make(hub_cache.snapshot)

    ends = races.race(hub_cache.folder, [command] * 8, races.honest_flock)
    assert [end.code for end in ends] == [0] * 8, [end.message for end in ends]
    made = make(hub_cache.snapshot)
    assert made.outcome == "current"
    assert mirroring.verify(made.path).problems == ()
    assert sorted(os.listdir(hub_cache.folder)) == ["blobs", "refs", "snapshots", "trees"]
