from __future__ import annotations

import fcntl
import json
import shutil
from pathlib import Path

import pytest
from running import Run, as_nobody, make_reachable, snapshot

FIXTURE = Path(__file__).resolve().parents[2] / "fixtures" / "Kimi-K2.5-NVFP4"


def symptoms(run: Run, *words: str) -> tuple[int, dict[str, tuple[str, bool]]]:
    done = run("doctor", "--json", *words)
    rows = json.loads(done.out)["symptoms"]
    return done.code, {row["subject"]: (row["state"], row["healthy"]) for row in rows}


@pytest.fixture
def kimi(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FIXTURE, tmp_path / "Kimi"))


def test_the_machine(run: Run) -> None:
    code, found = symptoms(run)
    assert code == 0
    assert set(found) == {"ckpt-patch", "libraries", "GPU", "engines"}
    assert "click 8." in found["libraries"][0]


def test_a_checkpoint_and_its_file_system(run: Run, kimi: Path) -> None:
    before = snapshot(kimi)
    code, found = symptoms(run, str(kimi))
    assert code == 0
    assert found["fsync"] == ("works for files and directories", True)
    assert found["flock"] == ("honest", True)
    assert found["hard links"] == ("yes", True)
    assert found["transactions"] == ("pristine", True)
    assert snapshot(kimi) == before


def test_a_flock_that_lies(run: Run, kimi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    code, found = symptoms(run, str(kimi))
    assert code == 1
    assert found["flock"][0].startswith("lies")


def test_a_place_that_cannot_be_written(run: Run, kimi: Path) -> None:
    make_reachable(kimi.parent)
    kimi.chmod(0o555)
    done = as_nobody(run, "doctor", str(kimi))
    assert done.code == 1
    assert "!   file system" in done.out
    assert "cannot be written" in done.out


def test_an_interrupted_transaction(run: Run, kimi: Path) -> None:
    run("apply", "--target", "sm120", "--engine", "vllm==0.16.0", str(kimi))
    (kimi / ".ckpt-patch" / "0001.applied").rename(kimi / ".ckpt-patch" / "0001.pending")
    code, found = symptoms(run, str(kimi))
    assert code == 1
    assert "ckpt-patch recover" in found["transactions"][0]
    assert run("recover", str(kimi)).code == 0
    assert symptoms(run, str(kimi))[0] == 0
