"""``python -m patcher.engines.extract vllm 0.16.0 [0.33.0 ...] | --tree DIR --version V``.

For maintainers: writes facts/<engine>/<release>.selection.json. ``all`` stands for every release
on PyPI from 0.11.2 on.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any

from patcher.engines.extract import vllm_selection
from patcher.engines.extract.source import DirectorySource, wheel_source, wheels
from patcher.errors import CkptPatchError

_FACTS = os.path.join(os.path.dirname(os.path.dirname(__file__)), "facts")
_OLDEST = "0.11.2"
#: Python spells enum members in messages differently before.
_PYTHON = (3, 11)


def dumps(facts: dict[str, Any]) -> str:
    """JSON text with one predicate on a line, so that two releases can be compared by eye."""
    lines = ",\n".join(f"{json.dumps(key)}: {_block(value)}" for key, value in facts.items())
    return f"{{\n{lines}\n}}\n"


def _block(value: Any, depth: int = 2) -> str:
    nested = isinstance(value, (dict, list)) and any(
        isinstance(item, (dict, list))
        for item in (value.values() if isinstance(value, dict) else value)
    )
    if not depth or not nested:
        return json.dumps(value)
    if isinstance(value, dict):
        rows = ",\n".join(f"{json.dumps(k)}: {_block(v, depth - 1)}" for k, v in value.items())
        return f"{{\n{rows}\n}}"
    if isinstance(value[0], list):
        return "[\n" + ",\n".join(json.dumps(row) for row in value) + "\n]"
    return json.dumps(value)


def _releases(arguments: argparse.Namespace) -> list[str]:
    from packaging.version import Version  # noqa: PLC0415 - one use

    if arguments.tree:
        return [arguments.version]
    if arguments.release != ["all"]:
        return list(arguments.release)
    ordered = sorted(wheels(arguments.engine), key=Version)
    return [release for release in ordered if Version(release) >= Version(_OLDEST)]


def main() -> int:
    """Extract the releases named on the command line; the exit code is 4 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m patcher.engines.extract", description=__doc__)
    parser.add_argument("engine", choices=["vllm"])
    parser.add_argument("release", nargs="*")
    parser.add_argument("--tree", help="a source tree or site-packages instead of PyPI")
    parser.add_argument("--version", help="the release that --tree holds")
    parser.add_argument("--out", default=_FACTS, help="folder of the facts")
    arguments = parser.parse_args()
    if bool(arguments.tree) != bool(arguments.version) or bool(arguments.tree) == bool(
        arguments.release
    ):
        parser.error("name releases, or --tree and --version")
    if sys.version_info < _PYTHON:
        parser.error("facts are extracted with Python 3.11 or later")
    return max(_extract(arguments, release) for release in _releases(arguments))


def _extract(arguments: argparse.Namespace, release: str) -> int:
    start = time.perf_counter()
    try:
        tree = arguments.tree
        source = DirectorySource(tree) if tree else wheel_source(arguments.engine, release)
        text = dumps(vllm_selection.facts(source, release))
    except CkptPatchError as error:
        sys.stderr.write(f"{arguments.engine} {release}: {error}\n")
        return error.exit_code
    path = os.path.join(arguments.out, arguments.engine, f"{release}.selection.json")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    seconds = time.perf_counter() - start
    sys.stderr.write(f"{path}: {len(text)} bytes in {seconds:.1f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
