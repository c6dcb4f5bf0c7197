"""A fault at every mutating call of mirror, power cuts, and eight mirrors at once."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conftest import make_checkpoint, shard
from faults import disk, harness, races
from running import snapshot

from patcher import fsio, mirroring, planning
from patcher.checkpoint import open_checkpoint
from patcher.errors import CkptPatchError, RefusedError
from patcher.mirroring import workspace
from patcher.target import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from patcher.mirroring import Mirrored, Prepared

FIXTURE = Path(__file__).resolve().parent.parent / "fixtures" / "Kimi-K2.5-NVFP4"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
FILES = {
    "config.json": (FIXTURE / "config.json").read_bytes(),
    "hf_quant_config.json": (FIXTURE / "hf_quant_config.json").read_bytes(),
    "sub/tokenizer.json": b"{}",
    SHARDS[0]: shard("a"),
}


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder in memory where there is one."""
    memory = "/dev/shm"
    folder = tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else None)
    yield Path(folder)
    shutil.rmtree(folder)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "source", FILES)


class Maker:
    """Makes mirrors of one source, with plans that are made once."""

    def __init__(self, source: Path) -> None:
        self.checkpoint = open_checkpoint(source)
        self.plans = {
            version: planning.plan(
                self.checkpoint, Target.parse("sm120", engine=f"vllm=={version}")
            )
            for version in ("0.16.0", "0.17.1")
        }

    def prepare(self, root: Path, link: str = "auto", version: str = "0.16.0") -> Prepared:
        return mirroring.prepare(self.checkpoint, self.plans[version], root, link)

    def make(self, root: Path, link: str = "auto", version: str = "0.16.0") -> Mirrored:
        return mirroring.make(self.prepare(root, link, version))


# --- Faults


@dataclass(frozen=True)
class Case:
    """A run of mirror under faults: how weights are linked, and what is there before."""

    link: str
    replaces: bool = False
    swaps: bool = True


CASES = {
    "made, auto": Case("auto"),
    "made, symlink": Case("symlink"),
    "made, copy": Case("copy"),
    "replaced": Case("auto", replaces=True),
    "replaced, two renames": Case("auto", replaces=True, swaps=False),
}


def campaign(scratch: Path, case: Case, fault: harness.Fault) -> Counter[tuple[int, str]]:
    """A fault at every mutating call, until a run meets none."""
    root = make_checkpoint(scratch / "source", FILES)
    maker = Maker(root)
    pristine = snapshot(root)
    ends: Counter[tuple[int, str]] = Counter()
    at = 0
    while True:
        at += 1
        home = scratch / f"case{at}"
        home.mkdir()
        if case.replaces:
            maker.make(home / "mirror", case.link, "0.17.1")

        def action(folder: Path) -> None:
            injector = fsio.hook
            assert injector is not None

            def hook(call: str, file: str) -> int | OSError | None:
                if call == "exchange" and not case.swaps:
                    raise OSError(errno.ENOSYS, "no such call")
                return injector(call, file)

            fsio.hook = hook
            maker.make(folder / "mirror", case.link)

        ran = harness.run(action, home, fault, at)
        outcome = state(home / "mirror", case)
        promised = harness.PROMISES.get((ran.code, ran.slug), set())
        if outcome == "absent":  # between the two renames, and at no other time
            assert not case.swaps
            assert ran.code in {harness.KILLED, 6}
        else:
            assert outcome in promised, (at, ran, outcome)
        made = maker.make(home / "mirror", case.link)
        assert made.outcome == {"new": "current"}.get(outcome, made.outcome)
        assert state(home / "mirror", case) == "new"
        assert os.listdir(home) == ["mirror"], "the next run removes what a killed one left"
        assert snapshot(root) == pristine
        shutil.rmtree(home)
        ends[ran.code, outcome] += 1
        if not ran.fired:
            assert (ran.code, outcome) == (0, "new")
            print(f"{case}, {fault}: {at - 1} points, {dict(ends)}")  # noqa: T201 - pytest -s
            return ends


def state(root: Path, case: Case) -> str:
    """Whether the mirror is the ``old`` state, the ``new`` one, or ``absent`` against the plan."""
    if not os.path.lexists(root):
        return "absent" if case.replaces else "old"
    verified = mirroring.verify(root)
    assert verified.problems == (), "half a mirror"
    return {"0.16.0": "new", "0.17.1": "old"}[verified.manifest.target["version"]]


@pytest.mark.parametrize("name", CASES)
def test_killed_at_every_call(scratch: Path, name: str) -> None:
    ends = campaign(scratch, CASES[name], harness.FAULTS["kill"])
    assert {outcome for code, outcome in ends if code == harness.KILLED} >= {"old", "new"}
    assert sum(ends.values()) > 30


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        *(("made, auto", fault) for fault in harness.FAULTS if fault != "kill"),
        ("made, copy", "ENOSPC from here on"),
        ("made, copy", "SIGTERM"),
        ("replaced", "EIO from here on"),
        ("replaced", "done, but reported failed"),
        ("replaced, two renames", "EIO once"),
        ("replaced, two renames", "EIO from here on"),
    ],
)
def test_every_other_fault(scratch: Path, name: str, fault: str) -> None:
    ends = campaign(scratch, CASES[name], harness.FAULTS[fault])
    assert {70, 3, 4}.isdisjoint(code for code, _ in ends)
    wanted = {"SIGINT": 130, "SIGTERM": 143, "ENOSPC from here on": 5, "EIO once": 5}
    assert fault not in wanted or (wanted[fault], "old") in ends


def test_a_full_disk_leaves_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Counter[str]()

    def hook(call: str, _file: str) -> None:
        calls[call] += 1
        if call == "write" and calls[call] == 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(fsio, "hook", hook)
    with pytest.raises(CkptPatchError, match="No space left on device") as caught:
        Maker(source).make(tmp_path / "mirror")
    assert caught.value.exit_code == 5
    assert os.listdir(tmp_path) == ["source"]


def test_a_signal_stops_a_long_copy(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (source / SHARDS[0]).open("r+b") as file:
        file.truncate(40 * 1024 * 1024)
    (source / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": {"a": SHARDS[0]}})
    )
    prepared = Maker(source).prepare(tmp_path / "mirror", "copy")
    written: list[str] = []

    def hook(call: str, file: str) -> None:
        if call == "write" and file == SHARDS[0]:
            written.append(file)
            if len(written) == 2:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(fsio, "hook", hook)
    with pytest.raises(CkptPatchError, match="interrupted by SIGINT") as caught:
        mirroring.make(prepared)
    assert caught.value.exit_code == 130
    assert len(written) == 2
    assert os.listdir(tmp_path) == ["source"]


def test_everything_is_on_disk_before_it_has_its_name(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File systems differ in what a power cut takes; the order is what holds on all of them."""
    calls: list[tuple[str, str]] = []
    monkeypatch.setattr(fsio, "hook", lambda call, file: calls.append((call, file)))
    Maker(source).make(tmp_path / "mirror", "copy")
    commit = calls.index(("rename", "mirror"))
    before, after = calls[:commit], calls[commit + 1 :]
    tree = next(file for call, file in before if call == "mkdir" and file.startswith("tree."))
    for name in ("config.json", "hf_quant_config.json", "tokenizer.json", SHARDS[0], "mirror.json"):
        assert before.index(("fsync", name)) > max(
            at for at, each in enumerate(before) if each == ("write", name)
        )
    for folder in ("sub", ".ckpt-patch", tree):
        synced = before.index(("fsync_dir", folder))
        assert synced > before.index(("mkdir", folder))
    assert before.index(("fsync_dir", tree)) > before.index(("fsync", "mirror.json"))
    assert before.index(("fsync_dir", "sub")) > before.index(("open", "tokenizer.json"))
    assert after[0] == ("fsync_dir", str(tmp_path))


# --- Power cuts


@pytest.mark.parametrize("kind", disk.MAKE)
@pytest.mark.parametrize("link", ["auto", "copy"])
def test_a_power_cut(scratch: Path, kind: str, link: str) -> None:
    """At some calls, and right after exit 0, when the mirror must be there."""
    if (reason := disk.missing(kind)) is not None:
        pytest.skip(reason)
    with disk.disk(kind, scratch) as made:
        root = make_checkpoint(made.path / "source", FILES)
        maker = Maker(root)
        made.sync()
        for at in (5, 23, 38, 45, 1000):
            for how in disk.CUTS.values():

                def cut(how: int = how) -> harness.Answer:
                    made.cut(how)
                    return harness.die()

                home = made.path / f"home{at}.{how}"
                home.mkdir()
                made.sync()
                ran = harness.run(
                    lambda folder: maker.make(folder / "mirror", link),
                    home,
                    harness.Fault(cut),
                    at,
                )
                if not ran.fired:
                    assert ran.code == 0
                    made.cut(how)
                made.restart()
                assert ran.fired or (home / "mirror").exists(), "exit 0, then lost"
                assert state(home / "mirror", Case(link)) in {"old", "new"}
                maker.make(home / "mirror", link)
                assert state(home / "mirror", Case(link)) == "new"
                assert os.listdir(home) == ["mirror"]


# --- Several at once


def lying_flock() -> None:
    """Locks that succeed for everyone, as on some network file systems."""
    vars(fcntl)["flock"] = lambda _fd, _how: None


def missing_flock() -> None:
    """Folders that cannot be locked, as on NFS."""

    def refuse(_fd: int, _how: int) -> None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    vars(fcntl)["flock"] = refuse


@pytest.mark.parametrize("lock", [races.honest_flock, lying_flock, missing_flock])
@pytest.mark.parametrize("replaces", [False, True])
def test_eight_at_once_give_one_tree(
    scratch: Path, lock: Callable[[], None], *, replaces: bool
) -> None:
    root = make_checkpoint(scratch / "source", FILES)
    maker = Maker(root)

    def command(folder: Path) -> None:
        maker.make(folder / "mirror")

    for number in range(2):
        home = scratch / f"home{number}"
        home.mkdir()
        if replaces:
            maker.make(home / "mirror", version="0.17.1")
        ends = races.race(home, [command] * 8, lock)
        assert [end.code for end in ends] == [0] * 8, [end.message for end in ends]
        assert mirroring.verify(home / "mirror").manifest.target["version"] == "0.16.0"
        assert mirroring.verify(home / "mirror").problems == ()
        assert os.listdir(home) == ["mirror"]


@pytest.mark.parametrize("finishes", [True, False])
def test_the_work_of_a_living_process_is_left_alone(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, finishes: bool
) -> None:
    """A second run waits for the first, which holds the lock; then the mirror is there, or not."""
    maker = Maker(source)
    maker.make(tmp_path / "first" if finishes else tmp_path / "mirror", "hardlink")
    if not finishes:
        shutil.rmtree(tmp_path / "mirror")
    name = workspace.name_for("mirror")
    (tmp_path / name / "tree.living").mkdir(parents=True)
    fd = os.open(tmp_path / name, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    calls: list[str] = []
    monkeypatch.setattr(fsio, "hook", lambda call, _file: calls.append(call))
    made: list[str] = []
    waiter = threading.Thread(
        target=lambda: made.append(maker.make(tmp_path / "mirror", "hardlink").outcome)
    )
    waiter.start()
    time.sleep(0.3)
    assert made == []
    assert os.listdir(tmp_path / name) == ["tree.living"]
    if finishes:
        os.rename(tmp_path / "first", tmp_path / "mirror")
    os.close(fd)
    waiter.join(10)
    assert made == ["current" if finishes else "made"]
    assert ("link" in calls) == (not finishes)
    assert sorted(os.listdir(tmp_path)) == ["mirror", "source"]


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_planted_workspace_is_refused(source: Path, tmp_path: Path, kind: str) -> None:
    planted = tmp_path / workspace.name_for("mirror")
    precious = make_checkpoint(tmp_path / "precious", {"file": b""})
    if kind == "file":
        planted.write_bytes(b"")
    else:
        planted.symlink_to(precious)
    with pytest.raises(RefusedError, match="something else has the name"):
        Maker(source).make(tmp_path / "mirror")
    assert (precious / "file").exists()
