"""What is compared: our commands, the limits, and the programs that others use for such jobs."""

# ruff: noqa: INP001, S603 - a part of a program that starts the programs it compares

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import limits
import synthetic
from rounds import Environment, Goal, Row, timed

from patcher.engines import facts

if TYPE_CHECKING:
    from collections.abc import Sequence

REPOSITORY = Path(__file__).resolve().parent.parent
CONFLICT = ("--target", "sm120", "--engine", "vllm==0.16.0")
COMPATIBLE = ("--target", "sm120", "--engine", "vllm==0.33.0")
#: Peers from PyPI, each with its arguments behind the program's name.
PEERS = {"hf-mem": "hf-mem", "modelinfo-cli": "modelinfo"}


@dataclass(frozen=True)
class Place:
    """Where everything is.

    Attributes:
        root: a folder of our own.
        checkpoint: what is judged.
        ours: the environment that the wheel is installed in.
        peers: the environment of the peers.
    """

    root: Path
    checkpoint: Path
    ours: Path
    peers: Path

    def run(self, *words: str) -> Sequence[str]:
        """A command line of ours."""
        return (str(self.ours / "bin" / "ckpt-patch"), *words)


def install(folder: Path, *requirements: str) -> str | None:
    """Make an environment; the reason where that is not possible."""
    if not (folder / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *requirements]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def limit_rows(place: Place, environment: Environment) -> list[Row]:
    """Interpreter and libraries alone, the bytes alone, and a durable write alone."""
    python, root = str(place.ours / "bin" / "python"), place.checkpoint
    limits.open_all(root)  # imports numpy
    index = root / "model.safetensors.index.json"
    evict = partial(limits.evict, [*limits.shards(root), index])
    folder = place.root / "durable"
    folder.mkdir(exist_ok=True)
    return [
        environment.row("bare Python", (python, "-I", "-c", "pass")),
        environment.row("click", (python, "-c", "import click")),
        timed("headers", partial(limits.read_headers, root), "read all headers once"),
        timed("index", index.read_bytes, "read the index once"),
        timed("safe_open", partial(limits.open_all, root), "safetensors.safe_open of all shards"),
        timed("facts", _load_facts, "the facts of one release, from their files"),
        timed("replace", partial(limits.replace_durably, folder), "write, fsync, rename, fsync"),
        timed(
            "headers, cold",
            partial(limits.read_headers_cold, root),
            "fadvise all, read all headers; not in the page cache",
            evict,
        ),
    ]


def _load_facts() -> None:
    for part in facts.parts("vllm"):
        facts.load.__wrapped__("vllm", "0.33.0", part)


def our_rows(place: Place, environment: Environment) -> list[Row]:
    """Every command that is in the table."""
    run, root = place.run, str(place.checkpoint)
    patched = copy_of(place.checkpoint, place.root / "patched")
    apply = run("apply", *CONFLICT, "--json", str(patched))
    undo = run("undo", "--json", str(patched))
    quietly = partial(subprocess.run, capture_output=True, env=environment.variables, check=True)
    index = place.checkpoint / "model.safetensors.index.json"
    evict = partial(limits.evict, [*limits.shards(place.checkpoint), index])
    conflict, compatible = ("check", *CONFLICT, "--json"), ("check", *COMPATIBLE, "--json")
    complete = {
        "_CKPT_PATCH_COMPLETE": "bash_complete", "COMP_WORDS": "ckpt-patch ch", "COMP_CWORD": "1",
    }  # fmt: skip
    return [
        environment.row("--version", run("--version")),
        environment.row("--help", run("--help")),
        environment.row("completion", run(), **complete),
        environment.row("check", run(*conflict, root), codes=(1,)),
        environment.row("check, compatible", run(*compatible, root)),
        environment.row("check, every release", run("check", "--target", "sm120", "--json", root),
                        codes=(1,)),
        environment.row("check --full", run(*compatible, "--full", root)),
        environment.row("check, few tensors", run(*conflict, str(synthetic.FIXTURE)), codes=(1,)),
        environment.row("check, few, compatible", run(*compatible, str(synthetic.FIXTURE))),
        environment.row("check, cold", run(*conflict, root), codes=(1,), before=evict),
        environment.row("check --full, cold", run(*compatible, "--full", root), before=evict),
        environment.row("status", run("status", "--json", root)),
        environment.row("log", run("log", "--json", root)),
        environment.row("plan", run("plan", *CONFLICT, "--json", root)),
        environment.row("apply", apply, before=partial(quietly, undo)),
        environment.row("undo", undo, before=partial(quietly, apply)),
    ]  # fmt: skip


def peer_rows(place: Place, environment: Environment) -> tuple[list[Row], list[str]]:
    """What others use, and a sentence for each that cannot be measured."""
    root, target = place.checkpoint, place.root / "by-hand"
    rows = [
        environment.row("hf version", (str(place.ours / "bin" / "hf"), "version")),
        environment.row("cp -al", ("cp", "-al", str(root), str(target)), before=_without(target)),
        environment.row("cp + edit", _by_hand(root, target), before=_without(target)),
    ]
    missing = [f"{name}: {why}" for name in PEERS if (why := install(place.peers, name))]
    bin_ = place.peers / "bin"
    if (bin_ / "hf-mem").exists():
        rows.append(environment.row("hf-mem --help", (str(bin_ / "hf-mem"), "--help")))
        missing.append("hf-mem reads repositories on the Hub only: its start-up is measured")
    if (bin_ / "modelinfo").exists():
        files = [str(path) for path in limits.shards(root)]
        rows.append(environment.row("modelinfo", (str(bin_ / "modelinfo"), files[0])))
    return rows, missing


def copy_of(checkpoint: Path, target: Path) -> Path:
    """A copy to be changed; the weights are hard links."""
    target.mkdir()
    for path in checkpoint.iterdir():
        if path.suffix == ".json":
            shutil.copy(path, target)
        else:
            (target / path.name).hardlink_to(path)
    return target


def _without(target: Path) -> partial[None]:
    return partial(shutil.rmtree, target, ignore_errors=True)


def _by_hand(root: Path, target: Path) -> Sequence[str]:
    """The patch as people make it: not atomic, not durable, no way back, one file of two."""
    edit = "jq '.quantization_config.kv_cache_scheme = null' \"$1/config.json\""
    if not shutil.which("jq"):
        code = (
            "import json,sys; c=json.load(open(sys.argv[1]+'/config.json')); "
            "c['quantization_config']['kv_cache_scheme']=None; print(json.dumps(c,indent=2))"
        )
        edit = f'"{sys.executable}" -c "{code}" "$1"'
    script = f'mkdir "$2" && cp -p "$1"/*.json "$2" && {edit} > "$2/config.json"'
    return ("sh", "-c", script, "sh", str(root), str(target))


GOALS = (
    Goal("--version", {"click": 1}, 1.3),
    Goal("--help", {"click": 1}, 1.3),
    Goal("completion", {"click": 1}, 1.3),
    Goal("check", {"click": 1, "headers": 1}, 1.5),
    Goal("check", {"hf version": 1}, 0.4),
    Goal("check, few tensors", {"click": 1, "headers": 1}, 1.5),
    Goal("check, few tensors", {"hf version": 1}, 0.4),
    Goal("check, few, compatible", {"click": 1, "headers": 1}, 1.5),
    Goal("check, few, compatible", {"hf version": 1}, 0.4),
    Goal("check, compatible", {"click": 1, "headers": 1}, 1.5),
    Goal("check, compatible", {"hf version": 1}, 0.4),
    Goal("check --full", {"click": 1, "safe_open": 1}, 1.5),
    Goal("check, cold", {"click": 1, "headers, cold": 1}, 1.5, waits=True),
    Goal("check --full, cold", {"click": 1, "safe_open": 1, "headers, cold": 1}, 1.5, waits=True),
    Goal("apply", {"check": 1, "replace": 15}, 1.0, waits=True),
)
