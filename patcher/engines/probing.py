"""Facts about the engine that is installed for some Python, made by running that very code.

The engine is never imported: its interpreter only says where the package is, and the definitions
that matter are then run in a child process of this tool, without torch, a GPU or the network.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NoReturn

from msgspec import Struct

import patcher
from patcher.engines import NAMES, differences, facts
from patcher.engines.facts import probed
from patcher.errors import UnreadableError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

#: Engine -> the seconds that its questions may take; vLLM needs 10 to 40 on one core.
SECONDS = {"vllm": 300, "sglang": 1800}
#: Engine -> import package, distribution.
PACKAGES = {"vllm": ("vllm", "vllm"), "sglang": ("sglang", "sglang")}
#: Before, Python spells enum members in messages differently.
PYTHON = (3, 11)

#: Run by the interpreter that is asked. Looking for a top-level package executes none of it, and
#: finds editable installations too.
_ASK = """
import json, os, site, sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
if sys.prefix == sys.base_prefix:
    site.addsitedir(site.getusersitepackages())
found = {}
for engine, (package, distribution) in json.loads(sys.argv[1]).items():
    spec = find_spec(package)
    try:
        release = version(distribution)
    except PackageNotFoundError:
        continue
    if spec is not None and spec.submodule_search_locations:
        folder = list(spec.submodule_search_locations)[0]
        found[engine] = [release, os.path.dirname(os.path.abspath(folder))]
json.dump(found, sys.stdout)
"""
_ASK_SECONDS = 60


class Installed(Struct, frozen=True):
    """An engine as one interpreter would import it.

    Attributes:
        version: in PEP 440's normal form.
        tree: the folder that holds its package.
    """

    engine: str
    version: str
    tree: str


class Probed(Struct, frozen=True):
    """What came of a probe.

    Attributes:
        known_as: the version that these facts answer for; ``None``: nothing was kept, because the
            build answers exactly like the release of its version, whose facts are packaged.
        path: the file they are kept in.
        nearest: the release whose facts would have answered without the probe, else the oldest.
        changed: the blocks that differ from that release's.
        seconds: what the questions took.
    """

    installed: Installed
    known_as: str | None
    path: Path | None
    nearest: str
    changed: tuple[str, ...]
    seconds: float


def installed(python: str = sys.executable) -> tuple[Installed, ...]:
    """The engines that ``python`` has and that can be probed.

    Raises:
        UsageError: ``python`` is no interpreter, or has no such engine.
    """
    command = [python, "-I", "-c", _ASK, json.dumps(PACKAGES)]
    try:
        done = subprocess.run(  # noqa: S603 - the interpreter that the user named
            command, capture_output=True, text=True, timeout=_ASK_SECONDS, check=False
        )
        found = json.loads(done.stdout) if done.returncode == 0 else None
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{python} does not answer like a Python: {error}") from error
    if found is None:
        words = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise UsageError(f"{python} does not answer like a Python: {words[0]}")
    if not found:
        names = " or ".join(NAMES[engine] for engine in PACKAGES)
        raise UsageError(
            f"{python} has no {names} installed",
            hint="ckpt-patch engines probe --python /path/to/the/engine's/bin/python",
        )
    return tuple(
        Installed(engine, _normal(version), tree) for engine, (version, tree) in found.items()
    )


def _normal(version: str) -> str:
    from packaging.version import InvalidVersion, Version  # noqa: PLC0415 - start-up time

    try:
        return str(Version(version))
    except InvalidVersion as error:
        raise UnreadableError(f"the installed version {version!r} is no version") from error


def probe(found: Installed) -> Probed:
    """Ask an installed engine, and keep its answers in the user's cache.

    A build whose exact version has packaged facts is compared with them. Where it answers otherwise
    it is a build of somebody's own, and kept as ``0.16.0+probed``: the released version's name goes
    on meaning the release.

    Raises:
        UnreadableError: the tree cannot be asked; the message names the definition.
        WriteError: the cache cannot be written.
    """
    start = time.monotonic()
    parts = ask(found)
    seconds = time.monotonic() - start
    release = _nearest(found)
    known = differences.loaded(found.engine, release)
    if lost := differences.lost(known, parts):
        _cannot(found, f"{lost} ({release})")
    changed = differences.blocks_of(known, parts)
    is_packaged = found.version == release
    if is_packaged and not changed:
        return Probed(found, None, None, release, (), seconds)
    name = f"{found.version}+probed" if is_packaged else found.version
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    path = probed.save(found.engine, name, tree=found.tree, date=date, parts=parts)
    facts.load.cache_clear()
    return Probed(found, name, path, release, changed, seconds)


def _nearest(found: Installed) -> str:
    """The packaged release that stands for this version as long as nobody has probed it."""
    try:
        return facts.nearest_packaged(found.engine, found.version)[0]
    except UnreadableError:  # older than all
        return facts.releases(found.engine)[0]


def ask(found: Installed) -> dict[str, Any]:
    """All facts about an installed engine, by part.

    Raises:
        UnreadableError: its code cannot be asked, or takes too long.
    """
    if sys.version_info < PYTHON:
        raise UnreadableError(
            "probing needs Python 3.11 or later to run in",
            hint=f"uvx --python 3.12 ckpt-patch engines probe --python {sys.executable}",
        )
    seconds = SECONDS[found.engine]
    command = [sys.executable, "-m", "patcher.engines.extract.child"]
    try:
        done = subprocess.run(  # noqa: S603 - this package
            [*command, found.engine, found.tree, found.version],
            cwd=os.path.dirname(os.path.dirname(os.path.abspath(patcher.__file__))),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        _cannot(found, f"its code did not answer within {seconds} s")
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        words = done.stderr.strip().splitlines()[-1:] or ["no message"]
        _cannot(found, f"exit code {done.returncode}, {words[0]}")
    if "error" in answer:
        _cannot(found, answer["error"])
    parts: dict[str, Any] = answer["parts"]
    return parts


def _cannot(found: Installed, why: str) -> NoReturn:
    name = f"{NAMES[found.engine]} {found.version}"
    release = _nearest(found)
    engine = f"--engine {found.engine}=={release}"
    raise UnreadableError(
        f"{name} cannot be probed: {why}",
        path=found.tree,
        hint=f"the nearest release with facts answers instead: ckpt-patch check {engine}",
    ) from None
