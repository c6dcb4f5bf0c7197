"""Every patch through the releases' own parsers, as a table: ``cd tests && python -m parsers``.

The files of a release come from ``$CKPT_PATCH_TREES`` (folders of unpacked wheels), the cache of
the extraction, or its wheel on PyPI, of which only the members that are touched are fetched
(``--no-network``: not from there). Exit code 1: a parser says something else than we promise.
"""
# ruff: noqa: T201 - a program that prints

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from parsers import sources
from parsers.cases import cases
from parsers.comparing import Result, compare

from patcher import engines
from patcher.errors import UnreadableError

if TYPE_CHECKING:
    from parsers.cases import Case

_HEAD = ["engine", "release", "cases", "patched", "hooked", "unknown", "differing", "seconds"]
_given: list[Case] = []


def main() -> int:
    """Print one line a release; what differs, and what was not asked, goes last."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("releases", nargs="*", help="vllm==0.16.0 ..., or vllm; default: all")
    parser.add_argument("--no-network", action="store_true", help="only what is at hand")
    options = parser.parse_args()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        _given.extend(cases(Path(folder)))
        print(f"{len(_given)} sets of files of {len({case.name for case in _given})} checkpoints")
        print(f"| {' | '.join(_HEAD)} |\n| --- | --- |{' --: |' * (len(_HEAD) - 2)}")
        with ProcessPoolExecutor(os.cpu_count()) as workers:
            ask = partial(_asked, network=not options.no_network)
            done = list(map(_shown, workers.map(ask, _chosen(options.releases))))
    results = [one for one in done if isinstance(one, Result)]
    problems = [text for one in results for text in one.differences]
    print(f"{len(results)} releases in {time.monotonic() - start:.0f} s, {len(problems)} differ")
    print(*(one for one in done if isinstance(one, str)), *problems, sep="\n")
    return bool(problems)


def _chosen(names: list[str]) -> list[tuple[str, str]]:
    known = [
        (engine, release) for engine in ("vllm", "sglang") for release in engines.releases(engine)
    ]
    return [one for one in known if not names or one[0] in names or "==".join(one) in names]


def _asked(which: tuple[str, str], *, network: bool) -> Result | str:
    """The result, or a sentence why there is none."""
    logging.disable(logging.CRITICAL)
    engine, release = which
    try:
        source = sources.fetched(*which) if network else sources.at_hand(*which)
    except UnreadableError as error:
        return f"{engine} {release}: not asked: {error}"
    if source is None:
        return f"{engine} {release}: not asked: its files are not at hand"
    result = compare(engine, release, source, _given)
    if isinstance(source, sources.Kept) and source.lacking:
        return f"{engine} {release}: not asked: {source.lacking} is not at hand"
    return result


def _shown(one: Result | str) -> Result | str:
    if isinstance(one, Result):
        counts = (one.cases, one.patched, one.hooked, one.unknown, len(one.differences))
        cells = (one.engine, one.release, *map(str, counts), f"{one.seconds:.1f}")
        print(f"| {' | '.join(cells)} |", flush=True)
    return one


if __name__ == "__main__":
    sys.exit(main())
