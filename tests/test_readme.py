"""The README shows real sessions: each command is run again and its output compared.

``UPDATE_README=1 pytest tests/test_readme.py`` writes the present output into the page.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from patcher.cli.app import COMMANDS

REPOSITORY = Path(__file__).resolve().parent.parent
README = REPOSITORY / "README.md"
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)


def run(command: str, folder: Path) -> str:
    """What a terminal shows; the scratch folder is not part of it."""
    words = command.split()
    assert words[0] == "ckpt-patch"
    environment = os.environ | {
        "COLUMNS": "100",
        "XDG_STATE_HOME": str(folder / "state"),
        "NO_COLOR": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "patcher", *words[1:]],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    shown = done.stdout.replace(f"{folder}/", "./")
    shown = re.sub(r"20\d\d-\d\d-\d\dT[\d:]+\+00:00", "2026-11-30T12:00:00+00:00", shown)
    return shown + (f"(exit {done.returncode})\n" if done.returncode else "")


def replayed(text: str, folder: Path) -> str:
    def replay(match: re.Match[str]) -> str:
        commands = [line[2:] for line in match[1].splitlines() if line.startswith("$ ")]
        shown = (f"$ {command}\n{run(command, folder)}" for command in commands)
        return f"```console\n{''.join(shown)}```"

    return BLOCK.sub(replay, text)


def test_the_sessions_are_real(tmp_path: Path) -> None:
    name = "Kimi-K2.5-NVFP4"
    shutil.copytree(REPOSITORY / "fixtures" / name, tmp_path / name)
    text = README.read_text(encoding="utf-8")
    real = replayed(text, tmp_path)
    if os.environ.get("UPDATE_README"):
        README.write_text(real, encoding="utf-8")
    assert real == text or os.environ.get("UPDATE_README")


@pytest.mark.parametrize(
    ("gpu", "outcome"), [("sm120", "patched"), ("sm90", "passed through"), ("sm999", "refused")]
)
def test_the_entrypoint_runs(tmp_path: Path, gpu: str, outcome: str) -> None:
    source, mirror, bin_ = (tmp_path / name for name in ("model", "mirror", "bin"))
    shutil.copytree(REPOSITORY / "fixtures" / "Kimi-K2.5-NVFP4", source)
    bin_.mkdir()
    for name, script in {
        "ckpt-patch": f'exec "{sys.executable}" -m patcher "$@"',
        "vllm": 'echo "$@"; grep -c "kv_cache_scheme.: null" "$2/config.json"',
    }.items():
        (bin_ / name).write_text(f"#!/bin/sh\n{script}\n")
        (bin_ / name).chmod(0o755)
    (entrypoint,) = re.findall(r"```sh\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    assert len(entrypoint.splitlines()) == 3
    environment = os.environ | {
        "PATH": f"{bin_}:{os.environ['PATH']}",
        "GPU": gpu,
        "ENGINE": "vllm==0.16.0",
        "SRC": str(source),
        "DEST": str(mirror),
    }
    done = subprocess.run(
        ["sh", "-c", entrypoint, "entrypoint", "--port", "80"],
        env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    shown, code = {
        "patched": (f"serve {mirror} --port 80\n1\n", 0),
        "passed through": (f"serve {source} --port 80\n0\n", 1),  # grep's own exit code
        "refused": ("", 2),
    }[outcome]
    assert (done.stdout, done.returncode) == (shown, code), done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_named(command: str) -> None:
    text = README.read_text(encoding="utf-8")
    assert f"`{command}" in text or f"\n### {command}\n" in text
