"""``python -m patcher.engines.extract.refresh vllm 0.34.0``: all that a new release needs.

Runs the release's code, stores its facts and dates, writes the page of what is supported anew, and
prints what changed since the release before. No code is edited. Either takes about a
minute of one core; each release needs the network the first time.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from patcher.engines import differences, facts
from patcher.engines.extract import __main__ as selection
from patcher.engines.extract import parts, sglang, support, vllm_resolution
from patcher.engines.extract.source import _project_files
from patcher.engines.facts import provenance
from patcher.errors import CkptPatchError, UnreadableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

#: Part of vLLM's facts -> its text.
_TEXTS: Mapping[str, Callable[[dict[str, Any]], str]] = {
    "resolution": vllm_resolution.render,
    "selection": selection.dumps,
}
_PROJECTS = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt-llm"}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; the exit code is 4 when the release cannot be fetched or asked."""
    parser = argparse.ArgumentParser(
        prog="python -m patcher.engines.extract.refresh", description=__doc__
    )
    parser.add_argument("engine", choices=list(parts.EXTRACTORS))
    parser.add_argument("release")
    options = parser.parse_args(arguments)
    engine, release = options.engine, options.release
    logging.disable(logging.WARNING)  # the engine warns about every odd value it is asked about
    start = time.perf_counter()
    try:
        found = parts.extract(engine, parts.wheel(engine, release), release)
        if lost := _lost(engine, release, found):
            raise UnreadableError(lost)
        save(engine, release, found)
        save_dates(engine)
    except CkptPatchError as error:
        sys.stderr.write(f"{engine} {release}: {error}\n")
        return error.exit_code
    support.write()
    sys.stderr.write(f"facts about {engine} {release} after {time.perf_counter() - start:.0f} s\n")
    return compare(engine, release)


def save(engine: str, release: str, found: parts.Parts) -> None:
    """Write the files of one release."""
    if engine == "sglang":
        sglang.save(release, found["rules"])
    for part, text in _TEXTS.items() if engine == "vllm" else ():
        path = os.path.join(os.path.dirname(facts.__file__), engine, f"{release}.{part}.json")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text(found[part]))
    facts.releases.cache_clear()
    facts.load.cache_clear()


def save_dates(engine: str) -> None:
    """Write the days on which the releases with facts came to the package index."""
    from packaging.utils import parse_sdist_filename, parse_wheel_filename  # noqa: PLC0415 - one use
    from packaging.version import Version  # noqa: PLC0415 - one use

    known = {Version(name): name for name in (*facts.read(engine), *facts.releases(engine))}
    found: dict[str, str] = {}
    for file in _project_files(_PROJECTS[engine]):
        name, day = file["filename"], file["upload-time"][:10]
        parse = parse_wheel_filename if name.endswith(".whl") else parse_sdist_filename
        release = known.get(parse(name)[1])
        if release:
            found[release] = min(day, found.get(release, day))
    path = provenance.dates_file(engine)
    ordered = {release: found[release] for release in known.values() if release in found}
    with open(path, "w", encoding="utf-8") as text:
        text.write(json.dumps(ordered, indent=1) + "\n")


def _before(engine: str, release: str) -> str:
    """The release before; the oldest has none and stands for itself."""
    from packaging.version import Version  # noqa: PLC0415 - one use

    older = [known for known in facts.releases(engine) if Version(known) < Version(release)]
    return older[-1] if older else facts.releases(engine)[0]


def _lost(engine: str, release: str, found: parts.Parts) -> str | None:
    before = _before(engine, release)
    lost = differences.lost(differences.loaded(engine, before), found)
    return f"{lost} ({before})" if lost else None


def compare(engine: str, release: str) -> int:
    """Print what changed since the release before; differences (exit code 1) are no failure."""
    before = _before(engine, release)
    command = ["engines", "diff", f"{engine}=={before}", f"{engine}=={release}"]
    code = subprocess.run([sys.executable, "-m", "patcher", *command], check=False).returncode  # noqa: S603 - this package
    return 0 if code == 1 else code


if __name__ == "__main__":
    sys.exit(main())
