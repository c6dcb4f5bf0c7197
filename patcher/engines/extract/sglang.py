"""Write the facts about SGLang releases: ``python -m patcher.engines.extract.sglang 0.5.24``.

Needs the network once per release (the wheel's Python files are cached) and about a minute of one
core; neither torch nor a GPU. The facts go to ``patcher/engines/facts/sglang``; a release that
answers everything like an older one gets a file that says so.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import tempfile
from typing import TYPE_CHECKING, Any

from patcher.engines.extract import (
    sglang_architectures,
    sglang_checkpoint,
    sglang_launch,
    sglang_models,
    sglang_registry,
)
from patcher.engines.extract.sglang_examples import EXAMPLE, FAMILIES
from patcher.engines.extract.sglang_rules import Grid
from patcher.engines.extract.sglang_stage import ASSUMED, Stage, clean_environment
from patcher.engines.extract.sglang_stubs import CARDS
from patcher.engines.extract.source import WheelSource, _project_files
from patcher.errors import UnreadableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from patcher.engines.extract.sglang_stage import Stages
    from patcher.engines.extract.source import Source

    Rows = Iterable[tuple[dict[str, str], dict[str, Any]]]

FOLDER = os.path.join(os.path.dirname(__file__), "..", "facts", "sglang")
#: What the release's code may raise on purpose; anything else means that the stage is too small.
_ON_PURPOSE = frozenset({"ValueError", "AssertionError", "RuntimeError", "NotImplementedError"})


def extract(release: str, source: Source) -> dict[str, Any]:
    """All facts about one release.

    Raises:
        ValueError: the release raised something that it did not mean to raise.
    """
    stages = functools.partial(Stage, source, indexes={})
    with clean_environment(), tempfile.TemporaryDirectory() as folder:
        return _facts(release, source, stages, functools.partial(os.path.join, folder))


def _facts(
    release: str, source: Source, stages: Stages, folder: Callable[[str], str]
) -> dict[str, Any]:
    deaf = sglang_models.deaf(source)  # first: later a full heap makes parsing three times as slow
    stage = stages(CARDS[-4])
    flags = sglang_launch.choices(stage)
    launches = _table(
        _meant(release, sglang_launch.rows(stages, folder("launches"))), sglang_launch.FEATURES
    )
    return {
        "engine": "sglang",
        "release": release,
        "assumed": list(ASSUMED),
        "flags": flags,
        "launch": {
            "from": _lines(stage, *sglang_launch.PROVENANCE),
            **launches,
        },
        "architectures": {
            "from": ["launches without flags; see patcher.engines.extract.sglang_architectures"],
            **_architectures(
                source, stages, folder("architectures"), launches["features"]["model"]
            ),
        },
        "checkpoint": {
            "from": _lines(stage, *sglang_checkpoint.PROVENANCE),
            **_families(release, sglang_checkpoint.rows(stages, folder("checkpoint"))),
        },
        "pool": {
            "from": _lines(stage, *sglang_checkpoint.POOL),
            **_table(
                _meant(release, sglang_checkpoint.pools(stages, flags["kv_cache_dtype"])),
                sglang_checkpoint.FEATURES,
            ),
        },
        "registry": {
            "from": _lines(stage, *sglang_registry.PROVENANCE),
            **_table(
                sglang_registry.rows(stages, flags["attention_backend"]), sglang_registry.FEATURES
            ),
        },
        "deaf": {
            "from": ["sglang/srt/models: classes that never set self.quant_config (read, not run)"],
            "architectures": deaf,
        },
    }


def _architectures(
    source: Source, stages: Stages, folder: str, asked: Sequence[str]
) -> dict[str, Any]:
    """Without those that were ``asked`` about their launches under their own name."""
    names = [name for name in sglang_architectures.names(source) if name not in asked]
    latent = sglang_architectures.latent(stages, folder, names)
    return {
        "mla": latent,
        "groups": sglang_architectures.groups(stages, folder, names, latent),
    }


def _families(release: str, families: dict[str, Any]) -> dict[str, Any]:
    for found in families.values():
        _check_stubs(release, found)
    return {
        "capability": _capabilities(families),
        "families": {
            name: _table(_plain(found), tuple(FAMILIES[name])) for name, found in families.items()
        },
    }


def _table(rows: Rows, features: Sequence[str]) -> dict[str, Any]:
    """One list of rules for the refusals, and one for each field of what is not refused."""
    observed = list(rows)
    grid = Grid([(given, _refusal(result)) for given, result in observed], features)
    accepted = [(given, result) for given, result in observed if "err" not in result]
    fields = dict.fromkeys(field for _, result in accepted for field in result)
    return {
        "features": {name: list(values) for name, values in grid.values.items()},
        "refusal": grid.rules(),
        **{
            field: Grid([(given, r.get(field)) for given, r in accepted], features).rules()
            for field in fields
        },
    }


def _refusal(result: dict[str, Any]) -> dict[str, Any] | None:
    return result if "err" in result else None


def _meant(release: str, rows: Rows) -> Rows:
    for given, result in rows:
        if result.get("err", "ValueError") not in _ON_PURPOSE:
            raise ValueError(f"SGLang {release}: {given} ended in {result}")
        yield given, result


def _check_stubs(release: str, rows: Rows) -> None:
    """A loader may stumble over bad metadata, but never over a stand-in of the stage."""
    for given, result in rows:
        if "SimpleNamespace" in result.get("msg", "") or "'Config'" in result.get("msg", ""):
            raise ValueError(f"SGLang {release}: {given} ended in {result}")


def _plain(rows: Rows) -> Rows:
    """Without the capability, which is a fact about the class; long messages are cut short."""
    for forms, result in rows:
        kept = {key: value for key, value in result.items() if key != "capability"}
        if len(kept.get("msg", "")) > 120:  # noqa: PLR2004 - a line
            kept["msg"] = kept["msg"].partition(". ")[0]
        if kept.get("algo") == EXAMPLE:  # taken over as it stands, whatever it says
            kept["algo"] = "{said}"
        yield forms, kept


def _capabilities(families: dict[str, Any]) -> dict[str, int]:
    """``quantization class`` -> the least compute capability on CUDA, times ten."""
    rows = (row for found in families.values() for row in found)
    return {
        f"{result['quantization']} {result['class']}": result["capability"]
        for forms, result in rows
        if "capability" in result and forms["vendor"] == "cuda"
    }


def _lines(stage: Stage, *names: str) -> list[str]:
    """``file:line name`` of those definitions that this release has."""
    found = []
    for name in names:
        module, _, path = name.partition(":")
        if stage.has(f"{module}:{path.partition('.')[0]}"):
            line = stage.line(f"{module}:{path.partition('.')[0]}")
            found.append(f"{module.replace('.', '/')}.py:{line} {path}")
    return found


def text(facts: dict[str, Any], depth: int = 0) -> str:
    """JSON with one rule, or one list of plain values, a line."""
    if isinstance(facts, dict) and depth < _depth(facts):
        inner = ",\n".join(
            f"{' ' * (depth + 1)}{json.dumps(key)}: {text(value, depth + 1)}"
            for key, value in facts.items()
        )
        return f"{{\n{inner}\n{' ' * depth}}}"
    if isinstance(facts, list) and any(isinstance(item, dict) for item in facts):
        inner = ",\n".join(f"{' ' * (depth + 1)}{json.dumps(item)}" for item in facts)
        return f"[\n{inner}\n{' ' * depth}]"
    return json.dumps(facts)


def _depth(facts: dict[str, Any]) -> int:
    """Objects of plain values stay on one line, unless they are the whole file."""
    return 9 if any(isinstance(value, (dict, list)) for value in facts.values()) else 0


def save(release: str, facts: dict[str, Any]) -> str:
    """Write the release's file, or one that names the release that it repeats unchanged."""
    for older in _repeated(release):
        with open(_path(older), encoding="utf-8") as file:
            if _answers(json.load(file)) == _answers(facts):
                facts = {"engine": "sglang", "release": release, "same_as": older}
                break
    with open(_path(release), "w", encoding="utf-8") as file:
        file.write(text(facts) + "\n")
    return _path(release)


def _repeated(release: str) -> list[str]:
    """The release that a post-release repeats, and the post-releases between, if they are here."""
    base, _, number = release.partition(".post")
    names = [base, *(f"{base}.post{post}" for post in range(1, int(number or 0)))]
    return [name for name in names if name != release and os.path.exists(_path(name))]


def _path(release: str) -> str:
    return os.path.join(FOLDER, f"{release}.rules.json")


def _answers(facts: dict[str, Any]) -> Any:
    """The facts without their release and their line numbers."""
    bare = {key: value for key, value in facts.items() if key != "release"}
    return json.loads(
        json.dumps(bare), object_hook=lambda item: {k: v for k, v in item.items() if k != "from"}
    )


def wheel(release: str) -> WheelSource:
    """The release's wheel on PyPI; cached like those of the other engines.

    Raises:
        UnreadableError: PyPI has no such release.
    """
    for file in _project_files("sglang"):
        name = file["filename"]
        wanted = name.endswith(("-any.whl", "x86_64.whl"))
        if wanted and name.startswith(f"sglang-{release}-") and not file.get("yanked"):
            home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
            cache = os.path.join(home, "ckpt-patch", "sources", f"sglang-{release}")
            return WheelSource(file["url"], cache)
    raise UnreadableError(f"PyPI has no wheel of sglang {release}")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("release", nargs="+")
    for release in parser.parse_args().release:
        print(save(release, extract(release, wheel(release))))  # noqa: T201


if __name__ == "__main__":
    main()
