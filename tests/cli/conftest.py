"""The command line in this process, as a function."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from running import Done, Run

from patcher.cli.run import run as run_cli

if TYPE_CHECKING:
    from pathlib import Path


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
