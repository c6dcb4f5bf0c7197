"""What keeps the commands fast, as counts that no busy machine can change.

Seconds are measured by ``make bench``. Here: which modules a command imports, which files it opens,
how many bytes and system calls that takes, that no weight is among them, and how much memory.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
FIXTURE = REPOSITORY / "fixtures" / "Kimi-K2.5-NVFP4"
CONFLICT = ("--target", "sm120", "--engine", "vllm==0.16.0", "--json")
COMPATIBLE = ("--target", "sm120", "--engine", "vllm==0.33.0", "--json")

#: Runs one command line, then tells what it took.
PROBE = """
import json, sys, time
opened = []
sys.addaudithook(lambda event, words: event == "open" and opened.append(str(words[0])))
from patcher.cli import main
arguments = sys.argv[2:]
report, sys.argv[1:] = sys.argv[1], arguments
try:
    main()
except SystemExit as done:
    code = done.code
with open("/proc/self/io") as file:
    read = int(file.readline().split()[1])
with open("/proc/self/status") as file:  # ru_maxrss would be that of the process that forked
    memory = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))
found = {
    "code": code,
    "modules": sorted(sys.modules),
    "opened": opened,
    "read": read,
    "memory": memory,
    "seconds": time.process_time(),
}
with open(report, "w") as file:
    json.dump(found, file)
"""

#: Start-up time is a feature: none of these is for a command that only looks.
HEAVY = {
    "asyncio", "deepdiff", "email", "filelock", "http", "httpx", "httpx2", "huggingface_hub",
    "jsonpatch", "msgspec", "numpy", "packaging.metadata", "pydantic", "requests", "rich",
    "safetensors", "socket", "ssl", "tomllib", "tqdm", "unittest", "xml", "yaml",
}  # fmt: skip
#: What a conflict takes to try its cures, and what a transaction takes to be safe and told.
RECIPES = {"jsonpatch", "tomllib"}
WRITING = {"filelock", "socket"}
#: What every value of ours is.
RECORDS = {"msgspec"}

#: command line -> the heavy modules that it may import. ``CKPT`` is the checkpoint.
ALLOWED = {
    ("--version",): set[str](),
    ("--help",): set[str](),
    ("check", "--help"): RECORDS,
    ("check", *COMPATIBLE, "CKPT"): RECORDS,
    ("check", *CONFLICT, "CKPT"): RECORDS | RECIPES,
    ("inspect", "--json", "CKPT"): RECORDS,
    ("explain", "KV001"): RECORDS,
    ("targets",): RECORDS,
    ("status", "CKPT"): RECORDS,
    ("log", "CKPT"): RECORDS,
    ("undo", "CKPT"): RECORDS | WRITING | RECIPES,
    ("plan", *CONFLICT, "CKPT"): RECORDS | RECIPES,
    ("report", *CONFLICT, "CKPT"): RECORDS | RECIPES,
}


@dataclass(frozen=True)
class Probed:
    """What one command took."""

    code: int
    modules: list[str]
    opened: list[str]
    read: int
    memory: int
    seconds: float

    @property
    def heavy(self) -> set[str]:
        return HEAVY & {*self.modules}


Probe = Callable[..., Probed]


@pytest.fixture
def probe(tmp_path: Path) -> Probe:
    def call(*words: str, package: Path = REPOSITORY) -> Probed:
        report = tmp_path / "report.json"
        environment = {
            **os.environ,
            "PYTHONPATH": str(package),
            "PYTHONPYCACHEPREFIX": str(REPOSITORY / ".pytest_cache" / "compiled"),
            "XDG_STATE_HOME": str(tmp_path / "state"),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
        }
        for name in ("PYTHONDONTWRITEBYTECODE", "COV_CORE_SOURCE", "COVERAGE_PROCESS_START"):
            environment.pop(name, None)
        command = [sys.executable, "-c", PROBE, str(report), *words]
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return Probed(**json.loads(report.read_text()))

    return call


def synthetic(root: Path, *words: str) -> Path:
    program = str(REPOSITORY / "benchmarks" / "synthetic.py")
    subprocess.run([sys.executable, program, str(root), *words], check=True)
    return root


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic(tmp_path_factory.mktemp("large") / "checkpoint")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = ("--shards", "4", "--tensors", "2000", "--size", "4e9")
    return synthetic(tmp_path_factory.mktemp("small") / "checkpoint", *words)


@pytest.mark.parametrize("words", ALLOWED, ids=" ".join)
def test_a_command_imports_only_what_it_needs(
    words: tuple[str, ...], small: Path, probe: Probe
) -> None:
    done = probe(*(str(small) if word == "CKPT" else word for word in words))
    assert done.code in {0, 1}
    assert done.heavy <= ALLOWED[words]


def test_an_apply_imports_only_what_it_needs(tmp_path: Path, probe: Probe) -> None:
    root = shutil.copytree(FIXTURE, tmp_path / "checkpoint")
    assert probe("apply", *CONFLICT, str(root)).heavy <= RECORDS | RECIPES | WRITING
    assert probe("diff", str(root)).heavy <= RECORDS | RECIPES | WRITING


def test_a_local_checkpoint_needs_nothing_of_the_hub_and_of_writing(
    small: Path, probe: Probe
) -> None:
    ours = [m for m in probe("check", *COMPATIBLE, str(small)).modules if m.startswith("patcher.")]
    parts = ("hub.", "transaction", "mirroring", "recipes", "jsontext.splicing", "report.markdown")
    assert [name for name in ours if name.startswith(tuple(f"patcher.{p}" for p in parts))] == [
        "patcher.hub.ids"
    ]


def test_a_careless_import_is_noticed(tmp_path: Path, probe: Probe) -> None:
    """The gate itself: somebody imports the Hub's library at the top of a module."""
    package = tmp_path / "package"
    shutil.copytree(REPOSITORY / "patcher", package / "patcher")
    app = package / "patcher" / "cli" / "app.py"
    future = "from __future__ import annotations\n"
    text = app.read_text()
    app.write_text(text.replace(future, f"{future}\nimport huggingface_hub\n", 1))
    assert "huggingface_hub" in probe("--version", package=package).heavy


def test_only_the_facts_of_the_release_are_read(small: Path, probe: Probe) -> None:
    opened = probe("check", *COMPATIBLE, str(small)).opened
    facts = {Path(name).name for name in opened if "/engines/facts/vllm/" in name}
    releases = {
        name[: name.index(".", name.rindex("0.33.0") + 6)] for name in facts if "0.33" in name
    }
    assert releases == {"0.33.0"}


@pytest.mark.parametrize(
    "words", [("status",), ("log",), ("undo",), ("apply", *CONFLICT)], ids=lambda words: words[0]
)
def test_no_shard_is_opened(
    words: tuple[str, ...], small: Path, tmp_path: Path, probe: Probe
) -> None:
    """Of a checkpoint that is patched, so that there is something to look at and to undo."""
    copy = tmp_path / "copy"
    shutil.copytree(small, copy, copy_function=os.link)
    for path in copy.glob("*.json"):
        path.unlink()
        shutil.copy(small / path.name, path)
    if words[0] != "apply":
        assert probe("apply", *CONFLICT, str(copy)).code == 0
    done = probe(*words, str(copy))
    assert done.code == 0
    assert [name for name in done.opened if name.endswith(".safetensors")] == []


def header_bytes(root: Path) -> int:
    return sum(8 + int.from_bytes(_start(path), "little") for path in root.glob("*.safetensors"))


def _start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(8)


@pytest.mark.parametrize("full", [False, True])
def test_bytes_read_and_memory_at_281000_tensors(large: Path, probe: Probe, *, full: bool) -> None:
    """Without weights the command reads 2 MB of Python; the verdict needs the index, or headers."""
    done = probe("check", *COMPATIBLE, *(["--full"] if full else []), str(large))
    index = (large / "model.safetensors.index.json").stat().st_size
    needed = header_bytes(large) if full else index
    assert done.code == 0
    assert needed < done.read <= 1.05 * needed + 2 * 2**20
    assert done.memory <= 64 * 2**20


def test_time_grows_with_the_tensors_and_no_faster(
    large: Path, tmp_path: Path, probe: Probe
) -> None:
    """Start-up is taken off: it is the same for all and would hide how the rest grows.

    A busy machine needs more rounds to show it: in the least that each took, or in the ratio that
    half of the rounds stay below. What grows with the square is at 4 in every one of them.
    """
    larger = synthetic(tmp_path / "larger", "--tensors", "560000")
    for words in (COMPATIBLE, (*COMPATIBLE, "--full")):
        rounds: list[list[float]] = []
        while len(rounds) < 3 or (growth(rounds) > 2.4 and len(rounds) < 9):
            roots = (FIXTURE, large, larger)
            rounds.append([probe("check", *words, str(root)).seconds for root in roots])
        assert growth(rounds) <= 2.4


def growth(rounds: list[list[float]]) -> float:
    least = [min(column) for column in zip(*rounds, strict=True)]
    ratios: list[float] = []
    for nothing, first, second in (least, *rounds):
        ratios.append((second - nothing) / (first - nothing))
    return min(ratios[0], median(ratios[1:]))


# What follows looks at system calls.

needs_strace = pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")


@dataclass(frozen=True)
class Call:
    """``pread64(3</a/b>, ""..., 8, 0) = 8``."""

    name: str
    text: str


def calls(tmp_path: Path, *words: str, only: str = "all") -> list[Call]:
    """The system calls of one command; descriptors are followed by their paths."""
    log = tmp_path / "strace.log"
    command = ["strace", "-f", "-y", "-s", "0", "-e", f"trace={only}", "-o", str(log)]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("COV")},
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "PYTHONPYCACHEPREFIX": str(REPOSITORY / ".pytest_cache" / "compiled"),
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command += [sys.executable, "-m", "patcher", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if "ptrace" in done.stderr and not log.stat().st_size:
        pytest.skip(f"strace may not be used here: {done.stderr.strip()}")
    assert done.returncode in {0, 1}, done.stderr
    return list(_parsed(log))


def _parsed(log: Path) -> Iterator[Call]:
    for line in log.read_text().splitlines():
        if found := re.match(r"\d+ +(\w+)\((.*)", line):
            yield Call(found[1], found[2])


@needs_strace
@pytest.mark.parametrize("index", [True, False])
def test_not_one_byte_of_a_weight_is_read(tmp_path: Path, *, index: bool) -> None:
    """Every way to read a shard is looked at, and each ends before the weights begin."""
    words = (
        "--shards",
        "3",
        "--tensors",
        "900",
        "--size",
        "3e9",
        *([] if index else ["--no-index"]),
    )
    root = synthetic(tmp_path / "checkpoint", *words)
    ends = {
        path.name: 8 + int.from_bytes(_start(path), "little") for path in root.glob("*.safetensors")
    }
    seen = dict.fromkeys(ends, 0)
    ways = "read,pread64,readv,preadv,preadv2,mmap,sendfile,splice,copy_file_range,io_uring_enter"
    for call in calls(tmp_path, "check", *COMPATIBLE, "--full", str(root), only=ways):
        if ".safetensors>" not in call.text:
            continue
        name = call.text.partition(".safetensors>")[0].rpartition("/")[2] + ".safetensors"
        read = re.search(r", (\d+), (\d+)\) += (\d+)$", call.text)
        assert call.name == "pread64"
        assert read is not None
        seen[name] = max(seen[name], int(read[2]) + int(read[3]))
    assert seen == ends


@needs_strace
@pytest.mark.parametrize("links", [False, True])
@pytest.mark.parametrize(
    ("words", "most"), [(COMPATIBLE, 1), ((*COMPATIBLE, "--full"), 7), (CONFLICT, 1)]
)
def test_system_calls_for_each_shard(
    tmp_path: Path, words: tuple[str, ...], most: int, *, links: bool
) -> None:
    """Those that name it, or its descriptor; and none more where the shards are larger."""
    seen = []
    for shards, size in ((10, 1e9), (60, 1e9), (60, 5e10)):
        root = tmp_path / f"{shards}-{size:.0f}"
        synthetic(root, "--shards", str(shards), "--tensors", "600", "--size", str(size))
        if links:
            for path in root.glob("*.safetensors"):
                path.rename(tmp_path / f"{root.name}-{path.name}")
                path.symlink_to(tmp_path / f"{root.name}-{path.name}")
        counts = Counter(
            shard[1]
            for call in calls(tmp_path, "check", *words, str(root))
            if (shard := re.search(r"(model-\d+-of-\d+)\.safetensors[\">]", call.text))
        )
        assert len(counts) == shards
        seen.append(set(counts.values()))
    assert seen[0] == seen[1] == seen[2]
    assert max(seen[0]) <= most


@needs_strace
def test_an_apply_syncs_what_it_must_and_no_more(small: Path, tmp_path: Path) -> None:
    """Twice for each file and its original, and for the record; the first one makes the folder."""
    root = tmp_path / "copy"
    root.mkdir()
    for path in small.glob("*.json"):
        shutil.copy(path, root)
    for _ in ("first", "second"):
        found = calls(tmp_path, "apply", *CONFLICT, str(root), only="fsync,fdatasync,syncfs,sync")
        assert {call.name for call in found} == {"fsync"}
        assert 4 <= len(found) <= 4 * 2 + 8
        calls(tmp_path, "undo", str(root))
