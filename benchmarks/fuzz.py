"""Feed hostile bytes to every parser for as long as one likes, and count.

    python benchmarks/fuzz.py                      a million inputs, a table at the end
    python benchmarks/fuzz.py --runs 5000 plan     one target
    python benchmarks/fuzz.py --engine hypothesis  slower; a failing input is made small
    python benchmarks/fuzz.py --engine atheris     guided by coverage (pip install atheris)

The targets and what must hold are in ``tests/faults/hostile.py``; ``tests/test_fuzz.py`` runs the
same for seconds. A failing input is printed and ends the run with exit code 1. Memory is bounded by
the kernel: an input that takes more than ``MEMORY`` bytes fails.
"""

# ruff: noqa: INP001, S311, S603, T201 - a program that prints; chance is not for secrets

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from hypothesis.strategies import SearchStrategy

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "tests")]

MEMORY = 1024**3
#: Hypothesis remembers its examples; a chunk keeps that small.
CHUNK = 20_000
#: Whole commands cost a hundred times what a parser does.
SHARES = {"commands": 0.005}


def hostile() -> Any:
    """The targets; imported late, so that Atheris can instrument what they import."""
    return import_module("faults.hostile")


def inputs() -> Any:
    """What they are fed with; imported late for the same reason."""
    return import_module("faults.inputs")


def with_random(target: str, runs: int) -> Counter[bool]:
    """Run ``runs`` scrambled inputs; how many were refused and accepted."""
    done: Counter[bool] = Counter()
    target_of, chance = hostile().TARGETS[target], random.Random(time.time_ns())
    for _ in range(runs):
        data = inputs().scrambled(target, chance)
        try:
            done[target_of(data)] += 1
        except BaseException:
            print(f"{target} fails on {data!r}", file=sys.stderr)
            raise
    return done


def with_hypothesis(target: str, runs: int) -> Counter[bool]:
    """Run ``runs`` generated inputs."""
    from hypothesis import HealthCheck, Phase, given, settings  # noqa: PLC0415 - one engine is used

    done: Counter[bool] = Counter()
    strategy: SearchStrategy[bytes] = inputs().inputs(target)

    def attack(data: bytes) -> None:
        done[hostile().TARGETS[target](data)] += 1

    while (left := runs - done.total()) > 0:
        chosen = settings(
            max_examples=min(left, CHUNK),
            database=None,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        chosen(given(strategy)(attack))()
    return done


def with_atheris(target: str, runs: int) -> Counter[bool]:
    """Run libFuzzer in a process of its own: it never returns."""
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder, "corpus")
        corpus.mkdir()
        for number, seed in enumerate(inputs().SEEDS[target]):
            (corpus / str(number)).write_bytes(seed)
        words = [f"-runs={runs}", "-max_len=4096", f"-artifact_prefix={folder}/", str(corpus)]
        command = [sys.executable, __file__, "--inside", target, *words]
        log = subprocess.run(command, capture_output=True, text=True, check=False)
    if log.returncode:
        raise SystemExit(f"{target}: {log.stdout[-2000:]}{log.stderr[-4000:]}")
    counts = [line.split()[1:] for line in log.stdout.splitlines() if line.startswith("COUNT")]
    return Counter({False: int(counts[-1][0]), True: int(counts[-1][1])})


def inside_atheris(target: str, words: list[str]) -> None:
    """The process that fuzzes one target; says every hundred inputs how far it is."""
    atheris: Any = import_module("atheris")  # not a dependency

    with atheris.instrument_imports(include=["patcher"]):
        attack_one = hostile().TARGETS[target]
    done: Counter[bool] = Counter()

    def attack(data: bytes) -> None:
        done[attack_one(data)] += 1
        if done.total() % 100 == 0:
            print("COUNT", done[False], done[True], flush=True)

    atheris.Setup([sys.argv[0], *words], attack)
    atheris.Fuzz()


ENGINES: dict[str, Callable[[str, int], Counter[bool]]] = {
    "random": with_random,
    "hypothesis": with_hypothesis,
    "atheris": with_atheris,
}


def main() -> int:
    """Run the targets one after the other and print one line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="default: all")
    parser.add_argument("--runs", type=int, default=1_000_000, help="inputs over all targets")
    parser.add_argument("--engine", choices=ENGINES, default="random")
    parser.add_argument("--inside", metavar="TARGET", help=argparse.SUPPRESS)
    options, words = parser.parse_known_args()
    warnings.simplefilter("ignore")
    if options.inside:
        inside_atheris(options.inside, [*words, *options.targets])
    if options.engine != "atheris":
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    names = options.targets or list(hostile().TARGETS)
    weight = sum(SHARES.get(name, 1) for name in names)
    print(f"{time.strftime('%Y-%m-%d')}, {options.engine}, Python {sys.version.split()[0]}")
    total: Counter[bool] = Counter()
    for name in names:
        start = time.monotonic()
        done = ENGINES[options.engine](name, int(options.runs * SHARES.get(name, 1) / weight))
        total += done
        line = f"{done.total():>9,} inputs, {done[True]:>9,} accepted"
        print(f"{name:12} {line}, {time.monotonic() - start:>6.0f} s", flush=True)
    print(f"{'all':12} {total.total():>9,} inputs, {total[True]:>9,} accepted, 0 faults")
    return 0


if __name__ == "__main__":
    sys.exit(main())
