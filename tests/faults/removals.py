"""Take each sync and each intent out of the package, one at a time, and see which tests fail.

    cd tests && python -m faults.removals          all, about a minute each; prints a table
    cd tests && python -m faults.removals 3 17     some, by number

The table is kept in docs/reliability.md, and ``tests/test_mutants.py`` fails when a call that is in
the package is not in it. Exit code 1: a removal that no test notices.
"""

# ruff: noqa: T201 - a program that prints and runs pytest

from __future__ import annotations

import ast
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "patcher"

_SYNCS = {"fsync", "_fsync", "fsync_dir"}
_INTENTS = {"pending", "undoing"}

#: Tests from quick to slow; the later ones run only for what the former do not notice.
STAGES = (
    ("test_fsio.py", "test_mutants.py", "-k", "syncs_last or synced_last or order or durably"),
    ("test_mirror_faults.py", "test_mutants.py", "-k", "on_disk or doctor"),
    ("test_faults.py", "-k", "kernel_agrees"),
    ("test_recovery.py", "test_faults.py", "-k", "test_recovery or (every_point and kill-False)"),
    ("test_powercut.py",),
)


@dataclass(frozen=True)
class Site:
    """A call that makes something durable, or declares an intent; ``file`` is in the package."""

    file: str
    function: str
    text: str
    start: int
    end: int
    instead: str

    @property
    def key(self) -> tuple[str, str, str]:
        """What it is called in the table."""
        return self.file, self.function, self.text


def sites() -> list[Site]:
    """All of them, but for those of the maintainers' tools."""
    paths = [path for path in sorted(PACKAGE.rglob("*.py")) if "extract" not in path.parts]
    return [site for path in paths for site in _sites(path)]


def _sites(path: Path) -> Iterator[Site]:
    source = path.read_text(encoding="utf-8")
    assert source.isascii()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and (instead := _instead(node)) is not None:
                assert node.end_lineno is not None
                assert node.end_col_offset is not None
                yield Site(
                    path.relative_to(PACKAGE).as_posix(),
                    function.name,
                    ast.unparse(node),
                    starts[node.lineno - 1] + node.col_offset,
                    starts[node.end_lineno - 1] + node.end_col_offset,
                    instead,
                )


def _instead(call: ast.Call) -> str | None:
    """What stands there when it is taken out; ``None`` for other calls."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
    if name in _SYNCS:
        return "None"
    state = call.args[1] if name == "move" and len(call.args) > 1 else None
    is_intent = isinstance(state, ast.Constant) and state.value in _INTENTS
    return ast.unparse(call.args[0]) if is_intent else None


def documented() -> set[tuple[str, str, str]]:
    """The keys in the table of docs/reliability.md."""
    text = (REPOSITORY / "docs" / "reliability.md").read_text(encoding="utf-8")
    return set(re.findall(r"^\| `([^`]*)` \| `([^`]*)` \| `([^`]*)` \|", text, re.MULTILINE))


def without(site: Site, copy: Path) -> list[str]:
    """The tests that fail without it; the copy of the repository is as before afterwards."""
    path = copy / "patcher" / site.file
    source = path.read_text(encoding="utf-8")
    path.write_text(source[: site.start] + site.instead + source[site.end :], encoding="utf-8")
    try:
        return next((failed for stage in STAGES if (failed := _failed(stage, copy))), [])
    finally:
        path.write_text(source, encoding="utf-8")


def _failed(stage: tuple[str, ...], copy: Path) -> list[str]:
    words = ["-q", "-rfE", "--tb=line", "-p", "no:cacheprovider", *stage]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=copy / "tests",
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    return re.findall(r"^(?:FAILED|ERROR) \S*?::([^\s\[]+)", done.stdout, re.MULTILINE)


def main() -> int:
    """Try all, or those whose numbers are given."""
    for each in (signal.SIGINT, signal.SIGHUP):  # a shell's background job ignores them, and
        signal.signal(each, signal.SIG_DFL)  # the tests of what they do would fail
    chosen = set(map(int, sys.argv[1:]))
    found = sites()
    unnoticed = 0
    print("| file | function | taken out | noticed by |")
    print("| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("patcher", "tests", "fixtures", "recipes", "docs", "pyproject.toml"):
            origin = REPOSITORY / name
            (shutil.copytree if origin.is_dir() else shutil.copy)(origin, copy / name)
        anyway = [test for stage in STAGES for test in _failed(stage, copy)]
        assert not anyway, f"with nothing taken out, these fail: {anyway}"
        for number, site in enumerate(found):
            if not chosen or number in chosen:
                failed = list(dict.fromkeys(without(site, copy)))
                unnoticed += not failed
                tests = ", ".join(f"`{test}`" for test in failed) or "nothing"
                print(f"| {' | '.join(f'`{each}`' for each in site.key)} | {tests} |", flush=True)
    return bool(unnoticed)


if __name__ == "__main__":
    sys.exit(main())
